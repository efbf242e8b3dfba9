//! The bins that a strategy came to, and what they cost once each is settled on a type.

use nap_units::UsdPerHour;

use crate::offerings::index::OfferingIndex;
use crate::packing::existing::ExistingPlacement;
use crate::packing::first_fit::{Bin, sum};
use crate::topology::counts::Topology;

/// What a strategy made of the pods that were left.
pub(crate) struct Packing {
    pub(crate) bins: Vec<Bin>,
    /// What the pods of each bin ask for together, one row after another.
    pub(crate) used: Vec<i64>,
    pub(crate) width: usize,
    /// How many pods of each class found no place.
    pub(crate) unplaced: Vec<usize>,
    /// How many pods of each class share nodes with more of their kind than a new node would take.
    pub(crate) over_host_limit: Vec<usize>,
    /// What is left under the limits of each pool.
    pub(crate) left: Vec<Vec<i64>>,
    /// Pods that went onto machines that exist after all, once others made it allowed.
    pub(crate) seated: Vec<ExistingPlacement>,
    /// Where the pods are that others depend on.
    pub(crate) topology: Topology,
}

impl Packing {
    /// Puts the bins of another packing in the place of some; `false` if that would count more
    /// against a limit.
    pub(crate) fn replace(
        &mut self,
        offerings: &OfferingIndex<'_>,
        old: &[usize],
        new: Self,
    ) -> bool {
        let mut left = self.left.clone();
        let pool = |bin: &Bin| offerings.signature(bin.signature).pool;
        let charge = |left: &mut [i64], charges: &[i64], times: i64| {
            for (left, charge) in left.iter_mut().zip(charges) {
                *left = left.saturating_add(charge.saturating_mul(times));
            }
        };
        for bin in old.iter().map(|index| &self.bins[*index]) {
            charge(&mut left[pool(bin)], &bin.reserved, 1);
        }
        for bin in &new.bins {
            charge(&mut left[pool(bin)], &bin.reserved, -1);
        }
        if left.iter().flatten().any(|left| *left < 0) {
            return false;
        }
        self.left = left;
        let width = self.width;
        let kept = (0..self.bins.len()).filter(|index| old.binary_search(index).is_err());
        let used: Vec<i64> = kept
            .flat_map(|index| &self.used[index * width..(index + 1) * width])
            .copied()
            .collect();
        self.used = used;
        self.used.extend(new.used);
        let mut index = 0;
        self.bins.retain(|_| {
            index += 1;
            old.binary_search(&(index - 1)).is_err()
        });
        self.bins.extend(new.bins);
        true
    }

    /// What the pods of a bin ask for together.
    pub(crate) fn used(&self, bin: usize) -> &[i64] {
        &self.used[bin * self.width..(bin + 1) * self.width]
    }

    /// Settles every bin on the price of the cheapest type that holds it, and says what all cost
    /// together. `None` if that breaks a limit, which happens only without a ledger.
    ///
    /// Each settled bin gives back what it had reserved too much, from which the others may gain:
    /// hence the passes, of which hardly ever more than two change anything.
    pub(crate) fn settle(
        &mut self,
        offerings: &OfferingIndex<'_>,
        ledger: bool,
    ) -> Option<UsdPerHour> {
        const PASSES: usize = 4;
        if !ledger {
            let limits = offerings
                .pools
                .iter()
                .map(|table| table.limits.iter().map(|(_, left)| *left).collect());
            self.left = limits.collect();
        }
        for pass in 0..PASSES {
            let mut changed = false;
            for (index, bin) in self.bins.iter_mut().enumerate() {
                let signature = offerings.signature(bin.signature);
                let left = &mut self.left[signature.pool];
                let budget = if ledger { sum(left, &bin.reserved) } else { Vec::new() };
                let used = &self.used[index * self.width..(index + 1) * self.width];
                let Some((price, _)) = offerings.cheapest(signature, used, &budget) else {
                    continue;
                };
                changed |= price != bin.price;
                bin.price = price;
                if !ledger {
                    bin.reserved = vec![0; left.len()];
                }
                let charge =
                    offerings.reservation(signature, used, &bin.keep, &budget).unwrap_or_default();
                for ((left, reserved), charge) in
                    left.iter_mut().zip(&mut bin.reserved).zip(&charge)
                {
                    *left = left.saturating_add(*reserved).saturating_sub(*charge);
                    *reserved = *charge;
                }
            }
            if !ledger || !changed || pass + 1 == PASSES {
                break;
            }
        }
        let broken = self.left.iter().flatten().any(|left| *left < 0);
        (ledger || !broken).then(|| self.bins.iter().map(|bin| bin.price).sum())
    }
}
