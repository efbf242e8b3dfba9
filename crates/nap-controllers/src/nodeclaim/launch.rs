//! Launch: the cloud provider creates the instance of a NodeClaim.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::SignedDuration;
use kube::ResourceExt;
use nap_api::nodeclaim::condition::LAUNCHED;
use nap_api::{AKSNodeClass, NodeClaim, labels};
use nap_cloud::{CloudError, ErrorClass, Instance};

use super::{Step, live_claim, time_left};
use crate::cluster::claim_is;
use crate::context::{Context, Error};
use crate::events::Severity;
use crate::hash_migration::HashStamp;

/// Time after which a NodeClaim that is not launched is deleted.
const LAUNCH_TIMEOUT: SignedDuration = SignedDuration::from_mins(5);
/// Wait before a launch that failed for a passing reason is retried.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Longest message that is copied from the cloud into a condition, in characters.
const MAX_MESSAGE: usize = 1024;

/// Creates the instance, or adopts the one that an earlier attempt created, and records it.
pub async fn launch(context: &Context, name: &str) -> Result<Step, Error> {
    let Some(claim) = live_claim(context, name) else { return Ok(Step::Deleted) };
    if claim_is(&claim, LAUNCHED) {
        return Ok(Step::Done);
    }
    let class_name = &claim.spec.node_class_ref.name;
    let (class, plan) = {
        let index = context.index();
        (index.class(class_name).cloned(), index.plan(name).cloned())
    };
    let Some(class) = class else {
        let message = format!("AKSNodeClass `{class_name}` does not exist");
        let class = ErrorClass::NodeClassNotReady;
        let error = CloudError::new(class, "launching", "NodeClassNotFound", message);
        return fail(context, &claim, error).await;
    };
    let offerings = plan.as_ref().map(|plan| plan.offerings.as_slice()).unwrap_or_default();
    match context.cloud.create(&claim, &class, offerings).await {
        Ok(instance) => record(context, &claim, &class, &instance).await,
        Err(error) => fail(context, &claim, error).await,
    }
}

async fn record(
    context: &Context,
    claim: &NodeClaim,
    class: &AKSNodeClass,
    instance: &Instance,
) -> Result<Step, Error> {
    let name = claim.name_any();
    let stamp = HashStamp::of_class(class);
    context
        .update::<NodeClaim>(&name, |claim| {
            let before = claim.metadata.clone();
            let own = std::mem::take(claim.labels_mut());
            *claim.labels_mut() = instance.labels.clone().into_iter().chain(own).collect();
            let annotations = claim.annotations_mut();
            annotations.extend(instance.annotations.clone());
            annotations.extend(stamp.annotations());
            claim.metadata != before
        })
        .await?;
    context
        .edit_claim_status(&name, |edit| {
            edit.status.provider_id = Some(instance.provider_id.clone());
            edit.status.image_id.clone_from(&instance.image_id);
            edit.status.capacity = instance.capacity.to_quantities();
            edit.status.allocatable = instance.allocatable.to_quantities();
            edit.set_true(LAUNCHED);
        })
        .await?;
    let what = describe(instance);
    let provider_id = &instance.provider_id;
    tracing::info!(nodeclaim = name, instance = what, provider_id, "launched nodeclaim");
    let message = format!("Provisioned {what}");
    context.events.publish(claim, Severity::Normal, "Provisioned", &message).await;
    Ok(Step::Done)
}

fn describe(instance: &Instance) -> String {
    let label =
        |labels: &BTreeMap<String, String>, key: &str| labels.get(key).cloned().unwrap_or_default();
    format!(
        "{} ({}) in zone {}",
        label(&instance.labels, labels::INSTANCE_TYPE),
        label(&instance.labels, labels::CAPACITY_TYPE),
        label(&instance.labels, labels::ZONE),
    )
}

/// Consequence of a failed launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnFailure {
    /// The NodeClaim is deleted with this event reason, so that its pods are planned again.
    GiveUp(&'static str),
    /// The launch is retried after a fixed wait.
    Retry,
    /// The reconcile fails, and is retried with back-off.
    BackOff,
}

fn on_failure(class: ErrorClass) -> OnFailure {
    match class {
        ErrorClass::Capacity | ErrorClass::Quota => OnFailure::GiveUp("InsufficientCapacityError"),
        ErrorClass::NodeClassNotReady => OnFailure::GiveUp("NodeClassNotReady"),
        ErrorClass::Transient | ErrorClass::Throttled => OnFailure::Retry,
        ErrorClass::NotFound | ErrorClass::Auth | ErrorClass::Invalid => OnFailure::BackOff,
    }
}

async fn fail(context: &Context, claim: &NodeClaim, error: CloudError) -> Result<Step, Error> {
    let name = claim.name_any();
    let action = on_failure(error.class);
    if let OnFailure::GiveUp(reason) = action {
        tracing::warn!(nodeclaim = name, reason, %error, "launch failed, deleting nodeclaim");
        let message = format!("NodeClaim {name} event: {error}");
        context.events.publish(claim, Severity::Warning, reason, &message).await;
        context.delete_claim(claim).await?;
        return Ok(Step::Deleted);
    }
    let message: String = error.to_string().chars().take(MAX_MESSAGE).collect();
    let reason = if error.code.is_empty() { "LaunchFailed" } else { error.code.as_str() };
    context.edit_claim_status(&name, |edit| edit.set_unknown(LAUNCHED, reason, &message)).await?;
    if time_left(claim, LAUNCHED, LAUNCH_TIMEOUT, context.clock.now()).is_none() {
        tracing::warn!(nodeclaim = name, reason = "launch_timeout", "deleting nodeclaim");
        context.delete_claim(claim).await?;
        return Ok(Step::Deleted);
    }
    match action {
        OnFailure::Retry => Ok(Step::Wait(RETRY_INTERVAL)),
        OnFailure::GiveUp(_) | OnFailure::BackOff => Err(Error::Cloud(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_and_quota_failures_delete_the_nodeclaim() {
        let give_up = OnFailure::GiveUp("InsufficientCapacityError");
        assert_eq!(on_failure(ErrorClass::Capacity), give_up);
        assert_eq!(on_failure(ErrorClass::Quota), give_up);
    }

    #[test]
    fn a_node_class_that_is_not_ready_deletes_the_nodeclaim() {
        let give_up = OnFailure::GiveUp("NodeClassNotReady");
        assert_eq!(on_failure(ErrorClass::NodeClassNotReady), give_up);
    }

    #[test]
    fn passing_failures_are_retried_and_others_back_off() {
        for class in [ErrorClass::Transient, ErrorClass::Throttled] {
            assert_eq!(on_failure(class), OnFailure::Retry, "{class:?}");
        }
        for class in [ErrorClass::Auth, ErrorClass::Invalid, ErrorClass::NotFound] {
            assert_eq!(on_failure(class), OnFailure::BackOff, "{class:?}");
        }
    }
}
