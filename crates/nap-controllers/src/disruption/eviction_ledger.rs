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

/// The workload of a pod; `None` if it has no controller.
pub fn workload_of(pod: &Pod) -> Option<Workload> {
    let owner = pod.owners().iter().find(|owner| owner.is_controller)?;
    Some((pod.namespace().to_owned(), owner.kind.clone(), owner.name.clone()))
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

    /// Whether one more eviction of a pod is within the budget of its workload, of which `replicas`
    /// pods run.
    pub fn allows(&self, pod: &Pod, replicas: usize, now: Timestamp) -> bool {
        let Some(workload) = workload_of(pod) else { return true };
        let Some(evictions) = self.evictions.get(&workload) else { return true };
        let recent = evictions.iter().filter(|one| now.duration_since(one.at) < WINDOW).count();
        recent < budget(pod, replicas)
    }

    /// Whether there is nothing to count.
    pub fn is_empty(&self) -> bool {
        self.evictions.is_empty()
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
        assert!(after(&web, 71).allows(&web, 3, at(60)));
        assert!(!after(&web, 72).allows(&web, 3, at(60)));
        assert!(after(&web, 72).allows(&web, 3, at(86_400)), "a day later");
    }

    #[test]
    fn pods_can_state_their_budget() {
        let web = owned(&json!({ labels::MAX_EVICTIONS_PER_DAY: "2" }));
        assert!(after(&web, 1).allows(&web, 100, at(60)));
        assert!(!after(&web, 2).allows(&web, 100, at(60)));
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
