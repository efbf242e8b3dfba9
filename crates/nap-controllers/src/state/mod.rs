//! What is known of the cluster: a synchronous index, fed by watches, read by every loop.
//!
//! `apply`, `delete` and `reset` keep it in step with the cluster; nothing in it awaits or fails. A
//! node as the loops see it ([`Machine`]) is a NodeClaim and the Node that it became, joined by
//! provider id.

pub mod catalogues;
pub mod pods;
pub mod removals;
mod rules;
pub mod snapshot;
mod volumes;
pub mod workloads;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{
    Namespace, Node, NodeCondition, PersistentVolume, PersistentVolumeClaim, Pod,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::{CSINode, StorageClass};
use kube::{Resource, ResourceExt};
use nap_api::nodeclaim::condition;
use nap_api::{AKSNodeClass, NodeClaim, NodeOverlay, NodePool, conditions, labels};
use nap_engine::PodKey;

use workloads::{Tie, Workloads};

/// A kind of object that is kept here. Decisions wait until every kind was listed once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Pods.
    Pod,
    /// Nodes.
    Node,
    /// NodeClaims.
    NodeClaim,
    /// NodePools.
    NodePool,
    /// AKSNodeClasses.
    NodeClass,
    /// DaemonSets.
    DaemonSet,
    /// PodDisruptionBudgets.
    Budget,
    /// Namespaces.
    Namespace,
    /// PersistentVolumeClaims.
    VolumeClaim,
    /// PersistentVolumes.
    Volume,
    /// StorageClasses.
    StorageClass,
    /// CSINodes.
    CsiNode,
    /// NodeOverlays.
    Overlay,
    /// What ties pods together.
    Tie(Tie),
}

/// Every kind.
pub const KINDS: [Kind; 17] = [
    Kind::Pod,
    Kind::Node,
    Kind::NodeClaim,
    Kind::NodePool,
    Kind::NodeClass,
    Kind::DaemonSet,
    Kind::Budget,
    Kind::Namespace,
    Kind::VolumeClaim,
    Kind::Volume,
    Kind::StorageClass,
    Kind::CsiNode,
    Kind::Overlay,
    Kind::Tie(Tie::Service),
    Kind::Tie(Tie::ReplicationController),
    Kind::Tie(Tie::ReplicaSet),
    Kind::Tie(Tie::StatefulSet),
];

/// The index.
#[derive(Default)]
pub struct State {
    /// Pods by `namespace/name`.
    pub pods: BTreeMap<PodKey, Arc<Pod>>,
    /// Nodes by name.
    pub nodes: BTreeMap<String, Arc<Node>>,
    /// NodeClaims by name.
    pub claims: BTreeMap<String, Arc<NodeClaim>>,
    /// NodePools by name.
    pub pools: BTreeMap<String, Arc<NodePool>>,
    /// AKSNodeClasses by name.
    pub classes: BTreeMap<String, Arc<AKSNodeClass>>,
    /// DaemonSets by `namespace/name`.
    pub daemons: BTreeMap<String, Arc<DaemonSet>>,
    /// PodDisruptionBudgets by `namespace/name`.
    pub budgets: BTreeMap<String, Arc<PodDisruptionBudget>>,
    /// Namespaces by name.
    pub namespaces: BTreeMap<String, Arc<Namespace>>,
    /// PersistentVolumeClaims by `namespace/name`.
    pub volume_claims: BTreeMap<String, Arc<PersistentVolumeClaim>>,
    /// PersistentVolumes by name.
    pub volumes: BTreeMap<String, Arc<PersistentVolume>>,
    /// StorageClasses by name.
    pub storage_classes: BTreeMap<String, Arc<StorageClass>>,
    /// CSINodes by name.
    pub csi_nodes: BTreeMap<String, Arc<CSINode>>,
    /// NodeOverlays by name.
    pub overlays: BTreeMap<String, Arc<NodeOverlay>>,
    /// Which pods belong together.
    pub workloads: Workloads,
    pods_by_node: BTreeMap<String, BTreeSet<PodKey>>,
    synced: BTreeSet<Kind>,
    /// When a pod last came to or left a node, by node name; only what was seen happening.
    pub pod_events: BTreeMap<String, Timestamp>,
    /// Pending pods that the last plan could not place: they wait for a change, not for a machine.
    pub hopeless: BTreeSet<PodKey>,
    /// Counts what could make a difference to disruption: pods that come and go, machines, pools,
    /// budgets.
    pub changes: u64,
    /// The count at which a whole pass found nothing to disrupt, and when that was.
    pub nothing_to_disrupt: Option<(u64, Timestamp)>,
    /// Machines that pods were planned onto, and until when they must not be disrupted for lack of
    /// pods.
    pub nominated: BTreeMap<String, Timestamp>,
    /// Since when a machine was seen without pods, by node name.
    pub seen_empty: BTreeMap<String, Timestamp>,
    /// The machine that is worth consolidating, and since when.
    pub seen_underutilized: Option<(String, Timestamp)>,
    /// When the present batch of pending pods began, and when its newest pod came.
    pub batch: Option<(Timestamp, Timestamp)>,
}

/// A NodeClaim, the Node it became, or both.
#[derive(Clone)]
pub struct Machine {
    /// The claim, if nap made the machine.
    pub claim: Option<Arc<NodeClaim>>,
    /// The Node, once it joined.
    pub node: Option<Arc<Node>>,
}

/// An object with a resourceVersion that can be compared: an older one never replaces a newer one.
fn is_stale<K: Resource>(known: Option<&Arc<K>>, new: &K) -> bool {
    let version = |meta: &kube::api::ObjectMeta| {
        meta.resource_version.as_ref().and_then(|v| v.parse::<u64>().ok())
    };
    match known.map(|known| (known.meta(), new.meta())) {
        Some((known, new)) if known.uid == new.uid => version(known) > version(new),
        _ => false,
    }
}

/// `namespace/name`.
pub fn key_of<K: ResourceExt>(object: &K) -> String {
    format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any())
}

impl State {
    /// Every kind was listed once.
    pub fn is_synced(&self) -> bool {
        self.synced.len() == KINDS.len()
    }

    /// A kind was listed completely.
    pub fn mark_synced(&mut self, kind: Kind) {
        self.synced.insert(kind);
    }

    /// A pod came or changed. Returns whether a pod came to or left its node just now.
    pub fn apply_pod(&mut self, pod: Pod) -> bool {
        let key = PodKey::new(&pod.namespace().unwrap_or_default(), &pod.name_any());
        let old = self.pods.get(&key).cloned();
        let old = old.as_ref();
        if is_stale(old, &pod) {
            return false;
        }
        let node = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let moved = old.is_none_or(|old| {
            node(old) != node(&pod)
                || pods::is_terminal(old) != pods::is_terminal(&pod)
                || pods::is_terminating(old) != pods::is_terminating(&pod)
        });
        if let Some(old_node) = old.and_then(|old| node(old))
            && Some(&old_node) != node(&pod).as_ref()
        {
            self.unbind(&old_node, &key);
        }
        if let Some(node) = node(&pod) {
            self.pods_by_node.entry(node).or_default().insert(key.clone());
        }
        if !pods::is_provisionable(&pod) {
            self.hopeless.remove(&key);
        }
        let protection = |pod: &Pod| pod.annotations().get(labels::DO_NOT_DISRUPT).cloned();
        if moved || old.is_none_or(|old| protection(old) != protection(&pod)) {
            self.changes += 1;
        }
        self.pods.insert(key, Arc::new(pod));
        moved
    }

    /// A pod is gone.
    pub fn delete_pod(&mut self, key: &PodKey) {
        if let Some(pod) = self.pods.remove(key)
            && let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref())
        {
            self.unbind(node, key);
        }
        self.changes += 1;
        self.hopeless.remove(key);
    }

    fn unbind(&mut self, node: &str, key: &PodKey) {
        if let Some(pods) = self.pods_by_node.get_mut(node) {
            pods.remove(key);
            if pods.is_empty() {
                self.pods_by_node.remove(node);
            }
        }
    }

    /// A NodeClaim came or changed.
    pub fn apply_claim(&mut self, claim: NodeClaim) {
        self.changes += 1;
        insert(&mut self.claims, claim.name_any(), claim);
    }

    /// A Node came or changed.
    pub fn apply_node(&mut self, node: Node) {
        // Heartbeats make no difference.
        let known = self.nodes.get(&node.name_any());
        let allocatable =
            |node: &Node| node.status.as_ref().and_then(|status| status.allocatable.clone());
        let same = known.is_some_and(|known| {
            known.spec == node.spec
                && known.labels() == node.labels()
                && known.annotations() == node.annotations()
                && is_ready(known) == is_ready(&node)
                && allocatable(known) == allocatable(&node)
        });
        self.changes += u64::from(!same);
        insert(&mut self.nodes, node.name_any(), node);
    }

    /// A Node is gone.
    pub fn delete_node(&mut self, name: &str) {
        self.changes += 1;
        self.nodes.remove(name);
        self.pod_events.remove(name);
    }

    /// A NodePool came or changed.
    pub fn apply_pool(&mut self, pool: NodePool) {
        self.changes += 1;
        insert(&mut self.pools, pool.name_any(), pool);
    }

    /// An AKSNodeClass came or changed.
    pub fn apply_class(&mut self, class: AKSNodeClass) {
        insert(&mut self.classes, class.name_any(), class);
    }

    /// A DaemonSet came or changed.
    pub fn apply_daemon(&mut self, daemon: DaemonSet) {
        self.changes += 1;
        insert(&mut self.daemons, key_of(&daemon), daemon);
    }

    /// A PodDisruptionBudget came or changed.
    pub fn apply_budget(&mut self, budget: PodDisruptionBudget) {
        self.changes += 1;
        insert(&mut self.budgets, key_of(&budget), budget);
    }

    /// A Namespace came or changed.
    pub fn apply_namespace(&mut self, namespace: Namespace) {
        insert(&mut self.namespaces, namespace.name_any(), namespace);
    }

    /// A PersistentVolumeClaim came or changed.
    pub fn apply_volume_claim(&mut self, claim: PersistentVolumeClaim) {
        insert(&mut self.volume_claims, key_of(&claim), claim);
    }

    /// A PersistentVolume came or changed.
    pub fn apply_volume(&mut self, volume: PersistentVolume) {
        insert(&mut self.volumes, volume.name_any(), volume);
    }

    /// A StorageClass came or changed.
    pub fn apply_storage_class(&mut self, class: StorageClass) {
        insert(&mut self.storage_classes, class.name_any(), class);
    }

    /// A CSINode came or changed.
    pub fn apply_csi_node(&mut self, node: CSINode) {
        insert(&mut self.csi_nodes, node.name_any(), node);
    }

    /// A NodeOverlay came or changed.
    pub fn apply_overlay(&mut self, overlay: NodeOverlay) {
        self.changes += 1;
        insert(&mut self.overlays, overlay.name_any(), overlay);
    }

    /// A NodeOverlay is gone.
    pub fn delete_overlay(&mut self, name: &str) {
        self.changes += 1;
        self.overlays.remove(name);
    }

    /// The pods that are bound to a node, in key order.
    pub fn pods_on(&self, node: &str) -> Vec<Arc<Pod>> {
        let keys = self.pods_by_node.get(node).into_iter().flatten();
        keys.filter_map(|key| self.pods.get(key).cloned()).collect()
    }

    /// Every machine: claims with their nodes, then nodes without a claim.
    pub fn machines(&self) -> Vec<Machine> {
        let by_provider_id: BTreeMap<&str, &Arc<Node>> =
            self.nodes.values().filter_map(|node| Some((provider_id(node)?, node))).collect();
        let mut claimed = BTreeSet::new();
        let mut machines = Vec::new();
        for claim in self.claims.values() {
            let id = claim.status.as_ref().and_then(|status| status.provider_id.as_deref());
            let node = id.and_then(|id| by_provider_id.get(id)).map(|node| Arc::clone(node));
            claimed.extend(node.as_ref().map(|node| node.name_any()));
            machines.push(Machine { claim: Some(Arc::clone(claim)), node });
        }
        for (name, node) in &self.nodes {
            if !claimed.contains(name) {
                machines.push(Machine { claim: None, node: Some(Arc::clone(node)) });
            }
        }
        machines
    }

    /// The claim that a node came from.
    pub fn claim_of_node(&self, node: &Node) -> Option<Arc<NodeClaim>> {
        let id = provider_id(node)?;
        let is_it = |claim: &&Arc<NodeClaim>| {
            claim.status.as_ref().and_then(|s| s.provider_id.as_deref()) == Some(id)
        };
        self.claims.values().find(is_it).cloned()
    }

    /// The nodes with a provider id.
    pub fn nodes_with_id(&self, id: &str) -> Vec<Arc<Node>> {
        self.nodes.values().filter(|node| provider_id(node) == Some(id)).cloned().collect()
    }

    /// The budgets that cover a pod.
    pub fn budgets_of(&self, pod: &Pod) -> Vec<Arc<PodDisruptionBudget>> {
        self.budgets.values().filter(|budget| pods::budget_covers(budget, pod)).cloned().collect()
    }
}

fn insert<K: Resource>(map: &mut BTreeMap<String, Arc<K>>, key: String, object: K) {
    if !is_stale(map.get(&key), &object) {
        map.insert(key, Arc::new(object));
    }
}

/// The provider id of a node.
pub fn provider_id(node: &Node) -> Option<&str> {
    node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()).filter(|id| !id.is_empty())
}

/// Whether a node reports itself ready.
pub fn is_ready(node: &Node) -> bool {
    readiness(node).is_some()
}

/// The condition that says that a node is ready, if it is.
pub fn readiness(node: &Node) -> Option<&NodeCondition> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Whether a condition of a claim is true.
pub fn claim_is(claim: &NodeClaim, condition: &str) -> bool {
    claim.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, condition))
}

/// The NodePool that an object says it belongs to.
pub fn pool_of<K: ResourceExt>(object: &K) -> Option<&str> {
    object.labels().get(labels::NODEPOOL).map(String::as_str)
}

impl Machine {
    /// The Node's name, or the claim's while it has no node.
    pub fn name(&self) -> String {
        match (&self.node, &self.claim) {
            (Some(node), _) => node.name_any(),
            (None, Some(claim)) => claim.name_any(),
            (None, None) => String::new(),
        }
    }

    /// It is on its way out.
    pub fn is_deleting(&self) -> bool {
        let deleting = |meta: &kube::api::ObjectMeta| meta.deletion_timestamp.is_some();
        self.claim.as_ref().is_some_and(|claim| deleting(&claim.metadata))
            || self.node.as_ref().is_some_and(|node| deleting(&node.metadata))
    }

    /// It was chosen to be disrupted, or is on its way out.
    pub fn is_leaving(&self) -> bool {
        self.is_deleting()
            || self
                .claim
                .as_ref()
                .is_some_and(|claim| claim_is(claim, condition::DISRUPTION_REASON))
    }

    /// It runs pods already. Nodes that nap did not make always count as such.
    pub fn is_initialized(&self) -> bool {
        match &self.claim {
            Some(claim) => self.node.is_some() && claim_is(claim, condition::INITIALIZED),
            None => self.node.is_some(),
        }
    }

    /// The NodePool that it belongs to.
    pub fn pool(&self) -> Option<&str> {
        self.claim.as_ref().and_then(|claim| pool_of(claim.as_ref()))
    }
}
