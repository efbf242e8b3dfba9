//! The cluster with one machine less, for one machine after another: what consolidation and drift
//! ask the engine about.
//!
//! Everything but the pods of that machine is the same each time, so it is put together once.

use std::collections::BTreeMap;

use jiff::Timestamp;
use nap_engine::Snapshot;
use nap_units::Resources;

use super::catalogues::Catalogues;
use super::rules::Interest;
use super::{State, pods};

/// The cluster, and the pods of each machine that may be removed.
pub struct Removals {
    snapshot: Snapshot,
    pods: BTreeMap<String, Vec<nap_engine::Pod>>,
}

impl State {
    /// Gets ready to remove any one of these machines.
    pub fn removals<'m>(
        &self,
        machines: impl Iterator<Item = &'m str>,
        catalogues: &Catalogues,
        now: Timestamp,
    ) -> Removals {
        let pods: BTreeMap<String, Vec<nap_engine::Pod>> =
            machines.map(|name| (name.to_owned(), self.movable_pods(name))).collect();
        let interest = Interest::of(pods.values().flatten());
        let mut snapshot = self.surroundings(&interest, catalogues, now);
        for node in snapshot.nodes.iter_mut().filter(|node| !node.initialized) {
            // It takes nobody, but the pods on it still keep others away or are wanted by them.
            node.free = Resources::new();
        }
        Removals { snapshot, pods }
    }

    fn movable_pods(&self, machine: &str) -> Vec<nap_engine::Pod> {
        let on_it = self.pods_on(machine);
        on_it
            .iter()
            .filter(|pod| pods::is_reschedulable(pod))
            .map(|pod| self.engine_pod(pod))
            .collect()
    }
}

impl Removals {
    /// What is decided about the pods of a machine on everything else that already runs.
    pub fn without<T>(&mut self, machine: &str, decide: impl FnOnce(&Snapshot) -> T) -> T {
        self.snapshot.pods = self.pods.get(machine).cloned().unwrap_or_default();
        let place = self.snapshot.nodes.iter().position(|node| node.name == machine);
        let removed = place.map(|place| self.snapshot.nodes.swap_remove(place));
        let decision = decide(&self.snapshot);
        self.snapshot.nodes.extend(removed);
        decision
    }
}
