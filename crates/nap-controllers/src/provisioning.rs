//! Pending pods in, NodeClaims out.

use std::time::Duration;

use jiff::SignedDuration;
use kube::ResourceExt;
use nap_engine::Plan;

use crate::claims;
use crate::context::{Context, Outcome};
use crate::events::Severity;
use crate::state::pods;
use crate::state::snapshot::PLAN_HOLDS;
use crate::turn::Turn;

/// How often waiting pods are looked at again when nothing else happens.
const AGAIN: Duration = Duration::from_secs(10);

/// Plans for every pod that waits, once the batch is complete, and creates what the plan asks for.
pub async fn reconcile(context: &Context) -> Outcome {
    let now = context.clock.now();
    {
        let mut state = context.state();
        if !state.is_synced() {
            return Ok(Some(Duration::from_millis(200)));
        }
        if let Some((first, last)) = state.batch {
            let age = |since: jiff::Timestamp| {
                Duration::try_from(now.duration_since(since)).unwrap_or_default()
            };
            let idle = context.settings.batch_idle.saturating_sub(age(last));
            let most = context.settings.batch_max.saturating_sub(age(first));
            if !idle.is_zero() && !most.is_zero() {
                return Ok(Some(idle.min(most)));
            }
        }
        state.batch = None;
    }
    let catalogues = context.catalogues().await;
    let now = context.clock.now();
    let snapshot = context.state().snapshot(&catalogues, now);
    if snapshot.pods.is_empty() {
        let waits = context.state().pods.values().any(|pod| pods::is_provisionable(pod));
        return Ok(waits.then_some(AGAIN));
    }
    let plan = context.solve(&snapshot);
    remember(context, &plan, now);
    explain_unplaced(context, &plan).await;
    for (launch, turn) in plan.launches.iter().zip(Turn::of(&snapshot, &plan, now)) {
        let pool = context.state().pools.get(&launch.pool).cloned();
        let Some(pool) = pool else { continue };
        let Some(catalogue) = catalogues.of(&launch.pool) else { continue };
        let claim = claims::create(context, &pool, launch, catalogue, turn.as_ref(), None).await?;
        let why = plan.explain_launch(launch);
        tracing::info!(
            nodepool = launch.pool,
            nodeclaim = claim.name_any(),
            pods = launch.pods.len(),
            why,
            "created nodeclaim"
        );
        context.events.publish(&claim, Severity::Normal, "Launching", &why).await;
        for key in &launch.pods {
            let pod = context.state().pods.get(key).cloned();
            if let Some(pod) = pod {
                let message = format!("Pod should schedule on: nodeclaim/{}", claim.name_any());
                context.events.publish(pod.as_ref(), Severity::Normal, "Nominated", &message).await;
            }
        }
    }
    Ok(Some(AGAIN))
}

/// Keeps the machines that pods were planned onto, and which pods have no hope for now.
fn remember(context: &Context, plan: &Plan, now: jiff::Timestamp) {
    let holds = SignedDuration::try_from(PLAN_HOLDS).unwrap_or(SignedDuration::ZERO);
    let until = now.checked_add(holds).unwrap_or(jiff::Timestamp::MAX);
    let mut state = context.state();
    state.nominated.retain(|_, until| *until > now);
    state.nominated.extend(plan.placements.iter().map(|placement| (placement.node.clone(), until)));
    state.hopeless = plan.unplaced.iter().map(|unplaced| unplaced.pod.clone()).collect();
}

async fn explain_unplaced(context: &Context, plan: &Plan) {
    for unplaced in &plan.unplaced {
        let pod = context.state().pods.get(&unplaced.pod).cloned();
        if let Some(pod) = pod {
            let message = format!("Failed to schedule pod, {}", unplaced.refusal);
            context
                .events
                .publish(pod.as_ref(), Severity::Warning, "FailedScheduling", &message)
                .await;
        }
    }
}
