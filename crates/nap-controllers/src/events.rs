//! Kubernetes events: stamped by the injected clock, deduplicated, limited, and posted by a task of
//! their own, so that no decision waits for one.
//!
//! kube's own recorder stamps wall-clock time and names events by it, which a simulation cannot
//! repeat.
//!
//! An event that is repeated is counted up in the Event that exists, so that a pod that waits for
//! hours has one Event and not hundreds.

pub mod catalogue;

use std::collections::{BTreeMap, VecDeque};
use std::hash::Hasher;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, Time};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use nap_clock::Clock;
use tokio::sync::mpsc;

use crate::cluster::{Pod, Transition};
use crate::context::is_not_found;
use crate::metrics::{Metrics, catalogue as table};
use crate::permissions::Permission;

/// Events are created, and counted up when they are repeated.
pub const PERMISSIONS: &[Permission] = &[Permission::new("", "events", &["create", "patch"])];

/// Source of the events, as published guides select them by.
pub const COMPONENT: &str = "karpenter";
/// Time within which the same event about the same object is not repeated.
const QUIET: SignedDuration = SignedDuration::from_mins(2);
/// The same for pods that cannot be scheduled.
const QUIET_UNSCHEDULABLE: SignedDuration = SignedDuration::from_mins(5);
/// The same for nodes that stay.
const QUIET_STAYING: SignedDuration = SignedDuration::from_mins(15);
/// Most events that are remembered to suppress repeats; the oldest are forgotten first.
const MAX_REMEMBERED: usize = 10_000;
/// Most events that wait to be posted; further ones are dropped.
const MAX_WAITING: usize = 1000;
/// Events about one object that may be posted at once; one more is allowed per [`REFILL`].
const OBJECT_BURST: i64 = 25;
const REFILL: SignedDuration = SignedDuration::from_mins(5);
/// `Nominated` events per second over all pods, and at once.
const NOMINATED: (i64, i64) = (5, 10);
/// Events about conditions that wait to be posted; further ones are dropped. A burst of a thousand
/// nodes has some four thousand.
const MAX_WAITING_TRANSITIONS: usize = 10_000;
/// Time between two events about conditions: they are many, and must not use up the requests that
/// decisions need.
const TRANSITION_INTERVAL: Duration = Duration::from_millis(50);

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
    decisions: Queue,
    transitions: Queue,
}

/// Events that wait to be posted.
struct Queue {
    waiting: mpsc::Sender<Event>,
    posted: tokio::sync::Mutex<mpsc::Receiver<Event>>,
}

impl Queue {
    fn new(capacity: usize) -> Self {
        let (waiting, posted) = mpsc::channel(capacity);
        Self { waiting, posted: tokio::sync::Mutex::new(posted) }
    }
}

impl Recorder {
    /// Creates a recorder.
    pub fn new(client: Client, clock: Clock, metrics: Arc<Metrics>) -> Self {
        let (decisions, transitions) =
            (Queue::new(MAX_WAITING), Queue::new(MAX_WAITING_TRANSITIONS));
        Self { client, clock, limits: Mutex::default(), metrics, decisions, transitions }
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
        debug_assert!(
            catalogue::EVENTS.iter().any(|one| one.reason == reason && one.severity == severity),
            "{severity:?} event {reason} is not in the table"
        );
        self.queue(&self.decisions, object.reference(), severity, reason, message);
    }

    /// Queues an event about a condition that changed.
    pub(crate) fn publish_transition(&self, transition: &Transition) {
        let Transition { object, type_, from, to, .. } = transition;
        let mut message = format!(
            "Status condition transitioned, Type: {type_}, Status: {from} -> {}, Reason: {}",
            to.status, to.reason
        );
        if !to.message.is_empty() {
            message.push_str(", Message: ");
            message.push_str(&to.message);
        }
        self.queue(&self.transitions, object.clone(), Severity::Normal, type_, &message);
    }

    fn queue(
        &self,
        queue: &Queue,
        reference: ObjectReference,
        severity: Severity,
        reason: &str,
        message: &str,
    ) {
        let now = self.clock.now();
        let name = reference.name.clone().unwrap_or_default();
        let of = format!(
            "{}/{}",
            reference.kind.as_deref().unwrap_or_default(),
            reference.uid.as_deref().unwrap_or(&name)
        );
        let mut limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((named, count)) = limits.admit(&of, reason, message, now) else { return };
        drop(limits);
        self.metrics.increment(&table::EVENTS, &[severity.as_str(), reason]);
        let namespace = reference.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let mut event = event(reference, &namespace, &name, severity, reason, message, now);
        event.metadata.name = Some(format!("{name}.{named:016x}"));
        event.count = Some(count);
        if queue.waiting.try_send(event).is_err() {
            tracing::debug!(reason, "event dropped: too many wait");
            self.metrics.increment(&table::EVENTS_DROPPED, &[]);
        }
    }

    /// Posts queued events until dropped: those about conditions slowly, beside the others.
    pub async fn post(&self) {
        tokio::join!(
            self.post_queue(&self.decisions, None),
            self.post_queue(&self.transitions, Some(TRANSITION_INTERVAL)),
        );
    }

    /// Posts the events of a queue, one after the other.
    async fn post_queue(&self, queue: &Queue, interval: Option<Duration>) {
        let mut posted = queue.posted.lock().await;
        while let Some(event) = posted.recv().await {
            let namespace = event.metadata.namespace.clone().unwrap_or_default();
            let api: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
            if let Err(error) = post(&api, event).await {
                tracing::debug!(%error, "event not published");
            }
            if let Some(interval) = interval {
                self.clock.sleep(interval).await;
            }
        }
    }
}

/// Creates an Event, or counts up the one that exists.
async fn post(api: &Api<Event>, mut event: Event) -> Result<(), kube::Error> {
    if event.count > Some(1) {
        let name = event.metadata.name.clone().unwrap_or_default();
        let again = serde_json::json!({
            "count": event.count, "lastTimestamp": event.last_timestamp, "message": event.message,
        });
        match api.patch(&name, &PatchParams::default(), &Patch::Merge(again)).await {
            // The API server forgets events after an hour.
            Err(error) if is_not_found(&error) => event.count = Some(1),
            answer => return answer.map(drop),
        }
    }
    api.create(&PostParams::default(), &event).await.map(drop)
}

/// An event that was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Published {
    last: Timestamp,
    /// Hash in the name of the Event.
    named: u64,
    count: i32,
    /// Hash of the message.
    message: u64,
}

/// What was published lately.
#[derive(Default)]
struct Limits {
    /// When an event was last published, by its hash, and the hashes from old to new.
    recent: BTreeMap<u64, Published>,
    order: VecDeque<(Timestamp, u64)>,
    objects: BTreeMap<String, TokenBucket>,
    nominated: TokenBucket,
}

impl Limits {
    /// The hash in the name of an event that is to be published, and how often it was; `None` if
    /// it is not to be. It is remembered.
    fn admit(
        &mut self,
        of: &str,
        reason: &str,
        message: &str,
        now: Timestamp,
    ) -> Option<(u64, i32)> {
        let (quiet, per_object) = match reason {
            "FailedScheduling" => (QUIET_UNSCHEDULABLE, true),
            "Unconsolidatable" => (QUIET_STAYING, true),
            "NodeRepairBlocked" => (QUIET_STAYING, false),
            // Published once per generation, each of which counts.
            "ExtremePriceReachable" => (SignedDuration::ZERO, false),
            _ => (QUIET, false),
        };
        let text = hash([message]);
        // One Event per pod says why it waits, with the message of today.
        let key = if per_object { hash([of, reason]) } else { hash([of, reason, message]) };
        let known = self.recent.get(&key).copied();
        if let Some(known) = known {
            let is_news = reason == "FailedScheduling" && known.message != text;
            if now.duration_since(known.last) < quiet && !is_news {
                return None;
            }
        }
        let (rate, burst) = NOMINATED;
        let second = SignedDuration::from_secs(1);
        if reason == "Nominated" && !self.nominated.take(burst, second, rate, now) {
            return None;
        }
        if self.objects.len() >= MAX_REMEMBERED {
            self.objects.retain(|_, bucket| !bucket.is_full(REFILL, 1, now));
        }
        let bucket = self.objects.entry(of.to_owned()).or_default();
        if !bucket.take(OBJECT_BURST, REFILL, 1, now) {
            return None;
        }
        // The name must be unique, and the same in a repeated simulation.
        let fresh = hash([of, reason, message, &now.as_nanosecond().to_string()]);
        let named = known.map_or(fresh, |known| known.named);
        let count = known.map_or(1, |known| known.count.saturating_add(1));
        let published = Published { last: now, named, count, message: text };
        self.recent.insert(key, published);
        self.order.push_back((now, key));
        while self.order.len() > MAX_REMEMBERED {
            let Some((then, key)) = self.order.pop_front() else { break };
            if self.recent.get(&key).is_some_and(|known| known.last == then) {
                self.recent.remove(&key);
            }
        }
        Some((named, count))
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
    Event {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
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
        limits.admit(of, reason, message, at(second)).is_some()
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
        assert!(admit(&mut limits, "NodePool/a", "ExtremePriceReachable", "x", 0));
        assert!(admit(&mut limits, "NodePool/a", "ExtremePriceReachable", "x", 0));
    }

    #[test]
    fn a_repeated_event_is_counted_up_under_its_name() {
        let mut limits = Limits::default();
        let mut admit =
            |message: &str, second| limits.admit("Pod/a", "FailedScheduling", message, at(second));
        let (name, count) = admit("x", 0).unwrap();
        assert_eq!(count, 1);
        assert_eq!(admit("x", 299), None);
        assert_eq!(admit("x", 300), Some((name, 2)));
        assert_eq!(admit("y", 301), Some((name, 3)), "its message is brought up to date");
        let mut other = |second| limits.admit("Node/a", "Draining", "x", at(second)).unwrap();
        assert_eq!((other(0).1, other(120).1), (1, 2));
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
