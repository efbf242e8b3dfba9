//! A finished packing, and its price.

use nap_units::UsdPerHour;

use crate::classes::PodCounts;
use crate::ids::{BinId, Id, IndexVec};
use crate::offerings::index::OfferingIndex;
use crate::offerings::min_values::charge;
use crate::packing::bins::Bin;
use crate::packing::existing::ExistingPlacement;
use crate::packing::limit_ledger::LimitLedger;
use crate::topology::counts::Topology;

/// Upper limit on the passes over the bins in which charges are lowered.
const MAX_PASSES: usize = 4;

/// A finished packing.
pub(crate) struct Packing {
    pub(crate) bins: IndexVec<BinId, Bin>,
    /// Sum of the requests on each bin, one row of `width` dimensions after another.
    pub(super) used: Vec<i64>,
    pub(super) width: usize,
    /// Number of pods of each class without a place.
    pub(crate) unplaced: PodCounts,
    /// Number of pods of each class on nodes with more of its pods than a new node may have.
    pub(crate) over_host_limit: PodCounts,
    pub(crate) ledger: LimitLedger,
    /// Pods that went onto existing nodes during the packing.
    pub(crate) on_existing: Vec<ExistingPlacement>,
    /// Topology counts with all pods placed.
    pub(crate) topology: Topology,
}

impl Packing {
    /// Sum of the requests on a bin.
    pub(crate) fn used(&self, bin: BinId) -> &[i64] {
        &self.used[bin.index() * self.width..(bin.index() + 1) * self.width]
    }

    /// Sum of the prices of all bins.
    pub(crate) fn cost(&self) -> UsdPerHour {
        self.bins.iter().map(|bin| bin.price).sum()
    }

    /// Replaces some bins, given in ascending order, by those of another packing. Returns `false`,
    /// and changes nothing, if that would exceed a limit.
    pub(crate) fn replace(
        &mut self,
        offerings: &OfferingIndex<'_>,
        old: &[BinId],
        new: Self,
    ) -> bool {
        let mut ledger = self.ledger.clone();
        let pool = |bin: &Bin| offerings.eligible(bin.eligibility).pool;
        for bin in old.iter().map(|bin| &self.bins[*bin]) {
            ledger.refund(pool(bin), &bin.charge);
        }
        for bin in &new.bins {
            ledger.charge(pool(bin), &bin.charge);
        }
        if ledger.is_overdrawn() {
            return false;
        }
        self.ledger = ledger;
        let is_kept = |bin: BinId| old.binary_search(&bin).is_err();
        let kept = self.bins.ids().filter(|bin| is_kept(*bin));
        let mut used: Vec<i64> = kept.flat_map(|bin| self.used(bin)).copied().collect();
        used.extend(new.used);
        self.used = used;
        let mut ids = self.bins.ids();
        let bins = self.bins.raw_mut();
        bins.retain(|_| ids.next().is_some_and(is_kept));
        bins.extend(new.bins);
        true
    }

    /// Prices every bin at the cheapest type that holds it and returns the cost of all. `None` if
    /// that exceeds a limit, which happens only without a ledger.
    ///
    /// A priced bin gives back what it was charged too much, which others may use: hence the
    /// passes, of which hardly ever more than two change anything.
    pub(crate) fn price(
        &mut self,
        offerings: &OfferingIndex<'_>,
        keeps_ledger: bool,
    ) -> Option<UsdPerHour> {
        if !keeps_ledger {
            self.ledger = LimitLedger::active(offerings);
        }
        for _ in 0..MAX_PASSES {
            let changed = self.price_pass(offerings, keeps_ledger);
            if !keeps_ledger || !changed {
                break;
            }
        }
        (keeps_ledger || !self.ledger.is_overdrawn()).then(|| self.cost())
    }

    /// Prices every bin once; whether a price changed.
    fn price_pass(&mut self, offerings: &OfferingIndex<'_>, keeps_ledger: bool) -> bool {
        let Self { bins, used, width, ledger, .. } = self;
        let mut changed = false;
        for (row, bin) in bins.into_iter().enumerate() {
            let eligible = offerings.eligible(bin.eligibility);
            let pool = eligible.pool;
            let budget = if keeps_ledger { ledger.budget(pool, &bin.charge) } else { Vec::new() };
            let used = &used[row * *width..(row + 1) * *width];
            let Some(cheapest) = offerings.cheapest(eligible, used, &budget) else { continue };
            changed |= cheapest.price != bin.price;
            bin.price = cheapest.price;
            if !keeps_ledger {
                bin.charge = vec![0; ledger.left(pool).len()];
            }
            if let Some(new) = charge(offerings, eligible, used, &bin.keep, &budget) {
                ledger.recharge(pool, &bin.charge, &new);
                bin.charge = new;
            }
        }
        changed
    }
}
