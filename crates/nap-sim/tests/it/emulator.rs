//! The Azure emulator by itself: errors, determinism, tokens, sockets.

use std::sync::Arc;

use http::Method;
use nap_azure::AzureProvider;
use nap_azure::arm::{ManagedIdentity, TokenProvider, WorkloadIdentity, https_client};
use nap_clock::Clock;
use nap_cloud::CloudProvider;
use nap_sim::azure::{Emulator, EmulatorConfig};
use serde_json::json;

use crate::arm::{Arm, BASE, IMAGE, machine_url};
use crate::world::{self, DEFAULT_POOL, World, claim, without_operation};

#[tokio::test(start_paused = true)]
async fn invalid_machine_requests_get_the_error_codes_of_arm() {
    let world = World::new().await;
    let arm = Arm::new(&world.emulator).await;
    let machine = machine_url("m-1");
    let body = |size: &str, zone: &str, image: &str| json!({ "zones": [zone], "properties": { "hardware": { "vmSize": size }, "nodeImageVersion": image } });
    let image = IMAGE;
    let usages = |region: &str| {
        format!(
            "{BASE}/providers/Microsoft.Compute/locations/{region}/usages?api-version=2025-04-01"
        )
    };
    for (method, url, body, status, code) in [
        (
            Method::GET,
            machine.split('?').next().unwrap().to_owned(),
            json!({}),
            400,
            "MissingApiVersionParameter",
        ),
        (Method::GET, machine.clone(), json!({}), 404, "NotFound"),
        (Method::GET, usages("atlantis"), json!({}), 400, "NoRegisteredProviderFound"),
        (Method::PUT, machine.clone(), body("Standard_X9", "1", image), 400, "VMSizeNotSupported"),
        (
            Method::PUT,
            machine.clone(),
            body("Standard_D4s_v5", "9", image),
            400,
            "AvailabilityZoneNotSupported",
        ),
        (Method::PUT, machine.clone(), body("Standard_D4s_v5", "1", "x"), 400, "InvalidParameter"),
        (
            Method::PUT,
            machine.replace("m-1", "M_1"),
            body("Standard_D4s_v5", "1", image),
            400,
            "InvalidParameter",
        ),
        (Method::DELETE, machine.clone(), json!({}), 501, "NotImplemented"),
        (Method::GET, machine.replace("aksmanagedap", "other"), json!({}), 404, "ResourceNotFound"),
        (Method::GET, machine.replace("/nap/", "/other/"), json!({}), 404, "ResourceNotFound"),
        (
            Method::GET,
            format!("{BASE}/providers/Microsoft.Storage/skus?api-version=1"),
            json!({}),
            501,
            "NotImplemented",
        ),
        (Method::PUT, machine.clone(), body("Standard_D4s_v5", "1", image), 201, ""),
        (Method::PUT, machine.clone(), body("Standard_D4s_v5", "1", image), 200, ""),
        (
            Method::PUT,
            machine.clone(),
            body("Standard_D8s_v5", "1", image),
            400,
            "PropertyChangeNotAllowed",
        ),
    ] {
        let answer = arm.send(method.clone(), &url, &[], &body).await;
        assert_eq!((answer.status, answer.code()), (status, code), "{method} {url}");
    }
    world.emulator.revoke_tokens();
    let revoked = arm.get(&machine).await;
    assert_eq!((revoked.status, revoked.code()), (401, "InvalidAuthenticationToken"));
}

#[tokio::test(start_paused = true)]
async fn an_unknown_region_is_refused_with_a_hint() {
    let error = Emulator::new(EmulatorConfig::new("eastsu", 1, world::clock())).err().unwrap();
    assert!(error.to_string().contains("`eastsu` is unknown"), "{error}");
    assert!(error.hint().unwrap().contains("`eastus`"), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn equal_seeds_give_equal_runs_and_other_seeds_differ() {
    async fn run(seed: u64) -> Vec<String> {
        let mut world = World::with(|config| config.seed = seed).await;
        let mut trace = Vec::new();
        for index in 0..5 {
            let claim = claim(&format!("default-{index:05}"), "2", &DEFAULT_POOL);
            let made = world.provider.create(&claim, &world.class, &[]).await.unwrap();
            trace.push(format!("{} {}", made.provider_id, world.clock.now()));
            trace.push(format!("{:?}", world.events.recv().await));
        }
        trace
    }
    assert_eq!(run(1).await, run(1).await);
    assert_ne!(run(1).await, run(2).await);
}

#[tokio::test(start_paused = true)]
async fn workload_identity_exchanges_its_file_for_a_token() {
    let world = World::new().await;
    let file = std::env::temp_dir().join(format!("nap-federated-{}", std::process::id()));
    let identity = WorkloadIdentity {
        service: world.emulator.http_service(),
        clock: world.clock.clone(),
        authority: "https://login.microsoftonline.com/".into(),
        tenant_id: "tenant".into(),
        client_id: "client".into(),
        token_file: file.clone(),
        scope: "https://management.azure.com/.default".into(),
    };
    let error = identity.token().await.err().unwrap();
    assert_eq!(error.code, "FederatedTokenUnreadable");
    std::fs::write(&file, "header.payload.signature\n").unwrap();
    let token = identity.token().await.unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(token.expires.duration_since(world.clock.now()).as_secs(), 3600);
    let config = world::config(&world.clock).azure_config();
    let fixed = nap_azure::arm::StaticToken(token.secret);
    let provider = AzureProvider::new(
        config,
        world.clock.clone(),
        world.emulator.http_service(),
        Arc::new(fixed),
    );
    assert_eq!(provider.list().await.unwrap(), []);
}

/// The only test with a socket and the real clock: the emulator behind axum, and the TLS client
/// over plain HTTP.
#[tokio::test]
async fn the_emulator_can_be_reached_over_a_socket() {
    let clock = Clock::starting_at("2026-11-01T00:00:00Z".parse().unwrap(), 1000);
    let (emulator, _events) = Emulator::new(world::config(&clock)).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let router = axum::Router::new().fallback_service(emulator.clone());
    let mut server = tokio::task::JoinSet::new();
    server.spawn(async move { axum::serve(listener, router).await });
    let mut config = world::config(&clock).azure_config();
    config.arm_endpoint.clone_from(&endpoint);
    config.prices_endpoint.clone_from(&endpoint);
    let service = https_client().unwrap();
    let identity = ManagedIdentity {
        service: service.clone(),
        clock: clock.clone(),
        endpoint,
        client_id: None,
        resource: "https://management.azure.com/".into(),
    };
    let provider = AzureProvider::new(config, clock, service, Arc::new(identity));
    let class = world::ready(&provider, nap_api::AKSNodeClass::default()).await;
    let made =
        provider.create(&claim("default-abc12", "1", &DEFAULT_POOL), &class, &[]).await.unwrap();
    assert_eq!(provider.list().await.unwrap(), [without_operation(made)]);
}
