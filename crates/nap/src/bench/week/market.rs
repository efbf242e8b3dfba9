//! What can be launched, and the pods and nodes of the trace in the engine's form.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::Context as _;
use nap_api::labels;
use nap_engine::{CapacityType, Catalogue, Node, Options, Pod, PodKey, Snapshot, solve};
use nap_problem::{
    Amounts, ExistingNode, InstanceType, LabelExpression, LabelSelector, NodePool, PodClass,
    Problem, Taint, Toleration, TopologySpreadConstraint,
};
use nap_units::{CPU, MEMORY, PODS, Quantity, Resources, UsdPerHour};

use super::trace::{Trace, Workload};

/// Milli-cores, bytes of memory and pods.
pub(super) type Amount = [i64; 3];

/// The two NodePools.
pub(super) const POOLS: [&str; 2] = ["on-demand", "spot"];

/// Largest VM size, in milli-cores.
const MAX_CPU: i64 = 16_000;
/// Taint of spot nodes.
const SPOT_TAINT: &str = "kubernetes.azure.com/scalesetpriority";
/// vCPUs that each NodePool may have, for each node that is wanted at the peak.
const LIMIT_PER_NODE: i64 = 20;

/// What can be launched, and what it looks like.
pub(super) struct Market {
    /// Pools without headroom, catalogues; no pods and no nodes.
    pub(super) base: Snapshot,
    /// A pod of each workload.
    pub(super) templates: Vec<Pod>,
    /// Requests of a pod of each workload.
    pub(super) requests: Vec<Amount>,
    pub(super) kinds: Vec<Kind>,
    by_offering: BTreeMap<(String, String, CapacityType), usize>,
    /// The VM size that is out of stock for some hours.
    pub(super) scarce: String,
    /// The catalogue in which the scarce size is marked as unavailable.
    short: Arc<Catalogue>,
    full: Arc<Catalogue>,
    catalogue: String,
    /// Milli-cores that each NodePool may have.
    pub(super) limit: i64,
}

/// A VM size in a zone with a capacity type.
pub(super) struct Kind {
    pub(super) instance_type: String,
    pub(super) zone: String,
    pub(super) capacity_type: CapacityType,
    /// Index of its NodePool in [`POOLS`].
    pub(super) pool: usize,
    pub(super) price: UsdPerHour,
    pub(super) capacity: Resources,
    pub(super) cpu_milli: i64,
    pub(super) allocatable: Amount,
    /// An empty node of this kind.
    pub(super) node: Node,
}

impl Market {
    /// The market for a trace: `types` in every zone, on demand and spot.
    pub(super) fn new(trace: &Trace, types: Vec<InstanceType>, nodes: i64) -> anyhow::Result<Self> {
        let types: Vec<InstanceType> =
            types.into_iter().filter(|one| one.capacity.cpu_milli <= MAX_CPU).collect();
        let limit = nodes * LIMIT_PER_NODE;
        let mut problem = Problem {
            version: 1,
            name: "week".to_owned(),
            node_pools: (0..POOLS.len()).map(|pool| node_pool(pool, limit)).collect(),
            pods: trace.workloads.iter().map(pod_class).collect(),
            nodes: existing(&types),
            instance_types: types,
            ..Problem::default()
        };
        let mut base = problem.snapshot()?;
        let (catalogue, full) = base.catalogues.first_key_value().context("no catalogue")?;
        let (catalogue, full) = (catalogue.clone(), Arc::clone(full));
        let templates = std::mem::take(&mut base.pods);
        let requests = templates.iter().map(|pod| amount(&pod.requests)).collect();
        let empty = std::mem::take(&mut base.nodes);
        let (mut kinds, mut by_offering) = (Vec::new(), BTreeMap::new());
        for (node, written) in empty.iter().zip(&problem.nodes) {
            let capacity_type =
                CapacityType::parse(&written.capacity_type).context("a capacity type")?;
            let found = full.types().iter().find(|one| one.name == written.instance_type);
            let of_type = found.context("an instance type")?;
            let is_sold = |offer: &&nap_engine::Offering| {
                offer.zone == written.zone && offer.capacity_type == capacity_type
            };
            let offer = of_type.offerings.iter().find(is_sold).context("an offering")?;
            let (name, zone) = (written.instance_type.clone(), written.zone.clone());
            by_offering.insert((name.clone(), zone.clone(), capacity_type), kinds.len());
            kinds.push(Kind {
                instance_type: name,
                zone,
                capacity_type,
                pool: usize::from(capacity_type == CapacityType::Spot),
                price: offer.price,
                capacity: of_type.capacity.clone(),
                cpu_milli: of_type.capacity.get(CPU),
                allocatable: amount(&node.free),
                node: Node::clone(node),
            });
        }
        for (class, peak) in problem.pods.iter_mut().zip(trace.peaks()) {
            class.replicas = peak;
        }
        problem.nodes.clear();
        let scarce = favourite(&problem)?;
        let mut types = full.types().to_vec();
        for one in types.iter_mut().filter(|one| one.name == scarce) {
            one.offerings.iter_mut().for_each(|offer| offer.available = false);
        }
        let short = Catalogue::from(types);
        short.prepare();
        let short = Arc::new(short);
        let limit = limit * 1000;
        Ok(Self {
            base,
            templates,
            requests,
            kinds,
            by_offering,
            scarce,
            short,
            full,
            catalogue,
            limit,
        })
    }

    /// Marks the scarce size as unavailable, or as available.
    pub(super) fn mark(&mut self, is_short: bool) {
        let catalogue = if is_short { &self.short } else { &self.full };
        self.base.catalogues.insert(self.catalogue.clone(), Arc::clone(catalogue));
    }

    /// Whether the scarce size is marked as unavailable.
    pub(super) fn is_marked(&self) -> bool {
        self.base.catalogues.get(&self.catalogue).is_some_and(|one| Arc::ptr_eq(one, &self.short))
    }

    /// The kind of an offering.
    pub(super) fn kind(&self, launch: &nap_engine::Launch) -> Option<usize> {
        let key = (launch.instance_type.clone(), launch.zone.clone(), launch.capacity_type);
        self.by_offering.get(&key).copied()
    }

    /// A pod of a workload under its number.
    pub(super) fn pod(&self, workload: usize, number: usize) -> Pod {
        Pod { key: pod_key(number), ..self.templates[workload].clone() }
    }
}

/// The key of the pod with a number.
pub(super) fn pod_key(number: usize) -> PodKey {
    PodKey::new("default", &number.to_string())
}

/// The number of the pod with a key.
pub(super) fn pod_number(key: &PodKey) -> Option<usize> {
    key.parts().1.parse().ok()
}

fn amount(resources: &Resources) -> Amount {
    [CPU, MEMORY, PODS].map(|name| resources.get(name))
}

/// The size that is launched most often for all pods at their peak.
fn favourite(problem: &Problem) -> anyhow::Result<String> {
    let plan = solve(&problem.snapshot()?, &Options::default());
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for launch in &plan.launches {
        *counts.entry(&launch.instance_type).or_default() += 1;
    }
    let most = counts.into_iter().max_by_key(|(_, count)| *count);
    most.map(|(name, _)| name.to_owned()).context("nothing is launched at the peak")
}

fn node_pool(pool: usize, limit: i64) -> NodePool {
    let capacity_type = LabelExpression {
        key: labels::CAPACITY_TYPE.to_owned(),
        operator: "In".to_owned(),
        values: vec![POOLS[pool].to_owned()],
    };
    let taint = Taint {
        key: SPOT_TAINT.to_owned(),
        value: "spot".to_owned(),
        effect: "NoSchedule".to_owned(),
    };
    let quantity: Option<Quantity> = limit.to_string().parse().ok();
    NodePool {
        name: POOLS[pool].to_owned(),
        requirements: vec![capacity_type],
        taints: if pool == 1 { vec![taint] } else { Vec::new() },
        limits: quantity.map(|limit| (CPU.to_owned(), limit)).into_iter().collect(),
        ..NodePool::default()
    }
}

fn pod_class(workload: &Workload) -> PodClass {
    let own = BTreeMap::from([("app".to_owned(), workload.name.clone())]);
    let spread = TopologySpreadConstraint {
        max_skew: 1,
        topology_key: labels::ZONE.to_owned(),
        when_unsatisfiable: "DoNotSchedule".to_owned(),
        label_selector: Some(LabelSelector {
            match_labels: own.clone(),
            ..LabelSelector::default()
        }),
        ..TopologySpreadConstraint::default()
    };
    let tolerates = Toleration {
        key: SPOT_TAINT.to_owned(),
        operator: Some("Exists".to_owned()),
        ..Toleration::default()
    };
    let pool = POOLS[usize::from(workload.spot)];
    PodClass {
        name: workload.name.clone(),
        replicas: 1,
        namespace: "default".to_owned(),
        labels: own,
        requests: Amounts {
            cpu_milli: workload.cpu_milli,
            memory_bytes: workload.memory_bytes,
            ..Amounts::default()
        },
        node_selector: BTreeMap::from([(labels::CAPACITY_TYPE.to_owned(), pool.to_owned())]),
        tolerations: if workload.spot { vec![tolerates] } else { Vec::new() },
        topology_spread: if workload.zone_spread { vec![spread] } else { Vec::new() },
        ..PodClass::default()
    }
}

/// A node of every offering.
fn existing(types: &[InstanceType]) -> Vec<ExistingNode> {
    let mut list = Vec::new();
    let mut seen = BTreeSet::new();
    for one in types {
        for offer in &one.offerings {
            if !seen.insert((&one.name, &offer.zone, &offer.capacity_type)) {
                continue;
            }
            list.push(ExistingNode {
                name: format!("kind-{}", list.len()),
                node_pool: offer.capacity_type.clone(),
                instance_type: one.name.clone(),
                zone: offer.zone.clone(),
                capacity_type: offer.capacity_type.clone(),
                pods: BTreeMap::new(),
            });
        }
    }
    list
}
