//! The API that users of AKS Node Auto-Provisioning and Karpenter already know.
//!
//! - [`NodePool`], [`NodeClaim`], [`AKSNodeClass`] and [`NodeOverlay`] are the custom resources,
//!   and [`crds`] makes their definitions. [`CapacityBuffer`] is kept but not acted on yet.
//! - [`normalise`] knows the old spellings that guides still carry, and [`policy`] makes kubectl
//!   warn of them.
//! - [`requirement`] is the algebra of label requirements that everything else is built on.
//! - [`labels`] is the table of every label, annotation and finalizer; [`taints`] has the taint
//!   rules.
//! - [`conditions`] writes status conditions by the incumbent's transition rules; [`budget`] counts
//!   disruption budgets, and [`disruption`] has the windows, waves and expiry of a NodePool.
//! - [`plan_record`] is the plan behind a NodeClaim, kept on the NodeClaim itself.
//! - [`hash`] makes the drift hashes, and [`validation`] says what is wrong with a NodePool.
//!
//! The requirement, taint and label modules are plain data: no client, no I/O, no clock.
#![expect(
    clippy::duplicated_attributes,
    reason = "each `printcolumn(…)` of kube's derive has keys of its own"
)]

pub mod aksnodeclass;
pub mod budget;
pub mod capacitybuffer;
pub mod conditions;
pub mod crds;
pub mod cron;
pub mod disruption;
pub mod duration;
pub mod hash;
pub mod labels;
pub mod nodeclaim;
pub mod nodeoverlay;
pub mod nodepool;
pub mod normalise;
pub mod plan_record;
pub mod policy;
pub mod requirement;
mod schema;
pub mod taints;
pub mod validation;
pub mod values;

pub use aksnodeclass::{AKSNodeClass, AKSNodeClassSpec, AKSNodeClassStatus};
pub use capacitybuffer::CapacityBuffer;
pub use duration::NillableDuration;
pub use nodeclaim::{NodeClaim, NodeClaimSpec, NodeClaimStatus};
pub use nodeoverlay::NodeOverlay;
pub use nodepool::{NodePool, NodePoolSpec, NodePoolStatus};
pub use plan_record::{OfferingRef, PlanRecord, ReleaseSlot};
pub use requirement::{Operator, Requirement, Requirements};
pub use taints::{Effect, Taint, Toleration};
