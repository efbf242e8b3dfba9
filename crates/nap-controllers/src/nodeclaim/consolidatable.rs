//! Consolidatable: no pod was bound to the Node or left it for `consolidateAfter`.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use nap_api::nodeclaim::condition::{CONSOLIDATABLE, INITIALIZED};
use nap_api::{NodeClaim, NodePool, conditions};

use super::{Step, live_claim};
use crate::cluster::{claim_conditions, pool_of};
use crate::context::{Context, Error};

/// Shortest interval between two writes of `lastPodEventTime`.
const POD_EVENT_INTERVAL: SignedDuration = SignedDuration::from_secs(10);

/// Sets or clears the `Consolidatable` condition and keeps `lastPodEventTime`. A NodeClaim without
/// a NodePool is never consolidatable.
pub async fn update(context: &Context, name: &str) -> Result<Step, Error> {
    let Some(claim) = live_claim(context, name) else { return Ok(Step::Deleted) };
    let (pool, last_event) = {
        let index = context.index();
        let pool = pool_of(claim.as_ref()).and_then(|pool| index.pool(pool)).cloned();
        let node = claim.status.as_ref().and_then(|status| status.node_name.as_deref());
        (pool, node.and_then(|node| index.last_pod_event(node)))
    };
    let Some(pool) = pool else { return Ok(Step::Done) };
    let quiet = quiet_in(&claim, &pool, last_event, context.clock.now());
    context
        .edit_claim_status(name, |edit| {
            if quiet == Some(Duration::ZERO) {
                edit.set_true(CONSOLIDATABLE);
            } else {
                edit.clear(CONSOLIDATABLE);
            }
            let written = edit.status.last_pod_event_time.as_ref().map(|time| time.0);
            if let Some(event) = last_event
                && written.is_none_or(|time| event.duration_since(time) >= POD_EVENT_INTERVAL)
            {
                edit.status.last_pod_event_time = Some(Time(event));
            }
        })
        .await?;
    Ok(match quiet {
        Some(wait) if !wait.is_zero() => Step::DoneUntil(wait),
        _ => Step::Done,
    })
}

/// Time until a NodeClaim is consolidatable; zero if it is, `None` if it never will be.
fn quiet_in(
    claim: &NodeClaim,
    pool: &NodePool,
    last_event: Option<Timestamp>,
    now: Timestamp,
) -> Option<Duration> {
    let after = pool.spec.disruption.consolidate_after.get()?;
    if pool.spec.replicas.is_some() {
        return None;
    }
    let initialized = conditions::since(claim_conditions(claim), INITIALIZED)?;
    let written = claim.status.as_ref()?.last_pod_event_time.as_ref().map(|time| time.0);
    let since = [Some(initialized), written, last_event].into_iter().flatten().max()?;
    let passed = Duration::try_from(now.duration_since(since)).unwrap_or(Duration::ZERO);
    Some(after.saturating_sub(passed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, claim, pool};
    use serde_json::{Value, json};

    fn wait(disruption: &Value, written: Option<&str>, last_event: Option<i64>) -> Option<u64> {
        let pool = pool("p", json!({ "spec": { "disruption": disruption } }));
        let claim = claim(
            "c",
            json!({ "status": {
                "lastPodEventTime": written,
                "conditions": [{
                    "type": "Initialized", "status": "True", "reason": "", "message": "",
                    "lastTransitionTime": "1970-01-01T00:00:10Z",
                }],
            } }),
        );
        quiet_in(&claim, &pool, last_event.map(at), at(40)).map(|wait| wait.as_secs())
    }

    #[test]
    fn the_latest_of_initialization_and_pod_events_counts() {
        let minute = json!({ "consolidateAfter": "60s" });
        assert_eq!(wait(&minute, None, None), Some(30));
        assert_eq!(wait(&minute, Some("1970-01-01T00:00:20Z"), None), Some(40));
        assert_eq!(wait(&minute, Some("1970-01-01T00:00:20Z"), Some(35)), Some(55));
    }

    #[test]
    fn a_node_is_quiet_once_the_time_has_passed() {
        assert_eq!(wait(&json!({ "consolidateAfter": "30s" }), None, None), Some(0));
        assert_eq!(wait(&json!({ "consolidateAfter": "0s" }), None, Some(40)), Some(0));
    }

    #[test]
    fn never_means_never() {
        assert_eq!(wait(&json!({ "consolidateAfter": "Never" }), None, None), None);
    }
}
