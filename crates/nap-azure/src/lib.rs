//! The Azure provider: it turns NodeClaims into agent-pool machines of an AKS cluster.
//!
//! - [`arm`] is a thin ARM client over one boxed tower service, so that the same code talks to
//!   Azure over TLS, to an emulator over plain HTTP, and to an emulator inside the process with no
//!   sockets at all.
//! - [`skus`], [`prices`] and [`quota`] read what Azure sells; [`instance_types`] makes the
//!   engine's catalogue of it, and [`unavailable`] remembers what could not be had.
//! - [`machines`] speaks the agent-pool machines API, [`images`] picks node images, and
//!   [`AzureProvider`] ties everything together behind [`nap_cloud::CloudProvider`].
//! - [`catalogue`] is an embedded copy of sizes and list prices for work without a subscription,
//!   and [`refresh`] rewrites it.

pub mod arm;
mod capacity;
pub mod catalogue;
mod choice;
mod config;
mod error;
pub mod images;
pub mod instance_types;
pub mod machines;
mod market;
pub mod prices;
mod provider;
pub mod quota;
pub mod refresh;
mod size_name;
pub mod skus;
mod subnet;
pub mod unavailable;

pub(crate) use arm::percent_encode as arm_query;
pub use capacity::{EVICTION_THRESHOLD, kube_reserved_cpu_milli, kube_reserved_memory};
pub use config::{AzureConfig, NetworkPlugin};
pub use error::AzureError;
pub use provider::AzureProvider;
pub use size_name::SizeName;
