//! From a snapshot that fails to a small one that still does, and to a file.

use nap_engine::Snapshot;

/// Takes things away while the snapshot still fails.
pub fn shrink(mut snapshot: Snapshot, fails: impl Fn(&Snapshot) -> bool) -> Snapshot {
    loop {
        let before =
            (snapshot.pods.len(), snapshot.nodes.len(), snapshot.pools.len(), snapshot.daemons.len());
        thin(&mut snapshot, &fails, |snapshot| &mut snapshot.pods);
        thin(&mut snapshot, &fails, |snapshot| &mut snapshot.nodes);
        thin(&mut snapshot, &fails, |snapshot| &mut snapshot.pools);
        thin(&mut snapshot, &fails, |snapshot| &mut snapshot.daemons);
        let after = (snapshot.pods.len(), snapshot.nodes.len(), snapshot.pools.len(), snapshot.daemons.len());
        if before == after {
            return snapshot;
        }
    }
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

/// The text of a scenario file for a snapshot. (JSON is YAML too.)
pub fn scenario(snapshot: &Snapshot) -> String {
    serde_json::to_string(&serde_json::json!({ "snapshot": snapshot })).unwrap_or_default()
}
