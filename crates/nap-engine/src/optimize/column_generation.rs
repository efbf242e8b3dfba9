//! Which loads of nodes, and how many of each, cover all pods at the least cost: column generation.
//!
//! Pods of one shape are interchangeable. A *column* is the load of one node: how many pods of each
//! shape, on which machine. If columns could be bought in fractions, the cheapest purchase would be
//! a linear program, whose dual gives every shape a worth such that no column holds more than it
//! costs. Nobody can list all columns; so those are added which hold more than they cost at the
//! present worth, until there are no more. Finding such a column is a knapsack, solved by a bounded
//! search for each machine.
//!
//! The worth is also a certificate. If no load of any machine is worth more than `r` times its
//! price, then all pods together cost at least an `r`-th of their worth, whatever the plan. Unlike
//! the worth of resources, this knows that pods come in whole numbers.

use std::collections::BTreeSet;

use fixedbitset::FixedBitSet;

use crate::classes::room;
use crate::simplex::Simplex;

/// With more shapes than this it is not tried: the work grows with the square of their number.
pub(crate) const MAX_SHAPES: usize = 256;
/// How often columns are added at most.
const MAX_ROUNDS: usize = 60;
/// How many columns are added at once.
const MAX_AT_ONCE: usize = 24;
/// How many exchanges the linear program may make in a round.
const MAX_EXCHANGES: usize = 400;
/// How much may be computed for each pod, and in all: cells of the program, and steps of searches,
/// of which each counts for several.
const EFFORT_PER_POD: usize = 15_000;
const LEAST_EFFORT: usize = 300_000;
const MAX_EFFORT: usize = 30_000_000;
const EFFORT_PER_STEP: usize = 16;
/// Rounds in which nothing is gained, after which it is over.
const PATIENCE: usize = 6;
/// How many steps the search for a column takes at most, while looking for any and while making
/// sure.
const QUICK: usize = 200;
const THOROUGH: usize = 4_000;
/// What is closer than this to its price is no gain.
const CLOSE: f64 = 1e-4;
/// When what is promised is as close as this to what the program pays, it is over.
const NEAR: f64 = 2e-3;

/// Pods of one shape.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) row: Vec<i64>,
    pub(crate) count: usize,
}

/// A machine that can be bought, as often as one likes.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) free: Vec<i64>,
    /// In dollars an hour.
    pub(crate) price: f64,
    /// The shapes that may be on it.
    pub(crate) allows: FixedBitSet,
    /// For whoever asked.
    pub(crate) tag: (usize, usize),
}

/// One node's load.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Column {
    pub(crate) machine: usize,
    /// Shapes with how many of their pods.
    pub(crate) load: Vec<(usize, usize)>,
}

/// The columns that were found, and what the shapes are worth.
pub(crate) struct Columns {
    pub(crate) shapes: Vec<Shape>,
    pub(crate) machines: Vec<Machine>,
    pub(crate) list: Vec<Column>,
    program: Simplex,
    /// What a pod of each shape is worth, in dollars an hour, such that no machine is worth more
    /// than its price.
    pub(crate) worth: Vec<f64>,
}

/// Leaves out machines that another one replaces at no higher price.
pub(crate) fn undominated(mut machines: Vec<Machine>) -> Vec<Machine> {
    let total =
        |machine: &Machine| machine.free.iter().fold(0_i64, |sum, free| sum.saturating_add(*free));
    machines.sort_by(|a, b| {
        a.price
            .total_cmp(&b.price)
            .then_with(|| total(b).cmp(&total(a)))
            .then_with(|| a.tag.cmp(&b.tag))
    });
    let mut kept: Vec<Machine> = Vec::new();
    for machine in machines {
        let replaces = |other: &Machine| {
            machine.free.iter().zip(&other.free).all(|(mine, theirs)| mine <= theirs)
                && machine.allows.is_subset(&other.allows)
        };
        if !kept.iter().any(replaces) {
            kept.push(machine);
        }
    }
    kept
}

impl Columns {
    /// Finds columns, beginning with some that are known. `most_pods` is the most that a node may
    /// have. `None` if some shape fits nowhere, or if there are too many.
    pub(crate) fn find(
        shapes: Vec<Shape>,
        machines: Vec<Machine>,
        known: impl IntoIterator<Item = Column>,
        most_pods: usize,
    ) -> Option<Self> {
        if shapes.is_empty() || shapes.len() > MAX_SHAPES {
            return None;
        }
        let gain = shapes.iter().map(|shape| real(shape.count)).collect();
        let mut columns = Self {
            shapes,
            machines,
            list: Vec::new(),
            program: Simplex::new(gain),
            worth: Vec::new(),
        };
        let mut seen: BTreeSet<Column> = BTreeSet::new();
        let alone = (0..columns.shapes.len()).map(|shape| columns.alone(shape, most_pods));
        for column in alone.collect::<Option<Vec<_>>>()?.into_iter().chain(known) {
            columns.add(column, &mut seen);
        }
        columns.grow(most_pods, &mut seen);
        Some(columns)
    }

    /// The column with one shape only that costs least for each pod.
    fn alone(&self, shape: usize, most_pods: usize) -> Option<Column> {
        let Shape { row, count } = &self.shapes[shape];
        let zeros = vec![0; row.len()];
        let mut best: Option<(f64, Column)> = None;
        for (number, machine) in
            self.machines.iter().enumerate().filter(|(_, one)| one.allows.contains(shape))
        {
            let room = room(&machine.free, &zeros, row, (*count).min(most_pods));
            let each = machine.price / real(room);
            if room > 0 && best.as_ref().is_none_or(|(best, _)| each < *best) {
                best = Some((each, Column { machine: number, load: vec![(shape, room)] }));
            }
        }
        best.map(|(_, column)| column)
    }

    fn add(&mut self, column: Column, seen: &mut BTreeSet<Column>) -> bool {
        if !seen.insert(column.clone()) {
            return false;
        }
        let price = self.machines[column.machine].price;
        self.program.add(column.load.iter().map(|(shape, count)| (*shape, real(*count))), price);
        self.list.push(column);
        true
    }

    /// Adds columns while that makes the purchase cheaper, and settles what shapes are worth.
    fn grow(&mut self, most_pods: usize, seen: &mut BTreeSet<Column>) {
        let pods: usize = self.shapes.iter().map(|shape| shape.count).sum();
        let most_effort = pods.saturating_mul(EFFORT_PER_POD).clamp(LEAST_EFFORT, MAX_EFFORT);
        let mut steps = QUICK;
        let (mut promise, mut best) = (0.0, vec![0.0; self.shapes.len()]);
        let (mut searched, mut in_vain, mut paid) = (0, 0, f64::INFINITY);
        for _ in 0..MAX_ROUNDS {
            self.program.solve(MAX_EXCHANGES);
            let worth = self.program.values();
            let total = self.total(&worth);
            let Priced { found, most, effort } = self.price(&worth, most_pods, steps);
            searched += effort;
            // Divided by how far the most valuable load is above its price, the worth keeps its
            // promise.
            let kept = total / most;
            let gained = kept > promise * (1.0 + CLOSE) || total < paid * (1.0 - CLOSE);
            if kept > promise {
                (promise, best) = (kept, worth.iter().map(|worth| worth / most).collect());
            }
            paid = paid.min(total);
            in_vain = if gained { 0 } else { in_vain + 1 };
            let is_enough = self.program.effort() + searched > most_effort || in_vain > PATIENCE;
            if promise >= total * (1.0 - NEAR) || is_enough {
                break;
            }
            let added = found.into_iter().filter(|column| self.add(column.clone(), seen)).count();
            match (added, steps < THOROUGH) {
                (1.., _) => {}
                (0, true) => steps = THOROUGH,
                (0, false) => break,
            }
        }
        self.program.solve(MAX_EXCHANGES);
        self.worth = best;
    }

    fn total(&self, worth: &[f64]) -> f64 {
        self.shapes.iter().zip(worth).map(|(shape, worth)| real(shape.count) * worth).sum()
    }

    /// The most valuable loads that are worth more than their price, the best first; and how many
    /// times its price any load can be worth at most.
    fn price(&self, worth: &[f64], most_pods: usize, steps: usize) -> Priced {
        let mut found: Vec<(f64, Column)> = Vec::new();
        let mut most: f64 = 1.0;
        let mut effort = 0;
        for (number, machine) in self.machines.iter().enumerate() {
            let allowed = machine.allows.ones().filter(|shape| worth[*shape] > 0.0);
            let search = Search::new(&self.shapes, machine, worth, allowed, most_pods);
            let load = search.and_then(|search| search.run(machine.price, steps));
            effort += load.as_ref().map_or(self.shapes.len(), |load| load.effort);
            let Some(load) = load else { continue };
            most = most.max(if machine.price > 0.0 {
                load.at_most / machine.price
            } else {
                f64::INFINITY
            });
            let held: f64 =
                load.content.iter().map(|(shape, count)| worth[*shape] * real(*count)).sum();
            if held > machine.price * (1.0 + CLOSE) {
                found.push((held / machine.price, Column { machine: number, load: load.content }));
            }
        }
        found.sort_by(|(a, one), (b, other)| b.total_cmp(a).then_with(|| one.cmp(other)));
        found.truncate(MAX_AT_ONCE);
        Priced { found: found.into_iter().map(|(_, column)| column).collect(), most, effort }
    }

    /// What to buy: columns and how many of each, as long as the program would buy at least `least`
    /// of one.
    pub(crate) fn purchase(&self, least: f64) -> Vec<(usize, usize)> {
        let mut program = self.program.clone();
        let mut left: Vec<usize> = self.shapes.iter().map(|shape| shape.count).collect();
        let mut bought: Vec<(usize, usize)> = Vec::new();
        for _ in 0..MAX_SHAPES {
            let shares = program.multipliers();
            let mut order: Vec<usize> =
                (0..self.list.len()).filter(|column| shares[*column] > 1e-6).collect();
            order.sort_by(|a, b| shares[*b].total_cmp(&shares[*a]).then(a.cmp(b)));
            let mut any = false;
            for column in order {
                let whole = (shares[column] + 1e-6).floor();
                // Once nothing whole is left, the one that is nearest is rounded up.
                let copies = if whole >= 1.0 {
                    truncate(whole)
                } else if !any && shares[column] >= least {
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
                bought.push((column, copies));
                any = true;
            }
            if !any || left.iter().all(|count| *count == 0) {
                break;
            }
            let gain: Vec<f64> = left.iter().map(|count| real(*count)).collect();
            program.regain(&gain);
            program.solve(MAX_EXCHANGES);
        }
        bought
    }
}

/// What was found at some worth.
struct Priced {
    found: Vec<Column>,
    most: f64,
    effort: usize,
}

/// What was found for a machine.
struct Load {
    effort: usize,
    content: Vec<(usize, usize)>,
    /// No load is worth more.
    at_most: f64,
}

/// The search for the most valuable load of one machine.
struct Search<'s> {
    shapes: &'s [Shape],
    worth: &'s [f64],
    /// Those that fit, the most valuable for what they take first; with that value.
    order: Vec<(f64, usize)>,
    /// What each resource is worth here: no shape is worth more than what it takes of them.
    prices: Vec<f64>,
    most_pods: usize,
    left: Vec<i64>,
    counts: Vec<usize>,
    best: (f64, Vec<usize>),
    steps: usize,
}

impl<'s> Search<'s> {
    fn new(
        shapes: &'s [Shape],
        machine: &Machine,
        worth: &'s [f64],
        allowed: impl Iterator<Item = usize>,
        most_pods: usize,
    ) -> Option<Self> {
        let fits = |shape: &usize| {
            shapes[*shape].row.iter().zip(&machine.free).all(|(one, free)| one <= free)
        };
        let fitting: Vec<usize> = allowed.filter(fits).collect();
        if fitting.is_empty() {
            return None;
        }
        let mut program = Simplex::new(fitting.iter().map(|shape| worth[*shape]).collect());
        for (dimension, free) in machine.free.iter().enumerate() {
            // In parts of the whole.
            let whole = if *free > 0 { signed(*free) } else { 1.0 };
            let taken = fitting.iter().map(|shape| signed(shapes[*shape].row[dimension]) / whole);
            program.add(taken.enumerate(), 1.0);
        }
        program.solve(4 * machine.free.len() + 16);
        let mut prices = program.multipliers();
        for (price, free) in prices.iter_mut().zip(&machine.free) {
            *price /= if *free > 0 { signed(*free) } else { 1.0 };
        }
        let cost = |shape: usize| -> f64 {
            shapes[shape]
                .row
                .iter()
                .zip(&prices)
                .map(|(amount, price)| signed(*amount) * price)
                .sum()
        };
        let mut order: Vec<(f64, usize)> = fitting
            .iter()
            .map(|shape| (worth[*shape] / cost(*shape).max(1e-300), *shape))
            .collect();
        order.sort_by(|(a, one), (b, other)| b.total_cmp(a).then(one.cmp(other)));
        Some(Self {
            shapes,
            worth,
            order,
            prices,
            most_pods,
            left: machine.free.clone(),
            counts: Vec::new(),
            best: (0.0, Vec::new()),
            steps: 0,
        })
    }

    fn rest(&self) -> f64 {
        self.left.iter().zip(&self.prices).map(|(left, price)| signed(*left) * price).sum()
    }

    fn run(mut self, price: f64, most_steps: usize) -> Option<Load> {
        // Also true where the prices are not the best there are: no shape is worth more than this
        // times what it takes.
        let relaxed = self.rest() * self.order.first()?.0.max(1.0);
        let relaxed = if relaxed.is_finite() { relaxed } else { f64::INFINITY };
        if relaxed <= price {
            // It cannot be worth the while.
            return None;
        }
        self.counts = vec![0; self.order.len()];
        let is_complete = self.descend(0, 0.0, self.most_pods, most_steps);
        let at_most = if is_complete { self.best.0.min(relaxed) } else { relaxed };
        let mut content: Vec<(usize, usize)> = (self.order.iter().zip(&self.best.1))
            .filter(|(_, count)| **count > 0)
            .map(|((_, shape), count)| (*shape, *count))
            .collect();
        content.sort_unstable();
        let effort = self.steps * EFFORT_PER_STEP;
        // With a margin for rounding.
        Some(Load { effort, content, at_most: at_most * (1.0 + 1e-9) })
    }

    /// Tries how many of the shapes from a place on; whether the search came to its end.
    fn descend(&mut self, place: usize, worth: f64, pods: usize, most_steps: usize) -> bool {
        if worth > self.best.0 {
            self.best = (worth, self.counts.clone());
        }
        let Some((density, shape)) = self.order.get(place).copied() else { return true };
        if pods == 0 || worth + self.rest() * density <= self.best.0 * (1.0 + 1e-12) {
            return true;
        }
        self.steps += 1;
        if self.steps > most_steps {
            return false;
        }
        let shapes = self.shapes;
        let Shape { row, count } = &shapes[shape];
        let mut most = (*count).min(pods);
        for (left, request) in self.left.iter().zip(row).filter(|(_, request)| **request > 0) {
            most = most.min(usize::try_from(left / request).unwrap_or(0));
        }
        self.change(row, -signed_count(most));
        let mut is_complete = true;
        for taken in (0..=most).rev() {
            self.counts[place] = taken;
            is_complete &= self.descend(
                place + 1,
                worth + real(taken) * self.worth[shape],
                pods - taken,
                most_steps,
            );
            if taken > 0 {
                self.change(row, 1);
            }
            if !is_complete {
                // What is taken is given back all the same.
                self.change(row, signed_count(taken.saturating_sub(1)));
                break;
            }
        }
        self.counts[place] = 0;
        is_complete
    }

    fn change(&mut self, row: &[i64], times: i64) {
        for (left, request) in self.left.iter_mut().zip(row) {
            *left += request * times;
        }
    }
}

fn signed_count(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn real(count: usize) -> f64 {
    count as f64
}

#[expect(clippy::cast_precision_loss, reason = "the margins are larger than what is lost")]
fn signed(amount: i64) -> f64 {
    amount as f64
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

    fn machine(free: &[i64], price: f64, shapes: usize) -> Machine {
        let mut allows = FixedBitSet::with_capacity(shapes);
        allows.insert_range(..);
        Machine { free: free.to_vec(), price, allows, tag: (0, 0) }
    }

    fn shape(row: &[i64], count: usize) -> Shape {
        Shape { row: row.to_vec(), count }
    }

    #[test]
    fn pods_that_come_whole_are_worth_more_than_their_resources() {
        // Of three fifths only one fits, so each is worth a whole machine; by resources alone it
        // would be three fifths of one.
        let columns =
            Columns::find(vec![shape(&[3], 10)], vec![machine(&[5], 1.0, 1)], [], usize::MAX)
                .unwrap();
        assert!((columns.worth[0] - 1.0).abs() < 1e-3, "{:?}", columns.worth);
        assert_eq!(columns.purchase(0.5), [(0, 10)]);
    }

    #[test]
    fn loads_that_complement_each_other_are_found() {
        let shapes = vec![shape(&[3, 1], 6), shape(&[1, 3], 6)];
        let columns =
            Columns::find(shapes, vec![machine(&[4, 4], 1.0, 2)], [], usize::MAX).unwrap();
        let bought = columns.purchase(0.5);
        let both = Column { machine: 0, load: vec![(0, 1), (1, 1)] };
        assert_eq!(
            bought
                .iter()
                .map(|(column, copies)| (&columns.list[*column], *copies))
                .collect::<Vec<_>>(),
            [(&both, 6)]
        );
        let total: f64 = columns.worth.iter().map(|worth| worth * 6.0).sum();
        assert!((total - 6.0).abs() < 0.02, "{total}");
    }

    #[test]
    fn no_load_is_worth_more_than_its_price() {
        // Whatever the search finds, every load there is must keep the promise.
        let shapes = vec![shape(&[2, 5], 9), shape(&[3, 2], 7), shape(&[4, 1], 5)];
        let machines =
            vec![machine(&[7, 9], 1.0, 3), machine(&[16, 16], 1.9, 3), machine(&[9, 30], 1.7, 3)];
        let columns = Columns::find(shapes.clone(), machines.clone(), [], usize::MAX).unwrap();
        assert!(columns.worth.iter().all(|worth| *worth > 0.0), "{:?}", columns.worth);
        for machine in &machines {
            for (a, b, c) in
                (0..10).flat_map(|a| (0..10).flat_map(move |b| (0..10).map(move |c| (a, b, c))))
            {
                let counts = [a, b, c];
                let fits = (0..2).all(|dimension| {
                    let used = shapes
                        .iter()
                        .zip(counts)
                        .map(|(shape, count)| shape.row[dimension] * count);
                    used.sum::<i64>() <= machine.free[dimension]
                });
                let worth: f64 = columns
                    .worth
                    .iter()
                    .zip(counts)
                    .map(|(worth, count)| worth * signed(count))
                    .sum();
                assert!(
                    !fits || worth <= machine.price * (1.0 + 1e-6),
                    "{counts:?} {worth} {machine:?}"
                );
            }
        }
    }

    #[test]
    fn a_shape_that_fits_nowhere_has_no_columns() {
        assert!(
            Columns::find(vec![shape(&[9], 1)], vec![machine(&[5], 1.0, 1)], [], usize::MAX)
                .is_none()
        );
    }
}
