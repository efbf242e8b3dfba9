//! Scenario files: a small cluster and the plan that it must give, named after the rule they show.
//!
//! `name.yaml` is the input and `name.plan` the expected plan. `UPDATE_SCENARIOS=1 cargo test -p
//! nap-engine` rewrites the plans; review the difference. A file with a `snapshot` holds the
//! engine's own input instead of the short form, which is how a case found by a property test is
//! kept.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use nap_api::requirement::NodeSelectorRequirement;
use nap_api::{Effect, Requirements, Taint, Toleration, labels};
use nap_engine::{
    CapacityType, Catalogue, Daemon, HostPort, InstanceType, NODES, Namespaces, Node, Options,
    Overlay, Plan, Pod, PodKey, PodTerm, Pool, Preferences, PriceChange, RESERVATION_ID,
    RunningPods, Selector, Snapshot, Spread, Weighted, overlay, solve,
};
use nap_units::{CPU, MEMORY, PODS, Resources, UsdPerHour};
use serde::Deserialize;

use crate::build::{GIB, catalogue, instance_type, offering};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Scenario {
    #[serde(default)]
    snapshot: Option<Snapshot>,
    #[serde(default)]
    options: Options,
    #[serde(default)]
    types: Option<Vec<Type>>,
    #[serde(default)]
    pools: Vec<PoolOf>,
    #[serde(default)]
    nodes: Vec<NodeOf>,
    #[serde(default)]
    daemons: Vec<PodOf>,
    #[serde(default)]
    pods: Vec<PodOf>,
    #[serde(default)]
    reservations: BTreeMap<String, u32>,
    #[serde(default)]
    overlays: Vec<OverlayOf>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct OverlayOf {
    name: String,
    #[serde(default)]
    weight: i32,
    #[serde(default)]
    requirements: Vec<NodeSelectorRequirement>,
    #[serde(default)]
    price: Option<f64>,
    #[serde(default)]
    percent: Option<f64>,
    #[serde(default)]
    capacity: BTreeMap<String, i64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Type {
    name: String,
    cpu: i64,
    memory: i64,
    price: f64,
    #[serde(default)]
    zones: Option<Vec<String>>,
    /// Zones where the type is unavailable.
    #[serde(default)]
    unavailable: BTreeSet<String>,
    /// Prices of zones that differ from `price`.
    #[serde(default)]
    prices: BTreeMap<String, f64>,
    #[serde(default)]
    spot: Option<f64>,
    /// Number of disks that can be attached.
    #[serde(default)]
    disks: Option<i64>,
    /// Capacity reservation of the type in its first zone.
    #[serde(default)]
    reservation: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PoolOf {
    name: String,
    #[serde(default)]
    weight: i32,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    requirements: Vec<NodeSelectorRequirement>,
    #[serde(default)]
    taints: Vec<String>,
    #[serde(default)]
    nodes: Option<i64>,
    #[serde(default)]
    cpu: Option<i64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NodeOf {
    name: String,
    cpu: f64,
    memory: i64,
    #[serde(default)]
    zone: Option<String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    taints: Vec<String>,
    /// The node is in flight.
    #[serde(default)]
    coming: bool,
    #[serde(default)]
    pods: Vec<PodOf>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PodOf {
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: Option<String>,
    #[serde(default = "one")]
    count: u32,
    #[serde(default)]
    cpu: f64,
    #[serde(default)]
    memory: i64,
    #[serde(default)]
    priority: i32,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    /// Terms of required node affinity.
    #[serde(default)]
    terms: Vec<Vec<NodeSelectorRequirement>>,
    #[serde(default)]
    tolerations: Vec<String>,
    #[serde(default)]
    spread: Vec<SpreadOf>,
    #[serde(default)]
    affinity: Vec<TermOf>,
    #[serde(default)]
    anti_affinity: Vec<TermOf>,
    #[serde(default)]
    host_ports: Vec<i32>,
    /// Topology of the volumes, as alternatives.
    #[serde(default)]
    volumes: Vec<Vec<NodeSelectorRequirement>>,
    /// Number of disks that the pod attaches.
    #[serde(default)]
    disks: i64,
    #[serde(default)]
    requests: BTreeMap<String, i64>,
    #[serde(default)]
    preferred: Vec<WeightedOf<Vec<NodeSelectorRequirement>>>,
    #[serde(default)]
    preferred_affinity: Vec<WeightedOf<TermOf>>,
    #[serde(default)]
    preferred_anti_affinity: Vec<WeightedOf<TermOf>>,
    /// Spread constraints with `ScheduleAnyway`.
    #[serde(default)]
    soft_spread: Vec<SpreadOf>,
    /// Labels of the workload, for the cluster's default constraints.
    #[serde(default)]
    workload: Option<BTreeMap<String, String>>,
    /// Whether a running pod keeps its node from voluntary disruption.
    #[serde(default)]
    blocks_disruption: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WeightedOf<T> {
    weight: i32,
    term: T,
}

fn one() -> u32 {
    1
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SpreadOf {
    by: String,
    #[serde(default = "one")]
    max_skew: u32,
    #[serde(default)]
    min_domains: Option<u32>,
    labels: BTreeMap<String, String>,
    #[serde(default)]
    ignore_affinity: bool,
    #[serde(default)]
    honor_taints: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct TermOf {
    by: String,
    labels: BTreeMap<String, String>,
    /// `*` means all namespaces.
    #[serde(default)]
    namespaces: Vec<String>,
}

fn key(short: &str) -> String {
    match short {
        "zone" => labels::ZONE,
        "host" => labels::HOSTNAME,
        "capacity-type" => labels::CAPACITY_TYPE,
        other => other,
    }
    .to_owned()
}

#[expect(clippy::cast_possible_truncation, reason = "the numbers of scenarios are small")]
fn whole(number: f64, unit: f64) -> i64 {
    (number * unit).round() as i64
}

fn selector(labels: &BTreeMap<String, String>) -> Selector {
    labels.iter().fold(Selector::default(), |selector, (key, value)| selector.and(key, value))
}

/// `key`, or `key:PreferNoSchedule`.
fn taint(text: &String) -> Taint {
    match text.strip_suffix(":PreferNoSchedule") {
        Some(key) => Taint::new(key, Effect::PreferNoSchedule),
        None => Taint::new(text, Effect::NoSchedule),
    }
}

const DISKS: &str = "attachable-volumes-csi-disk.csi.azure.com";

impl OverlayOf {
    fn build(&self) -> Overlay {
        let fixed =
            self.price.map(|price| PriceChange::Fixed(UsdPerHour::from_micros(whole(price, 1e6))));
        Overlay {
            name: self.name.clone(),
            weight: self.weight,
            requirements: Requirements::from_specs(&self.requirements),
            price: fixed
                .or(self.percent.map(|percent| PriceChange::Millionths(whole(percent, 1e4)))),
            capacity: self.capacity.iter().map(|(name, amount)| (name, *amount)).collect(),
        }
    }
}

fn amounts(cpu: f64, memory: i64, pods: i64) -> Resources {
    Resources::new().with(CPU, whole(cpu, 1000.0)).with(MEMORY, memory * GIB).with(PODS, pods)
}

impl Type {
    fn build(&self) -> InstanceType {
        let mut built = instance_type(&self.name, self.cpu, self.memory, whole(self.price, 1e6));
        if let Some(zones) = &self.zones {
            let price = whole(self.price, 1e6);
            built.offerings =
                zones.iter().map(|zone| offering(zone, CapacityType::OnDemand, price)).collect();
        }
        for one in &mut built.offerings {
            one.available = !self.unavailable.contains(&one.zone);
            if let Some(price) = self.prices.get(&one.zone) {
                one.price = UsdPerHour::from_micros(whole(*price, 1e6));
            }
        }
        if let Some(spot) = self.spot {
            let zones: Vec<String> = built.offerings.iter().map(|one| one.zone.clone()).collect();
            for zone in zones {
                let mut one = offering(&zone, CapacityType::Spot, whole(spot, 1e6));
                one.available = !self.unavailable.contains(&zone);
                built.offerings.push(one);
            }
        }
        if let Some(disks) = self.disks {
            built.allocatable.set(DISKS, disks);
        }
        if let Some(reservation) = &self.reservation {
            let zone = built.offerings[0].zone.clone();
            let mut one = offering(&zone, CapacityType::Reserved, 1);
            Arc::make_mut(&mut one.requirements)
                .add(RESERVATION_ID, nap_api::Requirement::is_in([reservation.as_str()]));
            built.offerings.push(one);
        }
        built
    }
}

impl PoolOf {
    fn build(&self) -> Pool {
        let mut pool = crate::build::pool(&self.name);
        pool.weight = self.weight;
        pool.requirements.extend(&Requirements::from_specs(&self.requirements));
        pool.requirements.extend(&Requirements::from_labels(&self.labels));
        pool.taints = self.taints.iter().map(taint).collect();
        if let Some(nodes) = self.nodes {
            pool.headroom.set(NODES, nodes);
        }
        if let Some(cpu) = self.cpu {
            pool.headroom.set(CPU, cpu * 1000);
        }
        pool
    }
}

impl TermOf {
    fn build(&self, namespace: &str) -> PodTerm {
        PodTerm {
            topology_key: key(&self.by),
            selector: selector(&self.labels),
            namespaces: match self.namespaces.first().map(String::as_str) {
                None => Namespaces::only(namespace),
                Some("*") => Namespaces::All,
                Some(_) => Namespaces::Named(self.namespaces.iter().cloned().collect()),
            },
        }
    }
}

impl PodOf {
    fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or("default")
    }

    fn terms(&self, terms: &[TermOf]) -> Vec<PodTerm> {
        terms.iter().map(|term| term.build(self.namespace())).collect()
    }

    fn node_terms(&self) -> Vec<Requirements> {
        match self.terms.as_slice() {
            [] => vec![Requirements::new()],
            terms => terms.iter().map(Requirements::from_specs).collect(),
        }
    }

    fn tolerations(&self) -> Vec<Toleration> {
        let exists =
            |key: &String| Toleration { key: key.clone(), exists: true, ..Toleration::default() };
        self.tolerations.iter().map(exists).collect()
    }

    fn ports(&self) -> Vec<HostPort> {
        let port =
            |port: &i32| HostPort { protocol: "TCP".into(), port: *port, address: String::new() };
        self.host_ports.iter().map(port).collect()
    }

    fn build(&self) -> Vec<Pod> {
        let weighted = |terms: &[WeightedOf<TermOf>]| -> Vec<Weighted<PodTerm>> {
            let build = |one: &WeightedOf<TermOf>| (one.weight, one.term.build(self.namespace()));
            terms.iter().map(build).map(|(weight, term)| Weighted { weight, term }).collect()
        };
        let nodes =
            self.preferred.iter().map(|one| (one.weight, Requirements::from_specs(&one.term)));
        let mut requests = amounts(self.cpu, self.memory, 1);
        for (name, amount) in self.requests.iter().map(|(name, amount)| (name.as_str(), *amount)) {
            requests.set(name, amount);
        }
        if self.disks > 0 {
            requests.set(DISKS, self.disks);
        }
        let pod = Pod {
            requests,
            preferences: Preferences {
                nodes: nodes.map(|(weight, term)| Weighted { weight, term }).collect(),
                affinity: weighted(&self.preferred_affinity),
                anti_affinity: weighted(&self.preferred_anti_affinity),
                spread: self.soft_spread.iter().map(SpreadOf::build).collect(),
            },
            workload: self.workload.as_ref().map(selector),
            blocks_disruption: self.blocks_disruption,
            terms: self.node_terms(),
            tolerations: self.tolerations(),
            priority: self.priority,
            labels: self.labels.clone(),
            spread: self.spread.iter().map(SpreadOf::build).collect(),
            affinity: self.terms(&self.affinity),
            anti_affinity: self.terms(&self.anti_affinity),
            host_ports: self.ports(),
            volume_terms: self.volumes.iter().map(Requirements::from_specs).collect(),
            ..Pod::default()
        };
        let name = |number: u32| match self.count {
            1 => self.name.clone(),
            _ => format!("{}-{number}", self.name),
        };
        (0..self.count)
            .map(|number| Pod { key: PodKey::new(self.namespace(), &name(number)), ..pod.clone() })
            .collect()
    }
}

impl SpreadOf {
    fn build(&self) -> Spread {
        Spread {
            topology_key: key(&self.by),
            max_skew: self.max_skew,
            min_domains: self.min_domains,
            selector: selector(&self.labels),
            honor_affinity: !self.ignore_affinity,
            honor_taints: self.honor_taints,
        }
    }
}

impl NodeOf {
    fn build(&self) -> Node {
        let mut labels = self.labels.clone();
        labels.insert(labels::HOSTNAME.to_owned(), self.name.clone());
        labels.extend(self.zone.iter().map(|zone| (labels::ZONE.to_owned(), zone.clone())));
        Node {
            name: self.name.clone(),
            labels,
            taints: self.taints.iter().map(taint).collect(),
            free: amounts(self.cpu, self.memory, 100),
            initialized: !self.coming,
            residents: self
                .pods
                .iter()
                .map(|pod| RunningPods {
                    namespace: pod.namespace().to_owned(),
                    labels: pod.labels.clone(),
                    anti_affinity: pod.terms(&pod.anti_affinity),
                    host_ports: pod.ports(),
                    count: pod.count,
                })
                .collect(),
        }
    }
}

impl Scenario {
    fn build(self) -> Snapshot {
        if let Some(snapshot) = self.snapshot {
            return snapshot;
        }
        let types: Catalogue = match &self.types {
            Some(types) => types.iter().map(Type::build).collect(),
            None => catalogue().into(),
        };
        let pools: Vec<Pool> = self.pools.iter().map(PoolOf::build).collect();
        let overlays: Vec<Overlay> = self.overlays.iter().map(OverlayOf::build).collect();
        let types = match pools.first() {
            Some(pool) if !overlays.is_empty() => overlay(&types, pool, &overlays).0,
            _ => types,
        };
        let daemon = |pod: &PodOf| Daemon {
            name: pod.name.clone(),
            requests: amounts(pod.cpu, pod.memory, 1),
            terms: pod.node_terms(),
            tolerations: pod.tolerations(),
            host_ports: pod.ports(),
        };
        Snapshot {
            pods: self.pods.iter().flat_map(PodOf::build).collect(),
            nodes: self.nodes.iter().map(|node| Arc::new(node.build())).collect(),
            pools,
            daemons: self.daemons.iter().map(daemon).collect(),
            catalogues: BTreeMap::from([("all".to_owned(), Arc::new(types))]),
            reservations: self.reservations,
        }
    }
}

/// The plan as text: a line for each launch, each pod on an existing node, and each refusal.
fn text(plan: &Plan) -> String {
    let mut text = String::new();
    let name = |pod: &PodKey| match pod.parts() {
        ("default", name) => name.to_owned(),
        _ => pod.to_string(),
    };
    for launch in &plan.launches {
        let pods: Vec<String> = launch.pods.iter().map(name).collect();
        let zones = launch
            .requirements
            .get(labels::ZONE)
            .map_or_else(String::new, |zone| format!(" ({zone})"));
        let _ = writeln!(
            text,
            "launch {} {} {} {}{zones} {}: {}",
            launch.pool,
            launch.instance_type,
            launch.capacity_type,
            launch.zone,
            launch.price,
            pods.join(" ")
        );
    }
    for placement in &plan.placements {
        let _ = writeln!(text, "place {} on {}", name(&placement.pod), placement.node);
    }
    for unplaced in &plan.unplaced {
        let _ = writeln!(text, "refuse {}: {}", name(&unplaced.pod), unplaced.refusal);
    }
    let _ = writeln!(text, "cost {}", plan.cost);
    text
}

#[test]
fn every_scenario_gives_its_plan() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let update = std::env::var_os("UPDATE_SCENARIOS").is_some();
    let entries = std::fs::read_dir(&folder).expect("the folder of scenarios");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    assert!(!files.is_empty());
    let mut wrong = String::new();
    for file in files {
        let input = std::fs::read_to_string(&file).expect("a readable scenario");
        let scenario: Scenario = serde_saphyr::from_str(&input)
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let options = scenario.options.clone();
        let snapshot = scenario.build();
        let plan = solve(&snapshot, &options);
        let found = text(&plan);
        let golden = file.with_extension("plan");
        if update {
            std::fs::write(&golden, &found).expect("a writable folder");
        }
        let wanted = std::fs::read_to_string(&golden).unwrap_or_default();
        if wanted != found {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            let _ = writeln!(wrong, "{name}\nwanted:\n{wanted}found:\n{found}");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// Every rule of the README names scenarios that exist.
#[test]
fn every_rule_has_a_scenario() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let list = std::fs::read_to_string(folder.join("README.md")).expect("the list of rules");
    let rows = list.lines().filter(|line| line.starts_with("| ")).skip(1);
    let mut rules = 0;
    for row in rows {
        rules += 1;
        let (_, shown) = row.trim_matches('|').split_once('|').expect("a rule and its scenarios");
        let names: Vec<&str> = shown.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "no scenario shows this rule: {row}");
        for name in names {
            assert!(
                folder.join(format!("{name}.plan")).exists(),
                "there is no scenario `{name}`: {row}"
            );
        }
    }
    assert!(rules > 0);
}
