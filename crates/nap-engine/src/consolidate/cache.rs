//! What the next decision need not find out again.
//!
//! The cheapest new nodes for a set of pods depend on the pools, their catalogues and what their
//! limits leave alone. They are the costly part of a decision, and from one to the next only the
//! nodes that changed ask for other sets.

use std::collections::BTreeMap;

use nap_units::UsdPerHour;

use crate::model::{ConsolidationOptions, Snapshot};
use crate::offerings::solver_cache::SolverCache;

/// Upper limit on the remembered sets of pods; beyond it all are forgotten.
const MAX_SETS: usize = 200_000;

/// What is worth keeping between the decisions for one cluster.
#[derive(Debug, Default)]
pub struct ConsolidationCache {
    solver: Option<SolverCache>,
    options: ConsolidationOptions,
    memory: Memory,
}

/// Results of earlier decisions, by a digest of what they depend on.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    costs: BTreeMap<u128, UsdPerHour>,
}

impl ConsolidationCache {
    /// The solver's cache and the memory, emptied if the pools, the catalogues or the options are
    /// others.
    pub(crate) fn prepare(
        &mut self,
        snapshot: &Snapshot,
        options: &ConsolidationOptions,
    ) -> (&SolverCache, &mut Memory) {
        let suits = self.solver.as_ref().is_some_and(|solver| solver.suits(snapshot));
        if !suits || self.options != *options || self.memory.costs.len() > MAX_SETS {
            self.memory = Memory::default();
            self.options = options.clone();
        }
        if !suits {
            self.solver = None;
        }
        let solver = self.solver.get_or_insert_with(|| SolverCache::new(snapshot));
        (solver, &mut self.memory)
    }

    /// Number of sets of pods whose cheapest new nodes are remembered.
    pub fn remembered(&self) -> usize {
        self.memory.costs.len()
    }
}

impl Memory {
    /// Cost of the cheapest new nodes for a set of pods; `None` if it is not known.
    pub(crate) fn cost(&self, set: u128) -> Option<UsdPerHour> {
        self.costs.get(&set).copied()
    }

    /// Remembers the cost of a set.
    pub(crate) fn remember(&mut self, set: u128, cost: UsdPerHour) {
        self.costs.insert(set, cost);
    }
}
