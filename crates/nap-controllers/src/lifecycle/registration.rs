//! From a machine to a node that takes pods.

use std::time::Duration;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};
use nap_api::nodeclaim::condition::{INITIALIZED, REGISTERED};
use nap_api::{Effect, NodeClaim, Taint, conditions, labels, taints};

use super::nomination;
use crate::context::{Context, Error};
use crate::state::{is_ready, pods};

/// A node that joined is held back until it is ready, so that it is given to the pods that it was
/// bought for; but no longer than this, in case that something on it must run first that does not
/// tolerate nap's taint.
const HOLD: SignedDuration = SignedDuration::from_mins(1);

/// How soon a claim whose node has not joined, or is not ready, is looked at again, besides at
/// every change of its node.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Matches the claim with its node, gives the node its labels, taints and finalizer, and releases
/// it. If that is not done yet, returns when to look again.
pub async fn register(context: &Context, claim: &NodeClaim) -> Result<Option<Duration>, Error> {
    let name = claim.name_any();
    let id =
        claim.status.as_ref().and_then(|status| status.provider_id.clone()).unwrap_or_default();
    let nodes = context.state().nodes_with_id(&id);
    let now = context.clock.now();
    let node = match nodes.as_slice() {
        [node] => node.clone(),
        [] => {
            waits(context, &name, REGISTERED, "NodeNotFound", "Node not registered with cluster")
                .await?;
            return Ok(Some(LOOK_AGAIN));
        }
        _ => {
            let names: Vec<String> = nodes.iter().map(|node| node.name_any()).collect();
            let message =
                format!("Invariant violated, matched multiple nodes: {}", names.join(", "));
            waits(context, &name, REGISTERED, "MultipleNodesFound", &message).await?;
            return Ok(Some(LOOK_AGAIN));
        }
    };
    if node.metadata.deletion_timestamp.is_some() {
        return Ok(Some(LOOK_AGAIN));
    }
    let up = nomination::is_up(&node);
    let joined = node.metadata.creation_timestamp.as_ref().map(|time| time.0);
    if !up
        && joined.is_some_and(|joined| now.duration_since(joined) < HOLD)
        && !nomination::waiting(context, claim).is_empty()
    {
        waits(context, &name, REGISTERED, "NodeNotReady", "Node joined and is not ready yet")
            .await?;
        return Ok(Some(LOOK_AGAIN));
    }
    let usable = up && claim.spec.startup_taints.is_empty();
    if usable && let Some(hold) = nomination::prepare(context, claim, &node).await {
        waits(context, &name, REGISTERED, hold.reason, hold.message).await?;
        return Ok(Some(hold.again));
    }
    context
        .update_node(&node.name_any(), |node| {
            let before = node.clone();
            synchronise(node, claim);
            *node != before
        })
        .await?;
    let node_name = node.name_any();
    if usable {
        // The scheduler may have tried a pod while the node was still closed, and taken its
        // nomination away.
        nomination::nominate(context, claim, &node_name).await;
    }
    context
        .update_claim_status(&name, |claim| {
            let generation = claim.metadata.generation;
            let status = claim.status.get_or_insert_default();
            status.node_name = Some(node_name.clone());
            conditions::set_true(&mut status.conditions, REGISTERED, generation, now);
            super::summarise(claim, now);
            true
        })
        .await?;
    tracing::info!(nodeclaim = name, node = node_name, "registered");
    Ok(None)
}

/// The node's share of what the claim says.
fn synchronise(node: &mut Node, claim: &NodeClaim) {
    if !node.finalizers().iter().any(|finalizer| finalizer == labels::TERMINATION_FINALIZER) {
        node.finalizers_mut().push(labels::TERMINATION_FINALIZER.to_owned());
    }
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
    let own_annotations =
        claim.annotations().clone().into_iter().filter(|(key, _)| !key.starts_with("kubectl."));
    node.annotations_mut().extend(own_annotations);
    let spec = node.spec.get_or_insert_default();
    let list = spec.taints.get_or_insert_default();
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

/// Whether the node is ready for pods; marks node and claim when it is.
pub async fn initialize(context: &Context, claim: &NodeClaim) -> Result<bool, Error> {
    let name = claim.name_any();
    let node = {
        let state = context.state();
        // The claim that was handed in may be from before its registration.
        let claim = state.claims.get(&name).cloned();
        let node_name = claim.and_then(|claim| claim.status.as_ref()?.node_name.clone());
        node_name.and_then(|node| state.nodes.get(&node).cloned())
    };
    let Some(node) = node else {
        waits(context, &name, INITIALIZED, "NodeNotFound", "Node not registered with cluster")
            .await?;
        return Ok(false);
    };
    if let Some((reason, message)) = not_ready_because(&node, claim) {
        waits(context, &name, INITIALIZED, reason, &message).await?;
        return Ok(false);
    }
    nomination::nominate(context, claim, &node.name_any()).await;
    context
        .update_node(&node.name_any(), |node| {
            let value = "true".to_owned();
            node.labels_mut().insert(labels::INITIALIZED.to_owned(), value.clone()) != Some(value)
        })
        .await?;
    let now = context.clock.now();
    context
        .update_claim_status(&name, |claim| {
            let generation = claim.metadata.generation;
            let status = claim.status.get_or_insert_default();
            conditions::set_true(&mut status.conditions, INITIALIZED, generation, now);
            super::summarise(claim, now);
            true
        })
        .await?;
    tracing::info!(nodeclaim = name, node = node.name_any(), "initialized");
    Ok(true)
}

fn not_ready_because(node: &Node, claim: &NodeClaim) -> Option<(&'static str, String)> {
    if !is_ready(node) {
        return Some(("NodeNotReady", "Node status is NotReady".to_owned()));
    }
    let list: Vec<Taint> = node
        .spec
        .as_ref()
        .and_then(|spec| spec.taints.as_ref())
        .into_iter()
        .flatten()
        .map(Taint::from)
        .collect();
    if let Some(taint) =
        list.iter().find(|taint| claim.spec.startup_taints.iter().any(|one| one.matches(taint)))
    {
        return Some(("StartupTaintsExist", format!("StartupTaint {:?} still exists", taint.key)));
    }
    if let Some(taint) = list.iter().find(|taint| taint.is_ephemeral()) {
        return Some((
            "KnownEphemeralTaintsExist",
            format!("KnownEphemeralTaint {:?} still exists", taint.key),
        ));
    }
    let has =
        pods::node_resources(node.status.as_ref().and_then(|status| status.allocatable.as_ref()));
    let missing =
        claim.spec.resources.requests.iter().find(|(name, wanted)| {
            wanted.to_milli(nap_units::Rounding::Up) > 0 && has.get(name) == 0
        });
    missing.map(|(name, _)| {
        ("ResourceNotRegistered", format!("Resource {name:?} was requested but not registered"))
    })
}

async fn waits(
    context: &Context,
    name: &str,
    type_: &str,
    reason: &str,
    message: &str,
) -> Result<(), Error> {
    let now = context.clock.now();
    context
        .update_claim_status(name, |claim| {
            let generation = claim.metadata.generation;
            let status = claim.status.get_or_insert_default();
            let unknown = conditions::Status::Unknown;
            let changed = conditions::set(
                &mut status.conditions,
                type_,
                unknown,
                reason,
                message,
                generation,
                now,
            );
            super::summarise(claim, now);
            changed
        })
        .await
}
