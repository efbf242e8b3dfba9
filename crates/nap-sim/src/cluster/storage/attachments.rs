//! The attach/detach controller: a disk is attached to the node of a pod that uses it, and detached
//! when the last such pod is gone.

use std::collections::BTreeSet;
use std::hash::Hasher as _;

use fnv::FnvHasher;
use kube::ResourceExt;
use serde_json::json;

use super::{attachable, bound_volume, claims_of};
use crate::cluster::index::Index;
use crate::cluster::pods;
use crate::cluster::write::Writer;

pub(super) async fn pass(index: &mut Index, writer: &mut Writer) {
    if index.claims.values().next().is_none() && index.attachments.values().next().is_none() {
        return;
    }
    // Pairs of volume and node.
    let mut wanted: BTreeSet<(String, String)> = BTreeSet::new();
    for pod in index.pods.values() {
        let node = pods::node_of(pod);
        if node.is_empty() || pods::is_finished(pod) {
            continue;
        }
        for claim in claims_of(pod) {
            let volume = index.claims.get(&claim).and_then(|claim| bound_volume(claim, index));
            if let Some(volume) = volume.filter(|volume| attachable(volume).is_some()) {
                wanted.insert((volume.name_any(), node.to_owned()));
            }
        }
    }
    for held in index.attachments.snapshot() {
        let volume = held.spec.source.persistent_volume_name.clone().unwrap_or_default();
        let known = wanted.remove(&(volume, held.spec.node_name.clone()));
        // An attachment of another driver is not ours.
        if !known && held.spec.attacher == super::DISK {
            writer.delete(&mut index.attachments, &*held, None).await;
        }
    }
    for (volume, node) in wanted {
        let mut hasher = FnvHasher::default();
        hasher.write(volume.as_bytes());
        hasher.write(node.as_bytes());
        let name = format!("csi-{:016x}", hasher.finish());
        let attachment = json!({
            "metadata": { "name": name },
            "spec": {
                "attacher": super::DISK, "nodeName": node,
                "source": { "persistentVolumeName": volume },
            },
        });
        if writer.create(&mut index.attachments, "", &attachment).await {
            let of = (String::new(), name);
            writer.patch_status(&mut index.attachments, &of, &json!({ "attached": true })).await;
        }
    }
}
