//! Receivers: the nodes that may take pods of a class.
//!
//! Nodes are divided by their domains once for each list of topology labels, and every class with
//! rules about these labels walks through the same lists. What it learns on the way, it keeps: a
//! node without room for a class is passed once.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::classes::Class;
use crate::ids::{Id, KeyId, NodeIdx};
use crate::packing::existing::ExistingNodes;
use crate::topology::domains::Domains;
use crate::topology::groups::TopologyProfile;

/// Nodes in the order in which they are filled, by their domains of some topology labels.
pub(super) type NodesByDomains = Rc<[(Domains, Vec<NodeIdx>)]>;

/// The divisions that were asked for.
#[derive(Default)]
pub(super) struct Divisions {
    known: BTreeMap<Vec<KeyId>, NodesByDomains>,
}

impl Divisions {
    /// The nodes by their domains of some labels.
    pub(super) fn by(
        &mut self,
        keys: &[KeyId],
        existing: &ExistingNodes<'_>,
        order: &[NodeIdx],
    ) -> NodesByDomains {
        if let Some(known) = self.known.get(keys) {
            return Rc::clone(known);
        }
        let mut rows: BTreeMap<Domains, Vec<NodeIdx>> = BTreeMap::new();
        for node in order.iter().copied() {
            let domains = keys.iter().map(|key| existing.domains[node][key.index()]).collect();
            rows.entry(domains).or_default().push(node);
        }
        let rows: NodesByDomains = rows.into_iter().collect();
        self.known.insert(keys.to_vec(), Rc::clone(&rows));
        rows
    }
}

/// The nodes that may take pods of a class. They only get fewer: nodes that stay get fuller and
/// never emptier.
pub(super) struct Receivers {
    pub(super) nodes: NodesByDomains,
    /// Progress in each row of `nodes`.
    pub(super) rows: Vec<Row>,
    /// How the class takes part in topology rules, if they decide where its pods go.
    pub(super) profile: Option<Rc<TopologyProfile>>,
    /// Whether rules tell apart nodes of the same domains.
    pub(super) has_host_rules: bool,
    /// Whether a node that is refused now may be allowed later.
    pub(super) retries_nodes: bool,
}

/// Receivers in the same domains, as far as they were looked at.
#[derive(Default)]
pub(super) struct Row {
    /// Nodes that may take a pod, now or once a trial is undone.
    pub(super) found: Vec<NodeIdx>,
    /// Number of nodes of the row that were looked at.
    pub(super) seen: usize,
    /// Position in `found` before which no node takes a pod of the present removal.
    pub(super) from: usize,
    /// Number of nodes in `found` that turned out to be full.
    pub(super) full: usize,
}

impl Receivers {
    pub(super) fn new(
        class: &Class<'_>,
        divisions: &mut Divisions,
        existing: &ExistingNodes<'_>,
        order: &[NodeIdx],
    ) -> Self {
        let profile = class.topology.clone().filter(|_| class.is_constrained());
        let keys = profile.as_ref().map_or(&[][..], |profile| &profile.keys);
        let nodes = divisions.by(keys, existing, order);
        Self {
            rows: nodes.iter().map(|_| Row::default()).collect(),
            nodes,
            has_host_rules: profile.as_ref().is_some_and(|profile| !profile.is_by_domain()),
            retries_nodes: profile.as_ref().is_some_and(|profile| profile.follows_hosts()),
            profile,
        }
    }
}
