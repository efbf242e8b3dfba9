//! Node repair: a node that stays unhealthy is replaced, within budgets and while most others of
//! its NodePool are well.

use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use nap_api::{NodeClaim, NodePool, conditions};
use nap_controllers::Settings;
use nap_sim::faults::{Crash, Faults};
use serde_json::json;

use crate::harness::User;

fn repairing() -> Settings {
    Settings { node_repair: true, ..Settings::default() }
}

/// A world in which each pod has a node of its own.
async fn world(settings: Settings) -> User {
    User::in_region_with(settings, &["Standard_D2s_v5"]).await
}

/// A pool that may be disrupted freely, and a pod on each of `nodes` nodes.
async fn scale_up(user: &User, nodes: usize) -> Vec<String> {
    let disruption = json!({
        "budgets": [{ "nodes": "100%" }], "consolidateAfter": "Never",
        "consolidationPolicy": "WhenEmpty",
    });
    user.default_pool(json!({ "spec": { "disruption": disruption } })).await;
    // Pods that stay on a node that is not ready, so that only a repair moves them.
    let stays = json!([
        { "key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute" },
    ]);
    user.deploy("web", nodes, json!({ "spec": { "tolerations": stays } })).await;
    user.until_running(nodes).await;
    let initialized = async || {
        let claims = user.claims().await;
        let is_initialized = |claim: &NodeClaim| {
            let status = claim.status.clone().unwrap_or_default();
            conditions::is_true(&status.conditions, "Initialized")
        };
        claims.len() == nodes && claims.iter().all(is_initialized)
    };
    user.until("every node is initialized", initialized).await;
    node_names(user).await
}

async fn node_names(user: &User) -> Vec<String> {
    user.nodes().await.iter().map(ResourceExt::name_any).collect()
}

async fn has_node(user: &User, name: &str) -> bool {
    node_names(user).await.iter().any(|node| node == name)
}

fn break_node(user: &User, node: &str, lasts: &str) {
    let fault = format!("{{{lasts} notReady: {{machine: {node}}}}}");
    user.world.azure().schedule_fault(&fault).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_not_ready_for_ten_minutes_is_replaced_first_and_removed_then() {
    let user = world(repairing()).await;
    user.run(async {
        let nodes = scale_up(&user, 3).await;
        let node = &nodes[0];
        break_node(&user, node, "");
        user.pass(590).await;
        assert_eq!((node_names(&user).await, user.machines_ever()), (nodes.clone(), 3));
        user.until("a replacement is launched", async || user.machines_ever() == 4).await;
        assert!(has_node(&user, node).await, "the replacement comes first");
        user.until("the node is gone", async || !has_node(&user, node).await).await;
        user.until_running(3).await;
        user.pass(900).await;
        assert_eq!((user.machines(), user.machines_ever(), user.running().await), (3, 4, 3));
        let events = user.events("DisruptionTerminating").await;
        assert!(events.iter().any(|text| text.contains("Unhealthy: replace")), "{events:?}");
    })
    .await;
}

/// The condition by which AKS's node problem detector calls a node unhealthy.
#[tokio::test(start_paused = true)]
async fn a_node_that_aks_calls_unhealthy_is_replaced_at_once() {
    let user = world(repairing()).await;
    user.run(async {
        let nodes = scale_up(&user, 3).await;
        let node = &nodes[0];
        let condition = json!({
            "type": "kubernetes.azure.com/NodeHealthy", "status": "False", "reason": "KubeletDown",
            "message": "the node does not heal by itself",
        });
        let patch = Patch::Strategic(json!({ "status": { "conditions": [condition] } }));
        let how = PatchParams::default();
        user.api::<Node>().patch_status(node, &how, &patch).await.unwrap();
        user.until("the node is gone", async || !has_node(&user, node).await).await;
        user.until_running(3).await;
        assert_eq!((user.machines(), user.machines_ever()), (3, 4));
        for other in &nodes[1..] {
            assert!(has_node(&user, other).await, "{other} is well");
        }
        let events = user.events("DisruptionTerminating").await;
        assert!(events.iter().any(|text| text.contains("Unhealthy: replace")), "{events:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn pods_leave_a_node_that_is_not_ready_for_five_minutes() {
    let user = world(Settings::default()).await;
    user.run(async {
        user.default_pool(json!({})).await;
        user.deploy("web", 1, json!({})).await;
        user.until_running(1).await;
        let broken = node_names(&user).await[0].clone();
        let node_of = async || {
            let pods = user.list::<Pod>().await;
            pods.iter().filter_map(|pod| pod.spec.clone()?.node_name).collect::<Vec<_>>()
        };
        break_node(&user, &broken, "");
        user.pass(290).await;
        assert_eq!(node_of().await, [broken.as_str()], "tolerated for five minutes");
        let node = user.nodes().await.into_iter().find(|node| node.name_any() == broken).unwrap();
        let taints = node.spec.unwrap().taints.unwrap();
        let effects: Vec<&str> = taints
            .iter()
            .filter(|taint| taint.key == "node.kubernetes.io/not-ready")
            .map(|taint| taint.effect.as_str())
            .collect();
        assert_eq!(effects, ["NoSchedule", "NoExecute"]);
        user.until("the pod runs elsewhere", async || {
            user.running().await == 1 && !node_of().await.contains(&broken)
        })
        .await;
        let events = user.list::<Event>().await;
        let reasons: Vec<_> = events.iter().filter_map(|event| event.reason.as_deref()).collect();
        assert!(reasons.contains(&"TaintManagerEviction"), "{reasons:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_repaired_without_the_feature_gate() {
    let user = world(Settings::default()).await;
    user.run(async {
        let nodes = scale_up(&user, 1).await;
        break_node(&user, &nodes[0], "");
        user.pass(3600).await;
        assert_eq!((node_names(&user).await, user.machines_ever()), (nodes, 1));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn pods_on_a_broken_node_hold_up_its_repair_by_nothing() {
    let user = world(repairing()).await;
    user.run(async {
        let nodes = scale_up(&user, 1).await;
        let protected =
            json!({ "metadata": { "annotations": { "karpenter.sh/do-not-disrupt": "true" } } });
        let pod = user.list::<Pod>().await[0].name_any();
        let pods: kube::Api<Pod> = kube::Api::namespaced(user.client.clone(), "default");
        let patch = kube::api::Patch::Merge(&protected);
        pods.patch(&pod, &kube::api::PatchParams::default(), &patch).await.unwrap();
        user.patch::<Node>(&nodes[0], protected.clone()).await;
        break_node(&user, &nodes[0], "");
        user.until("the node is gone", async || !has_node(&user, &nodes[0]).await).await;
        user.until_running(1).await;
        assert_eq!(user.machines_ever(), 2);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_may_not_be_repaired_stays_and_says_why() {
    let user = world(repairing()).await;
    user.run(async {
        let nodes = scale_up(&user, 1).await;
        let annotations = json!({ "karpenter.sh/do-not-repair": "true" });
        user.patch::<Node>(&nodes[0], json!({ "metadata": { "annotations": annotations } })).await;
        break_node(&user, &nodes[0], "");
        user.pass(1800).await;
        assert_eq!((node_names(&user).await, user.machines_ever()), (nodes, 1));
        let events = user.events("DisruptionBlocked").await;
        assert!(events.iter().any(|text| text.contains("do-not-repair")), "{events:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn budgets_hold_a_repair_until_they_open() {
    let user = world(repairing()).await;
    user.run(async {
        let nodes = scale_up(&user, 1).await;
        let budgets = |nodes: &str| {
            let budgets = json!([{ "nodes": nodes, "reasons": ["Unhealthy"] }]);
            json!({ "spec": { "disruption": { "budgets": budgets } } })
        };
        user.patch::<NodePool>("default", budgets("0")).await;
        break_node(&user, &nodes[0], "");
        user.pass(1800).await;
        assert_eq!((node_names(&user).await, user.machines_ever()), (nodes.clone(), 1));
        let events = user.events("DisruptionBlocked").await;
        let closed =
            "No allowed disruptions for disruption reason Unhealthy due to blocking budget";
        assert!(events.iter().any(|text| text == closed), "{events:?}");
        user.patch::<NodePool>("default", budgets("1")).await;
        user.until("the node is gone", async || !has_node(&user, &nodes[0]).await).await;
        user.until_running(1).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn two_of_five_broken_nodes_are_left_alone_until_one_of_them_heals() {
    let user = world(repairing()).await;
    user.run(async {
        let nodes = scale_up(&user, 5).await;
        break_node(&user, &nodes[0], "");
        break_node(&user, &nodes[1], "for: 30m,");
        user.pass(1780).await;
        assert_eq!((node_names(&user).await, user.machines_ever()), (nodes.clone(), 5));
        let events = user.events("NodeRepairBlocked").await;
        let expected = "more than 20% of nodes in nodepool \"default\" are unhealthy";
        assert!(!events.is_empty() && events.iter().all(|text| text == expected), "{events:?}");
        user.until("the broken node is gone", async || !has_node(&user, &nodes[0]).await).await;
        user.until_running(5).await;
        user.pass(900).await;
        assert!(has_node(&user, &nodes[1]).await);
        assert_eq!((user.machines(), user.machines_ever()), (5, 6));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_heals_before_its_replacement_is_up_stays() {
    let user = world(repairing()).await;
    user.run(async {
        let nodes = scale_up(&user, 1).await;
        user.patch::<NodePool>(
            "default",
            json!({ "spec": { "disruption": { "consolidateAfter": "30s" } } }),
        )
        .await;
        break_node(&user, &nodes[0], "for: 620s,");
        user.until("a replacement is launched", async || user.machines_ever() == 2).await;
        user.pass(1800).await;
        assert_eq!((node_names(&user).await, user.machines_ever()), (nodes.clone(), 2));
        let node = &user.nodes().await[0];
        let taints = node.spec.clone().unwrap_or_default().taints.unwrap_or_default();
        assert!(taints.iter().all(|taint| taint.key != "karpenter.sh/disrupted"), "{taints:?}");
        assert_eq!(user.running().await, 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_eviction_notice_does_not_wait_for_the_breaker() {
    let user = world(repairing()).await;
    user.run(async {
        let nodes = scale_up(&user, 5).await;
        break_node(&user, &nodes[0], "");
        break_node(&user, &nodes[1], "");
        user.pass(900).await;
        assert_eq!((node_names(&user).await, user.machines_ever()), (nodes.clone(), 5));
        let evict = format!("evict: {{machine: {}, notice: 2m}}", nodes[2]);
        user.world.azure().schedule_fault(&evict).unwrap();
        user.pass(15).await;
        let deleted = user.claims().await.into_iter().filter(|claim| {
            let node = claim.status.as_ref().and_then(|status| status.node_name.as_deref());
            claim.metadata.deletion_timestamp.is_some() && node == Some(nodes[2].as_str())
        });
        assert_eq!(deleted.count(), 1, "the NodeClaim is not deleted at the notice");
        user.until("its pod runs elsewhere", async || {
            user.running().await == 5 && !has_node(&user, &nodes[2]).await
        })
        .await;
        assert!(has_node(&user, &nodes[0]).await && has_node(&user, &nodes[1]).await);
    })
    .await;
}

/// A repair with a crash at a write after the fault. Returns the number of writes and what is left.
async fn story(crash: Option<Crash>) -> (usize, String) {
    let user = world(repairing()).await;
    let faults = Faults::new(user.world.clock().clone());
    let script = async {
        let nodes = user.world.run_nap(std::future::pending());
        let nodes = tokio::select! {
            biased;
            nodes = scale_up(&user, 2) => nodes,
            () = nodes => unreachable!("nap runs until it is dropped"),
        };
        if let Some(crash) = crash {
            faults.crash_at(crash);
        }
        break_node(&user, &nodes[0], "");
        let nap = async {
            user.world.run_replica(&faults, repairing(), std::future::pending()).await;
            user.world.run_nap(std::future::pending()).await;
        };
        let repaired = async {
            user.until("the node is gone", async || !has_node(&user, &nodes[0]).await).await;
            user.until_running(2).await;
            user.pass(600).await;
        };
        tokio::select! {
            biased;
            () = repaired => {}
            () = nap => {}
        }
        assert!(has_node(&user, &nodes[1]).await, "{crash:?}: the healthy node is gone");
    };
    user.run_without_nap(script).await;
    let left = (user.machines(), user.claims().await.len(), user.nodes().await.len());
    (faults.writes(), format!("{left:?}, {} VMs ever", user.machines_ever()))
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_write_of_a_repair_changes_nothing() {
    let (writes, undisturbed) = story(None).await;
    assert!(writes > 10, "{writes} writes are no repair");
    // `NAP_EVERY_CRASH=1` takes all of them.
    let step = if std::env::var_os("NAP_EVERY_CRASH").is_some() { 1 } else { 3 };
    for write in (1..=writes).step_by(step) {
        let crash = Crash::Write { number: write, delivered: write % 2 == 0 };
        assert_eq!(story(Some(crash)).await.1, undisturbed, "{crash:?} of {writes}");
    }
}
