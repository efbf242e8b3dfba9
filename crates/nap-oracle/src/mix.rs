//! The pods of the incumbent's own benchmark: a fifth each is plain, spread over zones, spread over
//! hosts, drawn to its own kind's zone, and exclusive by host. Their rules overlap, and hardly two
//! of them are alike.

use std::collections::BTreeMap;
use std::sync::Arc;

use nap_api::{Requirement, Requirements, labels};
use nap_engine::{
    CapacityType, InstanceType, Namespaces, Offering, Pod, PodKey, PodTerm, Pool, Selector,
    Snapshot, Spread,
};
use nap_units::{CPU, MEMORY, PODS, Resources, UsdPerHour};

/// So many pods of the mix on the incumbent's 400 types, or on 1,500 types in three zones and two
/// capacity types.
pub fn incumbent_mix(pods: usize, many_types: bool) -> Snapshot {
    let types = if many_types { big_catalogue() } else { catalogue() };
    let mut dice = Dice(42);
    let fifth = (pods / 5).max(1);
    Snapshot {
        pods: (0..pods).map(|number| pod(&mut dice, number, number / fifth)).collect(),
        pools: vec![pool()],
        catalogues: BTreeMap::from([("all".to_owned(), Arc::new(types.into()))]),
        ..Snapshot::default()
    }
}

/// The types of the incumbent's benchmark: from 1 to 400 vCPUs with 2 GiB each.
fn catalogue() -> Vec<InstanceType> {
    let offers = [
        ("test-zone-1", CapacityType::Spot),
        ("test-zone-2", CapacityType::Spot),
        ("test-zone-1", CapacityType::OnDemand),
        ("test-zone-2", CapacityType::OnDemand),
        ("test-zone-3", CapacityType::OnDemand),
    ];
    (1..=400_i64)
        .map(|cpu| {
            let price = cpu * 100_000 + cpu * 2 * 107_374;
            kind(
                &format!("fake-it-{}", cpu - 1),
                cpu,
                cpu * 2,
                cpu * 10,
                &offers.map(|(z, c)| (z, c, price)),
            )
        })
        .collect()
}

/// 1,500 types of many shapes, in three zones, on demand and spot.
fn big_catalogue() -> Vec<InstanceType> {
    let sizes = [1, 2, 4, 8, 16, 32, 48, 64, 96, 128];
    (0..1500_i64)
        .map(|number| {
            let family = number / 10;
            let cpu = sizes[usize::try_from(number % 10).unwrap_or(0)];
            let memory = cpu * [2, 4, 8][usize::try_from(family % 3).unwrap_or(0)];
            let price = cpu * 38_000 + memory * 3_000 + cpu * (family * 7919 % 97) * 120;
            let zones = ["test-zone-1", "test-zone-2", "test-zone-3"];
            let offers: Vec<_> = zones
                .iter()
                .flat_map(|zone| {
                    [(*zone, CapacityType::OnDemand, price), (*zone, CapacityType::Spot, price / 2)]
                })
                .collect();
            kind(&format!("big-{family}-{cpu}"), cpu, memory, 110, &offers)
        })
        .collect()
}

fn kind(
    name: &str,
    cpu: i64,
    gib: i64,
    pods: i64,
    offers: &[(&str, CapacityType, i64)],
) -> InstanceType {
    let capacity = Resources::new().with(CPU, cpu * 1000).with(MEMORY, gib << 30).with(PODS, pods);
    let mut allocatable = capacity.clone();
    allocatable.set(CPU, cpu * 1000 - 100);
    allocatable.set(MEMORY, (gib << 30) - (10 << 20));
    let mut requirements = Requirements::new();
    requirements.add(labels::INSTANCE_TYPE, Requirement::is_in([name]));
    requirements.add(labels::ARCH, Requirement::is_in(["amd64"]));
    requirements.add(labels::OS, Requirement::is_in(["linux"]));
    requirements.add(labels::SKU_CPU, Requirement::is_in([cpu.to_string()]));
    let offering = |(zone, capacity_type, price): &(&str, CapacityType, i64)| {
        let mut requirements = Requirements::new();
        requirements.add(labels::ZONE, Requirement::is_in([*zone]));
        requirements.add(labels::CAPACITY_TYPE, Requirement::is_in([capacity_type.as_str()]));
        Offering {
            zone: (*zone).to_owned(),
            capacity_type: *capacity_type,
            price: UsdPerHour::from_micros(*price),
            available: true,
            requirements: Arc::new(requirements),
        }
    };
    InstanceType {
        name: name.to_owned(),
        requirements,
        capacity,
        allocatable,
        offerings: offers.iter().map(offering).collect(),
    }
}

fn pool() -> Pool {
    let mut requirements = Requirements::new();
    requirements.add(labels::NODEPOOL, Requirement::is_in(["default"]));
    Pool {
        name: "default".to_owned(),
        weight: 0,
        requirements,
        taints: Vec::new(),
        headroom: Resources::new().with(CPU, 10_000_000_000).with(MEMORY, 10_000_000 << 30),
        catalogue: "all".to_owned(),
    }
}

/// Numbers from a seed, by splitmix64.
struct Dice(u64);

impl Dice {
    fn pick<'t, T>(&mut self, list: &'t [T]) -> &'t T {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^= mixed >> 31;
        let length = u64::try_from(list.len()).unwrap_or(1);
        &list[usize::try_from(mixed % length).unwrap_or(0)]
    }
}

const VALUES: [&str; 7] = ["a", "b", "c", "d", "e", "f", "g"];

fn pod(dice: &mut Dice, number: usize, part: usize) -> Pod {
    let (mut key, mut value) = ("my-label", *dice.pick(&VALUES));
    let spread = |topology_key: &str, value: &str| Spread {
        topology_key: topology_key.to_owned(),
        max_skew: 1,
        min_domains: None,
        selector: Selector::label("my-label", value),
        honor_affinity: true,
        honor_taints: false,
    };
    let term = |topology_key: &str, key: &str, value: &str| PodTerm {
        topology_key: topology_key.to_owned(),
        selector: Selector::label(key, value),
        namespaces: Namespaces::only("default"),
    };
    let mut pod = Pod { terms: vec![Requirements::new()], ..Pod::default() };
    match part {
        0 => {
            let other = *dice.pick(&VALUES);
            pod.spread = vec![spread(labels::ZONE, other)];
        }
        1 => {
            let other = *dice.pick(&VALUES);
            pod.spread = vec![spread(labels::HOSTNAME, other)];
        }
        2 => {
            key = "my-affininity";
            pod.affinity = vec![term(labels::ZONE, key, value)];
        }
        3 => {
            (key, value) = ("app", "nginx");
            pod.anti_affinity = vec![term(labels::HOSTNAME, key, value)];
        }
        _ => {}
    }
    let cpu = *dice.pick(&[100_i64, 250, 500, 1000, 1500]);
    let memory = *dice.pick(&[100_i64, 256, 512, 1024, 2048, 4096]);
    Pod {
        key: PodKey::new("default", &format!("pod-{number}")),
        requests: Resources::new().with(CPU, cpu).with(MEMORY, memory << 20).with(PODS, 1),
        labels: BTreeMap::from([(key.to_owned(), value.to_owned())]),
        ..pod
    }
}
