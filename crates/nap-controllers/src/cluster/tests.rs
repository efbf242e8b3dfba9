//! Tests of the index: what each kind changes, and what becomes dirty.

mod joining;

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{
    Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, Service,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::{CSINode, StorageClass};
use kube::ResourceExt;
use nap_api::{AKSNodeClass, NodeClaim, NodeOverlay, NodePool, labels};
use nap_engine::PodKey;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;
use crate::testing::{at, budget, claim, condition, node, node_class, pending_pod, pod, pool};

fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

/// An index that has been listed, with nothing dirty.
fn synced() -> Index {
    let mut index = Index::default();
    for kind in KINDS {
        index.mark_synced(kind);
    }
    index
}

/// Applies an object and returns what became dirty, and whether the generation changed.
fn applied<K: Indexed>(index: &mut Index, object: K) -> (Vec<Dirty>, bool) {
    let generation = index.generation();
    index.apply(object, at(0));
    (index.take_dirty().into_iter().collect(), index.generation() != generation)
}

fn deleted<K: Indexed>(index: &mut Index, key: &str) -> (Vec<Dirty>, bool) {
    let generation = index.generation();
    index.delete::<K>(key);
    (index.take_dirty().into_iter().collect(), index.generation() != generation)
}

fn with_id(id: &str) -> Value {
    json!({ "status": { "providerID": id } })
}

fn node_with_id(name: &str, id: &str) -> Node {
    node(name, json!({ "spec": { "providerID": id } }))
}

fn dirty_claim(name: &str) -> Dirty {
    Dirty::NodeClaim(name.to_owned())
}

fn dirty_pool(name: &str) -> Dirty {
    Dirty::NodePool(name.to_owned())
}

#[test]
fn an_index_is_synced_when_every_kind_was_listed() {
    let mut index = Index::default();
    for kind in &KINDS[1..] {
        index.mark_synced(*kind);
    }
    assert!(!index.is_synced());
    index.begin_list::<Pod>();
    assert!(!index.is_synced());
    index.end_list::<Pod>();
    assert!(index.is_synced());
}

#[test]
fn a_relist_drops_what_it_does_not_show() {
    let mut index = synced();
    for name in ["kept", "gone"] {
        index.apply(pool(name, json!({})), at(0));
    }
    index.begin_list::<NodePool>();
    index.apply(pool("kept", json!({})), at(1));
    index.apply(pool("new", json!({})), at(1));
    index.end_list::<NodePool>();
    let names: Vec<&String> = index.pools().map(|(name, _)| name).collect();
    assert_eq!(names, ["kept", "new"]);
}

#[test]
fn a_relist_of_one_kind_leaves_the_others_alone() {
    let mut index = synced();
    index.apply(pool("p", json!({})), at(0));
    index.begin_list::<Node>();
    index.end_list::<Node>();
    assert!(index.pool("p").is_some());
}

#[test]
fn a_relist_without_a_pod_unbinds_it_and_wakes_its_drain() {
    let mut index = synced();
    let leaving = json!({ "metadata": { "deletionTimestamp": "1970-01-01T00:00:00Z" } });
    index.apply(node("n", leaving), at(0));
    index.apply(pod("shop", "web", json!({ "spec": { "nodeName": "n" } })), at(0));
    index.take_dirty();
    index.begin_list::<Pod>();
    index.end_list::<Pod>();
    assert!(index.pods_on("n").next().is_none());
    assert_eq!(index.take_dirty(), BTreeSet::from([Dirty::Node("n".to_owned())]));
}

fn identified(uid: &str, version: &str) -> Value {
    json!({ "metadata": { "uid": uid, "resourceVersion": version } })
}

#[test]
fn the_answer_to_a_write_does_not_bring_a_deleted_object_back() {
    let mut index = synced();
    index.apply(node("n", identified("u", "1")), at(0));
    index.observe(node("n", identified("u", "2")), at(1));
    assert_eq!(index.node("n").unwrap().resource_version().as_deref(), Some("2"));
    index.delete::<Node>("n");
    index.observe(node("n", identified("u", "3")), at(2));
    assert!(index.node("n").is_none());
    index.apply(node("n", identified("another", "5")), at(3));
    index.observe(node("n", identified("u", "4")), at(4));
    assert_eq!(index.node("n").unwrap().uid().as_deref(), Some("another"));
}

#[test]
fn a_nodeclaim_created_during_a_list_is_kept_until_it_was_shown() {
    let mut index = synced();
    index.begin_list::<NodeClaim>();
    index.observe_created(claim("c", identified("u", "9")), at(1));
    index.end_list::<NodeClaim>();
    assert!(index.claim("c").is_some(), "the list may be older than the creation");
    assert!(index.unconfirmed_claims(at(1)).is_empty());
    assert_eq!(index.unconfirmed_claims(at(2)), ["c"]);
    index.apply(claim("c", identified("u", "9")), at(2));
    assert!(index.unconfirmed_claims(at(2)).is_empty());
    index.begin_list::<NodeClaim>();
    index.end_list::<NodeClaim>();
    assert!(index.claim("c").is_none());
}

#[test]
fn nodepools_and_nodeclaims_of_another_provider_are_not_stored() {
    let mut index = synced();
    let other = json!({ "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" });
    index.apply(claim("c", json!({ "spec": { "nodeClassRef": other } })), at(0));
    let template = json!({ "spec": { "nodeClassRef": other } });
    index.apply(pool("p", json!({ "spec": { "template": template } })), at(0));
    assert!(index.claim("c").is_none() && index.pool("p").is_none());
    assert!(index.take_dirty().is_empty());
}

#[test]
fn the_numbers_in_the_status_of_a_nodepool_wake_nobody_but_its_readiness_does() {
    let mut index = synced();
    let with = |nodes: i64, ready: &str| {
        pool(
            "p",
            json!({ "status": { "nodes": nodes, "conditions": [condition("Ready", ready)] } }),
        )
    };
    index.apply(with(1, "False"), at(0));
    index.take_dirty();
    assert_eq!(applied(&mut index, with(2, "False")), (vec![], false));
    assert_eq!(index.pool("p").unwrap().status.as_ref().unwrap().nodes, 2);
    let (dirty, changed) = applied(&mut index, with(2, "True"));
    assert!(changed && dirty.contains(&Dirty::Provisioning));
}

#[test]
fn an_older_or_equal_version_changes_nothing() {
    let mut index = synced();
    let version = |number: &str, label: &str| {
        pool(
            "p",
            json!({ "metadata": {
            "uid": "u", "resourceVersion": number, "labels": { "v": label },
        } }),
        )
    };
    assert!(applied(&mut index, version("10", "a")).1);
    assert_eq!(applied(&mut index, version("9", "b")), (vec![], false));
    assert_eq!(applied(&mut index, version("10", "c")), (vec![], false));
    assert_eq!(index.pool("p").unwrap().labels()["v"], "a");
    assert!(applied(&mut index, version("11", "d")).1);
}

#[test]
fn another_object_of_the_same_name_replaces_whatever_its_version() {
    let mut index = synced();
    let made = |uid: &str, version: &str| {
        pool("p", json!({ "metadata": { "uid": uid, "resourceVersion": version } }))
    };
    index.apply(made("old", "10"), at(0));
    index.apply(made("new", "9"), at(0));
    assert_eq!(index.pool("p").unwrap().uid().as_deref(), Some("new"));
}

#[test]
fn deleting_a_pod_disruption_budget_wakes_disruption() {
    let mut index = synced();
    assert_eq!(applied(&mut index, budget("shop", "pdb", "web", 0)), (vec![], true));
    assert_eq!(deleted::<PodDisruptionBudget>(&mut index, "shop/pdb"), (vec![], true));
    assert_eq!(deleted::<PodDisruptionBudget>(&mut index, "shop/pdb"), (vec![], false));
    let web = pod("shop", "web", json!({ "metadata": { "labels": { "app": "web" } } }));
    assert!(index.budgets_of(&web.into()).is_empty());
}

#[test]
fn a_pending_pod_extends_the_batch_once() {
    let mut index = synced();
    assert_eq!(applied(&mut index, pending_pod("shop", "web")), (vec![Dirty::PendingPod], true));
    assert_eq!(applied(&mut index, pending_pod("shop", "web")), (vec![], false));
    let key = PodKey::new("shop", "web");
    assert_eq!(index.unschedulable_since(&key), Some(at(0)));
    let bound = pod("shop", "web", json!({ "spec": { "nodeName": "n" } }));
    assert_eq!(applied(&mut index, bound), (vec![], true));
    assert_eq!(index.unschedulable_since(&key), None);
}

#[test]
fn a_deleted_pod_is_no_longer_pending() {
    let mut index = synced();
    index.apply(pending_pod("shop", "web"), at(0));
    assert_eq!(index.unschedulable_pods().count(), 1);
    index.delete::<Pod>("shop/web");
    assert_eq!(index.unschedulable_pods().count(), 0);
}

#[test]
fn pods_are_grouped_by_their_node() {
    let mut index = synced();
    let bound = |name: &str, node: &str| pod("shop", name, json!({ "spec": { "nodeName": node } }));
    index.apply(bound("b", "n"), at(0));
    index.apply(bound("a", "n"), at(0));
    index.apply(bound("c", "other"), at(0));
    let on = |index: &Index, node: &str| -> Vec<String> {
        index.pods_on(node).map(|pod| pod.name().to_owned()).collect()
    };
    assert_eq!(on(&index, "n"), ["a", "b"]);
    index.apply(bound("b", "other"), at(1));
    assert_eq!(
        (on(&index, "n"), on(&index, "other")),
        (vec!["a".into()], vec!["b".into(), "c".into()])
    );
    index.delete::<Pod>("shop/a");
    assert!(on(&index, "n").is_empty());
}

#[test]
fn a_pod_that_is_bound_wakes_the_nodeclaim_of_its_node() {
    let mut index = synced();
    index.apply(claim("c", with_id("azure:///1")), at(0));
    index.apply(node_with_id("n", "azure:///1"), at(0));
    index.take_dirty();
    let bound = pod("shop", "web", json!({ "spec": { "nodeName": "n" } }));
    assert_eq!(applied(&mut index, bound.clone()), (vec![dirty_claim("c")], true));
    assert_eq!(applied(&mut index, bound), (vec![], false), "nothing moved");
    assert_eq!(deleted::<Pod>(&mut index, "shop/web"), (vec![dirty_claim("c")], true));
}

#[test]
fn the_protection_of_a_pod_matters_to_disruption() {
    let mut index = synced();
    index.apply(pod("shop", "web", json!({ "spec": { "nodeName": "n" } })), at(0));
    let protected = pod(
        "shop",
        "web",
        json!({
            "metadata": { "annotations": { labels::DO_NOT_DISRUPT: "true" } },
            "spec": { "nodeName": "n" },
        }),
    );
    assert_eq!(applied(&mut index, protected), (vec![], true));
}

#[test]
fn pod_events_are_recorded_only_after_the_first_list_and_not_for_daemons() {
    let bound = |name: &str| pod("shop", name, json!({ "spec": { "nodeName": "n" } }));
    let mut index = Index::default();
    index.apply(bound("a"), at(1));
    assert_eq!(index.last_pod_event("n"), None, "the list shows pods that were there before");
    let mut index = synced();
    let mut daemon = bound("d");
    let owner = json!([{ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u" }]);
    daemon.metadata.owner_references = serde_json::from_value(owner).unwrap();
    index.apply(daemon, at(2));
    assert_eq!(index.last_pod_event("n"), None);
    index.apply(bound("a"), at(3));
    assert_eq!(index.last_pod_event("n"), Some(at(3)));
    index.delete::<Node>("n");
    index.apply(node("n", json!({})), at(4));
    index.delete::<Node>("n");
    assert_eq!(index.last_pod_event("n"), None, "the node is gone");
}

fn in_pool(name: &str, pool: &str) -> NodeClaim {
    claim(name, json!({ "metadata": { "labels": { labels::NODEPOOL: pool } } }))
}

#[test]
fn nodeclaims_are_grouped_by_their_pool() {
    let mut index = synced();
    for (name, pool) in [("a", "p"), ("b", "q"), ("c", "p")] {
        index.apply(in_pool(name, pool), at(0));
    }
    let names = |index: &Index, pool: &str| -> Vec<String> {
        index.claims_of_pool(pool).map(|claim| claim.name_any()).collect()
    };
    assert_eq!(names(&index, "p"), ["a", "c"]);
    assert_eq!(index.views_of_pool("p").count(), 2);
    index.delete::<NodeClaim>("a");
    assert_eq!(names(&index, "p"), ["c"]);
    assert!(names(&index, "absent").is_empty());
}

#[test]
fn a_nodeclaim_wakes_itself_and_its_pool() {
    let mut index = synced();
    let expected = vec![dirty_pool("p"), dirty_claim("c")];
    assert_eq!(applied(&mut index, in_pool("c", "p")), (expected, true));
}

#[test]
fn a_deleting_nodeclaim_wakes_provisioning() {
    let mut index = synced();
    let leaving = json!({ "metadata": { "deletionTimestamp": "1970-01-01T00:00:00Z" } });
    let expected = vec![dirty_claim("c"), Dirty::Provisioning];
    assert_eq!(applied(&mut index, claim("c", leaving)), (expected, true));
}

#[test]
fn a_deleted_nodeclaim_wakes_its_pool_a_leaving_class_and_provisioning() {
    for leaves in [false, true] {
        let mut index = synced();
        let metadata = json!({ "deletionTimestamp": leaves.then_some("1970-01-01T00:00:00Z") });
        index.apply(node_class("default", json!({ "metadata": metadata })), at(0));
        index.apply(in_pool("c", "p"), at(0));
        index.take_dirty();
        let mut all = vec![dirty_pool("p"), Dirty::Provisioning];
        all.splice(0..0, leaves.then(|| Dirty::NodeClass("default".to_owned())));
        assert_eq!(deleted::<NodeClaim>(&mut index, "c"), (all, true));
        assert_eq!(deleted::<NodeClaim>(&mut index, "c"), (vec![], false));
    }
}

#[test]
fn a_nodeclaim_in_a_command_wakes_disruption() {
    let mut index = synced();
    let marked = json!({ "status": { "conditions": [condition("DisruptionReason", "True")] } });
    assert!(applied(&mut index, claim("old", marked)).0.contains(&Dirty::Disruption));
    let plan = json!({ labels::PLAN: r#"{"version":1,"replaces":["old"]}"# });
    let replacement = claim("new", json!({ "metadata": { "annotations": plan } }));
    assert!(applied(&mut index, replacement).0.contains(&Dirty::Disruption));
    assert!(!applied(&mut index, claim("other", json!({}))).0.contains(&Dirty::Disruption));
}

fn with_plan(text: &str) -> NodeClaim {
    claim("c", json!({ "metadata": { "annotations": { labels::PLAN: text } } }))
}

#[test]
fn a_plan_record_is_kept_beside_its_nodeclaim() {
    let mut index = synced();
    index.apply(with_plan(r#"{"version":1,"pods":["shop/web"]}"#), at(0));
    assert!(index.plan("c").unwrap().pods.contains("shop/web"));
    index.apply(with_plan(r#"{"version":1,"pods":["shop/db"]}"#), at(1));
    assert!(index.plan("c").unwrap().pods.contains("shop/db"));
    index.apply(claim("c", json!({})), at(2));
    assert!(index.plan("c").is_none(), "the annotation was removed");
    index.apply(with_plan(r#"{"version":1}"#), at(3));
    index.delete::<NodeClaim>("c");
    assert!(index.plan("c").is_none());
}

#[test]
fn an_unusable_plan_record_counts_as_none() {
    for text in ["", "not json", r#"{"version":99}"#, r#"["shop/web"]"#] {
        let mut index = synced();
        index.apply(with_plan(text), at(0));
        assert!(index.plan("c").is_none(), "{text}");
        assert!(index.claim("c").is_some());
    }
}

#[test]
fn a_heartbeat_of_a_node_does_not_matter_to_disruption() {
    let mut index = synced();
    let beat = |time: &str, ready: &str| {
        let condition = json!({ "type": "Ready", "status": ready, "lastHeartbeatTime": time });
        node("n", json!({ "status": { "conditions": [condition] } }))
    };
    assert!(applied(&mut index, beat("1970-01-01T00:00:00Z", "True")).1);
    assert!(!applied(&mut index, beat("1970-01-01T00:00:10Z", "True")).1);
    assert!(applied(&mut index, beat("1970-01-01T00:00:20Z", "False")).1);
}

#[test]
fn a_condition_of_a_node_matters_to_disruption() {
    let mut index = synced();
    let with = |status: &str, beat: &str, since: &str| {
        let condition = json!({
            "type": "Broken", "status": status, "lastHeartbeatTime": beat,
            "lastTransitionTime": since,
        });
        node("n", json!({ "status": { "conditions": [condition] } }))
    };
    let (early, late) = ("1970-01-01T00:00:00Z", "1970-01-01T00:01:00Z");
    index.apply(with("False", early, early), at(0));
    assert!(!applied(&mut index, with("False", late, early)).1, "a heartbeat");
    assert!(applied(&mut index, with("True", late, early)).1);
    assert!(applied(&mut index, with("True", late, late)).1, "it went away in between");
}

#[test]
fn a_deleting_node_wakes_its_termination_and_provisioning() {
    let mut index = synced();
    let leaving = json!({ "metadata": { "deletionTimestamp": "1970-01-01T00:00:00Z" } });
    let expected = vec![Dirty::Node("n".to_owned()), Dirty::Provisioning];
    assert_eq!(applied(&mut index, node("n", leaving)), (expected, true));
}

#[test]
fn a_pool_wakes_its_nodeclaims_overlays_and_provisioning() {
    let mut index = synced();
    index.apply(in_pool("c", "p"), at(0));
    index.apply(in_pool("other", "q"), at(0));
    index.take_dirty();
    let expected = vec![dirty_pool("p"), dirty_claim("c"), Dirty::Overlays, Dirty::Provisioning];
    assert_eq!(applied(&mut index, pool("p", json!({}))), (expected, true));
    assert_eq!(deleted::<NodePool>(&mut index, "p"), (vec![], true));
}

#[test]
fn a_node_class_wakes_the_pools_that_use_it_and_their_nodeclaims() {
    let mut index = synced();
    index.apply(pool("p", json!({})), at(0));
    index.apply(in_pool("c", "p"), at(0));
    index.take_dirty();
    let class = Dirty::NodeClass("default".to_owned());
    let expected = vec![class, dirty_pool("p"), dirty_claim("c")];
    assert_eq!(applied(&mut index, node_class("default", json!({}))), (expected, false));
    assert_eq!(deleted::<AKSNodeClass>(&mut index, "default"), (vec![dirty_pool("p")], false));
    let other = vec![Dirty::NodeClass("other".to_owned())];
    assert_eq!(applied(&mut index, node_class("other", json!({}))), (other, false));
}

#[test]
fn an_overlay_wakes_overlays_and_provisioning_both_ways() {
    let mut index = synced();
    let overlay = json!({ "metadata": { "name": "o" }, "spec": { "requirements": [] } });
    let expected = || (vec![Dirty::Overlays, Dirty::Provisioning], true);
    assert_eq!(applied(&mut index, object::<NodeOverlay>(overlay)), expected());
    assert_eq!(deleted::<NodeOverlay>(&mut index, "o"), expected());
}

#[test]
fn a_daemon_set_matters_to_disruption_both_ways() {
    let mut index = synced();
    let set: DaemonSet = object(json!({ "metadata": { "name": "d", "namespace": "kube-system" } }));
    assert_eq!(applied(&mut index, set), (vec![], true));
    assert_eq!(deleted::<DaemonSet>(&mut index, "kube-system/d"), (vec![], true));
}

#[test]
fn volumes_and_storage_classes_wake_provisioning_when_they_appear() {
    let mut index = synced();
    let named = || json!({ "metadata": { "name": "x" } });
    let replan = || (vec![Dirty::Provisioning], false);
    assert_eq!(applied(&mut index, object::<PersistentVolume>(named())), replan());
    let class = json!({ "metadata": { "name": "x" }, "provisioner": "p" });
    assert_eq!(applied(&mut index, object::<StorageClass>(class)), replan());
    let claim = json!({ "metadata": { "name": "x", "namespace": "shop" } });
    assert_eq!(applied(&mut index, object::<PersistentVolumeClaim>(claim)), replan());
    assert_eq!(deleted::<PersistentVolume>(&mut index, "x"), (vec![], false));
    assert_eq!(deleted::<StorageClass>(&mut index, "x"), (vec![], false));
    assert_eq!(deleted::<PersistentVolumeClaim>(&mut index, "shop/x"), (vec![], false));
    assert_eq!(index.volume_claims().count() + index.storage_classes().count(), 0);
}

#[test]
fn namespaces_csi_nodes_and_services_wake_nothing() {
    let mut index = synced();
    let nothing = || (vec![], false);
    let named = json!({ "metadata": { "name": "x" } });
    assert_eq!(applied(&mut index, object::<Namespace>(named.clone())), nothing());
    let csi = json!({ "metadata": { "name": "x" }, "spec": { "drivers": [] } });
    assert_eq!(applied(&mut index, object::<CSINode>(csi)), nothing());
    let service = json!({ "metadata": { "name": "x", "namespace": "shop" } });
    assert_eq!(applied(&mut index, object::<Service>(service)), nothing());
    assert_eq!(deleted::<Namespace>(&mut index, "x"), nothing());
    assert_eq!(deleted::<CSINode>(&mut index, "x"), nothing());
    assert_eq!(deleted::<Service>(&mut index, "shop/x"), nothing());
}

#[test]
fn dirty_entries_are_taken_once() {
    let mut index = synced();
    index.apply(pool("p", json!({})), at(0));
    assert!(!index.take_dirty().is_empty());
    assert!(index.take_dirty().is_empty());
}
