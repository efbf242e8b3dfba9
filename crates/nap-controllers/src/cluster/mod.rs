//! The cluster index: a synchronous copy of the cluster, fed by watches and read by every decision.
//!
//! Each kind enters through [`Index::apply`], [`Index::delete`] and a relist
//! ([`Index::begin_list`], [`Index::end_list`]); nothing else changes the index, and nothing in it
//! awaits or fails. Every change is recorded by the index itself: as a [`Dirty`] entry for each
//! reconcile that has to run, and in a generation counter that tells disruption whether anything it
//! depends on has changed.
//!
//! ```text
//!   NodePool ◄─ label ── NodeClaim ◄── provider id ──► Node ◄── spec.nodeName ── Pod
//!                           │                                                   ▲ ▲
//!                           └── plan record (pods, offerings, release slot) ────┘ └─ PDB
//! ```
//!
//! A [`NodeView`] is a NodeClaim joined with its Node; the index keeps the join up to date.

mod decided_claims;
mod dirty;
mod disruption_budgets;
mod index;
mod kinds;
mod milestones;
pub mod node_affinity;
mod node_view;
mod planned_pods;
mod pod;
mod pod_rules;
pub mod pods;
mod slim;
#[cfg(test)]
mod tests;
mod volumes;
mod watched_pod;
mod workloads;

pub use decided_claims::{DecidedClaim, DecidedId};
pub use dirty::Dirty;
pub use index::Index;
pub use kinds::{Indexed, KINDS, Kind, key_of};
pub use milestones::{Conditioned, Milestone, ObjectCondition, Transition};
pub use node_view::{NodeKey, NodeView, claim_is, is_ready, pool_of, provider_id, readiness};
pub(crate) use node_view::{claim_conditions, provider_id_of_claim, provider_key};
pub use pod::{Attempt, Labels, Owner, PartsId, Pod, PodVolume, VolumeSource};
pub(crate) use pod_rules::{Interest, host_ports, spread};
pub(crate) use volumes::counted_by_driver;
pub use watched_pod::WatchedPod;
pub use workloads::{WORKLOAD_SELECTOR_KINDS, WorkloadSelectorKind, Workloads};
