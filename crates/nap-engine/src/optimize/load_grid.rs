//! Good loads of a large node, by a coarse dynamic program.
//!
//! Shapes are taken in order, the most valuable for their size first. Partial loads with about the
//! same remaining capacity compete: of each cell of a grid over the two scarcest resources only the
//! most promising one goes on, by its value and the shadow value of what remains. Capacities are
//! exact, so every load fits; the grid only decides which loads are forgotten.

use crate::optimize::column_generation::Shape;
use crate::topology::counts::Allowance;

/// Cells of the grid along each of its two resources.
const CELLS: usize = 16;
/// Effort of one partial load, in the units of `Simplex::effort`.
const EFFORT_PER_LOAD: usize = 4;

/// The dynamic program for one node type.
pub(super) struct LoadGrid<'g> {
    /// Shapes with the value of one pod, the most valuable for their size first.
    shapes: Vec<(&'g Shape, f64)>,
    free: &'g [i64],
    /// Shadow prices of the resources.
    prices: &'g [f64],
    max_pods: Allowance,
    /// The two resources of the grid.
    axes: [usize; 2],
    loads: Vec<PartialLoad>,
    /// The load that goes on in each cell.
    cells: Vec<Option<usize>>,
}

/// A load with some of the shapes.
struct PartialLoad {
    left: Vec<i64>,
    value: f64,
    /// Value and shadow value of the remaining capacity.
    promise: f64,
    pods: usize,
    /// The load that this one extends, and by how many pods of which shape.
    from: Option<(usize, usize, usize)>,
}

impl<'g> LoadGrid<'g> {
    pub(super) fn new(
        shapes: Vec<(&'g Shape, f64)>,
        free: &'g [i64],
        prices: &'g [f64],
        max_pods: Allowance,
    ) -> Self {
        let worth = |axis: &usize| real(free[*axis]) * prices[*axis];
        let mut axes: Vec<usize> = (0..free.len()).collect();
        axes.sort_by(|a, b| worth(b).total_cmp(&worth(a)).then(a.cmp(b)));
        let axis = |number: usize| axes.get(number).copied().unwrap_or(0);
        let axes = [axis(0), axis(1)];
        let cells = vec![None; CELLS * CELLS];
        Self { shapes, free, prices, max_pods, axes, loads: Vec::new(), cells }
    }

    /// The most valuable load that was found: its value, the number of pods of each shape, and the
    /// effort.
    pub(super) fn best(mut self) -> (f64, Vec<usize>, usize) {
        let promise = self.shadow_value(self.free);
        let empty =
            PartialLoad { left: self.free.to_vec(), value: 0.0, promise, pods: 0, from: None };
        self.keep(empty);
        for shape in 0..self.shapes.len() {
            let reached: Vec<usize> = self.cells.iter().flatten().copied().collect();
            for load in reached {
                self.extend(load, shape);
            }
        }
        let mut best = (0.0, vec![0; self.shapes.len()]);
        for load in self.cells.iter().flatten() {
            let (value, counts) = self.complete(*load);
            if value > best.0 {
                best = (value, counts);
            }
        }
        (best.0, best.1, self.loads.len() * EFFORT_PER_LOAD)
    }

    fn shadow_value(&self, left: &[i64]) -> f64 {
        left.iter().zip(self.prices).map(|(left, price)| real(*left) * price).sum()
    }

    /// Cell of a remaining capacity.
    fn cell(&self, left: &[i64]) -> usize {
        let along = |axis: usize| {
            let part = i128::from(left[axis]) * CELLS as i128 / i128::from(self.free[axis].max(1));
            usize::try_from(part).unwrap_or(0).min(CELLS - 1)
        };
        along(self.axes[0]) * CELLS + along(self.axes[1])
    }

    /// Lets a load go on if it is the most promising of its cell.
    fn keep(&mut self, load: PartialLoad) {
        let cell = self.cell(&load.left);
        let is_better = |other: usize| {
            let other = &self.loads[other];
            (load.promise, load.value) > (other.promise, other.value)
        };
        if self.cells[cell].is_none_or(is_better) {
            self.cells[cell] = Some(self.loads.len());
            self.loads.push(load);
        }
    }

    /// Largest number of pods of a shape that can be added to a load.
    fn room(&self, left: &[i64], pods: usize, shape: usize) -> usize {
        let Shape { requests, count } = self.shapes[shape].0;
        let mut room = self.max_pods.less(pods).of(*count);
        for (left, request) in left.iter().zip(requests).filter(|(_, request)| **request > 0) {
            room = room.min(usize::try_from(left / request).unwrap_or(0));
        }
        room
    }

    /// Extends a load by every number of pods of a shape that leads to another cell.
    fn extend(&mut self, load: usize, shape: usize) {
        let (requests, worth) = (&self.shapes[shape].0.requests, self.shapes[shape].1);
        let (mut left, pods) = (self.loads[load].left.clone(), self.loads[load].pods);
        let (room, value) = (self.room(&left, pods, shape), self.loads[load].value);
        let mut last = self.cell(&left);
        for added in 1..=room {
            for (left, request) in left.iter_mut().zip(requests) {
                *left -= request;
            }
            let cell = self.cell(&left);
            if cell == last && added < room {
                continue;
            }
            last = cell;
            let value = value + count_as_real(added) * worth;
            let promise = value + self.shadow_value(&left);
            let (pods, from) = (pods + added, Some((load, shape, added)));
            self.keep(PartialLoad { left: left.clone(), value, promise, pods, from });
        }
    }

    /// A load with as many further pods as fit: its value, and the number of pods of each shape.
    fn complete(&self, load: usize) -> (f64, Vec<usize>) {
        let PartialLoad { left, value, pods, from, .. } = &self.loads[load];
        let (mut left, mut value, mut pods) = (left.clone(), *value, *pods);
        let mut counts = vec![0; self.shapes.len()];
        let mut from = *from;
        while let Some((earlier, shape, added)) = from {
            counts[shape] += added;
            from = self.loads[earlier].from;
        }
        for (shape, count) in counts.iter_mut().enumerate() {
            let (Shape { requests, count: most }, worth) = self.shapes[shape];
            let added = self.room(&left, pods, shape).min(most.saturating_sub(*count));
            *count += added;
            pods += added;
            value += count_as_real(added) * worth;
            for (left, request) in left.iter_mut().zip(requests) {
                *left -= request * i64::try_from(added).unwrap_or(0);
            }
        }
        (value, counts)
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn count_as_real(count: usize) -> f64 {
    count as f64
}

#[expect(clippy::cast_precision_loss, reason = "it guides a choice; the last digits do not matter")]
fn real(amount: i64) -> f64 {
    amount as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(requests: &[i64], count: usize) -> Shape {
        Shape { requests: requests.to_vec(), count }
    }

    #[test]
    fn loads_fit_and_use_no_more_pods_than_there_are() {
        let shapes = [shape(&[300, 1_000], 4), shape(&[700, 500], 50), shape(&[10, 90], 3)];
        let worth = [0.4, 0.5, 0.02];
        let list = shapes.iter().zip(worth).collect();
        let grid = LoadGrid::new(list, &[9_000, 12_000], &[5e-4, 2e-4], Allowance::AtMost(15));
        let (value, counts, effort) = grid.best();
        let pods: usize = counts.iter().sum();
        assert!(pods <= 15 && counts[0] <= 4 && counts[2] <= 3, "{counts:?}");
        for axis in 0..2 {
            let each = shapes.iter().zip(&counts);
            let used: i64 =
                each.map(|(one, n)| one.requests[axis] * i64::try_from(*n).unwrap()).sum();
            assert!(used <= [9_000, 12_000][axis], "{counts:?}");
        }
        let sum: f64 =
            worth.iter().zip(&counts).map(|(one, count)| one * count_as_real(*count)).sum();
        assert!((value - sum).abs() < 1e-9 && effort > 0, "{value} {sum}");
    }

    #[test]
    fn two_shapes_that_complement_each_other_fill_a_large_node() {
        // 40 of each fill the node to the last unit.
        let shapes = [shape(&[300, 100], 100), shape(&[100, 300], 100)];
        let list = shapes.iter().zip([1.0, 1.0]).collect();
        let free = [16_000, 16_000];
        let grid = LoadGrid::new(list, &free, &[2.5e-3, 2.5e-3], Allowance::Unlimited);
        assert_eq!(grid.best().1, [40, 40]);
    }
}
