//! Synthetic instance types: those of the incumbent's benchmark and of its performance suite.

use std::collections::BTreeMap;

use nap_api::labels;

use crate::{Amounts, InstanceType, NodePool, Offering};

use super::{MEBIBYTE, expression, named_pool};

const GIBIBYTE: i64 = 1024 * MEBIBYTE;
const KWOK_SIZE: &str = "karpenter.kwok.sh/instance-size";

/// The 400 instance types of the incumbent's benchmark.
pub fn fake_400() -> Vec<InstanceType> {
    (1..=400).map(|cores| fake(cores, 2)).collect()
}

/// 1,500 such types in three ratios of memory to cores, in four zones, on demand and spot.
pub fn fake_1500() -> Vec<InstanceType> {
    let ratios = [2, 4, 8].into_iter();
    ratios.flat_map(|ratio| (1..=500).map(move |cores| everywhere(fake(cores, ratio)))).collect()
}

/// The NodePool of the incumbent's benchmark, whose limits are never reached.
pub fn fake_pool() -> NodePool {
    let mut pool = named_pool("default");
    for (name, limit) in [("cpu", "10000000"), ("memory", "10000000Gi")] {
        pool.limits.extend(limit.parse().ok().map(|limit| (name.to_owned(), limit)));
    }
    pool
}

/// The NodePool of the incumbent's performance suite.
pub fn kwok_pool() -> NodePool {
    let mut pool = named_pool("default");
    pool.requirements.push(expression(KWOK_SIZE, "Lt", &["32"]));
    pool.requirements.push(expression(labels::OS, "In", &["linux"]));
    pool
}

/// Keeps `count` instance types, evenly from small to large.
pub fn thin(mut types: Vec<InstanceType>, count: usize) -> Vec<InstanceType> {
    types.sort_by(|a, b| {
        let size = |kind: &InstanceType| (kind.capacity.cpu_milli, kind.capacity.memory_bytes);
        size(a).cmp(&size(b)).then_with(|| a.name.cmp(&b.name))
    });
    let all = types.len();
    let kept = |index: usize| count >= all || index * count / all != (index + 1) * count / all;
    types.into_iter().enumerate().filter(|(index, _)| kept(*index)).map(|(_, kind)| kind).collect()
}

fn offers(zones: &[&str], capacity_type: &str, price: f64) -> Vec<Offering> {
    let offer = |zone: &&str| Offering {
        zone: (*zone).to_owned(),
        capacity_type: capacity_type.to_owned(),
        // Rounded to micro-dollars: such a number survives a round trip through text.
        price_usd_per_hour: (price * 1e6).round() / 1e6,
        available: true,
    };
    zones.iter().map(offer).collect()
}

/// Offers a type in four zones, on demand and spot.
fn everywhere(mut kind: InstanceType) -> InstanceType {
    let price = kind.offerings.first().map_or(0.0, |offering| offering.price_usd_per_hour);
    let zones = ["test-zone-1", "test-zone-2", "test-zone-3", "test-zone-4"];
    kind.name = format!("{}-{}", kind.name, kind.capacity.memory_bytes / GIBIBYTE);
    kind.offerings = offers(&zones, "spot", price * 0.7);
    kind.offerings.extend(offers(&zones, "on-demand", price));
    kind
}

/// An instance type of the incumbent's benchmark, with `ratio` GiB per core; the incumbent has 2.
fn fake(cores: i64, ratio: i64) -> InstanceType {
    let memory = ratio * cores * GIBIBYTE;
    #[expect(clippy::cast_precision_loss, reason = "the incumbent computes prices in floats")]
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

/// The 144 instance types of the incumbent's performance suite.
pub fn kwok() -> Vec<InstanceType> {
    let mut types = Vec::new();
    for cores in [1_i64, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256] {
        for (family, ratio) in [("c", 2), ("s", 4), ("m", 8)] {
            for system in ["linux", "windows"] {
                for arch in ["amd64", "arm64"] {
                    let memory = cores * ratio * GIBIBYTE;
                    #[expect(
                        clippy::cast_precision_loss,
                        reason = "the incumbent computes prices in floats"
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
