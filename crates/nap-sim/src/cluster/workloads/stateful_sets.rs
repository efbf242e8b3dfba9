//! The StatefulSet controller: pods with stable names and claims, started, updated and stopped in
//! the order of their ordinals.
//!
//! Left out: ControllerRevisions. A pod below the `partition` of an update that is recreated gets
//! the new template.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec, StatefulSetStatus};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{count, hash, owner};
use crate::cluster::index::Index;
use crate::cluster::pods;
use crate::cluster::write::Writer;

const COMPONENT: &str = "statefulset-controller";
const HASH_LABEL: &str = "controller-revision-hash";
const NAME_LABEL: &str = "statefulset.kubernetes.io/pod-name";
const INDEX_LABEL: &str = "apps.kubernetes.io/pod-index";

pub(super) async fn reconcile(set: &Arc<StatefulSet>, index: &mut Index, writer: &mut Writer) {
    if set.metadata.deletion_timestamp.is_some() {
        return;
    }
    let (Some(uid), Some(spec)) = (set.uid(), set.spec.as_ref()) else { return };
    let template = serde_json::to_value(&spec.template).unwrap_or_default();
    let revision = format!("{}-{}", set.name_any(), hash(&template));
    let first = spec.ordinals.as_ref().and_then(|ordinals| ordinals.start).unwrap_or(0);
    let wanted = first..first.saturating_add(spec.replicas.unwrap_or(1));
    let parallel = spec.pod_management_policy.as_deref() == Some("Parallel");

    let mut settled = true;
    for ordinal in wanted.clone() {
        let held = index.pods.get(&pod_key(set, ordinal)).cloned();
        let held = held.filter(|pod| pods::is_managed_by(&**pod, &uid));
        match &held {
            Some(pod) if pods::is_finished(pod) && !pods::is_deleting(pod) => {
                writer.delete_for(&**set, COMPONENT, &mut index.pods, pod).await;
                settled = false;
            }
            Some(pod) => settled &= pods::is_ready(pod) && !pods::is_deleting(pod),
            None => {
                claims(set, spec, ordinal, index, writer).await;
                let pod = pod(set, spec, &template, &revision, ordinal);
                let created = writer.create_for(&**set, COMPONENT, &mut index.pods, &pod);
                // Tried again later.
                let _ = created.await;
                settled = false;
            }
        }
        if !settled && !parallel {
            break;
        }
    }
    let surplus = with_ordinals(set, &uid, index);
    let surplus: Vec<_> =
        surplus.iter().filter(|(ordinal, _)| !wanted.contains(*ordinal)).collect();
    for (_, pod) in surplus.iter().rev() {
        if pods::is_deleting(pod) {
            if parallel {
                continue;
            }
            break;
        }
        // The ones that stay must be ready, unless all may go at once.
        if !parallel && !settled {
            break;
        }
        writer.delete_for(&**set, COMPONENT, &mut index.pods, pod).await;
        if !parallel {
            break;
        }
    }
    if settled && surplus.is_empty() {
        update_one(set, spec, &uid, &revision, index, writer).await;
    }
    release_claims(set, spec, &wanted, index, writer).await;
    update_status(set, &uid, &revision, index, writer).await;
}

fn pod_key(set: &StatefulSet, ordinal: i32) -> (String, String) {
    (set.namespace().unwrap_or_default(), format!("{}-{ordinal}", set.name_any()))
}

/// The pods of the set by ordinal.
fn with_ordinals(set: &StatefulSet, uid: &str, index: &Index) -> BTreeMap<i32, Arc<Pod>> {
    let prefix = format!("{}-", set.name_any());
    let ordinal = |pod: &Pod| pod.name_any().strip_prefix(&prefix)?.parse().ok();
    index.pods.managed_by(uid).filter_map(|pod| Some((ordinal(pod)?, Arc::clone(pod)))).collect()
}

fn claim_name(template: &PersistentVolumeClaim, set: &StatefulSet, ordinal: i32) -> String {
    format!("{}-{}-{ordinal}", template.name_any(), set.name_any())
}

/// Whether claims go with what `when` names: `whenDeleted` or `whenScaled`.
fn claims_go(spec: &StatefulSetSpec, when_deleted: bool) -> bool {
    let policy = spec.persistent_volume_claim_retention_policy.as_ref();
    let policy = policy.and_then(|policy| {
        if when_deleted { policy.when_deleted.as_deref() } else { policy.when_scaled.as_deref() }
    });
    policy == Some("Delete")
}

/// Creates the claims of a pod that do not exist yet.
async fn claims(
    set: &StatefulSet,
    spec: &StatefulSetSpec,
    ordinal: i32,
    index: &mut Index,
    writer: &mut Writer,
) {
    let namespace = set.namespace().unwrap_or_default();
    for template in spec.volume_claim_templates.iter().flatten() {
        let name = claim_name(template, set, ordinal);
        if index.claims.get(&(namespace.clone(), name.clone())).is_some() {
            continue;
        }
        let mut claim = serde_json::to_value(template).unwrap_or_default();
        claim["metadata"]["name"] = json!(name);
        for (key, value) in spec.selector.match_labels.iter().flatten() {
            claim["metadata"]["labels"][key] = json!(value);
        }
        if claims_go(spec, true) {
            claim["metadata"]["ownerReferences"] = owner(set);
        }
        if let Some(claim) = claim.as_object_mut() {
            claim.remove("status");
        }
        let _ = writer.create_for(set, COMPONENT, &mut index.claims, &claim).await;
    }
}

/// Deletes the claims of ordinals that were scaled away, where the policy says so.
async fn release_claims(
    set: &StatefulSet,
    spec: &StatefulSetSpec,
    wanted: &std::ops::Range<i32>,
    index: &mut Index,
    writer: &mut Writer,
) {
    if !claims_go(spec, false) {
        return;
    }
    let namespace = set.namespace().unwrap_or_default();
    for template in spec.volume_claim_templates.iter().flatten() {
        let prefix = format!("{}-{}-", template.name_any(), set.name_any());
        for claim in index.claims.snapshot() {
            let name = claim.name_any();
            let ordinal = name.strip_prefix(&prefix).and_then(|text| text.parse::<i32>().ok());
            let Some(ordinal) = ordinal.filter(|ordinal| !wanted.contains(ordinal)) else {
                continue;
            };
            let ours = claim.namespace().unwrap_or_default() == namespace;
            let unused = index.pods.get(&pod_key(set, ordinal)).is_none();
            if ours && unused && claim.metadata.deletion_timestamp.is_none() {
                writer.delete(&mut index.claims, &*claim, None).await;
            }
        }
    }
}

fn pod(
    set: &StatefulSet,
    spec: &StatefulSetSpec,
    template: &Value,
    revision: &str,
    ordinal: i32,
) -> Value {
    let name = format!("{}-{ordinal}", set.name_any());
    let mut labels = template["metadata"]["labels"].clone();
    labels[NAME_LABEL] = json!(name);
    labels[INDEX_LABEL] = json!(ordinal.to_string());
    labels[HASH_LABEL] = json!(revision);
    let mut pod_spec = template["spec"].clone();
    pod_spec["hostname"] = json!(name);
    pod_spec["subdomain"] = json!(spec.service_name);
    let templates = spec.volume_claim_templates.as_deref().unwrap_or_default();
    let claimed = |volume: &Value| {
        templates.iter().any(|template| volume["name"] == json!(template.name_any()))
    };
    let mut volumes: Vec<Value> = pod_spec["volumes"].as_array().cloned().unwrap_or_default();
    volumes.retain(|volume| !claimed(volume));
    volumes.extend(templates.iter().map(|template| {
        let claim = claim_name(template, set, ordinal);
        json!({ "name": template.name_any(), "persistentVolumeClaim": { "claimName": claim } })
    }));
    if !volumes.is_empty() {
        pod_spec["volumes"] = json!(volumes);
    }
    json!({
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": template["metadata"]["annotations"],
            "ownerReferences": owner(set),
        },
        "spec": pod_spec,
    })
}

/// Replaces the outdated pod with the highest ordinal; all others are ready.
async fn update_one(
    set: &StatefulSet,
    spec: &StatefulSetSpec,
    uid: &str,
    revision: &str,
    index: &mut Index,
    writer: &mut Writer,
) {
    let strategy = spec.update_strategy.as_ref();
    if strategy.and_then(|strategy| strategy.type_.as_deref()) == Some("OnDelete") {
        return;
    }
    let partition = strategy
        .and_then(|strategy| strategy.rolling_update.as_ref())
        .and_then(|rolling| rolling.partition)
        .unwrap_or(0);
    let pods = with_ordinals(set, uid, index);
    let outdated = pods.iter().rev().find(|(ordinal, pod)| {
        **ordinal >= partition && pod.labels().get(HASH_LABEL).is_none_or(|held| held != revision)
    });
    if let Some((_, pod)) = outdated {
        writer.delete_for(set, COMPONENT, &mut index.pods, pod).await;
    }
}

async fn update_status(
    set: &StatefulSet,
    uid: &str,
    revision: &str,
    index: &mut Index,
    writer: &mut Writer,
) {
    let owned: Vec<_> = index.pods.managed_by(uid).filter(|pod| !pods::is_finished(pod)).collect();
    let ready = owned.iter().filter(|pod| pods::is_ready(pod) && !pods::is_deleting(pod)).count();
    let updated = owned
        .iter()
        .filter(|pod| pod.labels().get(HASH_LABEL).is_some_and(|held| held == revision))
        .count();
    let old = set.status.clone().unwrap_or_default();
    // An update has ended when no pod of another revision is left.
    let current = old.current_revision.filter(|_| updated < owned.len());
    let current = current.unwrap_or_else(|| revision.to_owned());
    let on_current = owned
        .iter()
        .filter(|pod| pod.labels().get(HASH_LABEL).is_some_and(|held| *held == current))
        .count();
    let status = StatefulSetStatus {
        replicas: count(owned.len()),
        ready_replicas: Some(count(ready)),
        available_replicas: Some(count(ready)),
        current_replicas: Some(count(on_current)),
        updated_replicas: Some(count(updated)),
        current_revision: Some(current),
        update_revision: Some(revision.to_owned()),
        observed_generation: set.metadata.generation,
        collision_count: Some(0),
        ..StatefulSetStatus::default()
    };
    if set.status.as_ref() != Some(&status) {
        let mut set = set.clone();
        set.status = Some(status);
        writer.replace_status(&mut index.stateful_sets, &set).await;
    }
}
