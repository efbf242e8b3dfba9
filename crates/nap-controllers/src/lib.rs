//! The controllers: they watch a cluster, ask the engine what should happen, and carry it out.
//!
//! The controllers depend only on a `kube::Client`, a `dyn CloudProvider` and a `Clock`, so the
//! same code runs on AKS, on the embedded cluster and in simulation.
//!
//! ```text
//!  watches ──► cluster::Index ──► snapshot ──► engine ──► Plan ──► NodeClaims, disruption commands
//!                │      ▲                                              │
//!                ▼      └───────────── objects as written ◄────────────┘
//!         runtime queue ──► one reconcile per key
//! ```
//!
//! | folder | contents |
//! |---|---|
//! | [`cluster`] | the index of the cluster, and predicates on its objects |
//! | [`snapshot`] | the engine's input, built from the index |
//! | `provisioning` | pending pods in, NodeClaims out |
//! | `nodeclaim` | the lifecycle of a NodeClaim, step by step |
//! | `node` | drain and termination of a Node |
//! | `disruption` | emptiness, drift and consolidation, under budgets |
//! | [`decisions`] | records of what was decided, and what came of it |
//! | [`metrics`] | the table of metrics, their series and the text of a scrape |
//! | `runtime` | watches, the work queue and the driver |
//!
//! Decisions are functions of the index, the decision memory and the time; the code that carries
//! them out is async and holds no lock across an await.

pub mod capacity_memory;
pub mod cluster;
mod context;
mod decision_memory;
pub mod decisions;
pub mod disable;
mod disruption;
pub mod events;
mod extreme_price;
mod hash_migration;
pub mod install;
mod live;
mod maintenance;
pub mod metrics;
mod node;
mod nodeclaim;
mod nodeclass;
mod nodeoverlay;
mod nodepool;
mod patch;
pub mod permissions;
mod provisioning;
mod runtime;
pub mod snapshot;
#[cfg(test)]
mod testing;

pub use context::{Context, Error, Settings};
pub use disruption::{preview, what_if};
pub use extreme_price::EXTREME_PRICE;
pub use provisioning::stay_within_quota;
pub use runtime::{LeaderElection, Leadership, RateLimit, run};
