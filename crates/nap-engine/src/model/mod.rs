//! The engine's input and output: plain data that serialises.
//!
//! [`snapshot`] and [`pod_rules`] hold the cluster, [`catalogue`] the instance types on sale,
//! [`options`] the settings, [`plan`] the decision and [`refusal`] the reasons for pods that could
//! not be placed. [`fleet`] is the input and output of consolidation. [`price_estimates`] tells
//! which prices are not certain. Nothing here decides anything.

pub(crate) mod alternatives;
pub(crate) mod catalogue;
pub(crate) mod fleet;
pub(crate) mod options;
pub(crate) mod plan;
pub(crate) mod pod_rules;
pub(crate) mod price_estimates;
pub(crate) mod refusal;
pub(crate) mod snapshot;

pub(crate) use alternatives::Alternatives;
pub(crate) use catalogue::Catalogue;
pub(crate) use fleet::{
    Candidate, Consolidation, ConsolidationOptions, Fleet, KeepReason, Kept, PoolRules, Step,
    WorkloadBudget,
};
pub(crate) use options::{MinValuesPolicy, Options, PreferencePolicy};
pub(crate) use plan::{Alternative, Launch, Placement, Plan, Tier, Unplaced};
pub(crate) use pod_rules::{HostPort, PodTerm, RunningPods, Selector, Spread};
pub(crate) use price_estimates::PriceEstimates;
pub(crate) use refusal::{
    PoolReason, PoolRejection, Refusal, RequirementsConflict, Rule, Shortage, Unsupported,
};
pub(crate) use snapshot::{
    ATTACHABLE_VOLUMES, CapacityType, Daemon, InstanceType, NODES, Node, Offering, Pod, PodKey,
    Pool, Preferences, RESERVATION_ID, Snapshot, Weighted,
};
