//! Reduction of a failing snapshot, and its scenario file.

use std::sync::Arc;

use nap_engine::{InstanceType, Options, Snapshot};

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

/// Scenario file of a snapshot and its options, as JSON.
pub fn scenario(snapshot: &Snapshot, options: &Options) -> String {
    let file = serde_json::json!({ "snapshot": snapshot, "options": options });
    serde_json::to_string(&file).unwrap_or_default()
}
