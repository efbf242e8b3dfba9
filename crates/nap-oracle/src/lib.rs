//! The judge of plans. It shares the engine's data types and none of its algorithms.
//!
//! - [`check`] says what is wrong with a plan: it builds the cluster that the plan would give and
//!   lets a scheduler of its own, written after kube-scheduler, bind every pod where the plan put
//!   it. [`overlooked`] says which pods it would bind besides.
//! - [`bound`] is the least that any plan can cost, by a linear program on an off-the-shelf solver.
//! - [`exact`] is the cheapest plan of a small case, by a mixed-integer program on the same solver.
//! - [`generate`] makes snapshots that touch every rule, from a seed; [`shrink`] makes one that
//!   fails smaller.

mod bound;
mod check;
mod cluster;
mod exact;
mod generate;
mod knapsack_bound;
mod patterns;
mod places;
mod shrink;

pub use bound::bound;
pub use check::{Violation, check, overlooked};
pub use exact::{NotModelled, exact};
pub use generate::{generate, generate_options};
pub use places::with_every_domain;
pub use shrink::{scenario, shrink};
