//! One pass over the candidates: which commands each disruption method finds.
//!
//! A pass owns all that it decides on, so that it can be made on the worker thread while the
//! cluster goes on changing. What it found is looked at once more before it is carried out
//! ([`still_standing`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use nap_api::NodePool;
use nap_api::nodeclaim::condition::{CONSOLIDATABLE, DRIFTED};
use nap_api::nodepool::DisruptionReason;
use nap_cloud::RepairPolicy;
use nap_engine::{Plan, PodKey};

use super::backoff::Backoff;
use super::blockers::{Blocked, Blocker};
use super::budgets::{Budgets, REASONS};
use super::candidates::{Candidate, collect};
use super::debounce::Debounce;
use super::drift::Removal;
use super::{consolidation, drift, emptiness, repair};
use crate::cluster::{Index, claim_is};
use crate::decision_memory::DecisionMemory;
use crate::provisioning::Solver;
use crate::snapshot::{Catalogues, NodeCache, Removals};

/// Candidates to disrupt, each with the plan for its pods.
pub type Commands = Vec<(Candidate, Plan)>;

/// One pass.
pub struct Pass {
    candidates: Vec<Candidate>,
    /// Unhealthy nodes to repair.
    unhealthy: Vec<Candidate>,
    budgets: Budgets,
    removals: Removals,
    backoff: Backoff,
    seen: Seen,
    now: Timestamp,
}

/// Findings of earlier passes that must hold for some time before they are acted upon.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Nodes that were found empty.
    pub empty: Debounce,
    /// Nodes whose consolidation saves money.
    pub underutilized: Debounce,
}

/// What a pass has found.
#[derive(Default)]
pub struct Found {
    /// Commands to start, all for the same reason; `None` if there are none.
    pub commands: Option<(DisruptionReason, Commands)>,
    /// Unhealthy and drifted nodes whose pods have no place.
    pub blocked: Vec<Blocked>,
    /// Time until the next finding is due; `None` if none is waiting.
    pub wait: Option<Duration>,
    /// Findings for the next pass.
    pub seen: Seen,
}

impl Pass {
    /// Prepares a pass over candidates.
    pub fn new(
        index: &Index,
        memory: &DecisionMemory,
        (candidates, unhealthy): (Vec<Candidate>, Vec<Candidate>),
        catalogues: &Catalogues,
        nodes: &mut NodeCache,
        now: Timestamp,
    ) -> Self {
        let mut removals = Removals::default();
        if !(candidates.is_empty() && unhealthy.is_empty()) {
            let names = candidates.iter().chain(&unhealthy).map(Candidate::name);
            removals = Removals::new(index, memory, names, catalogues, nodes, now);
        }
        let (budgets, backoff) = (Budgets::new(index, now), memory.backoff.clone());
        let seen = memory.seen.clone();
        Self { candidates, unhealthy, budgets, removals, backoff, seen, now }
    }

    /// NodePools that may not be disrupted at all for a reason that concerns one of their nodes.
    pub fn closed_budgets(&self) -> Vec<(Arc<NodePool>, DisruptionReason)> {
        let mut closed = BTreeMap::new();
        for reason in REASONS {
            let all = self.candidates.iter().chain(&self.unhealthy);
            let concerned = all.filter(|one| concerns(reason, one));
            for candidate in concerned {
                let name = candidate.pool_name();
                if self.budgets.is_closed(&name, reason) {
                    closed.insert((name, reason), Arc::clone(&candidate.pool));
                }
            }
        }
        closed.into_iter().map(|((_, reason), pool)| (pool, reason)).collect()
    }

    /// Asks each method in turn, until one finds commands. Pods that wait get their places first:
    /// nodes that they need are not disrupted.
    pub fn decide(mut self, solver: &Solver) -> Found {
        self.removals.place_waiting(|snapshot| solver.solve(snapshot));
        let mut found = Found::default();
        let (unhealthy, unplaced) = self.unhealthy(solver);
        found.blocked = unplaced;
        if !unhealthy.is_empty() {
            found.commands = Some((DisruptionReason::Unhealthy, unhealthy));
            return Found { seen: self.seen, ..found };
        }
        let empty = self.empty(&mut found.wait);
        if !empty.is_empty() {
            found.commands = Some((DisruptionReason::Empty, empty));
            return Found { seen: self.seen, ..found };
        }
        let (drifted, blocked) = self.drifted(solver);
        found.blocked.extend(blocked);
        if !drifted.is_empty() {
            found.commands = Some((DisruptionReason::Drifted, drifted));
            return Found { seen: self.seen, ..found };
        }
        let underutilized = self.underutilized(solver, &mut found.wait);
        if !underutilized.is_empty() {
            found.commands = Some((DisruptionReason::Underutilized, underutilized));
        }
        Found { seen: self.seen, ..found }
    }

    /// Unhealthy nodes to replace, and those that cannot be. One that a waiting pod could be bound
    /// to does not stay for that.
    fn unhealthy(&mut self, solver: &Solver) -> (Commands, Vec<Blocked>) {
        let Self { removals, budgets, .. } = self;
        let replace = |candidate: &Candidate| replace(solver, removals, candidate);
        let (commands, blocked) =
            repair::find(&self.unhealthy, budgets, &self.backoff, self.now, replace);
        let commands = commands.into_iter().map(|(candidate, plan)| (candidate.clone(), plan));
        (commands.collect(), blocked)
    }

    /// Empty nodes to remove.
    fn empty(&mut self, wait: &mut Option<Duration>) -> Commands {
        let mut empty = emptiness::find(&self.candidates);
        empty.retain(|one| !self.removals.is_needed(one.name()));
        let keys = empty.iter().map(|one| one.key());
        let settled = self.seen.empty.observe(keys, self.now);
        *wait = [*wait, settled.wait].into_iter().flatten().min();
        let due = emptiness::within_budgets(empty, &settled.due, &mut self.budgets);
        due.into_iter().map(|one| (one.clone(), Plan::default())).collect()
    }

    /// Drifted nodes to replace, and those that cannot be.
    fn drifted(&mut self, solver: &Solver) -> (Commands, Vec<Blocked>) {
        let Self { removals, budgets, .. } = self;
        let remove = |candidate: &Candidate| remove(solver, removals, candidate);
        let (commands, blocked) =
            drift::find(&self.candidates, budgets, &self.backoff, self.now, remove);
        let commands = commands.into_iter().map(|(candidate, plan)| (candidate.clone(), plan));
        (commands.collect(), blocked)
    }

    /// Underutilized nodes to remove or to replace.
    fn underutilized(&mut self, solver: &Solver, wait: &mut Option<Duration>) -> Commands {
        let Self { removals, budgets, .. } = self;
        let ask = |candidate: &Candidate| simulate(solver, removals, candidate);
        let found = consolidation::find(&self.candidates, budgets, &self.backoff, self.now, ask);
        let keys = found.iter().map(|(candidate, _)| candidate.key());
        let settled = self.seen.underutilized.observe(keys, self.now);
        *wait = [*wait, settled.wait].into_iter().flatten().min();
        let mut commands: Commands = Vec::new();
        for (candidate, plan) in found {
            let pool = candidate.pool_name();
            let reason = DisruptionReason::Underutilized;
            if !settled.due.contains(&candidate.key()) || budgets.left(&pool, reason) == 0 {
                continue;
            }
            // The first plan still stands; a later one may count on room that is taken now.
            let plan = if commands.is_empty() {
                Some(plan)
            } else {
                let again = simulate(solver, removals, candidate);
                again.filter(|plan| consolidation::saving(candidate, plan).is_some())
            };
            let Some(plan) = plan else { continue };
            budgets.take(&pool, reason);
            removals.remove(candidate.name(), &plan);
            commands.push((candidate.clone(), plan));
        }
        commands
    }
}

/// The commands that nothing has overtaken since the pass began: the node is still a candidate, has
/// no pod that the pass did not know, and its NodePool has the budget.
pub fn still_standing(
    commands: Commands,
    reason: DisruptionReason,
    index: &Index,
    memory: &DecisionMemory,
    catalogues: &Catalogues,
    policies: &[RepairPolicy],
    now: Timestamp,
) -> Commands {
    let current = match reason {
        DisruptionReason::Unhealthy => repair::collect(index, policies, catalogues, now).candidates,
        _ => collect(index, memory, catalogues, now).0,
    };
    let current: BTreeMap<_, &Candidate> = current.iter().map(|one| (one.key(), one)).collect();
    let mut budgets = Budgets::new(index, now);
    let stands = |candidate: &Candidate| {
        let known: BTreeSet<&PodKey> = candidate.pods.iter().map(|pod| pod.key()).collect();
        current.get(&candidate.key()).is_some_and(|now| {
            candidate.is_graceful() == now.is_graceful()
                && now.pods.iter().all(|pod| known.contains(pod.key()))
        })
    };
    let mut standing = commands;
    standing.retain(|(candidate, _)| {
        let mut is_allowed =
            || !candidate.uses_budget() || budgets.take(&candidate.pool_name(), reason);
        stands(candidate) && is_allowed()
    });
    standing
}

/// Whether a node could be disrupted for a reason if budgets allowed it.
fn concerns(reason: DisruptionReason, candidate: &Candidate) -> bool {
    match reason {
        DisruptionReason::Empty => {
            candidate.pods.is_empty() && claim_is(&candidate.claim, CONSOLIDATABLE)
        }
        DisruptionReason::Drifted => claim_is(&candidate.claim, DRIFTED),
        DisruptionReason::Underutilized => consolidation::is_underutilizable(candidate),
        DisruptionReason::Unhealthy => candidate.repair_due.is_some() && candidate.uses_budget(),
    }
}

/// Removes a node from the simulation if all its pods have places.
fn remove(solver: &Solver, removals: &mut Removals, candidate: &Candidate) -> Removal {
    if removals.is_needed(candidate.name()) {
        return Removal::Waits;
    }
    replace(solver, removals, candidate)
}

/// As [`remove`], also for a node that pods were placed on.
fn replace(solver: &Solver, removals: &mut Removals, candidate: &Candidate) -> Removal {
    let plan = removals.without(candidate.name(), |snapshot| solver.solve(snapshot));
    if let Some(unplaced) = plan.unplaced.first() {
        return Removal::Blocked(Blocker::unplaced(unplaced));
    }
    if removals.is_on_starting_node(&plan) {
        return Removal::Waits;
    }
    removals.remove(candidate.name(), &plan);
    Removal::Done(plan)
}

/// The plan for the pods of a node without it; `None` if they do not all have places on initialized
/// and new nodes.
fn simulate(solver: &Solver, removals: &mut Removals, candidate: &Candidate) -> Option<Plan> {
    if removals.is_needed(candidate.name()) {
        return None;
    }
    let plan = removals.without(candidate.name(), |snapshot| solver.solve(snapshot));
    (plan.unplaced.is_empty() && !removals.is_on_starting_node(&plan)).then_some(plan)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{at, candidates_of, cluster_of, pod, pool, set_condition};

    fn standing(index: &Index, commands: &[Candidate]) -> Vec<String> {
        let commands = commands.iter().map(|one| (one.clone(), Plan::default())).collect();
        let (memory, catalogues) = (DecisionMemory::default(), Catalogues::default());
        let reason = DisruptionReason::Drifted;
        let left = still_standing(commands, reason, index, &memory, &catalogues, &[], at(0));
        left.iter().map(|(candidate, _)| candidate.name().to_owned()).collect()
    }

    #[test]
    fn a_command_that_something_has_overtaken_is_dropped() {
        let mut index = cluster_of(4);
        let disruption = json!({ "budgets": [{ "nodes": "3" }] });
        index.apply(pool("p", json!({ "spec": { "disruption": disruption } })), at(0));
        let commands = candidates_of(&index);
        assert_eq!(standing(&index, &commands), ["node-0", "node-1", "node-2"], "of the budget");
        index.apply(pod("shop", "new", json!({ "spec": { "nodeName": "node-0" } })), at(0));
        let annotations = json!({ "karpenter.sh/do-not-disrupt": "true" });
        let object = json!({
            "metadata": { "annotations": annotations }, "spec": { "nodeName": "node-1" },
        });
        index.apply(pod("shop", "protected", object), at(0));
        assert_eq!(standing(&index, &commands), ["node-2", "node-3"]);
        set_condition(&mut index, "claim-2", "DisruptionReason", "1970-01-01T00:00:00Z");
        assert_eq!(standing(&index, &commands), ["node-3"]);
    }
}
