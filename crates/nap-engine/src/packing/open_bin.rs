//! Choosing the pool and the size cap of a new bin.

use nap_units::UsdPerHour;

use crate::classes::Class;
use crate::classes::dimensions::{room, room_when_empty};
use crate::ids::{ClassId, EligibilityId, PoolId};
use crate::offerings::eligibility::UNCAPPED;
use crate::offerings::index::OfferingIndex;
use crate::offerings::min_values::{room_keeping_values, values_to_keep};
use crate::packing::bins::Fit;
use crate::packing::packer::Packer;
use crate::packing::strategy::SizeCap;
use crate::topology::domains::DomainAssignment;

/// A bin that a class could open.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewBin {
    /// Weight of the pool.
    pub(super) weight: i32,
    pub(super) value: PricePerPod,
    pub(super) fit: Fit,
    /// Size cap in milli-cores.
    pub(super) cap: i64,
}

/// Price of a node and the number of pods that it holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct PricePerPod {
    price: UsdPerHour,
    pods: usize,
}

impl PricePerPod {
    /// Whether the price per pod is lower, or the same for more pods.
    pub(super) fn cheaper_than(&self, other: &Self) -> bool {
        let mine = i128::from(self.price.micros()).saturating_mul(other.pods as i128);
        let theirs = i128::from(other.price.micros()).saturating_mul(self.pods as i128);
        mine < theirs || (mine == theirs && self.pods > other.pods)
    }
}

/// Requests to be added to what a bin already holds.
pub(super) struct Load<'l> {
    pub(super) used: &'l [i64],
    pub(super) requests: &'l [i64],
    /// Upper limit on the number of requests.
    pub(super) max: usize,
}

impl Load<'_> {
    /// Number of requests that the largest eligible types hold, within the budget of the limits; an
    /// empty budget stands for no limits.
    pub(super) fn max_room(
        &self,
        offerings: &mut OfferingIndex<'_>,
        eligibility: EligibilityId,
        cap: i64,
        budget: &[i64],
    ) -> usize {
        let Self { used, requests, max } = *self;
        if budget.is_empty() {
            let frontier = offerings.frontier(eligibility, cap);
            let table = offerings.table_of(eligibility);
            let each = frontier.types.iter().map(|id| room(table.free(*id), used, requests, max));
            return each.max().unwrap_or(0);
        }
        let eligible = offerings.eligible(eligibility);
        let table = offerings.table(eligible);
        offerings.effort.spend(eligible.types.len());
        eligible
            .types
            .iter()
            .map(|one| one.id)
            .filter(|id| table.types[*id].cpu <= cap && table.within_limits(*id, budget))
            .map(|id| room(table.free(id), used, requests, max))
            .max()
            .unwrap_or(0)
    }
}

impl Packer<'_, '_> {
    /// The best bin that a class could open for up to `max` pods: in the heaviest pool that can
    /// hold a pod, and among pools of equal weight with the lowest price per pod.
    pub(super) fn best_new_bin(
        &mut self,
        class: ClassId,
        max: usize,
        assignment: &DomainAssignment,
    ) -> Option<NewBin> {
        let class = &self.classes[class];
        let mut best: Option<NewBin> = None;
        for pool in self.offerings.pools.ids() {
            let weight = self.offerings.pools[pool].pool.weight;
            if best.as_ref().is_some_and(|best| self.fills_evenly() || best.weight > weight) {
                break;
            }
            if let Some(bin) = self.new_bin(pool, class, max, assignment)
                && best.as_ref().is_none_or(|best| bin.value.cheaper_than(&best.value))
            {
                best = Some(bin);
            }
        }
        best
    }

    /// The bin that a class could open in one pool.
    fn new_bin(
        &mut self,
        pool: PoolId,
        class: &Class<'_>,
        max: usize,
        assignment: &DomainAssignment,
    ) -> Option<NewBin> {
        if !self.offerings.tolerates(pool, class) {
            return None;
        }
        let empty = vec![0; self.offerings.width];
        for term in &class.terms {
            let start = EligibilityId::of_pool(pool);
            let Some(eligibility) = self.narrow(start, *term, assignment) else { continue };
            let (value, cap) = if self.fills_evenly() {
                // The incumbent regards neither price nor size.
                (PricePerPod { price: UsdPerHour::ZERO, pods: 1 }, UNCAPPED)
            } else {
                match self.best_value(eligibility, class, max) {
                    Some(found) => found,
                    None => continue,
                }
            };
            let left = self.ledger.left(pool);
            let load = Load { used: &empty, requests: &class.requests, max };
            let room = load.max_room(self.offerings, eligibility, cap, left);
            let eligible = self.offerings.eligible(eligibility);
            let keep = values_to_keep(self.offerings, eligible, &class.requests, left);
            let room = keep.map_or(0, |keep| {
                let requests = &class.requests;
                room_keeping_values(self.offerings, eligible, &keep, &empty, requests, room, left)
            });
            if room > 0 {
                let weight = self.offerings.pools[pool].pool.weight;
                return Some(NewBin { weight, value, fit: Fit { eligibility, room }, cap });
            }
        }
        None
    }

    /// The lowest price per pod that an eligibility set has for a class, and the size cap of a bin
    /// for it.
    fn best_value(
        &self,
        eligibility: EligibilityId,
        class: &Class<'_>,
        max: usize,
    ) -> Option<(PricePerPod, i64)> {
        let eligible = self.offerings.eligible(eligibility);
        let table = self.offerings.table(eligible);
        let left = self.ledger.left(eligible.pool);
        self.offerings.effort.spend(eligible.types.len());
        let mut best: Option<(PricePerPod, i64)> = None;
        let mut smallest: Option<i64> = None;
        for one in &eligible.types {
            let cpu = table.types[one.id].cpu;
            let pods = room_when_empty(table.free(one.id), &class.requests, max);
            if pods == 0 || !table.within_limits(one.id, left) {
                continue;
            }
            let value = PricePerPod { price: one.price, pods };
            smallest = Some(smallest.map_or(cpu, |smallest| smallest.min(cpu)));
            let capped = matches!(self.strategy.cap, SizeCap::Cpu(cap) if cpu > cap);
            if !capped && best.as_ref().is_none_or(|(best, _)| value.cheaper_than(best)) {
                best = Some((value, cpu));
            }
        }
        let smallest = smallest?;
        let cap = match (self.strategy.cap, &best) {
            (SizeCap::None, _) => UNCAPPED,
            (SizeCap::Cpu(cap), _) => cap.max(smallest),
            (SizeCap::BestValue, best) => best.as_ref().map_or(smallest, |(_, cpu)| *cpu),
        };
        // Above the cap only the smallest sizes are admitted; their price per pod is close enough
        // to compare pools by.
        let value = match best {
            Some((value, _)) => value,
            None => eligible
                .types
                .iter()
                .filter(|one| table.types[one.id].cpu <= cap && table.within_limits(one.id, left))
                .filter(|one| room_when_empty(table.free(one.id), &class.requests, 1) == 1)
                .map(|one| PricePerPod { price: one.price, pods: 1 })
                .next()?,
        };
        Some((value, cap))
    }
}
