//! Launch: the cloud provider creates the instance of a NodeClaim.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use jiff::SignedDuration;
use kube::ResourceExt;
use nap_api::nodeclaim::condition::{LAUNCHED, REGISTERED};
use nap_api::{AKSNodeClass, NodeClaim, OfferingRef, conditions, labels};
use nap_cloud::{CloudError, Creation, ErrorClass, Instance};
use nap_engine::{CapacityType, PriceEstimates};
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use super::{Step, live_claim, nomination, registration_health, time_left};
use crate::cluster::{claim_is, pool_of, provider_id_of_claim};
use crate::context::{Context, Error};
use crate::events::Severity;
use crate::hash_migration::HashStamp;
use crate::metrics::Disrupted;

/// Time after which a NodeClaim that is not launched is deleted.
const LAUNCH_TIMEOUT: SignedDuration = SignedDuration::from_mins(5);
/// Shortest time that an attempt gets: an instance that was created before a restart is adopted
/// even if the NodeClaim is older than the timeout.
const MIN_ATTEMPT: Duration = Duration::from_secs(30);
/// Wait before a launch that failed for a passing reason is retried.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Wait for a node class that has no readiness yet.
const CLASS_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which a running launch looks for the deletion of its NodeClaim.
const INTERRUPTION_INTERVAL: Duration = Duration::from_secs(1);
/// Most instances that are created at the same time.
const MAX_LAUNCHES: usize = 1024;
/// Event reason of a launch for which no offering is left.
const INSUFFICIENT_CAPACITY: &str = "InsufficientCapacityError";
/// Event reason of an instance that was accepted and could not be created.
const ASYNC_PROVISIONING_ERROR: &str = "AsyncProvisioningError";
/// Interval at which the creation of an accepted instance is looked at.
const CREATION_INTERVAL: Duration = Duration::from_secs(5);
/// Longest message that is copied from the cloud into a condition, in characters.
const MAX_MESSAGE: usize = 1024;

/// Launches that wait for the cloud. A creation takes minutes: it keeps no other reconcile from
/// running, and launches beyond [`MAX_LAUNCHES`] wait for one to end.
#[derive(Debug)]
pub struct Launches {
    places: Semaphore,
    /// Launches that have a place or wait for one.
    running: AtomicUsize,
    changed: Notify,
}

/// A launch, until it is dropped.
pub struct Launching<'a> {
    launches: &'a Launches,
    place: Option<SemaphorePermit<'a>>,
}

impl Default for Launches {
    fn default() -> Self {
        let places = Semaphore::new(MAX_LAUNCHES);
        Self { places, running: AtomicUsize::new(0), changed: Notify::new() }
    }
}

impl Launches {
    /// Number of launches that wait for the cloud or for each other.
    pub fn running(&self) -> usize {
        self.running.load(Ordering::Acquire)
    }

    /// Waits until a launch begins or ends.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    async fn begin(&self) -> Launching<'_> {
        self.running.fetch_add(1, Ordering::AcqRel);
        self.changed.notify_one();
        let mut launching = Launching { launches: self, place: None };
        // The semaphore is never closed.
        launching.place = self.places.acquire().await.ok();
        launching
    }
}

impl Drop for Launching<'_> {
    fn drop(&mut self) {
        self.launches.running.fetch_sub(1, Ordering::AcqRel);
        self.launches.changed.notify_one();
    }
}

/// Creates the instance, or adopts the one that an earlier attempt created, and records it. A
/// NodeClaim with a provider id counts as launched, whoever wrote it.
pub async fn launch(context: &Context, name: &str) -> Result<Step, Error> {
    let Some(claim) = live_claim(context, name) else { return Ok(Step::Deleted) };
    if claim_is(&claim, LAUNCHED) || provider_id_of_claim(&claim).is_some() {
        return Ok(Step::Done);
    }
    let class_name = &claim.spec.node_class_ref.name;
    let Some(class) = class_of(context, class_name).await? else {
        let message = format!("AKSNodeClass `{class_name}` does not exist");
        return give_up(context, &claim, "NodeClassNotReady", &message).await;
    };
    match readiness(&class) {
        Readiness::Ready => {}
        Readiness::NotReady(message) => {
            let message = format!("AKSNodeClass `{class_name}` is not ready: {message}");
            return give_up(context, &claim, "NodeClassNotReady", &message).await;
        }
        Readiness::Unknown => {
            let message = format!("AKSNodeClass `{class_name}` has no readiness yet");
            let reason = "NodeClassReadinessUnknown";
            return wait(context, &claim, reason, &message, CLASS_INTERVAL).await;
        }
    }
    let plan = context.index().plan(name).cloned();
    let offerings = plan.as_ref().map(|plan| plan.offerings.as_slice()).unwrap_or_default();
    let _launching = tokio::select! {
        biased;
        launching = context.launches.begin() => launching,
        () = deleted(context, &claim) => return Ok(Step::Deleted),
    };
    tokio::select! {
        biased;
        created = create(context, &claim, &class, offerings) => match created {
            Ok(instance) => record(context, &claim, &class, &instance, offerings).await,
            Err(error) => fail(context, &claim, error).await,
        },
        interruption = interruption(context, &claim) => match interruption {
            Interruption::Deleted => Ok(Step::Deleted),
            Interruption::TimedOut => time_out(context, &claim).await,
        },
    }
}

async fn create(
    context: &Context,
    claim: &NodeClaim,
    class: &AKSNodeClass,
    offerings: &[OfferingRef],
) -> Result<Instance, CloudError> {
    let call = context.cloud.create(claim, class, offerings);
    let pool = pool_of(claim).unwrap_or_default();
    let from = ("nodeclaim.lifecycle", "Create");
    context.metrics.cloud_call(&context.clock, from, pool, call).await
}

/// Looks whether the instance of a launched NodeClaim comes to exist, until its Node is there. A
/// NodeClaim whose instance could not be created is deleted, so that its pods are planned again.
pub async fn watch_creation(context: &Context, name: &str) -> Result<Step, Error> {
    let Some(claim) = live_claim(context, name) else { return Ok(Step::Deleted) };
    if claim_is(&claim, REGISTERED) || !claim_is(&claim, LAUNCHED) {
        return Ok(Step::Done);
    }
    // A Node that has joined proves its instance, and is not kept waiting for the cloud.
    let id = provider_id_of_claim(&claim).unwrap_or_default();
    if !context.index().nodes_with_provider_id(id).is_empty() {
        return Ok(Step::Done);
    }
    // What cannot be read is no failure: the next look may tell.
    match context.cloud.creation(&claim).await {
        Ok(Creation::InProgress) => Ok(Step::DoneUntil(CREATION_INTERVAL)),
        Ok(Creation::Succeeded) => Ok(Step::Done),
        Ok(Creation::Failed(error)) => fail(context, &claim, error).await,
        Err(error) => {
            tracing::warn!(nodeclaim = name, %error, "cannot tell the state of the instance");
            Ok(Step::DoneUntil(CREATION_INTERVAL))
        }
    }
}

/// Waits until a NodeClaim is gone or being deleted.
async fn deleted(context: &Context, claim: &NodeClaim) {
    let name = claim.name_any();
    while live_claim(context, &name).is_some_and(|known| known.uid() == claim.uid()) {
        context.clock.sleep(INTERRUPTION_INTERVAL).await;
    }
}

/// A node class. One that the index lacks is read.
async fn class_of(context: &Context, name: &str) -> Result<Option<Arc<AKSNodeClass>>, Error> {
    let indexed = context.index().class(name).cloned();
    match indexed {
        Some(class) => Ok(Some(class)),
        None => Ok(context.read_class(name).await?.map(Arc::new)),
    }
}

/// Whether a node class can launch instances.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Readiness {
    Ready,
    /// It cannot, for this reason.
    NotReady(String),
    /// Its current spec was not inspected yet.
    Unknown,
}

fn readiness(class: &AKSNodeClass) -> Readiness {
    if class.metadata.deletion_timestamp.is_some() {
        return Readiness::NotReady("it is being deleted".to_owned());
    }
    let conditions = class.status.as_ref().map(|status| status.conditions.as_slice());
    let ready = conditions::get(conditions.unwrap_or_default(), conditions::READY);
    let is_current = |observed: i64| Some(observed) == class.metadata.generation;
    match ready.filter(|ready| ready.observed_generation.is_none_or(is_current)) {
        Some(ready) if ready.status == "True" => Readiness::Ready,
        Some(ready) if ready.status == "False" => Readiness::NotReady(ready.message.clone()),
        _ => Readiness::Unknown,
    }
}

/// Reason to stop a running launch. The instance, if there is one by then, is found by the name of
/// the NodeClaim when that is finalized.
enum Interruption {
    /// The NodeClaim is gone or being deleted.
    Deleted,
    /// The NodeClaim is not launched in time.
    TimedOut,
}

async fn interruption(context: &Context, claim: &NodeClaim) -> Interruption {
    let left = time_left(claim, LAUNCHED, LAUNCH_TIMEOUT, context.clock.now());
    tokio::select! {
        biased;
        () = deleted(context, claim) => Interruption::Deleted,
        () = context.clock.sleep(left.unwrap_or_default().max(MIN_ATTEMPT)) => {
            Interruption::TimedOut
        }
    }
}

async fn record(
    context: &Context,
    claim: &NodeClaim,
    class: &AKSNodeClass,
    instance: &Instance,
    offerings: &[OfferingRef],
) -> Result<Step, Error> {
    let name = claim.name_any();
    let stamp = HashStamp::of_class(class);
    let price = price(instance, offerings, context.cloud.price_estimates());
    context
        .update::<NodeClaim>(&name, |claim| {
            if provider_id_of_claim(claim).is_some() {
                return false;
            }
            let before = claim.metadata.clone();
            let own = std::mem::take(claim.labels_mut());
            *claim.labels_mut() = instance.labels.clone().into_iter().chain(own).collect();
            let annotations = claim.annotations_mut();
            annotations.extend(instance.annotations.clone());
            annotations.extend(stamp.annotations());
            annotations
                .extend(price.clone().map(|price| (labels::PRICE_PER_HOUR.to_owned(), price)));
            claim.metadata != before
        })
        .await?;
    context
        .edit_claim_status(&name, |edit| {
            if edit.status.provider_id.is_some() {
                return;
            }
            edit.status.provider_id = Some(instance.provider_id.clone());
            edit.status.image_id.clone_from(&instance.image_id);
            edit.status.capacity = instance.capacity.to_quantities();
            edit.status.allocatable = instance.allocatable.to_quantities();
            edit.set_true(LAUNCHED);
        })
        .await?;
    let what = describe(instance);
    let provider_id = &instance.provider_id;
    let recorded = live_claim(context, &name);
    let recorded = recorded.as_deref().and_then(provider_id_of_claim);
    if recorded.is_some_and(|recorded| recorded != provider_id) {
        // The status was written by another hand. Termination finds the instance by its name.
        tracing::warn!(nodeclaim = name, provider_id, recorded, "nodeclaim has another instance");
        return Ok(Step::Done);
    }
    tracing::info!(nodeclaim = name, instance = what, provider_id, "launched nodeclaim");
    let message = format!("Provisioned {what}");
    context.events.publish(claim, Severity::Normal, "Provisioned", &message);
    Ok(Step::Done)
}

/// The planned price of the offering that the instance is of, in dollars per hour, with `~` before
/// an estimate; `None` if the plan did not have it.
fn price(
    instance: &Instance,
    offerings: &[OfferingRef],
    estimates: PriceEstimates,
) -> Option<String> {
    let is = |key: &str, value: &String| instance.labels.get(key) == Some(value);
    let offering = offerings.iter().find(|offering| {
        is(labels::INSTANCE_TYPE, &offering.instance_type)
            && is(labels::ZONE, &offering.zone)
            && is(labels::CAPACITY_TYPE, &offering.capacity_type)
    })?;
    let mark = CapacityType::parse(&offering.capacity_type).map_or("", |one| estimates.mark(one));
    Some(format!("{mark}{}", offering.price.to_string().trim_start_matches('$')))
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
        ErrorClass::Capacity | ErrorClass::Quota => OnFailure::GiveUp(INSUFFICIENT_CAPACITY),
        ErrorClass::NodeClassNotReady => OnFailure::GiveUp("NodeClassNotReady"),
        ErrorClass::CreationFailed => OnFailure::GiveUp(ASYNC_PROVISIONING_ERROR),
        ErrorClass::Transient | ErrorClass::Throttled => OnFailure::Retry,
        ErrorClass::NotFound | ErrorClass::Auth | ErrorClass::Invalid => OnFailure::BackOff,
    }
}

async fn fail(context: &Context, claim: &NodeClaim, error: CloudError) -> Result<Step, Error> {
    let action = on_failure(error.class);
    if matches!(error.class, ErrorClass::NodeClassNotReady | ErrorClass::CreationFailed) {
        context.index().inspect_class(&claim.spec.node_class_ref.name);
    }
    if let OnFailure::GiveUp(reason) = action {
        return give_up(context, claim, reason, &error.to_string()).await;
    }
    let reason = if error.code.is_empty() { "LaunchFailed" } else { error.code.as_str() };
    tracing::warn!(nodeclaim = claim.name_any(), reason, %error, "launch failed, trying again");
    let message = error.condition_message();
    let step = wait(context, claim, reason, &message, RETRY_INTERVAL).await?;
    match (action, step) {
        (OnFailure::BackOff, Step::Wait(_)) => Err(Error::Cloud(error)),
        _ => Ok(step),
    }
}

/// Deletes a NodeClaim that cannot be launched, so that its pods are planned again, and says why on
/// the NodeClaim and on the pods that wait for it.
async fn give_up(
    context: &Context,
    claim: &NodeClaim,
    reason: &str,
    message: &str,
) -> Result<Step, Error> {
    let name = claim.name_any();
    tracing::warn!(nodeclaim = name, reason, message, "launch failed, deleting nodeclaim");
    let event = format!("NodeClaim {name} event: {message}");
    context.events.publish(claim, Severity::Warning, reason, &event);
    if [INSUFFICIENT_CAPACITY, ASYNC_PROVISIONING_ERROR].contains(&reason) {
        let event = format!("NodeClaim {name} nominated for this pod failed to launch: {message}");
        let waiting: Vec<Arc<crate::cluster::Pod>> = {
            let index = context.index();
            let keys = nomination::waiting_pods(&index, claim);
            keys.iter().filter_map(|key| index.pod(key).cloned()).collect()
        };
        for pod in waiting {
            context.events.publish(pod.as_ref(), Severity::Warning, reason, &event);
        }
    }
    let why = match reason {
        INSUFFICIENT_CAPACITY => "insufficient_capacity",
        ASYNC_PROVISIONING_ERROR => "async_provisioning_error",
        _ => "nodeclass_not_ready",
    };
    context.count_disrupted(claim, Disrupted::Other(why), 0);
    context.delete_claim(claim).await?;
    Ok(Step::Deleted)
}

/// Records why a NodeClaim is not launched yet. Deletes it if its time is up.
async fn wait(
    context: &Context,
    claim: &NodeClaim,
    reason: &str,
    message: &str,
    retry_after: Duration,
) -> Result<Step, Error> {
    let message = cut(message);
    let name = claim.name_any();
    context.edit_claim_status(&name, |edit| edit.set_unknown(LAUNCHED, reason, &message)).await?;
    match time_left(claim, LAUNCHED, LAUNCH_TIMEOUT, context.clock.now()) {
        Some(left) => Ok(Step::Wait(retry_after.min(left))),
        None => time_out(context, claim).await,
    }
}

async fn time_out(context: &Context, claim: &NodeClaim) -> Result<Step, Error> {
    let nodeclaim = claim.name_any();
    tracing::warn!(nodeclaim, reason = "launch_timeout", "deleting nodeclaim");
    registration_health::failed(context, claim).await?;
    context.count_disrupted(claim, Disrupted::Other("launch_timeout"), 0);
    context.delete_claim(claim).await?;
    Ok(Step::Deleted)
}

/// Shortens a message to [`MAX_MESSAGE`] characters.
fn cut(message: &str) -> String {
    if message.chars().count() <= MAX_MESSAGE {
        return message.to_owned();
    }
    message.chars().take(MAX_MESSAGE - 3).chain("...".chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::node_class;
    use serde_json::{Value, json};

    fn class(status: &Value) -> AKSNodeClass {
        let generation = json!({ "generation": 2 });
        node_class("default", json!({ "metadata": generation, "status": status }))
    }

    fn ready(status: &str, observed: Option<i64>) -> Value {
        json!({ "conditions": [{
            "type": "Ready", "status": status, "reason": "r", "message": "no subnet",
            "observedGeneration": observed, "lastTransitionTime": "1970-01-01T00:00:00Z",
        }] })
    }

    #[test]
    fn a_class_without_readiness_for_its_current_spec_is_waited_for() {
        let unknown = [json!(null), json!({}), ready("Unknown", Some(2)), ready("False", Some(1))];
        for status in unknown.iter().chain([&ready("True", Some(1))]) {
            assert_eq!(readiness(&class(status)), Readiness::Unknown, "{status}");
        }
        assert_eq!(readiness(&class(&ready("True", Some(2)))), Readiness::Ready);
        assert_eq!(readiness(&class(&ready("True", None))), Readiness::Ready);
    }

    #[test]
    fn a_class_that_is_not_ready_or_leaves_cannot_launch() {
        let problem = Readiness::NotReady("no subnet".to_owned());
        assert_eq!(readiness(&class(&ready("False", Some(2)))), problem);
        let mut leaving = class(&ready("True", Some(2)));
        let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH);
        leaving.metadata.deletion_timestamp = Some(now);
        assert!(matches!(readiness(&leaving), Readiness::NotReady(_)));
    }

    #[test]
    fn long_messages_are_cut_to_what_a_condition_holds() {
        assert_eq!(cut("short"), "short");
        let long = cut(&"x".repeat(2000));
        assert_eq!(long.len(), MAX_MESSAGE);
        assert!(long.ends_with("x..."));
    }

    #[test]
    fn capacity_and_quota_failures_delete_the_nodeclaim() {
        let give_up = OnFailure::GiveUp(INSUFFICIENT_CAPACITY);
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
