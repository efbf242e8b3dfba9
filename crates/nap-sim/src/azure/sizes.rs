//! VM sizes of the region: the rows of the Resource SKUs API, and what a request may use.
//!
//! Read from the raw rows of the embedded catalogue with code of its own, so that a misreading of
//! the provider shows.

use nap_azure::embedded::{CatalogueSku, EmbeddedCatalogue, Region, gpu};
use serde_json::{Value, json};

use super::EmulatorConfig;

/// A VM size of the region.
#[derive(Clone, Debug)]
pub(crate) struct VmSize {
    pub name: String,
    /// Quota family; empty if none is known.
    pub family: String,
    pub vcpus: i64,
    pub memory_gib: f64,
    /// Value of the architecture label.
    pub arch: &'static str,
    pub gpus: i64,
    /// Vendor of the GPUs that AKS has a driver for; `None` without one.
    pub gpu_vendor: Option<&'static str>,
    /// Hyper-V generations, such as `V1,V2`.
    pub generations: String,
    pub spot: bool,
    /// Zones of the size in the region.
    pub zones: Vec<String>,
    /// Zones in which the subscription may not use it.
    pub restricted_zones: Vec<String>,
    /// Whether the subscription may not use it in the region at all.
    pub restricted: bool,
    /// Zones in which it takes ultra disks.
    pub ultra_zones: Vec<String>,
    /// Largest ephemeral OS disk in GB; zero without one.
    pub ephemeral_gb: i64,
}

/// The sizes of the region and their rows in the API, in the same order.
pub(crate) struct Sizes {
    sizes: Vec<VmSize>,
    pub rows: Vec<Value>,
}

impl Sizes {
    pub(crate) fn new(config: &EmulatorConfig, region: &Region) -> Self {
        let catalogue = EmbeddedCatalogue::embedded();
        let sold = catalogue.skus_in(&region.name).map(|sku| (sku, false));
        let retired = catalogue.gone_in(&region.name).map(|(sku, _)| (sku, !config.retired_sizes));
        let known =
            |sku: &CatalogueSku| config.sizes.is_empty() || config.sizes.contains(&sku.name);
        let mut sizes = Vec::new();
        let mut rows = Vec::new();
        for (sku, retired) in sold.chain(retired).filter(|(sku, _)| known(sku)) {
            let stated =
                catalogue.sale(&sku.name, &region.name).and_then(|sale| sale.zones.clone());
            let zones = stated.unwrap_or_else(|| region.zones.clone());
            let restriction = config.restrictions.get(&sku.name);
            let restricted = retired || restriction.is_some_and(Vec::is_empty);
            let restricted_zones = restriction.cloned().unwrap_or_default();
            let mut size = read_size(sku, zones);
            (size.restricted, size.restricted_zones) = (restricted, restricted_zones);
            if config.ultra_disks && sku.premium_io {
                size.ultra_zones.clone_from(&size.zones);
            }
            rows.push(sku_row(sku, &size, region));
            sizes.push(size);
        }
        rows.extend(other_rows(&region.name));
        Self { sizes, rows }
    }

    /// The size with this exact name, if the subscription may use it for nodes.
    pub(crate) fn get(&self, name: &str) -> Option<&VmSize> {
        let size = self.sizes.iter().find(|size| size.name == name)?;
        // AKS takes no size with one vCPU.
        (!size.restricted && size.vcpus >= 2).then_some(size)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.sizes.iter().map(|size| size.name.as_str())
    }

    pub(crate) fn families(&self) -> Vec<&str> {
        let mut families: Vec<&str> = self.sizes.iter().map(|size| size.family.as_str()).collect();
        families.retain(|family| !family.is_empty());
        families.sort_unstable();
        families.dedup();
        families
    }
}

/// Reads a size; restrictions and ultra disks are those of the configuration.
fn read_size(sku: &CatalogueSku, zones: Vec<String>) -> VmSize {
    let mebibytes = |mib: i64| mib.saturating_mul(1024 * 1024);
    // NVMe where the OS disk may be on it, then the host's cache, then the temporary disk.
    let places = [
        if sku.nvme_placement { mebibytes(sku.nvme_mib) } else { 0 },
        sku.cache_bytes,
        mebibytes(sku.temp_mib),
    ];
    let bytes = places.into_iter().find(|bytes| *bytes > 0).unwrap_or(0);
    VmSize {
        name: sku.name.clone(),
        family: sku.family.clone(),
        vcpus: sku.vcpus,
        memory_gib: sku.memory_gib,
        arch: if sku.arch == "arm64" { "arm64" } else { "amd64" },
        gpus: sku.gpus,
        gpu_vendor: gpu(&sku.name).map(|gpu| gpu.manufacturer.as_str()),
        generations: sku.hyperv_generations.replace('+', ","),
        spot: sku.spot_ratio_milli.is_some(),
        zones,
        restricted_zones: Vec::new(),
        restricted: false,
        ultra_zones: Vec::new(),
        ephemeral_gb: if sku.ephemeral_os_disk { bytes / 1_000_000_000 } else { 0 },
    }
}

/// The row of a size. Every value of a capability is text; absent numbers have no capability.
fn sku_row(sku: &CatalogueSku, size: &VmSize, region: &Region) -> Value {
    let yes_no = |value: bool| if value { "True" } else { "False" };
    let mut capabilities = Vec::new();
    let mut state = |name: &str, value: &str| {
        capabilities.push(json!({ "name": name, "value": value }));
    };
    state("MaxResourceVolumeMB", &sku.temp_mib.to_string());
    state("vCPUs", &sku.vcpus.to_string());
    state("MemoryPreservingMaintenanceSupported", "True");
    state("HyperVGenerations", &size.generations);
    state("MemoryGB", &sku.memory_gib.to_string());
    for (name, number) in [
        ("MaxDataDiskCount", sku.max_data_disks.unwrap_or(0)),
        ("GPUs", sku.gpus),
        ("CachedDiskBytes", sku.cache_bytes),
        ("NvmeDiskSizeInMiB", sku.nvme_mib),
    ] {
        if number > 0 {
            state(name, &number.to_string());
        }
    }
    state("CpuArchitectureType", if size.arch == "arm64" { "Arm64" } else { "x64" });
    state("LowPriorityCapable", yes_no(size.spot));
    state("PremiumIO", yes_no(sku.premium_io));
    state("VMDeploymentTypes", "IaaS");
    state("vCPUsAvailable", &sku.vcpus.to_string());
    state("EphemeralOSDiskSupported", yes_no(sku.ephemeral_os_disk));
    if sku.ephemeral_os_disk {
        let places = if sku.nvme_placement { "NvmeDisk" } else { "ResourceDisk,CacheDisk" };
        state("SupportedEphemeralOSDiskPlacements", places);
    }
    state("EncryptionAtHostSupported", yes_no(sku.encrypts_at_host()));
    state("AcceleratedNetworkingEnabled", yes_no(sku.accelerated_networking));
    let ultra = json!([{ "name": "UltraSSDAvailable", "value": "True" }]);
    let details = if size.ultra_zones.is_empty() {
        json!([])
    } else {
        json!([{ "name": size.ultra_zones, "capabilities": ultra }])
    };
    let location = json!({ "location": region.name, "zones": size.zones, "zoneDetails": details });
    json!({
        "resourceType": "virtualMachines",
        "name": sku.name,
        "tier": "Standard",
        "size": sku.name.strip_prefix("Standard_").unwrap_or(&sku.name),
        "family": sku.family,
        "locations": [region.name],
        "locationInfo": [location],
        "capabilities": capabilities,
        "restrictions": restrictions(size, &region.name),
    })
}

fn restrictions(size: &VmSize, region: &str) -> Vec<Value> {
    let reason = "NotAvailableForSubscription";
    let restriction = |kind: &str, info: Value| {
        json!({
            "type": kind, "values": [region], "restrictionInfo": info, "reasonCode": reason,
        })
    };
    let mut all = Vec::new();
    if size.restricted {
        all.push(restriction("Location", json!({ "locations": [region] })));
    }
    if !size.restricted_zones.is_empty() {
        let info = json!({ "locations": [region], "zones": size.restricted_zones });
        all.push(restriction("Zone", info));
    }
    all
}

/// Rows of other resource types, which the API lists among the sizes.
fn other_rows(region: &str) -> Vec<Value> {
    [
        ("disks", "Premium_LRS", "Premium"),
        ("snapshots", "Standard_ZRS", "Standard"),
        ("hostGroups/hosts", "DSv3-Type1", "Standard"),
    ]
    .into_iter()
    .map(|(kind, name, tier)| {
        json!({
            "resourceType": kind, "name": name, "tier": tier, "locations": [region],
            "locationInfo": [{ "location": region, "zones": [], "zoneDetails": [] }],
            "capabilities": [], "restrictions": [],
        })
    })
    .collect()
}
