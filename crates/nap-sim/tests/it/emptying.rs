//! Empty nodes that pending pods need: a scheduler of the user's own that binds late.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use nap_api::nodeclaim::condition::DISRUPTION_REASON;
use nap_api::{NodeClaim, conditions};
use serde_json::json;

use crate::harness::User;

fn pods(user: &User) -> Api<Pod> {
    Api::namespaced(user.client.clone(), "default")
}

/// A pod of one CPU that its own scheduler has found unschedulable.
async fn wait_for_a_place(user: &User, name: &str) {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": "default" },
        "spec": { "schedulerName": "slow", "containers": [{
            "name": "app", "image": "example.com/app:1",
            "resources": { "requests": { "cpu": "1", "memory": "1Gi" } },
        }] },
    });
    let pod: Pod = serde_json::from_value(pod).unwrap();
    pods(user).create(&PostParams::default(), &pod).await.unwrap();
    let condition = json!({
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "it takes its time", "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let status = json!({ "status": { "conditions": [condition] } });
    pods(user).patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_empty_node_that_a_pending_pod_needs_stays_until_the_pod_goes() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(
            json!({ "spec": { "disruption": { "budgets": [{ "nodes": "100%" }] } } }),
        )
        .await;
        user.deploy("inflate", 1, json!({})).await;
        user.until_running(1).await;
        user.scale("inflate", 0).await;
        user.until("the node is empty", async || user.list::<Pod>().await.is_empty()).await;
        wait_for_a_place(&user, "late").await;
        for _ in 0..180 {
            user.pass(10).await;
            assert_eq!((user.machines(), user.machines_ever()), (1, 1), "the node is needed");
        }
        pods(&user).delete("late", &DeleteParams::default()).await.unwrap();
        user.until("the node is removed", async || user.machines() == 0).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn of_two_empty_nodes_the_one_that_nothing_needs_goes() {
    let user = User::new().await;
    user.run(async {
        let apart = json!({ "spec": { "affinity": { "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [{
                "labelSelector": { "matchLabels": { "app": "inflate" } },
                "topologyKey": "kubernetes.io/hostname",
            }],
        } } } });
        user.default_pool(
            json!({ "spec": { "disruption": { "budgets": [{ "nodes": "100%" }] } } }),
        )
        .await;
        user.deploy("inflate", 2, apart).await;
        user.until_running(2).await;
        assert_eq!(user.machines(), 2);
        user.scale("inflate", 0).await;
        user.until("the node is empty", async || user.list::<Pod>().await.is_empty()).await;
        wait_for_a_place(&user, "late").await;
        user.pass(1800).await;
        assert_eq!((user.machines(), user.machines_ever()), (1, 2), "one is needed");
    })
    .await;
}

fn is_leaving(claim: &NodeClaim) -> bool {
    let marked = |all: &[_]| conditions::is_true(all, DISRUPTION_REASON);
    claim.metadata.deletion_timestamp.is_some()
        || claim.status.as_ref().is_some_and(|status| marked(&status.conditions))
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_comes_just_before_an_empty_node_would_go_keeps_it() {
    let mut kept = 0;
    // From before the earliest to after the latest time at which a pass removes the node.
    for tenths in (65..=255).step_by(27) {
        let user = User::new().await;
        user.run(async {
            user.default_pool(
                json!({ "spec": { "disruption": { "budgets": [{ "nodes": "100%" }] } } }),
            )
            .await;
            user.deploy("inflate", 1, json!({})).await;
            user.until_running(1).await;
            user.scale("inflate", 0).await;
            user.until("the node is empty", async || user.list::<Pod>().await.is_empty()).await;
            user.world.clock().sleep(Duration::from_millis(100 * tenths)).await;
            let is_late = user.claims().await.iter().any(is_leaving);
            wait_for_a_place(&user, "late").await;
            user.pass(60).await;
            if !is_late {
                kept += 1;
                assert_eq!(user.machines_ever(), 1, "after {tenths} tenths of a second");
            }
        })
        .await;
    }
    assert!((1..8).contains(&kept), "{kept} of 8 came in time");
}
