//! The control loops: they watch a cluster, ask the engine what should happen, and carry it out.
//!
//! They speak only to a `kube::Client`, a `dyn CloudProvider` and a `Clock`, so the same code runs
//! on AKS, on the embedded cluster and in simulation. [`run`] drives all of them from one ordered
//! queue.

mod claims;
mod context;
mod disruption;
pub mod events;
mod garbage;
pub mod install;
mod lifecycle;
mod market;
mod nodeclass;
mod nodeoverlay;
mod nodepool;
mod provisioning;
mod queue;
mod restamp;
mod run;
pub mod state;
mod termination;
mod turn;
mod write;

pub use context::{Context, Error, Settings};
pub use run::run;
