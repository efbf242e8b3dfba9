//! A cluster with a real scheduler: creation, release and nomination of nodes and pods.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::api::storage::v1::CSINode;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use nap_controlplane::{Parts, Plane};
use nap_engine::PodKey;
use serde_json::json;
use tokio::sync::{Mutex, MutexGuard, OnceCell};

use super::objects;

/// Maximum time until the scheduler has tried every pod once; usually seconds.
const MAX_WAITING: Duration = Duration::from_mins(3);
/// Maximum time of the scheduler for a case; it retries a pod after one second.
const PATIENCE: Duration = Duration::from_secs(8);
/// Time without a change after which a case counts as settled.
const QUIET: Duration = Duration::from_millis(2500);

/// Time without a change to a pending pod after which the scheduler counts as idle.
const IDLE: Duration = Duration::from_millis(120);

/// Whether pods are nominated to their nodes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Hint {
    Nominated,
    None,
}

/// The plane that these tests share one after another.
static PLANE: OnceCell<Plane> = OnceCell::const_new();
static TURN: Mutex<()> = Mutex::const_new(());

pub(super) struct Bench {
    client: Client,
    _turn: MutexGuard<'static, ()>,
}

impl Bench {
    pub(super) async fn start() -> Self {
        let turn = TURN.lock().await;
        let plane = PLANE.get_or_init(async || Plane::start(Parts::Scheduler).await.unwrap()).await;
        let client = plane.client().await.unwrap();
        for name in ["other", "daemons"] {
            make::<Namespace>(&Api::all(client.clone()), json!({ "metadata": { "name": name } }))
                .await;
        }
        let urgent =
            json!({ "metadata": { "name": "urgent" }, "value": 1, "preemptionPolicy": "Never" });
        make::<PriorityClass>(&Api::all(client.clone()), urgent).await;
        Self { client, _turn: turn }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Creates nodes and the pods that run on them.
    pub(super) async fn create_machines(&self, machines: Vec<objects::Machine>, running: &[Pod]) {
        let (nodes, drivers): (Vec<Node>, Vec<CSINode>) = machines.into_iter().unzip();
        self.create(&nodes).await;
        self.create(&drivers).await;
        join_all(running.iter().map(|pod| self.create_pod(pod))).await;
    }

    /// Creates a pending pod and its volumes.
    pub(super) async fn create_waiting(&self, pod: &nap_engine::Pod) {
        let objects::Waiting { pod, volumes } = objects::waiting(pod);
        for (volume, claim) in volumes {
            self.create(&[volume]).await;
            let api: Api<PersistentVolumeClaim> =
                Api::namespaced(self.client.clone(), &claim.namespace().unwrap());
            api.create(&PostParams::default(), &claim).await.unwrap();
        }
        self.create_pod(&pod).await;
    }

    pub(super) async fn wait_until_all_are_judged(&self) {
        let began = tokio::time::Instant::now();
        while self.places().await.unjudged > 0 {
            assert!(began.elapsed() < MAX_WAITING, "the scheduler has not looked at every pod");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Releases nodes to the pods planned for them.
    pub(super) async fn open(&self, nodes: &[(String, Vec<PodKey>)], hint: Hint, pods: &Pods<'_>) {
        let planned = by_pod(nodes);
        if hint == Hint::Nominated {
            self.wait_until_scheduler_is_idle().await;
            self.nominate_again(&planned, &self.places().await, pods).await;
        }
        join_all(nodes.iter().map(|(node, _)| self.release(node))).await;
        if hint == Hint::Nominated {
            self.second_looks(&planned, pods).await;
        }
    }

    /// Waits until the scheduler has retried the pending pods. It retries all of them after a node
    /// was released, one after the other, and a failed attempt clears the pod's nomination: if that
    /// happens just before the release of the pod's own node, another pod takes its room. An
    /// attempt shows as a new message on the pod, as fewer nodes are tainted than before.
    async fn wait_until_scheduler_is_idle(&self) {
        let began = tokio::time::Instant::now();
        let (mut versions, mut changed) = (BTreeMap::new(), began);
        while changed.elapsed() < IDLE && began.elapsed() < PATIENCE {
            let now = self.places().await.versions;
            if now != versions {
                (versions, changed) = (now, tokio::time::Instant::now());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Repeats nominations for a while: an attempt while the node was still held may have cleared
    /// them.
    async fn second_looks(&self, planned: &BTreeMap<PodKey, String>, pods: &Pods<'_>) {
        for _ in 0..20 {
            let now = self.places().await;
            if planned.keys().all(|pod| now.bound.contains_key(pod)) {
                return;
            }
            self.nominate_again(planned, &now, pods).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Nominates pods that are neither bound nor nominated; returns whether there were any. The
    /// scheduler counts nominated pods as present, so pods with spread constraints would block each
    /// other: no more are nominated at a time than may run together.
    async fn nominate_again(
        &self,
        planned: &BTreeMap<PodKey, String>,
        now: &Places,
        pods: &Pods<'_>,
    ) -> bool {
        let mut on_node: BTreeMap<&str, Vec<&nap_engine::Pod>> = BTreeMap::new();
        let mut lost = Vec::new();
        let is_nominated = |key: &PodKey| now.nominated.contains(key);
        let waiting = || planned.iter().filter(|(key, _)| !now.bound.contains_key(*key));
        for (key, node) in waiting().filter(|(key, _)| is_nominated(key)) {
            on_node.entry(node).or_default().push(pods[key]);
        }
        for (key, node) in waiting().filter(|(key, _)| !is_nominated(key)) {
            let there = on_node.entry(node).or_default();
            there.push(pods[key]);
            if there.iter().all(|pod| tolerates_spread(pod, there)) {
                lost.push((key, node));
            } else {
                there.pop();
            }
        }
        let any = !lost.is_empty();
        join_all(lost.into_iter().map(|(key, node)| self.nominate(key, node))).await;
        any
    }

    async fn create<K>(&self, objects: &[K])
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::ClusterResourceScope>
            + Clone
            + std::fmt::Debug
            + serde::Serialize
            + serde::de::DeserializeOwned,
    {
        let api: Api<K> = Api::all(self.client.clone());
        for object in objects {
            api.create(&PostParams::default(), object).await.unwrap();
        }
    }

    async fn create_pod(&self, pod: &Pod) {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace().unwrap());
        api.create(&PostParams::default(), pod).await.unwrap();
    }

    /// Nominates a pod; fails silently if it is bound already.
    async fn nominate(&self, key: &PodKey, node: &str) {
        let (namespace, name) = key.parts();
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let patch = Patch::Merge(json!({ "status": { "nominatedNodeName": node } }));
        match api.patch_status(name, &PatchParams::default(), &patch).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 422 => {}
            Err(error) => panic!("{error}"),
        }
    }

    async fn release(&self, name: &str) {
        let api: Api<Node> = Api::all(self.client.clone());
        let node = api.get(name).await.unwrap();
        let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        let taints: Vec<_> =
            taints.into_iter().filter(|taint| taint.key != objects::HELD).collect();
        let patch = Patch::Merge(json!({ "spec": { "taints": taints } }));
        api.patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Waits until all planned pods are bound or nothing changes; repeats lost nominations. Returns
    /// the nodes of the pods.
    pub(super) async fn settle(
        &self,
        planned: &BTreeMap<PodKey, String>,
        hint: Hint,
        pods: &Pods<'_>,
    ) -> BTreeMap<PodKey, String> {
        let started = tokio::time::Instant::now();
        let (mut bound, mut changed) = (0, started);
        loop {
            let now = self.places().await;
            if now.bound.len() != bound {
                (bound, changed) = (now.bound.len(), tokio::time::Instant::now());
            }
            let nobody_waits = planned.keys().all(|key| now.bound.contains_key(key));
            let quiet = changed.elapsed() > QUIET && started.elapsed() > QUIET;
            if (nobody_waits && now.unjudged == 0)
                || started.elapsed() > PATIENCE
                || (quiet && (nobody_waits || hint == Hint::None))
            {
                return now.bound;
            }
            if hint == Hint::Nominated {
                self.nominate_again(planned, &now, pods).await;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    pub(super) async fn places(&self) -> Places {
        let api: Api<Pod> = Api::all(self.client.clone());
        let mut places = Places::default();
        for pod in api.list(&ListParams::default()).await.unwrap() {
            let key = PodKey::new(&pod.namespace().unwrap(), &pod.name_any());
            if let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()) {
                places.bound.insert(key, node);
                continue;
            }
            places.versions.insert(key.clone(), pod.resource_version());
            let status = pod.status.unwrap_or_default();
            if status.nominated_node_name.is_some() {
                places.nominated.insert(key.clone());
            }
            let conditions = status.conditions.unwrap_or_default();
            places.unjudged += usize::from(conditions.is_empty());
            let complaint = conditions.into_iter().find_map(|condition| condition.message);
            places.complaints.extend(complaint.map(|complaint| (key, complaint)));
        }
        places
    }

    pub(super) async fn clear(&self) {
        let now = DeleteParams::default().grace_period(0);
        for namespace in ["default", "other", "daemons"] {
            let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
            pods.delete_collection(&now, &ListParams::default()).await.unwrap();
            let claims: Api<PersistentVolumeClaim> =
                Api::namespaced(self.client.clone(), namespace);
            claims.delete_collection(&now, &ListParams::default()).await.unwrap();
        }
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        volumes.delete_collection(&now, &ListParams::default()).await.unwrap();
        let drivers: Api<CSINode> = Api::all(self.client.clone());
        drivers.delete_collection(&now, &ListParams::default()).await.unwrap();
        let nodes: Api<Node> = Api::all(self.client.clone());
        nodes.delete_collection(&now, &ListParams::default()).await.unwrap();
    }
}

pub(super) type Pods<'s> = BTreeMap<&'s PodKey, &'s nap_engine::Pod>;

/// Planned node by pod.
pub(super) fn by_pod(nodes: &[(String, Vec<PodKey>)]) -> BTreeMap<PodKey, String> {
    nodes
        .iter()
        .flat_map(|(node, pods)| pods.iter().map(|pod| (pod.clone(), node.clone())))
        .collect()
}

/// Whether a pod's spread constraints allow these pods together on an empty node.
fn tolerates_spread(pod: &nap_engine::Pod, there: &[&nap_engine::Pod]) -> bool {
    pod.spread.iter().all(|spread| {
        let counted = there.iter().filter(|other| {
            other.key.parts().0 == pod.key.parts().0 && spread.selector.matches(&other.labels)
        });
        counted.count() <= usize::try_from(spread.max_skew).unwrap_or(usize::MAX)
    })
}

/// Observed state of the pods.
#[derive(Default)]
pub(super) struct Places {
    bound: BTreeMap<PodKey, String>,
    nominated: BTreeSet<PodKey>,
    /// Resource versions of the pending pods.
    versions: BTreeMap<PodKey, Option<String>>,
    /// Number of pods that the scheduler has not tried yet.
    unjudged: usize,
    /// The scheduler's messages by unbound pod.
    pub(super) complaints: BTreeMap<PodKey, String>,
}

pub(super) async fn make<K>(api: &Api<K>, object: serde_json::Value)
where
    K: Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    match api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await {
        Ok(_) => {}
        // A previous test created it.
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        Err(error) => panic!("{error}"),
    }
}
