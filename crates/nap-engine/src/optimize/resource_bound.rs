//! A lower bound on the cost of placing pods, by their resources.
//!
//! Price each unit of each resource such that no type is worth more than it costs. Then the load of
//! a new node is worth no more than the node's price, and the load of an existing node no more than
//! what was free on it. So all pods, less the free capacity, cost at least their value. The best
//! such prices are the duals of a linear program; any prices that keep the condition prove a bound,
//! so rounding errors are made up for by scaling them down.
//!
//! Pods that may use only some types, or only at a higher price (on demand beside spot), are priced
//! once more: a unit of their resources is worth a surcharge, which counts only on the nodes where
//! they may be.

use std::collections::{BTreeMap, BTreeSet};

use crate::classes::{Classes, PodCounts};
use crate::ids::{EligibilityId, NodeConstraintsId, PoolId, TypeId};
use crate::offerings::index::OfferingIndex;
use crate::offerings::shadow_prices::duals;

/// Upper limit on the sets of pods with a surcharge.
const MAX_SURCHARGES: usize = 4;
/// Upper limit on the distinct sets of types that pods are confined to.
const MAX_SETS: usize = 64;

/// Lowest price in micro-dollars at which pods could be on a type, for each type.
type Prices = BTreeMap<(PoolId, TypeId), i64>;

/// Pods that may use the same types at the same prices.
struct Confined {
    prices: Prices,
    demand: Vec<i64>,
}

impl Confined {
    /// Whether every node that may have these pods could have those of another set too.
    fn is_within(&self, other: &Self) -> bool {
        let is_open = |(of_type, price): (&(PoolId, TypeId), &i64)| {
            other.prices.get(of_type).is_some_and(|other| other <= price)
        };
        self.prices.iter().all(is_open)
    }
}

/// Lower bound in micro-dollars on the cost of placing a number of pods of each class. `free` is
/// the capacity that costs nothing.
pub(super) fn resource_bound(
    offerings: &mut OfferingIndex<'_>,
    classes: &Classes<'_>,
    placed: &PodCounts,
    free: &[Vec<i64>],
) -> f64 {
    let groups = confined(offerings, classes, placed);
    let mut all = Prices::new();
    for (of_type, price) in groups.iter().flat_map(|group| &group.prices) {
        let known = all.entry(*of_type).or_insert(*price);
        *known = (*known).min(*price);
    }
    let total = classes.demand(placed);
    let surcharged = surcharged(&groups, &all, &total);
    let mut demands = vec![total];
    for set in &surcharged {
        let mut demand = vec![0; demands[0].len()];
        for group in groups.iter().filter(|group| group.is_within(set)) {
            add(&mut demand, &group.demand);
        }
        demands.push(demand);
    }
    for demand in &mut demands {
        for free in free {
            for (demand, free) in demand.iter_mut().zip(free) {
                *demand = demand.saturating_sub((*free).max(0));
            }
        }
    }
    // Only what is in demand has a price.
    let columns: Vec<(usize, usize)> = demands
        .iter()
        .enumerate()
        .flat_map(|(set, demand)| (0..demand.len()).map(move |dimension| (set, dimension)))
        .filter(|(set, dimension)| demands[*set][*dimension] > 0)
        .collect();
    let demand: Vec<i64> =
        columns.iter().map(|(set, dimension)| demands[*set][*dimension]).collect();
    let rows = rows(offerings, &all, &surcharged, &columns);
    let rows: Vec<(&[i64], f64)> = rows.iter().map(|(row, price)| (&**row, real(*price))).collect();
    let duals = duals(&rows, &demand);
    let value = |amounts: &[i64]| -> f64 {
        amounts.iter().zip(&duals).map(|(amount, dual)| real(*amount) * dual).sum()
    };
    // Largest ratio of value to price of any type; above 1 only by rounding errors.
    let mut ratio: f64 = 1.0;
    for (free, price) in &rows {
        let value = value(free);
        if value > 0.0 {
            ratio = if *price > 0.0 { ratio.max(value / price) } else { f64::INFINITY };
        }
    }
    value(&demand) / ratio
}

/// The pods by the types and prices that they are confined to.
fn confined(
    offerings: &mut OfferingIndex<'_>,
    classes: &Classes<'_>,
    placed: &PodCounts,
) -> Vec<Confined> {
    let mut known: BTreeMap<NodeConstraintsId, BTreeSet<EligibilityId>> = BTreeMap::new();
    let mut demands: BTreeMap<BTreeSet<EligibilityId>, Vec<i64>> = BTreeMap::new();
    for (class, count) in classes.list.iter().zip(placed).filter(|(_, count)| **count > 0) {
        // Preferences may be relaxed, so only the last level counts.
        let class = &classes[class.last];
        let sets = known.entry(class.node_constraints).or_insert_with(|| {
            let mut sets = BTreeSet::new();
            for pool in offerings.pools.ids() {
                if offerings.tolerates(pool, class) {
                    let start = EligibilityId::of_pool(pool);
                    let terms = class.terms.iter();
                    sets.extend(terms.filter_map(|term| offerings.narrow(start, *term)));
                }
            }
            sets
        });
        let demand = demands.entry(sets.clone()).or_insert_with(|| vec![0; class.requests.len()]);
        let count = i64::try_from(*count).unwrap_or(i64::MAX);
        for (demand, request) in demand.iter_mut().zip(&class.requests) {
            *demand = demand.saturating_add(request.saturating_mul(count));
        }
    }
    if demands.len() > MAX_SETS {
        let sets: BTreeSet<EligibilityId> = demands.keys().flatten().copied().collect();
        let mut total = Vec::new();
        for demand in demands.values() {
            total.resize(demand.len(), 0);
            add(&mut total, demand);
        }
        demands = BTreeMap::from([(sets, total)]);
    }
    let mut groups: Vec<Confined> = Vec::new();
    for (sets, demand) in demands {
        let mut prices = Prices::new();
        for id in sets {
            let eligible = offerings.eligible(id);
            for one in &eligible.types {
                let price = one.price.micros() - offerings.node_cost.micros();
                let known = prices.entry((eligible.pool, one.id)).or_insert(price);
                *known = (*known).min(price);
            }
        }
        match groups.iter_mut().find(|group| group.prices == prices) {
            Some(group) => add(&mut group.demand, &demand),
            None => groups.push(Confined { prices, demand }),
        }
    }
    groups
}

/// The sets of pods with the largest demand that may not use every type at its lowest price.
fn surcharged<'g>(groups: &'g [Confined], all: &Prices, total: &[i64]) -> Vec<&'g Confined> {
    let share = |group: &Confined| -> f64 {
        let parts = group.demand.iter().zip(total).filter(|(_, total)| **total > 0);
        parts.map(|(demand, total)| real(*demand) / real(*total)).fold(0.0, f64::max)
    };
    let mut found: Vec<&Confined> = groups.iter().filter(|group| group.prices != *all).collect();
    found.sort_by(|a, b| share(b).total_cmp(&share(a)));
    found.truncate(MAX_SURCHARGES);
    found
}

/// What a node of each type has of each column, with its price. A type has a row for each price at
/// which some pods could be on it.
fn rows(
    offerings: &OfferingIndex<'_>,
    all: &Prices,
    surcharged: &[&Confined],
    columns: &[(usize, usize)],
) -> Vec<(Vec<i64>, i64)> {
    let mut rows = Vec::new();
    for ((pool, id), lowest) in all {
        let free = offerings.pools[*pool].free(*id);
        let of_set = |set: &&Confined| set.prices.get(&(*pool, *id)).copied();
        let prices: BTreeSet<i64> = surcharged.iter().filter_map(of_set).chain([*lowest]).collect();
        for price in prices {
            let amount = |(set, dimension): &(usize, usize)| {
                let is_open = match set.checked_sub(1) {
                    None => true,
                    Some(set) => of_set(&surcharged[set]).is_some_and(|own| own <= price),
                };
                if is_open { free[*dimension] } else { 0 }
            };
            rows.push((columns.iter().map(amount).collect(), price));
        }
    }
    rows
}

fn add(sum: &mut [i64], more: &[i64]) {
    for (sum, more) in sum.iter_mut().zip(more) {
        *sum = sum.saturating_add(*more);
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "the margin of the bound is larger than what is lost"
)]
fn real(amount: i64) -> f64 {
    amount as f64
}
