//! Claims and volumes: binding, provisioning, protection of what is in use, and reclaiming.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use nap_units::Quantity;
use serde_json::json;

use super::{
    SELECTED_NODE, bound_volume, claims_of, class_of, is_served, provision, waits_for_consumer,
    without_finalizer,
};
use crate::cluster::index::{Index, Key, key};
use crate::cluster::pods;
use crate::cluster::workloads::owner;
use crate::cluster::write::Writer;

const COMPONENT: &str = "persistentvolume-controller";
const CLAIM_PROTECTION: &str = "kubernetes.io/pvc-protection";
const VOLUME_PROTECTION: &str = "kubernetes.io/pv-protection";

pub(super) async fn pass(index: &mut Index, writer: &mut Writer) {
    create_ephemeral(index, writer).await;
    if index.claims.values().next().is_none() && index.volumes.values().next().is_none() {
        return;
    }
    let used: BTreeSet<Key> = index
        .pods
        .values()
        .filter(|pod| !pods::is_finished(pod))
        .flat_map(|pod| claims_of(pod))
        .collect();
    for claim in index.claims.snapshot() {
        if claim.metadata.deletion_timestamp.is_some() {
            let patch = without_finalizer(&*claim, CLAIM_PROTECTION);
            if let Some(patch) = patch.filter(|_| !used.contains(&key(&*claim))) {
                writer.patch(&mut index.claims, &key(&*claim), &patch).await;
            }
        } else if bound_volume(&claim, index).is_none() {
            reconcile(&claim, index, writer).await;
        }
    }
    for volume in index.volumes.snapshot() {
        reclaim(&volume, index, writer).await;
    }
}

/// Creates the claims of ephemeral volumes; each belongs to its pod.
async fn create_ephemeral(index: &mut Index, writer: &mut Writer) {
    let wanted: Vec<_> = index
        .pods
        .values()
        .filter(|pod| !pods::is_deleting(pod) && !pods::is_finished(pod))
        .flat_map(|pod| {
            let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
            volumes.filter_map(|volume| {
                let template = volume.ephemeral.as_ref()?.volume_claim_template.as_ref()?;
                let name = format!("{}-{}", pod.name_any(), volume.name);
                let known = index.claims.get(&(pod.namespace().unwrap_or_default(), name.clone()));
                known.is_none().then(|| (Arc::clone(pod), name, template.clone()))
            })
        })
        .collect();
    for (pod, name, template) in wanted {
        let mut claim = json!({ "metadata": template.metadata, "spec": template.spec });
        claim["metadata"]["name"] = json!(name);
        claim["metadata"]["ownerReferences"] = owner(&*pod);
        let _ = writer.create_for(&*pod, "ephemeral_volume", &mut index.claims, &claim).await;
    }
}

async fn reconcile(claim: &PersistentVolumeClaim, index: &mut Index, writer: &mut Writer) {
    if let Some(volume) = matching(claim, index) {
        bind(claim, &volume, index, writer).await;
        return;
    }
    let Some(class) = class_of(claim, index).cloned() else {
        let named = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
        let (kind, reason, message) = match named.unwrap_or_default() {
            "" => (
                "Normal",
                "FailedBinding",
                "no persistent volumes available for this claim and no storage class is set"
                    .to_owned(),
            ),
            name => {
                let message = format!("storageclass.storage.k8s.io {name:?} not found");
                ("Warning", "ProvisioningFailed", message)
            }
        };
        writer.event_once(claim, COMPONENT, kind, reason, &message).await;
        return;
    };
    if waits_for_consumer(&class) && !claim.annotations().contains_key(SELECTED_NODE) {
        let message = "waiting for first consumer to be created before binding";
        writer.event_once(claim, COMPONENT, "Normal", "WaitForFirstConsumer", message).await;
    } else if is_served(&class) {
        provision_for(claim, index, writer).await;
    } else {
        let message = format!(
            "Waiting for a volume to be created either by the external provisioner '{}' or manually \
             by the system administrator.",
            class.provisioner
        );
        writer.event_once(claim, COMPONENT, "Normal", "ExternalProvisioning", &message).await;
    }
}

/// Creates the volume of a claim, in the zone of the selected node, and binds it.
pub(in crate::cluster) async fn provision_for(
    claim: &PersistentVolumeClaim,
    index: &mut Index,
    writer: &mut Writer,
) {
    let Some(class) = class_of(claim, index).cloned() else { return };
    let node = claim.annotations().get(SELECTED_NODE).cloned().unwrap_or_default();
    let node = index.nodes.get(&(String::new(), node)).cloned();
    let volume = provision::volume(claim, &class, node.as_deref());
    let name = volume["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    if !writer.create(&mut index.volumes, "", &volume).await {
        return;
    }
    let message = format!("Successfully provisioned volume {name}");
    writer.event(claim, &class.provisioner, "Normal", "ProvisioningSucceeded", &message).await;
    if let Some(volume) = index.volumes.get(&(String::new(), name)).cloned() {
        bind(claim, &volume, index, writer).await;
    }
}

/// A volume that exists and suits a claim: the one that it names, one that is reserved for it, or
/// the smallest that is free.
fn matching(claim: &PersistentVolumeClaim, index: &Index) -> Option<Arc<PersistentVolume>> {
    let spec = claim.spec.as_ref()?;
    let reserved = |volume: &&Arc<PersistentVolume>| {
        let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        reference.is_some_and(|reference| {
            reference.name == claim.metadata.name
                && reference.namespace == claim.metadata.namespace
                && (reference.uid.is_none() || reference.uid == claim.metadata.uid)
        })
    };
    let free = |volume: &&Arc<PersistentVolume>| {
        volume.metadata.deletion_timestamp.is_none()
            && volume.spec.as_ref().is_some_and(|spec| spec.claim_ref.is_none())
    };
    if let Some(name) = spec.volume_name.clone().filter(|name| !name.is_empty()) {
        let named = index.volumes.get(&(String::new(), name));
        return named.filter(|volume| reserved(volume) || free(volume)).cloned();
    }
    if let Some(volume) = index.volumes.values().find(reserved) {
        return Some(Arc::clone(volume));
    }
    // A claim that waits for its consumer is bound by the scheduler, which knows the node.
    let waits = class_of(claim, index).is_some_and(|class| waits_for_consumer(class));
    if waits && !claim.annotations().contains_key(SELECTED_NODE) {
        return None;
    }
    let wanted = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    let wanted: Quantity = wanted.and_then(|list| list.get("storage"))?.0.parse().ok()?;
    let size = |volume: &PersistentVolume| -> Option<Quantity> {
        volume.spec.as_ref()?.capacity.as_ref()?.get("storage")?.0.parse().ok()
    };
    let suits = |volume: &&Arc<PersistentVolume>| {
        let Some(held) = volume.spec.as_ref() else { return false };
        let class = |name: Option<&String>| name.cloned().unwrap_or_default();
        let modes = held.access_modes.as_deref().unwrap_or_default();
        class(held.storage_class_name.as_ref()) == class(spec.storage_class_name.as_ref())
            && spec.access_modes.iter().flatten().all(|mode| modes.contains(mode))
            && spec.volume_mode == held.volume_mode
            && size(volume).is_some_and(|size| size >= wanted)
            && spec
                .selector
                .as_ref()
                .is_none_or(|selector| pods::selects(selector, volume.labels()))
    };
    let found = index.volumes.values().filter(free).filter(suits);
    found.min_by_key(|volume| (size(volume), volume.name_any())).cloned()
}

async fn bind(
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
    index: &mut Index,
    writer: &mut Writer,
) {
    let (claim_key, volume_key) = (key(claim), key(volume));
    let held = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    if held.is_none_or(|held| held.uid != claim.metadata.uid) {
        let patch = json!({ "spec": { "claimRef": provision::reference(claim) } });
        if !writer.patch(&mut index.volumes, &volume_key, &patch).await {
            return;
        }
    }
    writer.patch_status(&mut index.volumes, &volume_key, &json!({ "phase": "Bound" })).await;
    let patch = json!({
        "metadata": { "annotations": { "pv.kubernetes.io/bind-completed": "yes" } },
        "spec": { "volumeName": volume_key.1 },
    });
    if !writer.patch(&mut index.claims, &claim_key, &patch).await {
        return;
    }
    let spec = volume.spec.clone().unwrap_or_default();
    let status = json!({
        "phase": "Bound", "accessModes": spec.access_modes, "capacity": spec.capacity,
    });
    writer.patch_status(&mut index.claims, &claim_key, &status).await;
}

/// Keeps the phase of a volume, and deletes it when its claim is gone and the policy says so.
async fn reclaim(volume: &PersistentVolume, index: &mut Index, writer: &mut Writer) {
    let of = key(volume);
    let Some(spec) = volume.spec.as_ref() else { return };
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    let owner = spec.claim_ref.as_ref().filter(|reference| reference.uid.is_some());
    let claimed = owner.is_some_and(|reference| {
        let key = (
            reference.namespace.clone().unwrap_or_default(),
            reference.name.clone().unwrap_or_default(),
        );
        index.claims.get(&key).is_some_and(|claim| claim.uid() == reference.uid)
    });
    if volume.metadata.deletion_timestamp.is_some() {
        let patch = without_finalizer(volume, VOLUME_PROTECTION);
        if let Some(patch) = patch.filter(|_| !claimed) {
            writer.patch(&mut index.volumes, &of, &patch).await;
        }
        return;
    }
    let wanted = match owner {
        None => "Available",
        Some(_) if claimed => return,
        Some(_) if spec.persistent_volume_reclaim_policy.as_deref() == Some("Delete") => {
            let attached = index
                .attachments
                .values()
                .any(|held| held.spec.source.persistent_volume_name.as_ref() == Some(&of.1));
            if !attached {
                writer.delete(&mut index.volumes, volume, None).await;
            }
            return;
        }
        Some(_) => "Released",
    };
    if phase != Some(wanted) {
        writer.patch_status(&mut index.volumes, &of, &json!({ "phase": wanted })).await;
    }
}
