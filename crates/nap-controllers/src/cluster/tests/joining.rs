//! The join of NodeClaims and Nodes by provider id.

use super::*;

fn joined(index: &Index) -> Vec<(Option<String>, Option<String>)> {
    let names = |view: &NodeView| {
        (
            view.claim.as_ref().map(|claim| claim.name_any()),
            view.node.as_ref().map(|node| node.name_any()),
        )
    };
    index.views().map(names).collect()
}

fn pair(claim: &str, node: &str) -> (Option<String>, Option<String>) {
    let name = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    (name(claim), name(node))
}

#[test]
fn a_nodeclaim_and_its_node_are_joined_in_either_order() {
    for claim_first in [true, false] {
        let mut index = synced();
        if claim_first {
            index.apply(claim("c", with_id("azure:///1")), at(0));
            assert_eq!(joined(&index), [pair("c", "")]);
        }
        index.apply(node_with_id("n", "azure:///1"), at(0));
        if !claim_first {
            assert_eq!(joined(&index), [pair("", "n")]);
            index.apply(claim("c", with_id("azure:///1")), at(0));
        }
        assert_eq!(joined(&index), [pair("c", "n")]);
        assert_eq!(index.claim_of_node(index.node("n").unwrap()).unwrap().name_any(), "c");
        assert_eq!(index.key_of_view("n"), Some(NodeKey::NodeClaim("c".to_owned())));
    }
}

#[test]
fn a_nodeclaim_is_joined_when_it_gets_its_provider_id() {
    let mut index = synced();
    index.apply(node_with_id("n", "azure:///1"), at(0));
    index.apply(claim("c", json!({})), at(0));
    assert_eq!(joined(&index), [pair("c", ""), pair("", "n")]);
    assert_eq!(index.key_of_view("c"), Some(NodeKey::NodeClaim("c".to_owned())));
    index.apply(claim("c", with_id("azure:///1")), at(1));
    assert_eq!(joined(&index), [pair("c", "n")]);
}

#[test]
fn the_join_ends_with_either_side() {
    let mut index = synced();
    index.apply(claim("c", with_id("azure:///1")), at(0));
    index.apply(node_with_id("n", "azure:///1"), at(0));
    index.take_dirty();
    let dirty = deleted::<Node>(&mut index, "n");
    assert_eq!(dirty, (vec![dirty_claim("c")], true));
    assert_eq!(joined(&index), [pair("c", "")]);
    index.apply(node_with_id("n", "azure:///1"), at(1));
    index.delete::<NodeClaim>("c");
    assert_eq!(joined(&index), [pair("", "n")]);
    assert!(index.claim_of_node(index.node("n").unwrap()).is_none());
}

#[test]
fn a_view_holds_the_latest_version_of_both_sides() {
    let mut index = synced();
    index.apply(claim("c", with_id("azure:///1")), at(0));
    index.apply(node_with_id("n", "azure:///1"), at(0));
    let mut changed = claim("c", with_id("azure:///1"));
    changed.labels_mut().insert("team".to_owned(), "a".to_owned());
    index.apply(changed, at(1));
    let mut changed = node_with_id("n", "azure:///1");
    changed.labels_mut().insert("team".to_owned(), "b".to_owned());
    index.apply(changed, at(1));
    let view = index.views().next().unwrap();
    assert_eq!(view.claim.as_ref().unwrap().labels()["team"], "a");
    assert_eq!(view.node.as_ref().unwrap().labels()["team"], "b");
}

#[test]
fn a_provider_id_that_changes_moves_the_join() {
    let mut index = synced();
    index.apply(claim("c", with_id("azure:///1")), at(0));
    index.apply(node_with_id("a", "azure:///1"), at(0));
    index.apply(node_with_id("b", "azure:///2"), at(0));
    index.apply(claim("c", with_id("azure:///2")), at(1));
    assert_eq!(joined(&index), [pair("c", "b"), pair("", "a")]);
    index.apply(node_with_id("b", "azure:///3"), at(2));
    assert_eq!(joined(&index), [pair("c", ""), pair("", "a"), pair("", "b")]);
}

#[test]
fn of_two_nodes_with_one_id_the_last_is_joined_and_both_are_found() {
    let mut index = synced();
    index.apply(claim("c", with_id("azure:///1")), at(0));
    index.apply(node_with_id("a", "azure:///1"), at(0));
    index.apply(node_with_id("b", "azure:///1"), at(0));
    assert_eq!(joined(&index), [pair("c", "b"), pair("", "a")]);
    assert_eq!(index.nodes_with_provider_id("azure:///1").len(), 2);
    index.delete::<Node>("b");
    assert_eq!(joined(&index), [pair("c", "a")]);
}

#[test]
fn provider_ids_are_compared_without_regard_to_case() {
    let mut index = Index::default();
    let (one, other) = ("azure:///resourceGroups/MC_x/1", "azure:///resourcegroups/mc_x/1");
    index.apply(claim("c", json!({ "status": { "providerID": one } })), at(0));
    index.apply(node("n", json!({ "spec": { "providerID": other } })), at(0));
    let found = index.node("n").and_then(|node| index.claim_of_node(node));
    assert_eq!(found.map(|claim| claim.name_any()).as_deref(), Some("c"));
    assert_eq!((index.views().count(), index.nodes_with_provider_id(one).len()), (1, 1));
    index.delete::<Node>("n");
    assert!(index.nodes_with_provider_id(one).is_empty());
}
