//! The end of a machine: drain its node, delete it in the cloud, let the objects go.
//!
//! `kubectl delete` on a NodeClaim, a Node or a NodePool all end here, because each object's
//! finalizer waits for the others.

mod drain;

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use nap_api::duration::parse_go_duration;
use nap_api::nodeclaim::condition::{DRAINED, INSTANCE_TERMINATING, REGISTERED};
use nap_api::{Effect, NodeClaim, Taint, conditions, labels, taints};

use crate::context::{Context, Doing, Outcome, is_not_found};
use crate::events::Severity;
use crate::state::{claim_is, is_ready, provider_id};

/// How often a drain is looked at.
const DRAIN_STEP: Duration = Duration::from_secs(1);
/// How often a machine that is being deleted is looked at.
const INSTANCE_STEP: Duration = Duration::from_secs(5);
/// A drain lasts at least this long, so that the scheduler has seen the taint.
const LEAST_DRAIN: SignedDuration = SignedDuration::from_secs(5);

/// A claim is being deleted: its nodes first, then its machine, then its finalizer.
pub async fn finalize_claim(context: &Context, claim: &NodeClaim) -> Outcome {
    let name = claim.name_any();
    if !claim.finalizers().iter().any(|finalizer| finalizer == labels::TERMINATION_FINALIZER) {
        return Ok(None);
    }
    stamp_deadline(context, claim).await?;
    let id = claim.status.as_ref().and_then(|status| status.provider_id.clone());
    if claim_is(claim, REGISTERED)
        && let Some(id) = &id
    {
        let nodes = context.state().nodes_with_id(id);
        for node in &nodes {
            if node.metadata.deletion_timestamp.is_none() {
                delete_node(context, &node.name_any()).await?;
            }
        }
        if !nodes.is_empty() {
            // The node's own deletion brings this claim up again.
            return Ok(Some(Duration::from_secs(10)));
        }
    }
    match context.cloud.delete(claim).await {
        Ok(()) => {
            mark_instance_terminating(context, &name).await?;
            return Ok(Some(INSTANCE_STEP));
        }
        Err(error) if error.is_not_found() => {}
        Err(error) => return Err(error.into()),
    }
    context
        .update_claim(&name, |claim| {
            let before = claim.finalizers().len();
            claim.finalizers_mut().retain(|finalizer| finalizer != labels::TERMINATION_FINALIZER);
            claim.finalizers().len() != before
        })
        .await?;
    tracing::info!(nodeclaim = name, "deleted");
    Ok(None)
}

/// With a `terminationGracePeriod`, writes down when the drain stops waiting.
async fn stamp_deadline(context: &Context, claim: &NodeClaim) -> Result<(), crate::context::Error> {
    let grace = claim.spec.termination_grace_period.as_deref().and_then(parse_go_duration);
    let deleted = claim.metadata.deletion_timestamp.as_ref().map(|time| time.0);
    let (Some(grace), Some(deleted)) = (grace, deleted) else { return Ok(()) };
    if claim.annotations().contains_key(labels::TERMINATION_TIMESTAMP) {
        return Ok(());
    }
    let Ok(deadline) = SignedDuration::try_from(grace) else { return Ok(()) };
    let deadline = deleted.checked_add(deadline).unwrap_or(Timestamp::MAX).to_string();
    let message = format!("All pods will be deleted by {deadline}");
    let api: Api<NodeClaim> = Api::all(context.client.clone());
    let written = context
        .annotate(&api, &claim.name_any(), &[(labels::TERMINATION_TIMESTAMP, &deadline)])
        .await?;
    if let Some(written) = written {
        context.state().apply_claim(written);
    }
    context
        .events
        .publish(claim, Severity::Warning, "TerminationGracePeriodExpiring", &message)
        .await;
    Ok(())
}

async fn delete_node(context: &Context, name: &str) -> Result<(), crate::context::Error> {
    let api: Api<Node> = Api::all(context.client.clone());
    match api.delete(name, &DeleteParams::default()).await {
        Ok(_) => Ok(()),
        Err(error) if is_not_found(&error) => Ok(()),
        Err(error) => Err(error).doing("deleting Node", name),
    }
}

async fn mark_instance_terminating(
    context: &Context,
    name: &str,
) -> Result<(), crate::context::Error> {
    let now = context.clock.now();
    context
        .update_claim_status(name, |claim| {
            let generation = claim.metadata.generation;
            let status = claim.status.get_or_insert_default();
            conditions::set_true(&mut status.conditions, INSTANCE_TERMINATING, generation, now)
        })
        .await
}

/// A node is being deleted: drain it, delete its machine, remove its finalizer.
pub async fn finalize_node(context: &Context, name: &str) -> Outcome {
    let Some(node) = context.state().nodes.get(name).cloned() else { return Ok(None) };
    let ours = node.finalizers().iter().any(|finalizer| finalizer == labels::TERMINATION_FINALIZER);
    if node.metadata.deletion_timestamp.is_none() || !ours {
        return Ok(None);
    }
    let claim = context.state().claim_of_node(&node);
    if let Some(claim) = &claim
        && claim.metadata.deletion_timestamp.is_none()
    {
        context.delete_claim(claim).await?;
    }
    if !is_ready(&node)
        && let Some(id) = provider_id(&node)
        && context.cloud.get(id).await.is_err_and(|error| error.is_not_found())
    {
        return remove_finalizer(context, name).await;
    }
    taint(context, name).await?;
    let deadline = claim
        .as_ref()
        .and_then(|claim| claim.annotations().get(labels::TERMINATION_TIMESTAMP)?.parse().ok());
    let waiting = drain::drain(context, &node, claim.as_deref(), deadline).await?;
    let now = context.clock.now();
    if let Some(claim) = &claim {
        let since =
            claim.status.as_ref().and_then(|status| conditions::since(&status.conditions, DRAINED));
        let long_enough = since.is_some_and(|since| now.duration_since(since) >= LEAST_DRAIN);
        let drained = claim_is(claim, DRAINED);
        if !drained {
            let done = waiting.is_empty() && long_enough;
            mark_drained(context, &claim.name_any(), done).await?;
            if !done {
                return Ok(Some(DRAIN_STEP));
            }
        }
        match context.cloud.delete(claim).await {
            Ok(()) => {
                mark_instance_terminating(context, &claim.name_any()).await?;
                return Ok(Some(INSTANCE_STEP));
            }
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error.into()),
        }
    } else if !waiting.is_empty() {
        return Ok(Some(DRAIN_STEP));
    }
    tracing::info!(node = name, "drained and deleted");
    remove_finalizer(context, name).await
}

async fn mark_drained(
    context: &Context,
    claim: &str,
    done: bool,
) -> Result<(), crate::context::Error> {
    let now = context.clock.now();
    context
        .update_claim_status(claim, |claim| {
            let generation = claim.metadata.generation;
            let status = claim.status.get_or_insert_default();
            if done {
                conditions::set_true(&mut status.conditions, DRAINED, generation, now)
            } else {
                let unknown = conditions::Status::Unknown;
                conditions::set(
                    &mut status.conditions,
                    DRAINED,
                    unknown,
                    "Draining",
                    "",
                    generation,
                    now,
                )
            }
        })
        .await
}

async fn remove_finalizer(context: &Context, name: &str) -> Outcome {
    context
        .update_node(name, |node| {
            let before = node.finalizers().len();
            node.finalizers_mut().retain(|finalizer| finalizer != labels::TERMINATION_FINALIZER);
            node.finalizers().len() != before
        })
        .await?;
    Ok(None)
}

/// Keeps new pods and load balancers away.
async fn taint(context: &Context, name: &str) -> Result<(), crate::context::Error> {
    let wanted = Taint::new(taints::DISRUPTED, Effect::NoSchedule);
    context
        .update_node(name, |node| {
            let before = node.clone();
            let excluded = (labels::EXCLUDE_FROM_LOAD_BALANCERS.to_owned(), "karpenter".to_owned());
            node.labels_mut().extend([excluded]);
            let list = node.spec.get_or_insert_default().taints.get_or_insert_default();
            if !list.iter().any(|taint| Taint::from(taint).matches(&wanted)) {
                list.retain(|taint| taint.key != taints::DISRUPTED);
                list.push((&wanted).into());
            }
            *node != before
        })
        .await
}
