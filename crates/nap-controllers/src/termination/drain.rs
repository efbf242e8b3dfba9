//! Asks the pods of a node to leave, in an order that keeps the node working until the last, and
//! never against a budget.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, EvictParams, Preconditions};
use kube::{Api, ResourceExt};
use nap_api::nodeclaim::condition::DISRUPTION_REASON;
use nap_api::{NodeClaim, conditions};

use crate::context::{Context, Doing, Error, is_conflict, is_not_found};
use crate::events::Severity;
use crate::state::pods;

/// Evicts what may leave now. Returns the pods that the drain still waits for.
pub async fn drain(
    context: &Context,
    node: &Node,
    claim: Option<&NodeClaim>,
    deadline: Option<Timestamp>,
) -> Result<Vec<Arc<Pod>>, Error> {
    let now = context.clock.now();
    let mut waiting = context.state().pods_on(&node.name_any());
    waiting.retain(|pod| pods::is_drainable(pod, now));
    let (overdue, rest): (Vec<_>, Vec<_>) =
        waiting.iter().partition(|pod| is_overdue(pod, deadline, now));
    for pod in overdue {
        force_delete(context, pod, deadline, now).await?;
    }
    let mut blocked = Vec::new();
    if let Some(tier) = rest.iter().map(|pod| tier(pod)).min() {
        for pod in rest.iter().filter(|pod| super::drain::tier(pod) == tier) {
            if pods::is_terminating(pod) {
                continue;
            }
            if pods::is_do_not_disrupt(pod, now) || !evict(context, pod, claim).await? {
                blocked.push(crate::state::snapshot::key(pod).to_string());
            }
        }
    }
    if !blocked.is_empty() {
        let message = format!(
            "Failed to drain node, {} pod(s) may not be evicted: {}",
            blocked.len(),
            blocked.join(", ")
        );
        context.events.publish(node, Severity::Warning, "FailedDraining", &message).await;
    }
    Ok(waiting)
}

/// Plain pods first, then daemons, then critical pods, then critical daemons.
fn tier(pod: &Pod) -> u8 {
    let class = pod.spec.as_ref().and_then(|spec| spec.priority_class_name.as_deref());
    let critical = matches!(class, Some("system-cluster-critical" | "system-node-critical"));
    u8::from(pods::is_daemon(pod)) + 2 * u8::from(critical)
}

fn grace(pod: &Pod) -> SignedDuration {
    SignedDuration::from_secs(
        pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds).unwrap_or(30),
    )
}

/// Whether the pod must be told now to be gone by the deadline.
fn is_overdue(pod: &Pod, deadline: Option<Timestamp>, now: Timestamp) -> bool {
    let Some(deadline) = deadline else { return false };
    match &pod.metadata.deletion_timestamp {
        Some(due) => due.0 > deadline,
        None => deadline.duration_since(now) < grace(pod),
    }
}

/// Deletes a pod so that it is gone by the deadline, whatever protects it: the user asked for that
/// with `terminationGracePeriod`.
async fn force_delete(
    context: &Context,
    pod: &Pod,
    deadline: Option<Timestamp>,
    now: Timestamp,
) -> Result<(), Error> {
    let left = deadline.map_or(1, |deadline| deadline.duration_since(now).as_secs()).max(1);
    let seconds = u32::try_from(left).unwrap_or(u32::MAX);
    let same = Preconditions { uid: pod.uid(), resource_version: None };
    let params = DeleteParams {
        grace_period_seconds: Some(seconds),
        preconditions: Some(same),
        ..DeleteParams::default()
    };
    match pods_api(context, pod).delete(&pod.name_any(), &params).await {
        Ok(_) => {
            let message = format!(
                "Deleted the pod to fit the node's termination time, with {seconds} s of grace"
            );
            context.events.publish(pod, Severity::Normal, "Disrupted", &message).await;
            Ok(())
        }
        Err(error) if is_not_found(&error) || is_conflict(&error) => Ok(()),
        Err(error) => Err(error).doing("deleting Pod", &pod.name_any()),
    }
}

/// Evicts a pod. Returns `false` if a disruption budget does not allow it now.
async fn evict(context: &Context, pod: &Pod, claim: Option<&NodeClaim>) -> Result<bool, Error> {
    let same = Preconditions { uid: pod.uid(), resource_version: None };
    let delete_options =
        Some(DeleteParams { preconditions: Some(same), ..DeleteParams::default() });
    let params = EvictParams { delete_options, ..EvictParams::default() };
    match pods_api(context, pod).evict(&pod.name_any(), &params).await {
        Ok(_) => {
            let conditions = claim
                .and_then(|claim| claim.status.as_ref())
                .map(|status| status.conditions.as_slice());
            let why =
                conditions.and_then(|conditions| conditions::get(conditions, DISRUPTION_REASON));
            let why = why.map_or("Forceful Termination", |condition| condition.reason.as_str());
            context
                .events
                .publish(pod, Severity::Normal, "Evicted", &format!("Evicted pod: {why}"))
                .await;
            Ok(true)
        }
        Err(error) if is_not_found(&error) || is_conflict(&error) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 429 || status.code == 500 => Ok(false),
        Err(error) => Err(error).doing("evicting Pod", &pod.name_any()),
    }
}

fn pods_api(context: &Context, pod: &Pod) -> Api<Pod> {
    Api::namespaced(context.client.clone(), &pod.namespace().unwrap_or_default())
}
