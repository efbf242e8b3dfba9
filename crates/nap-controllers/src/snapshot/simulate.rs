//! Simulated removal of one node at a time: the question that drift and consolidation ask the
//! engine.
//!
//! Everything but the pods of the removed node is the same for each question, so it is built once.

use std::collections::BTreeMap;

use jiff::Timestamp;
use nap_engine::Snapshot;
use nap_units::Resources;

use super::{Catalogues, capacity, engine_pod};
use crate::cluster::pods;
use crate::cluster::{Index, Interest};

/// The cluster, and the pods of each node that may be removed.
pub struct Removals {
    snapshot: Snapshot,
    pods: BTreeMap<String, Vec<nap_engine::Pod>>,
}

impl Removals {
    /// Prepares the removal of any one of these nodes, given by the name of their Node.
    pub fn new<'n>(
        index: &Index,
        nodes: impl Iterator<Item = &'n str>,
        catalogues: &Catalogues,
        now: Timestamp,
    ) -> Self {
        let pods: BTreeMap<String, Vec<nap_engine::Pod>> =
            nodes.map(|name| (name.to_owned(), reschedulable_pods(index, name))).collect();
        let interest = Interest::of(pods.values().flatten());
        let mut snapshot = capacity(index, &interest, catalogues, now);
        for node in snapshot.nodes.iter_mut().filter(|node| !node.initialized) {
            // Pods are not moved to capacity that may never come up; its own pods still count for
            // topology.
            node.free = Resources::new();
        }
        Self { snapshot, pods }
    }

    /// Calls `decide` with a snapshot in which the node is gone and its pods need capacity.
    pub fn without<T>(&mut self, node: &str, decide: impl FnOnce(&Snapshot) -> T) -> T {
        self.snapshot.pods = self.pods.get(node).cloned().unwrap_or_default();
        let place = self.snapshot.nodes.iter().position(|one| one.name == node);
        let removed = place.map(|place| self.snapshot.nodes.swap_remove(place));
        let decision = decide(&self.snapshot);
        self.snapshot.nodes.extend(removed);
        decision
    }
}

fn reschedulable_pods(index: &Index, node: &str) -> Vec<nap_engine::Pod> {
    let bound = index.pods_on(node);
    let movable = bound.iter().filter(|pod| pods::is_reschedulable(pod));
    movable.map(|pod| engine_pod(index, pod)).collect()
}
