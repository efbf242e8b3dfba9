//! Disruption: empty nodes are removed, drifted ones replaced, underutilized ones consolidated.
//!
//! A pass first carries on the commands that are under way, then asks each method in turn
//! ([`emptiness`], [`drift`], [`consolidation`]) and starts the commands of the first one that
//! finds any. A command lives in the cluster itself (a condition on the old NodeClaim, a plan
//! record on its replacement), so a restart finds it.

mod budgets;
pub(crate) mod candidates;
mod commands;
mod consolidation;
mod debounce;
mod drift;
mod emptiness;

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use nap_api::nodepool::DisruptionReason;
use nap_engine::Plan;

use crate::cluster::{Index, NodeView};
use crate::context::{Context, Outcome};
use crate::decision_memory::DecisionMemory;
use crate::snapshot::{Removals, pending_pods, planned_pods};
use budgets::Budgets;
use candidates::Candidate;
pub use debounce::Debounce;

/// Interval between two passes.
const PASS_INTERVAL: Duration = Duration::from_secs(10);
/// Interval between a pass that started something and the next.
const BUSY_INTERVAL: Duration = Duration::from_secs(1);
/// Longest time that passes are skipped in a cluster that does not change: prices and the windows
/// of budgets change by themselves.
const MAX_QUIET: SignedDuration = SignedDuration::from_mins(5);

/// Runs one pass.
pub async fn reconcile(context: &Context) -> Outcome {
    if !context.index().is_synced() {
        return Ok(Some(BUSY_INTERVAL));
    }
    commands::progress(context).await?;
    let generation = {
        let (index, memory, now) = (context.index(), context.memory(), context.clock.now());
        let quiet = memory.is_quiet(index.generation(), MAX_QUIET, now);
        if quiet || has_unplanned_pods(&index, &memory, now) {
            return Ok(Some(PASS_INTERVAL));
        }
        index.generation()
    };
    let catalogues = context.catalogues().await;
    let now = context.clock.now();
    let (candidates, blocked, mut budgets) = {
        let index = context.index();
        let (candidates, blocked) =
            candidates::collect(&index, &context.memory(), &catalogues, now);
        (candidates, blocked, Budgets::new(&index, now))
    };
    candidates::report(context, &blocked).await;

    let empty = emptiness::find(&candidates);
    let settled = context.memory().empty.observe(empty.iter().map(|one| one.key()), now);
    let due = emptiness::within_budgets(empty, &settled.due, &mut budgets);
    if !due.is_empty() {
        let reason = DisruptionReason::Empty;
        for candidate in due {
            commands::start(context, candidate, reason, &Plan::default(), &catalogues).await?;
        }
        return Ok(Some(BUSY_INTERVAL));
    }
    if context.index().views().any(NodeView::is_leaving) {
        // Pods of leaving nodes have not found their capacity yet.
        return Ok(Some(PASS_INTERVAL));
    }
    let names = candidates.iter().map(Candidate::name);
    let mut removals = Removals::new(&context.index(), names, &catalogues, now);
    let mut simulate = |candidate: &Candidate| {
        removals.without(candidate.name(), |snapshot| context.solve(snapshot))
    };
    if let Some((candidate, plan)) = drift::find(&candidates, &budgets, &mut simulate) {
        let reason = DisruptionReason::Drifted;
        commands::start(context, candidate, reason, &plan, &catalogues).await?;
        return Ok(Some(BUSY_INTERVAL));
    }
    let best = consolidation::find(&candidates, &budgets, &mut simulate);
    let key = best.as_ref().map(|(candidate, _)| candidate.key());
    let consolidation = context.memory().underutilized.observe(key, now);
    if let Some((candidate, plan)) = best.filter(|_| !consolidation.due.is_empty()) {
        context.memory().underutilized.reset();
        let reason = DisruptionReason::Underutilized;
        commands::start(context, candidate, reason, &plan, &catalogues).await?;
        return Ok(Some(BUSY_INTERVAL));
    }
    let wait = [settled.wait, consolidation.wait].into_iter().flatten().min();
    let (index, mut memory) = (context.index(), context.memory());
    let held = memory.has_nominations(now) || !planned_pods(&index, now).is_empty();
    if wait.is_none() && !held {
        memory.remember_quiet_pass(generation, now);
    }
    Ok(Some(wait.map_or(PASS_INTERVAL, |wait| wait.min(PASS_INTERVAL))))
}

/// Whether pods wait that no plan has considered yet. They come first: they may need the capacity
/// that looks unused.
fn has_unplanned_pods(index: &Index, memory: &DecisionMemory, now: Timestamp) -> bool {
    let planned = planned_pods(index, now);
    pending_pods(index, now)
        .any(|(key, _)| !planned.contains_key(key) && !memory.is_unplaced(index, key))
}

#[cfg(test)]
mod tests {
    use nap_engine::PodKey;

    use super::*;
    use crate::testing::{at, index, pending_pod, plan_without_places};

    #[test]
    fn a_pod_that_no_plan_has_considered_defers_disruption() {
        let mut memory = DecisionMemory::default();
        let mut index = index([]);
        assert!(!has_unplanned_pods(&index, &memory, at(0)));
        index.apply(pending_pod("shop", "web"), at(0));
        assert!(has_unplanned_pods(&index, &memory, at(0)));
        memory.remember_unplaced(&index, &plan_without_places([PodKey::new("shop", "web")]));
        assert!(!has_unplanned_pods(&index, &memory, at(0)));
    }

    #[test]
    fn a_pod_that_becomes_pending_again_is_considered_again() {
        let mut memory = DecisionMemory::default();
        let mut index = index([]);
        index.apply(pending_pod("shop", "web"), at(0));
        memory.remember_unplaced(&index, &plan_without_places([PodKey::new("shop", "web")]));
        let mut bound = pending_pod("shop", "web");
        bound.spec.get_or_insert_default().node_name = Some("n".to_owned());
        index.apply(bound, at(1));
        index.apply(pending_pod("shop", "web"), at(2));
        assert!(has_unplanned_pods(&index, &memory, at(2)));
    }

    #[test]
    fn a_quiet_pass_is_not_repeated_until_something_changes_or_five_minutes_pass() {
        let mut memory = DecisionMemory::default();
        assert!(!memory.is_quiet(7, MAX_QUIET, at(0)));
        memory.remember_quiet_pass(7, at(0));
        assert!(memory.is_quiet(7, MAX_QUIET, at(299)));
        assert!(!memory.is_quiet(8, MAX_QUIET, at(1)));
        assert!(!memory.is_quiet(7, MAX_QUIET, at(300)));
    }
}
