//! Manifests on top of a cluster: the objects of the cluster after `kubectl apply`, and the pods
//! that the change ends.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{PodTemplateSpec, Volume};
use nap_api::{AKSNodeClass, NodePool, normalise};
use nap_controllers::cluster::pods;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::autoscaling::Autoscaler;
use super::cluster::count;
use crate::cli::Replicas;
use crate::manifests::read::Document;

/// Kind, namespace and name, with the group.
type Identity = (String, String, String, String);

/// Workloads whose pods a change may end.
const WORKLOADS: [&str; 5] =
    ["Deployment", "ReplicaSet", "ReplicationController", "StatefulSet", "DaemonSet"];
/// Workloads that start runs of their own. Those of a cluster count with the pods that they have.
const RUNS: [&str; 3] = ["Job", "CronJob", "ScaledJob"];

/// The objects of a cluster after a change.
pub struct Overlaid {
    /// The objects.
    pub documents: Vec<Document>,
    /// `namespace/name` of the pods that the change ends.
    pub ended: BTreeSet<String>,
    /// One line for each workload whose pods are replaced or removed, and for each object that is
    /// not understood in full.
    pub lines: Vec<String>,
    /// One line for each workload whose number of pods an autoscaler holds, whatever is written.
    pub notes: Vec<String>,
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

/// Whether an object is a workload that starts runs of its own.
pub fn makes_runs(document: &Document) -> bool {
    RUNS.contains(&document.text("/kind"))
        && ["batch", "keda.sh"].contains(&identity(&document.value).0.as_str())
}

/// Applies changed objects to those of a cluster, with the number of pods that autoscalers come to.
pub fn overlay(live: &[Document], changes: Vec<Document>, replicas: Replicas) -> Overlaid {
    let mut documents: Vec<Document> = live.to_vec();
    let places: BTreeMap<Identity, usize> =
        documents.iter().enumerate().map(|(at, one)| (identity(&one.value), at)).collect();
    let before: Vec<Autoscaler> = live.iter().filter_map(Autoscaler::read).collect();
    let mut lines = Vec::new();
    let mut added = Vec::new();
    let mut changed = BTreeSet::new();
    // The number of pods that is written for a workload, where an autoscaler holds it at another.
    let mut unused = BTreeMap::new();
    let mut scaling: Vec<Autoscaler> = Vec::new();
    for mut change in changes {
        scaling.extend(Autoscaler::read(&change));
        let kind = change.text("/kind").to_owned();
        let Some(at) = places.get(&identity(&change.value)).copied() else {
            if kind == "DaemonSet" {
                let title = change.title();
                lines.push(format!("+ {title}: a pod on every node that it may run on"));
            }
            added.push(change);
            continue;
        };
        let old = &documents[at];
        if makes_runs(old) {
            // The template of a Job cannot change, and the pods of its run are there.
            if kind != "Job" && shape(&old.value) != shape(&change.value) {
                let title = change.title();
                lines.push(format!("~ {title}: its template changes, from its next run on"));
            }
            continue;
        }
        carry_over(&old.value, &mut change.value);
        let differs = match kind.as_str() {
            "NodePool" => differ::<NodePool, _>(&old.value, &change.value, |one| one.spec),
            "AKSNodeClass" => differ::<AKSNodeClass, _>(&old.value, &change.value, |one| one.spec),
            _ => false,
        };
        if differs {
            let title = change.title();
            lines.push(format!(
                "~ {title} changes: `nap what-if` shows the nodes that are replaced for it"
            ));
        }
        if WORKLOADS.contains(&kind.as_str()) {
            changed.insert(at);
            if let Some(written) = keep_scaled(&before, old, &mut change) {
                unused.insert(at, written);
            }
        }
        documents[at] = change;
    }
    for (at, document) in documents.iter().enumerate() {
        if WORKLOADS.contains(&document.text("/kind"))
            && scaling.iter().any(|one| one.scales(document))
        {
            changed.insert(at);
        }
    }
    let all = documents.iter().chain(&added);
    let after: Vec<Autoscaler> = all.filter_map(Autoscaler::read).collect();
    let mut ended = BTreeSet::new();
    let mut notes = Vec::new();
    for at in changed {
        let (old, new) = (&live[at], &documents[at]);
        let (wanted_before, _) = wanted(&before, old, replicas);
        let (wanted_after, by) = wanted(&after, new, replicas);
        if let (Some(written), Some(by)) = (unused.get(&at), by)
            && *written != wanted_after
        {
            let pods = count(wanted_after, "pod");
            notes.push(format!(
                "{}: `replicas: {written}` makes no difference: {by} keeps it at {pods}",
                new.title()
            ));
        }
        let fewer = (wanted_after < wanted_before).then_some(wanted_after);
        end_pods(live, old, new, fewer, &mut ended, &mut lines);
    }
    documents.retain(|document| {
        let ends = document.text("/kind") == "Pod" && ended.contains(&pod_key(&document.value));
        !ends && !makes_runs(document)
    });
    documents.extend(added);
    Overlaid { documents, ended, lines, notes }
}

/// Whether two versions of an object differ in what they mean: old spellings, quantities and
/// fields that are left out count as a server reads them.
fn differ<K, S>(old: &Value, new: &Value, spec: fn(K) -> S) -> bool
where
    K: Serialize + DeserializeOwned,
    S: PartialEq,
{
    let read = |value: &Value| {
        let mut value = value.clone();
        normalise::manifest(&mut value);
        let object: K = serde_json::from_value(value).ok()?;
        // Empty lists mean the same as none.
        let plain = serde_json::to_value(object).ok()?;
        serde_json::from_value(plain).ok().map(spec)
    };
    match (read(old), read(new)) {
        (Some(old), Some(new)) => old != new,
        _ => old.get("spec") != new.get("spec"),
    }
}

/// The number of pods that is written for a workload.
fn written(workload: &Document) -> i64 {
    workload.value.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1)
}

/// Keeps the number of pods that the autoscalers of a cluster have come to: they would set it
/// again. Returns the number that is written instead.
fn keep_scaled(autoscalers: &[Autoscaler], old: &Document, new: &mut Document) -> Option<usize> {
    let (now, next) = (written(old), written(new));
    let holds = |one: &Autoscaler| one.scales(old) && one.acts_on(now) && one.acts_on(next);
    if !autoscalers.iter().any(holds) {
        return None;
    }
    new.value.pointer_mut("/spec")?.as_object_mut()?.insert("replicas".to_owned(), now.into());
    usize::try_from(next).ok()
}

/// The number of pods of a workload once its autoscalers have acted, and the last that does.
fn wanted<'a>(
    autoscalers: &'a [Autoscaler],
    workload: &Document,
    replicas: Replicas,
) -> (usize, Option<&'a str>) {
    let (mut pods, mut by) = (written(workload), None);
    for one in autoscalers.iter().filter(|one| one.scales(workload)) {
        if let Some((number, _)) = one.pods(pods, replicas) {
            (pods, by) = (number, Some(one.title()));
        }
    }
    (usize::try_from(pods).unwrap_or(0), by)
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

/// Ends the pods of a workload whose template changes, or those beyond `fewer`.
fn end_pods(
    live: &[Document],
    old: &Document,
    new: &Document,
    fewer: Option<usize>,
    ended: &mut BTreeSet<String>,
    lines: &mut Vec<String>,
) {
    let mut own: Vec<&Document> = pods_of(live, old);
    let title = new.title();
    if shape(&old.value) != shape(&new.value) {
        ended.extend(own.iter().map(|pod| pod_key(&pod.value)));
        match own.len() {
            // New nodes are planned with the new one.
            0 if new.text("/kind") == "DaemonSet" => {
                lines.push(format!("~ {title}: its template changes"));
            }
            0 => {}
            1 => lines.push(format!("~ {title}: its template changes, so 1 pod is replaced")),
            pods => {
                let line = format!("~ {title}: its template changes, so {pods} pods are replaced");
                lines.push(line);
            }
        }
        return;
    }
    let Some(wanted) = fewer.filter(|_| new.text("/kind") != "DaemonSet") else { return };
    let surplus = own.len().saturating_sub(wanted);
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
    let places = ["/spec", "/spec/jobTemplate/spec", "/spec/jobTargetRef"];
    let template = places.iter().find_map(|place| workload.pointer(place)?.get("template"));
    let template = template.cloned().unwrap_or_default();
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
