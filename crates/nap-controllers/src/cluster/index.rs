//! The index itself: objects by key, the indexes over them, and what has changed.

mod pod_changes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{
    LimitRange, Namespace, Node, PersistentVolume, PersistentVolumeClaim,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::{CSINode, StorageClass};
use kube::ResourceExt;
use nap_api::nodeclaim::condition::DISRUPTION_REASON;
use nap_api::{AKSNodeClass, NodeClaim, NodeOverlay, NodePool, PlanRecord, conditions, labels};
use nap_engine::PodKey;

use super::kinds::{Indexed, KINDS, Kind, Table, is_news, key_of};
use super::node_view::{
    NodeKey, NodeView, claim_is, is_ready, pool_of, provider_id, provider_id_of_claim,
};
use super::pod::SharedParts;
use super::workloads::Workloads;
use super::{Dirty, Pod, pods};

/// Keys of objects by something that they have in common.
type GroupedKeys = BTreeMap<String, BTreeSet<String>>;

/// The pods that are bound to a node.
#[derive(Debug, Default)]
struct BoundPods {
    keys: BTreeSet<PodKey>,
    /// Number of the last change of any of them.
    stamp: u64,
}

/// Numbers of the last changes of what many nodes depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamps {
    last: u64,
    /// Of any Namespace.
    pub namespaces: u64,
    /// Of any PersistentVolumeClaim, PersistentVolume or StorageClass.
    pub volumes: u64,
}

impl Stamps {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

/// The cluster index.
#[derive(Default)]
pub struct Index {
    pub(super) pods: BTreeMap<PodKey, Arc<Pod>>,
    pub(super) nodes: Table<Node>,
    pub(super) claims: Table<NodeClaim>,
    pub(super) pools: Table<NodePool>,
    pub(super) classes: Table<AKSNodeClass>,
    pub(super) daemon_sets: Table<DaemonSet>,
    /// By namespace.
    pub(super) budgets: BTreeMap<String, Table<PodDisruptionBudget>>,
    pub(super) namespaces: Table<Namespace>,
    pub(super) limit_ranges: Table<LimitRange>,
    pub(super) volume_claims: Table<PersistentVolumeClaim>,
    pub(super) volumes: Table<PersistentVolume>,
    pub(super) storage_classes: Table<StorageClass>,
    pub(super) csi_nodes: Table<CSINode>,
    pub(super) overlays: Table<NodeOverlay>,
    pub(super) workloads: Workloads,

    shared_parts: SharedParts,
    pods_by_node: BTreeMap<Arc<str>, BoundPods>,
    /// Pods by `namespace/name` of their DaemonSet, the newest last.
    daemon_pods: BTreeMap<String, BTreeSet<(Option<Timestamp>, PodKey)>>,
    stamps: Stamps,
    /// Unschedulable pods, and when each was first seen so.
    unschedulable: BTreeMap<PodKey, Timestamp>,
    /// Time at which kube-scheduler was last seen to have tried a pod in vain.
    last_attempt: Option<Timestamp>,
    /// Time of the last pod that was bound to a node or left it, by node name. Pods that the first
    /// list showed do not count.
    pod_events: BTreeMap<String, Timestamp>,
    claims_by_pool: GroupedKeys,
    claims_by_provider_id: GroupedKeys,
    nodes_by_provider_id: GroupedKeys,
    /// Plan records by the name of their NodeClaim.
    plans: BTreeMap<String, Arc<PlanRecord>>,
    views: BTreeMap<NodeKey, NodeView>,

    /// Keys that the running list of a kind has shown so far.
    listing: BTreeMap<Kind, BTreeSet<String>>,
    /// NodeClaims that nap created and no watch has shown yet, and since when.
    unconfirmed: BTreeMap<String, Timestamp>,
    synced: BTreeSet<Kind>,
    generation: u64,
    dirty: BTreeSet<Dirty>,
}

impl Index {
    /// Stores an object that a list or a watch has shown. An object that is older than the stored
    /// one, or the same version of it, changes nothing. One of another provider is not stored.
    pub fn apply<K: Indexed>(&mut self, mut object: K, now: Timestamp) {
        object.slim();
        let key = key_of(&object);
        if let Some(shown) = self.listing.get_mut(&K::KIND) {
            shown.insert(key.clone());
        }
        if K::KIND == Kind::NodeClaim {
            self.unconfirmed.remove(&key);
        }
        if object.is_managed() {
            object.insert(self, key, now);
        }
    }

    /// Stores the answer to a write of our own, ahead of the watch. An object that the index does
    /// not have was deleted in the meantime: the watch is ordered, the answer is not.
    pub fn observe<K: Indexed>(&mut self, mut object: K, now: Timestamp) {
        object.slim();
        let key = key_of(&object);
        if K::get(self, &key).is_some_and(|known| known.meta().uid == object.meta().uid) {
            object.insert(self, key, now);
        }
    }

    /// Stores a NodeClaim that nap has created, ahead of the watch. A list that began before the
    /// creation does not drop it.
    pub fn observe_created(&mut self, claim: NodeClaim, now: Timestamp) {
        let name = claim.name_any();
        if !self.claims.contains_key(&name) {
            self.unconfirmed.insert(name.clone(), now);
            self.mark(Dirty::Unconfirmed);
        }
        claim.insert(self, name, now);
    }

    /// NodeClaims that nap created before `then` and no watch has shown since.
    pub fn unconfirmed_claims(&self, then: Timestamp) -> Vec<String> {
        let old = self.unconfirmed.iter().filter(|(_, created)| **created < then);
        old.map(|(name, _)| name.clone()).collect()
    }

    /// Drops an object that was deleted, by its key: `namespace/name`, or the name of a
    /// cluster-scoped object.
    pub fn delete<K: Indexed>(&mut self, key: &str) {
        if K::KIND == Kind::NodeClaim {
            self.unconfirmed.remove(key);
        }
        K::remove(self, key);
    }

    /// Begins a list of a kind. Its objects follow by [`Index::apply`].
    pub fn begin_list<K: Indexed>(&mut self) {
        self.listing.insert(K::KIND, BTreeSet::new());
    }

    /// Ends a list of a kind: objects that it did not show are dropped, and the kind is synced.
    pub fn end_list<K: Indexed>(&mut self) {
        let shown = self.listing.remove(&K::KIND).unwrap_or_default();
        let unconfirmed =
            |key: &String| K::KIND == Kind::NodeClaim && self.unconfirmed.contains_key(key);
        let mut gone = K::keys(self);
        gone.retain(|key| !shown.contains(key) && !unconfirmed(key));
        for key in &gone {
            K::remove(self, key);
        }
        self.mark_synced(K::KIND);
    }

    /// Records that a kind needs no list.
    pub fn mark_synced(&mut self, kind: Kind) {
        self.synced.insert(kind);
    }

    /// Whether every kind was listed once.
    pub fn is_synced(&self) -> bool {
        self.synced.len() == KINDS.len()
    }

    /// Counts the changes that can make a difference to disruption.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Takes what became dirty since the last call.
    pub fn take_dirty(&mut self) -> BTreeSet<Dirty> {
        std::mem::take(&mut self.dirty)
    }

    pub(super) fn mark(&mut self, dirty: Dirty) {
        self.dirty.insert(dirty);
    }

    pub(super) fn volumes_changed(&mut self) {
        self.stamps.volumes = self.stamps.next();
    }

    pub(super) fn namespaces_changed(&mut self) {
        self.stamps.namespaces = self.stamps.next();
    }

    pub(super) fn bump_generation(&mut self) {
        self.generation += 1;
    }
}

/// Changes of Nodes and NodeClaims, and the join of the two.
impl Index {
    pub(super) fn insert_node(&mut self, name: String, node: Node) {
        let old = self.nodes.get(&name).cloned();
        if !is_news(old.as_ref(), &node) {
            return;
        }
        if old.as_ref().is_none_or(|old| !is_same_to_disruption(old, &node)) {
            self.bump_generation();
        }
        let deleting = node.metadata.deletion_timestamp.is_some();
        let old_id = old.as_deref().and_then(provider_id).map(str::to_owned);
        let id = provider_id(&node).map(str::to_owned);
        self.nodes.insert(name.clone(), Arc::new(node));
        regroup(&mut self.nodes_by_provider_id, &name, old_id.as_deref(), id.as_deref());
        if let Some(old_id) = old_id.filter(|old| Some(old) != id.as_ref()) {
            self.join(&old_id);
        }
        match &id {
            Some(id) => self.join(id),
            None => self.view_node_alone(&name),
        }
        if deleting {
            self.mark(Dirty::Node(name));
            self.mark(Dirty::Provisioning);
        }
        self.mark_claim_with_id(id.as_deref());
    }

    pub(super) fn remove_node(&mut self, name: &str) {
        let Some(node) = self.nodes.remove(name) else { return };
        self.bump_generation();
        self.pod_events.remove(name);
        self.views.remove(&NodeKey::Node(name.to_owned()));
        if let Some(id) = provider_id(&node) {
            regroup(&mut self.nodes_by_provider_id, name, Some(id), None);
            self.join(id);
            self.mark_claim_with_id(Some(id));
        }
    }

    pub(super) fn insert_claim(&mut self, name: String, claim: NodeClaim) {
        let old = self.claims.get(&name).cloned();
        if !is_news(old.as_ref(), &claim) {
            return;
        }
        self.bump_generation();
        self.keep_plan(&name, old.as_deref(), &claim);
        let old_id = old.as_deref().and_then(provider_id_of_claim).map(str::to_owned);
        let id = provider_id_of_claim(&claim).map(str::to_owned);
        let pool = pool_of(&claim).map(str::to_owned);
        let old_pool = old.as_deref().and_then(pool_of);
        regroup(&mut self.claims_by_pool, &name, old_pool, pool.as_deref());
        let in_command = self.plans.get(&name).is_some_and(|plan| !plan.replaces.is_empty())
            || claim_is(&claim, DISRUPTION_REASON);
        let deleting = claim.metadata.deletion_timestamp.is_some();
        self.claims.insert(name.clone(), Arc::new(claim));
        regroup(&mut self.claims_by_provider_id, &name, old_id.as_deref(), id.as_deref());
        if let Some(old_id) = old_id.filter(|old| Some(old) != id.as_ref()) {
            self.join(&old_id);
        }
        match &id {
            Some(id) => self.join(id),
            None => self.view_claim(&name, None),
        }
        self.mark(Dirty::NodeClaim(name));
        if let Some(pool) = pool {
            self.mark(Dirty::NodePool(pool));
        }
        if deleting {
            self.mark(Dirty::Provisioning);
        }
        if in_command {
            self.mark(Dirty::Disruption);
        }
    }

    pub(super) fn remove_claim(&mut self, name: &str) {
        let Some(claim) = self.claims.remove(name) else { return };
        self.bump_generation();
        self.plans.remove(name);
        self.views.remove(&NodeKey::NodeClaim(name.to_owned()));
        regroup(&mut self.claims_by_pool, name, pool_of(claim.as_ref()), None);
        if let Some(id) = provider_id_of_claim(&claim) {
            regroup(&mut self.claims_by_provider_id, name, Some(id), None);
            self.join(id);
        }
        if let Some(pool) = pool_of(claim.as_ref()) {
            self.mark(Dirty::NodePool(pool.to_owned()));
        }
        self.mark(Dirty::NodeClass(claim.spec.node_class_ref.name.clone()));
        // Its planned pods need capacity elsewhere, and the limits of its pool have room again.
        self.mark(Dirty::Provisioning);
    }

    /// Parses the plan record of a NodeClaim when its text changes. A record that cannot be used is
    /// logged once and treated as absent.
    fn keep_plan(&mut self, name: &str, old: Option<&NodeClaim>, claim: &NodeClaim) {
        let text = |claim: &NodeClaim| claim.annotations().get(labels::PLAN).cloned();
        if old.is_some_and(|old| text(old) == text(claim)) {
            return;
        }
        self.plans.remove(name);
        match PlanRecord::of(&claim.metadata) {
            Some(Ok(plan)) => drop(self.plans.insert(name.to_owned(), Arc::new(plan))),
            Some(Err(error)) => tracing::warn!(nodeclaim = name, %error, "ignored plan record"),
            None => {}
        }
    }

    /// Joins the NodeClaims and Nodes with a provider id. Of several Nodes with one id the last by
    /// name is joined; the others stand alone.
    fn join(&mut self, id: &str) {
        let claims = self.claims_by_provider_id.get(id).cloned().unwrap_or_default();
        let nodes = self.nodes_by_provider_id.get(id).cloned().unwrap_or_default();
        let joined = nodes.last().filter(|_| !claims.is_empty());
        let node = joined.and_then(|name| self.nodes.get(name)).cloned();
        for claim in &claims {
            self.view_claim(claim, node.clone());
        }
        for name in &nodes {
            if Some(name) == joined {
                self.views.remove(&NodeKey::Node(name.clone()));
            } else {
                self.view_node_alone(name);
            }
        }
    }

    fn view_claim(&mut self, name: &str, node: Option<Arc<Node>>) {
        let view = NodeView { claim: self.claims.get(name).cloned(), node };
        self.views.insert(NodeKey::NodeClaim(name.to_owned()), view);
    }

    fn view_node_alone(&mut self, name: &str) {
        let view = NodeView { claim: None, node: self.nodes.get(name).cloned() };
        self.views.insert(NodeKey::Node(name.to_owned()), view);
    }

    fn mark_claim_with_id(&mut self, id: Option<&str>) {
        let claim = id.and_then(|id| self.claims_by_provider_id.get(id)?.first()).cloned();
        if let Some(claim) = claim {
            self.mark(Dirty::NodeClaim(claim));
        }
    }
}

/// Changes of NodePools and AKSNodeClasses.
impl Index {
    /// Stores a NodePool. A change of its status alone wakes nobody, unless it became ready or
    /// ceased to be.
    pub(super) fn insert_pool(&mut self, name: &str, pool: NodePool) {
        let old = self.pools.get(name).cloned();
        if !is_news(old.as_ref(), &pool) {
            return;
        }
        let same = old.as_ref().is_some_and(|old| is_same_to_decisions(old, &pool));
        self.pools.insert(name.to_owned(), Arc::new(pool));
        if same {
            return;
        }
        self.bump_generation();
        self.mark(Dirty::NodePool(name.to_owned()));
        for claim in self.claims_by_pool.get(name).cloned().unwrap_or_default() {
            self.mark(Dirty::NodeClaim(claim));
        }
        self.mark(Dirty::Overlays);
        self.mark(Dirty::Provisioning);
    }

    pub(super) fn remove_pool(&mut self, name: &str) {
        if self.pools.remove(name).is_some() {
            self.bump_generation();
        }
    }

    pub(super) fn class_applied(&mut self, name: &str) {
        self.mark(Dirty::NodeClass(name.to_owned()));
        self.class_removed(name);
    }

    pub(super) fn class_removed(&mut self, name: &str) {
        let uses = |pool: &&Arc<NodePool>| pool.spec.template.spec.node_class_ref.name == name;
        let pools: Vec<String> =
            self.pools.values().filter(uses).map(|pool| pool.name_any()).collect();
        for pool in pools {
            self.mark(Dirty::NodePool(pool));
        }
    }
}

/// Reading.
impl Index {
    /// Every pod, by key.
    pub fn pods(&self) -> impl Iterator<Item = (&PodKey, &Arc<Pod>)> {
        self.pods.iter()
    }

    /// A pod.
    pub fn pod(&self, key: &PodKey) -> Option<&Arc<Pod>> {
        self.pods.get(key)
    }

    /// The pods bound to a node, in key order.
    pub fn pods_on(&self, node: &str) -> impl Iterator<Item = &Arc<Pod>> + Clone {
        let keys = self.pods_by_node.get(node).into_iter().flat_map(|bound| &bound.keys);
        keys.filter_map(|key| self.pods.get(key))
    }

    /// Number of the last change of the pods that are bound to the Node of a view. It differs from
    /// all earlier ones if they differ.
    pub(crate) fn pods_stamp(&self, view: &NodeView) -> u64 {
        let name = view.node.as_ref().and_then(|node| node.metadata.name.as_deref());
        name.and_then(|name| self.pods_by_node.get(name)).map_or(0, |bound| bound.stamp)
    }

    /// Numbers of the last changes of what many nodes depend on.
    pub(crate) fn stamps(&self) -> Stamps {
        self.stamps
    }

    /// The newest active pod of a DaemonSet, by its `namespace/name`.
    pub(crate) fn newest_pod_of(&self, daemon_set: &str) -> Option<&Arc<Pod>> {
        let newest_first = self.daemon_pods.get(daemon_set)?.iter().rev();
        let mut pods = newest_first.filter_map(|(_, key)| self.pods.get(key));
        pods.find(|pod| pods::is_active(pod))
    }

    /// Pods that kube-scheduler marked unschedulable, in key order.
    pub fn unschedulable_pods(&self) -> impl Iterator<Item = (&PodKey, &Arc<Pod>)> {
        self.unschedulable.keys().filter_map(|key| Some((key, self.pods.get(key)?)))
    }

    /// Time at which a pod was first seen unschedulable; `None` if it is not.
    pub fn unschedulable_since(&self, key: &PodKey) -> Option<Timestamp> {
        self.unschedulable.get(key).copied()
    }

    /// Time at which kube-scheduler was last seen to have tried a pod in vain; `None` if never.
    pub fn last_attempt(&self) -> Option<Timestamp> {
        self.last_attempt
    }

    /// Time at which a pod was last seen being bound to a node or leaving it; `None` if not since
    /// the first list.
    pub fn last_pod_event(&self, node: &str) -> Option<Timestamp> {
        self.pod_events.get(node).copied()
    }

    /// Every Node, by name.
    pub fn nodes(&self) -> impl Iterator<Item = (&String, &Arc<Node>)> {
        self.nodes.iter()
    }

    /// A Node.
    pub fn node(&self, name: &str) -> Option<&Arc<Node>> {
        self.nodes.get(name)
    }

    /// The Nodes with a provider id, by name.
    pub fn nodes_with_provider_id(&self, id: &str) -> Vec<Arc<Node>> {
        let names = self.nodes_by_provider_id.get(id).into_iter().flatten();
        names.filter_map(|name| self.nodes.get(name).cloned()).collect()
    }

    /// Every NodeClaim, by name.
    pub fn claims(&self) -> impl Iterator<Item = &Arc<NodeClaim>> {
        self.claims.values()
    }

    /// A NodeClaim.
    pub fn claim(&self, name: &str) -> Option<&Arc<NodeClaim>> {
        self.claims.get(name)
    }

    /// The NodeClaims of a NodePool, by name.
    pub fn claims_of_pool(&self, pool: &str) -> impl Iterator<Item = &Arc<NodeClaim>> {
        let names = self.claims_by_pool.get(pool).into_iter().flatten();
        names.filter_map(|name| self.claims.get(name))
    }

    /// The NodeClaim that a Node came from; `None` if nap did not launch it.
    pub fn claim_of_node(&self, node: &Node) -> Option<&Arc<NodeClaim>> {
        let claims = self.claims_by_provider_id.get(provider_id(node)?)?;
        self.claims.get(claims.first()?)
    }

    /// The plan behind a NodeClaim; `None` if it carries no usable record.
    pub fn plan(&self, claim: &str) -> Option<&Arc<PlanRecord>> {
        self.plans.get(claim)
    }

    /// Every view: NodeClaims by name, then Nodes without a NodeClaim by name.
    pub fn views(&self) -> impl Iterator<Item = &NodeView> {
        self.views.values()
    }

    /// The views of the NodeClaims of a NodePool, by name.
    pub fn views_of_pool(&self, pool: &str) -> impl Iterator<Item = &NodeView> {
        let names = self.claims_by_pool.get(pool).into_iter().flatten();
        names.filter_map(|name| self.views.get(&NodeKey::NodeClaim(name.clone())))
    }

    /// The view of a NodeClaim or of a Node without one.
    pub fn view(&self, key: &NodeKey) -> Option<&NodeView> {
        self.views.get(key)
    }

    /// The key of the view that snapshots and plans call by this name: a Node's, or a NodeClaim's
    /// before its Node joins.
    pub fn key_of_view(&self, name: &str) -> Option<NodeKey> {
        let of_node = self.nodes.get(name).map(|node| match self.claim_of_node(node) {
            Some(claim) => NodeKey::NodeClaim(claim.name_any()),
            None => NodeKey::Node(name.to_owned()),
        });
        let of_claim =
            || self.claims.contains_key(name).then(|| NodeKey::NodeClaim(name.to_owned()));
        of_node.or_else(of_claim)
    }

    /// Every NodePool, by name.
    pub fn pools(&self) -> impl Iterator<Item = (&String, &Arc<NodePool>)> {
        self.pools.iter()
    }

    /// A NodePool.
    pub fn pool(&self, name: &str) -> Option<&Arc<NodePool>> {
        self.pools.get(name)
    }

    /// Every AKSNodeClass, by name.
    pub fn classes(&self) -> impl Iterator<Item = (&String, &Arc<AKSNodeClass>)> {
        self.classes.iter()
    }

    /// An AKSNodeClass.
    pub fn class(&self, name: &str) -> Option<&Arc<AKSNodeClass>> {
        self.classes.get(name)
    }

    /// Every DaemonSet, by `namespace/name`.
    pub fn daemon_sets(&self) -> impl Iterator<Item = (&String, &Arc<DaemonSet>)> {
        self.daemon_sets.iter()
    }

    /// The LimitRanges of a namespace, by name.
    pub fn limit_ranges_of(&self, namespace: &str) -> impl Iterator<Item = &Arc<LimitRange>> {
        let is_of = move |range: &&Arc<LimitRange>| range.namespace().as_deref() == Some(namespace);
        self.limit_ranges.values().filter(is_of)
    }

    /// Every NodeOverlay, by name.
    pub fn overlays(&self) -> impl Iterator<Item = (&String, &Arc<NodeOverlay>)> {
        self.overlays.iter()
    }

    /// Every StorageClass, by name.
    pub fn storage_classes(&self) -> impl Iterator<Item = (&String, &Arc<StorageClass>)> {
        self.storage_classes.iter()
    }

    /// Every PersistentVolumeClaim, by `namespace/name`.
    pub fn volume_claims(&self) -> impl Iterator<Item = (&String, &Arc<PersistentVolumeClaim>)> {
        self.volume_claims.iter()
    }

    /// The selectors of Services and workload controllers.
    pub fn workloads(&self) -> &Workloads {
        &self.workloads
    }

    /// The PodDisruptionBudgets that cover a pod.
    pub fn budgets_of(&self, pod: &Pod) -> Vec<Arc<PodDisruptionBudget>> {
        let table = self.budgets.get(pod.namespace());
        let budgets = table.into_iter().flat_map(BTreeMap::values);
        budgets.filter(|budget| pods::budget_covers(budget, pod)).cloned().collect()
    }
}

/// Whether a Node differs from its former self in nothing that disruption reads. Heartbeats do not
/// count.
fn is_same_to_disruption(old: &Node, new: &Node) -> bool {
    let allocatable =
        |node: &Node| node.status.as_ref().and_then(|status| status.allocatable.clone());
    old.spec == new.spec
        && old.labels() == new.labels()
        && old.annotations() == new.annotations()
        && is_ready(old) == is_ready(new)
        && allocatable(old) == allocatable(new)
        && old.metadata.deletion_timestamp.is_some() == new.metadata.deletion_timestamp.is_some()
}

/// Whether a NodePool differs from its former self in nothing but the numbers in its status.
fn is_same_to_decisions(old: &NodePool, new: &NodePool) -> bool {
    let ready = |pool: &NodePool| {
        let status = pool.status.as_ref();
        status.is_some_and(|status| conditions::is_true(&status.conditions, conditions::READY))
    };
    old.metadata.uid == new.metadata.uid
        && old.metadata.generation == new.metadata.generation
        && old.metadata.deletion_timestamp.is_some() == new.metadata.deletion_timestamp.is_some()
        && old.annotations() == new.annotations()
        && old.labels() == new.labels()
        && old.spec == new.spec
        && ready(old) == ready(new)
}

/// Moves a key from one group to another.
fn regroup(groups: &mut GroupedKeys, key: &str, from: Option<&str>, to: Option<&str>) {
    if from == to {
        return;
    }
    if let Some(from) = from
        && let Some(keys) = groups.get_mut(from)
    {
        keys.remove(key);
        if keys.is_empty() {
            groups.remove(from);
        }
    }
    if let Some(to) = to {
        groups.entry(to.to_owned()).or_default().insert(key.to_owned());
    }
}
