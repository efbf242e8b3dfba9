//! The agent-pool machines API of the emulator, request by request.

use std::time::Duration;

use http::Method;
use nap_sim::azure::{BucketLimit, RequestLimits};
use serde_json::{Value, json};

use crate::arm::{Answer, Arm, BASE, machine_body, machine_url, pool_url};
use crate::world::World;

const SIZE: &str = "Standard_D4s_v5";

/// The `BatchPutMachine` header of machines with their zones.
fn batch(machines: &[(&str, &[&str])]) -> String {
    let machines: Vec<Value> = machines
        .iter()
        .map(|(name, zones)| {
            json!({ "machineName": name, "zones": zones, "tags": { "claim": name } })
        })
        .collect();
    json!({ "batchMachines": machines }).to_string()
}

async fn put_batch(arm: &Arm, machines: &[(&str, &[&str])], size: &str) -> Answer {
    let header = batch(machines);
    let mut body = machine_body(size, &[], &json!(null));
    body["zones"] = Value::Null;
    arm.put(&machine_url(machines[0].0), &[("BatchPutMachine", &header)], &body).await
}

#[tokio::test(start_paused = true)]
async fn a_batch_creates_each_machine_with_its_own_zones_and_tags() {
    let mut world = World::new().await;
    let arm = Arm::new(&world.emulator).await;
    let answer = put_batch(&arm, &[("m-1", &["1"]), ("m-2", &["2"]), ("m-3", &[])], SIZE).await;
    assert_eq!((answer.status, answer.text("/name")), (200, "m-1"));
    for (name, zones) in [("m-1", json!(["1"])), ("m-2", json!(["2"])), ("m-3", json!([]))] {
        let machine = arm.get(&machine_url(name)).await;
        assert_eq!(machine.text("/properties/provisioningState"), "Creating");
        assert_eq!(machine.body["zones"], zones);
        assert_eq!(machine.body["properties"]["tags"], json!({ "claim": name }));
        assert_eq!(machine.text("/properties/hardware/vmSize"), SIZE);
        // The VM's id and the time are known before the VM exists.
        assert!(machine.text("/properties/resourceId").ends_with("-vm"), "{machine:?}");
        let time = machine.text("/properties/status/creationTimestamp");
        assert!(time.parse::<jiff::Timestamp>().is_ok(), "{time}");
    }
    for _ in 0..3 {
        world.events.recv().await.unwrap();
    }
    let operation = arm.get(answer.header("azure-asyncoperation")).await;
    assert_eq!(operation.text("/status"), "Succeeded");
    let all = arm.get(&pool_url("/machines")).await;
    let names: Vec<&str> = all.body["value"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|one| one["name"].as_str())
        .collect();
    assert_eq!(names, ["m-1", "m-2", "m-3"]);

    // The same request again changes nothing.
    let again = put_batch(&arm, &[("m-1", &["1"]), ("m-2", &["2"])], SIZE).await;
    assert_eq!((again.status, world.emulator.machines().len()), (200, 3));
}

#[tokio::test(start_paused = true)]
async fn failures_of_single_machines_leave_the_rest_of_a_batch() {
    let world = World::new().await;
    let arm = Arm::new(&world.emulator).await;
    let answer = put_batch(&arm, &[("m-1", &["1"]), ("m-2", &["9"]), ("M_3", &[])], SIZE).await;
    assert_eq!((answer.status, answer.code()), (400, "BatchMachineClientError"));
    assert!(answer.body.get("error").is_none(), "the body of a batch error has no envelope");
    let details = answer.body["details"].as_array().unwrap();
    let found: Vec<_> = details
        .iter()
        .map(|one| (one["target"].as_str().unwrap(), one["code"].as_str().unwrap()))
        .collect();
    assert_eq!(found, [("m-2", "AvailabilityZoneNotSupported"), ("M_3", "InvalidParameter")]);
    let names: Vec<_> = world.emulator.machines().into_iter().map(|one| one.name).collect();
    assert_eq!(names, ["m-1"]);

    // Only internal errors: the details are text in the message.
    world.emulator.set_faults(|faults| faults.internal_errors_next = 1);
    let answer = put_batch(&arm, &[("m-4", &["1"]), ("m-5", &["1"])], SIZE).await;
    assert_eq!((answer.status, answer.code()), (500, "BatchMachineInternalServerError"));
    let inner: Value = serde_json::from_str(answer.message()).unwrap();
    assert_eq!(inner["details"][0]["target"], "m-4");
    assert_eq!(inner["details"].as_array().unwrap().len(), 1);
    assert_eq!(world.emulator.machines().len(), 2);

    // A problem of the template is that of the whole request.
    let answer = put_batch(&arm, &[("m-6", &["1"]), ("m-7", &["1"])], "Standard_X9").await;
    assert_eq!((answer.status, answer.code()), (400, "VMSizeNotSupported"));
    assert_eq!(world.emulator.machines().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_batch_of_more_than_fifty_machines_is_refused() {
    let world = World::new().await;
    let arm = Arm::new(&world.emulator).await;
    let names: Vec<String> = (0..51).map(|index| format!("m-{index}")).collect();
    let machines: Vec<(&str, &[&str])> =
        names.iter().map(|name| (name.as_str(), [].as_slice())).collect();
    let answer = put_batch(&arm, &machines, SIZE).await;
    assert_eq!((answer.status, answer.code()), (400, "InvalidParameter"));
    assert!(answer.message().contains("at most 50"), "{}", answer.message());
    let answer = put_batch(&arm, &machines[..50], SIZE).await;
    assert_eq!((answer.status, world.emulator.machines().len()), (200, 50));
}

#[tokio::test(start_paused = true)]
async fn quota_counts_within_a_batch_and_is_reported_in_the_words_of_azure() {
    let world = World::with(|config| config.regional_quota = 10).await;
    let arm = Arm::new(&world.emulator).await;
    let answer = put_batch(&arm, &[("m-1", &[]), ("m-2", &[]), ("m-3", &[])], SIZE).await;
    assert_eq!(answer.body["details"].as_array().unwrap().len(), 1);
    let detail = &answer.body["details"][0];
    assert_eq!(
        (&detail["target"], &detail["code"]),
        (&json!("m-3"), &json!("OperationNotAllowed"))
    );
    let message = detail["message"].as_str().unwrap();
    assert!(
        message.contains("exceeding approved Total Regional Cores quota")
            && message.contains("Current Limit: 10, Current Usage: 8, Additional Required: 4"),
        "{message}"
    );

    world.emulator.set_faults(|faults| {
        faults.regional_quota = Some(1000);
        faults.spot_quota = Some(2);
        faults.family_quota.insert("standardDSv5Family".to_owned(), 9);
    });
    let body = machine_body(SIZE, &[], &json!({}));
    let family = arm.put(&machine_url("m-4"), &[], &body).await;
    assert_eq!((family.status, family.code()), (409, "OperationNotAllowed"));
    let text = "exceeding approved standardDSv5Family Cores quota";
    assert!(family.message().contains(text), "{}", family.message());
    let mut spot = body.clone();
    spot["properties"]["priority"] = "Spot".into();
    let spot = arm.put(&machine_url("m-4"), &[], &spot).await;
    assert!(spot.message().contains("approved LowPriorityCores quota"), "{}", spot.message());

    let url = format!("{BASE}/providers/Microsoft.Compute/locations/eastus/usages");
    let usages = arm.get(&format!("{url}?api-version=2025-04-01")).await;
    let usage = |name: &str| {
        let all = usages.body["value"].as_array().unwrap();
        let one = all.iter().find(|one| one["name"]["value"] == name).unwrap();
        (one["currentValue"].as_i64().unwrap(), one["limit"].as_i64().unwrap())
    };
    assert_eq!(usage("cores"), (8, 1000));
    assert_eq!(usage("lowPriorityCores"), (0, 2));
    assert_eq!(usage("standardDSv5Family"), (8, 9));
}

#[tokio::test(start_paused = true)]
async fn operations_are_followed_by_status_and_by_location() {
    let world = World::new().await;
    let arm = Arm::new(&world.emulator).await;
    world.emulator.set_faults(|faults| {
        faults.capacity_errors.insert((SIZE.to_owned(), "eastus-2".to_owned()));
    });
    let body = |zone: &str| machine_body(SIZE, &[zone], &json!({}));
    let made = arm.put(&machine_url("m-1"), &[], &body("1")).await;
    let failing = arm.put(&machine_url("m-2"), &[], &body("2")).await;
    assert_eq!((made.status, failing.status), (201, 201));
    assert_eq!(made.header("retry-after"), "5");
    let (status, location) = (made.header("azure-asyncoperation"), made.header("location"));
    assert_eq!(arm.get(status).await.text("/status"), "InProgress");
    let waiting = arm.get(location).await;
    assert_eq!((waiting.status, waiting.header("retry-after")), (202, "5"));

    world.clock.sleep(Duration::from_mins(1)).await;
    assert_eq!(arm.get(status).await.text("/status"), "Succeeded");
    let result = arm.get(location).await;
    assert_eq!((result.status, result.text("/properties/provisioningState")), (200, "Succeeded"));
    let failed = arm.get(failing.header("azure-asyncoperation")).await;
    assert_eq!(failed.text("/status"), "Failed");
    assert_eq!(failed.text("/error/code"), "ZonalAllocationFailed");
    let machine = arm.get(&machine_url("m-2")).await;
    assert_eq!(machine.text("/properties/provisioningState"), "Failed");
    let code = machine.text("/properties/status/provisioningError/details/0/code");
    assert_eq!(code, "ZonalAllocationFailed");

    let names = json!({ "machineNames": ["m-1", "m-2", "unknown"] });
    let deletes = pool_url("/deleteMachines");
    let gone = arm.send(Method::POST, &deletes, &[], &names).await;
    assert_eq!(gone.status, 202);
    assert_eq!(arm.get(gone.header("location")).await.status, 202);
    world.clock.sleep(Duration::from_mins(1)).await;
    assert_eq!(arm.get(gone.header("location")).await.status, 204);
    assert_eq!(world.emulator.machines(), []);
    let nothing = arm.send(Method::POST, &deletes, &[], &names).await;
    assert_eq!((nothing.status, nothing.code()), (400, "InvalidParameter"));
}

#[tokio::test(start_paused = true)]
async fn tags_change_in_place_and_a_stale_etag_is_refused() {
    let world = World::new().await;
    let arm = Arm::new(&world.emulator).await;
    let (url, body) = (machine_url("m-1"), |tags: &Value| machine_body(SIZE, &["1"], tags));
    arm.put(&url, &[], &body(&json!({ "a": "1" }))).await;
    let busy = arm.put(&url, &[], &body(&json!({ "a": "2" }))).await;
    assert_eq!((busy.status, busy.code()), (409, "AnotherOperationInProgress"));
    world.clock.sleep(Duration::from_mins(1)).await;
    let before = arm.get(&url).await;
    let etag = before.text("/properties/eTag").to_owned();
    assert_eq!(before.header("etag"), format!("\"{etag}\""));

    // What a GET returned may be sent back with other tags.
    let mut changed = before.body.clone();
    changed["properties"]["tags"] = json!({ "b": "2" });
    let answer = arm.put(&url, &[("If-Match", &etag)], &changed).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.text("/properties/provisioningState"), "Updating");
    assert_eq!(answer.body["properties"]["tags"], json!({ "b": "2" }));
    let stale = arm.put(&url, &[("If-Match", &etag)], &body(&json!({}))).await;
    assert_eq!((stale.status, stale.code()), (412, "PreconditionFailed"));
    let exists = arm.put(&url, &[("If-None-Match", "*")], &changed).await;
    assert_eq!(exists.status, 412);
    let missing = arm.put(&machine_url("m-2"), &[("If-Match", "*")], &changed).await;
    assert_eq!(missing.status, 412);
    world.clock.sleep(Duration::from_mins(1)).await;
    let after = arm.get(&url).await;
    assert_eq!(after.text("/properties/provisioningState"), "Succeeded");
    assert_eq!(after.text("/properties/resourceId"), before.text("/properties/resourceId"));

    let mut other = body(&json!({}));
    other["properties"]["operatingSystem"]["osDiskSizeGB"] = 64.into();
    let refused = arm.put(&url, &[], &other).await;
    assert_eq!((refused.status, refused.code()), (400, "PropertyChangeNotAllowed"));
    assert!(refused.message().contains("properties.operatingSystem.osDiskSizeGB"));
}

#[tokio::test(start_paused = true)]
async fn answers_carry_ids_and_the_requests_that_are_left() {
    let world = World::new().await;
    let arm = Arm::new(&world.emulator).await;
    let url = pool_url("/machines");
    let first = arm.get(&url).await;
    let second = arm.get(&url).await;
    assert_ne!(first.header("x-ms-request-id"), second.header("x-ms-request-id"));
    assert!(!first.header("x-ms-correlation-request-id").is_empty());
    assert_eq!(first.header("x-ms-client-request-id"), "");
    let sent = [("x-ms-client-request-id", "mine"), ("x-ms-correlation-request-id", "case-7")];
    let silent = arm.send(Method::GET, &url, &sent, &Value::Null).await;
    assert_eq!(silent.header("x-ms-client-request-id"), "");
    assert_eq!(silent.header("x-ms-correlation-request-id"), "case-7");
    let sent = [sent[0], ("x-ms-return-client-request-id", "true")];
    let echoed = arm.send(Method::GET, &url, &sent, &Value::Null).await;
    assert_eq!(echoed.header("x-ms-client-request-id"), "mine");
    let left = |answer: &Answer| -> i64 {
        answer.header("x-ms-ratelimit-remaining-subscription-reads").parse().unwrap()
    };
    assert_eq!(left(&first) - left(&second), 1);
    let made = arm.put(&machine_url("m-1"), &[], &machine_body(SIZE, &[], &json!({}))).await;
    assert_eq!(made.header("x-ms-ratelimit-remaining-subscription-writes"), "199");
}

#[tokio::test(start_paused = true)]
async fn requests_beyond_the_limits_are_throttled_by_principal() {
    let limits =
        RequestLimits { reads: BucketLimit { size: 5, refill: 1 }, ..RequestLimits::default() };
    let world = World::with(|config| config.request_limits = Some(limits)).await;
    let arm = Arm::with_identity(&world.emulator, "one").await;
    let url = pool_url("/machines");
    for _ in 0..5 {
        assert_eq!(arm.get(&url).await.status, 200);
    }
    let throttled = arm.get(&url).await;
    assert_eq!((throttled.status, throttled.code()), (429, "SubscriptionRequestsThrottled"));
    assert_eq!(throttled.header("retry-after"), "1");
    let other = Arm::with_identity(&world.emulator, "two").await;
    assert_eq!(other.get(&url).await.status, 200);
    // Writes have their own bucket.
    let made = arm.put(&machine_url("m-1"), &[], &machine_body(SIZE, &[], &json!({}))).await;
    assert_eq!(made.status, 201);
    world.clock.sleep(Duration::from_secs(2)).await;
    assert_eq!(arm.get(&url).await.status, 200);
}
