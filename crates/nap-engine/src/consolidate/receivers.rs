//! Receivers: the nodes that may take pods of a class.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::classes::Classes;
use crate::ids::{ClassId, NodeIdx};
use crate::packing::existing::ExistingNodes;
use crate::topology::domains::Domains;
use crate::topology::groups::TopologyProfile;

/// The nodes that may take pods of a class, by the domains that its rules refer to. A list only
/// shrinks: nodes that stay get fuller and never emptier.
pub(super) struct Receivers {
    pub(super) rows: Vec<Row>,
    /// How the class takes part in topology rules; `None` if it does not.
    pub(super) profile: Option<Rc<TopologyProfile>>,
    /// Whether rules decide where the pods go.
    pub(super) is_constrained: bool,
    /// Whether a node that is refused now may be allowed later.
    pub(super) retries_nodes: bool,
}

/// Receivers in the same domains.
pub(super) struct Row {
    pub(super) domains: Domains,
    pub(super) nodes: Vec<NodeIdx>,
    /// Position of the first node that may still take a pod.
    pub(super) first: usize,
}

impl Receivers {
    /// The nodes with room for a pod of a class, in the given order.
    pub(super) fn new(
        id: ClassId,
        classes: &Classes<'_>,
        existing: &ExistingNodes<'_>,
        order: &[NodeIdx],
    ) -> Self {
        let class = &classes[id];
        let profile = class.topology.clone();
        let mut rows: BTreeMap<Domains, Vec<NodeIdx>> = BTreeMap::new();
        for node in order.iter().copied() {
            if existing.room(node, class, 1) == 1 && existing.is_compatible(node, class, classes) {
                let domains = match &profile {
                    Some(profile) if class.is_constrained() => existing.domains_of(node, profile),
                    _ => Domains::new(),
                };
                rows.entry(domains).or_default().push(node);
            }
        }
        let row = |(domains, nodes)| Row { domains, nodes, first: 0 };
        Self {
            rows: rows.into_iter().map(row).collect(),
            is_constrained: class.is_constrained(),
            retries_nodes: profile.as_ref().is_some_and(|profile| profile.follows_hosts()),
            profile,
        }
    }
}
