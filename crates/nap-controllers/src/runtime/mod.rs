//! The runtime: watches feed the cluster index, the index says which reconciles are due, and one
//! ordered queue runs them while this replica leads.

mod client;
mod driver;
mod leader_election;
mod queue;
mod requested;
mod watches;

pub use client::RateLimit;
pub(crate) use client::{Guard, Writes, guarded};
pub(crate) use driver::CATCH_UP;
pub use driver::run;
pub(crate) use leader_election::PERMISSIONS as ELECTION;
pub use leader_election::{LeaderElection, Leadership};
pub(crate) use watches::WATCHED;
