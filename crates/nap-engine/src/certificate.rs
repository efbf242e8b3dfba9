//! What placing the pods costs at least, whatever the plan.
//!
//! Give each unit of each resource a worth such that no type is worth more than it costs. Then whatever a new node holds is worth no more than
//! the node's price, and what an existing node holds no more than what it had free: so all pods together, less what is free already,
//! cost at least their worth. The best such worth comes from the same linear program that guides the packing; since any worth
//! that keeps the condition gives a true bound, rounding is made up for by scaling it down. Slots and ports are resources too, so pods that
//! exclude each other by host raise the bound. Rules over zones are left out, which can only make it lower.

use std::collections::{BTreeMap, BTreeSet};

use nap_units::UsdPerHour;

use crate::classes::Classes;
use crate::market::Market;
use crate::worth::shadow_prices;

/// The bound for placing so many pods of each class, with this much free on each machine that exists.
pub(crate) fn lower_bound(
    market: &mut Market<'_>,
    classes: &Classes<'_>,
    placed: &[usize],
    free: &[Vec<i64>],
) -> UsdPerHour {
    let width = classes.list.first().map_or(0, |class| class.row.len());
    let mut demand = vec![0_i64; width];
    let mut signatures: BTreeSet<usize> = BTreeSet::new();
    for (class, count) in classes.list.iter().zip(placed).filter(|(_, count)| **count > 0) {
        // What pods would like is no part of what they need.
        let class = &classes.list[class.last];
        let times = i64::try_from(*count).unwrap_or(i64::MAX);
        for (demand, request) in demand.iter_mut().zip(&class.row) {
            *demand = demand.saturating_add(request.saturating_mul(times));
        }
        for pool in 0..market.pools.len() {
            if market.tolerates(pool, class) {
                signatures.extend(class.terms.iter().filter_map(|term| market.step(pool, *term)));
            }
        }
    }
    for free in free {
        for (demand, free) in demand.iter_mut().zip(free) {
            *demand = demand.saturating_sub((*free).max(0));
        }
    }
    // Each type at the lowest price that any of the pods could have it for.
    let mut prices: BTreeMap<(usize, usize), i64> = BTreeMap::new();
    for number in signatures {
        let signature = market.signature(number);
        for (price, kind) in &signature.types {
            let price = price.micros() - market.node_cost.micros();
            let known = prices.entry((signature.pool, *kind)).or_insert(price);
            *known = price.min(*known);
        }
    }
    let rows: Vec<(&[i64], f64)> = prices
        .iter()
        .map(|((pool, kind), price)| (market.pools[*pool].types[*kind].free.as_slice(), real(*price)))
        .collect();
    let guide: Vec<i64> = demand.iter().map(|demand| (*demand).max(0)).collect();
    let worth = shadow_prices(&rows, &guide);
    let total = |amounts: &[i64]| -> f64 {
        amounts.iter().zip(&worth).map(|(amount, worth)| real(*amount) * worth).sum()
    };
    // How far the dearest type is above its price, for rounding.
    let mut excess: f64 = 1.0;
    for (free, price) in &rows {
        let worth = total(free);
        if worth > 0.0 {
            excess = if *price > 0.0 { excess.max(worth / price) } else { f64::INFINITY };
        }
    }
    let bound = total(&demand) / excess * (1.0 - 1e-9);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "rounded down, and costs are far below 2^52 micro-dollars"
    )]
    UsdPerHour::from_micros(bound.max(0.0).floor() as i64)
}

#[expect(clippy::cast_precision_loss, reason = "the margin of the bound is larger than what is lost")]
fn real(amount: i64) -> f64 {
    amount as f64
}
