//! nap with watches that show less than the cluster has: nothing is deleted because an object is
//! missing from the index.

use std::sync::atomic::{AtomicBool, Ordering};

use http::{Method, Request};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::PostParams;
use kube::client::Body;
use kube::{Api, ResourceExt};
use nap_api::{AKSNodeClass, NodeClaim};
use serde_json::json;

use crate::harness::User;
use crate::proxy::{Fate, hide};

fn without(plurals: &'static [&'static str]) -> impl Fn(&Request<Body>) -> Fate {
    move |request| {
        let hidden = plurals.iter().map(|plural| hide(request, plural));
        hidden.into_iter().find(|fate| matches!(fate, Fate::Hide)).unwrap_or(Fate::Pass)
    }
}

/// Two pods on one node, guarded by a budget that allows no eviction; nap runs and is stopped.
async fn guarded(user: &User) {
    let script = async {
        user.default_pool(json!({})).await;
        user.deploy("guarded", 2, json!({})).await;
        user.until_running(2).await;
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(user.client.clone(), "default");
        let budget = json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": { "name": "guard" },
            "spec": { "minAvailable": 2, "selector": { "matchLabels": { "app": "guarded" } } },
        });
        let budget = serde_json::from_value(budget).unwrap();
        budgets.create(&PostParams::default(), &budget).await.unwrap();
        user.pass(5).await;
    };
    user.world.run_nap(script).await;
}

#[tokio::test(start_paused = true)]
async fn an_instance_is_kept_while_its_node_exists_outside_the_index() {
    for hidden in [&["nodes"][..], &["pods"], &["nodes", "pods"]] {
        let user = User::new().await;
        let script = async {
            guarded(&user).await;
            let claim = user.claims().await[0].name_any();
            user.delete::<NodeClaim>(&claim).await;
            user.with_proxied_nap(without(hidden), user.pass(300)).await;
            assert_eq!(user.running().await, 2, "{hidden:?}: pods lost their node");
            let machines = user.world.azure().machines();
            assert!(machines.iter().any(|one| one.name == claim), "{hidden:?}: {machines:?}");
        };
        user.run_without_nap(script).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_keeps_its_finalizer_while_its_nodeclaim_exists_outside_the_index() {
    let user = User::new().await;
    let script = async {
        user.default_pool(json!({})).await;
        user.deploy("inflate", 1, json!({})).await;
        user.world.run_nap(user.until_running(1)).await;
        user.scale("inflate", 0).await;
        user.until("the pods are gone", async || user.list::<Pod>().await.is_empty()).await;
        let node = user.nodes().await[0].name_any();
        user.delete::<Node>(&node).await;
        let gone = async {
            user.until("the node is gone", async || user.nodes().await.is_empty()).await;
        };
        user.with_proxied_nap(without(&["nodeclaims"]), gone).await;
        assert_eq!(user.machines(), 0, "the instance was deleted before its Node");
        let claims = user.claims().await;
        assert!(claims.iter().all(|claim| claim.metadata.deletion_timestamp.is_some()));
    };
    user.run_without_nap(script).await;
}

#[tokio::test(start_paused = true)]
async fn a_nodeclaim_is_launched_with_a_class_outside_the_index() {
    let user = User::new().await;
    let script = async {
        user.world.run_nap(user.pass(10)).await;
        user.standalone("alone").await;
        let launched = async {
            user.until("the machine exists", async || user.machines() == 1).await;
        };
        user.with_proxied_nap(without(&["aksnodeclasses"]), launched).await;
        assert_eq!(user.claims().await.len(), 1);
    };
    user.run_without_nap(script).await;
}

#[tokio::test(start_paused = true)]
async fn a_class_keeps_its_finalizer_while_nodeclaims_exist_outside_the_index() {
    let user = User::new().await;
    let script = async {
        user.standalone("alone").await;
        let launched = user.until("the machine exists", async || user.machines() == 1);
        user.world.run_nap(launched).await;
        user.delete::<AKSNodeClass>("default").await;
        user.with_proxied_nap(without(&["nodeclaims"]), user.pass(120)).await;
        assert_eq!(user.list::<AKSNodeClass>().await.len(), 1);
        let events = user.events("WaitingOnNodeClaimTermination").await;
        assert!(events[0].contains("alone"), "{events:?}");
    };
    user.run_without_nap(script).await;
}

#[tokio::test(start_paused = true)]
async fn nodeclaims_that_no_watch_shows_are_read_and_not_bought_again() {
    let user = User::new().await;
    let script = async {
        user.default_pool(json!({})).await;
        user.deploy("first", 3, json!({})).await;
        let rest = async {
            user.until_running(3).await;
            user.pass(120).await;
            assert_eq!((user.machines_ever(), user.claims().await.len()), (1, 1));
            user.deploy("second", 3, json!({})).await;
            user.until_running(6).await;
        };
        user.with_proxied_nap(without(&["nodeclaims"]), rest).await;
    };
    user.run_without_nap(script).await;
}

/// An API server that goes away after it has created a NodeClaim, and whose watch comes back late.
#[tokio::test(start_paused = true)]
async fn a_nodeclaim_whose_creation_was_not_answered_is_not_bought_again() {
    let user = User::new().await;
    let lost = AtomicBool::new(false);
    let fate = move |request: &Request<Body>| {
        let is_creation =
            request.method() == Method::POST && request.uri().path().ends_with("/nodeclaims");
        if is_creation && !lost.swap(true, Ordering::Relaxed) {
            return Fate::Lose;
        }
        hide(request, "nodeclaims")
    };
    let script = async {
        user.default_pool(json!({})).await;
        user.deploy("web", 3, json!({})).await;
        let rest = async {
            user.until_running(3).await;
            user.pass(120).await;
            assert_eq!((user.machines_ever(), user.claims().await.len()), (1, 1));
        };
        user.with_proxied_nap(fate, rest).await;
    };
    user.run_without_nap(script).await;
}

#[tokio::test(start_paused = true)]
async fn a_nodeclaim_that_is_deleted_before_a_watch_shows_it_is_forgotten() {
    let user = User::new().await;
    let script = async {
        user.default_pool(json!({})).await;
        user.deploy("web", 3, json!({})).await;
        let rest = async {
            user.until("a claim exists", async || !user.claims().await.is_empty()).await;
            let claim = user.claims().await[0].name_any();
            user.delete::<NodeClaim>(&claim).await;
            user.patch::<NodeClaim>(&claim, json!({ "metadata": { "finalizers": null } })).await;
            user.until_running(3).await;
            assert!(user.claims().await.iter().all(|one| one.name_any() != claim));
        };
        user.with_proxied_nap(without(&["nodeclaims"]), rest).await;
    };
    user.run_without_nap(script).await;
}
