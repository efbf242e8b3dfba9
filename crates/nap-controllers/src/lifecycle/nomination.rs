//! Telling the scheduler what the plan was: as a node becomes usable, the pods that it was bought for are nominated to it.
//!
//! kube-scheduler tries a nominated node first and keeps its room from other pods. Without that it packs by its own rules, large pods find
//! no room on the very nodes that were bought for them, and a second machine is bought. A failed attempt takes a nomination away, so a pod is
//! nominated when its node becomes usable, not before, and again for as long as the plan holds.

use futures::future::join_all;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, Patch, PatchParams};
use kube::{Error, ResourceExt};
use nap_api::{NodeClaim, Taint, taints};
use nap_engine::PodKey;
use serde_json::json;

use crate::context::Context;
use crate::state::snapshot::planned_pods;
use crate::state::{is_ready, pods};

/// Whether the scheduler would put pods onto the node, but for the taint that nap takes off and those that somebody else will.
pub fn is_up(node: &Node) -> bool {
    is_ready(node) && !taints_of(node).any(|taint| taint.key != taints::UNREGISTERED && taint.is_ephemeral())
}

fn taints_of(node: &Node) -> impl Iterator<Item = Taint> + '_ {
    node.spec.as_ref().and_then(|spec| spec.taints.as_ref()).into_iter().flatten().map(Taint::from)
}

/// The pods that the claim was made for and that still wait.
pub fn waiting(context: &Context, claim: &NodeClaim) -> Vec<PodKey> {
    let state = context.state();
    let waits = |key: &PodKey| state.pods.get(key).is_some_and(|pod| pods::is_provisionable(pod));
    planned_pods(claim).into_iter().filter(waits).collect()
}

/// Nominates the pods that the claim was made for and that still wait, also those that are nominated as far as is known: the scheduler may just
/// have taken a nomination away. Returns whether any wait.
pub async fn nominate(context: &Context, claim: &NodeClaim, node: &str) -> bool {
    let waiting = waiting(context, claim);
    join_all(waiting.iter().map(|key| nominate_one(context, key, node))).await;
    !waiting.is_empty()
}

async fn nominate_one(context: &Context, key: &PodKey, node: &str) {
    let (namespace, name) = key.parts();
    let api: Api<Pod> = Api::namespaced(context.client.clone(), namespace);
    let patch = Patch::Merge(json!({ "status": { "nominatedNodeName": node } }));
    match api.patch_status(name, &PatchParams::default(), &patch).await {
        Ok(pod) => tracing::debug!(pod = pod.name_any(), node, "nominated"),
        // Gone, or bound in the meantime: its place is free.
        Err(Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => {}
        // The plan is only less likely to be realised as it was made.
        Err(error) => {
            tracing::warn!(pod = name, node, %error, "could not nominate; may nap patch pods/status?");
        }
    }
}
