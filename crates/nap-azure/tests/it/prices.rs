//! Prices where the price API has none.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use jiff::Timestamp;
use nap_api::AKSNodeClass;
use nap_azure::arm::{StaticToken, http_service};
use nap_azure::embedded::{EmbeddedCatalogue, Region};
use nap_azure::{AzureConfig, AzureProvider, PriceSource};
use nap_clock::Clock;
use nap_cloud::CloudProvider;
use nap_engine::CapacityType;

/// A provider in a region that sells one size and whose price API has no items; and how often
/// prices were asked for.
fn provider(region: &str) -> (AzureProvider, Arc<AtomicUsize>) {
    let catalogue = EmbeddedCatalogue::embedded();
    let zones = vec!["1".to_owned()];
    let place = Region { name: region.to_owned(), zones, ..Region::default() };
    let row = catalogue.sku("Standard_D8s_v5").unwrap().to_resource_sku(&place);
    let sizes = serde_json::json!({ "value": [row] }).to_string();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let service = http_service(tower::service_fn(move |request: Request<Full<Bytes>>| {
        let path = request.uri().path();
        if path.contains("retail") {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let body = match path {
            _ if path.ends_with("/skus") => sizes.clone(),
            _ if path.contains("retail") => r#"{"Items":[],"NextPageLink":null}"#.to_owned(),
            _ => r#"{"value":[]}"#.to_owned(),
        };
        async { Ok::<_, std::convert::Infallible>(Response::new(Full::new(Bytes::from(body)))) }
    }));
    let config = AzureConfig::new("s", "rg", "c", region);
    let clock = Clock::starting_at(Timestamp::UNIX_EPOCH, 1);
    let token = Arc::new(StaticToken("t".to_owned()));
    (AzureProvider::new(config, clock, service, token), asked)
}

#[tokio::test(start_paused = true)]
async fn a_region_without_prices_has_those_of_the_reference_region() {
    let (provider, asked) = provider("usgovvirginia");
    assert_eq!(provider.catalogue_source(), None);
    let types = provider.instance_types(&AKSNodeClass::default()).await.unwrap();
    let offerings = &types.types()[0].offerings;
    let reference = EmbeddedCatalogue::embedded().prices_in("eastus");
    for capacity_type in [CapacityType::OnDemand, CapacityType::Spot] {
        let one = offerings.iter().find(|one| one.capacity_type == capacity_type).unwrap();
        assert!(one.available, "{capacity_type}");
        assert_eq!(Some(one.price), reference.get("Standard_D8s_v5", capacity_type));
    }
    assert_eq!(provider.catalogue_source().unwrap().prices, PriceSource::Reference);
    // The API has answered: asking again soon would not help.
    tokio::time::sleep(Duration::from_hours(1)).await;
    provider.instance_types(&AKSNodeClass::default()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn a_region_of_the_catalogue_has_its_own_prices() {
    let (provider, _) = provider("westeurope");
    let types = provider.instance_types(&AKSNodeClass::default()).await.unwrap();
    let price = types.types()[0].offerings[0].price;
    let built_in = EmbeddedCatalogue::embedded().prices_in("westeurope");
    assert_eq!(Some(price), built_in.get("Standard_D8s_v5", CapacityType::OnDemand));
    assert_eq!(provider.catalogue_source().unwrap().prices, PriceSource::BuiltIn);
}
