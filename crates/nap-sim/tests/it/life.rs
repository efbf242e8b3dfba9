//! The provider's create, get, list and delete against the emulator.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::join_all;
use nap_api::{Effect, NodeClaimStatus, Taint, labels, taints};
use nap_azure::machines::Machines;
use nap_cloud::{CloudProvider, Creation, ErrorClass};
use nap_kubelets::VmEvent;
use nap_units::{CPU, MEMORY};
use serde_json::json;

use crate::world::{DEFAULT_POOL, World, claim, until_created, without_operation};

#[tokio::test(start_paused = true)]
async fn vm_is_created_listed_and_deleted() {
    let mut world = World::new().await;
    let claim = claim("default-abc12", "3", &DEFAULT_POOL);
    let made = world.provider.create(&claim, &world.class, &[]).await.unwrap();
    assert_eq!(made.node_claim.as_deref(), Some("default-abc12"));
    assert_eq!(made.node_pool.as_deref(), Some("default"));
    assert_eq!(made.labels[labels::CAPACITY_TYPE], "on-demand");
    assert_eq!(made.labels[labels::SKU_FAMILY], "D");
    assert!(made.labels[labels::ZONE].starts_with("eastus-"), "zonal is preferred");
    assert!(made.allocatable.get(CPU) >= 3000);
    assert!(made.annotations[labels::AKS_MACHINE_RESOURCE_ID].ends_with("/machines/default-abc12"));

    let Some(VmEvent::Created {
        provider_id, node_name, labels: node, taints, allocatable, ..
    }) = world.events.recv().await
    else {
        panic!("the machine is announced first");
    };
    assert_eq!(provider_id, made.provider_id);
    assert!(
        provider_id.ends_with(&node_name)
            && provider_id.contains("/resourceGroups/mc_nap_nap_eastus/")
    );
    assert!(taints.contains(&Taint::new(taints::UNREGISTERED, Effect::NoExecute)));
    assert!(
        allocatable.get(MEMORY) >= made.allocatable.get(MEMORY),
        "a node never has less than was planned with"
    );
    assert!(allocatable.get(CPU) >= made.allocatable.get(CPU));
    for (key, value) in &made.labels {
        assert_eq!(node.get(key), Some(value), "label {key}");
    }

    let made = without_operation(made);
    assert_eq!(world.provider.get(&made.provider_id).await.unwrap(), made);
    assert_eq!(world.provider.list().await.unwrap(), std::slice::from_ref(&made));

    world.provider.delete(&claim).await.unwrap();
    world.provider.delete(&claim).await.unwrap();
    assert!(world.provider.get(&made.provider_id).await.unwrap().deleting);
    assert!(matches!(world.events.recv().await, Some(VmEvent::Deleted { .. })));
    assert_eq!(world.provider.delete(&claim).await.unwrap_err().class, ErrorClass::NotFound);
    assert_eq!(
        world.provider.get(&made.provider_id).await.unwrap_err().class,
        ErrorClass::NotFound
    );
    assert_eq!(world.provider.list().await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn create_is_idempotent() {
    let world = World::new().await;
    let claim = claim("default-abc12", "1", &DEFAULT_POOL);
    let first = world.provider.create(&claim, &world.class, &[]).await.unwrap();
    // A new provider, as after a crash.
    let second = world.emulator.provider().create(&claim, &world.class, &[]).await.unwrap();
    assert_eq!(without_operation(first), second);
    assert_eq!(world.emulator.machines().len(), 1);
    until_created(&world.clock).await;
    assert_eq!(world.emulator.bill().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn create_returns_when_the_machine_is_accepted() {
    let world = World::new().await;
    let mut claim = claim("default-abc12", "1", &DEFAULT_POOL);
    let begun = world.clock.now();
    let made = world.provider.create(&claim, &world.class, &[]).await.unwrap();
    assert_eq!(world.clock.now().duration_since(begun).as_secs(), 0);
    assert_eq!(world.emulator.machines()[0].state, "Creating");
    claim.status =
        Some(NodeClaimStatus { provider_id: Some(made.provider_id), ..Default::default() });
    world.clock.sleep(Duration::from_secs(6)).await;
    let progress = world.provider.creation(&claim).await.unwrap();
    assert!(matches!(progress, Creation::InProgress), "{progress:?}");
    until_created(&world.clock).await;
    let progress = world.provider.creation(&claim).await.unwrap();
    assert!(matches!(progress, Creation::Succeeded), "{progress:?}");
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_fails_after_it_was_accepted_is_reported_with_its_cause() {
    let world = World::new().await;
    world.emulator.set_faults(|faults| {
        for zone in ["eastus-1", "eastus-2", "eastus-3", "0"] {
            faults.capacity_errors.insert(("Standard_D4s_v5".to_owned(), zone.to_owned()));
        }
    });
    let wanted = [(labels::INSTANCE_TYPE, &["Standard_D4s_v5"][..])];
    let mut claim = claim("default-abc12", "1", &wanted);
    let made = world.provider.create(&claim, &world.class, &[]).await.unwrap();
    let provider_id = Some(made.provider_id.clone());
    claim.status = Some(NodeClaimStatus { provider_id, ..Default::default() });
    until_created(&world.clock).await;
    // Another process has only what is in the cluster.
    let restarted = world.emulator.provider();
    let Creation::Failed(error) = restarted.creation(&claim).await.unwrap() else {
        panic!("the machine has failed");
    };
    assert_eq!(error.class, ErrorClass::CreationFailed);
    assert_eq!(error.code, "ZonalAllocationFailed");
    let types = restarted.instance_types(&world.class).await.unwrap();
    let size = types.types().iter().find(|one| one.name == "Standard_D4s_v5").unwrap();
    let zone = &made.labels[labels::ZONE];
    let offering = size.offerings.iter().find(|one| one.zone == *zone).unwrap();
    assert!(!offering.available, "the failure is remembered");
    let again = restarted.create(&claim, &world.class, &[]).await.unwrap_err();
    assert_eq!(again.class, ErrorClass::CreationFailed, "the name is taken");
    restarted.delete(&claim).await.unwrap();
    until_created(&world.clock).await;
    assert_eq!(world.emulator.machines(), []);
}

#[tokio::test(start_paused = true)]
async fn interrupted_create_is_resumed() {
    let world = World::new().await;
    let claim = claim("default-abc12", "1", &DEFAULT_POOL);
    // The process ends after the request was sent and before it is answered.
    let cut = Duration::from_millis(200);
    let lost = tokio::time::timeout(cut, world.provider.create(&claim, &world.class, &[])).await;
    assert!(lost.is_err(), "machines are gathered for longer than that");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let first = world.provider.create(&claim, &world.class, &[]).await.unwrap();
    let made = world.emulator.provider().create(&claim, &world.class, &[]).await.unwrap();
    assert_eq!(first.provider_id, made.provider_id);
    until_created(&world.clock).await;
    assert_eq!(world.emulator.bill().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_burst_takes_few_requests() {
    let world = World::new().await;
    world.provider.instance_types(&world.class).await.unwrap();
    let before = world.emulator.requests();
    let claims: Vec<_> =
        (0..120).map(|n| claim(&format!("default-{n:05}"), "1", &DEFAULT_POOL)).collect();
    let made =
        join_all(claims.iter().map(|claim| world.provider.create(claim, &world.class, &[]))).await;
    assert!(made.iter().all(Result::is_ok));
    join_all(claims.iter().map(|claim| world.provider.delete(claim))).await;
    let sent = |what: &str| {
        let count = |all: &std::collections::BTreeMap<String, u64>| {
            all.get(what).copied().unwrap_or_default()
        };
        count(&world.emulator.requests()) - count(&before)
    };
    // Three zones share a template, and a request takes fifty machines, or as many as its header
    // may name.
    assert_eq!(sent("PUT machine"), 4);
    assert!(sent("POST deleteMachines") <= 3, "{}", sent("POST deleteMachines"));
    assert_eq!(sent("GET machine"), 0);
    assert!(sent("GET machines") <= 5, "{}", sent("GET machines"));
    assert_eq!(world.emulator.machines().len(), 120);
}

#[tokio::test(start_paused = true)]
async fn machine_of_another_owner_is_not_adopted() {
    let world = World::new().await;
    let machines = Machines::new(world.provider.arm().clone(), world.provider.config());
    let body = json!({ "zones": [], "properties": {
        "hardware": { "vmSize": "Standard_D4s_v5" },
        "nodeImageVersion": "AKSUbuntu-2404gen2containerd-202610.12.0",
        "tags": { "karpenter.azure.com_aksmachine_nodeclaim": "another" },
    }});
    machines.put("default-abc12", &body).await.unwrap();
    let claim = claim("default-abc12", "1", &DEFAULT_POOL);
    let error = world.provider.create(&claim, &world.class, &[]).await.unwrap_err();
    assert_eq!((error.class, error.code.as_str()), (ErrorClass::Invalid, "MachineNameTaken"));
    assert_eq!(world.provider.list().await.unwrap(), [], "it belongs to no NodePool");
}

#[tokio::test(start_paused = true)]
async fn orphan_is_deleted_by_provider_id() {
    let world = World::new().await;
    let claim = claim("default-abc12", "1", &DEFAULT_POOL);
    let made = world.provider.create(&claim, &world.class, &[]).await.unwrap();
    world.provider.delete_orphan(&made.provider_id).await.unwrap();
    world.clock.sleep(Duration::from_mins(1)).await;
    assert_eq!(world.emulator.machines(), []);
    let gone = world.provider.delete_orphan(&made.provider_id).await.unwrap_err();
    assert_eq!(gone.class, ErrorClass::NotFound);
}

#[tokio::test(start_paused = true)]
async fn id_of_another_cloud_counts_as_gone_but_no_vm_of_azure_does() {
    let world = World::new().await;
    let vm = |group: &str, name: &str| {
        let compute = "providers/Microsoft.Compute/virtualMachines";
        format!("azure:///subscriptions/s/resourceGroups/{group}/{compute}/{name}")
    };
    let own = &world.provider.config().node_resource_group;
    for id in ["Provider:///AZ/i-0123456789", ""] {
        assert_eq!(world.provider.get(id).await.unwrap_err().class, ErrorClass::NotFound, "{id}");
    }
    let classic = vm(own, "aks-default-abc12");
    for id in [&vm("other", "vm"), &classic] {
        assert_eq!(world.provider.get(id).await.unwrap_err().class, ErrorClass::Invalid, "{id}");
    }
    let mut claim = claim("default-abc12", "1", &DEFAULT_POOL);
    claim.status = Some(NodeClaimStatus { provider_id: Some(classic), ..Default::default() });
    assert_eq!(world.provider.delete(&claim).await.unwrap_err().class, ErrorClass::Invalid);
}

#[tokio::test(start_paused = true)]
async fn delete_finds_the_machine_by_name_behind_a_foreign_provider_id() {
    let world = World::new().await;
    let mut claim = claim("default-abc12", "1", &DEFAULT_POOL);
    world.provider.create(&claim, &world.class, &[]).await.unwrap();
    let provider_id = Some("Provider:///AZ/i-0123456789".to_owned());
    claim.status = Some(NodeClaimStatus { provider_id, ..Default::default() });
    world.provider.delete(&claim).await.unwrap();
    world.clock.sleep(Duration::from_mins(1)).await;
    assert_eq!(world.emulator.machines(), []);
    assert_eq!(world.provider.delete(&claim).await.unwrap_err().class, ErrorClass::NotFound);
}

#[tokio::test(start_paused = true)]
async fn delete_leaves_the_machine_of_another_nodeclaim_alone() {
    let world = World::new().await;
    let theirs = claim("default-abc12", "1", &DEFAULT_POOL);
    let made = world.provider.create(&theirs, &world.class, &[]).await.unwrap();
    let mut forged = claim("default-xyz89", "1", &DEFAULT_POOL);
    let provider_id = Some(made.provider_id.clone());
    forged.status = Some(NodeClaimStatus { provider_id, ..Default::default() });
    assert_eq!(world.provider.delete(&forged).await.unwrap_err().class, ErrorClass::NotFound);
    assert!(!world.provider.get(&made.provider_id).await.unwrap().deleting);

    let machines = Machines::new(world.provider.arm().clone(), world.provider.config());
    let body = json!({ "zones": [], "properties": {
        "hardware": { "vmSize": "Standard_D4s_v5" },
        "nodeImageVersion": "AKSUbuntu-2404gen2containerd-202610.12.0",
        "tags": { "karpenter.azure.com_aksmachine_nodeclaim": "another" },
    }});
    machines.put("default-same1", &body).await.unwrap();
    let same = claim("default-same1", "1", &DEFAULT_POOL);
    assert_eq!(world.provider.delete(&same).await.unwrap_err().class, ErrorClass::NotFound);
    assert_eq!(world.emulator.machines().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn machine_of_a_standalone_nodeclaim_is_listed() {
    let world = World::new().await;
    let mut alone = claim("alone", "1", &DEFAULT_POOL);
    alone.metadata.labels = None;
    let made = world.provider.create(&alone, &world.class, &[]).await.unwrap();
    let listed = world.provider.list().await.unwrap();
    assert_eq!(listed, [without_operation(made)]);
    assert_eq!((listed[0].node_claim.as_deref(), &listed[0].node_pool), (Some("alone"), &None));
}

#[tokio::test(start_paused = true)]
async fn concurrent_claims_get_one_vm_each() {
    let world = World::new().await;
    world.emulator.set_faults(|faults| {
        faults.throttle_next = 5;
    });
    let claims: Vec<_> =
        (0..40).map(|n| claim(&format!("default-{n:05}"), "1", &DEFAULT_POOL)).collect();
    let made =
        join_all(claims.iter().map(|claim| world.provider.create(claim, &world.class, &[]))).await;
    let ids: BTreeSet<String> = made.into_iter().map(|made| made.unwrap().provider_id).collect();
    assert_eq!(ids.len(), 40);
    assert_eq!(world.provider.list().await.unwrap().len(), 40);
    until_created(&world.clock).await;
    assert_eq!(world.emulator.bill().len(), 40);
}

#[tokio::test(start_paused = true)]
async fn zones_are_spread_over_claims() {
    let world = World::new().await;
    let mut zones = BTreeSet::new();
    for index in 0..12 {
        let claim = claim(&format!("default-{index:05}"), "1", &DEFAULT_POOL);
        let made = world.provider.create(&claim, &world.class, &[]).await.unwrap();
        zones.insert(made.labels[labels::ZONE].clone());
    }
    assert_eq!(zones.into_iter().collect::<Vec<_>>(), ["eastus-1", "eastus-2", "eastus-3"]);
}

#[tokio::test(start_paused = true)]
async fn vm_is_billed_from_creation_to_deletion() {
    let world = World::new().await;
    let wanted = [
        (labels::INSTANCE_TYPE, &["Standard_D4s_v5"][..]),
        (labels::CAPACITY_TYPE, &["on-demand"]),
    ];
    let claim = claim("default-abc12", "1", &wanted);
    world.provider.create(&claim, &world.class, &[]).await.unwrap();
    until_created(&world.clock).await;
    let billed = world.emulator.bill().remove(0);
    assert_eq!(billed.price.to_string(), "$0.192");
    let later = billed.created + jiff::SignedDuration::from_hours(10);
    assert_eq!(world.emulator.total_cost_micros(later), 1_920_000);
    world.provider.delete(&claim).await.unwrap();
    world.clock.sleep(Duration::from_hours(1)).await;
    let deleted = world.emulator.bill()[0].deleted.unwrap();
    assert_eq!(world.emulator.total_cost_micros(later), world.emulator.total_cost_micros(deleted));
}

#[tokio::test(start_paused = true)]
async fn evicted_vm_counts_as_gone_and_can_still_be_deleted() {
    let mut world = World::new().await;
    let claim = claim("default-abc12", "1", &[(labels::CAPACITY_TYPE, &["spot"])]);
    let made = world.provider.create(&claim, &world.class, &[]).await.unwrap();
    assert!(matches!(world.events.recv().await, Some(VmEvent::Created { .. })));
    assert!(world.emulator.evict("default-abc12"));
    assert!(!world.emulator.evict("default-abc12"));
    assert!(matches!(world.events.recv().await, Some(VmEvent::Deleted { .. })));
    assert!(world.emulator.bill()[0].deleted.is_some());
    assert_eq!(
        world.provider.get(&made.provider_id).await.unwrap_err().class,
        ErrorClass::NotFound
    );
    assert!(world.provider.list().await.unwrap()[0].lost, "only its record is left");
    world.provider.delete(&claim).await.unwrap();
    world.clock.sleep(Duration::from_mins(1)).await;
    assert_eq!(world.emulator.machines(), []);
    assert!(world.events.try_recv().is_err(), "the VM was gone before");
}
