//! The world around nap, small enough to fit in one process.
//!
//! [`azure`] is an Azure that speaks ARM: the real provider talks to it, so that demos and tests
//! run the production path. Machines that it makes are told to the rest of the world as
//! [`machines::MachineEvent`]s. [`cluster`] is the part of Kubernetes that is not the API server:
//! scheduler, workload controllers and kubelets. [`world`] puts them together with nap, and
//! [`scenario`] lets hours pass in it.

pub mod azure;
pub mod cluster;
pub mod machines;
pub mod scenario;
mod trace;
pub mod world;
