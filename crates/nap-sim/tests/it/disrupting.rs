//! Fewer and cheaper machines, and nobody disturbed without need.

use std::sync::Mutex;

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt};
use nap_api::nodeclaim::condition::INITIALIZED;
use nap_api::{NodePool, conditions, labels};
use nap_units::UsdPerHour;
use serde_json::json;

use crate::harness::User;

fn price(user: &User) -> UsdPerHour {
    user.world.azure().machines().iter().map(|machine| machine.price).sum()
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_too_large_is_replaced_and_the_pods_never_wait_for_the_new_one() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(json!({})).await;
        user.deploy("inflate", 3, json!({})).await;
        user.until_running(3).await;
        let (before, old) = (price(&user), user.claims().await[0].name_any());
        user.scale("inflate", 1).await;
        user.until("the fleet is cheaper", async || price(&user) < before && user.machines() == 1)
            .await;
        let told = user.events("DisruptionTerminating").await;
        assert!(
            told.iter().any(|text| text.contains("replace") && text.contains("saving $")),
            "{told:?}"
        );
        user.until("the old claim is gone", async || {
            user.claims().await.iter().all(|claim| claim.name_any() != old)
        })
        .await;
        user.until_running(1).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn empty_nodes_go_after_consolidate_after_and_not_before() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(json!({ "spec": { "disruption": { "consolidateAfter": "10m" } } })).await;
        user.deploy("inflate", 1, json!({})).await;
        user.until_running(1).await;
        user.scale("inflate", 0).await;
        user.pass(540).await;
        assert_eq!(user.machines(), 1, "removed before its time");
        user.pass(240).await;
        assert_eq!(user.machines(), 0, "not removed after its time");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn never_means_never_and_a_budget_of_zero_blocks() {
    for disruption in
        [json!({ "consolidateAfter": "Never" }), json!({ "budgets": [{ "nodes": "0" }] })]
    {
        let user = User::new().await;
        user.run(async {
            user.default_pool(json!({ "spec": { "disruption": disruption } })).await;
            user.deploy("inflate", 1, json!({})).await;
            user.until_running(1).await;
            user.scale("inflate", 0).await;
            user.pass(3600).await;
            assert_eq!(user.machines(), 1, "{disruption}");
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn do_not_disrupt_is_honoured_until_it_is_taken_away() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(json!({})).await;
        user.deploy("inflate", 3, json!({})).await;
        user.until_running(3).await;
        let pods: Vec<String> =
            user.list::<Pod>().await.iter().map(ResourceExt::name_any).collect();
        let api: Api<Pod> = Api::namespaced(user.client.clone(), "default");
        let annotate = async |value: serde_json::Value| {
            let patch = json!({ "metadata": { "annotations": { labels::DO_NOT_DISRUPT: value } } });
            for pod in &pods {
                let _gone = api
                    .patch(
                        pod,
                        &kube::api::PatchParams::default(),
                        &kube::api::Patch::Merge(&patch),
                    )
                    .await;
            }
        };
        annotate(json!("true")).await;
        let before = user.machines_ever();
        user.scale("inflate", 1).await;
        user.pass(900).await;
        assert_eq!(user.machines_ever(), before, "a protected pod's node was disrupted");
        let told = user.events("DisruptionBlocked").await;
        assert!(told.iter().any(|text| text.contains("do-not-disrupt")), "{told:?}");
        annotate(serde_json::Value::Null).await;
        user.until("the node is replaced", async || user.machines_ever() > before).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_changed_template_replaces_nodes_and_the_new_one_is_ready_before_the_old_one_drains() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(json!({})).await;
        user.deploy("inflate", 3, json!({})).await;
        user.until_running(3).await;
        let old = user.claims().await[0].name_any();
        let patch =
            json!({ "spec": { "template": { "metadata": { "labels": { "wave": "two" } } } } });
        user.patch::<NodePool>("default", patch).await;
        let order = Mutex::new(Vec::new());
        user.until("the old node is gone", async || {
            let claims = user.claims().await;
            let leaving = claims
                .iter()
                .any(|one| one.name_any() == old && one.metadata.deletion_timestamp.is_some());
            let ready = claims.iter().any(|one| {
                one.name_any() != old
                    && one
                        .status
                        .as_ref()
                        .is_some_and(|status| conditions::is_true(&status.conditions, INITIALIZED))
            });
            order.lock().unwrap().push((leaving, ready));
            claims.iter().all(|one| one.name_any() != old)
        })
        .await;
        assert!(
            order.lock().unwrap().iter().all(|(leaving, ready)| *ready || !leaving),
            "drained before the new one was ready"
        );
        user.until_running(3).await;
        assert!(user.claims().await.iter().all(|claim| claim.labels()["wave"] == "two"));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn steady_demand_is_left_alone() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(json!({})).await;
        user.deploy("large", 7, json!({})).await;
        let small = json!({ "spec": { "containers": [{
            "name": "app", "image": "example.com/app:1", "resources": { "requests": { "cpu": "300m", "memory": "2Gi" } },
        }] } });
        user.deploy("small", 9, small).await;
        user.until_running(16).await;
        user.pass(3600).await;
        let settled = user.machines_ever();
        user.pass(6 * 3600).await;
        assert_eq!(user.machines_ever(), settled, "machines were replaced although nothing changed");
        assert_eq!(user.running().await, 16);
    })
    .await;
}
