//! Safety after any restart: lists in any order, a crash at every write, and several replicas.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use nap_api::{NodeClaim, NodePool};
use nap_controllers::{LeaderElection, Settings};
use nap_sim::faults::{Crash, Faults};
use serde_json::json;

use crate::harness::User;

const RESOURCES: [&str; 9] = [
    "nodes",
    "pods",
    "nodeclaims",
    "nodepools",
    "aksnodeclasses",
    "poddisruptionbudgets",
    "daemonsets",
    "persistentvolumeclaims",
    "namespaces",
];

/// A world with few sizes, because each restart reads all of them.
async fn small_world() -> User {
    let sizes = ["Standard_D2s_v5", "Standard_D4s_v5", "Standard_D8s_v5"];
    User::in_region_with(Settings::default(), &sizes).await
}

async fn protect(user: &User, app: &str, min_available: usize) {
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(user.client.clone(), "default");
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": app },
        "spec": { "minAvailable": min_available, "selector": { "matchLabels": { "app": app } } },
    });
    let budget = serde_json::from_value(budget).unwrap();
    budgets.create(&PostParams::default(), &budget).await.unwrap();
}

async fn pod_names(user: &User) -> Vec<String> {
    user.list::<Pod>().await.iter().map(ResourceExt::name_any).collect()
}

#[tokio::test(start_paused = true)]
async fn a_restart_during_a_blocked_drain_keeps_the_pods_whatever_list_comes_last() {
    for last in RESOURCES {
        let user = small_world().await;
        let script = async {
            user.default_pool(json!({})).await;
            user.deploy("guarded", 3, json!({})).await;
            let blocked = async {
                user.until_running(3).await;
                protect(&user, "guarded", 3).await;
                user.pass(5).await;
                let claim = user.claims().await[0].name_any();
                user.delete::<NodeClaim>(&claim).await;
                user.pass(60).await;
            };
            user.world.run_nap(blocked).await;
            let before = pod_names(&user).await;
            let claims = user.claims().await;
            let leaving = |claim: &&NodeClaim| claim.metadata.deletion_timestamp.is_some();
            let draining = claims.iter().find(leaving).unwrap().name_any();
            let faults = Faults::new(user.world.clock().clone());
            faults.delay_list(last, Duration::from_secs(20));
            user.world.run_replica(&faults, Settings::default(), user.pass(120)).await;
            assert_eq!(pod_names(&user).await, before, "with the list of {last} last");
            let claims = user.claims().await;
            assert!(claims.iter().any(|claim| claim.name_any() == draining), "{last}");
            assert_eq!(user.machines(), claims.len(), "{last}");
        };
        user.run_without_nap(script).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_restart_during_a_launch_launches_once_whatever_list_comes_last() {
    for last in RESOURCES {
        let user = small_world().await;
        let script = async {
            user.default_pool(json!({})).await;
            user.deploy("web", 3, json!({})).await;
            user.world.run_nap(user.pass(3)).await;
            let before: Vec<String> =
                user.claims().await.iter().map(ResourceExt::name_any).collect();
            let faults = Faults::new(user.world.clock().clone());
            faults.delay_list(last, Duration::from_secs(20));
            let rest = async {
                user.until_running(3).await;
                user.pass(60).await;
            };
            user.world.run_replica(&faults, Settings::default(), rest).await;
            let after: Vec<String> =
                user.claims().await.iter().map(ResourceExt::name_any).collect();
            assert_eq!((before, user.machines_ever()), (after, 1), "with the list of {last} last");
        };
        user.run_without_nap(script).await;
    }
}

/// Provider ids of the VMs that Azure has.
fn vms(user: &User) -> BTreeSet<String> {
    user.world.azure().machines().into_iter().map(|vm| vm.provider_id).collect()
}

/// Provider ids that NodeClaims name.
fn named(claims: &[NodeClaim]) -> BTreeSet<String> {
    claims.iter().filter_map(|claim| claim.status.as_ref()?.provider_id.clone()).collect()
}

/// Scale up, drift with replacement, scale down: every loop writes. Returns what is left.
async fn story(crash: Option<Crash>) -> (usize, String) {
    let user = small_world().await;
    let faults = Faults::new(user.world.clock().clone());
    if let Some(crash) = crash {
        faults.crash_at(crash);
    }
    let lowest = std::cell::Cell::new(usize::MAX);
    let script = async {
        user.default_pool(json!({})).await;
        user.deploy("web", 4, json!({})).await;
        user.until_running(4).await;
        protect(&user, "web", 3).await;
        let template = json!({ "metadata": { "labels": { "release": "2" } } });
        user.patch::<NodePool>("default", json!({ "spec": { "template": template } })).await;
        user.until("every node is of the second release", async || {
            lowest.set(lowest.get().min(user.running().await));
            let nodes = user.nodes().await;
            let new = |node: &Node| node.labels().get("release").is_some_and(|value| value == "2");
            !nodes.is_empty() && nodes.iter().all(new)
        })
        .await;
        user.until_running(4).await;
        user.scale("web", 1).await;
        user.pass(900).await;
    };
    let nap = async {
        user.world.run_replica(&faults, Settings::default(), std::future::pending()).await;
        user.world.run_nap(std::future::pending()).await;
    };
    user.run_without_nap(async {
        tokio::select! {
            biased;
            () = script => {}
            () = nap => {}
        }
    })
    .await;
    assert!(lowest.get() >= 3, "{crash:?}: the budget of 3 pods was broken: {}", lowest.get());
    let (claims, nodes) = (user.claims().await, user.nodes().await);
    assert_eq!(vms(&user), named(&claims), "{crash:?}: VMs and NodeClaims differ");
    let pods = user.running().await;
    let end = format!("{pods} pods, {} nodeclaims, {} nodes", claims.len(), nodes.len());
    (faults.writes(), end)
}

/// Crashes at every other write of the story. `NAP_EVERY_CRASH=1` takes all of them.
async fn crash_at_writes(odd: bool, delivered: bool) {
    let (writes, undisturbed) = story(None).await;
    assert!(writes > 100, "{writes} writes are no story");
    let every = std::env::var_os("NAP_EVERY_CRASH").is_some();
    for write in (1..=writes).filter(|write| every || (write % 2 == 1) == odd) {
        let crash = Crash::Write { number: write, delivered };
        assert_eq!(story(Some(crash)).await.1, undisturbed, "{crash:?} of {writes}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_before_a_write_changes_nothing() {
    crash_at_writes(true, false).await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_after_a_write_changes_nothing() {
    crash_at_writes(false, true).await;
}

/// A launch, the deletion of its NodeClaim, a second launch and its end. Returns the faults that
/// have counted its requests, and what is left.
async fn launch_and_delete(crash: Option<Crash>) -> (Faults, String) {
    let user = small_world().await;
    let faults = Faults::new(user.world.clock().clone());
    if let Some(crash) = crash {
        faults.crash_at(crash);
    }
    let bought = std::cell::Cell::new(0);
    let script = async {
        user.default_pool(json!({})).await;
        user.deploy("web", 1, json!({})).await;
        user.until_running(1).await;
        let claim = user.claims().await[0].name_any();
        user.delete::<NodeClaim>(&claim).await;
        user.until("the NodeClaim is gone", async || {
            user.claims().await.iter().all(|one| one.name_any() != claim)
        })
        .await;
        user.until_running(1).await;
        let claims = user.claims().await;
        assert_eq!((vms(&user), claims.len()), (named(&claims), 1), "{crash:?}");
        bought.set(user.machines_ever());
        user.scale("web", 0).await;
        user.until("every VM is gone", async || user.machines() == 0).await;
        user.until("every NodeClaim is gone", async || user.claims().await.is_empty()).await;
    };
    let nap = async {
        user.world.run_replica(&faults, Settings::default(), std::future::pending()).await;
        user.world.run_nap(std::future::pending()).await;
    };
    user.run_without_nap(async {
        tokio::select! {
            biased;
            () = script => {}
            () = nap => {}
        }
    })
    .await;
    let left = (user.machines(), user.nodes().await.len(), user.machines_ever());
    (faults, format!("{} VMs bought, then {left:?}", bought.get()))
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_read_from_azure_changes_nothing() {
    let (faults, undisturbed) = launch_and_delete(None).await;
    let reads = faults.azure_reads();
    assert!(reads > 10, "{reads} reads are no story");
    assert_eq!(undisturbed, "2 VMs bought, then (0, 0, 2)");
    for number in 1..=reads {
        let crash = Crash::AzureRead { number };
        assert_eq!(launch_and_delete(Some(crash)).await.1, undisturbed, "{crash:?} of {reads}");
    }
}

/// Crashes at every write of a launch and a delete.
async fn crash_at_writes_of_a_launch(delivered: bool) {
    let (faults, undisturbed) = launch_and_delete(None).await;
    let writes = faults.writes();
    assert!(writes > 20, "{writes} writes are no story");
    for number in 1..=writes {
        let crash = Crash::Write { number, delivered };
        assert_eq!(launch_and_delete(Some(crash)).await.1, undisturbed, "{crash:?} of {writes}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_before_any_write_of_a_launch_and_a_delete_changes_nothing() {
    crash_at_writes_of_a_launch(false).await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_after_any_write_of_a_launch_and_a_delete_changes_nothing() {
    crash_at_writes_of_a_launch(true).await;
}

fn replica(identity: &str) -> Settings {
    let election = LeaderElection {
        namespace: "kube-system".to_owned(),
        name: "karpenter-leader-election".to_owned(),
        identity: identity.to_owned(),
    };
    Settings { leader_election: Some(election), ..Settings::default() }
}

async fn holder(user: &User) -> String {
    let leases: Api<Lease> = Api::namespaced(user.client.clone(), "kube-system");
    let lease = leases.get_opt("karpenter-leader-election").await.unwrap();
    lease.and_then(|lease| lease.spec?.holder_identity).unwrap_or_default()
}

/// Runs a script while two replicas compete; the first starts a second earlier, and ends with
/// `stop`.
async fn with_two_replicas(
    user: &User,
    [one, two]: [&Faults; 2],
    stop: impl Future<Output = ()>,
    script: impl Future<Output = ()>,
) {
    let first = user.world.run_replica(one, replica("nap-1_a"), stop);
    let second = async {
        user.pass(1).await;
        user.world.run_replica(two, replica("nap-2_b"), std::future::pending()).await;
    };
    let both = async {
        tokio::select! {
            biased;
            () = script => {}
            _ = async { tokio::join!(first, second) } => {}
        }
    };
    user.run_without_nap(both).await;
}

#[tokio::test(start_paused = true)]
async fn of_two_replicas_one_acts_and_the_other_takes_over_at_once_on_shutdown() {
    let user = small_world().await;
    let clock = user.world.clock().clone();
    let (one, two) = (Faults::new(clock.clone()), Faults::new(clock));
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let script = async {
        user.default_pool(json!({})).await;
        user.deploy("web", 10, json!({})).await;
        user.until_running(10).await;
        assert_eq!((holder(&user).await.as_str(), two.writes()), ("nap-1_a", 0));
        let bought = user.machines_ever();
        assert_eq!(bought, user.claims().await.len());
        stop.send(()).unwrap();
        user.pass(5).await;
        assert_eq!(holder(&user).await, "nap-2_b", "the Lease was released");
        user.scale("web", 0).await;
        user.until("every VM is gone", async || user.machines() == 0).await;
        assert_eq!(user.machines_ever(), bought);
    };
    with_two_replicas(&user, [&one, &two], async { drop(stopped.await) }, script).await;
}

#[tokio::test(start_paused = true)]
async fn a_partitioned_leader_stops_before_another_starts() {
    for cut_at in [0, 1, 2, 5, 13, 22, 40] {
        let user = small_world().await;
        let clock = user.world.clock().clone();
        let (one, two) = (Faults::new(clock.clone()), Faults::new(clock));
        let script = async {
            user.default_pool(json!({})).await;
            user.deploy("web", 10, json!({})).await;
            user.pass(cut_at).await;
            one.set_connected(false);
            let writes = one.writes();
            user.pass(30).await;
            assert_eq!(holder(&user).await, "nap-2_b", "cut at {cut_at} s");
            one.set_connected(true);
            user.until_running(10).await;
            user.pass(300).await;
            assert_eq!(one.writes(), writes, "the first replica wrote as a follower");
            assert_eq!(user.machines(), user.claims().await.len());
            assert_eq!(user.machines_ever(), 2, "cut at {cut_at} s");
            two.set_connected(false);
            user.pass(30).await;
            assert_eq!(holder(&user).await, "nap-1_a");
            two.set_connected(true);
            user.scale("web", 0).await;
            user.until("every VM is gone", async || user.machines() == 0).await;
        };
        with_two_replicas(&user, [&one, &two], std::future::pending(), script).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_minute_without_the_api_server_loses_nothing() {
    for cut_at in [1, 4, 20, 45] {
        let user = small_world().await;
        let faults = Faults::new(user.world.clock().clone());
        let script = async {
            user.default_pool(json!({})).await;
            user.deploy("web", 10, json!({})).await;
            user.pass(cut_at).await;
            faults.set_connected(false);
            user.pass(60).await;
            faults.set_connected(true);
            user.until_running(10).await;
            user.pass(300).await;
            let made = (user.machines_ever(), user.machines(), user.claims().await.len());
            assert_eq!(made, (2, 2, 2), "cut at {cut_at} s");
        };
        user.run_without_nap(async {
            tokio::select! {
                biased;
                () = script => {}
                () = user.world.run_replica(&faults, replica("nap_a"), std::future::pending()) => {}
            }
        })
        .await;
    }
}
