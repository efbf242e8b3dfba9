//! The API that users of AKS Node Auto-Provisioning and Karpenter already know.
//!
//! - [`NodePool`], [`NodeClaim`] and [`AKSNodeClass`] are the custom resources, and [`crds`] makes their definitions.
//! - [`requirement`] is the algebra of label requirements that everything else is built on.
//! - [`labels`] is the table of every label, annotation and finalizer; [`taints`] has the taint rules.
//! - [`conditions`] writes status conditions by the incumbent's transition rules; [`budget`] counts disruption budgets.
//! - [`hash`] makes the drift hashes, and [`validation`] says what is wrong with a NodePool.
//!
//! The requirement, taint and label modules are plain data: no client, no I/O, no clock.
#![expect(
    clippy::duplicated_attributes,
    reason = "each `printcolumn(…)` of kube's derive has keys of its own"
)]

pub mod aksnodeclass;
pub mod budget;
pub mod conditions;
pub mod crds;
mod cron;
pub mod duration;
pub mod hash;
pub mod labels;
pub mod nodeclaim;
pub mod nodepool;
pub mod requirement;
pub mod taints;
pub mod validation;

pub use aksnodeclass::{AKSNodeClass, AKSNodeClassSpec, AKSNodeClassStatus};
pub use duration::NillableDuration;
pub use nodeclaim::{NodeClaim, NodeClaimSpec, NodeClaimStatus};
pub use nodepool::{NodePool, NodePoolSpec, NodePoolStatus};
pub use requirement::{Operator, Requirement, Requirements};
pub use taints::{Effect, Taint, Toleration};
