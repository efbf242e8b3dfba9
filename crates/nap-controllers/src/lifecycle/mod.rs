//! A NodeClaim's way: launched, registered, initialized; watched for drift and quiet; expired.

mod launch;
mod marks;
mod nomination;
mod registration;

use std::time::Duration;

use jiff::SignedDuration;
use kube::ResourceExt;
use nap_api::nodeclaim::condition::{DEPENDENTS, INITIALIZED, LAUNCHED, REGISTERED};
use nap_api::{NodeClaim, conditions, labels};

use crate::context::{Context, Outcome};
use crate::state::claim_is;
use crate::state::snapshot::plan_holds;
use crate::termination;

/// A claim whose machine was not made by then is given up.
const LAUNCH_TIMEOUT: SignedDuration = SignedDuration::from_mins(5);
/// A claim whose node did not join by then is given up.
const REGISTRATION_TIMEOUT: SignedDuration = SignedDuration::from_mins(15);

/// How soon pods that a new node was bought for are looked at again: the scheduler may have tried
/// one while the node was still closed, and taken its nomination away.
const SECOND_LOOK: Duration = Duration::from_secs(1);

/// Brings one NodeClaim a step further.
pub async fn reconcile(context: &Context, name: &str) -> Outcome {
    let Some(claim) = context.state().claims.get(name).cloned() else { return Ok(None) };
    if claim.spec.node_class_ref.group != labels::AZURE_GROUP {
        return Ok(None);
    }
    if claim.metadata.deletion_timestamp.is_some() {
        return termination::finalize_claim(context, &claim).await;
    }
    if !claim.finalizers().iter().any(|finalizer| finalizer == labels::TERMINATION_FINALIZER) {
        let add = |claim: &mut NodeClaim| {
            let missing = claim.metadata.deletion_timestamp.is_none()
                && !claim
                    .finalizers()
                    .iter()
                    .any(|finalizer| finalizer == labels::TERMINATION_FINALIZER);
            if missing {
                claim.finalizers_mut().push(labels::TERMINATION_FINALIZER.to_owned());
            }
            missing
        };
        context.update_claim(name, add).await?;
    }
    if let Some(wait) = expire(context, &claim).await? {
        return Ok(wait);
    }
    if !claim_is(&claim, LAUNCHED) {
        return launch::launch(context, &claim).await;
    }
    if !claim_is(&claim, REGISTERED)
        && let Some(again) = registration::register(context, &claim).await?
    {
        let wait = give_up_after(
            context,
            &claim,
            REGISTERED,
            REGISTRATION_TIMEOUT,
            "registration_timeout",
        );
        return Ok(wait.await?.map(|wait| wait.min(again)));
    }
    if !claim_is(&claim, INITIALIZED) && !registration::initialize(context, &claim).await? {
        // The node's own changes bring this claim up again; this is only against a missed one.
        return Ok(Some(Duration::from_secs(30)));
    }
    let again = marks::mark(context, name).await?;
    if !plan_holds(&claim, context.clock.now()) {
        return Ok(again);
    }
    let node = claim.status.as_ref().and_then(|status| status.node_name.clone());
    let Some(node) = node else { return Ok(again) };
    if nomination::nominate(context, &claim, &node).await {
        return Ok(Some(again.map_or(SECOND_LOOK, |again| again.min(SECOND_LOOK))));
    }
    Ok(again)
}

/// Deletes a claim that is past its time. Otherwise `None`, and the claim comes up again by its
/// marks.
async fn expire(
    context: &Context,
    claim: &NodeClaim,
) -> Result<Option<Option<Duration>>, crate::context::Error> {
    let Some(due) = expires_at(claim) else { return Ok(None) };
    if context.clock.now() < due {
        return Ok(None);
    }
    tracing::info!(nodeclaim = claim.name_any(), "expired");
    context.delete_claim(claim).await?;
    Ok(Some(None))
}

/// When a claim is past its time.
fn expires_at(claim: &NodeClaim) -> Option<jiff::Timestamp> {
    let lives = SignedDuration::try_from(claim.spec.expire_after.get()?).ok()?;
    claim.metadata.creation_timestamp.as_ref()?.0.checked_add(lives).ok()
}

/// Deletes a claim that has been waiting for a condition for too long; otherwise says when to look
/// again.
async fn give_up_after(
    context: &Context,
    claim: &NodeClaim,
    type_: &str,
    timeout: SignedDuration,
    reason: &str,
) -> Outcome {
    let conditions =
        claim.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let created = claim.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let Some(since) = conditions::since(conditions, type_).or(created) else { return Ok(None) };
    let waited = context.clock.now().duration_since(since);
    if waited < timeout {
        return Ok(Some(Duration::try_from(timeout - waited).unwrap_or(Duration::from_secs(1))));
    }
    tracing::warn!(nodeclaim = claim.name_any(), reason, "giving up on a machine");
    context.delete_claim(claim).await?;
    Ok(None)
}

/// Recomputes `Ready` of a claim whose conditions were changed.
fn summarise(claim: &mut NodeClaim, now: jiff::Timestamp) {
    let generation = claim.metadata.generation;
    let status = claim.status.get_or_insert_default();
    conditions::summarise(&mut status.conditions, &DEPENDENTS, generation, now);
}
