//! Consolidation: which nodes of a fleet to remove or to replace.
//!
//! The whole fleet is one problem. Its pods become classes and its nodes vectors of free capacity
//! once. [`search`] first deletes as many candidates as the others have room for together. Then
//! every candidate is examined: can its pods move to nodes that stay, and what would be the
//! cheapest new nodes for the rest? The same is asked of groups of candidates with the most waste,
//! which finds what no single removal can (five nodes by two, three nodes by two across pools). A
//! removal that pays ([`worth`]) becomes a step, and the ones after it count on it.
//!
//! | file | contents |
//! |---|---|
//! | `state` | the fleet as classes, free capacity and topology counts; removals on trial |
//! | `receivers` | the nodes that may take pods of a class |
//! | `placement` | pods on nodes that stay |
//! | `replacements` | the cheapest new nodes for some pods |
//! | `worth` | payback, the `Balanced` policy, spot rules |
//! | `search` | the order in which candidates and groups of them are tried |
//! | `cache` | what the next decision need not find out again |

mod cache;
mod evictions;
mod placement;
mod receivers;
mod replacements;
mod search;
mod state;
mod worth;

use std::rc::Rc;

use crate::classes::Classes;
use crate::classes::dimensions::Dimensions;
use crate::classes::grouping::Groups;
use crate::classes::relaxation::Levels;
use crate::model::{
    Consolidation, ConsolidationOptions, Fleet, MinValuesPolicy, Options, Pod, Snapshot,
};
use crate::offerings::index::OfferingIndex;
use crate::topology::groups::TopologyRules;

pub use cache::ConsolidationCache;
use search::Search;
use state::FleetState;

/// Decides which nodes of a fleet to remove or to replace.
///
/// It cannot fail: a candidate that stays is in the decision with its reason. Equal fleets give
/// byte-equal decisions, in whatever order their lists are and whatever the cache holds.
pub fn consolidate(
    fleet: &Fleet,
    options: &ConsolidationOptions,
    cache: &mut ConsolidationCache,
) -> Consolidation {
    let snapshot = Snapshot { pods: fleet.templates.clone(), ..fleet.snapshot.clone() };
    let (solver, memory) = cache.prepare(&snapshot, options);
    let groups = Groups::of(&snapshot);
    let levels = Levels::of(&groups.list, &snapshot, &options.solve);
    let pods: Vec<&Pod> = levels.list.iter().map(|level| &*level.pod).collect();
    let rules = Rc::new(TopologyRules::of(&pods, &snapshot));
    let dimensions = Dimensions::of(&pods, &snapshot, &rules);
    let classes = Classes::of(&groups.list, &levels, &dimensions, &rules);
    // No saving is worth a choice of types that is narrower than its NodePool asks for.
    let solve = Options { min_values: MinValuesPolicy::Strict, ..options.solve.clone() };
    let offerings =
        OfferingIndex::new(solver, &snapshot, &solve, &dimensions, &classes, &rules.keys);
    let state = FleetState::new(fleet, options, &snapshot, &dimensions, classes, offerings, rules);
    Search::new(state, memory).run(&groups.unsupported)
}
