//! The Azure provider: launches NodeClaims as agent-pool machines of an AKS cluster.
//!
//! - [`arm`] is a thin ARM client over one boxed tower service, so that the same code talks to
//!   Azure over TLS, to an emulator over plain HTTP, and to an emulator inside the process with no
//!   sockets at all.
//! - [`AzureCloud`] has the endpoints of the public and the sovereign clouds.
//! - [`skus`], [`prices`] and [`quota`] fetch sizes, prices and limits; [`instance_types`] builds
//!   the engine's catalogue from them; [`unavailable_offerings`] remembers failed offerings;
//!   `region` keeps all of it fresh.
//! - [`machines`] is the agent-pool machines API, in batches and with one list for all that watch
//!   machines; [`images`] selects node images, `offering_selection` selects offerings, `launch`
//!   creates a machine with the first that Azure accepts, and [`AzureProvider`] implements
//!   [`nap_cloud::CloudProvider`] with them.
//! - `node_class` finds the version, images and subnet of a node class, with the windows of
//!   [`maintenance`]; `drift` compares machines with it; `class_holds` stops classes whose machines
//!   fail whatever their size.
//! - `notices` reads the conditions of Nodes that announce the loss of a VM.
//! - [`prerequisites`] checks what a cluster and its subscription need.
//! - [`embedded`] is a built-in copy of sizes and list prices for use without a subscription, and
//!   [`embedded::refresh`] updates it.

pub mod arm;
mod catalogue_source;
mod class_holds;
mod clouds;
mod config;
mod drift;
pub mod embedded;
mod error;
mod fleet;
mod identity;
pub mod images;
pub mod instance_types;
mod kube_reserved;
mod launch;
pub mod machines;
pub mod maintenance;
mod node_class;
pub mod not_offered;
mod notices;
mod offering_selection;
pub mod prerequisites;
pub mod prices;
mod provider;
pub mod quota;
mod region;
mod shortage;
mod size_name;
pub mod skus;
mod subnet;
pub mod unavailable_offerings;

pub use catalogue_source::{CatalogueSource, PriceSource, REFERENCE_REGION, prices_or_built_in};
pub use clouds::{AzureCloud, Entra};
pub use config::{AzureConfig, DEFAULT_PRICES_ENDPOINT, NetworkPlugin, canonical_region};
pub use error::AzureError;
pub use kube_reserved::{EVICTION_THRESHOLD, kube_reserved_cpu_milli, kube_reserved_memory};
pub use provider::AzureProvider;
pub use shortage::{Cause, Shortage, built_in_sku};
pub use size_name::SizeName;
