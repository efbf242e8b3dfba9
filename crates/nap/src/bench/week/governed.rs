//! nap's rules: plans by the portfolio, consolidation of the whole fleet, and what keeps it quiet.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use nap_engine::{
    Candidate, ConsolidationCache, ConsolidationOptions, Fleet, Options, Plan, PoolRules,
    RunningPod, Snapshot, SolverCache, WorkloadBudget, consolidate, solve_with,
};

use super::market::{POOLS, pod_key};
use super::policy::{Debounce, Decision, Passed, Policy, View};
use super::trace::{DAY, HOUR, MINUTE};
use super::world::{Reason, node_name, node_number};

/// Time for which a finding must hold.
const SETTLE: i64 = 15;
/// Shortest and longest time for which a node is expected to go on as it is.
const REMAINING_LIFE: (i64, i64) = (15 * MINUTE, 4 * HOUR);
/// Time after a move within which a new node for its workload means that it was undone.
const UNDONE_WITHIN: i64 = 10 * MINUTE;
/// Evictions per day of a workload for each of its pods.
const PER_POD: usize = 24;
/// Time after a launch for pending pods in which a pool counts as growing, and the smallest saving
/// of a replacement in it meanwhile, in percent.
const GROWING: i64 = HOUR;
const MIN_SAVING_WHILE_GROWING: i64 = 60;
/// First and longest rest of a pool.
const REST: (i64, i64) = (MINUTE, HOUR);
/// Disruption cost of a node and of a pod, in thousandths.
const UNIT: i64 = 1000;

/// Which nodes with pods are consolidated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Consolidates {
    /// None.
    WhenEmpty,
    /// Those for which it pays.
    WhenEmptyOrUnderutilized,
    /// Those for which it pays and that are worth their disruption.
    Balanced,
}

/// A pod was moved.
struct Move {
    at: i64,
    /// The pool whose consolidation caused it.
    pool: Option<usize>,
    /// Replicas of its workload at that time.
    replicas: usize,
}

/// nap's rules.
pub(super) struct Governed {
    consolidates: Consolidates,
    solver: Option<SolverCache>,
    cache: ConsolidationCache,
    empty: Debounce,
    underutilized: Debounce,
    ledger: BTreeMap<usize, VecDeque<Move>>,
    /// Number of failures and end of the rest, by pool and reason.
    rests: BTreeMap<(usize, Reason), (u32, i64)>,
}

impl Governed {
    pub(super) fn new(consolidates: Consolidates) -> Self {
        Self {
            consolidates,
            solver: None,
            cache: ConsolidationCache::default(),
            empty: Debounce::default(),
            underutilized: Debounce::default(),
            ledger: BTreeMap::new(),
            rests: BTreeMap::new(),
        }
    }

    fn rest(&mut self, pool: usize, reason: Reason, now: i64) {
        let (count, until) = self.rests.entry((pool, reason)).or_insert((0, now));
        if now - *until >= REST.1 {
            *count = 0;
        }
        *until = now + (REST.0 << (*count).min(10)).min(REST.1);
        *count += 1;
    }

    fn is_resting(&self, pool: usize, reason: Reason, now: i64) -> bool {
        self.rests.get(&(pool, reason)).is_some_and(|(_, until)| *until > now)
    }

    /// Pods of each workload that may still be moved today, where there are fewer than it has.
    fn scarce_evictions(&self, view: &View<'_>) -> BTreeMap<usize, usize> {
        let now = view.world.now;
        let left = |(workload, moves): (&usize, &VecDeque<Move>)| {
            let recent = moves.iter().filter(|one| now - one.at < DAY).count();
            let replicas = view.world.of_workload[*workload].len();
            let left = (replicas.max(1) * PER_POD).saturating_sub(recent);
            (left < replicas).then_some((*workload, left))
        };
        self.ledger.iter().filter_map(left).collect()
    }

    /// Steps, and the nodes that new pods should avoid.
    fn consolidation(
        &mut self,
        view: &mut View<'_>,
        candidates: &[usize],
    ) -> (Vec<Decision>, BTreeSet<usize>) {
        let now = view.world.now;
        let resting = [0, 1].map(|pool| self.is_resting(pool, Reason::Underutilized, now));
        let is_held = |node: &usize| {
            self.consolidates == Consolidates::WhenEmpty || resting[view.pool(*node)]
        };
        let with_pods =
            candidates.iter().copied().filter(|node| !view.world.nodes[node].pods.is_empty());
        let eligible: Vec<(usize, bool)> = with_pods.map(|node| (node, is_held(&node))).collect();
        if eligible.is_empty() {
            return (Vec::new(), BTreeSet::new());
        }
        let fleet = self.fleet(view, &eligible);
        let found = consolidate(&fleet, &ConsolidationOptions::default(), &mut self.cache);
        let decision = |step: nap_engine::Step| Decision {
            reason: Reason::Underutilized,
            remove: step.remove.iter().filter_map(|name| node_number(name)).collect(),
            launches: step.plan.launches.iter().filter_map(|one| view.market.kind(one)).collect(),
        };
        let mut surplus: BTreeSet<usize> =
            found.surplus.iter().filter_map(|name| node_number(name)).collect();
        let steps: Vec<Decision> = found.steps.into_iter().map(decision).collect();
        surplus.extend(steps.iter().flat_map(|step| step.remove.iter().copied()));
        (steps, surplus)
    }

    /// The engine's input.
    fn fleet(&self, view: &mut View<'_>, eligible: &[(usize, bool)]) -> Fleet {
        let snapshot = view.world.snapshot(view.market, &BTreeSet::new(), view.reserved);
        let scarce = self.scarce_evictions(view);
        let (world, market) = (&*view.world, view.market);
        let template = |(number, pod): (usize, &nap_engine::Pod)| {
            let first = world.of_workload[number].first().copied();
            let key = first.map_or_else(|| pod.key.clone(), pod_key);
            nap_engine::Pod { key, ..pod.clone() }
        };
        let disruption = |pods: usize| UNIT * (1 + i64::try_from(pods).unwrap_or(i64::MAX));
        let is_growing = world.grown.map(|at| at.is_some_and(|at| world.now - at < GROWING));
        let numbers: BTreeMap<usize, usize> = scarce.keys().copied().zip(0..).collect();
        let candidate = |(number, is_held): &(usize, bool)| {
            let (number, node) = (*number, &world.nodes[number]);
            let kind = &market.kinds[node.kind];
            let pods = node.pods.iter();
            let running =
                |pod: &usize| RunningPod { key: pod_key(*pod), template: world.pods[pod].workload };
            let mut workloads: BTreeMap<usize, usize> = BTreeMap::new();
            for number in pods.clone().filter_map(|pod| numbers.get(&world.pods[pod].workload)) {
                *workloads.entry(*number).or_default() += 1;
            }
            Candidate {
                node: node_name(number),
                pool: POOLS[kind.pool].to_owned(),
                instance_type: kind.instance_type.clone(),
                capacity_type: Some(kind.capacity_type),
                price: kind.price,
                capacity: kind.capacity.clone(),
                pods: pods.map(running).collect(),
                workloads: workloads.into_iter().collect(),
                disruption_cost: disruption(node.pods.len()),
                remaining_life: (world.now - node.created)
                    .clamp(REMAINING_LIFE.0, REMAINING_LIFE.1),
                min_saving_percent: if is_growing[kind.pool] {
                    MIN_SAVING_WHILE_GROWING
                } else {
                    0
                },
                is_held: *is_held,
                was_surplus: node.is_avoided,
            }
        };
        let budget = |(workload, evictions): (&usize, &usize)| WorkloadBudget {
            workload: workload.to_string(),
            evictions: *evictions,
        };
        let budgets = view.budgets(Reason::Underutilized);
        let mut pools = BTreeMap::new();
        for (pool, name) in POOLS.iter().enumerate() {
            let mut rules = PoolRules {
                budget: budgets[pool],
                balanced: self.consolidates == Consolidates::Balanced,
                ..PoolRules::default()
            };
            for node in world.nodes.values() {
                let kind = &market.kinds[node.kind];
                if kind.pool == pool {
                    rules.cost += kind.price;
                    rules.disruption_cost += disruption(node.pods.len());
                }
            }
            pools.insert((*name).to_owned(), rules);
        }
        Fleet {
            snapshot,
            templates: market.templates.iter().enumerate().map(template).collect(),
            candidates: eligible.iter().map(candidate).collect(),
            pools,
            workloads: scarce.iter().map(budget).collect(),
        }
    }
}

impl Policy for Governed {
    fn solve(&mut self, snapshot: &Snapshot) -> Plan {
        if self.solver.as_ref().is_none_or(|cache| !cache.suits(snapshot)) {
            self.solver = Some(SolverCache::new(snapshot));
        }
        let cache = self.solver.get_or_insert_with(|| SolverCache::new(snapshot));
        solve_with(cache, snapshot, &Options::default())
    }

    fn pass(&mut self, view: &mut View<'_>) -> Passed {
        let now = view.world.now;
        let candidates = view.candidates();
        let (due, again) = self.empty.observe(view.empty(&candidates), SETTLE, now);
        let mut budgets = view.budgets(Reason::Empty);
        let mut decisions = Vec::new();
        for node in due {
            let left = &mut budgets[view.pool(node)];
            if *left > 0 {
                *left -= 1;
                let (reason, launches) = (Reason::Empty, Vec::new());
                decisions.push(Decision { reason, remove: vec![node], launches });
            }
        }
        if !decisions.is_empty() {
            return Passed { decisions, again, surplus: None };
        }
        let resting = [0, 1].map(|pool| self.is_resting(pool, Reason::Drifted, now));
        let decisions =
            view.drift(&candidates, usize::MAX, |pool| resting[pool], |one| self.solve(one));
        if !decisions.is_empty() {
            return Passed { decisions, again, surplus: None };
        }
        let (mut steps, surplus) = self.consolidation(view, &candidates);
        let found: Vec<usize> = steps.iter().flat_map(|step| step.remove.clone()).collect();
        let (due, next) = self.underutilized.observe(found, SETTLE, now);
        steps.retain(|step| step.remove.iter().all(|node| due.contains(node)));
        let again = again.into_iter().chain(next).min();
        Passed { decisions: steps, again, surplus: Some(surplus) }
    }

    fn began(&mut self, decision: &Decision, pool: usize, moved: &[(usize, usize)], now: i64) {
        let pool = (decision.reason == Reason::Underutilized).then_some(pool);
        for (workload, replicas) in moved {
            let moves = self.ledger.entry(*workload).or_default();
            moves.push_back(Move { at: now, pool, replicas: *replicas });
            while moves.front().is_some_and(|one| now - one.at >= DAY) {
                moves.pop_front();
            }
        }
    }

    fn ended(&mut self, reason: Reason, pool: usize, is_done: bool, now: i64) {
        if is_done {
            self.rests.remove(&(pool, reason));
        } else {
            self.rest(pool, reason, now);
        }
    }

    fn launches(&mut self, workloads: &BTreeMap<usize, usize>, now: i64) {
        let undone = |(workload, replicas): (&usize, &usize)| {
            let moves = self.ledger.get(workload)?.iter().rev();
            let mut recent = moves.take_while(|one| now - one.at < UNDONE_WITHIN);
            recent.find_map(|one| one.pool.filter(|_| *replicas <= one.replicas))
        };
        let pools: BTreeSet<usize> = workloads.iter().filter_map(undone).collect();
        for pool in pools {
            self.rest(pool, Reason::Underutilized, now);
        }
    }
}
