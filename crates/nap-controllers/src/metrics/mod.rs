//! Metrics: counted where something happens, read from the index where something is.
//!
//! Counters, histograms and summaries are kept in [`Metrics`] and written by one line where the
//! thing happens. Gauges about the cluster are computed from the index at each scrape
//! ([`state`]), so that no series outlives its object.

pub mod catalogue;
mod document;
mod registry;
mod state;
mod status;

use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use nap_api::duration::parse_go_duration;
use nap_api::nodepool::{ConsolidationPolicy, DisruptionReason};
use nap_api::{NodeClaim, labels};
use nap_clock::Clock;
use nap_cloud::{CloudError, ErrorClass};

pub use document::{document, sample};
pub use registry::{MAX_SERIES, Metric, MetricKind, Registry};
pub(crate) use state::dollars;

use crate::cluster::{Milestone, Transition, pool_of};
use crate::context::Context;
use crate::events::Severity;
use crate::events::catalogue::FINALIZED;
use catalogue as table;

/// The provider in the metrics of cloud calls, as the incumbent names it.
const PROVIDER: &str = "azure";
/// The controller in the metrics of plans, as the incumbent names it.
pub const PROVISIONER: &str = "provisioner";

/// Series of what has happened.
#[derive(Default)]
pub struct Metrics(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    registry: Registry,
    /// Time since which the index is not complete; `None` while it is, and before it was asked.
    unsynced: Option<Timestamp>,
    /// The plan that is being made: its pods, and since when.
    planning: Option<(usize, Timestamp)>,
    /// Events that were dropped.
    commit: &'static str,
}

impl Metrics {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one.
    pub fn increment(&self, metric: &'static Metric, labels: &[&str]) {
        self.add(metric, labels, 1);
    }

    /// Counts several.
    pub fn add(&self, metric: &'static Metric, labels: &[&str], amount: usize) {
        self.kept().registry.add(metric, labels, number(amount));
    }

    /// Sets a gauge that the index does not show.
    pub fn set(&self, metric: &'static Metric, labels: &[&str], value: f64) {
        self.kept().registry.set(metric, labels, value);
    }

    /// Replaces every series of a gauge.
    pub fn replace<'l>(
        &self,
        metric: &'static Metric,
        series: impl IntoIterator<Item = (Vec<&'l str>, usize)>,
    ) {
        let mut kept = self.kept();
        kept.registry.clear(metric);
        for (labels, value) in series {
            kept.registry.set(metric, &labels, number(value));
        }
    }

    /// Records a duration.
    pub fn observe(&self, metric: &'static Metric, labels: &[&str], duration: SignedDuration) {
        let seconds = duration.as_secs_f64().max(0.0);
        self.kept().registry.observe(metric, labels, seconds);
    }

    /// The commit of the running binary.
    pub fn set_commit(&self, commit: &'static str) {
        self.kept().commit = commit;
    }

    /// The plan that is being made: its pods, and since when; `None` once it is there.
    pub fn set_planning(&self, planning: Option<(usize, Timestamp)>) {
        self.kept().planning = planning;
    }

    /// Measures a call of the cloud provider.
    pub async fn cloud_call<T>(
        &self,
        clock: &Clock,
        (controller, method): (&str, &str),
        nodepool: &str,
        call: impl Future<Output = Result<T, CloudError>>,
    ) -> Result<T, CloudError> {
        let begun = clock.now();
        let answer = call.await;
        let labels = [controller, method, PROVIDER];
        self.observe(&table::CLOUD_DURATION, &labels, clock.now().duration_since(begun));
        if let Err(error) = &answer {
            let labels = [controller, method, PROVIDER, error_name(error.class), nodepool];
            self.increment(&table::CLOUD_ERRORS, &labels);
        }
        answer
    }
}

/// The incumbent's name of an error of the cloud provider.
fn error_name(class: ErrorClass) -> &'static str {
    match class {
        ErrorClass::NotFound => "NodeClaimNotFoundError",
        ErrorClass::NodeClassNotReady => "NodeClassNotReadyError",
        ErrorClass::Capacity | ErrorClass::Quota => "InsufficientCapacityError",
        _ => "unknown",
    }
}

/// A number as a sample.
#[expect(clippy::cast_precision_loss, reason = "samples are floats")]
pub(crate) fn number(amount: usize) -> f64 {
    amount as f64
}

/// The value of a label of a NodeClaim or a Node; empty if it has none.
pub(crate) fn label<'o>(object: &'o impl ResourceExt, key: &str) -> &'o str {
    object.labels().get(key).map_or("", String::as_str)
}

/// A reason as a label value: `NodePoolDrifted` becomes `node_pool_drifted`.
pub(crate) fn snake(text: &str) -> String {
    let mut snake = String::with_capacity(text.len() + 4);
    for (position, letter) in text.char_indices() {
        if letter.is_uppercase() && position > 0 {
            snake.push('_');
        }
        snake.extend(letter.to_lowercase());
    }
    snake
}

/// How a NodeClaim is terminated: without a bound, with one, or at once.
fn termination_mode(claim: &NodeClaim) -> &'static str {
    match claim.spec.termination_grace_period.as_deref().map(parse_go_duration) {
        None | Some(None) => "graceful",
        Some(Some(grace)) if grace.is_zero() => "forceful",
        Some(Some(_)) => "eventual",
    }
}

/// A reason for which a NodeClaim is deleted, as a label value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disrupted {
    /// By a disruption command.
    Command(DisruptionReason),
    /// For another reason.
    Other(&'static str),
}

impl Context {
    /// Counts the deletion of a NodeClaim that was decided, with the pods that have to move.
    pub(crate) fn count_disrupted(&self, claim: &NodeClaim, why: Disrupted, pods: usize) {
        let pool = pool_of(claim).unwrap_or_default();
        let reason = match why {
            Disrupted::Command(reason) => snake(reason.as_str()),
            Disrupted::Other(reason) => reason.to_owned(),
        };
        let consolidates = matches!(
            why,
            Disrupted::Command(DisruptionReason::Underutilized | DisruptionReason::Empty)
        );
        let policy = self.index().pool(pool).map(|pool| pool.spec.disruption.consolidation_policy);
        let policy = policy.filter(|_| consolidates).map(policy_name).unwrap_or_default();
        let capacity_type = label(claim, labels::CAPACITY_TYPE);
        let labels = [&reason, pool, capacity_type, &policy, termination_mode(claim)];
        self.metrics.increment(&table::NODECLAIMS_DISRUPTED, &labels);
        if pods > 0 {
            self.metrics.add(&table::PODS_DISRUPTION_INITIATED, &labels, pods);
        }
    }

    /// Counts a node whose repair was decided.
    pub(crate) fn count_repaired(&self, claim: &NodeClaim, condition: &str) {
        let image = claim.status.as_ref().and_then(|status| status.image_id.as_deref());
        let labels = [
            &snake(condition),
            pool_of(claim).unwrap_or_default(),
            label(claim, labels::CAPACITY_TYPE),
            image.unwrap_or_default(),
            termination_mode(claim),
        ];
        self.metrics.increment(&table::NODECLAIMS_UNHEALTHY_DISRUPTED, &labels);
    }

    /// Counts what the index has noticed.
    pub(crate) fn count_milestones(&self, milestones: &[Milestone]) {
        for milestone in milestones {
            match milestone {
                Milestone::Bound { age, waited, dynamic } => {
                    let dynamic = if *dynamic { "true" } else { "false" };
                    self.metrics.observe(&table::PODS_BOUND_DURATION, &[dynamic], *age);
                    if let Some(waited) = waited {
                        let metric = &table::PODS_PROVISIONING_BOUND_DURATION;
                        self.metrics.observe(metric, &[dynamic], *waited);
                    }
                }
                Milestone::Ready { age, waited } => {
                    self.metrics.observe(&table::PODS_STARTUP_DURATION, &[], *age);
                    if let Some(waited) = waited {
                        let metric = &table::PODS_PROVISIONING_STARTUP_DURATION;
                        self.metrics.observe(metric, &[], *waited);
                    }
                }
                Milestone::Transition(transition) => self.count_transition(transition),
            }
        }
    }

    fn count_transition(&self, transition: &Transition) {
        let Transition { object, labels, type_, from, to, lasted, .. } = transition;
        let group = group_of(object.api_version.as_deref().unwrap_or_default());
        let kind = object.kind.as_deref().unwrap_or_default();
        let Some(status) = status::of_kind(kind) else { return };
        let own = status.label_values(labels);
        let into: [&str; 3] = [type_, &to.status, &to.reason];
        let between: [&str; 3] = [type_, from, &to.status];
        let object = [group, kind];
        let labels = [&into[..], own.as_slice()].concat();
        self.metrics.increment(&status.transitions_total, &labels);
        if status.is_in_kindless {
            self.metrics.increment(&table::CONDITION_TRANSITIONS, &[&object[..], &into].concat());
        }
        let Some(lasted) = *lasted else { return };
        let labels = [&between[..], own.as_slice()].concat();
        self.metrics.observe(&status.transition_seconds, &labels, lasted);
        if status.is_in_kindless {
            let labels = [&object[..], &between].concat();
            self.metrics.observe(&table::CONDITION_TRANSITION_SECONDS, &labels, lasted);
        }
    }

    /// Counts and publishes the end of an object that was being deleted, by its last finalizer.
    pub(crate) fn report_gone<K: kube::Resource<DynamicType = ()>>(
        &self,
        object: &K,
        finalizer: &str,
    ) {
        let message = format!("Finalized {finalizer}");
        self.events.publish(object, Severity::Normal, FINALIZED, &message);
        let Some(deleted) = object.meta().deletion_timestamp.as_ref() else { return };
        let (group, kind) = (K::group(&()), K::kind(&()));
        let after = self.clock.now().duration_since(deleted.0);
        let Some(status) = status::of_kind(&kind) else { return };
        let own = object.meta().labels.clone().unwrap_or_default();
        let own = status.label_values(&own);
        self.metrics.observe(&status.termination_duration_seconds, &own, after);
        if status.is_in_kindless {
            self.metrics.observe(&table::OBJECT_TERMINATION_DURATION, &[&group, &kind], after);
        }
    }

    /// The text of a scrape.
    pub fn render_metrics(&self) -> String {
        let state = state::registry(self);
        let kept = self.metrics.kept();
        let mut text = String::new();
        for metric in table::all() {
            kept.registry.write(metric, &mut text);
            state.write(metric, &mut text);
        }
        text
    }
}

/// The group of an `apiVersion`; empty for core.
fn group_of(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

/// The consolidation policy of a NodePool as a label value.
pub(crate) fn policy_name(policy: ConsolidationPolicy) -> String {
    let name = serde_json::to_value(policy).ok();
    snake(name.as_ref().and_then(|name| name.as_str()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::claim;
    use serde_json::json;

    #[test]
    fn label_values_are_snake_case() {
        assert_eq!(snake("Underutilized"), "underutilized");
        assert_eq!(snake("WhenEmptyOrUnderutilized"), "when_empty_or_underutilized");
        assert_eq!(snake(""), "");
        assert_eq!(policy_name(ConsolidationPolicy::WhenEmpty), "when_empty");
    }

    #[test]
    fn the_grace_period_is_the_termination_mode() {
        let with = |grace: Option<&str>| {
            termination_mode(&claim("c", json!({ "spec": { "terminationGracePeriod": grace } })))
        };
        assert_eq!(
            (with(None), with(Some("1h")), with(Some("0s"))),
            ("graceful", "eventual", "forceful")
        );
    }
}
