//! NodePool: the nodes that may be created, and the rules for their disruption.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use nap_units::Quantity;
use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::duration::NillableDuration;
use crate::labels;
use crate::normalise::{self, Note};
use crate::requirement::NodeSelectorRequirement;
use crate::taints::Taint;

/// Desired state of a NodePool. Reading one brings old spellings to the current one, see
/// [`crate::normalise`].
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[kube(
    group = "karpenter.sh",
    version = "v1",
    kind = "NodePool",
    plural = "nodepools",
    singular = "nodepool",
    category = "karpenter",
    status = "NodePoolStatus",
    derive = "PartialEq",
    scale(spec_replicas_path = ".spec.replicas", status_replicas_path = ".status.nodes"),
    printcolumn(
        name = "NodeClass",
        type_ = "string",
        json_path = ".spec.template.spec.nodeClassRef.name"
    ),
    printcolumn(name = "Nodes", type_ = "string", json_path = ".status.nodes"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Weight", type_ = "integer", json_path = ".spec.weight", priority = 1),
    printcolumn(name = "CPU", type_ = "string", json_path = ".status.resources.cpu", priority = 1),
    printcolumn(
        name = "Memory",
        type_ = "string",
        json_path = ".status.resources.memory",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
pub struct NodePoolSpec {
    /// Template of the NodeClaims of the pool.
    pub template: NodeClaimTemplate,
    /// Rules for the disruption of nodes.
    #[serde(default = "default_disruption")]
    pub disruption: Disruption,
    /// Limits on the capacity of all nodes of the pool together, by resource; `nodes` limits their
    /// number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<BTreeMap<String, Quantity>>,
    /// Preference among pools that suit a pod: higher first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub weight: Option<i32>,
    /// Number of nodes of a static pool. Not supported yet: such a pool is left
    /// alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub replicas: Option<i64>,
    /// Fields that were written in an old spelling, and their meaning.
    #[serde(skip)]
    pub understood: Vec<Note>,
    /// Lists and maps that were written and are empty.
    #[serde(skip)]
    pub(crate) written_empty: WrittenEmpty,
}

/// Lists and maps of a template that were written and are empty: the incumbent's hash tells them
/// from absent ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "four places, each on its own")]
pub(crate) struct WrittenEmpty {
    pub(crate) labels: bool,
    pub(crate) annotations: bool,
    pub(crate) taints: bool,
    pub(crate) startup_taints: bool,
}

impl WrittenEmpty {
    fn of(spec: &Value) -> Self {
        let empty = |place: &str| match spec.pointer(place) {
            Some(Value::Array(items)) => items.is_empty(),
            Some(Value::Object(entries)) => entries.is_empty(),
            _ => false,
        };
        Self {
            labels: empty("/template/metadata/labels"),
            annotations: empty("/template/metadata/annotations"),
            taints: empty("/template/spec/taints"),
            startup_taints: empty("/template/spec/startupTaints"),
        }
    }
}

impl<'de> Deserialize<'de> for NodePoolSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Current {
            template: NodeClaimTemplate,
            #[serde(default = "default_disruption")]
            disruption: Disruption,
            limits: Option<BTreeMap<String, Quantity>>,
            weight: Option<i32>,
            replicas: Option<i64>,
        }
        let mut spec = Value::deserialize(deserializer)?;
        let understood = normalise::node_pool_spec(&mut spec);
        let written_empty = WrittenEmpty::of(&spec);
        let Current { template, disruption, limits, weight, replicas } =
            serde_json::from_value(spec).map_err(D::Error::custom)?;
        Ok(Self { template, disruption, limits, weight, replicas, understood, written_empty })
    }
}

/// The metadata and spec that NodeClaims of the pool start from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeClaimTemplate {
    /// Labels and annotations for NodeClaims and Nodes.
    #[serde(default, skip_serializing_if = "TemplateMetadata::is_empty")]
    pub metadata: TemplateMetadata,
    /// Spec of the NodeClaims.
    pub spec: NodeClaimTemplateSpec,
}

/// Labels and annotations that every node of the pool gets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TemplateMetadata {
    /// Labels for NodeClaims and Nodes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations for NodeClaims and Nodes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

impl TemplateMetadata {
    fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.annotations.is_empty()
    }
}

/// Spec of the NodeClaims of a pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeClaimTemplateSpec {
    /// Taints that stay on the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    /// Taints that something removes while the node starts; pods need not tolerate them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub startup_taints: Vec<Taint>,
    /// Requirements on the labels of instances.
    #[schemars(length(max = 100))]
    pub requirements: Vec<NodeSelectorRequirement>,
    /// The AKSNodeClass with the Azure settings.
    pub node_class_ref: NodeClassRef,
    /// Time that a drain may take before the remaining pods are deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^([0-9]+(s|m|h))+$"))]
    pub termination_grace_period: Option<String>,
    /// After this long a node is replaced.
    #[serde(default = "default_expire_after")]
    pub expire_after: NillableDuration,
}

/// A reference to a node class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeClassRef {
    /// API group, `karpenter.azure.com`.
    #[schemars(length(min = 1))]
    pub group: String,
    /// Kind, `AKSNodeClass`.
    #[schemars(length(min = 1))]
    pub kind: String,
    /// Name of the object.
    #[schemars(length(min = 1))]
    pub name: String,
}

impl NodeClassRef {
    /// A reference to an AKSNodeClass.
    pub fn aks(name: impl Into<String>) -> Self {
        let (group, kind) = (labels::AZURE_GROUP.to_owned(), "AKSNodeClass".to_owned());
        Self { group, kind, name: name.into() }
    }
}

/// Rules for the disruption of nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Disruption {
    /// Time without a change of pods after which a node may be consolidated.
    #[serde(default = "default_consolidate_after")]
    pub consolidate_after: NillableDuration,
    /// Nodes that are consolidated.
    #[serde(default)]
    pub consolidation_policy: ConsolidationPolicy,
    /// Limits on the number of nodes that are disrupted at once.
    #[serde(default = "default_budgets")]
    #[schemars(length(max = 50))]
    pub budgets: Vec<Budget>,
}

/// Nodes that are consolidated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConsolidationPolicy {
    /// Only nodes without pods that would have to move.
    WhenEmpty,
    /// Also nodes whose pods fit on other nodes or on a cheaper one.
    #[default]
    WhenEmptyOrUnderutilized,
    /// Also underutilized nodes whose share of the pool's saving is at least half of their share of
    /// its disruption.
    Balanced,
}

/// A limit on simultaneous disruption.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Budget {
    /// The reasons it applies to; absent means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasons: Option<Vec<DisruptionReason>>,
    /// A number of nodes, or a percentage of the pool's.
    #[serde(default = "default_budget_nodes")]
    #[schemars(regex(pattern = r"^((100|[0-9]{1,2})%|[0-9]+)$"))]
    pub nodes: String,
    /// Cron expression (UTC) at which the budget becomes active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(
        pattern = r"^(@(annually|yearly|monthly|weekly|daily|midnight|hourly))|((.+)\s(.+)\s(.+)\s(.+)\s(.+))$"
    ))]
    pub schedule: Option<String>,
    /// Time for which the budget stays active after each hit of the schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^((([0-9]+(h|m))|([0-9]+h[0-9]+m))(0s)?)$"))]
    pub duration: Option<String>,
}

/// Why a node is disrupted voluntarily.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub enum DisruptionReason {
    /// Its pods fit on other nodes or on a cheaper one.
    Underutilized,
    /// It has no pods that would have to move.
    Empty,
    /// It no longer matches its NodePool or node class.
    Drifted,
    /// It is broken and would be repaired.
    Unhealthy,
}

impl DisruptionReason {
    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Underutilized => "Underutilized",
            Self::Empty => "Empty",
            Self::Drifted => "Drifted",
            Self::Unhealthy => "Unhealthy",
        }
    }
}

/// Observed state of a NodePool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodePoolStatus {
    /// Sum of the capacity of all nodes of the pool.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub resources: BTreeMap<String, Quantity>,
    /// Number of nodes of the pool.
    #[serde(default)]
    pub nodes: i64,
    /// The generation of the node class that was looked at last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_class_observed_generation: Option<i64>,
    /// Status conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// Condition of a NodePool: its spec passed validation.
pub const VALIDATION_SUCCEEDED: &str = "ValidationSucceeded";
/// Condition of a NodePool that `Ready` does not depend on: some of it was written in an old
/// spelling, and its message says how that was understood. It is absent where there is nothing to
/// say.
pub const NORMALISED: &str = "Normalised";
/// Condition of a NodePool: `False` if the cloud offers none of the instance types that its
/// requirements name, with the reason of each. It is absent otherwise.
pub const INSTANCE_TYPES_OFFERED: &str = "InstanceTypesOffered";
/// Condition of a NodePool: `False` if an annotation on the disruption of its nodes cannot be read,
/// which stops it, with the field and the remedy. It is absent otherwise.
pub const DISRUPTION_SETTINGS_VALID: &str = "DisruptionSettingsValid";
/// Condition of a NodePool: `False` if it can reach nodes of an extreme price and has no ceiling,
/// with the price and the remedy. It is absent otherwise, and blocks nothing.
pub const PRICE_BOUNDED: &str = "PriceBounded";
/// Condition of a NodePool: its node class is ready.
pub const NODE_CLASS_READY: &str = "NodeClassReady";

/// Condition: the last NodeClaims of the pool were launched and registered. It blocks nothing.
pub const NODE_REGISTRATION_HEALTHY: &str = "NodeRegistrationHealthy";

fn default_disruption() -> Disruption {
    Disruption {
        consolidate_after: default_consolidate_after(),
        consolidation_policy: ConsolidationPolicy::default(),
        budgets: default_budgets(),
    }
}

fn default_consolidate_after() -> NillableDuration {
    NillableDuration::parse("0s").unwrap_or_else(NillableDuration::never)
}

fn default_expire_after() -> NillableDuration {
    NillableDuration::parse("720h").unwrap_or_else(NillableDuration::never)
}

fn default_budgets() -> Vec<Budget> {
    vec![Budget { reasons: None, nodes: default_budget_nodes(), schedule: None, duration: None }]
}

fn default_budget_nodes() -> String {
    "10%".to_owned()
}
