//! Prices of the embedded catalogue stand in while the price API does not answer, and are marked as
//! estimates where they are.

use nap_api::labels;
use nap_cloud::CloudProvider;
use nap_engine::PriceEstimates;
use serde_json::{Value, json};

use crate::harness::User;
use crate::recording::records;
use crate::world::World;

/// A pool of both capacity types.
fn both() -> Value {
    let both = json!({
        "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot", "on-demand"],
    });
    json!({ "spec": { "template": { "spec": { "requirements": [both] } } } })
}

#[tokio::test(start_paused = true)]
async fn the_provider_tells_which_prices_are_estimates() {
    let world = World::new().await;
    world.emulator.schedule_fault("noPrices: {}").unwrap();
    assert_eq!(world.provider.price_estimates(), PriceEstimates::None, "there are none yet");
    world.provider.instance_types(&world.class).await.unwrap();
    assert_eq!(world.provider.price_estimates(), PriceEstimates::Spot);
    world.emulator.clear_faults();
    world.clock.sleep(std::time::Duration::from_mins(2)).await;
    world.provider.instance_types(&world.class).await.unwrap();
    world.clock.sleep(std::time::Duration::from_secs(5)).await;
    assert_eq!(world.provider.price_estimates(), PriceEstimates::None);
}

#[tokio::test(start_paused = true)]
async fn events_mark_estimated_prices_until_azure_states_them() {
    let user = User::new().await;
    user.world.azure().schedule_fault("noPrices: {}").unwrap();
    user.run(async {
        user.default_pool(both()).await;
        user.deploy("web", 1, json!({})).await;
        user.until_running(1).await;
        let events = user.events("Launching").await;
        assert!(events.iter().all(|event| event.contains(" spot in ")), "{events:?}");
        assert!(events.iter().all(|event| event.contains(" at ~$")), "{events:?}");
        user.until("it is recorded", async || !records(&user).await.is_empty()).await;
        assert!(records(&user).await[0].launched[0].price_is_estimate);
        let price = async || {
            let claims = user.claims().await;
            claims.last().unwrap().metadata.annotations.clone().unwrap()[labels::PRICE_PER_HOUR]
                .clone()
        };
        assert!(price().await.starts_with("~0."), "{}", price().await);

        user.world.azure().clear_faults();
        user.pass(180).await;
        user.deploy("more", 20, json!({})).await;
        user.until_running(21).await;
        let later = user.events("Launching").await;
        assert!(later.iter().any(|event| event.contains(" at $")), "{later:?}");
        user.scale("more", 0).await;
        user.until("a node is removed", async || {
            !user.events("DisruptionTerminating").await.is_empty()
        })
        .await;
        let removed = user.events("DisruptionTerminating").await;
        assert!(removed.iter().all(|event| !event.contains('~')), "{removed:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn events_of_disruption_mark_estimated_prices() {
    let user = User::new().await;
    user.world.azure().schedule_fault("noPrices: {}").unwrap();
    user.run(async {
        user.default_pool(both()).await;
        user.deploy("web", 20, json!({})).await;
        user.until_running(20).await;
        user.scale("web", 0).await;
        user.until("a node is removed", async || {
            !user.events("DisruptionTerminating").await.is_empty()
        })
        .await;
        let removed = user.events("DisruptionTerminating").await;
        assert!(removed.iter().all(|event| event.contains("(~$")), "{removed:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_a_price_ceiling_refuses_hears_of_an_estimate_as_one() {
    let user = User::new().await;
    user.world.azure().schedule_fault("noPrices: {}").unwrap();
    user.run(async {
        let mut pool = both();
        pool["metadata"]["annotations"] = json!({ labels::MAX_PRICE_PER_NODE_HOUR: "0.001" });
        user.default_pool(pool).await;
        user.deploy("web", 1, json!({})).await;
        user.until("the pod is refused", async || {
            let events = user.events("FailedScheduling").await;
            events.iter().any(|event| event.contains("the cheapest costs ~$"))
        })
        .await;
    })
    .await;
}
