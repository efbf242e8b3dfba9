//! Deployments, ReplicaSets and DaemonSets: pods come and go as their owners say.
//!
//! Thin where a node provisioner cannot tell: no proportional scaling during a rollout, no adoption
//! of orphans, and a ready pod counts as available at once. StatefulSets and Jobs are not run yet.

mod daemon_sets;
mod deployments;
mod replica_sets;

use kube::ResourceExt;
use serde_json::{Value, json};

use super::index::Index;
use super::write::Writer;

/// Brings every workload one step closer to what it should be.
pub(super) async fn pass(index: &mut Index, writer: &mut Writer) {
    for deployment in index.deployments.snapshot() {
        deployments::reconcile(&deployment, index, writer).await;
    }
    for set in index.replica_sets.snapshot() {
        replica_sets::reconcile(&set, index, writer).await;
    }
    for set in index.daemon_sets.snapshot() {
        daemon_sets::reconcile(&set, index, writer).await;
    }
}

/// The reference by which a controller owns what it creates.
fn owner(kind: &str, owner: &impl ResourceExt) -> Value {
    json!([{
        "apiVersion": "apps/v1", "kind": kind, "name": owner.name_any(), "uid": owner.uid(),
        "controller": true, "blockOwnerDeletion": true,
    }])
}

/// A short name for the content of a template, stable across runs and machines.
fn hash(template: &Value) -> String {
    const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut state: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in template.to_string().bytes() {
        state = (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    (0..10)
        .map(|_| {
            let digit = usize::try_from(state % 27).unwrap_or(0);
            state /= 27;
            ALPHABET.get(digit).copied().map_or('x', char::from)
        })
        .collect()
}
