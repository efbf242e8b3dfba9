//! The pods that wait, grouped into classes of pods that all filters treat alike.
//!
//! A class that was refused is left alone until a change may help it. Its members get the condition
//! `PodScheduled` at once; when only the message changes, it is written again after a pause that
//! doubles, so that thousands of waiting pods are not written for every node that joins.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use nap_units::Resources;

use super::{Helps, Refusal, nomination, priority, relations};
use crate::cluster::index::{Key, key};
use crate::cluster::{pods, storage};

/// First and longest pause before a message is written again.
const PAUSE: SignedDuration = SignedDuration::from_secs(1);
const MAX_PAUSE: SignedDuration = SignedDuration::from_mins(5);

/// Hash of what filters read of a pod; a nominated pod has a class of its own, since its own
/// nomination does not count against it.
pub(super) type ClassId = (u64, Option<String>);

/// Highest priority, then the oldest.
type Order = (Reverse<i32>, Option<Timestamp>, Key);

#[derive(Debug)]
struct Waiting {
    pod: Arc<Pod>,
    class: ClassId,
    order: Order,
}

#[derive(Debug, Default)]
struct Class {
    members: BTreeSet<Order>,
    has_rules: bool,
    nominated_to: Option<String>,
    /// Why all members are unschedulable in the unchanged cluster; `None` if they are to be tried.
    refusal: Option<Refusal>,
    /// Members that have not been told.
    untold: BTreeSet<Key>,
    /// Message that the members were told last.
    told: Option<String>,
    /// Whether members may show another message.
    is_stale: bool,
    pause: SignedDuration,
    next_refresh: Timestamp,
}

/// The waiting pods.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pods: BTreeMap<Key, Waiting>,
    classes: BTreeMap<ClassId, Class>,
    /// The first member of each class that is to be tried.
    ready: BTreeSet<(Order, ClassId)>,
    /// Priority and requests of nominated pods, by node.
    nominated: BTreeMap<String, BTreeMap<Key, (i32, Resources)>>,
}

impl Queue {
    /// Adds a pod, or its new version; one that was refused before may wait for its nominated node.
    pub(super) fn put(&mut self, pod: &Arc<Pod>, awaits_node: bool) {
        let of = key(&**pod);
        let class = class_of(pod);
        let held = self.pods.get(&of).map(|held| (held.class.clone(), held.pod.uid()));
        // The loss of a nomination is no reason to try again, nor is one to a node that is closed.
        let refusal = held
            .filter(|(held, uid)| held.0 == class.0 && *uid == pod.uid())
            .filter(|_| awaits_node || nomination(pod).is_none())
            .and_then(|(held, _)| self.classes.get(&held)?.refusal.clone());
        let shown = pods::condition(pod, "PodScheduled").filter(|(status, _)| *status == "False");
        let refusal = refusal.or_else(|| {
            let (_, message) = shown.filter(|_| awaits_node)?;
            Some(Refusal { reason: "Unschedulable", message: message.to_owned() })
        });
        self.take(&of);
        let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let order = (Reverse(priority(pod)), created, of.clone());
        if let (Some(node), Some(spec)) = (nomination(pod), pod.spec.as_ref()) {
            let needs = (priority(pod), pods::occupies(spec));
            self.nominated.entry(node.to_owned()).or_default().insert(of.clone(), needs);
        }
        let is_new = !self.classes.contains_key(&class);
        let group = self.classes.entry(class.clone()).or_default();
        if is_new {
            let rules = pod.spec.as_ref().is_some_and(relations::has_rules);
            group.has_rules = rules || storage::uses_claims(pod);
            group.nominated_to = nomination(pod).map(str::to_owned);
            group.refusal = refusal;
            group.pause = PAUSE;
        }
        match (shown, &group.refusal) {
            (None, _) => {
                group.untold.insert(of.clone());
            }
            // The message of a nominated pod waits: writing it would end the nomination.
            (Some((_, message)), Some(refusal)) if group.nominated_to.is_none() => {
                group.is_stale |= message != refusal.message;
            }
            (Some(_), _) => {}
        }
        group.members.insert(order.clone());
        self.pods.insert(of, Waiting { pod: Arc::clone(pod), class: class.clone(), order });
        self.update_ready(&class);
    }

    /// Removes a pod that waits no longer. If it does not run on its nominated node, its place
    /// there may help others.
    pub(super) fn remove(&mut self, of: &Key, bound_to: Option<&str>) {
        let Some(held) = self.take(of) else { return };
        if let Some(node) = nomination(&held.pod).filter(|node| Some(*node) != bound_to) {
            self.wake(Helps::Through(node));
        }
    }

    fn take(&mut self, of: &Key) -> Option<Waiting> {
        let held = self.pods.remove(of)?;
        if let Some(node) = nomination(&held.pod)
            && let Some(nominated) = self.nominated.get_mut(node)
        {
            nominated.remove(of);
            if nominated.is_empty() {
                self.nominated.remove(node);
            }
        }
        if let Some(class) = self.classes.get_mut(&held.class) {
            self.ready.remove(&(held.order.clone(), held.class.clone()));
            class.members.remove(&held.order);
            class.untold.remove(of);
            if class.members.is_empty() {
                self.classes.remove(&held.class);
            } else {
                self.update_ready(&held.class);
            }
        }
        Some(held)
    }

    /// Enters the first member of a class that is to be tried.
    fn update_ready(&mut self, id: &ClassId) {
        let Some(class) = self.classes.get(id) else { return };
        let mut members = class.members.iter();
        if let (Some(first), None) = (members.next(), &class.refusal) {
            if let Some(second) = members.next() {
                self.ready.remove(&(second.clone(), id.clone()));
            }
            self.ready.insert((first.clone(), id.clone()));
        }
    }

    /// The next pod to try.
    pub(super) fn next(&self) -> Option<(ClassId, Arc<Pod>)> {
        let (order, class) = self.ready.first()?;
        Some((class.clone(), Arc::clone(&self.pods.get(&order.2)?.pod)))
    }

    /// Has the classes tried again that a change may help.
    pub(super) fn wake(&mut self, helps: Helps<'_>) {
        for (id, class) in &mut self.classes {
            let is_helped = match helps {
                Helps::All => true,
                Helps::Through(node) => {
                    class.nominated_to.as_ref().is_none_or(|nominated| nominated == node)
                }
                Helps::WithRules => class.has_rules && class.nominated_to.is_none(),
            };
            if class.refusal.is_some() && is_helped {
                class.refusal = None;
                let first = class.members.first().cloned();
                self.ready.extend(first.map(|first| (first, id.clone())));
            }
        }
    }

    /// Records that no member of a class has a place.
    pub(super) fn refuse(&mut self, id: &ClassId, refusal: Refusal, now: Timestamp) {
        let Some(class) = self.classes.get_mut(id) else { return };
        if let Some(first) = class.members.first() {
            self.ready.remove(&(first.clone(), id.clone()));
        }
        // A nominated pod that fits nowhere loses its nomination.
        if id.1.is_some() {
            class.untold.extend(class.members.iter().map(|order| order.2.clone()));
        }
        class.is_stale = class.told.as_ref().is_some_and(|told| *told != refusal.message);
        if class.told.is_none() {
            class.told = Some(refusal.message.clone());
            class.next_refresh = now.checked_add(class.pause).unwrap_or(now);
        }
        class.refusal = Some(refusal);
    }

    /// The pods whose refusal is to be written now.
    pub(super) fn take_untold(&mut self, now: Timestamp) -> Vec<(Key, Refusal)> {
        let mut all = Vec::new();
        for class in self.classes.values_mut() {
            let Some(refusal) = &class.refusal else { continue };
            if class.is_stale && class.next_refresh <= now {
                class.is_stale = false;
                class.told = Some(refusal.message.clone());
                class.pause = (class.pause * 2).min(MAX_PAUSE);
                class.next_refresh = now.checked_add(class.pause).unwrap_or(now);
                class.untold.clear();
                let members = class.members.iter().map(|order| order.2.clone());
                all.extend(members.map(|key| (key, refusal.clone())));
            } else {
                let untold = std::mem::take(&mut class.untold);
                all.extend(untold.into_iter().map(|key| (key, refusal.clone())));
            }
        }
        all
    }

    /// When the next message is due to be written again.
    pub(super) fn next_refresh(&self) -> Option<Timestamp> {
        let stale = self.classes.values().filter(|class| class.is_stale && class.refusal.is_some());
        stale.map(|class| class.next_refresh).min()
    }

    /// Resources that must be free on a node for a pod: its own requests and those of the other
    /// pods nominated there with the same or a higher priority.
    pub(super) fn with_nominated<'r>(
        &self,
        node: &str,
        pod: &Pod,
        needs: &'r Resources,
    ) -> Cow<'r, Resources> {
        let Some(nominated) = self.nominated.get(node) else { return Cow::Borrowed(needs) };
        let mut all = needs.clone();
        for (who, (urgency, amount)) in nominated {
            if *who != key(pod) && *urgency >= priority(pod) {
                all.add(amount);
            }
        }
        Cow::Owned(all)
    }
}

fn class_of(pod: &Pod) -> ClassId {
    let mut hasher = DefaultHasher::new();
    (&pod.metadata.namespace, pod.labels()).hash(&mut hasher);
    hasher.write(&serde_json::to_vec(&pod.spec).unwrap_or_default());
    let own = nomination(pod).map(|node| format!("{node} {}", pod.uid().unwrap_or_default()));
    (hasher.finish(), own)
}
