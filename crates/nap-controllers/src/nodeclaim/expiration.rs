//! Expiration: a NodeClaim older than `expireAfter` is deleted.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use nap_api::NodeClaim;

use super::{Step, live_claim};
use crate::context::{Context, Error};

/// Deletes an expired NodeClaim.
pub async fn expire(context: &Context, name: &str) -> Result<Step, Error> {
    let Some(claim) = live_claim(context, name) else { return Ok(Step::Deleted) };
    let Some(due) = expires_at(&claim) else { return Ok(Step::Done) };
    let left = due.duration_since(context.clock.now());
    if left.is_positive() {
        return Ok(Step::DoneUntil(Duration::try_from(left).unwrap_or(Duration::ZERO)));
    }
    tracing::info!(nodeclaim = name, "expired, deleting nodeclaim");
    context.delete_claim(&claim).await?;
    Ok(Step::Deleted)
}

/// The time at which a NodeClaim expires; `None` if never.
fn expires_at(claim: &NodeClaim) -> Option<Timestamp> {
    let lifetime = SignedDuration::try_from(claim.spec.expire_after.get()?).ok()?;
    claim.metadata.creation_timestamp.as_ref()?.0.checked_add(lifetime).ok()
}
