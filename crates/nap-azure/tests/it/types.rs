//! Capacity, allocatable, labels and offerings of sampled sizes equal the incumbent's.

use std::collections::BTreeMap;

use nap_api::AKSNodeClass;
use nap_azure::AzureConfig;
use nap_azure::instance_types::{Settings, instance_type, suits};
use nap_azure::prices::Prices;
use nap_azure::skus::{ResourceSku, Sku};
use nap_engine::{CapacityType, InstanceType};
use nap_units::UsdPerHour;
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    region: String,
    row: ResourceSku,
    excluded: Option<String>,
    #[serde(default)]
    requirements: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    capacity: BTreeMap<String, i64>,
    #[serde(default)]
    allocatable: BTreeMap<String, i64>,
    /// Zone, capacity type, price in micro-dollars, available, values of the ultra-disk label.
    #[serde(default)]
    offerings: Vec<(String, String, i64, bool, Vec<String>)>,
    #[serde(default)]
    ephemeral: bool,
}

fn settings(region: &str) -> Settings {
    let mut config = AzureConfig::new("s", "rg", "test-cluster", region);
    "test-resourceGroup".clone_into(&mut config.node_resource_group);
    Settings::new(&config, &AKSNodeClass::default())
}

/// Every difference, in words.
fn differences(case: &Case) -> Vec<String> {
    let settings = settings(&case.region);
    let read = Sku::read(&case.row, &case.region).ok().filter(|sku| suits(sku, &settings));
    let sku = match (read, &case.excluded) {
        (None, Some(_)) => return Vec::new(),
        (Some(_), Some(why)) => return vec![format!("is not excluded ({why})")],
        (None, None) => {
            return vec![format!("is excluded: {:?}", Sku::read(&case.row, &case.region).err())];
        }
        (Some(sku), None) => sku,
    };
    let mut prices = Prices::default();
    for (_, kind, micros, _, _) in &case.offerings {
        let table = if kind == "spot" { &mut prices.spot } else { &mut prices.on_demand };
        table.insert(sku.name.clone(), UsdPerHour::from_micros(*micros));
    }
    let made = instance_type(&sku, &settings, &prices, |_, _| true);
    let mut found = Vec::new();
    let mut compare = |what: &str, ours: String, theirs: String| {
        if ours != theirs {
            found.push(format!("{what}: {ours} instead of {theirs}"));
        }
    };
    let requirements: BTreeMap<String, Vec<String>> = made
        .requirements
        .iter()
        .map(|(key, values)| (key.to_owned(), values.values().iter().cloned().collect()))
        .collect();
    for key in requirements.keys().chain(case.requirements.keys()) {
        compare(
            key,
            format!("{:?}", requirements.get(key)),
            format!("{:?}", case.requirements.get(key)),
        );
    }
    compare("capacity", amounts(&made, false), format!("{:?}", case.capacity));
    compare("allocatable", amounts(&made, true), format!("{:?}", case.allocatable));
    compare("ephemeral", sku.uses_ephemeral_os_disk(128).to_string(), case.ephemeral.to_string());
    compare(
        "offerings",
        format!("{:?}", offerings(&made)),
        format!("{:?}", sorted(case.offerings.clone())),
    );
    found
}

fn amounts(made: &InstanceType, allocatable: bool) -> String {
    let resources = if allocatable { &made.allocatable } else { &made.capacity };
    // The incumbent does not know how many volumes a size can attach.
    let known =
        resources.iter().filter(|(name, _)| !name.starts_with(nap_engine::ATTACHABLE_VOLUMES));
    let map: BTreeMap<String, i64> =
        known.map(|(name, amount)| (name.to_owned(), amount)).collect();
    format!("{map:?}")
}

fn offerings(made: &InstanceType) -> Vec<(String, String, i64, bool, Vec<String>)> {
    let shown = made.offerings.iter().map(|offering| {
        let ultra = offering.requirements.get(nap_api::labels::SKU_STORAGE_ULTRA_SSD).unwrap();
        let spot = offering.capacity_type == CapacityType::Spot;
        let priority = offering.requirements.get(nap_api::labels::AKS_PRIORITY).unwrap().single();
        assert_eq!(priority, Some(if spot { "spot" } else { "regular" }));
        (
            offering.zone.clone(),
            offering.capacity_type.as_str().to_owned(),
            offering.price.micros(),
            offering.available,
            ultra.values().iter().cloned().collect(),
        )
    });
    sorted(shown.collect())
}

fn sorted<T: Ord>(mut list: Vec<T>) -> Vec<T> {
    list.sort();
    list
}

#[test]
fn sampled_sizes_are_as_the_incumbent_has_them() {
    let cases: Vec<Case> =
        serde_json::from_str(include_str!("../data/incumbent_types.json")).unwrap();
    assert!(cases.len() >= 50);
    let mut failed = 0;
    for case in &cases {
        let found = differences(case);
        failed += usize::from(!found.is_empty());
        if !found.is_empty() {
            println!("{}/{}: {}", case.region, case.row.name, found.join("; "));
        }
    }
    assert_eq!(failed, 0, "of {} sizes", cases.len());
}
