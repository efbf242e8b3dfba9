//! Milestones: changes of objects that metrics and events report and no decision reads.
//!
//! The index notices them as it stores an object, so that each is reported once, by the time it was
//! seen. What is known from a list when the process starts is no milestone.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Resource;
use nap_api::{AKSNodeClass, NodeClaim, NodePool};

use super::{Kind, Pod, pods};

/// Upper limit on milestones that wait to be reported; further ones are dropped.
pub const MAX_MILESTONES: usize = 100_000;

/// A change that is reported.
#[derive(Clone, Debug, PartialEq)]
pub enum Milestone {
    /// A pod was bound.
    Bound {
        /// Time since its creation.
        age: SignedDuration,
        /// Time since it was first seen unschedulable; `None` if it never was.
        waited: Option<SignedDuration>,
        /// Whether it has resource claims.
        dynamic: bool,
    },
    /// A pod became ready for the first time since it was bound.
    Ready {
        /// Time since its creation.
        age: SignedDuration,
        /// Time since it was first seen unschedulable; `None` if it never was.
        waited: Option<SignedDuration>,
    },
    /// A condition of an object changed its status.
    Transition(Box<Transition>),
}

/// A transition of a condition.
#[derive(Clone, Debug, PartialEq)]
pub struct Transition {
    /// Kind of the object.
    pub kind: Kind,
    /// The object.
    pub object: ObjectReference,
    /// Labels of the object.
    pub labels: BTreeMap<String, String>,
    /// Type of the condition.
    pub type_: String,
    /// Status before.
    pub from: String,
    /// The condition now.
    pub to: ObjectCondition,
    /// Time that it was in the status before; `None` if that is not known.
    pub lasted: Option<SignedDuration>,
}

/// A condition of an object of any kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectCondition {
    /// Type.
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Reason.
    pub reason: String,
    /// Message.
    pub message: String,
    /// Last transition.
    pub since: Option<Timestamp>,
}

/// An object with conditions that are reported.
pub trait Conditioned: Resource<DynamicType = ()> {
    /// Its conditions.
    fn conditions(&self) -> Vec<ObjectCondition>;
}

fn of(condition: &Condition) -> ObjectCondition {
    ObjectCondition {
        type_: condition.type_.clone(),
        status: condition.status.clone(),
        reason: condition.reason.clone(),
        message: condition.message.clone(),
        since: Some(condition.last_transition_time.0),
    }
}

impl Conditioned for NodeClaim {
    fn conditions(&self) -> Vec<ObjectCondition> {
        self.status.iter().flat_map(|status| &status.conditions).map(of).collect()
    }
}

impl Conditioned for NodePool {
    fn conditions(&self) -> Vec<ObjectCondition> {
        self.status.iter().flat_map(|status| &status.conditions).map(of).collect()
    }
}

impl Conditioned for AKSNodeClass {
    fn conditions(&self) -> Vec<ObjectCondition> {
        self.status.iter().flat_map(|status| &status.conditions).map(of).collect()
    }
}

impl Conditioned for Node {
    fn conditions(&self) -> Vec<ObjectCondition> {
        let all = self.status.iter().filter_map(|status| status.conditions.as_ref()).flatten();
        all.map(|condition| ObjectCondition {
            type_: condition.type_.clone(),
            status: condition.status.clone(),
            reason: condition.reason.clone().unwrap_or_default(),
            message: condition.message.clone().unwrap_or_default(),
            since: condition.last_transition_time.as_ref().map(|time| time.0),
        })
        .collect()
    }
}

/// The transitions between two versions of an object. A condition that is new counts as one from
/// `Unknown`, unless it is unknown.
pub fn transitions<K: Conditioned>(kind: Kind, old: &K, new: &K) -> Vec<Milestone> {
    let before = old.conditions();
    let changed = new.conditions().into_iter().filter_map(|to| {
        let known = before.iter().find(|one| one.type_ == to.type_);
        let from = known.map_or("Unknown", |one| one.status.as_str());
        if from == to.status {
            return None;
        }
        let created = new.meta().creation_timestamp.as_ref().map(|time| time.0);
        let since = known.map_or(created, |one| one.since);
        let lasted = since.and_then(|since| Some(to.since?.duration_since(since)));
        Some(Milestone::Transition(Box::new(Transition {
            kind,
            object: new.object_ref(&()),
            labels: new.meta().labels.clone().unwrap_or_default(),
            type_: to.type_.clone(),
            from: from.to_owned(),
            lasted: lasted.map(|lasted| lasted.max(SignedDuration::ZERO)),
            to,
        })))
    });
    changed.collect()
}

/// What a new version of a pod shows.
pub fn of_pod(
    old: &Pod,
    new: &Pod,
    unschedulable_since: Option<Timestamp>,
    now: Timestamp,
) -> Option<Milestone> {
    if pods::is_daemon(new) || pods::is_mirror(new) {
        return None;
    }
    let age = now.duration_since(new.created()?).max(SignedDuration::ZERO);
    let waited = unschedulable_since.map(|since| now.duration_since(since));
    if old.node().is_none() && new.node().is_some() {
        let dynamic = new.spec().resource_claims.as_ref().is_some_and(|claims| !claims.is_empty());
        return Some(Milestone::Bound { age, waited, dynamic });
    }
    let became_ready = old.ready() != Some(true) && new.ready() == Some(true);
    // A pod that was ready before has been started long ago.
    let first = old
        .started()
        .is_none_or(|started| now.duration_since(started) < SignedDuration::from_mins(30));
    (became_ready && first).then_some(Milestone::Ready { age, waited })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{at, claim, condition, pod};

    fn with(status: &str) -> NodeClaim {
        let metadata = json!({ "creationTimestamp": "1970-01-01T00:00:00Z" });
        let conditions = [condition("Launched", status)];
        claim("c", json!({ "metadata": metadata, "status": { "conditions": conditions } }))
    }

    #[test]
    fn a_condition_that_changes_its_status_is_a_transition() {
        let (unknown, launched) = (with("Unknown"), with("True"));
        assert_eq!(transitions(Kind::NodeClaim, &launched, &launched), []);
        let found = transitions(Kind::NodeClaim, &unknown, &launched);
        let [Milestone::Transition(one)] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((one.from.as_str(), one.to.status.as_str()), ("Unknown", "True"));
        let fresh = claim("c", json!({}));
        assert_eq!(transitions(Kind::NodeClaim, &fresh, &unknown), [], "it says nothing");
        assert_eq!(transitions(Kind::NodeClaim, &fresh, &launched).len(), 1);
    }

    #[test]
    fn a_pod_is_reported_when_it_is_bound_and_when_it_is_ready() {
        let created = json!({ "creationTimestamp": "1970-01-01T00:00:00Z" });
        let ready = json!({ "conditions": [{ "type": "Ready", "status": "True" }] });
        let version = |node: Option<&str>, status: &serde_json::Value| -> Pod {
            let spec = json!({ "nodeName": node });
            let object = json!({ "metadata": created, "spec": spec, "status": status });
            pod("shop", "web", object).into()
        };
        let waiting = version(None, &json!({}));
        let bound = version(Some("n"), &json!({}));
        let running = version(Some("n"), &ready);
        let found = of_pod(&waiting, &bound, Some(at(10)), at(60));
        let (age, waited) = (SignedDuration::from_secs(60), Some(SignedDuration::from_secs(50)));
        assert_eq!(found, Some(Milestone::Bound { age, waited, dynamic: false }));
        let ready = Some(Milestone::Ready { age, waited: None });
        assert_eq!(of_pod(&bound, &running, None, at(60)), ready);
        assert_eq!(of_pod(&running, &running, None, at(60)), None);
    }
}
