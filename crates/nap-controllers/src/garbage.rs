//! Nothing is leaked: machines without a claim are deleted, claims without a machine are given up.

use std::time::Duration;

use jiff::SignedDuration;
use kube::ResourceExt;
use nap_api::nodeclaim::condition::{LAUNCHED, REGISTERED};

use crate::context::{Context, Outcome};
use crate::state::{claim_is, is_ready};

/// How often machines and claims are compared.
const AGAIN: Duration = Duration::from_mins(2);
/// A machine without a claim is left alone until it is this old: its claim may not have been
/// written yet.
const GRACE: SignedDuration = SignedDuration::from_mins(5);

/// Compares what the cloud has with what the cluster knows.
pub async fn reconcile(context: &Context) -> Outcome {
    if !context.state().is_synced() {
        return Ok(Some(Duration::from_secs(1)));
    }
    // The claims are read first: a machine that is listed later than its claim can only look too
    // young, never orphaned.
    let claims: Vec<_> = context.state().claims.values().cloned().collect();
    let instances = context.cloud.list().await?;
    let now = context.clock.now();
    for instance in instances.iter().filter(|instance| !instance.deleting) {
        let named = claims.iter().any(|claim| {
            let id = claim.status.as_ref().and_then(|status| status.provider_id.as_deref());
            id == Some(instance.provider_id.as_str())
                || instance.node_claim.as_deref() == Some(claim.name_any().as_str())
        });
        let old = instance.created.is_some_and(|created| now.duration_since(created) >= GRACE);
        if !named && old {
            tracing::warn!(
                provider_id = instance.provider_id,
                "deleting a machine that no nodeclaim names"
            );
            match context.cloud.delete_orphan(&instance.provider_id).await {
                Ok(()) => {}
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    for claim in claims.iter().filter(|claim| claim.metadata.deletion_timestamp.is_none()) {
        let Some(id) = claim.status.as_ref().and_then(|status| status.provider_id.as_deref())
        else {
            continue;
        };
        let exists = instances.iter().any(|instance| instance.provider_id == id);
        let node_is_ready = context.state().nodes_with_id(id).iter().any(|node| is_ready(node));
        let was_there = claim_is(claim, LAUNCHED) && claim_is(claim, REGISTERED);
        if was_there && !exists && !node_is_ready {
            tracing::warn!(nodeclaim = claim.name_any(), "its machine is gone");
            context.delete_claim(claim).await?;
        }
    }
    Ok(Some(AGAIN))
}
