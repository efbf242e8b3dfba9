//! The problem file, version 1.

use std::collections::BTreeMap;

use nap_units::{CPU, MEMORY, PODS, Quantity, Resources};
use serde::{Deserialize, Serialize};

use crate::kubernetes::{
    LabelExpression, NodeSelectorTerm, PodAffinityTerm, Taint, Toleration, TopologySpreadConstraint,
};

/// Pending pods, and what can be bought for them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Problem {
    /// Always 1.
    pub version: u32,
    /// What it is called in tables.
    pub name: String,
    /// How it was made, in whatever form.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub recipe: serde_json::Value,
    /// The machines on offer.
    #[serde(default)]
    pub instance_types: Vec<InstanceType>,
    /// Where machines may come from.
    #[serde(default)]
    pub node_pools: Vec<NodePool>,
    /// The pods, in classes of equal ones.
    #[serde(default)]
    pub pods: Vec<PodClass>,
    /// Pods of which every node runs one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub daemons: Vec<PodClass>,
    /// The machines that exist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<ExistingNode>,
}

/// Amounts of resources, in whole numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Amounts {
    /// Thousandths of a core.
    #[serde(default)]
    pub cpu_milli: i64,
    /// Bytes of memory.
    #[serde(default)]
    pub memory_bytes: i64,
    /// Pod slots. A pod takes one, whether or not it says so.
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
    /// As the engine counts them.
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

/// A kind of machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InstanceType {
    /// Its name.
    pub name: String,
    /// `amd64` or `arm64`.
    pub arch: String,
    /// The operating systems that it can have.
    #[serde(default = "linux")]
    pub os: Vec<String>,
    /// What it has in all.
    pub capacity: Amounts,
    /// What of that pods cannot have.
    #[serde(default)]
    pub overhead: Amounts,
    /// Its other labels, each with the values that its nodes may have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, Vec<String>>,
    /// Where and how it can be had.
    pub offerings: Vec<Offering>,
}

fn linux() -> Vec<String> {
    vec!["linux".to_owned()]
}

/// One way to have an instance type.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Offering {
    /// The zone.
    pub zone: String,
    /// `on-demand`, `spot` or `reserved`.
    pub capacity_type: String,
    /// The price.
    pub price_usd_per_hour: f64,
    /// Whether it can be had at present.
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
    /// Its name.
    pub name: String,
    /// Preference: higher first.
    #[serde(default)]
    pub weight: i32,
    /// Labels of its nodes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// What its machines must be.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requirements: Vec<LabelExpression>,
    /// The taints of its nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    /// The most that its machines may have together; `nodes` counts them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, Quantity>,
}

/// A number of equal pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PodClass {
    /// Its name; its pods are `name-0`, `name-1` and so on.
    pub name: String,
    /// How many wait.
    #[serde(default)]
    pub replicas: usize,
    /// The namespace of all of them.
    #[serde(default = "default_namespace")]
    pub namespace: String,
    /// The labels of each.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// What each asks for.
    #[serde(default)]
    pub requests: Amounts,
    /// Labels that their nodes must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Required node affinity: one of the terms must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_affinity: Vec<NodeSelectorTerm>,
    /// Which taints they tolerate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// How they must be spread.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub topology_spread: Vec<TopologySpreadConstraint>,
    /// Required pod affinity: all terms must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pod_affinity: Vec<PodAffinityTerm>,
    /// Required pod anti-affinity: no term may hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pod_anti_affinity: Vec<PodAffinityTerm>,
}

fn default_namespace() -> String {
    "default".to_owned()
}

/// A machine that exists, and the pods on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExistingNode {
    /// Its name.
    pub name: String,
    /// The pool that made it.
    pub node_pool: String,
    /// What it is.
    pub instance_type: String,
    /// Where it is.
    pub zone: String,
    /// How it is paid for.
    pub capacity_type: String,
    /// How many pods of which class it runs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pods: BTreeMap<String, usize>,
}
