//! Tests of quota holds and of a price endpoint that does not answer.

use std::time::Duration;

use super::*;
use crate::embedded::EmbeddedCatalogue;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use nap_clock::Clock;

/// A region with 10 vCPUs left in the family of `Standard_D8s_v5`.
fn region() -> (RegionCatalogue, Sku) {
    let service = crate::arm::http_service(tower::service_fn(|_: Request<Full<Bytes>>| async {
        Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::default()))
    }));
    let client = ArmClient::anonymous(service, Clock::wall(), "https://arm.example");
    let config = AzureConfig::new("s", "rg", "c", "eastus");
    let region = RegionCatalogue::new(config, client.clone(), client);
    let embedded = EmbeddedCatalogue::embedded();
    let row = embedded.skus_in("eastus").find(|sku| sku.name == "Standard_D8s_v5").unwrap();
    let row = row.to_resource_sku(embedded.region("eastus").unwrap());
    let sku = Sku::read(&row, "eastus").unwrap();
    count(&region, &sku, Timestamp::UNIX_EPOCH);
    (region, sku)
}

fn count(region: &RegionCatalogue, sku: &Sku, now: Timestamp) {
    let left = [(sku.family.to_lowercase(), 10)].into();
    region.region.state().quota.recount(left, now);
}

fn fits(region: &RegionCatalogue, sku: &Sku) -> bool {
    region.region.state().fits(sku, CapacityType::OnDemand)
}

#[test]
fn a_failed_launch_releases_its_quota() {
    let (region, sku) = region();
    let hold = region.hold_quota("a", &sku, CapacityType::OnDemand);
    assert!(hold.is_some() && !fits(&region, &sku));
    assert!(region.hold_quota("b", &sku, CapacityType::OnDemand).is_none());
    drop(hold);
    assert!(fits(&region, &sku));
}

#[test]
fn an_accepted_launch_keeps_its_quota_until_it_is_counted_or_fails() {
    let (region, sku) = region();
    region.hold_quota("a", &sku, CapacityType::OnDemand).unwrap().keep();
    assert!(!fits(&region, &sku));
    count(&region, &sku, region.region.arm.clock().now());
    assert!(!fits(&region, &sku), "Azure may not have counted it yet");
    count(&region, &sku, Timestamp::MAX);
    assert!(fits(&region, &sku));
    region.hold_quota("b", &sku, CapacityType::OnDemand).unwrap().keep();
    region.release_quota("b");
    assert!(fits(&region, &sku));
}

#[test]
fn a_refused_regional_quota_blocks_every_family_until_the_next_count() {
    let (region, sku) = region();
    let text = "exceeding approved Total Regional Cores quota";
    let error = CloudError::new(ErrorClass::Quota, "create", "OperationNotAllowed", text);
    assert!(region.learn(&error, &sku, "eastus-1", CapacityType::OnDemand));
    assert!(!fits(&region, &sku));
    count(&region, &sku, Timestamp::MAX);
    assert!(fits(&region, &sku));
}

/// A region whose sizes and quota are answered, and whose price endpoint never is.
fn region_without_prices() -> RegionCatalogue {
    let embedded = EmbeddedCatalogue::embedded();
    let row = embedded.skus_in("eastus").find(|sku| sku.name == "Standard_D8s_v5").unwrap();
    let row = row.to_resource_sku(embedded.region("eastus").unwrap());
    let sizes = serde_json::json!({ "value": [row] }).to_string();
    let service =
        crate::arm::http_service(tower::service_fn(move |request: Request<Full<Bytes>>| {
            let path = request.uri().path().to_owned();
            let body =
                if path.ends_with("/skus") { sizes.clone() } else { r#"{"value":[]}"#.into() };
            async move {
                if path.contains("retail") {
                    std::future::pending::<()>().await;
                }
                Ok::<_, std::convert::Infallible>(Response::new(Full::new(Bytes::from(body))))
            }
        }));
    let client = ArmClient::anonymous(
        service,
        Clock::starting_at(Timestamp::UNIX_EPOCH, 1),
        "https://arm.example",
    );
    RegionCatalogue::new(AzureConfig::new("s", "rg", "c", "eastus"), client.clone(), client)
}

#[tokio::test(start_paused = true)]
async fn a_price_endpoint_that_drops_requests_delays_only_the_first_plan_by_some_seconds() {
    let region = region_without_prices();
    let settings = Settings::new(&region.region.config, &nap_api::AKSNodeClass::default());
    let begun = tokio::time::Instant::now();
    let catalogue = region.catalogue(&settings).await.unwrap();
    assert_eq!(begun.elapsed().as_secs(), MAX_PRICE_WAIT.as_secs());
    assert!(catalogue.types()[0].offerings.iter().any(|one| one.available), "built-in prices");
    for _ in 0..10 {
        // Prices are due again after a minute, and still nothing answers.
        tokio::time::sleep(Duration::from_mins(2)).await;
        let begun = tokio::time::Instant::now();
        region.catalogue(&settings).await.unwrap();
        assert!(begun.elapsed().is_zero());
    }
}
