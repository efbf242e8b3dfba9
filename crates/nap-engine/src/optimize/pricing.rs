//! Pricing: the most valuable load of one node type, by a bounded knapsack search.
//!
//! The search branches on the number of pods of each shape, the most valuable for their size first.
//! A linear program over the resources of the node bounds what the remaining capacity can hold.
//! Large nodes have more loads than the search can look at; for them a coarse dynamic program over
//! the remaining capacity finds good loads, see `load_grid`.

use crate::optimize::column_generation::{NodeType, Shape};
use crate::optimize::load_grid::LoadGrid;
use crate::simplex::Simplex;
use crate::topology::counts::Allowance;

/// Effort of one step of the search, in the units of [`Simplex::effort`].
const EFFORT_PER_STEP: usize = 16;

/// Margin for rounding errors.
const ROUNDING: f64 = 1e-9;

/// Result of a search.
pub(super) struct Load {
    pub(super) effort: usize,
    /// Positions of shapes with the number of their pods.
    pub(super) content: Vec<(usize, usize)>,
    /// Upper bound on the value of any load.
    pub(super) max_value: f64,
}

/// The search for the most valuable load of one node type.
pub(super) struct Search<'s> {
    shapes: &'s [Shape],
    duals: &'s [f64],
    /// Density (value per shadow value of the request) and position of the shapes that fit, highest
    /// density first.
    order: Vec<(f64, usize)>,
    /// Shadow prices of the node's resources: no shape is worth more than its request.
    prices: Vec<f64>,
    max_pods: Allowance,
    left: Vec<i64>,
    counts: Vec<usize>,
    best: (f64, Vec<usize>),
    steps: usize,
}

impl<'s> Search<'s> {
    /// Search over the allowed shapes; `None` if none fits.
    pub(super) fn new(
        shapes: &'s [Shape],
        node_type: &NodeType,
        duals: &'s [f64],
        allowed: impl Iterator<Item = usize>,
        max_pods: Allowance,
    ) -> Option<Self> {
        let fits = |shape: &usize| {
            shapes[*shape].requests.iter().zip(&node_type.free).all(|(one, free)| one <= free)
        };
        let fitting: Vec<usize> = allowed.filter(fits).collect();
        if fitting.is_empty() {
            return None;
        }
        let mut program = Simplex::new(fitting.iter().map(|shape| duals[*shape]).collect());
        for (dimension, free) in node_type.free.iter().enumerate() {
            // Requests as fractions of the node.
            let whole = if *free > 0 { real(*free) } else { 1.0 };
            let taken =
                fitting.iter().map(|shape| real(shapes[*shape].requests[dimension]) / whole);
            program.add(taken.enumerate(), 1.0);
        }
        program.solve(4 * node_type.free.len() + 16);
        let mut prices = program.multipliers();
        for (price, free) in prices.iter_mut().zip(&node_type.free) {
            *price /= if *free > 0 { real(*free) } else { 1.0 };
        }
        let cost = |shape: usize| -> f64 {
            let requests = shapes[shape].requests.iter().zip(&prices);
            requests.map(|(amount, price)| real(*amount) * price).sum()
        };
        let mut order: Vec<(f64, usize)> = fitting
            .iter()
            .map(|shape| (duals[*shape] / cost(*shape).max(1e-300), *shape))
            .collect();
        order.sort_by(|(a, one), (b, other)| b.total_cmp(a).then(one.cmp(other)));
        Some(Self {
            shapes,
            duals,
            order,
            prices,
            max_pods,
            left: node_type.free.clone(),
            counts: Vec::new(),
            best: (0.0, Vec::new()),
            steps: 0,
        })
    }

    /// Shadow value of the remaining capacity.
    fn rest(&self) -> f64 {
        self.left.iter().zip(&self.prices).map(|(left, price)| real(*left) * price).sum()
    }

    /// Searches in at most `max_steps` steps. `None` if no load can be worth more than `price`.
    pub(super) fn run(mut self, price: f64, max_steps: usize) -> Option<Load> {
        // The bound also holds where the shadow prices are not optimal: no shape is worth more than
        // the highest density times its request.
        let relaxed = self.rest() * self.order.first()?.0.max(1.0);
        let relaxed = if relaxed.is_finite() { relaxed } else { f64::INFINITY };
        if relaxed <= price {
            return None;
        }
        self.counts = vec![0; self.order.len()];
        let is_complete = self.descend(0, 0.0, self.max_pods, max_steps);
        let mut effort = self.steps * EFFORT_PER_STEP;
        if !is_complete {
            effort += self.search_grid();
        }
        let max_value = if is_complete { self.best.0.min(relaxed) } else { relaxed };
        let mut content: Vec<(usize, usize)> = (self.order.iter().zip(&self.best.1))
            .filter(|(_, count)| **count > 0)
            .map(|((_, shape), count)| (*shape, *count))
            .collect();
        content.sort_unstable();
        Some(Load { effort, content, max_value: max_value * (1.0 + ROUNDING) })
    }

    /// Looks for a better load by a coarse dynamic program. Returns the effort.
    fn search_grid(&mut self) -> usize {
        let shapes = self.order.iter().map(|(_, shape)| (&self.shapes[*shape], self.duals[*shape]));
        let grid = LoadGrid::new(shapes.collect(), &self.left, &self.prices, self.max_pods);
        let (value, counts, effort) = grid.best();
        if value > self.best.0 {
            self.best = (value, counts);
        }
        effort
    }

    /// Branches on the shapes from a position on; whether the search was complete.
    fn descend(&mut self, position: usize, value: f64, pods: Allowance, max_steps: usize) -> bool {
        if value > self.best.0 {
            self.best = (value, self.counts.clone());
        }
        let Some((density, shape)) = self.order.get(position).copied() else { return true };
        if pods.is_none() || value + self.rest() * density <= self.best.0 * (1.0 + 1e-12) {
            return true;
        }
        self.steps += 1;
        if self.steps > max_steps {
            return false;
        }
        let shapes = self.shapes;
        let Shape { requests, count } = &shapes[shape];
        let mut max = pods.of(*count);
        for (left, request) in self.left.iter().zip(requests).filter(|(_, request)| **request > 0) {
            max = max.min(usize::try_from(left / request).unwrap_or(0));
        }
        self.take(requests, -signed(max));
        let mut is_complete = true;
        for taken in (0..=max).rev() {
            self.counts[position] = taken;
            is_complete &= self.descend(
                position + 1,
                value + count_as_real(taken) * self.duals[shape],
                pods.less(taken),
                max_steps,
            );
            if taken > 0 {
                self.take(requests, 1);
            }
            if !is_complete {
                // Restores the capacity of the pods that are still taken.
                self.take(requests, signed(taken.saturating_sub(1)));
                break;
            }
        }
        self.counts[position] = 0;
        is_complete
    }

    /// Adds a multiple of a request to the remaining capacity.
    fn take(&mut self, requests: &[i64], times: i64) {
        for (left, request) in self.left.iter_mut().zip(requests) {
            *left += request * times;
        }
    }
}

fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn count_as_real(count: usize) -> f64 {
    count as f64
}

#[expect(clippy::cast_precision_loss, reason = "the margins are larger than what is lost")]
fn real(amount: i64) -> f64 {
    amount as f64
}
