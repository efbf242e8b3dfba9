//! The offering index for a single pod.

use crate::classes::dimensions::Dimensions;
use crate::classes::grouping::Groups;
use crate::classes::relaxation::Levels;
use crate::classes::{Class, Classes};
use crate::model::{Options, Pod, PreferencePolicy, Snapshot};
use crate::offerings::index::OfferingIndex;
use crate::offerings::solver_cache::SolverCache;
use crate::topology::groups::TopologyRules;

/// Runs `ask` on the offering index that a decision about one pod would use, without preferences
/// and slack, which cost no pod its place. `None` if there is nothing to ask about.
pub(crate) fn with_index<R>(
    snapshot: &Snapshot,
    options: &Options,
    pod: &Pod,
    ask: impl FnOnce(&mut OfferingIndex<'_>, &Class<'_>, &Dimensions<'_>) -> R,
) -> Option<R> {
    let snapshot = Snapshot {
        pods: vec![Pod { unsupported: None, ..pod.clone() }],
        nodes: Vec::new(),
        pools: snapshot.pools.clone(),
        daemons: snapshot.daemons.clone(),
        catalogues: snapshot.catalogues.clone(),
        reservations: snapshot.reservations.clone(),
    };
    let options =
        Options { preferences: PreferencePolicy::Ignore, slack_percent: 0, ..options.clone() };
    let cache = SolverCache::new(&snapshot);
    let groups = Groups::of(&snapshot);
    let levels = Levels::of(&groups.list, &snapshot, &options);
    let pods: Vec<&Pod> = levels.list.iter().map(|level| &*level.pod).collect();
    let rules = TopologyRules::of(&pods, &snapshot);
    let dimensions = Dimensions::of(&pods, &snapshot, &rules);
    let classes = Classes::of(&groups.list, &levels, &dimensions, &rules);
    let mut offerings =
        OfferingIndex::new(&cache, &snapshot, &options, &dimensions, &classes, &rules.keys);
    let class = classes.list.iter().last()?;
    Some(ask(&mut offerings, class, &dimensions))
}
