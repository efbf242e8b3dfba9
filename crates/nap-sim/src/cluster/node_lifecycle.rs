//! The parts of the node lifecycle controller and of pod garbage collection that matter: the
//! not-ready taint is removed from ready nodes, and the pods of a deleted VM are removed.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use nap_kubelets::VmEvent;
use serde_json::json;

use super::index::Index;
use super::pods;
use super::write::Writer;

const NOT_READY: &str = "node.kubernetes.io/not-ready";

/// Nodes of deleted VMs whose objects may still exist: provider id by node name.
#[derive(Debug, Default)]
pub(super) struct GoneVms(BTreeMap<String, String>);

impl GoneVms {
    /// Records a VM event.
    pub(super) fn apply(&mut self, event: &VmEvent) {
        match event {
            VmEvent::Created { node_name, .. } => {
                self.0.remove(node_name);
            }
            VmEvent::Rebooted { .. } | VmEvent::Condition { .. } => {}
            VmEvent::Deleted { provider_id, node_name } => {
                self.0.insert(node_name.clone(), provider_id.clone());
            }
        }
    }
}

/// Removes what has to go from every Node and from the Nodes of deleted VMs.
pub(super) async fn pass(gone: &mut GoneVms, index: &mut Index, writer: &mut Writer) {
    for (name, provider_id) in gone.0.clone() {
        for pod in index.pods.snapshot().iter().filter(|pod| pods::node_of(pod) == name) {
            writer.delete(&mut index.pods, pod, Some(0)).await;
        }
        let node = index.nodes.get(&(String::new(), name.clone()));
        if node.is_none_or(|node| provider_id_of(node) != provider_id) {
            gone.0.remove(&name);
        }
    }
    for node in index.nodes.snapshot() {
        if is_ready(&node) {
            drop_not_ready(&node, index, writer).await;
        }
    }
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
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let is_ready = |conditions: &Vec<k8s_openapi::api::core::v1::NodeCondition>| {
        conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
    };
    conditions.is_some_and(is_ready)
}

fn provider_id_of(node: &Node) -> &str {
    node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()).unwrap_or_default()
}
