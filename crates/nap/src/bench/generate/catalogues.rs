//! What is on offer in generated problems: made-up types of the incumbent's benchmarks, or Azure's
//! own.

use std::collections::BTreeMap;

use nap_api::aksnodeclass::ImageFamily;
use nap_api::{Operator, Requirements, labels};
use nap_azure::AzureError;
use nap_azure::catalogue::Catalogue;
use nap_azure::instance_types::{Settings, from_catalogue};
use nap_engine::CapacityType;
use nap_oracle::problem::{Amounts, InstanceType, NodePool, Offering};
use nap_units::{CPU, Resources};

use super::{MEBIBYTE, expression, named_pool};
use crate::bench::args::CatalogueKind;
use crate::bench::measure::dollars;
use crate::user_error::UserError;

const GIBIBYTE: i64 = 1024 * MEBIBYTE;
const KWOK_SIZE: &str = "karpenter.kwok.sh/instance-size";

/// The types of a catalogue.
pub(super) fn types(kind: CatalogueKind, region: &str) -> anyhow::Result<Vec<InstanceType>> {
    match kind {
        CatalogueKind::Fake400 => Ok((1..=400).map(|cores| fake(cores, 2)).collect()),
        CatalogueKind::Fake1500 => {
            let ratios = [2, 4, 8].into_iter();
            Ok(ratios
                .flat_map(|ratio| (1..=500).map(move |cores| everywhere(fake(cores, ratio))))
                .collect())
        }
        CatalogueKind::Kwok => Ok(kwok()),
        CatalogueKind::D | CatalogueKind::Def64 | CatalogueKind::Azure => azure(kind, region),
    }
}

/// The pool that buys from a catalogue.
pub(super) fn pool(kind: CatalogueKind) -> NodePool {
    let mut pool = named_pool("default");
    match kind {
        CatalogueKind::Fake400 | CatalogueKind::Fake1500 => {
            for (name, limit) in [("cpu", "10000000"), ("memory", "10000000Gi")] {
                pool.limits.extend(limit.parse().ok().map(|limit| (name.to_owned(), limit)));
            }
        }
        CatalogueKind::Kwok => {
            pool.requirements.push(expression(KWOK_SIZE, "Lt", &["32"]));
            pool.requirements.push(expression(labels::OS, "In", &["linux"]));
        }
        CatalogueKind::D | CatalogueKind::Def64 | CatalogueKind::Azure => {}
    }
    pool
}

/// Keeps so many types, evenly from small to large.
pub(super) fn thin(mut types: Vec<InstanceType>, most: usize) -> Vec<InstanceType> {
    types.sort_by(|a, b| {
        let size = |kind: &InstanceType| (kind.capacity.cpu_milli, kind.capacity.memory_bytes);
        size(a).cmp(&size(b)).then_with(|| a.name.cmp(&b.name))
    });
    let all = types.len();
    let kept = |index: usize| most >= all || index * most / all != (index + 1) * most / all;
    types.into_iter().enumerate().filter(|(index, _)| kept(*index)).map(|(_, kind)| kind).collect()
}

fn offers(zones: &[&str], capacity_type: &str, price: f64) -> Vec<Offering> {
    let offer = |zone: &&str| Offering {
        zone: (*zone).to_owned(),
        capacity_type: capacity_type.to_owned(),
        // To the micro-dollar, as prices count: such a number comes back from text as it was.
        price_usd_per_hour: (price * 1e6).round() / 1e6,
        available: true,
    };
    zones.iter().map(offer).collect()
}

/// A type with four zones, in each on demand and spot.
fn everywhere(mut kind: InstanceType) -> InstanceType {
    let price = kind.offerings.first().map_or(0.0, |offering| offering.price_usd_per_hour);
    let zones = ["test-zone-1", "test-zone-2", "test-zone-3", "test-zone-4"];
    kind.name = format!("{}-{}", kind.name, kind.capacity.memory_bytes / GIBIBYTE);
    kind.offerings = offers(&zones, "spot", price * 0.7);
    kind.offerings.extend(offers(&zones, "on-demand", price));
    kind
}

/// A type of the incumbent's benchmark: so many cores, and a multiple of that in GiB; there it is
/// twice.
fn fake(cores: i64, ratio: i64) -> InstanceType {
    let memory = ratio * cores * GIBIBYTE;
    #[expect(clippy::cast_precision_loss, reason = "the recipe of the price is in floats")]
    let price = 0.1 * cores as f64 + 0.1 * memory as f64 / 1e9;
    let large = cores > 4 && memory > 8 * GIBIBYTE;
    let mut labels = BTreeMap::from([
        ("integer".to_owned(), vec![cores.to_string()]),
        ("size".to_owned(), vec![if large { "large" } else { "small" }.to_owned()]),
    ]);
    if large {
        labels.insert("special".to_owned(), vec!["optional".to_owned()]);
    }
    let mut offerings = offers(&["test-zone-1", "test-zone-2"], "spot", price);
    offerings.extend(offers(&["test-zone-1", "test-zone-2", "test-zone-3"], "on-demand", price));
    InstanceType {
        name: format!("fake-it-{}", cores - 1),
        arch: "amd64".to_owned(),
        os: ["linux", "windows", "darwin"].map(str::to_owned).to_vec(),
        capacity: Amounts {
            cpu_milli: cores * 1000,
            memory_bytes: memory,
            pods: cores * 10,
            ..Amounts::default()
        },
        overhead: Amounts { cpu_milli: 100, memory_bytes: 10 * MEBIBYTE, ..Amounts::default() },
        labels,
        offerings,
    }
}

/// The types of the incumbent's performance suite.
fn kwok() -> Vec<InstanceType> {
    let mut types = Vec::new();
    for cores in [1_i64, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256] {
        for (family, ratio) in [("c", 2), ("s", 4), ("m", 8)] {
            for system in ["linux", "windows"] {
                for arch in ["amd64", "arm64"] {
                    let memory = cores * ratio * GIBIBYTE;
                    #[expect(
                        clippy::cast_precision_loss,
                        reason = "the recipe of the price is in floats"
                    )]
                    let price = 0.025 * cores as f64 + 0.001 * memory as f64 / 1e9;
                    let zones = ["test-zone-a", "test-zone-b", "test-zone-c", "test-zone-d"];
                    let mut offerings = offers(&zones, "on-demand", price);
                    offerings.extend(offers(&zones, "spot", price * 0.7));
                    let label = |name: &str, value: String| {
                        (format!("karpenter.kwok.sh/instance-{name}"), vec![value])
                    };
                    types.push(InstanceType {
                        name: format!("{family}-{cores}x-{arch}-{system}"),
                        arch: arch.to_owned(),
                        os: vec![system.to_owned()],
                        capacity: Amounts {
                            cpu_milli: cores * 1000,
                            memory_bytes: memory,
                            pods: (16 * cores).min(1024),
                            extended: BTreeMap::from([(
                                "ephemeral-storage".to_owned(),
                                20 * GIBIBYTE,
                            )]),
                        },
                        overhead: Amounts {
                            cpu_milli: 100,
                            memory_bytes: 10 * MEBIBYTE,
                            ..Amounts::default()
                        },
                        labels: BTreeMap::from([
                            label("family", family.to_owned()),
                            label("size", cores.to_string()),
                            label("cpu", cores.to_string()),
                            label("memory", (memory / MEBIBYTE).to_string()),
                        ]),
                        offerings,
                    });
                }
            }
        }
    }
    types
}

/// Azure's types in a region, from the embedded catalogue. Offerings without a zone are left out:
/// the format has zones only.
fn azure(kind: CatalogueKind, region: &str) -> anyhow::Result<Vec<InstanceType>> {
    let settings = Settings {
        region: region.to_owned(),
        node_resource_group: "bench".to_owned(),
        image_family: ImageFamily::default(),
        os_disk_gb: 128,
        max_pods: 250,
        memory_overhead: 0.075,
    };
    let all = from_catalogue(Catalogue::embedded(), &settings).map_err(|error| match error {
        AzureError::UnknownRegion { name, nearest } => {
            let hint = format!("did you mean {}?", nearest.join(", "));
            UserError::new(format!("--region: there is no region `{name}` in the catalogue"), hint)
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
            own.insert(key.to_owned(), requirement.values().iter().cloned().collect());
        }
    }
    // What can be attached has no place in the format.
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
