//! Disruption: emptiness, consolidation, drift, budgets.

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

/// Seconds that an evicted pod may need to run again on a node that is ready: less than the 40 s
/// that the fastest VM needs to be created and to boot.
const MAX_DOWNTIME: u32 = 10;

#[tokio::test(start_paused = true)]
async fn too_large_node_is_replaced_without_downtime_of_its_pods() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(json!({})).await;
        user.deploy("inflate", 3, json!({})).await;
        user.until_running(3).await;
        let (before, old) = (price(&user), user.claims().await[0].name_any());
        user.scale("inflate", 1).await;
        user.pass(1800).await;
        assert_eq!(user.machines_ever(), 1, "the room may be needed again while the pool grows");
        // Longest time without a running pod, in seconds, until the fleet is cheaper.
        let (mut without, mut longest) = (0, 0);
        for _ in 0..3600 {
            if price(&user) < before && user.machines() == 1 && user.running().await == 1 {
                break;
            }
            without = if user.running().await == 0 { without + 1 } else { 0 };
            longest = longest.max(without);
            user.pass(1).await;
        }
        assert!(price(&user) < before && user.machines() == 1, "not replaced within an hour");
        assert!(longest <= MAX_DOWNTIME, "no pod ran for {longest} s");
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
async fn empty_nodes_are_removed_after_consolidate_after_and_not_before() {
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
async fn consolidate_after_never_and_a_zero_budget_block_disruption() {
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
async fn do_not_disrupt_blocks_disruption_until_it_is_removed() {
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
async fn drifted_node_is_drained_after_its_replacement_is_ready() {
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
async fn steady_demand_causes_no_disruption() {
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
