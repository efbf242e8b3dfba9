//! Initialization: a registered Node is ready, free of startup taints, and reports its resources.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use nap_api::nodeclaim::condition::{INITIALIZED, REGISTERED};
use nap_api::{NodeClaim, Taint, conditions, labels};
use nap_units::Rounding;

use super::{Step, live_claim, nomination};
use crate::cluster::{Index, claim_conditions, claim_is, is_ready, pods};
use crate::context::{Context, Error};
use crate::events::Severity;
use crate::metrics::Disrupted;

/// Interval between two looks. Every change of the Node brings one too; this covers a missed event.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);
/// Time after registration until a Node that its pods wait for in vain is given up. It is long: GPU
/// drivers and startup taints may take many minutes, and another Node may fare no better.
const INITIALIZATION_TIMEOUT: SignedDuration = SignedDuration::from_hours(1);

/// Marks the NodeClaim and its Node as initialized once pods can run.
pub async fn initialize(context: &Context, name: &str) -> Result<Step, Error> {
    let Some(claim) = live_claim(context, name) else { return Ok(Step::Deleted) };
    if claim_is(&claim, INITIALIZED) {
        return Ok(Step::Done);
    }
    let node_name = claim.status.as_ref().and_then(|status| status.node_name.clone());
    let node = node_name.and_then(|node| context.index().node(&node).cloned());
    if let Some((reason, message)) = blocker(node.as_deref(), &claim) {
        context
            .edit_claim_status(name, |edit| edit.set_unknown(INITIALIZED, reason, &message))
            .await?;
        if is_overdue(&context.index(), &claim, context.clock.now()) {
            return give_up(context, &claim, &message).await;
        }
        return Ok(Step::Wait(RETRY_INTERVAL));
    }
    let node = node.map(|node| node.name_any()).unwrap_or_default();
    context
        .update::<Node>(&node, |node| {
            let value = "true".to_owned();
            node.labels_mut().insert(labels::INITIALIZED.to_owned(), value.clone()) != Some(value)
        })
        .await?;
    context.edit_claim_status(name, |edit| edit.set_true(INITIALIZED)).await?;
    tracing::info!(nodeclaim = name, node, "initialized nodeclaim");
    Ok(Step::Done)
}

/// Whether a Node has not been initialized in time, the pods that it was launched for still wait,
/// and no other pod would miss it. A Node that no pod waits for is kept: to launch another in its
/// place would help nobody.
fn is_overdue(index: &Index, claim: &NodeClaim, now: Timestamp) -> bool {
    let since = conditions::since(claim_conditions(claim), REGISTERED);
    let node = claim.status.as_ref().and_then(|status| status.node_name.as_deref());
    let mut pods = node.into_iter().flat_map(|node| index.pods_on(node));
    since.is_some_and(|since| now.duration_since(since) >= INITIALIZATION_TIMEOUT)
        && !nomination::waiting_pods(index, claim).is_empty()
        && !pods.any(|pod| pods::is_reschedulable(pod))
}

async fn give_up(context: &Context, claim: &NodeClaim, message: &str) -> Result<Step, Error> {
    let reason = "initialization_timeout";
    tracing::warn!(nodeclaim = claim.name_any(), reason, message, "deleting nodeclaim");
    let message = format!("Node is not initialized an hour after it registered: {message}");
    context.events.publish(claim, Severity::Warning, "InitializationTimeout", &message);
    context.count_disrupted(claim, Disrupted::Other(reason), 0);
    context.delete_claim(claim).await?;
    Ok(Step::Deleted)
}

/// Reason and message of the first thing that keeps a Node from being initialized.
fn blocker(node: Option<&Node>, claim: &NodeClaim) -> Option<(&'static str, String)> {
    let Some(node) = node else {
        return Some(("NodeNotFound", "Node not registered with cluster".to_owned()));
    };
    if !is_ready(node) {
        return Some(("NodeNotReady", "Node status is NotReady".to_owned()));
    }
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    let taints: Vec<Taint> = taints.into_iter().flatten().map(Taint::from).collect();
    let is_startup =
        |taint: &&Taint| claim.spec.startup_taints.iter().any(|one| one.matches(taint));
    if let Some(taint) = taints.iter().find(is_startup) {
        return Some(("StartupTaintsExist", format!("StartupTaint {:?} still exists", taint.key)));
    }
    if let Some(taint) = taints.iter().find(|taint| taint.is_ephemeral()) {
        let message = format!("KnownEphemeralTaint {:?} still exists", taint.key);
        return Some(("KnownEphemeralTaintsExist", message));
    }
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    let reported = pods::node_resources(allocatable);
    let mut requests = claim.spec.resources.requests.iter();
    let missing = requests
        .find(|(name, wanted)| wanted.to_milli(Rounding::Up) > 0 && reported.get(name) == 0);
    missing.map(|(name, _)| {
        ("ResourceNotRegistered", format!("Resource {name:?} was requested but not registered"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, claim, index, node, pending_pod, pod};
    use serde_json::{Value, json};

    fn reason(node_object: Value) -> Option<&'static str> {
        let claim = claim(
            "c",
            json!({ "spec": {
                "startupTaints": [{ "key": "starting", "effect": "NoSchedule" }],
                "resources": { "requests": { "cpu": "1", "example.com/device": "1" } },
            } }),
        );
        blocker(Some(&node("n", node_object)), &claim).map(|(reason, _)| reason)
    }

    fn ready(allocatable: &Value, taints: &Value) -> Value {
        json!({
            "spec": { "taints": taints },
            "status": {
                "allocatable": allocatable, "conditions": [{ "type": "Ready", "status": "True" }],
            },
        })
    }

    #[test]
    fn each_gate_of_initialization_has_its_reason() {
        let all = json!({ "cpu": "4", "example.com/device": "1" });
        let taint = |key: &str, effect: &str| json!([{ "key": key, "effect": effect }]);
        assert_eq!(reason(json!({})), Some("NodeNotReady"));
        let starting = taint("starting", "NoSchedule");
        assert_eq!(reason(ready(&all, &starting)), Some("StartupTaintsExist"));
        let ephemeral = taint("node.kubernetes.io/not-ready", "NoSchedule");
        assert_eq!(reason(ready(&all, &ephemeral)), Some("KnownEphemeralTaintsExist"));
        let few = json!({ "cpu": "4" });
        assert_eq!(reason(ready(&few, &json!([]))), Some("ResourceNotRegistered"));
        assert_eq!(reason(ready(&all, &taint("dedicated", "NoSchedule"))), None);
        assert_eq!(blocker(None, &claim("c", json!({}))).unwrap().0, "NodeNotFound");
    }

    #[test]
    fn a_node_is_overdue_after_an_hour_if_its_planned_pods_still_wait() {
        let conditions = [crate::testing::condition("Registered", "True")];
        let status = json!({ "nodeName": "n", "conditions": conditions });
        let annotations = json!({ labels::PLAN: r#"{"version":1,"pods":["shop/web"]}"# });
        let metadata = json!({ "annotations": annotations });
        let claim = claim("c", json!({ "metadata": metadata, "status": status }));
        let mut index = index([claim.clone()]);
        assert!(!is_overdue(&index, &claim, at(7200)), "no pod waits");
        index.apply(pending_pod("shop", "web"), at(0));
        assert!(!is_overdue(&index, &claim, at(3599)));
        assert!(is_overdue(&index, &claim, at(3600)));
        index.apply(pod("shop", "tolerant", json!({ "spec": { "nodeName": "n" } })), at(0));
        assert!(!is_overdue(&index, &claim, at(7200)), "a pod runs there");
    }
}
