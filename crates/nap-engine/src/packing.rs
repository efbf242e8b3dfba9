//! The drafts that a strategy came to, and what they cost once each is settled on a type.

use nap_units::UsdPerHour;

use crate::existing::Seated;
use crate::market::Market;
use crate::pack::{Draft, sum};
use crate::topology::Topology;

/// What a strategy made of the pods that were left.
pub(crate) struct Packing {
    pub(crate) drafts: Vec<Draft>,
    /// What the pods of each draft ask for together, one row after another.
    pub(crate) used: Vec<i64>,
    pub(crate) width: usize,
    /// How many pods of each class found no place.
    pub(crate) unplaced: Vec<usize>,
    /// How many pods of each class share nodes with more of their kind than a new node would take.
    pub(crate) crowded: Vec<usize>,
    /// What is left under the limits of each pool.
    pub(crate) left: Vec<Vec<i64>>,
    /// Pods that went onto machines that exist after all, once others made it allowed.
    pub(crate) seated: Vec<Seated>,
    /// Where the pods are that others depend on.
    pub(crate) topology: Topology,
}

impl Packing {
    /// Puts the drafts of another packing in the place of some; `false` if that would count more
    /// against a limit.
    pub(crate) fn replace(&mut self, market: &Market<'_>, old: &[usize], new: Self) -> bool {
        let mut left = self.left.clone();
        let pool = |draft: &Draft| market.signature(draft.signature).pool;
        let charge = |left: &mut [i64], charges: &[i64], times: i64| {
            for (left, charge) in left.iter_mut().zip(charges) {
                *left = left.saturating_add(charge.saturating_mul(times));
            }
        };
        for draft in old.iter().map(|index| &self.drafts[*index]) {
            charge(&mut left[pool(draft)], &draft.reserved, 1);
        }
        for draft in &new.drafts {
            charge(&mut left[pool(draft)], &draft.reserved, -1);
        }
        if left.iter().flatten().any(|left| *left < 0) {
            return false;
        }
        self.left = left;
        let width = self.width;
        let kept = (0..self.drafts.len()).filter(|index| old.binary_search(index).is_err());
        let used: Vec<i64> = kept
            .flat_map(|index| &self.used[index * width..(index + 1) * width])
            .copied()
            .collect();
        self.used = used;
        self.used.extend(new.used);
        let mut index = 0;
        self.drafts.retain(|_| {
            index += 1;
            old.binary_search(&(index - 1)).is_err()
        });
        self.drafts.extend(new.drafts);
        true
    }

    /// What the pods of a draft ask for together.
    pub(crate) fn used(&self, draft: usize) -> &[i64] {
        &self.used[draft * self.width..(draft + 1) * self.width]
    }

    /// Settles every draft on the price of the cheapest type that holds it, and says what all cost
    /// together. `None` if that breaks a limit, which happens only without a ledger.
    ///
    /// Each settled draft gives back what it had reserved too much, from which the others may gain:
    /// hence the passes, of which hardly ever more than two change anything.
    pub(crate) fn settle(&mut self, market: &Market<'_>, ledger: bool) -> Option<UsdPerHour> {
        const PASSES: usize = 4;
        if !ledger {
            let limits = market
                .pools
                .iter()
                .map(|table| table.limits.iter().map(|(_, left)| *left).collect());
            self.left = limits.collect();
        }
        for pass in 0..PASSES {
            let mut changed = false;
            for (index, draft) in self.drafts.iter_mut().enumerate() {
                let signature = market.signature(draft.signature);
                let left = &mut self.left[signature.pool];
                let budget = if ledger { sum(left, &draft.reserved) } else { Vec::new() };
                let used = &self.used[index * self.width..(index + 1) * self.width];
                let Some((price, _)) = market.cheapest(signature, used, &budget) else { continue };
                changed |= price != draft.price;
                draft.price = price;
                if !ledger {
                    draft.reserved = vec![0; left.len()];
                }
                let charge =
                    market.reservation(signature, used, &draft.keep, &budget).unwrap_or_default();
                for ((left, reserved), charge) in
                    left.iter_mut().zip(&mut draft.reserved).zip(&charge)
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
        (ledger || !broken).then(|| self.drafts.iter().map(|draft| draft.price).sum())
    }
}
