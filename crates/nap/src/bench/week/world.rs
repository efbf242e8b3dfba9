//! The cluster: nodes, pods, and a scheduler that places pods where kube-scheduler would by
//! default, not where a plan wanted them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nap_api::labels;
use nap_engine::{RunningPods, Snapshot};
use nap_units::{CPU, MEMORY, PODS};
use serde::Serialize;

use super::market::{Amount, Market};
use super::trace::Trace;

/// Time from the binding of a pod to its readiness.
const POD_START: i64 = 10;

/// Workloads of pods that will be bound to a node, by node.
pub(super) type Reserved = BTreeMap<usize, Vec<usize>>;

/// Why a node goes, or a pod was evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Reason {
    Empty,
    Drifted,
    Underutilized,
    /// A spot node was evicted.
    Interrupted,
}

/// A node.
pub(super) struct Node {
    /// Index of its kind.
    pub(super) kind: usize,
    pub(super) created: i64,
    /// Whether it has joined the cluster.
    pub(super) joined: bool,
    /// Whether its launch will fail: there is no such machine.
    pub(super) is_doomed: bool,
    /// Why it is tainted and goes; `None` if it stays.
    pub(super) going: Option<Reason>,
    /// Whether it has a `PreferNoSchedule` taint: new pods prefer other nodes.
    pub(super) is_avoided: bool,
    /// Number of the image.
    pub(super) image: u32,
    pub(super) pods: BTreeSet<usize>,
    pub(super) free: Amount,
    shape: Option<Arc<nap_engine::Node>>,
}

/// A pod of a workload. An evicted pod and the one that takes its place are the same.
pub(super) struct Pod {
    pub(super) workload: usize,
    pub(super) node: Option<usize>,
    /// When it began to wait for a node.
    since: i64,
    /// When it is ready; `None` while it has no node.
    starts: Option<i64>,
    pub(super) is_ready: bool,
    /// When it was evicted; `None` once it is ready again.
    down_since: Option<i64>,
}

/// What the week has cost.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) micros: i64,
    pub(super) node_seconds: i64,
    pub(super) evictions: BTreeMap<Reason, usize>,
    pub(super) unavailable_seconds: i64,
    pub(super) pending_seconds: i64,
    pub(super) launched: usize,
    pub(super) max_nodes: usize,
}

/// The cluster.
pub(super) struct World {
    pub(super) now: i64,
    pub(super) nodes: BTreeMap<usize, Node>,
    pub(super) pods: BTreeMap<usize, Pod>,
    pub(super) pending: BTreeSet<usize>,
    pub(super) of_workload: Vec<BTreeSet<usize>>,
    pub(super) desired: Vec<usize>,
    pub(super) image: u32,
    /// Changes whenever a pod is bound or goes, or a node comes or goes.
    pub(super) version: u64,
    pub(super) tally: Tally,
    /// When a node of each pool was launched last for pods that had no place; `None` if never.
    pub(super) grown: [Option<i64>; 2],
    /// Index of the zone of each kind, and the number of zones.
    zone_of: Vec<usize>,
    zones: usize,
    next_node: usize,
    next_pod: usize,
}

/// The name of the node with a number.
pub(super) fn node_name(number: usize) -> String {
    format!("node-{number:06}")
}

/// The number of the node with a name.
pub(super) fn node_number(name: &str) -> Option<usize> {
    name.strip_prefix("node-")?.parse().ok()
}

/// Whether an amount is free.
pub(super) fn fits(requests: &Amount, free: &Amount) -> bool {
    requests.iter().zip(free).all(|(wanted, free)| wanted <= free)
}

impl World {
    /// An empty cluster.
    pub(super) fn new(trace: &Trace, market: &Market) -> Self {
        let zones: BTreeSet<&str> = market.kinds.iter().map(|kind| kind.zone.as_str()).collect();
        let zones: Vec<&str> = zones.into_iter().collect();
        let zone_of = |kind: &super::market::Kind| {
            zones.iter().position(|zone| *zone == kind.zone).unwrap_or_default()
        };
        let workloads = trace.workloads.len();
        Self {
            now: 0,
            nodes: BTreeMap::new(),
            pods: BTreeMap::new(),
            pending: BTreeSet::new(),
            of_workload: vec![BTreeSet::new(); workloads],
            desired: vec![0; workloads],
            image: 0,
            version: 0,
            tally: Tally::default(),
            grown: [None; 2],
            zone_of: market.kinds.iter().map(zone_of).collect(),
            zones: zones.len(),
            next_node: 0,
            next_pod: 0,
        }
    }

    /// Creates and deletes pods until a workload has its replicas. Of the pods that could go, those
    /// without a node go first, then those on the nodes with most of them, then the youngest.
    pub(super) fn scale(&mut self, market: &Market, workload: usize, replicas: usize) {
        self.desired[workload] = replicas;
        while self.of_workload[workload].len() < replicas {
            let number = self.next_pod;
            self.next_pod += 1;
            let pod = Pod {
                workload,
                node: None,
                since: self.now,
                starts: None,
                is_ready: false,
                down_since: None,
            };
            self.pods.insert(number, pod);
            self.of_workload[workload].insert(number);
            self.pending.insert(number);
        }
        while self.of_workload[workload].len() > replicas {
            let mut on_node: BTreeMap<Option<usize>, usize> = BTreeMap::new();
            for pod in &self.of_workload[workload] {
                *on_node.entry(self.pods[pod].node).or_default() += 1;
            }
            let rank = |pod: &&usize| {
                let node = self.pods[*pod].node;
                (node.is_none(), on_node.get(&node).copied(), **pod)
            };
            let Some(gone) = self.of_workload[workload].iter().max_by_key(rank).copied() else {
                break;
            };
            self.unbind(market, gone);
            self.of_workload[workload].remove(&gone);
            self.pending.remove(&gone);
            if let Some(pod) = self.pods.remove(&gone) {
                if pod.node.is_none() && pod.starts.is_none() {
                    self.tally.pending_seconds += self.now - pod.since;
                }
                let down = pod.down_since.map_or(0, |since| self.now - since);
                self.tally.unavailable_seconds += down;
            }
            self.version += 1;
        }
    }

    /// Takes a pod off its node.
    fn unbind(&mut self, market: &Market, number: usize) {
        let Some(pod) = self.pods.get_mut(&number) else { return };
        let Some(node) = pod.node.take().and_then(|node| self.nodes.get_mut(&node)) else { return };
        node.pods.remove(&number);
        node.shape = None;
        for (free, request) in node.free.iter_mut().zip(&market.requests[pod.workload]) {
            *free += request;
        }
        self.version += 1;
    }

    /// Evicts a pod: it waits for a node again.
    pub(super) fn evict(&mut self, market: &Market, number: usize, reason: Reason) {
        self.unbind(market, number);
        let now = self.now;
        let Some(pod) = self.pods.get_mut(&number) else { return };
        pod.down_since.get_or_insert(now);
        (pod.since, pod.starts, pod.is_ready) = (now, None, false);
        self.pending.insert(number);
        *self.tally.evictions.entry(reason).or_default() += 1;
    }

    /// Marks a pod as ready if its time has come.
    pub(super) fn start(&mut self, number: usize) {
        let now = self.now;
        let Some(pod) = self.pods.get_mut(&number).filter(|pod| pod.starts == Some(now)) else {
            return;
        };
        pod.is_ready = true;
        self.tally.unavailable_seconds += pod.down_since.take().map_or(0, |since| now - since);
    }

    /// Launches a node.
    pub(super) fn launch(&mut self, market: &Market, kind: usize, is_doomed: bool) -> usize {
        let number = self.next_node;
        self.next_node += 1;
        let node = Node {
            kind,
            created: self.now,
            joined: false,
            is_doomed,
            going: None,
            is_avoided: false,
            image: self.image,
            pods: BTreeSet::new(),
            free: market.kinds[kind].allocatable,
            shape: None,
        };
        self.nodes.insert(number, node);
        self.tally.launched += usize::from(!is_doomed);
        self.tally.max_nodes = self.tally.max_nodes.max(self.nodes.len());
        self.version += 1;
        number
    }

    /// Lets a node join.
    pub(super) fn join(&mut self, number: usize) {
        if let Some(node) = self.nodes.get_mut(&number) {
            (node.joined, node.shape) = (true, None);
            self.version += 1;
        }
    }

    /// Removes a node, which is paid for until now.
    pub(super) fn remove(&mut self, market: &Market, number: usize) {
        let Some(node) = self.nodes.remove(&number) else { return };
        self.version += 1;
        if !node.is_doomed {
            let seconds = self.now - node.created;
            self.tally.node_seconds += seconds;
            self.tally.micros += market.kinds[node.kind].price.cost_micros(seconds);
        }
    }

    /// Accounts for everything that still exists at the end.
    pub(super) fn close(&mut self, market: &Market) {
        for pod in self.pods.values() {
            if pod.node.is_none() {
                self.tally.pending_seconds += self.now - pod.since;
            }
            self.tally.unavailable_seconds += pod.down_since.map_or(0, |since| self.now - since);
        }
        for number in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.remove(market, number);
        }
    }

    /// Binds the pods that have a place. Returns them with the time at which they are ready.
    ///
    /// Of the nodes with room, the one with most of its CPU and memory free afterwards is chosen. A
    /// node that is avoided is chosen only if no other has room: the scheduler's score for taints
    /// weighs more than those for resources together.
    pub(super) fn schedule(&mut self, trace: &Trace, market: &Market) -> Vec<(usize, i64)> {
        let mut bound = Vec::new();
        let mut without_place = BTreeSet::new();
        for number in self.pending.iter().copied().collect::<Vec<_>>() {
            let Some(workload) = self.pods.get(&number).map(|pod| pod.workload) else { continue };
            if without_place.contains(&workload) {
                continue;
            }
            let Some(chosen) = self.best_node(trace, market, workload) else {
                without_place.insert(workload);
                continue;
            };
            let (now, starts) = (self.now, self.now + POD_START);
            if let (Some(pod), Some(node)) =
                (self.pods.get_mut(&number), self.nodes.get_mut(&chosen))
            {
                (pod.node, pod.starts) = (Some(chosen), Some(starts));
                self.tally.pending_seconds += now - pod.since;
                node.pods.insert(number);
                node.shape = None;
                for (free, request) in node.free.iter_mut().zip(&market.requests[workload]) {
                    *free -= request;
                }
            }
            self.pending.remove(&number);
            self.version += 1;
            bound.push((number, starts));
        }
        bound
    }

    fn best_node(&self, trace: &Trace, market: &Market, workload: usize) -> Option<usize> {
        let requests = &market.requests[workload];
        let pool = usize::from(trace.workloads[workload].spot);
        let open = trace.workloads[workload].zone_spread.then(|| {
            let counts = self.zone_counts(market, workload, pool);
            let least = counts.iter().flatten().min().copied().unwrap_or(0);
            let is_open = |count: &Option<usize>| count.is_some_and(|count| count <= least);
            counts.iter().map(is_open).collect::<Vec<bool>>()
        });
        let suits = |node: &Node| {
            node.joined
                && node.going.is_none()
                && market.kinds[node.kind].pool == pool
                && fits(requests, &node.free)
                && open.as_ref().is_none_or(|open| open[self.zone_of[node.kind]])
        };
        let score = |node: &Node| {
            let all = &market.kinds[node.kind].allocatable;
            let left = |at: usize| (node.free[at] - requests[at]) * 1000 / all[at].max(1);
            left(0) + left(1)
        };
        let suited = self.nodes.iter().filter(|(_, node)| suits(node));
        suited
            .max_by_key(|(number, node)| (!node.is_avoided, score(node), Reverse(**number)))
            .map(|(number, _)| *number)
    }

    /// Pods of a workload in each zone; `None` for a zone without a node that they could run on.
    pub(super) fn zone_counts(
        &self,
        market: &Market,
        workload: usize,
        pool: usize,
    ) -> Vec<Option<usize>> {
        let mut counts = vec![None; self.zones];
        for node in self.nodes.values().filter(|node| node.joined) {
            if market.kinds[node.kind].pool == pool {
                counts[self.zone_of[node.kind]].get_or_insert(0);
            }
        }
        for pod in &self.of_workload[workload] {
            let node = self.pods[pod].node.and_then(|node| self.nodes.get(&node));
            if let Some(node) = node {
                *counts[self.zone_of[node.kind]].get_or_insert(0) += 1;
            }
        }
        counts
    }

    /// Index of the zone of a kind.
    pub(super) fn zone(&self, kind: usize) -> usize {
        self.zone_of[kind]
    }

    /// Pods of a workload that are not ready.
    pub(super) fn unready(&self, workload: usize) -> usize {
        self.of_workload[workload].iter().filter(|pod| !self.pods[*pod].is_ready).count()
    }

    /// Milli-cores of all nodes of a pool.
    pub(super) fn used(&self, market: &Market, pool: usize) -> i64 {
        let kinds = self.nodes.values().map(|node| &market.kinds[node.kind]);
        kinds.filter(|kind| kind.pool == pool).map(|kind| kind.cpu_milli).sum()
    }

    /// The engine's input without pods: the nodes that stay, less those in `without` and less the
    /// room in `reserved`.
    pub(super) fn snapshot(
        &mut self,
        market: &Market,
        without: &BTreeSet<usize>,
        reserved: &Reserved,
    ) -> Snapshot {
        let mut snapshot = market.base.clone();
        for (pool, own) in snapshot.pools.iter_mut().enumerate() {
            own.headroom.set(CPU, (market.limit - self.used(market, pool)).max(0));
        }
        for (number, node) in &mut self.nodes {
            if node.going.is_some() || without.contains(number) {
                continue;
            }
            if let Some(workloads) = reserved.get(number) {
                let mut free = node.free;
                let on_it = node.pods.iter().map(|pod| self.pods[pod].workload);
                let all: Vec<usize> = on_it.chain(workloads.iter().copied()).collect();
                for workload in workloads {
                    for (free, request) in free.iter_mut().zip(&market.requests[*workload]) {
                        *free -= request;
                    }
                }
                let shape = shape(market, *number, node, &free, all.into_iter());
                snapshot.nodes.push(Arc::new(shape));
                continue;
            }
            let known = node.shape.take();
            let on_it = node.pods.iter().map(|pod| self.pods[pod].workload);
            let one =
                known.unwrap_or_else(|| Arc::new(shape(market, *number, node, &node.free, on_it)));
            snapshot.nodes.push(Arc::clone(&one));
            node.shape = Some(one);
        }
        snapshot
    }
}

/// A node in the engine's form.
fn shape(
    market: &Market,
    number: usize,
    node: &Node,
    free: &Amount,
    workloads: impl Iterator<Item = usize>,
) -> nap_engine::Node {
    let mut counts: BTreeMap<usize, u32> = BTreeMap::new();
    for workload in workloads {
        *counts.entry(workload).or_default() += 1;
    }
    let mut made = market.kinds[node.kind].node.clone();
    made.name = node_name(number);
    made.labels.insert(labels::HOSTNAME.to_owned(), made.name.clone());
    for (name, amount) in [CPU, MEMORY, PODS].iter().zip(free) {
        made.free.set(name, *amount);
    }
    made.initialized = node.joined;
    let resident = |(workload, count): (usize, u32)| RunningPods {
        namespace: "default".to_owned(),
        labels: market.templates[workload].labels.clone(),
        anti_affinity: Vec::new(),
        host_ports: Vec::new(),
        count,
    };
    made.residents = counts.into_iter().map(resident).collect();
    made
}
