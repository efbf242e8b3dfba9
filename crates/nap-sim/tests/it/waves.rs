//! Drift in waves: a canary, a tenth, the rest, and what stops them.

use kube::ResourceExt;
use nap_api::{NodeClaim, NodePool, labels};
use serde_json::{Value, json};

use crate::harness::User;

/// Soak time of the waves, in seconds.
const SOAK: u64 = 900;

/// A NodePool whose drift goes in waves, without other limits.
fn pool() -> Value {
    json!({
        "metadata": { "annotations": { labels::DRIFT_WAVES: "15m" } },
        "spec": { "disruption": {
            "consolidateAfter": "Never", "budgets": [{ "nodes": "100%" }],
        } },
    })
}

/// Pods that exclude each other from a node.
fn apart() -> Value {
    json!({ "spec": { "affinity": { "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [{
            "labelSelector": { "matchLabels": { "app": "inflate" } },
            "topologyKey": "kubernetes.io/hostname",
        }],
    } } } })
}

async fn nodes(user: &User, count: usize) {
    user.default_pool(pool()).await;
    // Pods that stay on a node that is not ready: their eviction would launch another new node.
    let mut template = apart();
    template["spec"]["tolerations"] = json!([
        { "key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute" },
    ]);
    user.deploy("inflate", count, template).await;
    user.until_running(count).await;
}

async fn drift(user: &User) {
    let wave = json!({ "spec": { "template": { "metadata": { "labels": { "wave": "two" } } } } });
    user.patch::<NodePool>("default", wave).await;
}

fn is_new(claim: &NodeClaim) -> bool {
    claim.labels().get("wave").is_some_and(|wave| wave == "two")
}

/// NodeClaims of the new kind.
async fn new(user: &User) -> Vec<String> {
    let claims = user.claims().await;
    claims.iter().filter(|claim| is_new(claim)).map(ResourceExt::name_any).collect()
}

/// Waits until `count` of `of` nodes are new and none is being replaced, for an hour at most.
async fn until_new(user: &User, count: usize, of: usize) {
    for _ in 0..360 {
        let claims = user.claims().await;
        if claims.len() == of && claims.iter().filter(|claim| is_new(claim)).count() == count {
            return;
        }
        user.pass(10).await;
    }
    panic!("never: {count} of {of} nodes are new, but {:?}", new(user).await);
}

#[tokio::test(start_paused = true)]
async fn a_canary_soaks_then_a_tenth_then_the_rest_goes() {
    let user = User::new().await;
    user.run(async {
        nodes(&user, 11).await;
        drift(&user).await;
        until_new(&user, 1, 11).await;
        user.pass(SOAK - 300).await;
        assert_eq!(new(&user).await.len(), 1, "the canary soaks");
        let said = user.events("DriftWave").await.join("\n");
        assert!(said.contains("if the 1 new of 11 nodes stay ready until then"), "{said}");
        until_new(&user, 2, 11).await;
        user.pass(SOAK - 300).await;
        assert_eq!(new(&user).await.len(), 2, "a tenth soaks");
        until_new(&user, 11, 11).await;
        user.until_running(11).await;
        assert_eq!(user.machines_ever(), 22, "one replacement for each");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_image_is_rolled_out_in_waves_too() {
    let user = User::new().await;
    user.run(async {
        nodes(&user, 11).await;
        let old: Vec<String> = user.claims().await.iter().map(ResourceExt::name_any).collect();
        let replaced = async || {
            let claims = user.claims().await;
            claims.len() - claims.iter().filter(|one| old.contains(&one.name_any())).count()
        };
        let until = async |count: usize| {
            for _ in 0..360 {
                if replaced().await == count && user.claims().await.len() == 11 {
                    return;
                }
                user.pass(10).await;
            }
            panic!("never: {count} nodes are new, but {}", replaced().await);
        };
        user.world.azure().publish_image("202611.2.0");
        until(1).await;
        // The other nodes are found to have drifted one by one, within five minutes.
        for _ in 0..(SOAK / 10 - 30) {
            assert!(replaced().await <= 1, "the canary soaks");
            user.pass(10).await;
        }
        until(2).await;
        user.pass(SOAK - 300).await;
        assert_eq!(replaced().await, 2);
        until(11).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_canary_that_is_not_ready_halts_drift_until_it_is() {
    let user = User::new().await;
    user.run(async {
        nodes(&user, 4).await;
        drift(&user).await;
        until_new(&user, 1, 4).await;
        let canary = new(&user).await.remove(0);
        let fault = format!("{{for: 1h, notReady: {{machine: {canary}}}}}");
        user.world.azure().schedule_fault(&fault).unwrap();
        user.pass(SOAK + 900).await;
        assert_eq!(new(&user).await, [canary], "nothing else is replaced");
        let said = user.events("DriftHalted").await.join("\n");
        assert!(
            said.contains("Drift is halted: new node") && said.contains("is not ready"),
            "{said}"
        );
        user.pass(1800).await;
        until_new(&user, 4, 4).await;
        user.until_running(4).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_finds_no_place_halts_drift_until_it_does() {
    let user = User::new().await;
    user.run(async {
        nodes(&user, 4).await;
        drift(&user).await;
        until_new(&user, 1, 4).await;
        let impossible = json!({ "spec": { "nodeSelector": { "wave": "three" } } });
        user.deploy("moved", 1, impossible).await;
        user.pass(SOAK + 900).await;
        assert_eq!(new(&user).await.len(), 1, "nothing else is replaced");
        let said = user.events("DriftHalted").await.join("\n");
        assert!(said.contains("is pending for more than 5 min"), "{said}");
        user.scale("moved", 0).await;
        until_new(&user, 4, 4).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_neither_repeats_nor_skips_a_wave() {
    let user = User::new().await;
    let script = async {
        let first = async {
            nodes(&user, 11).await;
            drift(&user).await;
            until_new(&user, 1, 11).await;
            user.pass(SOAK / 2).await;
        };
        user.world.run_nap(first).await;
        let second = async {
            user.pass(SOAK / 2 - 300).await;
            assert_eq!(new(&user).await.len(), 1, "the canary soaks");
            until_new(&user, 2, 11).await;
            user.pass(60).await;
        };
        user.world.run_nap(second).await;
        let third = async {
            user.pass(SOAK - 600).await;
            assert_eq!(new(&user).await.len(), 2, "a tenth soaks");
            until_new(&user, 11, 11).await;
            assert_eq!(user.machines_ever(), 22, "one replacement for each");
        };
        user.world.run_nap(third).await;
    };
    user.run_without_nap(script).await;
}
