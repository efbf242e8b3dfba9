//! Azure's own Python SDK against the emulator and the provider's bodies.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray,
};
use kube::CustomResourceExt as _;
use nap_api::aksnodeclass::AKSNodeClassSpec;
use nap_api::{AKSNodeClass, NodeClaimStatus, labels};
use nap_azure::arm::{ManagedIdentity, http_service};
use nap_azure::prerequisites::create_pool;
use nap_azure::{AzureCloud, AzureProvider};
use nap_clock::Clock;
use nap_cloud::CloudProvider as _;
use nap_sim::azure::Emulator;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::world::{self, claim};

/// A virtual environment with the pinned SDK; made once for each list of packages.
fn environment() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("azure-sdk");
    let wanted = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/azure_sdk/requirements.txt");
    let (python, installed) = (folder.join("bin/python"), folder.join("installed.txt"));
    let packages = std::fs::read_to_string(&wanted).unwrap();
    if std::fs::read_to_string(&installed).is_ok_and(|text| text == packages) {
        return python;
    }
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder));
    let options = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"];
    run(Command::new(&python).args(options).arg(&wanted));
    std::fs::write(installed, packages).unwrap();
    python
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}\n{err}", output.status);
}

/// A node class with every field.
const CLASS: &str = include_str!("../azure_sdk/class.json");

/// Paths of the members of a schema that a value lacks.
fn absent(schema: &JSONSchemaProps, value: &Value, path: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (name, member) in schema.properties.iter().flatten() {
        let path = format!("{path}.{name}");
        match value.get(name) {
            Some(value) => found.extend(absent(member, value, &path)),
            None => found.push(path),
        }
    }
    if let Some(JSONSchemaPropsOrArray::Schema(item)) = &schema.items {
        found.extend(value.get(0).map(|value| absent(item, value, path)).into_iter().flatten());
    }
    found
}

#[test]
fn the_node_class_of_the_sdk_has_every_field() {
    let definition = AKSNodeClass::crd().spec.versions.pop().unwrap();
    let schema = definition.schema.unwrap().open_api_v3_schema.unwrap();
    let spec = &schema.properties.unwrap()["spec"];
    let class: Value = serde_json::from_str(CLASS).unwrap();
    assert_eq!(absent(spec, &class, "spec"), Vec::<String>::new());
}

/// The built-in clouds by the name that the SDK has for them.
fn clouds() -> Value {
    let all = [
        ("AZURE_PUBLIC_CLOUD", "AzurePublicCloud"),
        ("AZURE_US_GOVERNMENT", "AzureUSGovernmentCloud"),
        ("AZURE_CHINA_CLOUD", "AzureChinaCloud"),
    ];
    let all = all.map(|(theirs, ours)| {
        let cloud = AzureCloud::from_variables(|name| (name == "ARM_CLOUD").then(|| ours.into()));
        let AzureCloud { arm_endpoint, entra } = cloud.unwrap();
        let scope = entra.scope();
        let cloud = json!({ "arm": arm_endpoint, "entra": entra.authority_host, "scope": scope });
        (theirs.to_owned(), cloud)
    });
    Value::Object(all.into_iter().collect())
}

/// The model of the SDK for the body of a request; `None` for one without a body.
fn model(method: &Method, path: &str) -> Option<&'static str> {
    match (method, path) {
        (&Method::POST, path) if path.ends_with("/deleteMachines") => {
            Some("AgentPoolDeleteMachinesParameter")
        }
        (&Method::PUT, path) if path.contains("/machines/") => Some("Machine"),
        (&Method::PUT, path) if path.contains("/agentPools/") => Some("AgentPool"),
        _ => None,
    }
}

/// Bodies that the provider sends for NodeClaims of several kinds, with the models for them.
async fn provider_bodies() -> Vec<Value> {
    let clock = Clock::starting_at("2026-11-01T00:00:00Z".parse().unwrap(), 1000);
    let mut config = world::config(&clock);
    let mut spec: AKSNodeClassSpec = serde_json::from_str(CLASS).unwrap();
    let subnet = spec.vnet_subnet_id.clone().unwrap();
    config.surroundings.resources.insert(subnet, json!({ "addressPrefix": "10.1.0.0/24" }));
    config.surroundings.machines_pool = false;
    config.ultra_disks = true;
    let azure = config.azure_config();
    let (emulator, _events) = Emulator::new(config).unwrap();
    let bodies: Arc<Mutex<Vec<Value>>> = Arc::default();
    let kept = bodies.clone();
    let service = http_service(tower::service_fn(move |request: Request<Full<Bytes>>| {
        let (emulator, kept) = (emulator.clone(), kept.clone());
        async move {
            let (head, body) = request.into_parts();
            let bytes = body.collect().await.unwrap_or_default().to_bytes();
            if let Some(model) = model(&head.method, head.uri.path()) {
                let body: Value = serde_json::from_slice(&bytes).unwrap();
                let sent = json!({ "model": model, "body": body });
                kept.lock().unwrap_or_else(PoisonError::into_inner).push(sent);
            }
            emulator.oneshot(Request::from_parts(head, Full::new(bytes))).await
        }
    }));
    let identity = ManagedIdentity {
        service: service.clone(),
        clock: clock.clone(),
        endpoint: "http://169.254.169.254".into(),
        client_id: None,
        resource: "https://management.azure.com/".into(),
    };
    let provider = AzureProvider::new(azure.clone(), clock.clone(), service, Arc::new(identity));
    create_pool(provider.arm(), &azure).await.unwrap();
    let class = world::ready(&provider, AKSNodeClass::default()).await;
    let kinds: [&[(&str, &[&str])]; 4] = [
        &world::DEFAULT_POOL,
        &[(labels::CAPACITY_TYPE, &["spot"]), (labels::SKU_FAMILY, &["D"])],
        &[(labels::ARCH, &["arm64"]), (labels::CAPACITY_TYPE, &["on-demand"])],
        &[(labels::INSTANCE_TYPE, &["Standard_NC4as_T4_v3"])],
    ];
    for (index, requirements) in kinds.into_iter().enumerate() {
        let claim = claim(&format!("default-abc1{index}"), "1", requirements);
        provider.create(&claim, &class, &[]).await.unwrap();
    }
    // Every field of a class on a machine with a GPU and ultra disks, and then with other tags.
    let mut full = class.clone();
    full.spec = spec.clone();
    let report = provider.inspect_node_class(&full).await;
    full.status.as_mut().unwrap().images = report.images.unwrap();
    let ultra: [(&str, &[&str]); 3] = [
        (labels::INSTANCE_TYPE, &["Standard_NC4as_T4_v3"]),
        (labels::SKU_STORAGE_ULTRA_SSD, &["true"]),
        (labels::CAPACITY_TYPE, &["on-demand"]),
    ];
    let mut one = claim("default-full", "1", &ultra);
    let made = provider.create(&one, &full, &[]).await.unwrap();
    one.metadata.annotations = Some(made.annotations);
    let provider_id = Some(made.provider_id);
    one.status = Some(NodeClaimStatus { provider_id, ..NodeClaimStatus::default() });
    world::until_created(&clock).await;
    spec.tags.insert("team".to_owned(), "b".to_owned());
    full.spec = spec;
    provider.update_in_place(&one, &full).await.unwrap();
    provider.delete(&one).await.unwrap();
    bodies.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Each field of the class has a value of its own, so that members that are swapped show.
/// `NAP_BLESS=1` writes the body that is sent.
#[tokio::test(start_paused = true)]
async fn every_field_of_a_node_class_is_in_the_body_of_its_machine() {
    let bodies = provider_bodies().await;
    let tag = |sent: &&Value| sent["body"]["properties"]["tags"]["team"] == "a";
    let sent = &bodies.iter().find(tag).unwrap()["body"];
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/azure_sdk/machine.json");
    if std::env::var_os("NAP_BLESS").is_some_and(|value| !value.is_empty()) {
        std::fs::write(&file, format!("{sent:#}\n")).unwrap();
    }
    let expected: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    assert_eq!(*sent, expected, "{sent:#}");
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(no_python, ignore = "there is no python3 with venv and pip; install it")]
async fn azure_sdk_for_python_works_on_the_emulator() {
    let python = environment();
    let bodies = provider_bodies().await;
    let clock = Clock::starting_at("2026-11-01T00:00:00Z".parse().unwrap(), 20);
    let mut config = world::config(&clock);
    config.retry_after = Duration::from_secs(1);
    config.page_size = 200;
    config.faults.capacity_errors.insert(("Standard_D4s_v5".to_owned(), "eastus-2".to_owned()));
    let subnet: Vec<String> =
        config.subnets.first().unwrap().split('/').map(str::to_owned).collect();
    // The bucket refills at twenty times the speed, too.
    let mut limits = config.request_limits.unwrap();
    limits.reads.size = 40;
    limits.reads.refill = 1;
    config.request_limits = Some(limits);
    let (emulator, _events) = Emulator::new(config.clone()).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let facts = json!({
        "endpoint": format!("http://{}", listener.local_addr().unwrap()),
        "subscription": config.subscription_id,
        "group": config.resource_group,
        "cluster": config.cluster_name,
        "pool": config.agent_pool,
        "subnet": [subnet[4], subnet[8], subnet[10]],
        "bodies": bodies,
        "members": nap_sim::azure::published_members(),
        "clouds": clouds(),
    });
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("azure-sdk-facts.json");
    std::fs::write(&file, facts.to_string()).unwrap();
    let router = axum::Router::new().fallback_service(emulator);
    let mut server = tokio::task::JoinSet::new();
    server.spawn(async move { axum::serve(listener, router).await });
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/azure_sdk/judge.py");
    let judged =
        tokio::task::spawn_blocking(move || run(Command::new(python).arg(script).arg(file)));
    judged.await.unwrap();
}
