//! A lower bound on the cost of placing the pods, whatever the plan.
//!
//! By resources: see `resource_bound`. Host slots and ports are dimensions too, so anti-affinity by
//! hostname raises the bound. Rules over other domains are ignored, which can only lower it.
//!
//! [`PodDuals`] price whole pods instead of resources, and so know that pods are not divisible. The
//! higher of the two bounds counts.

use std::collections::{BTreeMap, BTreeSet};

use fixedbitset::FixedBitSet;
use nap_units::UsdPerHour;

use crate::classes::dimensions::holds;
use crate::classes::shapes::Shapes;
use crate::classes::{Classes, PodCounts};
use crate::ids::{
    ClassId, EligibilityId, Id, IndexVec, NodeConstraintsId, PoolId, ShapeId, TypeId,
};
use crate::offerings::eligibility::UNCAPPED;
use crate::offerings::index::OfferingIndex;
use crate::offerings::shadow_prices::shadow_prices;
use crate::optimize::column_generation::{
    Column, Columns, MAX_SHAPES, NodeType, Shape, undominated,
};
use crate::optimize::resource_bound::resource_bound;
use crate::packing::packer::PackingProblem;
use crate::packing::result::Packing;

/// Upper limit on the ports and host slots by which pods are told apart in [`PodDuals`].
const MAX_SLOTS: usize = 3;

/// Margin for rounding errors.
const ROUNDING: f64 = 1e-9;

/// A value for each pod, such that no node is worth more than it costs.
pub(crate) struct PodDuals {
    /// Value of a pod of each class, in micro-dollars per hour.
    of_class: IndexVec<ClassId, f64>,
}

/// Lower bound on the cost of placing a number of pods of each class. `free` is the capacity that
/// costs nothing: of existing nodes and of capacity reservations.
pub(crate) fn lower_bound(
    offerings: &mut OfferingIndex<'_>,
    classes: &Classes<'_>,
    placed: &PodCounts,
    free: &[Vec<i64>],
    pod_duals: Option<&PodDuals>,
) -> UsdPerHour {
    let by_pods = pod_duals.map_or(0.0, |duals| duals.bound(classes, placed, free));
    let by_resources = resource_bound(offerings, classes, placed, free);
    let bound = by_pods.max(by_resources) * (1.0 - ROUNDING);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "rounded down, and costs are far below 2^52 micro-dollars"
    )]
    UsdPerHour::from_micros(bound.max(0.0).floor() as i64)
}

/// Capacity of all nodes left in each reservation. As far as the bound is concerned it costs
/// nothing.
pub(crate) fn reserved_capacity(
    offerings: &mut OfferingIndex<'_>,
    reservations: &BTreeMap<String, u32>,
) -> Vec<Vec<i64>> {
    let mut free = Vec::new();
    for (reservation, count) in reservations {
        let pools = offerings.pools.ids();
        let sets: Vec<EligibilityId> =
            pools.filter_map(|pool| offerings.reserved(pool, reservation)).collect();
        let mut max = vec![0; offerings.width];
        for id in sets {
            for (max, one) in max.iter_mut().zip(&offerings.frontier(id, UNCAPPED).max) {
                *max = (*max).max(one.saturating_mul(i64::from(*count)));
            }
        }
        free.push(max);
    }
    free
}

impl PodDuals {
    /// Finds the duals by column generation, starting with the bins of a packing. `None` if there
    /// are too many shapes, or if a pod fits nowhere.
    pub(crate) fn of(
        offerings: &mut OfferingIndex<'_>,
        problem: &PackingProblem<'_, '_>,
        known: &Packing,
    ) -> Option<Self> {
        let PackingProblem { classes, pending, max_pods, .. } = *problem;
        let kept = priced_dimensions(offerings, classes, pending);
        let project =
            |row: &[i64]| -> Vec<i64> { kept.iter().map(|dimension| row[*dimension]).collect() };
        let last = |class: ClassId| &classes[classes[class].last];
        let waiting = || classes.ids().filter(|class| pending[*class] > 0);
        let shapes =
            Shapes::of(waiting(), classes.list.len(), |class| project(&last(class).requests));
        if shapes.len() > MAX_SHAPES {
            return None;
        }
        let shape = |members: &Vec<ClassId>| Shape {
            requests: project(&last(members[0]).requests),
            count: members.iter().map(|class| pending[*class]).sum(),
        };
        let mut representatives: BTreeMap<NodeConstraintsId, ClassId> = BTreeMap::new();
        let mut allowed: BTreeMap<NodeConstraintsId, FixedBitSet> = BTreeMap::new();
        for class in waiting() {
            let constraints = last(class).node_constraints;
            representatives.insert(constraints, classes[class].last);
            let none = || FixedBitSet::with_capacity(shapes.len());
            let allowed = allowed.entry(constraints).or_insert_with(none);
            allowed.extend(shapes.of_class[class].map(Id::index));
        }
        // Each type at the lowest price at which any pod could be on it, with every shape that
        // could be on it.
        let mut node_types: BTreeMap<(PoolId, TypeId), NodeType> = BTreeMap::new();
        for (constraints, class) in representatives {
            let class = &classes[class];
            for pool in offerings.pools.ids() {
                if !offerings.tolerates(pool, class) {
                    continue;
                }
                let start = EligibilityId::of_pool(pool);
                let terms = class.terms.iter();
                let sets: Vec<EligibilityId> =
                    terms.filter_map(|term| offerings.narrow(start, *term)).collect();
                for one in sets.iter().flat_map(|id| &offerings.eligible(*id).types) {
                    let price = real(one.price.micros() - offerings.node_cost.micros()) / 1e6;
                    let node_type = node_types.entry((pool, one.id)).or_insert_with(|| NodeType {
                        free: project(offerings.pools[pool].free(one.id)),
                        price,
                        allows: FixedBitSet::with_capacity(shapes.len()),
                        source: (start, one.id),
                    });
                    node_type.price = node_type.price.min(price);
                    node_type.allows.union_with(&allowed[&constraints]);
                }
            }
        }
        let node_types = undominated(node_types.into_values().collect());
        let seeds = known.bins.enumerate().filter_map(|(id, bin)| {
            let used = project(known.used(id));
            let mut load: BTreeMap<usize, usize> = BTreeMap::new();
            for (class, count) in &bin.content {
                let shape = shapes.of_class[classes[*class].base]?;
                *load.entry(shape.index()).or_default() += count;
            }
            let holds_it = |node_type: &NodeType| {
                holds(&node_type.free, &used)
                    && load.keys().all(|shape| node_type.allows.contains(*shape))
            };
            let node_type = node_types.iter().position(holds_it)?;
            Some(Column { node_type, load: load.into_iter().collect() })
        });
        let seeds: BTreeSet<Column> = seeds.collect();
        let list = shapes.members.iter().map(shape).collect();
        let columns = Columns::find(list, node_types, seeds, max_pods)?;
        let dual =
            |shape: &Option<ShapeId>| shape.map_or(0.0, |shape| columns.duals[shape.index()] * 1e6);
        Some(Self { of_class: shapes.of_class.iter().map(dual).collect() })
    }

    fn bound(&self, classes: &Classes<'_>, placed: &PodCounts, free: &[Vec<i64>]) -> f64 {
        let count = |count: usize| real(i64::try_from(count).unwrap_or(i64::MAX));
        let total: f64 =
            placed.enumerate().map(|(class, placed)| count(*placed) * self.of_class[class]).sum();
        // The load of an existing node is worth no more than the pods with the highest value per
        // unit of any one dimension.
        let width = free.first().map_or(0, Vec::len);
        let mut max_value = vec![0.0_f64; width];
        for (id, class) in classes.list.enumerate().filter(|(id, _)| placed[*id] > 0) {
            let dual = self.of_class[id];
            for (max, request) in max_value.iter_mut().zip(&classes[class.last].requests) {
                let per_unit = if *request > 0 { dual / real(*request) } else { f64::INFINITY };
                *max = max.max(if dual > 0.0 { per_unit } else { 0.0 });
            }
        }
        let mut existing = 0.0;
        for free in free {
            let each = free.iter().zip(&max_value).filter(|(_, max)| max.is_finite());
            existing +=
                each.map(|(free, max)| real((*free).max(0)) * max).fold(f64::INFINITY, f64::min);
        }
        if existing.is_finite() { (total - existing).max(0.0) } else { 0.0 }
    }
}

/// The resources, and the ports and slots with the highest value of their demand. The others are
/// left out, so that more pods share a shape.
fn priced_dimensions(
    offerings: &OfferingIndex<'_>,
    classes: &Classes<'_>,
    counts: &PodCounts,
) -> Vec<usize> {
    let demand = classes.demand(counts);
    let prices = shadow_prices(offerings, &demand);
    let total = |dimension: &usize| prices[*dimension] * real(demand[*dimension]);
    let mut slots: Vec<usize> =
        (offerings.resources..offerings.width).filter(|slot| demand[*slot] > 0).collect();
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
