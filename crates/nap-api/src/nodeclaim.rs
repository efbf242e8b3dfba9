//! NodeClaim: one node, requested or running.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use nap_units::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::duration::NillableDuration;
use crate::nodepool::NodeClassRef;
use crate::requirement::NodeSelectorRequirement;
use crate::taints::Taint;

/// The requested node; immutable.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "karpenter.sh",
    version = "v1",
    kind = "NodeClaim",
    plural = "nodeclaims",
    singular = "nodeclaim",
    category = "karpenter",
    status = "NodeClaimStatus",
    derive = "PartialEq",
    printcolumn(
        name = "Type",
        type_ = "string",
        json_path = ".metadata.labels.node\\.kubernetes\\.io/instance-type"
    ),
    printcolumn(
        name = "Capacity",
        type_ = "string",
        json_path = ".metadata.labels.karpenter\\.sh/capacity-type"
    ),
    printcolumn(
        name = "Zone",
        type_ = "string",
        json_path = ".metadata.labels.topology\\.kubernetes\\.io/zone"
    ),
    printcolumn(name = "Node", type_ = "string", json_path = ".status.nodeName"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "ImageID", type_ = "string", json_path = ".status.imageID", priority = 1),
    printcolumn(name = "ID", type_ = "string", json_path = ".status.providerID", priority = 1),
    printcolumn(
        name = "NodePool",
        type_ = "string",
        json_path = ".metadata.labels.karpenter\\.sh/nodepool",
        priority = 1
    ),
    printcolumn(
        name = "NodeClass",
        type_ = "string",
        json_path = ".spec.nodeClassRef.name",
        priority = 1
    ),
    printcolumn(
        name = "Drifted",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Drifted\")].status",
        priority = 1
    ),
    printcolumn(
        name = "Price",
        type_ = "string",
        description = "Dollars per hour",
        json_path = ".metadata.annotations.nap\\.karpenter\\.sh/price-per-hour",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
pub struct NodeClaimSpec {
    /// Taints that stay on the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    /// Taints that something removes while the node starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub startup_taints: Vec<Taint>,
    /// Requirements on the labels of the instance.
    #[schemars(length(max = 100))]
    pub requirements: Vec<NodeSelectorRequirement>,
    /// Minimum resources of the instance.
    #[serde(default)]
    pub resources: ResourceRequirements,
    /// The AKSNodeClass with the Azure settings.
    pub node_class_ref: NodeClassRef,
    /// Time that a drain may take before the remaining pods are deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^([0-9]+(s|m|h))+$"))]
    pub termination_grace_period: Option<String>,
    /// After this long the node is replaced.
    #[serde(default = "default_expire_after")]
    pub expire_after: NillableDuration,
}

/// Minimum resources of an instance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ResourceRequirements {
    /// The sum of the requests of the pods that were planned onto it, and of its daemons.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<String, Quantity>,
}

/// Observed state of a NodeClaim.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeClaimStatus {
    /// The Node that it became.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Provider id of the instance, equal to the Node's.
    #[serde(rename = "providerID", default, skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
    /// The image that it runs.
    #[serde(rename = "imageID", default, skip_serializing_if = "Option::is_none")]
    pub image_id: Option<String>,
    /// Capacity of the node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub capacity: BTreeMap<String, Quantity>,
    /// Allocatable resources of the node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub allocatable: BTreeMap<String, Quantity>,
    /// Time at which a pod was last bound to or removed from the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_pod_event_time: Option<Time>,
    /// Status conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// Condition types of a NodeClaim.
pub mod condition {
    /// The instance exists in the cloud.
    pub const LAUNCHED: &str = "Launched";
    /// Its Node joined and was labelled.
    pub const REGISTERED: &str = "Registered";
    /// Its Node is ready for pods.
    pub const INITIALIZED: &str = "Initialized";
    /// It has been quiet for `consolidateAfter`.
    pub const CONSOLIDATABLE: &str = "Consolidatable";
    /// It no longer matches its NodePool or node class.
    pub const DRIFTED: &str = "Drifted";
    /// It was chosen for disruption, and why.
    pub const DISRUPTION_REASON: &str = "DisruptionReason";
    /// Its pods are gone.
    pub const DRAINED: &str = "Drained";
    /// The volumes of its drained pods are detached.
    pub const VOLUMES_DETACHED: &str = "VolumesDetached";
    /// Its Node is as large as its instance type promises.
    pub const CONSISTENT_STATE_FOUND: &str = "ConsistentStateFound";
    /// The cloud was told to delete it.
    pub const INSTANCE_TERMINATING: &str = "InstanceTerminating";
    /// The conditions that `Ready` depends on.
    pub const DEPENDENTS: [&str; 3] = [LAUNCHED, REGISTERED, INITIALIZED];
}

fn default_expire_after() -> NillableDuration {
    NillableDuration::parse("720h").unwrap_or_else(NillableDuration::never)
}
