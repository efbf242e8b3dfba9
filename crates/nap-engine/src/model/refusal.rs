//! Reasons why a pod has no place, as data. `explain/display.rs` turns them into English.

use nap_api::Taint;
use nap_api::requirement::Incompatible;
use nap_units::UsdPerHour;
use serde::{Deserialize, Serialize};

use crate::model::CapacityType;

/// Reason why a pod has no place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Refusal {
    /// A hard constraint of the pod cannot be planned for.
    Unsupported {
        /// The constraint.
        #[serde(rename = "field")]
        constraint: Unsupported,
    },
    /// The snapshot has no NodePool.
    NoPools,
    /// Every NodePool rejected the pod; one reason for each.
    Pools(Vec<PoolReason>),
}

/// A hard constraint that cannot be planned for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Unsupported {
    /// Path of a field of the pod that the engine does not model.
    Field(String),
    /// A volume of the pod that no node would make usable.
    Volume(VolumeProblem),
    /// The node selector of the pod and every term of its node affinity exclude each other.
    #[serde(rename_all = "camelCase")]
    Selectors {
        /// Key of the first label on which they do.
        key: String,
        /// What the node selector wants.
        node_selector: String,
        /// What the node affinity wants.
        node_affinity: String,
    },
}

/// Problem with a volume of a pod that a new node would not solve.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum VolumeProblem {
    /// The PersistentVolumeClaim with this name does not exist.
    ClaimMissing(String),
    /// The PersistentVolume with this name does not exist.
    VolumeMissing(String),
    /// The claim has no storage class and is bound to no volume.
    ClaimWaitsForVolume(String),
    /// The storage class of the claim does not exist.
    StorageClassMissing(String),
    /// The claim binds immediately and is not bound yet.
    ClaimUnbound(String),
    /// The volume shares no topology with the other volumes of the pod.
    Elsewhere(String),
    /// The node affinity of the PersistentVolume has a field that is not understood.
    Affinity {
        /// Name of the PersistentVolume.
        volume: String,
        /// The field.
        field: String,
    },
}

/// Reason of one NodePool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolReason {
    /// Name of the NodePool.
    pub pool: String,
    /// The reason.
    pub why: PoolRejection,
}

/// Reason why a NodePool launches no node for a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PoolRejection {
    /// The pod does not tolerate a taint of the pool.
    Taint(Taint),
    /// The requirements of the pool and the pod exclude each other.
    Requirements(RequirementsConflict),
    /// Number of offerings left after each step; a later step counts only what passed the earlier
    /// ones.
    Offerings {
        /// Offerings in the pool's catalogue.
        total: usize,
        /// Offerings that satisfy the requirements of the pool and the pod.
        compatible: usize,
        /// Compatible offerings whose type holds the pod and the daemons.
        large_enough: usize,
        /// Large enough offerings that are available.
        available: usize,
        /// Dimension of which even the largest compatible type has too little; `None` if no single
        /// dimension rules out every type.
        shortage: Option<Shortage>,
    },
    /// The price ceiling rules out every offering that could be launched.
    PriceCeiling {
        /// The highest price of a node.
        ceiling: UsdPerHour,
        /// Number of offerings that are large enough and available, but cost more.
        excluded: usize,
        /// Price of the cheapest of them.
        cheapest: UsdPerHour,
        /// Capacity type of the cheapest of them, which tells whether its price is an estimate.
        capacity_type: CapacityType,
    },
    /// A limit of the pool leaves no room (name of the resource).
    Limit(String),
    /// The offerings left for the pod have fewer values of a label than the pool's `minValues`.
    MinValues {
        /// Key of the label.
        key: String,
        /// Number of values that the pool requires.
        wanted: usize,
        /// Number of values that are left.
        found: usize,
    },
    /// A topology rule leaves no place.
    Rule(Rule),
}

/// Conflict between the requirements of a pool and a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RequirementsConflict {
    /// Label on which the pool and the pod disagree.
    Label(Incompatible),
    /// The topology of the pod's volumes excludes its own node affinity.
    VolumeTopology,
}

/// Dimension of which no compatible type has enough.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Shortage {
    /// A resource, by name.
    Resource(String),
    /// A host port that the daemons occupy.
    HostPort {
        /// Number of the port.
        port: i32,
        /// `TCP`, `UDP` or `SCTP`.
        protocol: String,
    },
    /// Pods per node under a topology rule by hostname.
    HostSlot,
}

/// Topology rule that left no place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Rule {
    /// A spread constraint over the values of this label.
    Spread(String),
    /// No domain of this label has a pod that the affinity asks for.
    Affinity(String),
    /// Every domain of this label has a pod that excludes this one, or that this one excludes.
    AntiAffinity(String),
}
