//! Refusals: for each pool, the step at which a class of pods lost its last offering.

use crate::classes::Class;
use crate::classes::dimensions::Dimensions;
use crate::ids::{EligibilityId, Id, OfferingId, PoolId};
use crate::model::{PoolReason, PoolRejection, Refusal, RequirementsConflict, Shortage};
use crate::offerings::funnel::OfferingFunnel;
use crate::offerings::index::OfferingIndex;
use crate::offerings::min_values::{values_left, values_to_keep};
use crate::packing::result::Packing;
use crate::topology::groups::TopologyRules;

/// Builds refusals from the final packing.
pub(crate) struct RefusalBuilder<'p, 'a> {
    pub(crate) offerings: &'p mut OfferingIndex<'a>,
    pub(crate) rules: &'p TopologyRules<'a>,
    pub(crate) dimensions: &'p Dimensions<'a>,
    pub(crate) packing: &'p Packing,
}

impl RefusalBuilder<'_, '_> {
    /// The refusal of a class that has no place: one reason for each pool.
    pub(crate) fn refusal(&mut self, class: &Class<'_>) -> Refusal {
        if self.offerings.pools.is_empty() {
            return Refusal::NoPools;
        }
        let reasons = self.offerings.pools.ids().map(|pool| PoolReason {
            pool: self.offerings.pools[pool].pool.name.clone(),
            why: self.rejection(pool, class),
        });
        Refusal::Pools(reasons.collect())
    }

    fn rejection(&mut self, pool: PoolId, class: &Class<'_>) -> PoolRejection {
        let funnel = self.offerings.funnel(pool, class);
        if let Some(taint) = funnel.taint {
            return PoolRejection::Taint(taint.clone());
        }
        if !funnel.agrees {
            let start = EligibilityId::of_pool(pool);
            let conflict = class.terms.first();
            let conflict = conflict.and_then(|term| self.offerings.conflict(start, *term));
            // Without a term there is no conflict with the pool but one within the pod.
            return PoolRejection::Requirements(
                conflict.map_or(RequirementsConflict::VolumeTopology, RequirementsConflict::Label),
            );
        }
        let available = funnel.available();
        let offerings = PoolRejection::Offerings {
            total: funnel.total,
            compatible: funnel.near_volumes.count_ones(..),
            large_enough: funnel.large_enough_near_volumes(),
            available: available.len(),
            shortage: self.shortage(pool, class, &funnel),
        };
        if available.is_empty() {
            return self.price_ceiling(pool, &funnel).unwrap_or(offerings);
        }
        // Something could be launched, so another rule is in the way.
        self.min_values(pool, class)
            .or_else(|| self.limit(pool, &available))
            .or_else(|| self.rule(pool, class))
            .unwrap_or(offerings)
    }

    /// The price ceiling, if it excludes offerings that could be launched.
    fn price_ceiling(&self, pool: PoolId, funnel: &OfferingFunnel<'_>) -> Option<PoolRejection> {
        let table = &self.offerings.pools[pool];
        let too_dear = funnel.too_dear();
        let (_, cheapest) = table.offering(*too_dear.first()?);
        Some(PoolRejection::PriceCeiling {
            ceiling: table.ceiling?,
            excluded: too_dear.len(),
            cheapest: cheapest.price,
            capacity_type: cheapest.capacity_type,
        })
    }

    /// The first dimension of which no compatible type has enough, if no type is large enough.
    fn shortage(
        &self,
        pool: PoolId,
        class: &Class<'_>,
        funnel: &OfferingFunnel<'_>,
    ) -> Option<Shortage> {
        if funnel.large_enough_near_volumes() > 0 || funnel.near_volumes.is_clear() {
            return None;
        }
        let table = &self.offerings.pools[pool];
        let free =
            |offering: usize| table.free(table.offering(OfferingId::new(offering)).0.instance_type);
        let is_short = |dimension: &usize| {
            let mut offerings = funnel.near_volumes.ones();
            offerings.all(|one| free(one)[*dimension] < class.requests[*dimension])
        };
        let dimension = (0..class.requests.len()).find(is_short)?;
        Some(self.dimensions.shortage(dimension))
    }

    /// The limit that rules out every available offering, or else the one that rules out some.
    fn limit(&self, pool: PoolId, available: &[OfferingId]) -> Option<PoolRejection> {
        let table = &self.offerings.pools[pool];
        let left = self.packing.ledger.left(pool);
        let exceeds = |offering: &OfferingId, limit: usize| {
            table.types[table.offering(*offering).0.instance_type].charge[limit] > left[limit]
        };
        let mut limits = 0..left.len();
        let found =
            limits.clone().find(|limit| available.iter().all(|one| exceeds(one, *limit))).or_else(
                || limits.find(|limit| available.iter().any(|one| exceeds(one, *limit))),
            )?;
        let (name, _) = table.limits.get(found)?;
        Some(PoolRejection::Limit((*name).to_owned()))
    }

    /// The topology rule that keeps a class out of every place that a pool has for it.
    fn rule(&mut self, pool: PoolId, class: &Class<'_>) -> Option<PoolRejection> {
        let profile = class.topology.as_ref()?;
        let places = self.offerings.places(class, profile, std::iter::once(pool));
        let rule = self.packing.topology.blocking_rule(self.rules, profile, &places)?;
        Some(PoolRejection::Rule(rule))
    }

    /// The label of which too few values are left for a class.
    fn min_values(&mut self, pool: PoolId, class: &Class<'_>) -> Option<PoolRejection> {
        let offerings = &mut *self.offerings;
        let start = EligibilityId::of_pool(pool);
        let terms = class.terms.iter();
        let mut sets: Vec<EligibilityId> =
            terms.filter_map(|term| offerings.narrow(start, *term)).collect();
        // Topology rules bind a node to a domain, which leaves fewer values too.
        if let Some(profile) = class.topology.as_ref().filter(|_| !class.may_ignore_domains) {
            let from = std::mem::take(&mut sets);
            for assignment in offerings.assignments(class, profile).iter() {
                let each = from.iter();
                sets.extend(each.filter_map(|id| offerings.narrow_all(*id, &assignment.terms)));
            }
        }
        let mut found = None;
        for id in sets {
            let eligible = offerings.eligible(id);
            if values_to_keep(offerings, eligible, &class.requests, &[]).is_some() {
                return None;
            }
            let left = values_left(offerings, eligible, &class.requests, &[]);
            let lacking =
                eligible.min_values.iter().zip(left).find(|(rule, left)| *left < rule.min);
            found = found.or(lacking.map(|(rule, left)| PoolRejection::MinValues {
                key: rule.key.clone(),
                wanted: rule.min,
                found: left,
            }));
        }
        found
    }
}
