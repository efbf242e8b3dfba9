//! Nodes of a snapshot: labels, taints and free resources of existing and in-flight capacity.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use nap_api::nodeclaim::condition::REGISTERED;
use nap_api::requirement::Undefined;
use nap_api::{Requirements, Taint, labels, taints};
use nap_engine::{ATTACHABLE_VOLUMES, Daemon, Node};
use nap_units::{Quantity, Resources, Rounding};

use super::Catalogues;
use crate::cluster::pods;
use crate::cluster::{Index, Interest, NodeKey, NodeView, claim_is, counted_by_driver};

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
    /// A view in the engine's terms.
    pub fn node(&self, view: &NodeView) -> Node {
        let (labels, taints) = labels_and_taints(view);
        let mut free = allocatable(view, self.catalogues);
        let bound = view.node.as_ref().map(|node| self.index.pods_on(&node.name_any()));
        let bound = bound.unwrap_or_default();
        let expected = self.expected.get(&view.key()).map(Vec::as_slice).unwrap_or_default();
        for pod in bound.iter().filter(|pod| !pods::is_terminal(pod)) {
            free.subtract(&pods::occupies(pod).unwrap_or_default());
        }
        for spec in expected.iter().filter_map(|pod| pod.spec.as_ref()) {
            free.subtract(&pods::requests(spec).unwrap_or_default());
        }
        self.subtract_attached(view, bound.iter().chain(expected), &mut free);
        let all = bound.iter().chain(expected).map(Arc::as_ref);
        let mut residents = self.index.residents(all, self.interest);
        let node_labels = Requirements::from_labels(&labels);
        for daemon in self.daemons {
            let tolerates = taints::first_untolerated(&taints, &daemon.tolerations).is_none();
            let selects =
                |term: &Requirements| node_labels.compatible(term, Undefined::Deny).is_ok();
            if tolerates && daemon.terms.iter().any(selects) && !runs(&bound, daemon) {
                free.subtract(&daemon.requests);
                residents.extend(daemon.resident());
            }
        }
        let spec = view.node.as_ref().and_then(|node| node.spec.as_ref());
        if spec.is_some_and(|spec| spec.unschedulable == Some(true)) {
            // A cordoned node takes no pods, but its pods still count for topology.
            free = Resources::new();
        }
        let (name, initialized) = (view.name(), view.is_initialized());
        Node { name, labels, taints, free, initialized, residents }
    }

    /// Sets the attach limits of the node, less the volumes of its pods. A volume that several pods
    /// share is attached once.
    fn subtract_attached<'p>(
        &self,
        view: &NodeView,
        pods: impl Iterator<Item = &'p Arc<Pod>>,
        free: &mut Resources,
    ) {
        let limits = self.index.attach_limits(view);
        if limits.is_empty() {
            return;
        }
        let live = pods.filter(|pod| !pods::is_terminal(pod));
        let attached: BTreeSet<(String, String)> =
            live.flat_map(|pod| self.index.attached(pod)).collect();
        let attached = counted_by_driver(&attached);
        for (name, limit) in limits.iter() {
            free.set(name, limit.saturating_sub(attached.get(name)).max(0));
        }
    }
}

/// Whether a pod of the DaemonSet is bound to the node.
fn runs(bound: &[Arc<Pod>], daemon: &Daemon) -> bool {
    bound.iter().any(|pod| {
        let namespace = pod.namespace().unwrap_or_default();
        pod.owner_references().iter().any(|owner| {
            owner.kind == "DaemonSet" && daemon.name == format!("{namespace}/{}", owner.name)
        })
    })
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
            let lasting = taints.filter(|taint| !starting || !passing(taint)).collect();
            (node.labels().clone(), lasting)
        }
        (_, None) => (BTreeMap::new(), Vec::new()),
    }
}
