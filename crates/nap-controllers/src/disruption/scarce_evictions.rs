//! Workloads whose evictions may run out within one decision of consolidation.
//!
//! A decision may remove many nodes at once, so the engine itself counts the pods that it moves.
//! Only workloads that could reach their limit are told to it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use nap_api::labels;
use nap_engine::{Fleet, WorkloadBudget};

use super::candidates::Candidate;
use super::eviction_ledger::{self, EvictionLedger, Workload, workload_of};
use crate::cluster::{Index, Pod};

/// Evictions left, by workload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScarceEvictions {
    left: BTreeMap<Workload, usize>,
    /// Workloads whose pods state a number; it binds drift too.
    stated: BTreeSet<Workload>,
}

impl ScarceEvictions {
    /// The workloads of candidates that have more pods on them than may be moved.
    pub fn new(
        index: &Index,
        ledger: &EvictionLedger,
        candidates: &[Candidate],
        now: Timestamp,
    ) -> Self {
        let all = || candidates.iter().flat_map(|one| &one.pods);
        let is_limited = |pod: &Pod| {
            pod.annotations().contains_key(labels::MAX_EVICTIONS_PER_DAY) || ledger.knows(pod)
        };
        // By default a workload has more evictions than pods.
        let mut limited: BTreeMap<Workload, (&Pod, usize)> = BTreeMap::new();
        let mut stated = BTreeSet::new();
        for pod in all().filter(|pod| is_limited(pod)) {
            let Some(workload) = workload_of(pod) else { continue };
            if pod.annotations().contains_key(labels::MAX_EVICTIONS_PER_DAY) {
                stated.insert(workload.clone());
            }
            limited.entry(workload).or_insert((pod, 0)).1 += 1;
        }
        if limited.is_empty() {
            return Self::default();
        }
        let replicas = eviction_ledger::replicas(index);
        let left = limited.into_iter().filter_map(|(workload, (pod, pods))| {
            let running = replicas.get(&workload).copied().unwrap_or(0);
            let left = ledger.left(pod, running, now);
            (left < pods).then_some((workload, left))
        });
        Self { left: left.collect(), stated }
    }

    /// Tells the engine what is left, and which candidates have pods of these workloads.
    pub fn write_into(&self, fleet: &mut Fleet, candidates: &[Candidate]) {
        if self.left.is_empty() {
            return;
        }
        let numbers: BTreeMap<&Workload, usize> = self.left.keys().zip(0..).collect();
        fleet.workloads =
            self.left.iter().map(|(workload, left)| budget(workload, *left)).collect();
        let by_name: BTreeMap<&str, &Candidate> =
            candidates.iter().map(|one| (one.name(), one)).collect();
        for node in &mut fleet.candidates {
            let Some(candidate) = by_name.get(node.node.as_str()) else { continue };
            let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
            for workload in candidate.pods.iter().filter_map(|pod| workload_of(pod)) {
                if let Some(number) = numbers.get(&workload) {
                    *counts.entry(*number).or_default() += 1;
                }
            }
            node.workloads = counts.into_iter().collect();
        }
    }

    /// The first workload of a candidate that states a number of evictions and has too few left,
    /// and how many those are; `None` if drift may move its pods.
    pub fn forbids_drift(&self, candidate: &Candidate) -> Option<(Workload, usize)> {
        let counts = self.counts(std::slice::from_ref(candidate));
        let mut stated = counts.into_iter().filter(|(workload, _)| self.stated.contains(workload));
        let scarce = stated.find(|(workload, count)| self.left[workload] < *count);
        scarce.map(|(workload, _)| (workload.clone(), self.left[&workload]))
    }

    /// Takes the pods of a candidate, as far as there are evictions left.
    pub fn take(&mut self, candidate: &Candidate) {
        for (workload, count) in self.counts(std::slice::from_ref(candidate)) {
            let left = self.left.entry(workload).or_default();
            *left = left.saturating_sub(count);
        }
    }

    /// Takes the pods of candidates if all of them may be moved.
    pub fn take_all(&mut self, candidates: &[Candidate]) -> bool {
        let counts = self.counts(candidates);
        let fits = counts.iter().all(|(workload, count)| self.left[workload] >= *count);
        if fits {
            for (workload, count) in counts {
                *self.left.entry(workload).or_default() -= count;
            }
        }
        fits
    }

    /// Number of pods on candidates, by workload that is limited.
    fn counts(&self, candidates: &[Candidate]) -> BTreeMap<Workload, usize> {
        let mut counts: BTreeMap<Workload, usize> = BTreeMap::new();
        let pods = candidates.iter().flat_map(|one| &one.pods);
        for workload in pods.filter_map(|pod| workload_of(pod)) {
            if self.left.contains_key(&workload) {
                *counts.entry(workload).or_default() += 1;
            }
        }
        counts
    }
}

fn budget(workload: &Workload, evictions: usize) -> WorkloadBudget {
    WorkloadBudget { workload: name(workload), evictions }
}

/// A workload as messages name it.
pub fn name((namespace, kind, name): &Workload) -> String {
    format!("{kind} {namespace}/{name}")
}
