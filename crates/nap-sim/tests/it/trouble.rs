//! The provider under faults: capacity, quota, throttling, tokens.

use std::time::Duration;

use nap_api::{NodeClaimStatus, labels};
use nap_cloud::{CloudError, CloudProvider, Creation, ErrorClass, Instance};
use nap_engine::CapacityType;

use crate::world::{DEFAULT_POOL, World, claim, until_created};

const SIZE: (&str, &[&str]) = (labels::INSTANCE_TYPE, &["Standard_D4s_v5"]);
const ON_DEMAND: (&str, &[&str]) = (labels::CAPACITY_TYPE, &["on-demand"]);

fn full(world: &World, size: &str, zones: &[&str]) {
    world.emulator.set_faults(|faults| {
        faults
            .capacity_errors
            .extend(zones.iter().map(|zone| (size.to_owned(), (*zone).to_owned())));
    });
}

/// Launches as the controllers do: a machine that fails after it was accepted is deleted, and
/// another NodeClaim is launched in its place. Returns the instance or the last error.
async fn launch(world: &World, wanted: &[(&str, &[&str])]) -> Result<Instance, CloudError> {
    for number in 0.. {
        let mut claim = claim(&format!("default-{number:05}"), "1", wanted);
        let made = world.provider.create(&claim, &world.class, &[]).await?;
        until_created(&world.clock).await;
        let provider_id = Some(made.provider_id.clone());
        claim.status = Some(NodeClaimStatus { provider_id, ..NodeClaimStatus::default() });
        match world.provider.creation(&claim).await? {
            Creation::Succeeded => return Ok(made),
            Creation::Failed(_) => world.provider.delete(&claim).await?,
            Creation::InProgress => panic!("the machine takes longer than a minute"),
        }
        until_created(&world.clock).await;
    }
    unreachable!()
}

#[tokio::test(start_paused = true)]
async fn zonal_capacity_error_leads_to_the_next_offering() {
    let world = World::new().await;
    full(&world, "Standard_D4s_v5", &["eastus-1", "eastus-2"]);
    let made = launch(&world, &[SIZE, ON_DEMAND]).await.unwrap();
    assert_eq!(made.labels[labels::ZONE], "eastus-3");
    assert_eq!(world.emulator.machines().len(), 1, "nothing is left of the failed tries");
    assert_eq!(world.emulator.bill().len(), 1);
    let counted = world.provider.unavailable_offerings();
    assert!(counted[&(CapacityType::OnDemand, "capacity")] >= 2, "{counted:?}");
}

#[tokio::test(start_paused = true)]
async fn regional_capacity_error_leads_to_another_size() {
    let world = World::new().await;
    let all = ["eastus-1", "eastus-2", "eastus-3", "0"];
    full(&world, "Standard_D4s_v5", &all);
    let sizes = (labels::INSTANCE_TYPE, &["Standard_D4s_v5", "Standard_D8s_v4"][..]);
    let made = launch(&world, &[sizes, ON_DEMAND]).await.unwrap();
    assert_eq!(made.labels[labels::INSTANCE_TYPE], "Standard_D8s_v4");
}

#[tokio::test(start_paused = true)]
async fn a_size_that_a_policy_forbids_leads_to_another_of_its_family() {
    let world = World::new().await;
    let denied =
        "failedCreates: {size: Standard_D4s_v5, code: RequestDisallowedByPolicy, message: x}";
    world.emulator.schedule_fault(denied).unwrap();
    let sizes = (labels::INSTANCE_TYPE, &["Standard_D4s_v5", "Standard_D8s_v5"][..]);
    let made = launch(&world, &[sizes, ON_DEMAND]).await.unwrap();
    assert_eq!(made.labels[labels::INSTANCE_TYPE], "Standard_D8s_v5");
    assert_eq!(world.emulator.requests()["PUT machine"], 2, "no other zone of the size was tried");
}

#[tokio::test(start_paused = true)]
async fn unavailable_offering_is_skipped_until_it_expires() {
    let world = World::new().await;
    full(&world, "Standard_D4s_v5", &["eastus-1", "eastus-2", "eastus-3", "0"]);
    let error = launch(&world, &[SIZE, ON_DEMAND]).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Capacity);
    assert_eq!(world.emulator.machines(), []);
    let available = |types: &nap_engine::Catalogue, size: &str| {
        let kind = types.types().iter().find(|kind| kind.name == size).unwrap();
        let demand = |kind: CapacityType| kind == CapacityType::OnDemand;
        kind.offerings
            .iter()
            .filter(|offering| offering.available && demand(offering.capacity_type))
            .count()
    };
    let types = world.provider.instance_types(&world.class).await.unwrap();
    assert_eq!(available(&types, "Standard_D4s_v5"), 0);
    assert_eq!(
        available(&types, "Standard_D16s_v5"),
        0,
        "larger sizes of the family are not tried either"
    );
    assert_eq!(available(&types, "Standard_D2s_v5"), 4);
    world.emulator.set_faults(|faults| faults.capacity_errors.clear());
    world.clock.sleep(Duration::from_hours(2)).await;
    let types = world.provider.instance_types(&world.class).await.unwrap();
    assert_eq!(available(&types, "Standard_D4s_v5"), 4);
    launch(&world, &[SIZE, ON_DEMAND]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_failed_machine_counts_in_the_quota_until_it_is_gone() {
    let world = World::with(|config| {
        config.faults.family_quota.insert("standardDSv5Family".to_owned(), 4);
    })
    .await;
    full(&world, "Standard_D4s_v5", &["eastus-1", "eastus-2", "eastus-3", "0"]);
    let mut failing = claim("default-00000", "1", &[SIZE, ON_DEMAND]);
    let made = world.provider.create(&failing, &world.class, &[]).await.unwrap();
    let provider_id = Some(made.provider_id);
    failing.status = Some(NodeClaimStatus { provider_id, ..NodeClaimStatus::default() });
    until_created(&world.clock).await;
    let progress = world.provider.creation(&failing).await.unwrap();
    assert!(matches!(progress, Creation::Failed(_)), "{progress:?}");

    // A smaller size of the family is not out of stock, and would be refused for the quota.
    let small = (labels::INSTANCE_TYPE, &["Standard_D2s_v5"][..]);
    let other = claim("default-00001", "1", &[small, ON_DEMAND]);
    let refused = world.provider.create(&other, &world.class, &[]).await.unwrap_err();
    assert_eq!(refused.code, "InsufficientCapacity", "{refused}");
    world.provider.delete(&failing).await.unwrap();
    assert!(world.provider.create(&other, &world.class, &[]).await.is_err(), "it still exists");
    assert_eq!(world.emulator.requests()["PUT machine"], 1, "Azure was not asked in vain");
    until_created(&world.clock).await;
    assert!(world.provider.delete(&failing).await.unwrap_err().is_not_found());
    world.provider.create(&other, &world.class, &[]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn family_without_quota_falls_through_to_another() {
    let world = World::new().await;
    // The quota shrinks after the provider has read the usages.
    world.provider.instance_types(&world.class).await.unwrap();
    world.emulator.set_faults(|faults| {
        faults.family_quota.insert("standardDSv5Family".to_owned(), 2);
    });
    let sizes = (labels::INSTANCE_TYPE, &["Standard_D4s_v5", "Standard_D8s_v4"][..]);
    let made = world
        .provider
        .create(&claim("default-abc12", "1", &[sizes, ON_DEMAND]), &world.class, &[])
        .await
        .unwrap();
    assert_eq!(made.labels[labels::INSTANCE_TYPE], "Standard_D8s_v4");
    let error = world
        .provider
        .create(&claim("default-abc13", "1", &[SIZE, ON_DEMAND]), &world.class, &[])
        .await
        .unwrap_err();
    assert_eq!(error.class, ErrorClass::Capacity);
    let spot = [SIZE, (labels::CAPACITY_TYPE, &["spot"][..])];
    world.provider.create(&claim("default-abc14", "1", &spot), &world.class, &[]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn known_quota_is_not_exceeded() {
    let world = World::with(|config| {
        config.faults.family_quota.insert("standardDSv5Family".to_owned(), 8);
    })
    .await;
    for name in ["default-00001", "default-00002"] {
        world
            .provider
            .create(&claim(name, "1", &[SIZE, ON_DEMAND]), &world.class, &[])
            .await
            .unwrap();
    }
    let before = world.emulator.requests()["PUT machine"];
    let third = claim("default-00003", "1", &[SIZE, ON_DEMAND]);
    assert_eq!(
        world.provider.create(&third, &world.class, &[]).await.unwrap_err().class,
        ErrorClass::Capacity
    );
    assert_eq!(world.emulator.requests()["PUT machine"], before, "Azure is not even asked");
}

#[tokio::test(start_paused = true)]
async fn spot_without_quota_falls_back_to_on_demand() {
    let world = World::with(|config| config.faults.spot_quota = Some(0)).await;
    let both = [SIZE, (labels::CAPACITY_TYPE, &["spot", "on-demand"][..])];
    let made = world
        .provider
        .create(&claim("default-abc12", "1", &both), &world.class, &[])
        .await
        .unwrap();
    assert_eq!(made.labels[labels::CAPACITY_TYPE], "on-demand");
}

#[tokio::test(start_paused = true)]
async fn throttled_requests_are_retried_after_retry_after() {
    let world = World::new().await;
    world.provider.instance_types(&world.class).await.unwrap();
    let begun = world.clock.now();
    world.emulator.set_faults(|faults| faults.throttle_next = 2);
    assert_eq!(world.provider.list().await.unwrap(), []);
    assert_eq!(world.clock.now().duration_since(begun).as_secs(), 14, "`Retry-After` is honoured");
    // A date, which has whole seconds, is waited for too.
    let begun = world.clock.now();
    world.emulator.schedule_fault("throttle: {requests: 2, retryAfter: date}").unwrap();
    world.clock.sleep(Duration::from_secs(1)).await;
    assert_eq!(world.provider.list().await.unwrap(), []);
    let waited = world.clock.now().duration_since(begun).as_secs_f64();
    assert!((13.0..=15.0).contains(&waited), "{waited} s");
    let refused = world.emulator.schedule_fault("throttle: {requests: 2, retryAfter: later}");
    let message = "throttle.retryAfter: `later` is unknown; allowed: seconds, date";
    assert_eq!(refused.unwrap_err(), message);
    world.emulator.set_faults(|faults| faults.throttle_next = 100);
    assert_eq!(world.provider.list().await.unwrap_err().class, ErrorClass::Throttled);
    world.emulator.set_faults(|faults| {
        faults.throttle_next = 0;
        faults.unavailable_next = 3;
    });
    assert_eq!(world.provider.list().await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_cannot_be_completed_is_an_error_and_never_empty() {
    let world = World::new().await;
    launch(&world, &[SIZE, ON_DEMAND]).await.unwrap();
    assert_eq!(world.provider.list().await.unwrap().len(), 1);
    // A process that has just started knows no sizes, which instances are read with.
    for requests in [1, 4, 8, 100] {
        let fresh = world.emulator.provider();
        world.emulator.set_faults(|faults| faults.unavailable_next = requests);
        match fresh.list().await {
            Ok(listed) => assert_eq!(listed.len(), 1, "after {requests} failures"),
            Err(error) => assert_eq!(error.class, ErrorClass::Transient, "{error}"),
        }
    }
    world.emulator.set_faults(|faults| faults.unavailable_next = 0);
    assert_eq!(world.emulator.provider().list().await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn tokens_are_renewed_before_expiry_and_after_a_401() {
    let world = World::new().await;
    world.provider.list().await.unwrap();
    assert_eq!(world.emulator.requests()["GET token"], 1);
    world.clock.sleep(Duration::from_secs(3600 - 200)).await;
    world.provider.list().await.unwrap();
    assert_eq!(world.emulator.requests()["GET token"], 2);
    assert_eq!(
        world.emulator.requests().get("GET refused"),
        None,
        "no request was sent with an old token"
    );
    world.emulator.revoke_tokens();
    world.clock.sleep(Duration::from_secs(1)).await;
    world.provider.list().await.unwrap();
    assert_eq!(world.emulator.requests()["GET token"], 3);
}

#[tokio::test(start_paused = true)]
async fn claim_without_matching_offering_is_a_capacity_error() {
    let world = World::new().await;
    for wanted in [
        claim("default-abc12", "100000", &DEFAULT_POOL),
        claim("x-1", "1", &[(labels::ARCH, &["s390x"])]),
    ] {
        let error = world.provider.create(&wanted, &world.class, &[]).await.unwrap_err();
        assert_eq!(
            (error.class, error.code.as_str()),
            (ErrorClass::Capacity, "InsufficientCapacity")
        );
    }
    assert_eq!(world.emulator.requests().get("PUT machine"), None);
}

/// An offering that is tried again only after an hour, with Azure's words about it.
fn is_remembered(world: &World, size: &str, zone: &str) -> bool {
    let shortages = world.provider.shortages(&nap_api::Requirements::new());
    let expected = format!("{size} spot in {zone} until ");
    shortages.iter().any(|one| one.starts_with(&expected) && one.contains("evicted"))
}

/// Azure evicts without a notice too: the VM is gone, and its machine says so.
#[tokio::test(start_paused = true)]
async fn an_offering_whose_vm_was_evicted_without_a_notice_is_avoided() {
    let spot = (labels::CAPACITY_TYPE, &["spot"][..]);
    for is_listed in [true, false] {
        let world = World::new().await;
        let made = launch(&world, &[SIZE, spot]).await.unwrap();
        let zone = made.labels[labels::ZONE].clone();
        world.provider.instance_types(&world.class).await.unwrap();
        assert!(!is_remembered(&world, SIZE.1[0], &zone));
        assert!(world.emulator.evict(&world.emulator.machines()[0].name));
        world.clock.sleep(Duration::from_secs(1)).await;
        if is_listed {
            world.provider.list().await.unwrap();
        } else {
            // The NodeClaim whose instance is gone tells the offering by its labels.
            let mut gone = claim("default-00000", "1", &[SIZE, spot]);
            gone.metadata.labels = Some(made.labels.clone());
            world.provider.remember_eviction(&gone).await;
        }
        assert!(is_remembered(&world, SIZE.1[0], &zone), "listed: {is_listed}");
        let counted = world.provider.unavailable_offerings();
        assert_eq!(counted.get(&(CapacityType::Spot, "eviction")), Some(&1), "{counted:?}");
        let next = claim("default-00009", "1", &[SIZE, spot]);
        let next = world.provider.create(&next, &world.class, &[]).await.unwrap();
        assert_ne!(next.labels[labels::ZONE], zone);
    }
}

/// AKS may take its time to name the VM of a machine that it has accepted.
#[tokio::test(start_paused = true)]
async fn a_machine_whose_vm_is_not_named_yet_counts_in_the_quota_and_is_adopted() {
    let world = World::with(|config| {
        config.vm_ids = nap_sim::azure::VmIds::MissingUntilCreated;
        config.vm_create = Duration::from_mins(2)..=Duration::from_mins(2);
    })
    .await;
    let slow = claim("default-00000", "1", &[SIZE, ON_DEMAND]);
    let error = world.provider.create(&slow, &world.class, &[]).await.unwrap_err();
    assert_eq!((error.class, error.code.as_str()), (ErrorClass::Transient, "NoVirtualMachine"));
    assert!(world.provider.quota().holds.contains_key("default-00000"));
    until_created(&world.clock).await;
    until_created(&world.clock).await;
    let made = world.provider.create(&slow, &world.class, &[]).await.unwrap();
    assert_eq!(made.node_claim.as_deref(), Some("default-00000"));
    assert_eq!(world.emulator.machines().len(), 1);
}
