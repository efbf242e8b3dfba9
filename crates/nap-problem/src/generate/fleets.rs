//! Fleets: nodes with pods on them, packed and then thinned out, as consolidation finds them.

use std::collections::{BTreeMap, BTreeSet};

use nap_api::labels;
use nap_engine::{Options, solve_first_fit};
use rand::RngExt as _;
use rand_pcg::Pcg64Mcg;

use super::{class, expression, mixes, requests};
use crate::{
    ExistingNode, InstanceType, PlanFile, PodClass, Problem, ProblemError, TopologySpreadConstraint,
};

/// Instance type of the fleets of equal nodes.
const EQUAL: &str = "Standard_D16als_v6";

/// Number of random fillings of an equal node that are tried for [`FleetKind::Tight`].
const MAX_FILLINGS: usize = 1000;

/// Number of pods from which the number of pods per node is estimated.
const PROBE: usize = 2000;

/// Number of pods of one Deployment with zone spread.
const DEPLOYMENT: usize = 30;

/// Kinds of fleets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum FleetKind {
    /// Plain pods, packed by a plan, then a share of them removed
    Plain,
    /// Like plain; a third of the pods belongs to Deployments with zone spread
    Spread,
    /// Like plain; one in a hundred pods must not be evicted
    Pinned,
    /// Equal nodes, filled to a half
    Half,
    /// Equal nodes, filled until nothing more fits
    Full,
    /// Equal nodes, CPU and memory both filled to nine tenths or more
    Tight,
    /// Like tight; half of the pods with zone spread
    TightSpread,
}

impl FleetKind {
    /// Whether a plan packs the pods; the other kinds fill equal nodes.
    pub fn is_packed(self) -> bool {
        matches!(self, Self::Plain | Self::Spread | Self::Pinned)
    }
}

/// Pending pods of a packed fleet, before they are packed.
pub fn pods(rng: &mut Pcg64Mcg, kind: FleetKind, count: usize) -> Vec<PodClass> {
    let mut made = Vec::new();
    match kind {
        FleetKind::Spread => {
            let spread = count / 3;
            for number in 0..spread.div_ceil(DEPLOYMENT) {
                let replicas = DEPLOYMENT.min(spread - number * DEPLOYMENT);
                made.push(deployment(rng, number, replicas));
            }
            made.extend(mixes::plain(rng, count - spread));
        }
        FleetKind::Pinned => {
            let pinned = count / 100;
            let mut stubborn = class("pinned", pinned, requests(250, 512));
            stubborn.do_not_disrupt = true;
            made.push(stubborn);
            made.extend(mixes::plain(rng, count - pinned));
        }
        _ => made.extend(mixes::plain(rng, count)),
    }
    made.retain(|class| class.replicas > 0);
    made
}

/// A Deployment with a name and a label of its own, spread over zones.
fn deployment(rng: &mut Pcg64Mcg, number: usize, replicas: usize) -> PodClass {
    let (cpu, memory) = mixes::shape(rng);
    zone_spread(class(format!("app{number}"), replicas, requests(cpu, memory)))
}

fn zone_spread(mut class: PodClass) -> PodClass {
    class.labels.insert("app".to_owned(), class.name.clone());
    class.topology_spread.push(TopologySpreadConstraint {
        max_skew: 1,
        topology_key: labels::ZONE.to_owned(),
        when_unsatisfiable: "DoNotSchedule".to_owned(),
        label_selector: Some(mixes::selector("app", &class.name)),
        ..TopologySpreadConstraint::default()
    });
    class
}

/// Restricts the NodePools to the capacity types that the catalogue sells: the incumbent replaces
/// by spot wherever a pool allows it, whether or not any is sold.
pub fn require_capacity_types(problem: &mut Problem) {
    let sold: BTreeSet<&str> = problem
        .instance_types
        .iter()
        .flat_map(|kind| &kind.offerings)
        .map(|offer| offer.capacity_type.as_str())
        .collect();
    let sold: Vec<&str> = sold.into_iter().collect();
    let requirement = expression(labels::CAPACITY_TYPE, "In", &sold);
    for pool in &mut problem.node_pools {
        pool.requirements.push(requirement.clone());
    }
}

/// Number of pods that fill `nodes` nodes and a few more, from a packing of [`PROBE`] pods by
/// first fit.
pub fn pods_for(problem: &Problem, kind: FleetKind, nodes: usize) -> Result<usize, ProblemError> {
    let mut probe = problem.clone();
    probe.pods = pods(&mut super::rng(0), kind, PROBE);
    let plan = solve_first_fit(&probe.snapshot()?, &Options::default());
    let full = plan.launches.len().max(1);
    // A twentieth more, and the remainder of the division: packings of other pods differ a little.
    Ok((nodes * PROBE).div_ceil(full) * 21 / 20 + PROBE / full + 1)
}

/// Turns the plan for a problem's pending pods into nodes, at most `nodes` of them at random.
pub fn pack(problem: &mut Problem, plan: &PlanFile, nodes: usize, rng: &mut Pcg64Mcg) {
    let mut launches: Vec<usize> = (0..plan.nodes.len()).collect();
    while launches.len() > nodes {
        launches.remove(rng.random_range(0..launches.len()));
    }
    for number in launches {
        let node = &plan.nodes[number];
        problem.nodes.push(ExistingNode {
            name: format!("node-{:05}", problem.nodes.len()),
            node_pool: node.node_pool.clone(),
            instance_type: node.instance_type.clone(),
            zone: node.zone.clone(),
            capacity_type: node.capacity_type.clone(),
            pods: node.pods.clone(),
        });
    }
    settle(problem);
}

/// The plan by first fit, which packs in the incumbent's order.
pub fn first_fit(problem: &Problem) -> Result<PlanFile, ProblemError> {
    Ok(PlanFile::of(&solve_first_fit(&problem.snapshot()?, &Options::default())))
}

/// Leaves no pod pending, and no class that runs nowhere.
fn settle(problem: &mut Problem) {
    let mut running: BTreeMap<&str, usize> = BTreeMap::new();
    for (class, count) in problem.nodes.iter().flat_map(|node| &node.pods) {
        *running.entry(class).or_default() += count;
    }
    let running: Vec<bool> =
        problem.pods.iter().map(|class| running.contains_key(class.name.as_str())).collect();
    let mut number = 0;
    problem.pods.retain(|_| {
        number += 1;
        running[number - 1]
    });
    for class in &mut problem.pods {
        class.replicas = 0;
    }
}

/// Removes `percent` of the running pods at random, except for those that must not be evicted.
pub fn churn(problem: &mut Problem, percent: usize, rng: &mut Pcg64Mcg) {
    let pinned = problem.pinned();
    let pinned: Vec<String> = pinned.into_iter().map(str::to_owned).collect();
    let mut left: Vec<(usize, String)> = Vec::new();
    for (number, node) in problem.nodes.iter().enumerate() {
        for (class, count) in node.pods.iter().filter(|(class, _)| !pinned.contains(class)) {
            left.extend(std::iter::repeat_n((number, class.clone()), *count));
        }
    }
    for _ in 0..left.len() * percent.min(100) / 100 {
        let (number, class) = left.swap_remove(rng.random_range(0..left.len()));
        let pods = &mut problem.nodes[number].pods;
        if let Some(count) = pods.get_mut(&class) {
            *count -= 1;
        }
        pods.retain(|_, count| *count > 0);
    }
    settle(problem);
}

/// Fills equal nodes, a zone after the other. Nodes of one round over the zones have the same
/// pods, so that spread is even.
pub fn equal(
    problem: &mut Problem,
    kind: FleetKind,
    nodes: usize,
    rng: &mut Pcg64Mcg,
) -> Result<(), ProblemError> {
    let found = problem.instance_types.iter().find(|one| one.name == EQUAL).cloned();
    let Some(size) = found.filter(|size| !size.offerings.is_empty()) else {
        let why = format!("the fleets of equal nodes need {EQUAL}, as in the catalogue `d`");
        return Err(ProblemError::invalid("catalogue", why));
    };
    let pool = problem.node_pools.first().map(|pool| pool.name.clone()).unwrap_or_default();
    let mut classes: BTreeMap<String, PodClass> = BTreeMap::new();
    let mut filling = BTreeMap::new();
    for number in 0..nodes {
        let offer = &size.offerings[number % size.offerings.len()];
        if number % size.offerings.len() == 0 {
            filling = fill(rng, kind, &size, &mut classes);
        }
        problem.nodes.push(ExistingNode {
            name: format!("node-{number:05}"),
            node_pool: pool.clone(),
            instance_type: size.name.clone(),
            zone: offer.zone.clone(),
            capacity_type: offer.capacity_type.clone(),
            pods: filling.clone(),
        });
    }
    problem.pods = classes.into_values().collect();
    Ok(())
}

/// Random pods for one node, as the kind of fleet asks; the fullest of the fillings that were
/// tried.
fn fill(
    rng: &mut Pcg64Mcg,
    kind: FleetKind,
    size: &InstanceType,
    classes: &mut BTreeMap<String, PodClass>,
) -> BTreeMap<String, usize> {
    let whole = size.allocatable();
    let (cpu, memory) = (whole.get(nap_units::CPU), whole.get(nap_units::MEMORY));
    let slots = whole.get(nap_units::PODS);
    let share = if kind == FleetKind::Half { 50 } else { 100 };
    let mut best: (i64, Vec<PodClass>) = (-1, Vec::new());
    let tries = match kind {
        FleetKind::Tight | FleetKind::TightSpread => MAX_FILLINGS,
        _ => 1,
    };
    for _ in 0..tries {
        let (mut free_cpu, mut free_memory) = (cpu * share / 100, memory * share / 100);
        let mut drawn: Vec<PodClass> = Vec::new();
        let mut misses = 0;
        while misses < 50 && i64::try_from(drawn.len()).is_ok_and(|count| count < slots) {
            let (milli, mebibytes) = mixes::shape(rng);
            let is_spread = kind == FleetKind::TightSpread && drawn.len() % 2 == 1;
            let name = format!("{}{milli}m{mebibytes}mi", if is_spread { "spread" } else { "p" });
            let plain = class(name, 0, requests(milli, mebibytes));
            let pod = if is_spread { zone_spread(plain) } else { plain };
            if pod.requests.cpu_milli > free_cpu || pod.requests.memory_bytes > free_memory {
                misses += 1;
                continue;
            }
            free_cpu -= pod.requests.cpu_milli;
            free_memory -= pod.requests.memory_bytes;
            drawn.push(pod);
        }
        let used = (100 - free_cpu * 100 / cpu).min(100 - free_memory * 100 / memory);
        if used > best.0 {
            best = (used, drawn);
        }
        if best.0 >= 95 {
            break;
        }
    }
    let mut filling: BTreeMap<String, usize> = BTreeMap::new();
    for pod in best.1 {
        *filling.entry(pod.name.clone()).or_default() += 1;
        classes.entry(pod.name.clone()).or_insert(pod);
    }
    filling
}
