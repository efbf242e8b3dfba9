//! Life of a pod: start, readiness, grace period.

use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::world::{World, phase};

async fn ready_node() -> World {
    let world = World::start();
    world.create_vm("vm").await;
    world.wait(20).await;
    world
}

#[tokio::test(start_paused = true)]
async fn bound_pod_runs_and_becomes_ready() {
    let world = ready_node().await;
    world.create_pod("web", json!({}), json!({})).await;
    world.wait(1).await;
    assert_eq!(phase(&world.pod("web").await.unwrap()), ("Pending".to_owned(), false));
    world.wait(2).await;
    let pod = world.pod("web").await.unwrap();
    assert_eq!(phase(&pod), ("Running".to_owned(), true));
    let status = pod.status.unwrap();
    assert!(status.pod_ip.is_some() && status.start_time.is_some());
    assert!(status.container_statuses.unwrap()[0].ready);
}

#[tokio::test(start_paused = true)]
async fn unhealthy_pod_runs_and_never_becomes_ready() {
    let world = ready_node().await;
    let unhealthy = json!({ "labels": { "kwok.x-k8s.io/stage": "unhealthy" } });
    world.create_pod("web", unhealthy, json!({})).await;
    world.wait(600).await;
    assert_eq!(phase(&world.pod("web").await.unwrap()), ("Running".to_owned(), false));
}

#[tokio::test(start_paused = true)]
async fn pod_without_hooks_stops_at_once_and_one_with_a_hook_after_it() {
    let world = ready_node().await;
    let hook = json!({ "lifecycle": { "preStop": { "sleep": { "seconds": 60 } } } });
    world.create_pod("plain", json!({}), json!({})).await;
    world.create_pod("slow", json!({}), hook).await;
    world.wait(5).await;
    world.delete_pod("plain", None).await;
    world.delete_pod("slow", None).await;
    world.wait(3).await;
    assert!(world.pod("plain").await.is_none());
    world.wait(55).await;
    assert!(world.pod("slow").await.is_some());
    world.wait(5).await;
    assert!(world.pod("slow").await.is_none());
}

#[tokio::test(start_paused = true)]
async fn grace_period_cuts_the_hook_short() {
    let world = ready_node().await;
    let delay = json!({ "annotations": { "pod-delete.stage.kwok.x-k8s.io/delay": "300s" } });
    world.create_pod("slow", delay, json!({})).await;
    world.wait(5).await;
    world.delete_pod("slow", Some(30)).await;
    world.wait(28).await;
    assert!(world.pod("slow").await.is_some());
    world.wait(3).await;
    assert!(world.pod("slow").await.is_none());
}

#[tokio::test(start_paused = true)]
async fn second_delete_with_a_shorter_grace_is_honoured() {
    let world = ready_node().await;
    let delay = json!({ "annotations": { "pod-delete.stage.kwok.x-k8s.io/delay": "300s" } });
    world.create_pod("slow", delay, json!({})).await;
    world.wait(5).await;
    world.delete_pod("slow", Some(120)).await;
    world.wait(10).await;
    world.delete_pod("slow", Some(5)).await;
    world.wait(1).await;
    assert!(world.pod("slow").await.is_none());
}

#[tokio::test(start_paused = true)]
async fn pods_restart_with_their_vm() {
    let world = ready_node().await;
    world.create_pod("web", json!({}), json!({})).await;
    world.wait(5).await;
    world.reboot_vm("vm").await;
    world.wait(30).await;
    let pod = world.pod("web").await.unwrap();
    assert_eq!(phase(&pod), ("Running".to_owned(), true));
    assert_eq!(pod.status.unwrap().container_statuses.unwrap()[0].restart_count, 1);
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_gone_vm_are_neither_run_nor_removed() {
    let world = ready_node().await;
    world.create_pod("web", json!({}), json!({})).await;
    world.wait(5).await;
    world.delete_vm("vm").await;
    world.wait(1).await;
    world.delete_pod("web", Some(30)).await;
    world.create_pod("late", json!({}), json!({})).await;
    world.wait(120).await;
    assert!(world.pod("web").await.unwrap().metadata.deletion_timestamp.is_some());
    assert_eq!(phase(&world.pod("late").await.unwrap()), ("Pending".to_owned(), false));
}

#[tokio::test(start_paused = true)]
async fn mirror_pods_are_ignored() {
    let world = ready_node().await;
    let mirror = json!({ "annotations": { "kubernetes.io/config.mirror": "x" } });
    world.create_pod("proxy", mirror, json!({})).await;
    world.wait(60).await;
    assert_eq!(phase(&world.pod("proxy").await.unwrap()), ("Pending".to_owned(), false));
}

#[tokio::test(start_paused = true)]
async fn pod_with_a_finalizer_is_removed_once_only() {
    let world = ready_node().await;
    world.create_pod("held", json!({ "finalizers": ["example.com/wait"] }), json!({})).await;
    world.wait(5).await;
    world.delete_pod("held", None).await;
    world.wait(60).await;
    let pod = world.pod("held").await.unwrap();
    assert_eq!(pod.metadata.deletion_grace_period_seconds, Some(0));
    let before = world.requests();
    let change = Patch::Merge(json!({ "metadata": { "annotations": { "a": "b" } } }));
    world.pods().patch("held", &PatchParams::default(), &change).await.unwrap();
    world.wait(10).await;
    assert_eq!(world.requests() - before, 1, "the renewal of the lease and nothing else");
}
