//! What a policy sees of the cluster and decides, and the rules that all policies share.

use std::collections::{BTreeMap, BTreeSet};

use nap_engine::{Plan, Snapshot};

use super::market::{Market, pod_number};
use super::trace::{DAY, HOUR, Trace};
use super::world::{Reason, Reserved, World, node_number};

/// Disruption budget of both NodePools, in percent of their nodes.
const BUDGET_PERCENT: usize = 10;
/// Hours of every day in which drifted nodes may be replaced.
const WINDOW: (i64, i64) = (2 * HOUR, 5 * HOUR);

/// Nodes that go together, and what is launched for them before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decision {
    pub(super) reason: Reason,
    pub(super) remove: Vec<usize>,
    /// Kinds of the replacements.
    pub(super) launches: Vec<usize>,
}

/// What a pass has decided.
#[derive(Default)]
pub(super) struct Passed {
    pub(super) decisions: Vec<Decision>,
    /// When to pass again even if nothing changes.
    pub(super) again: Option<i64>,
    /// Nodes that new pods avoid; `None` leaves them as they are.
    pub(super) surplus: Option<BTreeSet<usize>>,
}

/// Rules by which nodes are launched and disrupted.
pub(super) trait Policy {
    /// Places for pods that wait.
    fn solve(&mut self, snapshot: &Snapshot) -> Plan;
    /// Decides what to disrupt now.
    fn pass(&mut self, view: &mut View<'_>) -> Passed;
    /// A decision is carried out, which moves pods of these workloads. Each pod is listed, with the
    /// replicas of its workload.
    fn began(&mut self, decision: &Decision, pool: usize, moved: &[(usize, usize)], now: i64);
    /// A decision for a pool was carried out, or was given up.
    fn ended(&mut self, reason: Reason, pool: usize, is_done: bool, now: i64);
    /// Pods of these workloads need new nodes; each with its number of replicas.
    fn launches(&mut self, workloads: &BTreeMap<usize, usize>, now: i64);
}

/// What a policy sees.
pub(super) struct View<'v> {
    pub(super) trace: &'v Trace,
    pub(super) market: &'v Market,
    pub(super) world: &'v mut World,
    /// Room that pods which wait will take. These nodes are not disrupted.
    pub(super) reserved: &'v Reserved,
}

/// Whether drifted nodes may be replaced at a time.
pub(super) fn window_is_open(now: i64) -> bool {
    let (from, to) = WINDOW;
    (from..to).contains(&now.rem_euclid(DAY))
}

/// Number of a pool's nodes that may go at the same time.
pub(super) fn allowed(nodes: usize) -> usize {
    (nodes * BUDGET_PERCENT).div_ceil(100)
}

impl View<'_> {
    /// Nodes that may be disrupted: they have joined and stay, no pod that waits needs them, and
    /// all their pods may be evicted now.
    pub(super) fn candidates(&self) -> Vec<usize> {
        let world = &*self.world;
        let each = self.trace.workloads.iter().enumerate();
        let is_held = each.map(|(number, workload)| {
            let full = workload.max_unavailable.is_some_and(|most| world.unready(number) >= most);
            workload.is_job || full
        });
        let is_held: Vec<bool> = is_held.collect();
        let is_free = |number: &usize| {
            let node = &world.nodes[number];
            node.joined
                && node.going.is_none()
                && !self.reserved.contains_key(number)
                && !node.pods.iter().any(|pod| is_held[world.pods[pod].workload])
        };
        world.nodes.keys().copied().filter(is_free).collect()
    }

    /// Number of each pool's nodes that may still be disrupted for a reason.
    pub(super) fn budgets(&self, reason: Reason) -> [usize; 2] {
        [0, 1].map(|pool| {
            if reason == Reason::Drifted && !window_is_open(self.world.now) {
                return 0;
            }
            let of_pool = |node: &&super::world::Node| {
                node.joined && self.market.kinds[node.kind].pool == pool
            };
            let nodes = self.world.nodes.values().filter(of_pool).count();
            let going = self.world.nodes.values().filter(|node| node.going.is_some());
            allowed(nodes).saturating_sub(going.filter(of_pool).count())
        })
    }

    /// Pool of a node.
    pub(super) fn pool(&self, node: usize) -> usize {
        self.market.kinds[self.world.nodes[&node].kind].pool
    }

    /// Empty nodes among candidates.
    pub(super) fn empty(&self, candidates: &[usize]) -> Vec<usize> {
        let is_empty = |node: &&usize| self.world.nodes[*node].pods.is_empty();
        candidates.iter().filter(is_empty).copied().collect()
    }

    /// Replaces drifted nodes one after the other, at most `max` of them: empty ones first, then
    /// the oldest. A node stays if some of its pods have no place, or only on nodes that have not
    /// joined.
    pub(super) fn drift(
        &mut self,
        candidates: &[usize],
        max: usize,
        is_resting: impl Fn(usize) -> bool,
        mut solve: impl FnMut(&Snapshot) -> Plan,
    ) -> Vec<Decision> {
        let mut budgets = self.budgets(Reason::Drifted);
        let image = self.world.image;
        let is_old = |node: &&usize| self.world.nodes[*node].image != image;
        let mut drifted: Vec<usize> = candidates.iter().filter(is_old).copied().collect();
        drifted.sort_by_key(|node| (!self.world.nodes[node].pods.is_empty(), *node));
        let mut decisions = Vec::new();
        let (mut without, mut reserved) = (BTreeSet::new(), self.reserved.clone());
        for node in drifted {
            let pool = self.pool(node);
            let is_needed = reserved.contains_key(&node);
            if budgets[pool] == 0 || is_resting(pool) || is_needed || decisions.len() >= max {
                continue;
            }
            let mut trial = without.clone();
            trial.insert(node);
            let mut snapshot = self.world.snapshot(self.market, &trial, &reserved);
            let pods = self.world.nodes[&node].pods.iter();
            snapshot.pods =
                pods.map(|pod| self.market.pod(self.world.pods[pod].workload, *pod)).collect();
            let plan = solve(&snapshot);
            let places: Vec<(usize, usize)> = places(self.world, &plan);
            let waits = places.iter().any(|(target, _)| !self.world.nodes[target].joined);
            if waits || !plan.unplaced.is_empty() {
                continue;
            }
            for (target, workload) in places {
                reserved.entry(target).or_default().push(workload);
            }
            without = trial;
            budgets[pool] -= 1;
            let launches = plan.launches.iter().filter_map(|one| self.market.kind(one)).collect();
            decisions.push(Decision { reason: Reason::Drifted, remove: vec![node], launches });
        }
        decisions
    }
}

/// The nodes on which a plan places pods, each with the workload of the pod.
pub(super) fn places(world: &World, plan: &Plan) -> Vec<(usize, usize)> {
    let place = |one: &nap_engine::Placement| {
        let pod = pod_number(&one.pod).and_then(|pod| world.pods.get(&pod))?;
        Some((node_number(&one.node)?, pod.workload))
    };
    plan.placements.iter().filter_map(place).collect()
}

/// Findings, and since when each has held.
#[derive(Default)]
pub(super) struct Debounce(BTreeMap<usize, i64>);

impl Debounce {
    /// Takes the findings of a pass. Returns those that have held for `time`, and when the next
    /// will have.
    pub(super) fn observe(
        &mut self,
        found: impl IntoIterator<Item = usize>,
        time: i64,
        now: i64,
    ) -> (BTreeSet<usize>, Option<i64>) {
        let since = |node| (node, self.0.get(&node).copied().unwrap_or(now));
        self.0 = found.into_iter().map(since).collect();
        let due = self.0.iter().filter(|(_, since)| now - **since >= time);
        let due = due.map(|(node, _)| *node).collect();
        let next = self.0.values().map(|since| since + time).filter(|at| *at > now).min();
        (due, next)
    }
}
