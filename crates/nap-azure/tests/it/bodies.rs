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
use serde_json::Value;

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

#[test]
fn machine_bodies_are_as_the_incumbent_sends_them() {
    let cases: Vec<Case> =
        serde_json::from_str(include_str!("../data/machine_requests.json")).unwrap();
    assert_eq!(cases.len(), 4);
    for case in cases {
        let mut config = AzureConfig::new("s", "rg", &case.cluster, &case.region);
        config.additional_tags = case.additional_tags;
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
        let image =
            images::select(&status.images, &kind.requirements, &Requirements::new()).unwrap();
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
        assert_eq!(request.body().unwrap(), case.body, "{}", case.name);
    }
}
