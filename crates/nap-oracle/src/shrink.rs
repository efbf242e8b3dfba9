//! Reduction of a failing snapshot, and its scenario file.

use std::sync::Arc;

use nap_engine::{Fleet, InstanceType, Options, Snapshot};

/// Removes pods, nodes, pools, daemons and types as long as the snapshot still fails.
pub fn shrink(mut snapshot: Snapshot, fails: impl Fn(&Snapshot) -> bool) -> Snapshot {
    loop {
        let before = size(&snapshot);
        thin(&mut snapshot, &fails, |snapshot| &mut snapshot.pods);
        thin(&mut snapshot, &fails, |snapshot| &mut snapshot.nodes);
        thin(&mut snapshot, &fails, |snapshot| &mut snapshot.pools);
        thin(&mut snapshot, &fails, |snapshot| &mut snapshot.daemons);
        let names: Vec<String> = snapshot.catalogues.keys().cloned().collect();
        for name in names {
            thin(&mut snapshot, &fails, |snapshot| types(snapshot, &name));
        }
        if before == size(&snapshot) {
            return snapshot;
        }
    }
}

fn types<'s>(snapshot: &'s mut Snapshot, name: &str) -> &'s mut Vec<InstanceType> {
    Arc::make_mut(snapshot.catalogues.entry(name.to_owned()).or_default()).edit()
}

fn size(snapshot: &Snapshot) -> usize {
    let Snapshot { pods, nodes, pools, daemons, catalogues, .. } = snapshot;
    let types: usize = catalogues.values().map(|types| types.types().len()).sum();
    pods.len() + nodes.len() + pools.len() + daemons.len() + types
}

fn thin<T: Clone>(
    snapshot: &mut Snapshot,
    fails: &impl Fn(&Snapshot) -> bool,
    list: impl Fn(&mut Snapshot) -> &mut Vec<T>,
) {
    let mut index = 0;
    while index < list(snapshot).len() {
        let mut smaller = snapshot.clone();
        list(&mut smaller).remove(index);
        if fails(&smaller) {
            *snapshot = smaller;
        } else {
            index += 1;
        }
    }
}

/// Removes candidates, nodes, daemons and pools without nodes as long as the fleet still fails.
pub fn shrink_fleet(mut fleet: Fleet, fails: impl Fn(&Fleet) -> bool) -> Fleet {
    let size = |fleet: &Fleet| {
        let Snapshot { nodes, pools, daemons, .. } = &fleet.snapshot;
        fleet.candidates.len() + nodes.len() + pools.len() + daemons.len()
    };
    loop {
        let before = size(&fleet);
        let names: Vec<String> = fleet.snapshot.nodes.iter().map(|one| one.name.clone()).collect();
        for name in &names {
            let mut smaller = fleet.clone();
            smaller.candidates.retain(|one| one.node != *name);
            keep_if_failing(&mut fleet, smaller.clone(), &fails);
            smaller.snapshot.nodes.retain(|one| one.name != *name);
            keep_if_failing(&mut fleet, smaller, &fails);
        }
        for number in (0..fleet.snapshot.daemons.len()).rev() {
            let mut smaller = fleet.clone();
            smaller.snapshot.daemons.remove(number);
            keep_if_failing(&mut fleet, smaller, &fails);
        }
        for number in (0..fleet.snapshot.pools.len()).rev() {
            let mut smaller = fleet.clone();
            let pool = smaller.snapshot.pools.remove(number);
            if smaller.candidates.iter().all(|one| one.pool != pool.name) {
                smaller.pools.remove(&pool.name);
                keep_if_failing(&mut fleet, smaller, &fails);
            }
        }
        if before == size(&fleet) {
            return fleet;
        }
    }
}

fn keep_if_failing(fleet: &mut Fleet, smaller: Fleet, fails: &impl Fn(&Fleet) -> bool) {
    if fails(&smaller) {
        *fleet = smaller;
    }
}

/// Scenario file of a snapshot and its options, as JSON.
pub fn scenario(snapshot: &Snapshot, options: &Options) -> String {
    let file = serde_json::json!({ "snapshot": snapshot, "options": options });
    serde_json::to_string(&file).unwrap_or_default()
}
