//! The parts of the node lifecycle controller and of pod garbage collection that matter: nodes
//! that are not ready are tainted and ready ones are not, a Node without a kubelet is marked, and
//! the pods of a deleted VM or of a missing Node are removed.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, NodeCondition, Taint};
use kube::ResourceExt as _;
use nap_kubelets::VmEvent;
use serde_json::{Value, json};

use super::index::{Index, Reader};
use super::pods;
use super::write::Writer;

const NOT_READY: &str = "node.kubernetes.io/not-ready";

const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
/// Time after which a node that is not ready is tainted; one that boots is ready by then.
const NOT_READY_AFTER: SignedDuration = SignedDuration::from_secs(10);
/// Time in which the kubelet of a new Node must report.
const STARTUP_GRACE: SignedDuration = SignedDuration::from_secs(60);
/// Time after which the pods of a Node that does not exist are removed.
const ORPHAN_GRACE: SignedDuration = SignedDuration::from_secs(40);

/// Nodes to look at, and what is gone.
#[derive(Debug, Default)]
pub(super) struct NodeLifecycle {
    /// Nodes of deleted VMs whose objects may still exist: provider id by node name.
    gone: BTreeMap<String, String>,
    /// Nodes that pods are bound to and that do not exist, with the time when that was seen.
    missing: BTreeMap<String, Timestamp>,
    /// Nodes that have changed.
    changed: BTreeSet<String>,
    /// Nodes that are not ready, or whose kubelet has not reported yet, with the time at which that
    /// has lasted for too long.
    due: BTreeMap<String, Timestamp>,
}

impl NodeLifecycle {
    /// Records a VM event.
    pub(super) fn apply(&mut self, event: &VmEvent) {
        match event {
            VmEvent::Created { node_name, .. } => {
                self.gone.remove(node_name);
            }
            VmEvent::Rebooted { .. } | VmEvent::Condition { .. } => {}
            VmEvent::Deleted { provider_id, node_name } => {
                self.gone.insert(node_name.clone(), provider_id.clone());
            }
        }
    }

    /// Removes what has to go; returns when to look again.
    pub(super) async fn pass(
        &mut self,
        index: &mut Index,
        writer: &mut Writer,
        all: bool,
    ) -> Option<Timestamp> {
        self.read(index, writer.now(), all);
        for (name, provider_id) in self.gone.clone() {
            remove_pods(&name, index, writer).await;
            let node = index.nodes.get(&(String::new(), name.clone()));
            if node.is_none_or(|node| provider_id_of(node) != provider_id) {
                self.gone.remove(&name);
            }
        }
        let now = writer.now();
        let is_due = |since: &Timestamp| *since <= now;
        for (node, due) in self.missing.clone() {
            if index.nodes.get(&(String::new(), node.clone())).is_some()
                || index.pods.on_node(&node).next().is_none()
            {
                self.missing.remove(&node);
            } else if is_due(&due) {
                remove_pods(&node, index, writer).await;
            }
        }
        let due = self.due.iter().filter(|(_, due)| is_due(due));
        self.changed.extend(due.map(|(name, _)| name.clone()));
        for name in std::mem::take(&mut self.changed) {
            self.due.remove(&name);
            let Some(node) = index.nodes.get(&(String::new(), name.clone())).cloned() else {
                continue;
            };
            let later = match ready_condition(&node) {
                None => mark_silent(&node, index, writer).await,
                Some(ready) => taint(&node, ready, index, writer).await,
            };
            if let Some(later) = later {
                self.due.insert(name, later);
            }
        }
        let later = self.missing.values().chain(self.due.values());
        later.filter(|due| **due > now).min().copied()
    }

    fn read(&mut self, index: &mut Index, now: Timestamp, all: bool) {
        let mut unsure: BTreeSet<String> = BTreeSet::new();
        for change in index.nodes.changes(Reader::NodeLifecycle) {
            if change.after.is_none() {
                unsure.insert(change.key.1.clone());
            }
            self.changed.insert(change.key.1.clone());
        }
        for change in index.pods.changes(Reader::NodeLifecycle) {
            let node = change.after.as_ref().map(|pod| pods::node_of(pod)).unwrap_or_default();
            if !node.is_empty() {
                unsure.insert(node.to_owned());
            }
        }
        if all {
            self.changed.extend(index.nodes.keys().map(|key| key.1.clone()));
            unsure.extend(index.pods.nodes().cloned());
        }
        for node in unsure {
            if index.nodes.get(&(String::new(), node.clone())).is_none()
                && index.pods.on_node(&node).next().is_some()
            {
                let due = now.checked_add(ORPHAN_GRACE).unwrap_or(now);
                self.missing.entry(node).or_insert(due);
            }
        }
    }
}

async fn remove_pods(node: &str, index: &mut Index, writer: &mut Writer) {
    let pods: Vec<_> = index.pods.on_node(node).cloned().collect();
    for pod in pods {
        writer.delete(&mut index.pods, &*pod, Some(0)).await;
    }
}

/// Marks a Node whose kubelet never reported; returns the time if that is not due yet.
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
    let message = "No kubelet runs for this Node: it has a provider ID or belongs to a NodePool, and \
                   the embedded Azure has no such VM. A Node without both gets a kubelet.";
    writer.event(node, "node-controller", "Warning", "NodeNotReady", message).await;
    None
}

/// Sets the taints that go with the condition `Ready`; returns the time if that is not due yet.
async fn taint(
    node: &Node,
    ready: &NodeCondition,
    index: &mut Index,
    writer: &mut Writer,
) -> Option<Timestamp> {
    let wanted = match ready.status.as_str() {
        "True" => None,
        "False" => Some(NOT_READY),
        _ => Some(UNREACHABLE),
    };
    let held: Vec<&Taint> = node.spec.iter().flat_map(|s| s.taints.iter().flatten()).collect();
    let is_ours = |taint: &Taint| matches!(taint.key.as_str(), NOT_READY | UNREACHABLE);
    let has = |key: &str, effect: &str| {
        held.iter().any(|taint| taint.key == key && taint.effect == effect)
    };
    if let Some(key) = wanted {
        if has(key, "NoSchedule") && has(key, "NoExecute") {
            return None;
        }
        let since = ready.last_transition_time.as_ref().map_or(writer.now(), |time| time.0);
        let due = since.checked_add(NOT_READY_AFTER).unwrap_or(since);
        if due > writer.now() {
            return Some(due);
        }
    } else if !held.iter().any(|taint| is_ours(taint)) {
        return None;
    }
    let mut taints: Vec<Value> =
        held.iter().filter(|taint| !is_ours(taint)).map(|taint| json!(taint)).collect();
    if let Some(key) = wanted {
        taints.push(json!({ "key": key, "effect": "NoSchedule", "timeAdded": writer.stamp() }));
        taints.push(json!({ "key": key, "effect": "NoExecute", "timeAdded": writer.stamp() }));
    }
    let patch = json!({
        "metadata": { "resourceVersion": node.resource_version() },
        "spec": { "taints": taints },
    });
    writer.patch_node(&mut index.nodes, &node.name_any(), &patch).await;
    None
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
