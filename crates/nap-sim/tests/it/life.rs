//! A machine's life, as the controllers see it.

use nap_api::{Effect, Taint, labels, taints};
use nap_cloud::{CloudProvider, ErrorClass};
use nap_sim::machines::MachineEvent;
use nap_units::{CPU, MEMORY};

use crate::world::{DEFAULT_POOL, World, claim};

#[tokio::test(start_paused = true)]
async fn a_machine_is_made_found_and_deleted() {
    let mut world = World::new().await;
    let claim = claim("default-abc12", "3", &DEFAULT_POOL);
    let made = world.provider.create(&claim, &world.class).await.unwrap();
    assert_eq!(made.node_claim.as_deref(), Some("default-abc12"));
    assert_eq!(made.node_pool.as_deref(), Some("default"));
    assert_eq!(made.labels[labels::CAPACITY_TYPE], "on-demand");
    assert_eq!(made.labels[labels::SKU_FAMILY], "D");
    assert!(made.labels[labels::ZONE].starts_with("eastus-"), "zonal is preferred");
    assert!(made.allocatable.get(CPU) >= 3000);
    assert!(made.annotations[labels::AKS_MACHINE_RESOURCE_ID].ends_with("/machines/default-abc12"));

    let Some(MachineEvent::Created { provider_id, node_name, labels: node, taints, allocatable, .. }) =
        world.events.recv().await
    else {
        panic!("the machine is announced first");
    };
    assert_eq!(provider_id, made.provider_id);
    assert!(provider_id.ends_with(&node_name) && provider_id.contains("/resourceGroups/mc_nap_nap_eastus/"));
    assert!(taints.contains(&Taint::new(taints::UNREGISTERED, Effect::NoExecute)));
    assert!(allocatable.get(MEMORY) >= made.allocatable.get(MEMORY), "a node never has less than was planned with");
    assert!(allocatable.get(CPU) >= made.allocatable.get(CPU));
    for (key, value) in &made.labels {
        // The Hyper-V generation stays on the claim; everything else is on the node too.
        assert_eq!(node.get(key), Some(value), "label {key}");
    }

    assert_eq!(world.provider.get(&made.provider_id).await.unwrap(), made);
    assert_eq!(world.provider.list().await.unwrap(), [made.clone()]);

    world.provider.delete(&claim).await.unwrap();
    world.provider.delete(&claim).await.unwrap();
    assert!(world.provider.get(&made.provider_id).await.unwrap().deleting);
    assert!(matches!(world.events.recv().await, Some(MachineEvent::Deleted { .. })));
    assert_eq!(world.provider.delete(&claim).await.unwrap_err().class, ErrorClass::NotFound);
    assert_eq!(world.provider.get(&made.provider_id).await.unwrap_err().class, ErrorClass::NotFound);
    assert_eq!(world.provider.list().await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn creating_twice_makes_one_machine() {
    let world = World::new().await;
    let claim = claim("default-abc12", "1", &DEFAULT_POOL);
    let first = world.provider.create(&claim, &world.class).await.unwrap();
    // Another process, as after a crash.
    let second = world.emulator.provider().create(&claim, &world.class).await.unwrap();
    assert_eq!(first, second);
    assert_eq!(world.emulator.machines().len(), 1);
    assert_eq!(world.emulator.bill().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_create_that_was_cut_off_is_taken_up_again() {
    let world = World::new().await;
    let claim = claim("default-abc12", "1", &DEFAULT_POOL);
    let cut = std::time::Duration::from_secs(5);
    let lost = tokio::time::timeout(cut, world.provider.create(&claim, &world.class)).await;
    assert!(lost.is_err(), "the machine takes longer than that");
    assert_eq!(world.emulator.machines()[0].state, "Creating");
    let made = world.emulator.provider().create(&claim, &world.class).await.unwrap();
    assert_eq!(world.emulator.machines()[0].provider_id, made.provider_id);
    assert_eq!(world.emulator.bill().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_foreign_machine_of_the_same_name_is_not_taken() {
    let world = World::new().await;
    // Two claim names that differ but share a machine would need a hash clash, so the tag is what must hold: a machine
    // that was made for another claim has another tag.
    let first = claim("default-abc12", "1", &DEFAULT_POOL);
    world.provider.create(&first, &world.class).await.unwrap();
    let mut orphan = claim("default-abc12", "1", &DEFAULT_POOL);
    orphan.metadata.name = Some("default-abc12".to_owned());
    let made = world.provider.create(&orphan, &world.class).await.unwrap();
    world.provider.delete_orphan(&made.provider_id).await.unwrap();
    world.clock.sleep(std::time::Duration::from_secs(60)).await;
    assert_eq!(world.emulator.machines(), []);
    let error = world.provider.delete_orphan("azure:///subscriptions/s/x/virtualMachines/other").await.unwrap_err();
    assert_eq!(error.class, ErrorClass::NotFound);
}

#[tokio::test(start_paused = true)]
async fn zones_are_spread_over_claims() {
    let world = World::new().await;
    let mut zones = std::collections::BTreeSet::new();
    for index in 0..12 {
        let claim = claim(&format!("default-{index:05}"), "1", &DEFAULT_POOL);
        let made = world.provider.create(&claim, &world.class).await.unwrap();
        zones.insert(made.labels[labels::ZONE].clone());
    }
    assert_eq!(zones.into_iter().collect::<Vec<_>>(), ["eastus-1", "eastus-2", "eastus-3"]);
}

#[tokio::test(start_paused = true)]
async fn money_is_counted_from_creation_to_deletion() {
    let world = World::new().await;
    let wanted = [(labels::INSTANCE_TYPE, &["Standard_D4s_v5"][..]), (labels::CAPACITY_TYPE, &["on-demand"])];
    let claim = claim("default-abc12", "1", &wanted);
    world.provider.create(&claim, &world.class).await.unwrap();
    let billed = world.emulator.bill().remove(0);
    assert_eq!(billed.price.to_string(), "$0.192");
    let later = billed.created + jiff::SignedDuration::from_hours(10);
    assert_eq!(world.emulator.total_cost_micros(later), 1_920_000);
    world.provider.delete(&claim).await.unwrap();
    world.clock.sleep(std::time::Duration::from_secs(3600)).await;
    let deleted = world.emulator.bill()[0].deleted.unwrap();
    assert_eq!(world.emulator.total_cost_micros(later), world.emulator.total_cost_micros(deleted));
}
