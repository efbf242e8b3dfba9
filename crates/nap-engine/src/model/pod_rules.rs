//! Rules between pods as plain data: spread, affinity, anti-affinity, host ports, and the running
//! pods that they count.
//!
//! Fields that need the cluster to be understood (`matchLabelKeys`, `namespaceSelector`) are
//! resolved when the snapshot is made, so that the engine only compares labels.

use std::collections::{BTreeMap, BTreeSet};

use nap_api::Operator;
use serde::{Deserialize, Serialize};

use super::Pod;

/// Label selector of pods. All rules must hold; without rules every pod matches.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Selector(pub Vec<LabelRule>);

/// Requirement on one label of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LabelRule {
    /// Key of the label.
    pub key: String,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`; any other matches nothing.
    pub operator: Operator,
    /// Values of the operator.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub values: BTreeSet<String>,
}

impl Selector {
    /// Selector of the pods with this label.
    pub fn label(key: &str, value: &str) -> Self {
        Self::default().and(key, value)
    }

    /// Selector that matches no pod, like an absent `labelSelector`.
    pub fn nothing() -> Self {
        Self(vec![LabelRule {
            key: String::new(),
            operator: Operator::In,
            values: BTreeSet::new(),
        }])
    }

    /// The pods that a spread constraint with this selector counts. kube-scheduler counts none for
    /// an empty one, although it matches every pod.
    #[must_use]
    pub fn counted_by_spread(self) -> Self {
        if self.0.is_empty() { Self::nothing() } else { self }
    }

    /// Adds a label that the pods must have.
    #[must_use]
    pub fn and(mut self, key: &str, value: &str) -> Self {
        let values = BTreeSet::from([value.to_owned()]);
        self.0.push(LabelRule { key: key.to_owned(), operator: Operator::In, values });
        self
    }

    /// Whether a pod with these labels matches.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.0.iter().all(|rule| {
            let value = labels.get(&rule.key);
            let listed = value.is_some_and(|value| rule.values.contains(value));
            match rule.operator {
                Operator::In => listed,
                Operator::NotIn => !listed,
                Operator::Exists => value.is_some(),
                Operator::DoesNotExist => value.is_none(),
                Operator::Gt | Operator::Lt | Operator::Gte | Operator::Lte => false,
            }
        })
    }
}

/// Namespaces of the pods that a term matches.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Namespaces {
    /// Every namespace.
    All,
    /// The namespaces with these names.
    Named(BTreeSet<String>),
}

impl Namespaces {
    /// A single namespace.
    pub fn only(name: &str) -> Self {
        Self::Named(BTreeSet::from([name.to_owned()]))
    }

    /// Whether a namespace is included.
    pub fn contains(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Named(names) => names.contains(name),
        }
    }
}

/// A term of pod affinity or anti-affinity.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PodTerm {
    /// Node label whose values are the domains.
    pub topology_key: String,
    /// Selector of the pods.
    pub selector: Selector,
    /// Namespaces of the pods.
    pub namespaces: Namespaces,
}

impl PodTerm {
    /// Whether a pod with these labels in this namespace matches.
    pub fn matches(&self, namespace: &str, labels: &BTreeMap<String, String>) -> bool {
        self.namespaces.contains(namespace) && self.selector.matches(labels)
    }
}

/// A topology spread constraint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Spread {
    /// Node label whose values are the domains.
    pub topology_key: String,
    /// `maxSkew`: pods by which a domain may exceed the emptiest one.
    pub max_skew: u32,
    /// `minDomains`: with fewer eligible domains than this, the emptiest counts as having no pods.
    pub min_domains: Option<u32>,
    /// Selector of the pods of the same namespace that are counted.
    pub selector: Selector,
    /// `nodeAffinityPolicy: Honor`: only nodes count that the pod's node affinity allows.
    pub honor_affinity: bool,
    /// `nodeTaintsPolicy: Honor`: only nodes count whose taints the pod tolerates.
    pub honor_taints: bool,
}

/// A host port of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HostPort {
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// Number of the port.
    pub port: i32,
    /// Host address; empty means all addresses.
    pub address: String,
}

impl HostPort {
    /// Whether the port is bound on all addresses of the node.
    pub fn is_everywhere(&self) -> bool {
        matches!(self.address.as_str(), "" | "0.0.0.0" | "::")
    }
}

/// Equal pods on a node that topology rules may count. Pods that no rule of the snapshot matches
/// need not be listed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RunningPods {
    /// Namespace.
    pub namespace: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Required anti-affinity.
    pub anti_affinity: Vec<PodTerm>,
    /// Host ports.
    pub host_ports: Vec<HostPort>,
    /// Number of pods.
    pub count: u32,
}

impl From<&Pod> for RunningPods {
    /// A pod as if it ran.
    fn from(pod: &Pod) -> Self {
        Self {
            namespace: pod.key.namespace().to_owned(),
            labels: pod.labels.clone(),
            anti_affinity: pod.anti_affinity.clone(),
            host_ports: pod.host_ports.clone(),
            count: 1,
        }
    }
}
