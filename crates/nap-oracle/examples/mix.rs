//! Times the engine on the incumbent's own benchmark mix: `cargo run --release -p nap-oracle --example mix -- 1000 10000`.
//!
//! A fifth of the pods each is plain, spread over zones, spread over hosts, drawn to its own kind's zone, and exclusive by host. Words
//! among the arguments choose: `big` for 1,500 types in three zones and two capacity types instead of 400 types, `plain` for plain pods
//! only, `first` for the first plan only, `check` to let the checker judge the plan, `once` for a single run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use nap_api::{Requirement, Requirements, labels};
use nap_engine::{
    CapacityType, InstanceType, Namespaces, Offering, Options, Plan, Pod, PodKey, PodTerm, Pool, Selector,
    Snapshot, Spread, solve, solve_first_fit,
};
use nap_units::{CPU, MEMORY, PODS, Resources, UsdPerHour};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| words.iter().any(|one| one == word);
    let types = if has("big") { big_catalogue() } else { catalogue() };
    let types = Arc::new(types);
    let options = Options::default();
    println!(
        "{:>8} {:>9} {:>9} {:>6} {:>6} {:>10} {:>10} {:>7} tier",
        "pods", "first ms", "final ms", "nodes", "first", "$/h", "first $/h", "gap %"
    );
    for pods in words.iter().filter_map(|word| word.parse::<usize>().ok()) {
        let snapshot = Snapshot {
            pods: mix(pods, has("plain")),
            pools: vec![pool()],
            catalogues: BTreeMap::from([("all".to_owned(), Arc::clone(&types))]),
            ..Snapshot::default()
        };
        let repeat = if has("once") { 1 } else { (20_000 / pods.max(1)).clamp(3, 15) };
        let (first, guard) = median(repeat, || solve_first_fit(&snapshot, &options));
        let (last, plan) =
            if has("first") { (first, guard.clone()) } else { median(repeat, || solve(&snapshot, &options)) };
        println!(
            "{pods:>8} {first:>9.2} {last:>9.2} {:>6} {:>6} {:>10} {:>10} {:>7.2} {:?}",
            plan.launches.len(),
            guard.launches.len(),
            plan.cost.to_string(),
            guard.cost.to_string(),
            plan.gap_percent().unwrap_or(0.0),
            plan.tier
        );
        assert!(plan.unplaced.is_empty(), "{} pods have no place", plan.unplaced.len());
        if has("check") {
            for plan in [&plan, &guard] {
                let wrong = nap_oracle::check(&snapshot, &options, plan);
                println!("{} violations {:?}", wrong.len(), wrong.first());
            }
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "this measures time; the engine does not")]
fn median(repeat: usize, mut run: impl FnMut() -> Plan) -> (f64, Plan) {
    let mut times = Vec::new();
    let mut last = Plan::default();
    for _ in 0..repeat {
        let started = Instant::now();
        last = run();
        times.push(started.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], last)
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
            kind(&format!("fake-it-{}", cpu - 1), cpu, cpu * 2, cpu * 10, &offers.map(|(z, c)| (z, c, price)))
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

fn kind(name: &str, cpu: i64, gib: i64, pods: i64, offers: &[(&str, CapacityType, i64)]) -> InstanceType {
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
            requirements,
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

fn mix(count: usize, plain: bool) -> Vec<Pod> {
    let mut dice = Dice(42);
    let fifth = count / 5;
    (0..count).map(|number| pod(&mut dice, number, if plain { 4 } else { number / fifth.max(1) })).collect()
}

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
