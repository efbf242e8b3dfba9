//! Fault plans: their effects over time, and the errors of bad ones.

use std::time::Duration;

use nap_kubelets::VmEvent;
use nap_sim::azure::Emulator;
use serde_json::{Value, json};

use crate::arm::{Arm, machine_body, machine_url, pool_url};
use crate::harness::User;
use crate::world::{self, World};

const SIZE: &str = "Standard_D4s_v5";

#[tokio::test(start_paused = true)]
async fn bad_plans_are_refused_with_line_field_and_what_is_allowed() {
    let (emulator, _events) = Emulator::new(world::config(&world::clock())).unwrap();
    for (text, line, parts) in [
        ("faults:\n- stockOut: {}\n- stockout: {}\n", 3, ["stockout", "stockOut"]),
        ("faults:\n- at: soon\n  evict: {}\n", 2, ["at: `soon`", "30s"]),
        ("faults:\n- at: 1m\n", 2, ["exactly one of stockOut", "has 0"]),
        ("faults:\n- {evict: {}, notReady: {}}\n", 2, ["exactly one of", "has 2"]),
        (
            "faults:\n\n- stockOut: {zone: westus-1}\n",
            3,
            ["stockOut.zone: `westus-1`", "eastus-1, eastus-2"],
        ),
        ("faults:\n- stockOut: {size: D4}\n", 2, ["stockOut.size: `D4`", "Standard_D4s_v5"]),
        (
            "faults:\n- neverJoin: {capacityType: Spot}\n",
            2,
            ["neverJoin.capacityType: `Spot`", "on-demand, spot"],
        ),
        ("faults:\n- quota: {of: dsv5, vcpus: 4}\n", 2, ["quota.of: `dsv5`", "standardDSv5Family"]),
        (
            "faults:\n- quota: {of: spot, vcpus: many}\n",
            2,
            ["quota.vcpus: is \"many\"", "0 to 1000000"],
        ),
        ("faults:\n- {throttle: {requests: 3}, for: 1m}\n", 2, ["for:", "leave `for` out"]),
        (
            "faults:\n- slowCreates: {factor: 0}\n",
            2,
            ["slowCreates.factor: is 0;", "from 1 to 1000"],
        ),
        ("faults:\n- stockOut: {room: lots}\n", 2, ["stockOut.room: is \"lots\"", "0 to 1000000"]),
        ("faults:\n- upgrade: {version: latest}\n", 2, ["upgrade.version: `latest`", "1.35.0"]),
        ("fault: []\n", 1, ["fault", "faults"]),
        ("faults: [", 1, ["", ""]),
    ] {
        let error = emulator.schedule_faults(text).unwrap_err();
        assert_eq!(error.line, line, "{text:?}: {error}");
        for part in parts {
            assert!(error.message.contains(part), "{text:?}: {error}");
        }
        assert!(!error.message.contains('\n'), "{error}");
    }
    assert!(emulator.schedule_fault("evict: {count: 1, machine: a}").is_err());
    assert_eq!(emulator.schedule_faults("faults: []\n"), Ok(0));
}

#[tokio::test(start_paused = true)]
async fn the_example_is_a_valid_plan() {
    let (emulator, _events) = Emulator::new(world::config(&world::clock())).unwrap();
    let text = include_str!("../../../../examples/faults.plan");
    assert_eq!(emulator.schedule_faults(text), Ok(9));
}

#[tokio::test(start_paused = true)]
async fn faults_begin_and_end_at_their_times() {
    let world = World::new().await;
    let arm = Arm::new(&world.emulator).await;
    let plan = "faults:\n\
                - {at: 10m, for: 10m, stockOut: {size: 'Standard_D*', zone: eastus-1}}\n\
                - {at: 10m, for: 10m, notAvailable: {zone: eastus-2}}\n\
                - {at: 10m, for: 10m, quota: {of: regional, vcpus: 0}}\n";
    world.emulator.schedule_faults(plan).unwrap();
    let put = async |name: &str, zone: &str| {
        let body = machine_body(SIZE, &[zone], &json!({}));
        arm.put(&machine_url(name), &[], &body).await.code().to_owned()
    };
    let state = async |name: &str| {
        world.clock.sleep(Duration::from_mins(1)).await;
        let machine = arm.get(&machine_url(name)).await;
        machine.text("/properties/provisioningState").to_owned()
    };
    assert_eq!(put("m-1", "1").await, "");
    assert_eq!(state("m-1").await, "Succeeded");
    world.clock.sleep(Duration::from_mins(10)).await;
    assert_eq!(put("m-2", "1").await, "OperationNotAllowed");
    world.emulator.clear_faults();
    assert_eq!(put("m-2", "1").await, "");
    assert_eq!(state("m-2").await, "Succeeded");

    world.emulator.schedule_faults(plan).unwrap();
    world.emulator.schedule_fault("quota: {of: regional, vcpus: 1000}").unwrap();
    world.clock.sleep(Duration::from_mins(12)).await;
    assert_eq!(put("m-3", "1").await, "");
    assert_eq!(put("m-4", "2").await, "SkuNotAvailable");
    assert_eq!(put("m-5", "3").await, "");
    assert_eq!(state("m-3").await, "Failed");
    assert_eq!(state("m-5").await, "Succeeded");
    world.clock.sleep(Duration::from_mins(10)).await;
    assert_eq!(put("m-6", "1").await, "");
    assert_eq!(state("m-6").await, "Succeeded");
}

#[tokio::test(start_paused = true)]
async fn a_place_takes_as_many_vms_as_it_has_room_for() {
    let world = World::new().await;
    let arm = Arm::new(&world.emulator).await;
    let put = async |name: &str, zone: &str| {
        let body = machine_body(SIZE, &[zone], &json!({}));
        arm.put(&machine_url(name), &[], &body).await.code().to_owned()
    };
    let state = async |name: &str| {
        arm.get(&machine_url(name)).await.text("/properties/provisioningState").to_owned()
    };
    world.emulator.schedule_fault("stockOut: {zone: eastus-1, room: 2}").unwrap();
    world.emulator.schedule_fault("notAvailable: {zone: eastus-2, room: 1}").unwrap();
    for name in ["m-1", "m-2", "m-3"] {
        assert_eq!(put(name, "1").await, "");
    }
    assert_eq!([put("m-4", "2").await, put("m-5", "2").await], ["", "SkuNotAvailable"]);
    world.clock.sleep(Duration::from_mins(2)).await;
    let states = [state("m-1").await, state("m-2").await, state("m-3").await];
    assert_eq!(states, ["Succeeded", "Succeeded", "Failed"]);
    let names = json!({ "machineNames": ["m-1"] });
    arm.send(http::Method::POST, &pool_url("/deleteMachines"), &[], &names).await;
    world.clock.sleep(Duration::from_mins(2)).await;
    assert_eq!(put("m-6", "1").await, "");
    world.clock.sleep(Duration::from_mins(2)).await;
    assert_eq!(state("m-6").await, "Succeeded", "a VM that is gone leaves its room");
}

#[tokio::test(start_paused = true)]
async fn creations_are_slow_lost_or_fail_with_a_chosen_error() {
    let world = World::new().await;
    let arm = Arm::new(&world.emulator).await;
    let put = async |name: &str, zone: &str| {
        arm.put(&machine_url(name), &[], &machine_body(SIZE, &[zone], &json!({}))).await
    };
    world.emulator.schedule_fault("slowCreates: {factor: 20}").unwrap();
    world.emulator.schedule_fault("lostCreates: {zone: eastus-2}").unwrap();
    let failed = "failedCreates: {zone: eastus-3, code: VMExtensionProvisioningError, message: x}";
    world.emulator.schedule_fault(failed).unwrap();
    for (name, zone) in [("m-1", "1"), ("m-2", "2"), ("m-3", "3")] {
        assert_eq!(put(name, zone).await.status, 201);
    }
    let state = async |name: &str| {
        arm.get(&machine_url(name)).await.text("/properties/provisioningState").to_owned()
    };
    world.clock.sleep(Duration::from_mins(2)).await;
    assert_eq!([state("m-1").await, state("m-3").await], ["Creating", "Failed"]);
    let machine = arm.get(&machine_url("m-3")).await;
    let code = machine.text("/properties/status/provisioningError/details/0/code");
    assert_eq!(code, "VMExtensionProvisioningError");
    world.clock.sleep(Duration::from_mins(30)).await;
    assert_eq!([state("m-1").await, state("m-2").await], ["Succeeded", "Creating"]);

    world.emulator.schedule_fault("throttle: {requests: 1}").unwrap();
    world.emulator.schedule_fault("unavailable: {requests: 1}").unwrap();
    world.clock.sleep(Duration::from_secs(1)).await;
    let statuses =
        [arm.get(&machine_url("m-1")).await.status, arm.get(&machine_url("m-1")).await.status];
    assert_eq!(statuses, [429, 503]);
    assert_eq!(arm.get(&machine_url("m-1")).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn an_eviction_is_announced_thirty_seconds_before() {
    let mut world = World::new().await;
    let arm = Arm::new(&world.emulator).await;
    for (name, priority) in [("m-1", "Regular"), ("m-2", "Spot"), ("m-3", "Spot")] {
        let mut body = machine_body(SIZE, &["1"], &json!({}));
        body["properties"]["priority"] = priority.into();
        assert_eq!(arm.put(&machine_url(name), &[], &body).await.status, 201);
    }
    for _ in 0..3 {
        world.events.recv().await.unwrap();
    }
    world.emulator.schedule_fault("{at: 5m, evict: {count: 1}}").unwrap();
    let begun = world.clock.now();
    let Some(VmEvent::Condition { node_name, condition, status, .. }) = world.events.recv().await
    else {
        panic!("no notice");
    };
    assert_eq!((condition.as_str(), status), ("PreemptionScheduled", true));
    assert!(node_name.contains("-m-2-"), "the first spot VM by name: {node_name}");
    let noticed = world.clock.now();
    assert_eq!(noticed.duration_since(begun).as_secs(), 300);
    let Some(VmEvent::Deleted { node_name: gone, .. }) = world.events.recv().await else {
        panic!("no eviction");
    };
    assert_eq!(gone, node_name);
    assert_eq!(world.clock.now().duration_since(noticed).as_secs(), 30);
    let machine = arm.get(&machine_url("m-2")).await;
    assert_eq!(machine.text("/properties/status/vmState"), "Deleted");

    world.emulator.schedule_fault("neverJoin: {}").unwrap();
    let body = machine_body(SIZE, &["1"], &json!({}));
    assert_eq!(arm.put(&machine_url("m-4"), &[], &body).await.status, 201);
    world.clock.sleep(Duration::from_mins(5)).await;
    let machine = arm.get(&machine_url("m-4")).await;
    assert_eq!(machine.text("/properties/provisioningState"), "Succeeded");
    assert!(world.events.try_recv().is_err(), "its kubelet never joins");
}

/// Status of a condition of the only Node; empty without it.
async fn condition(user: &User, kind: &str) -> String {
    let nodes = user.nodes().await;
    let node = serde_json::to_value(nodes.first()).unwrap_or_default();
    let all = node.pointer("/status/conditions").and_then(Value::as_array).cloned();
    let found = all.unwrap_or_default().into_iter().find(|one| one["type"] == kind);
    found.map_or_else(String::new, |one| one["status"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test(start_paused = true)]
async fn nodes_are_not_ready_for_a_time_and_evicted_after_a_notice() {
    let user = User::new().await;
    user.run(async {
        user.default_pool(json!({})).await;
        user.deploy("inflate", 1, json!({})).await;
        user.until_running(1).await;
        let azure = user.world.azure();
        azure.schedule_fault("{for: 1m, notReady: {count: 1}}").unwrap();
        user.until("it is not ready", async || condition(&user, "Ready").await == "False").await;
        user.until("it is ready again", async || condition(&user, "Ready").await == "True").await;

        let first = user.nodes().await[0].metadata.name.clone().unwrap();
        let runs = || azure.bill().iter().filter(|vm| vm.deleted.is_none()).count();
        azure.schedule_fault(&format!("evict: {{machine: {first}}}")).unwrap();
        let noticed = async || condition(&user, "PreemptionScheduled").await == "True";
        user.until("the notice is there", noticed).await;
        assert!(runs() >= 1, "the VM runs during the notice");
        user.pass(40).await;
        assert!(azure.bill()[0].deleted.is_some(), "the VM is gone after the notice");
        user.until("another node runs the pod", async || {
            let nodes = user.nodes().await;
            nodes.iter().all(|node| node.metadata.name.as_ref() != Some(&first))
        })
        .await;
        user.until_running(1).await;
    })
    .await;
}
