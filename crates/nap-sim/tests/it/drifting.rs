//! Drift that one can rely on: side by side, unhindered by other drains, harmless when it fails.

use std::cell::Cell;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use nap_api::nodeclaim::condition::DRIFTED;
use nap_api::{NodeClaim, NodePool, conditions, labels, taints};
use serde_json::{Value, json};

use crate::harness::User;

/// A pod template whose pods exclude each other from a node.
fn apart(app: &str) -> Value {
    json!({ "spec": { "affinity": { "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [{
            "labelSelector": { "matchLabels": { "app": app } },
            "topologyKey": "kubernetes.io/hostname",
        }],
    } } } })
}

/// A pool that only drifts, within a budget.
fn drift_only(budget: &str) -> Value {
    json!({ "spec": { "disruption": {
        "consolidateAfter": "Never", "budgets": [{ "nodes": budget }],
    } } })
}

async fn drift(user: &User, pool: &str) {
    let wave = json!({ "spec": { "template": { "metadata": { "labels": { "wave": "two" } } } } });
    user.patch::<NodePool>(pool, wave).await;
}

fn is_new(claim: &NodeClaim) -> bool {
    claim.labels().get("wave").is_some_and(|wave| wave == "two")
}

async fn tainted(user: &User) -> Vec<String> {
    let has_taint = |node: &&Node| {
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
        taints.into_iter().flatten().any(|taint| taint.key == taints::DISRUPTED)
    };
    user.nodes().await.iter().filter(has_taint).map(ResourceExt::name_any).collect()
}

async fn names(user: &User) -> Vec<String> {
    user.claims().await.iter().map(ResourceExt::name_any).collect()
}

/// Seconds until `holds`, at most `most`.
async fn seconds_until(user: &User, most: u64, what: &str, holds: impl AsyncFn() -> bool) -> u64 {
    for second in 0..=most {
        if holds().await {
            return second;
        }
        user.pass(1).await;
    }
    panic!("not within {most} s: {what}; claims {:?}", names(user).await);
}

#[tokio::test(start_paused = true)]
async fn drifted_nodes_are_replaced_side_by_side() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(drift_only("100%")).await;
        user.deploy("inflate", 19, apart("inflate")).await;
        user.until_running(19).await;
        drift(&user, "default").await;
        seconds_until(&user, 300, "19 nodes are new", async || {
            let claims = user.claims().await;
            claims.len() == 19 && claims.iter().all(is_new)
        })
        .await;
        user.until_running(19).await;
        assert_eq!(user.machines_ever(), 38, "one replacement for each");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn drift_never_exceeds_its_budget() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(drift_only("3")).await;
        user.deploy("inflate", 8, apart("inflate")).await;
        user.until_running(8).await;
        drift(&user, "default").await;
        let mut most = 0;
        for _ in 0..1200 {
            let claims = user.claims().await;
            if claims.len() == 8 && claims.iter().all(is_new) {
                break;
            }
            most = most.max(tainted(&user).await.len());
            user.pass(1).await;
        }
        assert!(user.claims().await.iter().all(is_new), "not replaced within 20 min");
        assert!((2..=6).contains(&most), "{most} at once: three leave, three terminate");
    })
    .await;
}

/// A PodDisruptionBudget that allows no eviction of an app.
async fn forbid_evictions(user: &User, app: &str) {
    let budget: PodDisruptionBudget = serde_json::from_value(json!({
        "metadata": { "name": app, "namespace": "default" },
        "spec": { "maxUnavailable": 0, "selector": { "matchLabels": { "app": app } } },
    }))
    .unwrap();
    let api: Api<PodDisruptionBudget> = Api::namespaced(user.client.clone(), "default");
    api.create(&PostParams::default(), &budget).await.unwrap();
}

/// The node of the only pod of an app.
async fn node_of(user: &User, app: &str) -> String {
    let pods = user.list::<Pod>().await;
    let pod = pods.iter().find(|pod| pod.labels().get("app").is_some_and(|one| one == app));
    pod.unwrap().spec.as_ref().unwrap().node_name.clone().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_stuck_drain_stops_neither_drift_nor_consolidation() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(json!({ "spec": { "disruption": { "budgets": [{ "nodes": "100%" }] } } }))
            .await;
        user.default_pool(json!({
            "metadata": { "name": "stuck" },
            "spec": { "weight": 1, "template": {
                "metadata": { "labels": { "place": "stuck" } },
                "spec": { "taints": [{ "key": "place", "value": "stuck", "effect": "NoSchedule" }] },
            } },
        }))
        .await;
        let stuck = json!({ "spec": {
            "nodeSelector": { "place": "stuck" }, "tolerations": [{ "key": "place", "operator": "Exists" }],
        } });
        user.deploy("protected", 1, stuck).await;
        user.deploy("inflate", 3, json!({})).await;
        user.until_running(4).await;
        user.until_no_pool_grows().await;
        forbid_evictions(&user, "protected").await;
        let stuck = node_of(&user, "protected").await;
        user.delete::<Node>(&stuck).await;
        drift(&user, "default").await;
        seconds_until(&user, 300, "the drifted nodes are replaced", async || {
            let claims = user.claims().await;
            let of_default = |claim: &&NodeClaim| claim.labels()[labels::NODEPOOL] == "default";
            claims.iter().filter(of_default).all(is_new)
        })
        .await;
        let before = user.machines_ever();
        user.scale("inflate", 1).await;
        seconds_until(&user, 600, "the node is replaced by a smaller one", async || {
            user.machines_ever() > before
        })
        .await;
        assert_eq!(node_of(&user, "protected").await, stuck, "its drain still waits");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_a_foreign_finalizer_keeps_holds_up_nothing() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(drift_only("1")).await;
        user.deploy("inflate", 2, apart("inflate")).await;
        user.until_running(2).await;
        for node in user.nodes().await {
            let mut finalizers = node.finalizers().to_vec();
            finalizers.push("example.com/kept".to_owned());
            let patch = json!({ "metadata": { "finalizers": finalizers } });
            user.patch::<Node>(&node.name_any(), patch).await;
        }
        drift(&user, "default").await;
        seconds_until(&user, 600, "both nodes are replaced", async || {
            let claims = user.claims().await;
            claims.iter().filter(|claim| is_new(claim)).count() == 2
        })
        .await;
    })
    .await;
}

/// Two nodes of which one at a time may drift, and the names of their NodeClaims.
async fn two_nodes(user: &User) -> Vec<String> {
    user.default_pool(drift_only("10%")).await;
    user.deploy("inflate", 2, apart("inflate")).await;
    user.until_running(2).await;
    names(user).await
}

/// Watches a drift that fails: one node is tainted, for ten to eleven minutes, and kept.
async fn fails_once(user: &User, old: &[String]) {
    seconds_until(user, 30, "a node is tainted", async || tainted(user).await.len() == 1).await;
    let seconds =
        seconds_until(user, 660, "the node is untainted", async || tainted(user).await.is_empty())
            .await;
    assert!(seconds > 590, "untainted after {seconds} s");
    for _ in 0..120 {
        assert!(tainted(user).await.is_empty(), "tainted again");
        let claims = names(user).await;
        assert!(old.iter().all(|name| claims.contains(name)), "{old:?} in {claims:?}");
        user.pass(1).await;
    }
    assert_eq!(user.claims().await.len(), 3, "the late replacement is kept");
}

#[tokio::test(start_paused = true)]
async fn a_replacement_that_never_initializes_is_the_only_one() {
    let user = User::new().await;
    user.run(async {
        let old = two_nodes(&user).await;
        let taint = json!([{ "key": "example.com/starting", "effect": "NoSchedule" }]);
        let patch = json!({ "spec": { "template": { "spec": { "startupTaints": taint } } } });
        user.patch::<NodePool>("default", patch).await;
        fails_once(&user, &old).await;
        user.pass(40 * 60).await;
        assert_eq!(user.machines_ever(), 3, "no machine is bought for the same pods again");
        assert_eq!(user.running().await, 2);
        // Once the replacement is up, the drift goes on.
        let claims = user.claims().await;
        let late = claims.iter().find(|claim| !old.contains(&claim.name_any())).unwrap();
        let node = late.status.as_ref().unwrap().node_name.clone().unwrap();
        user.patch::<Node>(&node, json!({ "spec": { "taints": null } })).await;
        user.until("an old node is gone", async || {
            let claims = names(&user).await;
            old.iter().any(|name| !claims.contains(name))
        })
        .await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_replacement_that_never_registers_is_tried_less_and_less_often() {
    let user = User::new().await;
    user.run(async {
        let old = two_nodes(&user).await;
        user.world.azure().set_faults(|faults| faults.never_boots = true);
        drift(&user, "default").await;
        fails_once(&user, &old).await;
        user.pass(4 * 3600).await;
        let ever = user.machines_ever();
        assert!((4..=13).contains(&ever), "{ever} machines in four hours");
        assert!(user.machines() <= 3, "one at a time");
        assert_eq!(user.running().await, 2);
        user.world.azure().set_faults(|faults| faults.never_boots = false);
        seconds_until(&user, 4 * 3600, "both nodes are replaced", async || {
            let claims = user.claims().await;
            claims.len() == 2 && claims.iter().all(is_new)
        })
        .await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_pool_at_its_limit_drifts() {
    let user = User::new().await;
    user.run(async {
        let mut pool = drift_only("100%");
        pool["spec"]["limits"] = json!({ "nodes": "2" });
        user.default_pool(pool).await;
        user.deploy("inflate", 2, apart("inflate")).await;
        user.until_running(2).await;
        drift(&user, "default").await;
        let most = Cell::new(0);
        seconds_until(&user, 900, "both nodes are replaced", async || {
            let claims = user.claims().await;
            most.set(most.get().max(claims.len()));
            claims.len() == 2 && claims.iter().all(is_new)
        })
        .await;
        assert_eq!(most.get(), 3, "one replacement at a time beyond the limit");
        user.until_running(2).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_grace_period_lets_drift_pass_protected_pods() {
    let user = User::new().await;
    user.run(async {
        let mut pool = drift_only("100%");
        pool["spec"]["template"] = json!({ "spec": { "terminationGracePeriod": "5m" } });
        user.default_pool(pool).await;
        let protected =
            json!({ "metadata": { "annotations": { labels::DO_NOT_DISRUPT: "true" } } });
        user.deploy("inflate", 1, protected).await;
        user.until_running(1).await;
        drift(&user, "default").await;
        seconds_until(&user, 900, "the node is replaced", async || {
            let claims = user.claims().await;
            claims.len() == 1 && claims.iter().all(is_new)
        })
        .await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_drifted_node_whose_pods_have_nowhere_to_go_says_why() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(drift_only("100%")).await;
        user.deploy("inflate", 1, json!({ "spec": { "nodeSelector": { "wave": "one" } } })).await;
        let wave =
            json!({ "spec": { "template": { "metadata": { "labels": { "wave": "one" } } } } });
        user.patch::<NodePool>("default", wave).await;
        user.until_running(1).await;
        drift(&user, "default").await;
        user.until("the claim is drifted", async || {
            let claims = user.claims().await;
            let status = claims[0].status.as_ref().unwrap();
            conditions::is_true(&status.conditions, DRIFTED)
        })
        .await;
        user.pass(60).await;
        let told = user.events("DisruptionBlocked").await;
        assert!(told.iter().any(|text| text.contains("would not schedule")), "{told:?}");
        assert_eq!((user.machines_ever(), tainted(&user).await.len()), (1, 0));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_becomes_protected_during_the_command_keeps_its_node() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(drift_only("100%")).await;
        user.deploy("inflate", 1, json!({})).await;
        user.until_running(1).await;
        let old = names(&user).await;
        drift(&user, "default").await;
        user.until("the command is under way", async || user.claims().await.len() == 2).await;
        let pod = user.list::<Pod>().await[0].name_any();
        let api: Api<Pod> = Api::namespaced(user.client.clone(), "default");
        let patch = json!({ "metadata": { "annotations": { labels::DO_NOT_DISRUPT: "true" } } });
        api.patch(&pod, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
        user.pass(900).await;
        assert!(names(&user).await.contains(&old[0]), "a protected pod was evicted");
        assert!(tainted(&user).await.is_empty(), "the command was not rolled back");
    })
    .await;
}
