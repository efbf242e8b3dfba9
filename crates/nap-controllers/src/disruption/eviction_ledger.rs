//! The eviction ledger: how often the pods of each workload were moved, over all reasons.
//!
//! It bounds how often consolidation moves the pods of one workload in a day, and it notices a
//! consolidation that was undone: pods that it evicted needed a new node after all. A node for a
//! workload that has more pods than at its move undoes nothing: the demand has grown. The counts of
//! each hour are stored beside the decision records and survive a restart.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use nap_api::{NodeClaim, labels};
use serde::{Deserialize, Serialize};

use crate::cluster::{Index, Pod, pods};
use crate::context::Context;

/// Time over which evictions are counted, in whole hours: one counts for 24 to 25 hours.
const WINDOW: SignedDuration = SignedDuration::from_hours(24);
const HOUR: i64 = 3600;
/// Time after an eviction within which a new node for its workload counts as an undone move.
const UNDONE_WITHIN: SignedDuration = SignedDuration::from_mins(10);
/// Evictions per day that a workload may have for each of its pods.
const PER_POD: usize = 24;
/// Upper limit on the evictions of a workload that may still turn out to be undone; beyond it the
/// oldest are forgotten.
const MAX_RECENT: usize = 10_000;
/// Upper limit on the stored text in bytes; workloads with few evictions are left out.
const MAX_BYTES: usize = 200 * 1024;
/// Version of the stored document.
const VERSION: u32 = 1;

/// Label of a Deployment's pods whose value ends the name of their ReplicaSet.
const POD_TEMPLATE_HASH: &str = "pod-template-hash";

/// Namespace, kind and name of the controller of pods.
pub type Workload = (String, String, String);

/// Number of pods by workload.
pub type Replicas = BTreeMap<Workload, usize>;

/// Evictions by workload.
#[derive(Clone, Debug, Default)]
pub struct EvictionLedger {
    workloads: BTreeMap<Workload, Evictions>,
    /// Counts the changes.
    changes: u64,
}

#[derive(Clone, Debug, Default)]
struct Evictions {
    /// Number of evictions by the begin of their hour.
    hours: BTreeMap<Timestamp, usize>,
    /// Those of consolidation that may still turn out to be undone, from old to new.
    recent: VecDeque<Eviction>,
}

/// An eviction of consolidation.
#[derive(Clone, Debug)]
struct Eviction {
    at: Timestamp,
    /// The NodePool whose consolidation caused it.
    pool: String,
    /// Pods of the workload at that time.
    replicas: usize,
}

/// The document that is stored.
#[derive(Serialize, Deserialize)]
struct Document {
    version: u32,
    workloads: Vec<StoredWorkload>,
}

#[derive(Serialize, Deserialize)]
struct StoredWorkload {
    namespace: String,
    kind: String,
    name: String,
    /// Number of evictions by the begin of their hour.
    hours: BTreeMap<Timestamp, usize>,
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

/// Records that all pods of a NodeClaim are about to be moved, without a disruption command.
pub fn record_loss(context: &Context, claim: &NodeClaim) {
    let (index, mut memory) = (context.index(), context.memory());
    let node = claim.status.as_ref().and_then(|status| status.node_name.as_deref());
    let moved = node.into_iter().flat_map(|node| index.pods_on(node));
    let moved = moved.filter(|pod| pods::is_reschedulable(pod)).map(AsRef::as_ref);
    tracing::debug!(nodeclaim = claim.name_any(), "its pods count as moved");
    memory.moves.record(moved, &Replicas::new(), None, context.clock.now());
}

/// Begin of the hour of a time.
fn hour_of(time: Timestamp) -> Timestamp {
    let seconds = time.as_second();
    Timestamp::from_second(seconds - seconds.rem_euclid(HOUR)).unwrap_or(time)
}

/// Begin of the first hour whose evictions count.
fn first_hour(now: Timestamp) -> Timestamp {
    hour_of(now.checked_sub(WINDOW).unwrap_or(Timestamp::MIN))
}

impl Evictions {
    fn since(&self, first: Timestamp) -> usize {
        self.hours.range(first..).map(|(_, count)| count).sum()
    }
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
            let Evictions { hours, recent } = self.workloads.entry(workload).or_default();
            *hours.entry(hour_of(now)).or_default() += 1;
            if let Some(pool) = pool {
                recent.push_back(Eviction { at: now, pool: pool.to_owned(), replicas });
                if recent.len() > MAX_RECENT {
                    recent.pop_front();
                }
            }
            self.changes += 1;
        }
        self.forget_old(now);
    }

    fn forget_old(&mut self, now: Timestamp) {
        let first = first_hour(now);
        self.workloads.retain(|_, Evictions { hours, recent }| {
            hours.retain(|hour, _| *hour >= first);
            recent.retain(|one| now.duration_since(one.at) < UNDONE_WITHIN);
            !hours.is_empty()
        });
    }

    /// Further evictions within the budget of a pod's workload, of which `replicas` pods run.
    pub fn left(&self, pod: &Pod, replicas: usize, now: Timestamp) -> usize {
        let evictions = workload_of(pod).and_then(|workload| self.workloads.get(&workload));
        let recent = evictions.map_or(0, |evictions| evictions.since(first_hour(now)));
        budget(pod, replicas).saturating_sub(recent)
    }

    /// Whether there is nothing to count.
    pub fn is_empty(&self) -> bool {
        self.workloads.is_empty()
    }

    /// Whether pods of a pod's workload were moved.
    pub fn knows(&self, pod: &Pod) -> bool {
        !self.is_empty()
            && workload_of(pod).is_some_and(|workload| self.workloads.contains_key(&workload))
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
        let evictions = self.workloads.get(&workload)?;
        let replicas = replicas.get(&workload).copied().unwrap_or(0);
        let recent = |one: &&Eviction| now.duration_since(one.at) < UNDONE_WITHIN;
        let same = |one: &&Eviction| replicas <= one.replicas;
        let mut recent = evictions.recent.iter().rev().take_while(recent).filter(same);
        recent.next().map(|one| (one.pool.as_str(), one.at))
    }

    /// Number of changes so far.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// The document to store: the workloads with the most evictions, as far as they fit.
    pub fn to_text(&self) -> String {
        let mut all: Vec<(usize, StoredWorkload)> = self
            .workloads
            .iter()
            .map(|((namespace, kind, name), evictions)| {
                let (namespace, kind, name) = (namespace.clone(), kind.clone(), name.clone());
                let hours = evictions.hours.clone();
                (hours.values().sum(), StoredWorkload { namespace, kind, name, hours })
            })
            .collect();
        all.sort_by_key(|(evictions, _)| Reverse(*evictions));
        let mut left = MAX_BYTES - 100;
        let mut workloads = Vec::new();
        for (_, workload) in all {
            let length = serde_json::to_string(&workload).map_or(0, |text| text.len() + 1);
            let Some(rest) = left.checked_sub(length) else { break };
            left = rest;
            workloads.push(workload);
        }
        let document = Document { version: VERSION, workloads };
        serde_json::to_string(&document).expect("names and counts are plain data")
    }

    /// Adds what was stored, by this process or by the leader before, who had begun with the
    /// counts that this process has. The error says what is wrong with the text.
    pub fn merge(&mut self, text: &str, now: Timestamp) -> Result<(), String> {
        let document: Document = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if document.version != VERSION {
            return Err(format!("version {} is not {VERSION}", document.version));
        }
        for StoredWorkload { namespace, kind, name, hours } in document.workloads {
            let known = self.workloads.entry((namespace, kind, name)).or_default();
            for (hour, count) in hours {
                let known = known.hours.entry(hour).or_default();
                *known = count.max(*known);
            }
        }
        self.forget_old(now);
        Ok(())
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
        assert_eq!(after(&web, 72).left(&web, 3, at(86_400 + 3599)), 0, "hours count as a whole");
        assert_eq!(after(&web, 72).left(&web, 3, at(86_400 + 3600)), 72, "a day later");
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
        ledger.record(std::iter::empty(), &three(), None, at(86_400 + 3600));
        assert!(ledger.is_empty());
    }

    #[test]
    fn a_new_leader_counts_on_where_the_last_one_stopped() {
        let web = owned(&json!({}));
        let mut next = EvictionLedger::default();
        next.merge(&after(&web, 70).to_text(), at(60)).unwrap();
        next.merge(&after(&web, 70).to_text(), at(60)).unwrap();
        assert_eq!(next.left(&web, 3, at(60)), 2, "what is read twice counts once");
        next.record([&*web].into_iter(), &three(), None, at(60));
        assert_eq!(next.left(&web, 3, at(60)), 1);
        let error = next.merge("{", at(60)).unwrap_err();
        assert!(error.contains("EOF"), "{error}");
    }

    #[test]
    fn workloads_with_few_evictions_are_left_out_of_what_is_stored_if_there_are_very_many() {
        let mut ledger = after(&owned(&json!({})), 2);
        for number in 0..5000 {
            let workload = ("shop".to_owned(), "Job".to_owned(), format!("job-{number}"));
            let hours = [(at(0), 1)].into();
            ledger.workloads.insert(workload, Evictions { hours, ..Evictions::default() });
        }
        let text = ledger.to_text();
        assert!(text.len() <= MAX_BYTES && text.len() > MAX_BYTES / 2, "{}", text.len());
        let mut next = EvictionLedger::default();
        next.merge(&text, at(0)).unwrap();
        assert_eq!(next.left(&owned(&json!({})), 3, at(0)), 70);
    }
}
