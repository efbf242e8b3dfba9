//! The rules by which pods depend on each other, as plain data: spread, affinity, anti-affinity,
//! host ports, and the pods that run already.
//!
//! Everything that needs the cluster to be understood (`matchLabelKeys`, `namespaceSelector`) is
//! resolved by whoever makes the snapshot, so that the engine only compares labels.

use std::collections::{BTreeMap, BTreeSet};

use nap_api::Operator;
use serde::{Deserialize, Serialize};

/// Which pods are meant, by their labels. All rules must hold; without rules it is every pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Selector(pub Vec<LabelRule>);

/// What one label of a pod must be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LabelRule {
    /// The label's key.
    pub key: String,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`; any other matches nothing.
    pub operator: Operator,
    /// The values.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub values: BTreeSet<String>,
}

impl Selector {
    /// Pods with this label.
    pub fn label(key: &str, value: &str) -> Self {
        Self::default().and(key, value)
    }

    /// No pod at all: what a selector that is absent means.
    pub fn nothing() -> Self {
        Self(vec![LabelRule {
            key: String::new(),
            operator: Operator::In,
            values: BTreeSet::new(),
        }])
    }

    /// The same pods, if they also have this label.
    #[must_use]
    pub fn and(mut self, key: &str, value: &str) -> Self {
        let values = BTreeSet::from([value.to_owned()]);
        self.0.push(LabelRule { key: key.to_owned(), operator: Operator::In, values });
        self
    }

    /// Whether a pod with these labels is meant.
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

/// In which namespaces pods are meant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Namespaces {
    /// In every one.
    All,
    /// In these.
    Named(BTreeSet<String>),
}

impl Namespaces {
    /// Just this one.
    pub fn only(name: &str) -> Self {
        Self::Named(BTreeSet::from([name.to_owned()]))
    }

    /// Whether a namespace is meant.
    pub fn contains(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Named(names) => names.contains(name),
        }
    }
}

/// A required term of pod affinity or anti-affinity.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PodTerm {
    /// The node label whose values are the domains.
    pub topology_key: String,
    /// Which pods are meant.
    pub selector: Selector,
    /// In which namespaces.
    pub namespaces: Namespaces,
}

impl PodTerm {
    /// Whether a pod is meant.
    pub fn matches(&self, namespace: &str, labels: &BTreeMap<String, String>) -> bool {
        self.namespaces.contains(namespace) && self.selector.matches(labels)
    }
}

/// A topology spread constraint that must hold (`DoNotSchedule`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Spread {
    /// The node label whose values are the domains.
    pub topology_key: String,
    /// By how many pods a domain may exceed the emptiest.
    pub max_skew: u32,
    /// With fewer domains than this, the emptiest counts as having no pods.
    pub min_domains: Option<u32>,
    /// Which pods of the same namespace are counted.
    pub selector: Selector,
    /// Only nodes count that the pod's node selector and affinity allow.
    pub honor_affinity: bool,
    /// Only nodes count whose taints the pod tolerates.
    pub honor_taints: bool,
}

/// A port of the node that a pod occupies.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HostPort {
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// The number.
    pub port: i32,
    /// The address; empty means all of them.
    pub address: String,
}

impl HostPort {
    /// Whether all addresses of the node are meant.
    pub fn is_everywhere(&self) -> bool {
        matches!(self.address.as_str(), "" | "0.0.0.0" | "::")
    }
}

/// Pods on a machine that others may depend on. Pods that no rule of the snapshot is about need not
/// be listed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RunningPods {
    /// Their namespace.
    pub namespace: String,
    /// Their labels.
    pub labels: BTreeMap<String, String>,
    /// Whom they exclude.
    pub anti_affinity: Vec<PodTerm>,
    /// Which ports they occupy.
    pub host_ports: Vec<HostPort>,
    /// How many there are.
    pub count: u32,
}
