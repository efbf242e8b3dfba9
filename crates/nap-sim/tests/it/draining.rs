//! Drain: one pod that may not be evicted delays neither the others nor the deadline.

use http::Request;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::client::Body;
use serde_json::json;

use crate::harness::User;
use crate::proxy::Fate;

/// The fate of the evictions of pods of one app; everything else passes.
fn evictions(app: &'static str, fate: fn() -> Fate) -> impl Fn(&Request<Body>) -> Fate {
    move |request| {
        let path = request.uri().path();
        let meant = path.ends_with("/eviction") && path.contains(&format!("/pods/{app}-"));
        if meant { fate() } else { Fate::Pass }
    }
}

/// Pods of an app on a node that are not terminating.
async fn on_node(user: &User, app: &str, node: &str) -> usize {
    let is_on = |pod: &&Pod| {
        pod.name_any().starts_with(app)
            && pod.metadata.deletion_timestamp.is_none()
            && pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node)
    };
    user.list::<Pod>().await.iter().filter(is_on).count()
}

async fn exists(user: &User, node: &str) -> bool {
    user.nodes().await.iter().any(|one| one.name_any() == node)
}

#[tokio::test(start_paused = true)]
async fn a_refused_eviction_does_not_stop_the_other_pods() {
    let user = User::new().await;
    let refused = || Fate::Refuse(403, "denied by webhook keep-out");
    let script = async {
        user.default_pool(json!({})).await;
        user.deploy("a-refused", 1, json!({})).await;
        user.deploy("b-free", 12, json!({})).await;
        user.until_running(13).await;
        let node = user.list::<Pod>().await[0].spec.as_ref().unwrap().node_name.clone().unwrap();
        let free = on_node(&user, "b-free", &node).await;
        assert!(free > 0, "the pods share a node");
        user.delete::<Node>(&node).await;
        user.until("free pods are evicted", async || on_node(&user, "b-free", &node).await == 0)
            .await;
        user.pass(60).await;
        assert!(exists(&user, &node).await, "the refused pod is waited for");
        let events = user.events("FailedDraining").await;
        assert!(events.iter().any(|event| event.contains("keep-out")), "{events:?}");
    };
    user.run_without_nap(user.with_proxied_nap(evictions("a-refused", refused), script)).await;
}

#[tokio::test(start_paused = true)]
async fn the_deadline_holds_while_an_eviction_is_not_answered() {
    let user = User::new().await;
    let grace = json!({ "spec": { "template": { "spec": { "terminationGracePeriod": "2m" } } } });
    let script = async {
        user.default_pool(grace).await;
        user.deploy("a-stalled", 1, json!({})).await;
        user.until_running(1).await;
        let node = user.nodes().await[0].name_any();
        user.delete::<Node>(&node).await;
        user.pass(80).await;
        assert_eq!(on_node(&user, "a-stalled", &node).await, 1, "it is not deleted too early");
        user.pass(40).await;
        assert_eq!(on_node(&user, "a-stalled", &node).await, 0, "it is deleted in time");
    };
    user.run_without_nap(user.with_proxied_nap(evictions("a-stalled", || Fate::Stall), script))
        .await;
}
