//! A VM size of the catalogue, to and from the Resource SKUs API.

use super::Region;
use crate::skus::{Capability, LocationInfo, ResourceSku};

/// Name of the Resource SKUs API as a list of sizes.
const LIVE: &str = "live";

/// A VM size.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent capability")]
pub struct CatalogueSku {
    /// Full name.
    pub name: String,
    /// Name of its quota family; may be empty.
    pub family: String,
    /// Number of vCPUs.
    pub vcpus: i64,
    /// Memory in GiB.
    pub memory_gib: f64,
    /// `amd64` or `arm64`.
    pub arch: String,
    /// Number of GPUs.
    pub gpus: i64,
    /// Whether it takes premium disks.
    pub premium_io: bool,
    /// Whether it has accelerated networking.
    pub accelerated_networking: bool,
    /// `V1`, `V2` or `V1+V2`.
    pub hyperv_generations: String,
    /// Whether it can have an ephemeral OS disk.
    pub ephemeral_os_disk: bool,
    /// Local NVMe disks, in MiB.
    pub nvme_mib: i64,
    /// Cache of the host, in bytes.
    pub cache_bytes: i64,
    /// Temporary disk, in MiB.
    pub temp_mib: i64,
    /// Whether the OS disk can be on the NVMe disk.
    pub nvme_placement: bool,
    /// Whether the host can encrypt its disks; `None` if no source states it.
    pub encryption_at_host: Option<bool>,
    /// Spot price in thousandths of the list price; `None` if it is not sold as spot.
    pub spot_ratio_milli: Option<i64>,
    /// Most data disks that can be attached; `None` if Azure does not state it.
    pub max_data_disks: Option<i64>,
    /// List of sizes that names it; empty if none does.
    pub listed_in: String,
}

impl CatalogueSku {
    /// Whether the host can encrypt its disks. Where it is not stated this is an estimate: nearly
    /// every size that takes premium disks can.
    pub fn encrypts_at_host(&self) -> bool {
        self.encryption_at_host.unwrap_or(self.premium_io)
    }

    /// Item of the Resource SKUs API for a region, offered in all of its zones.
    pub fn to_resource_sku(&self, region: &Region) -> ResourceSku {
        let flag = |value: bool| if value { "True" } else { "False" }.to_owned();
        let arch = if self.arch == "arm64" { "Arm64" } else { "x64" };
        let mut facts = vec![
            ("vCPUs", self.vcpus.to_string()),
            ("vCPUsAvailable", self.vcpus.to_string()),
            ("MemoryGB", self.memory_gib.to_string()),
            ("CpuArchitectureType", arch.to_owned()),
            ("HyperVGenerations", self.hyperv_generations.replace('+', ",")),
            ("PremiumIO", flag(self.premium_io)),
            ("AcceleratedNetworkingEnabled", flag(self.accelerated_networking)),
            ("LowPriorityCapable", flag(self.spot_ratio_milli.is_some())),
            ("EncryptionAtHostSupported", flag(self.encrypts_at_host())),
            ("EphemeralOSDiskSupported", flag(self.ephemeral_os_disk)),
            ("MaxResourceVolumeMB", self.temp_mib.to_string()),
        ];
        for (name, value) in [
            ("GPUs", self.gpus),
            ("NvmeDiskSizeInMiB", self.nvme_mib),
            ("CachedDiskBytes", self.cache_bytes),
            ("MaxDataDiskCount", self.max_data_disks.unwrap_or(0)),
        ] {
            if value > 0 {
                facts.push((name, value.to_string()));
            }
        }
        if self.ephemeral_os_disk {
            let place = if self.nvme_placement { "NvmeDisk" } else { "ResourceDisk,CacheDisk" };
            facts.push(("SupportedEphemeralOSDiskPlacements", place.to_owned()));
        }
        let capabilities = facts
            .into_iter()
            .map(|(name, value)| Capability { name: name.to_owned(), value })
            .collect();
        ResourceSku {
            resource_type: "virtualMachines".to_owned(),
            name: self.name.clone(),
            tier: "Standard".to_owned(),
            size: self.name.strip_prefix("Standard_").unwrap_or(&self.name).to_owned(),
            family: self.family.clone(),
            locations: vec![region.name.clone()],
            location_info: vec![LocationInfo {
                location: region.name.clone(),
                zones: region.zones.clone(),
                zone_details: Vec::new(),
            }],
            capabilities,
            restrictions: Vec::new(),
        }
    }

    /// Parses an item of the Resource SKUs API; `None` if it lacks a property of every size.
    pub fn from_resource_sku(row: &ResourceSku) -> Option<Self> {
        let text = |name: &str| {
            row.capabilities.iter().find(|fact| fact.name == name).map(|fact| &*fact.value)
        };
        let number =
            |name: &str| text(name).and_then(|value| value.parse::<i64>().ok()).unwrap_or(0);
        let flag = |name: &str| text(name).is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let places = text("SupportedEphemeralOSDiskPlacements").unwrap_or_default();
        let clean = |text: &str| !text.is_empty() && !text.contains([',', '\n', '"']);
        if !row.resource_type.eq_ignore_ascii_case("virtualMachines") || !clean(&row.name) {
            return None;
        }
        Some(Self {
            name: row.name.clone(),
            family: if clean(&row.family) { row.family.clone() } else { String::new() },
            vcpus: text("vCPUs")?.parse().ok()?,
            memory_gib: text("MemoryGB")?.parse().ok()?,
            arch: if text("CpuArchitectureType")? == "Arm64" { "arm64" } else { "amd64" }
                .to_owned(),
            gpus: number("GPUs"),
            premium_io: flag("PremiumIO"),
            accelerated_networking: flag("AcceleratedNetworkingEnabled"),
            hyperv_generations: text("HyperVGenerations")
                .unwrap_or("V1")
                .replace(' ', "")
                .replace(',', "+"),
            ephemeral_os_disk: flag("EphemeralOSDiskSupported"),
            nvme_mib: number("NvmeDiskSizeInMiB"),
            cache_bytes: number("CachedDiskBytes"),
            temp_mib: number("MaxResourceVolumeMB"),
            nvme_placement: places.contains("NvmeDisk"),
            encryption_at_host: Some(flag("EncryptionAtHostSupported")),
            spot_ratio_milli: flag("LowPriorityCapable").then_some(1000),
            max_data_disks: Some(number("MaxDataDiskCount")).filter(|disks| *disks > 0),
            listed_in: LIVE.to_owned(),
        })
    }
}
