//! Termination of a Node: drain, wait for volumes, delete the instance, remove the finalizer.
//!
//! Deleting a Node, a NodeClaim or a NodePool all end here, because the finalizer of each waits for
//! the next.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use nap_api::nodeclaim::condition::DRAINED;
use nap_api::{NodeClaim, conditions, labels};

use super::drain::drain;
use super::taint::add_disrupted;
use super::volumes;
use crate::cluster::{
    Indexed, claim_conditions, claim_is, is_ready, pool_of, provider_id, provider_id_of_claim,
};
use crate::context::{Context, Error, Outcome};
use crate::metrics::{catalogue as table, label};
use crate::nodeclaim::termination::{
    INSTANCE_INTERVAL, InstanceDeletion, delete_instance, publish_deadline,
};
use crate::patch::{has_finalizer, remove_finalizer};

/// Interval between two rounds of a drain.
const DRAIN_INTERVAL: Duration = Duration::from_secs(1);
/// Shortest drain: kube-scheduler needs some time to see the taint.
const MIN_DRAIN: SignedDuration = SignedDuration::from_secs(5);
/// Interval between two looks at attached volumes. Each lists every VolumeAttachment.
const VOLUME_INTERVAL: Duration = Duration::from_secs(5);
/// Longest time to ask the cloud whether an instance is gone. An unreachable cloud does not delay
/// the drain.
const MAX_INSTANCE_LOOKUP: Duration = Duration::from_secs(5);

/// Carries the deletion of a Node one step further.
pub async fn reconcile(context: &Context, name: &str) -> Outcome {
    let Some((node, claim)) = terminating(context, name).await? else {
        context.memory().evictions.forget(name);
        return Ok(None);
    };
    if let Some(claim) = claim.as_ref().filter(|one| one.metadata.deletion_timestamp.is_none()) {
        context.delete_claim(claim).await?;
    }
    if !is_ready(&node) && is_instance_gone(context, &node).await {
        tracing::info!(node = name, "instance gone, deleting node without drain");
        return finish(context, &node).await;
    }
    context.update::<Node>(name, keep_traffic_away).await?;
    let deadline = claim.as_deref().and_then(deadline);
    if let Some(deadline) = deadline {
        publish_deadline(context, node.as_ref(), deadline).await;
    }
    if !has_drained(context, &node, claim.as_deref(), deadline).await? {
        return Ok(Some(DRAIN_INTERVAL));
    }
    if let Some(claim) = &claim {
        if !volumes::are_detached(context, &node, claim, deadline).await? {
            return Ok(Some(VOLUME_INTERVAL));
        }
        if delete_instance(context, claim).await? == InstanceDeletion::Terminating {
            return Ok(Some(INSTANCE_INTERVAL));
        }
    } else if has_claim(context, &node).await? {
        return Ok(Some(DRAIN_INTERVAL));
    }
    tracing::info!(node = name, "drained and deleted node");
    finish(context, &node).await
}

/// A Node that is being deleted and has nap's finalizer, with its NodeClaim. A NodeClaim that the
/// index lacks is read. `None` also for a Node of another provider of Karpenter, whose Nodes have
/// the same finalizer.
async fn terminating(
    context: &Context,
    name: &str,
) -> Result<Option<(Arc<Node>, Option<Arc<NodeClaim>>)>, Error> {
    let (node, claim) = {
        let index = context.index();
        let Some(node) = index.node(name).cloned() else { return Ok(None) };
        let claim = index.claim_of_node(&node).cloned();
        (node, claim)
    };
    if node.metadata.deletion_timestamp.is_none()
        || !has_finalizer(node.as_ref(), labels::TERMINATION_FINALIZER)
    {
        return Ok(None);
    }
    let claim = match claim {
        Some(claim) => Some(claim),
        None => context.read_owner(&node).await?.map(Arc::new),
    };
    let ours = claim.as_ref().map_or_else(|| is_ours(&node), |claim| claim.is_managed());
    Ok(ours.then_some((node, claim)))
}

/// Whether a Node without a NodeClaim was launched by this provider.
fn is_ours(node: &Node) -> bool {
    node.labels().contains_key(labels::AKS_NODE_CLASS)
        || provider_id(node).is_some_and(|id| id.starts_with("azure://"))
}

/// Whether any NodeClaim has the provider id of a Node.
async fn has_claim(context: &Context, node: &Node) -> Result<bool, Error> {
    let Some(id) = provider_id(node) else { return Ok(false) };
    let claims = context.read_claims().await?;
    Ok(claims.iter().any(|claim| provider_id_of_claim(claim) == Some(id)))
}

/// Whether the cloud says that the instance of a Node does not exist.
async fn is_instance_gone(context: &Context, node: &Node) -> bool {
    let Some(id) = provider_id(node) else { return false };
    tokio::select! {
        biased;
        found = context.cloud.get(id) => found.is_err_and(|error| error.is_not_found()),
        () = context.clock.sleep(MAX_INSTANCE_LOOKUP) => false,
    }
}

/// Carries the drain of a Node one round further. Returns whether it is over, which the pods on the
/// API server decide and not those in the index.
async fn has_drained(
    context: &Context,
    node: &Node,
    claim: Option<&NodeClaim>,
    deadline: Option<Timestamp>,
) -> Result<bool, Error> {
    if claim.is_some_and(|claim| claim_is(claim, DRAINED)) {
        return Ok(true);
    }
    let name = node.name_any();
    let bound = context.index().pods_on(&name).cloned().collect();
    let mut waits = drain(context, node, claim, deadline, bound).await;
    let now = context.clock.now();
    let long_enough = claim.is_none_or(|claim| has_drained_long_enough(claim, now));
    if !waits && long_enough {
        let bound = context.read_pods_on(&name).await?;
        waits = drain(context, node, claim, deadline, bound).await;
    }
    let drained = !waits && long_enough;
    if let Some(claim) = claim {
        record_drain(context, &claim.name_any(), drained).await?;
        if drained {
            context.metrics.increment(&table::NODES_DRAINED, &[pool_of(claim).unwrap_or_default()]);
        }
    }
    Ok(drained)
}

/// Time by which all pods have to be gone; `None` without a `terminationGracePeriod`.
fn deadline(claim: &NodeClaim) -> Option<Timestamp> {
    claim.annotations().get(labels::TERMINATION_TIMESTAMP)?.parse().ok()
}

/// Whether the drain began at least [`MIN_DRAIN`] ago.
fn has_drained_long_enough(claim: &NodeClaim, now: Timestamp) -> bool {
    let since = conditions::since(claim_conditions(claim), DRAINED);
    since.is_some_and(|since| now.duration_since(since) >= MIN_DRAIN)
}

async fn record_drain(context: &Context, claim: &str, drained: bool) -> Result<(), Error> {
    context
        .edit_claim_status(claim, |edit| {
            if drained {
                edit.set_true(DRAINED);
            } else {
                edit.set_unknown(DRAINED, "Draining", "");
            }
        })
        .await
}

async fn finish(context: &Context, node: &Node) -> Outcome {
    let name = &node.name_any();
    context.memory().evictions.forget(name);
    context
        .update::<Node>(name, |node| remove_finalizer(node, labels::TERMINATION_FINALIZER))
        .await?;
    count_terminated(context, node);
    Ok(None)
}

/// Counts a Node that is gone, with its age and the time that took.
fn count_terminated(context: &Context, node: &Node) {
    let (metrics, now) = (&context.metrics, context.clock.now());
    let pool = pool_of(node).unwrap_or_default();
    metrics.increment(&table::NODES_TERMINATED, &[pool, label(node, labels::ZONE)]);
    context.report_gone(node, labels::TERMINATION_FINALIZER);
    if let Some(deleted) = &node.metadata.deletion_timestamp {
        let taken = now.duration_since(deleted.0);
        metrics.observe(&table::NODES_TERMINATION_DURATION, &[pool], taken);
    }
    if let Some(created) = &node.metadata.creation_timestamp {
        let age = now.duration_since(created.0);
        metrics.observe(&table::NODES_LIFETIME_DURATION, &[pool], age);
    }
}

/// Taints a Node and takes it out of load balancers. Returns whether anything changed.
fn keep_traffic_away(node: &mut Node) -> bool {
    let (key, value) = (labels::EXCLUDE_FROM_LOAD_BALANCERS.to_owned(), "karpenter".to_owned());
    let labelled = node.labels_mut().insert(key, value.clone()) != Some(value);
    add_disrupted(node) || labelled
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, claim, node};
    use serde_json::json;

    #[test]
    fn a_node_of_another_provider_is_left_alone() {
        let with_id = |id: &str| node("n", json!({ "spec": { "providerID": id } }));
        assert!(is_ours(&with_id("azure:///subscriptions/s/x")));
        assert!(!is_ours(&with_id("aws:///eu-west-1a/i-0123456789")));
    }

    #[test]
    fn a_drain_lasts_at_least_five_seconds() {
        let condition = json!({
            "type": "Drained", "status": "Unknown", "reason": "Draining", "message": "",
            "lastTransitionTime": "1970-01-01T00:00:00Z",
        });
        let draining = claim("c", json!({ "status": { "conditions": [condition] } }));
        assert!(!has_drained_long_enough(&draining, at(4)));
        assert!(has_drained_long_enough(&draining, at(5)));
        assert!(!has_drained_long_enough(&claim("c", json!({})), at(5)), "it has not begun");
    }

    #[test]
    fn a_deadline_that_cannot_be_parsed_does_not_force_anything() {
        let with = |value: &str| {
            let annotations = json!({ labels::TERMINATION_TIMESTAMP: value });
            deadline(&claim("c", json!({ "metadata": { "annotations": annotations } })))
        };
        assert_eq!(with("1970-01-01T00:01:00Z"), Some(at(60)));
        assert_eq!(with("soon"), None);
    }
}
