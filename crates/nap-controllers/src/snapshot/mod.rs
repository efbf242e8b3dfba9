//! Snapshots: the input of the engine, built from the cluster index.

pub mod catalogues;
mod daemons;
mod nodes;
mod pods;
mod pools;
mod simulate;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use nap_engine::{PodKey, Snapshot};

pub use catalogues::{Catalogues, OverlayRefusal};
pub use nodes::NodeCache;
pub use pods::{
    PLAN_HOLDS, engine_pod, fits, has_unplanned_pods, is_plan_holding, pending_pods, planned_pods,
    room_left,
};
pub use pools::{pool_requirements, pool_usage};
pub use simulate::Removals;

use crate::cluster::{Index, Interest};

/// The snapshot for provisioning: pending pods and pods of deleting nodes, on all capacity that
/// stays.
pub fn snapshot(
    index: &Index,
    catalogues: &Catalogues,
    cache: &mut NodeCache,
    now: Timestamp,
) -> Snapshot {
    snapshot_moving(index, catalogues, cache, &BTreeSet::new(), now)
}

/// As [`snapshot`], with further pods to place that were planned onto a node: those that are
/// `moved`.
pub fn snapshot_moving(
    index: &Index,
    catalogues: &Catalogues,
    cache: &mut NodeCache,
    moved: &BTreeSet<PodKey>,
    now: Timestamp,
) -> Snapshot {
    let mut pods = pods::pods_without_capacity(index, now);
    pods.extend(moved.iter().filter_map(|key| Some(engine_pod(index, index.pod(key)?))));
    pods.sort_by(|one, other| one.key.cmp(&other.key));
    let capacity = capacity(index, &Interest::of(&pods), catalogues, cache, moved, now);
    Snapshot { pods, ..capacity }
}

/// A snapshot without pods: nodes that stay, pools, daemons and catalogues. Pods that are `moved`
/// take no room where they were planned.
fn capacity(
    index: &Index,
    interest: &Interest,
    catalogues: &Catalogues,
    cache: &mut NodeCache,
    moved: &BTreeSet<PodKey>,
    now: Timestamp,
) -> Snapshot {
    let daemons = daemons::daemons(index);
    let mut expected = pods::expected_pods(index, now);
    for pods in expected.values_mut() {
        pods.retain(|pod| !moved.contains(pod.key()));
    }
    let builder =
        nodes::NodeBuilder { index, catalogues, interest, expected: &expected, daemons: &daemons };
    let nodes = builder.nodes(cache);
    let pools =
        index.pools().filter_map(|(_, pool)| pools::pool(index, pool, catalogues)).collect();
    // No provider offers capacity reservations yet.
    let (catalogues, reservations) = (catalogues.named.clone(), BTreeMap::new());
    Snapshot { pods: Vec::new(), nodes, pools, daemons, catalogues, reservations }
}
