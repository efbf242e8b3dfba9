//! The kinds that the index holds, each with the consequences of its changes.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{
    LimitRange, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod,
    ReplicationController, Service,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::{CSINode, StorageClass};
use kube::{Resource, ResourceExt};
use nap_api::{AKSNodeClass, NodeClaim, NodeOverlay, NodePool, labels};
use nap_engine::PodKey;
use serde::de::DeserializeOwned;

use super::milestones::{Milestone, transitions};
use super::workloads::WorkloadSelectorKind;
use super::{Dirty, Index, WatchedPod, slim};

/// A kind of object in the index. Decisions wait until every kind has been listed once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are those of Kubernetes")]
pub enum Kind {
    Pod,
    Node,
    NodeClaim,
    NodePool,
    NodeClass,
    DaemonSet,
    PodDisruptionBudget,
    Namespace,
    LimitRange,
    PersistentVolumeClaim,
    PersistentVolume,
    StorageClass,
    CsiNode,
    NodeOverlay,
    /// A kind that selects the pods of one workload.
    Workload(WorkloadSelectorKind),
}

/// Every kind.
pub const KINDS: [Kind; 18] = [
    Kind::Pod,
    Kind::Node,
    Kind::NodeClaim,
    Kind::NodePool,
    Kind::NodeClass,
    Kind::DaemonSet,
    Kind::PodDisruptionBudget,
    Kind::Namespace,
    Kind::LimitRange,
    Kind::PersistentVolumeClaim,
    Kind::PersistentVolume,
    Kind::StorageClass,
    Kind::CsiNode,
    Kind::NodeOverlay,
    Kind::Workload(WorkloadSelectorKind::Service),
    Kind::Workload(WorkloadSelectorKind::ReplicationController),
    Kind::Workload(WorkloadSelectorKind::ReplicaSet),
    Kind::Workload(WorkloadSelectorKind::StatefulSet),
];

/// An object that the index holds. The methods are called by [`Index::apply`] and
/// [`Index::delete`], which are the way in.
pub trait Indexed:
    Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static
{
    /// The kind of the object.
    const KIND: Kind;

    /// Drops what no decision reads.
    fn slim(&mut self) {
        slim::metadata(self.meta_mut());
    }

    /// Whether the object belongs to this provider, or to none. Objects of another provider of
    /// Karpenter in the same cluster are left alone.
    fn is_managed(&self) -> bool {
        true
    }

    /// Stores the object and records what its change makes dirty.
    fn insert(self, index: &mut Index, key: String, now: Timestamp);

    /// Drops the object and records what its absence makes dirty.
    fn remove(index: &mut Index, key: &str);

    /// The keys of every stored object of this kind.
    fn keys(index: &Index) -> Vec<String>;

    /// The stored object. `None` also for kinds of which the index keeps only a digest.
    fn get(index: &Index, key: &str) -> Option<Arc<Self>>;
}

/// `namespace/name`, or the name of a cluster-scoped object.
pub fn key_of<K: ResourceExt>(object: &K) -> String {
    match object.namespace() {
        Some(namespace) => format!("{namespace}/{}", object.name_any()),
        None => object.name_any(),
    }
}

/// Whether an object differs from the stored one: neither older nor the same version of it. Objects
/// without a resource version, as in manifests, always replace.
pub(super) fn is_news<K: Resource>(known: Option<&Arc<K>>, new: &K) -> bool {
    let Some(known) = known else { return true };
    let version = |object: &K| object.meta().resource_version.as_ref()?.parse::<u64>().ok();
    match (version(known), version(new)) {
        (Some(known_version), Some(version)) if known.meta().uid == new.meta().uid => {
            version > known_version
        }
        _ => true,
    }
}

/// Objects of one kind by key.
pub(super) type Table<K> = BTreeMap<String, Arc<K>>;

/// Stores an object unless it is old news. Returns whether it was stored.
pub(super) fn store<K: Resource>(table: &mut Table<K>, key: String, object: K) -> bool {
    let news = is_news(table.get(&key), &object);
    if news {
        table.insert(key, Arc::new(object));
    }
    news
}

/// Implements [`Indexed`] for a kind that is stored as it is: the table, what a stored object makes
/// dirty, what a removed one does, and the milestones between two versions, if there are any.
macro_rules! indexed {
    ($type:ty, $kind:expr, $table:ident, $applied:expr, $removed:expr) => {
        indexed!($type, $kind, $table, $applied, $removed, |_, _| Vec::new());
    };
    ($type:ty, $kind:expr, $table:ident, $applied:expr, $removed:expr, $milestones:expr) => {
        impl Indexed for $type {
            const KIND: Kind = $kind;

            fn insert(self, index: &mut Index, key: String, _: Timestamp) {
                let milestones: fn(&Self, &Self) -> Vec<Milestone> = $milestones;
                if let Some(old) = index.$table.get(&key).cloned() {
                    index.report(milestones(&old, &self));
                }
                if store(&mut index.$table, key.clone(), self) {
                    let applied: fn(&mut Index, &str) = $applied;
                    applied(index, &key);
                }
            }

            fn remove(index: &mut Index, key: &str) {
                if index.$table.remove(key).is_some() {
                    let removed: fn(&mut Index, &str) = $removed;
                    removed(index, key);
                }
            }

            fn keys(index: &Index) -> Vec<String> {
                index.$table.keys().cloned().collect()
            }

            fn get(index: &Index, key: &str) -> Option<Arc<Self>> {
                index.$table.get(key).cloned()
            }
        }
    };
}

fn nothing(_: &mut Index, _: &str) {}

fn volumes_changed(index: &mut Index, _: &str) {
    index.volumes_changed();
}

/// A pod whose volumes were not bound may have places now.
fn volumes_applied(index: &mut Index, _: &str) {
    index.volumes_changed();
    index.mark(Dirty::Provisioning);
}

fn namespaces_changed(index: &mut Index, _: &str) {
    index.namespaces_changed();
}

fn overlays_changed(index: &mut Index, _: &str) {
    index.bump_generation();
    index.mark(Dirty::Overlays);
    index.mark(Dirty::Provisioning);
}

fn bump(index: &mut Index, _: &str) {
    index.bump_generation();
}

indexed!(
    AKSNodeClass,
    Kind::NodeClass,
    classes,
    Index::class_applied,
    Index::class_removed,
    |old, new| transitions(Kind::NodeClass, old, new)
);
indexed!(DaemonSet, Kind::DaemonSet, daemon_sets, bump, bump);
indexed!(Namespace, Kind::Namespace, namespaces, namespaces_changed, namespaces_changed);
indexed!(LimitRange, Kind::LimitRange, limit_ranges, bump, bump);
indexed!(
    PersistentVolumeClaim,
    Kind::PersistentVolumeClaim,
    volume_claims,
    volumes_applied,
    volumes_changed
);
indexed!(PersistentVolume, Kind::PersistentVolume, volumes, volumes_applied, volumes_changed);
indexed!(StorageClass, Kind::StorageClass, storage_classes, volumes_applied, volumes_changed);
indexed!(CSINode, Kind::CsiNode, csi_nodes, nothing, nothing);
indexed!(NodeOverlay, Kind::NodeOverlay, overlays, overlays_changed, overlays_changed);

impl Indexed for NodePool {
    const KIND: Kind = Kind::NodePool;

    fn is_managed(&self) -> bool {
        self.spec.template.spec.node_class_ref.group == labels::AZURE_GROUP
    }

    fn insert(self, index: &mut Index, key: String, _: Timestamp) {
        index.insert_pool(&key, self);
    }

    fn remove(index: &mut Index, key: &str) {
        index.remove_pool(key);
    }

    fn keys(index: &Index) -> Vec<String> {
        index.pools.keys().cloned().collect()
    }

    fn get(index: &Index, key: &str) -> Option<Arc<Self>> {
        index.pools.get(key).cloned()
    }
}

impl Indexed for PodDisruptionBudget {
    const KIND: Kind = Kind::PodDisruptionBudget;

    fn insert(self, index: &mut Index, key: String, _: Timestamp) {
        if index.budgets.insert(key, self) {
            index.bump_generation();
        }
    }

    fn remove(index: &mut Index, key: &str) {
        if index.budgets.remove(key) {
            index.bump_generation();
        }
    }

    fn keys(index: &Index) -> Vec<String> {
        index.budgets.keys()
    }

    fn get(index: &Index, key: &str) -> Option<Arc<Self>> {
        index.budgets.get(key).cloned()
    }
}

impl Indexed for Pod {
    const KIND: Kind = Kind::Pod;

    fn insert(self, index: &mut Index, _: String, now: Timestamp) {
        index.insert_pod(super::Pod::from(self), now);
    }

    fn remove(index: &mut Index, key: &str) {
        index.remove_pod(&PodKey::from(key));
    }

    fn keys(index: &Index) -> Vec<String> {
        index.pods.keys().map(|key| key.as_str().to_owned()).collect()
    }

    fn get(_: &Index, _: &str) -> Option<Arc<Self>> {
        None
    }
}

impl Indexed for WatchedPod {
    const KIND: Kind = Kind::Pod;

    /// It has no managed fields.
    fn slim(&mut self) {}

    fn insert(self, index: &mut Index, key: String, now: Timestamp) {
        self.0.insert(index, key, now);
    }

    fn remove(index: &mut Index, key: &str) {
        Pod::remove(index, key);
    }

    fn keys(index: &Index) -> Vec<String> {
        Pod::keys(index)
    }

    fn get(_: &Index, _: &str) -> Option<Arc<Self>> {
        None
    }
}

impl Indexed for Node {
    const KIND: Kind = Kind::Node;

    fn slim(&mut self) {
        slim::node(self);
    }

    fn insert(self, index: &mut Index, key: String, now: Timestamp) {
        index.insert_node(key, self, now);
    }

    fn remove(index: &mut Index, key: &str) {
        index.remove_node(key);
    }

    fn keys(index: &Index) -> Vec<String> {
        index.nodes.keys().cloned().collect()
    }

    fn get(index: &Index, key: &str) -> Option<Arc<Self>> {
        index.nodes.get(key).cloned()
    }
}

impl Indexed for NodeClaim {
    const KIND: Kind = Kind::NodeClaim;

    fn is_managed(&self) -> bool {
        self.spec.node_class_ref.group == labels::AZURE_GROUP
    }

    fn insert(self, index: &mut Index, key: String, _: Timestamp) {
        index.insert_claim(key, self);
    }

    fn remove(index: &mut Index, key: &str) {
        index.remove_claim(key);
    }

    fn keys(index: &Index) -> Vec<String> {
        index.claims.keys().cloned().collect()
    }

    fn get(index: &Index, key: &str) -> Option<Arc<Self>> {
        index.claims.get(key).cloned()
    }
}

/// Implements [`Indexed`] for a kind of which only the pod selector is kept.
macro_rules! indexed_selector {
    ($type:ty, $kind:ident, $insert:ident) => {
        impl Indexed for $type {
            const KIND: Kind = Kind::Workload(WorkloadSelectorKind::$kind);

            fn insert(self, index: &mut Index, key: String, _: Timestamp) {
                index.workloads.$insert(key, &self);
            }

            fn remove(index: &mut Index, key: &str) {
                index.workloads.remove(WorkloadSelectorKind::$kind, key);
            }

            fn keys(index: &Index) -> Vec<String> {
                index.workloads.keys(WorkloadSelectorKind::$kind)
            }

            fn get(_: &Index, _: &str) -> Option<Arc<Self>> {
                None
            }
        }
    };
}

indexed_selector!(Service, Service, insert_service);
indexed_selector!(ReplicationController, ReplicationController, insert_replication_controller);
indexed_selector!(ReplicaSet, ReplicaSet, insert_replica_set);
indexed_selector!(StatefulSet, StatefulSet, insert_stateful_set);
