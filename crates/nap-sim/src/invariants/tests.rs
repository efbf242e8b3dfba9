//! Each invariant finds a violation.

use serde_json::json;

use super::*;
use crate::azure::EmulatorConfig;

/// Two initialized nodes of a NodePool that may lose one at a time.
fn cluster() -> Invariants {
    let clock = Clock::starting_at("2026-01-01T00:00:00Z".parse().unwrap(), 1);
    let config = EmulatorConfig::new("eastus", 1, clock.clone());
    let invariants = Invariants::new(clock, Emulator::new(config).unwrap().0);
    let budgets = json!({ "budgets": [{ "nodes": "1" }] });
    let pool = json!({ "metadata": { "name": "p" }, "spec": { "disruption": budgets } });
    apply(&invariants, labels::GROUP, "nodepools", &pool);
    invariants
}

fn apply(invariants: &Invariants, group: &str, plural: &str, new: &Value) {
    invariants.observe(Observed { group, plural, old: None, new: Some(new) });
}

fn claim(invariants: &Invariants, name: &str, conditions: &[(&str, &str)], more: &Value) {
    let condition =
        |(kind, reason): &(&str, &str)| json!({ "type": kind, "status": "True", "reason": reason });
    let conditions: Vec<Value> = conditions.iter().map(condition).collect();
    let mut object = json!({
        "metadata": { "name": name, "labels": { labels::NODEPOOL: "p" } },
        "status": { "nodeName": format!("node-{name}"), "conditions": conditions },
    });
    json_patch::merge(&mut object, more);
    apply(invariants, labels::GROUP, "nodeclaims", &object);
}

const INITIALIZED: (&str, &str) = ("Initialized", "Initialized");
const EMPTY: (&str, &str) = ("DisruptionReason", "Empty");

#[tokio::test(start_paused = true)]
async fn a_node_more_than_the_budget_is_a_violation() {
    let cluster = cluster();
    for name in ["a", "b", "c"] {
        claim(&cluster, name, &[INITIALIZED], &json!({}));
    }
    claim(&cluster, "a", &[INITIALIZED, EMPTY], &json!({}));
    assert_eq!(cluster.violations(), [""; 0]);
    claim(&cluster, "b", &[INITIALIZED, EMPTY], &json!({}));
    let found = cluster.violations();
    assert!(found[0].ends_with("2 of 3 nodes leave with b, 1 may for Empty"), "{found:?}");
    // A node whose instance terminates has left.
    let gone = [INITIALIZED, EMPTY, ("InstanceTerminating", "x")];
    claim(&cluster, "a", &gone, &json!({}));
    claim(&cluster, "b", &gone, &json!({}));
    claim(&cluster, "c", &[INITIALIZED, EMPTY], &json!({}));
    assert_eq!(cluster.violations().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn consolidation_long_after_the_last_change_is_a_violation() {
    let cluster = cluster();
    claim(&cluster, "a", &[INITIALIZED], &json!({}));
    tokio::time::advance(std::time::Duration::from_hours(6)).await;
    claim(&cluster, "a", &[INITIALIZED, EMPTY], &json!({}));
    assert_eq!(cluster.violations(), [""; 0], "an empty node is no move");
    claim(&cluster, "a", &[INITIALIZED], &json!({}));
    let moved = ("DisruptionReason", "Underutilized");
    claim(&cluster, "a", &[INITIALIZED, moved], &json!({}));
    assert!(cluster.violations()[0].contains("360 min after the last change"));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_nap_deletes_before_the_time_of_its_node_is_a_violation() {
    let cluster = cluster();
    claim(&cluster, "a", &[INITIALIZED], &json!({}));
    let pod = json!({
        "metadata": { "namespace": "shop", "name": "web" },
        "spec": { "nodeName": "node-a", "terminationGracePeriodSeconds": 60 },
    });
    apply(&cluster, "", "pods", &pod);
    let server = tower::service_fn(async |_: http::Request<()>| Ok::<_, ()>(()));
    let mut nap = Guarded::new(server, cluster.clone());
    let mut delete = async || {
        let request = http::Request::delete("/api/v1/namespaces/shop/pods/web").body(());
        tower::Service::call(&mut nap, request.unwrap()).await.unwrap();
        cluster.violations().len()
    };
    assert_eq!(delete().await, 1, "its node has no end");
    let ends = |time: &str| {
        let annotations = json!({ labels::TERMINATION_TIMESTAMP: time });
        json!({ "metadata": { "annotations": annotations } })
    };
    claim(&cluster, "a", &[INITIALIZED], &ends("2026-01-01T00:01:01Z"));
    assert_eq!(delete().await, 2, "it would end a second before its node");
    claim(&cluster, "a", &[INITIALIZED], &ends("2026-01-01T00:01:00Z"));
    assert_eq!(delete().await, 2);
}

/// A NodePool with these budgets and windows.
fn configure(invariants: &Invariants, budgets: &Value, windows: &str) {
    let annotations = json!({ labels::DISRUPTION_WINDOWS: windows });
    let pool = json!({
        "metadata": { "name": "p", "annotations": annotations },
        "spec": { "disruption": { "budgets": budgets } },
    });
    apply(invariants, labels::GROUP, "nodepools", &pool);
}

const MOVED: (&str, &str) = ("DisruptionReason", "Underutilized");

async fn pass(minutes: u64) {
    tokio::time::advance(std::time::Duration::from_mins(minutes)).await;
}

/// Lets a node be chosen, and let go. Returns the number of violations until now.
fn choose(invariants: &Invariants, name: &str, reason: (&str, &str)) -> usize {
    claim(invariants, name, &[INITIALIZED, reason], &json!({}));
    claim(invariants, name, &[INITIALIZED], &json!({}));
    invariants.violations().len()
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_chosen_outside_of_its_windows_is_a_violation() {
    let cluster = cluster();
    let window = "[{action: allow, schedule: '0 1 * * *', duration: 1h}]";
    configure(&cluster, &json!([{ "nodes": "100%" }]), window);
    pass(50).await;
    assert_eq!(choose(&cluster, "a", EMPTY), 1, "an hour too early");
    assert!(cluster.violations()[0].contains("node-a is chosen for Empty outside of windows"));
    assert_eq!(choose(&cluster, "a", ("DisruptionReason", "Unhealthy")), 1);
    pass(64).await;
    assert_eq!(choose(&cluster, "a", MOVED), 1, "six minutes before it closes");
    pass(3).await;
    assert_eq!(choose(&cluster, "a", EMPTY), 1, "three minutes before, nothing moves");
    assert_eq!(choose(&cluster, "a", MOVED), 2, "three minutes before, pods would move");
    configure(&cluster, &json!([{ "nodes": "100%" }]), "[{action: perhaps}]");
    assert_eq!(choose(&cluster, "a", EMPTY), 3, "what cannot be read is closed");
}

#[tokio::test(start_paused = true)]
async fn a_budget_with_a_schedule_binds_while_it_is_active() {
    let cluster = cluster();
    let nightly = json!([{ "nodes": "0", "schedule": "0 1 * * *", "duration": "1h" }]);
    configure(&cluster, &nightly, "[]");
    assert_eq!(choose(&cluster, "a", EMPTY), 0);
    pass(61).await;
    assert_eq!(choose(&cluster, "a", EMPTY), 1);
    pass(60).await;
    assert_eq!(choose(&cluster, "a", EMPTY), 1);
}

fn pod_of_web(invariants: &Invariants, name: &str, node: Option<&str>, nominated: Option<&str>) {
    let owner = json!({ "kind": "ReplicaSet", "name": "web-5d9", "controller": true });
    let pod = json!({
        "metadata": {
            "namespace": "shop", "name": name, "ownerReferences": [owner],
            "labels": { "pod-template-hash": "5d9" },
        },
        "spec": { "nodeName": node },
        "status": { "nominatedNodeName": nominated },
    });
    apply(invariants, "", "pods", &pod);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_removed_as_empty_although_pods_are_for_it_is_a_violation() {
    let cluster = cluster();
    pod_of_web(&cluster, "bound", Some("node-a"), None);
    pod_of_web(&cluster, "pending", None, Some("node-b"));
    assert_eq!(choose(&cluster, "a", EMPTY), 0, "it came while nap was deciding");
    pass(1).await;
    assert_eq!(choose(&cluster, "a", EMPTY), 1);
    assert_eq!(choose(&cluster, "b", EMPTY), 2);
    assert!(cluster.violations()[1].contains("node-b is removed as empty, and pod shop/pending"));
    assert_eq!(choose(&cluster, "c", EMPTY), 2);
    // Once the pod is bound elsewhere it does not wait for the node.
    pod_of_web(&cluster, "pending", Some("node-a"), Some("node-b"));
    pass(1).await;
    assert_eq!(choose(&cluster, "b", EMPTY), 2);
}

/// A NodeClaim that is created for a pod.
fn launch(invariants: &Invariants, name: &str, pod: &str) {
    let plan = PlanRecord { pods: [format!("shop/{pod}")].into(), ..PlanRecord::default() };
    let annotations = json!({ labels::PLAN: plan.to_annotation() });
    claim(invariants, name, &[], &json!({ "metadata": { "annotations": annotations } }));
}

#[tokio::test(start_paused = true)]
async fn consolidation_right_after_an_undone_move_is_a_violation() {
    let cluster = cluster();
    configure(&cluster, &json!([{ "nodes": "100%" }]), "[]");
    pod_of_web(&cluster, "one", Some("node-a"), None);
    pod_of_web(&cluster, "two", Some("node-b"), None);
    pass(5).await;
    let consolidate = |name: &str| choose(&cluster, name, MOVED);
    assert_eq!(consolidate("a"), 0);
    pass(5).await;
    launch(&cluster, "new", "one");
    let seconds = |number| tokio::time::advance(std::time::Duration::from_secs(number));
    seconds(30).await;
    assert_eq!(consolidate("b"), 1, "it rests for a minute");
    assert!(cluster.violations()[0].ends_with("node-b is consolidated 30 s after an undone move"));
    seconds(30).await;
    assert_eq!(consolidate("b"), 1);
    // The second time it rests for two minutes, and the replicas have not changed.
    launch(&cluster, "newer", "two");
    seconds(90).await;
    assert_eq!(consolidate("b"), 2);
    // A restart forgets moves, not rests.
    launch(&cluster, "newest", "two");
    cluster.restarted();
    seconds(100).await;
    launch(&cluster, "last", "two");
    seconds(30).await;
    assert_eq!(consolidate("b"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_node_for_more_pods_than_before_undoes_nothing() {
    let cluster = cluster();
    configure(&cluster, &json!([{ "nodes": "100%" }]), "[]");
    pod_of_web(&cluster, "one", Some("node-a"), None);
    pass(5).await;
    assert_eq!(choose(&cluster, "a", MOVED), 0);
    pod_of_web(&cluster, "two", None, None);
    launch(&cluster, "new", "two");
    tokio::time::advance(std::time::Duration::from_secs(30)).await;
    assert_eq!(choose(&cluster, "b", MOVED), 0);
}
