//! Surplus nodes: new pods avoid the nodes that the fleet could do without.
//!
//! kube-scheduler prefers the emptiest nodes by default, so new pods keep alive what consolidation
//! would like to remove, and only evictions can undo that. A `PreferNoSchedule` taint turns the
//! preference round: pods that come go to the nodes that stay, pods that end make the surplus nodes
//! empty, and an empty node is removed without an eviction. Where no other node has room, the taint
//! changes nothing. Replacements of evicted pods follow it too, so that moves end on nodes that
//! stay.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use crate::cluster::{Index, NodeView};
use crate::context::Context;
use crate::node::taint;

/// Most Nodes whose taint is changed in one pass.
const MAX_CHANGES: usize = 50;

/// Taints the surplus nodes, and removes the taint from all others. What fails is tried again by
/// the next pass.
pub async fn synchronise(context: &Context, surplus: &BTreeSet<String>) {
    let surplus = if context.settings.avoid_surplus { surplus } else { &BTreeSet::new() };
    let changes = changes(&context.index(), surplus);
    for (name, is_surplus) in changes {
        let change = |node: &mut Node| taint::set_surplus(node, is_surplus);
        match context.update::<Node>(&name, change).await {
            Ok(()) => tracing::debug!(node = name, is_surplus, "changed surplus taint"),
            Err(error) => tracing::warn!(node = name, %error, "surplus taint not changed"),
        }
    }
}

/// Nodes whose taint is not as it should be, and whether they should have it.
fn changes(index: &Index, surplus: &BTreeSet<String>) -> Vec<(String, bool)> {
    let change = |view: &NodeView| {
        let node = view.node.as_ref().filter(|_| view.claim.is_some() && !view.is_leaving())?;
        let name = node.name_any();
        let wanted = surplus.contains(&name);
        (taint::is_surplus(node) != wanted).then_some((name, wanted))
    };
    index.views().filter_map(change).take(MAX_CHANGES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, cluster_of, set_condition};

    fn names(list: &[&str]) -> BTreeSet<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn only_nodes_that_differ_are_changed() {
        let mut index = cluster_of(3);
        let mut tainted = index.node("node-0").unwrap().as_ref().clone();
        assert!(taint::set_surplus(&mut tainted, true));
        index.apply(tainted, at(0));
        assert!(changes(&index, &names(&["node-0"])).is_empty());
        let expected = [("node-0".to_owned(), false), ("node-2".to_owned(), true)];
        assert_eq!(changes(&index, &names(&["node-2"])), expected);
    }

    #[test]
    fn a_leaving_node_is_left_alone() {
        let mut index = cluster_of(1);
        set_condition(&mut index, "claim-0", "DisruptionReason", "1970-01-01T00:00:00Z");
        assert!(changes(&index, &names(&["node-0"])).is_empty());
    }
}
