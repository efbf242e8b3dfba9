//! Simulated removal of nodes: the question that drift and consolidation ask the engine.
//!
//! Pods that wait, and pods of nodes that are leaving, get their places first; then each removal is
//! asked for on what is left. A removal that is decided upon stays in the simulation, so that two
//! commands never count on the same room.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use nap_api::labels;
use nap_engine::{Candidate, Fleet, Launch, Node, Plan, Pod, RunningPod, RunningPods, Snapshot};
use nap_units::Resources;

use super::pools::{LimitUsage, claim_capacity};
use super::{Catalogues, NodeCache, capacity, engine_pod, pods};
use crate::cluster::pods::is_reschedulable;
use crate::cluster::{self, Index, Interest, NodeView, PartsId};
use crate::decision_memory::DecisionMemory;

/// The cluster, and the nodes that may be removed from it. The default has neither.
#[derive(Default)]
pub struct Removals {
    /// Nodes, pools and catalogues; its pods are those of the question being asked.
    snapshot: Snapshot,
    /// Pods that need a place before any removal.
    waiting: Vec<Pod>,
    removable: BTreeMap<String, Removable>,
    /// Distinct pods of the nodes that may be removed. Pods that differ only in their names share
    /// one.
    templates: Vec<Pod>,
    /// By NodePool.
    usage: BTreeMap<String, LimitUsage>,
    /// Nodes that pods were placed on.
    needed: BTreeSet<String>,
    /// Room of the nodes that are about to be launched once they have started, by name.
    promised: BTreeMap<String, Resources>,
}

/// A node that may be removed.
struct Removable {
    pods: Vec<RunningPod>,
    pool: String,
    capacity: Resources,
}

impl Removals {
    /// Prepares the removal of any of these nodes, given by the name of their Node.
    pub fn new<'n>(
        index: &Index,
        memory: &DecisionMemory,
        nodes: impl Iterator<Item = &'n str>,
        catalogues: &Catalogues,
        cache: &mut NodeCache,
        now: Timestamp,
    ) -> Self {
        let views = nodes.filter_map(|name| Some((name, index.view(&index.key_of_view(name)?)?)));
        let mut templates = Templates::default();
        let removable: BTreeMap<String, Removable> = views
            .map(|(name, view)| {
                (name.to_owned(), removable(index, name, view, catalogues, &mut templates))
            })
            .collect();
        let templates = templates.list;
        let waiting = pods::waiting_or_leaving(index, memory, now);
        let interest = Interest::of(templates.iter().chain(waiting.iter()));
        let snapshot = capacity(index, &interest, catalogues, cache, &BTreeSet::new(), now);
        let usage = index.pools().filter_map(|(name, pool)| {
            Some((name.clone(), LimitUsage::of(index, pool, catalogues.of(name)?)))
        });
        let usage = usage.collect();
        Self { snapshot, waiting, removable, templates, usage, ..Self::default() }
    }

    /// Finds places for the pods that need one before any removal.
    pub fn place_waiting(&mut self, solve: impl FnOnce(&Snapshot) -> Plan) {
        if self.waiting.is_empty() {
            return;
        }
        let pods = std::mem::take(&mut self.waiting);
        self.snapshot.pods.clone_from(&pods);
        let plan = solve(&self.snapshot);
        self.take_places(&pods, &plan);
    }

    /// Whether a node has been given pods and must stay.
    pub fn is_needed(&self, node: &str) -> bool {
        self.needed.contains(node)
    }

    /// The plan for the pods of a node without that node.
    pub fn without(&mut self, node: &str, solve: impl FnOnce(&Snapshot) -> Plan) -> Plan {
        let Some(removable) = self.removable.get(node) else { return Plan::default() };
        self.snapshot.pods = self.pods(&removable.pods);
        let pool = removable.pool.clone();
        let mut usage = self.usage.get(&pool).cloned().unwrap_or_default();
        usage.leave(&removable.capacity);
        let place = self.snapshot.nodes.iter().position(|one| one.name == node);
        let removed = place.map(|place| self.snapshot.nodes.swap_remove(place));
        let headroom = self.set_headroom(&pool, usage.headroom());
        let plan = solve(&self.snapshot);
        self.set_headroom(&pool, headroom);
        self.snapshot.nodes.extend(removed);
        plan
    }

    /// Whether a plan places pods on nodes that are not initialized. Pods are not moved to capacity
    /// that may never come up.
    pub fn is_on_starting_node(&self, plan: &Plan) -> bool {
        let starting: BTreeSet<&str> = self
            .snapshot
            .nodes
            .iter()
            .filter(|node| !node.initialized)
            .map(|node| node.name.as_str())
            .collect();
        plan.placements.iter().any(|placement| starting.contains(placement.node.as_str()))
    }

    /// Removes a node for good, its pods placed by `plan`.
    pub fn remove(&mut self, node: &str, plan: &Plan) {
        let Some(removable) = self.removable.remove(node) else { return };
        self.snapshot.nodes.retain(|one| one.name != node);
        if let Some(usage) = self.usage.get_mut(&removable.pool) {
            usage.leave(&removable.capacity);
        }
        self.take_places(&self.pods(&removable.pods), plan);
        self.refresh_headroom(&removable.pool);
        for placement in &plan.placements {
            let pod = removable.pods.iter().find(|one| one.key == placement.pod);
            if let (Some(pod), Some(target)) = (pod, self.removable.get_mut(&placement.node)) {
                target.pods.push(pod.clone());
            }
        }
    }

    /// Lets all that was decided upon be done: the launched nodes have started and take further
    /// pods, and nodes that pods were placed on may be removed in their turn.
    pub fn finish_round(&mut self) {
        self.needed.clear();
        for (name, room) in std::mem::take(&mut self.promised) {
            let node = self.snapshot.nodes.iter_mut().find(|node| node.name == name);
            let Some(node) = node.map(Arc::make_mut) else { continue };
            (node.initialized, node.free) = (true, room);
        }
    }

    /// The cluster as a fleet, with these nodes as candidates. What decisions depend on besides the
    /// cluster is left to the caller: prices, costs and rules.
    pub fn fleet<'n>(&self, candidates: impl Iterator<Item = &'n str>) -> Fleet {
        let candidate = |name: &str| {
            let removable = self.removable.get(name)?;
            Some(Candidate {
                node: name.to_owned(),
                pool: removable.pool.clone(),
                capacity: removable.capacity.clone(),
                pods: removable.pods.clone(),
                ..Candidate::default()
            })
        };
        Fleet {
            snapshot: Snapshot { pods: Vec::new(), ..self.snapshot.clone() },
            templates: self.templates.clone(),
            candidates: candidates.filter_map(candidate).collect(),
            pools: BTreeMap::new(),
            workloads: Vec::new(),
        }
    }

    fn pods(&self, running: &[RunningPod]) -> Vec<Pod> {
        let pod = |one: &RunningPod| Pod {
            key: one.key.clone(),
            ..self.templates.get(one.template).cloned().unwrap_or_default()
        };
        running.iter().map(pod).collect()
    }

    fn take_places(&mut self, pods: &[Pod], plan: &Plan) {
        let pods: BTreeMap<&str, &Pod> = pods.iter().map(|pod| (pod.key.as_str(), pod)).collect();
        for placement in &plan.placements {
            let node = self.snapshot.nodes.iter_mut().find(|node| node.name == placement.node);
            let (Some(node), Some(pod)) = (node, pods.get(placement.pod.as_str())) else {
                continue;
            };
            let node = Arc::make_mut(node);
            node.free.subtract(&pod.requests);
            node.residents.push(RunningPods::from(*pod));
            self.needed.insert(placement.node.clone());
        }
        for launch in &plan.launches {
            let residents = launch.pods.iter().filter_map(|key| pods.get(key.as_str()));
            let node =
                self.launched(launch, residents.map(|pod| RunningPods::from(*pod)).collect());
            self.snapshot.nodes.push(Arc::new(node));
        }
    }

    /// A node that is about to be launched. Its room is promised to its own pods.
    fn launched(&mut self, launch: &Launch, residents: Vec<RunningPods>) -> Node {
        let name = format!("{} {}", launch.pool, self.snapshot.nodes.len());
        let pool = self.snapshot.pools.iter().find(|pool| pool.name == launch.pool);
        let catalogue = pool.and_then(|pool| self.snapshot.catalogues.get(&pool.catalogue));
        let types = catalogue.map(|catalogue| catalogue.types()).unwrap_or_default();
        let instance_type = types.iter().find(|one| one.name == launch.instance_type);
        let mut node_labels = launch.requirements.labels();
        if let Some(instance_type) = instance_type {
            node_labels.extend(instance_type.requirements.labels());
            if let Some(usage) = self.usage.get_mut(&launch.pool) {
                usage.add(&instance_type.capacity);
            }
            let mut room = instance_type.allocatable.clone();
            room.subtract(&launch.requests);
            self.promised.insert(name.clone(), room);
        }
        node_labels.insert(labels::ZONE.to_owned(), launch.zone.clone());
        node_labels
            .insert(labels::CAPACITY_TYPE.to_owned(), launch.capacity_type.as_str().to_owned());
        node_labels.insert(labels::HOSTNAME.to_owned(), name.clone());
        self.refresh_headroom(&launch.pool);
        Node { name, labels: node_labels, residents, ..Node::default() }
    }

    fn refresh_headroom(&mut self, pool: &str) {
        if let Some(headroom) = self.usage.get(pool).map(LimitUsage::headroom) {
            self.set_headroom(pool, headroom);
        }
    }

    /// Sets the headroom of a pool; returns the former one.
    fn set_headroom(&mut self, pool: &str, headroom: Resources) -> Resources {
        match self.snapshot.pools.iter_mut().find(|one| one.name == pool) {
            Some(pool) => std::mem::replace(&mut pool.headroom, headroom),
            None => Resources::new(),
        }
    }
}

fn removable(
    index: &Index,
    name: &str,
    view: &NodeView,
    catalogues: &Catalogues,
    templates: &mut Templates,
) -> Removable {
    let movable = index.pods_on(name).filter(|pod| is_reschedulable(pod));
    let pool = view.pool().unwrap_or_default().to_owned();
    let catalogue = catalogues.of(&pool);
    let capacity =
        view.claim.as_ref().map(|claim| claim_capacity(claim, catalogue.map(AsRef::as_ref)));
    Removable {
        pods: movable.map(|pod| templates.running(index, pod)).collect(),
        pool,
        capacity: capacity.unwrap_or_default(),
    }
}

/// Distinct pods, in the order of their first appearance.
#[derive(Default)]
struct Templates {
    list: Vec<Pod>,
    /// Template by namespace and what a workload's pods share.
    known: BTreeMap<(String, PartsId), usize>,
}

impl Templates {
    fn running(&mut self, index: &Index, pod: &cluster::Pod) -> RunningPod {
        let add = |list: &mut Vec<Pod>| {
            list.push(engine_pod(index, pod));
            list.len() - 1
        };
        let template = match pod.parts_id() {
            Some(parts) => {
                let key = (pod.namespace().to_owned(), parts);
                *self.known.entry(key).or_insert_with(|| add(&mut self.list))
            }
            None => add(&mut self.list),
        };
        RunningPod { key: pod.key().clone(), template }
    }
}
