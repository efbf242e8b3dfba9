//! Termination of a Node: drain, delete the instance, remove the finalizer.
//!
//! Deleting a Node, a NodeClaim or a NodePool all end here, because the finalizer of each waits for
//! the next.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use nap_api::nodeclaim::condition::DRAINED;
use nap_api::{NodeClaim, conditions, labels};

use super::drain::drain;
use super::taint::add_disrupted;
use crate::cluster::{claim_conditions, claim_is, is_ready, provider_id};
use crate::context::{Context, Error, Outcome};
use crate::nodeclaim::termination::{INSTANCE_INTERVAL, InstanceDeletion, delete_instance};
use crate::patch::{has_finalizer, remove_finalizer};

/// Interval between two rounds of a drain.
const DRAIN_INTERVAL: Duration = Duration::from_secs(1);
/// Shortest drain: kube-scheduler needs some time to see the taint.
const MIN_DRAIN: SignedDuration = SignedDuration::from_secs(5);

/// Carries the deletion of a Node one step further.
pub async fn reconcile(context: &Context, name: &str) -> Outcome {
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
    if let Some(claim) = claim.as_ref().filter(|one| one.metadata.deletion_timestamp.is_none()) {
        context.delete_claim(claim).await?;
    }
    if !is_ready(&node)
        && let Some(id) = provider_id(&node)
        && context.cloud.get(id).await.is_err_and(|error| error.is_not_found())
    {
        tracing::info!(node = name, "instance gone, deleting node without drain");
        return finish(context, name).await;
    }
    context.update::<Node>(name, keep_traffic_away).await?;
    let waits =
        drain(context, &node, claim.as_deref(), claim.as_deref().and_then(deadline)).await?;
    match &claim {
        Some(claim) => {
            if !claim_is(claim, DRAINED) {
                let drained = !waits && has_drained_long_enough(claim, context.clock.now());
                record_drain(context, &claim.name_any(), drained).await?;
                if !drained {
                    return Ok(Some(DRAIN_INTERVAL));
                }
            }
            if delete_instance(context, claim).await? == InstanceDeletion::Terminating {
                return Ok(Some(INSTANCE_INTERVAL));
            }
        }
        None if waits => return Ok(Some(DRAIN_INTERVAL)),
        None => {}
    }
    tracing::info!(node = name, "drained and deleted node");
    finish(context, name).await
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

async fn finish(context: &Context, name: &str) -> Outcome {
    context
        .update::<Node>(name, |node| remove_finalizer(node, labels::TERMINATION_FINALIZER))
        .await?;
    Ok(None)
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
    use crate::testing::{at, claim};
    use serde_json::json;

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
