//! The DaemonSet controller: one pod on every eligible node.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetStatus};
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{hash, owner};
use crate::cluster::index::Index;
use crate::cluster::pods;
use crate::cluster::scheduler::wants_daemon;
use crate::cluster::write::Writer;

const COMPONENT: &str = "daemonset-controller";
const HASH_LABEL: &str = "controller-revision-hash";

pub(super) async fn reconcile(set: &Arc<DaemonSet>, index: &mut Index, writer: &mut Writer) {
    if set.metadata.deletion_timestamp.is_some() {
        return;
    }
    let (Some(uid), Some(spec)) = (set.uid(), set.spec.as_ref()) else { return };
    let template = serde_json::to_value(&spec.template).unwrap_or_default();
    let hash = hash(&template);
    let mut pod_spec = template["spec"].clone();
    tolerate_as_daemon(&mut pod_spec);
    let Ok(daemon) = serde_json::from_value::<PodSpec>(pod_spec.clone()) else { return };
    let wanted: Vec<String> = index
        .nodes
        .values()
        .filter(|node| wants_daemon(node, &daemon))
        .map(|node| node.name_any())
        .collect();
    let mut by_node = assigned(&uid, index);
    for name in &wanted {
        let held = by_node.remove(name).unwrap_or_default();
        for extra in held.iter().skip(1) {
            writer.delete_for(&**set, COMPONENT, &mut index.pods, extra).await;
        }
        if held.is_empty() {
            let pod = daemon_pod(set, &template, &pod_spec, &hash, name);
            // Tried again later.
            let _ = writer.create_for(&**set, COMPONENT, &mut index.pods, &pod).await;
        }
    }
    for misplaced in by_node.into_values().flatten() {
        writer.delete_for(&**set, COMPONENT, &mut index.pods, &misplaced).await;
    }
    let strategy = spec.update_strategy.as_ref().and_then(|strategy| strategy.type_.as_deref());
    if strategy != Some("OnDelete") {
        replace_outdated(set, &uid, &hash, index, writer).await;
    }
    update_status(set, &uid, &hash, wanted.len(), index, writer).await;
}

/// Pods of the set by target node, terminating ones included.
fn assigned(uid: &str, index: &Index) -> BTreeMap<String, Vec<Arc<Pod>>> {
    let mut by_node: BTreeMap<String, Vec<Arc<Pod>>> = BTreeMap::new();
    for pod in index.pods.managed_by(uid).filter(|pod| !pods::is_finished(pod)) {
        by_node.entry(target(pod)).or_default().push(Arc::clone(pod));
    }
    by_node
}

/// Target node of a daemon pod: the one it is bound to, or the one its affinity names.
fn target(pod: &Pod) -> String {
    let bound = pods::node_of(pod);
    if !bound.is_empty() {
        return bound.to_owned();
    }
    let required = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.affinity.as_ref())
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    let mut terms = required.into_iter().flat_map(|selector| &selector.node_selector_terms);
    terms
        .find_map(|term| term.match_fields.as_ref()?.first()?.values.as_ref()?.first().cloned())
        .unwrap_or_default()
}

fn daemon_pod(
    set: &DaemonSet,
    template: &Value,
    pod_spec: &Value,
    hash: &str,
    node: &str,
) -> Value {
    let mut spec = pod_spec.clone();
    // The affinity makes the scheduler bind the pod to this node only.
    let field = json!({ "key": "metadata.name", "operator": "In", "values": [node] });
    let required =
        &mut spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    match required["nodeSelectorTerms"].as_array_mut() {
        Some(terms) => {
            for term in terms {
                term["matchFields"] = json!([field]);
            }
        }
        None => required["nodeSelectorTerms"] = json!([{ "matchFields": [field] }]),
    }
    let mut labels = template["metadata"]["labels"].clone();
    labels[HASH_LABEL] = json!(hash);
    json!({
        "metadata": {
            "generateName": format!("{}-", set.name_any()),
            "labels": labels,
            "annotations": template["metadata"]["annotations"],
            "ownerReferences": owner(set),
        },
        "spec": spec,
    })
}

/// Adds the tolerations that every daemon pod gets, so that it runs on unhealthy nodes.
fn tolerate_as_daemon(spec: &mut Value) {
    let mut added: Vec<Value> = [
        ("node.kubernetes.io/not-ready", "NoExecute"),
        ("node.kubernetes.io/unreachable", "NoExecute"),
        ("node.kubernetes.io/disk-pressure", "NoSchedule"),
        ("node.kubernetes.io/memory-pressure", "NoSchedule"),
        ("node.kubernetes.io/pid-pressure", "NoSchedule"),
        ("node.kubernetes.io/unschedulable", "NoSchedule"),
    ]
    .iter()
    .map(|(key, effect)| json!({ "key": key, "operator": "Exists", "effect": effect }))
    .collect();
    if spec["hostNetwork"] == true {
        let key = "node.kubernetes.io/network-unavailable";
        added.push(json!({ "key": key, "operator": "Exists", "effect": "NoSchedule" }));
    }
    match spec["tolerations"].as_array_mut() {
        Some(tolerations) => tolerations.extend(added),
        None => spec["tolerations"] = Value::Array(added),
    }
}

/// Replaces one outdated pod at a time, and only while all others are ready.
async fn replace_outdated(
    set: &DaemonSet,
    uid: &str,
    hash: &str,
    index: &mut Index,
    writer: &mut Writer,
) {
    let owned: Vec<_> = index.pods.managed_by(uid).cloned().collect();
    let outdated = |pod: &Pod| pod.labels().get(HASH_LABEL).map(String::as_str) != Some(hash);
    let settled =
        owned.iter().all(|pod| !pods::is_deleting(pod) && (pods::is_ready(pod) || outdated(pod)));
    if let (true, Some(pod)) = (settled, owned.iter().find(|pod| outdated(pod))) {
        writer.delete_for(set, COMPONENT, &mut index.pods, pod).await;
    }
}

async fn update_status(
    set: &DaemonSet,
    uid: &str,
    hash: &str,
    wanted: usize,
    index: &mut Index,
    writer: &mut Writer,
) {
    let count = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
    let owned: Vec<_> = index.pods.managed_by(uid).filter(|pod| !pods::is_deleting(pod)).collect();
    let ready = count(owned.iter().filter(|pod| pods::is_ready(pod)).count());
    let updated =
        owned.iter().filter(|pod| pod.labels().get(HASH_LABEL).map(String::as_str) == Some(hash));
    let status = DaemonSetStatus {
        desired_number_scheduled: count(wanted),
        current_number_scheduled: count(owned.len()),
        number_ready: ready,
        number_available: Some(ready),
        number_unavailable: Some((count(wanted) - ready).max(0)),
        updated_number_scheduled: Some(count(updated.count())),
        number_misscheduled: 0,
        observed_generation: set.metadata.generation,
        ..DaemonSetStatus::default()
    };
    if set.status.as_ref() != Some(&status) {
        let mut set = set.clone();
        set.status = Some(status);
        writer.replace_status(&mut index.daemon_sets, &set).await;
    }
}
