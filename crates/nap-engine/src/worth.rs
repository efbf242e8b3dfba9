//! What a unit of each resource is worth at the prices on offer.
//!
//! These are the shadow prices of the cheapest fractional purchase that covers the demand: the largest total worth of the demand such that no
//! type is worth more than it costs. They come from a linear program with one variable for each resource and one constraint for each type,
//! solved by the textbook simplex on a table that has as many columns as there are resources. The worth only guides which types are
//! tried, so a rounding error can cost a little money, never a wrong plan; and since it is nothing but additions, multiplications and
//! divisions in a fixed order, it is the same on every machine.

use crate::market::Market;

/// No demand needs more exchanges than this; if one did, what is found by then is good enough.
const MOST_PIVOTS: usize = 64;
/// Below this a number counts as zero.
const TINY: f64 = 1e-9;

/// The worth of one unit of each resource, in micro-dollars.
pub(crate) fn worth(market: &Market<'_>, demand: &[i64]) -> Vec<f64> {
    let mut rows: Vec<(&[i64], f64)> = Vec::new();
    for (pool, table) in market.pools.iter().enumerate() {
        for (price, kind) in &market.signature(pool).types {
            #[expect(clippy::cast_precision_loss, reason = "prices are far below 2^52 micro-dollars")]
            rows.push((&table.types[*kind].free, price.micros().max(0) as f64));
        }
    }
    shadow_prices(&rows, demand)
}

/// Maximises the worth of the demand under `amounts · worth ≤ price` for each row.
pub(crate) fn shadow_prices(rows: &[(&[i64], f64)], demand: &[i64]) -> Vec<f64> {
    let width = demand.len();
    // Each resource is counted in units of the largest amount on offer, so that all numbers are of one size.
    let scale: Vec<f64> = (0..width)
        .map(|column| rows.iter().map(|(free, _)| real(free[column])).fold(0.0, f64::max))
        .collect();
    let scaled =
        |amount: i64, column: usize| if scale[column] > 0.0 { real(amount) / scale[column] } else { 0.0 };
    let mut table = Table {
        cells: rows
            .iter()
            .map(|(free, price)| {
                (0..width).map(|column| scaled(free[column], column)).chain([*price]).collect()
            })
            .collect(),
        gain: (0..width).map(|column| scaled(demand[column], column)).collect(),
        in_row: vec![None; rows.len()],
        in_column: (0..width).map(Some).collect(),
    };
    for _ in 0..MOST_PIVOTS {
        let Some((row, column)) = table.exchange() else { break };
        table.pivot(row, column);
    }
    let mut worth = vec![0.0; width];
    for (cells, variable) in table.cells.iter().zip(&table.in_row) {
        if let Some(variable) = *variable
            && scale[variable] > 0.0
        {
            worth[variable] = cells[width].max(0.0) / scale[variable];
        }
    }
    worth
}

#[expect(
    clippy::cast_precision_loss,
    reason = "amounts guide a choice here; their last digits do not matter"
)]
fn real(amount: i64) -> f64 {
    amount.max(0) as f64
}

/// The condensed table of the simplex method.
struct Table {
    /// One row for each constraint; the last cell is what is left of it.
    cells: Vec<Vec<f64>>,
    /// What the total gains per unit of each column.
    gain: Vec<f64>,
    /// Which resource a row stands for by now.
    in_row: Vec<Option<usize>>,
    /// Which resource a column still stands for.
    in_column: Vec<Option<usize>>,
}

impl Table {
    /// The column with the largest gain, and the row that limits it first.
    fn exchange(&mut self) -> Option<(usize, usize)> {
        let width = self.gain.len();
        loop {
            let column = (0..width)
                .filter(|column| self.gain[*column] > TINY)
                .max_by(|a, b| self.gain[*a].total_cmp(&self.gain[*b]).then(b.cmp(a)))?;
            let row = (0..self.cells.len()).filter(|row| self.cells[*row][column] > TINY).min_by(|a, b| {
                let ratio = |row: usize| self.cells[row][width] / self.cells[row][column];
                ratio(*a).total_cmp(&ratio(*b)).then(a.cmp(b))
            });
            match row {
                Some(row) => return Some((row, column)),
                // Nobody offers this resource: it has no price.
                None => self.gain[column] = 0.0,
            }
        }
    }

    fn pivot(&mut self, row: usize, column: usize) {
        let width = self.gain.len();
        let pivot = self.cells[row][column];
        let mut pivot_row = self.cells[row].clone();
        for (index, cell) in pivot_row.iter_mut().enumerate() {
            *cell = if index == column { 1.0 / pivot } else { *cell / pivot };
        }
        for (index, cells) in self.cells.iter_mut().enumerate() {
            if index == row {
                continue;
            }
            let factor = cells[column];
            cells[column] = 0.0;
            for (cell, pivot_cell) in cells.iter_mut().zip(&pivot_row) {
                *cell -= factor * pivot_cell;
            }
        }
        let factor = self.gain[column];
        self.gain[column] = 0.0;
        for (gain, pivot_cell) in self.gain.iter_mut().zip(&pivot_row[..width]) {
            *gain -= factor * pivot_cell;
        }
        self.cells[row] = pivot_row;
        std::mem::swap(&mut self.in_row[row], &mut self.in_column[column]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounded(rows: &[(&[i64], f64)], demand: &[i64]) -> Vec<i64> {
        #[expect(clippy::cast_possible_truncation, reason = "the numbers of these tests are small")]
        shadow_prices(rows, demand).iter().map(|worth| (worth * 1000.0).round() as i64).collect()
    }

    #[test]
    fn prices_split_by_what_is_scarce() {
        // 4 and 8 GiB for each vCPU at 96 and 126: a vCPU is worth 66 and a GiB 7.5.
        let rows: [(&[i64], f64); 2] = [(&[1, 4], 96.0), (&[1, 8], 126.0)];
        assert_eq!(rounded(&rows, &[1000, 6000]), [66_000, 7_500]);
        // With little memory asked for, memory is free and the vCPU bears the whole price.
        assert_eq!(rounded(&rows, &[1000, 100]), [96_000, 0]);
        // With much, the other way round.
        assert_eq!(rounded(&rows, &[1, 100_000]), [0, 15_750]);
    }

    #[test]
    fn what_nobody_offers_has_no_price() {
        assert_eq!(rounded(&[(&[2, 0], 10.0)], &[5, 5]), [5000, 0]);
        assert_eq!(rounded(&[], &[5, 5]), [0, 0]);
        assert_eq!(rounded(&[(&[2], 0.0)], &[5]), [0]);
    }
}
