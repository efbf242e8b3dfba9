//! Instance types of generated problems: synthetic ones, or Azure's from the embedded catalogue.

use std::collections::BTreeMap;

use nap_api::{Operator, Requirements, labels};
use nap_azure::AzureError;
use nap_azure::embedded::EmbeddedCatalogue;
use nap_azure::instance_types::{Settings, from_catalogue};
use nap_engine::CapacityType;
use nap_problem::generate::catalogues::{fake_400, fake_1500, fake_pool, kwok, kwok_pool};
use nap_problem::generate::named_pool;
use nap_problem::{Amounts, InstanceType, NodePool, Offering};
use nap_units::{CPU, Resources};

use crate::bench::args::CatalogueKind;
use crate::bench::measure::dollars;
use crate::user_error::UserError;

/// The instance types of a catalogue.
pub(super) fn types(kind: CatalogueKind, region: &str) -> anyhow::Result<Vec<InstanceType>> {
    match kind {
        CatalogueKind::Fake400 => Ok(fake_400()),
        CatalogueKind::Fake1500 => Ok(fake_1500()),
        CatalogueKind::Kwok => Ok(kwok()),
        CatalogueKind::D | CatalogueKind::Def64 | CatalogueKind::Azure => azure(kind, region),
    }
}

/// The NodePool that launches from a catalogue.
pub(super) fn pool(kind: CatalogueKind) -> NodePool {
    match kind {
        CatalogueKind::Fake400 | CatalogueKind::Fake1500 => fake_pool(),
        CatalogueKind::Kwok => kwok_pool(),
        CatalogueKind::D | CatalogueKind::Def64 | CatalogueKind::Azure => named_pool("default"),
    }
}

/// Azure's instance types in a region. Offerings without a zone are left out: the format has zonal
/// offerings only.
fn azure(kind: CatalogueKind, region: &str) -> anyhow::Result<Vec<InstanceType>> {
    let settings = Settings {
        node_resource_group: "bench".to_owned(),
        ..crate::catalogue::settings(region, None)
    };
    let all =
        from_catalogue(EmbeddedCatalogue::embedded(), &settings).map_err(|error| match error {
            AzureError::UnknownRegion { name, nearest } => {
                let hint = format!("did you mean {}?", nearest.join(", "));
                UserError::new(
                    format!("--region: there is no region `{name}` in the catalogue"),
                    hint,
                )
                .into()
            }
            other => anyhow::Error::from(other),
        })?;
    let types = all.types().iter().filter(|one| wanted(kind, one)).map(|one| written(kind, one));
    Ok(types.filter(|one| !one.offerings.is_empty()).collect())
}

fn value<'r>(requirements: &'r Requirements, key: &str) -> Option<&'r str> {
    requirements.get(key)?.single()
}

fn wanted(kind: CatalogueKind, one: &nap_engine::InstanceType) -> bool {
    let label = |key: &str| value(&one.requirements, key).unwrap_or_default();
    let family = label(labels::SKU_FAMILY);
    let general =
        label(labels::ARCH) == "amd64" && label(labels::SKU_STORAGE_PREMIUM_CAPABLE) == "true";
    match kind {
        CatalogueKind::D => {
            general
                && family == "D"
                && label(labels::SKU_VERSION).parse().is_ok_and(|version: u32| version >= 5)
        }
        CatalogueKind::Def64 => {
            general && ["D", "E", "F"].contains(&family) && one.capacity.get(CPU) <= 64_000
        }
        _ => true,
    }
}

fn written(kind: CatalogueKind, one: &nap_engine::InstanceType) -> InstanceType {
    let mut own: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (key, requirement) in one.requirements.iter() {
        let said_otherwise = [labels::INSTANCE_TYPE, labels::ARCH, labels::OS].contains(&key);
        if requirement.operator() == Operator::In && !said_otherwise {
            own.insert(key.to_owned(), requirement.values().iter().map(str::to_owned).collect());
        }
    }
    // Attachable volumes have no field in the format.
    let mut overhead = Resources::new();
    for (name, all) in one.capacity.iter() {
        overhead.set(name, all - one.allocatable.get(name));
    }
    let offerings = one.offerings.iter().filter(|offer| {
        let zonal = value(&offer.requirements, labels::PLACEMENT_SCOPE) == Some("zonal");
        zonal && (kind == CatalogueKind::Azure || offer.capacity_type == CapacityType::OnDemand)
    });
    InstanceType {
        name: one.name.clone(),
        arch: value(&one.requirements, labels::ARCH).unwrap_or("amd64").to_owned(),
        os: vec!["linux".to_owned()],
        capacity: Amounts::from(&one.capacity),
        overhead: Amounts::from(&overhead),
        labels: own,
        offerings: offerings
            .map(|offer| Offering {
                zone: offer.zone.clone(),
                capacity_type: offer.capacity_type.to_string(),
                price_usd_per_hour: dollars(offer.price),
                available: offer.available,
            })
            .collect(),
    }
}
