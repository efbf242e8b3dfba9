//! The judge of plans. It shares the engine's data types and none of its algorithms.
//!
//! - [`check`] says what is wrong with a plan: it builds the cluster that the plan would give and lets a scheduler of its own, written after
//!   kube-scheduler, bind every pod where the plan put it. [`overlooked`] says which pods it would bind besides.
//! - [`bound`] is the least that any plan can cost, by a linear program on an off-the-shelf solver, and the exact optimum of small cases.
//! - [`incumbent_mix`] is the incumbent's own benchmark.
//! - [`problem`] reads problems and plans from files and judges whoever made the plan.
//! - [`generate`] makes snapshots that touch every rule, from a seed; [`shrink`] makes one that fails smaller.

mod bound;
mod check;
mod cluster;
mod generate;
mod mix;
pub mod problem;
mod shrink;

pub use bound::{bound, exact};
pub use check::{Violation, check, overlooked};
pub use generate::generate;
pub use mix::incumbent_mix;
pub use shrink::{scenario, shrink};
