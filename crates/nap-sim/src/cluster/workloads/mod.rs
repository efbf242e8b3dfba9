//! Workload controllers: Deployments, ReplicaSets, DaemonSets, StatefulSets, Jobs, CronJobs and
//! HorizontalPodAutoscalers.
//!
//! Left out, because a node provisioner cannot tell: proportional scaling during a rollout,
//! adoption of orphans, `minReadySeconds`.

mod autoscalers;
mod cron_jobs;
mod daemon_sets;
mod deployments;
mod jobs;
mod replica_sets;
mod stateful_sets;

use std::hash::Hasher as _;

use fnv::FnvHasher;
use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::{Value, json};

pub(super) use autoscalers::Autoscaling;

use super::earliest;
use super::index::{Index, Object};
use super::write::Writer;

/// Reconciles every workload once; returns when the next one has something to do.
pub(super) async fn pass(
    index: &mut Index,
    writer: &mut Writer,
    autoscaling: &mut Autoscaling,
) -> Option<Timestamp> {
    let mut wake = autoscalers::pass(autoscaling, index, writer).await;
    for cron_job in index.cron_jobs.snapshot() {
        wake = earliest(wake, cron_jobs::reconcile(&cron_job, index, writer).await);
    }
    for job in index.jobs.snapshot() {
        wake = earliest(wake, jobs::reconcile(&job, index, writer).await);
    }
    jobs::release_orphans(index, writer).await;
    for deployment in index.deployments.snapshot() {
        deployments::reconcile(&deployment, index, writer).await;
    }
    for set in index.replica_sets.snapshot() {
        replica_sets::reconcile(&set, index, writer).await;
    }
    for set in index.daemon_sets.snapshot() {
        daemon_sets::reconcile(&set, index, writer).await;
    }
    for set in index.stateful_sets.snapshot() {
        stateful_sets::reconcile(&set, index, writer).await;
    }
    wake
}

/// The `ownerReferences` of an object that a workload creates.
pub(super) fn owner<T: Object>(owner: &T) -> Value {
    json!([{
        "apiVersion": T::api_version(&()), "kind": T::kind(&()),
        "name": owner.name_any(), "uid": owner.uid(),
        "controller": true, "blockOwnerDeletion": true,
    }])
}

/// A number of pods as objects have it.
fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
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
