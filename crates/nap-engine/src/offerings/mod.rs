//! The offerings of each pool as sorted integer tables, and the offerings eligible for a node.
//!
//! [`sorted_catalogue`] sorts a catalogue once, [`daemon_overhead`] finds the daemons of each type,
//! and [`solver_cache`] keeps both between decisions. For one decision [`pool_table`] adds the free
//! capacity and the limit charges of each type. [`index`] narrows the offerings of a pool by the
//! terms of the pods on a node; [`eligibility`] is the result, [`domains`] its topology domains,
//! [`min_values`] the diversity that a pool requires of it, and [`funnel`] the count of offerings
//! that each step leaves. [`shadow_prices`] values resources at the prices on sale, [`effort`]
//! meters the work, and [`overlay`] edits catalogues before any of this.

pub(crate) mod daemon_overhead;
pub(crate) mod domains;
pub(crate) mod effort;
pub(crate) mod eligibility;
pub(crate) mod funnel;
pub(crate) mod index;
pub(crate) mod min_values;
pub(crate) mod overlay;
pub(crate) mod pool_table;
pub(crate) mod shadow_prices;
pub(crate) mod solver_cache;
pub(crate) mod sorted_catalogue;
