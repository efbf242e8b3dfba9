//! The judge of consolidation: replays a decision step by step on its own model of the fleet, and
//! checks the plan of each step like any other plan.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nap_engine::{
    Candidate, CapacityType, Consolidation, ConsolidationOptions, Fleet, Launch, NODES, Node, Plan,
    Pod, PodKey, RESERVATION_ID, RunningPod, RunningPods, Snapshot, Step,
};
use nap_units::{Resources, UsdPerHour};

use crate::check::{Violation, check, existing, machine, offering_of, pool_of};
use crate::cluster::{NodeState, Running};

/// Seconds for which a launched node would go on running: a day.
const REMAINING_LIFE: i64 = 86_400;

/// All violations of a decision for a fleet.
pub fn check_consolidation(
    fleet: &Fleet,
    options: &ConsolidationOptions,
    decision: &Consolidation,
) -> Vec<Violation> {
    replay(fleet, options, decision).0
}

/// All violations of a decision, and the fleet once its steps are carried out. Budgets stay as they
/// are. Replay ends at the first wrong step: later ones count on it.
pub fn replay(
    fleet: &Fleet,
    options: &ConsolidationOptions,
    decision: &Consolidation,
) -> (Vec<Violation>, Fleet) {
    let mut judge = StepJudge {
        options,
        fleet: fleet.clone(),
        budgets: fleet.pools.iter().map(|(name, rules)| (name.clone(), rules.budget)).collect(),
        receivers: BTreeSet::new(),
        launched: BTreeSet::new(),
        wrong: Vec::new(),
    };
    judge.fleet.snapshot.pods.clear();
    judge.totals(fleet, decision);
    for (number, step) in decision.steps.iter().enumerate() {
        judge.step(number, step);
        if !judge.wrong.is_empty() {
            break;
        }
    }
    (judge.wrong, judge.fleet)
}

struct StepJudge<'a> {
    options: &'a ConsolidationOptions,
    /// The fleet after the steps so far.
    fleet: Fleet,
    /// Nodes that may still be disrupted, by pool.
    budgets: BTreeMap<String, usize>,
    /// Nodes that received pods in an earlier step.
    receivers: BTreeSet<String>,
    /// Nodes that an earlier step launched.
    launched: BTreeSet<String>,
    wrong: Vec<Violation>,
}

impl StepJudge<'_> {
    fn say(&mut self, what: String) {
        self.wrong.push(Violation(what));
    }

    /// Checks the sums of the decision and that every candidate is removed or kept.
    fn totals(&mut self, fleet: &Fleet, decision: &Consolidation) {
        let before: UsdPerHour = fleet.candidates.iter().map(|one| one.price).sum();
        let saving: UsdPerHour = decision.steps.iter().map(|step| step.saving).sum();
        if decision.cost_before != before {
            self.say(format!("the cost before is {before}, not {}", decision.cost_before));
        }
        if decision.cost_after != before - saving {
            self.say(format!("the cost after is {}, not {}", before - saving, decision.cost_after));
        }
        if decision.steps.len() > self.options.max_steps {
            self.say(format!("more than {} steps", self.options.max_steps));
        }
        let removed: BTreeSet<&String> =
            decision.steps.iter().flat_map(|step| &step.remove).collect();
        let candidates: BTreeSet<&String> = fleet.candidates.iter().map(|one| &one.node).collect();
        let kept: Vec<&String> = decision.kept.iter().map(|kept| &kept.node).collect();
        if kept != candidates.difference(&removed).copied().collect::<Vec<_>>() {
            self.say("not every candidate is either removed or kept, in order".to_owned());
        }
    }

    fn step(&mut self, number: usize, step: &Step) {
        let leaving: BTreeSet<&str> = step.remove.iter().map(String::as_str).collect();
        if step.remove.is_empty() || step.remove.len() > self.options.max_removed {
            self.say(format!("step {number} removes {} nodes", step.remove.len()));
        }
        if leaving.len() != step.remove.len() || !step.remove.is_sorted() {
            self.say(format!("step {number} names a node twice, or out of order"));
        }
        let candidates = std::mem::take(&mut self.fleet.candidates);
        let (gone, stay): (Vec<Candidate>, Vec<Candidate>) =
            candidates.into_iter().partition(|one| leaving.contains(one.node.as_str()));
        self.fleet.candidates = stay;
        if gone.len() != leaving.len() {
            self.say(format!("step {number} removes what is no candidate, or is gone"));
        }
        for one in &gone {
            self.leave(number, one);
        }
        let removed: UsdPerHour = gone.iter().map(|one| one.price).sum();
        let pods = gone.iter().flat_map(|one| &one.pods);
        let waiting: Vec<Pod> = pods.map(|pod| self.pod(pod)).collect();
        let saving = removed - step.plan.cost;
        if step.saving != saving {
            self.say(format!("step {number} saves {saving}, not {}", step.saving));
        }
        if step.plan.cost > removed {
            self.say(format!("step {number} costs {} for {removed}", step.plan.cost));
        }
        let percent = |one: &Candidate| one.min_saving_percent.max(self.options.min_saving_percent);
        let least: i64 = gone.iter().map(|one| percent(one) * one.price.micros()).sum();
        if !step.plan.launches.is_empty() && saving.micros().saturating_mul(100) < least {
            self.say(format!("step {number} saves only {saving} of {removed}"));
        }
        if step.evictions != waiting.len() {
            self.say(format!("step {number} moves {} pods, not {}", waiting.len(), step.evictions));
        }
        if !step.plan.unplaced.is_empty() {
            self.say(format!("step {number} leaves pods without a place"));
        }
        self.spot(number, &gone, &step.plan);
        self.balanced(number, &gone, saving, step.plan.launches.len());
        let snapshot = Snapshot { pods: waiting, ..self.fleet.snapshot.clone() };
        let wrong = check(&snapshot, &self.options.solve, &step.plan);
        for Violation(what) in wrong {
            self.say(format!("step {number}: {what}"));
        }
        if self.wrong.is_empty() {
            self.carry_out(number, &snapshot, &step.plan, &gone);
        }
    }

    /// Takes a node out of the fleet; its capacity no longer counts against the limits.
    fn leave(&mut self, number: usize, gone: &Candidate) {
        if self.receivers.contains(&gone.node) || self.launched.contains(&gone.node) {
            self.say(format!("step {number} removes {}, so that pods move twice", gone.node));
        }
        match self.budgets.get_mut(&gone.pool) {
            Some(left) if *left > 0 => *left -= 1,
            _ => self.say(format!("step {number} exceeds the budget of pool {}", gone.pool)),
        }
        self.fleet.snapshot.nodes.retain(|node| node.name != gone.node);
        let freed = with_node(&gone.capacity);
        for pool in self.fleet.snapshot.pools.iter_mut().filter(|pool| pool.name == gone.pool) {
            change(&mut pool.headroom, &freed, i64::saturating_add);
        }
    }

    /// Checks that spot nodes give way to spot nodes only where every pool allows it.
    fn spot(&mut self, number: usize, gone: &[Candidate], plan: &Plan) {
        let all_spot = gone.iter().all(|one| one.capacity_type == Some(CapacityType::Spot));
        let any_spot =
            plan.launches.iter().any(|launch| launch.capacity_type == CapacityType::Spot);
        let forbids =
            |pool: &String| self.fleet.pools.get(pool).is_none_or(|rules| !rules.spot_to_spot);
        if all_spot && any_spot && gone.iter().any(|one| forbids(&one.pool)) {
            self.say(format!("step {number} replaces spot by spot"));
        }
    }

    /// Checks that each pool with the `Balanced` policy gains at least half of the share of its
    /// cost that it loses of its quiet. What a step saves is split over the pools by the price of
    /// what they lose.
    fn balanced(&mut self, number: usize, gone: &[Candidate], saving: UsdPerHour, launches: usize) {
        let wide = |price: UsdPerHour| i128::from(price.micros());
        let count = |nodes: usize| i128::try_from(nodes).unwrap_or(i128::MAX);
        let node_cost = wide(self.options.solve.node_cost);
        let saving = wide(saving) + node_cost * (count(gone.len()) - count(launches));
        let all: i128 = gone.iter().map(|one| wide(one.price)).sum();
        let pools: BTreeSet<&String> = gone.iter().map(|one| &one.pool).collect();
        let fails = |name: &&&String| {
            let Some(rules) = self.fleet.pools.get(**name).filter(|rules| rules.balanced) else {
                return false;
            };
            let own = || gone.iter().filter(|one| one.pool == ***name);
            let price: i128 = own().map(|one| wide(one.price)).sum();
            let disruption: i128 = own().map(|one| i128::from(one.disruption_cost)).sum();
            let gain = 2 * saving * price * i128::from(rules.disruption_cost);
            gain <= 0 || gain < wide(rules.cost) * disruption * all
        };
        if let Some(pool) = pools.iter().find(fails) {
            let what = format!("step {number} is worth less than it disrupts in pool {pool}");
            self.wrong.push(Violation(what));
        }
    }

    /// A running pod as a pending one.
    fn pod(&self, pod: &RunningPod) -> Pod {
        let template = self.fleet.templates.get(pod.template).cloned().unwrap_or_default();
        Pod { key: pod.key.clone(), ..template }
    }

    fn carry_out(&mut self, number: usize, snapshot: &Snapshot, plan: &Plan, gone: &[Candidate]) {
        let by_key: BTreeMap<&PodKey, &Pod> =
            snapshot.pods.iter().map(|pod| (&pod.key, pod)).collect();
        let moving: BTreeMap<&PodKey, &RunningPod> =
            gone.iter().flat_map(|one| &one.pods).map(|pod| (&pod.key, pod)).collect();
        for placement in &plan.placements {
            let (Some(pod), Some(running)) =
                (by_key.get(&placement.pod), moving.get(&placement.pod))
            else {
                continue;
            };
            let nodes = self.fleet.snapshot.nodes.iter_mut();
            for node in nodes.filter(|node| node.name == placement.node) {
                let mut state = existing(node);
                receive(&mut state, pod);
                *node = Arc::new(Node { initialized: node.initialized, ..into_node(state) });
            }
            let candidates = self.fleet.candidates.iter_mut();
            for one in candidates.filter(|one| one.node == placement.node) {
                one.pods.push((*running).clone());
            }
            self.receivers.insert(placement.node.clone());
        }
        for (index, launch) in plan.launches.iter().enumerate() {
            let name = (number..).map(|number| format!("launched-{number}-{index}"));
            let is_free =
                |name: &String| self.fleet.snapshot.nodes.iter().all(|node| node.name != *name);
            let Some(name) = name.into_iter().find(is_free) else { continue };
            let Some((mut state, mut candidate)) = launch_node(&mut self.fleet, &name, launch)
            else {
                continue;
            };
            for pod in launch.pods.iter().filter_map(|key| by_key.get(key)) {
                receive(&mut state, pod);
            }
            let pods = launch.pods.iter().filter_map(|key| moving.get(key));
            candidate.pods = pods.map(|pod| (*pod).clone()).collect();
            candidate.disruption_cost = disruption_cost(candidate.pods.len());
            self.fleet.candidates.push(candidate);
            self.launched.insert(name);
            self.fleet.snapshot.nodes.push(Arc::new(into_node(state)));
        }
    }
}

/// Launches a node of a plan: it counts against the limits of its pool. Returns it without pods;
/// `None` if its offering is unknown.
pub(crate) fn launch_node(
    fleet: &mut Fleet,
    name: &str,
    launch: &Launch,
) -> Option<(NodeState, Candidate)> {
    let snapshot = &fleet.snapshot;
    let pool = pool_of(snapshot, launch)?;
    let (kind, offering) = offering_of(snapshot, pool, launch)?;
    let state = machine(name, &launch.requirements, pool, kind, offering, &snapshot.daemons);
    let candidate = Candidate {
        node: name.to_owned(),
        pool: pool.name.clone(),
        instance_type: kind.name.clone(),
        capacity_type: Some(offering.capacity_type),
        price: offering.price,
        capacity: kind.capacity.clone(),
        pods: Vec::new(),
        disruption_cost: disruption_cost(0),
        remaining_life: REMAINING_LIFE,
        ..Candidate::default()
    };
    let reservation = offering.requirements.get(RESERVATION_ID).and_then(|id| id.single());
    let reservation = reservation.map(str::to_owned);
    let used = with_node(&candidate.capacity);
    let pools = fleet.snapshot.pools.iter_mut();
    for own in pools.filter(|own| own.name == candidate.pool) {
        change(&mut own.headroom, &used, i64::saturating_sub);
    }
    if let Some(left) = reservation.and_then(|id| fleet.snapshot.reservations.get_mut(&id)) {
        *left = left.saturating_sub(1);
    }
    Some((state, candidate))
}

/// Disruption cost of a node with a number of pods.
pub(crate) fn disruption_cost(pods: usize) -> i64 {
    1000 + 1000 * i64::try_from(pods).unwrap_or(0)
}

/// Binds a pod to a node.
pub(crate) fn receive(state: &mut NodeState, pod: &Pod) {
    state.take(pod);
    state.pods.push(Running::of(pod));
}

/// The node in the engine's form, initialized.
pub(crate) fn into_node(state: NodeState) -> Node {
    let residents = state.pods.into_iter().map(|pod| RunningPods {
        namespace: pod.namespace,
        labels: pod.labels,
        anti_affinity: pod.anti_affinity,
        host_ports: pod.ports,
        count: 1,
    });
    Node {
        name: state.name,
        labels: state.labels,
        taints: state.taints,
        free: state.free,
        initialized: true,
        residents: residents.collect(),
    }
}

/// The capacity of one node, counted as a node.
pub(crate) fn with_node(capacity: &Resources) -> Resources {
    capacity.clone().with(NODES, 1)
}

/// Changes each limited resource by an amount.
pub(crate) fn change(headroom: &mut Resources, by: &Resources, how: impl Fn(i64, i64) -> i64) {
    let limited: Vec<String> = headroom.iter().map(|(name, _)| name.to_owned()).collect();
    for name in limited {
        headroom.set(&name, how(headroom.get(&name), by.get(&name)));
    }
}
