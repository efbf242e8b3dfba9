//! Expiry: at once, or gracefully within budgets and windows.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use nap_api::nodeclaim::condition::DRIFTED;
use nap_api::{conditions, labels};
use serde_json::{Value, json};

use crate::harness::User;

/// A NodePool whose nodes live for ten hours, with a budget of one and these annotations.
fn pool(annotations: &Value) -> Value {
    let disruption = json!({ "consolidateAfter": "Never", "budgets": [{ "nodes": "1" }] });
    let template = json!({ "spec": { "expireAfter": "10h" } });
    json!({
        "metadata": { "annotations": annotations },
        "spec": { "disruption": disruption, "template": template },
    })
}

fn apart() -> Value {
    json!({ "spec": { "affinity": { "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [{
            "labelSelector": { "matchLabels": { "app": "inflate" } },
            "topologyKey": "kubernetes.io/hostname",
        }],
    } } } })
}

/// Four nodes, and when each was created.
async fn four_nodes(user: &User, annotations: &Value) -> BTreeMap<String, Timestamp> {
    user.default_pool(pool(annotations)).await;
    user.deploy("inflate", 4, apart()).await;
    user.until_running(4).await;
    created(user).await
}

async fn created(user: &User) -> BTreeMap<String, Timestamp> {
    let claims = user.claims().await;
    let time = |claim: &nap_api::NodeClaim| claim.metadata.creation_timestamp.as_ref().unwrap().0;
    claims.iter().map(|claim| (claim.name_any(), time(claim))).collect()
}

#[tokio::test(start_paused = true)]
async fn without_the_annotation_nodes_expire_all_at_once_whatever_the_budget() {
    let user = User::new().await;
    user.run(async {
        let old = four_nodes(&user, &json!({})).await;
        user.pass(10 * 3600 - 120).await;
        assert_eq!(created(&user).await, old);
        user.until("all are deleted", async || {
            let claims = user.claims().await;
            claims.iter().all(|claim| {
                !old.contains_key(&claim.name_any()) || claim.metadata.deletion_timestamp.is_some()
            })
        })
        .await;
        let late = user.world.clock().now().duration_since(*old.values().max().unwrap());
        assert!(late < SignedDuration::from_hours(10) + SignedDuration::from_mins(1), "{late}");
        user.pass(10).await;
        assert_eq!(user.moves_of("inflate").await, 4, "they count as moves of the workload");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn graceful_expiry_replaces_first_one_by_one_and_not_all_together() {
    let user = User::new().await;
    user.run(async {
        let old = four_nodes(&user, &json!({ labels::EXPIRY: "graceful" })).await;
        user.pass(9 * 3600 - 300).await;
        assert_eq!(created(&user).await, old, "a tenth of the lifetime early at most");
        let (mut fewest, mut most_leaving) = (4, 0);
        let mut replaced: BTreeMap<String, Timestamp> = BTreeMap::new();
        for _ in 0..(75 * 60 / 5) {
            let claims = user.claims().await;
            let stays = |claim: &&nap_api::NodeClaim| claim.metadata.deletion_timestamp.is_none();
            fewest = fewest.min(claims.iter().filter(stays).count());
            let leaving = claims.iter().filter(|claim| !stays(claim)).count();
            most_leaving = most_leaving.max(leaving);
            for name in old.keys() {
                if !claims.iter().filter(stays).any(|claim| claim.name_any() == *name) {
                    replaced.entry(name.clone()).or_insert(user.world.clock().now());
                }
            }
            user.pass(5).await;
        }
        assert_eq!(replaced.len(), 4, "all are replaced within their ten hours, and some minutes");
        assert_eq!((fewest, most_leaving), (4, 1), "replacement first, one by one");
        let times: Vec<Timestamp> = replaced.into_values().collect();
        let spread = times.iter().max().unwrap().duration_since(*times.iter().min().unwrap());
        assert!(spread > SignedDuration::from_mins(15), "they expire within {spread}");
        user.until_running(4).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn graceful_expiry_waits_for_the_window() {
    let user = User::new().await;
    user.run(async {
        let annotations = json!({
            labels::EXPIRY: "graceful",
            labels::DISRUPTION_WINDOWS: "- {action: allow, schedule: 0 12 * * *, duration: 2h}",
        });
        let old = four_nodes(&user, &annotations).await;
        user.pass(11 * 3600).await;
        assert_eq!(created(&user).await, old, "expired for an hour");
        for claim in user.claims().await {
            let all = &claim.status.as_ref().unwrap().conditions;
            assert_eq!(conditions::get(all, DRIFTED).unwrap().reason, "Expired");
        }
        user.pass(3600).await;
        user.until("all are replaced", async || {
            created(&user).await.keys().all(|name| !old.contains_key(name))
        })
        .await;
        user.until_running(4).await;
    })
    .await;
}
