//! Filters that depend on one node only, with kube-scheduler's messages.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    Container, Node, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec, Taint, Toleration,
};
use kube::ResourceExt;
use nap_units::{PODS, Resources, Rounding};

use super::volumes::Disks;
use crate::cluster::pods;

/// A node and the resources that its pods leave free.
#[derive(Debug)]
pub(in crate::cluster) struct Candidate {
    pub(in crate::cluster) name: String,
    pub(in crate::cluster) allocatable: Resources,
    pub(in crate::cluster) free: Resources,
    /// Pods on the node.
    pub(in crate::cluster) pods: Vec<Arc<Pod>>,
    labels: BTreeMap<String, String>,
    taints: Vec<Taint>,
    unschedulable: bool,
    ports: BTreeSet<HostPort>,
    pub(super) disks: Disks,
}

impl Candidate {
    pub(in crate::cluster) fn new(node: &Node) -> Self {
        let spec = node.spec.clone().unwrap_or_default();
        let status = node.status.as_ref();
        let allocatable = status
            .and_then(|status| status.allocatable.as_ref())
            .map(|list| pods::resources(list, Rounding::Down))
            .unwrap_or_default();
        Self {
            name: node.name_any(),
            free: allocatable.clone(),
            allocatable,
            pods: Vec::new(),
            labels: node.labels().clone(),
            taints: spec.taints.unwrap_or_default(),
            unschedulable: spec.unschedulable.unwrap_or_default(),
            ports: BTreeSet::new(),
            disks: Disks::default(),
        }
    }

    /// Adds a pod to the node.
    pub(in crate::cluster) fn take(&mut self, pod: Arc<Pod>) {
        if let Some(spec) = &pod.spec {
            self.free.subtract(&pods::occupies(spec));
            self.ports.extend(host_ports(spec));
        }
        self.pods.push(pod);
    }

    /// Hashes everything that filters read.
    pub(super) fn hash_looks(&self, hasher: &mut impl Hasher) {
        (&self.name, &self.labels, self.unschedulable).hash(hasher);
        for (name, amount) in self.allocatable.iter() {
            (name, amount).hash(hasher);
        }
        for taint in &self.taints {
            (&taint.key, &taint.value, &taint.effect).hash(hasher);
        }
        for pod in &self.pods {
            (&pod.metadata.uid, &pod.metadata.labels).hash(hasher);
        }
    }

    pub(super) fn labels(&self) -> &BTreeMap<String, String> {
        &self.labels
    }

    /// Whether the pod tolerates every `NoSchedule` and `NoExecute` taint.
    pub(super) fn tolerates_all(&self, spec: &PodSpec) -> bool {
        self.untolerated(spec).is_none() && (!self.unschedulable || tolerates_unschedulable(spec))
    }

    /// Reasons why the pod cannot run here; empty if it can. Only the first failing filter reports,
    /// as in kube-scheduler.
    pub(in crate::cluster) fn problems(&self, spec: &PodSpec, needs: &Resources) -> Vec<String> {
        if self.unschedulable && !tolerates_unschedulable(spec) {
            return vec!["node(s) were unschedulable".to_owned()];
        }
        if let Some(taint) = self.untolerated(spec) {
            let value = taint.value.as_deref().unwrap_or_default();
            return vec![format!("node(s) had untolerated taint {{{}: {value}}}", taint.key)];
        }
        if !self.is_selected(spec) {
            return vec!["node(s) didn't match Pod's node affinity/selector".to_owned()];
        }
        if host_ports(spec).any(|port| self.ports.iter().any(|taken| taken.conflicts(&port))) {
            return vec!["node(s) didn't have free ports for the requested pod ports".to_owned()];
        }
        needs
            .iter()
            .filter(|(name, amount)| *amount > 0 && *amount > self.free.get(name))
            .map(|(name, _)| match name {
                PODS => "Too many pods".to_owned(),
                name => format!("Insufficient {name}"),
            })
            .collect()
    }

    /// The first `NoSchedule` or `NoExecute` taint that the pod does not tolerate.
    fn untolerated(&self, spec: &PodSpec) -> Option<&Taint> {
        let hard = self
            .taints
            .iter()
            .filter(|taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute"));
        hard.into_iter().find(|taint| !tolerates(spec, taint))
    }

    /// Number of `PreferNoSchedule` taints that the pod does not tolerate.
    pub(in crate::cluster) fn avoided(&self, spec: &PodSpec) -> usize {
        let soft = self.taints.iter().filter(|taint| taint.effect == "PreferNoSchedule");
        soft.filter(|taint| !tolerates(spec, taint)).count()
    }

    /// Whether the node selector and the required node affinity match.
    pub(in crate::cluster) fn is_selected(&self, spec: &PodSpec) -> bool {
        let exact = spec
            .node_selector
            .iter()
            .flatten()
            .all(|(key, value)| self.labels.get(key) == Some(value));
        let required =
            spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref()).and_then(
                |affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref(),
            );
        exact
            && required.is_none_or(|selector| {
                selector.node_selector_terms.iter().any(|term| self.meets(term))
            })
    }

    /// Whether a node selector term matches; one without requirements matches nothing.
    pub(super) fn meets(&self, term: &NodeSelectorTerm) -> bool {
        let labels = term.match_expressions.iter().flatten();
        let fields = term.match_fields.iter().flatten();
        let given = term.match_expressions.as_ref().is_some_and(|list| !list.is_empty())
            || term.match_fields.as_ref().is_some_and(|list| !list.is_empty());
        given
            && labels
                .into_iter()
                .all(|requirement| holds(requirement, self.labels.get(&requirement.key)))
            && fields.into_iter().all(|requirement| {
                requirement.key == "metadata.name" && holds(requirement, Some(&self.name))
            })
    }

    /// Whether a DaemonSet pod with this spec belongs here; free resources do not matter.
    pub(in crate::cluster) fn wants_daemon(&self, spec: &PodSpec) -> bool {
        self.untolerated(spec).is_none() && self.is_selected(spec)
    }
}

fn holds(requirement: &NodeSelectorRequirement, found: Option<&String>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let number = |text: &String| text.parse::<i64>().ok();
    let compare = |wanted: std::cmp::Ordering| match (
        found.and_then(number),
        values.first().and_then(number),
    ) {
        (Some(found), Some(bound)) => found.cmp(&bound) == wanted,
        _ => false,
    };
    match requirement.operator.as_str() {
        "In" => found.is_some_and(|found| values.contains(found)),
        "NotIn" => !found.is_some_and(|found| values.contains(found)),
        "Exists" => found.is_some(),
        "DoesNotExist" => found.is_none(),
        "Gt" => compare(std::cmp::Ordering::Greater),
        "Lt" => compare(std::cmp::Ordering::Less),
        _ => false,
    }
}

fn tolerates(spec: &PodSpec, taint: &Taint) -> bool {
    spec.tolerations.iter().flatten().any(|toleration| matches_taint(toleration, taint))
}

fn matches_taint(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.as_deref().unwrap_or_default();
    let key = toleration.key.as_deref().unwrap_or_default();
    let same_value = toleration.value.as_deref().unwrap_or_default()
        == taint.value.as_deref().unwrap_or_default();
    let exists = toleration.operator.as_deref() == Some("Exists");
    (effect.is_empty() || effect == taint.effect)
        && (key.is_empty() && exists || key == taint.key)
        && (exists || same_value)
}

fn tolerates_unschedulable(spec: &PodSpec) -> bool {
    let taint = Taint {
        key: "node.kubernetes.io/unschedulable".to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    };
    tolerates(spec, &taint)
}

/// A port of the host on one of its addresses.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct HostPort {
    protocol: String,
    number: i32,
    address: String,
}

/// The address that stands for all of a host.
const ALL_ADDRESSES: &str = "0.0.0.0";

impl HostPort {
    /// Whether two pods cannot have both ports on one host.
    fn conflicts(&self, other: &Self) -> bool {
        let overlap = [&self.address, &other.address].iter().any(|one| *one == ALL_ADDRESSES)
            || self.address == other.address;
        overlap && self.protocol == other.protocol && self.number == other.number
    }
}

/// Host ports of the containers and of the sidecars.
fn host_ports(spec: &PodSpec) -> impl Iterator<Item = HostPort> {
    let is_sidecar = |one: &&Container| one.restart_policy.as_deref() == Some("Always");
    let sidecars = spec.init_containers.iter().flatten().filter(is_sidecar);
    let ports = spec.containers.iter().chain(sidecars).flat_map(|one| one.ports.iter().flatten());
    let given = |text: &Option<String>, default: &str| {
        text.clone().filter(|text| !text.is_empty()).unwrap_or_else(|| default.to_owned())
    };
    ports.filter_map(move |port| {
        Some(HostPort {
            protocol: given(&port.protocol, "TCP"),
            number: port.host_port.filter(|number| *number > 0)?,
            address: given(&port.host_ip, ALL_ADDRESSES),
        })
    })
}

/// A required constraint that this scheduler does not implement; `None` if there is none.
pub(in crate::cluster) fn unsupported(spec: &PodSpec) -> Option<&'static str> {
    let claims = spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty());
    claims.then_some("resource claims")
}
