//! Restarts: after a kill at any time nothing is lost, leaked or done twice.

use kube::ResourceExt;
use nap_api::NodeClaim;
use serde_json::{Value, json};

use crate::harness::User;

/// Scales up and kills nap after `kill_after` seconds; returns the number of VMs ever created.
async fn machines_made(kill_after: Option<u64>) -> usize {
    let user = User::new().await;
    let script = async {
        user.default_pool(json!({})).await;
        user.deploy("inflate", 10, json!({})).await;
        if let Some(seconds) = kill_after {
            user.world.run_nap(user.pass(seconds)).await;
        }
        let rest = async {
            user.until_running(10).await;
            user.pass(600).await;
            assert_eq!(user.machines(), user.claims().await.len());
            assert_eq!(user.running().await, 10);
        };
        tokio::select! {
            biased;
            () = rest => {}
            () = user.world.run_nap(std::future::pending()) => {}
        }
    };
    user.run_without_nap(script).await;
    user.machines_ever()
}

#[tokio::test(start_paused = true)]
async fn kill_during_scale_up_launches_no_extra_vm() {
    let undisturbed = machines_made(None).await;
    for seconds in [0, 1, 2, 3, 5, 12, 18, 22, 26, 30, 45, 60, 75, 100] {
        assert_eq!(machines_made(Some(seconds)).await, undisturbed, "killed after {seconds} s");
    }
}

#[tokio::test(start_paused = true)]
async fn replacement_finishes_after_a_kill() {
    for seconds in [5, 20, 26, 40, 70, 100] {
        let user = User::new().await;
        let script = async {
            user.default_pool(json!({})).await;
            user.deploy("inflate", 3, json!({})).await;
            let first = async {
                user.until_running(3).await;
                user.until_no_pool_grows().await;
                user.scale("inflate", 1).await;
                user.pass(seconds).await;
            };
            user.world.run_nap(first).await;
            let rest = async {
                user.pass(900).await;
                assert_eq!(user.running().await, 1, "killed after {seconds} s");
                assert_eq!(user.machines(), 1, "killed after {seconds} s");
                assert_eq!(user.machines_ever(), 2, "killed after {seconds} s");
            };
            tokio::select! {
                biased;
                () = rest => {}
                () = user.world.run_nap(std::future::pending()) => {}
            }
        };
        user.run_without_nap(script).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_nodepool_that_grows_does_so_after_a_restart() {
    let user = User::new().await;
    let script = async {
        user.default_pool(json!({})).await;
        user.deploy("inflate", 3, json!({})).await;
        let first = async {
            user.until_running(3).await;
            user.scale("inflate", 1).await;
            user.pass(600).await;
        };
        user.world.run_nap(first).await;
        let rest = async {
            user.pass(2700).await;
            assert_eq!(user.machines_ever(), 1, "the launch is less than an hour ago");
            user.pass(1500).await;
            assert_eq!((user.machines_ever(), user.machines()), (2, 1), "then it is replaced");
        };
        user.world.run_nap(rest).await;
    };
    user.run_without_nap(script).await;
}

#[tokio::test(start_paused = true)]
async fn the_moves_of_a_workload_are_counted_on_after_a_restart() {
    let user = User::with_quick_vms().await;
    let pods = |cpu: &str, annotations: Value| {
        json!({
            "metadata": { "annotations": annotations },
            "spec": { "containers": [{
                "name": "app", "image": "example.com/app:1",
                "resources": { "requests": { "cpu": cpu, "memory": "512Mi" } },
            }] },
        })
    };
    let script = async {
        user.default_pool(json!({ "spec": {
            "disruption": { "budgets": [{ "nodes": "100%" }] },
            "template": { "spec": { "requirements": [
                { "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"] },
                {
                    "key": "node.kubernetes.io/instance-type", "operator": "In",
                    "values": ["Standard_D4s_v5"],
                },
            ] } },
        } }))
        .await;
        // Each node has one of either.
        user.deploy("goes", 6, pods("2300m", json!({}))).await;
        let first = async {
            user.until_running(6).await;
            let limit = json!({ "nap.karpenter.sh/max-evictions-per-day": "2" });
            user.deploy("stays", 6, pods("1500m", limit)).await;
            user.until_running(12).await;
            user.scale("goes", 0).await;
            user.pass(600).await;
            assert_eq!(user.machines(), 4, "two pods were moved; six would fit three nodes");
        };
        user.world.run_nap(first).await;
        user.world.run_nap(user.pass(7200)).await;
        assert_eq!(user.machines(), 4);
    };
    user.run_without_nap(script).await;
}

#[tokio::test(start_paused = true)]
async fn vm_without_nodeclaim_is_garbage_collected() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(json!({})).await;
        user.deploy("inflate", 1, json!({})).await;
        user.until_running(1).await;
        let claim = user.claims().await[0].name_any();
        user.scale("inflate", 0).await;
        // The finalizer is removed by hand, so the VM is never deleted by termination.
        user.delete::<NodeClaim>(&claim).await;
        user.patch::<NodeClaim>(&claim, json!({ "metadata": { "finalizers": null } })).await;
        user.until("the claim is gone", async || user.claims().await.is_empty()).await;
        user.until("the machine is gone", async || user.machines() == 0).await;
    })
    .await;
}
