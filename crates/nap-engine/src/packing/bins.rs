//! Bins: hypothetical nodes.
//!
//! A [`Bin`] has a pool, the requirements and requests of its pods, and no type yet. A pod is added
//! while at least one offering holds everything; the offering is chosen when the plan is written.

use std::ops::Index;
use std::rc::Rc;

use nap_units::UsdPerHour;

use crate::classes::Classes;
use crate::classes::dimensions::{add_requests, holds};
use crate::ids::{BinId, ClassId, EligibilityId, Id, Ids, IndexVec, KeyId};
use crate::model::RESERVATION_ID;
use crate::offerings::effort::EffortMeter;
use crate::offerings::eligibility::Frontier;
use crate::offerings::index::OfferingIndex;
use crate::packing::bin_queue::{BinQueue, Cursor};
use crate::topology::counts::Allowance;
use crate::topology::domains::Domain;

/// A hypothetical node.
#[derive(Clone)]
pub(crate) struct Bin {
    pub(crate) eligibility: EligibilityId,
    /// Classes with the number of their pods on the bin.
    pub(crate) content: Vec<(ClassId, usize)>,
    /// Number of pods.
    pub(crate) pods: usize,
    /// Size cap in milli-cores.
    pub(crate) cap: i64,
    /// Domains that the bin is restricted to.
    pub(crate) domains: Vec<(KeyId, Domain)>,
    /// Pods that are counted by a topology label whose domain is not known yet.
    pub(crate) uncounted: Vec<(ClassId, usize)>,
    /// Number of values that the choice of types must keep, for each `minValues` rule.
    pub(crate) keep: Vec<usize>,
    /// Types that the bin may still grow to.
    pub(crate) frontier: Rc<Frontier>,
    /// Amounts charged to the limit ledger; empty in a pool without limits.
    pub(crate) charge: Vec<i64>,
    /// Price, once the packing is priced.
    pub(crate) price: UsdPerHour,
}

impl Bin {
    /// Whether pods may move between this bin and others of the same domains without affecting any
    /// rule.
    pub(crate) fn may_exchange_pods(
        &self,
        offerings: &OfferingIndex<'_>,
        classes: &Classes<'_>,
    ) -> bool {
        let eligible = offerings.eligible(self.eligibility);
        eligible.requirements.get(RESERVATION_ID).is_none()
            && eligible.min_values.is_empty()
            && self.uncounted.is_empty()
            && self.domains.iter().all(|(_, domain)| *domain != Domain::Absent)
            && self.content.iter().all(|(class, _)| classes[*class].is_movable())
    }

    /// Domain of one label; `None` while the bin is not restricted by it.
    pub(crate) fn domain(&self, key: KeyId) -> Option<Domain> {
        self.domains.iter().find(|(other, _)| *other == key).map(|(_, domain)| *domain)
    }
}

/// A number of pods that fit onto a bin, and the eligibility set that it then has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fit {
    pub(crate) eligibility: EligibilityId,
    pub(crate) room: usize,
}

/// All bins of a packing.
pub(crate) struct Bins {
    list: IndexVec<BinId, Bin>,
    /// Sum of the requests on each bin, one row of `width` dimensions after another.
    used: Vec<i64>,
    /// Upper bound on what any type of the bin's frontier has left: most pods that do not fit are
    /// rejected by this alone.
    slack: Vec<i64>,
    width: usize,
    queue: BinQueue,
    /// Smallest request that is still to come; bins that cannot hold it leave the queue.
    smallest_ahead: Vec<i64>,
}

impl Index<BinId> for Bins {
    type Output = Bin;

    fn index(&self, bin: BinId) -> &Bin {
        &self.list[bin]
    }
}

impl Bins {
    /// No bins yet. `by_pods` puts bins with the fewest pods first, otherwise the oldest.
    pub(crate) fn new(width: usize, by_pods: bool, smallest_ahead: Vec<i64>) -> Self {
        Self {
            list: IndexVec::new(),
            used: Vec::new(),
            slack: Vec::new(),
            width,
            queue: BinQueue::new(by_pods),
            smallest_ahead,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn ids(&self) -> Ids<BinId> {
        self.list.ids()
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Bin> {
        self.list.iter()
    }

    /// Id of the bin that is opened next.
    pub(crate) fn next_id(&self) -> BinId {
        self.list.next_id()
    }

    fn row(&self, bin: BinId) -> std::ops::Range<usize> {
        bin.index() * self.width..(bin.index() + 1) * self.width
    }

    /// Sum of the requests on a bin.
    pub(crate) fn used(&self, bin: BinId) -> &[i64] {
        &self.used[self.row(bin)]
    }

    /// Whether a request may fit onto a bin; `false` is certain.
    pub(crate) fn may_hold(&self, bin: BinId, request: &[i64]) -> bool {
        holds(&self.slack[self.row(bin)], request)
    }

    /// Opens an empty bin outside the queue. It must be filled, or popped again, before anything
    /// else happens.
    pub(crate) fn open(
        &mut self,
        eligibility: EligibilityId,
        cap: i64,
        frontier: Rc<Frontier>,
        limits: usize,
    ) -> BinId {
        self.used.resize(self.used.len() + self.width, 0);
        self.slack.extend(&frontier.max);
        self.list.push(Bin {
            eligibility,
            content: Vec::new(),
            pods: 0,
            cap,
            domains: Vec::new(),
            uncounted: Vec::new(),
            keep: Vec::new(),
            frontier,
            charge: vec![0; limits],
            price: UsdPerHour::ZERO,
        })
    }

    /// Removes the last bin, which must be empty.
    pub(crate) fn pop(&mut self) {
        debug_assert!(self.list.iter().last().is_none_or(|bin| bin.pods == 0), "the bin is empty");
        self.list.raw_mut().pop();
        self.used.truncate(self.list.len() * self.width);
        self.slack.truncate(self.list.len() * self.width);
    }

    /// Adds pods to a bin, which enters the queue.
    pub(crate) fn add(&mut self, bin: BinId, class: ClassId, requests: &[i64], count: usize) {
        let row = self.row(bin);
        add_requests(&mut self.used[row], requests, count);
        self.update_slack(bin);
        let entry = &mut self.list[bin];
        entry.pods += count;
        match entry.content.last_mut() {
            Some((last, placed)) if *last == class => *placed += count,
            _ => entry.content.push((class, count)),
        }
        self.queue.put(bin, entry.pods);
    }

    fn update_slack(&mut self, bin: BinId) {
        let row = self.row(bin);
        let used = self.used[row.clone()].iter().zip(&mut self.slack[row]);
        for ((used, slack), max) in used.zip(&self.list[bin].frontier.max) {
            *slack = max.saturating_sub(*used);
        }
    }

    /// Replaces the eligibility set of a bin. The caller updates the frontier of `bin.cap`.
    pub(crate) fn restrict(
        &mut self,
        bin: BinId,
        eligibility: EligibilityId,
        frontier: Rc<Frontier>,
    ) {
        let entry = &mut self.list[bin];
        entry.eligibility = eligibility;
        entry.frontier = frontier;
        self.update_slack(bin);
    }

    /// Lets a bin grow to a larger size.
    pub(crate) fn raise_cap(&mut self, bin: BinId, cap: i64, frontier: Rc<Frontier>) {
        self.list[bin].cap = cap;
        self.restrict(bin, self.list[bin].eligibility, frontier);
    }

    /// Sets the number of values that the choice of types must keep.
    pub(crate) fn set_keep(&mut self, bin: BinId, keep: Vec<usize>) {
        self.list[bin].keep = keep;
    }

    /// Sets the charge of a bin.
    pub(crate) fn set_charge(&mut self, bin: BinId, charge: Vec<i64>) {
        self.list[bin].charge = charge;
    }

    /// Sets the domains of a bin and its pods that remain uncounted.
    pub(crate) fn set_domains(
        &mut self,
        bin: BinId,
        domains: Vec<(KeyId, Domain)>,
        uncounted: Vec<(ClassId, usize)>,
    ) {
        let entry = &mut self.list[bin];
        (entry.domains, entry.uncounted) = (domains, uncounted);
    }

    /// Notes pods that are not counted by every label yet.
    pub(crate) fn add_uncounted(&mut self, bin: BinId, class: ClassId, count: usize) {
        self.list[bin].uncounted.push((class, count));
    }

    /// Adds capacity of one dimension to every bin, beyond what the types have.
    pub(crate) fn add_capacity(&mut self, dimension: usize, by: i64) {
        for row in 0..self.list.len() {
            self.used[row * self.width + dimension] -= by;
            self.slack[row * self.width + dimension] += by;
        }
    }

    /// Moves a cursor to the next bin of the queue that can still grow. Bins that cannot leave the
    /// queue.
    pub(crate) fn next(
        &mut self,
        cursor: &mut Cursor,
        max_pods: Allowance,
        effort: &EffortMeter,
    ) -> Option<BinId> {
        while let Some(bin) = self.queue.next(cursor) {
            effort.spend(1);
            let is_full = max_pods.less(self.list[bin].pods).is_none();
            if !is_full && self.may_hold(bin, &self.smallest_ahead) {
                return Some(bin);
            }
            self.queue.close(bin);
        }
        None
    }

    /// Puts a bin without pods into the queue.
    pub(crate) fn enqueue_empty(&mut self, bin: BinId) {
        self.queue.put(bin, 0);
    }

    /// Takes a bin out of the queue.
    pub(crate) fn close(&mut self, bin: BinId) {
        self.queue.close(bin);
    }

    /// Compacts the queue. No cursor stays valid.
    pub(crate) fn compact_queue(&mut self) {
        self.queue.compact();
    }

    /// Sets the smallest request that is still to come.
    pub(crate) fn expect(&mut self, smallest_ahead: &[i64]) {
        self.smallest_ahead.clear();
        self.smallest_ahead.extend(smallest_ahead);
    }

    /// Puts every bin back into the queue, for requests of any size.
    pub(crate) fn reopen(&mut self) {
        self.smallest_ahead = vec![0; self.width];
        self.queue.clear();
        for (id, bin) in self.list.enumerate() {
            self.queue.put(id, bin.pods);
        }
    }

    /// Removes the bins without pods. Ids of later bins change, and the queue becomes invalid.
    pub(crate) fn drop_empty(&mut self) {
        if self.list.iter().all(|bin| bin.pods > 0) {
            return;
        }
        let kept: Vec<BinId> = self.ids().filter(|bin| self.list[*bin].pods > 0).collect();
        let keep_rows = |rows: &[i64]| -> Vec<i64> {
            kept.iter().flat_map(|bin| &rows[self.row(*bin)]).copied().collect()
        };
        (self.used, self.slack) = (keep_rows(&self.used), keep_rows(&self.slack));
        self.list.raw_mut().retain(|bin| bin.pods > 0);
    }

    /// The bins and the sums of their requests.
    pub(crate) fn into_parts(self) -> (IndexVec<BinId, Bin>, Vec<i64>) {
        (self.list, self.used)
    }
}
