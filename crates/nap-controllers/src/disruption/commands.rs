//! Carries a disruption out: mark, replace, wait until the replacement is ready, delete.

use std::sync::Arc;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use nap_api::nodeclaim::condition::{DISRUPTION_REASON, INITIALIZED};
use nap_api::nodepool::DisruptionReason;
use nap_api::{Effect, NodeClaim, Taint, conditions, labels, taints};
use nap_engine::Plan;
use nap_units::UsdPerHour;

use super::Result;
use super::candidates::Candidate;
use crate::claims::{self, Replaces};
use crate::context::Context;
use crate::events::Severity;
use crate::state::catalogues::Catalogues;
use crate::state::claim_is;
use crate::state::snapshot::PLAN_HOLDS;

/// A replacement that is not ready by then is not waited for any longer.
const REPLACEMENT_TIMEOUT: SignedDuration = SignedDuration::from_mins(10);

/// Starts to disrupt a candidate: its pods have places in `plan`, on other machines or on launches.
pub async fn start(
    context: &Context,
    candidate: &Candidate,
    reason: DisruptionReason,
    plan: &Plan,
    catalogues: &Catalogues,
) -> Result<()> {
    let message = describe(candidate, reason, plan);
    tracing::info!(node = candidate.name(), reason = reason.as_str(), message, "disrupting node");
    mark(context, candidate, reason).await?;
    let now = context.clock.now();
    let holds = SignedDuration::try_from(PLAN_HOLDS).unwrap_or(SignedDuration::ZERO);
    let until = now.checked_add(holds).unwrap_or(jiff::Timestamp::MAX);
    let targets = plan.placements.iter().map(|placement| (placement.node.clone(), until));
    context.state().nominated.extend(targets);
    let text = format!("Disrupting Node: {message}");
    context
        .events
        .publish(candidate.node.as_ref(), Severity::Normal, "DisruptionTerminating", &text)
        .await;
    let text = format!("Disrupting NodeClaim: {message}");
    context
        .events
        .publish(candidate.claim.as_ref(), Severity::Normal, "DisruptionTerminating", &text)
        .await;
    let below = if reason == DisruptionReason::Underutilized { candidate.price } else { None };
    let replaces = Replaces { claim: candidate.claim.name_any(), below };
    for launch in &plan.launches {
        let pool = context.state().pools.get(&launch.pool).cloned();
        let Some(pool) = pool else { continue };
        let Some(catalogue) = catalogues.of(&launch.pool) else { continue };
        let claim =
            claims::create(context, &pool, launch, catalogue, None, Some(&replaces)).await?;
        let text = format!("Launching NodeClaim: {}", reason.as_str());
        context.events.publish(&claim, Severity::Normal, "DisruptionLaunching", &text).await;
        context
            .events
            .publish(&claim, Severity::Normal, "Launching", &plan.explain_launch(launch))
            .await;
    }
    if plan.launches.is_empty() {
        context.delete_claim(&candidate.claim).await?;
    }
    Ok(())
}

/// `Underutilized: replace Standard_D16s_v5 ($0.768/h) by Standard_D2s_v5 ($0.096/h), saving
/// $0.672/h`.
fn describe(candidate: &Candidate, reason: DisruptionReason, plan: &Plan) -> String {
    let instance_type =
        candidate.claim.labels().get(labels::INSTANCE_TYPE).map_or("", String::as_str);
    let old = candidate.price.map(|price| format!(" ({price}/h)")).unwrap_or_default();
    let launches: Vec<String> = plan
        .launches
        .iter()
        .map(|launch| format!("{} ({}/h)", launch.instance_type, launch.price))
        .collect();
    let what = if launches.is_empty() {
        format!("delete {instance_type}{old}")
    } else {
        format!("replace {instance_type}{old} by {}", launches.join(", "))
    };
    let saving = candidate.price.map_or(UsdPerHour::ZERO, |price| price - plan.cost);
    let tail =
        if saving > UsdPerHour::ZERO { format!(", saving {saving}/h") } else { String::new() };
    format!("{}: {what}{tail}", reason.as_str())
}

/// Keeps new pods away and writes down why.
async fn mark(context: &Context, candidate: &Candidate, reason: DisruptionReason) -> Result<()> {
    let wanted = Taint::new(taints::DISRUPTED, Effect::NoSchedule);
    context
        .update_node(candidate.name(), |node| {
            let list = node.spec.get_or_insert_default().taints.get_or_insert_default();
            let missing = !list.iter().any(|taint| Taint::from(taint).matches(&wanted));
            if missing {
                list.push((&wanted).into());
            }
            missing
        })
        .await?;
    let now = context.clock.now();
    context
        .update_claim_status(&candidate.claim.name_any(), |claim| {
            let generation = claim.metadata.generation;
            let status = claim.status.get_or_insert_default();
            let (yes, reason) = (conditions::Status::True, reason.as_str());
            conditions::set(
                &mut status.conditions,
                DISRUPTION_REASON,
                yes,
                reason,
                reason,
                generation,
                now,
            )
        })
        .await
}

/// Finishes what was started when its replacements are ready, and takes back what cannot be
/// finished.
pub async fn progress(context: &Context) -> Result<()> {
    let (marked, stray): (Vec<Arc<NodeClaim>>, Vec<Arc<Node>>) = {
        let state = context.state();
        let marked: Vec<_> = state
            .claims
            .values()
            .filter(|claim| {
                claim.metadata.deletion_timestamp.is_none() && claim_is(claim, DISRUPTION_REASON)
            })
            .cloned()
            .collect();
        let tainted = state.nodes.values().filter(|node| {
            node.metadata.deletion_timestamp.is_none()
                && node
                    .spec
                    .as_ref()
                    .and_then(|spec| spec.taints.as_ref())
                    .into_iter()
                    .flatten()
                    .any(|t| t.key == taints::DISRUPTED)
        });
        let stray = tainted
            .filter(|node| {
                state.claim_of_node(node).is_some_and(|claim| {
                    claim.metadata.deletion_timestamp.is_none()
                        && !claim_is(&claim, DISRUPTION_REASON)
                })
            })
            .cloned()
            .collect();
        (marked, stray)
    };
    for node in stray {
        untaint(context, &node.name_any()).await?;
    }
    for claim in marked {
        finish_or_take_back(context, &claim).await?;
    }
    Ok(())
}

async fn finish_or_take_back(context: &Context, claim: &NodeClaim) -> Result<()> {
    let name = claim.name_any();
    let replacements: Vec<Arc<NodeClaim>> = {
        let state = context.state();
        let stands_in =
            |one: &&Arc<NodeClaim>| one.annotations().get(labels::REPLACES) == Some(&name);
        let live = |one: &&Arc<NodeClaim>| one.metadata.deletion_timestamp.is_none();
        state.claims.values().filter(stands_in).filter(live).cloned().collect()
    };
    let since = claim
        .status
        .as_ref()
        .and_then(|status| conditions::since(&status.conditions, DISRUPTION_REASON));
    let late =
        since.is_some_and(|since| context.clock.now().duration_since(since) > REPLACEMENT_TIMEOUT);
    if !replacements.is_empty() && replacements.iter().all(|one| claim_is(one, INITIALIZED)) {
        tracing::info!(nodeclaim = name, "its replacement is ready");
        return context.delete_claim(claim).await;
    }
    if !replacements.is_empty() && !late {
        for one in &replacements {
            let message = "Waiting on readiness to continue disruption";
            context
                .events
                .publish(one.as_ref(), Severity::Normal, "DisruptionWaitingReadiness", message)
                .await;
        }
        return Ok(());
    }
    tracing::warn!(nodeclaim = name, late, "its replacement did not come; keeping it");
    let node = claim.status.as_ref().and_then(|status| status.node_name.clone());
    context
        .update_claim_status(&name, |claim| {
            claim
                .status
                .as_mut()
                .is_some_and(|status| conditions::clear(&mut status.conditions, DISRUPTION_REASON))
        })
        .await?;
    match node {
        Some(node) => untaint(context, &node).await,
        None => Ok(()),
    }
}

async fn untaint(context: &Context, node: &str) -> Result<()> {
    context
        .update_node(node, |node| {
            let list = node.spec.get_or_insert_default().taints.get_or_insert_default();
            let before = list.len();
            list.retain(|taint| taint.key != taints::DISRUPTED);
            list.len() != before
        })
        .await
}
