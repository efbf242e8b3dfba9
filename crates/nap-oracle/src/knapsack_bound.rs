//! Lower bound for indivisible pods, by cutting planes with a knapsack oracle.
//!
//! Dual prices for every pod shape and for every unit of memory and other resources are feasible if
//! no node can hold more value than it costs; then all pods together cost at least their value. The
//! linear program in `bound.rs` has one dual price per unit of CPU; here each shape has its own,
//! and the maximum value that a node can hold is computed exactly, by a knapsack over CPU with
//! whole pods, at most one of them from the largest group with mutual anti-affinity by host. So a
//! node with 900 free milli-cores is not filled by pods of 250.
//!
//! Cutting planes: the solver proposes dual prices, the knapsack finds the nodes that would hold
//! more than they cost, and these become rows. Any dual prices, scaled down until they are
//! feasible, give a valid bound, so the loop may stop at any time.

use std::collections::{BTreeMap, BTreeSet};

use microlp::{ComparisonOp, OptimizationDirection, Problem, Solution, SolveOutcome, Variable};
use nap_engine::ATTACHABLE_VOLUMES;
use nap_units::{CPU, UsdPerHour};

use crate::places::{Class, Place};

/// Maximum number of CPU units of a node.
const MAX_UNITS: i64 = 20_000;
/// Maximum number of proposals.
const MAX_ROUNDS: usize = 300;
/// Maximum number of rows from one proposal.
const MAX_ROWS: usize = 6;
/// Relative gap at which the loop stops.
const ENOUGH: f64 = 2e-4;

/// Pods with equal requests.
struct Shape {
    count: usize,
    /// CPU request in units, rounded down.
    units: usize,
    /// Whether the pod is in the group of which a node has at most one.
    is_exclusive: bool,
}

/// A node size at its lowest price.
struct NodeSize {
    units: usize,
    others: Vec<f64>,
    price: f64,
}

/// Dual prices, in dollars per hour: per pod of a shape, and per unit of each other resource.
#[derive(Clone)]
struct DualPrices {
    shapes: Vec<f64>,
    others: Vec<f64>,
}

struct Case {
    shapes: Vec<Shape>,
    sizes: Vec<NodeSize>,
    /// Total requests of each resource other than CPU, scaled.
    demand: Vec<f64>,
}

/// Lower bound on the cost of the pods of these classes, if each candidate can be launched any
/// number of times. `exclusive`: whether a class is in the group with mutual anti-affinity by host.
pub(crate) fn knapsack_bound(
    classes: &[Class<'_>],
    places: &[&Place<'_>],
    exclusive: &[bool],
) -> UsdPerHour {
    let Some(case) = Case::new(classes, places, exclusive) else { return UsdPerHour::ZERO };
    let value = case.best();
    #[expect(clippy::cast_possible_truncation, reason = "rounded down, and far below 2^52")]
    UsdPerHour::from_micros((value * 1e6 * (1.0 - 1e-9)).floor().max(0.0) as i64)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "the margin of the bound is larger than what is lost"
)]
fn real(amount: i64) -> f64 {
    amount as f64
}

fn divisor(one: i64, other: i64) -> i64 {
    if other == 0 { one } else { divisor(other, one % other) }
}

impl Case {
    fn new(classes: &[Class<'_>], places: &[&Place<'_>], exclusive: &[bool]) -> Option<Self> {
        let largest = places.iter().map(|place| place.machine.free.get(CPU)).max()?.max(1);
        let common =
            classes.iter().map(|class| class.pod.requests.get(CPU).max(0)).fold(0, divisor);
        let unit = common.max(1 + largest / MAX_UNITS).max(1);
        let units = |milli: i64| usize::try_from(milli.max(0) / unit).unwrap_or(0);
        let names: BTreeSet<&str> = classes
            .iter()
            .flat_map(|class| class.pod.requests.iter())
            .map(|(name, _)| name)
            .collect();
        let names: Vec<&str> = names
            .into_iter()
            .filter(|name| *name != CPU && !name.starts_with(ATTACHABLE_VOLUMES))
            .collect();
        // Each resource in units of its maximum on a node.
        let scale: Vec<f64> = names
            .iter()
            .map(|name| {
                real(
                    places
                        .iter()
                        .map(|place| place.machine.free.get(name))
                        .max()
                        .unwrap_or(1)
                        .max(1),
                )
            })
            .collect();
        let mut demand = vec![0.0; names.len()];
        let mut shapes: BTreeMap<(usize, Vec<i64>, bool), usize> = BTreeMap::new();
        for (class, is_exclusive) in classes.iter().zip(exclusive) {
            let asks: Vec<i64> =
                names.iter().map(|name| class.pod.requests.get(name).max(0)).collect();
            let count = real(i64::try_from(class.count()).unwrap_or(0));
            for ((demand, asks), scale) in demand.iter_mut().zip(&asks).zip(&scale) {
                *demand += real(*asks) * count / scale;
            }
            let milli = units(class.pod.requests.get(CPU));
            *shapes.entry((milli, asks, *is_exclusive)).or_default() += class.count();
        }
        let mut sizes: BTreeMap<(usize, Vec<i64>), i64> = BTreeMap::new();
        for place in places {
            let free = &place.machine.free;
            let others = names.iter().map(|name| free.get(name).max(0)).collect();
            let known = sizes.entry((units(free.get(CPU)), others)).or_insert(i64::MAX);
            *known = place.price().min(*known);
        }
        let sizes = sizes.into_iter().map(|((units, others), price)| NodeSize {
            units,
            others: others
                .iter()
                .zip(&scale)
                .map(|(amount, scale)| real(*amount) / scale)
                .collect(),
            price: real(price) / 1e6,
        });
        let shapes = shapes.into_iter().filter(|((units, ..), _)| *units > 0);
        let shapes =
            shapes.map(|((units, _, is_exclusive), count)| Shape { count, units, is_exclusive });
        Some(Self { shapes: shapes.collect(), sizes: sizes.collect(), demand })
    }

    /// The best bound found, in dollars per hour.
    fn best(&self) -> f64 {
        let start = self.by_unit();
        let mut best = (self.total(&start) / self.overfull(&start).0, start);
        let mut problem = Problem::new(OptimizationDirection::Maximize);
        // No dual price exceeds the price of the cheapest node that holds the pod or resource.
        let least = |prices: &mut dyn Iterator<Item = f64>| prices.fold(1e4, f64::min);
        let mut shapes: Vec<Variable> = Vec::new();
        for shape in &self.shapes {
            let large = self.sizes.iter().filter(|kind| kind.units >= shape.units);
            let most = least(&mut large.map(|kind| kind.price));
            shapes
                .push(problem.add_var(real(i64::try_from(shape.count).unwrap_or(0)), (0.0, most)));
        }
        let mut others: Vec<Variable> = Vec::new();
        for (number, demand) in self.demand.iter().enumerate() {
            let has = self.sizes.iter().filter(|kind| kind.others[number] > 0.0);
            let most = least(&mut has.map(|kind| kind.price / kind.others[number]));
            others.push(problem.add_var(*demand, (0.0, most)));
        }
        let Ok(SolveOutcome::Solution(mut solution)) = problem.solve() else { return best.0 };
        for _ in 0..MAX_ROUNDS {
            let at = |variables: &[Variable], solution: &Solution| -> Vec<f64> {
                variables.iter().map(|variable| solution.var_value(*variable).max(0.0)).collect()
            };
            let proposal =
                DualPrices { shapes: at(&shapes, &solution), others: at(&others, &solution) };
            if solution.objective() <= best.0 * (1.0 + ENOUGH) {
                break;
            }
            // In-out separation: cutting between the best known point and the proposal needs far
            // fewer rounds than at the proposal.
            let mut rows = Vec::new();
            for part in [0.3, 1.0] {
                let trial = best.1.towards(&proposal, part);
                let (scale, found) = self.overfull(&trial);
                let value = self.total(&trial) / scale;
                if value > best.0 {
                    best = (value, trial.scaled(1.0 / scale));
                }
                rows = found;
                if !rows.is_empty() {
                    break;
                }
            }
            if rows.is_empty() {
                break;
            }
            for (kind, pattern) in rows {
                let mut row: Vec<_> =
                    shapes.iter().copied().zip(pattern).filter(|(_, count)| *count > 0.0).collect();
                row.extend(others.iter().copied().zip(self.sizes[kind].others.iter().copied()));
                solution =
                    match solution.add_constraint(row, ComparisonOp::Le, self.sizes[kind].price) {
                        Ok(SolveOutcome::Solution(solution)) => solution,
                        _ => return best.0,
                    };
            }
        }
        best.0
    }

    /// Start: dual prices per unit of CPU, as if pods were divisible.
    fn by_unit(&self) -> DualPrices {
        let mut problem = Problem::new(OptimizationDirection::Maximize);
        let total = |is_one: &dyn Fn(&Shape) -> usize| {
            real(
                self.shapes
                    .iter()
                    .map(|shape| i64::try_from(shape.count * is_one(shape)).unwrap_or(0))
                    .sum(),
            )
        };
        let unit = problem.add_var(total(&|shape| shape.units), (0.0, 1e4));
        let slot = problem.add_var(total(&|shape| usize::from(shape.is_exclusive)), (0.0, 1e4));
        let others: Vec<Variable> =
            self.demand.iter().map(|demand| problem.add_var(*demand, (0.0, 1e4))).collect();
        for kind in &self.sizes {
            let mut row = vec![(unit, real(i64::try_from(kind.units).unwrap_or(0))), (slot, 1.0)];
            row.extend(others.iter().copied().zip(kind.others.iter().copied()));
            problem.add_constraint(row, ComparisonOp::Le, kind.price);
        }
        let solution = problem.solve().ok().and_then(|outcome| outcome.into_solution().ok());
        let at = |variable: Variable| {
            solution.as_ref().map_or(0.0, |solution| solution.var_value(variable).max(0.0))
        };
        let worth = |shape: &Shape| {
            let slot = if shape.is_exclusive { at(slot) } else { 0.0 };
            real(i64::try_from(shape.units).unwrap_or(0)) * at(unit) + slot
        };
        DualPrices {
            shapes: self.shapes.iter().map(worth).collect(),
            others: others.into_iter().map(at).collect(),
        }
    }

    fn total(&self, worth: &DualPrices) -> f64 {
        let shapes = self.shapes.iter().zip(&worth.shapes);
        let shapes: f64 = shapes
            .map(|(shape, worth)| real(i64::try_from(shape.count).unwrap_or(0)) * worth)
            .sum();
        shapes
            + self
                .demand
                .iter()
                .zip(&worth.others)
                .map(|(demand, worth)| demand * worth)
                .sum::<f64>()
    }

    /// Maximum ratio of value to price over all nodes (at least 1), and the patterns of the most
    /// violated nodes.
    fn overfull(&self, worth: &DualPrices) -> (f64, Vec<(usize, Vec<f64>)>) {
        let largest = self.sizes.iter().map(|kind| kind.units).max().unwrap_or(0);
        let knapsack = Knapsack::new(&self.shapes, &worth.shapes, largest);
        let mut full: Vec<(f64, usize)> = Vec::new();
        let mut scale: f64 = 1.0;
        for (number, kind) in self.sizes.iter().enumerate() {
            let others: f64 =
                kind.others.iter().zip(&worth.others).map(|(has, worth)| has * worth).sum();
            let holds = knapsack.most(kind.units) + others;
            if holds > 0.0 {
                let times = if kind.price > 0.0 { holds / kind.price } else { f64::INFINITY };
                scale = scale.max(times);
                if times > 1.0 + 1e-7 {
                    full.push((times, number));
                }
            }
        }
        full.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
        let rows = full
            .iter()
            .take(MAX_ROWS)
            .map(|(_, kind)| (*kind, knapsack.pattern(self.sizes[*kind].units)));
        (scale, rows.collect())
    }
}

impl DualPrices {
    fn towards(&self, other: &Self, part: f64) -> Self {
        let mix = |one: &[f64], other: &[f64]| -> Vec<f64> {
            one.iter().zip(other).map(|(one, other)| one + (other - one) * part).collect()
        };
        Self { shapes: mix(&self.shapes, &other.shapes), others: mix(&self.others, &other.others) }
    }

    fn scaled(&self, times: f64) -> Self {
        let all = |worths: &[f64]| worths.iter().map(|worth| worth * times).collect();
        Self { shapes: all(&self.shapes), others: all(&self.others) }
    }
}

/// Maximum value by number of CPU units: a 0/1 knapsack over bundles.
struct Knapsack<'a> {
    shapes: &'a [Shape],
    /// Bundles of equal pods in powers of two: shape, count, units, value.
    bundles: Vec<(usize, usize, usize, f64)>,
    /// Maximum value by units, without exclusive pods.
    best: Vec<f64>,
    /// Per bundle and number of units, whether the bundle is taken.
    taken: Vec<Vec<bool>>,
    worth: &'a [f64],
}

impl<'a> Knapsack<'a> {
    fn new(shapes: &'a [Shape], worth: &'a [f64], largest: usize) -> Self {
        let mut bundles = Vec::new();
        for (number, shape) in shapes.iter().enumerate().filter(|(_, shape)| !shape.is_exclusive) {
            let mut left = shape.count.min(largest / shape.units);
            let mut size = 1;
            while left > 0 && worth[number] > 0.0 {
                let count = size.min(left);
                let times = real(i64::try_from(count).unwrap_or(0));
                bundles.push((number, count, count * shape.units, times * worth[number]));
                left -= count;
                size *= 2;
            }
        }
        let mut best = vec![0.0; largest + 1];
        let mut taken = Vec::with_capacity(bundles.len());
        for (_, _, units, worth) in &bundles {
            let mut takes = vec![false; largest + 1];
            for room in (*units..=largest).rev() {
                let with = best[room - units] + worth;
                if with > best[room] {
                    best[room] = with;
                    takes[room] = true;
                }
            }
            taken.push(takes);
        }
        Self { shapes, bundles, best, taken, worth }
    }

    /// The exclusive pod of the best filling, if it has one, and the value of that filling.
    fn choice(&self, room: usize) -> (Option<usize>, f64) {
        let exclusive = self
            .shapes
            .iter()
            .enumerate()
            .filter(|(_, shape)| shape.is_exclusive && shape.units <= room);
        let with = exclusive.map(|(number, shape)| {
            (Some(number), self.worth[number] + self.best[room - shape.units])
        });
        with.fold((None, self.best[room]), |best, one| if one.1 > best.1 { one } else { best })
    }

    fn most(&self, room: usize) -> f64 {
        self.choice(room).1
    }

    /// Pods of each shape in the best filling.
    fn pattern(&self, room: usize) -> Vec<f64> {
        let mut pattern = vec![0.0; self.shapes.len()];
        let mut room = room;
        if let (Some(exclusive), _) = self.choice(room) {
            pattern[exclusive] = 1.0;
            room -= self.shapes[exclusive].units;
        }
        for ((number, count, units, _), takes) in self.bundles.iter().zip(&self.taken).rev() {
            if takes[room] {
                pattern[*number] += real(i64::try_from(*count).unwrap_or(0));
                room -= units;
            }
        }
        pattern
    }
}
