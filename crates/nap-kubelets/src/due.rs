//! Work by the time when it is due, at most one entry per piece of work.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

/// Namespace and name of a pod.
pub(crate) type PodKey = (String, String);

/// A piece of work.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Work {
    /// The next step of the VM of this Node: register, become ready.
    Vm(String),
    /// Renewal of the Lease of this Node.
    Lease(String),
    /// Status update of this Node.
    Status(String),
    /// The next step of a pod.
    Pod(PodKey),
    /// Deletion of this Node, whose VM is gone.
    GoneVm(String),
}

/// All scheduled work.
#[derive(Debug, Default)]
pub(crate) struct Due {
    by_time: BTreeSet<(Timestamp, Work)>,
    times: BTreeMap<Work, Timestamp>,
}

impl Due {
    /// Schedules work, in place of its earlier entry.
    pub(crate) fn at(&mut self, when: Timestamp, work: Work) {
        self.cancel(&work);
        self.by_time.insert((when, work.clone()));
        self.times.insert(work, when);
    }

    pub(crate) fn cancel(&mut self, work: &Work) {
        if let Some(when) = self.times.remove(work) {
            self.by_time.remove(&(when, work.clone()));
        }
    }

    pub(crate) fn contains(&self, work: &Work) -> bool {
        self.times.contains_key(work)
    }

    /// Time of the earliest work.
    pub(crate) fn first(&self) -> Option<Timestamp> {
        self.by_time.first().map(|(when, _)| *when)
    }

    /// Removes and returns the earliest work that is due.
    pub(crate) fn pop(&mut self, now: Timestamp) -> Option<Work> {
        let (when, _) = self.by_time.first()?;
        if *when > now {
            return None;
        }
        let (_, work) = self.by_time.pop_first()?;
        self.times.remove(&work);
        Some(work)
    }
}
