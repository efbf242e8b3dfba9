//! Index of the cluster's objects: plain maps, updated by watches and by the responses of own
//! writes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures::Stream;
use futures::stream::{BoxStream, StreamExt};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource, ResourceExt};

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

/// All objects that the simulated controllers read.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) nodes: Mirror<Node>,
    pub(super) pods: Mirror<Pod>,
    pub(super) deployments: Mirror<Deployment>,
    pub(super) replica_sets: Mirror<ReplicaSet>,
    pub(super) daemon_sets: Mirror<DaemonSet>,
    pub(super) budgets: Mirror<PodDisruptionBudget>,
}

impl Index {
    /// Applies one watch event; returns false if the watch failed.
    pub(super) fn apply(&mut self, change: Change) -> bool {
        match change {
            Change::Node(event) => self.nodes.apply(event),
            Change::Pod(event) => self.pods.apply(event),
            Change::Deployment(event) => self.deployments.apply(event),
            Change::ReplicaSet(event) => self.replica_sets.apply(event),
            Change::DaemonSet(event) => self.daemon_sets.apply(event),
            Change::Budget(event) => self.budgets.apply(event),
            Change::Failure(error) => {
                tracing::warn!(%error, "watch failed");
                return false;
            }
        }
        true
    }

    /// Whether every kind was listed at least once.
    pub(super) fn is_complete(&self) -> bool {
        self.nodes.complete
            && self.pods.complete
            && self.deployments.complete
            && self.replica_sets.complete
            && self.daemon_sets.complete
            && self.budgets.complete
    }
}

/// One event of one watch.
pub(super) enum Change {
    Node(Event<Node>),
    Pod(Event<Pod>),
    Deployment(Event<Deployment>),
    ReplicaSet(Event<ReplicaSet>),
    DaemonSet(Event<DaemonSet>),
    Budget(Event<PodDisruptionBudget>),
    Failure(watcher::Error),
}

/// All watches, polled in a fixed order of kinds.
pub(super) struct News(Vec<BoxStream<'static, Change>>);

impl News {
    pub(super) fn new(client: &Client) -> Self {
        Self(vec![
            follow(client, Change::Node),
            follow(client, Change::Pod),
            follow(client, Change::Deployment),
            follow(client, Change::ReplicaSet),
            follow(client, Change::DaemonSet),
            follow(client, Change::Budget),
        ])
    }

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

fn follow<T>(client: &Client, change: fn(Event<T>) -> Change) -> BoxStream<'static, Change>
where
    T: Resource<DynamicType = ()> + Clone + Debug + serde::de::DeserializeOwned + Send + 'static,
{
    watcher(Api::<T>::all(client.clone()), watcher::Config::default())
        .map(move |event| event.map_or_else(Change::Failure, change))
        .boxed()
}
