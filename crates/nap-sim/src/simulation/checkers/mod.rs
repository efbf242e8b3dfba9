//! Checkers: each looks at one [`Observation`] at a time and calls none of the code it checks.

mod budgets;
mod capacity;
mod leaks;
mod limits;
mod pending;
mod quantities;

use super::observation::Observation;

/// All checkers, with the memory of those that compare observations.
#[derive(Default)]
pub(super) struct Checkers {
    leaks: leaks::Leaks,
}

impl Checkers {
    /// The faults of one observation, one line each.
    pub(super) fn check(&mut self, seen: &Observation) -> Vec<String> {
        let mut faults = pending::check(seen);
        faults.extend(self.leaks.check(seen));
        faults.extend(capacity::check(seen));
        faults.extend(budgets::check(seen));
        faults.extend(limits::check(seen));
        faults
    }
}

#[cfg(test)]
pub(super) mod fixtures {
    //! Observations written as JSON.

    use super::*;
    use serde::de::DeserializeOwned;
    use serde_json::Value;
    use std::sync::Arc;

    pub(super) const NOW: &str = "2026-01-01T12:00:00Z";

    pub(super) fn nothing() -> Observation {
        Observation {
            now: NOW.parse().unwrap(),
            pods: Vec::new(),
            claims: Vec::new(),
            nodes: Vec::new(),
            pools: Vec::new(),
            vms: Vec::new(),
        }
    }

    pub(super) fn object<K: DeserializeOwned>(value: Value) -> Arc<K> {
        Arc::new(serde_json::from_value(value).unwrap())
    }
}
