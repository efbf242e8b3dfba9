//! Column generation for the pending pods of a packing problem.

use std::collections::BTreeMap;
use std::rc::Rc;

use fixedbitset::FixedBitSet;

use crate::classes::dimensions::holds;
use crate::classes::shapes::Shapes;
use crate::ids::{ClassId, EligibilityId, Id, NodeConstraintsId, ShapeId};
use crate::offerings::index::OfferingIndex;
use crate::optimize::column_generation::{
    Column, Columns, MAX_SHAPES, NodeType, Shape, undominated,
};
use crate::packing::packer::PackingProblem;
use crate::packing::result::Packing;
use crate::packing::rounded_columns::{RoundedColumn, RoundedColumns};

/// Upper limit on the distinct node constraints of pods for which node types are listed.
const MAX_NODE_CONSTRAINTS: usize = 16;

/// Columns for the pending pods, and the classes behind their shapes.
pub(crate) struct ColumnSolution {
    columns: Columns,
    shapes: Shapes,
}

impl ColumnSolution {
    /// Finds columns for the pending pods, starting with the bins of a packing. `None` where column
    /// generation does not apply: pods with topology rules or preferences, several priorities,
    /// pools with `minValues`, pods without a place, or too many shapes.
    pub(crate) fn of(
        offerings: &mut OfferingIndex<'_>,
        problem: &PackingProblem<'_, '_>,
        known: &Packing,
    ) -> Option<Self> {
        let classes = problem.classes;
        let waiting: Vec<ClassId> =
            classes.ids().filter(|class| problem.pending[*class] > 0).collect();
        let is_plain = |class: &ClassId| {
            classes[*class].topology.is_none() && !classes[*class].has_preferences()
        };
        let same_priority =
            waiting.windows(2).all(|pair| classes[pair[0]].priority == classes[pair[1]].priority);
        if !waiting.iter().all(is_plain)
            || !same_priority
            || known.unplaced.iter().any(|count| *count > 0)
        {
            return None;
        }
        let shapes = Shapes::of(waiting, classes.list.len(), |class| {
            (&classes[class].requests, classes[class].node_constraints)
        });
        if shapes.len() > MAX_SHAPES {
            return None;
        }
        let shape = |members: &Vec<ClassId>| Shape {
            requests: classes[members[0]].requests.clone(),
            count: members.iter().map(|class| problem.pending[*class]).sum(),
        };
        let node_types = node_types(offerings, problem, &shapes)?;
        let mut seeds: Vec<Column> = Vec::new();
        for (id, bin) in known.bins.enumerate() {
            let pool = offerings.eligible(bin.eligibility).pool;
            let mut load: BTreeMap<usize, usize> = BTreeMap::new();
            for (class, count) in &bin.content {
                if let Some(shape) = shapes.of_class[*class] {
                    *load.entry(shape.index()).or_default() += count;
                }
            }
            let node_type = node_types.iter().position(|node_type| {
                offerings.eligible(node_type.source.0).pool == pool
                    && holds(&node_type.free, known.used(id))
                    && load.keys().all(|shape| node_type.allows.contains(*shape))
            });
            let load = load.into_iter().collect();
            seeds.extend(node_type.map(|node_type| Column { node_type, load }));
        }
        seeds.sort_unstable();
        seeds.dedup();
        let list = shapes.members.iter().map(shape).collect();
        let columns = Columns::find(list, node_types, seeds, problem.max_pods)?;
        Some(Self { columns, shapes })
    }

    /// Rounds the columns to whole nodes; see [`Columns::round`].
    pub(crate) fn round(&self, threshold: f64) -> RoundedColumns<'_> {
        let rounded = |(column, copies): (usize, usize)| {
            let Column { node_type, load } = &self.columns.list[column];
            let (start, instance_type) = self.columns.node_types[*node_type].source;
            let load = load.iter().map(|(shape, count)| (ShapeId::new(*shape), *count)).collect();
            RoundedColumn { start, instance_type, load, copies }
        };
        let columns = self.columns.round(threshold).into_iter().map(rounded).collect();
        RoundedColumns { shapes: &self.shapes, columns }
    }
}

/// The node types that pods could open: those of each pool, and of each eligibility set that pods
/// narrow a pool to. A pod opens none in a pool while a heavier one has a type for it.
fn node_types(
    offerings: &mut OfferingIndex<'_>,
    problem: &PackingProblem<'_, '_>,
    shapes: &Shapes,
) -> Option<Vec<NodeType>> {
    let classes = problem.classes;
    let of_shape = |shape: ShapeId| &classes[shapes.members[shape][0]];
    let mut starts: BTreeMap<EligibilityId, i32> = BTreeMap::new();
    // Weight of the heaviest pool with a type for the pods.
    let mut weights: BTreeMap<NodeConstraintsId, i32> = BTreeMap::new();
    for shape in shapes.members.ids() {
        let class = of_shape(shape);
        if weights.contains_key(&class.node_constraints) {
            continue;
        }
        let mut heaviest = None;
        for pool in offerings.pools.ids() {
            let weight = offerings.pools[pool].pool.weight;
            if heaviest.is_some_and(|heaviest| heaviest > weight) {
                break;
            }
            if !offerings.tolerates(pool, class) {
                continue;
            }
            for term in &class.terms {
                if let Some(start) = offerings.narrow(EligibilityId::of_pool(pool), *term)
                    && !offerings.eligible(start).types.is_empty()
                {
                    starts.insert(start, weight);
                    heaviest = Some(weight);
                }
            }
        }
        weights.insert(class.node_constraints, heaviest?);
    }
    if weights.len() > MAX_NODE_CONSTRAINTS {
        return None;
    }
    let mut node_types: Vec<NodeType> = Vec::new();
    for (start, weight) in starts {
        let eligible = Rc::clone(offerings.eligible(start));
        if !eligible.min_values.is_empty() {
            return None;
        }
        let mut narrowed: Vec<Vec<EligibilityId>> = Vec::with_capacity(shapes.len());
        for shape in shapes.members.ids() {
            let class = of_shape(shape);
            let mut to = Vec::new();
            let opens_here = weights[&class.node_constraints] == weight;
            if opens_here && offerings.tolerates(eligible.pool, class) {
                let terms = class.terms.iter();
                to = terms.filter_map(|term| offerings.narrow(start, *term)).collect();
            }
            narrowed.push(to);
        }
        for one in &eligible.types {
            let mut allows = FixedBitSet::with_capacity(shapes.len());
            for (shape, narrowed) in narrowed.iter().enumerate() {
                let keeps = |to: &EligibilityId| offerings.eligible(*to).allows(one.id);
                allows.set(shape, narrowed.iter().any(keeps));
            }
            node_types.push(NodeType {
                free: offerings.table(&eligible).free(one.id).to_vec(),
                price: dollars(one.price.micros()),
                allows,
                source: (start, one.id),
            });
        }
    }
    Some(undominated(node_types))
}

#[expect(clippy::cast_precision_loss, reason = "prices are far below 2^52 micro-dollars")]
fn dollars(micros: i64) -> f64 {
    micros.max(0) as f64 / 1e6
}
