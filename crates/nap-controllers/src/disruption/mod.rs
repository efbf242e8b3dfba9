//! Disruption: unhealthy nodes are repaired, empty ones removed, drifted ones replaced,
//! underutilized ones consolidated.
//!
//! A pass first carries on the commands that are under way, then asks each method in turn
//! ([`repair`], [`emptiness`], [`drift`], [`consolidation`]) and starts the commands of the first
//! one that finds any. Commands run side by side, as many as the budgets allow. A command lives in
//! the cluster itself (a condition on the old NodeClaim, a plan record on its replacements), so a
//! restart finds it.

mod backoff;
mod blockers;
mod budgets;
pub(crate) mod candidates;
mod commands;
mod consolidation;
mod debounce;
mod drift;
mod dry_run;
mod emptiness;
pub(crate) mod eviction_ledger;
mod pass;
pub mod preview;
mod progress;
pub(crate) mod repair;
mod scarce_evictions;
mod standing;
mod surplus;
mod waves;
pub mod what_if;

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use nap_api::nodepool::DisruptionReason;

use crate::cluster::pool_of;
use crate::context::{Context, Error, Outcome};
use crate::decisions::inputs::Input;
use crate::decisions::store;
use crate::events::Severity;
use crate::metrics::catalogue::{DECISION_EVALUATION_DURATION, ELIGIBLE_NODES, FAILED_VALIDATIONS};
use crate::metrics::snake;
use crate::permissions::{KARPENTER, Permission};
use crate::provisioning::Solver;
use crate::snapshot::{Catalogues, planned_pods};
pub use backoff::Backoff;
use budgets::Notice;
pub(crate) use budgets::{Budgets, REASONS};
use candidates::{Candidate, capacity_type, price_mark};
pub use dry_run::Reports as DryRunReports;
pub use eviction_ledger::EvictionLedger;
pub use pass::Seen;
use pass::{Commands, Pass, Why};
use standing::still_standing;

/// Nodes are tainted, commands are recorded on NodeClaims, and replacements created.
pub const PERMISSIONS: &[Permission] = &[
    Permission::new("", "nodes", &["get", "patch"]),
    Permission::new(KARPENTER, "nodeclaims", &["get", "create", "patch", "delete"]),
    Permission::new(KARPENTER, "nodeclaims/status", &["patch"]),
];

/// Interval between two passes.
const PASS_INTERVAL: Duration = Duration::from_secs(10);
/// Interval between a pass that started something and the next.
const BUSY_INTERVAL: Duration = Duration::from_secs(1);
/// Longest time that passes are skipped in a cluster that does not change: prices and the windows
/// of budgets change by themselves.
const MAX_QUIET: SignedDuration = SignedDuration::from_mins(5);

/// Runs one pass.
pub async fn reconcile(context: &Context) -> Outcome {
    let reports_only = context.settings.dry_run;
    if !reports_only {
        progress::progress(context).await?;
    }
    store::recall(context).await?;
    if context.solver.is_planning() {
        return Ok(Some(BUSY_INTERVAL));
    }
    let generation = {
        let (index, memory, now) = (context.index(), context.memory(), context.clock.now());
        if memory.is_quiet(index.generation(), now) {
            return Ok(Some(PASS_INTERVAL));
        }
        index.generation()
    };
    let catalogues = context.catalogues().await;
    let (pass, dry, blocked, repairs) = {
        let (index, memory, now) = (context.index(), context.memory(), context.clock.now());
        let mut nodes = context.solver.nodes();
        let (candidates, blocked) = candidates::collect(&index, &memory, &catalogues, now);
        let mut repairs = repair::collect(&index, context.repair_policies(), &catalogues, now);
        let unhealthy = std::mem::take(&mut repairs.candidates);
        let is_dry = |one: &Candidate| reports_only || dry_run::is_dry_run(&one.pool);
        let (dry, candidates) = candidates.into_iter().partition(is_dry);
        let (dry_unhealthy, unhealthy) = unhealthy.into_iter().partition(|_| reports_only);
        let spot_to_spot = context.settings.spot_to_spot;
        let mut pass = |candidates| {
            let pass = Pass::new(&index, &memory, candidates, &catalogues, &mut nodes, now);
            pass.with_spot_to_spot(spot_to_spot)
        };
        (pass((candidates, unhealthy)), pass((dry, dry_unhealthy)), blocked, repairs)
    };
    dry_run::report_problems(context);
    blockers::report(context, &blocked);
    repair::report(context, &repairs);
    for (pool, notice) in pass.notices().into_iter().chain(dry.notices()) {
        let Notice { severity, event, message } = notice;
        context.events.publish(pool.as_ref(), severity, event, &message);
    }
    let eligible = pass.eligible();
    let eligible = eligible.iter().map(|(reason, nodes)| (vec![reason.as_str()], *nodes));
    context.metrics.replace(&ELIGIBLE_NODES, eligible);
    let begun = context.clock.now();
    let decide = |solver: &Solver| (pass.decide(solver), dry.decide_all(solver));
    let (mut found, dry) = context.aside(decide).await;
    let reason = found.commands.as_ref().map(|(reason, _)| *reason);
    let labels = [reason.map(|one| snake(one.as_str())).unwrap_or_default(), kind_of(reason)];
    let taken = context.clock.now().duration_since(begun);
    let labels = [labels[0].as_str(), labels[1].as_str()];
    context.metrics.observe(&DECISION_EVALUATION_DURATION, &labels, taken);
    context.memory().seen = found.seen;
    blockers::report(context, &found.blocked);
    for (claim, node, why) in &found.kept {
        let why = match why {
            Why::Kept(reason) => {
                let pool = pool_of(claim.as_ref()).unwrap_or_default();
                let estimates = context.cloud.price_estimates();
                let mark = price_mark(&context.index(), pool, capacity_type(claim), estimates);
                reason.marked(mark).to_string()
            }
            Why::Text(text) => text.clone(),
        };
        let (severity, reason) = (Severity::Normal, "Unconsolidatable");
        context.events.publish(node.as_ref(), severity, reason, &why);
        context.events.publish(claim.as_ref(), severity, reason, &why);
    }
    blockers::report(context, &dry.blocked);
    let dry_wait = dry_run::report(context, &dry.commands);
    found.wait = found.wait.into_iter().chain(dry_wait).min();
    if let Some(surplus) = found.surplus.filter(|_| !reports_only) {
        surplus::synchronise(context, &surplus).await;
    }
    if let Some((reason, commands)) = found.commands {
        start(context, commands, reason, &found.input, &catalogues).await?;
        return Ok(Some(BUSY_INTERVAL));
    }
    let now = context.clock.now();
    let (index, mut memory) = (context.index(), context.memory());
    let held = memory.has_nominations(now)
        || memory.backoff.is_any_resting(now)
        || !planned_pods(&index, now).is_empty();
    if found.wait.is_none() && !held {
        let until = now.checked_add(MAX_QUIET).unwrap_or(Timestamp::MAX);
        memory
            .remember_quiet_pass(generation, repairs.next_due.map_or(until, |due| due.min(until)));
    }
    Ok(Some(found.wait.map_or(PASS_INTERVAL, |wait| wait.min(PASS_INTERVAL))))
}

/// The incumbent's type of a consolidation, in metrics: nap decides about the whole fleet at once.
fn kind_of(reason: Option<DisruptionReason>) -> String {
    let kind = match reason {
        Some(DisruptionReason::Empty) => "empty",
        Some(DisruptionReason::Underutilized) => "multi",
        _ => "",
    };
    kind.to_owned()
}

/// Starts the commands of a pass that still stand. None does while a plan for pending pods is being
/// made, which may count on the nodes.
async fn start(
    context: &Context,
    commands: Commands,
    reason: DisruptionReason,
    input: &Input,
    catalogues: &Catalogues,
) -> Result<(), Error> {
    if context.solver.is_planning() {
        return Ok(());
    }
    let found = commands.len();
    let standing = {
        let (index, memory, now) = (context.index(), context.memory(), context.clock.now());
        still_standing(
            commands,
            reason,
            &index,
            &memory,
            catalogues,
            context.repair_policies(),
            now,
        )
    };
    let fallen = found - standing.len();
    if fallen > 0 {
        context.metrics.add(&FAILED_VALIDATIONS, &[&kind_of(Some(reason))], fallen);
    }
    if standing.is_empty() {
        return Ok(());
    }
    let replicas = eviction_ledger::replicas(&context.index());
    let replay = context.memory().inputs.keep(input);
    let input = (input.digest.as_str(), replay.as_str());
    for command in standing {
        commands::start(context, &command, reason, input, (catalogues, &replicas)).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::decision_memory::DecisionMemory;
    use crate::testing::at;

    #[test]
    fn a_quiet_pass_is_not_repeated_until_something_changes_or_its_time_is_over() {
        let mut memory = DecisionMemory::default();
        assert!(!memory.is_quiet(7, at(0)));
        memory.remember_quiet_pass(7, at(300));
        assert!(memory.is_quiet(7, at(299)));
        assert!(!memory.is_quiet(8, at(1)));
        assert!(!memory.is_quiet(7, at(300)));
    }
}
