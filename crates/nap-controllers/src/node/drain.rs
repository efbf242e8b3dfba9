//! Drain: the pods of a Node are evicted tier by tier, within their PodDisruptionBudgets.
//!
//! The evictions of a tier run side by side and each pod backs off by itself, so a pod that may not
//! be evicted delays neither the others nor the deadline of the drain.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{self as core, Node};
use kube::api::{DeleteParams, EvictParams, Preconditions};
use kube::{Api, ResourceExt};
use nap_api::nodeclaim::condition::DISRUPTION_REASON;
use nap_api::{NodeClaim, conditions, labels};

use super::do_not_disrupt;
use crate::cluster::{Pod, claim_conditions, pods, pool_of};
use crate::context::{Context, is_conflict, is_not_found};
use crate::events::Severity;
use crate::metrics::catalogue as table;

/// Grace period of a pod that states none, as the API server defaults it.
const DEFAULT_GRACE: i64 = 30;
/// Most requests at once for one node. A full node of 250 pods takes 25 turns of some milliseconds,
/// and a hundred draining nodes stay within what an API server serves at once.
const MAX_REQUESTS: usize = 10;
/// Longest round. Requests without an answer by then are dropped and repeated with back-off, so
/// that a slow admission webhook does not delay the deadline.
const MAX_ROUND: Duration = Duration::from_secs(10);
/// Most pods that an event names.
const MAX_NAMED: usize = 5;

/// Asks for the removal of the pods whose turn it is, of those that are bound to a Node. Returns
/// whether the drain still waits for any pod.
pub async fn drain(
    context: &Context,
    node: &Node,
    claim: Option<&NodeClaim>,
    deadline: Option<Timestamp>,
    bound: Vec<Arc<Pod>>,
) -> bool {
    let now = context.clock.now();
    let name = node.name_any();
    let uids = bound.iter().filter_map(|pod| pod.uid()).map(str::to_owned).collect();
    context.memory().evictions.retain(&name, &uids);
    let round = round(bound, deadline, now);
    let overdue = round.overdue.iter().map(|pod| (pod, true));
    let requests: Vec<_> = overdue.chain(round.evict.iter().map(|pod| (pod, false))).collect();
    let requests = stream::iter(requests).for_each_concurrent(MAX_REQUESTS, |(pod, overdue)| {
        let name = name.as_str();
        async move {
            let uid = pod.uid().unwrap_or_default();
            if !context.memory().evictions.is_due(name, uid, now) {
                return;
            }
            context.memory().evictions.begin(name, uid, now);
            let refusal = if overdue {
                force_delete(context, pod, claim, deadline, now).await
            } else {
                evict(context, pod, claim).await
            };
            context.memory().evictions.end(name, uid, refusal);
        }
    });
    tokio::select! {
        biased;
        () = requests => {}
        () = context.clock.sleep(MAX_ROUND) => {}
    }
    for pod in round.evict.iter().chain(&round.protected) {
        do_not_disrupt::report(context, pod);
    }
    report(context, node, &round);
    round.waits
}

/// Publishes which pods hold up the drain, and why.
fn report(context: &Context, node: &Node, round: &Round) {
    let name = node.name_any();
    let blocked: Vec<String> = {
        let memory = context.memory();
        let refused = round.overdue.iter().chain(&round.evict).filter_map(|pod| {
            let refusal = memory.evictions.refusal(&name, pod.uid().unwrap_or_default())?;
            Some(format!("{} ({refusal})", pod.key()))
        });
        let protected = round.protected.iter();
        let protected = protected.map(|pod| format!("{} ({})", pod.key(), labels::DO_NOT_DISRUPT));
        protected.chain(refused).collect()
    };
    if blocked.is_empty() {
        return;
    }
    let more = blocked.len().saturating_sub(MAX_NAMED);
    let tail = if more > 0 { format!(" and {more} other(s)") } else { String::new() };
    let message = format!(
        "Failed to drain node, {} pod(s) may not be evicted: {}{tail}",
        blocked.len(),
        blocked.iter().take(MAX_NAMED).cloned().collect::<Vec<_>>().join(", ")
    );
    context.events.publish(node, Severity::Warning, "FailedDraining", &message);
}

/// One round of a drain.
#[derive(Debug, Default, PartialEq)]
struct Round {
    /// Pods to delete now, so that they are gone by the deadline.
    overdue: Vec<Arc<Pod>>,
    /// Pods to evict: those of the lowest tier that has any.
    evict: Vec<Arc<Pod>>,
    /// Pods of that tier that `karpenter.sh/do-not-disrupt` protects.
    protected: Vec<Arc<Pod>>,
    /// Whether the drain waits for any pod, terminating ones included.
    waits: bool,
}

fn round(bound: Vec<Arc<Pod>>, deadline: Option<Timestamp>, now: Timestamp) -> Round {
    let drained: Vec<Arc<Pod>> =
        bound.into_iter().filter(|pod| pods::is_drainable(pod, now)).collect();
    let waits = !drained.is_empty();
    let (overdue, rest): (Vec<_>, Vec<_>) =
        drained.into_iter().partition(|pod| is_overdue(pod, deadline, now));
    let lowest = rest.iter().map(|pod| tier(pod)).min();
    let next =
        rest.into_iter().filter(|pod| Some(tier(pod)) == lowest && !pods::is_terminating(pod));
    let (protected, evict) = next.partition(|pod| pods::is_do_not_disrupt(pod, now));
    Round { overdue, evict, protected, waits }
}

/// Position of a pod in the drain order: plain pods, DaemonSet pods, critical pods, critical
/// DaemonSet pods.
fn tier(pod: &Pod) -> u8 {
    let class = pod.spec().priority_class_name.as_deref();
    let critical = matches!(class, Some("system-cluster-critical" | "system-node-critical"));
    u8::from(pods::is_daemon(pod)) + 2 * u8::from(critical)
}

/// Whether a pod has to be deleted now to be gone by the deadline.
fn is_overdue(pod: &Pod, deadline: Option<Timestamp>, now: Timestamp) -> bool {
    let Some(deadline) = deadline else { return false };
    let grace = pod.spec().termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE);
    let grace = SignedDuration::from_secs(grace);
    match pod.deletion() {
        Some(due) => due > deadline,
        None => deadline.duration_since(now) < grace,
    }
}

/// Deletes a pod so that it is gone by the deadline, whatever protects it: that is the meaning of
/// `terminationGracePeriod`. Returns the server's message if it refused.
async fn force_delete(
    context: &Context,
    pod: &Pod,
    claim: Option<&NodeClaim>,
    deadline: Option<Timestamp>,
    now: Timestamp,
) -> Option<String> {
    let left = deadline.map_or(1, |deadline| deadline.duration_since(now).as_secs()).max(1);
    let seconds = u32::try_from(left).unwrap_or(u32::MAX);
    let params = DeleteParams { grace_period_seconds: Some(seconds), ..same_pod(pod) };
    let deleted = pods_api(context, pod).delete(pod.name(), &params).await;
    if deleted.is_ok() {
        let message = format!(
            "Deleted the pod to fit the node's termination time, with {seconds} s of grace"
        );
        context.events.publish(pod, Severity::Normal, "Disrupted", &message);
        count_drained(context, claim);
    }
    refusal(deleted)
}

/// Evicts a pod. Returns the server's message if it refused.
async fn evict(context: &Context, pod: &Pod, claim: Option<&NodeClaim>) -> Option<String> {
    let params = EvictParams { delete_options: Some(same_pod(pod)), ..EvictParams::default() };
    let evicted = pods_api(context, pod).evict(pod.name(), &params).await;
    context.metrics.increment(&table::PODS_EVICTION_REQUESTS, &[&code(&evicted)]);
    if evicted.is_ok() {
        count_drained(context, claim);
        let message = format!("Evicted pod: {}", reason_of(claim));
        context.events.publish(pod, Severity::Normal, "Evicted", &message);
    }
    refusal(evicted)
}

/// Reason of the disruption that a drain belongs to.
fn reason_of(claim: Option<&NodeClaim>) -> &str {
    let command =
        claim.and_then(|claim| conditions::get(claim_conditions(claim), DISRUPTION_REASON));
    command.map_or("Forceful Termination", |condition| condition.reason.as_str())
}

/// Counts a pod that was evicted or deleted.
fn count_drained(context: &Context, claim: Option<&NodeClaim>) {
    let reason = reason_of(claim);
    context.metrics.increment(&table::PODS_DRAINED, &[reason]);
    let pool = claim.and_then(pool_of).unwrap_or_default();
    context.metrics.increment(&table::EVICTIONS, &[pool, reason]);
}

/// HTTP status of an answer, as a label value.
fn code<T>(answer: &Result<T, kube::Error>) -> String {
    match answer {
        Ok(_) => "200".to_owned(),
        Err(kube::Error::Api(status)) => status.code.to_string(),
        Err(_) => "<error>".to_owned(),
    }
}

/// The message of a refusal; `None` if the pod was removed, is gone, or another one has its name.
fn refusal<T>(answer: Result<T, kube::Error>) -> Option<String> {
    match answer {
        Ok(_) => None,
        Err(error) if is_not_found(&error) || is_conflict(&error) => None,
        Err(kube::Error::Api(status)) => Some(status.message.clone()),
        Err(error) => Some(error.to_string()),
    }
}

/// Delete parameters that spare another pod of the same name.
fn same_pod(pod: &Pod) -> DeleteParams {
    let same = Preconditions { uid: pod.uid().map(str::to_owned), resource_version: None };
    DeleteParams { preconditions: Some(same), ..DeleteParams::default() }
}

fn pods_api(context: &Context, pod: &Pod) -> Api<core::Pod> {
    Api::namespaced(context.client.clone(), pod.namespace())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, pod};
    use serde_json::{Value, json};

    fn classed(name: &str, class: &str, owner: &str) -> Arc<Pod> {
        let owners = json!([{ "apiVersion": "apps/v1", "kind": owner, "name": "o", "uid": "u" }]);
        let object = json!({
            "metadata": { "ownerReferences": owners }, "spec": { "priorityClassName": class },
        });
        Arc::new(pod("shop", name, object).into())
    }

    fn names(pods: &[Arc<Pod>]) -> Vec<String> {
        pods.iter().map(|pod| pod.name().to_owned()).collect()
    }

    #[test]
    fn tiers_are_drained_from_plain_pods_to_critical_daemons() {
        let plain = classed("plain", "", "ReplicaSet");
        let daemon = classed("daemon", "", "DaemonSet");
        let critical = classed("critical", "system-cluster-critical", "ReplicaSet");
        let last = classed("last", "system-node-critical", "DaemonSet");
        let mut left = vec![last, critical, daemon, plain];
        for expected in ["plain", "daemon", "critical", "last"] {
            let round = round(left.clone(), None, at(0));
            assert_eq!(names(&round.evict), [expected]);
            assert!(round.waits);
            left.pop();
        }
        assert_eq!(round(left, None, at(0)), Round::default());
    }

    #[test]
    fn a_terminating_pod_is_waited_for_and_not_evicted_again() {
        let leaving = json!({ "metadata": { "deletionTimestamp": "1970-01-01T00:00:30Z" } });
        let round = round(vec![Arc::new(pod("shop", "web", leaving).into())], None, at(0));
        assert!(round.evict.is_empty() && round.waits);
    }

    #[test]
    fn a_protected_pod_is_not_evicted_but_deleted_in_time_for_the_deadline() {
        let annotations = json!({ "karpenter.sh/do-not-disrupt": "true" });
        let object = json!({
            "metadata": { "annotations": annotations },
            "spec": { "terminationGracePeriodSeconds": 60 },
        });
        let protected = || vec![Arc::new(pod("shop", "web", object.clone()).into())];
        assert_eq!(names(&round(protected(), None, at(0)).protected), ["web"]);
        assert_eq!(names(&round(protected(), Some(at(60)), at(0)).protected), ["web"]);
        assert_eq!(names(&round(protected(), Some(at(60)), at(1)).overdue), ["web"]);
    }

    fn overdue(metadata: &Value, deadline: i64, now: i64) -> bool {
        let pod = pod("shop", "web", json!({ "metadata": metadata }));
        is_overdue(&pod.into(), Some(at(deadline)), at(now))
    }

    #[test]
    fn pods_without_a_grace_period_need_thirty_seconds() {
        assert!(!overdue(&json!({}), 100, 70));
        assert!(overdue(&json!({}), 100, 71));
    }

    #[test]
    fn a_terminating_pod_is_overdue_if_it_ends_after_the_deadline() {
        let ends = json!({ "deletionTimestamp": "1970-01-01T00:02:00Z" });
        assert!(overdue(&ends, 119, 0));
        assert!(!overdue(&ends, 120, 119));
    }
}
