//! Why a class of pods has no place: for each pool, the step at which the last offering was lost.

use fixedbitset::FixedBitSet;

use crate::classes::{Class, Dimensions, holds};
use crate::coupled::{blocking_rule, pins};
use crate::market::Market;
use crate::model::{PoolReason, Refusal, Unsuitable};
use crate::packing::Packing;
use crate::rules::Rules;

/// Knows what the plan made of everything.
pub(crate) struct Asker<'p, 'a> {
    pub(crate) market: &'p mut Market<'a>,
    pub(crate) rules: &'p Rules<'a>,
    pub(crate) dimensions: &'p Dimensions<'a>,
    pub(crate) packing: &'p Packing,
}

impl Asker<'_, '_> {
    /// Asks every pool.
    pub(crate) fn refusal(&mut self, class: &Class<'_>) -> Refusal {
        if self.market.pools.is_empty() {
            return Refusal::NoPools;
        }
        let reasons = (0..self.market.pools.len()).map(|pool| PoolReason {
            pool: self.market.pools[pool].pool.name.clone(),
            why: self.unsuitable(pool, class),
        });
        Refusal::Pools(reasons.collect())
    }

    fn unsuitable(&mut self, pool: usize, class: &Class<'_>) -> Unsuitable {
        let Self { market, rules, dimensions, packing } = self;
        let left = &packing.left[pool];
        if let Some(taint) = market.repelling_taint(pool, class) {
            return Unsuitable::Taint(taint.clone());
        }
        let mut compatible = FixedBitSet::with_capacity(market.pools[pool].offers());
        let mut suits = false;
        for term in &class.terms {
            if let Some(signature) = market.step(pool, *term) {
                suits = true;
                compatible.union_with(&market.signature(signature).compatible);
            }
        }
        if class.terms.is_empty() {
            let why = "the pod's volumes are where its node affinity does not allow it to be";
            return Unsuitable::Requirements(why.to_owned());
        }
        if !suits {
            let conflict = class.terms.first().and_then(|term| market.conflict(pool, *term));
            return Unsuitable::Requirements(
                conflict.map_or_else(String::new, |conflict| conflict.to_string()),
            );
        }
        let table = &market.pools[pool];
        let kind = |index: usize| table.offering(index).0.kind();
        let free = |index: usize| table.free(kind(index));
        let large: Vec<usize> = compatible
            .ones()
            .filter(|index| {
                holds(free(*index), &class.row) && market.allows_size(pool, kind(*index))
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
            return Unsuitable::Offerings {
                total: table.offers(),
                compatible: compatible.count_ones(..),
                large_enough: large.len(),
                available: 0,
                shortage,
            };
        }
        if let Some(lacking) = lacking_values(market, pool, class) {
            return lacking;
        }
        let rule = blocking_rule(market, rules, class, &packing.topology, pool);
        let table = &market.pools[pool];
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
            Some((name, _)) => Unsuitable::Limit((*name).to_owned()),
            None if rule.is_some() => {
                rule.map_or(Unsuitable::Limit(String::new()), Unsuitable::Rule)
            }
            None => Unsuitable::Offerings {
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
fn lacking_values(market: &mut Market<'_>, pool: usize, class: &Class<'_>) -> Option<Unsuitable> {
    let mut signatures: Vec<usize> = Vec::new();
    for term in &class.terms {
        signatures.extend(market.step(pool, *term));
    }
    // Rules between pods tie a node to a domain, and that leaves fewer values too.
    if let Some(coupling) = class.coupling.as_ref().filter(|_| !class.may_roam) {
        let pins = pins(market, class, coupling);
        let from = std::mem::take(&mut signatures);
        for pin in pins.iter() {
            for from in &from {
                let tied = pin
                    .terms
                    .iter()
                    .try_fold(*from, |signature, term| market.step(signature, *term));
                signatures.extend(tied);
            }
        }
    }
    let mut found = None;
    for signature in signatures {
        let signature = market.signature(signature);
        if market.values_to_keep(signature, &class.row, &[]).is_some() {
            return None;
        }
        let achieved = market.achieved(signature, &class.row, &[]);
        let lacking = signature
            .diversities
            .iter()
            .zip(achieved)
            .find(|(one, achieved)| *achieved < one.least);
        found = found.or(lacking.map(|(one, found)| Unsuitable::MinValues {
            key: one.key.clone(),
            wanted: one.least,
            found,
        }));
    }
    found
}
