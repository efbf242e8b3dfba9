//! The emulated Azure of a burst: its quotas, its full zones, and counters of what passes to it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context as _;
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Full;
use jiff::Timestamp;
use nap_api::nodepool::NodeClassRef;
use nap_api::requirement::NodeSelectorRequirement;
use nap_api::{
    AKSNodeClass, AKSNodeClassStatus, NillableDuration, NodeClaim, NodeClaimSpec, OfferingRef,
    Operator, labels,
};
use nap_azure::arm::{HttpService, ManagedIdentity, http_service};
use nap_azure::{AzureConfig, AzureProvider};
use nap_clock::Clock;
use nap_cloud::CloudProvider;
use nap_engine::CapacityType;
use nap_sim::azure::{Emulator, EmulatorConfig, Fault, Place, TimedFault};
use nap_units::UsdPerHour;
use serde_json::Value;
use tower::ServiceExt as _;

use super::super::args::LaunchesArgs;
use super::wanted;

/// Kind of a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Failure {
    FamilyQuota,
    Zonal,
    Allocation,
    Sku,
    Other,
}

impl Failure {
    pub(super) fn of(code: &str, message: &str) -> Self {
        match code {
            "OperationNotAllowed" if message.contains("Family Cores quota") => Self::FamilyQuota,
            "ZonalAllocationFailed" => Self::Zonal,
            "AllocationFailed" => Self::Allocation,
            "SkuNotAvailable" => Self::Sku,
            _ => Self::Other,
        }
    }
}

/// Requests and outcomes of one client, seen from outside.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    pub reads: u64,
    pub writes: u64,
    pub throttled: u64,
    /// Machines asked for.
    pub attempts: u64,
    /// Name of each machine that was refused at once, as often as it was.
    pub refused: Vec<String>,
    /// Number of machines that failed after they were accepted.
    pub failed: u64,
    /// Failed attempts by kind.
    pub failures: BTreeMap<Failure, u64>,
    /// Number of machines whose first attempt came to exist.
    pub first: u64,
    /// Time until the last machine existed.
    pub seconds: i64,
}

impl Counts {
    fn refuse(&mut self, name: &str, error: &Value) {
        self.refused.push(name.to_owned());
        let text = |member: &str| error[member].as_str().unwrap_or_default();
        *self.failures.entry(Failure::of(text("code"), text("message"))).or_default() += 1;
    }
}

/// A service that counts what passes through it.
fn counted(inner: HttpService, counts: Arc<Mutex<Counts>>) -> HttpService {
    http_service(tower::service_fn(move |request: Request<Full<Bytes>>| {
        let (inner, counts) = (inner.clone(), Arc::clone(&counts));
        async move {
            let is_arm = request.uri().path().starts_with("/subscriptions");
            let is_read = request.method() == Method::GET;
            let is_put = request.method() == Method::PUT;
            let name = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
            let batch = request.headers().get("BatchPutMachine").map(http::HeaderValue::as_bytes);
            let batch: Option<Value> = batch.and_then(|text| serde_json::from_slice(text).ok());
            let names: Vec<String> =
                match batch.as_ref().and_then(|it| it["batchMachines"].as_array()) {
                    Some(machines) => machines
                        .iter()
                        .map(|one| one["machineName"].as_str().unwrap_or_default().to_owned())
                        .collect(),
                    None => vec![name],
                };
            let response = inner.oneshot(request).await?;
            let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
            if is_arm {
                *(if is_read { &mut counts.reads } else { &mut counts.writes }) += 1;
                counts.throttled += u64::from(response.status() == 429);
            }
            if is_put && response.status() != 429 {
                counts.attempts += names.len() as u64;
                if !response.status().is_success() {
                    count_refusals(&mut counts, &names, response.body());
                }
            }
            Ok::<Response<Full<Bytes>>, tower::BoxError>(response.map(Full::new))
        }
    }))
}

/// Counts the refused machines of a request: those that a batch error names, or all.
fn count_refusals(counts: &mut Counts, names: &[String], body: &Bytes) {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let error = body.get("error").unwrap_or(&body);
    match error["details"].as_array().filter(|_| error["code"] == "BatchMachineClientError") {
        Some(details) => {
            for detail in details {
                counts.refuse(detail["target"].as_str().unwrap_or_default(), detail);
            }
        }
        None => names.iter().for_each(|name| counts.refuse(name, error)),
    }
}

/// A service that hides the usage of quotas, as if the subscription had no limits.
pub(super) fn without_usages(inner: HttpService) -> HttpService {
    http_service(tower::service_fn(move |request: Request<Full<Bytes>>| {
        let inner = inner.clone();
        async move {
            if request.uri().path().ends_with("/usages") {
                let none = Bytes::from_static(br#"{"value":[]}"#);
                return Ok(Response::new(Full::new(none)));
            }
            let response = inner.oneshot(request).await?;
            Ok::<_, tower::BoxError>(response.map(Full::new))
        }
    }))
}

/// A NodeClaim of the burst.
pub(super) fn claim(name: &str) -> NodeClaim {
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

/// An offering with its quota family.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Candidate {
    pub price: UsdPerHour,
    pub regional: bool,
    pub size: String,
    pub zone: String,
    pub family: String,
    pub vcpus: i64,
}

/// An Azure with tight quotas and full zones, its clock, and a counted way to it.
pub(super) struct Scene {
    pub emulator: Emulator,
    pub clock: Clock,
    pub service: HttpService,
    pub class: AKSNodeClass,
    /// Offerings of the claims by price.
    pub candidates: Vec<Candidate>,
    /// Quotas and full zones in words.
    pub layout: String,
    begun: Timestamp,
    counts: Arc<Mutex<Counts>>,
}

impl Scene {
    pub(super) async fn new(args: &LaunchesArgs) -> anyhow::Result<Self> {
        let epoch: Timestamp = "2026-11-01T00:00:00Z".parse()?;
        let clock = Clock::starting_at(epoch, 1);
        let mut config = EmulatorConfig::new(&args.region, args.seed, clock.clone());
        // Without a receiver no kubelet boots; the machines are enough here.
        let provider = Emulator::new(config.clone())?.0.provider();
        let report = provider.inspect_node_class(&AKSNodeClass::default()).await;
        let class = AKSNodeClass {
            status: Some(AKSNodeClassStatus {
                images: report.images.unwrap_or_default(),
                kubernetes_version: report.kubernetes_version,
                ..AKSNodeClassStatus::default()
            }),
            ..AKSNodeClass::default()
        };
        let candidates = candidates(&provider, &class).await?;
        let layout = Layout::new(&candidates, args)?;
        let timed = |fault| TimedFault { from: epoch, until: None, fault };
        config.default_family_quota = layout.family_quota;
        config.faults.timed = layout.faults.into_iter().map(timed).collect();
        let emulator = Emulator::new(config)?.0;
        let counts = Arc::<Mutex<Counts>>::default();
        let service = counted(emulator.http_service(), Arc::clone(&counts));
        let begun = clock.now();
        let layout = layout.text;
        Ok(Self { emulator, clock, service, class, candidates, layout, begun, counts })
    }

    pub(super) fn tokens(&self) -> ManagedIdentity {
        ManagedIdentity {
            service: self.emulator.http_service(),
            clock: self.clock.clone(),
            endpoint: "http://169.254.169.254".to_owned(),
            client_id: None,
            resource: "https://management.azure.com/".to_owned(),
        }
    }

    pub(super) fn config(&self) -> AzureConfig {
        self.emulator.config().azure_config()
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a machine that failed after it was accepted.
    pub(super) fn fail(&self, code: &str, message: &str) {
        let mut counts = self.counts();
        counts.failed += 1;
        *counts.failures.entry(Failure::of(code, message)).or_default() += 1;
    }

    /// Counts a machine that came to exist, as a first attempt if it is one and was not refused.
    pub(super) fn succeed(&self, name: &str, is_first: bool) {
        let seconds = self.clock.now().duration_since(self.begun).as_secs();
        let mut counts = self.counts();
        let is_first = is_first && !counts.refused.iter().any(|refused| refused == name);
        counts.first += u64::from(is_first);
        counts.seconds = counts.seconds.max(seconds);
    }

    /// The counts, once all machines are there.
    pub(super) fn result(&self, machines: usize) -> anyhow::Result<Counts> {
        let running = self.emulator.machines();
        let running = running.iter().filter(|machine| machine.state == "Succeeded").count();
        anyhow::ensure!(running == machines, "{running} of {machines} machines exist at the end");
        Ok(self.counts().clone())
    }
}

/// On-demand offerings of the claims, the cheapest first.
async fn candidates(
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
                let charge = charge.with_context(|| format!("no quota of {}", one.name))?;
                all.push(Candidate {
                    price: offering.price,
                    regional: offering.zone == "0",
                    size: reference.instance_type,
                    zone: reference.zone,
                    family: charge.quotas.into_iter().next().unwrap_or_default(),
                    vcpus: charge.vcpus,
                });
            }
        }
    }
    all.sort();
    Ok(all)
}

/// Quotas and full zones with which a client without ledger and memory meets the published mix of
/// failures.
///
/// The cheapest families hold a part of the burst each. Of the first the zones are full before its
/// quota is, of the second the size is, and of the third the size is not available beyond some
/// machines.
struct Layout {
    /// vCPUs of each family.
    family_quota: i64,
    faults: Vec<Fault>,
    /// All of it in words.
    text: String,
}

impl Layout {
    fn new(candidates: &[Candidate], args: &LaunchesArgs) -> anyhow::Result<Self> {
        let mut seen = BTreeSet::new();
        let cheapest = candidates.iter().filter(|one| seen.insert(&one.family));
        let [first, second, third]: [&Candidate; 3] =
            cheapest.take(3).collect::<Vec<_>>().try_into().map_err(|_| {
                anyhow::anyhow!("{} has fewer than three families of sizes", args.region)
            })?;
        let kinds = [Failure::Zonal, Failure::Allocation, Failure::Sku];
        let [zonal, allocation, sku] = kinds.map(|kind| wanted(kind, args.machines));
        // A machine that fails after it was accepted meets the full families again.
        let refusals = wanted(Failure::FamilyQuota, args.machines);
        let refusals = refusals.saturating_sub(2 * zonal + allocation);
        let met = |quota: usize| (0..args.machines).map(|machine| machine / quota).sum::<usize>();
        let machines = args.family_quota.map(|quota| usize::try_from(quota / first.vcpus));
        let machines = machines.map(|machines| machines.unwrap_or(1).max(1));
        let machines = machines
            .or_else(|| (1..args.machines).find(|machines| met(*machines) <= refusals))
            .unwrap_or(1);
        let rest = args.machines.saturating_sub(2 * machines) + zonal + allocation;
        // A machine that is refused for its size tries the next zone of it.
        let zones = candidates.iter().filter(|one| one.size == third.size).count();
        let sku = sku.div_ceil(zones.max(1));
        let place = |one: &Candidate, arriving: usize, failures: usize| {
            let room = u32::try_from(arriving.saturating_sub(failures)).unwrap_or(u32::MAX).max(1);
            Place { size: Some(one.size.clone()), room, ..Place::default() }
        };
        let full_zones = place(first, machines, zonal);
        let full_size = place(second, machines, allocation);
        let not_available = place(third, rest.min(machines), sku);
        let family_quota = i64::try_from(machines).unwrap_or(i64::MAX).saturating_mul(first.vcpus);
        let text = format!(
            "{family_quota} vCPUs a family, room for {} {}, {} {}, {} {}",
            full_zones.room,
            first.size,
            full_size.room,
            second.size,
            not_available.room,
            third.size,
        );
        let message = "We do not have sufficient capacity for the requested VM size.";
        let allocation_failed = Some(("AllocationFailed".to_owned(), message.to_owned()));
        let faults = vec![
            Fault::FailedCreates { place: full_zones, error: None },
            Fault::FailedCreates { place: full_size, error: allocation_failed },
            Fault::NotAvailable(not_available),
        ];
        Ok(Self { family_quota, faults, text })
    }
}
