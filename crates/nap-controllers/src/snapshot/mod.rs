//! Snapshots: the input of the engine, built from the cluster index.

pub mod catalogues;
mod daemons;
mod nodes;
mod pods;
mod pools;
mod simulate;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use jiff::Timestamp;
use nap_engine::Snapshot;

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
    let pods = pods::pods_without_capacity(index, now);
    let capacity = capacity(index, &Interest::of(&pods), catalogues, cache, now);
    Snapshot { pods, ..capacity }
}

/// A snapshot without pods: nodes that stay, pools, daemons and catalogues.
fn capacity(
    index: &Index,
    interest: &Interest,
    catalogues: &Catalogues,
    cache: &mut NodeCache,
    now: Timestamp,
) -> Snapshot {
    let daemons = daemons::daemons(index);
    let expected = pods::expected_pods(index, now);
    let builder =
        nodes::NodeBuilder { index, catalogues, interest, expected: &expected, daemons: &daemons };
    let nodes = builder.nodes(cache);
    let pools =
        index.pools().filter_map(|(_, pool)| pools::pool(index, pool, catalogues)).collect();
    // No provider offers capacity reservations yet.
    let (catalogues, reservations) = (catalogues.named.clone(), BTreeMap::new());
    Snapshot { pods: Vec::new(), nodes, pools, daemons, catalogues, reservations }
}
