//! Storage: claims are bound to volumes, volumes are provisioned as Azure's CSI drivers do it,
//! attached to nodes and reclaimed.
//!
//! ```text
//! scheduler ── selected node ──► claim ──► provision ──► volume ──► bind ──► attachment
//! ```
//!
//! A disk is there at once and attached at once; a real one takes some seconds for each.

mod attachments;
mod claims;
mod csi_nodes;
mod provision;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;

pub(super) use claims::provision_for;
pub use provision::storage_classes;

use super::index::{Index, Key, Reader};
use super::write::Writer;

/// CSI driver of Azure disks.
pub(super) const DISK: &str = "disk.csi.azure.com";
/// CSI driver of Azure Files.
const FILE: &str = "file.csi.azure.com";
/// Zone of a node, as the driver of Azure disks reports it.
const DISK_ZONE: &str = "topology.disk.csi.azure.com/zone";
/// Annotation of the claim by which the scheduler names the node of the first consumer.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// Reconciles claims, volumes and attachments, if something has changed for one of them.
pub(super) async fn pass(index: &mut Index, writer: &mut Writer, all: bool) {
    const READER: Reader = Reader::Storage;
    let mut nodes: BTreeSet<Key> =
        index.nodes.changes(READER).iter().map(|change| change.key.clone()).collect();
    if all {
        nodes.extend(index.nodes.keys().cloned());
    }
    csi_nodes::pass(nodes, index, writer).await;
    let claimants = index.pods.changes(READER);
    let changed = [
        all,
        claimants.iter().flat_map(|change| change.versions()).any(|pod| uses_claims(pod)),
        !index.claims.changes(READER).is_empty(),
        !index.volumes.changes(READER).is_empty(),
        !index.attachments.changes(READER).is_empty(),
        !index.storage_classes.changes(READER).is_empty(),
    ];
    if changed.contains(&true) {
        claims::pass(index, writer).await;
        attachments::pass(index, writer).await;
    }
}

/// Whether a pod has volumes with claims.
pub(super) fn uses_claims(pod: &Pod) -> bool {
    let mut volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.any(|volume| volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some())
}

/// Names of the claims that a pod uses.
pub(super) fn claims_of(pod: &Pod) -> Vec<Key> {
    let namespace = pod.namespace().unwrap_or_default();
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let names = volumes.filter_map(|volume| match &volume.persistent_volume_claim {
        Some(claim) => Some(claim.claim_name.clone()),
        None => volume.ephemeral.as_ref().map(|_| format!("{}-{}", pod.name_any(), volume.name)),
    });
    names.map(|name| (namespace.clone(), name)).collect()
}

/// The volume that a claim is bound to; `None` while it is unbound.
pub(super) fn bound_volume<'a>(
    claim: &PersistentVolumeClaim,
    index: &'a Index,
) -> Option<&'a Arc<PersistentVolume>> {
    let spec = claim.spec.as_ref()?;
    let name = spec.volume_name.clone().filter(|name| !name.is_empty())?;
    let bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
    index.volumes.get(&(String::new(), name)).filter(|_| bound)
}

/// The StorageClass of a claim.
pub(super) fn class_of<'a>(
    claim: &PersistentVolumeClaim,
    index: &'a Index,
) -> Option<&'a Arc<StorageClass>> {
    let name = claim.spec.as_ref()?.storage_class_name.clone()?;
    index.storage_classes.get(&(String::new(), name))
}

pub(super) fn waits_for_consumer(class: &StorageClass) -> bool {
    class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
}

/// Whether the drivers of this cluster serve a StorageClass.
pub(super) fn is_served(class: &StorageClass) -> bool {
    matches!(class.provisioner.as_str(), DISK | FILE)
}

/// Driver and handle of a volume that must be attached to its node; `None` for others.
pub(super) fn attachable(volume: &PersistentVolume) -> Option<(String, String)> {
    let csi = volume.spec.as_ref()?.csi.as_ref()?;
    (csi.driver == DISK).then(|| (csi.driver.clone(), csi.volume_handle.clone()))
}

/// A patch that removes one finalizer.
fn without_finalizer(object: &impl ResourceExt, finalizer: &str) -> Option<Value> {
    let held = object.finalizers();
    held.iter().any(|one| one == finalizer).then(|| {
        let kept: Vec<&String> = held.iter().filter(|one| *one != finalizer).collect();
        serde_json::json!({ "metadata": { "uid": object.uid(), "finalizers": kept } })
    })
}
