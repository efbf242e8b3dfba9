//! Random snapshots and options from a seed; together they use every scheduling rule.

use std::collections::BTreeMap;
use std::sync::Arc;

use nap_api::{Effect, Operator, Requirement, Requirements, Taint, Toleration, labels};
use nap_engine::{
    CapacityType, Daemon, DefaultSpread, HostPort, InstanceType, MinValuesPolicy, Namespaces, Node,
    Offering, Options, Overlay, Pod, PodKey, PodTerm, Pool, PreferencePolicy, PriceChange,
    RESERVATION_ID, RunningPods, Selector, Snapshot, Spread, Weighted, overlay,
};
use nap_units::{CPU, MEMORY, PODS, Resources, UsdPerHour};

const ZONES: [&str; 3] = ["z-1", "z-2", "z-3"];
const APPS: [&str; 4] = ["a", "b", "c", "d"];

/// The snapshot of a seed, equal on every machine.
pub fn generate(seed: u64) -> Snapshot {
    let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(1));
    let mut types: Vec<InstanceType> =
        (0..dice.between(2, 5)).map(|number| instance_type(&mut dice, number)).collect();
    let pools = (0..dice.between(1, 3)).map(|number| pool(&mut dice, number)).collect();
    let nodes = (0..dice.between(0, 4)).map(|number| Arc::new(node(&mut dice, number))).collect();
    let kinds = dice.between(1, 6);
    let pods = (0..kinds).flat_map(|number| pods(&mut dice, number)).collect();
    let daemons = if dice.chance(40) { vec![daemon(&mut dice)] } else { Vec::new() };
    let mut reservations = BTreeMap::new();
    if dice.chance(15) {
        let offering = reserved_offering(&types[0]);
        types[0].offerings.push(offering);
        reservations.insert("r-1".to_owned(), u32::try_from(dice.between(0, 3)).unwrap_or(0));
    }
    for kind in &mut types {
        if dice.chance(50) {
            kind.allocatable.set(DISKS, dice.between(1, 4));
        }
    }
    let mut snapshot = Snapshot {
        reservations,
        pods,
        nodes,
        pools,
        daemons,
        catalogues: BTreeMap::from([("all".to_owned(), Arc::new(types.into()))]),
    };
    season(&mut Dice(seed ^ 0x5EA5_0000), &mut snapshot);
    snapshot
}

/// The options of a seed.
pub fn generate_options(seed: u64) -> Options {
    let mut dice = Dice(seed ^ 0x0971_0115);
    let spread = Spread {
        topology_key: labels::ZONE.to_owned(),
        max_skew: u32::try_from(dice.between(1, 2)).unwrap_or(1),
        min_domains: None,
        selector: Selector::default(),
        honor_affinity: true,
        honor_taints: false,
    };
    let default = DefaultSpread { spread, must_hold: dice.chance(50) };
    Options {
        max_pods_per_node: dice.chance(25).then(|| u32::try_from(dice.between(1, 6)).unwrap_or(1)),
        max_cpu_per_node: dice.chance(25).then(|| *dice.pick(&[4, 8])),
        node_cost: UsdPerHour::from_micros(if dice.chance(25) { 20_000 } else { 0 }),
        preferences: if dice.chance(50) {
            PreferencePolicy::Ignore
        } else {
            PreferencePolicy::Respect
        },
        min_values: if dice.chance(50) {
            MinValuesPolicy::BestEffort
        } else {
            MinValuesPolicy::Strict
        },
        default_spread: if dice.chance(50) { vec![default] } else { Vec::new() },
        slack_percent: if dice.chance(25) { 10 } else { 0 },
        max_node_price: dice
            .chance(15)
            .then(|| UsdPerHour::from_micros(dice.between(50, 400) * 1_000)),
    }
}

/// Resource of attached disks.
const DISKS: &str = "attachable-volumes-csi-disk.csi.azure.com";

/// A reserved offering of the type in the first zone.
fn reserved_offering(kind: &InstanceType) -> Offering {
    let mut requirements = Requirements::new();
    requirements.add(labels::ZONE, Requirement::is_in([ZONES[0]]));
    requirements.add(labels::CAPACITY_TYPE, Requirement::is_in([CapacityType::Reserved.as_str()]));
    requirements.add(RESERVATION_ID, Requirement::is_in(["r-1"]));
    let price = kind.offerings.first().map_or(1_000_000, |one| one.price.micros()) / 1000;
    Offering {
        zone: ZONES[0].to_owned(),
        capacity_type: CapacityType::Reserved,
        price: UsdPerHour::from_micros(price),
        available: true,
        requirements: Arc::new(requirements),
    }
}

/// A splitmix64 generator.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number from `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: i64, high: i64) -> i64 {
        let width = u64::try_from(high - low + 1).unwrap_or(1);
        low + i64::try_from(self.roll() % width).unwrap_or(0)
    }

    pub(crate) fn chance(&mut self, percent: i64) -> bool {
        self.between(1, 100) <= percent
    }

    pub(crate) fn pick<'t, T>(&mut self, list: &'t [T]) -> &'t T {
        let last = i64::try_from(list.len()).unwrap_or(1) - 1;
        &list[usize::try_from(self.between(0, last)).unwrap_or(0)]
    }
}

fn instance_type(dice: &mut Dice, number: i64) -> InstanceType {
    let cpu = *dice.pick(&[2_i64, 4, 8, 16]);
    let memory = cpu * dice.between(2, 8);
    let name = format!("t{number}");
    let price = cpu * 40_000 + memory * 3_000 + dice.between(0, 9_000);
    let capacity = Resources::new().with(CPU, cpu * 1000).with(MEMORY, memory << 30).with(PODS, 30);
    let mut allocatable = capacity.clone();
    allocatable.set(CPU, cpu * 1000 - 100);
    let mut offerings = Vec::new();
    for zone in ZONES {
        let mut offer = |capacity_type: CapacityType, micros: i64, available: bool| {
            let mut requirements = Requirements::new();
            requirements.add(labels::ZONE, Requirement::is_in([zone]));
            requirements.add(labels::CAPACITY_TYPE, Requirement::is_in([capacity_type.as_str()]));
            let requirements = Arc::new(requirements);
            let price = UsdPerHour::from_micros(micros);
            offerings.push(Offering {
                zone: zone.to_owned(),
                capacity_type,
                price,
                available,
                requirements,
            });
        };
        let dear = if dice.chance(20) { 5_000 } else { 0 };
        let available = !dice.chance(12);
        offer(CapacityType::OnDemand, price + dear, available);
        if dice.chance(30) {
            let available = !dice.chance(20);
            offer(CapacityType::Spot, price / 4, available);
        }
    }
    let mut requirements = Requirements::new();
    requirements.add(labels::INSTANCE_TYPE, Requirement::is_in([name.as_str()]));
    requirements.add(labels::SKU_CPU, Requirement::is_in([cpu.to_string()]));
    InstanceType { name, requirements, capacity, allocatable, offerings, closed: false }
}

fn pool(dice: &mut Dice, number: i64) -> Pool {
    let name = format!("pool-{number}");
    let mut requirements = Requirements::new();
    requirements.add(labels::NODEPOOL, Requirement::is_in([name.as_str()]));
    if dice.chance(40) {
        requirements.add("rack", Requirement::is_in([format!("r{}", dice.between(1, 2))]));
    }
    if dice.chance(15) {
        requirements.add(labels::ZONE, Requirement::is_in(["z-1", "z-2"]));
    }
    if dice.chance(12) {
        let two = dice.between(1, 2);
        let many =
            Requirement::new(Operator::Exists, Vec::<String>::new()).with_min_values(Some(two));
        requirements.add(labels::INSTANCE_TYPE, many);
    }
    let mut headroom = Resources::new();
    if dice.chance(20) {
        headroom.set("nodes", dice.between(0, 4));
    }
    if dice.chance(15) {
        headroom.set(CPU, dice.between(2, 40) * 1000);
    }
    Pool {
        name,
        weight: i32::from(dice.chance(20)),
        requirements,
        taints: match dice.between(1, 100) {
            1..=20 => vec![Taint::new("special", Effect::NoSchedule)],
            21..=30 => vec![Taint::new("special", Effect::PreferNoSchedule)],
            _ => Vec::new(),
        },
        headroom,
        catalogue: "all".to_owned(),
        max_price: None,
    }
}

fn node(dice: &mut Dice, number: i64) -> Node {
    let name = format!("n{number}");
    let mut node_labels = BTreeMap::from([
        (labels::HOSTNAME.to_owned(), name.clone()),
        (labels::CAPACITY_TYPE.to_owned(), "on-demand".to_owned()),
    ]);
    if dice.chance(90) {
        node_labels.insert(labels::ZONE.to_owned(), (*dice.pick(&ZONES)).to_owned());
    }
    if dice.chance(30) {
        node_labels.insert("rack".to_owned(), format!("r{}", dice.between(1, 3)));
    }
    let cpu = dice.between(0, 6);
    let residents = (0..dice.between(0, 2)).map(|_| {
        let app = *dice.pick(&APPS);
        RunningPods {
            namespace: "default".to_owned(),
            labels: BTreeMap::from([("app".to_owned(), app.to_owned())]),
            anti_affinity: if dice.chance(20) { vec![term(dice)] } else { Vec::new() },
            host_ports: if dice.chance(10) { vec![port(dice)] } else { Vec::new() },
            count: u32::try_from(dice.between(1, 2)).unwrap_or(1),
        }
    });
    let residents = residents.collect();
    Node {
        name,
        labels: node_labels,
        taints: if dice.chance(10) {
            vec![Taint::new("special", Effect::NoSchedule)]
        } else {
            Vec::new()
        },
        free: Resources::new().with(CPU, cpu * 700).with(MEMORY, cpu << 31).with(PODS, 20),
        initialized: dice.chance(80),
        residents,
    }
}

fn daemon(dice: &mut Dice) -> Daemon {
    Daemon {
        name: "kube-system/agent".to_owned(),
        requests: Resources::new().with(CPU, 100).with(MEMORY, 1 << 28).with(PODS, 1),
        terms: vec![Requirements::new()],
        tolerations: if dice.chance(70) {
            vec![Toleration { exists: true, ..Toleration::default() }]
        } else {
            Vec::new()
        },
        host_ports: if dice.chance(30) { vec![port(dice)] } else { Vec::new() },
    }
}

fn port(dice: &mut Dice) -> HostPort {
    HostPort {
        protocol: "TCP".to_owned(),
        port: i32::try_from(dice.between(80, 81)).unwrap_or(80),
        address: (*dice.pick(&["", "", "10.0.0.1", "10.0.0.2"])).to_owned(),
    }
}

fn key(dice: &mut Dice) -> String {
    (*dice.pick(&[
        labels::ZONE,
        labels::ZONE,
        labels::HOSTNAME,
        labels::HOSTNAME,
        "rack",
        labels::CAPACITY_TYPE,
    ]))
    .to_owned()
}

fn term(dice: &mut Dice) -> PodTerm {
    let app = *dice.pick(&APPS);
    PodTerm {
        topology_key: key(dice),
        selector: Selector::label("app", app),
        namespaces: if dice.chance(20) { Namespaces::All } else { Namespaces::only("default") },
    }
}

fn pods(dice: &mut Dice, number: i64) -> Vec<Pod> {
    let app = *dice.pick(&APPS);
    let namespace = if dice.chance(85) { "default" } else { "other" };
    let own = Selector::label("app", app);
    let mut pod = Pod {
        requests: Resources::new()
            .with(CPU, *dice.pick(&[100, 500, 900, 1500, 3000]))
            .with(MEMORY, dice.between(0, 6) << 30)
            .with(PODS, 1),
        terms: vec![Requirements::new()],
        labels: BTreeMap::from([("app".to_owned(), app.to_owned())]),
        priority: i32::from(dice.chance(15)),
        blocks_disruption: number % 5 == 1,
        ..Pod::default()
    };
    if dice.chance(25) {
        pod.terms[0].add(labels::ZONE, Requirement::is_in(["z-2", "z-3"]));
    }
    if dice.chance(10) {
        let mut other = Requirements::new();
        other.add(labels::SKU_CPU, Requirement::is_in(["4"]));
        pod.terms.push(other);
    }
    if dice.chance(30) {
        pod.tolerations =
            vec![Toleration { key: "special".into(), exists: true, ..Toleration::default() }];
    }
    if dice.chance(40) {
        pod.spread.push(Spread {
            topology_key: key(dice),
            max_skew: u32::try_from(dice.between(1, 3)).unwrap_or(1),
            min_domains: if dice.chance(15) { Some(3) } else { None },
            selector: if dice.chance(85) { own.clone() } else { Selector::label("app", "a") },
            honor_affinity: dice.chance(80),
            honor_taints: dice.chance(20),
        });
    }
    if dice.chance(20) {
        let mut term = term(dice);
        if dice.chance(60) {
            term.selector = own.clone();
        }
        pod.affinity.push(term);
    }
    if dice.chance(25) {
        let mut term = term(dice);
        if dice.chance(60) {
            term.selector = own;
        }
        pod.anti_affinity.push(term);
    }
    if dice.chance(10) {
        let zones = [*dice.pick(&ZONES), *dice.pick(&ZONES)];
        pod.volume_terms = zones
            .map(|zone| {
                let mut term = Requirements::new();
                term.add(labels::ZONE, Requirement::is_in([zone]));
                term
            })
            .to_vec();
    }
    if dice.chance(12) {
        pod.host_ports.push(port(dice));
    }
    if dice.chance(12) {
        pod.requests.set(DISKS, dice.between(1, 2));
    }
    if dice.chance(30) {
        prefer(dice, &mut pod);
    }
    if dice.chance(30) {
        pod.workload = Some(Selector::label("app", app));
    }
    let name = |replica: i64| PodKey::new(namespace, &format!("{app}{number}-{replica}"));
    (0..dice.between(1, 6)).map(|replica| Pod { key: name(replica), ..pod.clone() }).collect()
}

/// Gives a pod preferences.
fn prefer(dice: &mut Dice, pod: &mut Pod) {
    let weight = |dice: &mut Dice| i32::try_from(dice.between(1, 100)).unwrap_or(1);
    if dice.chance(40) {
        let mut liked = Requirements::new();
        liked.add(labels::ZONE, Requirement::is_in([*dice.pick(&ZONES)]));
        pod.preferences.nodes.push(Weighted { weight: weight(dice), term: liked });
    }
    if dice.chance(30) {
        pod.preferences.affinity.push(Weighted { weight: weight(dice), term: term(dice) });
    }
    if dice.chance(30) {
        pod.preferences.anti_affinity.push(Weighted { weight: weight(dice), term: term(dice) });
    }
    if dice.chance(30) {
        let app = *dice.pick(&APPS);
        pod.preferences.spread.push(Spread {
            topology_key: key(dice),
            max_skew: 1,
            min_domains: None,
            selector: Selector::label("app", app),
            honor_affinity: true,
            honor_taints: false,
        });
    }
}

/// Adds rare features, each to a few of the snapshots.
fn season(dice: &mut Dice, snapshot: &mut Snapshot) {
    if dice.chance(10) {
        devices(dice, snapshot);
    }
    if dice.chance(12) {
        choosy(dice, snapshot);
    }
    if dice.chance(10) {
        for pod in snapshot.pods.iter_mut().filter(|pod| !pod.affinity.is_empty()) {
            pod.affinity.push(term(&mut Dice(7)));
        }
    }
    if dice.chance(12) {
        let mut only = Requirements::new();
        if dice.chance(50) {
            only.add(labels::SKU_CPU, Requirement::is_in(["4", "8"]));
        } else {
            only.add("rack", Requirement::is_in(["r1"]));
        }
        let name = "kube-system/picky".to_owned();
        snapshot.daemons.push(Daemon { name, terms: vec![only], ..daemon(dice) });
    }
    if dice.chance(12) {
        let pool = &mut snapshot.pools[0].requirements;
        if dice.chance(50) {
            pool.add(labels::CAPACITY_TYPE, Requirement::is_in(["on-demand"]));
        } else {
            pool.add(labels::INSTANCE_TYPE, Requirement::new(Operator::NotIn, ["t0"]));
        }
    }
    if dice.chance(8) {
        let two = Requirement::new(Operator::Exists, Vec::<String>::new()).with_min_values(Some(2));
        snapshot.pools[0].requirements.add(labels::ZONE, two);
    }
    if dice.chance(8) {
        let effect = *dice.pick(&[Effect::NoExecute, Effect::PreferNoSchedule]);
        for node in snapshot.nodes.iter_mut().take(1) {
            Arc::make_mut(node).taints.push(Taint::new("special", effect));
        }
        snapshot.pools[0].taints.push(Taint::new("special", effect));
    }
    if dice.chance(12) {
        for node in &mut snapshot.nodes {
            Arc::make_mut(node).free.set(DISKS, dice.between(0, 2));
        }
    }
    if dice.chance(4) {
        snapshot.pods[0].unsupported =
            Some(nap_engine::Unsupported::Field("spec.resourceClaims".to_owned()));
    }
    if dice.chance(15) {
        catalogues(dice, snapshot);
    }
}

/// Gives the first pod class an extended resource that one type has.
fn devices(dice: &mut Dice, snapshot: &mut Snapshot) {
    let gpus = dice.between(1, 3);
    for kind in
        snapshot.catalogues.values_mut().filter_map(|types| Arc::make_mut(types).edit().first_mut())
    {
        kind.capacity.set("nvidia.com/gpu", gpus);
        kind.allocatable.set("nvidia.com/gpu", gpus);
    }
    each_of_first_kind(snapshot, |pod| pod.requests.set("nvidia.com/gpu", 1));
}

/// Gives the first pod class requirements with `NotIn`, `Exists`, `Gt` and the like.
fn choosy(dice: &mut Dice, snapshot: &mut Snapshot) {
    let (key, wanted) = match dice.between(1, 4) {
        1 => (labels::SKU_CPU, Requirement::new(Operator::Gt, ["2"])),
        2 => (labels::ZONE, Requirement::new(Operator::NotIn, ["z-1"])),
        3 => ("rack", Requirement::new(Operator::Exists, Vec::<String>::new())),
        _ => ("rack", Requirement::does_not_exist()),
    };
    each_of_first_kind(snapshot, |pod| pod.terms[0].add(key, wanted.clone()));
}

fn each_of_first_kind(snapshot: &mut Snapshot, change: impl Fn(&mut Pod)) {
    let kind = |pod: &Pod| pod.key.as_str().rsplit_once('-').map(|(kind, _)| kind.to_owned());
    let first = snapshot.pods.first().and_then(kind);
    snapshot.pods.iter_mut().filter(|pod| kind(pod) == first).for_each(change);
}

/// Gives the last NodePool a catalogue of its own, with changed prices as by an overlay.
fn catalogues(dice: &mut Dice, snapshot: &mut Snapshot) {
    let mut requirements = Requirements::new();
    requirements.add(labels::ZONE, Requirement::is_in([*dice.pick(&ZONES)]));
    let change = Overlay {
        name: "special".to_owned(),
        weight: 1,
        requirements,
        price: Some(PriceChange::Millionths(dice.between(-5, 5) * 100_000)),
        capacity: Resources::new().with("example.com/slots", dice.between(0, 2)),
    };
    let (Some(pool), Some(types)) = (snapshot.pools.last_mut(), snapshot.catalogues.get("all"))
    else {
        return;
    };
    let (types, _) = overlay(types, pool, &[change]);
    "changed".clone_into(&mut pool.catalogue);
    snapshot.catalogues.insert("changed".to_owned(), Arc::new(types));
}
