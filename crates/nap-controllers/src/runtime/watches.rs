//! Watches of every kind in the index, merged into one stream.

use std::time::Duration;

use futures::stream::{self, BoxStream, SelectAll, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{
    LimitRange, Namespace, Node, PersistentVolume, PersistentVolumeClaim, ReplicationController,
    Service,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::{CSINode, StorageClass};
use kube::runtime::utils::Backoff;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use nap_api::{AKSNodeClass, NodeClaim, NodeOverlay, NodePool};

use crate::cluster::{Index, Indexed, Kind, WatchedPod, key_of};
use crate::permissions::{AZURE, KARPENTER, Permission};

/// Verbs of a watch.
const WATCH: &[&str] = &["list", "watch"];

/// The kinds that are watched.
pub const WATCHED: &[Permission] = &[
    Permission::new(AZURE, "aksnodeclasses", WATCH),
    Permission::new(KARPENTER, "nodepools", WATCH),
    Permission::new(KARPENTER, "nodeclaims", WATCH),
    Permission::new(KARPENTER, "nodeoverlays", WATCH),
    Permission::new("", "nodes", WATCH),
    Permission::new("", "pods", WATCH),
    Permission::new("", "namespaces", WATCH),
    Permission::new("", "limitranges", WATCH),
    Permission::new("", "persistentvolumes", WATCH),
    Permission::new("", "persistentvolumeclaims", WATCH),
    Permission::new("apps", "daemonsets", WATCH),
    Permission::new("policy", "poddisruptionbudgets", WATCH),
    Permission::new("storage.k8s.io", "storageclasses", WATCH),
    Permission::new("storage.k8s.io", "csinodes", WATCH),
    Permission::new("", "services", WATCH).for_default_spread(),
    Permission::new("", "replicationcontrollers", WATCH).for_default_spread(),
    Permission::new("apps", "replicasets", WATCH).for_default_spread(),
    Permission::new("apps", "statefulsets", WATCH).for_default_spread(),
];

/// Longest wait between two attempts of a watch.
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// News of a watch.
pub struct Update {
    /// The kind that is watched.
    pub kind: Kind,
    /// What the index does with it; `None` if the watch failed and will be tried again.
    pub change: Option<Change>,
}

/// A watch event of any kind, ready to be applied to the index.
type Change = Box<dyn FnOnce(&mut Index, Timestamp) + Send>;

/// Watches the kinds that every decision depends on.
pub fn watch_cluster(client: &Client) -> SelectAll<BoxStream<'static, Update>> {
    stream::select_all([
        watch::<AKSNodeClass>(client),
        watch::<NodePool>(client),
        watch::<NodeClaim>(client),
        watch::<Node>(client),
        watch::<DaemonSet>(client),
        watch::<PodDisruptionBudget>(client),
        watch::<Namespace>(client),
        watch::<LimitRange>(client),
        watch::<StorageClass>(client),
        watch::<PersistentVolume>(client),
        watch::<PersistentVolumeClaim>(client),
        watch::<CSINode>(client),
        watch::<NodeOverlay>(client),
        watch::<WatchedPod>(client),
    ])
}

/// Watches the kinds that select the pods of a workload. Only default spread constraints need them.
pub fn watch_workload_selectors(client: &Client) -> [BoxStream<'static, Update>; 4] {
    [
        watch::<Service>(client),
        watch::<ReplicationController>(client),
        watch::<ReplicaSet>(client),
        watch::<StatefulSet>(client),
    ]
}

fn watch<K: Indexed>(client: &Client) -> BoxStream<'static, Update> {
    let api: Api<K> = Api::all(client.clone());
    watcher(api, watcher::Config::default())
        .backoff(WatchBackoff::default())
        .map(|event| {
            let change = match event {
                Ok(event) => Some(change(event)),
                Err(error) => {
                    tracing::warn!(kind = ?K::KIND, %error, "watch failed, retrying");
                    None
                }
            };
            Update { kind: K::KIND, change }
        })
        .boxed()
}

fn change<K: Indexed>(event: watcher::Event<K>) -> Change {
    Box::new(move |index, now| match event {
        watcher::Event::Init => index.begin_list::<K>(),
        watcher::Event::InitApply(object) | watcher::Event::Apply(object) => {
            index.apply(object, now);
        }
        watcher::Event::InitDone => index.end_list::<K>(),
        watcher::Event::Delete(object) => index.delete::<K>(&key_of(&object)),
    })
}

/// Exponential back-off from 0.5 s to 30 s. kube's own adds random jitter, which a simulation
/// cannot repeat.
#[derive(Default)]
struct WatchBackoff(u32);

impl Iterator for WatchBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let wait = Duration::from_millis(500).saturating_mul(1 << self.0.min(6));
        self.0 = self.0.saturating_add(1);
        Some(wait.min(MAX_BACKOFF))
    }
}

impl Backoff for WatchBackoff {
    fn reset(&mut self) {
        self.0 = 0;
    }
}
