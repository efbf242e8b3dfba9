//! The world around nap, small enough to fit in one process.
//!
//! [`cluster`] is the part of a Kubernetes cluster that is neither nap nor the API server: workload controllers, a scheduler,
//! disruption budgets and kubelets. Machines are told to it as [`machines::MachineEvent`]s.

pub mod cluster;
pub mod machines;
