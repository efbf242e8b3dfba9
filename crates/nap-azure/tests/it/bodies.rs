//! The bodies of machine requests equal the incumbent's, member for member.

use std::collections::BTreeMap;

use nap_api::{AKSNodeClass, NodeClaim, Requirements};
use nap_azure::AzureConfig;
use nap_azure::images;
use nap_azure::instance_types::{Settings, instance_type};
use nap_azure::machines::MachineRequest;
use nap_azure::prices::Prices;
use nap_azure::skus::{ResourceSku, Sku};
use nap_units::UsdPerHour;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Case {
    #[serde(rename = "case")]
    name: String,
    region: String,
    cluster: String,
    additional_tags: BTreeMap<String, String>,
    row: ResourceSku,
    claim: NodeClaim,
    class: AKSNodeClass,
    body: Value,
}

fn cases() -> Vec<Case> {
    serde_json::from_str(include_str!("../data/machine_requests.json")).unwrap()
}

/// The body for a case.
fn body(case: &Case) -> Value {
    let mut config = AzureConfig::new("s", "rg", &case.cluster, &case.region);
    config.additional_tags = case.additional_tags.clone();
    let sku = Sku::read(&case.row, &case.region).unwrap();
    let price = BTreeMap::from([(sku.name.clone(), UsdPerHour::from_micros(1))]);
    let prices = Prices { on_demand: price.clone(), spot: price };
    let kind = instance_type(&sku, &Settings::new(&config, &case.class), &prices, |_, _| true);
    let wanted = Requirements::from_specs(&case.claim.spec.requirements);
    let offering = kind
        .offerings
        .iter()
        .find(|offering| offering.requirements.intersects(&wanted).is_ok())
        .unwrap();
    let status = case.class.status.clone().unwrap();
    let image = images::select(&status.images, &kind.requirements, &Requirements::new()).unwrap();
    let request = MachineRequest {
        config: &config,
        claim: &case.claim,
        class: &case.class,
        sku: &sku,
        instance_type: &kind,
        offering,
        image_id: &image.id,
        kubernetes_version: status.kubernetes_version.as_deref().unwrap(),
    };
    request.body().unwrap()
}

#[test]
fn machine_bodies_are_as_the_incumbent_sends_them() {
    let cases = cases();
    assert_eq!(cases.len(), 4);
    for case in cases {
        assert_eq!(body(&case), case.body, "{}", case.name);
    }
}

#[test]
fn a_class_without_a_gpu_driver_has_none_installed() {
    let mut case = cases().into_iter().find(|case| case.name == "gpu").unwrap();
    let driver = |case: &Case| body(case)["properties"]["hardware"]["gpuProfile"].clone();
    assert_eq!(driver(&case), json!({ "driver": "Install" }));
    case.class.spec.gpu = serde_json::from_value(json!({ "mode": "None" })).unwrap();
    assert_eq!(driver(&case), json!({ "driver": "None" }));
}
