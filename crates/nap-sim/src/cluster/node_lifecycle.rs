//! The parts of the node lifecycle controller and of pod garbage collection that matter: the
//! not-ready taint is removed from ready nodes, a Node without a kubelet is marked, and the pods of
//! a deleted VM or of a missing Node are removed.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use kube::ResourceExt as _;
use nap_kubelets::VmEvent;
use serde_json::json;

use super::index::Index;
use super::write::Writer;
use super::{earliest, pods};

const NOT_READY: &str = "node.kubernetes.io/not-ready";

const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
/// Time in which the kubelet of a new Node must report.
const STARTUP_GRACE: SignedDuration = SignedDuration::from_secs(60);
/// Time after which the pods of a Node that does not exist are removed.
const ORPHAN_GRACE: SignedDuration = SignedDuration::from_secs(40);

/// VMs and Nodes that are gone.
#[derive(Debug, Default)]
pub(super) struct GoneVms {
    /// Nodes of deleted VMs whose objects may still exist: provider id by node name.
    vms: BTreeMap<String, String>,
    /// Nodes that pods are bound to and that do not exist, with the time when that was seen.
    missing: BTreeMap<String, Timestamp>,
}

impl GoneVms {
    /// Records a VM event.
    pub(super) fn apply(&mut self, event: &VmEvent) {
        match event {
            VmEvent::Created { node_name, .. } => {
                self.vms.remove(node_name);
            }
            VmEvent::Rebooted { .. } | VmEvent::Condition { .. } => {}
            VmEvent::Deleted { provider_id, node_name } => {
                self.vms.insert(node_name.clone(), provider_id.clone());
            }
        }
    }
}

/// Removes what has to go; returns when to look again.
pub(super) async fn pass(
    gone: &mut GoneVms,
    index: &mut Index,
    writer: &mut Writer,
) -> Option<Timestamp> {
    for (name, provider_id) in gone.vms.clone() {
        remove_pods(&name, index, writer).await;
        let node = index.nodes.get(&(String::new(), name.clone()));
        if node.is_none_or(|node| provider_id_of(node) != provider_id) {
            gone.vms.remove(&name);
        }
    }
    let mut wake = remove_orphans(gone, index, writer).await;
    for node in index.nodes.snapshot() {
        if is_ready(&node) {
            drop_not_ready(&node, index, writer).await;
        } else if ready_condition(&node).is_none() {
            wake = earliest(wake, mark_silent(&node, index, writer).await);
        }
    }
    wake
}

async fn remove_pods(node: &str, index: &mut Index, writer: &mut Writer) {
    for pod in index.pods.snapshot().iter().filter(|pod| pods::node_of(pod) == node) {
        writer.delete(&mut index.pods, &**pod, Some(0)).await;
    }
}

/// Removes the pods that are bound to a Node which does not exist, after a while.
async fn remove_orphans(
    gone: &mut GoneVms,
    index: &mut Index,
    writer: &mut Writer,
) -> Option<Timestamp> {
    let now = writer.now();
    let nodes: BTreeSet<&str> =
        index.nodes.values().filter_map(|node| node.metadata.name.as_deref()).collect();
    let bound = index.pods.values().map(|pod| pods::node_of(pod));
    let missing: BTreeSet<String> =
        bound.filter(|node| !node.is_empty() && !nodes.contains(node)).map(str::to_owned).collect();
    gone.missing.retain(|node, _| missing.contains(node));
    let mut wake = None;
    for node in missing {
        let since = *gone.missing.entry(node.clone()).or_insert(now);
        let due = since.checked_add(ORPHAN_GRACE).unwrap_or(since);
        if due <= now {
            remove_pods(&node, index, writer).await;
        } else {
            wake = earliest(wake, Some(due));
        }
    }
    wake
}

/// Marks a Node whose kubelet never reported; returns when that is due.
async fn mark_silent(node: &Node, index: &mut Index, writer: &mut Writer) -> Option<Timestamp> {
    let made = node.metadata.creation_timestamp.as_ref()?.0;
    let due = made.checked_add(STARTUP_GRACE).ok()?;
    if due > writer.now() {
        return Some(due);
    }
    let name = node.name_any();
    let condition = json!({
        "type": "Ready", "status": "Unknown", "reason": "NodeStatusNeverUpdated",
        "message": "Kubelet never posted node status.",
        "lastHeartbeatTime": writer.stamp(), "lastTransitionTime": writer.stamp(),
    });
    writer.patch_node_status(&mut index.nodes, &name, &json!({ "conditions": [condition] })).await;
    let mut taints: Vec<serde_json::Value> = node
        .spec
        .iter()
        .flat_map(|spec| spec.taints.iter().flatten())
        .map(|taint| json!(taint))
        .collect();
    taints.push(json!({ "key": UNREACHABLE, "effect": "NoSchedule" }));
    writer.patch_node(&mut index.nodes, &name, &json!({ "spec": { "taints": taints } })).await;
    let message = "No kubelet runs for this Node: the embedded cluster has kubelets for the VMs of \
                   its Azure only. `nap try --system-nodes N` gives it nodes that are not nap's.";
    writer.event(node, "node-controller", "Warning", "NodeNotReady", message).await;
    None
}

async fn drop_not_ready(node: &Node, index: &mut Index, writer: &mut Writer) {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    let Some(taints) = taints.filter(|taints| taints.iter().any(|taint| taint.key == NOT_READY))
    else {
        return;
    };
    let kept: Vec<_> = taints.iter().filter(|taint| taint.key != NOT_READY).collect();
    let patch = json!({
        "metadata": { "resourceVersion": node.resource_version() },
        "spec": { "taints": kept },
    });
    writer.patch_node(&mut index.nodes, &node.name_any(), &patch).await;
}

pub(super) fn is_ready(node: &Node) -> bool {
    ready_condition(node).is_some_and(|condition| condition.status == "True")
}

fn ready_condition(node: &Node) -> Option<&NodeCondition> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == "Ready")
}

fn provider_id_of(node: &Node) -> &str {
    node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()).unwrap_or_default()
}
