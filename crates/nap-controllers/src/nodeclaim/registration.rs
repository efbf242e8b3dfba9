//! Registration: the Node of a NodeClaim gets its labels, taints and finalizer, and is opened to
//! pods.
//!
//! A Node that joins is held closed until it is ready and its planned pods are nominated to it, so
//! that kube-scheduler binds the pods as planned.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};
use nap_api::nodeclaim::condition::REGISTERED;
use nap_api::{Effect, NodeClaim, Taint, conditions, labels, taints};

use super::{Step, live_claim, nomination, registration_health, time_left};
use crate::cluster::{Index, claim_conditions, claim_is, pool_of, provider_id_of_claim};
use crate::context::{Context, Error};
use crate::events::Severity;
use crate::metrics::catalogue::NODES_CREATED;
use crate::metrics::{Disrupted, label};
use crate::patch::add_finalizer;

/// Time after which a NodeClaim whose Node has not joined is deleted.
const REGISTRATION_TIMEOUT: SignedDuration = SignedDuration::from_mins(15);
/// Longest time that a Node that is not ready is held closed: a pod that makes it ready may not
/// tolerate the unregistered taint.
const MAX_READINESS_HOLD: SignedDuration = SignedDuration::from_mins(1);
/// Interval between two looks, besides every change of the Node.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Registers the Node of a launched NodeClaim, or deletes a NodeClaim whose Node does not join.
pub async fn register(context: &Context, name: &str) -> Result<Step, Error> {
    let Some(claim) = live_claim(context, name) else { return Ok(Step::Deleted) };
    if claim_is(&claim, REGISTERED) {
        return Ok(Step::Done);
    }
    let Some(wait) = register_or_wait(context, &claim).await? else { return Ok(Step::Done) };
    let Some(left) = time_left(&claim, REGISTERED, REGISTRATION_TIMEOUT, context.clock.now())
    else {
        tracing::warn!(nodeclaim = name, reason = "registration_timeout", "deleting nodeclaim");
        registration_health::failed(context, &claim).await?;
        context.count_disrupted(&claim, Disrupted::Other("registration_timeout"), 0);
        context.delete_claim(&claim).await?;
        return Ok(Step::Deleted);
    };
    Ok(Step::Wait(wait.min(left)))
}

/// Registers the Node if it may be opened now; otherwise returns when to look again.
async fn register_or_wait(context: &Context, claim: &NodeClaim) -> Result<Option<Duration>, Error> {
    let name = claim.name_any();
    let joined = check(&context.index(), claim, context.clock.now());
    let node = match joined {
        Ok(node) => node,
        Err(Pending::Deleting) => return Ok(Some(RETRY_INTERVAL)),
        Err(pending) => {
            let message = pending.message();
            context
                .edit_claim_status(&name, |edit| match pending {
                    Pending::Multiple(_) => edit.set_false(REGISTERED, pending.reason(), &message),
                    _ => edit.set_unknown(REGISTERED, pending.reason(), &message),
                })
                .await?;
            return Ok(Some(RETRY_INTERVAL));
        }
    };
    let usable = nomination::is_up(&node) && claim.spec.startup_taints.is_empty();
    let mut opened = context.opened.lock().await;
    if usable && let Some(hold) = nomination::prepare(context, claim, &node, *opened).await {
        drop(opened);
        let known = conditions::get(claim_conditions(claim), REGISTERED);
        if known.is_none_or(|known| known.reason != hold.reason()) {
            context
                .edit_claim_status(&name, |edit| {
                    edit.set_unknown(REGISTERED, hold.reason(), hold.message());
                })
                .await?;
        }
        return Ok(Some(hold.retry_after()));
    }
    if !is_held_closed(&node) {
        let message = format!("Missing {} taint, pods may run too early", taints::UNREGISTERED);
        let reason = "UnregisteredTaintMissing";
        tracing::warn!(nodeclaim = name, node = node.name_any(), message);
        context.events.publish(claim, Severity::Warning, reason, &message);
    }
    let node_name = node.name_any();
    context
        .update::<Node>(&node_name, |node| {
            let before = node.clone();
            synchronise(node, claim);
            *node != before
        })
        .await?;
    // What kube-scheduler was seen to try before may have been tried on the closed Node.
    *opened = Some(context.clock.now());
    drop(opened);
    context
        .edit_claim_status(&name, |edit| {
            edit.status.node_name = Some(node_name.clone());
            edit.set_true(REGISTERED);
        })
        .await?;
    tracing::info!(nodeclaim = name, node = node_name, "registered nodeclaim");
    let labels = [pool_of(claim).unwrap_or_default(), label(claim, labels::ZONE)];
    context.metrics.increment(&NODES_CREATED, &labels);
    registration_health::succeeded(context, claim).await?;
    Ok(None)
}

/// Reason why a Node cannot be registered yet.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Pending {
    /// No Node has the provider id.
    NotFound,
    /// Several Nodes have the provider id.
    Multiple(Vec<String>),
    /// The Node is being deleted.
    Deleting,
    /// The Node has joined within the last minute, planned pods wait for it, and it is not ready.
    NotReady,
}

impl Pending {
    fn reason(&self) -> &'static str {
        match self {
            Self::NotFound => "NodeNotFound",
            Self::Multiple(_) => "MultipleNodesFound",
            Self::Deleting => "NodeDeleting",
            Self::NotReady => "NodeNotReady",
        }
    }

    fn message(&self) -> String {
        match self {
            Self::NotFound => "Node not registered with cluster".to_owned(),
            Self::Multiple(names) => {
                format!("Invariant violated, matched multiple nodes: {}", names.join(", "))
            }
            Self::Deleting => "Node is being deleted".to_owned(),
            Self::NotReady => "Node joined and is not ready yet".to_owned(),
        }
    }
}

/// The Node of a NodeClaim, if it may be registered.
fn check(index: &Index, claim: &NodeClaim, now: Timestamp) -> Result<Arc<Node>, Pending> {
    let nodes = index.nodes_with_provider_id(provider_id_of_claim(claim).unwrap_or_default());
    let node = match nodes.as_slice() {
        [node] => node,
        [] => return Err(Pending::NotFound),
        _ => return Err(Pending::Multiple(nodes.iter().map(|node| node.name_any()).collect())),
    };
    if node.metadata.deletion_timestamp.is_some() {
        return Err(Pending::Deleting);
    }
    let joined = node.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let young = joined.is_some_and(|joined| now.duration_since(joined) < MAX_READINESS_HOLD);
    if young && !nomination::is_up(node) && !nomination::waiting_pods(index, claim).is_empty() {
        return Err(Pending::NotReady);
    }
    Ok(Arc::clone(node))
}

/// Whether no pod can have run on a Node yet, or it was registered before.
fn is_held_closed(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    node.labels().contains_key(labels::REGISTERED)
        || taints.into_iter().flatten().any(|taint| taint.key == taints::UNREGISTERED)
}

/// Copies the NodeClaim's labels, annotations, taints and ownership to its Node, and removes the
/// unregistered taint.
fn synchronise(node: &mut Node, claim: &NodeClaim) {
    add_finalizer(node, labels::TERMINATION_FINALIZER);
    let owner = OwnerReference {
        api_version: NodeClaim::api_version(&()).into_owned(),
        kind: NodeClaim::kind(&()).into_owned(),
        name: claim.name_any(),
        uid: claim.uid().unwrap_or_default(),
        block_owner_deletion: Some(true),
        controller: None,
    };
    let owners = node.owner_references_mut();
    if !owners.iter().any(|one| one.uid == owner.uid) {
        owners.push(owner);
    }
    let keeps_taints =
        node.labels().get(labels::DO_NOT_SYNC_TAINTS).is_some_and(|value| value == "true");
    node.labels_mut().extend(claim.labels().clone());
    node.labels_mut().insert(labels::REGISTERED.to_owned(), "true".to_owned());
    let copied = claim.annotations().iter().filter(|(key, _)| is_copied(key));
    node.annotations_mut().extend(copied.map(|(key, value)| (key.clone(), value.clone())));
    let list = node.spec.get_or_insert_default().taints.get_or_insert_default();
    if !keeps_taints {
        for taint in claim.spec.taints.iter().chain(&claim.spec.startup_taints) {
            if !list.iter().any(|have| Taint::from(have).matches(taint)) {
                list.push(taint.into());
            }
        }
    }
    let unregistered = Taint::new(taints::UNREGISTERED, Effect::NoExecute);
    list.retain(|taint| !Taint::from(taint).matches(&unregistered));
}

/// Whether an annotation of the NodeClaim is copied to its Node. The plan record is not: it is
/// large, and only the NodeClaim's is read.
fn is_copied(key: &str) -> bool {
    !key.starts_with("kubectl.") && key != labels::PLAN
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, claim, index, node, pending_pod};
    use serde_json::json;

    fn launched() -> serde_json::Value {
        json!({ "status": { "providerID": "azure:///1" } })
    }

    #[test]
    fn a_nodeclaim_without_a_node_waits() {
        let claim = claim("c", launched());
        let index = index([claim.clone()]);
        assert_eq!(check(&index, &claim, at(0)), Err(Pending::NotFound));
    }

    #[test]
    fn two_nodes_with_one_provider_id_are_an_error() {
        let claim = claim("c", launched());
        let mut index = index([claim.clone()]);
        for name in ["a", "b"] {
            index.apply(node(name, json!({ "spec": { "providerID": "azure:///1" } })), at(0));
        }
        let names = ["a", "b"].map(str::to_owned).into();
        assert_eq!(check(&index, &claim, at(0)), Err(Pending::Multiple(names)));
    }

    #[test]
    fn a_node_is_held_until_ready_for_a_minute_while_planned_pods_wait() {
        let annotations = json!({ labels::PLAN: r#"{"version":1,"pods":["shop/web"]}"# });
        let mut object = launched();
        object["metadata"] = json!({ "annotations": annotations });
        let claim = claim("c", object);
        let mut index = index([claim.clone()]);
        let joined = json!({
            "metadata": { "creationTimestamp": "1970-01-01T00:00:00Z" },
            "spec": { "providerID": "azure:///1" },
        });
        index.apply(node("n", joined), at(0));
        assert!(check(&index, &claim, at(59)).is_ok(), "no planned pod waits");
        index.apply(pending_pod("shop", "web"), at(0));
        assert_eq!(check(&index, &claim, at(59)), Err(Pending::NotReady));
        assert!(check(&index, &claim, at(60)).is_ok());
    }

    #[test]
    fn a_deleting_node_is_not_registered() {
        let claim = claim("c", launched());
        let mut index = index([claim.clone()]);
        let gone = json!({
            "metadata": { "deletionTimestamp": "1970-01-01T00:00:00Z" },
            "spec": { "providerID": "azure:///1" },
        });
        index.apply(node("n", gone), at(0));
        assert_eq!(check(&index, &claim, at(0)), Err(Pending::Deleting));
    }

    #[test]
    fn registration_copies_labels_and_taints_but_not_the_plan() {
        let claim = claim(
            "c",
            json!({
                "metadata": {
                    "labels": { "team": "a" },
                    "annotations": { labels::PLAN: "{}", "note": "x", "kubectl.kubernetes.io/y": "z" },
                },
                "spec": { "taints": [{ "key": "dedicated", "effect": "NoSchedule" }] },
            }),
        );
        let mut node = node(
            "n",
            json!({ "spec": { "taints": [
                { "key": "karpenter.sh/unregistered", "effect": "NoExecute" },
            ] } }),
        );
        synchronise(&mut node, &claim);
        assert_eq!(node.labels()["team"], "a");
        assert_eq!(node.labels()[labels::REGISTERED], "true");
        assert_eq!(node.annotations().keys().collect::<Vec<_>>(), ["note"]);
        let taints = node.spec.as_ref().unwrap().taints.as_ref().unwrap();
        assert_eq!(taints.iter().map(|taint| &taint.key).collect::<Vec<_>>(), ["dedicated"]);
        assert_eq!(node.finalizers(), [labels::TERMINATION_FINALIZER]);
        let once = node.clone();
        synchronise(&mut node, &claim);
        assert_eq!(node, once, "a second time changes nothing");
    }

    #[test]
    fn a_node_without_the_unregistered_taint_was_open_to_pods() {
        let taints =
            |key: &str| json!({ "spec": { "taints": [{ "key": key, "effect": "NoExecute" }] } });
        assert!(is_held_closed(&node("n", taints(taints::UNREGISTERED))));
        assert!(!is_held_closed(&node("n", taints("dedicated"))));
        let registered = json!({ "metadata": { "labels": { labels::REGISTERED: "true" } } });
        assert!(is_held_closed(&node("n", registered)));
    }

    #[test]
    fn registration_times_out_a_quarter_of_an_hour_after_the_last_transition() {
        let fresh =
            claim("c", json!({ "metadata": { "creationTimestamp": "1970-01-01T00:00:00Z" } }));
        let left = |claim: &NodeClaim, seconds| {
            time_left(claim, REGISTERED, REGISTRATION_TIMEOUT, at(seconds))
                .map(|left| left.as_secs())
        };
        assert_eq!(left(&fresh, 0), Some(900));
        assert_eq!(left(&fresh, 899), Some(1));
        assert_eq!(left(&fresh, 900), None);
        let mut launched = fresh;
        let condition = json!({
            "type": "Registered", "status": "Unknown", "reason": "x", "message": "",
            "lastTransitionTime": "1970-01-01T00:01:40Z",
        });
        launched.status = serde_json::from_value(json!({ "conditions": [condition] })).unwrap();
        assert_eq!(left(&launched, 900), Some(100));
    }
}
