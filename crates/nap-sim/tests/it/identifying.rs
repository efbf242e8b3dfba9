//! Which machine is whose: what the provider cannot know is an error, never gone, and a machine
//! without the tags of the cluster is never deleted.

use std::time::Duration;

use kube::api::{Patch, PatchParams};
use nap_api::{NodeClaim, NodeClaimStatus};
use nap_azure::{AzureConfig, AzureProvider};
use nap_cloud::{CloudError, CloudProvider, Instance};
use nap_sim::azure::VmIds;
use serde_json::json;

use crate::harness::User;
use crate::world::{DEFAULT_POOL, World, claim, until_created};

/// Launches a machine; returns its NodeClaim as the controllers would store it.
async fn launched(world: &World, name: &str) -> (NodeClaim, Instance) {
    let mut claim = claim(name, "1", &DEFAULT_POOL);
    let made = world.provider.create(&claim, &world.class, &[]).await.unwrap();
    let provider_id = Some(made.provider_id.clone());
    claim.status = Some(NodeClaimStatus { provider_id, ..NodeClaimStatus::default() });
    claim.metadata.annotations = Some(made.annotations.clone());
    until_created(&world.clock).await;
    (claim, made)
}

fn settings(world: &World, change: impl FnOnce(&mut AzureConfig)) -> AzureProvider {
    let mut config = world.provider.config().clone();
    change(&mut config);
    world.emulator.provider_with(config)
}

fn is_unknown(error: &CloudError) -> bool {
    !error.is_not_found()
}

type Change = fn(&mut AzureConfig);

#[tokio::test(start_paused = true)]
async fn wrong_settings_make_no_machine_gone() {
    let world = World::new().await;
    let (claim, made) = launched(&world, "default-abc12").await;
    let wrong: [(&str, Change); 4] = [
        ("subscription", |config| config.subscription_id = "another".to_owned()),
        ("resource group", |config| config.resource_group = "another".to_owned()),
        ("cluster", |config| config.cluster_name = "another".to_owned()),
        ("node resource group", |config| config.node_resource_group = "another".to_owned()),
    ];
    for (what, change) in wrong {
        let provider = settings(&world, change);
        let deleted = provider.delete(&claim).await;
        let got = provider.get(&made.provider_id).await.map(|_| ());
        let orphan = provider.delete_orphan(&made.provider_id).await;
        if what == "node resource group" {
            // The machine is found by its own id, and is the NodeClaim's by its tag.
            assert!(is_unknown(&got.unwrap_err()) && is_unknown(&orphan.unwrap_err()), "{what}");
            continue;
        }
        for result in [deleted, got, orphan, provider.list().await.map(|_| ())] {
            let error = result.expect_err(what);
            assert!(is_unknown(&error), "{what}: {error:?}");
        }
        assert_eq!(world.emulator.machines().len(), 1, "{what}");
    }
    world.provider.delete(&claim).await.ok();
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_does_not_exist_yet_has_no_machines() {
    let world = World::with(|config| config.surroundings.machines_pool = false).await;
    assert_eq!(world.provider.list().await.unwrap(), Vec::<Instance>::new());
}

#[tokio::test(start_paused = true)]
async fn machines_are_found_whatever_their_vms_are_called() {
    let world = World::with(|config| config.vm_ids = VmIds::Opaque).await;
    let (mut claim, made) = launched(&world, "default-abc12").await;
    assert!(made.provider_id.contains("/vm-"), "{}", made.provider_id);
    assert_eq!(world.provider.get(&made.provider_id).await.unwrap().provider_id, made.provider_id);
    // With and without the annotation, as NodeClaims of other versions have it.
    for annotated in [true, false] {
        if !annotated {
            claim.metadata.annotations = None;
        }
        let drift = world.provider.drift(&claim, &world.class).await.unwrap();
        assert!(drift.is_none(), "{drift:?}");
    }
    world.provider.delete(&claim).await.unwrap();
    world.clock.sleep(Duration::from_mins(5)).await;
    assert_eq!(world.emulator.machines().len(), 0);

    let (_, orphan) = launched(&world, "default-xyz").await;
    world.provider.delete_orphan(&orphan.provider_id).await.unwrap();
    world.clock.sleep(Duration::from_mins(5)).await;
    assert_eq!(world.emulator.machines().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_failed_without_a_vm_is_listed_and_deleted() {
    let world = World::with(|config| config.vm_ids = VmIds::MissingIfFailed).await;
    for zone in ["eastus-1", "eastus-2", "eastus-3", "0"] {
        world.emulator.set_faults(|faults| {
            faults.capacity_errors.insert(("Standard_D2als_v6".to_owned(), zone.to_owned()));
        });
    }
    let size = (nap_api::labels::INSTANCE_TYPE, &["Standard_D2als_v6"][..]);
    let failing = claim("default-abc12", "1", &[size]);
    world.provider.create(&failing, &world.class, &[]).await.ok();
    until_created(&world.clock).await;
    let listed = world.provider.list().await.unwrap();
    let [left] = listed.as_slice() else { panic!("{listed:?}") };
    assert_eq!(left.node_claim.as_deref(), Some("default-abc12"));
    world.provider.delete_orphan(&left.provider_id).await.unwrap();
    world.clock.sleep(Duration::from_mins(5)).await;
    assert_eq!(world.provider.list().await.unwrap().len(), 0);
}

/// A node of the incumbent's mode that makes plain VMs: nap can do nothing with it, and says so.
#[tokio::test(start_paused = true)]
async fn a_plain_vm_is_left_alone_with_an_event_that_says_what_to_do() {
    let user = User::new().await;
    let script = async {
        user.default_pool(json!({})).await;
        user.standalone("default-abc12").await;
        let group = user.world.azure().provider().config().node_resource_group.clone();
        let vm = format!(
            "azure:///subscriptions/s/resourceGroups/{group}/providers/Microsoft.Compute/virtualMachines/aks-default-abc12"
        );
        let condition = |kind: &str| {
            json!({
                "type": kind, "status": "True", "reason": kind, "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            })
        };
        let conditions = ["Launched", "Registered", "Initialized", "Drifted"].map(condition);
        let status = json!({ "status": { "providerID": vm, "conditions": conditions } });
        let (how, patch) = (PatchParams::default(), Patch::Merge(status));
        user.api::<NodeClaim>().patch_status("default-abc12", &how, &patch).await.unwrap();
        user.world.run_nap(user.pass(3600)).await;
        let claims = user.claims().await;
        assert_eq!(claims.len(), 1);
        assert!(claims[0].metadata.deletion_timestamp.is_none());
        let events = user.events("UnmanagedInstance").await;
        let [event] = events.as_slice() else { panic!("{events:?}") };
        assert!(event.contains("drain and delete the node with the controller that made it"));
        let drifted = nap_api::conditions::is_true(
            &claims[0].status.as_ref().unwrap().conditions,
            nap_api::nodeclaim::condition::DRIFTED,
        );
        assert!(!drifted, "it cannot be replaced");
        assert_eq!(user.machines_ever(), 0);
    };
    user.run_without_nap(script).await;
}
