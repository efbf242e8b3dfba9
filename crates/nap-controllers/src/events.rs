//! Kubernetes events, stamped by the injected clock and deduplicated.
//!
//! kube's own recorder stamps wall-clock time and names events by it, which a simulation cannot
//! repeat.

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::sync::Mutex;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, Time};
use kube::api::PostParams;
use kube::{Api, Client, Resource, ResourceExt};
use nap_clock::Clock;

/// Source of the events, as published guides select them by.
pub const COMPONENT: &str = "karpenter";
/// Time within which the same event about the same object is not repeated.
const QUIET: Duration = Duration::from_mins(2);
/// Most events that are remembered to suppress repeats.
const MAX_REMEMBERED: usize = 10_000;

/// Type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Expected operation.
    Normal,
    /// A problem that a user should look at.
    Warning,
}

/// Publishes events.
pub struct Recorder {
    client: Client,
    clock: Clock,
    recent: Mutex<BTreeMap<String, Timestamp>>,
}

impl Recorder {
    /// Creates a recorder.
    pub fn new(client: Client, clock: Clock) -> Self {
        Self { client, clock, recent: Mutex::new(BTreeMap::new()) }
    }

    /// Publishes an event about an object. A failure is logged, not returned: no decision depends
    /// on an event.
    pub async fn publish<K>(&self, object: &K, severity: Severity, reason: &str, message: &str)
    where
        K: Resource<DynamicType = ()>,
    {
        let now = self.clock.now();
        let reference = object.object_ref(&());
        let key = format!(
            "{}/{}/{reason}/{message}",
            reference.kind.as_deref().unwrap_or_default(),
            object.uid().unwrap_or_default()
        );
        if !self.is_new(key, now) {
            return;
        }
        let namespace = object.namespace().unwrap_or_else(|| "default".to_owned());
        let event = event(
            reference,
            &namespace,
            object.name_any().as_str(),
            severity,
            reason,
            message,
            now,
        );
        let api: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        if let Err(error) = api.create(&PostParams::default(), &event).await {
            tracing::debug!(%error, reason, "event not published");
        }
    }

    fn is_new(&self, key: String, now: Timestamp) -> bool {
        let mut recent = self.recent.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let quiet = SignedDuration::try_from(QUIET).unwrap_or(SignedDuration::ZERO);
        if recent.get(&key).is_some_and(|last| now.duration_since(*last) < quiet) {
            return false;
        }
        if recent.len() >= MAX_REMEMBERED {
            recent.retain(|_, last| now.duration_since(*last) < quiet);
        }
        if recent.len() < MAX_REMEMBERED {
            recent.insert(key, now);
        }
        true
    }
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
        type_: Some(if severity == Severity::Normal { "Normal" } else { "Warning" }.to_owned()),
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
