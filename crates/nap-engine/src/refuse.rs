//! Why a class of pods has no place: for each pool, the step at which the last offering was lost.

use fixedbitset::FixedBitSet;

use crate::classes::{Class, Dimensions, holds};
use crate::market::Market;
use crate::model::{PoolReason, Refusal, Unsuitable};

/// Asks every pool. `left` is what the plan leaves under the limits of each.
pub(crate) fn refusal(
    market: &mut Market<'_>,
    class: &Class<'_>,
    left: &[Vec<i64>],
    dimensions: &Dimensions<'_>,
) -> Refusal {
    if market.pools.is_empty() {
        return Refusal::NoPools;
    }
    let reasons = (0..market.pools.len()).map(|pool| PoolReason {
        pool: market.pools[pool].pool.name.clone(),
        why: unsuitable(market, pool, class, &left[pool], dimensions),
    });
    Refusal::Pools(reasons.collect())
}

fn unsuitable(
    market: &mut Market<'_>,
    pool: usize,
    class: &Class<'_>,
    left: &[i64],
    dimensions: &Dimensions<'_>,
) -> Unsuitable {
    if let Some(taint) = market.repelling_taint(pool, class) {
        return Unsuitable::Taint(taint.clone());
    }
    let mut compatible = FixedBitSet::with_capacity(market.pools[pool].offerings.len());
    let mut suits = false;
    for term in &class.terms {
        if let Some(signature) = market.step(pool, *term) {
            suits = true;
            compatible.union_with(&market.signature(signature).compatible);
        }
    }
    if !suits {
        let conflict = class.terms.first().and_then(|term| market.conflict(pool, *term));
        return Unsuitable::Requirements(conflict.map_or_else(String::new, |conflict| conflict.to_string()));
    }
    let table = &market.pools[pool];
    let free = |index: usize| &table.types[table.offerings[index].kind].free;
    let large: Vec<usize> = compatible.ones().filter(|index| holds(free(*index), &class.row)).collect();
    let available: Vec<usize> =
        large.iter().copied().filter(|index| table.offerings[*index].offering.available).collect();
    if available.is_empty() {
        let short = |dimension: &usize| {
            compatible.ones().all(|index| free(index)[*dimension] < class.row[*dimension])
        };
        let shortage = (0..class.row.len())
            .find(short)
            .filter(|_| large.is_empty() && compatible.count_ones(..) > 0)
            .map(|dimension| dimensions.name(dimension).to_owned());
        return Unsuitable::Offerings {
            total: table.offerings.len(),
            compatible: compatible.count_ones(..),
            large_enough: large.len(),
            available: 0,
            shortage,
        };
    }
    // Something could be bought, so a limit is in the way: one that stops every offering, or else the one that stops the cheapest.
    let exceeds =
        |index: usize, limit: usize| table.types[table.offerings[index].kind].charge[limit] > left[limit];
    let limit = (0..left.len())
        .find(|limit| available.iter().all(|index| exceeds(*index, *limit)))
        .or_else(|| (0..left.len()).find(|limit| available.iter().any(|index| exceeds(*index, *limit))));
    match limit.and_then(|limit| table.limits.get(limit)) {
        Some((name, _)) => Unsuitable::Limit((*name).to_owned()),
        None => Unsuitable::Offerings {
            total: table.offerings.len(),
            compatible: compatible.count_ones(..),
            large_enough: large.len(),
            available: available.len(),
            shortage: None,
        },
    }
}
