//! Column generation: node loads that cover all pods at the least cost.
//!
//! Pods of one shape are interchangeable. A *column* is the load of one node: a node type and a
//! number of pods of each shape. If fractions of nodes could be launched, the cheapest covering by
//! columns would be a linear program; its duals value every shape such that no column is worth more
//! than it costs. There are far too many columns to list, so columns that are worth more than they
//! cost at the present duals are added until there are none. Finding one is a knapsack problem,
//! solved by a bounded search for each node type: see `pricing`.
//!
//! The duals also prove a lower bound. If no load of any node type is worth more than `r` times its
//! price, all pods together cost at least an `r`-th of their value in any plan. Unlike a bound by
//! resources, this one knows that pods are not divisible.

use std::collections::BTreeSet;

use fixedbitset::FixedBitSet;

use crate::classes::dimensions::room_when_empty;
use crate::ids::{EligibilityId, TypeId};
use crate::optimize::pricing::Search;
use crate::simplex::Simplex;
use crate::topology::counts::Allowance;

/// Upper limit on the shapes: the work grows with the square of their number.
pub(super) const MAX_SHAPES: usize = 256;
/// Upper limit on the rounds in which columns are added.
const MAX_ROUNDS: usize = 60;
/// Upper limit on the columns that a round adds.
const MAX_COLUMNS_PER_ROUND: usize = 24;
/// Upper limit on the pivots of the linear program in a round.
const MAX_PIVOTS: usize = 400;
/// Effort per pod, and its bounds: cells of the program, and weighted steps of searches.
const EFFORT_PER_POD: usize = 15_000;
const MIN_EFFORT: usize = 300_000;
const MAX_EFFORT: usize = 30_000_000;
/// Upper limit on consecutive rounds without improvement.
const PATIENCE: usize = 6;
/// Upper limits on the steps of a search: while any column will do, and to prove that there is
/// none.
const QUICK_STEPS: usize = 200;
const THOROUGH_STEPS: usize = 4_000;
/// Relative difference below which values count as equal.
const TOLERANCE: f64 = 1e-4;
/// Relative gap between the bound and the cost of the program at which the search stops.
const STOP_GAP: f64 = 2e-3;
/// Fraction of a column below which the program does not use it.
const UNUSED: f64 = 1e-6;

/// Interchangeable pods.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) requests: Vec<i64>,
    pub(super) count: usize,
}

/// A node type that can be launched any number of times.
#[derive(Clone, Debug)]
pub(super) struct NodeType {
    pub(super) free: Vec<i64>,
    /// Dollars per hour.
    pub(super) price: f64,
    /// Shapes that may be on such a node.
    pub(super) allows: FixedBitSet,
    /// Eligibility set and instance type, so that columns can be turned back into bins.
    pub(super) source: (EligibilityId, TypeId),
}

/// The load of one node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Column {
    /// Position of the node type.
    pub(super) node_type: usize,
    /// Positions of shapes with the number of their pods.
    pub(super) load: Vec<(usize, usize)>,
}

/// The columns found, and the duals of the shapes.
pub(super) struct Columns {
    pub(super) shapes: Vec<Shape>,
    pub(super) node_types: Vec<NodeType>,
    pub(super) list: Vec<Column>,
    program: Simplex,
    /// Value of a pod of each shape, in dollars per hour, such that no node is worth more than its
    /// price.
    pub(super) duals: Vec<f64>,
}

/// Removes node types that another one replaces at no higher price.
pub(super) fn undominated(mut node_types: Vec<NodeType>) -> Vec<NodeType> {
    let total = |one: &NodeType| one.free.iter().fold(0_i64, |sum, free| sum.saturating_add(*free));
    node_types.sort_by(|a, b| {
        a.price
            .total_cmp(&b.price)
            .then_with(|| total(b).cmp(&total(a)))
            .then_with(|| a.source.cmp(&b.source))
    });
    let mut kept: Vec<NodeType> = Vec::new();
    for node_type in node_types {
        let replaces = |other: &NodeType| {
            node_type.free.iter().zip(&other.free).all(|(mine, theirs)| mine <= theirs)
                && node_type.allows.is_subset(&other.allows)
        };
        if !kept.iter().any(replaces) {
            kept.push(node_type);
        }
    }
    kept
}

/// Columns that improve the program, and a bound on all columns.
struct Priced {
    /// The best first.
    improving: Vec<Column>,
    /// Upper bound on the ratio of value to price over all loads, at least 1.
    max_ratio: f64,
    effort: usize,
}

impl Columns {
    /// Finds columns, starting with some that are known. `None` if a shape fits nowhere, or if
    /// there are too many shapes.
    pub(super) fn find(
        shapes: Vec<Shape>,
        node_types: Vec<NodeType>,
        known: impl IntoIterator<Item = Column>,
        max_pods: Allowance,
    ) -> Option<Self> {
        if shapes.is_empty() || shapes.len() > MAX_SHAPES {
            return None;
        }
        let gain = shapes.iter().map(|shape| real(shape.count)).collect();
        let mut columns = Self {
            shapes,
            node_types,
            list: Vec::new(),
            program: Simplex::new(gain),
            duals: Vec::new(),
        };
        let mut seen: BTreeSet<Column> = BTreeSet::new();
        let single = (0..columns.shapes.len()).map(|shape| columns.single(shape, max_pods));
        for column in single.collect::<Option<Vec<_>>>()?.into_iter().chain(known) {
            columns.add(column, &mut seen);
        }
        columns.generate(max_pods, &mut seen);
        Some(columns)
    }

    /// The column with a single shape and the lowest price per pod.
    fn single(&self, shape: usize, max_pods: Allowance) -> Option<Column> {
        let Shape { requests, count } = &self.shapes[shape];
        let mut best: Option<(f64, Column)> = None;
        for (number, node_type) in
            self.node_types.iter().enumerate().filter(|(_, one)| one.allows.contains(shape))
        {
            let room = room_when_empty(&node_type.free, requests, max_pods.of(*count));
            let per_pod = node_type.price / real(room);
            if room > 0 && best.as_ref().is_none_or(|(best, _)| per_pod < *best) {
                best = Some((per_pod, Column { node_type: number, load: vec![(shape, room)] }));
            }
        }
        best.map(|(_, column)| column)
    }

    fn add(&mut self, column: Column, seen: &mut BTreeSet<Column>) -> bool {
        if !seen.insert(column.clone()) {
            return false;
        }
        let price = self.node_types[column.node_type].price;
        self.program.add(column.load.iter().map(|(shape, count)| (*shape, real(*count))), price);
        self.list.push(column);
        true
    }

    /// Adds columns while that lowers the cost of the program, and settles the duals.
    fn generate(&mut self, max_pods: Allowance, seen: &mut BTreeSet<Column>) {
        let pods: usize = self.shapes.iter().map(|shape| shape.count).sum();
        let max_effort = pods.saturating_mul(EFFORT_PER_POD).clamp(MIN_EFFORT, MAX_EFFORT);
        let mut steps = QUICK_STEPS;
        let (mut bound, mut best) = (0.0, vec![0.0; self.shapes.len()]);
        let (mut searched, mut idle_rounds, mut lowest_cost) = (0, 0, f64::INFINITY);
        for _ in 0..MAX_ROUNDS {
            self.program.solve(MAX_PIVOTS);
            let duals = self.program.values();
            let cost = self.total(&duals);
            let Priced { improving, max_ratio, effort } = self.price(&duals, max_pods, steps);
            searched += effort;
            // Divided by the largest ratio, the duals are feasible and prove a bound.
            let proven = cost / max_ratio;
            let improved =
                proven > bound * (1.0 + TOLERANCE) || cost < lowest_cost * (1.0 - TOLERANCE);
            if proven > bound {
                (bound, best) = (proven, duals.iter().map(|dual| dual / max_ratio).collect());
            }
            lowest_cost = lowest_cost.min(cost);
            idle_rounds = if improved { 0 } else { idle_rounds + 1 };
            let is_over = self.program.effort() + searched > max_effort || idle_rounds > PATIENCE;
            if bound >= cost * (1.0 - STOP_GAP) || is_over {
                break;
            }
            let added = improving.into_iter().filter(|one| self.add(one.clone(), seen)).count();
            match (added, steps < THOROUGH_STEPS) {
                (1.., _) => {}
                (0, true) => steps = THOROUGH_STEPS,
                (0, false) => break,
            }
        }
        self.program.solve(MAX_PIVOTS);
        self.duals = best;
    }

    fn total(&self, duals: &[f64]) -> f64 {
        self.shapes.iter().zip(duals).map(|(shape, dual)| real(shape.count) * dual).sum()
    }

    /// Searches every node type for loads that are worth more than their price.
    fn price(&self, duals: &[f64], max_pods: Allowance, steps: usize) -> Priced {
        let mut found: Vec<(f64, Column)> = Vec::new();
        let mut max_ratio: f64 = 1.0;
        let mut effort = 0;
        for (number, node_type) in self.node_types.iter().enumerate() {
            let price = node_type.price;
            let allowed = node_type.allows.ones().filter(|shape| duals[*shape] > 0.0);
            let search = Search::new(&self.shapes, node_type, duals, allowed, max_pods);
            let load = search.and_then(|search| search.run(price, steps));
            effort += load.as_ref().map_or(self.shapes.len(), |load| load.effort);
            let Some(load) = load else { continue };
            let ratio = if price > 0.0 { load.max_value / price } else { f64::INFINITY };
            max_ratio = max_ratio.max(ratio);
            let value: f64 =
                load.content.iter().map(|(shape, count)| duals[*shape] * real(*count)).sum();
            if value > price * (1.0 + TOLERANCE) {
                found.push((value / price, Column { node_type: number, load: load.content }));
            }
        }
        found.sort_by(|(a, one), (b, other)| b.total_cmp(a).then_with(|| one.cmp(other)));
        found.truncate(MAX_COLUMNS_PER_ROUND);
        let improving = found.into_iter().map(|(_, column)| column).collect();
        Priced { improving, max_ratio, effort }
    }

    /// Rounds the program to whole nodes: positions of columns with a number of nodes, as long as
    /// the program uses at least the fraction `threshold` of one.
    pub(super) fn round(&self, threshold: f64) -> Vec<(usize, usize)> {
        let mut program = self.program.clone();
        let mut left: Vec<usize> = self.shapes.iter().map(|shape| shape.count).collect();
        let mut rounded: Vec<(usize, usize)> = Vec::new();
        for _ in 0..MAX_SHAPES {
            let fractions = program.multipliers();
            let mut order: Vec<usize> =
                (0..self.list.len()).filter(|column| fractions[*column] > UNUSED).collect();
            order.sort_by(|a, b| fractions[*b].total_cmp(&fractions[*a]).then(a.cmp(b)));
            let mut any = false;
            for column in order {
                let whole = (fractions[column] + UNUSED).floor();
                // Once no whole node is left, the largest fraction is rounded up.
                let copies = if whole >= 1.0 {
                    truncate(whole)
                } else if !any && fractions[column] >= threshold {
                    1
                } else {
                    break;
                };
                let load = &self.list[column].load;
                let fits =
                    load.iter().map(|(shape, count)| left[*shape] / count).min().unwrap_or(0);
                let copies = copies.min(fits);
                if copies == 0 {
                    continue;
                }
                for (shape, count) in load {
                    left[*shape] -= count * copies;
                }
                rounded.push((column, copies));
                any = true;
            }
            if !any || left.iter().all(|count| *count == 0) {
                break;
            }
            let gain: Vec<f64> = left.iter().map(|count| real(*count)).collect();
            program.set_gain(&gain);
            program.solve(MAX_PIVOTS);
        }
        rounded
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn real(count: usize) -> f64 {
    count as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "whole, not negative, and no more than the pods there are"
)]
fn truncate(whole: f64) -> usize {
    whole as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Id;

    fn node_type(free: &[i64], price: f64, shapes: usize) -> NodeType {
        let mut allows = FixedBitSet::with_capacity(shapes);
        allows.insert_range(..);
        let source = (EligibilityId::new(0), TypeId::new(0));
        NodeType { free: free.to_vec(), price, allows, source }
    }

    fn shape(requests: &[i64], count: usize) -> Shape {
        Shape { requests: requests.to_vec(), count }
    }

    fn find(shapes: Vec<Shape>, node_types: Vec<NodeType>) -> Option<Columns> {
        Columns::find(shapes, node_types, [], Allowance::Unlimited)
    }

    #[test]
    fn indivisible_pods_are_worth_more_than_their_resources() {
        // A node of 5 holds one pod of 3, so each pod is worth a whole node; by resources alone it
        // would be worth three fifths.
        let columns = find(vec![shape(&[3], 10)], vec![node_type(&[5], 1.0, 1)]).unwrap();
        assert!((columns.duals[0] - 1.0).abs() < 1e-3, "{:?}", columns.duals);
        assert_eq!(columns.round(0.5), [(0, 10)]);
    }

    #[test]
    fn complementary_shapes_share_a_node() {
        let shapes = vec![shape(&[3, 1], 6), shape(&[1, 3], 6)];
        let columns = find(shapes, vec![node_type(&[4, 4], 1.0, 2)]).unwrap();
        let rounded = columns.round(0.5);
        let both = Column { node_type: 0, load: vec![(0, 1), (1, 1)] };
        let loads: Vec<_> =
            rounded.iter().map(|(column, copies)| (&columns.list[*column], *copies)).collect();
        assert_eq!(loads, [(&both, 6)]);
        let total: f64 = columns.duals.iter().map(|dual| dual * 6.0).sum();
        assert!((total - 6.0).abs() < 0.02, "{total}");
    }

    #[test]
    fn no_load_is_worth_more_than_its_price() {
        let shapes = vec![shape(&[2, 5], 9), shape(&[3, 2], 7), shape(&[4, 1], 5)];
        let node_types = vec![
            node_type(&[7, 9], 1.0, 3),
            node_type(&[16, 16], 1.9, 3),
            node_type(&[9, 30], 1.7, 3),
        ];
        let columns = find(shapes.clone(), node_types.clone()).unwrap();
        assert!(columns.duals.iter().all(|dual| *dual > 0.0), "{:?}", columns.duals);
        for node_type in &node_types {
            for (a, b, c) in
                (0..10).flat_map(|a| (0..10).flat_map(move |b| (0..10).map(move |c| (a, b, c))))
            {
                let counts: [i32; 3] = [a, b, c];
                let fits = (0..2).all(|dimension| {
                    let used = shapes
                        .iter()
                        .zip(counts)
                        .map(|(one, count)| one.requests[dimension] * i64::from(count));
                    used.sum::<i64>() <= node_type.free[dimension]
                });
                let value: f64 = columns
                    .duals
                    .iter()
                    .zip(counts)
                    .map(|(dual, count)| dual * f64::from(count))
                    .sum();
                assert!(
                    !fits || value <= node_type.price * (1.0 + 1e-6),
                    "{counts:?} {value} {node_type:?}"
                );
            }
        }
    }

    #[test]
    fn a_shape_that_fits_nowhere_has_no_columns() {
        assert!(find(vec![shape(&[9], 1)], vec![node_type(&[5], 1.0, 1)]).is_none());
    }
}
