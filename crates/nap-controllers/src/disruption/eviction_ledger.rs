//! The eviction ledger: how often the pods of each workload were moved, over all voluntary reasons.
//!
//! It bounds how often consolidation moves the pods of one workload in a day, and it notices a
//! consolidation that was undone: pods that it evicted needed a new node after all. A node for a
//! workload that has more pods than at its move undoes nothing: the demand has grown. The memory is
//! lost in a restart, which at worst allows some moves more.

use std::collections::{BTreeMap, VecDeque};

use jiff::{SignedDuration, Timestamp};
use nap_api::labels;

use crate::cluster::{Index, Pod};

/// Time over which evictions are counted.
const WINDOW: SignedDuration = SignedDuration::from_hours(24);
/// Time after an eviction within which a new node for its workload counts as an undone move.
const UNDONE_WITHIN: SignedDuration = SignedDuration::from_mins(10);
/// Evictions per day that a workload may have for each of its pods.
const PER_POD: usize = 24;
/// Upper limit on remembered evictions of a workload; beyond it the oldest are forgotten.
const MAX_EVICTIONS: usize = 10_000;

/// Label of a Deployment's pods whose value ends the name of their ReplicaSet.
const POD_TEMPLATE_HASH: &str = "pod-template-hash";

/// Namespace, kind and name of the controller of pods.
pub type Workload = (String, String, String);

/// Number of pods by workload.
pub type Replicas = BTreeMap<Workload, usize>;

/// Evictions by workload.
#[derive(Clone, Debug, Default)]
pub struct EvictionLedger {
    evictions: BTreeMap<Workload, VecDeque<Eviction>>,
}

#[derive(Clone, Debug)]
struct Eviction {
    at: Timestamp,
    /// The NodePool whose consolidation caused it; `None` for other reasons.
    pool: Option<String>,
    /// Pods of the workload at that time.
    replicas: usize,
}

/// Counts the pods of every workload.
pub fn replicas(index: &Index) -> Replicas {
    let mut replicas = Replicas::new();
    for workload in index.pods().filter_map(|(_, pod)| workload_of(pod)) {
        *replicas.entry(workload).or_default() += 1;
    }
    replicas
}

/// The workload of a pod; `None` if it has no controller. The ReplicaSets of a Deployment are one
/// workload, or every rollout would start to count again.
pub fn workload_of(pod: &Pod) -> Option<Workload> {
    let owner = pod.owners().iter().find(|owner| owner.is_controller)?;
    let namespace = pod.namespace().to_owned();
    let hash = pod.labels().get(POD_TEMPLATE_HASH).filter(|_| owner.kind == "ReplicaSet");
    let deployment = hash.and_then(|hash| owner.name.strip_suffix(hash)?.strip_suffix('-'));
    Some(match deployment {
        Some(name) => (namespace, "Deployment".to_owned(), name.to_owned()),
        None => (namespace, owner.kind.clone(), owner.name.clone()),
    })
}

impl EvictionLedger {
    /// Records the evictions of a command; `pool` if it is a consolidation.
    pub fn record<'p>(
        &mut self,
        pods: impl Iterator<Item = &'p Pod>,
        replicas: &Replicas,
        pool: Option<&str>,
        now: Timestamp,
    ) {
        for workload in pods.filter_map(workload_of) {
            let replicas = replicas.get(&workload).copied().unwrap_or(0);
            let evictions = self.evictions.entry(workload).or_default();
            evictions.push_back(Eviction { at: now, pool: pool.map(str::to_owned), replicas });
            if evictions.len() > MAX_EVICTIONS {
                evictions.pop_front();
            }
        }
        self.evictions.retain(|_, evictions| {
            let is_old = |one: &Eviction| now.duration_since(one.at) >= WINDOW;
            while evictions.front().is_some_and(is_old) {
                evictions.pop_front();
            }
            !evictions.is_empty()
        });
    }

    /// Further evictions within the budget of a pod's workload, of which `replicas` pods run.
    pub fn left(&self, pod: &Pod, replicas: usize, now: Timestamp) -> usize {
        let evictions = workload_of(pod).and_then(|workload| self.evictions.get(&workload));
        let recent = |one: &&Eviction| now.duration_since(one.at) < WINDOW;
        let recent = evictions.map_or(0, |evictions| evictions.iter().filter(recent).count());
        budget(pod, replicas).saturating_sub(recent)
    }

    /// Whether there is nothing to count.
    pub fn is_empty(&self) -> bool {
        self.evictions.is_empty()
    }

    /// Whether pods of a pod's workload were moved.
    pub fn knows(&self, pod: &Pod) -> bool {
        !self.is_empty()
            && workload_of(pod).is_some_and(|workload| self.evictions.contains_key(&workload))
    }

    /// The NodePool whose consolidation evicted a pod of the same workload a short while ago, and
    /// when that was; `None` if the workload has more pods since.
    pub fn undone<'l>(
        &'l self,
        pod: &Pod,
        replicas: &Replicas,
        now: Timestamp,
    ) -> Option<(&'l str, Timestamp)> {
        let workload = workload_of(pod)?;
        let evictions = self.evictions.get(&workload)?;
        let replicas = replicas.get(&workload).copied().unwrap_or(0);
        let recent = |one: &&Eviction| now.duration_since(one.at) < UNDONE_WITHIN;
        let same = |one: &&Eviction| replicas <= one.replicas;
        let mut recent = evictions.iter().rev().take_while(recent).filter(same);
        recent.find_map(|one| Some((one.pool.as_deref()?, one.at)))
    }
}

/// Evictions of a workload's pods per day: as its pods say, or by their number.
fn budget(pod: &Pod, replicas: usize) -> usize {
    let stated = pod.annotations().get(labels::MAX_EVICTIONS_PER_DAY);
    let stated = stated.and_then(|value| value.parse().ok());
    stated.unwrap_or_else(|| replicas.max(1).saturating_mul(PER_POD))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{at, index, pod};

    fn owned(annotations: &Value) -> Arc<Pod> {
        let owner = json!([{
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u",
            "controller": true,
        }]);
        let metadata = json!({ "ownerReferences": owner, "annotations": annotations });
        let mut index = index([]);
        index.apply(pod("shop", "web", json!({ "metadata": metadata })), at(0));
        index.pod(&"shop/web".into()).cloned().unwrap()
    }

    /// The workload with three pods.
    fn three() -> Replicas {
        [(workload_of(&owned(&json!({}))).unwrap(), 3)].into()
    }

    fn after(pod: &Pod, evictions: usize) -> EvictionLedger {
        let mut ledger = EvictionLedger::default();
        for _ in 0..evictions {
            ledger.record([pod].into_iter(), &three(), Some("p"), at(0));
        }
        ledger
    }

    #[test]
    fn a_workload_is_moved_once_an_hour_for_each_of_its_pods() {
        let web = owned(&json!({}));
        assert_eq!(after(&web, 71).left(&web, 3, at(60)), 1);
        assert_eq!(after(&web, 72).left(&web, 3, at(60)), 0);
        assert_eq!(after(&web, 72).left(&web, 3, at(86_400)), 72, "a day later");
    }

    #[test]
    fn pods_can_state_their_budget() {
        let web = owned(&json!({ labels::MAX_EVICTIONS_PER_DAY: "2" }));
        assert_eq!(after(&web, 1).left(&web, 100, at(60)), 1);
        assert_eq!(after(&web, 2).left(&web, 100, at(60)), 0);
    }

    #[test]
    fn a_rollout_does_not_start_to_count_again() {
        let of = |replica_set: &str, hash: &str| {
            let owner = json!([{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": replica_set, "uid": "u",
                "controller": true,
            }]);
            let labels = json!({ POD_TEMPLATE_HASH: hash });
            let metadata = json!({ "ownerReferences": owner, "labels": labels });
            let mut index = index([]);
            index.apply(pod("shop", "web", json!({ "metadata": metadata })), at(0));
            workload_of(index.pod(&"shop/web".into()).unwrap()).unwrap()
        };
        assert_eq!(of("web-6d4b", "6d4b"), of("web-77f9", "77f9"));
        assert_eq!(of("web-6d4b", "6d4b").1, "Deployment");
        assert_eq!(of("alone", "6d4b").1, "ReplicaSet");
    }

    #[test]
    fn a_new_node_soon_after_a_consolidation_undoes_it() {
        let web = owned(&json!({}));
        let ledger = after(&web, 1);
        assert_eq!(ledger.undone(&web, &three(), at(599)), Some(("p", at(0))));
        assert_eq!(ledger.undone(&web, &three(), at(600)), None);
        let grown = three().into_keys().map(|workload| (workload, 4)).collect();
        assert_eq!(ledger.undone(&web, &grown, at(599)), None, "it has more pods since");
        let mut drifted = EvictionLedger::default();
        drifted.record([&*web].into_iter(), &three(), None, at(0));
        assert_eq!(drifted.undone(&web, &three(), at(1)), None);
    }

    #[test]
    fn old_evictions_are_forgotten() {
        let web = owned(&json!({}));
        let mut ledger = after(&web, 3);
        ledger.record(std::iter::empty(), &three(), None, at(86_400));
        assert!(ledger.is_empty());
    }
}
