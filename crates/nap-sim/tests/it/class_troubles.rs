//! Launches that fail for a reason that no other size avoids: what the user sees, and that machines
//! are not created and deleted for ever.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use nap_api::{AKSNodeClass, conditions};
use serde_json::json;

use crate::harness::User;

/// A condition of the node class.
async fn class_condition(user: &User, type_: &str) -> Condition {
    let class: AKSNodeClass = user.api().get("default").await.unwrap();
    conditions::get(&class.status.unwrap_or_default().conditions, type_).unwrap().clone()
}

/// Reason and message of the `Launched` condition of the only NodeClaim; empty without one.
async fn launched(user: &User) -> (String, String) {
    let claim = user.claims().await.pop();
    let status = claim.and_then(|claim| claim.status).unwrap_or_default();
    let found = conditions::get(&status.conditions, "Launched").cloned();
    found.map(|found| (found.reason, found.message)).unwrap_or_default()
}

fn puts(user: &User) -> u64 {
    user.world.azure().requests().get("PUT machine").copied().unwrap_or_default()
}

/// A user whose pod waits for a machine, while Azure has this fault.
async fn with_fault(user: &User, fault: &str) {
    user.default_pool(json!({})).await;
    user.pass(30).await;
    user.world.azure().schedule_fault(fault).unwrap();
    user.deploy("web", 1, json!({})).await;
}

#[tokio::test(start_paused = true)]
async fn a_disk_encryption_set_without_its_key_is_a_condition_with_the_fix() {
    let user = User::new().await;
    user.run(async {
        let denied = "failedCreates: {code: KeyVaultAccessForbidden, message: Unable to access \
                      key vault resource.}";
        with_fault(&user, denied).await;
        let is_held = async || class_condition(&user, "Ready").await.status == "False";
        user.until("the class is held", is_held).await;
        let found = class_condition(&user, "ValidationSucceeded").await;
        assert_eq!(
            (found.status.as_str(), found.reason.as_str()),
            ("False", "MachineCreationFailed")
        );
        let fix = "KeyVaultAccessForbidden: Unable to access key vault resource; give the \
                   cluster's disk encryption set access to its key, or restore them";
        assert!(found.message.ends_with(fix), "{}", found.message);
        let events = user.events("AsyncProvisioningError").await;
        let for_pod = |event: &&String| event.contains("nominated for this pod");
        let told = events.iter().find(for_pod).expect("the pod is told");
        assert!(told.contains("disk encryption set"), "{told}");
        user.pass(1800).await;
        let tried = puts(&user);
        assert!(tried <= 7, "{tried} machines within half an hour");
        assert_eq!(user.machines(), 0, "nothing is left of them");
        user.world.azure().clear_faults();
        user.until_running(1).await;
        assert_eq!(class_condition(&user, "Ready").await.status, "True");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_lack_of_rights_is_a_condition_with_the_fix() {
    for (fault, reason) in [
        ("status: 403, code: AuthorizationFailed", "AuthorizationFailed"),
        ("status: 401, code: InvalidAuthenticationToken", "InvalidAuthenticationToken"),
    ] {
        let user = User::new().await;
        user.run(async {
            let denied = format!("refusedCreates: {{{fault}, message: The client has no right.}}");
            with_fault(&user, &denied).await;
            user.until("the claim tells", async || launched(&user).await.0 == reason).await;
            let (_, message) = launched(&user).await;
            let fix = "The client has no right; give nap's identity its roles: `nap azure check` \
                       names those missing";
            assert!(message.ends_with(fix), "{message}");
            user.world.azure().clear_faults();
            user.until_running(1).await;
            assert_eq!(user.machines_ever(), 1);
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_unknown_error_is_tried_less_and_less_often() {
    let user = User::new().await;
    user.run(async {
        with_fault(&user, "failedCreates: {code: NewCodeOfAzure, message: sorry}").await;
        user.pass(3600).await;
        let tried = puts(&user);
        assert!((4..=12).contains(&tried), "{tried} machines within an hour");
        user.world.azure().clear_faults();
        user.until_running(1).await;
        // The next pods wait for nothing.
        user.deploy("more", 3, json!({})).await;
        user.pass(240).await;
        assert_eq!(user.running().await, 4);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_reserved_nic_costs_one_further_machine() {
    let user = User::new().await;
    user.run(async {
        let nic = "{for: 60s, failedCreates: {code: NicReservedForAnotherVm, message: 180 s}}";
        with_fault(&user, nic).await;
        user.until_running(1).await;
        let events = user.events("AsyncProvisioningError").await;
        assert!(events.iter().any(|event| event.contains("180 s")), "{events:?}");
        assert_eq!(class_condition(&user, "Ready").await.status, "True");
        assert!(puts(&user) <= 5, "{}", puts(&user));
        assert_eq!(user.machines(), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_concurrent_write_is_repeated_with_the_same_nodeclaim() {
    let user = User::new().await;
    user.run(async {
        let conflict = "{for: 60s, refusedCreates: {status: 409, code: \
                        ConflictingConcurrentWriteNotAllowed, message: try later}}";
        with_fault(&user, conflict).await;
        let reason = "ConflictingConcurrentWriteNotAllowed";
        user.until("the claim tells", async || launched(&user).await.0 == reason).await;
        let first = user.claims().await[0].metadata.name.clone();
        user.until_running(1).await;
        assert_eq!(user.claims().await[0].metadata.name, first);
        assert_eq!(user.machines_ever(), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn throttling_delays_a_launch_and_loses_nothing() {
    let user = User::new().await;
    user.run(async {
        with_fault(&user, "throttle: {requests: 40}").await;
        user.until_running(1).await;
        assert_eq!(user.machines_ever(), 1);
        assert_eq!(user.events("InsufficientCapacityError").await, [""; 0]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_exhausted_region_says_what_to_ask_for() {
    let user = User::new().await;
    user.run(async {
        with_fault(&user, "quota: {of: regional, vcpus: 0}").await;
        let told = async || !user.events("InsufficientCapacityError").await.is_empty();
        user.until("the pod is told", told).await;
        let events = user.events("InsufficientCapacityError").await;
        let fix = "request more quota for the vCPUs of the region";
        assert!(events.iter().all(|event| event.contains(fix)), "{events:?}");
        let tried = puts(&user);
        user.pass(1800).await;
        assert!(puts(&user) <= tried + 3, "the count of Azure is believed");
        user.world.azure().clear_faults();
        user.until_running(1).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_forbids_every_size_says_what_to_allow() {
    let user = User::new().await;
    user.run(async {
        let denied = "refusedCreates: {status: 403, code: RequestDisallowedByPolicy, message: \
                      Resource was disallowed by policy.}";
        with_fault(&user, denied).await;
        let told = async || !user.events("InsufficientCapacityError").await.is_empty();
        user.until("the pod is told", told).await;
        let events = user.events("InsufficientCapacityError").await;
        let fix = "allow the size in the Azure Policy, or leave it out of the NodePool";
        assert!(events.iter().all(|event| event.contains(fix)), "{events:?}");
        assert_eq!(user.machines_ever(), 0);
    })
    .await;
}
