//! Disruption: empty nodes are removed, drifted ones replaced, underutilized ones consolidated.
//!
//! A pass first carries on the commands that are under way, then asks each method in turn
//! ([`emptiness`], [`drift`], [`consolidation`]) and starts the commands of the first one that
//! finds any. Commands run side by side, as many as the budgets allow. A command lives in the
//! cluster itself (a condition on the old NodeClaim, a plan record on its replacements), so a
//! restart finds it.

mod backoff;
mod blockers;
mod budgets;
pub(crate) mod candidates;
mod commands;
mod consolidation;
mod debounce;
mod drift;
mod emptiness;
mod pass;
mod progress;

use std::time::Duration;

use jiff::SignedDuration;
use nap_api::nodepool::DisruptionReason;

use crate::context::{Context, Outcome};
use crate::snapshot::planned_pods;
pub use backoff::Backoff;
pub use debounce::Debounce;
use pass::Pass;

/// Interval between two passes.
const PASS_INTERVAL: Duration = Duration::from_secs(10);
/// Interval between a pass that started something and the next.
const BUSY_INTERVAL: Duration = Duration::from_secs(1);
/// Longest time that passes are skipped in a cluster that does not change: prices and the windows
/// of budgets change by themselves.
const MAX_QUIET: SignedDuration = SignedDuration::from_mins(5);

/// Runs one pass.
pub async fn reconcile(context: &Context) -> Outcome {
    progress::progress(context).await?;
    if context.solver.is_planning() {
        return Ok(Some(BUSY_INTERVAL));
    }
    let generation = {
        let (index, memory, now) = (context.index(), context.memory(), context.clock.now());
        if memory.is_quiet(index.generation(), MAX_QUIET, now) {
            return Ok(Some(PASS_INTERVAL));
        }
        index.generation()
    };
    let catalogues = context.catalogues().await;
    let now = context.clock.now();
    let (candidates, blocked) =
        candidates::collect(&context.index(), &context.memory(), &catalogues, now);
    blockers::report(context, &blocked);
    let mut pass = Pass::new(context, &candidates, &catalogues, now);
    pass.report_closed_budgets();

    let empty = pass.empty();
    if !empty.commands.is_empty() {
        pass.start(empty.commands, DisruptionReason::Empty).await?;
        return Ok(Some(BUSY_INTERVAL));
    }
    let (drifted, blocked) = pass.drifted();
    blockers::report(context, &blocked);
    if !drifted.is_empty() {
        pass.start(drifted, DisruptionReason::Drifted).await?;
        return Ok(Some(BUSY_INTERVAL));
    }
    let underutilized = pass.underutilized();
    if !underutilized.commands.is_empty() {
        pass.start(underutilized.commands, DisruptionReason::Underutilized).await?;
        return Ok(Some(BUSY_INTERVAL));
    }

    let wait = [empty.wait, underutilized.wait].into_iter().flatten().min();
    let now = context.clock.now();
    let (index, mut memory) = (context.index(), context.memory());
    let held = memory.has_nominations(now)
        || memory.backoff.is_any_resting(now)
        || !planned_pods(&index, now).is_empty();
    if wait.is_none() && !held {
        memory.remember_quiet_pass(generation, now);
    }
    Ok(Some(wait.map_or(PASS_INTERVAL, |wait| wait.min(PASS_INTERVAL))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision_memory::DecisionMemory;
    use crate::testing::at;

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
