//! The lifecycle of a NodeClaim: launched, registered, nominated, initialized, watched for
//! consistency, drift and quiet, changed in place, expired, lost,
//! terminated.

mod consistency;
mod consolidatable;
mod drift;
mod expiration;
pub mod garbage_collection;
mod in_place;
mod initialization;
mod launch;
mod nomination;
mod notice;
mod registration;
pub mod registration_health;
mod spread_domains;
mod status;
pub mod termination;
mod unmanaged;

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use nap_api::{NodeClaim, conditions, labels};

pub use drift::{EXPIRED, drift_of};
pub use launch::Launches;
pub use nomination::NominationRate;

use crate::cluster::claim_conditions;
use crate::context::{Context, Error, Outcome};
use crate::patch::{add_finalizer, has_finalizer};
use crate::permissions::{KARPENTER, Permission};

/// NodeClaims and their Nodes are brought through their life, and pods are nominated.
pub const PERMISSIONS: &[Permission] = &[
    Permission::new(KARPENTER, "nodeclaims", &["get", "patch", "delete"]),
    Permission::new(KARPENTER, "nodeclaims/status", &["patch"]),
    Permission::new("", "nodes", &["get", "patch", "delete"]),
    Permission::new("", "pods/status", &["patch"]),
];

/// Result of one step of the lifecycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The goal of the step is reached, and the next step runs.
    Done,
    /// As `Done`, and the step is to be repeated after this time.
    DoneUntil(Duration),
    /// The goal is not reached: later steps do not run, and this one is repeated after this time.
    Wait(Duration),
    /// The NodeClaim is gone or being deleted.
    Deleted,
}

type StepFn = for<'a> fn(&'a Context, &'a str) -> BoxFuture<'a, std::result::Result<Step, Error>>;

/// The steps in their order. Each reads the NodeClaim again, as the step before may have changed
/// it.
const STEPS: [StepFn; 13] = [
    |context, name| unmanaged::check(context, name).boxed(),
    |context, name| ensure_metadata(context, name).boxed(),
    |context, name| expiration::expire(context, name).boxed(),
    |context, name| notice::heed(context, name).boxed(),
    |context, name| launch::launch(context, name).boxed(),
    |context, name| launch::watch_creation(context, name).boxed(),
    |context, name| registration::register(context, name).boxed(),
    |context, name| nomination::nominate(context, name).boxed(),
    |context, name| initialization::initialize(context, name).boxed(),
    |context, name| consistency::check(context, name).boxed(),
    |context, name| drift::detect(context, name).boxed(),
    |context, name| consolidatable::update(context, name).boxed(),
    |context, name| in_place::update(context, name).boxed(),
];

/// Brings one NodeClaim as far as it can get now.
pub async fn reconcile(context: &Context, name: &str) -> Outcome {
    let Some(claim) = context.index().claim(name).cloned() else { return Ok(None) };
    if claim.metadata.deletion_timestamp.is_some() {
        return termination::finalize(context, &claim).await;
    }
    let mut again: Option<Duration> = None;
    for step in STEPS {
        match step(context, name).await? {
            Step::Done => {}
            Step::DoneUntil(wait) => again = again.into_iter().chain([wait]).min(),
            Step::Wait(wait) => return Ok(again.into_iter().chain([wait]).min()),
            Step::Deleted => return Ok(None),
        }
    }
    Ok(again)
}

/// Adds the finalizer, and the label of the node class that NodeClaims of users lack.
async fn ensure_metadata(context: &Context, name: &str) -> Result<Step, Error> {
    let Some(claim) = live_claim(context, name) else { return Ok(Step::Deleted) };
    let is_labelled = |claim: &NodeClaim| claim.labels().contains_key(labels::AKS_NODE_CLASS);
    if !has_finalizer(claim.as_ref(), labels::TERMINATION_FINALIZER) || !is_labelled(&claim) {
        context
            .update::<NodeClaim>(name, |claim| {
                let class = claim.spec.node_class_ref.name.clone();
                let labelled = is_labelled(claim);
                claim.labels_mut().entry(labels::AKS_NODE_CLASS.to_owned()).or_insert(class);
                add_finalizer(claim, labels::TERMINATION_FINALIZER) || !labelled
            })
            .await?;
    }
    Ok(Step::Done)
}

/// A NodeClaim that exists and is not being deleted.
fn live_claim(context: &Context, name: &str) -> Option<Arc<NodeClaim>> {
    let claim = context.index().claim(name).cloned();
    claim.filter(|claim| claim.metadata.deletion_timestamp.is_none())
}

/// Time left for a condition to become true, counted from its last transition, or from the creation
/// of the NodeClaim before it has one. `None` if the time is up.
fn time_left(
    claim: &NodeClaim,
    condition: &str,
    timeout: SignedDuration,
    now: Timestamp,
) -> Option<Duration> {
    let created = claim.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let since = conditions::since(claim_conditions(claim), condition).or(created).unwrap_or(now);
    let left = timeout - now.duration_since(since);
    left.is_positive().then(|| Duration::try_from(left).unwrap_or(Duration::ZERO))
}
