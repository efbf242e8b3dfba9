//! The ReplicaSet controller: keeps the number of pods at `spec.replicas`.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use serde_json::json;

use super::{owner, whole_seconds};
use crate::cluster::index::Index;
use crate::cluster::pods;
use crate::cluster::write::Writer;

const COMPONENT: &str = "replicaset-controller";
/// Maximum number of pods created in one pass, as in the real controller.
const BURST: usize = 500;

pub(super) async fn reconcile(set: &Arc<ReplicaSet>, index: &mut Index, writer: &mut Writer) {
    if set.metadata.deletion_timestamp.is_some() {
        return;
    }
    let (Some(uid), Some(spec)) = (set.uid(), set.spec.as_ref()) else { return };
    let wanted = usize::try_from(spec.replicas.unwrap_or(1)).unwrap_or(0);
    let mut held = active(&uid, index);
    let mut refused = None;
    if held.len() < wanted {
        let template = serde_json::to_value(&spec.template).unwrap_or_default();
        let metadata = json!({
            "generateName": format!("{}-", set.name_any()),
            "labels": template["metadata"]["labels"],
            "annotations": template["metadata"]["annotations"],
            "ownerReferences": owner(&**set),
        });
        let pod = json!({ "metadata": metadata, "spec": template["spec"] });
        for _ in held.len()..wanted.min(held.len() + BURST) {
            if let Err(why) = writer.create_for(&**set, COMPONENT, &mut index.pods, &pod).await {
                refused = why;
                break;
            }
        }
    } else if held.len() > wanted {
        held.sort_by_cached_key(|pod| deletion_rank(pod));
        for pod in held.iter().take(held.len() - wanted) {
            writer.delete_for(&**set, COMPONENT, &mut index.pods, pod).await;
        }
    }
    let held = active(&uid, index);
    let ready = held.iter().filter(|pod| pods::is_ready(pod)).count();
    let count = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
    let status = ReplicaSetStatus {
        replicas: count(held.len()),
        fully_labeled_replicas: Some(count(held.len())),
        ready_replicas: Some(count(ready)),
        available_replicas: Some(count(ready)),
        observed_generation: set.metadata.generation,
        conditions: refused.map(|why| vec![failure(set, why, writer.now())]),
        ..ReplicaSetStatus::default()
    };
    if set.status.as_ref() != Some(&status) {
        let mut set = (**set).clone();
        set.status = Some(status);
        writer.replace_status(&mut index.replica_sets, &set).await;
    }
}

/// The condition of a set whose pods are refused; the one that it has stays as it is.
fn failure(set: &ReplicaSet, why: String, now: jiff::Timestamp) -> ReplicaSetCondition {
    let mut held = set.status.iter().flat_map(|status| status.conditions.iter().flatten());
    held.find(|held| held.type_ == "ReplicaFailure").cloned().unwrap_or_else(|| {
        ReplicaSetCondition {
            type_: "ReplicaFailure".to_owned(),
            status: "True".to_owned(),
            reason: Some("FailedCreate".to_owned()),
            message: Some(why),
            last_transition_time: Some(Time(whole_seconds(now))),
        }
    })
}

/// Owned pods that are neither finished nor terminating.
fn active(uid: &str, index: &Index) -> Vec<Arc<Pod>> {
    index
        .pods
        .managed_by(uid)
        .filter(|pod| !pods::is_deleting(pod) && !pods::is_finished(pod))
        .cloned()
        .collect()
}

/// Deletion order: unscheduled, not running, not ready, low deletion cost, young.
fn deletion_rank(
    pod: &Pod,
) -> (bool, bool, bool, i64, std::cmp::Reverse<Option<jiff::Timestamp>>, String) {
    let cost = pod.annotations().get("controller.kubernetes.io/pod-deletion-cost");
    (
        !pods::node_of(pod).is_empty(),
        pods::phase(pod) == "Running",
        pods::is_ready(pod),
        cost.and_then(|text| text.parse().ok()).unwrap_or(0),
        std::cmp::Reverse(pod.metadata.creation_timestamp.as_ref().map(|time| time.0)),
        pod.name_any(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_useful_pod_goes_first() {
        let pod = |name: &str, node: Option<&str>, ready: &str, created: &str| -> Pod {
            serde_json::from_value(json!({
                "metadata": { "name": name, "creationTimestamp": created },
                "spec": { "nodeName": node, "containers": [] },
                "status": { "phase": if node.is_some() { "Running" } else { "Pending" },
                    "conditions": [{ "type": "Ready", "status": ready }] },
            }))
            .unwrap()
        };
        let mut pods = [
            pod("old", Some("n"), "True", "2030-01-01T00:00:00Z"),
            pod("young", Some("n"), "True", "2030-01-02T00:00:00Z"),
            pod("broken", Some("n"), "False", "2030-01-01T00:00:00Z"),
            pod("waiting", None, "False", "2030-01-01T00:00:00Z"),
        ];
        pods.sort_by_cached_key(deletion_rank);
        assert_eq!(pods.map(|pod| pod.name_any()), ["waiting", "broken", "young", "old"]);
    }
}
