//! The machines of the cluster as the provider sees them: one list for all that are watched, and
//! requests in batches.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::{SignedDuration, Timestamp};
use nap_clock::Clock;
use nap_cloud::CloudError;
use nap_engine::CapacityType;

use crate::machines::{Batches, Created, Listed, Machine, MachineList, Machines, NewMachine};

/// Most machines whose last request is remembered; the oldest are dropped.
const MAX_REQUESTED: usize = 20_000;

/// The machines of one agent pool.
pub(crate) struct Fleet {
    machines: Machines,
    list: MachineList,
    batches: Batches,
    clock: Clock,
    started: Timestamp,
    memory: Mutex<Memory>,
}

#[derive(Default)]
struct Memory {
    /// Time of the last request to create or delete a machine. An older list says nothing of it.
    requested: BTreeMap<String, Timestamp>,
    /// Spot machines that were seen evicted.
    evicted: BTreeSet<String>,
    /// Times at which machines without a time of creation were first listed.
    first_seen: BTreeMap<String, Timestamp>,
}

impl Memory {
    /// Takes the machines of a list that have no time of creation.
    fn see(&mut self, undated: &[&str], now: Timestamp) {
        self.first_seen.retain(|name, _| undated.contains(&name.as_str()));
        for name in undated {
            self.first_seen.entry((*name).to_owned()).or_insert(now);
        }
    }
}

impl Fleet {
    pub(crate) fn new(machines: Machines, clock: Clock) -> Self {
        Self {
            list: MachineList::new(machines.clone(), clock.clone()),
            batches: Batches::new(machines.clone(), clock.clone()),
            machines,
            started: clock.now(),
            clock,
            memory: Mutex::default(),
        }
    }

    /// The API of single machines.
    pub(crate) fn machines(&self) -> &Machines {
        &self.machines
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn request(&self, name: &str) {
        let now = self.clock.now();
        let requested = &mut self.memory().requested;
        requested.insert(name.to_owned(), now);
        if requested.len() > MAX_REQUESTED {
            let oldest = requested.iter().min_by_key(|(name, at)| (**at, *name));
            let oldest = oldest.map(|(name, _)| name.clone()).unwrap_or_default();
            requested.remove(&oldest);
        }
    }

    /// Time of the last request for a machine; `None` if this process has made none.
    pub(crate) fn requested(&self, name: &str) -> Option<Timestamp> {
        self.memory().requested.get(name).copied()
    }

    /// All machines now.
    pub(crate) async fn list(&self) -> Result<Arc<Listed>, CloudError> {
        self.list.since(self.clock.now()).await
    }

    /// Time of creation of a machine, or else the time at which it was first listed: without one
    /// it would never be old enough to be collected as garbage.
    pub(crate) fn created(&self, machine: &Machine) -> Option<Timestamp> {
        machine.created().or_else(|| self.memory().first_seen.get(&machine.name).copied())
    }

    /// Remembers when machines without a time of creation were first listed.
    pub(crate) fn see(&self, listed: &Listed) {
        let undated = listed.machines().filter(|machine| machine.created().is_none());
        let undated: Vec<&str> = undated.map(|machine| machine.name.as_str()).collect();
        self.memory().see(&undated, self.clock.now());
    }

    /// All machines, at most so long ago.
    pub(crate) async fn listed_within(
        &self,
        age: SignedDuration,
    ) -> Result<Arc<Listed>, CloudError> {
        let since = self.clock.now().checked_sub(age).unwrap_or(Timestamp::MIN);
        self.list.since(since).await
    }

    /// A machine that a process before this one may have created; `None` if there is none. A list
    /// since the start of this process tells, unless it has requested the machine itself.
    pub(crate) async fn find_created(&self, name: &str) -> Result<Option<Machine>, CloudError> {
        let since = self.requested(name).unwrap_or(self.started);
        let found = self.list.since(since).await?.get(name).cloned();
        // A VM that the last list did not name may have its name by now.
        if found.as_ref().is_some_and(|machine| machine.provider_id().is_none()) {
            return Ok(self.list.since(self.clock.now()).await?.get(name).cloned());
        }
        Ok(found)
    }

    /// A machine as it was seconds ago; `None` if it does not exist. That a list lacks it is not
    /// enough: the machine itself is asked for.
    pub(crate) async fn find(&self, name: &str) -> Result<Option<Machine>, CloudError> {
        let since = self.requested(name).unwrap_or(Timestamp::MIN);
        if let Some(machine) = self.list.recent_since(since).await?.get(name) {
            return Ok(Some(machine.clone()));
        }
        match self.machines.get(name).await {
            Ok(machine) => Ok(Some(machine)),
            Err(error) if error.is_not_found() => {
                self.memory().requested.remove(name);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// A machine in a list that was asked for at a time or later; `None` if that lacks it.
    pub(crate) async fn listed_since(
        &self,
        name: &str,
        at: Timestamp,
    ) -> Result<Option<Machine>, CloudError> {
        Ok(self.list.since(at).await?.get(name).cloned())
    }

    /// Requests the creation of a machine.
    pub(crate) async fn create(&self, machine: NewMachine) -> Result<Created, CloudError> {
        self.request(&machine.name);
        self.batches.create(machine).await
    }

    /// Requests the deletion of a machine.
    pub(crate) async fn delete(&self, name: &str) -> Result<(), CloudError> {
        self.request(name);
        self.batches.delete(name).await
    }

    /// Spot machines of a list whose VM is gone, each once.
    pub(crate) fn newly_evicted<'l>(&self, listed: &'l Listed) -> Vec<&'l Machine> {
        let is_evicted =
            |machine: &&Machine| machine.is_lost() && machine.capacity_type() == CapacityType::Spot;
        let evicted: Vec<&Machine> = listed.machines().filter(is_evicted).collect();
        let known = &mut self.memory().evicted;
        known.retain(|name| evicted.iter().any(|machine| machine.name == *name));
        evicted.into_iter().filter(|machine| known.insert(machine.name.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_time_of_creation_is_as_old_as_its_first_listing() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut memory = Memory::default();
        memory.see(&["a", "b"], at(0));
        memory.see(&["a"], at(300));
        assert_eq!(memory.first_seen, [("a".to_owned(), at(0))].into(), "`b` is gone");
        memory.see(&["a", "b"], at(600));
        assert_eq!(memory.first_seen["b"], at(600), "another one of that name");
    }
}
