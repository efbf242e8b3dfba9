//! Filters that depend on one node only, with kube-scheduler's messages.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    Container, Node, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec, Taint, Toleration,
};
use kube::ResourceExt;
use nap_units::{PODS, Resources, Rounding};

use super::volumes::Disks;
use crate::cluster::index::{Key, key};
use crate::cluster::pods;

/// A bound pod, with what filters read of it.
#[derive(Debug)]
pub(super) struct PodInfo {
    pub(super) pod: Arc<Pod>,
    requests: Resources,
    ports: Vec<HostPort>,
}

impl PodInfo {
    pub(super) fn new(pod: Arc<Pod>) -> Self {
        let spec = pod.spec.as_ref();
        Self {
            requests: spec.map(pods::occupies).unwrap_or_default(),
            ports: spec.map(|spec| host_ports(spec).collect()).unwrap_or_default(),
            pod,
        }
    }

    pub(super) fn node(&self) -> &str {
        pods::node_of(&self.pod)
    }
}

/// A node, its pods and the resources that they leave free.
#[derive(Debug)]
pub(in crate::cluster) struct Candidate {
    node: Arc<Node>,
    pub(super) allocatable: Resources,
    pub(super) free: Resources,
    pods: BTreeMap<Key, Arc<PodInfo>>,
    pub(super) disks: Disks,
}

impl Candidate {
    pub(super) fn new(node: Arc<Node>) -> Self {
        let status = node.status.as_ref();
        let allocatable = status
            .and_then(|status| status.allocatable.as_ref())
            .map(|list| pods::resources(list, Rounding::Down))
            .unwrap_or_default();
        Self {
            free: allocatable.clone(),
            allocatable,
            pods: BTreeMap::new(),
            disks: Disks::default(),
            node,
        }
    }

    /// Adds a pod to the node.
    pub(super) fn add(&mut self, pod: Arc<PodInfo>) {
        self.free.subtract(&pod.requests);
        self.pods.insert(key(&*pod.pod), pod);
    }

    /// Removes a pod from the node.
    pub(super) fn remove(&mut self, key: &Key) {
        if let Some(pod) = self.pods.remove(key) {
            self.free.add(&pod.requests);
        }
    }

    pub(super) fn pods(&self) -> impl Iterator<Item = &Arc<PodInfo>> {
        self.pods.values()
    }

    pub(super) fn name(&self) -> &str {
        self.node.metadata.name.as_deref().unwrap_or_default()
    }

    /// Whether a newer version of the Node is the same to all filters.
    pub(super) fn looks_like(&self, node: &Node) -> bool {
        let allocatable = |node: &Node| node.status.as_ref().and_then(|s| s.allocatable.clone());
        self.node.labels() == node.labels()
            && self.node.spec == node.spec
            && allocatable(&self.node) == allocatable(node)
    }

    fn is_unschedulable(&self) -> bool {
        self.node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or_default()
    }

    pub(super) fn labels(&self) -> &BTreeMap<String, String> {
        self.node.labels()
    }

    /// Whether the pod tolerates every `NoSchedule` and `NoExecute` taint.
    pub(super) fn tolerates_all(&self, spec: &PodSpec) -> bool {
        untolerated(&self.node, spec).is_none()
            && (!self.is_unschedulable() || tolerates_unschedulable(spec))
    }

    /// Whether the pod can run here, as far as filters of this module tell.
    pub(super) fn admits(&self, spec: &PodSpec, needs: &Resources) -> bool {
        let mut short = needs.iter().filter(|(_, amount)| *amount > 0);
        !short.any(|(name, amount)| amount > self.free.get(name))
            && self.tolerates_all(spec)
            && self.is_selected(spec)
            && !self.has_conflicting_port(spec)
    }

    fn has_conflicting_port(&self, spec: &PodSpec) -> bool {
        host_ports(spec).any(|port| {
            let mut taken = self.pods.values().flat_map(|pod| &pod.ports);
            taken.any(|taken| taken.conflicts(&port))
        })
    }

    /// Reasons why the pod cannot run here; empty if it can. Only the first failing filter reports,
    /// as in kube-scheduler.
    pub(super) fn problems(&self, spec: &PodSpec, needs: &Resources) -> Vec<String> {
        if self.is_unschedulable() && !tolerates_unschedulable(spec) {
            return vec!["node(s) were unschedulable".to_owned()];
        }
        if let Some(taint) = untolerated(&self.node, spec) {
            let value = taint.value.as_deref().unwrap_or_default();
            return vec![format!("node(s) had untolerated taint {{{}: {value}}}", taint.key)];
        }
        if !self.is_selected(spec) {
            return vec!["node(s) didn't match Pod's node affinity/selector".to_owned()];
        }
        if self.has_conflicting_port(spec) {
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

    /// Number of `PreferNoSchedule` taints that the pod does not tolerate.
    pub(super) fn avoided(&self, spec: &PodSpec) -> usize {
        let soft = taints(&self.node).filter(|taint| taint.effect == "PreferNoSchedule");
        soft.filter(|taint| !tolerates(spec, taint)).count()
    }

    /// Whether the node selector and the required node affinity match.
    pub(super) fn is_selected(&self, spec: &PodSpec) -> bool {
        is_selected(&self.node, spec)
    }

    /// Whether a node selector term matches; one without requirements matches nothing.
    pub(super) fn meets(&self, term: &NodeSelectorTerm) -> bool {
        meets(&self.node, term)
    }
}

/// Whether a DaemonSet pod with this spec belongs to a node; free resources do not matter.
pub(in crate::cluster) fn wants_daemon(node: &Node, spec: &PodSpec) -> bool {
    untolerated(node, spec).is_none() && is_selected(node, spec)
}

fn taints(node: &Node) -> impl Iterator<Item = &Taint> {
    node.spec.iter().flat_map(|spec| spec.taints.iter().flatten())
}

/// The first `NoSchedule` or `NoExecute` taint that the pod does not tolerate.
fn untolerated<'n>(node: &'n Node, spec: &PodSpec) -> Option<&'n Taint> {
    taints(node)
        .filter(|taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute"))
        .find(|taint| !tolerates(spec, taint))
}

fn is_selected(node: &Node, spec: &PodSpec) -> bool {
    let exact = spec
        .node_selector
        .iter()
        .flatten()
        .all(|(key, value)| node.labels().get(key) == Some(value));
    let required =
        spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref()).and_then(
            |affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref(),
        );
    exact
        && required.is_none_or(|selector| {
            selector.node_selector_terms.iter().any(|term| meets(node, term))
        })
}

fn meets(node: &Node, term: &NodeSelectorTerm) -> bool {
    let labels = term.match_expressions.iter().flatten();
    let fields = term.match_fields.iter().flatten();
    let given = term.match_expressions.as_ref().is_some_and(|list| !list.is_empty())
        || term.match_fields.as_ref().is_some_and(|list| !list.is_empty());
    given
        && labels
            .into_iter()
            .all(|requirement| holds(requirement, node.labels().get(&requirement.key)))
        && fields.into_iter().all(|requirement| {
            requirement.key == "metadata.name" && holds(requirement, node.metadata.name.as_ref())
        })
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

/// Whether a toleration matches a taint.
pub(in crate::cluster) fn matches_taint(toleration: &Toleration, taint: &Taint) -> bool {
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
pub(super) fn unsupported(spec: &PodSpec) -> Option<&'static str> {
    let claims = spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty());
    claims.then_some("resource claims")
}
