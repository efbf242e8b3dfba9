//! `nap bench launches`: a burst of machines against tight quotas and stock-outs, on the emulated
//! Azure in virtual time.
//!
//! Beside nap's provider runs a client that requests and polls each machine by itself and remembers
//! nothing between them: the same requests and the same Azure, without batches, a shared list, a
//! quota ledger and a capacity memory. For one machine it tries a family that is over its quota
//! only once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use futures::future::join_all;
use http::{Method, Request, Response};
use http_body_util::Full;
use jiff::Timestamp;
use nap_api::nodepool::NodeClassRef;
use nap_api::requirement::NodeSelectorRequirement;
use nap_api::{
    AKSNodeClass, AKSNodeClassStatus, NillableDuration, NodeClaim, NodeClaimSpec, NodeClaimStatus,
    OfferingRef, Operator, labels,
};
use nap_azure::arm::{HttpService, ManagedIdentity, TokenProvider, http_service};
use nap_azure::machines::API_VERSION;
use nap_azure::{AzureConfig, AzureProvider};
use nap_clock::Clock;
use nap_cloud::{CloudProvider, Creation};
use nap_engine::CapacityType;
use nap_sim::azure::{Emulator, EmulatorConfig};
use nap_units::UsdPerHour;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::args::LaunchesArgs;

/// Longest time that the burst may take, on the clock of the emulated Azure.
const MAX_TIME: Duration = Duration::from_hours(6);
/// Interval at which each client looks at a machine.
const POLL: Duration = Duration::from_secs(5);

/// Requests and outcomes of one client, seen from outside.
#[derive(Clone, Debug, Default)]
struct Counts {
    reads: u64,
    writes: u64,
    throttled: u64,
    /// Machines asked for.
    attempts: u64,
    /// Machines refused at once.
    refused: u64,
    /// Machines that failed after they were accepted.
    failed: u64,
    /// Machines whose first attempt came to exist.
    first: u64,
    seconds: i64,
}

/// A service that counts what passes through it.
fn counted(inner: HttpService, counts: Arc<Mutex<Counts>>) -> HttpService {
    http_service(tower::service_fn(move |request: Request<Full<Bytes>>| {
        let (inner, counts) = (inner.clone(), Arc::clone(&counts));
        async move {
            let is_arm = request.uri().path().starts_with("/subscriptions");
            let is_read = request.method() == Method::GET;
            let is_put = request.method() == Method::PUT;
            let batch = request.headers().get("BatchPutMachine").map(http::HeaderValue::as_bytes);
            let batch: Option<Value> = batch.and_then(|text| serde_json::from_slice(text).ok());
            let asked = batch
                .map_or(1, |batch| batch["batchMachines"].as_array().map_or(1, Vec::len) as u64);
            let response = inner.oneshot(request).await?;
            let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
            if is_arm {
                *(if is_read { &mut counts.reads } else { &mut counts.writes }) += 1;
                counts.throttled += u64::from(response.status() == 429);
            }
            if is_put && response.status() != 429 {
                counts.attempts += asked;
                if !response.status().is_success() {
                    counts.refused += refused_of(response.body()).unwrap_or(asked);
                }
            }
            Ok::<Response<Full<Bytes>>, tower::BoxError>(response.map(Full::new))
        }
    }))
}

/// Number of machines that a batch refused; `None` if the error is about all.
fn refused_of(body: &Bytes) -> Option<u64> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let error = body.get("error").unwrap_or(&body);
    (error["code"] == "BatchMachineClientError")
        .then(|| error["details"].as_array().map_or(0, Vec::len) as u64)
}

fn claim(name: &str) -> NodeClaim {
    let requirement = |key: &str, values: &[&str]| NodeSelectorRequirement {
        key: key.to_owned(),
        operator: Operator::In,
        values: values.iter().map(|value| (*value).to_owned()).collect(),
        min_values: None,
    };
    let mut resources = nap_api::nodeclaim::ResourceRequirements::default();
    resources.requests.extend("1".parse().ok().map(|one| ("cpu".to_owned(), one)));
    let spec = NodeClaimSpec {
        taints: Vec::new(),
        startup_taints: Vec::new(),
        requirements: vec![
            requirement(labels::SKU_FAMILY, &["D"]),
            requirement(labels::CAPACITY_TYPE, &["on-demand"]),
            requirement(labels::ARCH, &["amd64"]),
        ],
        resources,
        node_class_ref: NodeClassRef::aks("default"),
        termination_grace_period: None,
        expire_after: NillableDuration::never(),
    };
    NodeClaim::new(name, spec)
}

/// An Azure with tight quotas and stock-outs, its clock, and a counted way to it.
struct Scene {
    emulator: Emulator,
    clock: Clock,
    service: HttpService,
    counts: Arc<Mutex<Counts>>,
    class: AKSNodeClass,
}

impl Scene {
    async fn new(args: &LaunchesArgs) -> anyhow::Result<Self> {
        let epoch: Timestamp = "2026-11-01T00:00:00Z".parse()?;
        let clock = Clock::starting_at(epoch, 1);
        let mut config = EmulatorConfig::new(&args.region, args.seed, clock.clone());
        config.default_family_quota = args.family_quota;
        let (emulator, events) = Emulator::new(config)?;
        // Without a receiver no kubelet boots; the machines are enough here.
        drop(events);
        let counts = Arc::<Mutex<Counts>>::default();
        let service = counted(emulator.http_service(), Arc::clone(&counts));
        let provider = emulator.provider();
        let report = provider.inspect_node_class(&AKSNodeClass::default()).await;
        let class = AKSNodeClass {
            status: Some(AKSNodeClassStatus {
                images: report.images.unwrap_or_default(),
                kubernetes_version: report.kubernetes_version,
                ..AKSNodeClassStatus::default()
            }),
            ..AKSNodeClass::default()
        };
        let sold_out = sold_out(&provider, &class, args.sold_out).await?;
        emulator.set_faults(|faults| faults.capacity_errors = sold_out);
        Ok(Self { emulator, clock, service, counts, class })
    }

    fn tokens(&self) -> ManagedIdentity {
        ManagedIdentity {
            service: self.emulator.http_service(),
            clock: self.clock.clone(),
            endpoint: "http://169.254.169.254".to_owned(),
            client_id: None,
            resource: "https://management.azure.com/".to_owned(),
        }
    }

    fn config(&self) -> AzureConfig {
        self.emulator.config().azure_config()
    }

    fn count(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The counts, once all machines are there.
    fn result(&self, begun: Timestamp, machines: usize) -> anyhow::Result<Counts> {
        let running = self.emulator.machines();
        let running = running.iter().filter(|machine| machine.state == "Succeeded").count();
        anyhow::ensure!(running == machines, "{running} of {machines} machines exist at the end");
        let seconds = self.clock.now().duration_since(begun).as_secs();
        self.count(|counts| counts.seconds = seconds);
        Ok(self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

/// Zonal offerings that are out of stock: one in `every`, by price.
async fn sold_out(
    provider: &AzureProvider,
    class: &AKSNodeClass,
    every: usize,
) -> anyhow::Result<BTreeSet<(String, String)>> {
    let offerings = offerings(provider, class).await?;
    let zonal = offerings.into_iter().map(|one| (one.size, one.zone));
    let zonal = zonal.filter(|(_, zone)| zone != "0");
    Ok(zonal.skip(1).step_by(every.max(2)).collect())
}

/// An offering with its quota family.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    price: UsdPerHour,
    regional: bool,
    size: String,
    zone: String,
    family: String,
}

/// On-demand offerings of the claims, the cheapest first.
async fn offerings(
    provider: &AzureProvider,
    class: &AKSNodeClass,
) -> anyhow::Result<Vec<Candidate>> {
    let wanted = nap_api::Requirements::from_specs(&claim("x").spec.requirements);
    let catalogue = provider.instance_types(class).await?;
    let mut all = Vec::new();
    for one in catalogue.types() {
        let fits = one.requirements.intersects(&wanted).is_ok()
            && one.allocatable.get(nap_units::CPU) >= 1000;
        for offering in one.offerings.iter().filter(|_| fits) {
            if offering.available && offering.capacity_type == CapacityType::OnDemand {
                let reference = OfferingRef {
                    instance_type: one.name.clone(),
                    zone: offering.zone.clone(),
                    capacity_type: offering.capacity_type.to_string(),
                    price: offering.price,
                };
                let charge = provider.quota_charge(&reference);
                let family = charge.and_then(|charge| charge.quotas.into_iter().next());
                all.push(Candidate {
                    price: offering.price,
                    regional: offering.zone == "0",
                    size: reference.instance_type,
                    zone: reference.zone,
                    family: family.unwrap_or_default(),
                });
            }
        }
    }
    all.sort();
    Ok(all)
}

/// Launches the burst with nap's provider, as the controllers do: a machine that fails later is
/// deleted and its pods get another.
async fn with_nap(args: &LaunchesArgs) -> anyhow::Result<Counts> {
    let scene = Scene::new(args).await?;
    let (config, clock) = (scene.config(), scene.clock.clone());
    let provider =
        AzureProvider::new(config, clock.clone(), scene.service.clone(), Arc::new(scene.tokens()));
    let begun = clock.now();
    let one = async |number: usize| -> anyhow::Result<()> {
        for attempt in 0.. {
            let mut claim = claim(&format!("burst-{number:05}-{attempt}"));
            let before = scene.counts.lock().unwrap_or_else(PoisonError::into_inner).refused;
            let made = provider.create(&claim, &scene.class, &[]).await?;
            let after = scene.counts.lock().unwrap_or_else(PoisonError::into_inner).refused;
            let provider_id = Some(made.provider_id);
            claim.status = Some(NodeClaimStatus { provider_id, ..NodeClaimStatus::default() });
            loop {
                clock.sleep(POLL).await;
                match provider.creation(&claim).await? {
                    Creation::InProgress => {}
                    Creation::Succeeded => {
                        let is_first = attempt == 0 && before == after;
                        scene.count(|counts| counts.first += u64::from(is_first));
                        return Ok(());
                    }
                    Creation::Failed(_) => {
                        scene.count(|counts| counts.failed += 1);
                        provider.delete(&claim).await?;
                        break;
                    }
                }
            }
        }
        Ok(())
    };
    let burst = join_all((0..args.machines).map(one));
    let done = tokio::time::timeout(MAX_TIME, burst).await.context("the burst did not end")?;
    done.into_iter().collect::<anyhow::Result<Vec<()>>>()?;
    scene.result(begun, args.machines)
}

/// Launches the burst one machine at a time, each with its own requests and without any memory.
async fn one_by_one(args: &LaunchesArgs) -> anyhow::Result<Counts> {
    let scene = Scene::new(args).await?;
    let offerings = offerings(&scene.emulator.provider(), &scene.class).await?;
    let begun = scene.clock.now();
    let token = scene.tokens().token().await?.secret;
    let pool = scene.config().agent_pool_path();
    let send = async |method: Method, path: String, body: Value| loop {
        let url = format!("https://management.azure.com{pool}/{path}?api-version={API_VERSION}");
        let request = Request::builder().method(&method).uri(url);
        let request = request.header("authorization", format!("Bearer {token}"));
        let request = request.header("content-type", "application/json");
        let request = request.body(Full::new(Bytes::from(body.to_string())));
        let response = scene.service.clone().oneshot(request?).await;
        let response = response.map_err(|error| anyhow::anyhow!("{error}"))?;
        if response.status() == 429 {
            let wait = response.headers().get("retry-after").and_then(|value| value.to_str().ok());
            let wait = wait.and_then(|text| text.parse().ok()).unwrap_or(1);
            scene.clock.sleep(Duration::from_secs(wait)).await;
            continue;
        }
        let parsed = serde_json::from_slice(response.body()).unwrap_or(Value::Null);
        return anyhow::Ok((response.status(), parsed));
    };
    let image = scene.class.status.as_ref().and_then(|status| status.images.first());
    let image = image.and_then(|image| nap_azure::images::node_image_version(&image.id));
    let image = image.context("no image")?;
    let one = async |number: usize| -> anyhow::Result<()> {
        let mut full = BTreeSet::new();
        for (attempt, Candidate { size, zone, family, .. }) in offerings.iter().enumerate() {
            if full.contains(family) {
                continue;
            }
            let name = format!("burst-{number:05}-{attempt}");
            let zones: Vec<&str> =
                zone.rsplit_once('-').map(|(_, zone)| zone).into_iter().collect();
            let body = json!({ "zones": zones, "properties": {
                "hardware": { "vmSize": size }, "nodeImageVersion": image, "priority": "Regular",
                "tags": { "karpenter.azure.com_aksmachine_nodeclaim": name },
            } });
            let (status, answer) = send(Method::PUT, format!("machines/{name}"), body).await?;
            if !status.is_success() {
                if answer.to_string().contains("quota") {
                    full.insert(family);
                }
                continue;
            }
            loop {
                scene.clock.sleep(POLL).await;
                let (_, machine) =
                    send(Method::GET, format!("machines/{name}"), Value::Null).await?;
                match machine["properties"]["provisioningState"].as_str() {
                    Some("Succeeded") => {
                        scene.count(|counts| counts.first += u64::from(attempt == 0));
                        return Ok(());
                    }
                    Some("Failed") => {
                        scene.count(|counts| counts.failed += 1);
                        let names = json!({ "machineNames": [name] });
                        send(Method::POST, "deleteMachines".to_owned(), names).await?;
                        break;
                    }
                    _ => {}
                }
            }
        }
        anyhow::bail!("no offering is left for machine {number}")
    };
    let burst = join_all((0..args.machines).map(one));
    let done = tokio::time::timeout(MAX_TIME, burst).await.context("the burst did not end")?;
    done.into_iter().collect::<anyhow::Result<Vec<()>>>()?;
    scene.result(begun, args.machines)
}

/// Runs the burst both ways and prints a table.
pub(super) fn measure(args: &LaunchesArgs) -> anyhow::Result<()> {
    let virtual_time =
        || tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    let mut results: BTreeMap<&str, Counts> = BTreeMap::new();
    eprintln!(
        "{} machines in {}, {} vCPUs a family …",
        args.machines, args.region, args.family_quota
    );
    results.insert("nap", virtual_time()?.block_on(with_nap(args))?);
    eprintln!("the same, each machine by itself …");
    results.insert("one by one", virtual_time()?.block_on(one_by_one(args))?);
    println!(
        "| client | first attempt | attempts | refused | failed later | ARM reads | ARM writes | requests a machine | 429 | seconds |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    for (client, counts) in &results {
        let Counts { reads, writes, throttled, attempts, refused, failed, first, seconds } = counts;
        let machines = args.machines.max(1) as u64;
        let hundredths = (reads + writes) * 100 / machines;
        println!(
            "| {client} | {}.{} % | {attempts} | {refused} | {failed} | {reads} | {writes} | {}.{:02} | {throttled} | {seconds} |",
            first * 100 / machines,
            first * 1000 / machines % 10,
            hundredths / 100,
            hundredths % 100,
        );
    }
    Ok(())
}
