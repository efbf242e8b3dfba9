//! Instance types: sizes, prices and zones in the engine's terms.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use nap_api::aksnodeclass::{GpuMode, ImageFamily, LocalDnsMode, LocalDnsState};
use nap_api::{AKSNodeClass, Requirement, Requirements, labels};
use nap_engine::{CapacityType, InstanceType, Offering};
use nap_units::{CPU, EPHEMERAL_STORAGE, MEMORY, PODS, Resources, UsdPerHour};

use crate::embedded::{EmbeddedCatalogue, Lifecycle};
use crate::images::ImageChoice;
use crate::kube_reserved::{
    EVICTION_THRESHOLD, kube_reserved_cpu_milli, kube_reserved_memory, memory_capacity,
};
use crate::prices::Prices;
use crate::skus::Sku;
use crate::unavailable_offerings::{REGIONAL, zone_label};
use crate::{AzureConfig, AzureError};

/// Resource that counts attachable Azure disks.
const ATTACHABLE_DISKS: &str = "attachable-volumes-csi-disk.csi.azure.com";

/// Attachable disks of a size that states no number, as the CSI driver assumes.
const DEFAULT_DATA_DISKS: i64 = 16;

/// Fewest vCPUs of a node with a DNS cache.
const MIN_LOCAL_DNS_CPUS: i64 = 4;
/// Least memory of a node with a DNS cache, in MiB.
const MIN_LOCAL_DNS_MEMORY_MIB: i64 = 244;

/// Settings of a cluster and a node class that instance types depend on. Classes with equal
/// settings share a catalogue.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent setting")]
pub struct Settings {
    /// Region.
    pub region: String,
    /// Node resource group, which names the cluster in a label.
    pub node_resource_group: String,
    /// Image family, and the kind of its image.
    pub image: ImageChoice,
    /// Whether the family has an image of that kind for arm64.
    pub arm64_image: bool,
    /// Whether the host encrypts temporary disks.
    pub encryption_at_host: bool,
    /// Whether nodes have a DNS cache.
    pub local_dns: bool,
    /// Whether AKS installs the driver of a GPU.
    pub gpu_driver: bool,
    /// Whether containers start before their image is complete.
    pub artifact_streaming: bool,
    /// Size of the OS disk in GB.
    pub os_disk_gb: i64,
    /// Pods per node.
    pub max_pods: i64,
    /// Share of the nominal memory that the node does not report, from 0 to 1.
    pub memory_overhead: f64,
}

impl Settings {
    /// The settings of a node class in a cluster.
    pub fn new(config: &AzureConfig, class: &AKSNodeClass) -> Self {
        let (spec, status) = (&class.spec, class.status.as_ref());
        let image = ImageChoice::of(spec);
        let version = status.and_then(|status| status.kubernetes_version.as_deref());
        let security = spec.security.as_ref();
        let streaming = spec.artifact_streaming.as_ref();
        Self {
            region: config.location.clone(),
            node_resource_group: config.node_resource_group.clone(),
            image,
            arm64_image: image.has_arm64(version),
            encryption_at_host: security.is_some_and(|it| it.encryption_at_host == Some(true)),
            local_dns: has_local_dns(class),
            gpu_driver: spec.gpu.as_ref().is_none_or(|gpu| gpu.mode != Some(GpuMode::None)),
            artifact_streaming: streaming.is_some_and(|it| it.enabled == Some(true)),
            os_disk_gb: spec.os_disk_size_gb.into(),
            max_pods: spec.max_pods.map_or(config.network_plugin.default_max_pods(), i64::from),
            memory_overhead: config.vm_memory_overhead_ratio,
        }
    }
}

/// Whether nodes of a class have a DNS cache. `Preferred` leaves it to the status, which the
/// incumbent does not enable either.
pub(crate) fn has_local_dns(class: &AKSNodeClass) -> bool {
    let state = class.status.as_ref().and_then(|status| status.local_dns_state);
    match class.spec.local_dns.as_ref().map(|dns| dns.mode) {
        Some(LocalDnsMode::Required) => true,
        Some(LocalDnsMode::Preferred) => state == Some(LocalDnsState::Enabled),
        Some(LocalDnsMode::Disabled) | None => false,
    }
}

/// Reason why a node class cannot use a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsuited {
    /// The host does not encrypt its disks.
    EncryptionAtHost,
    /// It has no trusted launch.
    TrustedLaunch,
    /// It is too small for the DNS cache.
    LocalDns,
    /// The image family has no such image for arm64.
    NoArm64Image,
    /// AKS streams no artifacts to arm64.
    ArtifactStreaming,
    /// AKS installs no driver for its GPUs with the image family.
    NoDriver,
}

impl fmt::Display for Unsuited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EncryptionAtHost => "no encryption at host, which the AKSNodeClass asks for",
            Self::TrustedLaunch => "no trusted launch, which the AKSNodeClass asks for",
            Self::LocalDns => "too small for LocalDNS, which needs 4 vCPUs",
            Self::NoArm64Image => "no arm64 image of the image family",
            Self::ArtifactStreaming => "no artifact streaming on arm64",
            Self::NoDriver => "no GPU driver for the image family",
        })
    }
}

/// Why a node class cannot use a size; `None` if it can: the size has what the class asks for, and
/// there is an image and, for a GPU, a driver.
pub fn unsuited(sku: &Sku, settings: &Settings) -> Option<Unsuited> {
    let arm64 = sku.arch == "arm64";
    let dns = sku.vcpus >= MIN_LOCAL_DNS_CPUS && sku.memory_mib() >= MIN_LOCAL_DNS_MEMORY_MIB;
    let problems = [
        (settings.encryption_at_host && !sku.encryption_at_host, Unsuited::EncryptionAtHost),
        (settings.image.trusted_launch && !sku.trusted_launch, Unsuited::TrustedLaunch),
        (settings.local_dns && !dns, Unsuited::LocalDns),
        (arm64 && !settings.arm64_image, Unsuited::NoArm64Image),
        (arm64 && settings.artifact_streaming, Unsuited::ArtifactStreaming),
        (!has_driver(sku, settings), Unsuited::NoDriver),
    ];
    problems.into_iter().find_map(|(is_met, problem)| is_met.then_some(problem))
}

/// Whether a node class can use a size.
pub fn suits(sku: &Sku, settings: &Settings) -> bool {
    unsuited(sku, settings).is_none()
}

/// Whether the GPU of a size can be used: AKS supports it on the operating system, and installs
/// drivers for NVIDIA only.
fn has_driver(sku: &Sku, settings: &Settings) -> bool {
    let Some(gpu) = sku.gpu else { return true };
    let systems: &[&str] = match settings.image.family {
        ImageFamily::Ubuntu | ImageFamily::Ubuntu2204 | ImageFamily::Ubuntu2404 => &["ubuntu"],
        ImageFamily::AzureLinux => &["azurelinux", "azurelinux3"],
    };
    (gpu.manufacturer == "nvidia" || !settings.gpu_driver)
        && gpu.operating_systems.iter().any(|name| systems.contains(&name.as_str()))
}

/// Instance type of a size. `is_available` is called for offerings that are sold.
pub fn instance_type(
    sku: &Sku,
    settings: &Settings,
    prices: &Prices,
    is_available: impl Fn(&str, CapacityType) -> bool,
) -> InstanceType {
    let capacity = capacity(sku, settings);
    InstanceType {
        name: sku.name.clone(),
        requirements: requirements(sku, settings),
        allocatable: allocatable(sku, &capacity),
        capacity,
        offerings: offerings(sku, settings, prices, is_available),
        closed: Lifecycle::built_in().closed_since(&sku.name).is_some(),
    }
}

/// Instance types of a region from the embedded catalogue, all available, for planning without a
/// cluster.
pub fn from_catalogue(
    catalogue: &EmbeddedCatalogue,
    settings: &Settings,
) -> Result<nap_engine::Catalogue, AzureError> {
    from_catalogue_where(catalogue, settings, |_, _, _| true)
}

/// As [`from_catalogue`], with the offerings of a size, a zone and a capacity type that are
/// available.
pub fn from_catalogue_where(
    catalogue: &EmbeddedCatalogue,
    settings: &Settings,
    is_available: impl Fn(&Sku, &str, CapacityType) -> bool,
) -> Result<nap_engine::Catalogue, AzureError> {
    let region = catalogue.region(&settings.region)?;
    let prices = catalogue.prices_in(&region.name);
    Ok(catalogue
        .skus_in(&region.name)
        .filter_map(|row| Sku::read(&catalogue.resource_sku(row, region), &region.name).ok())
        .filter(|sku| suits(sku, settings))
        .map(|sku| {
            instance_type(&sku, settings, &prices, |zone, type_| is_available(&sku, zone, type_))
        })
        .collect())
}

/// Total resources of a node of a size.
pub fn capacity(sku: &Sku, settings: &Settings) -> Resources {
    let mut capacity = Resources::new()
        .with(CPU, sku.vcpus.saturating_mul(1000))
        .with(MEMORY, memory_capacity(sku.memory_gib, settings.memory_overhead))
        .with(EPHEMERAL_STORAGE, settings.os_disk_gb.saturating_mul(1_000_000_000))
        .with(PODS, settings.max_pods);
    if let Some(gpu) = sku.gpu
        && sku.gpus > 0
    {
        capacity.set(format!("{}.com/gpu", gpu.manufacturer), sku.gpus);
    }
    capacity
}

/// Resources for pods of a node of a size.
pub fn allocatable(sku: &Sku, capacity: &Resources) -> Resources {
    let mut allocatable = capacity.clone();
    allocatable.set(CPU, capacity.get(CPU) - kube_reserved_cpu_milli(sku.vcpus));
    let reserved = kube_reserved_memory(sku.memory_gib) + EVICTION_THRESHOLD;
    allocatable.set(MEMORY, (capacity.get(MEMORY) - reserved).max(0));
    allocatable.set(ATTACHABLE_DISKS, sku.max_data_disks.unwrap_or(DEFAULT_DATA_DISKS));
    allocatable
}

fn requirements(sku: &Sku, settings: &Settings) -> Requirements {
    let mut requirements = Requirements::new();
    let mut one = |key: &str, value: String| requirements.set(key, Requirement::is_in([value]));
    let (cpu, memory) = (sku.vcpus.to_string(), sku.memory_mib().to_string());
    one(labels::INSTANCE_TYPE, sku.name.clone());
    one(labels::ARCH, sku.arch.clone());
    one(labels::OS, "linux".to_owned());
    one(labels::REGION, settings.region.clone());
    one(labels::SKU_NAME, sku.name.clone());
    one(labels::SKU_FAMILY, sku.size.family.to_string());
    one(labels::SKU_SERIES, sku.size.series());
    one(labels::SKU_VERSION, sku.size.generation().to_string());
    one(labels::SKU_CPU, cpu.clone());
    one(labels::SKU_MEMORY, memory.clone());
    one(labels::AKS_SKU_CPU, cpu);
    one(labels::AKS_SKU_MEMORY, memory);
    one(labels::SKU_GPU_COUNT, sku.gpus.to_string());
    one(labels::SKU_NETWORKING_ACCELERATED, sku.accelerated_networking.to_string());
    one(labels::SKU_STORAGE_PREMIUM_CAPABLE, sku.premium_io.to_string());
    one(labels::AKS_CLUSTER, cluster_label(&settings.node_resource_group));
    one(labels::AKS_OS_SKU, os_sku_label(settings.image.family).to_owned());
    let accelerator = sku.size.accelerator.clone().filter(|_| sku.gpu.is_some());
    let maybe = [
        (labels::SKU_GPU_NAME, accelerator),
        (labels::SKU_GPU_MANUFACTURER, sku.gpu.map(|gpu| gpu.manufacturer.clone())),
        (
            labels::SKU_STORAGE_EPHEMERAL_OS_MAX_SIZE,
            sku.ephemeral_os_disk.map(|(size, _)| size.to_string()),
        ),
        (labels::AKS_FIPS_ENABLED, settings.image.fips.then(|| "true".to_owned())),
    ];
    for (key, value) in maybe {
        requirements.set(key, Requirement::is_in(value));
    }
    requirements.set(
        labels::SKU_HYPERV_GENERATION,
        Requirement::is_in(sku.hyperv_generations.iter().copied()),
    );
    requirements.set(labels::AKS_MODE, Requirement::is_in(["system", "user"]));
    requirements
}

fn offerings(
    sku: &Sku,
    settings: &Settings,
    prices: &Prices,
    is_available: impl Fn(&str, CapacityType) -> bool,
) -> Vec<Offering> {
    let zones: BTreeSet<Option<&String>> = sku.zones.iter().map(Some).chain([None]).collect();
    let mut offerings = Vec::with_capacity(zones.len() * 2);
    for zone in zones {
        let label =
            zone.map_or_else(|| REGIONAL.to_owned(), |zone| zone_label(&settings.region, zone));
        let ultra = zone.map_or(sku.ultra_ssd_regional, |zone| sku.ultra_ssd_zones.contains(zone));
        for capacity_type in [CapacityType::OnDemand, CapacityType::Spot] {
            let price = prices.get(&sku.name, capacity_type);
            let sold = price.is_some() && (capacity_type == CapacityType::OnDemand || sku.spot);
            // An offering that is not sold keeps the list price, so that it does not look free.
            let shown = price.or_else(|| prices.get(&sku.name, CapacityType::OnDemand));
            offerings.push(Offering {
                available: sold && is_available(&label, capacity_type),
                requirements: Arc::new(offering_requirements(&label, capacity_type, ultra)),
                zone: label.clone(),
                capacity_type,
                price: shown.unwrap_or(UsdPerHour::ZERO),
            });
        }
    }
    offerings
}

fn offering_requirements(zone: &str, capacity_type: CapacityType, ultra_ssd: bool) -> Requirements {
    let mut requirements = Requirements::new();
    let scope = if zone == REGIONAL { "regional" } else { "zonal" };
    let priority = if capacity_type == CapacityType::Spot { "spot" } else { "regular" };
    for (key, value) in [
        (labels::ZONE, zone),
        (labels::CAPACITY_TYPE, capacity_type.as_str()),
        (labels::PLACEMENT_SCOPE, scope),
        (labels::AKS_PRIORITY, priority),
        (labels::AKS_SCALE_SET_PRIORITY, priority),
    ] {
        requirements.set(key, Requirement::is_in([value]));
    }
    let ultra: &[&str] = if ultra_ssd { &["false", "true"] } else { &["false"] };
    requirements.set(labels::SKU_STORAGE_ULTRA_SSD, Requirement::is_in(ultra.iter().copied()));
    requirements
}

/// Resource group as a label value: without parentheses, at most 63 characters, and with a letter
/// or digit at the end.
pub fn cluster_label(resource_group: &str) -> String {
    let mut label: String = resource_group.replace(['(', ')'], "-").chars().take(63).collect();
    if label.ends_with(['-', '_', '.']) {
        if label.chars().count() == 63 {
            label.pop();
        }
        label.push('z');
    }
    label
}

fn os_sku_label(family: ImageFamily) -> &'static str {
    match family {
        ImageFamily::AzureLinux => "AzureLinux",
        _ => "Ubuntu",
    }
}

#[cfg(test)]
mod tests {
    use nap_engine::ATTACHABLE_VOLUMES;

    use super::*;

    #[test]
    fn cluster_labels_are_valid_label_values() {
        assert_eq!(cluster_label("MC_rg(1)"), "MC_rg-1-z");
        let long = format!("{}-{}", "a".repeat(62), "b");
        assert_eq!(cluster_label(&long), format!("{}z", "a".repeat(62)));
        assert_eq!(cluster_label("plain"), "plain");
    }

    #[test]
    fn the_disk_resource_has_the_name_that_the_engine_expects() {
        assert_eq!(ATTACHABLE_DISKS, format!("{ATTACHABLE_VOLUMES}disk.csi.azure.com"));
    }

    #[test]
    fn a_size_without_a_price_is_listed_as_unavailable() {
        let config = AzureConfig::new("s", "rg", "c", "eastus");
        let settings = Settings::new(&config, &AKSNodeClass::default());
        let catalogue = EmbeddedCatalogue::embedded();
        let row = catalogue.skus_in("eastus").find(|sku| sku.name == "Standard_D4s_v5").unwrap();
        let sku =
            Sku::read(&row.to_resource_sku(catalogue.region("eastus").unwrap()), "eastus").unwrap();
        let priced = instance_type(&sku, &settings, &catalogue.prices_in("eastus"), |_, _| true);
        assert_eq!(priced.offerings.len(), 8);
        assert!(priced.offerings.iter().all(|offering| offering.available));
        let unpriced = instance_type(&sku, &settings, &Prices::default(), |_, _| true);
        assert_eq!(unpriced.offerings.len(), 8);
        assert!(unpriced.offerings.iter().all(|offering| !offering.available));
    }
}
