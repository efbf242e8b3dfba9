//! The oracle: independent checks of plans. It shares the engine's data types and none of its
//! algorithms.
//!
//! - [`check`]: violations of a plan. It builds the planned cluster and binds every pod to its
//!   planned node with a scheduler of its own, written after kube-scheduler. [`overlooked`]:
//!   unplaced pods that this scheduler would bind.
//! - [`check_consolidation`]: violations of a decision about a running fleet, replayed step by
//!   step; [`carry_out_freely`]: the fleet after a decision, with a scheduler that places pods as
//!   it likes; [`generate_fleet`]: random fleets.
//! - [`bound`]: a lower bound on the cost of any plan, by a linear program (microlp).
//! - [`exact`]: the cheapest plan of a small case, by a mixed-integer program (microlp).
//! - [`generate`]: random snapshots that use every scheduling rule, from a seed; [`shrink`]:
//!   reduces a failing snapshot.

mod bound;
mod check;
mod cluster;
mod exact;
mod free_scheduler;
mod generate;
mod generate_fleet;
mod knapsack_bound;
mod patterns;
mod places;
mod shrink;
mod steps;

pub use bound::bound;
pub use check::{Violation, check, overlooked};
pub use exact::{NotModelled, exact};
pub use free_scheduler::carry_out_freely;
pub use generate::{generate, generate_options};
pub use generate_fleet::generate_fleet;
pub use places::with_every_domain;
pub use shrink::{scenario, shrink, shrink_fleet};
pub use steps::{check_consolidation, replay};
