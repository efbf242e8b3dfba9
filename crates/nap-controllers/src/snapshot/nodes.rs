//! Nodes of a snapshot: labels, taints and free resources of existing and in-flight capacity.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::storage::v1::CSINode;
use kube::ResourceExt;
use nap_api::nodeclaim::condition::REGISTERED;
use nap_api::requirement::Undefined;
use nap_api::{Requirements, Taint, labels, taints};
use nap_engine::{ATTACHABLE_VOLUMES, Daemon, Node, RunningPods};
use nap_units::{Quantity, Resources, Rounding};

use super::Catalogues;
use crate::cluster::pods;
use crate::cluster::{
    Index, Interest, Labels, NodeKey, NodeView, Pod, claim_is, counted_by_driver,
};

/// Nodes of earlier snapshots, by view. A node is built again only after something that it depends
/// on has changed.
#[derive(Debug, Default)]
pub struct NodeCache {
    nodes: BTreeMap<NodeKey, CachedNode>,
    /// The daemons that all of them were built with.
    daemons: Vec<Daemon>,
    /// The stamp of Namespaces that all of them were built at.
    namespaces: u64,
}

/// A node without the pods that are expected on it, and what it was built from.
#[derive(Clone, Debug)]
struct CachedNode {
    built: Arc<Node>,
    from: NodeView,
    csi_node: Option<Arc<CSINode>>,
    /// The stamp of its pods.
    pods: u64,
    /// The stamp of volumes; `None` if no pod of the node has any.
    volumes: Option<u64>,
}

/// Builds the nodes of one snapshot.
pub(super) struct NodeBuilder<'a> {
    pub index: &'a Index,
    pub catalogues: &'a Catalogues,
    /// Running pods that pending pods refer to.
    pub interest: &'a Interest,
    /// Unbound pods that will be bound to a node without further decisions.
    pub expected: &'a BTreeMap<NodeKey, Vec<Arc<Pod>>>,
    pub daemons: &'a [Daemon],
}

impl NodeBuilder<'_> {
    /// Nodes that stay or are decided, in the engine's terms.
    pub fn nodes(&self, cache: &mut NodeCache) -> Vec<Arc<Node>> {
        let namespaces = self.index.stamps().namespaces;
        if cache.daemons != self.daemons || cache.namespaces != namespaces {
            *cache =
                NodeCache { daemons: self.daemons.to_vec(), namespaces, ..NodeCache::default() };
        }
        let mut old = std::mem::take(&mut cache.nodes);
        let mut nodes = Vec::new();
        let decided = self.index.decided().map(|decided| &decided.view);
        for view in self.index.views().filter(|view| !view.is_leaving()).chain(decided) {
            let key = view.key();
            let expected = self.expected.get(&key).map(Vec::as_slice).unwrap_or_default();
            if !expected.is_empty() || !view.is_initialized() {
                nodes.push(Arc::new(self.node(view, expected)));
                continue;
            }
            let known = old.remove(&key).filter(|known| self.is_current(known, view));
            let known = known.unwrap_or_else(|| self.cached(view));
            nodes.push(self.with_interest(&known.built, view));
            cache.nodes.insert(key, known);
        }
        nodes
    }

    fn is_current(&self, known: &CachedNode, view: &NodeView) -> bool {
        let volumes = self.index.stamps().volumes;
        known.from.is_same_version(view)
            && known.csi_node.as_ref().map(Arc::as_ptr)
                == self.index.csi_node(view).map(Arc::as_ptr)
            && known.pods == self.index.pods_stamp(view)
            && known.volumes.is_none_or(|known| known == volumes)
    }

    fn cached(&self, view: &NodeView) -> CachedNode {
        let uses_volumes = self.bound(view).any(|pod| !pod.volumes().is_empty());
        let plain = NodeBuilder { interest: &Interest::default(), ..*self };
        CachedNode {
            built: Arc::new(plain.node(view, &[])),
            from: view.clone(),
            csi_node: self.index.csi_node(view).cloned(),
            pods: self.index.pods_stamp(view),
            volumes: uses_volumes.then(|| self.index.stamps().volumes),
        }
    }

    /// A node with the running pods that pending pods refer to.
    fn with_interest(&self, node: &Arc<Node>, view: &NodeView) -> Arc<Node> {
        if self.interest.is_empty() || self.bound(view).next().is_none() {
            return Arc::clone(node);
        }
        let residents = self.residents(view, &[], &node.labels, &node.taints);
        if residents == node.residents {
            return Arc::clone(node);
        }
        Arc::new(Node { residents, ..node.as_ref().clone() })
    }

    fn bound<'v>(&'v self, view: &'v NodeView) -> impl Iterator<Item = &'v Arc<Pod>> + Clone {
        let name = view.node.as_ref().and_then(|node| node.metadata.name.as_deref());
        name.into_iter().flat_map(|name| self.index.pods_on(name))
    }

    /// A view in the engine's terms.
    fn node(&self, view: &NodeView, expected: &[Arc<Pod>]) -> Node {
        let (labels, taints) = labels_and_taints(view);
        let mut free = allocatable(view, self.catalogues);
        for pod in self.bound(view).filter(|pod| !pod.is_terminal()) {
            pod.occupies().into_iter().for_each(|occupied| free.subtract(occupied));
        }
        for requests in expected.iter().filter_map(|pod| pod.requests().ok()) {
            free.subtract(requests);
        }
        self.subtract_attached(view, expected, &mut free);
        for daemon in self.missing_daemons(view, &labels, &taints) {
            free.subtract(&daemon.requests);
        }
        let residents = self.residents(view, expected, &labels, &taints);
        let spec = view.node.as_ref().and_then(|node| node.spec.as_ref());
        if spec.is_some_and(|spec| spec.unschedulable == Some(true)) {
            // A cordoned node takes no pods, but its pods still count for topology.
            free = Resources::new();
        }
        let (name, initialized) = (view.name(), view.is_initialized());
        Node { name, labels, taints, free, initialized, residents }
    }

    /// Pods on the node that topology rules may count.
    fn residents(
        &self,
        view: &NodeView,
        expected: &[Arc<Pod>],
        labels: &Labels,
        taints: &[Taint],
    ) -> Vec<RunningPods> {
        let all = self.bound(view).chain(expected).map(Arc::as_ref);
        let mut residents = self.index.residents(all, self.interest);
        let with_ports = self.daemons.iter().any(|daemon| !daemon.host_ports.is_empty());
        if with_ports {
            let missing = self.missing_daemons(view, labels, taints);
            residents.extend(missing.filter_map(Daemon::resident));
        }
        residents
    }

    /// DaemonSets that will run a pod on the node and do not yet.
    fn missing_daemons<'s>(
        &'s self,
        view: &'s NodeView,
        labels: &Labels,
        taints: &'s [Taint],
    ) -> impl Iterator<Item = &'s Daemon> {
        let node_labels = Requirements::from_labels(labels);
        self.daemons.iter().filter(move |daemon| {
            let selects =
                |term: &Requirements| node_labels.compatible(term, Undefined::Deny).is_ok();
            taints::first_untolerated(taints, &daemon.tolerations).is_none()
                && daemon.terms.iter().any(selects)
                && !self.bound(view).any(|pod| is_of(pod, daemon))
        })
    }

    /// Sets the attach limits of the node, less the volumes of its pods. A volume that several pods
    /// share is attached once.
    fn subtract_attached(&self, view: &NodeView, expected: &[Arc<Pod>], free: &mut Resources) {
        let limits = self.index.attach_limits(view);
        if limits.is_empty() {
            return;
        }
        let live = self.bound(view).chain(expected).filter(|pod| !pod.is_terminal());
        let attached: BTreeSet<(String, String)> =
            live.flat_map(|pod| self.index.attached(pod)).collect();
        let attached = counted_by_driver(&attached);
        for (name, limit) in limits.iter() {
            free.set(name, limit.saturating_sub(attached.get(name)).max(0));
        }
    }
}

/// Whether a pod belongs to the DaemonSet.
fn is_of(pod: &Pod, daemon: &Daemon) -> bool {
    let (namespace, name) = daemon.name.split_once('/').unwrap_or_default();
    let mut owners = pod.owners().iter();
    pod.namespace() == namespace
        && owners.any(|owner| owner.kind == "DaemonSet" && owner.name == name)
}

pub(super) fn quantities(list: &BTreeMap<String, Quantity>) -> Resources {
    Resources::from_quantities(
        list.iter().map(|(name, quantity)| (name.as_str(), quantity)),
        Rounding::Down,
    )
}

/// Allocatable resources of a view. Until it is initialized the NodeClaim stands in for what the
/// Node does not report yet; a NodeClaim that is not launched has just what it requests.
fn allocatable(view: &NodeView, catalogues: &Catalogues) -> Resources {
    let of_node = view.node.as_ref().and_then(|node| node.status.as_ref()?.allocatable.as_ref());
    let of_node = pods::node_resources(of_node);
    let Some(claim) = &view.claim else { return of_node };
    if view.is_initialized() {
        return of_node;
    }
    // Attach limits come from the CSINode, which may know better.
    let promised = claim.status.iter().flat_map(|status| &status.allocatable);
    let promised = promised.filter(|(name, _)| !name.starts_with(ATTACHABLE_VOLUMES));
    let of_claim = Resources::from_quantities(
        promised.map(|(name, quantity)| (name.as_str(), quantity)),
        Rounding::Down,
    );
    let mut known =
        if of_claim.is_empty() { quantities(&claim.spec.resources.requests) } else { of_claim };
    let name = claim.labels().get(labels::INSTANCE_TYPE);
    let types = view.pool().and_then(|pool| catalogues.of(pool));
    let instance_type = name.and_then(|name| types?.types().iter().find(|one| one.name == *name));
    // The provider does not know the capacity that a NodeOverlay adds.
    for (name, amount) in instance_type.iter().flat_map(|one| one.capacity.iter()) {
        if !known.contains(name) {
            known.set(name, amount);
        }
    }
    for (name, amount) in of_node.iter().filter(|(_, amount)| *amount > 0) {
        known.set(name, amount);
    }
    known
}

/// Labels and lasting taints of a view: those of the NodeClaim until its Node is registered. While
/// the Node starts, ephemeral and startup taints do not count.
fn labels_and_taints(view: &NodeView) -> (BTreeMap<String, String>, Vec<Taint>) {
    match (&view.claim, &view.node) {
        (Some(claim), node) if node.is_none() || !claim_is(claim, REGISTERED) => {
            let mut labels = claim.labels().clone();
            labels.extend(Requirements::from_specs(&claim.spec.requirements).labels());
            labels.insert(labels::HOSTNAME.to_owned(), view.name());
            (labels, claim.spec.taints.clone())
        }
        (claim, Some(node)) => {
            let startup = claim
                .as_ref()
                .map(|claim| claim.spec.startup_taints.as_slice())
                .unwrap_or_default();
            let starting = claim.is_some() && !view.is_initialized();
            let passing = |taint: &Taint| {
                taint.is_ephemeral() || startup.iter().any(|one| one.matches(taint))
            };
            let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
            let taints = taints.into_iter().flatten().map(Taint::from);
            // nap's own hint to kube-scheduler is no preference of the user's.
            let taints = taints.filter(|taint| taint.key != taints::SURPLUS);
            let lasting = taints.filter(|taint| !starting || !passing(taint)).collect();
            (node.labels().clone(), lasting)
        }
        (_, None) => (BTreeMap::new(), Vec::new()),
    }
}
