//! Marks on a running claim that disruption goes by: quiet for long enough, and drifted.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use nap_api::nodeclaim::condition::{CONSOLIDATABLE, DRIFTED, INITIALIZED};
use nap_api::requirement::Undefined;
use nap_api::{AKSNodeClass, NodeClaim, NodePool, Requirements, conditions, labels};

use crate::context::{Context, Outcome};
use crate::state::pool_of;

/// `lastPodEventTime` is not written more often than this.
const POD_EVENT_STEP: SignedDuration = SignedDuration::from_secs(10);
/// Drift in the cloud is looked for this often.
const AGAIN: Duration = Duration::from_mins(5);

/// Brings the marks up to date.
pub async fn mark(context: &Context, name: &str) -> Outcome {
    let (claim, pool, class, last_event) = {
        let state = context.state();
        let Some(claim) = state.claims.get(name).cloned() else { return Ok(None) };
        let pool = pool_of(claim.as_ref()).and_then(|pool| state.pools.get(pool)).cloned();
        let class = state.classes.get(&claim.spec.node_class_ref.name).cloned();
        let node = claim.status.as_ref().and_then(|status| status.node_name.clone());
        let last_event = node.and_then(|node| state.pod_events.get(&node).copied());
        (claim, pool, class, last_event)
    };
    let Some(pool) = pool else { return Ok(None) };
    let mut drifted = hash_drift(&claim, &pool, class.as_deref());
    if let (None, Some(class)) = (&drifted, &class) {
        drifted = context.cloud.drifted(&claim, class).await?;
    }
    let now = context.clock.now();
    let quiet = quiet_in(&claim, &pool, last_event, now);
    context
        .update_claim_status(name, |claim| {
            let generation = claim.metadata.generation;
            let status = claim.status.get_or_insert_default();
            let before = status.clone();
            match quiet {
                Some(Duration::ZERO) => {
                    conditions::set_true(&mut status.conditions, CONSOLIDATABLE, generation, now);
                }
                _ => {
                    conditions::clear(&mut status.conditions, CONSOLIDATABLE);
                }
            }
            match &drifted {
                Some(reason) => {
                    let yes = conditions::Status::True;
                    conditions::set(
                        &mut status.conditions,
                        DRIFTED,
                        yes,
                        reason,
                        reason,
                        generation,
                        now,
                    );
                }
                None => {
                    conditions::clear(&mut status.conditions, DRIFTED);
                }
            }
            let known = status.last_pod_event_time.as_ref().map(|time| time.0);
            if let Some(event) = last_event
                && known.is_none_or(|known| event.duration_since(known) >= POD_EVENT_STEP)
            {
                status.last_pod_event_time = Some(Time(event));
            }
            *status != before
        })
        .await?;
    let expiry = super::expires_at(&claim)
        .map(|due| Duration::try_from(due.duration_since(now)).unwrap_or(Duration::ZERO));
    let next =
        [Some(AGAIN), quiet.filter(|wait| !wait.is_zero()), expiry].into_iter().flatten().min();
    Ok(next)
}

/// How long until the claim counts as quiet; zero if it does; `None` if it never will.
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
    let status = claim.status.as_ref()?;
    let initialized = conditions::since(&status.conditions, INITIALIZED)?;
    let written = status.last_pod_event_time.as_ref().map(|time| time.0);
    let since = [Some(initialized), written, last_event].into_iter().flatten().max()?;
    let passed = Duration::try_from(now.duration_since(since)).unwrap_or(Duration::ZERO);
    Some(after.saturating_sub(passed))
}

/// Why the claim no longer matches what its pool and class say.
fn hash_drift(claim: &NodeClaim, pool: &NodePool, class: Option<&AKSNodeClass>) -> Option<String> {
    let differs =
        |theirs: &std::collections::BTreeMap<String, String>, hash: &str, version: &str| {
            let ours = claim.annotations();
            match (ours.get(hash), theirs.get(hash), ours.get(version), theirs.get(version)) {
                (Some(ours), Some(theirs), Some(our_version), Some(their_version)) => {
                    our_version == their_version && ours != theirs
                }
                _ => false,
            }
        };
    if differs(pool.annotations(), labels::NODEPOOL_HASH, labels::NODEPOOL_HASH_VERSION) {
        return Some("NodePoolDrifted".to_owned());
    }
    let requirements = Requirements::from_specs(&pool.spec.template.spec.requirements);
    if Requirements::from_labels(claim.labels()).compatible(&requirements, Undefined::Deny).is_err()
    {
        return Some("RequirementsDrifted".to_owned());
    }
    let class = class?;
    let (hash, version) = (labels::AKS_NODE_CLASS_HASH, labels::AKS_NODE_CLASS_HASH_VERSION);
    differs(class.annotations(), hash, version).then(|| "NodeClassDrift".to_owned())
}
