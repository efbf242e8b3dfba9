//! Existing nodes: their free capacity costs nothing, so it is filled before any node is launched.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use nap_api::Requirements;
use nap_api::requirement::Undefined;

use crate::classes::dimensions::Dimensions;
use crate::classes::{Class, Classes, PodCounts};
use crate::ids::{ClassId, Id, IndexVec, NodeConstraintsId, NodeIdx, TermId};
use crate::model::{Node, Snapshot};
use crate::offerings::index::OfferingIndex;
use crate::topology::counts::{Host, HostQuery, Topology};
use crate::topology::domains::Domains;
use crate::topology::groups::{TopologyGroup, TopologyProfile};
use crate::topology::running::covers;

/// Pods of a class on an existing node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExistingPlacement {
    pub(crate) class: ClassId,
    pub(crate) node: NodeIdx,
    pub(crate) count: usize,
}

/// What is known about each node.
type KnownNodes = IndexVec<NodeIdx, Option<bool>>;

/// The nodes that exist or are in flight, with their free capacity.
#[derive(Clone, Default)]
pub(crate) struct ExistingNodes<'a> {
    /// Initialized nodes first, then by name.
    pub(crate) nodes: Rc<IndexVec<NodeIdx, &'a Node>>,
    pub(crate) labels: Rc<IndexVec<NodeIdx, Requirements>>,
    /// Domains of each node by every topology label.
    pub(crate) domains: Rc<IndexVec<NodeIdx, Domains>>,
    /// Free capacity of each node by dimension, one node after the other.
    free: Vec<i64>,
    /// Number of dimensions.
    width: usize,
    /// Whether node constraints are compatible with a node, as far as it was asked.
    compatible: Rc<RefCell<IndexVec<NodeConstraintsId, KnownNodes>>>,
}

/// The existing nodes that suit a class, by domains.
pub(crate) struct CandidateNodes {
    rows: Vec<CandidateRow>,
    /// A node that is refused now may be allowed later, so every node is tried again.
    retries_nodes: bool,
}

/// Candidates in the same domains.
struct CandidateRow {
    domains: Domains,
    nodes: Vec<NodeIdx>,
    /// Position of the first node that may still take a pod.
    first: usize,
}

impl<'a> ExistingNodes<'a> {
    pub(crate) fn of(
        snapshot: &'a Snapshot,
        dimensions: &Dimensions<'a>,
        offerings: &mut OfferingIndex<'_>,
    ) -> Self {
        let mut nodes: Vec<&Node> = snapshot.nodes.iter().map(Arc::as_ref).collect();
        nodes.sort_by(|a, b| (!a.initialized, a).cmp(&(!b.initialized, b)));
        let labels = nodes.iter().map(|node| Requirements::from_labels(&node.labels)).collect();
        let domains = nodes.iter().map(|node| offerings.domain_table().of_node(node)).collect();
        Self {
            free: nodes.iter().flat_map(|node| dimensions.free(node)).collect(),
            width: dimensions.len(),
            labels: Rc::new(labels),
            domains: Rc::new(domains),
            nodes: Rc::new(nodes.into()),
            compatible: Rc::default(),
        }
    }

    /// Domains of a node that a profile refers to.
    pub(crate) fn domains_of(&self, node: NodeIdx, profile: &TopologyProfile) -> Domains {
        profile.keys.iter().map(|key| self.domains[node][key.index()]).collect()
    }

    /// Places the pods of all classes by first fit, in their order. Returns the number of pods
    /// placed of each class (its first ones) and the placements.
    pub(crate) fn fill(
        &mut self,
        classes: &Classes<'_>,
        topology: &mut Topology,
    ) -> (PodCounts, Vec<ExistingPlacement>) {
        let mut placed = IndexVec::filled(0, classes.list.len());
        let mut placements = Vec::new();
        if self.nodes.is_empty() {
            return (placed, placements);
        }
        for (id, class) in classes.list.enumerate() {
            let pods = class.pods.len();
            let left = self.fill_with(id, pods, classes, topology, &mut placements);
            placed[id] = pods - left;
        }
        (placed, placements)
    }

    /// Places pods of a class by first fit and returns how many are left.
    pub(crate) fn fill_with(
        &mut self,
        id: ClassId,
        mut left: usize,
        classes: &Classes<'_>,
        topology: &mut Topology,
        placements: &mut Vec<ExistingPlacement>,
    ) -> usize {
        let class = &classes[id];
        if left == 0 {
            return 0;
        }
        if let Some(profile) = class.topology.as_ref().filter(|_| !class.is_only_counted) {
            let mut candidates = self.candidates(class, classes, profile);
            while let Some((node, count)) =
                self.place_next(&mut candidates, class, profile, topology, left)
            {
                placements.push(ExistingPlacement { class: id, node, count });
                left -= count;
            }
            return left;
        }
        for node in self.nodes.ids() {
            if left == 0 {
                break;
            }
            let count = fitting(self.free(node), class, left);
            if count > 0 && self.is_compatible(node, class, classes) {
                self.take(node, class, count);
                if let Some(profile) = &class.topology {
                    let domains = self.domains_of(node, profile);
                    let host = Host::Existing(node);
                    topology.record(profile, &class.surely_counted, &domains, host, count);
                }
                placements.push(ExistingPlacement { class: id, node, count });
                left -= count;
            }
        }
        left
    }

    /// Free capacity of a node by now.
    pub(crate) fn free(&self, node: NodeIdx) -> &[i64] {
        &self.free[node.index() * self.width..][..self.width]
    }

    fn free_mut(&mut self, node: NodeIdx) -> &mut [i64] {
        &mut self.free[node.index() * self.width..][..self.width]
    }

    /// The nodes that a topology group covers.
    pub(crate) fn covered_by(&self, group: &TopologyGroup<'_>) -> Vec<NodeIdx> {
        let each = self.nodes.enumerate().zip(self.labels.iter());
        each.filter(|((_, node), labels)| covers(group, node, labels))
            .map(|((id, _), _)| id)
            .collect()
    }

    /// Adds capacity of one dimension to every node.
    pub(crate) fn add_capacity(&mut self, dimension: usize, by: i64) {
        for free in self.free.chunks_exact_mut(self.width.max(1)) {
            free[dimension] = free[dimension].saturating_add(by);
        }
    }

    /// The nodes that suit a class and have room for a pod, by their domains.
    pub(crate) fn candidates(
        &self,
        class: &Class<'_>,
        classes: &Classes<'_>,
        profile: &TopologyProfile,
    ) -> CandidateNodes {
        let mut rows: BTreeMap<Domains, Vec<NodeIdx>> = BTreeMap::new();
        for node in self.nodes.ids() {
            let fits = fitting(self.free(node), class, 1) == 1;
            if fits && self.is_compatible(node, class, classes) {
                rows.entry(self.domains_of(node, profile)).or_default().push(node);
            }
        }
        let row = |(domains, nodes)| CandidateRow { domains, nodes, first: 0 };
        let rows = rows.into_iter().map(row).collect();
        CandidateNodes { rows, retries_nodes: profile.follows_hosts() }
    }

    /// Places up to `max` pods of a class on the first candidate that may take some, in the
    /// emptiest domain. Returns the node and the number of pods.
    pub(crate) fn place_next(
        &mut self,
        candidates: &mut CandidateNodes,
        class: &Class<'_>,
        profile: &TopologyProfile,
        topology: &mut Topology,
        max: usize,
    ) -> Option<(NodeIdx, usize)> {
        if max == 0 || candidates.rows.is_empty() {
            return None;
        }
        let load =
            |(number, row): (usize, &CandidateRow)| (topology.load(profile, &row.domains), number);
        let mut order: Vec<(i64, usize)> = candidates.rows.iter().enumerate().map(load).collect();
        order.sort_unstable();
        for (_, row) in order {
            let CandidateRow { domains, nodes, first } = &mut candidates.rows[row];
            if topology.allowance(profile, domains, HostQuery::Any).is_none() {
                continue;
            }
            let mut position = *first;
            while let Some(node) = nodes.get(position).copied() {
                let host = Host::Existing(node);
                let allowed = topology.allowance(profile, domains, HostQuery::On(host));
                let allowed = allowed.min(topology.stride(profile, domains)).of(max);
                let count = fitting(self.free(node), class, allowed);
                if count > 0 {
                    topology.record(profile, &class.surely_counted, domains, host, count);
                    self.take(node, class, count);
                    return Some((node, count));
                }
                position += 1;
                if !candidates.retries_nodes {
                    *first = position;
                }
            }
        }
        None
    }

    /// Number of pods of a class that a node has room for, at most `max`.
    pub(crate) fn room(&self, node: NodeIdx, class: &Class<'_>, max: usize) -> usize {
        fitting(self.free(node), class, max)
    }

    /// Gives back the room of pods.
    pub(crate) fn give_back(&mut self, node: NodeIdx, class: &Class<'_>, count: usize) {
        let times = i64::try_from(count).unwrap_or(i64::MAX);
        for (free, request) in self.free_mut(node).iter_mut().zip(&class.requests) {
            *free = free.saturating_add(request.saturating_mul(times));
        }
    }

    /// Takes all room of a node, which is removed.
    pub(crate) fn close(&mut self, node: NodeIdx) {
        self.free_mut(node).fill(-1);
    }

    /// Takes all room of the nodes that do not run pods yet.
    pub(crate) fn close_uninitialized(&mut self) {
        let nodes = Rc::clone(&self.nodes);
        for (id, _) in nodes.enumerate().filter(|(_, node)| !node.initialized) {
            self.close(id);
        }
    }

    /// Takes the room of pods.
    pub(crate) fn take(&mut self, node: NodeIdx, class: &Class<'_>, count: usize) {
        let times = i64::try_from(count).unwrap_or(i64::MAX);
        for (free, request) in self.free_mut(node).iter_mut().zip(&class.requests) {
            *free = free.saturating_sub(request.saturating_mul(times));
        }
    }

    /// Whether a node suits the terms and tolerations of a class.
    pub(crate) fn is_compatible(
        &self,
        node: NodeIdx,
        class: &Class<'_>,
        classes: &Classes<'_>,
    ) -> bool {
        let mut known = self.compatible.borrow_mut();
        let known = known.grow_to(class.node_constraints, IndexVec::new()).grow_to(node, None);
        *known.get_or_insert_with(|| {
            let labels = &self.labels[node];
            let suits =
                |term: &TermId| labels.compatible(&classes.terms[*term], Undefined::Deny).is_ok();
            class.repelled_by(&self.nodes[node].taints).is_none() && class.terms.iter().any(suits)
        })
    }
}

/// Number of pods of a class that fit, at most `max`. A dimension that is overdrawn excludes only
/// the pods that request some of it.
fn fitting(free: &[i64], class: &Class<'_>, max: usize) -> usize {
    let requested = free.iter().zip(&class.requests).filter(|(_, request)| **request > 0);
    let times = requested.map(|(free, request)| usize::try_from(free / request).unwrap_or(0));
    times.fold(max, usize::min)
}
