//! The disruption controller: status of PodDisruptionBudgets (expected, healthy and disruptable
//! pods).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;

use super::index::{Index, Key, Reader, key};
use super::write::Writer;
use super::{earliest, pods};

/// Time after which an allowed eviction without a deletion is dropped from `disruptedPods`.
const DISRUPTED_FOR: SignedDuration = SignedDuration::from_mins(2);

/// Budgets to look at.
#[derive(Debug, Default)]
pub(super) struct DisruptionBudgets {
    changed: BTreeSet<Key>,
    /// Times at which a `disruptedPods` entry expires.
    due: BTreeMap<Key, Timestamp>,
}

impl DisruptionBudgets {
    /// Updates the status of the budgets that something has changed for; returns when the next
    /// `disruptedPods` entry expires.
    pub(super) async fn pass(
        &mut self,
        index: &mut Index,
        writer: &mut Writer,
        all: bool,
    ) -> Option<Timestamp> {
        self.read(index);
        if all {
            self.changed.extend(index.budgets.keys().cloned());
        }
        let now = writer.now();
        let expired = self.due.iter().filter(|(_, at)| **at <= now);
        self.changed.extend(expired.map(|(key, _)| key.clone()));
        for key in std::mem::take(&mut self.changed) {
            self.due.remove(&key);
            let Some(budget) = index.budgets.get(&key).cloned() else { continue };
            let (status, expiry) = status(&budget, index, now);
            if let Some(expiry) = expiry {
                self.due.insert(key, expiry);
            }
            if budget.status.as_ref() != Some(&status) {
                let mut budget = (*budget).clone();
                budget.status = Some(status);
                writer.replace_status(&mut index.budgets, &budget).await;
            }
        }
        self.due.values().min().copied()
    }

    fn read(&mut self, index: &mut Index) {
        const READER: Reader = Reader::DisruptionBudgets;
        let changed = index.budgets.changes(READER);
        self.changed.extend(changed.iter().map(|change| change.key.clone()));
        for change in index.pods.changes(READER) {
            for budget in index.budgets.in_namespace(&change.key.0) {
                let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
                let covers = |pod: &Arc<Pod>| {
                    selector.is_some_and(|selector| pods::selects(selector, pod.labels()))
                };
                if change.versions().any(covers) {
                    self.changed.insert(key(&**budget));
                }
            }
        }
        // The scale of a controller is part of the expected number of pods.
        let sets = index.replica_sets.changes(READER);
        let sets = sets.iter().map(|change| change.key.0.clone());
        let stateful = index.stateful_sets.changes(READER);
        let stateful = stateful.iter().map(|change| change.key.0.clone());
        let namespaces: BTreeSet<String> = sets.chain(stateful).collect();
        for namespace in namespaces {
            let budgets = index.budgets.in_namespace(&namespace);
            self.changed.extend(budgets.map(|budget| key(&**budget)));
        }
    }
}

fn status(
    budget: &PodDisruptionBudget,
    index: &Index,
    now: Timestamp,
) -> (PodDisruptionBudgetStatus, Option<Timestamp>) {
    let spec = budget.spec.clone().unwrap_or_default();
    let covered: Vec<_> = index
        .pods
        .in_namespace(budget.metadata.namespace.as_deref().unwrap_or_default())
        .filter(|pod| {
            !pods::is_finished(pod)
                && spec
                    .selector
                    .as_ref()
                    .is_some_and(|selector| pods::selects(selector, pod.labels()))
        })
        .collect();
    let old = budget.status.clone().unwrap_or_default();
    let mut expiry = None;
    let mut disrupted = old.disrupted_pods.clone().unwrap_or_default();
    disrupted.retain(|name, since| {
        let until = since.0.checked_add(DISRUPTED_FOR).unwrap_or(since.0);
        let held = until > now
            && covered.iter().any(|pod| pod.name_any() == *name && !pods::is_deleting(pod));
        if held {
            expiry = earliest(expiry, Some(until));
        }
        held
    });
    let healthy = covered
        .iter()
        .filter(|pod| {
            pods::is_ready(pod)
                && !pods::is_deleting(pod)
                && !disrupted.contains_key(&pod.name_any())
        })
        .count();
    let healthy = i32::try_from(healthy).unwrap_or(i32::MAX);
    let (expected, desired) =
        needs(spec.min_available.as_ref(), spec.max_unavailable.as_ref(), &covered, index);
    let allowed = if expected > 0 { (healthy - desired).max(0) } else { 0 };
    let (verdict, reason) =
        if allowed > 0 { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
    let held =
        old.conditions.iter().flatten().find(|condition| condition.type_ == "DisruptionAllowed");
    let since = held
        .filter(|held| held.status == verdict)
        .map_or(whole_seconds(now), |held| held.last_transition_time.0);
    let status = PodDisruptionBudgetStatus {
        conditions: Some(vec![Condition {
            type_: "DisruptionAllowed".to_owned(),
            status: verdict.to_owned(),
            reason: reason.to_owned(),
            message: String::new(),
            last_transition_time: Time(since),
            observed_generation: budget.metadata.generation,
        }]),
        current_healthy: healthy,
        desired_healthy: desired,
        disrupted_pods: (!disrupted.is_empty()).then_some(disrupted),
        disruptions_allowed: allowed,
        expected_pods: expected,
        observed_generation: budget.metadata.generation,
    };
    (status, expiry)
}

fn whole_seconds(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

/// Number of expected pods, and how many of them must be healthy.
fn needs(
    min_available: Option<&IntOrString>,
    max_unavailable: Option<&IntOrString>,
    covered: &[&Arc<Pod>],
    index: &Index,
) -> (i32, i32) {
    let count = i32::try_from(covered.len()).unwrap_or(i32::MAX);
    match (min_available, max_unavailable) {
        (Some(IntOrString::Int(least)), _) => (count, *least),
        (Some(least), _) => {
            let expected = expected_count(covered, index);
            (expected, resolve(least, expected))
        }
        (None, most) => {
            let expected = expected_count(covered, index);
            let most = most.map_or(1, |most| resolve(most, expected));
            (expected, (expected - most).max(0))
        }
    }
}

/// A number, or a percentage of `total` rounded up.
pub(super) fn resolve(value: &IntOrString, total: i32) -> i32 {
    match value {
        IntOrString::Int(number) => *number,
        IntOrString::String(text) => {
            let percent: i64 = text.trim_end_matches('%').parse().unwrap_or(0);
            i32::try_from((percent * i64::from(total) + 99) / 100).unwrap_or(i32::MAX)
        }
    }
}

/// Sum of the scales of the pods' controllers, each controller once; a pod without controller is 1.
fn expected_count(covered: &[&Arc<Pod>], index: &Index) -> i32 {
    let mut owners = BTreeSet::new();
    let mut expected = 0;
    for pod in covered {
        let Some(owner) = pods::controller_of(&***pod) else {
            expected += 1;
            continue;
        };
        if !owners.insert(owner.uid.clone()) {
            continue;
        }
        let key = (pod.namespace().unwrap_or_default(), owner.name.clone());
        let set = index.replica_sets.get(&key).filter(|set| set.uid().as_ref() == Some(&owner.uid));
        let stateful =
            index.stateful_sets.get(&key).filter(|set| set.uid().as_ref() == Some(&owner.uid));
        let replicas = set
            .and_then(|set| set.spec.as_ref())
            .map(|spec| spec.replicas)
            .or_else(|| stateful.and_then(|set| set.spec.as_ref()).map(|spec| spec.replicas));
        expected += match replicas {
            Some(replicas) => replicas.unwrap_or(1),
            // The scale of this controller is unknown: count its pods.
            None => covered
                .iter()
                .filter(|pod| pods::is_managed_by(&****pod, &owner.uid))
                .count()
                .try_into()
                .unwrap_or(i32::MAX),
        };
    }
    expected
}
