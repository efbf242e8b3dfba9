//! Tests of snapshots: which pods need capacity, what nodes have left, and limits.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::CSINode;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use nap_api::{NodeClaim, labels};
use nap_engine::{Catalogue, InstanceType, Plan, PodKey, Snapshot};
use nap_units::Resources;
use serde_json::{Value, json};

use super::*;
use crate::cluster::Dirty;
use crate::decision_memory::DecisionMemory;
use crate::testing::{
    at, budget, claim, cluster_of, condition, node, pending_pod, placement, plan_without_places,
    pod, pool, set_condition,
};

fn pending(name: &str, nominated: Option<&str>) -> Pod {
    let unschedulable =
        json!({ "type": "PodScheduled", "status": "False", "reason": "Unschedulable" });
    let container = json!({ "name": "c", "resources": { "requests": { "cpu": "3" } } });
    pod(
        "shop",
        name,
        json!({
            "spec": { "containers": [container] },
            "status": { "nominatedNodeName": nominated, "conditions": [unschedulable] },
        }),
    )
}

fn four_cores(name: &str, over: &Value) -> Node {
    let mut object = json!({ "status": { "allocatable": { "cpu": "4", "pods": "10" } } });
    object.as_object_mut().unwrap().extend(over.as_object().unwrap().clone());
    node(name, object)
}

fn taken(index: &Index, now: Timestamp) -> Snapshot {
    snapshot(index, &Catalogues::default(), &mut NodeCache::default(), now)
}

fn keys(snapshot: &Snapshot) -> Vec<&str> {
    snapshot.pods.iter().map(|pod| pod.key.as_str()).collect()
}

/// A NodeClaim of node `node` that is initialized at 0 s, with a plan for `shop/web`.
fn planned(over: &Value) -> NodeClaim {
    let mut object = json!({
        "metadata": { "annotations": { labels::PLAN: r#"{"version":1,"pods":["shop/web"]}"# } },
        "status": {
            "nodeName": "node", "providerID": "azure:///1",
            "conditions": [condition("Registered", "True"), condition("Initialized", "True")],
        },
    });
    object.as_object_mut().unwrap().extend(over.as_object().unwrap().clone());
    claim("claim", object)
}

#[test]
fn a_nominated_pod_takes_its_room_and_needs_none_elsewhere() {
    let mut index = Index::default();
    index.apply(four_cores("node", &json!({})), at(0));
    index.apply(pending("nominated", Some("node")), at(0));
    index.apply(pending("waiting", None), at(0));
    let snapshot = taken(&index, at(0));
    assert_eq!(snapshot.nodes[0].free.get("cpu"), 1000);
    assert_eq!(keys(&snapshot), ["shop/waiting"]);
}

#[test]
fn a_nomination_to_a_node_that_is_gone_does_not_count() {
    let mut index = Index::default();
    index.apply(pending("web", Some("gone")), at(0));
    assert_eq!(keys(&taken(&index, at(0))), ["shop/web"]);
}

#[test]
fn a_nomination_of_ours_does_not_outlive_the_plan() {
    let mut index = Index::default();
    index.apply(four_cores("node", &json!({ "spec": { "providerID": "azure:///1" } })), at(0));
    index.apply(planned(&json!({})), at(0));
    index.apply(pending("web", Some("node")), at(0));
    assert!(keys(&taken(&index, at(10))).is_empty());
    assert_eq!(keys(&taken(&index, at(60))), ["shop/web"]);
}

#[test]
fn a_planned_pod_is_not_planned_again_while_the_plan_holds() {
    let mut index = Index::default();
    index.apply(planned(&json!({ "status": { "conditions": [] } })), at(0));
    index.apply(pending("web", None), at(0));
    index.apply(pending("other", None), at(0));
    let snapshot = taken(&index, at(900));
    assert_eq!(keys(&snapshot), ["shop/other"]);
    assert_eq!(planned_pods(&index, at(900)).len(), 1);
    assert_eq!(pending_pods(&index, at(900)).count(), 2, "planned pods are pending too");
}

#[test]
fn a_pod_whose_room_was_taken_is_planned_again() {
    let mut index = Index::default();
    index.apply(four_cores("node", &json!({ "spec": { "providerID": "azure:///1" } })), at(0));
    index.apply(planned(&json!({})), at(0));
    index.apply(pending("web", Some("node")), at(0));
    let thief = |cpu: &str| {
        let container = json!({ "name": "c", "resources": { "requests": { "cpu": cpu } } });
        pod("shop", "thief", json!({ "spec": { "nodeName": "node", "containers": [container] } }))
    };
    index.apply(thief("1"), at(1));
    assert!(keys(&taken(&index, at(1))).is_empty(), "there is room for both");
    index.take_dirty();
    index.apply(thief("2"), at(2));
    assert_eq!(keys(&taken(&index, at(2))), ["shop/web"]);
}

#[test]
fn a_pod_that_is_bound_to_a_node_planned_for_others_begins_a_batch() {
    let mut index = Index::default();
    index.apply(four_cores("node", &json!({ "spec": { "providerID": "azure:///1" } })), at(0));
    index.apply(planned(&json!({})), at(0));
    index.apply(pending("web", None), at(0));
    index.take_dirty();
    index.apply(pod("shop", "thief", json!({ "spec": { "nodeName": "node" } })), at(1));
    assert!(index.take_dirty().contains(&Dirty::PendingPod));
}

#[test]
fn the_plan_of_a_deleting_nodeclaim_does_not_count() {
    let mut index = Index::default();
    let mut leaving = planned(&json!({ "status": { "conditions": [] } }));
    leaving.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(0)));
    index.apply(leaving, at(0));
    index.apply(pending("web", None), at(0));
    assert_eq!(keys(&taken(&index, at(0))), ["shop/web"]);
}

fn deleting_node() -> Index {
    let mut index = Index::default();
    let leaving = json!({ "metadata": {
        "name": "node", "deletionTimestamp": "1970-01-01T00:00:00Z",
    } });
    index.apply(four_cores("node", &leaving), at(0));
    let bound = json!({
        "metadata": { "labels": { "app": "web" } }, "spec": { "nodeName": "node" },
    });
    index.apply(pod("shop", "web", bound), at(0));
    index
}

#[test]
fn pods_of_a_deleting_node_need_capacity_and_the_node_offers_none() {
    let snapshot = taken(&deleting_node(), at(0));
    assert_eq!(keys(&snapshot), ["shop/web"]);
    assert!(snapshot.nodes.is_empty());
}

#[test]
fn a_pod_that_can_never_be_evicted_is_not_planned_for() {
    let mut index = deleting_node();
    let mut never = budget("shop", "pdb", "web", 0);
    never.spec.as_mut().unwrap().max_unavailable =
        Some(k8s_openapi::apimachinery::pkg::util::intstr::IntOrString::Int(0));
    index.apply(never, at(0));
    assert!(keys(&taken(&index, at(0))).is_empty());
}

#[test]
fn a_cordoned_node_has_no_room() {
    let mut index = Index::default();
    index.apply(four_cores("node", &json!({ "spec": { "unschedulable": true } })), at(0));
    assert_eq!(taken(&index, at(0)).nodes[0].free, Resources::new());
}

#[test]
fn a_nodeclaim_stands_in_for_its_node_until_it_registers() {
    let mut index = Index::default();
    let object = json!({
        "spec": {
            "taints": [{ "key": "dedicated", "effect": "NoSchedule" }],
            "requirements": [{ "key": "zone", "operator": "In", "values": ["z-1"] }],
            "resources": { "requests": { "cpu": "2" } },
        },
        "status": { "conditions": [] },
    });
    index.apply(claim("claim", object), at(0));
    let snapshot = taken(&index, at(0));
    let node = &snapshot.nodes[0];
    assert_eq!((node.name.as_str(), node.labels["zone"].as_str()), ("claim", "z-1"));
    assert_eq!(node.labels[labels::HOSTNAME], "claim");
    assert_eq!((node.taints.len(), node.free.get("cpu")), (1, 2000));
    assert!(!node.initialized);
}

#[test]
fn startup_taints_do_not_count_until_initialization() {
    let tainted = json!({ "spec": { "providerID": "azure:///1", "taints": [
        { "key": "starting", "effect": "NoSchedule" }, { "key": "lasting", "effect": "NoSchedule" },
    ] } });
    let taints = |conditions: Vec<Value>| {
        let mut index = Index::default();
        index.apply(four_cores("node", &tainted), at(0));
        let object = json!({
            "spec": { "startupTaints": [{ "key": "starting", "effect": "NoSchedule" }] },
            "status": { "providerID": "azure:///1", "conditions": conditions },
        });
        index.apply(claim("claim", object), at(0));
        taken(&index, at(0)).nodes[0].taints.len()
    };
    assert_eq!(taints(vec![condition("Registered", "True")]), 1);
    let both = vec![condition("Registered", "True"), condition("Initialized", "True")];
    assert_eq!(taints(both), 2);
}

#[test]
fn usage_counts_capacity_and_the_largest_type_that_an_unlaunched_nodeclaim_allows() {
    let mut index = Index::default();
    let launched = json!({
        "metadata": { "labels": { labels::NODEPOOL: "p" } },
        "status": { "capacity": { "cpu": "4" } },
    });
    index.apply(claim("a", launched), at(0));
    let types = json!([{
        "key": labels::INSTANCE_TYPE, "operator": "In", "values": ["small", "large"],
    }]);
    let asked = json!({
        "metadata": { "labels": { labels::NODEPOOL: "p" } }, "spec": { "requirements": types },
    });
    index.apply(claim("b", asked), at(0));
    index.apply(pool("p", json!({})), at(0));
    assert_eq!(pool_usage(&index, "p"), Resources::new().with("cpu", 4000).with("nodes", 2));
    let size = |name: &str, cpu| InstanceType {
        name: name.to_owned(),
        requirements: nap_api::Requirements::new(),
        capacity: Resources::new().with("cpu", cpu),
        allocatable: Resources::new(),
        offerings: Vec::new(),
        closed: false,
    };
    let catalogue: Catalogue =
        [size("small", 2000), size("large", 8000), size("other", 64_000)].into_iter().collect();
    let unlaunched = index.claim("b").unwrap();
    let capacity = pools::claim_capacity(unlaunched, Some(&catalogue));
    assert_eq!(capacity, Resources::new().with("cpu", 8000).with("nodes", 1));
}

#[test]
fn a_decided_nodeclaim_counts_until_its_creation_has_failed() {
    let mut index = Index::default();
    let limited = pool("p", json!({ "spec": { "limits": { "nodes": "1" } } }));
    index.apply(limited.clone(), at(0));
    index.apply(pending("db", None), at(0));
    index.apply(pending("web", None), at(0));
    let mut wanted = claim(
        "",
        json!({
            "metadata": { "labels": { labels::NODEPOOL: "p" }, "generateName": "p-" },
            "spec": { "resources": { "requests": { "cpu": "4" } } },
        }),
    );
    wanted.metadata.name = None;
    let headroom = |index: &Index| {
        pools::LimitUsage::of(index, &limited, &Catalogue::default()).headroom().get("nodes")
    };
    let before = (headroom(&index), taken(&index, at(0)).nodes.len());
    assert_eq!(before, (1, 0));
    index.take_dirty();
    let id = index.decide(&wanted, vec![PodKey::new("shop", "web")]);
    let during = taken(&index, at(0));
    assert_eq!((headroom(&index), keys(&during)), (0, vec!["shop/db"]));
    assert_eq!(during.nodes[0].free.get("cpu"), 1000, "its room is promised to its pods");
    index.decided_has_failed(id);
    let after = taken(&index, at(0));
    assert_eq!((headroom(&index), keys(&after)), (1, vec!["shop/db", "shop/web"]));
    assert!(after.nodes.is_empty() && index.take_dirty().contains(&Dirty::Provisioning));
}

/// Nodes `a` and `b` with four cores and a pod of their name of three each.
fn two_nodes() -> Index {
    let mut index = Index::default();
    for name in ["a", "b"] {
        index.apply(four_cores(name, &json!({})), at(0));
        let container = json!({ "name": "c", "resources": { "requests": { "cpu": "3" } } });
        let bound = json!({ "spec": { "nodeName": name, "containers": [container] } });
        index.apply(pod("shop", name, bound), at(0));
    }
    index
}

fn removals(index: &Index) -> Removals {
    let (memory, catalogues) = (DecisionMemory::default(), Catalogues::default());
    let cache = &mut NodeCache::default();
    Removals::new(index, &memory, ["a", "b"].into_iter(), &catalogues, cache, at(0))
}

/// Pods, and free milli-cores by node, of the snapshot without a node.
fn seen_without(removals: &mut Removals, node: &str) -> (String, Vec<(String, i64)>) {
    let mut seen = Default::default();
    removals.without(node, |snapshot| {
        let free = |node: &Arc<nap_engine::Node>| (node.name.clone(), node.free.get("cpu"));
        seen = (keys(snapshot).join(","), snapshot.nodes.iter().map(free).collect());
        Plan::default()
    });
    seen
}

#[test]
fn a_removed_node_is_out_of_the_snapshot_and_back_afterwards() {
    let mut removals = removals(&two_nodes());
    for (removed, other) in [("a", "b"), ("b", "a")] {
        let expected = (format!("shop/{removed}"), vec![(other.to_owned(), 1000)]);
        assert_eq!(seen_without(&mut removals, removed), expected);
    }
}

fn plan_onto(pod: &str, node: &str) -> Plan {
    let placements = vec![placement(&PodKey::new("shop", pod), node)];
    Plan { placements, ..Plan::default() }
}

#[test]
fn a_removal_that_was_decided_upon_takes_its_room() {
    let mut index = two_nodes();
    index.apply(four_cores("c", &json!({})), at(0));
    let mut removals = removals(&index);
    removals.remove("a", &plan_onto("a", "c"));
    let left = vec![("c".to_owned(), 1000)];
    assert_eq!(seen_without(&mut removals, "b"), ("shop/b".to_owned(), left));
    assert!(removals.is_needed("c") && !removals.is_needed("b"));
}

#[test]
fn pods_that_wait_take_their_room_before_any_removal() {
    let mut index = two_nodes();
    index.apply(four_cores("c", &json!({})), at(0));
    index.apply(pending("waiting", None), at(0));
    let mut removals = removals(&index);
    removals.place_waiting(|snapshot| {
        assert_eq!(keys(snapshot), ["shop/waiting"]);
        plan_onto("waiting", "c")
    });
    assert!(removals.is_needed("c"));
    let (_, free) = seen_without(&mut removals, "a");
    assert!(free.contains(&("c".to_owned(), 1000)), "{free:?}");
}

#[test]
fn a_pod_that_the_last_plan_could_not_place_keeps_no_node_until_it_is_pending_anew() {
    let mut memory = DecisionMemory::default();
    let mut index = Index::default();
    index.apply(pending_pod("shop", "web"), at(0));
    let waiting = |index: &Index, memory: &DecisionMemory| {
        pods::waiting_or_leaving(index, memory, at(2)).len()
    };
    assert_eq!(waiting(&index, &memory), 1);
    memory.remember_unplaced(&index, &plan_without_places([PodKey::new("shop", "web")]));
    assert_eq!(waiting(&index, &memory), 0);
    index.apply(pod("shop", "web", json!({ "spec": { "nodeName": "n" } })), at(1));
    index.apply(pending_pod("shop", "web"), at(2));
    assert_eq!(waiting(&index, &memory), 1);
}

#[test]
fn pods_of_a_node_in_a_command_take_their_room_before_any_removal() {
    let mut index = crate::testing::cluster_of(1);
    index.apply(pod("shop", "web", json!({ "spec": { "nodeName": "node-0" } })), at(0));
    set_condition(&mut index, "claim-0", "DisruptionReason", "1970-01-01T00:00:00Z");
    assert!(keys(&taken(&index, at(0))).is_empty(), "provisioning waits for its deletion");
    let mut asked = Vec::new();
    removals(&index).place_waiting(|snapshot| {
        asked = keys(snapshot).iter().map(|key| (*key).to_owned()).collect();
        Plan::default()
    });
    assert_eq!(asked, ["shop/web"]);
}

#[test]
fn pods_are_not_moved_to_a_node_that_is_not_initialized() {
    let mut index = two_nodes();
    let requests = json!({ "resources": { "requests": { "cpu": "4" } } });
    index.apply(claim("starting", json!({ "spec": requests })), at(0));
    let removals = removals(&index);
    assert!(removals.is_on_starting_node(&plan_onto("a", "starting")));
    assert!(!removals.is_on_starting_node(&plan_onto("a", "b")));
}

/// A NodePool with a limit of eight cores and two NodeClaims of four.
fn at_its_limit() -> (Index, pools::LimitUsage) {
    let mut index = crate::testing::cluster_of(2);
    for name in ["claim-0", "claim-1"] {
        let mut claim = index.claim(name).unwrap().as_ref().clone();
        let capacity = &mut claim.status.get_or_insert_default().capacity;
        capacity.insert("cpu".to_owned(), "4".parse().unwrap());
        index.apply(claim, at(0));
    }
    index.apply(pool("p", json!({ "spec": { "limits": { "cpu": "8" } } })), at(0));
    let usage = usage(&index);
    (index, usage)
}

fn usage(index: &Index) -> pools::LimitUsage {
    pools::LimitUsage::of(index, index.pool("p").unwrap(), &Catalogue::default())
}

#[test]
fn a_leaving_node_makes_room_under_the_limit_for_its_replacement_and_no_more() {
    let (mut index, full) = at_its_limit();
    assert_eq!(full.headroom().get("cpu"), 0);
    set_condition(&mut index, "claim-0", "DisruptionReason", "1970-01-01T00:00:00Z");
    let mut usage = usage(&index);
    assert_eq!(usage.headroom().get("cpu"), 4000);
    usage.add(&Resources::new().with("cpu", 2000));
    assert_eq!(usage.headroom().get("cpu"), 0, "the limit is exceeded until the node is gone");
}

/// An index with nodes of NodeClaims, pods with rules and volumes, and daemons.
fn busy_cluster() -> Index {
    let mut index = cluster_of(3);
    for name in ["node-0", "node-1", "node-2"] {
        index.apply(four_cores(name, &json!({ "spec": { "providerID": provider(name) } })), at(0));
    }
    index.apply(on_node("web", "node-0", &json!({})), at(0));
    index
}

fn provider(node: &str) -> String {
    node.replace("node-", "azure:///")
}

fn on_node(name: &str, node: &str, spec: &Value) -> Pod {
    let container = json!({ "name": "c", "resources": { "requests": { "cpu": "1" } } });
    let mut object = json!({
        "metadata": { "labels": { "app": "web" } },
        "spec": { "nodeName": node, "containers": [container] },
    });
    object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    pod("shop", name, object)
}

fn kind<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

type Change = (&'static str, fn(&mut Index));

/// Changes of everything that a node of a snapshot depends on.
const CHANGES: [Change; 15] = [
    ("a pod is bound", |index| index.apply(on_node("db", "node-1", &json!({})), at(1))),
    ("a pod ends", |index| {
        let mut ended = on_node("web", "node-0", &json!({}));
        ended.status = kind(json!({ "phase": "Succeeded" }));
        index.apply(ended, at(1));
    }),
    ("a pod is gone", |index| index.delete::<Pod>("shop/db")),
    ("a pod with a host port", |index| {
        let ports = json!([{ "containerPort": 80, "hostPort": 80 }]);
        let container = json!([{ "name": "c", "ports": ports }]);
        index.apply(on_node("port", "node-2", &json!({ "containers": container })), at(1));
    }),
    ("a pod with anti-affinity to namespaces", |index| {
        let term = json!({
            "topologyKey": "zone", "labelSelector": {},
            "namespaceSelector": { "matchLabels": { "team": "red" } },
        });
        let affinity = json!({ "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [term],
        } });
        index.apply(on_node("apart", "node-2", &json!({ "affinity": affinity })), at(1));
    }),
    ("a namespace that it selects", |index| {
        let metadata = json!({ "name": "red", "labels": { "team": "red" } });
        index.apply(kind::<Namespace>(json!({ "metadata": metadata })), at(1));
    }),
    ("attach limits", |index| {
        let driver = json!({ "name": "disk", "nodeID": "n", "allocatable": { "count": 4 } });
        for name in ["node-0", "node-1"] {
            index.apply(
                kind::<CSINode>(json!({
                    "metadata": { "name": name }, "spec": { "drivers": [driver] },
                })),
                at(1),
            );
        }
    }),
    ("a pod with a volume", |index| {
        let volume = json!([{ "name": "d", "persistentVolumeClaim": { "claimName": "data" } }]);
        index.apply(on_node("disk", "node-1", &json!({ "volumes": volume })), at(1));
    }),
    ("its volume", |index| {
        index.apply(
            kind::<PersistentVolume>(json!({
                "metadata": { "name": "pv" },
                "spec": { "csi": { "driver": "disk", "volumeHandle": "1" } },
            })),
            at(1),
        );
    }),
    ("its claim", |index| {
        index.apply(
            kind::<PersistentVolumeClaim>(json!({
                "metadata": { "name": "data", "namespace": "shop" }, "spec": { "volumeName": "pv" },
            })),
            at(1),
        );
    }),
    ("a DaemonSet", |index| {
        let container = json!({ "name": "c", "resources": { "requests": { "cpu": "100m" } } });
        index.apply(
            kind::<DaemonSet>(json!({
                "metadata": { "name": "agent", "namespace": "shop" },
                "spec": { "selector": {}, "template": { "spec": { "containers": [container] } } },
            })),
            at(1),
        );
    }),
    ("a pod of the DaemonSet", |index| {
        let owner =
            json!([{ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "u" }]);
        let mut daemon = on_node("agent-1", "node-1", &json!({}));
        daemon.metadata.owner_references = kind(owner);
        index.apply(daemon, at(1));
    }),
    ("a node is cordoned", |index| {
        let spec = json!({ "spec": { "providerID": provider("node-0"), "unschedulable": true } });
        index.apply(four_cores("node-0", &spec), at(2));
    }),
    ("a NodeClaim is disrupted", |index| {
        set_condition(index, "claim-1", "DisruptionReason", "1970-01-01T00:00:00Z");
    }),
    ("a node is gone", |index| index.delete::<Node>("node-2")),
];

#[test]
fn nodes_that_are_kept_between_snapshots_are_those_of_a_new_one() {
    let mut interested = pending("spread", None);
    interested.spec.as_mut().unwrap().topology_spread_constraints = kind(json!([{
        "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": { "matchLabels": { "app": "web" } },
    }]));
    for with_interest in [false, true] {
        let (mut index, mut kept) = (busy_cluster(), NodeCache::default());
        if with_interest {
            index.apply(interested.clone(), at(0));
        }
        let mut last = snapshot(&index, &Catalogues::default(), &mut kept, at(0)).nodes;
        for (what, change) in CHANGES {
            change(&mut index);
            let nodes = snapshot(&index, &Catalogues::default(), &mut kept, at(0)).nodes;
            assert_eq!(nodes, taken(&index, at(0)).nodes, "{what}");
            if what == "a pod is bound" {
                assert!(!Arc::ptr_eq(&nodes[1], &last[1]), "it has another pod");
                assert!(Arc::ptr_eq(&nodes[2], &last[2]), "nothing of it has changed");
            }
            last = nodes;
        }
    }
}

#[test]
fn a_pod_that_will_block_disruption_is_known_when_it_waits() {
    let blocks = |index: &Index| taken(index, at(0)).pods[0].blocks_disruption;
    let owned_by = |kind: &str| json!([{ "apiVersion": "v1", "kind": kind, "name": "w", "uid": "u", "controller": true }]);
    let with_owners = |owners: serde_json::Value| {
        let mut index = Index::default();
        let mut waiting = pending("web", None);
        waiting.metadata.owner_references = serde_json::from_value(owners).unwrap();
        index.apply(waiting, at(0));
        index
    };
    let owners = [json!(null), owned_by("Job"), owned_by("ReplicaSet")];
    assert_eq!(owners.map(|one| blocks(&with_owners(one))), [true, true, false]);
    let with = |value: &str| {
        let mut index = Index::default();
        let mut waiting = pending("web", None);
        let annotation = (labels::DO_NOT_DISRUPT.to_owned(), value.to_owned());
        waiting.metadata.annotations = Some([annotation].into());
        waiting.metadata.labels = Some([("app".to_owned(), "web".to_owned())].into());
        waiting.metadata.owner_references = serde_json::from_value(owned_by("ReplicaSet")).unwrap();
        index.apply(waiting, at(0));
        index
    };
    assert!(blocks(&with("true")));
    assert!(blocks(&with("10m")));
    assert!(!blocks(&with("false")));
    // An allowance of 0 is usual while pods start; a budget that never allows anything is not.
    let mut index = with("false");
    let mut strict = budget("shop", "pdb", "web", 0);
    index.apply(strict.clone(), at(0));
    assert!(!blocks(&index));
    strict.spec.as_mut().unwrap().max_unavailable = Some(IntOrString::Int(0));
    index.apply(strict, at(0));
    assert!(blocks(&index));
}
