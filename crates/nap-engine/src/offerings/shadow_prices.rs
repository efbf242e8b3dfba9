//! Shadow prices: the value of one unit of each resource at the prices on sale.
//!
//! They are the duals of the cheapest fractional purchase that covers the demand: the prices that
//! value the demand highest while no type is worth more than it costs. They come from a linear
//! program with one variable for each dimension and one row for each type.

use crate::ids::EligibilityId;
use crate::offerings::index::OfferingIndex;
use crate::simplex::Simplex;

/// Upper limit on the pivots of the program; a demand needs fewer.
const MAX_PIVOTS: usize = 64;

/// Shadow price of one unit of each dimension, in micro-dollars per hour.
pub(crate) fn shadow_prices(offerings: &OfferingIndex<'_>, demand: &[i64]) -> Vec<f64> {
    let mut rows: Vec<(&[i64], f64)> = Vec::new();
    for (pool, table) in offerings.pools.enumerate() {
        for one in &offerings.eligible(EligibilityId::of_pool(pool)).types {
            #[expect(
                clippy::cast_precision_loss,
                reason = "prices are far below 2^52 micro-dollars"
            )]
            rows.push((table.free(one.id), one.price.micros().max(0) as f64));
        }
    }
    duals(&rows, demand)
}

/// Maximises the value of the demand under `amounts · duals ≤ price` for each row.
pub(crate) fn duals(rows: &[(&[i64], f64)], demand: &[i64]) -> Vec<f64> {
    let width = demand.len();
    // Amounts are scaled by the largest of their dimension, so that all numbers are of one size.
    let scale: Vec<f64> = (0..width)
        .map(|column| rows.iter().map(|(free, _)| real(free[column])).fold(0.0, f64::max))
        .collect();
    let scaled = |amount: i64, column: usize| {
        if scale[column] > 0.0 { real(amount) / scale[column] } else { 0.0 }
    };
    let mut program =
        Simplex::new((0..width).map(|column| scaled(demand[column], column)).collect());
    for (free, price) in rows {
        program.add((0..width).map(|column| (column, scaled(free[column], column))), *price);
    }
    program.solve(MAX_PIVOTS);
    let mut duals = program.values();
    for (dual, scale) in duals.iter_mut().zip(&scale) {
        *dual = if *scale > 0.0 { *dual / scale } else { 0.0 };
    }
    duals
}

#[expect(
    clippy::cast_precision_loss,
    reason = "amounts guide a choice here; their last digits do not matter"
)]
fn real(amount: i64) -> f64 {
    amount.max(0) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounded(rows: &[(&[i64], f64)], demand: &[i64]) -> Vec<i64> {
        #[expect(clippy::cast_possible_truncation, reason = "the numbers of these tests are small")]
        duals(rows, demand).iter().map(|dual| (dual * 1000.0).round() as i64).collect()
    }

    #[test]
    fn scarce_resources_bear_the_price() {
        // 4 and 8 GiB per vCPU at 96 and 126: the price of a vCPU is 66 and of a GiB 7.5.
        let rows: [(&[i64], f64); 2] = [(&[1, 4], 96.0), (&[1, 8], 126.0)];
        assert_eq!(rounded(&rows, &[1000, 6000]), [66_000, 7_500]);
        // With little demand for memory, memory is free and the vCPU bears the whole price.
        assert_eq!(rounded(&rows, &[1000, 100]), [96_000, 0]);
        // With much demand for memory, the vCPU is free.
        assert_eq!(rounded(&rows, &[1, 100_000]), [0, 15_750]);
    }

    #[test]
    fn a_dimension_without_capacity_has_no_price() {
        assert_eq!(rounded(&[(&[2, 0], 10.0)], &[5, 5]), [5000, 0]);
        assert_eq!(rounded(&[], &[5, 5]), [0, 0]);
        assert_eq!(rounded(&[(&[2], 0.0)], &[5]), [0]);
    }
}
