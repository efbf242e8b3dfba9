//! Why a class of pods has no place: for each pool, the step at which the last offering was lost.

use fixedbitset::FixedBitSet;

use crate::classes::{Class, Dimensions, holds};
use crate::model::{PoolReason, PoolRejection, Refusal};
use crate::offerings::index::OfferingIndex;
use crate::packing::constrained::{blocking_rule, pins};
use crate::packing::result::Packing;
use crate::topology::groups::TopologyRules;

/// Knows what the plan made of everything.
pub(crate) struct RefusalBuilder<'p, 'a> {
    pub(crate) offerings: &'p mut OfferingIndex<'a>,
    pub(crate) rules: &'p TopologyRules<'a>,
    pub(crate) dimensions: &'p Dimensions<'a>,
    pub(crate) packing: &'p Packing,
}

impl RefusalBuilder<'_, '_> {
    /// Asks every pool.
    pub(crate) fn refusal(&mut self, class: &Class<'_>) -> Refusal {
        if self.offerings.pools.is_empty() {
            return Refusal::NoPools;
        }
        let reasons = (0..self.offerings.pools.len()).map(|pool| PoolReason {
            pool: self.offerings.pools[pool].pool.name.clone(),
            why: self.unsuitable(pool, class),
        });
        Refusal::Pools(reasons.collect())
    }

    fn unsuitable(&mut self, pool: usize, class: &Class<'_>) -> PoolRejection {
        let Self { offerings, rules, dimensions, packing } = self;
        let left = &packing.left[pool];
        if let Some(taint) = offerings.repelling_taint(pool, class) {
            return PoolRejection::Taint(taint.clone());
        }
        let mut compatible = FixedBitSet::with_capacity(offerings.pools[pool].offers());
        let mut suits = false;
        for term in &class.terms {
            if let Some(signature) = offerings.step(pool, *term) {
                suits = true;
                compatible.union_with(&offerings.signature(signature).compatible);
            }
        }
        if class.terms.is_empty() {
            let why = "the pod's volumes are where its node affinity does not allow it to be";
            return PoolRejection::Requirements(why.to_owned());
        }
        if !suits {
            let conflict = class.terms.first().and_then(|term| offerings.conflict(pool, *term));
            return PoolRejection::Requirements(
                conflict.map_or_else(String::new, |conflict| conflict.to_string()),
            );
        }
        let table = &offerings.pools[pool];
        let kind = |index: usize| table.offering(index).0.kind();
        let free = |index: usize| table.free(kind(index));
        let large: Vec<usize> = compatible
            .ones()
            .filter(|index| {
                holds(free(*index), &class.row) && offerings.allows_size(pool, kind(*index))
            })
            .collect();
        let available: Vec<usize> =
            large.iter().copied().filter(|index| table.offering(*index).1.available).collect();
        if available.is_empty() {
            let short = |dimension: &usize| {
                compatible.ones().all(|index| free(index)[*dimension] < class.row[*dimension])
            };
            let shortage = (0..class.row.len())
                .find(short)
                .filter(|_| large.is_empty() && compatible.count_ones(..) > 0)
                .map(|dimension| dimensions.name(dimension));
            return PoolRejection::Offerings {
                total: table.offers(),
                compatible: compatible.count_ones(..),
                large_enough: large.len(),
                available: 0,
                shortage,
            };
        }
        if let Some(lacking) = lacking_values(offerings, pool, class) {
            return lacking;
        }
        let rule = blocking_rule(offerings, rules, class, &packing.topology, pool);
        let table = &offerings.pools[pool];
        // Something could be bought, so a limit is in the way: one that stops every offering, or
        // else the one that stops the cheapest.
        let exceeds = |index: usize, limit: usize| {
            table.types[table.offering(index).0.kind()].charge[limit] > left[limit]
        };
        let limit = (0..left.len())
            .find(|limit| available.iter().all(|index| exceeds(*index, *limit)))
            .or_else(|| {
                (0..left.len()).find(|limit| available.iter().any(|index| exceeds(*index, *limit)))
            });
        match limit.and_then(|limit| table.limits.get(limit)) {
            Some((name, _)) => PoolRejection::Limit((*name).to_owned()),
            None if rule.is_some() => {
                rule.map_or(PoolRejection::Limit(String::new()), PoolRejection::Rule)
            }
            None => PoolRejection::Offerings {
                total: table.offers(),
                compatible: compatible.count_ones(..),
                large_enough: large.len(),
                available: available.len(),
                shortage: None,
            },
        }
    }
}

/// The label of which too few values are left for a class, if that keeps it from a pool.
fn lacking_values(
    offerings: &mut OfferingIndex<'_>,
    pool: usize,
    class: &Class<'_>,
) -> Option<PoolRejection> {
    let mut signatures: Vec<usize> = Vec::new();
    for term in &class.terms {
        signatures.extend(offerings.step(pool, *term));
    }
    // TopologyRules between pods tie a node to a domain, and that leaves fewer values too.
    if let Some(coupling) = class.coupling.as_ref().filter(|_| !class.may_ignore_domains) {
        let pins = pins(offerings, class, coupling);
        let from = std::mem::take(&mut signatures);
        for pin in pins.iter() {
            for from in &from {
                let tied = pin
                    .terms
                    .iter()
                    .try_fold(*from, |signature, term| offerings.step(signature, *term));
                signatures.extend(tied);
            }
        }
    }
    let mut found = None;
    for signature in signatures {
        let signature = offerings.signature(signature);
        if offerings.values_to_keep(signature, &class.row, &[]).is_some() {
            return None;
        }
        let achieved = offerings.achieved(signature, &class.row, &[]);
        let lacking = signature
            .diversities
            .iter()
            .zip(achieved)
            .find(|(one, achieved)| *achieved < one.least);
        found = found.or(lacking.map(|(one, found)| PoolRejection::MinValues {
            key: one.key.clone(),
            wanted: one.least,
            found,
        }));
    }
    found
}
