//! The creation of planned NodeClaims, beside the next plan.

use std::time::Duration;

use futures::{StreamExt, future, stream};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use nap_api::NodeClaim;
use nap_engine::PodKey;

use super::nodeclaims;
use crate::cluster::DecidedId;
use crate::context::{Context, Error};
use crate::events::Severity;

/// Most NodeClaims of a plan that are created at the same time.
const MAX_CREATES: usize = 20;
/// Shortest and longest time for which nothing is planned after a creation has failed.
const BACKOFF: (SignedDuration, SignedDuration) =
    (SignedDuration::from_millis(500), SignedDuration::from_secs(30));

/// Reason of NodeClaims for pending pods, in metrics.
const PROVISIONED: &str = "provisioned";

/// The NodeClaims of one plan, in the order in which they are created.
pub struct Creations {
    creations: Vec<Creation>,
    /// Id of the record of the plan.
    decision: i64,
}

/// A NodeClaim to create. The index counts on it.
pub(super) struct Creation {
    pub(super) id: DecidedId,
    pub(super) pool: String,
    pub(super) claim: NodeClaim,
    pub(super) pods: Vec<PodKey>,
    pub(super) why: String,
}

impl Creations {
    pub(super) fn new(creations: Vec<Creation>, decision: i64) -> Self {
        Self { creations, decision }
    }

    /// Creates the NodeClaims. One that cannot be created keeps no other from being created; the
    /// first failure is returned.
    pub async fn create(self, context: &Context) -> Result<(), Error> {
        let Self { creations, decision } = self;
        let create = |(position, creation)| create(context, creation, (decision, position));
        let created =
            stream::iter(creations.into_iter().enumerate()).map(create).buffered(MAX_CREATES);
        let failures: Vec<Error> =
            created.filter_map(|created| future::ready(created.err())).collect().await;
        failures.into_iter().next().map_or(Ok(()), Err)
    }
}

async fn create(
    context: &Context,
    creation: Creation,
    (decision, position): (i64, usize),
) -> Result<(), Error> {
    let Creation { id, pool, claim, pods, why } = creation;
    let created = nodeclaims::create(context, &claim, &pool, PROVISIONED).await;
    {
        // The answer is indexed by now: at no time is the NodeClaim counted by neither.
        let mut index = context.index();
        match &created {
            Ok(_) => index.decided_was_created(id),
            Err(_) => index.decided_has_failed(id),
        }
    }
    let claim = created?;
    context.memory().decisions.created(decision, position, &claim.name_any());
    tracing::info!(
        nodepool = pool,
        nodeclaim = claim.name_any(),
        pods = pods.len(),
        why,
        "created nodeclaim"
    );
    context.events.publish(&claim, Severity::Normal, "Launching", &why);
    let message = format!("Pod should schedule on: nodeclaim/{}", claim.name_any());
    for key in &pods {
        let pod = context.index().pod(key).cloned();
        if let Some(pod) = pod {
            context.events.publish(pod.as_ref(), Severity::Normal, "Nominated", &message);
        }
    }
    Ok(())
}

/// How long plans wait after creations have failed: twice as long after each further failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CreationBackoff {
    failures: u32,
    until: Option<Timestamp>,
}

impl CreationBackoff {
    /// Records a plan of which some NodeClaim could not be created. Returns the wait.
    pub fn failed(&mut self, now: Timestamp) -> SignedDuration {
        let wait = BACKOFF.0.saturating_mul(1 << self.failures.min(10)).min(BACKOFF.1);
        self.failures = self.failures.saturating_add(1);
        self.until = now.checked_add(wait).ok();
        wait
    }

    /// Records a plan whose NodeClaims were all created.
    pub fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// Time until the next plan may be made.
    pub(super) fn wait(&self, now: Timestamp) -> Duration {
        let left = self.until.map(|until| until.duration_since(now));
        left.and_then(|left| Duration::try_from(left).ok()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    #[test]
    fn plans_wait_longer_after_each_failure_and_not_after_a_success() {
        let mut backoff = CreationBackoff::default();
        assert_eq!(backoff.wait(at(0)), Duration::ZERO);
        let waits: Vec<i128> = (0..8).map(|_| backoff.failed(at(0)).as_millis()).collect();
        assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 16000, 30000, 30000]);
        assert_eq!(backoff.wait(at(10)), Duration::from_secs(20));
        assert_eq!(backoff.wait(at(31)), Duration::ZERO);
        backoff.succeeded();
        assert_eq!(backoff.wait(at(0)), Duration::ZERO);
    }
}
