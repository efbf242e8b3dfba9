//! Telling the scheduler what the plan was: as a node becomes usable, the pods that it was bought
//! for are nominated to it.
//!
//! kube-scheduler tries a nominated node first and keeps its room from other pods. Without that it
//! packs by its own rules, large pods find no room on the very nodes that were bought for them, and
//! a second machine is bought. A failed attempt takes a nomination away, so a pod is nominated when
//! its node becomes usable, not before, and again for as long as the plan holds.
//!
//! It also counts nominated pods as if they were there. Pods that must be spread would keep each
//! other away, if more of them were nominated to a node than may be ahead of other domains; so the
//! others have to wait until the first ones are bound.
//!
//! A node is opened when its nominations have been seen, and after those of the same plan that
//! should go first, if they come soon.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, Patch, PatchParams};
use kube::{Error, ResourceExt};
use nap_api::{NodeClaim, Taint, taints};
use nap_engine::PodKey;
use serde_json::json;

use crate::context::Context;
use crate::state::snapshot::planned_pods;
use crate::state::{is_ready, pods, readiness};
use crate::turn::Turn;

/// The longest that a node that is ready is kept closed for the sake of the plan.
const MAX_HOLDING: SignedDuration = SignedDuration::from_secs(20);

/// Why a node that is ready is kept closed for now.
pub struct Hold {
    pub reason: &'static str,
    pub message: &'static str,
    /// When to look again.
    pub again: Duration,
}

/// Whether the scheduler would put pods onto the node, but for the taint that nap takes off and
/// those that somebody else will.
pub fn is_up(node: &Node) -> bool {
    is_ready(node)
        && !taints_of(node).any(|taint| taint.key != taints::UNREGISTERED && taint.is_ephemeral())
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

/// Nominates the pods of a node that is ready and still closed. Returns why it should stay so for
/// now.
pub async fn prepare(context: &Context, claim: &NodeClaim, node: &Node) -> Option<Hold> {
    let name = node.name_any();
    // The kubelet's clock may be ahead.
    let is_new = |since| context.clock.now().duration_since(since).abs() < MAX_HOLDING;
    let ready = readiness(node).and_then(|ready| ready.last_transition_time.as_ref());
    let may_hold = ready.is_some_and(|since| is_new(since.0));
    if may_hold && others_go_first(context, claim) {
        return Some(Hold {
            reason: "NodeWaitsForTurn",
            message: "Node is ready; others of the same plan go first, so that its pods find their places",
            again: Duration::from_secs(1),
        });
    }
    let chosen = chosen(context, claim);
    let seen = is_nominated(context, &chosen, &name);
    // If the scheduler is just trying one of them in vain, it takes the nomination away.
    let accepted = nominate_all(context, &chosen, &name).await;
    (may_hold && !seen && accepted).then_some(Hold {
        reason: "NodeWaitsForNominations",
        message: "Node is ready; the scheduler is told which pods it is for",
        again: Duration::from_millis(50),
    })
}

/// Whether pods wait for nodes of the same plan that should be opened before.
fn others_go_first(context: &Context, claim: &NodeClaim) -> bool {
    let Some(turn) = Turn::read(claim).filter(|_| !waiting(context, claim).is_empty()) else {
        return false;
    };
    let precedes = |other: &&Arc<NodeClaim>| {
        other.metadata.deletion_timestamp.is_none()
            && Turn::read(other).is_some_and(|other| other.precedes(&turn))
    };
    let first: Vec<_> = context.state().claims.values().filter(precedes).cloned().collect();
    first.iter().any(|other| !waiting(context, other).is_empty())
}

fn is_nominated(context: &Context, pods: &[PodKey], node: &str) -> bool {
    let state = context.state();
    let is = |key: &PodKey| {
        state.pods.get(key).is_none_or(|pod| pods::nominated_node(pod) == Some(node))
    };
    pods.iter().all(is)
}

/// Nominates the pods that the claim was made for and that still wait, also those that are
/// nominated as far as is known: the scheduler may just have taken a nomination away. Returns
/// whether any wait.
pub async fn nominate(context: &Context, claim: &NodeClaim, node: &str) -> bool {
    nominate_all(context, &chosen(context, claim), node).await;
    !waiting(context, claim).is_empty()
}

/// Returns whether nap may do it.
async fn nominate_all(context: &Context, pods: &[PodKey], node: &str) -> bool {
    let accepted = join_all(pods.iter().map(|key| nominate_one(context, key, node))).await;
    accepted.into_iter().all(|accepted| accepted)
}

/// The pods that the claim was made for, that still wait, and that may be nominated together.
fn chosen(context: &Context, claim: &NodeClaim) -> Vec<PodKey> {
    let waiting = waiting(context, claim);
    let state = context.state();
    let known = waiting.iter().filter_map(|key| state.pods.get(key));
    together(known.map(|pod| state.engine_pod(pod)))
}

/// As many of the pods as may be nominated to one node together.
fn together(pods: impl IntoIterator<Item = nap_engine::Pod>) -> Vec<PodKey> {
    let mut chosen: Vec<nap_engine::Pod> = Vec::new();
    for pod in pods {
        chosen.push(pod);
        let is_kept = |pod: &nap_engine::Pod| {
            pod.spread.iter().all(|spread| {
                let same = |other: &&nap_engine::Pod| other.key.parts().0 == pod.key.parts().0;
                let counted = chosen
                    .iter()
                    .filter(same)
                    .filter(|other| spread.selector.matches(&other.labels));
                counted.count() <= usize::try_from(spread.max_skew).unwrap_or(usize::MAX)
            })
        };
        if !chosen.iter().all(is_kept) {
            chosen.pop();
        }
    }
    chosen.into_iter().map(|pod| pod.key).collect()
}

/// Returns whether nap may do it.
async fn nominate_one(context: &Context, key: &PodKey, node: &str) -> bool {
    let (namespace, name) = key.parts();
    let api: Api<Pod> = Api::namespaced(context.client.clone(), namespace);
    let patch = Patch::Merge(json!({ "status": { "nominatedNodeName": node } }));
    match api.patch_status(name, &PatchParams::default(), &patch).await {
        Ok(pod) => {
            tracing::debug!(pod = pod.name_any(), node, "nominated");
            true
        }
        // Gone, or bound in the meantime: its place is free.
        Err(Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => true,
        // The plan is only less likely to be realised as it was made.
        Err(error) => {
            tracing::warn!(pod = name, node, %error, "could not nominate; may nap patch pods/status?");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use nap_engine::{Selector, Spread};

    use super::*;

    #[test]
    fn pods_that_must_be_spread_are_nominated_by_turns() {
        let pod = |name: &str, app: &str, skews: &[u32]| {
            let spread = |max_skew: &u32| Spread {
                topology_key: "zone".to_owned(),
                max_skew: *max_skew,
                min_domains: None,
                selector: Selector::label("app", "web"),
                honor_affinity: true,
                honor_taints: false,
            };
            nap_engine::Pod {
                key: PodKey::new("shop", name),
                labels: BTreeMap::from([("app".to_owned(), app.to_owned())]),
                spread: skews.iter().map(spread).collect(),
                ..nap_engine::Pod::default()
            }
        };
        let chosen = |pods: Vec<nap_engine::Pod>| -> Vec<String> {
            together(pods).iter().map(|key| key.parts().1.to_owned()).collect()
        };
        let web = |skews: &[u32]| {
            (0..3).map(|number| pod(&format!("web-{number}"), "web", skews)).collect::<Vec<_>>()
        };
        assert_eq!(chosen(web(&[])), ["web-0", "web-1", "web-2"]);
        assert_eq!(chosen(web(&[2])), ["web-0", "web-1"]);
        let mut all = web(&[1]);
        all.push(pod("other", "other", &[]));
        assert_eq!(chosen(all), ["web-0", "other"], "who is not counted does not wait");
        let mut counted = vec![pod("counted", "web", &[])];
        counted.extend(web(&[1]));
        assert_eq!(chosen(counted), ["counted"], "who is counted takes a turn too");
    }
}
