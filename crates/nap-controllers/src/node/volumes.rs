//! Detachment of volumes: an instance is deleted once the volumes of its drained pods are detached,
//! so that their successors need not wait for a forced detachment.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use nap_api::nodeclaim::condition::VOLUMES_DETACHED;
use nap_api::{NodeClaim, conditions};

use crate::cluster::{Index, claim_conditions, pods};
use crate::context::{Context, Doing, Error};
use crate::events::Severity;

/// Most attachments that an event names.
const MAX_NAMED: usize = 5;

/// Whether the instance of a drained Node need not be kept for its volumes any more: they are
/// detached, or the deadline has passed. Records it on the NodeClaim.
pub async fn are_detached(
    context: &Context,
    node: &Node,
    claim: &NodeClaim,
    deadline: Option<Timestamp>,
) -> Result<bool, Error> {
    let known = conditions::get(claim_conditions(claim), VOLUMES_DETACHED);
    if known.is_some_and(|condition| condition.status != "Unknown") {
        return Ok(true);
    }
    let name = claim.name_any();
    let attachments = attachments(context, &node.name_any()).await?;
    let now = context.clock.now();
    let waits_for = blocking(&context.index(), node, &attachments, now);
    let is_late = deadline.is_some_and(|deadline| deadline <= now);
    if waits_for.is_empty() {
        context.edit_claim_status(&name, |edit| edit.set_true(VOLUMES_DETACHED)).await?;
        return Ok(true);
    }
    if is_late {
        let reason = "TerminationGracePeriodElapsed";
        context
            .edit_claim_status(&name, |edit| edit.set_false(VOLUMES_DETACHED, reason, reason))
            .await?;
        return Ok(true);
    }
    let reason = "AwaitingVolumeDetachment";
    let shown: Vec<&str> = waits_for.iter().take(MAX_NAMED).map(String::as_str).collect();
    let more = waits_for.len().saturating_sub(MAX_NAMED);
    let tail = if more > 0 { format!(" and {more} other(s)") } else { String::new() };
    let message = format!("Awaiting deletion of VolumeAttachments {}{tail}", shown.join(", "));
    context.events.publish(node, Severity::Normal, reason, &message);
    context.edit_claim_status(&name, |edit| edit.set_unknown(VOLUMES_DETACHED, reason, "")).await?;
    Ok(false)
}

/// The VolumeAttachments of a Node. The API server cannot select them by node.
async fn attachments(context: &Context, node: &str) -> Result<Vec<VolumeAttachment>, Error> {
    let api: Api<VolumeAttachment> = Api::all(context.client.clone());
    let mut all = match api.list(&ListParams::default()).await {
        Ok(all) => all.items,
        Err(kube::Error::Api(status)) if status.code == 403 => {
            let hint = "grant list on volumeattachments.storage.k8s.io";
            tracing::warn!(node, hint, "not waiting for volumes to be detached");
            Vec::new()
        }
        Err(error) => return Err(error).doing("listing the VolumeAttachments of Node", node),
    };
    all.retain(|attachment| attachment.spec.node_name == node);
    Ok(all)
}

/// Names of the VolumeAttachments that termination waits for: those of PersistentVolumes that no
/// remaining pod uses. Pods that a drain leaves alone keep their volumes to the end.
fn blocking(
    index: &Index,
    node: &Node,
    attachments: &[VolumeAttachment],
    now: Timestamp,
) -> Vec<String> {
    let name = node.name_any();
    let left = index.pods_on(&name).filter(|pod| !pods::is_drainable(pod, now));
    let kept: BTreeSet<String> = left.flat_map(|pod| index.volume_names(pod)).collect();
    let blocks = |attachment: &&VolumeAttachment| {
        let volume = attachment.spec.source.persistent_volume_name.as_ref();
        volume.is_some_and(|volume| !kept.contains(volume))
    };
    attachments.iter().filter(blocks).map(ResourceExt::name_any).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, index, node, pod};
    use serde_json::{Value, json};

    fn attachment(name: &str, source: &Value) -> VolumeAttachment {
        let spec = json!({ "attacher": "disk.csi.azure.com", "nodeName": "n", "source": source });
        serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec })).unwrap()
    }

    #[test]
    fn volumes_of_pods_that_stay_and_inline_volumes_are_not_waited_for() {
        let mut index = index([]);
        let claim = json!({
            "metadata": { "name": "data", "namespace": "shop" }, "spec": { "volumeName": "pv-kept" },
        });
        let claim: k8s_openapi::api::core::v1::PersistentVolumeClaim =
            serde_json::from_value(claim).unwrap();
        index.apply(claim, at(0));
        let tolerant = json!({ "spec": {
            "nodeName": "n",
            "tolerations": [{ "operator": "Exists" }],
            "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "data" } }],
        } });
        index.apply(pod("shop", "agent", tolerant), at(0));
        let attachments = [
            attachment("kept", &json!({ "persistentVolumeName": "pv-kept" })),
            attachment("left", &json!({ "persistentVolumeName": "pv-left" })),
            attachment("inline", &json!({})),
        ];
        assert_eq!(blocking(&index, &node("n", json!({})), &attachments, at(0)), ["left"]);
    }
}
