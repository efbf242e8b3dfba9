//! Termination of a NodeClaim: its Node is deleted first, then its instance, then its finalizer.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::api::DeleteParams;
use kube::{Api, Resource, ResourceExt};
use nap_api::duration::parse_go_duration;
use nap_api::nodeclaim::condition::{INSTANCE_TERMINATING, REGISTERED};
use nap_api::{NodeClaim, conditions, labels};

use super::notice::shorten_drain;
use super::unmanaged;
use crate::cluster::{claim_conditions, claim_is, pool_of, provider_id_of_claim};
use crate::context::{Context, Doing, Error, Outcome, is_not_found};
use crate::disruption::repair;
use crate::events::Severity;
use crate::metrics::{catalogue as table, label};
use crate::patch::{has_finalizer, remove_finalizer};

/// Interval at which an instance that is being deleted is checked.
pub const INSTANCE_INTERVAL: Duration = Duration::from_secs(5);
/// Interval at which a Node that is being deleted is checked, besides every change of it.
const NODE_INTERVAL: Duration = Duration::from_secs(10);

/// Carries the deletion of a NodeClaim one step further.
pub async fn finalize(context: &Context, claim: &NodeClaim) -> Outcome {
    let name = claim.name_any();
    if !has_finalizer(claim, labels::TERMINATION_FINALIZER) {
        return Ok(None);
    }
    if shorten_drain(context, claim).await?.is_none() {
        annotate_deadline(context, claim).await?;
    }
    let nodes = nodes_of(context, claim).await?;
    for node in nodes.iter().filter(|node| node.metadata.deletion_timestamp.is_none()) {
        delete_node(context, &node.name_any()).await?;
    }
    if !nodes.is_empty() {
        return Ok(Some(NODE_INTERVAL));
    }
    if delete_instance(context, claim).await? == InstanceDeletion::Terminating {
        return Ok(Some(INSTANCE_INTERVAL));
    }
    context
        .update::<NodeClaim>(&name, |claim| remove_finalizer(claim, labels::TERMINATION_FINALIZER))
        .await?;
    tracing::info!(nodeclaim = name, "deleted nodeclaim");
    count_terminated(context, claim);
    Ok(None)
}

/// Counts a NodeClaim that is gone, with the times that took.
fn count_terminated(context: &Context, claim: &NodeClaim) {
    let (metrics, now) = (&context.metrics, context.clock.now());
    let pool = pool_of(claim).unwrap_or_default();
    let labels = [pool, label(claim, labels::CAPACITY_TYPE), label(claim, labels::ZONE)];
    metrics.increment(&table::NODECLAIMS_TERMINATED, &labels);
    context.report_gone(claim, labels::TERMINATION_FINALIZER);
    if let Some(deleted) = &claim.metadata.deletion_timestamp {
        let taken = now.duration_since(deleted.0);
        metrics.observe(&table::NODECLAIMS_TERMINATION_DURATION, &[pool], taken);
    }
    if let Some(since) = conditions::since(claim_conditions(claim), INSTANCE_TERMINATING) {
        let metric = &table::NODECLAIMS_INSTANCE_TERMINATION_DURATION;
        metrics.observe(metric, &[pool], now.duration_since(since));
    }
}

/// The Nodes of a registered NodeClaim. If the index has none, the API server is asked: the
/// instance may be deleted only if its Node is gone, which means drained.
async fn nodes_of(context: &Context, claim: &NodeClaim) -> Result<Vec<Arc<Node>>, Error> {
    let id = provider_id_of_claim(claim).filter(|_| claim_is(claim, REGISTERED));
    let Some(id) = id else { return Ok(Vec::new()) };
    let indexed = context.index().nodes_with_provider_id(id);
    if !indexed.is_empty() {
        return Ok(indexed);
    }
    let nodes = context.read_nodes_of(claim).await?;
    for node in &nodes {
        tracing::warn!(node = node.name_any(), "node is missing from the index");
    }
    Ok(nodes.into_iter().map(Arc::new).collect())
}

/// State of an instance whose deletion was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceDeletion {
    /// The instance still exists.
    Terminating,
    /// The instance does not exist.
    Gone,
}

/// Requests the deletion of a NodeClaim's instance, and records the request on the NodeClaim.
pub async fn delete_instance(
    context: &Context,
    claim: &NodeClaim,
) -> Result<InstanceDeletion, Error> {
    let pool = pool_of(claim).unwrap_or_default();
    let (from, call) = (("nodeclaim.lifecycle", "Delete"), context.cloud.delete(claim));
    match context.metrics.cloud_call(&context.clock, from, pool, call).await {
        Ok(()) => {
            let name = claim.name_any();
            context.edit_claim_status(&name, |edit| edit.set_true(INSTANCE_TERMINATING)).await?;
            Ok(InstanceDeletion::Terminating)
        }
        Err(error) if error.is_not_found() => Ok(InstanceDeletion::Gone),
        Err(error) => {
            unmanaged::report(context, claim).await;
            Err(error.into())
        }
    }
}

/// Records the time at which the drain of a NodeClaim stops waiting, if its
/// `terminationGracePeriod` or the repair of its node bounds it.
async fn annotate_deadline(context: &Context, claim: &NodeClaim) -> Result<(), Error> {
    if claim.annotations().contains_key(labels::TERMINATION_TIMESTAMP) {
        return Ok(());
    }
    let bound = repair::drain_bound(context, claim);
    let Some(deadline) = deadline(claim, bound) else { return Ok(()) };
    let annotation = (labels::TERMINATION_TIMESTAMP.to_owned(), deadline.to_string());
    context.annotate::<NodeClaim>(&claim.name_any(), [annotation]).await?;
    publish_deadline(context, claim, deadline).await;
    Ok(())
}

/// Publishes, on a NodeClaim or its Node, when its pods will be deleted.
pub async fn publish_deadline<K>(context: &Context, object: &K, deadline: Timestamp)
where
    K: Resource<DynamicType = ()>,
{
    let reason = "TerminationGracePeriodExpiring";
    let message = format!("All pods will be deleted by {deadline}");
    context.events.publish(object, Severity::Warning, reason, &message);
}

/// Deletion time of a NodeClaim plus its `terminationGracePeriod` or another bound of its drain,
/// the shorter one; `None` without either.
fn deadline(claim: &NodeClaim, bound: Option<Duration>) -> Option<Timestamp> {
    let grace = claim.spec.termination_grace_period.as_deref().and_then(parse_go_duration);
    let grace = grace.into_iter().chain(bound).min()?;
    let deleted = claim.metadata.deletion_timestamp.as_ref()?.0;
    let grace = SignedDuration::try_from(grace).ok()?;
    Some(deleted.checked_add(grace).unwrap_or(Timestamp::MAX))
}

async fn delete_node(context: &Context, name: &str) -> Result<(), Error> {
    let api: Api<Node> = Api::all(context.client.clone());
    match api.delete(name, &DeleteParams::default()).await {
        Ok(_) => Ok(()),
        Err(error) if is_not_found(&error) => Ok(()),
        Err(error) => Err(error).doing("deleting Node", name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, claim};
    use serde_json::json;

    #[test]
    fn the_grace_period_counts_from_the_deletion() {
        let deleted = json!({ "deletionTimestamp": "1970-01-01T00:01:00Z" });
        let with =
            claim("c", json!({ "metadata": deleted, "spec": { "terminationGracePeriod": "1h" } }));
        assert_eq!(deadline(&with, None), Some(at(3660)));
        assert_eq!(deadline(&with, Some(Duration::from_mins(1))), Some(at(120)), "of a repair");
        assert_eq!(deadline(&with, Some(Duration::from_hours(2))), Some(at(3660)));
        let without = claim("c", json!({ "metadata": deleted }));
        assert_eq!(deadline(&without, None), None);
        assert_eq!(deadline(&without, Some(Duration::ZERO)), Some(at(60)));
        let alive = claim("c", json!({ "spec": { "terminationGracePeriod": "1h" } }));
        assert_eq!(deadline(&alive, None), None);
    }
}
