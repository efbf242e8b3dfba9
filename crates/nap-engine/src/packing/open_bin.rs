//! What a class of pods would open a new node with: which pool, for how many pods, and how large
//! the node may grow.

use nap_units::UsdPerHour;

use crate::classes::{Class, room};
use crate::offerings::index::OfferingIndex;
use crate::packing::constrained::DomainAssignment;
use crate::packing::first_fit::{Fit, Packer, SizeCap, sum};

impl Packer<'_, '_> {
    /// The pool that a class would open a bin in, how many of its pods fit, and up to which size
    /// the bin may grow: the heaviest pool that has anything, and among equals the cheapest per
    /// pod.
    pub(crate) fn best_offer(
        &mut self,
        number: usize,
        most: usize,
        pin: &DomainAssignment,
    ) -> Option<NewBin> {
        let class = &self.classes.list[number];
        let mut best: Option<NewBin> = None;
        for pool in 0..self.offerings.pools.len() {
            let weight = self.offerings.pools[pool].pool.weight;
            if best.as_ref().is_some_and(|best| self.is_even() || best.weight > weight) {
                break;
            }
            if let Some(offer) = self.offer(pool, class, most, pin)
                && best.as_ref().is_none_or(|best| offer.value.cheaper_than(&best.value))
            {
                best = Some(offer);
            }
        }
        best
    }

    /// What a pool has for a class: its best value, how many pods fit, and up to which size the
    /// bin may grow.
    fn offer(
        &mut self,
        pool: usize,
        class: &Class<'_>,
        most: usize,
        pin: &DomainAssignment,
    ) -> Option<NewBin> {
        if !self.offerings.tolerates(pool, class) {
            return None;
        }
        for term in &class.terms {
            let Some(number) = self.step(pool, *term, pin) else { continue };
            let (value, cap) = if self.is_even() {
                // Neither the price nor the size of anything matters to the incumbent.
                (PricePerPod { price: UsdPerHour::ZERO, pods: 1 }, i64::MAX)
            } else {
                match self.best_value(number, class, most) {
                    Some(found) => found,
                    None => continue,
                }
            };
            let left = &self.left[pool];
            let reserved = vec![0; left.len()];
            let room = largest_room(
                self.offerings,
                number,
                cap,
                (&self.zeros, &reserved),
                left,
                class,
                most,
            );
            let signature = self.offerings.signature(number);
            let room = match self.offerings.values_to_keep(signature, &class.row, left) {
                Some(keep) => self.offerings.diverse_room(
                    signature,
                    &keep,
                    &self.zeros,
                    &class.row,
                    room,
                    left,
                ),
                None => 0,
            };
            if room > 0 {
                let weight = self.offerings.pools[pool].pool.weight;
                return Some(NewBin { weight, value, fit: Fit { signature: number, room }, cap });
            }
        }
        None
    }

    /// The best value that a signature has for a class, and up to which size a bin may grow for
    /// it.
    fn best_value(
        &self,
        number: usize,
        class: &Class<'_>,
        most: usize,
    ) -> Option<(PricePerPod, i64)> {
        let signature = self.offerings.signature(number);
        let table = self.offerings.table(signature);
        let left = &self.left[signature.pool];
        self.offerings.spend(signature.types.len());
        let mut best: Option<(PricePerPod, i64)> = None;
        let mut smallest: Option<i64> = None;
        for (price, kind) in &signature.types {
            let row = &table.types[*kind];
            let room = room(table.free(*kind), &self.zeros, &class.row, most);
            if room == 0 || !table.within(*kind, left) {
                continue;
            }
            let value = PricePerPod { price: *price, pods: room };
            smallest = Some(smallest.map_or(row.cpu, |cpu| cpu.min(row.cpu)));
            let capped = matches!(self.strategy.cap, SizeCap::Cpu(cap) if row.cpu > cap);
            if !capped && best.as_ref().is_none_or(|(best, _)| value.cheaper_than(best)) {
                best = Some((value, row.cpu));
            }
        }
        let smallest = smallest?;
        let cap = match (self.strategy.cap, &best) {
            (SizeCap::None, _) => i64::MAX,
            (SizeCap::Cpu(cap), _) => cap.max(smallest),
            (SizeCap::BestValue, best) => best.as_ref().map_or(smallest, |(_, cpu)| *cpu),
        };
        // Above the cap only the smallest sizes are let in; what they cost per pod is close enough
        // to compare pools by.
        let value = match best {
            Some((value, _)) => value,
            None => signature
                .types
                .iter()
                .filter(|(_, kind)| table.types[*kind].cpu <= cap && table.within(*kind, left))
                .filter(|(_, kind)| room(table.free(*kind), &self.zeros, &class.row, 1) == 1)
                .map(|(price, _)| PricePerPod { price: *price, pods: 1 })
                .next()?,
        };
        Some((value, cap))
    }
}

/// How many of a class the largest types of a signature hold beside what is used, within what is
/// reserved and left under the limits.
pub(crate) fn largest_room(
    offerings: &mut OfferingIndex<'_>,
    number: usize,
    cap: i64,
    (used, reserved): (&[i64], &[i64]),
    left: &[i64],
    class: &Class<'_>,
    most: usize,
) -> usize {
    if left.is_empty() {
        let frontier = offerings.frontier(number, cap);
        let table = offerings.table(offerings.signature(number));
        let room = |kind: &usize| room(table.free(*kind), used, &class.row, most);
        return frontier.kinds.iter().map(room).max().unwrap_or(0);
    }
    let budget = sum(left, reserved);
    let signature = offerings.signature(number);
    let table = offerings.table(signature);
    offerings.spend(signature.types.len());
    signature
        .types
        .iter()
        .map(|(_, kind)| *kind)
        .filter(|kind| table.types[*kind].cpu <= cap && table.within(*kind, &budget))
        .map(|kind| room(table.free(kind), used, &class.row, most))
        .max()
        .unwrap_or(0)
}

/// What a class would open a bin with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewBin {
    /// The weight of the pool.
    pub(crate) weight: i32,
    pub(crate) value: PricePerPod,
    pub(crate) fit: Fit,
    /// Up to which size the bin may grow.
    pub(crate) cap: i64,
}

/// A price for a number of pods.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PricePerPod {
    price: UsdPerHour,
    pods: usize,
}

impl PricePerPod {
    /// Costs less per pod, or the same for more pods at once.
    pub(crate) fn cheaper_than(&self, other: &Self) -> bool {
        let mine = i128::from(self.price.micros()).saturating_mul(other.pods as i128);
        let theirs = i128::from(other.price.micros()).saturating_mul(self.pods as i128);
        mine < theirs || (mine == theirs && self.pods > other.pods)
    }
}
