//! One packing in the making: the state that fill rules work on.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::classes::dimensions::{room, with_requests};
use crate::classes::{Classes, PodCounts};
use crate::ids::{BinId, ClassId, EligibilityId, GroupId, IndexVec, TermId};
use crate::offerings::eligibility::UNCAPPED;
use crate::offerings::index::OfferingIndex;
use crate::offerings::min_values::{charge, room_keeping_values, values_to_keep};
use crate::packing::bin_queue::Cursor;
use crate::packing::bins::{Bins, Fit};
use crate::packing::existing::{ExistingNodes, ExistingPlacement};
use crate::packing::limit_ledger::LimitLedger;
use crate::packing::open_bin::Load;
use crate::packing::result::Packing;
use crate::packing::rounded_columns::{self, RoundedColumns};
use crate::packing::strategy::{FillRule, Strategy};
use crate::packing::{constrained_patterns, first_fit, patterns};
use crate::topology::counts::{Allowance, Topology};
use crate::topology::domains::DomainAssignment;
use crate::topology::groups::TopologyRules;

/// The cluster before a packing.
#[derive(Clone, Default)]
pub(crate) struct ClusterState<'a> {
    pub(crate) existing: ExistingNodes<'a>,
    pub(crate) topology: Topology,
    /// Smallest `maxSkew` over each topology group.
    pub(crate) min_skews: Rc<IndexVec<GroupId, Option<i64>>>,
    pub(crate) rules: Rc<TopologyRules<'a>>,
}

/// The pods to pack.
#[derive(Clone, Copy)]
pub(crate) struct PackingProblem<'t, 'a> {
    pub(crate) classes: &'t Classes<'a>,
    /// Number of pods of each class.
    pub(crate) pending: &'t PodCounts,
    /// Upper limit on the pods of a new node.
    pub(crate) max_pods: Allowance,
    /// Number of nodes left in each capacity reservation.
    pub(crate) reservations: &'t BTreeMap<String, u32>,
    /// For each class, the smallest request of it and all classes after it.
    pub(crate) smallest_ahead: &'t IndexVec<ClassId, Vec<i64>>,
    /// Shadow price of one unit of each dimension.
    pub(crate) shadow_prices: &'t [f64],
}

/// A packing in the making.
pub(crate) struct Packer<'m, 'a> {
    pub(super) offerings: &'m mut OfferingIndex<'a>,
    pub(super) classes: &'m Classes<'a>,
    pub(super) strategy: Strategy,
    pub(super) max_pods: Allowance,
    pub(super) bins: Bins,
    pub(super) ledger: LimitLedger,
    pub(super) cluster: ClusterState<'a>,
    /// Pods that went onto existing nodes during the packing.
    pub(super) on_existing: Vec<ExistingPlacement>,
    /// Set while placing pods whose bins cannot be restricted to a domain: they count only where
    /// the bin's domain is already known.
    pub(super) ignores_domains: bool,
}

/// Packs the pending pods. With an inactive ledger the caller must check the limits afterwards;
/// [`Packing::price`] does.
pub(crate) fn pack<'m, 'a>(
    offerings: &'m mut OfferingIndex<'a>,
    problem: &PackingProblem<'m, 'a>,
    cluster: ClusterState<'a>,
    strategy: Strategy,
    keeps_ledger: bool,
    columns: Option<&RoundedColumns<'_>>,
) -> Packing {
    let width = offerings.width;
    let ledger = if keeps_ledger {
        LimitLedger::active(offerings)
    } else {
        LimitLedger::inactive(offerings)
    };
    let by_pods = strategy.fill_rule == FillRule::Incumbent;
    let smallest_ahead = problem.smallest_ahead.iter().next().cloned().unwrap_or_default();
    let mut packer = Packer {
        classes: problem.classes,
        strategy,
        max_pods: problem.max_pods,
        bins: Bins::new(width, by_pods, smallest_ahead),
        ledger,
        cluster,
        on_existing: Vec::new(),
        ignores_domains: false,
        offerings,
    };
    let mut unplaced = problem.pending.clone();
    packer.open_reservations(problem.reservations, unplaced.iter().sum());
    let prices = problem.shadow_prices;
    match strategy.fill_rule {
        FillRule::Patterns => patterns::pack(&mut packer, &mut unplaced, prices),
        FillRule::ConstrainedPatterns => constrained_patterns::pack(&mut packer, &mut unplaced),
        FillRule::Columns => rounded_columns::pack(&mut packer, &mut unplaced, prices, columns),
        FillRule::Incumbent | FillRule::InOrder => {
            first_fit::pack(&mut packer, &mut unplaced, problem.smallest_ahead);
        }
    }
    packer.retry_constrained(&mut unplaced);
    let over_host_limit = packer.place_leftovers(&mut unplaced);
    packer.bins.drop_empty();
    packer.bind_uncounted();
    for (id, class) in problem.classes.list.enumerate().filter(|(id, class)| *id > class.base) {
        unplaced[class.base] += std::mem::take(&mut unplaced[id]);
    }
    let (bins, used) = packer.bins.into_parts();
    Packing {
        bins,
        used,
        width,
        unplaced,
        over_host_limit,
        ledger: packer.ledger,
        on_existing: packer.on_existing,
        topology: packer.cluster.topology,
    }
}

impl Packer<'_, '_> {
    /// Whether bins are filled in the incumbent's order, with the fewest pods first.
    pub(super) fn fills_evenly(&self) -> bool {
        self.strategy.fill_rule == FillRule::Incumbent
    }

    /// Moves a cursor to the next bin that can still grow.
    pub(super) fn next_bin(&mut self, cursor: &mut Cursor) -> Option<BinId> {
        self.bins.next(cursor, self.max_pods, &self.offerings.effort)
    }

    /// Places pods of a class on existing nodes and returns how many are left.
    pub(super) fn fill_existing(&mut self, class: ClassId, count: usize) -> usize {
        let ClusterState { existing, topology, .. } = &mut self.cluster;
        existing.fill_with(class, count, self.classes, topology, &mut self.on_existing)
    }

    /// Budget of a bin under the limits of its pool.
    pub(super) fn budget(&self, bin: BinId) -> Vec<i64> {
        let bin = &self.bins[bin];
        self.ledger.budget(self.offerings.eligible(bin.eligibility).pool, &bin.charge)
    }

    /// The eligibility set with one more term in the domains of an assignment.
    pub(super) fn narrow(
        &mut self,
        from: EligibilityId,
        term: TermId,
        assignment: &DomainAssignment,
    ) -> Option<EligibilityId> {
        let narrowed = self.offerings.narrow(from, term)?;
        self.offerings.assign(narrowed, assignment)
    }

    /// Finds the first term of a class that suits a bin, and the number of pods that fit.
    pub(super) fn fit(
        &mut self,
        bin: BinId,
        class: ClassId,
        max: usize,
        assignment: &DomainAssignment,
    ) -> Option<Fit> {
        let id = class;
        let class = &self.classes[id];
        if !self.bins.may_hold(bin, &class.requests) {
            return None;
        }
        let (from, cap) = (self.bins[bin].eligibility, self.bins[bin].cap);
        let max = self.max_pods.less(self.bins[bin].pods).of(max);
        let pool = self.offerings.eligible(from).pool;
        if max == 0 || !self.offerings.tolerates(pool, class) {
            return None;
        }
        for term in &class.terms {
            let Some(eligibility) = self.narrow(from, *term, assignment) else { continue };
            let entry = &self.bins[bin];
            let used = self.bins.used(bin);
            let room = if eligibility == from && !self.ledger.is_limited(pool) {
                let table = &self.offerings.pools[pool];
                let each = entry.frontier.types.iter();
                each.map(|one| room(table.free(*one), used, &class.requests, max))
                    .max()
                    .unwrap_or(0)
            } else {
                let budget = self.ledger.budget(pool, &entry.charge);
                let load = Load { used, requests: &class.requests, max };
                load.max_room(self.offerings, eligibility, cap, &budget)
            };
            let room = self.room_keeping_values(bin, eligibility, &class.requests, room);
            if room > 0 && self.may_begin(bin, id) {
                return Some(Fit { eligibility, room });
            }
        }
        None
    }

    /// Number of pods, at most `room`, that leave a bin the `minValues` of its pool.
    fn room_keeping_values(
        &self,
        bin: BinId,
        eligibility: EligibilityId,
        requests: &[i64],
        room: usize,
    ) -> usize {
        let eligible = self.offerings.eligible(eligibility);
        if room == 0 || eligible.min_values.is_empty() {
            return room;
        }
        let entry = &self.bins[bin];
        let used = self.bins.used(bin);
        let budget = self.ledger.budget(eligible.pool, &entry.charge);
        let room_with = |keep: &[usize]| {
            room_keeping_values(self.offerings, eligible, keep, used, requests, room, &budget)
        };
        if entry.pods > 0 {
            return room_with(&entry.keep);
        }
        let keep = values_to_keep(self.offerings, eligible, requests, &budget);
        keep.map_or(0, |keep| room_with(&keep))
    }

    /// Adds pods of a class to a bin and returns how many were added: all, or none if the limits
    /// leave no room.
    pub(super) fn add(&mut self, bin: BinId, class: ClassId, fit: &Fit, count: usize) -> usize {
        let id = class;
        let class = &self.classes[id];
        let eligible = self.offerings.eligible(fit.eligibility);
        let pool = eligible.pool;
        let budget = self.ledger.budget(pool, &self.bins[bin].charge);
        if self.bins[bin].pods == 0 {
            let keep = values_to_keep(self.offerings, eligible, &class.requests, &budget);
            self.bins.set_keep(bin, keep.unwrap_or_default());
        }
        if self.ledger.is_limited(pool) {
            let with = with_requests(self.bins.used(bin), &class.requests, count);
            let keep = &self.bins[bin].keep;
            let Some(new) = charge(self.offerings, eligible, &with, keep, &budget) else {
                return 0;
            };
            self.ledger.recharge(pool, &self.bins[bin].charge, &new);
            self.bins.set_charge(bin, new);
        }
        if self.bins[bin].eligibility != fit.eligibility {
            let frontier = self.offerings.frontier(fit.eligibility, self.bins[bin].cap);
            self.bins.restrict(bin, fit.eligibility, frontier);
        }
        self.bins.add(bin, id, &class.requests, count);
        if class.is_only_counted || self.ignores_domains {
            self.count_where_known(bin, id, count);
        }
        count
    }

    /// Opens an empty bin; see [`Bins::open`].
    pub(super) fn open_bin(&mut self, eligibility: EligibilityId, cap: i64) -> BinId {
        let limits = self.ledger.left(self.offerings.eligible(eligibility).pool).len();
        let frontier = self.offerings.frontier(eligibility, cap);
        self.bins.open(eligibility, cap, frontier, limits)
    }

    /// Opens a bin for each node of a capacity reservation, which is paid for in any case, as far
    /// as there are pods. Bins that stay empty are dropped at the end.
    fn open_reservations(&mut self, reservations: &BTreeMap<String, u32>, pods: usize) {
        for (reservation, count) in reservations {
            let count = usize::try_from(*count).unwrap_or(usize::MAX).min(pods);
            let pools = self.offerings.pools.ids();
            let sets: Vec<EligibilityId> =
                pools.filter_map(|pool| self.offerings.reserved(pool, reservation)).collect();
            // Pools that share a reservation share its nodes: the heaviest pool gets them.
            let Some(eligibility) = sets.first().copied() else { continue };
            for _ in 0..count {
                let bin = self.open_bin(eligibility, UNCAPPED);
                self.bins.enqueue_empty(bin);
            }
        }
    }

    /// Whether a pod may be the first on a bin: reserved capacity does not outweigh a heavier pool.
    fn may_begin(&mut self, bin: BinId, class: ClassId) -> bool {
        if self.bins[bin].pods > 0 {
            return true;
        }
        let weight = self.offerings.table_of(self.bins[bin].eligibility).pool.weight;
        self.best_new_bin(class, 1, &DomainAssignment::default())
            .is_none_or(|best| best.weight <= weight)
    }
}
