//! Start of a disruption command: mark the node and launch its replacements.

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use nap_api::labels;
use nap_api::nodeclaim::condition::DISRUPTION_REASON;
use nap_api::nodepool::DisruptionReason;
use nap_engine::Plan;
use nap_units::UsdPerHour;

use super::candidates::Candidate;
use crate::context::{Context, Error};
use crate::events::Severity;
use crate::node::taint::add_disrupted;
use crate::provisioning::nodeclaims::{self, Replaces};
use crate::snapshot::Catalogues;

/// Starts the disruption of a candidate whose pods have places in `plan`, on existing nodes or on
/// launches.
pub async fn start(
    context: &Context,
    candidate: &Candidate,
    reason: DisruptionReason,
    plan: &Plan,
    catalogues: &Catalogues,
) -> Result<(), Error> {
    let message = describe(candidate, reason, plan);
    tracing::info!(node = candidate.name(), reason = reason.as_str(), message, "disrupting node");
    mark(context, candidate, reason).await?;
    {
        let (index, mut memory) = (context.index(), context.memory());
        memory.nominate(&index, plan, context.clock.now());
    }
    let (severity, event) = (Severity::Normal, "DisruptionTerminating");
    let text = format!("Disrupting Node: {message}");
    context.events.publish(candidate.node.as_ref(), severity, event, &text);
    let text = format!("Disrupting NodeClaim: {message}");
    context.events.publish(candidate.claim.as_ref(), severity, event, &text);
    let below = candidate.price.filter(|_| reason == DisruptionReason::Underutilized);
    let siblings = plan.launches.len();
    let replaces = Replaces { claim: candidate.claim.name_any(), below, siblings };
    for launch in &plan.launches {
        let pool = context.index().pool(&launch.pool).cloned();
        let Some(pool) = pool else { continue };
        let Some(catalogue) = catalogues.of(&launch.pool) else { continue };
        let offerings = nodeclaims::offerings(&pool, launch, catalogue, Some(&replaces));
        let claim = nodeclaims::node_claim(&pool, launch, &offerings, None, Some(&replaces));
        let claim = nodeclaims::create(context, &claim, &launch.pool).await?;
        let text = format!("Launching NodeClaim: {}", reason.as_str());
        context.events.publish(&claim, severity, "DisruptionLaunching", &text);
        let why = plan.explain_launch(launch);
        context.events.publish(&claim, severity, "Launching", &why);
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
