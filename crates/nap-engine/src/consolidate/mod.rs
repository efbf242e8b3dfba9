//! Consolidation: which nodes of a fleet to remove or to replace.

use crate::model::{Consolidation, ConsolidationOptions, Fleet};

/// What is worth keeping between the decisions for one cluster.
#[derive(Debug, Default)]
pub struct ConsolidationCache {}

/// Decides which nodes of a fleet to remove or to replace.
pub fn consolidate(
    fleet: &Fleet,
    _options: &ConsolidationOptions,
    _cache: &mut ConsolidationCache,
) -> Consolidation {
    let cost_before = fleet.candidates.iter().map(|one| one.price).sum();
    Consolidation { cost_before, cost_after: cost_before, ..Consolidation::default() }
}
