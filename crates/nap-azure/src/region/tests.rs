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

/// Answer of a service to a request.
enum Answer {
    Body(String),
    Failure,
    Nothing,
}

/// A region whose endpoints answer as a function of the path says, and the requests that they get.
fn answering(
    answer: impl Fn(&str) -> Answer + Clone + Send + Sync + 'static,
) -> (RegionCatalogue, Arc<Mutex<Vec<String>>>) {
    let requests = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&requests);
    let service =
        crate::arm::http_service(tower::service_fn(move |request: Request<Full<Bytes>>| {
            let path = request.uri().path().to_owned();
            let answer = answer(&path);
            seen.lock().unwrap().push(path);
            async move {
                let (status, body) = match answer {
                    Answer::Body(body) => (200, body),
                    Answer::Failure => (500, String::new()),
                    Answer::Nothing => std::future::pending().await,
                };
                let response = Response::builder().status(status);
                let response = response.body(Full::new(Bytes::from(body))).unwrap();
                Ok::<_, std::convert::Infallible>(response)
            }
        }));
    let clock = Clock::starting_at(Timestamp::UNIX_EPOCH, 1);
    let client = ArmClient::anonymous(service, clock, "https://arm.example");
    let config = AzureConfig::new("s", "rg", "c", "eastus");
    (RegionCatalogue::new(config, client.clone(), client), requests)
}

/// The list of one size, and empty lists of all else.
fn one_size(path: &str) -> Answer {
    let embedded = EmbeddedCatalogue::embedded();
    let row = embedded.skus_in("eastus").find(|sku| sku.name == "Standard_D8s_v5").unwrap();
    let row = row.to_resource_sku(embedded.region("eastus").unwrap());
    let sizes = serde_json::json!({ "value": [row] }).to_string();
    Answer::Body(if path.ends_with("/skus") { sizes } else { r#"{"value":[]}"#.to_owned() })
}

fn count_of(requests: &Mutex<Vec<String>>, part: &str) -> usize {
    requests.lock().unwrap().iter().filter(|path| path.contains(part)).count()
}

#[tokio::test(start_paused = true)]
async fn endpoints_that_drop_requests_delay_only_the_first_plan_by_some_seconds() {
    for silent in ["retail", "/usages"] {
        let (region, requests) =
            answering(
                move |path| {
                    if path.contains(silent) { Answer::Nothing } else { one_size(path) }
                },
            );
        let settings = Settings::new(&region.region.config, &nap_api::AKSNodeClass::default());
        let begun = tokio::time::Instant::now();
        let catalogue = region.catalogue(&settings).await.unwrap();
        assert_eq!(begun.elapsed().as_secs(), MAX_FIRST_WAIT.as_secs(), "{silent}");
        assert!(catalogue.types()[0].offerings.iter().any(|one| one.available), "{silent}");
        for _ in 0..10 {
            // Prices are due again after a minute, and still nothing answers.
            tokio::time::sleep(Duration::from_mins(2)).await;
            let begun = tokio::time::Instant::now();
            region.catalogue(&settings).await.unwrap();
            assert!(begun.elapsed().is_zero());
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let answered = if silent == "retail" { "/usages" } else { "/skus" };
        assert!(count_of(&requests, answered) >= 1, "{silent}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_price_endpoint_does_not_delay_the_count_of_quota() {
    let (region, requests) =
        answering(|path| if path.contains("retail") { Answer::Nothing } else { one_size(path) });
    let settings = Settings::new(&region.region.config, &nap_api::AKSNodeClass::default());
    region.catalogue(&settings).await.unwrap();
    // The refresh of prices waits for minutes each time.
    let lifetime = QUOTA_LIFETIME.unsigned_abs() + Duration::from_secs(1);
    tokio::time::sleep(lifetime).await;
    region.catalogue(&settings).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(count_of(&requests, "/usages"), 2);
}

#[tokio::test(start_paused = true)]
async fn callers_that_wait_for_the_first_sizes_share_a_failure() {
    let (region, requests) =
        answering(|path| if path.ends_with("/skus") { Answer::Failure } else { one_size(path) });
    let settings = Settings::new(&region.region.config, &nap_api::AKSNodeClass::default());
    let begun = tokio::time::Instant::now();
    let callers = (0..10).map(|_| region.catalogue(&settings));
    let failed = futures::future::join_all(callers).await;
    assert!(failed.iter().all(|result| result.as_ref().is_err_and(|it| it.code == "HTTP500")));
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    assert_eq!(count_of(&requests, "/skus"), 4, "one fetch with its retries");
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(region.catalogue(&settings).await.is_err());
    assert_eq!(count_of(&requests, "/skus"), 8, "it is tried again");
}
