//! One pass over the candidates: which commands each disruption method finds.
//!
//! A pass owns all that it decides on, so that it can be made on the worker thread while the
//! cluster goes on changing. What it found is looked at once more before it is carried out
//! ([`still_standing`](super::standing::still_standing)).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use nap_api::nodeclaim::condition::{CONSOLIDATABLE, DRIFTED};
use nap_api::nodepool::DisruptionReason;
use nap_api::{NodeClaim, NodePool};
use nap_engine::{Consolidation, Fleet, KeepReason, Kept, Plan, Step};

use super::backoff::Backoff;
use super::blockers::{Blocked, Blocker};
use super::budgets::{Budgets, Notice, REASONS};
use super::candidates::Candidate;
use super::consolidation::Totals;
use super::debounce::Debounce;
use super::drift::Removal;
use super::scarce_evictions::{ScarceEvictions, name as workload_name};
use super::{consolidation, drift, emptiness, repair};
use crate::cluster::{Index, claim_is};
use crate::decision_memory::DecisionMemory;
use crate::decisions::inputs::Input;
use crate::metrics::snake;
use crate::node::taint;
use crate::provisioning::Solver;
use crate::snapshot::{Catalogues, NodeCache, Removals};

/// Why a node stays whose NodePool rests.
pub const RESTS: &str = "its NodePool rests from consolidation: pods that were moved needed a new node, or \
                     a replacement did not come up";

/// Candidates to disrupt together, and the plan for their pods.
pub struct Command {
    /// The candidates; never empty.
    pub candidates: Vec<Candidate>,
    /// Places of their pods.
    pub plan: Plan,
}

/// Commands, each of which counts on those before it.
pub type Commands = Vec<Command>;

impl Command {
    /// A command on one node.
    pub fn of(candidate: &Candidate, plan: Plan) -> Self {
        Self { candidates: vec![candidate.clone()], plan }
    }
}

/// One pass.
pub struct Pass {
    candidates: Vec<Candidate>,
    /// Unhealthy nodes to repair.
    unhealthy: Vec<Candidate>,
    budgets: Budgets,
    removals: Removals,
    /// What the `Balanced` policy compares with.
    totals: Totals,
    /// Nodes that take no pods of others yet.
    settling: BTreeSet<String>,
    backoff: Backoff,
    /// Evictions that the workloads of the candidates may still have, where they are few.
    evictions: ScarceEvictions,
    /// NodePools that have grown a short while ago.
    growing: BTreeSet<String>,
    /// The feature gate `SpotToSpotConsolidation`.
    spot_to_spot: bool,
    /// Whether nothing but the price keeps a node: pods that should not move do not count.
    is_unhindered: bool,
    /// Whether drifted nodes that have to wait for others are replaced after them.
    takes_all_rounds: bool,
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
    /// Nodes that the fleet could do without.
    pub surplus: Debounce,
}

/// What a pass has found.
#[derive(Default)]
pub struct Found {
    /// Commands to start, all for the same reason; `None` if there are none.
    pub commands: Option<(DisruptionReason, Commands)>,
    /// Input of the commands.
    pub input: Input,
    /// Unhealthy and drifted nodes whose pods have no place.
    pub blocked: Vec<Blocked>,
    /// Underutilized nodes that stay, and why.
    pub kept: Vec<(Arc<NodeClaim>, Arc<Node>, Why)>,
    /// Names of the nodes that new pods should avoid; `None` if that was not looked at.
    pub surplus: Option<BTreeSet<String>>,
    /// Time until the next finding is due; `None` if none is waiting.
    pub wait: Option<Duration>,
    /// Findings for the next pass.
    pub seen: Seen,
}

/// Why a node stays.
pub enum Why {
    /// The engine keeps it; its prices may be estimates.
    Kept(KeepReason),
    /// Another reason, without prices.
    Text(String),
}

/// What every method finds.
pub struct AllFound {
    /// Commands in their order.
    pub commands: Vec<(DisruptionReason, Command)>,
    /// Why consolidation keeps a node, by the name of the node.
    pub kept: BTreeMap<String, KeepReason>,
    /// Unhealthy and drifted nodes whose pods have no place.
    pub blocked: Vec<Blocked>,
    /// Input and output of the engine's consolidation; `None` if it was not asked.
    pub consolidation: Option<(Fleet, Consolidation)>,
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
        let totals = consolidation::totals(index, catalogues);
        let seen = memory.seen.clone();
        let evictions = ScarceEvictions::new(index, &memory.moves, &candidates, now);
        let growing = memory.growing(now);
        let settling = consolidation::settling(index);
        Self {
            candidates,
            unhealthy,
            budgets,
            removals,
            totals,
            settling,
            backoff,
            evictions,
            growing,
            spot_to_spot: false,
            is_unhindered: false,
            takes_all_rounds: false,
            seen,
            now,
        }
    }

    /// Lets spot nodes be replaced by spot nodes where their NodePool does not say otherwise.
    #[must_use]
    pub fn with_spot_to_spot(self, spot_to_spot: bool) -> Self {
        Self { spot_to_spot, ..self }
    }

    /// Lets the pass decide as if there were no budgets, windows, waves and rests, nor pods that
    /// should not move.
    #[must_use]
    pub fn unhindered(self) -> Self {
        let (budgets, backoff) = (self.budgets.open(), Backoff::default());
        Self { budgets, backoff, is_unhindered: true, ..self }
    }

    /// Lets drifted nodes that have to wait for others be replaced after them.
    #[must_use]
    pub fn in_all_rounds(self) -> Self {
        Self { takes_all_rounds: true, ..self }
    }

    /// NodePools that may not be disrupted for a reason that concerns one of their nodes.
    pub fn notices(&self) -> Vec<(Arc<NodePool>, Notice)> {
        let mut closed = BTreeMap::new();
        for reason in REASONS {
            let all = self.candidates.iter().chain(&self.unhealthy);
            let concerned = all.filter(|one| concerns(reason, one));
            for candidate in concerned {
                let name = candidate.pool_name();
                if let Some(notice) = self.budgets.notice(&name, reason) {
                    let notice = (Arc::clone(&candidate.pool), notice.clone());
                    closed.insert((name, reason), notice);
                }
            }
        }
        closed.into_values().collect()
    }

    /// Number of nodes that could be disrupted, by reason as a label value.
    pub fn eligible(&self) -> Vec<(String, usize)> {
        let count = |reason: DisruptionReason| {
            let all = self.candidates.iter().chain(&self.unhealthy);
            (snake(reason.as_str()), all.filter(|one| concerns(reason, one)).count())
        };
        REASONS.into_iter().map(count).collect()
    }

    /// Asks each method in turn, until one finds commands. Pods that wait get their places first:
    /// nodes that they need are not disrupted.
    pub fn decide(mut self, solver: &Solver) -> Found {
        self.removals.place_waiting(|snapshot| solver.solve(snapshot));
        let mut found = Found::default();
        let before = (!self.unhealthy.is_empty()).then(|| self.fleet(&self.unhealthy));
        let (unhealthy, unplaced) = self.unhealthy(solver);
        found.blocked = unplaced;
        if !unhealthy.is_empty() {
            found.input.digest = digest(solver, before);
            found.commands = Some((DisruptionReason::Unhealthy, unhealthy));
            return Found { seen: self.seen, ..found };
        }
        let empty = self.empty(&mut found.wait);
        if !empty.is_empty() {
            found.input.digest = digest(solver, Some(self.fleet(&self.candidates)));
            found.commands = Some((DisruptionReason::Empty, empty));
            return Found { seen: self.seen, ..found };
        }
        let has_drifted = self.candidates.iter().any(|one| claim_is(&one.claim, DRIFTED));
        let before = has_drifted.then(|| self.fleet(&self.candidates));
        let (drifted, blocked) = self.drifted(solver);
        found.blocked.extend(blocked);
        if !drifted.is_empty() {
            found.input.digest = digest(solver, before);
            found.commands = Some((DisruptionReason::Drifted, drifted));
            return Found { seen: self.seen, ..found };
        }
        let underutilized = self.underutilized(solver, &mut found);
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
        let commands = commands.into_iter();
        (commands.map(|(candidate, plan)| Command::of(candidate, plan)).collect(), blocked)
    }

    /// Empty nodes to remove.
    fn empty(&mut self, wait: &mut Option<Duration>) -> Commands {
        let mut empty = emptiness::find(&self.candidates);
        empty.retain(|one| !self.removals.is_needed(one.name()));
        let keys = empty.iter().map(|one| one.key());
        let settled = self.seen.empty.observe(keys, self.now);
        *wait = [*wait, settled.wait].into_iter().flatten().min();
        let due = emptiness::within_budgets(empty, &settled.due, &mut self.budgets);
        due.into_iter().map(|one| Command::of(one, Plan::default())).collect()
    }

    /// Drifted nodes to replace, and those that cannot be.
    fn drifted(&mut self, solver: &Solver) -> (Commands, Vec<Blocked>) {
        let Self { removals, budgets, evictions, takes_all_rounds, .. } = self;
        let remove = |candidate: &Candidate| {
            let scarce = evictions.forbids_drift(candidate);
            let binds = !*takes_all_rounds && !is_forceful(candidate);
            if let Some((workload, left)) = scarce.filter(|_| binds) {
                return Removal::Blocked(Blocker::Evictions(workload_name(&workload), left));
            }
            let removal = remove(solver, removals, candidate);
            if matches!(removal, Removal::Done(_)) {
                evictions.take(candidate);
            }
            removal
        };
        let (commands, blocked) =
            drift::find(&self.candidates, budgets, &self.backoff, self.now, remove);
        let commands = commands.into_iter();
        (commands.map(|(candidate, plan)| Command::of(candidate, plan)).collect(), blocked)
    }

    /// What every method finds, one after another, with nothing to wait for.
    pub fn decide_all(mut self, solver: &Solver) -> AllFound {
        self.removals.place_waiting(|snapshot| solver.solve(snapshot));
        let (unhealthy, unplaced) = self.unhealthy(solver);
        let mut commands: Vec<(DisruptionReason, Command)> =
            unhealthy.into_iter().map(|one| (DisruptionReason::Unhealthy, one)).collect();
        let mut empty = emptiness::find(&self.candidates);
        empty.retain(|one| !self.removals.is_needed(one.name()));
        let all = empty.iter().map(|one| one.key()).collect();
        for one in emptiness::within_budgets(empty, &all, &mut self.budgets) {
            self.removals.remove(one.name(), &Plan::default());
            commands.push((DisruptionReason::Empty, Command::of(one, Plan::default())));
        }
        let mut blocked;
        loop {
            let drifted;
            (drifted, blocked) = self.drifted(solver);
            let is_over = drifted.is_empty() || !self.takes_all_rounds;
            let replaced = drifted.iter().flat_map(|one| &one.candidates).map(Candidate::key);
            let replaced: BTreeSet<_> = replaced.collect();
            commands.extend(drifted.into_iter().map(|one| (DisruptionReason::Drifted, one)));
            if is_over {
                break;
            }
            self.candidates.retain(|one| !replaced.contains(&one.key()));
            self.removals.finish_round();
        }
        blocked.extend(unplaced);
        let eligible = self.examined();
        let (fleet, decision) = self.consolidation(solver, &eligible);
        let consolidation = (!eligible.is_empty()).then(|| (fleet, decision.clone()));
        for step in decision.steps {
            let candidates = of_step(&step, &eligible);
            let command = Command { candidates, plan: step.plan };
            commands.push((DisruptionReason::Underutilized, command));
        }
        let kept = decision.kept.into_iter().map(|one| (one.node, one.reason)).collect();
        AllFound { commands, kept, blocked, consolidation }
    }

    /// Candidates that consolidation looks at.
    fn examined(&self) -> Vec<Candidate> {
        let is_examined = |candidate: &&Candidate| {
            consolidation::is_examined(candidate) && !self.removals.is_needed(candidate.name())
        };
        self.candidates.iter().filter(is_examined).cloned().collect()
    }

    /// Whether consolidation may not disrupt a candidate that it looks at.
    fn is_held(&self, candidate: &Candidate) -> bool {
        !consolidation::is_underutilizable(candidate)
            || self.is_resting(candidate)
            || self.unmoved(candidate).is_some()
    }

    /// A pod of a candidate that consolidation does not move; `None` if it may move all of them.
    fn unmoved(&self, candidate: &Candidate) -> Option<Blocker> {
        let pods = candidate.pods.iter().map(AsRef::as_ref);
        consolidation::unmoved(pods, self.now).next().filter(|_| !self.is_unhindered)
    }

    fn is_resting(&self, candidate: &Candidate) -> bool {
        let (pool, reason) = (candidate.pool_name(), DisruptionReason::Underutilized);
        self.backoff.is_resting(&pool, reason, self.now)
    }

    /// The cluster with these candidates.
    fn fleet(&self, candidates: &[Candidate]) -> Fleet {
        let Self { removals, budgets, totals, settling, growing, spot_to_spot, .. } = self;
        let held = candidates.iter().filter(|one| self.is_held(one));
        let held = held.map(|one| one.name().to_owned()).collect();
        let (held, spot_to_spot) = (&held, *spot_to_spot);
        let memory = consolidation::Memory { totals, settling, held, growing, spot_to_spot };
        let mut fleet = consolidation::fleet(candidates, removals, budgets, &memory, self.now);
        self.evictions.write_into(&mut fleet, candidates);
        fleet
    }

    fn consolidation(&self, solver: &Solver, eligible: &[Candidate]) -> (Fleet, Consolidation) {
        if eligible.is_empty() {
            return (Fleet::default(), Consolidation::default());
        }
        let fleet = self.fleet(eligible);
        let decision = solver.consolidate(&fleet);
        (fleet, decision)
    }

    /// Names of the surplus nodes that have been so for some time.
    fn surplus(
        &mut self,
        examined: &[Candidate],
        names: &BTreeSet<&str>,
        wait: &mut Option<Duration>,
    ) -> BTreeSet<String> {
        let is_surplus = |one: &&Candidate| names.contains(one.name());
        let found: Vec<&Candidate> = examined.iter().filter(is_surplus).collect();
        let settled = self.seen.surplus.observe(found.iter().map(|one| one.key()), self.now);
        *wait = [*wait, settled.wait].into_iter().flatten().min();
        let lasting = found
            .into_iter()
            .filter(|one| settled.due.contains(&one.key()) || taint::is_surplus(&one.node));
        lasting.map(|one| one.name().to_owned()).collect()
    }

    /// Underutilized nodes to remove or to replace.
    fn underutilized(&mut self, solver: &Solver, found: &mut Found) -> Commands {
        let eligible = self.examined();
        let (fleet, decision) = self.consolidation(solver, &eligible);
        let Consolidation { steps, kept, surplus, .. } = &decision;
        let leaving = steps.iter().flat_map(|step| &step.remove);
        let names: BTreeSet<&str> = surplus.iter().chain(leaving).map(String::as_str).collect();
        found.surplus = Some(self.surplus(&eligible, &names, &mut found.wait));
        let by_name: BTreeMap<&str, &Candidate> =
            eligible.iter().map(|one| (one.name(), one)).collect();
        for Kept { node, reason, .. } in kept {
            if let Some(one) = by_name.get(node.as_str()) {
                let objects = (Arc::clone(&one.claim), Arc::clone(&one.node));
                found.kept.push((objects.0, objects.1, Why::Kept(reason.clone())));
            }
        }
        for one in eligible.iter().filter(|one| self.is_resting(one)) {
            let objects = (Arc::clone(&one.claim), Arc::clone(&one.node));
            found.kept.push((objects.0, objects.1, Why::Text(RESTS.to_owned())));
        }
        for one in eligible.iter().filter(|one| consolidation::is_underutilizable(one)) {
            if let Some(unmoved) = self.unmoved(one) {
                let objects = (Arc::clone(&one.claim), Arc::clone(&one.node));
                found.kept.push((objects.0, objects.1, Why::Text(unmoved.to_string())));
            }
        }
        let wait = &mut found.wait;
        let steps: Vec<(Vec<Candidate>, &Plan)> =
            steps.iter().map(|step| (of_step(step, &eligible), &step.plan)).collect();
        let keys = steps.iter().flat_map(|(candidates, _)| candidates).map(Candidate::key);
        let settled = self.seen.underutilized.observe(keys, self.now);
        *wait = [*wait, settled.wait].into_iter().flatten().min();
        // A step that has to wait leaves more room to those after it, never less.
        let mut commands = Commands::new();
        for (candidates, plan) in steps {
            if candidates.iter().all(|one| settled.due.contains(&one.key())) {
                commands.push(Command { candidates, plan: plan.clone() });
            }
        }
        if !commands.is_empty() {
            found.input = solver.input(&fleet, &decision);
        }
        commands
    }
}

fn digest(solver: &Solver, input: Option<Fleet>) -> String {
    input.map(|fleet| solver.digests().fleet(&fleet)).unwrap_or_default()
}

/// The candidates that a step removes.
fn of_step(step: &Step, eligible: &[Candidate]) -> Vec<Candidate> {
    let is_removed = |one: &&Candidate| step.remove.iter().any(|name| name == one.name());
    eligible.iter().filter(is_removed).cloned().collect()
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

/// Whether the drain of a drifted node ends by force, whatever its pods ask for.
pub fn is_forceful(candidate: &Candidate) -> bool {
    candidate.claim.spec.termination_grace_period.is_some()
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

#[cfg(test)]
mod tests {
    use nap_units::UsdPerHour;
    use serde_json::json;

    use super::*;
    use crate::testing::{at, candidates_of, cluster_of, pod};

    #[test]
    fn no_node_of_a_pool_whose_move_was_undone_is_consolidated_during_its_rest() {
        let mut index = cluster_of(1);
        let owner = json!([{
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u",
            "controller": true,
        }]);
        let object = json!({
            "metadata": { "ownerReferences": owner }, "spec": { "nodeName": "node-0" },
        });
        index.apply(pod("shop", "web", object), at(0));
        let mut candidates = candidates_of(&index);
        candidates[0].price = Some(UsdPerHour::from_micros(100_000));
        let mut memory = DecisionMemory::default();
        memory.backoff.undone("p", DisruptionReason::Underutilized, at(0));
        let is_held = |seconds: i64| {
            let all = (candidates.clone(), Vec::new());
            let (catalogues, mut nodes) = (Catalogues::default(), NodeCache::default());
            let pass = Pass::new(&index, &memory, all, &catalogues, &mut nodes, at(seconds));
            pass.fleet(&candidates).candidates[0].is_held
        };
        assert!(is_held(59));
        assert!(!is_held(60), "the rest is over");
    }
}
