//! One pass over the candidates: what each disruption method finds, and the start of its commands.

use std::time::Duration;

use jiff::Timestamp;
use nap_api::nodeclaim::condition::{CONSOLIDATABLE, DRIFTED};
use nap_api::nodepool::DisruptionReason;
use nap_engine::Plan;

use super::blockers::{Blocked, Blocker};
use super::budgets::{Budgets, REASONS, closed_message};
use super::candidates::Candidate;
use super::drift::Removal;
use super::{commands, consolidation, drift, emptiness};
use crate::cluster::claim_is;
use crate::context::{Context, Error};
use crate::events::Severity;
use crate::snapshot::{Catalogues, Removals};

/// Candidates to disrupt, each with the plan for its pods.
type Commands<'a> = Vec<(&'a Candidate, Plan)>;

/// Findings of a method that acts only on what has held for some time.
pub struct Found<'a> {
    /// Commands that are due.
    pub commands: Commands<'a>,
    /// Time until the next finding is due; `None` if none is waiting.
    pub wait: Option<Duration>,
}

/// One pass.
pub struct Pass<'a> {
    context: &'a Context,
    candidates: &'a [Candidate],
    catalogues: &'a Catalogues,
    budgets: Budgets,
    removals: Removals,
    now: Timestamp,
}

impl<'a> Pass<'a> {
    /// Counts the budgets and finds places for pods that wait. Nodes that these pods need are not
    /// disrupted.
    pub fn new(
        context: &'a Context,
        candidates: &'a [Candidate],
        catalogues: &'a Catalogues,
        now: Timestamp,
    ) -> Self {
        let budgets = Budgets::new(&context.index(), now);
        let mut removals = Removals::default();
        if !candidates.is_empty() {
            let names = candidates.iter().map(Candidate::name);
            let (index, memory) = (context.index(), context.memory());
            let mut nodes = context.solver.nodes();
            removals = Removals::new(&index, &memory, names, catalogues, &mut nodes, now);
            drop((nodes, memory, index));
            removals.place_waiting(|snapshot| context.solve(snapshot));
        }
        Self { context, candidates, catalogues, budgets, removals, now }
    }

    /// Publishes which NodePools may not be disrupted at all for a reason that concerns one of
    /// their nodes.
    pub fn report_closed_budgets(&self) {
        for reason in REASONS {
            let concerned = self.candidates.iter().filter(|one| concerns(reason, one));
            for candidate in concerned {
                if self.budgets.is_closed(&candidate.pool_name(), reason) {
                    let (severity, message) = (Severity::Normal, closed_message(reason));
                    let pool = candidate.pool.as_ref();
                    let events = &self.context.events;
                    events.publish(pool, severity, "DisruptionBlocked", &message);
                }
            }
        }
    }

    /// Empty nodes to remove.
    pub fn empty(&mut self) -> Found<'a> {
        let mut empty = emptiness::find(self.candidates);
        empty.retain(|one| !self.removals.is_needed(one.name()));
        let keys = empty.iter().map(|one| one.key());
        let settled = self.context.memory().empty.observe(keys, self.now);
        let due = emptiness::within_budgets(empty, &settled.due, &mut self.budgets);
        let commands = due.into_iter().map(|one| (one, Plan::default())).collect();
        Found { commands, wait: settled.wait }
    }

    /// Drifted nodes to replace, and those that cannot be.
    pub fn drifted(&mut self) -> (Commands<'a>, Vec<Blocked>) {
        let backoff = self.context.memory().backoff.clone();
        let Self { context, removals, budgets, .. } = self;
        let remove = |candidate: &Candidate| remove(context, removals, candidate);
        drift::find(self.candidates, budgets, &backoff, self.now, remove)
    }

    /// Underutilized nodes to remove or to replace.
    pub fn underutilized(&mut self) -> Found<'a> {
        let backoff = self.context.memory().backoff.clone();
        let Self { context, removals, budgets, .. } = self;
        let ask = |candidate: &Candidate| simulate(context, removals, candidate);
        let found = consolidation::find(self.candidates, budgets, &backoff, self.now, ask);
        let keys = found.iter().map(|(candidate, _)| candidate.key());
        let settled = context.memory().underutilized.observe(keys, self.now);
        let mut commands: Commands<'a> = Vec::new();
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
                let again = simulate(context, removals, candidate);
                again.filter(|plan| consolidation::saving(candidate, plan).is_some())
            };
            let Some(plan) = plan else { continue };
            budgets.take(&pool, reason);
            removals.remove(candidate.name(), &plan);
            commands.push((candidate, plan));
        }
        Found { commands, wait: settled.wait }
    }

    /// Starts commands.
    pub async fn start(
        &self,
        commands: Commands<'_>,
        reason: DisruptionReason,
    ) -> Result<(), Error> {
        for (candidate, plan) in commands {
            commands::start(self.context, candidate, reason, &plan, self.catalogues).await?;
        }
        Ok(())
    }
}

/// Whether a node could be disrupted for a reason if budgets allowed it.
fn concerns(reason: DisruptionReason, candidate: &Candidate) -> bool {
    match reason {
        DisruptionReason::Empty => {
            candidate.pods.is_empty() && claim_is(&candidate.claim, CONSOLIDATABLE)
        }
        DisruptionReason::Drifted => claim_is(&candidate.claim, DRIFTED),
        DisruptionReason::Underutilized => consolidation::is_underutilizable(candidate),
        DisruptionReason::Unhealthy => false,
    }
}

/// Removes a node from the simulation if all its pods have places.
fn remove(context: &Context, removals: &mut Removals, candidate: &Candidate) -> Removal {
    if removals.is_needed(candidate.name()) {
        return Removal::Waits;
    }
    let plan = removals.without(candidate.name(), |snapshot| context.solve(snapshot));
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
fn simulate(context: &Context, removals: &mut Removals, candidate: &Candidate) -> Option<Plan> {
    if removals.is_needed(candidate.name()) {
        return None;
    }
    let plan = removals.without(candidate.name(), |snapshot| context.solve(snapshot));
    (plan.unplaced.is_empty() && !removals.is_on_starting_node(&plan)).then_some(plan)
}
