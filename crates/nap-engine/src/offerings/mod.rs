//! offerings.

pub(crate) mod daemon_overhead;
pub(crate) mod index;
pub(crate) mod min_values;
pub(crate) mod overlay;
pub(crate) mod pool_table;
pub(crate) mod shadow_prices;
