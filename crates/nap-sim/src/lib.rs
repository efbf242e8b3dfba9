//! The simulated world: Kubernetes and Azure in one process, around the unchanged nap controllers.
//!
//! ```text
//!  simulation ──► world ──┬── nap-apiserver ◄── nap-controllers ──► nap-azure
//!  (workload,             ├── cluster: scheduler, workloads, kubelets      │ ARM over tower
//!   checkers)             └── azure: emulator ◄────────────────────────────┘
//!                               └── VmEvents ──► kubelets
//! ```
//!
//! - [`azure`]: an emulator of the ARM API; the real provider talks to it, so demos and tests run
//!   the production path. It announces its VMs as [`nap_kubelets::VmEvent`]s.
//! - [`cluster`]: the parts of Kubernetes that are not the API server.
//! - [`faults`]: what can happen between nap and the services that it calls.
//! - `invariants`: what must hold at every instant.
//! - [`world`]: all of it together.
//! - [`simulation`]: hours of a seeded workload, watched by checkers.

pub mod azure;
pub mod cluster;
pub mod faults;
mod fixed_nodes;
mod invariants;
pub mod simulation;
mod trace;
pub mod world;
