//! NodeOverlays: prices and capacity that override the cloud's.

use kube::ResourceExt;
use nap_api::{NodeClaim, NodeOverlay, conditions, labels};
use serde_json::{Value, json};

use crate::harness::User;

async fn overlay(user: &User, name: &str, instance_type: &str, says: Value) {
    let mut spec = json!({ "requirements": [
        { "key": labels::INSTANCE_TYPE, "operator": "In", "values": [instance_type] },
    ] });
    spec.as_object_mut().unwrap().extend(says.as_object().unwrap().clone());
    user.create::<NodeOverlay>(json!({ "metadata": { "name": name }, "spec": spec })).await;
}

/// Status and reason of the overlay's Ready condition.
async fn ready(user: &User, name: &str) -> Option<(String, String)> {
    let overlay: NodeOverlay = user.api().get(name).await.unwrap();
    let conditions = overlay.status.unwrap_or_default().conditions;
    let checked = conditions::get(&conditions, "ValidationSucceeded")?;
    let is_ready = conditions::is_true(&conditions, conditions::READY);
    assert_eq!(checked.status == "True", is_ready);
    Some((checked.status.clone(), checked.reason.clone()))
}

fn type_of(claim: &NodeClaim) -> &str {
    claim.labels().get(labels::INSTANCE_TYPE).map_or("", String::as_str)
}

#[tokio::test(start_paused = true)]
async fn price_overlay_moves_pods_to_another_type() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(json!({})).await;
        user.deploy("web", 1, json!({})).await;
        user.until_running(1).await;
        let cheapest = type_of(&user.claims().await[0]).to_owned();
        overlay(&user, "dear", &cheapest, json!({ "priceAdjustment": "+900%" })).await;
        user.until("the pod runs elsewhere", async || {
            let claims = user.claims().await;
            claims.len() == 1 && type_of(&claims[0]) != cheapest && user.running().await == 1
        })
        .await;
        assert_eq!(ready(&user, "dear").await.unwrap().0, "True");
        user.deploy("more", 4, json!({})).await;
        user.until_running(5).await;
        assert!(user.claims().await.iter().all(|claim| type_of(claim) != cheapest));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn conflicting_overlays_are_reported_and_one_applies() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(json!({})).await;
        overlay(&user, "first", "Standard_D2s_v5", json!({ "price": "0.001" })).await;
        overlay(&user, "second", "Standard_D2s_v5", json!({ "price": "0.002" })).await;
        user.until("both were looked at", async || {
            ready(&user, "first").await.is_some() && ready(&user, "second").await.is_some()
        })
        .await;
        user.pass(10).await;
        assert_eq!(
            ready(&user, "first").await.unwrap(),
            ("False".to_owned(), "Conflict".to_owned())
        );
        assert_eq!(ready(&user, "second").await.unwrap().0, "True");
        user.delete::<NodeOverlay>("second").await;
        user.until("the first counts now", async || {
            ready(&user, "first").await.unwrap().0 == "True"
        })
        .await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn capacity_overlay_adds_an_extended_resource() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(json!({})).await;
        let device = json!({ "spec": { "containers": [{
            "name": "app", "image": "example.com/app:1",
            "resources": { "requests": { "cpu": "1", "example.com/device": "1" }, "limits": { "example.com/device": "1" } },
        }] } });
        user.deploy("web", 1, device).await;
        user.pass(60).await;
        assert_eq!(user.claims().await.len(), 0, "nothing has such a device");
        overlay(&user, "devices", "Standard_D8s_v5", json!({ "capacity": { "example.com/device": "2" } })).await;
        user.until("a machine is made", async || user.nodes().await.len() == 1).await;
        assert_eq!(type_of(&user.claims().await[0]), "Standard_D8s_v5");
    })
    .await;
}
