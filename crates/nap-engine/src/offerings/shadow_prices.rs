//! What a unit of each resource is worth at the prices on offer.
//!
//! These are the shadow prices of the cheapest fractional purchase that covers the demand: the
//! largest total worth of the demand such that no type is worth more than it costs. They come from
//! a linear program with one variable for each resource and one row for each type.

use crate::offerings::index::OfferingIndex;
use crate::simplex::Simplex;

/// No demand needs more exchanges than this; if one did, what is found by then is good enough.
const MAX_EXCHANGES: usize = 64;

/// The worth of one unit of each resource, in micro-dollars.
pub(crate) fn worth(offerings: &OfferingIndex<'_>, demand: &[i64]) -> Vec<f64> {
    let mut rows: Vec<(&[i64], f64)> = Vec::new();
    for (pool, table) in offerings.pools.iter().enumerate() {
        for (price, kind) in &offerings.signature(pool).types {
            #[expect(
                clippy::cast_precision_loss,
                reason = "prices are far below 2^52 micro-dollars"
            )]
            rows.push((table.free(*kind), price.micros().max(0) as f64));
        }
    }
    shadow_prices(&rows, demand)
}

/// Maximises the worth of the demand under `amounts · worth ≤ price` for each row.
pub(crate) fn shadow_prices(rows: &[(&[i64], f64)], demand: &[i64]) -> Vec<f64> {
    let width = demand.len();
    // Each resource is counted in units of the largest amount on offer, so that all numbers are of
    // one size.
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
    program.solve(MAX_EXCHANGES);
    let mut worth = program.values();
    for (worth, scale) in worth.iter_mut().zip(&scale) {
        *worth = if *scale > 0.0 { *worth / scale } else { 0.0 };
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
