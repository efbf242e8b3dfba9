//! Pods that block disruption share nodes.
//!
//! One pod that must not be evicted keeps its whole node from consolidation. So once a packing is
//! chosen, such pods change places with others until as few bins as possible have one. Only bins
//! with the same eligible offerings and domains exchange pods, and none gets dearer.

use std::collections::BTreeMap;

use crate::classes::Classes;
use crate::classes::dimensions::add_requests;
use crate::ids::{BinId, ClassId, EligibilityId, Id, KeyId};
use crate::offerings::index::OfferingIndex;
use crate::packing::result::Packing;
use crate::topology::counts::Allowance;
use crate::topology::domains::Domain;

/// Upper limit on the exchanges that are tried for one packing.
const MAX_TRIES: usize = 50_000;

/// Upper limit on the pods that one pod changes places with.
const MAX_EXCHANGED: usize = 16;

/// Upper limit on the bins that one bin's blocking pods are offered to.
const MAX_RECEIVERS: usize = 16;

impl Packing {
    /// Moves pods that block disruption onto as few bins as possible; whether any moved. Needs a
    /// priced packing, and raises no price.
    pub(crate) fn gather_blockers(
        &mut self,
        offerings: &OfferingIndex<'_>,
        classes: &Classes<'_>,
        max_pods: Allowance,
    ) -> bool {
        if !classes.list.iter().any(|class| class.blocks_disruption) {
            return false;
        }
        let mut tries = MAX_TRIES;
        let mut gathered = Vec::new();
        for (eligibility, bins) in self.alike(offerings, classes) {
            let mut exchange = Exchange::new(self, offerings, classes, eligibility, max_pods, bins);
            if exchange.gather(&mut tries) {
                gathered.extend(exchange.bins);
            }
        }
        if gathered.is_empty() {
            return false;
        }
        let before = (self.bins.clone(), self.used.clone(), self.ledger.clone());
        for Contents { id, pods, used, .. } in gathered {
            self.set_content(id, pods, &used);
        }
        self.drop_empty();
        // A bin that lost pods may be cheaper now, as a type that counts more against a limit.
        let is_within_limits = self.price(offerings, false).is_some();
        if !is_within_limits {
            (self.bins, self.used, self.ledger) = before;
        }
        is_within_limits
    }

    /// Replaces the pods of a bin.
    fn set_content(&mut self, bin: BinId, pods: BTreeMap<ClassId, usize>, used: &[i64]) {
        let start = bin.index() * self.width;
        self.used[start..start + self.width].copy_from_slice(used);
        let bin = &mut self.bins[bin];
        bin.pods = pods.values().sum();
        bin.content = pods.into_iter().collect();
    }

    /// Removes the bins without pods.
    fn drop_empty(&mut self) {
        let kept = self.bins.ids().filter(|bin| self.bins[*bin].pods > 0);
        self.used = kept.flat_map(|bin| self.used(bin)).copied().collect();
        self.bins.raw_mut().retain(|bin| bin.pods > 0);
    }

    /// Bins that may exchange pods, if at least two of them have pods that block disruption.
    fn alike(
        &self,
        offerings: &OfferingIndex<'_>,
        classes: &Classes<'_>,
    ) -> Vec<(EligibilityId, Vec<BinId>)> {
        type Key = (EligibilityId, Vec<(KeyId, Domain)>);
        let mut alike: BTreeMap<Key, Vec<BinId>> = BTreeMap::new();
        let blocks = |class: &ClassId| classes[*class].blocks_disruption;
        for (id, bin) in self.bins.enumerate() {
            let has_blocker = bin.content.iter().any(|(class, _)| blocks(class));
            if has_blocker && bin.may_exchange_pods(offerings, classes) {
                let mut domains = bin.domains.clone();
                domains.sort_unstable();
                alike.entry((bin.eligibility, domains)).or_default().push(id);
            }
        }
        let several = alike.into_iter().filter(|(_, bins)| bins.len() > 1);
        several.map(|((eligibility, _), bins)| (eligibility, bins)).collect()
    }
}

/// Bins that exchange pods.
struct Exchange<'e, 'a> {
    offerings: &'e OfferingIndex<'a>,
    classes: &'e Classes<'a>,
    eligibility: EligibilityId,
    max_pods: Allowance,
    bins: Vec<Contents>,
    /// Moves since the last bin without blocking pods, so that they can be undone.
    moves: Vec<PodMove>,
}

/// A bin during an exchange.
struct Contents {
    id: BinId,
    pods: BTreeMap<ClassId, usize>,
    used: Vec<i64>,
    price: i64,
}

/// Pods of a class that moved between two bins, by their positions.
#[derive(Clone, Copy)]
struct PodMove {
    class: ClassId,
    from: usize,
    to: usize,
    count: usize,
}

impl<'e, 'a> Exchange<'e, 'a> {
    fn new(
        packing: &Packing,
        offerings: &'e OfferingIndex<'a>,
        classes: &'e Classes<'a>,
        eligibility: EligibilityId,
        max_pods: Allowance,
        bins: Vec<BinId>,
    ) -> Self {
        let contents = |id: BinId| {
            let mut pods: BTreeMap<ClassId, usize> = BTreeMap::new();
            for (class, count) in &packing.bins[id].content {
                *pods.entry(*class).or_default() += count;
            }
            let price = packing.bins[id].price.micros();
            Contents { id, pods, used: packing.used(id).to_vec(), price }
        };
        let bins = bins.into_iter().map(contents).collect();
        Self { offerings, classes, eligibility, max_pods, bins, moves: Vec::new() }
    }

    /// Empties bins of blocking pods, those with the fewest first; whether any bin was.
    fn gather(&mut self, tries: &mut usize) -> bool {
        let mut order: Vec<usize> = (0..self.bins.len()).collect();
        order.sort_by_key(|number| (self.blockers(*number), *number));
        let mut gathered = false;
        for (rank, from) in order.iter().enumerate() {
            // The bins with the most blocking pods receive.
            let receivers: Vec<usize> =
                order[rank + 1..].iter().rev().take(MAX_RECEIVERS).copied().collect();
            if self.move_all(*from, &receivers, tries) {
                gathered = true;
                self.moves.clear();
            } else {
                self.undo();
            }
        }
        gathered
    }

    /// Number of blocking pods on a bin.
    fn blockers(&self, number: usize) -> usize {
        let pods = self.bins[number].pods.iter();
        pods.filter(|(class, _)| self.classes[**class].blocks_disruption).map(|(_, n)| n).sum()
    }

    /// Moves all blocking pods of a bin to receivers; `false` if one has no place.
    fn move_all(&mut self, from: usize, receivers: &[usize], tries: &mut usize) -> bool {
        let pods = self.bins[from].pods.iter();
        let blockers = pods.filter(|(class, _)| self.classes[**class].blocks_disruption);
        let blockers: Vec<(ClassId, usize)> = blockers.map(|(id, count)| (*id, *count)).collect();
        for (class, count) in blockers {
            for _ in 0..count {
                if !receivers.iter().any(|to| self.move_one(class, from, *to, tries)) {
                    return false;
                }
            }
        }
        true
    }

    /// Moves a pod, in exchange for other pods if there is no room for it.
    fn move_one(&mut self, class: ClassId, from: usize, to: usize, tries: &mut usize) -> bool {
        self.shift(PodMove { class, from, to, count: 1 });
        if self.fits(to, tries) {
            return true;
        }
        let others = self.bins[to].pods.iter();
        let others = others.filter(|(other, _)| !self.classes[**other].blocks_disruption);
        let others: Vec<(ClassId, usize)> = others.map(|(id, count)| (*id, *count)).collect();
        for (other, count) in others {
            let mut given = 0;
            while given < count.min(MAX_EXCHANGED) && !self.fits(to, tries) {
                self.shift(PodMove { class: other, from: to, to: from, count: 1 });
                given += 1;
            }
            if self.fits(to, tries) && self.fits(from, tries) {
                return true;
            }
            for _ in 0..given {
                self.undo_last();
            }
        }
        self.undo_last();
        false
    }

    /// Whether a bin is worth no more than before.
    fn fits(&self, number: usize, tries: &mut usize) -> bool {
        if *tries == 0 {
            return false;
        }
        *tries -= 1;
        let bin = &self.bins[number];
        let pods: usize = bin.pods.values().sum();
        let price = self.offerings.lowest_price(self.eligibility, &bin.used, &[]);
        self.max_pods.of(pods) == pods && price.is_some_and(|price| price.micros() <= bin.price)
    }

    fn shift(&mut self, one: PodMove) {
        self.apply(one);
        self.moves.push(one);
    }

    fn undo_last(&mut self) {
        if let Some(PodMove { class, from, to, count }) = self.moves.pop() {
            self.apply(PodMove { class, from: to, to: from, count });
        }
    }

    fn undo(&mut self) {
        while !self.moves.is_empty() {
            self.undo_last();
        }
    }

    fn apply(&mut self, one: PodMove) {
        let requests = &self.classes[one.class].requests;
        let from = &mut self.bins[one.from];
        if let Some(count) = from.pods.get_mut(&one.class) {
            *count -= one.count;
            if *count == 0 {
                from.pods.remove(&one.class);
            }
        }
        for (used, request) in from.used.iter_mut().zip(requests) {
            *used -= request.saturating_mul(i64::try_from(one.count).unwrap_or(i64::MAX));
        }
        let to = &mut self.bins[one.to];
        *to.pods.entry(one.class).or_default() += one.count;
        add_requests(&mut to.used, requests, one.count);
    }
}
