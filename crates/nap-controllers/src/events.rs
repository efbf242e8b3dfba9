//! Kubernetes events: stamped by the injected clock, deduplicated, limited, and posted by a task of
//! their own, so that no decision waits for one.
//!
//! kube's own recorder stamps wall-clock time and names events by it, which a simulation cannot
//! repeat.

use std::collections::{BTreeMap, VecDeque};
use std::hash::Hasher;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, Time};
use kube::api::PostParams;
use kube::{Api, Client, Resource};
use nap_clock::Clock;
use tokio::sync::mpsc;

use crate::cluster::Pod;
use crate::metrics::{Metrics, catalogue};

/// Source of the events, as published guides select them by.
pub const COMPONENT: &str = "karpenter";
/// Time within which the same event about the same object is not repeated.
const QUIET: SignedDuration = SignedDuration::from_mins(2);
/// The same for pods that cannot be scheduled.
const QUIET_UNSCHEDULABLE: SignedDuration = SignedDuration::from_mins(5);
/// Most events that are remembered to suppress repeats; the oldest are forgotten first.
const MAX_REMEMBERED: usize = 10_000;
/// Most events that wait to be posted; further ones are dropped.
const MAX_WAITING: usize = 1000;
/// Events about one object that may be posted at once; one more is allowed per [`REFILL`].
const OBJECT_BURST: i64 = 25;
const REFILL: SignedDuration = SignedDuration::from_mins(5);
/// `Nominated` events per second over all pods, and at once.
const NOMINATED: (i64, i64) = (5, 10);

/// Type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Expected operation.
    Normal,
    /// A problem that a user should look at.
    Warning,
}

impl Severity {
    /// The type of the event.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// An object that events are about.
pub trait Regarding {
    /// A reference to the object.
    fn reference(&self) -> ObjectReference;
}

impl<K: Resource<DynamicType = ()>> Regarding for K {
    fn reference(&self) -> ObjectReference {
        self.object_ref(&())
    }
}

impl Regarding for Pod {
    fn reference(&self) -> ObjectReference {
        self.object_ref()
    }
}

/// Publishes events.
pub struct Recorder {
    client: Client,
    clock: Clock,
    limits: Mutex<Limits>,
    metrics: Arc<Metrics>,
    waiting: mpsc::Sender<Event>,
    posted: tokio::sync::Mutex<mpsc::Receiver<Event>>,
}

impl Recorder {
    /// Creates a recorder.
    pub fn new(client: Client, clock: Clock, metrics: Arc<Metrics>) -> Self {
        let (waiting, posted) = mpsc::channel(MAX_WAITING);
        let limits = Mutex::default();
        let posted = tokio::sync::Mutex::new(posted);
        Self { client, clock, limits, metrics, waiting, posted }
    }

    /// Queues an event about an object, unless it repeats an earlier one or there are too many. No
    /// decision depends on an event: one that cannot be posted is dropped.
    pub fn publish(
        &self,
        object: &impl Regarding,
        severity: Severity,
        reason: &str,
        message: &str,
    ) {
        let now = self.clock.now();
        let reference = object.reference();
        let name = reference.name.clone().unwrap_or_default();
        let of = format!(
            "{}/{}",
            reference.kind.as_deref().unwrap_or_default(),
            reference.uid.as_deref().unwrap_or(&name)
        );
        let mut limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        if !limits.admit(&of, reason, message, now) {
            return;
        }
        drop(limits);
        self.metrics.increment(&catalogue::EVENTS, &[severity.as_str(), reason]);
        let namespace = reference.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let event = event(reference, &namespace, &name, severity, reason, message, now);
        if self.waiting.try_send(event).is_err() {
            tracing::debug!(reason, "event dropped: too many wait");
            self.metrics.increment(&catalogue::EVENTS_DROPPED, &[]);
        }
    }

    /// Posts queued events, one after the other, until dropped.
    pub async fn post(&self) {
        let mut posted = self.posted.lock().await;
        while let Some(event) = posted.recv().await {
            let namespace = event.metadata.namespace.clone().unwrap_or_default();
            let api: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
            if let Err(error) = api.create(&PostParams::default(), &event).await {
                tracing::debug!(%error, reason = event.reason, "event not published");
            }
        }
    }
}

/// What was published lately.
#[derive(Default)]
struct Limits {
    /// When an event was last published, by its hash, and the hashes from old to new.
    recent: BTreeMap<u64, Timestamp>,
    order: VecDeque<(Timestamp, u64)>,
    objects: BTreeMap<String, TokenBucket>,
    nominated: TokenBucket,
}

impl Limits {
    /// Whether an event is to be published. If so, it is remembered.
    fn admit(&mut self, of: &str, reason: &str, message: &str, now: Timestamp) -> bool {
        let key = hash([of, reason, message]);
        let quiet = if reason == "FailedScheduling" { QUIET_UNSCHEDULABLE } else { QUIET };
        if self.recent.get(&key).is_some_and(|last| now.duration_since(*last) < quiet) {
            return false;
        }
        let (rate, burst) = NOMINATED;
        let second = SignedDuration::from_secs(1);
        if reason == "Nominated" && !self.nominated.take(burst, second, rate, now) {
            return false;
        }
        if self.objects.len() >= MAX_REMEMBERED {
            self.objects.retain(|_, bucket| !bucket.is_full(REFILL, 1, now));
        }
        let bucket = self.objects.entry(of.to_owned()).or_default();
        if !bucket.take(OBJECT_BURST, REFILL, 1, now) {
            return false;
        }
        self.recent.insert(key, now);
        self.order.push_back((now, key));
        while self.order.len() > MAX_REMEMBERED {
            let Some((then, key)) = self.order.pop_front() else { break };
            if self.recent.get(&key) == Some(&then) {
                self.recent.remove(&key);
            }
        }
        true
    }
}

/// A bucket of tokens that refills over time; it starts full.
#[derive(Clone, Copy, Debug, Default)]
struct TokenBucket {
    used: i64,
    since: Option<Timestamp>,
}

impl TokenBucket {
    /// Takes one of `burst` tokens, of which `count` come back per `period`.
    fn take(&mut self, burst: i64, period: SignedDuration, count: i64, now: Timestamp) -> bool {
        self.refill(period, count, now);
        let left = self.used < burst;
        self.used += i64::from(left);
        left
    }

    fn is_full(&self, period: SignedDuration, count: i64, now: Timestamp) -> bool {
        let mut later = *self;
        later.refill(period, count, now);
        later.used == 0
    }

    fn refill(&mut self, period: SignedDuration, count: i64, now: Timestamp) {
        let since = *self.since.get_or_insert(now);
        let one = period.as_millis() / i128::from(count);
        let back = now.duration_since(since).as_millis() / one;
        self.used = self.used.saturating_sub(i64::try_from(back).unwrap_or(i64::MAX)).max(0);
        let passed = i64::try_from(back * one).unwrap_or(i64::MAX);
        let passed = SignedDuration::from_millis(passed);
        self.since =
            Some(if self.used == 0 { now } else { since.saturating_add(passed).unwrap_or(now) });
    }
}

fn hash<'a>(texts: impl IntoIterator<Item = &'a str>) -> u64 {
    let mut hasher = fnv::FnvHasher::default();
    for text in texts {
        hasher.write(text.as_bytes());
        hasher.write_u8(0);
    }
    hasher.finish()
}

fn event(
    mut reference: ObjectReference,
    namespace: &str,
    name: &str,
    severity: Severity,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> Event {
    reference.namespace.get_or_insert_with(String::new);
    // The name must be unique, and the same in a repeated simulation.
    let mut hasher = fnv::FnvHasher::default();
    for bytes in [reason.as_bytes(), message.as_bytes(), &now.as_nanosecond().to_le_bytes()] {
        hasher.write(bytes);
    }
    let hash = hasher.finish();
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{name}.{hash:016x}")),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            namespace: reference.namespace.filter(|namespace| !namespace.is_empty()),
            ..reference
        },
        type_: Some(severity.as_str().to_owned()),
        reason: Some(reason.to_owned()),
        message: Some(cut(message)),
        source: Some(EventSource { component: Some(COMPONENT.to_owned()), host: None }),
        reporting_component: Some(COMPONENT.to_owned()),
        reporting_instance: Some(COMPONENT.to_owned()),
        action: Some(reason.to_owned()),
        event_time: Some(MicroTime(now)),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        count: Some(1),
        ..Event::default()
    }
}

/// Shortens a message to the 1,024 characters that Kubernetes accepts.
fn cut(message: &str) -> String {
    if message.chars().count() <= 1024 {
        return message.to_owned();
    }
    message.chars().take(1021).chain("...".chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    fn admit(limits: &mut Limits, of: &str, reason: &str, message: &str, second: i64) -> bool {
        limits.admit(of, reason, message, at(second))
    }

    #[test]
    fn an_event_is_repeated_after_its_quiet_time() {
        let mut limits = Limits::default();
        assert!(admit(&mut limits, "Node/a", "Draining", "x", 0));
        assert!(!admit(&mut limits, "Node/a", "Draining", "x", 119));
        assert!(admit(&mut limits, "Node/a", "Draining", "y", 119));
        assert!(admit(&mut limits, "Node/b", "Draining", "x", 119));
        assert!(admit(&mut limits, "Node/a", "Draining", "x", 120));
        assert!(admit(&mut limits, "Pod/a", "FailedScheduling", "x", 0));
        assert!(!admit(&mut limits, "Pod/a", "FailedScheduling", "x", 299));
    }

    #[test]
    fn an_object_has_a_burst_of_events_and_then_one_per_five_minutes() {
        let mut limits = Limits::default();
        let mut messages = (0..).map(|number| number.to_string());
        let mut next =
            |second| admit(&mut limits, "Pod/a", "Odd", &messages.next().unwrap(), second);
        assert_eq!((0..40).filter(|_| next(0)).count(), 25);
        assert!(next(300) && !next(300));
    }

    #[test]
    fn nominations_are_limited_over_all_pods() {
        let mut limits = Limits::default();
        let mut pods = (0..).map(|number| format!("Pod/{number}"));
        let mut next = |second| admit(&mut limits, &pods.next().unwrap(), "Nominated", "x", second);
        assert_eq!((0..100).filter(|_| next(0)).count(), 10);
        assert_eq!((0..100).filter(|_| next(1)).count(), 5);
    }

    #[test]
    fn memory_is_bounded_and_the_oldest_is_forgotten_first() {
        let mut limits = Limits::default();
        for number in 0..=MAX_REMEMBERED {
            assert!(admit(&mut limits, &format!("Pod/{number}"), "Odd", "x", 0));
        }
        assert_eq!(limits.recent.len(), MAX_REMEMBERED);
        assert!(admit(&mut limits, "Pod/0", "Odd", "x", 0), "it was forgotten");
        assert!(!admit(&mut limits, "Pod/2", "Odd", "x", 0));
    }
}
