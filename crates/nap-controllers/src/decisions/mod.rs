//! Decision records: what was decided, why, and what came of it.
//!
//! Every disruption command that is started and every plan with launches leaves a record in the
//! [`log`]. Outcomes are read from the NodeClaims in the cluster, and [`store`] keeps the log in a
//! ConfigMap. After a restart, disruption waits until they were read once: they tell which
//! NodePools grow or rest.

pub mod digest;
pub mod inputs;
pub mod log;
mod outcome;
mod record;
pub mod store;

pub use digest::Digests;
pub use log::DecisionLog;
pub use record::{DecisionRecord, Document, Kind, Outcome, RecordedNode};
