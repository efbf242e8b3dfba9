//! Registration, initialization and what a NodePool says about them.

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use nap_api::{NodePool, conditions};
use serde_json::json;

use crate::harness::User;

/// Status and reason of a condition of the only NodeClaim; empty if there is none.
async fn claim_condition(user: &User, type_: &str) -> (String, String) {
    let claim = user.claims().await.pop();
    let status = claim.and_then(|claim| claim.status).unwrap_or_default();
    let found = conditions::get(&status.conditions, type_).cloned();
    found.map(|found| (found.status, found.reason)).unwrap_or_default()
}

async fn pool_health(user: &User) -> (String, String) {
    let pool = user.list::<NodePool>().await.remove(0);
    let status = pool.status.unwrap_or_default();
    let found = conditions::get(&status.conditions, "NodeRegistrationHealthy").cloned();
    found.map(|found| (found.status, found.reason)).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn two_nodes_of_one_instance_fail_the_registration() {
    let user = User::new().await;
    let script = async {
        user.standalone("alone").await;
        let launched = async || claim_condition(&user, "Launched").await.0 == "True";
        user.world.run_nap(user.until("it is launched", launched)).await;
        let id = user.claims().await[0].status.clone().unwrap().provider_id;
        for name in ["impostor-1", "impostor-2"] {
            let spec = json!({ "providerID": id });
            user.create::<Node>(json!({ "metadata": { "name": name }, "spec": spec })).await;
        }
        let rest = async {
            user.pass(15).await;
            let expected = ("False".to_owned(), "MultipleNodesFound".to_owned());
            assert_eq!(claim_condition(&user, "Registered").await, expected);
            user.until("the claim is gone", async || user.claims().await.is_empty()).await;
            assert_eq!(user.machines(), 0);
        };
        user.world.run_nap(rest).await;
    };
    user.run_without_nap(script).await;
}

#[tokio::test(start_paused = true)]
async fn node_that_never_initializes_is_given_up_after_an_hour_while_its_pods_wait() {
    let user = User::new().await;
    user.run(async {
        let taint = json!([{ "key": "example.com/wait", "effect": "NoSchedule" }]);
        let spec = json!({ "startupTaints": taint });
        user.default_pool(json!({ "spec": { "template": { "spec": spec } } })).await;
        user.deploy("inflate", 1, json!({})).await;
        user.pass(3600).await;
        let blocked = ("Unknown".to_owned(), "StartupTaintsExist".to_owned());
        assert_eq!(claim_condition(&user, "Initialized").await, blocked);
        assert_eq!(user.machines_ever(), 1);
        user.pass(300).await;
        assert!(user.events("InitializationTimeout").await[0].contains("example.com/wait"));
        assert_eq!(user.machines_ever(), 2, "another node is tried");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn nodepool_says_whether_its_nodes_register() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(json!({})).await;
        user.pass(5).await;
        assert_eq!(pool_health(&user).await.0, "Unknown");
        user.deploy("inflate", 1, json!({})).await;
        user.until_running(1).await;
        assert_eq!(pool_health(&user).await.0, "True");
        user.world.azure().set_faults(|faults| faults.stuck_creates = true);
        user.deploy("more", 100, json!({})).await;
        user.until("it is unhealthy", async || pool_health(&user).await.0 == "False").await;
        user.patch::<NodePool>("default", json!({ "spec": { "limits": { "cpu": "4" } } })).await;
        user.pass(5).await;
        assert_eq!(pool_health(&user).await.0, "Unknown", "a changed pool begins anew");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn node_smaller_than_its_type_is_reported() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(json!({})).await;
        user.deploy("inflate", 1, json!({})).await;
        user.until_running(1).await;
        user.until("it is consistent", async || {
            claim_condition(&user, "ConsistentStateFound").await.0 == "True"
        })
        .await;
        let node = user.nodes().await[0].name_any();
        let patch = Patch::Merge(json!({ "status": { "capacity": { "cpu": "1" } } }));
        user.api::<Node>().patch_status(&node, &PatchParams::default(), &patch).await.unwrap();
        user.pass(700).await;
        let expected = ("False".to_owned(), "ConsistencyCheckFailed".to_owned());
        assert_eq!(claim_condition(&user, "ConsistentStateFound").await, expected);
        assert!(user.events("FailedConsistencyCheck").await[0].contains("cpu"));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn pods_hear_of_a_launch_without_capacity() {
    let user = User::new().await;
    user.run(async {
        user.world.azure().set_faults(|faults| {
            for zone in ["eastus-1", "eastus-2", "eastus-3", "0"] {
                faults.capacity_errors.insert(("Standard_D4s_v5".to_owned(), zone.to_owned()));
            }
        });
        let size = json!({
            "key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["Standard_D4s_v5"],
        });
        let spec = json!({ "requirements": [size] });
        user.default_pool(json!({ "spec": { "template": { "spec": spec } } })).await;
        user.deploy("inflate", 1, json!({})).await;
        let failed = async || {
            let events = user.events("AsyncProvisioningError").await;
            events.iter().any(|event| event.contains("nominated for this pod failed to launch"))
        };
        user.until("the pod has the event", failed).await;
    })
    .await;
}
