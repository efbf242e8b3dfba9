//! Index of the cluster's objects: plain maps, updated by watches and by the responses of own
//! writes. Each component reads what has changed since its last turn, so a pass costs what has
//! changed and not what exists.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
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

use super::pods::{controller_of, node_of};

/// Namespace and name.
pub(super) type Key = (String, String);

pub(super) fn key(object: &impl ResourceExt) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// The components that read changes, in the order of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reader {
    Workloads,
    NodeLifecycle,
    TaintEviction,
    Storage,
    DisruptionBudgets,
    Services,
    Scheduler,
}

/// Number of [`Reader`]s.
const READERS: usize = 7;

/// One change of an object: what was known before it, and what after it.
#[derive(Debug)]
pub(super) struct Change<T> {
    pub(super) key: Key,
    pub(super) before: Option<Arc<T>>,
    pub(super) after: Option<Arc<T>>,
}

impl<T> Change<T> {
    /// The object before and after the change, as far as it existed.
    pub(super) fn versions(&self) -> impl Iterator<Item = &Arc<T>> {
        self.before.iter().chain(&self.after)
    }
}

/// All objects of one kind.
#[derive(Debug)]
pub(super) struct Mirror<T> {
    objects: BTreeMap<Key, Arc<T>>,
    /// Keys of the managed objects by the uid of the controller owner.
    managed: BTreeMap<String, BTreeSet<Key>>,
    /// Keys of the objects on a node, by its name.
    on_nodes: BTreeMap<String, BTreeSet<Key>>,
    /// Objects of an unfinished relist.
    incoming: Option<BTreeMap<Key, Arc<T>>>,
    complete: bool,
    /// Changes that some component has not read yet.
    log: VecDeque<Arc<Change<T>>>,
    /// Number of changes that were dropped from the front of `log`.
    dropped: usize,
    /// Position of each reader in the log, counted from the first change ever.
    read: [usize; READERS],
}

impl<T> Default for Mirror<T> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            managed: BTreeMap::new(),
            on_nodes: BTreeMap::new(),
            incoming: None,
            complete: false,
            log: VecDeque::new(),
            dropped: 0,
            read: [0; READERS],
        }
    }
}

impl<T> Mirror<T> {
    /// The changes that a component has not read yet, oldest first.
    pub(super) fn changes(&mut self, reader: Reader) -> Vec<Arc<Change<T>>> {
        let position = &mut self.read[reader as usize];
        let skip = position.saturating_sub(self.dropped);
        *position = self.dropped + self.log.len();
        self.log.iter().skip(skip).cloned().collect()
    }

    /// Number of changes so far.
    fn end(&self) -> usize {
        self.dropped + self.log.len()
    }

    /// Forgets the changes before a position.
    fn forget_before(&mut self, position: usize) {
        while self.dropped < position && self.log.pop_front().is_some() {
            self.dropped += 1;
        }
    }
}

impl<T: Object> Mirror<T> {
    pub(super) fn get(&self, key: &Key) -> Option<&Arc<T>> {
        self.objects.get(key)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.objects.keys()
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Arc<T>> {
        self.objects.values()
    }

    /// Objects whose controller owner has this uid.
    pub(super) fn managed_by(&self, uid: &str) -> impl Iterator<Item = &Arc<T>> {
        self.managed.get(uid).into_iter().flatten().filter_map(|key| self.objects.get(key))
    }

    /// Objects on a node.
    pub(super) fn on_node(&self, node: &str) -> impl Iterator<Item = &Arc<T>> {
        self.on_nodes.get(node).into_iter().flatten().filter_map(|key| self.objects.get(key))
    }

    /// Names of the nodes that objects are on.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &String> {
        self.on_nodes.keys()
    }

    /// Objects of one namespace.
    pub(super) fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = &Arc<T>> {
        let first = (namespace.to_owned(), String::new());
        let all = self.objects.range(first..);
        all.take_while(move |(key, _)| key.0 == namespace).map(|(_, object)| object)
    }

    /// A copy to iterate over while the index changes.
    pub(super) fn snapshot(&self) -> Vec<Arc<T>> {
        self.objects.values().cloned().collect()
    }

    /// Stores an object unless this or a newer version is known: the watch repeats own writes.
    pub(super) fn put(&mut self, object: T) {
        let key = key(&object);
        let revision =
            |object: &T| object.resource_version().and_then(|text| text.parse::<u64>().ok());
        let known = self.objects.get(&key).is_some_and(|held| {
            let held = revision(held);
            held.is_some() && held >= revision(&object)
        });
        if !known {
            self.insert(key, Arc::new(object));
        }
    }

    fn insert(&mut self, key: Key, object: Arc<T>) {
        let before = self.objects.insert(key.clone(), Arc::clone(&object));
        let owner = |object: &T| controller_of(object).map(|owner| owner.uid.clone());
        regroup(&mut self.managed, &key, before.as_deref().and_then(owner), owner(&object));
        let node = |object: &T| object.node().filter(|node| !node.is_empty()).map(str::to_owned);
        regroup(&mut self.on_nodes, &key, before.as_deref().and_then(node), node(&object));
        self.log.push_back(Arc::new(Change { key, before, after: Some(object) }));
    }

    pub(super) fn remove(&mut self, key: &Key) {
        let Some(object) = self.objects.remove(key) else { return };
        let owner = controller_of(&*object).map(|owner| owner.uid.clone());
        regroup(&mut self.managed, key, owner, None);
        regroup(&mut self.on_nodes, key, object.node().map(str::to_owned), None);
        let change = Change { key: key.clone(), before: Some(object), after: None };
        self.log.push_back(Arc::new(change));
    }

    fn apply(&mut self, event: Event<T>) {
        match event {
            Event::Init => self.incoming = Some(BTreeMap::new()),
            Event::InitApply(object) => {
                self.incoming.get_or_insert_default().insert(key(&object), Arc::new(object));
            }
            Event::InitDone => {
                let incoming = self.incoming.take().unwrap_or_default();
                let gone: Vec<Key> = self
                    .objects
                    .keys()
                    .filter(|key| !incoming.contains_key(*key))
                    .cloned()
                    .collect();
                for key in gone {
                    self.remove(&key);
                }
                for (key, object) in incoming {
                    let same = |held: &Arc<T>| held.resource_version() == object.resource_version();
                    if !self.objects.get(&key).is_some_and(same) {
                        self.insert(key, object);
                    }
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

/// Moves a key from one group to another.
fn regroup(
    groups: &mut BTreeMap<String, BTreeSet<Key>>,
    key: &Key,
    old: Option<String>,
    new: Option<String>,
) {
    if old == new {
        return;
    }
    if let Some(old) = old
        && let Some(keys) = groups.get_mut(&old)
    {
        keys.remove(key);
        if keys.is_empty() {
            groups.remove(&old);
        }
    }
    if let Some(new) = new {
        groups.entry(new).or_default().insert(key.clone());
    }
}

/// A kind that the simulated controllers read, and where its objects live.
pub(super) trait Object:
    Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static
{
    /// The API of a namespace; of the cluster, for kinds without namespaces.
    fn api(client: Client, namespace: &str) -> Api<Self>;

    /// Name of the node that the object is on; `None` for kinds that are on no node.
    fn node(&self) -> Option<&str> {
        None
    }
}

macro_rules! scope {
    ($kind:ty, namespaced) => {
        impl Object for $kind {
            fn api(client: Client, namespace: &str) -> Api<Self> {
                Api::namespaced(client, namespace)
            }
        }
    };
    ($kind:ty, on_nodes) => {
        impl Object for $kind {
            fn api(client: Client, namespace: &str) -> Api<Self> {
                Api::namespaced(client, namespace)
            }

            fn node(&self) -> Option<&str> {
                Some(node_of(self))
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

            /// The ends of all logs.
            pub(super) fn positions(&self) -> Positions {
                Positions(vec![$(self.$field.end()),*])
            }

            /// Forgets the changes before the positions, which every reader has read.
            pub(super) fn forget_before(&mut self, positions: &Positions) {
                let mut positions = positions.0.iter().copied();
                $(self.$field.forget_before(positions.next().unwrap_or(0));)*
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
    pods: Pod, on_nodes;
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

/// Ends of the logs of all kinds at some moment.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Positions(Vec<usize>);

/// One watch event, to be applied to the index; returns false if the watch failed.
pub(super) type WatchEvent = Box<dyn FnOnce(&mut Index) -> bool + Send>;

/// All watches, polled in a fixed order of kinds.
pub(super) struct News(Vec<BoxStream<'static, WatchEvent>>);

impl News {
    /// Waits for the next event.
    pub(super) async fn next(&mut self) -> WatchEvent {
        std::future::poll_fn(|context| self.poll(context)).await
    }

    /// An event that is ready without waiting.
    pub(super) fn ready(&mut self) -> Option<WatchEvent> {
        match self.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(change) => Some(change),
            Poll::Pending => None,
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<WatchEvent> {
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
) -> BoxStream<'static, WatchEvent> {
    watcher(Api::<T>::all(client.clone()), watcher::Config::default())
        .map(move |event| -> WatchEvent {
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
