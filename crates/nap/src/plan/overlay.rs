//! Manifests on top of a cluster: the objects of the cluster after `kubectl apply`, and the pods
//! that the change ends.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{PodTemplateSpec, Volume};
use nap_controllers::cluster::pods;
use serde_json::Value;

use super::cluster::count;
use crate::manifests::read::Document;

/// Kind, namespace and name, with the group.
type Identity = (String, String, String, String);

/// Workloads whose pods a change may end.
const WORKLOADS: [&str; 3] = ["Deployment", "ReplicaSet", "StatefulSet"];

/// The objects of a cluster after a change.
pub struct Overlaid {
    /// The objects.
    pub documents: Vec<Document>,
    /// `namespace/name` of the pods that the change ends.
    pub ended: BTreeSet<String>,
    /// One line for each workload whose pods are replaced or removed, and for each object that is
    /// not understood in full.
    pub lines: Vec<String>,
}

fn identity(value: &Value) -> Identity {
    let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let group = text("/apiVersion").split_once('/').map_or("", |(group, _)| group);
    let namespace = match text("/metadata/namespace") {
        "default" => "",
        other => other,
    };
    let parts = [group, text("/kind"), namespace, text("/metadata/name")];
    let [group, kind, namespace, name] = parts.map(str::to_owned);
    (group, kind, namespace, name)
}

/// Applies changed objects to those of a cluster.
pub fn overlay(live: &[Document], changes: Vec<Document>) -> Overlaid {
    let mut documents: Vec<Document> = live.to_vec();
    let places: BTreeMap<Identity, usize> =
        documents.iter().enumerate().map(|(at, one)| (identity(&one.value), at)).collect();
    let mut ended = BTreeSet::new();
    let mut lines = Vec::new();
    let mut added = Vec::new();
    for mut change in changes {
        let Some(at) = places.get(&identity(&change.value)).copied() else {
            added.push(change);
            continue;
        };
        let old = documents[at].clone();
        carry_over(&old.value, &mut change.value);
        let kind = change.text("/kind").to_owned();
        if WORKLOADS.contains(&kind.as_str()) {
            end_pods(live, &old, &change, &mut ended, &mut lines);
        }
        if ["NodePool", "AKSNodeClass"].contains(&kind.as_str())
            && old.value.get("spec") != change.value.get("spec")
        {
            let title = change.title();
            lines.push(format!(
                "~ {title} changes: `nap what-if` shows the nodes that are replaced for it"
            ));
        }
        documents[at] = change;
    }
    documents.retain(|document| {
        document.text("/kind") != "Pod" || !ended.contains(&pod_key(&document.value))
    });
    documents.extend(added);
    Overlaid { documents, ended, lines }
}

/// What stays as it is in the cluster: fields that the manifest does not name, and the status.
fn carry_over(old: &Value, new: &mut Value) {
    let keep = |new: &mut Value, parent: &str, field: &str| {
        let kept = old.pointer(&format!("{parent}/{field}")).cloned();
        let place = new.pointer_mut(parent).and_then(Value::as_object_mut);
        if let (Some(kept), Some(place)) = (kept, place) {
            place.entry(field).or_insert(kept);
        }
    };
    keep(new, "", "status");
    keep(new, "/spec", "replicas");
    for field in ["uid", "creationTimestamp", "generation"] {
        keep(new, "/metadata", field);
    }
}

fn end_pods(
    live: &[Document],
    old: &Document,
    new: &Document,
    ended: &mut BTreeSet<String>,
    lines: &mut Vec<String>,
) {
    let mut own: Vec<&Document> = pods_of(live, old);
    let title = new.title();
    if shape(&old.value) != shape(&new.value) {
        ended.extend(own.iter().map(|pod| pod_key(&pod.value)));
        if !own.is_empty() {
            let pods = count(own.len(), "pod");
            lines.push(format!("~ {title}: its template changes, so {pods} are replaced"));
        }
        return;
    }
    let wanted = new.value.pointer("/spec/replicas").and_then(Value::as_u64).unwrap_or(1);
    let surplus = own.len().saturating_sub(usize::try_from(wanted).unwrap_or(usize::MAX));
    // A StatefulSet ends its highest ordinals; the others end pods without a node, then new ones.
    own.sort_by_key(|pod| {
        let bound = !pod.text("/spec/nodeName").is_empty();
        let ordinal = pod.text("/metadata/name").rsplit('-').next().and_then(|n| n.parse().ok());
        let ordinal: u64 = ordinal.filter(|_| new.text("/kind") == "StatefulSet").unwrap_or(0);
        let created = pod.text("/metadata/creationTimestamp").to_owned();
        (bound, std::cmp::Reverse(ordinal), std::cmp::Reverse(created), pod_key(&pod.value))
    });
    let gone = own.iter().take(surplus);
    ended.extend(gone.map(|pod| pod_key(&pod.value)));
    if surplus > 0 {
        lines.push(format!("- {title}: {} fewer", count(surplus, "pod")));
    }
}

/// The pods of a workload, directly or by its ReplicaSets.
fn pods_of<'d>(live: &'d [Document], workload: &Document) -> Vec<&'d Document> {
    let namespace = workload.text("/metadata/namespace");
    let owned_by = |document: &Document, kind: &str, names: &BTreeSet<String>| {
        let owners = document.value.pointer("/metadata/ownerReferences").and_then(Value::as_array);
        document.text("/metadata/namespace") == namespace
            && owners.into_iter().flatten().any(|owner| {
                let text = |field: &str| owner.get(field).and_then(Value::as_str);
                text("kind") == Some(kind) && text("name").is_some_and(|name| names.contains(name))
            })
    };
    let mut kind = workload.text("/kind");
    let mut names = BTreeSet::from([workload.text("/metadata/name").to_owned()]);
    if kind == "Deployment" {
        let sets = live.iter().filter(|one| one.text("/kind") == "ReplicaSet");
        let sets = sets.filter(|one| owned_by(one, "Deployment", &names));
        names = sets.map(|one| one.text("/metadata/name").to_owned()).collect();
        kind = "ReplicaSet";
    }
    let is_active = |pod: &Document| {
        !["Succeeded", "Failed"].contains(&pod.text("/status/phase"))
            && pod.text("/metadata/deletionTimestamp").is_empty()
    };
    let pods = live.iter().filter(|one| one.text("/kind") == "Pod");
    pods.filter(|one| owned_by(one, kind, &names) && is_active(one)).collect()
}

fn pod_key(value: &Value) -> String {
    let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let namespace = match text("/metadata/namespace") {
        "" => "default",
        given => given,
    };
    format!("{namespace}/{}", text("/metadata/name"))
}

/// What of a pod template decides where its pods go. Fields in which a server's defaults differ
/// from what was written do not count.
fn shape(workload: &Value) -> String {
    let template = workload.pointer("/spec/template").cloned().unwrap_or_default();
    let template: PodTemplateSpec = serde_json::from_value(template).unwrap_or_default();
    let labels = template.metadata.unwrap_or_default().labels;
    let spec = template.spec.unwrap_or_default();
    let ports = spec.containers.iter().flat_map(|container| container.ports.iter().flatten());
    let ports: Vec<i32> = ports.filter_map(|port| port.host_port).collect();
    let claims = |volume: &Volume| {
        let claim = volume.persistent_volume_claim.as_ref().map(|one| one.claim_name.clone());
        claim.or_else(|| volume.ephemeral.as_ref().map(|_| volume.name.clone()))
    };
    let claims: Vec<String> = spec.volumes.iter().flatten().filter_map(claims).collect();
    format!(
        "{:?}",
        (
            labels,
            pods::requests(&spec),
            (spec.node_selector, spec.affinity, spec.tolerations, spec.topology_spread_constraints),
            (spec.priority_class_name, spec.runtime_class_name, ports, claims),
        )
    )
}
