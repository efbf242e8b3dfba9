//! Reading of the index.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{LimitRange, Node, PersistentVolumeClaim};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;
use nap_api::disruption::PlannedMaintenance;
use nap_api::{AKSNodeClass, NodeClaim, NodeOverlay, NodePool, PlanRecord};
use nap_engine::PodKey;

use super::{Index, Stamps};
use crate::cluster::{NodeKey, NodeView, Pod, Workloads, pods, provider_id, provider_key};

/// Age up to which what the cloud said about a maintenance window counts.
const MAX_MAINTENANCE_AGE: SignedDuration = SignedDuration::from_hours(1);

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
        self.unschedulable.get(key).map(|known| known.since)
    }

    /// Time at which kube-scheduler was last seen to have tried an unschedulable pod.
    pub fn last_tried(&self, key: &PodKey) -> Option<Timestamp> {
        self.unschedulable.get(key).map(|known| known.tried)
    }

    /// Time at which kube-scheduler was last seen to have tried a pod again; `None` if never.
    pub fn last_retry(&self) -> Option<Timestamp> {
        self.last_retry
    }

    /// Time of the last change that makes kube-scheduler try pending pods again, besides the
    /// opening of a Node; `None` if there was none.
    pub fn scheduler_woken(&self) -> Option<Timestamp> {
        self.scheduler_woken
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
        let names = self.nodes_by_provider_id.get(&provider_key(id)).into_iter().flatten();
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
        let claims = self.claims_by_provider_id.get(&provider_key(provider_id(node)?))?;
        self.claims.get(claims.first()?)
    }

    /// The plan behind a NodeClaim; `None` if it carries no usable record.
    pub fn plan(&self, claim: &str) -> Option<&Arc<PlanRecord>> {
        self.planned.plan(claim)
    }

    /// Time since which a bound pod that is not ready was unschedulable; `None` if it never was.
    pub(crate) fn provisioned_since(&self, key: &PodKey) -> Option<Timestamp> {
        self.provisioned.get(key).copied()
    }

    /// Whether a NodeClaim that is not being deleted was planned for a pod.
    pub fn was_planned(&self, pod: &PodKey) -> bool {
        self.planned.claims_of(pod).next().is_some()
    }

    /// Planned pods of a NodeClaim that are still unschedulable, in key order. None wait for a
    /// NodeClaim that is being deleted.
    pub fn waiting_pods(&self, claim: &str) -> impl Iterator<Item = &PodKey> {
        self.planned.waiting(claim)
    }

    /// Whether pods wait for NodeClaims that precede this one in the release order of its plan.
    pub fn is_preceded(&self, claim: &str) -> bool {
        let slot = self.plan(claim).and_then(|plan| plan.release.as_ref());
        slot.is_some_and(|slot| self.planned.is_preceded(slot))
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

    /// The maintenance windows of the managed cluster; one that was read too long ago is unknown.
    pub fn maintenance(&self, now: Timestamp) -> PlannedMaintenance {
        let all = self.maintenance.iter();
        let fresh = all.filter(|(_, (at, _))| now.duration_since(*at) < MAX_MAINTENANCE_AGE);
        fresh.map(|(schedule, (_, window))| (*schedule, window.clone())).collect()
    }

    /// The PodDisruptionBudgets that cover a pod, by name.
    pub fn budgets_of(&self, pod: &Pod) -> Vec<Arc<PodDisruptionBudget>> {
        self.budgets.covering(pod)
    }
}
