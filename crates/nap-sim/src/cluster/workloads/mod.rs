//! Workload controllers: Deployments, ReplicaSets and DaemonSets.
//!
//! Left out, because a node provisioner cannot tell: proportional scaling during a rollout,
//! adoption of orphans, `minReadySeconds`. StatefulSets and Jobs are not run yet.

mod daemon_sets;
mod deployments;
mod replica_sets;

use std::hash::Hasher as _;

use fnv::FnvHasher;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::index::Index;
use super::write::Writer;

/// Reconciles every workload once.
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

/// The `ownerReferences` of an object that a workload creates.
fn owner(kind: &str, owner: &impl ResourceExt) -> Value {
    json!([{
        "apiVersion": "apps/v1", "kind": kind, "name": owner.name_any(), "uid": owner.uid(),
        "controller": true, "blockOwnerDeletion": true,
    }])
}

/// The `pod-template-hash` of a template: ten letters and digits, equal in every run.
fn hash(template: &Value) -> String {
    const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut hasher = FnvHasher::default();
    hasher.write(template.to_string().as_bytes());
    let mut state = hasher.finish();
    (0..10)
        .map(|_| {
            let digit = usize::try_from(state % 27).unwrap_or(0);
            state /= 27;
            ALPHABET.get(digit).copied().map_or('x', char::from)
        })
        .collect()
}
