//! The problem file, format version 1.

use std::collections::BTreeMap;

use nap_units::{CPU, MEMORY, PODS, Quantity, Resources};
use serde::{Deserialize, Serialize};

use crate::kubernetes::{
    LabelExpression, NodeSelectorTerm, PodAffinityTerm, Taint, Toleration, TopologySpreadConstraint,
};

/// Pending pods, existing nodes, and the instance types that can be launched.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Problem {
    /// Version of the format: 1.
    pub version: u32,
    /// Name in tables.
    pub name: String,
    /// Command or description of how the problem was made; free form.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub recipe: serde_json::Value,
    /// Instance types that can be launched.
    #[serde(default)]
    pub instance_types: Vec<InstanceType>,
    /// NodePools that launch them.
    #[serde(default)]
    pub node_pools: Vec<NodePool>,
    /// Pods, in classes of equal ones.
    #[serde(default)]
    pub pods: Vec<PodClass>,
    /// Daemons: every eligible node runs one pod of each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub daemons: Vec<PodClass>,
    /// Existing nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<ExistingNode>,
}

/// Amounts of resources, as integers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Amounts {
    /// Thousandths of a CPU.
    #[serde(default)]
    pub cpu_milli: i64,
    /// Bytes of memory.
    #[serde(default)]
    pub memory_bytes: i64,
    /// Pod slots. Every pod takes one, even if it requests none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub pods: i64,
    /// Every other resource, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extended: BTreeMap<String, i64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(amount: &i64) -> bool {
    *amount == 0
}

impl Amounts {
    /// The amounts in the engine's form.
    pub fn resources(&self) -> Resources {
        let mut resources = Resources::new()
            .with(CPU, self.cpu_milli)
            .with(MEMORY, self.memory_bytes)
            .with(PODS, self.pods);
        for (name, amount) in &self.extended {
            resources.set(name, *amount);
        }
        resources
    }
}

impl From<&Resources> for Amounts {
    fn from(resources: &Resources) -> Self {
        let named = [CPU, MEMORY, PODS];
        let others = resources.iter().filter(|(name, _)| !named.contains(name));
        Self {
            cpu_milli: resources.get(CPU),
            memory_bytes: resources.get(MEMORY),
            pods: resources.get(PODS),
            extended: others.map(|(name, amount)| (name.to_owned(), amount)).collect(),
        }
    }
}

/// An instance type.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InstanceType {
    /// Unique name.
    pub name: String,
    /// `amd64` or `arm64`.
    pub arch: String,
    /// Operating systems.
    #[serde(default = "linux")]
    pub os: Vec<String>,
    /// Total resources of a node.
    pub capacity: Amounts,
    /// Resources reserved for the system; allocatable is capacity less overhead.
    #[serde(default)]
    pub overhead: Amounts,
    /// Other labels, each with the possible values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, Vec<String>>,
    /// Zones and capacity types.
    pub offerings: Vec<Offering>,
}

fn linux() -> Vec<String> {
    vec!["linux".to_owned()]
}

/// An offering of an instance type.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Offering {
    /// Zone.
    pub zone: String,
    /// `on-demand`, `spot` or `reserved`.
    pub capacity_type: String,
    /// Price in dollars per hour.
    pub price_usd_per_hour: f64,
    /// Whether it can be launched.
    #[serde(default = "yes")]
    pub available: bool,
}

fn yes() -> bool {
    true
}

/// A NodePool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodePool {
    /// Unique name.
    pub name: String,
    /// Weight; NodePools with a higher weight come first.
    #[serde(default)]
    pub weight: i32,
    /// Labels of its nodes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Requirements on its nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requirements: Vec<LabelExpression>,
    /// Taints of its nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    /// Limits on the total capacity of its nodes; `nodes` limits their number.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, Quantity>,
}

/// A class of equal pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PodClass {
    /// Unique name; the pods are `name-0`, `name-1` and so on.
    pub name: String,
    /// Number of pending pods.
    #[serde(default)]
    pub replicas: usize,
    /// Namespace of the pods.
    #[serde(default = "default_namespace")]
    pub namespace: String,
    /// Labels of each pod.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Requests of each pod.
    #[serde(default)]
    pub requests: Amounts,
    /// Node selector.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Required node affinity: one of the terms must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_affinity: Vec<NodeSelectorTerm>,
    /// Tolerations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// Topology spread constraints.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub topology_spread: Vec<TopologySpreadConstraint>,
    /// Required pod affinity: all terms must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pod_affinity: Vec<PodAffinityTerm>,
    /// Required pod anti-affinity: no term may hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pod_anti_affinity: Vec<PodAffinityTerm>,
    /// Whether the pods must not be evicted (`karpenter.sh/do-not-disrupt`, or a
    /// PodDisruptionBudget that allows none): consolidation keeps every node that runs one.
    #[serde(default, skip_serializing_if = "is_false")]
    pub do_not_disrupt: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(flag: &bool) -> bool {
    !*flag
}

fn default_namespace() -> String {
    "default".to_owned()
}

/// An existing node and its pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExistingNode {
    /// Unique name.
    pub name: String,
    /// Its NodePool.
    pub node_pool: String,
    /// Its instance type.
    pub instance_type: String,
    /// Its zone.
    pub zone: String,
    /// Its capacity type.
    pub capacity_type: String,
    /// Number of running pods by class.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pods: BTreeMap<String, usize>,
}
