//! Plans that are made while the NodeClaims of the one before are still being created.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Method, Request};
use kube::client::Body;
use nap_api::PlanRecord;
use serde_json::json;

use crate::harness::User;
use crate::proxy::Fate;

/// A fate for the first NodeClaim that nap creates, and the number of those that it tries to.
fn first(fate: fn() -> Fate) -> (Arc<AtomicUsize>, impl Fn(&Request<Body>) -> Fate) {
    let creates = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&creates);
    let decide = move |request: &Request<Body>| {
        let creates =
            request.method() == Method::POST && request.uri().path().ends_with("/nodeclaims");
        let is_first = creates && counted.fetch_add(1, Ordering::Relaxed) == 0;
        if is_first { fate() } else { Fate::Pass }
    };
    (creates, decide)
}

#[tokio::test(start_paused = true)]
async fn pods_that_arrive_meanwhile_get_a_node_and_the_others_no_second_one() {
    let user = User::new().await;
    let (creates, fate) = first(|| Fate::Stall);
    let script = async {
        user.default_pool(json!({})).await;
        user.deploy("slow", 1, json!({})).await;
        user.pass(15).await;
        assert_eq!(creates.load(Ordering::Relaxed), 1);
        user.deploy("quick", 1, json!({})).await;
        user.until_running(1).await;
        user.pass(60).await;
        assert_eq!(creates.load(Ordering::Relaxed), 2, "the first is still being created");
        let claims = user.claims().await;
        let plan = PlanRecord::of(&claims[0].metadata).unwrap().unwrap();
        let pods: Vec<&String> = plan.pods.iter().collect();
        assert!(pods.len() == 1 && pods[0].starts_with("default/quick"), "{pods:?}");
    };
    user.run_without_nap(user.with_proxied_nap(fate, script)).await;
}

#[tokio::test(start_paused = true)]
async fn limits_count_what_is_being_created() {
    let user = User::new().await;
    let (creates, fate) = first(|| Fate::Stall);
    let script = async {
        user.default_pool(json!({ "spec": { "limits": { "cpu": "2" } } })).await;
        user.deploy("slow", 1, json!({})).await;
        user.pass(15).await;
        user.deploy("late", 1, json!({})).await;
        user.pass(60).await;
        assert_eq!(creates.load(Ordering::Relaxed), 1, "the limit is reached");
        assert!(user.claims().await.is_empty());
    };
    user.run_without_nap(user.with_proxied_nap(fate, script)).await;
}

#[tokio::test(start_paused = true)]
async fn a_nodeclaim_that_cannot_be_created_is_planned_again() {
    for fate in [|| Fate::Refuse(403, "no"), || Fate::Lose] {
        let user = User::new().await;
        let (creates, fate) = first(fate);
        let script = async {
            user.default_pool(json!({ "spec": { "limits": { "cpu": "2" } } })).await;
            user.deploy("web", 1, json!({})).await;
            user.until_running(1).await;
            user.pass(60).await;
            assert!(creates.load(Ordering::Relaxed) <= 2);
            assert_eq!((user.claims().await.len(), user.machines_ever()), (1, 1));
        };
        user.run_without_nap(user.with_proxied_nap(fate, script)).await;
    }
}
