//! The checker: violations of a plan.

use std::collections::{BTreeMap, BTreeSet};

use nap_api::{Requirement, Requirements, labels};
use nap_engine::{
    CapacityType, Daemon, InstanceType, Launch, MinValuesPolicy, Offering, Options, Plan, Pod,
    PodKey, Pool, RESERVATION_ID, Snapshot, Spread,
};
use nap_units::{CPU, Resources, UsdPerHour};

use crate::cluster::{Labels, NodeState, Running, obstacle, selected};
use crate::places::is_too_dear;

/// A violation, as one line of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub String);

/// All violations of a plan for a snapshot.
pub fn check(snapshot: &Snapshot, options: &Options, plan: &Plan) -> Vec<Violation> {
    let snapshot = &with_default_spread(snapshot, options);
    let mut judge = Judge { snapshot, options, plan, wrong: Vec::new() };
    judge.every_pod_once();
    judge.launches();
    judge.limits();
    judge.choices();
    judge.reservations();
    judge.bound();
    judge.binding();
    judge.wrong
}

/// Unplaced pods that the scheduler would bind to a node of the plan once all planned pods are
/// bound. Nodes of NodePools with `minValues` do not count: their instance type is left open on
/// purpose.
pub fn overlooked(snapshot: &Snapshot, options: &Options, plan: &Plan) -> Vec<PodKey> {
    let snapshot = &with_default_spread(snapshot, options);
    let (mut cluster, placed) = Judge { snapshot, options, plan, wrong: Vec::new() }.places();
    for (pod, target) in placed {
        cluster[target].take(pod);
        cluster[target].pods.push(Running::of(pod));
    }
    let wants_choice = |machine: &NodeState| {
        let pools = snapshot.pools.iter();
        let own = pools.filter(|pool| machine.labels.get(labels::NODEPOOL) == Some(&pool.name));
        own.flat_map(|pool| pool.requirements.iter()).any(|(_, one)| one.min_values().is_some())
    };
    let settled: Vec<usize> =
        (0..cluster.len()).filter(|target| !wants_choice(&cluster[*target])).collect();
    let is_refused = |pod: &&Pod| plan.unplaced.iter().any(|unplaced| unplaced.pod == pod.key);
    let known = snapshot.pods.iter().filter(|pod| pod.unsupported.is_none());
    let fits = |pod: &&Pod| settled.iter().any(|target| obstacle(pod, *target, &cluster).is_none());
    known.filter(is_refused).filter(fits).map(|pod| pod.key.clone()).collect()
}

/// The snapshot with the scheduler's default spread constraints added to the pods they apply to.
pub(crate) fn with_default_spread(snapshot: &Snapshot, options: &Options) -> Snapshot {
    let mut snapshot = snapshot.clone();
    for pod in &mut snapshot.pods {
        if !pod.spread.is_empty() || !pod.preferences.spread.is_empty() {
            continue;
        }
        let Some(workload) = &pod.workload else { continue };
        for default in options.default_spread.iter().filter(|default| default.must_hold) {
            pod.spread.push(Spread { selector: workload.clone(), ..default.spread.clone() });
        }
    }
    snapshot
}

struct Judge<'a> {
    snapshot: &'a Snapshot,
    options: &'a Options,
    plan: &'a Plan,
    wrong: Vec<Violation>,
}

impl<'a> Judge<'a> {
    fn say(&mut self, what: String) {
        self.wrong.push(Violation(what));
    }

    fn every_pod_once(&mut self) {
        let given: BTreeSet<&PodKey> = self.snapshot.pods.iter().map(|pod| &pod.key).collect();
        let launched = self.plan.launches.iter().flat_map(|launch| &launch.pods);
        let placed = self.plan.placements.iter().map(|placement| &placement.pod);
        let unplaced = self.plan.unplaced.iter().map(|unplaced| &unplaced.pod);
        let mut seen: Vec<&PodKey> = launched.chain(placed).chain(unplaced).collect();
        seen.sort_unstable();
        if seen.iter().copied().collect::<BTreeSet<_>>() != given || seen.len() != given.len() {
            self.say("not every pod is in exactly one place".to_owned());
        }
    }

    fn launches(&mut self) {
        let mut cost = UsdPerHour::ZERO;
        for launch in &self.plan.launches {
            cost = [cost, launch.price].into_iter().sum();
            let Some(pool) = pool_of(self.snapshot, launch) else {
                self.say(format!("pool {} does not exist", launch.pool));
                continue;
            };
            if self.options.max_pods_per_node.is_some_and(|most| launch.pods.len() > most as usize)
            {
                self.say("more pods on a node than the options allow".to_owned());
            }
            let chosen =
                (&*launch.instance_type, &*launch.zone, launch.capacity_type, launch.price);
            let others = launch.alternatives.iter().map(|other| {
                (&*other.instance_type, &*other.zone, other.capacity_type, other.price)
            });
            for (name, zone, capacity_type, price) in std::iter::once(chosen).chain(others) {
                let Some((kind, offering)) = find(self.snapshot, pool, name, zone, capacity_type)
                else {
                    self.say(format!("{name} in {zone} is not on offer"));
                    continue;
                };
                if offering.price != price || !offering.available {
                    self.say(format!("{name} in {zone} cannot be had at {price}"));
                }
                self.holds(launch, pool, kind, offering);
            }
            let prices: Vec<UsdPerHour> =
                launch.alternatives.iter().map(|other| other.price).collect();
            if !prices.is_sorted() {
                self.say("alternatives are not in the order of their price".to_owned());
            }
        }
        if cost != self.plan.cost {
            self.say(format!("the cost is {cost}, not {}", self.plan.cost));
        }
    }

    /// Checks that an offering holds the pods of a launch and that each pod by itself may run
    /// there.
    fn holds(&mut self, launch: &Launch, pool: &Pool, kind: &InstanceType, offering: &Offering) {
        let machine =
            machine("new", &launch.requirements, pool, kind, offering, &self.snapshot.daemons);
        if self.options.max_cpu_per_node.is_some_and(|most| kind.capacity.get(CPU) > most * 1000) {
            self.say(format!("{} is larger than the options allow", kind.name));
        }
        if is_too_dear(pool, self.options, offering.price) {
            self.say(format!("{} costs more than the ceiling", kind.name));
        }
        let mut left = machine.clone();
        for pod in self.snapshot.pods.iter().filter(|pod| launch.pods.contains(&pod.key)) {
            let alone = Pod {
                spread: Vec::new(),
                affinity: Vec::new(),
                anti_affinity: Vec::new(),
                ..pod.clone()
            };
            if let Some(why) = obstacle(&alone, 0, std::slice::from_ref(&machine)) {
                self.say(format!(
                    "{} cannot be on {} in {}: {why}",
                    pod.key, kind.name, offering.zone
                ));
            }
            left.take(pod);
        }
        if left.free.iter().any(|(_, amount)| amount < 0) {
            self.say(format!("{} is too small for its pods", kind.name));
        }
    }

    fn limits(&mut self) {
        let mut used: BTreeMap<&str, Resources> = BTreeMap::new();
        for launch in &self.plan.launches {
            let Some(pool) = pool_of(self.snapshot, launch) else { continue };
            let found = offering_of(self.snapshot, pool, launch);
            let Some((kind, _)) = found else { continue };
            let used = used.entry(&launch.pool).or_default();
            used.add(&kind.capacity);
            used.add(&Resources::new().with("nodes", 1));
        }
        for pool in &self.snapshot.pools {
            let Some(used) = used.get(pool.name.as_str()) else { continue };
            for (name, headroom) in pool.headroom.iter() {
                if used.get(name) > headroom {
                    self.wrong
                        .push(Violation(format!("pool {} exceeds its limit on {name}", pool.name)));
                }
            }
        }
    }

    /// Checks `minValues` of every launch.
    fn choices(&mut self) {
        for launch in &self.plan.launches {
            let Some(pool) = pool_of(self.snapshot, launch) else { continue };
            for (key, wanted) in pool.requirements.iter() {
                let least = match self.options.min_values {
                    MinValuesPolicy::Strict => wanted.min_values(),
                    MinValuesPolicy::BestEffort => {
                        launch.requirements.get(key).and_then(Requirement::min_values)
                    }
                };
                let chosen = (&*launch.instance_type, &*launch.zone, launch.capacity_type);
                let others = launch.alternatives.iter();
                let others =
                    others.map(|other| (&*other.instance_type, &*other.zone, other.capacity_type));
                let mut values: BTreeSet<&str> = BTreeSet::new();
                for (name, zone, capacity_type) in others.chain([chosen]) {
                    if let Some((kind, offering)) =
                        find(self.snapshot, pool, name, zone, capacity_type)
                    {
                        let says =
                            kind.requirements.get(key).or_else(|| offering.requirements.get(key));
                        values.extend(says.into_iter().flat_map(Requirement::values));
                    }
                }
                if least
                    .is_some_and(|least| i64::try_from(values.len()).unwrap_or(i64::MAX) < least)
                {
                    self.wrong
                        .push(Violation(format!("too few values of {key} for pool {}", pool.name)));
                }
            }
        }
    }

    /// Checks that no capacity reservation is exceeded.
    fn reservations(&mut self) {
        let mut used: BTreeMap<&str, u32> = BTreeMap::new();
        for launch in &self.plan.launches {
            let Some(pool) = pool_of(self.snapshot, launch) else { continue };
            let found = offering_of(self.snapshot, pool, launch);
            let of =
                found.and_then(|(_, offering)| offering.requirements.get(RESERVATION_ID)?.single());
            if let Some(reservation) = of {
                *used.entry(reservation).or_default() += 1;
            }
        }
        for (reservation, used) in used {
            if used > self.snapshot.reservations.get(reservation).copied().unwrap_or(0) {
                self.wrong
                    .push(Violation(format!("reservation {reservation} has not room for {used}")));
            }
        }
    }

    fn bound(&mut self) {
        if self.plan.lower_bound.is_some_and(|bound| bound > self.plan.cost) {
            self.say(format!("the bound is above the cost of {}", self.plan.cost));
        }
    }

    /// The planned cluster, and the node of each placed pod.
    fn places(&self) -> (Vec<NodeState>, Vec<(&'a Pod, usize)>) {
        let mut cluster: Vec<NodeState> =
            self.snapshot.nodes.iter().map(|node| existing(node)).collect();
        let mut waiting: Vec<(&Pod, usize)> = Vec::new();
        let by_key: BTreeMap<&PodKey, &Pod> =
            self.snapshot.pods.iter().map(|pod| (&pod.key, pod)).collect();
        for placement in &self.plan.placements {
            let node = cluster.iter().position(|machine| machine.name == placement.node);
            waiting.extend(by_key.get(&placement.pod).copied().zip(node));
        }
        for (number, launch) in self.plan.launches.iter().enumerate() {
            let Some(pool) = pool_of(self.snapshot, launch) else { continue };
            let found = offering_of(self.snapshot, pool, launch);
            let Some((kind, offering)) = found else { continue };
            let name = format!("new-{number}");
            cluster.push(machine(
                &name,
                &launch.requirements,
                pool,
                kind,
                offering,
                &self.snapshot.daemons,
            ));
            let pods = launch.pods.iter().filter_map(|key| by_key.get(key));
            waiting.extend(pods.map(|pod| (*pod, cluster.len() - 1)));
        }
        (cluster, waiting)
    }

    /// Searches for an order in which every pod can be bound to its planned node.
    fn binding(&mut self) {
        let (cluster, mut waiting) = self.places();
        for placement in &self.plan.placements {
            if !cluster.iter().any(|machine| machine.name == placement.node) {
                self.wrong.push(Violation(format!("{} is placed nowhere", placement.pod)));
            }
        }
        // First kube-scheduler's order: by priority. Then other orders, because pending pods are
        // retried.
        let rules = |pod: &Pod| pod.spread.len() + pod.affinity.len() + pod.anti_affinity.len();
        waiting.sort_by_key(|(pod, _)| std::cmp::Reverse((pod.priority, rules(pod))));
        let mut stuck = bind(cluster.clone(), &waiting, false);
        let orders =
            (MAX_BINDINGS / u64::try_from(waiting.len().max(1)).unwrap_or(1)).clamp(8, MAX_ORDERS);
        let spreads = |pod: &Pod| {
            pod.spread.iter().filter(|one| one.topology_key != labels::HOSTNAME).count()
        };
        let mut troubles: BTreeMap<&PodKey, usize> = BTreeMap::new();
        for attempt in 1..=orders {
            if stuck.is_empty() {
                return;
            }
            for (pod, ..) in &stuck {
                *troubles.entry(&pod.key).or_default() += 1;
            }
            // Alternate: pods left before first, pods with spread constraints first, any order.
            let first = |pod: &Pod| match attempt % 3 {
                0 => troubles.get(&pod.key).copied().unwrap_or(0),
                1 => spreads(pod),
                _ => 0,
            };
            waiting.sort_by_cached_key(|(pod, _)| {
                (std::cmp::Reverse(first(pod)), scramble(attempt, pod.key.as_str()))
            });
            stuck =
                bind(cluster.clone(), &waiting, attempt % 3 != 2 && waiting.len() <= MAX_PATIENT);
        }
        for (pod, target, why) in stuck {
            let name = &cluster[target].name;
            self.wrong.push(Violation(format!("{} cannot be bound to {name}: {why}", pod.key)));
        }
    }
}

/// Maximum number of binding orders tried.
const MAX_ORDERS: u64 = 3000;

/// Maximum number of pods for the patient search, which is quadratic.
const MAX_PATIENT: usize = 60;

/// Approximate maximum number of bindings over all orders.
const MAX_BINDINGS: u64 = 60_000;

/// Sort key of a name that differs between attempts.
fn scramble(attempt: u64, name: &str) -> u64 {
    let start = attempt.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut mixed = name.bytes().fold(start, |number, byte| {
        (number ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3).rotate_left(23)
    });
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// Binds pods in order, retrying blocked ones while that makes progress; returns the pods that are
/// left and why. With `is_patient`, restarts from the first blocked pod after each binding.
fn bind<'p>(
    mut cluster: Vec<NodeState>,
    waiting: &[(&'p Pod, usize)],
    is_patient: bool,
) -> Vec<(&'p Pod, usize, String)> {
    let mut waiting = waiting.to_vec();
    loop {
        let before = waiting.len();
        let mut is_done = false;
        waiting.retain(|(pod, target)| {
            let waits = is_done || obstacle(pod, *target, &cluster).is_some();
            if !waits {
                is_done = is_patient;
                cluster[*target].take(pod);
                cluster[*target].pods.push(Running::of(pod));
            }
            waits
        });
        if waiting.len() == before {
            break;
        }
    }
    let why = |(pod, target): (&'p Pod, usize)| {
        let why = obstacle(pod, target, &cluster).unwrap_or_default();
        (pod, target, why)
    };
    waiting.into_iter().map(why).collect()
}

pub(crate) fn pool_of<'s>(snapshot: &'s Snapshot, launch: &Launch) -> Option<&'s Pool> {
    snapshot.pools.iter().find(|pool| pool.name == launch.pool)
}

/// The instance type and the offering that a launch chose.
pub(crate) fn offering_of<'s>(
    snapshot: &'s Snapshot,
    pool: &Pool,
    launch: &Launch,
) -> Option<(&'s InstanceType, &'s Offering)> {
    find(snapshot, pool, &launch.instance_type, &launch.zone, launch.capacity_type)
}

fn find<'s>(
    snapshot: &'s Snapshot,
    pool: &Pool,
    name: &str,
    zone: &str,
    capacity_type: CapacityType,
) -> Option<(&'s InstanceType, &'s Offering)> {
    let kind =
        snapshot.catalogues.get(&pool.catalogue)?.types().iter().find(|kind| kind.name == name)?;
    let offering = kind
        .offerings
        .iter()
        .find(|offering| offering.zone == zone && offering.capacity_type == capacity_type)?;
    Some((kind, offering))
}

/// An existing node.
pub(crate) fn existing(node: &nap_engine::Node) -> NodeState {
    let pods = node.residents.iter().flat_map(|resident| {
        let running = Running {
            namespace: resident.namespace.clone(),
            labels: resident.labels.clone(),
            anti_affinity: resident.anti_affinity.clone(),
            ports: resident.host_ports.clone(),
        };
        std::iter::repeat_n(running, resident.count as usize)
    });
    NodeState {
        name: node.name.clone(),
        labels: node.labels.clone(),
        taints: node.taints.clone(),
        free: node.free.clone(),
        pods: pods.collect(),
    }
}

/// The node of an offering, with its daemons. `narrowed` are the additional requirements of its
/// pods.
pub(crate) fn machine(
    name: &str,
    narrowed: &Requirements,
    pool: &Pool,
    kind: &InstanceType,
    offering: &Offering,
    daemons: &[Daemon],
) -> NodeState {
    let mut node_labels: Labels = BTreeMap::new();
    let single = |requirements: &Requirements| -> Vec<(String, String)> {
        let fixed = requirements.iter();
        fixed
            .filter_map(|(key, one)| Some((key.to_owned(), Requirement::single(one)?.to_owned())))
            .collect()
    };
    for requirements in [narrowed, &pool.requirements, &kind.requirements, &offering.requirements] {
        node_labels.extend(single(requirements));
    }
    node_labels.insert(labels::HOSTNAME.to_owned(), name.to_owned());
    let mut machine = NodeState {
        name: name.to_owned(),
        labels: node_labels,
        taints: pool.taints.clone(),
        free: kind.allocatable.clone(),
        pods: Vec::new(),
    };
    for daemon in daemons {
        let pod = Pod { tolerations: daemon.tolerations.clone(), ..Pod::default() };
        let tolerates = obstacle(&pod, 0, std::slice::from_ref(&machine)).is_none();
        if tolerates && selected(&daemon.terms, &machine.labels) {
            machine.free.subtract(&daemon.requests);
            machine.pods.push(Running {
                namespace: String::new(),
                labels: Labels::new(),
                anti_affinity: Vec::new(),
                ports: daemon.host_ports.clone(),
            });
        }
    }
    machine
}
