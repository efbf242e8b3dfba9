//! The evictions that workloads may still have while a decision is made.

use std::collections::BTreeMap;

use crate::model::{Candidate, Fleet, KeepReason, WorkloadBudget};

/// What is left of [`Fleet::workloads`].
#[derive(Clone)]
pub(super) struct EvictionsLeft(Vec<WorkloadBudget>);

impl EvictionsLeft {
    pub(super) fn new(fleet: &Fleet) -> Self {
        Self(fleet.workloads.clone())
    }

    /// Checks that all pods of the candidates may be moved. An error is the reason to keep them.
    pub(super) fn allow(&self, removed: &[&Candidate]) -> Result<(), KeepReason> {
        let mut pods: BTreeMap<usize, usize> = BTreeMap::new();
        for (workload, count) in removed.iter().flat_map(|one| &one.workloads) {
            *pods.entry(*workload).or_default() += count;
        }
        for (workload, count) in pods {
            if let Some(WorkloadBudget { workload, evictions }) = self.0.get(workload)
                && *evictions < count
            {
                let (workload, evictions) = (workload.clone(), *evictions);
                return Err(KeepReason::EvictionBudget { workload, evictions });
            }
        }
        Ok(())
    }

    /// Counts the pods of a candidate that is removed.
    pub(super) fn take(&mut self, removed: &Candidate) {
        for (workload, count) in &removed.workloads {
            if let Some(budget) = self.0.get_mut(*workload) {
                budget.evictions = budget.evictions.saturating_sub(*count);
            }
        }
    }
}
