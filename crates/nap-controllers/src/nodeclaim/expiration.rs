//! Expiration: a NodeClaim older than `expireAfter` is deleted at once, or drifts if its NodePool
//! says that expiry is graceful.

use std::hash::Hasher as _;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use nap_api::{NodeClaim, disruption};

use super::{Step, live_claim};
use crate::cluster::pool_of;
use crate::context::{Context, Error};
use crate::disruption::eviction_ledger;
use crate::metrics::Disrupted;

/// Part of its lifetime that a NodeClaim expires early by, at most, if it expires gracefully: those
/// that were launched together do not all expire together.
const MAX_JITTER: i32 = 10;
/// Steps of the jitter.
const JITTER_STEPS: u64 = 1000;

/// Deletes an expired NodeClaim, unless its expiry is graceful.
pub async fn expire(context: &Context, name: &str) -> Result<Step, Error> {
    let Some(claim) = live_claim(context, name) else { return Ok(Step::Deleted) };
    let is_graceful = {
        let index = context.index();
        let pool = pool_of(claim.as_ref()).and_then(|pool| index.pool(pool));
        pool.is_some_and(|pool| disruption::expires_gracefully(pool))
    };
    if is_graceful {
        return Ok(Step::Done);
    }
    let Some(due) = expires_at(&claim) else { return Ok(Step::Done) };
    let left = due.duration_since(context.clock.now());
    if left.is_positive() {
        return Ok(Step::DoneUntil(Duration::try_from(left).unwrap_or(Duration::ZERO)));
    }
    tracing::info!(nodeclaim = name, "expired, deleting nodeclaim");
    context.count_disrupted(&claim, Disrupted::Other("expired"), 0);
    context.delete_claim(&claim).await?;
    eviction_ledger::record_loss(context, &claim);
    Ok(Step::Deleted)
}

/// The time at which a NodeClaim expires; `None` if never.
fn expires_at(claim: &NodeClaim) -> Option<Timestamp> {
    let lifetime = SignedDuration::try_from(claim.spec.expire_after.get()?).ok()?;
    claim.metadata.creation_timestamp.as_ref()?.0.checked_add(lifetime).ok()
}

/// The time at which a NodeClaim expires gracefully: up to a tenth of its lifetime early, by its
/// uid. `None` if never.
pub fn expires_gracefully_at(claim: &NodeClaim) -> Option<Timestamp> {
    let lifetime = SignedDuration::try_from(claim.spec.expire_after.get()?).ok()?;
    let mut hasher = fnv::FnvHasher::default();
    hasher.write(claim.uid().unwrap_or_else(|| claim.name_any()).as_bytes());
    let steps = i32::try_from(hasher.finish() % JITTER_STEPS).ok()?;
    let step = lifetime / MAX_JITTER / i32::try_from(JITTER_STEPS).ok()?;
    expires_at(claim)?.checked_sub(step.checked_mul(steps)?).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;
    use crate::testing::claim;

    fn expiring(uid: &str, after: &str) -> NodeClaim {
        let metadata = json!({ "uid": uid, "creationTimestamp": "2026-01-01T00:00:00Z" });
        claim("c", json!({ "metadata": metadata, "spec": { "expireAfter": after } }))
    }

    #[test]
    fn graceful_expiry_is_early_by_a_tenth_at_most_and_the_same_each_time() {
        let (first, last) = ("2026-01-10T00:00:00Z", "2026-01-11T00:00:00Z");
        let (first, last): (Timestamp, Timestamp) = (first.parse().unwrap(), last.parse().unwrap());
        let all: BTreeSet<Timestamp> = (0..100)
            .map(|number| {
                let claim = expiring(&format!("uid-{number}"), "240h");
                assert_eq!(expires_at(&claim), Some(last));
                let due = expires_gracefully_at(&claim).unwrap();
                assert_eq!(Some(due), expires_gracefully_at(&claim));
                due
            })
            .collect();
        assert!(all.iter().all(|due| (first..=last).contains(due)), "{all:?}");
        assert!(all.len() > 80, "{} different times of 100", all.len());
        let spread = all.last().unwrap().duration_since(*all.first().unwrap());
        assert!(spread > SignedDuration::from_hours(18), "{spread}");
    }

    #[test]
    fn what_never_expires_has_no_time() {
        assert_eq!(expires_gracefully_at(&expiring("u", "Never")), None);
    }
}
