//! Carries out consolidation with a scheduler that places pods as it likes.

use std::collections::BTreeMap;
use std::sync::Arc;

use nap_engine::{Consolidation, Fleet, Launch, Node, Options, Pod, RunningPod, Snapshot, solve};

use crate::check::existing;
use crate::cluster::{NodeState, obstacle};
use crate::generate::Dice;
use crate::steps::{change, disruption_cost, into_node, launch_node, receive, with_node};

/// The fleet after the steps of a decision, carried out in order. Pods of removed nodes go to any
/// node that may have them, whatever was planned; those without a place get nodes by a plan of
/// their own, and go to any node again. `None` if some are left over even so.
pub fn carry_out_freely(fleet: &Fleet, decision: &Consolidation, seed: u64) -> Option<Fleet> {
    let nodes = fleet.snapshot.nodes.iter();
    let mut cluster = FreeCluster {
        fleet: fleet.clone(),
        nodes: nodes.map(|node| (existing(node), node.initialized)).collect(),
        dice: Dice::new(seed),
        launched: 0,
    };
    cluster.fleet.snapshot.pods.clear();
    let mut pending = Vec::new();
    for step in &decision.steps {
        pending.extend(cluster.remove(&step.remove));
        cluster.launch(&step.plan.launches);
        pending = cluster.bind(pending);
    }
    if !pending.is_empty() {
        let pods = pending.iter().map(|pod| cluster.pod(pod)).collect();
        let snapshot = Snapshot { pods, ..cluster.snapshot() };
        cluster.launch(&solve(&snapshot, &Options::default()).launches);
        pending = cluster.bind(pending);
    }
    pending.is_empty().then(|| cluster.into_fleet())
}

struct FreeCluster {
    fleet: Fleet,
    /// The nodes, and whether each is initialized.
    nodes: Vec<(NodeState, bool)>,
    dice: Dice,
    launched: usize,
}

impl FreeCluster {
    /// A running pod as a pending one.
    fn pod(&self, pod: &RunningPod) -> Pod {
        Pod { key: pod.key.clone(), ..self.fleet.templates[pod.template].clone() }
    }

    /// Removes nodes and returns their pods.
    fn remove(&mut self, names: &[String]) -> Vec<RunningPod> {
        self.nodes.retain(|(node, _)| !names.contains(&node.name));
        let candidates = std::mem::take(&mut self.fleet.candidates);
        let (gone, stay): (Vec<_>, Vec<_>) =
            candidates.into_iter().partition(|one| names.contains(&one.node));
        self.fleet.candidates = stay;
        for one in &gone {
            let pools = self.fleet.snapshot.pools.iter_mut();
            for pool in pools.filter(|pool| pool.name == one.pool) {
                change(&mut pool.headroom, &with_node(&one.capacity), i64::saturating_add);
            }
        }
        gone.into_iter().flat_map(|one| one.pods).collect()
    }

    fn launch(&mut self, launches: &[Launch]) {
        for launch in launches {
            let taken = |name: &String| self.nodes.iter().any(|(node, _)| node.name == *name);
            let name = loop {
                self.launched += 1;
                let name = format!("free-{}", self.launched);
                if !taken(&name) {
                    break name;
                }
            };
            if let Some((state, candidate)) = launch_node(&mut self.fleet, &name, launch) {
                self.nodes.push((state, true));
                self.fleet.candidates.push(candidate);
            }
        }
    }

    /// Binds pods in any order, each to any node that may have it. Returns those without a place.
    fn bind(&mut self, mut pods: Vec<RunningPod>) -> Vec<RunningPod> {
        let mut left = Vec::new();
        while !pods.is_empty() {
            let last = i64::try_from(pods.len() - 1).unwrap_or(0);
            let drawn = usize::try_from(self.dice.between(0, last)).unwrap_or(0);
            let running = pods.swap_remove(drawn);
            let pod = self.pod(&running);
            let cluster: Vec<NodeState> = self.nodes.iter().map(|(node, _)| node.clone()).collect();
            let fits = |target: &usize| obstacle(&pod, *target, &cluster).is_none();
            let targets: Vec<usize> = (0..cluster.len()).filter(fits).collect();
            if targets.is_empty() {
                left.push(running);
                continue;
            }
            let target = *self.dice.pick(&targets);
            receive(&mut self.nodes[target].0, &pod);
            let name = &self.nodes[target].0.name;
            for one in self.fleet.candidates.iter_mut().filter(|one| one.node == *name) {
                one.pods.push(running.clone());
            }
        }
        left
    }

    fn snapshot(&self) -> Snapshot {
        let node = |(state, initialized): &(NodeState, bool)| {
            Arc::new(Node { initialized: *initialized, ..into_node(state.clone()) })
        };
        let nodes = self.nodes.iter().map(node).collect();
        Snapshot { nodes, ..self.fleet.snapshot.clone() }
    }

    fn into_fleet(mut self) -> Fleet {
        self.fleet.snapshot = self.snapshot();
        let mut sums: BTreeMap<String, (nap_units::UsdPerHour, i64)> = BTreeMap::new();
        for one in &mut self.fleet.candidates {
            one.disruption_cost = disruption_cost(one.pods.len());
            let (cost, disruption) = sums.entry(one.pool.clone()).or_default();
            *cost += one.price;
            *disruption += one.disruption_cost;
        }
        for (pool, (cost, disruption)) in sums {
            if let Some(rules) = self.fleet.pools.get_mut(&pool) {
                (rules.cost, rules.disruption_cost) = (cost, disruption);
            }
        }
        self.fleet
    }
}
