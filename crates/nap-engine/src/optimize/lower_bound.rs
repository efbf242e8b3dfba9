//! What placing the pods costs at least, whatever the plan.
//!
//! Give each unit of each resource a worth such that no type is worth more than it costs. Then
//! whatever a new node holds is worth no more than the node's price, and what an existing node
//! holds no more than what it had free: so all pods together, less what is free already, cost at
//! least their worth. The best such worth comes from the same linear program that guides the
//! packing; since any worth that keeps the condition gives a true bound, rounding is made up for by
//! scaling it down. Slots and ports are resources too, so pods that exclude each other by host
//! raise the bound. TopologyRules over zones are left out, which can only make it lower.
//!
//! The same with a worth for each pod instead of each resource knows that pods come whole: see the
//! module `columns`. The higher bound counts.

use std::collections::{BTreeMap, BTreeSet};

use fixedbitset::FixedBitSet;
use nap_units::UsdPerHour;

use crate::classes::{Classes, holds};
use crate::intern::Interner;
use crate::offerings::index::OfferingIndex;
use crate::offerings::shadow_prices::shadow_prices;
use crate::optimize::column_generation::{
    Column, Columns, MAX_SHAPES, Machine, Shape, undominated,
};
use crate::packing::result::Packing;

/// The most dimensions besides resources by which pods are told apart when their worth is sought.
const MAX_SLOTS: usize = 3;

/// What a pod of each class is worth at most, so that no node is worth more than it costs.
pub(crate) struct PodDuals {
    /// In micro-dollars, by class.
    of: Vec<f64>,
}

/// The bound for placing so many pods of each class, with this much free on each machine that
/// exists.
pub(crate) fn lower_bound(
    offerings: &mut OfferingIndex<'_>,
    classes: &Classes<'_>,
    placed: &[usize],
    free: &[Vec<i64>],
    pod_worth: Option<&PodDuals>,
) -> UsdPerHour {
    let by_pods = pod_worth.map_or(0.0, |worth| worth.bound(classes, placed, free));
    let mut demand = classes.demand(placed);
    let mut signatures: BTreeSet<usize> = BTreeSet::new();
    for (class, _) in classes.list.iter().zip(placed).filter(|(_, count)| **count > 0) {
        // What pods would like is no part of what they need.
        let class = &classes.list[class.last];
        for pool in 0..offerings.pools.len() {
            if offerings.tolerates(pool, class) {
                signatures
                    .extend(class.terms.iter().filter_map(|term| offerings.step(pool, *term)));
            }
        }
    }
    for free in free {
        for (demand, free) in demand.iter_mut().zip(free) {
            *demand = demand.saturating_sub((*free).max(0));
        }
    }
    // Each type at the lowest price that any of the pods could have it for.
    let mut prices: Vec<Vec<Option<i64>>> =
        offerings.pools.iter().map(|table| vec![None; table.types.len()]).collect();
    for number in signatures {
        let signature = offerings.signature(number);
        for (price, kind) in &signature.types {
            let price = price.micros() - offerings.node_cost.micros();
            let known = &mut prices[signature.pool][*kind];
            *known = Some(known.map_or(price, |known| known.min(price)));
        }
    }
    let mut rows: Vec<(&[i64], f64)> = Vec::new();
    for (table, prices) in offerings.pools.iter().zip(&prices) {
        let known = prices.iter().enumerate().filter_map(|(kind, price)| Some((kind, (*price)?)));
        rows.extend(known.map(|(kind, price)| (table.free(kind), real(price))));
    }
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
    let bound = by_pods.max(total(&demand) / excess) * (1.0 - 1e-9);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "rounded down, and costs are far below 2^52 micro-dollars"
    )]
    UsdPerHour::from_micros(bound.max(0.0).floor() as i64)
}

impl PodDuals {
    /// Finds the worth of pods, so many of each class. `None` if they are too different, or if some
    /// fit nowhere.
    pub(crate) fn of(
        offerings: &mut OfferingIndex<'_>,
        classes: &Classes<'_>,
        counts: &[usize],
        most_pods: usize,
        known: &Packing,
    ) -> Option<Self> {
        let kept = telling_dimensions(offerings, classes, counts);
        let mut numbers: Interner<Vec<i64>> = Interner::default();
        let mut shapes: Vec<Shape> = Vec::new();
        let mut shape_of: Vec<Option<usize>> = vec![None; classes.list.len()];
        let mut pairs: BTreeSet<(usize, usize)> = BTreeSet::new();
        let mut wishes: BTreeMap<usize, usize> = BTreeMap::new();
        for (number, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let class = &classes.list[classes.list[number].last];
            let row: Vec<i64> = kept.iter().map(|dimension| class.row[*dimension]).collect();
            let shape = numbers.number(row.clone());
            if shape == shapes.len() {
                shapes.push(Shape { row, count: 0 });
            }
            shapes[shape].count += count;
            shape_of[number] = Some(shape);
            pairs.insert((class.wish, shape));
            wishes.insert(class.wish, classes.list[number].last);
        }
        if shapes.len() > MAX_SHAPES {
            return None;
        }
        // Each type at the lowest price that any of the pods could have it for, with every shape
        // that could be on it.
        let mut machines: BTreeMap<(usize, usize), Machine> = BTreeMap::new();
        for (wish, class) in wishes {
            let class = &classes.list[class];
            for pool in 0..offerings.pools.len() {
                if !offerings.tolerates(pool, class) {
                    continue;
                }
                let signatures: Vec<usize> =
                    class.terms.iter().filter_map(|term| offerings.step(pool, *term)).collect();
                for number in signatures {
                    for (price, kind) in &offerings.signature(number).types {
                        let price = real(price.micros() - offerings.node_cost.micros()) / 1e6;
                        let machine = machines.entry((pool, *kind)).or_insert_with(|| {
                            let free = offerings.pools[pool].free(*kind);
                            let free = kept.iter().map(|dimension| free[*dimension]).collect();
                            let allows = FixedBitSet::with_capacity(shapes.len());
                            Machine { free, price, allows, tag: (pool, *kind) }
                        });
                        machine.price = machine.price.min(price);
                        let mine =
                            pairs.range((wish, 0)..=(wish, usize::MAX)).map(|(_, shape)| *shape);
                        machine.allows.extend(mine);
                    }
                }
            }
        }
        let machines = undominated(machines.into_values().collect());
        let seeds = (0..known.bins.len()).filter_map(|index| {
            let used: Vec<i64> =
                kept.iter().map(|dimension| known.used(index)[*dimension]).collect();
            let mut load: BTreeMap<usize, usize> = BTreeMap::new();
            for (class, count) in &known.bins[index].content {
                *load.entry(shape_of[classes.list[*class].base]?).or_default() += count;
            }
            let holds_it = |machine: &Machine| {
                holds(&machine.free, &used)
                    && load.keys().all(|shape| machine.allows.contains(*shape))
            };
            let machine = machines.iter().position(holds_it)?;
            Some(Column { machine, load: load.into_iter().collect() })
        });
        let seeds: BTreeSet<Column> = seeds.collect();
        let columns = Columns::find(shapes, machines, seeds, most_pods)?;
        let of = shape_of
            .iter()
            .map(|shape| shape.map_or(0.0, |shape| columns.worth[shape] * 1e6))
            .collect();
        Some(Self { of })
    }

    fn bound(&self, classes: &Classes<'_>, placed: &[usize], free: &[Vec<i64>]) -> f64 {
        let worth = |number: usize| self.of[number];
        let count = |count: usize| real(i64::try_from(count).unwrap_or(i64::MAX));
        let total: f64 =
            placed.iter().enumerate().map(|(number, placed)| count(*placed) * worth(number)).sum();
        // What machines that exist hold is worth no more than the most valuable pods for any one
        // thing that they have.
        let width = free.first().map_or(0, Vec::len);
        let mut most = vec![0.0_f64; width];
        for (number, class) in
            classes.list.iter().enumerate().filter(|(number, _)| placed[*number] > 0)
        {
            let row = &classes.list[class.last].row;
            for (most, request) in most.iter_mut().zip(row) {
                let each =
                    if *request > 0 { worth(number) / real(*request) } else { f64::INFINITY };
                *most = most.max(if worth(number) > 0.0 { each } else { 0.0 });
            }
        }
        let mut given = 0.0;
        for free in free {
            let each = free.iter().zip(&most).filter(|(_, most)| most.is_finite());
            given +=
                each.map(|(free, most)| real((*free).max(0)) * most).fold(f64::INFINITY, f64::min);
        }
        if given.is_finite() { (total - given).max(0.0) } else { 0.0 }
    }
}

/// The resources, and those slots and ports that make pods dear: the others are left out, so that
/// more pods are alike.
fn telling_dimensions(
    offerings: &OfferingIndex<'_>,
    classes: &Classes<'_>,
    counts: &[usize],
) -> Vec<usize> {
    let demand = classes.demand(counts);
    let worth = crate::offerings::shadow_prices::worth(offerings, &demand);
    let total = |dimension: &usize| worth[*dimension] * real(demand[*dimension]);
    let mut slots: Vec<usize> =
        (offerings.resources..offerings.width).filter(|slot| total(slot) > 0.0).collect();
    slots.sort_by(|a, b| total(b).total_cmp(&total(a)).then(a.cmp(b)));
    slots.truncate(MAX_SLOTS);
    slots.sort_unstable();
    (0..offerings.resources).chain(slots).collect()
}

#[expect(
    clippy::cast_precision_loss,
    reason = "the margin of the bound is larger than what is lost"
)]
fn real(amount: i64) -> f64 {
    amount as f64
}
