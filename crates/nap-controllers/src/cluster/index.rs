//! The index itself: objects by key, the indexes over them, and what has changed.

mod pod_changes;
mod read;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{
    LimitRange, Namespace, Node, PersistentVolume, PersistentVolumeClaim,
};
use k8s_openapi::api::storage::v1::{CSINode, StorageClass};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use nap_api::disruption::{Maintenance, MaintenanceSchedule};
use nap_api::nodeclaim::condition::DISRUPTION_REASON;
use nap_api::{AKSNodeClass, NodeClaim, NodeOverlay, NodePool, PlanRecord, conditions, labels};
use nap_engine::PodKey;

use super::decided_claims::DecidedClaims;
use super::disruption_budgets::DisruptionBudgets;
use super::kinds::{Indexed, KINDS, Kind, Table, is_news, key_of};
use super::milestones::{MAX_MILESTONES, Milestone, transitions};
use super::node_view::{
    NodeKey, NodeView, claim_is, pool_of, provider_id, provider_id_of_claim, provider_key,
};
use super::planned_pods::PlannedPods;
use super::pod::SharedParts;
use super::workloads::Workloads;
use super::{Dirty, Pod};

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

/// What the index knows of an unschedulable pod besides the pod itself.
#[derive(Clone, Copy, Debug)]
struct Unschedulable {
    /// Time at which it was first seen unschedulable.
    since: Timestamp,
    /// Time at which kube-scheduler was last seen to have tried it.
    tried: Timestamp,
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
    pub(super) budgets: DisruptionBudgets,
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
    unschedulable: BTreeMap<PodKey, Unschedulable>,
    /// Pods that were unschedulable, are bound and not ready, and since when they were.
    provisioned: BTreeMap<PodKey, Timestamp>,
    /// Time at which kube-scheduler was last seen to have tried a pod again.
    last_retry: Option<Timestamp>,
    /// Time of the last change that makes kube-scheduler try pending pods again: a Node joined, or
    /// a nomination was cleared.
    scheduler_woken: Option<Timestamp>,
    /// Time of the last pod that was bound to a node or left it, by node name. Pods that the first
    /// list showed do not count.
    pod_events: BTreeMap<String, Timestamp>,
    claims_by_pool: GroupedKeys,
    claims_by_provider_id: GroupedKeys,
    nodes_by_provider_id: GroupedKeys,
    planned: PlannedPods,
    pub(super) decided: DecidedClaims,
    views: BTreeMap<NodeKey, NodeView>,

    /// Maintenance windows of the managed cluster that were read, and when.
    maintenance: BTreeMap<MaintenanceSchedule, (Timestamp, Maintenance)>,

    /// Keys that were known when the running list of a kind began, less those that it has shown.
    not_listed: BTreeMap<Kind, BTreeSet<String>>,
    /// NodeClaims that nap created and no watch has shown yet, and since when.
    unconfirmed: BTreeMap<String, Timestamp>,
    synced: BTreeSet<Kind>,
    generation: u64,
    dirty: BTreeSet<Dirty>,
    milestones: Vec<Milestone>,
}

impl Index {
    /// Stores an object that a list or a watch has shown. An object that is older than the stored
    /// one, or the same version of it, changes nothing. One of another provider is not stored.
    pub fn apply<K: Indexed>(&mut self, mut object: K, now: Timestamp) {
        object.slim();
        let key = key_of(&object);
        if let Some(not_listed) = self.not_listed.get_mut(&K::KIND) {
            not_listed.remove(&key);
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
        let known = K::keys(self).into_iter().collect();
        self.not_listed.insert(K::KIND, known);
    }

    /// Ends a list of a kind: objects that it did not show are dropped, and the kind is synced.
    pub fn end_list<K: Indexed>(&mut self) {
        let mut gone = self.not_listed.remove(&K::KIND).unwrap_or_default();
        gone.retain(|key| K::KIND != Kind::NodeClaim || !self.unconfirmed.contains_key(key));
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

    /// Takes the milestones since the last call.
    pub fn take_milestones(&mut self) -> Vec<Milestone> {
        std::mem::take(&mut self.milestones)
    }

    pub(super) fn report(&mut self, milestones: impl IntoIterator<Item = Milestone>) {
        let room = MAX_MILESTONES.saturating_sub(self.milestones.len());
        self.milestones.extend(milestones.into_iter().take(room));
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
    pub(super) fn insert_node(&mut self, name: String, node: Node, now: Timestamp) {
        let old = self.nodes.get(&name).cloned();
        if !is_news(old.as_ref(), &node) {
            return;
        }
        if old.is_none() {
            self.scheduler_woken = Some(now);
        }
        if let Some(old) = &old {
            self.report(transitions(Kind::Node, old.as_ref(), &node));
        }
        if old.as_ref().is_none_or(|old| !is_same_to_disruption(old, &node)) {
            self.bump_generation();
        }
        let deleting = node.metadata.deletion_timestamp.is_some();
        let old_id = old.as_deref().and_then(provider_id).map(provider_key);
        let id = provider_id(&node).map(provider_key);
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
        if let Some(id) = provider_id(&node).map(provider_key) {
            regroup(&mut self.nodes_by_provider_id, name, Some(&id), None);
            self.join(&id);
            self.mark_claim_with_id(Some(&id));
        }
    }

    pub(super) fn insert_claim(&mut self, name: String, claim: NodeClaim) {
        let old = self.claims.get(&name).cloned();
        if !is_news(old.as_ref(), &claim) {
            return;
        }
        self.bump_generation();
        if let Some(old) = &old {
            self.report(transitions(Kind::NodeClaim, old.as_ref(), &claim));
        }
        self.keep_plan(&name, old.as_deref(), &claim);
        let old_id = old.as_deref().and_then(provider_id_of_claim).map(provider_key);
        let id = provider_id_of_claim(&claim).map(provider_key);
        let pool = pool_of(&claim).map(str::to_owned);
        let old_pool = old.as_deref().and_then(pool_of);
        regroup(&mut self.claims_by_pool, &name, old_pool, pool.as_deref());
        let in_command = self.planned.plan(&name).is_some_and(|plan| !plan.replaces.is_empty())
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
        if deleting {
            self.planned.end(&name);
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
        self.planned.remove(name);
        self.views.remove(&NodeKey::NodeClaim(name.to_owned()));
        regroup(&mut self.claims_by_pool, name, pool_of(claim.as_ref()), None);
        if let Some(id) = provider_id_of_claim(&claim).map(provider_key) {
            regroup(&mut self.claims_by_provider_id, name, Some(&id), None);
            self.join(&id);
        }
        if let Some(pool) = pool_of(claim.as_ref()) {
            self.mark(Dirty::NodePool(pool.to_owned()));
        }
        // A class that is being deleted waits for its NodeClaims.
        let class = &claim.spec.node_class_ref.name;
        let is_leaving = |class: &Arc<AKSNodeClass>| class.metadata.deletion_timestamp.is_some();
        if self.classes.get(class).is_some_and(is_leaving) {
            self.mark(Dirty::NodeClass(class.clone()));
        }
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
        match PlanRecord::of(&claim.metadata) {
            Some(Ok(plan)) => {
                let unschedulable = &self.unschedulable;
                self.planned.insert(name, plan, |key| unschedulable.contains_key(key));
            }
            Some(Err(error)) => {
                tracing::warn!(nodeclaim = name, %error, "ignored plan record");
                self.planned.remove(name);
            }
            None => self.planned.remove(name),
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
        if let Some(old) = &old {
            self.report(transitions(Kind::NodePool, old.as_ref(), &pool));
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

    /// Stores what the cloud says about a maintenance window of the cluster.
    pub fn set_maintenance(
        &mut self,
        schedule: MaintenanceSchedule,
        window: Maintenance,
        now: Timestamp,
    ) {
        self.maintenance.insert(schedule, (now, window));
    }

    /// Asks for another inspection of a class: the cloud refused what needs it.
    pub fn inspect_class(&mut self, name: &str) {
        self.mark(Dirty::NodeClass(name.to_owned()));
    }

    /// Wakes the NodePools that use a class, and their NodeClaims: they may have drifted.
    pub(super) fn class_applied(&mut self, name: &str) {
        self.mark(Dirty::NodeClass(name.to_owned()));
        for pool in self.pools_using(name) {
            for claim in self.claims_by_pool.get(&pool).cloned().unwrap_or_default() {
                self.mark(Dirty::NodeClaim(claim));
            }
            self.mark(Dirty::NodePool(pool));
        }
    }

    pub(super) fn class_removed(&mut self, name: &str) {
        for pool in self.pools_using(name) {
            self.mark(Dirty::NodePool(pool));
        }
    }

    fn pools_using(&self, class: &str) -> Vec<String> {
        let uses = |pool: &&Arc<NodePool>| pool.spec.template.spec.node_class_ref.name == class;
        self.pools.values().filter(uses).map(|pool| pool.name_any()).collect()
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
        && conditions_of(old).eq(conditions_of(new))
        && allocatable(old) == allocatable(new)
        && old.metadata.deletion_timestamp.is_some() == new.metadata.deletion_timestamp.is_some()
}

/// The conditions of a Node without what changes with each heartbeat.
fn conditions_of(node: &Node) -> impl Iterator<Item = (&str, &str, Option<&Time>)> {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref());
    conditions.unwrap_or_default().iter().map(|condition| {
        (
            condition.type_.as_str(),
            condition.status.as_str(),
            condition.last_transition_time.as_ref(),
        )
    })
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
