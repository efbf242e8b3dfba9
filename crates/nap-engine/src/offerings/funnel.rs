//! The funnel of a pool: the offerings that each step leaves for a class of pods.
//!
//! Refusals and the public funnel are both read off this one computation.

use fixedbitset::FixedBitSet;
use nap_api::Taint;

use crate::classes::Class;
use crate::classes::dimensions::holds;
use crate::ids::{EligibilityId, Id, OfferingId, PoolId, TypeId};
use crate::offerings::index::OfferingIndex;

/// The offerings of a pool that each step leaves for a class. Topology rules are no step: they
/// leave no number of offerings.
pub(crate) struct OfferingFunnel<'a> {
    /// Offerings in the pool's catalogue.
    pub(crate) total: usize,
    /// First taint that repels the class. All later steps are then empty.
    pub(crate) taint: Option<&'a Taint>,
    /// Offerings that satisfy the pool and the pod's own terms.
    pub(crate) compatible: FixedBitSet,
    /// Compatible offerings that the pod's volumes can be attached in as well.
    pub(crate) near_volumes: FixedBitSet,
    /// Whether some alternative of the pod, its volumes included, agrees with the pool.
    pub(crate) agrees: bool,
    /// Offerings of types that hold the pod beside the daemons and are no larger than allowed.
    large_enough: FixedBitSet,
    available: FixedBitSet,
    /// Offerings within the price ceiling.
    affordable: FixedBitSet,
}

impl OfferingFunnel<'_> {
    /// Number of large enough offerings among the compatible ones.
    pub(crate) fn large_enough(&self) -> usize {
        self.compatible.intersection(&self.large_enough).count()
    }

    /// Large enough offerings near the pod's volumes.
    pub(crate) fn large_enough_near_volumes(&self) -> usize {
        self.near_volumes.intersection(&self.large_enough).count()
    }

    /// Offerings that pass every step but the price ceiling, cheapest first.
    fn at_any_price(&self) -> impl Iterator<Item = usize> {
        let each = self.near_volumes.intersection(&self.large_enough);
        each.filter(|one| self.available.contains(*one))
    }

    /// Offerings that pass every step before the one of availability, and are not available.
    pub(crate) fn unavailable(&self) -> impl Iterator<Item = OfferingId> {
        let each = self.near_volumes.intersection(&self.large_enough);
        each.filter(|one| !self.available.contains(*one)).map(OfferingId::new)
    }

    /// Offerings that pass every step, cheapest first.
    pub(crate) fn available(&self) -> Vec<OfferingId> {
        let each = self.at_any_price().filter(|one| self.affordable.contains(*one));
        each.map(OfferingId::new).collect()
    }

    /// Offerings that only the price ceiling excludes, cheapest first.
    pub(crate) fn too_dear(&self) -> Vec<OfferingId> {
        let each = self.at_any_price().filter(|one| !self.affordable.contains(*one));
        each.map(OfferingId::new).collect()
    }
}

impl<'a> OfferingIndex<'a> {
    /// Counts the offerings of a pool that each step leaves for a class.
    pub(crate) fn funnel(&mut self, pool: PoolId, class: &Class<'_>) -> OfferingFunnel<'a> {
        let total = self.pools[pool].offering_count();
        let none = FixedBitSet::with_capacity(total);
        let mut funnel = OfferingFunnel {
            total,
            taint: self.repelling_taint(pool, class),
            compatible: none.clone(),
            near_volumes: none.clone(),
            agrees: false,
            large_enough: none.clone(),
            available: none.clone(),
            affordable: none,
        };
        if funnel.taint.is_some() {
            return funnel;
        }
        let start = EligibilityId::of_pool(pool);
        for term in class.own_terms {
            let term = self.term(term);
            if let Some(id) = self.narrow(start, term) {
                funnel.compatible.union_with(&self.eligible(id).compatible);
            }
        }
        for term in &class.terms {
            if let Some(id) = self.narrow(start, *term) {
                funnel.agrees = true;
                funnel.near_volumes.union_with(&self.eligible(id).compatible);
            }
        }
        let table = &self.pools[pool];
        let is_large =
            |id: TypeId| holds(table.free(id), &class.requests) && self.allows_size(pool, id);
        for (offering, row) in table.catalogue.offerings().enumerate() {
            funnel.large_enough.set(offering.index(), is_large(row.instance_type));
            funnel.available.set(offering.index(), row.is_available);
            funnel.affordable.set(offering.index(), table.affords(row.price));
        }
        funnel
    }
}
