//! Launch of NodeClaims without a NodePool: node classes, deletion and timeout during the creation,
//! and a status that another hand has written.

use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use nap_api::{AKSNodeClass, NodeClaim, NodePool, conditions};
use nap_controllers::Settings;
use serde_json::{Value, json};

use crate::harness::User;

async fn claim(user: &User) -> Option<NodeClaim> {
    user.claims().await.pop()
}

async fn is_true(user: &User, condition: &str) -> bool {
    let status = claim(user).await.and_then(|claim| claim.status).unwrap_or_default();
    conditions::is_true(&status.conditions, condition)
}

async fn until_true(user: &User, condition: &str) {
    user.until(condition, async || is_true(user, condition).await).await;
}

async fn patch_status<K>(user: &User, name: &str, status: Value)
where
    K: kube::Resource<DynamicType = ()> + serde::de::DeserializeOwned + Clone + std::fmt::Debug,
{
    let patch = Patch::Merge(json!({ "status": status }));
    user.api::<K>().patch_status(name, &PatchParams::default(), &patch).await.unwrap();
}

/// States of the machines in Azure.
fn states(user: &User) -> Vec<String> {
    user.world.azure().machines().iter().map(|machine| machine.state.to_string()).collect()
}

#[tokio::test(start_paused = true)]
async fn nodeclaim_waits_for_a_class_without_status() {
    let user = User::new().await;
    // Both objects exist before nap has looked at either.
    user.standalone("alone").await;
    user.run(until_true(&user, "Launched")).await;
}

#[tokio::test(start_paused = true)]
async fn nodeclaim_of_a_class_that_is_not_ready_is_deleted_unless_it_was_launched() {
    let user = User::new().await;
    user.run(async {
        user.standalone("before").await;
        until_true(&user, "Initialized").await;
        let kubelet = json!({ "cpuCFSQuotaPeriod": "2s" });
        user.patch::<AKSNodeClass>("default", json!({ "spec": { "kubelet": kubelet } })).await;
        user.pass(30).await;
        user.standalone("after").await;
        // Initialized NodeClaims are looked at every ten minutes.
        user.pass(660).await;
        let left: Vec<String> = user.claims().await.iter().map(ResourceExt::name_any).collect();
        assert_eq!(left, ["before"]);
        let events = user.events("NodeClassNotReady").await;
        assert!(events.iter().any(|event| event.contains("NodeClaim after event")), "{events:?}");
        assert_eq!(user.machines_ever(), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn nodeclaim_deleted_during_its_launch_goes_at_once_with_its_machine() {
    let user = User::new().await;
    user.run(async {
        user.world.azure().set_faults(|faults| faults.stuck_creates = true);
        user.standalone("alone").await;
        user.until("the machine is being created", async || states(&user) == ["Creating"]).await;
        user.delete::<NodeClaim>("alone").await;
        user.pass(5).await;
        assert_eq!(states(&user), ["Deleting"]);
        user.until("the claim is gone", async || user.claims().await.is_empty()).await;
        assert_eq!(user.machines(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_is_never_created_is_given_up() {
    let user = User::new().await;
    user.run(async {
        user.world.azure().set_faults(|faults| faults.stuck_creates = true);
        user.standalone("alone").await;
        user.pass(890).await;
        assert_eq!(states(&user), ["Creating"]);
        user.pass(90).await;
        assert!(user.claims().await.is_empty());
        assert_eq!(user.machines(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_machine_that_fails_after_it_was_accepted_get_another() {
    let sizes = ["Standard_D2s_v5", "Standard_D4as_v5"];
    let user = User::in_region_with(Settings::default(), &sizes).await;
    user.run(async {
        user.world.azure().set_faults(|faults| {
            for zone in ["eastus-1", "eastus-2", "eastus-3", "0"] {
                faults.capacity_errors.insert(("Standard_D2s_v5".to_owned(), zone.to_owned()));
            }
        });
        user.default_pool(json!({})).await;
        user.deploy("web", 1, json!({})).await;
        user.until_running(1).await;
        user.pass(120).await;
        let machines = user.world.azure().machines();
        let left: Vec<&str> = machines.iter().map(|machine| machine.size.as_str()).collect();
        assert_eq!(left, ["Standard_D4as_v5"], "the failed ones are gone");
        assert_eq!(user.claims().await.len(), 1);
        let events = user.events("AsyncProvisioningError").await;
        assert!(events.iter().any(|event| event.contains("nominated for this pod")), "{events:?}");
        assert!(events.iter().all(|event| event.contains("(correlation id ")), "{events:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_waits_for_capacity_says_when_it_is_tried_again() {
    let user = User::in_region_with(Settings::default(), &["Standard_D2s_v5"]).await;
    user.run(async {
        user.world.azure().set_faults(|faults| {
            for zone in ["eastus-1", "eastus-2", "eastus-3", "0"] {
                faults.capacity_errors.insert(("Standard_D2s_v5".to_owned(), zone.to_owned()));
            }
        });
        user.default_pool(json!({})).await;
        user.deploy("web", 1, json!({})).await;
        let waits = async || {
            let events = user.events("FailedScheduling").await;
            events.into_iter().find(|event| event.contains("none available at present"))
        };
        user.until("the pod says why it waits", async || waits().await.is_some()).await;
        user.world.azure().set_faults(|faults| faults.capacity_errors.clear());
        let event = waits().await.unwrap();
        let (_, time) = event.split_once("; failed offerings are tried again from ").unwrap();
        let time: jiff::Timestamp = time.parse().unwrap();
        let ever = user.machines_ever();
        let left = time.duration_since(user.world.clock().now());
        user.pass(left.unsigned_abs().as_secs().saturating_sub(30)).await;
        assert_eq!((user.machines_ever(), user.running().await), (ever, 0), "before {time}");
        user.until_running(1).await;
        let late = user.world.clock().now().duration_since(time);
        assert!(late.as_mins() < 5, "tried again {late:#} after {time}");
    })
    .await;
}

/// A status that names an instance of another provider.
fn forged() -> Value {
    let conditions = ["Launched", "Registered", "Initialized"].map(|type_| {
        json!({
            "type": type_, "status": "True", "reason": type_, "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    });
    json!({ "providerID": "Provider:///AZ/i-01234567890123456", "conditions": conditions })
}

#[tokio::test(start_paused = true)]
async fn nodeclaim_with_a_forged_status_goes_with_its_machine() {
    for state in ["Creating", "Succeeded"] {
        let user = User::new().await;
        user.run(async {
            user.standalone("alone").await;
            user.until("the machine is there", async || states(&user) == [state]).await;
            patch_status::<NodeClaim>(&user, "alone", forged()).await;
            user.pass(45).await;
            let status = claim(&user).await.and_then(|claim| claim.status);
            let id = status.and_then(|status| status.provider_id).unwrap_or_default();
            assert!(id.starts_with("Provider:///"), "{state}: the status was overwritten: {id}");
            user.until("the claim is gone", async || user.claims().await.is_empty()).await;
            assert_eq!(user.machines(), 0, "{state}");
            assert!(!user.events("InstanceNotFound").await.is_empty());
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn standalone_node_that_is_not_ready_is_kept_while_its_vm_exists() {
    let user = User::new().await;
    user.run(async {
        user.standalone("alone").await;
        until_true(&user, "Initialized").await;
        let node = user.nodes().await[0].name_any();
        let condition = json!({
            "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        patch_status::<Node>(&user, &node, json!({ "conditions": [condition] })).await;
        user.pass(600).await;
        assert!(claim(&user).await.unwrap().metadata.deletion_timestamp.is_none());
        assert_eq!(user.machines(), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn vm_of_a_lost_standalone_nodeclaim_is_garbage_collected() {
    let user = User::new().await;
    user.run(async {
        user.standalone("alone").await;
        until_true(&user, "Initialized").await;
        user.delete::<NodeClaim>("alone").await;
        user.patch::<NodeClaim>("alone", json!({ "metadata": { "finalizers": null } })).await;
        user.until("the claim is gone", async || user.claims().await.is_empty()).await;
        user.until("the machine is gone", async || user.machines() == 0).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn standalone_nodeclaim_expires_without_any_other_change() {
    let user = User::new().await;
    user.run(async {
        let class =
            json!({ "group": "karpenter.azure.com", "kind": "AKSNodeClass", "name": "default" });
        let spec = json!({ "nodeClassRef": class, "requirements": [], "expireAfter": "25m" });
        let object = json!({ "metadata": { "name": "short" }, "spec": spec });
        user.create::<NodeClaim>(object).await;
        until_true(&user, "Initialized").await;
        // Initialized NodeClaims are looked at every ten minutes in any case, but not at this time.
        user.pass(1300).await;
        assert_eq!(user.machines(), 1);
        user.pass(240).await;
        assert_eq!(user.machines(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_burst_is_split_over_families_within_their_quota() {
    let sizes = ["Standard_D4s_v5", "Standard_D4as_v5", "Standard_D4ds_v5"];
    let user = User::in_region_with(Settings::default(), &sizes).await;
    user.run(async {
        user.world.azure().set_faults(|faults| {
            for family in ["standardDSv5Family", "standardDASv5Family"] {
                faults.family_quota.insert(family.to_owned(), 20);
            }
        });
        user.default_pool(json!({})).await;
        // One pod fills a node.
        let large = json!({ "spec": { "containers": [{
            "name": "main", "image": "pause", "resources": { "requests": { "cpu": "3" } },
        }] } });
        user.deploy("web", 12, large).await;
        user.until_running(12).await;
        let machines = user.world.azure().machines();
        let of = |size: &str| machines.iter().filter(|machine| machine.size == size).count();
        assert_eq!(sizes.map(of), [5, 5, 2]);
        assert_eq!(user.machines_ever(), 12);
        let api: Api<ConfigMap> = Api::namespaced(user.client.clone(), "kube-system");
        let learnt = api.get_opt("nap-capacity-memory").await.unwrap();
        assert_eq!(learnt, None, "no launch met the quota");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_was_learnt_about_capacity_survives_a_restart() {
    let sizes = ["Standard_D2s_v5", "Standard_D4as_v5"];
    let user = User::in_region_with(Settings::default(), &sizes).await;
    let script = async {
        user.world.azure().set_faults(|faults| {
            for zone in ["eastus-1", "eastus-2", "eastus-3", "0"] {
                faults.capacity_errors.insert(("Standard_D2s_v5".to_owned(), zone.to_owned()));
            }
        });
        user.default_pool(json!({})).await;
        user.deploy("web", 1, json!({})).await;
        user.world
            .run_nap(async {
                user.until_running(1).await;
                user.pass(30).await;
            })
            .await;
        let failed = user.events("AsyncProvisioningError").await.len();
        assert!(failed > 0);
        let condition = async || {
            let pool: NodePool = user.api().get("default").await.unwrap();
            let conditions = pool.status.unwrap().conditions;
            conditions::get(&conditions, "OfferingsAvailable").map(|one| one.message.clone())
        };
        let said = condition().await.unwrap_or_default();
        assert!(said.starts_with("not tried for now: Standard_D2s_v5 "), "{said}");
        assert!(said.contains("(Azure has no capacity)") && said.contains("; and "), "{said}");
        user.deploy("other", 5, json!({})).await;
        user.world.run_nap(user.until_running(6)).await;
        let machines = user.world.azure().machines();
        assert!(machines.iter().all(|machine| machine.size == "Standard_D4as_v5"), "{machines:?}");
        let again = user.events("AsyncProvisioningError").await.len() - failed;
        assert_eq!(again, 0, "nothing was tried again");
        user.world.run_nap(user.pass(6 * 3600)).await;
        assert_eq!(condition().await, None, "what was learnt is forgotten");
    };
    user.run_without_nap(script).await;
}

#[tokio::test(start_paused = true)]
async fn a_full_subnet_is_a_condition_and_not_an_endless_loop() {
    let user = User::new().await;
    user.run(async {
        let fault = "failedCreates: {code: InsufficientSubnetSize, message: the subnet is full}";
        user.world.azure().schedule_fault(fault).unwrap();
        user.default_pool(json!({})).await;
        user.deploy("web", 1, json!({})).await;
        user.pass(240).await;
        let class: AKSNodeClass = user.api().get("default").await.unwrap();
        let conditions = class.status.unwrap().conditions;
        let subnets = conditions::get(&conditions, "SubnetsReady").unwrap();
        assert_eq!((subnets.status.as_str(), subnets.reason.as_str()), ("False", "SubnetFull"));
        assert!(subnets.message.contains("spec.vnetSubnetID"), "{}", subnets.message);
        let events = user.events("AsyncProvisioningError").await;
        let tried = events.iter().filter(|event| event.contains(" event: ")).count();
        assert!(tried <= 2, "within four minutes: {events:?}");
        user.world.azure().clear_faults();
        user.until_running(1).await;
    })
    .await;
}
