//! Index of the cluster's objects: plain maps, updated by watches and by the responses of own
//! writes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures::Stream;
use futures::stream::{BoxStream, StreamExt};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{
    Endpoints, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, Service,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::{CSINode, StorageClass, VolumeAttachment};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::pods::controller_of;

/// Namespace and name.
pub(super) type Key = (String, String);

pub(super) fn key(object: &impl ResourceExt) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// All objects of one kind.
#[derive(Debug)]
pub(super) struct Mirror<T> {
    objects: BTreeMap<Key, Arc<T>>,
    /// Keys of the managed objects by the uid of the controller owner.
    managed: BTreeMap<String, BTreeSet<Key>>,
    /// Objects of an unfinished relist.
    incoming: Option<BTreeMap<Key, Arc<T>>>,
    complete: bool,
}

impl<T> Default for Mirror<T> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), managed: BTreeMap::new(), incoming: None, complete: false }
    }
}

impl<T: ResourceExt> Mirror<T> {
    pub(super) fn get(&self, key: &Key) -> Option<&Arc<T>> {
        self.objects.get(key)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Arc<T>> {
        self.objects.values()
    }

    /// Objects whose controller owner has this uid.
    pub(super) fn managed_by(&self, uid: &str) -> impl Iterator<Item = &Arc<T>> {
        self.managed.get(uid).into_iter().flatten().filter_map(|key| self.objects.get(key))
    }

    /// A copy to iterate over while the index changes.
    pub(super) fn snapshot(&self) -> Vec<Arc<T>> {
        self.objects.values().cloned().collect()
    }

    /// Stores an object unless a newer version is known.
    pub(super) fn put(&mut self, object: T) {
        let key = key(&object);
        let revision =
            |object: &T| object.resource_version().and_then(|text| text.parse::<u64>().ok());
        let stale = self.objects.get(&key).is_some_and(|held| revision(held) > revision(&object));
        if !stale {
            self.insert(key, Arc::new(object));
        }
    }

    fn insert(&mut self, key: Key, object: Arc<T>) {
        self.remove(&key);
        if let Some(owner) = controller_of(&*object) {
            self.managed.entry(owner.uid.clone()).or_default().insert(key.clone());
        }
        self.objects.insert(key, object);
    }

    pub(super) fn remove(&mut self, key: &Key) {
        let Some(object) = self.objects.remove(key) else { return };
        if let Some(owner) = controller_of(&*object)
            && let Some(keys) = self.managed.get_mut(&owner.uid)
        {
            keys.remove(key);
            if keys.is_empty() {
                self.managed.remove(&owner.uid);
            }
        }
    }

    fn apply(&mut self, event: Event<T>) {
        match event {
            Event::Init => self.incoming = Some(BTreeMap::new()),
            Event::InitApply(object) => {
                self.incoming.get_or_insert_default().insert(key(&object), Arc::new(object));
            }
            Event::InitDone => {
                self.objects.clear();
                self.managed.clear();
                for (key, object) in self.incoming.take().unwrap_or_default() {
                    self.insert(key, object);
                }
                self.complete = true;
            }
            Event::Apply(object) => self.put(object),
            Event::Delete(object) => {
                let key = key(&object);
                // A new object with the same name may be known already.
                if self.objects.get(&key).is_some_and(|held| held.uid() == object.uid()) {
                    self.remove(&key);
                }
            }
        }
    }
}

/// A kind that the simulated controllers read, and where its objects live.
pub(super) trait Object:
    Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static
{
    /// The API of a namespace; of the cluster, for kinds without namespaces.
    fn api(client: Client, namespace: &str) -> Api<Self>;
}

macro_rules! scope {
    ($kind:ty, namespaced) => {
        impl Object for $kind {
            fn api(client: Client, namespace: &str) -> Api<Self> {
                Api::namespaced(client, namespace)
            }
        }
    };
    ($kind:ty, cluster) => {
        impl Object for $kind {
            fn api(client: Client, _: &str) -> Api<Self> {
                Api::all(client)
            }
        }
    };
}

macro_rules! kinds {
    ($($field:ident: $kind:ty, $scope:ident;)*) => {
        /// All objects that the simulated controllers read.
        #[derive(Debug, Default)]
        pub(super) struct Index {
            $(pub(super) $field: Mirror<$kind>,)*
        }

        impl Index {
            /// Whether every kind was listed at least once.
            pub(super) fn is_complete(&self) -> bool {
                $(self.$field.complete)&&*
            }
        }

        impl News {
            pub(super) fn new(client: &Client) -> Self {
                Self(vec![$(follow::<$kind>(client, |index| &mut index.$field)),*])
            }
        }

        $(scope!($kind, $scope);)*
    };
}

kinds! {
    nodes: Node, cluster;
    namespaces: Namespace, cluster;
    pods: Pod, namespaced;
    deployments: Deployment, namespaced;
    replica_sets: ReplicaSet, namespaced;
    daemon_sets: DaemonSet, namespaced;
    budgets: PodDisruptionBudget, namespaced;
    stateful_sets: StatefulSet, namespaced;
    jobs: Job, namespaced;
    cron_jobs: CronJob, namespaced;
    autoscalers: HorizontalPodAutoscaler, namespaced;
    claims: PersistentVolumeClaim, namespaced;
    volumes: PersistentVolume, cluster;
    storage_classes: StorageClass, cluster;
    csi_nodes: CSINode, cluster;
    attachments: VolumeAttachment, cluster;
    services: Service, namespaced;
    endpoints: Endpoints, namespaced;
    endpoint_slices: EndpointSlice, namespaced;
}

/// One watch event, to be applied to the index; returns false if the watch failed.
pub(super) type Change = Box<dyn FnOnce(&mut Index) -> bool + Send>;

/// All watches, polled in a fixed order of kinds.
pub(super) struct News(Vec<BoxStream<'static, Change>>);

impl News {
    /// Waits for the next event.
    pub(super) async fn next(&mut self) -> Change {
        std::future::poll_fn(|context| self.poll(context)).await
    }

    /// An event that is ready without waiting.
    pub(super) fn ready(&mut self) -> Option<Change> {
        match self.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(change) => Some(change),
            Poll::Pending => None,
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Change> {
        for stream in &mut self.0 {
            if let Poll::Ready(Some(change)) = Pin::new(stream).poll_next(context) {
                return Poll::Ready(change);
            }
        }
        Poll::Pending
    }
}

fn follow<T: Object>(
    client: &Client,
    mirror: fn(&mut Index) -> &mut Mirror<T>,
) -> BoxStream<'static, Change> {
    watcher(Api::<T>::all(client.clone()), watcher::Config::default())
        .map(move |event| -> Change {
            match event {
                Ok(event) => Box::new(move |index| {
                    mirror(index).apply(event);
                    true
                }),
                Err(error) => Box::new(move |_| {
                    tracing::warn!(%error, "watch failed");
                    false
                }),
            }
        })
        .boxed()
}
