//! Termination: deleting a Node, NodeClaim or NodePool drains the node and deletes the VM.

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt};
use nap_api::{NodeClaim, NodePool};
use serde_json::json;

use crate::harness::User;

#[tokio::test(start_paused = true)]
async fn deleting_a_node_drains_it_and_its_pods_run_again_elsewhere() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(json!({})).await;
        user.deploy("inflate", 3, json!({})).await;
        user.until_running(3).await;
        let old = user.nodes().await[0].name_any();
        user.delete::<Node>(&old).await;
        user.until("the node is gone", async || {
            user.nodes().await.iter().all(|node| node.name_any() != old)
        })
        .await;
        user.until_running(3).await;
        user.pass(300).await;
        assert_eq!(user.machines(), user.claims().await.len());
        assert_eq!(user.running().await, 3);
        assert!(!user.events("Evicted").await.is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn deleting_a_nodeclaim_or_nodepool_deletes_the_vm() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(json!({})).await;
        user.deploy("inflate", 10, json!({})).await;
        user.until_running(10).await;
        let claim = user.claims().await[0].name_any();
        user.delete::<NodeClaim>(&claim).await;
        let gone = async || user.claims().await.iter().all(|one| one.name_any() != claim);
        user.until("the claim is gone", gone).await;
        user.until_running(10).await;
        user.delete::<NodePool>("default").await;
        user.until("everything is gone", async || {
            user.machines() == 0 && user.claims().await.is_empty() && user.nodes().await.is_empty()
        })
        .await;
        assert_eq!(user.running().await, 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn drain_waits_for_the_pod_disruption_budget() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(json!({})).await;
        user.deploy("guarded", 2, json!({})).await;
        user.until_running(2).await;
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(user.client.clone(), "default");
        let budget = json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": "guard" },
            "spec": { "minAvailable": 2, "selector": { "matchLabels": { "app": "guarded" } } },
        });
        budgets.create(&PostParams::default(), &serde_json::from_value(budget).unwrap()).await.unwrap();
        user.pass(5).await;
        let before: Vec<String> = user.list::<Pod>().await.iter().map(ResourceExt::name_any).collect();
        let node = user.nodes().await[0].name_any();
        user.delete::<Node>(&node).await;
        user.pass(600).await;
        let after: Vec<String> = user.list::<Pod>().await.iter().map(ResourceExt::name_any).collect();
        assert_eq!(before, after, "a pod was evicted against its budget");
        assert!(user.nodes().await.iter().any(|one| one.name_any() == node));
        assert!(!user.events("FailedDraining").await.is_empty());
        budgets.delete("guard", &DeleteParams::default()).await.unwrap();
        user.until("the node is gone", async || user.nodes().await.iter().all(|one| one.name_any() != node))
            .await;
        user.until_running(2).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn termination_grace_period_overrides_the_pod_disruption_budget() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(
            json!({ "spec": { "template": { "spec": { "terminationGracePeriod": "5m" } } } }),
        )
        .await;
        let protected =
            json!({ "metadata": { "annotations": { "karpenter.sh/do-not-disrupt": "true" } } });
        user.deploy("protected", 1, protected).await;
        user.until_running(1).await;
        let node = user.nodes().await[0].name_any();
        user.delete::<Node>(&node).await;
        user.pass(200).await;
        assert!(
            user.nodes().await.iter().any(|one| one.name_any() == node),
            "the pod was not waited for"
        );
        user.pass(200).await;
        assert!(
            user.nodes().await.iter().all(|one| one.name_any() != node),
            "the wait did not end"
        );
        user.until_running(1).await;
    })
    .await;
}

/// A volume of a pod that ran on the node.
async fn attach(user: &User, node: &str) -> VolumeAttachment {
    let source = json!({ "persistentVolumeName": "pvc-1" });
    let spec = json!({ "attacher": "disks.example.com", "nodeName": node, "source": source });
    user.create(json!({ "metadata": { "name": "csi-1" }, "spec": spec })).await
}

#[tokio::test(start_paused = true)]
async fn instance_is_kept_until_volumes_are_detached() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(json!({})).await;
        user.deploy("inflate", 1, json!({})).await;
        user.until_running(1).await;
        let node = user.nodes().await[0].name_any();
        attach(&user, &node).await;
        user.delete::<Node>(&node).await;
        user.pass(300).await;
        let exists = || user.world.azure().machines().iter().any(|one| one.node_name == node);
        assert!(exists(), "the VM was deleted with an attached disk");
        let events = user.events("AwaitingVolumeDetachment").await;
        assert!(events[0].contains("csi-1"), "{events:?}");
        user.delete::<VolumeAttachment>("csi-1").await;
        user.until("the VM is gone", async || !exists()).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn termination_grace_period_bounds_the_wait_for_volumes() {
    let user = User::new().await;
    user.run(async {
        let grace = json!({ "terminationGracePeriod": "5m" });
        user.default_pool(json!({ "spec": { "template": { "spec": grace } } })).await;
        user.deploy("inflate", 1, json!({})).await;
        user.until_running(1).await;
        let node = user.nodes().await[0].name_any();
        attach(&user, &node).await;
        user.delete::<Node>(&node).await;
        user.pass(280).await;
        assert!(user.nodes().await.iter().any(|one| one.name_any() == node));
        user.pass(80).await;
        assert!(user.nodes().await.iter().all(|one| one.name_any() != node));
        let events = user.events("TerminationGracePeriodExpiring").await;
        assert!(events.len() >= 2, "on the Node and on the NodeClaim: {events:?}");
    })
    .await;
}
