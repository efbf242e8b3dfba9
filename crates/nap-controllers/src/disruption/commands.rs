//! Start of a disruption command: mark the nodes and launch their replacements.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use nap_api::labels;
use nap_api::nodeclaim::condition::DISRUPTION_REASON;
use nap_api::nodepool::DisruptionReason;
use nap_engine::{Launch, PriceEstimates};
use nap_units::UsdPerHour;

use super::candidates::Candidate;
use super::eviction_ledger::Replicas;
use super::pass::Command;
use super::{kind_of, repair};
use crate::context::{Context, Error};
use crate::decisions::{DecisionRecord, Kind, RecordedNode};
use crate::events::Severity;
use crate::metrics::{Disrupted, catalogue as table, policy_name, snake};
use crate::node::taint::add_disrupted;
use crate::provisioning::nodeclaims::{self, Replaces};
use crate::snapshot::Catalogues;

/// Starts the disruption of candidates whose pods have places in the plan, on existing nodes or on
/// launches. `input` is its digest, and where it is kept.
pub async fn start(
    context: &Context,
    command: &Command,
    reason: DisruptionReason,
    input: (&str, &str),
    (catalogues, replicas): (&Catalogues, &Replicas),
) -> Result<(), Error> {
    let Command { candidates, plan } = command;
    let estimates = context.cloud.price_estimates();
    let message = describe(command, reason, estimates);
    for candidate in candidates {
        let node = candidate.name();
        tracing::info!(node, reason = reason.as_str(), message, "disrupting node");
        mark(context, candidate, reason).await?;
    }
    let decision = {
        let (index, mut memory) = (context.index(), context.memory());
        let now = context.clock.now();
        memory.nominate(&index, plan, now);
        for candidate in candidates {
            let pods = candidate.pods.iter().map(AsRef::as_ref);
            let pool = candidate.pool_name();
            let is_consolidation = reason == DisruptionReason::Underutilized;
            memory.moves.record(pods, replicas, is_consolidation.then_some(pool.as_str()), now);
        }
        memory.decisions.add(record(command, reason, (&message, estimates), input, now))
    };
    count(context, command, reason);
    let (severity, event) = (Severity::Normal, "DisruptionTerminating");
    for candidate in candidates {
        let text = format!("Disrupting Node: {message}");
        context.events.publish(candidate.node.as_ref(), severity, event, &text);
        let text = format!("Disrupting NodeClaim: {message}");
        context.events.publish(candidate.claim.as_ref(), severity, event, &text);
    }
    let claims: BTreeSet<String> = candidates.iter().map(Candidate::claim_name).collect();
    let siblings = plan.launches.len();
    for (position, launch) in plan.launches.iter().enumerate() {
        let below =
            price_bound(command, launch).filter(|_| reason == DisruptionReason::Underutilized);
        let replaces = Replaces { claims: claims.clone(), below, siblings };
        let pool = context.index().pool(&launch.pool).cloned();
        let Some(pool) = pool else { continue };
        let Some(catalogue) = catalogues.of(&launch.pool) else { continue };
        let offerings = nodeclaims::offerings(&pool, launch, catalogue, Some(&replaces));
        let claim = nodeclaims::node_claim(&pool, launch, &offerings, None, Some(&replaces));
        let claim =
            nodeclaims::create(context, &claim, &launch.pool, &snake(reason.as_str())).await?;
        context.memory().decisions.created(decision, position, &claim.name_any());
        let text = format!("Launching NodeClaim: {}", reason.as_str());
        context.events.publish(&claim, severity, "DisruptionLaunching", &text);
        let why = plan.explain_launch(launch, estimates);
        context.events.publish(&claim, severity, "Launching", &why);
    }
    if plan.launches.is_empty() {
        for candidate in candidates {
            context.delete_claim(&candidate.claim).await?;
        }
    }
    Ok(())
}

/// Counts a command and the nodes that it disrupts.
fn count(context: &Context, command: &Command, reason: DisruptionReason) {
    let decision = if command.plan.launches.is_empty() { "delete" } else { "replace" };
    let (label, kind) = (snake(reason.as_str()), kind_of(Some(reason)));
    let metrics = &context.metrics;
    metrics.increment(&table::DECISIONS, &[decision, &label, &kind]);
    let now = context.clock.now();
    for candidate in &command.candidates {
        let (pool, claim) = (candidate.pool_name(), candidate.claim.as_ref());
        metrics.increment(&table::DECISIONS_BY_NODEPOOL, &[&pool, decision, &label, &kind]);
        context.count_disrupted(claim, Disrupted::Command(reason), candidate.pods.len());
        if reason == DisruptionReason::Unhealthy {
            let policies = context.repair_policies();
            let fault = repair::due_faults(policies, &candidate.node, now).next();
            let condition = fault.map_or("", |fault| fault.policy.condition);
            context.count_repaired(claim, condition);
        }
    }
    if reason == DisruptionReason::Underutilized
        && let Some(first) = command.candidates.first()
    {
        let policy = policy_name(first.pool.spec.disruption.consolidation_policy);
        let labels = [decision, &first.pool_name(), &policy];
        metrics.increment(&table::CONSOLIDATION_MOVES, &labels);
    }
}

/// The record of a command.
fn record(
    command: &Command,
    reason: DisruptionReason,
    (message, estimates): (&str, PriceEstimates),
    (input, replay): (&str, &str),
    now: Timestamp,
) -> DecisionRecord {
    let Command { candidates, plan } = command;
    let removed = candidates.iter().map(|candidate| {
        let label = |key: &str| candidate.claim.labels().get(key).cloned().unwrap_or_default();
        RecordedNode {
            node: candidate.name().to_owned(),
            node_claim: candidate.claim_name(),
            node_pool: candidate.pool_name(),
            instance_type: label(labels::INSTANCE_TYPE),
            zone: label(labels::ZONE),
            capacity_type: label(labels::CAPACITY_TYPE),
            micro_usd_per_hour: candidate.price.map(UsdPerHour::micros),
            price_is_estimate: candidate.capacity_type.is_some_and(|one| estimates.covers(one)),
        }
    });
    let launches: Vec<&Launch> = plan.launches.iter().collect();
    let pods = candidates.iter().map(|one| one.pods.len()).sum();
    let saving = price(command).map(|price| price - plan.cost);
    let record =
        DecisionRecord::new(Kind::Disruption, reason.as_str(), plan, &launches, estimates, now);
    let record = record.removing(removed.collect(), pods, saving, message);
    DecisionRecord { input: input.to_owned(), replay: replay.to_owned(), ..record }
}

/// Price of all candidates; `None` if one is not known.
fn price(command: &Command) -> Option<UsdPerHour> {
    command.candidates.iter().map(|one| one.price).sum()
}

/// Exclusive upper bound on the price of a launch: what it was planned to cost and its share of the
/// saving, so that all launches together cost less than what they replace.
fn price_bound(command: &Command, launch: &Launch) -> Option<UsdPerHour> {
    let saving = price(command)? - command.plan.cost;
    let launches = i64::try_from(command.plan.launches.len()).unwrap_or(i64::MAX);
    Some(launch.price + UsdPerHour::from_micros(saving.micros() / launches.max(1)))
}

/// `Underutilized: replace Standard_D16s_v5 ($0.768/h) by Standard_D2s_v5 ($0.096/h), saving
/// $0.672/h`.
pub fn describe(command: &Command, reason: DisruptionReason, estimates: PriceEstimates) -> String {
    let Command { candidates, plan } = command;
    let old: Vec<String> = candidates
        .iter()
        .map(|candidate| {
            let instance_type = candidate.claim.labels().get(labels::INSTANCE_TYPE);
            let mark = estimates.mark_sum(candidate.capacity_type);
            let price = candidate.price.map(|price| format!(" ({mark}{price}/h)"));
            let price = price.unwrap_or_default();
            format!("{}{price}", instance_type.map_or("", String::as_str))
        })
        .collect();
    let old = old.join(", ");
    let launches: Vec<String> = plan
        .launches
        .iter()
        .map(|launch| {
            let mark = estimates.mark(launch.capacity_type);
            format!("{} ({mark}{}/h)", launch.instance_type, launch.price)
        })
        .collect();
    let what = if launches.is_empty() {
        format!("delete {old}")
    } else {
        format!("replace {old} by {}", launches.join(", "))
    };
    let saving = price(command).map_or(UsdPerHour::ZERO, |price| price - plan.cost);
    let old_types = candidates.iter().filter_map(|one| one.capacity_type);
    let all_types = old_types.chain(plan.launches.iter().map(|launch| launch.capacity_type));
    let mark = estimates.mark_sum(all_types);
    let tail = if saving > UsdPerHour::ZERO {
        format!(", saving {mark}{saving}/h")
    } else {
        String::new()
    };
    format!("{}: {what}{tail}", reason.as_str())
}

/// Keeps new pods away from a node and records the command on its NodeClaim.
async fn mark(
    context: &Context,
    candidate: &Candidate,
    reason: DisruptionReason,
) -> Result<(), Error> {
    context.update::<Node>(candidate.name(), add_disrupted).await?;
    context
        .edit_claim_status(&candidate.claim.name_any(), |edit| {
            edit.set_true_because(DISRUPTION_REASON, reason.as_str(), reason.as_str());
        })
        .await
}
