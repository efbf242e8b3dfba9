//! NodePools that can reach nodes of an extreme price are told, once per generation.

use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use nap_api::nodepool::PRICE_BOUNDED;
use nap_api::{NodePool, conditions, labels};
use serde_json::json;

use crate::harness::User;

/// Status, reason and message of the condition; `None` without it.
async fn condition(user: &User) -> Option<(String, String, String)> {
    let pool: NodePool = user.api().get("default").await.unwrap();
    let list = pool.status.unwrap_or_default().conditions;
    let found = conditions::get(&list, PRICE_BOUNDED)?;
    Some((found.status.clone(), found.reason.clone(), found.message.clone()))
}

/// Number of times that the event was published.
async fn events(user: &User) -> i32 {
    let selector = ListParams::default().fields("reason=ExtremePriceReachable");
    let events: Vec<Event> = user.api().list(&selector).await.unwrap().items;
    events.iter().map(|event| event.count.unwrap_or(1)).sum()
}

async fn annotate(user: &User, ceiling: Option<&str>) {
    let annotations = json!({ labels::MAX_PRICE_PER_NODE_HOUR: ceiling });
    user.patch::<NodePool>("default", json!({ "metadata": { "annotations": annotations } })).await;
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_can_reach_an_extreme_price_is_told_once_per_generation() {
    let user = User::new().await;
    user.run(async {
        let amd64 = json!({ "key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"] });
        let requirements = json!({ "template": { "spec": { "requirements": [amd64] } } });
        user.default_pool(json!({ "spec": requirements })).await;
        user.until("it is told", async || condition(&user).await.is_some()).await;
        let (status, reason, message) = condition(&user).await.unwrap();
        assert_eq!((status.as_str(), reason.as_str()), ("False", "ExtremePriceReachable"));
        let price = message.split(['$', '/']).nth(1).unwrap();
        assert!(price.parse::<f64>().unwrap() > 50.0, "{message}");
        assert!(message.contains("Standard_") && message.contains("max-price"), "{message}");

        // Nodes come and go, and the pool is looked at each time.
        user.deploy("inflate", 5, json!({})).await;
        user.until_running(5).await;
        user.scale("inflate", 0).await;
        user.pass(1200).await;
        assert_eq!(events(&user).await, 1);

        annotate(&user, Some("3")).await;
        user.until("it has a ceiling", async || condition(&user).await.is_none()).await;
        annotate(&user, None).await;
        user.until("it has none", async || condition(&user).await.is_some()).await;
        assert_eq!(events(&user).await, 1, "the generation is the same");
        let d_and_m = json!({
            "key": "karpenter.azure.com/sku-family", "operator": "In", "values": ["D", "M"],
        });
        let requirements = json!({ "template": { "spec": { "requirements": [d_and_m] } } });
        user.patch::<NodePool>("default", json!({ "spec": requirements })).await;
        user.pass(60).await;
        assert_eq!(events(&user).await, 2, "another generation reaches another price");
        // The same message at once, for generations of the same minute.
        for (count, team) in [(3, "a"), (4, "b")] {
            let labels = json!({ "template": { "metadata": { "labels": { "team": team } } } });
            user.patch::<NodePool>("default", json!({ "spec": labels })).await;
            user.pass(20).await;
            assert_eq!(events(&user).await, count, "each generation is told");
        }

        let limits = json!({ "spec": { "limits": { "cpu": "64" } } });
        user.patch::<NodePool>("default", limits).await;
        user.until("no dear size is within the limits", async || condition(&user).await.is_none())
            .await;
        let ready: NodePool = user.api().get("default").await.unwrap();
        let list = ready.status.unwrap().conditions;
        assert_eq!(conditions::get(&list, conditions::READY).unwrap().status, "True");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_pool_of_spot_nodes_alone_is_told_too() {
    let user = User::new().await;
    user.run(async {
        let spot = json!({
            "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"],
        });
        let requirements = json!({ "template": { "spec": { "requirements": [spot] } } });
        user.default_pool(json!({ "spec": requirements })).await;
        user.until("it is told", async || condition(&user).await.is_some()).await;
        assert_eq!(condition(&user).await.unwrap().1, "ExtremePriceReachable");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_pool_of_the_managed_product_and_pools_of_named_sizes_are_not_told() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(json!({})).await;
        user.pass(60).await;
        assert_eq!((condition(&user).await, events(&user).await), (None, 0));
        let sizes = json!({
            "key": "node.kubernetes.io/instance-type", "operator": "In",
            "values": ["Standard_ND96isr_H100_v5"],
        });
        let requirements = json!({ "template": { "spec": { "requirements": [sizes] } } });
        user.patch::<NodePool>("default", json!({ "spec": requirements })).await;
        user.pass(60).await;
        assert_eq!((condition(&user).await, events(&user).await), (None, 0));
    })
    .await;
}
