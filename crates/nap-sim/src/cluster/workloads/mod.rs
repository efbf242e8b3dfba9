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

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher as _;

use fnv::FnvHasher;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use serde_json::{Value, json};

use autoscalers::Autoscaling;

use super::index::{Change, Index, Key, Mirror, Object, Reader};
use super::write::Writer;
use super::{earliest, pods};

/// The workload controllers: which objects they have to look at, and when.
#[derive(Debug, Default)]
pub(super) struct Workloads {
    autoscaling: Autoscaling,
    cron_jobs: Queue,
    jobs: Queue,
    /// Pods with the finalizer of a Job that may be gone.
    orphans: BTreeSet<Key>,
    deployments: Queue,
    replica_sets: Queue,
    daemon_sets: Queue,
    stateful_sets: Queue,
}

/// Keys of the objects that changed, and of those that wait for a time.
#[derive(Debug, Default)]
struct Queue {
    changed: BTreeSet<Key>,
    due: BTreeMap<Key, Timestamp>,
}

impl Queue {
    fn add_all<T: Object>(&mut self, mirror: &Mirror<T>) {
        self.changed.extend(mirror.keys().cloned());
    }

    fn add_namespace<T: Object>(&mut self, namespace: &str, mirror: &Mirror<T>) {
        let keys = mirror.in_namespace(namespace).map(|object| super::index::key(&**object));
        self.changed.extend(keys);
    }

    /// Takes the keys of the objects to look at now.
    fn take(&mut self, now: Timestamp) -> BTreeSet<Key> {
        let mut keys = std::mem::take(&mut self.changed);
        keys.extend(self.due.iter().filter(|(_, at)| **at <= now).map(|(key, _)| key.clone()));
        self.due.retain(|key, _| !keys.contains(key));
        keys
    }

    /// Looks at an object again at a time.
    fn again(&mut self, key: Key, at: Option<Timestamp>) {
        if let Some(at) = at {
            self.due.insert(key, at);
        }
    }

    fn next(&self) -> Option<Timestamp> {
        self.due.values().min().copied()
    }
}

impl Workloads {
    /// Reconciles the workloads that something has changed for, all of them after a failed write;
    /// returns when the next one has something to do.
    pub(super) async fn pass(
        &mut self,
        index: &mut Index,
        writer: &mut Writer,
        all: bool,
    ) -> Option<Timestamp> {
        self.read(index);
        if all {
            self.cron_jobs.add_all(&index.cron_jobs);
            self.jobs.add_all(&index.jobs);
            self.orphans.extend(index.pods.keys().cloned());
            self.deployments.add_all(&index.deployments);
            self.replica_sets.add_all(&index.replica_sets);
            self.daemon_sets.add_all(&index.daemon_sets);
            self.stateful_sets.add_all(&index.stateful_sets);
        }
        let wake = autoscalers::pass(&mut self.autoscaling, index, writer).await;
        for key in self.cron_jobs.take(writer.now()) {
            if let Some(cron_job) = index.cron_jobs.get(&key).cloned() {
                let next = cron_jobs::reconcile(&cron_job, index, writer).await;
                self.cron_jobs.again(key, next);
            }
        }
        self.read(index);
        for key in self.jobs.take(writer.now()) {
            if let Some(job) = index.jobs.get(&key).cloned() {
                let next = jobs::reconcile(&job, index, writer).await;
                self.jobs.again(key, next);
            }
        }
        self.read(index);
        jobs::release_orphans(std::mem::take(&mut self.orphans), index, writer).await;
        for key in self.deployments.take(writer.now()) {
            if let Some(deployment) = index.deployments.get(&key).cloned() {
                let next = deployments::reconcile(&deployment, index, writer).await;
                self.deployments.again(key, next);
            }
        }
        self.read(index);
        for key in self.replica_sets.take(writer.now()) {
            if let Some(set) = index.replica_sets.get(&key).cloned() {
                replica_sets::reconcile(&set, index, writer).await;
            }
        }
        for key in self.daemon_sets.take(writer.now()) {
            if let Some(set) = index.daemon_sets.get(&key).cloned() {
                daemon_sets::reconcile(&set, index, writer).await;
            }
        }
        for key in self.stateful_sets.take(writer.now()) {
            if let Some(set) = index.stateful_sets.get(&key).cloned() {
                stateful_sets::reconcile(&set, index, writer).await;
            }
        }
        let due = [&self.cron_jobs, &self.jobs, &self.deployments].map(Queue::next);
        due.into_iter().fold(wake, earliest)
    }

    /// Queues what the changes concern: the objects and their owners.
    fn read(&mut self, index: &mut Index) {
        const READER: Reader = Reader::Workloads;
        for change in index.pods.changes(READER) {
            self.read_pod(&change);
        }
        for change in index.jobs.changes(READER) {
            let leaves =
                change.after.as_ref().is_none_or(|job| job.metadata.deletion_timestamp.is_some());
            if let (true, Some(uid)) = (leaves, change.versions().find_map(|job| job.uid())) {
                self.orphans
                    .extend(index.pods.managed_by(&uid).map(|pod| super::index::key(&**pod)));
            }
            self.cron_jobs.changed.extend(change.versions().filter_map(|job| owner_key(&**job)));
            self.jobs.changed.insert(change.key.clone());
        }
        for change in index.replica_sets.changes(READER) {
            self.deployments.changed.extend(change.versions().filter_map(|set| owner_key(&**set)));
            self.replica_sets.changed.insert(change.key.clone());
        }
        for change in index.claims.changes(READER) {
            self.stateful_sets.add_namespace(&change.key.0, &index.stateful_sets);
        }
        if index.nodes.changes(READER).iter().any(|change| moves_daemons(change)) {
            self.daemon_sets.add_all(&index.daemon_sets);
        }
        let keys = |queue: &mut Queue, key: &Key| {
            queue.changed.insert(key.clone());
        };
        index.cron_jobs.changes(READER).iter().for_each(|one| keys(&mut self.cron_jobs, &one.key));
        index
            .deployments
            .changes(READER)
            .iter()
            .for_each(|one| keys(&mut self.deployments, &one.key));
        index
            .daemon_sets
            .changes(READER)
            .iter()
            .for_each(|one| keys(&mut self.daemon_sets, &one.key));
        index
            .stateful_sets
            .changes(READER)
            .iter()
            .for_each(|one| keys(&mut self.stateful_sets, &one.key));
    }

    fn read_pod(&mut self, change: &Change<Pod>) {
        for pod in change.versions() {
            if jobs::is_tracked(pod) {
                self.orphans.insert(change.key.clone());
            }
            let Some(owner) = pods::controller_of(&**pod) else { continue };
            let queue = match owner.kind.as_str() {
                "ReplicaSet" => &mut self.replica_sets,
                "DaemonSet" => &mut self.daemon_sets,
                "StatefulSet" => &mut self.stateful_sets,
                "Job" => &mut self.jobs,
                _ => continue,
            };
            queue.changed.insert((change.key.0.clone(), owner.name.clone()));
        }
    }
}

/// Key of the controller owner of an object.
fn owner_key(object: &impl ResourceExt) -> Option<Key> {
    let owner = pods::controller_of(object)?;
    Some((object.namespace().unwrap_or_default(), owner.name.clone()))
}

/// Whether a change of a Node can change where daemons run.
fn moves_daemons(change: &Change<Node>) -> bool {
    let (Some(before), Some(after)) = (&change.before, &change.after) else { return true };
    let leaves = |node: &Node| node.metadata.deletion_timestamp.is_some();
    before.spec != after.spec
        || before.labels() != after.labels()
        || leaves(before) != leaves(after)
}

/// The `ownerReferences` of an object that a workload creates.
pub(super) fn owner<T: Object>(owner: &T) -> Value {
    json!([{
        "apiVersion": T::api_version(&()), "kind": T::kind(&()),
        "name": owner.name_any(), "uid": owner.uid(),
        "controller": true, "blockOwnerDeletion": true,
    }])
}

/// A time as objects store it.
fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
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
