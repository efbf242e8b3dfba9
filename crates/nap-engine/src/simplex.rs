//! The simplex method, for the small linear programs that guide the packing.
//!
//! It maximises `gain · v` under `amounts · v ≤ limit` for each row, with non-negative limits and
//! `v`, so that zero is a feasible start. The tableau is condensed: it has a column for each
//! variable, whatever the number of rows. Rows can be added to a solved tableau, which is then
//! solved again from where it stands. Solutions guide choices, and callers that need certainty
//! verify them, so a rounding error can cost a little money but never validity. Only additions,
//! multiplications and divisions in a fixed order are used, so results are equal on every machine.

/// Absolute value below which a number counts as zero.
const TINY: f64 = 1e-9;

/// A linear program and its current basis.
#[derive(Clone)]
pub(crate) struct Simplex {
    width: usize,
    /// One row after another, each with a cell for every column; the last cell is the remaining
    /// limit.
    cells: Vec<f64>,
    /// Objective coefficient of each column.
    gain: Vec<f64>,
    /// Basic variable of each row: a variable, or (from `width` on) the slack of a row.
    in_row: Vec<usize>,
    /// Non-basic variable of each column.
    in_column: Vec<usize>,
    /// Row of each variable that is basic.
    row_of: Vec<Option<usize>>,
    /// Number of cells computed.
    effort: usize,
}

impl Simplex {
    /// Program without rows.
    pub(crate) fn new(gain: Vec<f64>) -> Self {
        let width = gain.len();
        let in_column = (0..width).collect();
        let row_of = vec![None; width];
        Self { width, cells: Vec::new(), gain, in_row: Vec::new(), in_column, row_of, effort: 0 }
    }

    fn rows(&self) -> usize {
        self.in_row.len()
    }

    fn row(&self, row: usize) -> &[f64] {
        &self.cells[row * (self.width + 1)..(row + 1) * (self.width + 1)]
    }

    /// Approximate number of cells computed so far.
    pub(crate) fn effort(&self) -> usize {
        self.effort
    }

    /// Adds a row: the amounts of some variables, and a limit.
    pub(crate) fn add(&mut self, amounts: impl IntoIterator<Item = (usize, f64)>, limit: f64) {
        let mut of_variable = vec![0.0; self.width];
        for (variable, amount) in amounts {
            of_variable[variable] += amount;
        }
        let mut cells = vec![0.0; self.width + 1];
        cells[self.width] = limit;
        for (column, variable) in self.in_column.iter().enumerate() {
            if let Some(amount) = of_variable.get(*variable) {
                cells[column] = *amount;
            }
        }
        for (row, amount) in
            self.row_of.iter().zip(&of_variable).filter(|(_, amount)| **amount != 0.0)
        {
            let Some(row) = *row else { continue };
            for (cell, other) in cells.iter_mut().zip(self.row(row)) {
                *cell -= amount * other;
            }
            self.effort += self.width;
        }
        self.in_row.push(self.width + self.in_row.len());
        self.cells.extend(cells);
    }

    /// Solves the program in at most `max_pivots` pivots.
    pub(crate) fn solve(&mut self, max_pivots: usize) {
        for _ in 0..max_pivots {
            let pivot = self.dual_pivot().or_else(|| self.primal_pivot());
            let Some((row, column)) = pivot else { break };
            self.pivot(row, column);
        }
    }

    /// The most violated row, and the column that repairs it at the least loss.
    fn dual_pivot(&self) -> Option<(usize, usize)> {
        let left = |row: usize| self.cells[row * (self.width + 1) + self.width];
        let row = (0..self.rows())
            .filter(|row| left(*row) < -TINY)
            .min_by(|a, b| left(*a).total_cmp(&left(*b)).then(a.cmp(b)))?;
        let cells = self.row(row);
        let ratio = |column: usize| (self.gain[column].min(0.0)) / cells[column];
        (0..self.width)
            .filter(|column| cells[*column] < -TINY)
            .min_by(|a, b| ratio(*a).total_cmp(&ratio(*b)).then(a.cmp(b)))
            .map(|column| (row, column))
    }

    /// The column with the largest gain, and the row that limits it first.
    fn primal_pivot(&mut self) -> Option<(usize, usize)> {
        loop {
            let column = (0..self.width)
                .filter(|column| self.gain[*column] > TINY)
                .max_by(|a, b| self.gain[*a].total_cmp(&self.gain[*b]).then(b.cmp(a)))?;
            let ratio = |row: usize| self.row(row)[self.width] / self.row(row)[column];
            let row = (0..self.rows())
                .filter(|row| self.row(*row)[column] > TINY)
                .min_by(|a, b| ratio(*a).total_cmp(&ratio(*b)).then(a.cmp(b)));
            match row {
                Some(row) => return Some((row, column)),
                // No row limits the column, so it has no price.
                None => self.gain[column] = 0.0,
            }
        }
    }

    fn pivot(&mut self, row: usize, column: usize) {
        let stride = self.width + 1;
        let pivot = self.cells[row * stride + column];
        let mut pivot_row = self.row(row).to_vec();
        for (index, cell) in pivot_row.iter_mut().enumerate() {
            *cell = if index == column { 1.0 / pivot } else { *cell / pivot };
        }
        for (index, cells) in self.cells.chunks_exact_mut(stride).enumerate() {
            let factor = cells[column];
            if index == row || factor == 0.0 {
                continue;
            }
            self.effort += stride;
            cells[column] = 0.0;
            for (cell, pivot_cell) in cells.iter_mut().zip(&pivot_row) {
                *cell -= factor * pivot_cell;
            }
        }
        let factor = self.gain[column];
        self.gain[column] = 0.0;
        for (gain, pivot_cell) in self.gain.iter_mut().zip(&pivot_row[..self.width]) {
            *gain -= factor * pivot_cell;
        }
        self.cells[row * stride..(row + 1) * stride].copy_from_slice(&pivot_row);
        std::mem::swap(&mut self.in_row[row], &mut self.in_column[column]);
        let (now, before) = (self.in_row[row], self.in_column[column]);
        if let Some(place) = self.row_of.get_mut(before) {
            *place = None;
        }
        if let Some(place) = self.row_of.get_mut(now) {
            *place = Some(row);
        }
    }

    /// The value of each variable.
    pub(crate) fn values(&self) -> Vec<f64> {
        let value = |row: Option<usize>| row.map_or(0.0, |row| self.row(row)[self.width].max(0.0));
        self.row_of.iter().map(|row| value(*row)).collect()
    }

    /// Dual value of each row: the gain per unit of its limit.
    pub(crate) fn multipliers(&self) -> Vec<f64> {
        let mut multipliers = vec![0.0; self.rows()];
        for (column, variable) in self.in_column.iter().enumerate() {
            if let Some(row) = variable.checked_sub(self.width) {
                multipliers[row] = (-self.gain[column]).max(0.0);
            }
        }
        multipliers
    }

    /// Replaces the objective. The current solution stays feasible but may no longer be optimal.
    pub(crate) fn set_gain(&mut self, gain: &[f64]) {
        let mut now = vec![0.0; self.width];
        for (column, variable) in self.in_column.iter().enumerate() {
            now[column] = gain.get(*variable).copied().unwrap_or(0.0);
        }
        for (row, gain) in self.row_of.iter().zip(gain).filter(|(_, gain)| **gain != 0.0) {
            let Some(row) = *row else { continue };
            for (now, cell) in now.iter_mut().zip(self.row(row)) {
                *now -= gain * cell;
            }
            self.effort += self.width;
        }
        self.gain = now;
    }
}

#[cfg(test)]
mod tests {
    use microlp::{ComparisonOp, OptimizationDirection, Problem, SolveOutcome};
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn close(a: &[f64], b: &[f64]) -> bool {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6)
    }

    /// max 3x + 5y with x ≤ 4, 2y ≤ 12, 3x + 2y ≤ 18.
    fn textbook() -> Simplex {
        let mut program = Simplex::new(vec![3.0, 5.0]);
        program.add([(0, 1.0)], 4.0);
        program.add([(1, 2.0)], 12.0);
        program.add([(0, 3.0), (1, 2.0)], 18.0);
        program.solve(100);
        program
    }

    #[test]
    fn finds_the_optimum_and_its_duals() {
        let program = textbook();
        assert!(close(&program.values(), &[2.0, 6.0]), "{:?}", program.values());
        assert!(close(&program.multipliers(), &[0.0, 1.5, 1.0]), "{:?}", program.multipliers());
    }

    #[test]
    fn continues_after_a_row_is_added() {
        let mut program = textbook();
        program.add([(0, 1.0), (1, 1.0)], 7.0);
        program.solve(100);
        // With the new row, y = 6 leaves x = 1.
        assert!(close(&program.values(), &[1.0, 6.0]), "{:?}", program.values());
        assert!(
            close(&program.multipliers(), &[0.0, 1.0, 0.0, 3.0]),
            "{:?}",
            program.multipliers()
        );
    }

    #[test]
    fn continues_after_the_objective_changes() {
        let mut program = textbook();
        program.set_gain(&[5.0, 0.0]);
        program.solve(100);
        assert!(close(&program.values()[..1], &[4.0]), "{:?}", program.values());
    }

    proptest! {
        /// Random programs, solved again after each added row, against an independent solver; by
        /// strong duality the duals price the limits at the same optimum.
        #[test]
        fn agrees_with_microlp_row_by_row(
            gain in vec(0..20_i32, 1..5),
            rows in vec((vec(0..10_i32, 5), 0..100_i32), 1..7),
        ) {
            let gain: Vec<f64> = gain.into_iter().map(f64::from).collect();
            let mut program = Simplex::new(gain.clone());
            let mut judge = Problem::new(OptimizationDirection::Maximize);
            let variables: Vec<_> =
                gain.iter().map(|gain| judge.add_var(*gain, (0.0, f64::INFINITY))).collect();
            let mut limits = Vec::new();
            // A bound on each variable keeps the program bounded.
            for (index, variable) in variables.iter().enumerate() {
                program.add([(index, 1.0)], 50.0);
                judge.add_constraint([(*variable, 1.0)], ComparisonOp::Le, 50.0);
                limits.push(50.0);
            }
            for (amounts, limit) in rows {
                let amounts: Vec<f64> = amounts.into_iter().map(f64::from).collect();
                let row = amounts.iter().take(gain.len()).copied().enumerate();
                program.add(row, f64::from(limit));
                program.solve(1000);
                let row = variables.iter().copied().zip(amounts.iter().copied());
                judge.add_constraint(row, ComparisonOp::Le, f64::from(limit));
                limits.push(f64::from(limit));
                let SolveOutcome::Solution(solution) = judge.solve().unwrap() else {
                    return Err(TestCaseError::fail("the judge has no solution"));
                };
                let dot = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
                let primal = dot(&program.values(), &gain);
                let dual = dot(&program.multipliers(), &limits);
                prop_assert!((primal - solution.objective()).abs() < 1e-6, "{primal}");
                prop_assert!((dual - solution.objective()).abs() < 1e-6, "{dual}");
            }
        }
    }
}
