//! Drives every loop from one ordered queue, fed by watches.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use futures::stream::{self, BoxStream, FuturesUnordered, StreamExt};
use k8s_openapi::api::apps::v1::{DaemonSet, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{
    Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, ReplicationController, Service,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::{CSINode, StorageClass};
use kube::runtime::utils::Backoff;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use nap_api::nodeclaim::condition::DISRUPTION_REASON;
use nap_api::{AKSNodeClass, NodeClaim, NodeOverlay, NodePool, labels};
use nap_engine::PodKey;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::context::{Context, Outcome};
use crate::queue::WorkQueue;
use crate::state::workloads::{TIES, Tie};
use crate::state::{Kind, claim_is, key_of, pods, pool_of};
use crate::{
    disruption, garbage, lifecycle, nodeclass, nodeoverlay, nodepool, provisioning, termination,
};

/// The most reconciles at once. Most of them wait for the cloud.
const MAX_RUNNING: usize = 1024;

/// What there is to reconcile.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    NodeClass(String),
    NodePool(String),
    Node(String),
    Claim(String),
    Overlays,
    Provisioning,
    Disruption,
    Garbage,
}

/// Something changed in the cluster.
enum Change {
    Pod(watcher::Event<Pod>),
    Node(watcher::Event<Node>),
    Claim(watcher::Event<NodeClaim>),
    Pool(watcher::Event<NodePool>),
    Class(watcher::Event<AKSNodeClass>),
    Daemon(watcher::Event<DaemonSet>),
    Budget(watcher::Event<PodDisruptionBudget>),
    Namespace(watcher::Event<Namespace>),
    VolumeClaim(watcher::Event<PersistentVolumeClaim>),
    Volume(Box<watcher::Event<PersistentVolume>>),
    StorageClass(watcher::Event<StorageClass>),
    CsiNode(watcher::Event<CSINode>),
    Overlay(watcher::Event<NodeOverlay>),
    Service(watcher::Event<Service>),
    ReplicationController(watcher::Event<ReplicationController>),
    ReplicaSet(watcher::Event<ReplicaSet>),
    StatefulSet(watcher::Event<StatefulSet>),
}

/// Runs until `shutdown`. What is under way then is dropped: everything survives a crash, so it
/// survives this.
pub async fn run(context: &Context, shutdown: impl Future<Output = ()>) {
    let mut shutdown = std::pin::pin!(shutdown);
    let mut changes = changes(&context.client);
    if context.settings.engine.default_spread.is_empty() {
        // Nothing depends on what ties pods together.
        for kind in TIES {
            context.state().mark_synced(Kind::Tie(kind));
        }
    } else {
        changes.extend(ties(&context.client));
    }
    let mut driver = Driver { context, queue: WorkQueue::new(), listing: BTreeMap::new() };
    let mut running = FuturesUnordered::new();
    driver.add(Key::Disruption);
    driver.add(Key::Garbage);
    loop {
        let due = driver.queue.next_due().filter(|_| running.len() < MAX_RUNNING);
        tokio::select! {
            biased;
            () = &mut shutdown => break,
            Some(change) = changes.next() => driver.apply(change),
            Some((key, outcome)) = running.next() => driver.finish(key, outcome),
            () = wait_until(due) => {
                if let Some(key) = driver.queue.pop(Instant::now()) {
                    running.push(async move {
                        let outcome = reconcile(context, &key).await;
                        (key, outcome)
                    });
                }
            }
        }
    }
}

async fn wait_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

async fn reconcile(context: &Context, key: &Key) -> Outcome {
    match key {
        Key::NodeClass(name) => nodeclass::reconcile(context, name).await,
        Key::NodePool(name) => nodepool::reconcile(context, name).await,
        Key::Node(name) => termination::finalize_node(context, name).await,
        Key::Claim(name) => lifecycle::reconcile(context, name).await,
        Key::Overlays => nodeoverlay::reconcile(context).await,
        Key::Provisioning => provisioning::reconcile(context).await,
        Key::Disruption => disruption::reconcile(context).await,
        Key::Garbage => garbage::reconcile(context).await,
    }
}

fn changes(client: &Client) -> stream::SelectAll<BoxStream<'static, Change>> {
    stream::select_all([
        watch(Api::all(client.clone()), Change::Class),
        watch(Api::all(client.clone()), Change::Pool),
        watch(Api::all(client.clone()), Change::Claim),
        watch(Api::all(client.clone()), Change::Node),
        watch(Api::all(client.clone()), Change::Daemon),
        watch(Api::all(client.clone()), Change::Budget),
        watch(Api::all(client.clone()), Change::Namespace),
        watch(Api::all(client.clone()), Change::StorageClass),
        watch(Api::all(client.clone()), |event| Change::Volume(Box::new(event))),
        watch(Api::all(client.clone()), Change::VolumeClaim),
        watch(Api::all(client.clone()), Change::CsiNode),
        watch(Api::all(client.clone()), Change::Overlay),
        watch(Api::all(client.clone()), Change::Pod),
    ])
}

fn ties(client: &Client) -> [BoxStream<'static, Change>; 4] {
    [
        watch(Api::all(client.clone()), Change::Service),
        watch(Api::all(client.clone()), Change::ReplicationController),
        watch(Api::all(client.clone()), Change::ReplicaSet),
        watch(Api::all(client.clone()), Change::StatefulSet),
    ]
}

fn watch<K>(api: Api<K>, wrap: fn(watcher::Event<K>) -> Change) -> BoxStream<'static, Change>
where
    K: kube::Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    watcher(api, watcher::Config::default())
        .backoff(WatchBackoff::default())
        .filter_map(move |event| async move {
            match event {
                Ok(event) => Some(wrap(event)),
                Err(error) => {
                    tracing::warn!(%error, "a watch failed; trying again");
                    None
                }
            }
        })
        .boxed()
}

/// Doubles from half a second to half a minute. kube's own adds random jitter, which a simulation
/// cannot repeat.
#[derive(Default)]
struct WatchBackoff(u32);

impl Iterator for WatchBackoff {
    type Item = Duration;
    fn next(&mut self) -> Option<Duration> {
        let wait = Duration::from_millis(500).saturating_mul(1 << self.0.min(6));
        self.0 = self.0.saturating_add(1);
        Some(wait.min(Duration::from_secs(30)))
    }
}

impl Backoff for WatchBackoff {
    fn reset(&mut self) {
        self.0 = 0;
    }
}

struct Driver<'a> {
    context: &'a Context,
    queue: WorkQueue<Key>,
    /// What a list that is under way has shown so far, by kind.
    listing: BTreeMap<Kind, BTreeSet<String>>,
}

impl Driver<'_> {
    fn add(&mut self, key: Key) {
        self.queue.add(key, Instant::now());
    }

    fn finish(&mut self, key: Key, outcome: Outcome) {
        let now = Instant::now();
        match outcome {
            Ok(next) => {
                let next = next
                    .map(|wait| now + self.context.clock.real(wait).max(Duration::from_millis(1)));
                self.queue.succeeded(key, next);
            }
            Err(error) => {
                let what = format!("{key:?}");
                let wait = self.queue.failed(key, now);
                tracing::warn!(what, %error, ?wait, "failed; trying again");
            }
        }
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Pod(event) => self.feed(Kind::Pod, event, Self::pod, Self::pod_gone),
            Change::Node(event) => self.feed(Kind::Node, event, Self::node, Self::node_gone),
            Change::Claim(event) => {
                self.feed(Kind::NodeClaim, event, Self::claim, Self::claim_gone)
            }
            Change::Pool(event) => self.feed(Kind::NodePool, event, Self::pool, |driver, name| {
                driver.context.state().pools.remove(name);
            }),
            Change::Class(event) => {
                self.feed(Kind::NodeClass, event, Self::class, Self::class_gone)
            }
            Change::Daemon(event) => self.feed(
                Kind::DaemonSet,
                event,
                |driver, daemon| driver.context.state().apply_daemon(daemon),
                |driver, name| {
                    driver.context.state().daemons.remove(name);
                },
            ),
            Change::Budget(event) => self.feed(
                Kind::Budget,
                event,
                |driver, budget| driver.context.state().apply_budget(budget),
                |driver, name| {
                    driver.context.state().budgets.remove(name);
                },
            ),
            Change::Namespace(event) => self.feed(
                Kind::Namespace,
                event,
                |driver, namespace| driver.context.state().apply_namespace(namespace),
                |driver, name| {
                    driver.context.state().namespaces.remove(name);
                },
            ),
            Change::VolumeClaim(event) => self.feed(
                Kind::VolumeClaim,
                event,
                |driver, claim| {
                    driver.context.state().apply_volume_claim(claim);
                    driver.add(Key::Provisioning);
                },
                |driver, name| {
                    driver.context.state().volume_claims.remove(name);
                },
            ),
            Change::Volume(event) => self.feed(
                Kind::Volume,
                *event,
                |driver, volume| {
                    driver.context.state().apply_volume(volume);
                    driver.add(Key::Provisioning);
                },
                |driver, name| {
                    driver.context.state().volumes.remove(name);
                },
            ),
            Change::StorageClass(event) => self.feed(
                Kind::StorageClass,
                event,
                |driver, class| {
                    driver.context.state().apply_storage_class(class);
                    driver.add(Key::Provisioning);
                },
                |driver, name| {
                    driver.context.state().storage_classes.remove(name);
                },
            ),
            Change::CsiNode(event) => self.feed(
                Kind::CsiNode,
                event,
                |driver, node| driver.context.state().apply_csi_node(node),
                |driver, name| {
                    driver.context.state().csi_nodes.remove(name);
                },
            ),
            Change::Overlay(event) => {
                self.feed(Kind::Overlay, event, Self::overlay, Self::overlay_gone)
            }
            Change::Service(event) => self.feed(
                Kind::Tie(Tie::Service),
                event,
                |driver, service| driver.context.state().workloads.apply_service(&service),
                |driver, name| driver.context.state().workloads.delete(Tie::Service, name),
            ),
            Change::ReplicationController(event) => self.feed(
                Kind::Tie(Tie::ReplicationController),
                event,
                |driver, one| driver.context.state().workloads.apply_replication_controller(&one),
                |driver, name| {
                    driver.context.state().workloads.delete(Tie::ReplicationController, name)
                },
            ),
            Change::ReplicaSet(event) => self.feed(
                Kind::Tie(Tie::ReplicaSet),
                event,
                |driver, set| driver.context.state().workloads.apply_replica_set(&set),
                |driver, name| driver.context.state().workloads.delete(Tie::ReplicaSet, name),
            ),
            Change::StatefulSet(event) => self.feed(
                Kind::Tie(Tie::StatefulSet),
                event,
                |driver, set| driver.context.state().workloads.apply_stateful_set(&set),
                |driver, name| driver.context.state().workloads.delete(Tie::StatefulSet, name),
            ),
        }
    }

    /// Brings one kind up to date. After a new list, what it did not show is gone.
    fn feed<K: ResourceExt>(
        &mut self,
        kind: Kind,
        event: watcher::Event<K>,
        apply: fn(&mut Self, K),
        gone: fn(&mut Self, &str),
    ) {
        let key = |object: &K| {
            if object.namespace().is_some() { key_of(object) } else { object.name_any() }
        };
        match event {
            watcher::Event::Init => {
                self.listing.insert(kind, BTreeSet::new());
            }
            watcher::Event::InitApply(object) => {
                self.listing.entry(kind).or_default().insert(key(&object));
                apply(self, object);
            }
            watcher::Event::InitDone => {
                let shown = self.listing.remove(&kind).unwrap_or_default();
                let known = self.known(kind);
                for name in known.iter().filter(|name| !shown.contains(*name)) {
                    gone(self, name);
                }
                self.context.state().mark_synced(kind);
            }
            watcher::Event::Apply(object) => apply(self, object),
            watcher::Event::Delete(object) => gone(self, &key(&object)),
        }
    }

    fn known(&self, kind: Kind) -> Vec<String> {
        let state = self.context.state();
        match kind {
            Kind::Pod => state.pods.keys().map(|key| key.0.clone()).collect(),
            Kind::Node => state.nodes.keys().cloned().collect(),
            Kind::NodeClaim => state.claims.keys().cloned().collect(),
            Kind::NodePool => state.pools.keys().cloned().collect(),
            Kind::NodeClass => state.classes.keys().cloned().collect(),
            Kind::DaemonSet => state.daemons.keys().cloned().collect(),
            Kind::Budget => state.budgets.keys().cloned().collect(),
            Kind::Namespace => state.namespaces.keys().cloned().collect(),
            Kind::VolumeClaim => state.volume_claims.keys().cloned().collect(),
            Kind::Volume => state.volumes.keys().cloned().collect(),
            Kind::StorageClass => state.storage_classes.keys().cloned().collect(),
            Kind::CsiNode => state.csi_nodes.keys().cloned().collect(),
            Kind::Overlay => state.overlays.keys().cloned().collect(),
            Kind::Tie(kind) => state.workloads.known(kind),
        }
    }

    fn pod(&mut self, pod: Pod) {
        let now = self.context.clock.now();
        let key = PodKey::new(&pod.namespace().unwrap_or_default(), &pod.name_any());
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let waits = pods::is_provisionable(&pod);
        let counts = !pods::is_daemon(&pod) && !pods::is_mirror(&pod);
        let mut state = self.context.state();
        let waited = state.pods.get(&key).is_some_and(|old| pods::is_provisionable(old));
        let moved = state.apply_pod(pod);
        if waits && !waited {
            let first = state.batch.map_or(now, |(first, _)| first);
            state.batch = Some((first, now));
        }
        let synced = state.is_synced();
        if let Some(node) = &node
            && moved
            && counts
            && synced
        {
            state.pod_events.insert(node.clone(), now);
        }
        drop(state);
        if waits && !waited {
            self.add(Key::Provisioning);
        }
        if let Some(node) = node.filter(|_| moved) {
            self.touch_node(&node);
        }
    }

    fn pod_gone(&mut self, name: &str) {
        let key = PodKey(name.to_owned());
        let node = {
            let mut state = self.context.state();
            let pod = state.pods.get(&key).cloned();
            state.delete_pod(&key);
            pod.and_then(|pod| pod.spec.as_ref()?.node_name.clone())
        };
        if let Some(node) = node {
            self.touch_node(&node);
        }
    }

    /// A pod came to or left a node: its drain and its claim want to know.
    fn touch_node(&mut self, name: &str) {
        let (node, claim) = {
            let state = self.context.state();
            let node = state.nodes.get(name).cloned();
            let claim = node.as_ref().and_then(|node| state.claim_of_node(node));
            (node, claim)
        };
        if node.is_some_and(|node| node.metadata.deletion_timestamp.is_some()) {
            self.add(Key::Node(name.to_owned()));
        }
        if let Some(claim) = claim {
            self.add(Key::Claim(claim.name_any()));
        }
    }

    fn node(&mut self, node: Node) {
        let name = node.name_any();
        let leaving = node.metadata.deletion_timestamp.is_some();
        let claim = {
            let mut state = self.context.state();
            let claim = state.claim_of_node(&node);
            state.apply_node(node);
            claim
        };
        if leaving {
            self.add(Key::Node(name));
            self.add(Key::Provisioning);
        }
        if let Some(claim) = claim {
            self.add(Key::Claim(claim.name_any()));
        }
    }

    fn node_gone(&mut self, name: &str) {
        let claim = {
            let mut state = self.context.state();
            let claim = state.nodes.get(name).and_then(|node| state.claim_of_node(node));
            state.delete_node(name);
            claim
        };
        if let Some(claim) = claim {
            self.add(Key::Claim(claim.name_any()));
        }
    }

    fn claim(&mut self, claim: NodeClaim) {
        let name = claim.name_any();
        let leaving = claim.metadata.deletion_timestamp.is_some();
        let in_command = claim.annotations().contains_key(labels::REPLACES)
            || claim_is(&claim, DISRUPTION_REASON);
        let pool = pool_of(&claim).map(str::to_owned);
        self.context.state().apply_claim(claim);
        self.add(Key::Claim(name));
        if let Some(pool) = pool {
            self.add(Key::NodePool(pool));
        }
        if leaving {
            self.add(Key::Provisioning);
        }
        if in_command {
            self.add(Key::Disruption);
        }
    }

    fn claim_gone(&mut self, name: &str) {
        let claim = self.context.state().claims.remove(name);
        if let Some(claim) = claim {
            if let Some(pool) = pool_of(claim.as_ref()) {
                self.add(Key::NodePool(pool.to_owned()));
            }
            self.add(Key::NodeClass(claim.spec.node_class_ref.name.clone()));
        }
        // Pods that were promised a place here need another one, and limits have room again.
        self.add(Key::Provisioning);
    }

    fn pool(&mut self, pool: NodePool) {
        let name = pool.name_any();
        let claims: Vec<String> = {
            let mut state = self.context.state();
            state.apply_pool(pool);
            let mine = state
                .claims
                .values()
                .filter(|claim| pool_of(claim.as_ref()) == Some(name.as_str()));
            mine.map(|claim| claim.name_any()).collect()
        };
        self.add(Key::NodePool(name));
        for claim in claims {
            self.add(Key::Claim(claim));
        }
        self.add(Key::Overlays);
        self.add(Key::Provisioning);
    }

    fn overlay(&mut self, overlay: NodeOverlay) {
        self.context.state().apply_overlay(overlay);
        self.add(Key::Overlays);
        self.add(Key::Provisioning);
    }

    fn overlay_gone(&mut self, name: &str) {
        self.context.state().delete_overlay(name);
        self.add(Key::Overlays);
        self.add(Key::Provisioning);
    }

    fn class(&mut self, class: AKSNodeClass) {
        let name = class.name_any();
        self.context.state().apply_class(class);
        self.add(Key::NodeClass(name.clone()));
        self.touch_pools_of(&name);
    }

    fn class_gone(&mut self, name: &str) {
        self.context.state().classes.remove(name);
        self.touch_pools_of(name);
    }

    fn touch_pools_of(&mut self, class: &str) {
        let pools: Vec<String> = {
            let state = self.context.state();
            let uses = state
                .pools
                .values()
                .filter(|pool| pool.spec.template.spec.node_class_ref.name == class);
            uses.map(|pool| pool.name_any()).collect()
        };
        for pool in pools {
            self.add(Key::NodePool(pool));
        }
    }
}
