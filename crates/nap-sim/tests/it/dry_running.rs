//! Dry run: decisions are reported by events, and not carried out.

use std::pin::pin;

use kube::ResourceExt;
use nap_api::{NodePool, labels};
use nap_controllers::Settings;
use nap_sim::faults::Faults;
use serde_json::{Value, json};

use crate::harness::User;

fn annotated(value: &Value) -> Value {
    json!({ "metadata": { "annotations": { labels::DRY_RUN: value } } })
}

#[tokio::test(start_paused = true)]
async fn node_of_a_dry_run_pool_stays_with_an_event_until_the_annotation_is_removed() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(annotated(&json!("true"))).await;
        user.deploy("inflate", 3, json!({})).await;
        user.until_running(3).await;
        let old = user.claims().await[0].name_any();
        user.until_no_pool_grows().await;
        user.scale("inflate", 1).await;
        user.pass(1800).await;
        let claims: Vec<String> = user.claims().await.iter().map(ResourceExt::name_any).collect();
        assert_eq!(claims, [old.as_str()], "the node is not replaced");
        assert_eq!(user.machines_ever(), 1);
        let taints = user.nodes().await[0].spec.clone().and_then(|spec| spec.taints);
        assert_eq!(taints.unwrap_or_default(), [], "nor tainted");
        let told = user.events("DisruptionDryRun").await;
        assert_eq!(told.len(), 2, "one on the Node, one on the NodeClaim: {told:?}");
        for text in &told {
            let whole = text.starts_with("Dry run: Underutilized: replace Standard_D")
                && text.contains(" by Standard_D")
                && text.contains(", saving $");
            assert!(whole, "{text}");
        }
        assert_eq!(user.events("DisruptionTerminating").await, [""; 0]);
        user.patch::<NodePool>("default", annotated(&Value::Null)).await;
        user.until("the node is replaced", async || {
            let claims = user.claims().await;
            claims.len() == 1 && claims[0].name_any() != old && user.running().await == 1
        })
        .await;
        let done = user.events("DisruptionTerminating").await;
        let promised = told[0].trim_start_matches("Dry run: ");
        assert!(done.iter().any(|text| text.ends_with(promised)), "{done:?}, not {promised}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn dry_run_of_one_pool_does_not_hold_back_another() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(annotated(&json!("true"))).await;
        user.default_pool(json!({ "metadata": { "name": "other" } })).await;
        for pool in ["default", "other"] {
            let selector = json!({ "spec": { "nodeSelector": { labels::NODEPOOL: pool } } });
            user.deploy(pool, 1, selector).await;
        }
        user.until_running(2).await;
        user.scale("default", 0).await;
        user.scale("other", 0).await;
        user.until("the node of the other pool is removed", async || user.machines() == 1).await;
        user.pass(600).await;
        assert_eq!(user.claims().await[0].labels()[labels::NODEPOOL], "default");
        let told = user.events("DisruptionDryRun").await;
        assert!(told.iter().all(|text| text.starts_with("Dry run: Empty: delete")), "{told:?}");
        assert_eq!(told.len(), 2, "{told:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn unknown_value_of_the_annotation_disrupts_nothing_and_is_named() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(annotated(&json!("yes"))).await;
        user.deploy("inflate", 1, json!({})).await;
        user.until_running(1).await;
        user.scale("inflate", 0).await;
        user.pass(600).await;
        assert_eq!(user.machines(), 1);
        let told = user.events("DryRunInvalid").await;
        assert!(told.iter().any(|text| text.contains("is \"yes\"")), "{told:?}");
    })
    .await;
}

/// NodeClaims, Nodes and NodePools as the API server has them, by version.
async fn versions(user: &User) -> Vec<(String, Option<String>)> {
    let mut all = Vec::new();
    all.extend(user.claims().await.iter().map(|one| (one.name_any(), one.resource_version())));
    all.extend(user.nodes().await.iter().map(|one| (one.name_any(), one.resource_version())));
    let pools = user.list::<NodePool>().await;
    all.extend(pools.iter().map(|one| (one.name_any(), one.resource_version())));
    all
}

#[tokio::test(start_paused = true)]
async fn dry_run_of_nap_reports_launches_and_disruption_and_writes_only_events() {
    let user = User::new().await;
    let script = async {
        user.default_pool(json!({})).await;
        user.deploy("inflate", 3, json!({})).await;
        let before = async {
            user.until_running(3).await;
            user.until_no_pool_grows().await;
        };
        user.world.run_nap(before).await;
        let dry = Settings { dry_run: true, ..Settings::default() };
        let look = async {
            user.scale("inflate", 1).await;
            user.pass(60).await;
            let unchanged = versions(&user).await;
            user.pass(600).await;
            let told = user.events("DisruptionDryRun").await;
            assert!(told.iter().all(|text| text.contains(": replace ")), "{told:?}");
            assert_eq!(told.len(), 2, "{told:?}");
            user.deploy("large", 10, json!({})).await;
            user.pass(600).await;
            let told = user.events("ProvisioningDryRun").await;
            let is_whole = |text: &String| {
                text.starts_with("Dry run: launch ") && text.contains("/h: Standard_D")
            };
            assert!(!told.is_empty() && told.iter().all(is_whole), "{told:?}");
            assert_eq!((user.machines_ever(), user.claims().await.len()), (1, 1));
            assert_eq!(versions(&user).await, unchanged, "something was written");
        };
        let faults = Faults::new(user.world.clock().clone());
        user.world.run_replica(&faults, dry, pin!(look)).await;
    };
    user.run_without_nap(script).await;
}
