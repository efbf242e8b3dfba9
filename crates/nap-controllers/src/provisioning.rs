//! Pending pods in, NodeClaims out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use jiff::SignedDuration;
use kube::ResourceExt;
use nap_engine::{Catalogue, Plan, solve};

use crate::claims;
use crate::context::{Context, Error, Outcome};
use crate::events::Severity;
use crate::state::snapshot::{PLAN_HOLDS, Scope};

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
            let age =
                |since: jiff::Timestamp| Duration::try_from(now.duration_since(since)).unwrap_or_default();
            let idle = context.settings.batch_idle.saturating_sub(age(last));
            let most = context.settings.batch_max.saturating_sub(age(first));
            if !idle.is_zero() && !most.is_zero() {
                return Ok(Some(idle.min(most)));
            }
        }
        state.batch = None;
    }
    let catalogues = catalogues(context).await?;
    let now = context.clock.now();
    let snapshot = context.state().snapshot(Scope::Provisioning, &catalogues, now);
    if snapshot.pods.is_empty() {
        return Ok(if context.state().pending().next().is_some() { Some(AGAIN) } else { None });
    }
    let plan = solve(&snapshot, &context.settings.engine);
    remember(context, &plan, now);
    explain_unplaced(context, &plan).await;
    for launch in &plan.launches {
        let pool = context.state().pools.get(&launch.pool).cloned();
        let Some(pool) = pool else { continue };
        let class = &pool.spec.template.spec.node_class_ref.name;
        let Some(catalogue) = catalogues.get(class) else { continue };
        let claim = claims::create(context, &pool, launch, catalogue, None).await?;
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
            context.events.publish(pod.as_ref(), Severity::Warning, "FailedScheduling", &message).await;
        }
    }
}

/// The instance types of every node class that a pool refers to. A class whose types cannot be had is left out.
pub async fn catalogues(context: &Context) -> Result<BTreeMap<String, Arc<Catalogue>>, Error> {
    let classes: Vec<_> = {
        let state = context.state();
        let used = state.pools.values().map(|pool| &pool.spec.template.spec.node_class_ref.name);
        let mut classes: Vec<_> = used.filter_map(|name| state.classes.get(name).cloned()).collect();
        classes.sort_by_key(|class| class.name_any());
        classes.dedup_by_key(|class| class.name_any());
        classes
    };
    let found = join_all(classes.iter().map(|class| context.cloud.instance_types(class))).await;
    let mut catalogues = BTreeMap::new();
    for (class, types) in classes.iter().zip(found) {
        match types {
            Ok(types) => {
                catalogues.insert(class.name_any(), types);
            }
            Err(error) => {
                tracing::warn!(nodeclass = class.name_any(), %error, "could not read instance types");
            }
        }
    }
    Ok(catalogues)
}
