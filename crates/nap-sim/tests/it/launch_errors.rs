//! Every error that Azure answers a launch with: what it marks, for how long, and what the launch
//! falls through to.

use std::fmt::{self, Write as _};
use std::time::Duration;

use nap_api::{NodeClaimStatus, OfferingRef};
use nap_cloud::{CloudError, CloudProvider, Creation, ErrorClass, NodeClassCondition};
use nap_engine::{CapacityType, Catalogue};
use nap_units::UsdPerHour;

use crate::world::{World, claim, config, until_created};

const SIZE: &str = "Standard_D8s_v5";
const LARGER: &str = "Standard_D16s_v5";
const SMALLER: &str = "Standard_D4s_v5";
const OTHER_FAMILY: &str = "Standard_D8as_v5";

/// Quotas as Azure words them.
const SPOT_QUOTA: &str = "results in exceeding approved LowPriorityCores quota";
const FAMILY_QUOTA: &str =
    "results in exceeding approved standardDSv5Family Cores quota. Current Limit: 10";
const NO_FAMILY_QUOTA: &str =
    "results in exceeding approved standardDSv5Family Cores quota. Current Limit: 0";
const REGIONAL_QUOTA: &str = "results in exceeding approved Total Regional Cores quota";
const AKS_QUOTA: &str = "Insufficient vcpu quota requested 8, remaining 0 for family \
                         standardDSv5Family for region eastus";
const HOUR: u64 = 60;
const ALMOST_A_DAY: u64 = 23 * 60;

/// How Azure says no: at once with a status, or after it has accepted the machine.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Refused(u16),
    FailedLater,
}

use Answer::{FailedLater, Refused};

/// An error for the first offering that is tried.
#[derive(Clone, Copy)]
struct Case {
    answer: Answer,
    code: &'static str,
    message: &'static str,
    zone: &'static str,
    capacity_type: CapacityType,
}

impl Case {
    fn fault(&self) -> String {
        let Self { code, message, zone, capacity_type, .. } = self;
        let place = format!("size: {SIZE}, zone: \"{zone}\", capacityType: {capacity_type}");
        let error = format!("code: {code}, message: {message:?}");
        match self.answer {
            Refused(status) => {
                format!("refusedCreates: {{{place}, status: {status}, {error}}}")
            }
            FailedLater => format!("failedCreates: {{{place}, {error}}}"),
        }
    }

    /// The tried offering; then in another zone, in the other scope, of the other capacity type, a
    /// larger and a smaller size of the family, and another family.
    fn offerings(&self) -> Vec<OfferingRef> {
        let (zone, this) = (self.zone, self.capacity_type);
        let other = match this {
            CapacityType::Spot => CapacityType::OnDemand,
            _ => CapacityType::Spot,
        };
        let other_scope = if zone == "0" { "eastus-1" } else { "0" };
        [
            (SIZE, zone, this),
            (SIZE, "eastus-2", this),
            (SIZE, other_scope, this),
            (SIZE, zone, other),
            (LARGER, zone, this),
            (SMALLER, zone, this),
            (OTHER_FAMILY, zone, this),
        ]
        .map(|(size, zone, capacity_type)| OfferingRef {
            instance_type: size.to_owned(),
            zone: zone.to_owned(),
            capacity_type: capacity_type.to_string(),
            price: UsdPerHour::from_micros(1),
        })
        .to_vec()
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { answer, code, message, zone, capacity_type } = self;
        write!(f, "{answer:?} {code} `{message}` {zone} {capacity_type}")
    }
}

/// One character for each offering: `x` if it is unavailable.
fn marks(types: &Catalogue, offerings: &[OfferingRef]) -> String {
    let is_available = |wanted: &OfferingRef| {
        let one = types.types().iter().find(|one| one.name == wanted.instance_type).unwrap();
        let is_wanted = |zone: &str, capacity_type: CapacityType| {
            zone == wanted.zone && capacity_type.as_str() == wanted.capacity_type
        };
        let found = one.offerings.iter().find(|one| is_wanted(&one.zone, one.capacity_type));
        found.unwrap_or_else(|| panic!("{wanted:?} is not offered")).available
    };
    offerings.iter().map(|one| if is_available(one) { '.' } else { 'x' }).collect()
}

async fn marks_now(world: &World, case: &Case) -> String {
    let types = world.provider.instance_types(&world.class).await.unwrap();
    marks(&types, &case.offerings())
}

/// Launches a NodeClaim with some offerings, and waits until its machine exists or has failed.
async fn launch(world: &World, name: &str, offerings: &[OfferingRef]) -> Result<(), CloudError> {
    let mut claim = claim(name, "1", &[]);
    let made = world.provider.create(&claim, &world.class, offerings).await?;
    until_created(&world.clock).await;
    claim.metadata.annotations = Some(made.annotations);
    let provider_id = Some(made.provider_id);
    claim.status = Some(NodeClaimStatus { provider_id, ..NodeClaimStatus::default() });
    match world.provider.creation(&claim).await? {
        Creation::Succeeded => Ok(()),
        Creation::Failed(error) => {
            world.provider.delete(&claim).await?;
            until_created(&world.clock).await;
            Err(error)
        }
        Creation::InProgress => panic!("the machine takes longer than a minute"),
    }
}

/// Meets the error with the tried offering alone. Returns the world after it, and the error.
async fn met(case: &Case) -> (World, CloudError) {
    let world = World::new().await;
    world.emulator.schedule_fault(&case.fault()).unwrap();
    let first = case.offerings()[..1].to_vec();
    let error = launch(&world, "default-00000", &first).await.expect_err(&case.to_string());
    (world, error)
}

/// Checks what an error marks, and for how many minutes.
async fn check(case: Case, expected: &str, minutes: u64) {
    let (world, error) = met(&case).await;
    assert_eq!(error.code, case.code, "{case}");
    let begun = world.clock.now();
    assert_eq!(marks_now(&world, &case).await, expected, "{case}");

    // The launch falls through to the first offering that is not marked.
    let offerings = case.offerings();
    launch(&world, "default-00001", &offerings).await.unwrap();
    let falls_to = &offerings[expected.find('.').unwrap()];
    let machine = world.emulator.machines().pop().unwrap();
    let made = (machine.size, machine.zone, machine.capacity_type.to_string());
    let wanted = falls_to.clone();
    assert_eq!(made, (wanted.instance_type, wanted.zone, wanted.capacity_type), "{case}");

    // The error is forgotten at its time. The machine of a failed launch has taken up to two
    // minutes of it, and a count of quota may be as old.
    world.emulator.clear_faults();
    let passed = world.clock.now().duration_since(begun).unsigned_abs();
    let wait = Duration::from_mins(minutes - 4).saturating_sub(passed);
    world.clock.sleep(wait).await;
    assert!(marks_now(&world, &case).await.starts_with('x'), "{case}: forgotten early");
    world.clock.sleep(Duration::from_mins(5)).await;
    marks_now(&world, &case).await;
    // A new count of quota is read beside the planning.
    world.clock.sleep(Duration::from_secs(5)).await;
    assert!(marks_now(&world, &case).await.starts_with('.'), "{case}: not forgotten");
}

/// Checks that a launch which may use the next offerings uses one within the same call.
async fn falls_through_at_once(case: Case, expected: usize) {
    let world = World::new().await;
    world.emulator.schedule_fault(&case.fault()).unwrap();
    let offerings = case.offerings();
    let claim = claim("default-00000", "1", &[]);
    world.provider.create(&claim, &world.class, &offerings).await.unwrap();
    let machine = world.emulator.machines().pop().unwrap();
    let wanted = &offerings[expected];
    assert_eq!((&machine.size, &machine.zone), (&wanted.instance_type, &wanted.zone), "{case}");
    assert_eq!(machine.capacity_type.as_str(), wanted.capacity_type, "{case}");
}

fn on_demand(answer: Answer, code: &'static str, message: &'static str) -> Case {
    Case { answer, code, message, zone: "eastus-1", capacity_type: CapacityType::OnDemand }
}

fn spot(answer: Answer, code: &'static str, message: &'static str) -> Case {
    Case { capacity_type: CapacityType::Spot, ..on_demand(answer, code, message) }
}

fn regional(case: Case) -> Case {
    Case { zone: "0", ..case }
}

#[tokio::test(start_paused = true)]
async fn spot_quota_blocks_all_spot_for_an_hour() {
    for answer in [Refused(409), FailedLater] {
        check(spot(answer, "OperationNotAllowed", SPOT_QUOTA), "xxx.xxx", HOUR).await;
    }
    falls_through_at_once(spot(Refused(409), "OperationNotAllowed", SPOT_QUOTA), 3).await;
}

#[tokio::test(start_paused = true)]
async fn family_quota_blocks_the_size_and_larger_ones_of_its_capacity_type() {
    let quota = "OperationNotAllowed";
    check(on_demand(Refused(409), quota, FAMILY_QUOTA), "xxx.x..", 10).await;
    check(on_demand(FailedLater, quota, FAMILY_QUOTA), "xxx.x..", 10).await;
    check(on_demand(Refused(409), quota, NO_FAMILY_QUOTA), "xxx.x..", HOUR).await;
    falls_through_at_once(on_demand(Refused(409), quota, FAMILY_QUOTA), 3).await;
}

#[tokio::test(start_paused = true)]
async fn sku_not_available_blocks_the_scope_for_its_capacity_type() {
    let code = "SkuNotAvailable";
    check(on_demand(Refused(409), code, ""), "xx..x..", ALMOST_A_DAY).await;
    check(regional(on_demand(Refused(409), code, "")), "x...x..", ALMOST_A_DAY).await;
    check(spot(FailedLater, code, ""), "xx..x..", HOUR).await;
    falls_through_at_once(on_demand(Refused(409), code, ""), 2).await;
}

#[tokio::test(start_paused = true)]
async fn zonal_allocation_failure_blocks_the_zone_for_both_capacity_types() {
    check(on_demand(FailedLater, "ZonalAllocationFailed", ""), "x..xx..", HOUR).await;
    check(spot(Refused(409), "ZonalAllocationFailed", ""), "x..xx..", HOUR).await;
}

#[tokio::test(start_paused = true)]
async fn allocation_failure_blocks_the_scope_for_both_capacity_types() {
    check(on_demand(FailedLater, "AllocationFailed", ""), "xx.xx..", HOUR).await;
    check(regional(on_demand(FailedLater, "AllocationFailed", "")), "x..xx..", HOUR).await;
}

#[tokio::test(start_paused = true)]
async fn overconstrained_requests_block_their_own_capacity_type() {
    let zonal = "OverconstrainedZonalAllocationRequest";
    check(spot(FailedLater, zonal, ""), "x...x..", HOUR).await;
    check(on_demand(FailedLater, "OverconstrainedAllocationRequest", ""), "xx..x..", HOUR).await;
}

#[tokio::test(start_paused = true)]
async fn regional_quota_blocks_on_demand_until_the_next_count() {
    for answer in [Refused(409), FailedLater] {
        let case = on_demand(answer, "OperationNotAllowed", REGIONAL_QUOTA);
        check(case, "xxx.xxx", 10).await;
    }
    // A NodeClaim that may not use anything else is given up, and its pods are planned again.
    let (_, error) = met(&on_demand(Refused(409), "OperationNotAllowed", REGIONAL_QUOTA)).await;
    assert_eq!(error.class, ErrorClass::Capacity);
    assert!(error.message.ends_with("; request more quota for the vCPUs of the region"));
}

#[tokio::test(start_paused = true)]
async fn a_size_that_the_subscription_cannot_have_is_blocked_everywhere() {
    let text = "The VM size is not supported for subscription x";
    check(on_demand(Refused(400), "VMSizeNotSupported", ""), "xxxxx..", ALMOST_A_DAY).await;
    check(on_demand(Refused(400), "BadRequest", text), "xxxxx..", ALMOST_A_DAY).await;
    falls_through_at_once(on_demand(Refused(400), "VMSizeNotSupported", ""), 5).await;
}

#[tokio::test(start_paused = true)]
async fn a_policy_blocks_the_size_and_not_its_family() {
    for answer in [Refused(403), FailedLater] {
        check(on_demand(answer, "RequestDisallowedByPolicy", ""), "xxxx...", HOUR).await;
    }
    falls_through_at_once(on_demand(Refused(403), "RequestDisallowedByPolicy", ""), 4).await;
}

#[tokio::test(start_paused = true)]
async fn quota_in_other_words_is_understood() {
    let aks = on_demand(Refused(400), "ErrCode_InsufficientVCPUQuota", AKS_QUOTA);
    check(aks, "xxx.x..", 10).await;
    check(on_demand(FailedLater, "QuotaExceeded", FAMILY_QUOTA), "xxx.x..", 10).await;
    let portal = "The limit of Standard DSv5 Family vCPUs is reached: request more quota";
    check(on_demand(FailedLater, "OperationNotAllowed", portal), "xxx.x..", 10).await;
    let portal = "The limit of Total Regional Spot vCPUs is reached: request more quota";
    check(spot(FailedLater, "OperationNotAllowed", portal), "xxx.xxx", HOUR).await;
    let unnamed = on_demand(FailedLater, "QuotaExceeded", "Quota exceeded.");
    check(unnamed, "xxx.xxx", 10).await;
    let wrapped = "Code=\"QuotaExceeded\" Message=\"exceeding approved standardDSv5Family Cores\"";
    check(on_demand(FailedLater, "CreateVMSSAgentPoolFailed", wrapped), "xxx.x..", 10).await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_names_the_size_or_the_zone_falls_through() {
    let zone = on_demand(Refused(400), "AvailabilityZoneNotSupported", "");
    check(zone, "x......", HOUR).await;
    let zone = "Ultra disks do not exist in this availability zone.";
    check(on_demand(Refused(400), "BadRequest", zone), "x......", HOUR).await;
    let size = "The VM size Standard_D8s_v5 does not support this OS disk.";
    for answer in [Refused(400), FailedLater] {
        check(on_demand(answer, "OperationNotAllowed", size), "xxx....", HOUR).await;
    }
    falls_through_at_once(on_demand(Refused(400), "NewCodeOfAzure", size), 3).await;
}

/// A user calls a NodePool what he likes, its machines are named after it, and Azure's texts name
/// them.
#[tokio::test(start_paused = true)]
async fn the_name_of_a_nodepool_changes_nothing_of_what_an_error_marks() {
    let policy = "Resource 'NAME' was disallowed by policy. Policy identifiers: corp-baseline.";
    let failed = "The VM aks-aksmanagedap-NAME-12345678-vm of machine NAME was not created.";
    let quota = "NAME results in exceeding approved Total Regional Cores quota";
    for pool in ["web", "stage", "region-tags", "zone-a", "spot-family"] {
        for (status, code, text, class, marks) in [
            (403, "RequestDisallowedByPolicy", policy, ErrorClass::Capacity, "xxxx..."),
            (500, "InternalOperationError", failed, ErrorClass::Transient, "......."),
            (409, "OperationNotAllowed", quota, ErrorClass::Capacity, "xxx.xxx"),
        ] {
            let world = World::new().await;
            let case = on_demand(Refused(status), code, text);
            let name = format!("{pool}-00000");
            world.emulator.schedule_fault(&case.fault().replace("NAME", &name)).unwrap();
            let error = launch(&world, &name, &case.offerings()[..1]).await.unwrap_err();
            assert_eq!(error.class, class, "{pool}: {error}");
            assert_eq!(marks_now(&world, &case).await, marks, "{pool}: {error}");
            assert!(!error.message.contains("spec.tags"), "{pool}: {error}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_names_no_offering_blocks_none() {
    use ErrorClass::{Auth, CreationFailed, Invalid, NodeClassNotReady, Throttled, Transient};
    for (answer, code, class) in [
        (Refused(429), "TooManyRequests", Throttled),
        (Refused(400), "InsufficientSubnetSize", NodeClassNotReady),
        (FailedLater, "InsufficientSubnetSize", CreationFailed),
        (Refused(409), "NicReservedForAnotherVm", Transient),
        (FailedLater, "NicReservedForAnotherVm", CreationFailed),
        (Refused(401), "InvalidAuthenticationToken", Auth),
        (Refused(403), "AuthorizationFailed", Auth),
        (FailedLater, "LinkedAuthorizationFailed", CreationFailed),
        (Refused(409), "ConflictingConcurrentWriteNotAllowed", Transient),
        (Refused(403), "KeyVaultAccessForbidden", Invalid),
        (FailedLater, "KeyVaultAccessForbidden", CreationFailed),
        (Refused(400), "InvalidParameter", Invalid),
        (Refused(400), "NewCodeOfAzure", Invalid),
        (Refused(503), "NewCodeOfAzure", Transient),
        (FailedLater, "NewCodeOfAzure", CreationFailed),
    ] {
        let case = on_demand(answer, code, "no more is said");
        let (world, error) = met(&case).await;
        assert_eq!((error.class, error.code.as_str()), (class, code), "{case}");
        assert_eq!(marks_now(&world, &case).await, ".......", "{case}");
        assert!(error.correlation_id.is_some(), "{case}");
        world.emulator.clear_faults();
        world.clock.sleep(Duration::from_mins(5)).await;
        launch(&world, "default-00001", &case.offerings()[..1]).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_later_failure_of_a_larger_size_prolongs_the_block_of_its_family() {
    let case = spot(FailedLater, "OverconstrainedZonalAllocationRequest", "");
    let (world, _) = met(&case).await;
    world.clock.sleep(Duration::from_mins(30)).await;
    let fault = case.fault().replace(SIZE, LARGER);
    // The larger size is blocked already: a machine that was under way meets the error.
    assert_eq!(marks_now(&world, &case).await, "x...x..");
    world.emulator.clear_faults();
    world.emulator.schedule_fault(&fault.replace(LARGER, SMALLER)).unwrap();
    let smaller = case.offerings()[5..6].to_vec();
    launch(&world, "default-00001", &smaller).await.unwrap_err();
    assert_eq!(marks_now(&world, &case).await, "x...xx.", "the lowest threshold counts");
    world.clock.sleep(Duration::from_mins(40)).await;
    assert_eq!(marks_now(&world, &case).await, "x...xx.", "and the family is blocked for longer");
    world.clock.sleep(Duration::from_mins(30)).await;
    assert_eq!(marks_now(&world, &case).await, ".......");
}

#[tokio::test(start_paused = true)]
async fn what_was_learnt_is_taken_over_by_the_next_process() {
    let case = on_demand(FailedLater, "ZonalAllocationFailed", "");
    let (world, _) = met(&case).await;
    let text = world.provider.capacity_memory(None).unwrap();
    let next = world.emulator.provider();
    next.restore_capacity_memory(&text);
    let types = next.instance_types(&world.class).await.unwrap();
    assert_eq!(marks(&types, &case.offerings()), "x..xx..");
}

/// The operation that the NodeClaim names tells why its machine is gone, also to a process that did
/// not ask for it.
#[tokio::test(start_paused = true)]
async fn the_cause_is_found_after_a_crash_by_the_operation_of_the_nodeclaim() {
    let case = on_demand(FailedLater, "ZonalAllocationFailed", "no capacity here");
    let world = World::new().await;
    world.emulator.schedule_fault(&case.fault()).unwrap();
    let mut claim = claim("default-00000", "1", &[]);
    let first = &case.offerings()[..1];
    let made = world.provider.create(&claim, &world.class, first).await.unwrap();
    let provider_id = Some(made.provider_id.clone());
    claim.status = Some(NodeClaimStatus { provider_id, ..NodeClaimStatus::default() });
    until_created(&world.clock).await;
    world.provider.delete_orphan(&made.provider_id).await.unwrap();
    until_created(&world.clock).await;
    assert_eq!(world.emulator.machines(), []);
    let next = world.emulator.provider();
    let failure = async |claim: &nap_api::NodeClaim| match next.creation(claim).await.unwrap() {
        Creation::Failed(error) => error,
        other => panic!("{other:?}"),
    };
    assert_eq!(failure(&claim).await.code, "MachineGone", "without its annotations");
    claim.metadata.annotations = Some(made.annotations);
    let error = failure(&claim).await;
    assert_eq!((error.class, &*error.code), (ErrorClass::CreationFailed, "ZonalAllocationFailed"));
    assert!(error.correlation_id.is_some());
}

/// What AKS returns of a subnet is not what the class names.
#[tokio::test(start_paused = true)]
async fn a_full_subnet_is_known_however_its_id_is_written() {
    let case = on_demand(FailedLater, "InsufficientSubnetSize", "no address is left");
    for is_named in [true, false] {
        let mut world = World::with(|config| config.states_subnets = true).await;
        world.class.metadata.name = Some("default".to_owned());
        let id = config(&world.clock).subnets.first().cloned();
        world.class.spec.vnet_subnet_id = id.filter(|_| is_named);
        world.emulator.schedule_fault(&case.fault()).unwrap();
        let first = case.offerings()[..1].to_vec();
        let failed = launch(&world, "default-00000", &first).await.unwrap_err();
        assert_eq!(failed.class, ErrorClass::CreationFailed);
        let held = launch(&world, "default-00001", &first).await.unwrap_err();
        assert_eq!(held.class, ErrorClass::NodeClassNotReady, "named: {is_named}");
        assert!(held.message.contains("no address is left"), "{held}");
        assert_eq!(world.emulator.requests()["PUT machine"], 1, "named: {is_named}");
        // Another class waits only for the same subnet.
        world.class.metadata.name = Some("other".to_owned());
        let report = world.provider.inspect_node_class(&world.class).await;
        let subnets = report.findings.contains_key(&NodeClassCondition::Subnets);
        assert_eq!(subnets, is_named, "{:?}", report.findings);
    }
}

/// A pool of no family, and a policy that forbids every size but the dearest.
#[tokio::test(start_paused = true)]
async fn the_only_size_that_a_policy_allows_is_reached() {
    let all = World::new().await;
    let types = all.provider.instance_types(&all.class).await.unwrap();
    let mut sizes: Vec<(UsdPerHour, String)> = types
        .types()
        .iter()
        .filter_map(|one| {
            let offered = one.offerings.iter().filter(|offering| offering.available);
            Some((offered.map(|offering| offering.price).min()?, one.name.clone()))
        })
        .collect();
    sizes.sort();
    // The others would only make the test slower.
    let sizes: Vec<String> = sizes.into_iter().map(|(_, size)| size).step_by(2).take(300).collect();
    let world = World::with(|config| config.sizes = sizes.iter().cloned().collect()).await;
    let (dearest, forbidden) = sizes.split_last().unwrap();
    let mut faults = "faults:".to_owned();
    for size in forbidden {
        write!(
            faults,
            "\n- refusedCreates: {{size: {size}, status: 403, code: RequestDisallowedByPolicy, \
             message: Resource was disallowed by policy.}}"
        )
        .unwrap();
    }
    world.emulator.schedule_faults(&faults).unwrap();
    for number in 0..sizes.len() {
        let claim = claim(&format!("default-{number:05}"), "1", &[]);
        match world.provider.create(&claim, &world.class, &[]).await {
            Ok(made) => {
                assert_eq!(&made.labels["node.kubernetes.io/instance-type"], dearest);
                let marks = world.provider.capacity_memory(None).unwrap().len();
                assert!(marks < 200_000, "{marks} bytes of a ConfigMap");
                return;
            }
            Err(error) => assert_eq!(error.class, ErrorClass::Capacity, "{error}"),
        }
    }
    panic!("{dearest} was never tried");
}
