//! The Azure provider: it turns NodeClaims into agent-pool machines of an AKS cluster.
//!
//! - [`arm`] is a thin ARM client over one boxed tower service, so that the same code talks to
//!   Azure over TLS, to an emulator over plain HTTP, and to an emulator inside the process with no
//!   sockets at all.
//! - [`skus`], [`prices`] and [`quota`] read what Azure sells; [`instance_types`] makes the
//!   engine's catalogue of it, and [`unavailable_offerings`] remembers what could not be had.
//! - [`machines`] speaks the agent-pool machines API, [`images`] picks node images, and
//!   [`AzureProvider`] ties everything together behind [`nap_cloud::CloudProvider`].
//! - [`embedded`] is an embedded copy of sizes and list prices for work without a subscription,
//!   and [`embedded::refresh`] rewrites it.

pub mod arm;
mod config;
pub mod embedded;
mod error;
pub mod images;
pub mod instance_types;
mod kube_reserved;
pub mod machines;
mod offering_selection;
pub mod prices;
mod provider;
pub mod quota;
mod region;
mod size_name;
pub mod skus;
mod subnet;
pub mod unavailable_offerings;

pub use config::{AzureConfig, NetworkPlugin};
pub use error::AzureError;
pub use kube_reserved::{EVICTION_THRESHOLD, kube_reserved_cpu_milli, kube_reserved_memory};
pub use provider::AzureProvider;
pub use size_name::SizeName;
