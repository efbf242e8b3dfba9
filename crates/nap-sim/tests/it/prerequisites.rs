//! The prerequisites of a cluster, read from the emulator in process.

use std::sync::Arc;

use nap_azure::AzureConfig;
use nap_azure::arm::{ArmClient, ManagedIdentity};
use nap_azure::prerequisites::{Reader, Row, Status, check, create_pool};
use nap_cloud::CloudProvider;
use nap_sim::azure::{CLUSTER_IDENTITY, RoleAssignment, SUBSCRIPTION};
use serde_json::json;

use crate::world::{DEFAULT_POOL, World, claim};

fn arm(world: &World) -> ArmClient {
    let service = world.emulator.http_service();
    let tokens = ManagedIdentity {
        service: service.clone(),
        clock: world.clock.clone(),
        endpoint: "http://169.254.169.254".into(),
        client_id: None,
        resource: "https://management.azure.com/".into(),
    };
    let endpoint = "https://management.azure.com";
    ArmClient::new(service, Arc::new(tokens), world.clock.clone(), endpoint)
}

async fn rows(world: &World, config: &AzureConfig) -> Vec<Row> {
    let reader = Reader {
        arm: arm(world),
        prices: ArmClient::anonymous(
            world.emulator.http_service(),
            world.clock.clone(),
            "https://prices.azure.com",
        ),
        config: config.clone(),
        unset: Vec::new(),
        cli: "/nowhere/az".into(),
    };
    check(&reader.read().await.unwrap())
}

fn status(rows: &[Row], id: &str) -> Status {
    rows.iter().find(|row| row.id == id).unwrap().status
}

#[tokio::test(start_paused = true)]
async fn machines_can_be_created_once_the_agent_pool_exists() {
    let world = World::with(|config| config.surroundings.machines_pool = false).await;
    let config = world.emulator.config().azure_config();
    assert_eq!(status(&rows(&world, &config).await, "agent-pool"), Status::Fail);
    let claim = claim("default-abc12", "1", &DEFAULT_POOL);
    let refused = world.provider.create(&claim, &world.class, &[]).await.unwrap_err();
    assert!(refused.is_not_found(), "{refused:?}");
    create_pool(&arm(&world), &config).await.unwrap();
    assert_eq!(status(&rows(&world, &config).await, "agent-pool"), Status::Pass);
    world.provider.create(&claim, &world.class, &[]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn roles_count_at_the_subnet_and_above_it() {
    let network = format!(
        "/subscriptions/{SUBSCRIPTION}/resourceGroups/net/providers/Microsoft.Network/virtualNetworks/v"
    );
    let subnet = format!("{network}/subnets/nodes");
    let subscription = format!("/subscriptions/{SUBSCRIPTION}");
    let group = format!("{subscription}/resourceGroups/net");
    let other = format!("{subscription}/resourceGroups/network");
    let someone = "00000000-0000-0000-0000-00000000000f";
    for (scope, principal, role, expected) in [
        (&subnet, CLUSTER_IDENTITY, "Network Contributor", Status::Pass),
        (&network, CLUSTER_IDENTITY, "Network Contributor", Status::Pass),
        (&group, CLUSTER_IDENTITY, "Contributor", Status::Pass),
        (&subscription, CLUSTER_IDENTITY, "Owner", Status::Pass),
        (&subscription, CLUSTER_IDENTITY, "Reader", Status::Fail),
        (&other, CLUSTER_IDENTITY, "Owner", Status::Fail),
        (&subnet, someone, "Owner", Status::Fail),
    ] {
        let world = World::with(|config| {
            let surroundings = &mut config.surroundings;
            surroundings
                .resources
                .insert(subnet.clone(), json!({ "addressPrefix": "10.1.0.0/24" }));
            surroundings.role_assignments = vec![RoleAssignment {
                scope: scope.clone(),
                principal: principal.to_owned(),
                role,
            }];
        })
        .await;
        let mut config = world.emulator.config().azure_config();
        config.vnet_subnet_id = Some(subnet.clone());
        let rows = rows(&world, &config).await;
        assert_eq!(status(&rows, "role-node-subnets"), expected, "{role} at {scope}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_managed_cluster_that_is_hidden_is_an_error() {
    let world = World::new().await;
    let mut config = world.emulator.config().azure_config();
    config.cluster_name = "other".to_owned();
    let reader = Reader {
        arm: arm(&world),
        prices: arm(&world),
        config,
        unset: Vec::new(),
        cli: "/nowhere/az".into(),
    };
    assert!(reader.read().await.unwrap_err().is_not_found());
}
