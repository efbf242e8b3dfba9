//! VM sizes from the Resource SKUs API, and why some are excluded.

use std::collections::BTreeSet;
use std::fmt;

use nap_cloud::CloudError;
use serde::{Deserialize, Serialize};

use crate::arm::{ArmClient, nullable};
use crate::config::canonical_region;
use crate::embedded::{Gpu, gpu};
use crate::size_name::SizeName;

/// An item of the Resource SKUs API.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the names are Azure's")]
pub struct ResourceSku {
    pub resource_type: String,
    pub name: String,
    pub tier: String,
    pub size: String,
    #[serde(deserialize_with = "nullable")]
    pub family: String,
    #[serde(deserialize_with = "nullable")]
    pub locations: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub location_info: Vec<LocationInfo>,
    #[serde(deserialize_with = "nullable")]
    pub capabilities: Vec<Capability>,
    #[serde(deserialize_with = "nullable")]
    pub restrictions: Vec<Restriction>,
}

/// Locations of a size.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the names are Azure's")]
pub struct LocationInfo {
    pub location: String,
    #[serde(deserialize_with = "nullable")]
    pub zones: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub zone_details: Vec<ZoneDetail>,
}

/// Additional capabilities of some zones.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the names are Azure's")]
pub struct ZoneDetail {
    #[serde(deserialize_with = "nullable")]
    pub name: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub capabilities: Vec<Capability>,
}

/// A capability of a size.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Azure's")]
pub struct Capability {
    pub name: String,
    pub value: String,
}

/// A restriction of a size for the subscription.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the names are Azure's")]
pub struct Restriction {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(deserialize_with = "nullable")]
    pub values: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub restriction_info: RestrictionInfo,
    pub reason_code: String,
}

/// Locations and zones of a restriction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the names are Azure's")]
pub struct RestrictionInfo {
    #[serde(deserialize_with = "nullable")]
    pub locations: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub zones: Vec<String>,
}

/// Placement of an ephemeral OS disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EphemeralPlacement {
    /// On the local NVMe disk.
    NvmeDisk,
    /// In the cache of the host.
    CacheDisk,
    /// On the temporary disk.
    ResourceDisk,
}

/// A VM size that a subscription can launch in one region.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent capability")]
pub struct Sku {
    /// Full name.
    pub name: String,
    /// Name of its quota family, such as `standardDSv3Family`.
    pub family: String,
    /// Parsed name.
    pub size: SizeName,
    /// Number of vCPUs.
    pub vcpus: i64,
    /// Memory in GiB, exactly as Azure states it.
    pub memory_gib: f64,
    /// Value of the architecture label.
    pub arch: String,
    /// Number of GPUs that AKS supports.
    pub gpus: i64,
    /// Driver support of its GPUs; `None` without GPUs.
    pub gpu: Option<&'static Gpu>,
    /// Hyper-V generations, `1` and `2`.
    pub hyperv_generations: BTreeSet<&'static str>,
    /// Whether it takes premium disks.
    pub premium_io: bool,
    /// Whether it has accelerated networking.
    pub accelerated_networking: bool,
    /// Largest ephemeral OS disk in GB, and its placement; `None` if it takes none.
    pub ephemeral_os_disk: Option<(i64, EphemeralPlacement)>,
    /// Whether the host can encrypt its temporary disks.
    pub encryption_at_host: bool,
    /// Whether it supports trusted launch.
    pub trusted_launch: bool,
    /// Whether it is sold as spot.
    pub spot: bool,
    /// Most data disks that can be attached; `None` if Azure does not state it.
    pub max_data_disks: Option<i64>,
    /// Zones that are not restricted, as bare numbers.
    pub zones: BTreeSet<String>,
    /// Whether it takes ultra disks when it is placed without a zone.
    pub ultra_ssd_regional: bool,
    /// Zones in which it takes ultra disks.
    pub ultra_ssd_zones: BTreeSet<String>,
}

/// Reason why a size is never launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exclusion {
    /// The item is a disk, a host or another resource.
    NotAVirtualMachine,
    /// The item is for another region.
    OtherRegion,
    /// AKS does not accept the size.
    RestrictedName,
    /// The name does not follow the grammar.
    UnknownName,
    /// The subscription is restricted in this region.
    RestrictedLocation,
    /// The size has fewer than two vCPUs.
    TooFewCpus,
    /// The size has less than 3.5 GiB.
    TooLittleMemory,
    /// AKS has no driver for the accelerators.
    UnsupportedGpu,
    /// Some vCPUs are disabled.
    ConstrainedCpus,
    /// The size is a confidential VM.
    Confidential,
    /// The processor architecture is not stated.
    UnknownArchitecture,
}

impl fmt::Display for Exclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAVirtualMachine => "not a virtual machine",
            Self::OtherRegion => "listed for another region",
            Self::RestrictedName => "AKS does not accept it for nodes",
            Self::UnknownName => "its name does not follow the grammar of sizes",
            Self::RestrictedLocation => "the subscription may not use it in the region",
            Self::TooFewCpus => "fewer than 2 vCPUs",
            Self::TooLittleMemory => "less than 3.5 GiB of memory",
            Self::UnsupportedGpu => "AKS has no driver for its accelerators",
            Self::ConstrainedCpus => "some of its vCPUs are disabled",
            Self::Confidential => "a confidential VM",
            Self::UnknownArchitecture => "its architecture is not stated",
        })
    }
}

const RESTRICTED: &[&str] = &[
    "Standard_A0",
    "Standard_A1",
    "Standard_A1_v2",
    "Standard_B1s",
    "Standard_B1ms",
    "Standard_F1",
    "Standard_F1s",
    "Basic_A0",
    "Basic_A1",
    "Basic_A2",
    "Basic_A3",
    "Basic_A4",
    "Standard_E64i_v3",
    "Standard_E64is_v3",
];

/// Least memory of a node, in GiB.
const MIN_MEMORY_GIB: f64 = 3.5;

impl Sku {
    /// Parses an item for a region.
    pub fn read(row: &ResourceSku, region: &str) -> Result<Self, Exclusion> {
        let region = canonical_region(region);
        let here = |location: &String| canonical_region(location) == region;
        if !row.resource_type.eq_ignore_ascii_case("virtualMachines") {
            return Err(Exclusion::NotAVirtualMachine);
        }
        if !row.locations.iter().any(here) {
            return Err(Exclusion::OtherRegion);
        }
        if RESTRICTED.contains(&row.name.as_str()) {
            return Err(Exclusion::RestrictedName);
        }
        let size = SizeName::parse(&row.size).ok_or(Exclusion::UnknownName)?;
        if row
            .restrictions
            .iter()
            .any(|r| r.kind.eq_ignore_ascii_case("Location") && r.values.iter().any(here))
        {
            return Err(Exclusion::RestrictedLocation);
        }
        let facts = Facts(&row.capabilities);
        let vcpus =
            facts.integer("vCPUs").filter(|vcpus| *vcpus >= 2).ok_or(Exclusion::TooFewCpus)?;
        let memory_gib = facts
            .text("MemoryGB")
            .and_then(|text| text.parse::<f64>().ok())
            .filter(|gib| gib.is_finite() && *gib >= MIN_MEMORY_GIB)
            .ok_or(Exclusion::TooLittleMemory)?;
        let gpu = gpu(&row.name);
        let stated_gpus = facts.integer("GPUs").unwrap_or(0);
        if stated_gpus > 0 && gpu.is_none() {
            return Err(Exclusion::UnsupportedGpu);
        }
        if size.constrained.is_some() {
            return Err(Exclusion::ConstrainedCpus);
        }
        if row.size.starts_with("DC") || row.size.starts_with("EC") {
            return Err(Exclusion::Confidential);
        }
        let arch = match facts.text("CpuArchitectureType") {
            None => return Err(Exclusion::UnknownArchitecture),
            Some("x64") => "amd64",
            Some("Arm64") => "arm64",
            Some(other) => other,
        };
        let restricted: BTreeSet<&String> = row
            .restrictions
            .iter()
            .filter(|r| r.kind.eq_ignore_ascii_case("Zone") && r.values.iter().any(here))
            .flat_map(|restriction| &restriction.restriction_info.zones)
            .collect();
        let places = || row.location_info.iter().filter(|info| here(&info.location));
        Ok(Self {
            name: row.name.clone(),
            family: row.family.clone(),
            vcpus,
            memory_gib,
            arch: arch.to_owned(),
            gpus: if gpu.is_some() { stated_gpus } else { 0 },
            gpu,
            hyperv_generations: [("v1", "1"), ("v2", "2")]
                .into_iter()
                .filter(|(mark, _)| facts.list_contains("HyperVGenerations", mark))
                .map(|(_, generation)| generation)
                .collect(),
            premium_io: facts.flag("PremiumIO"),
            accelerated_networking: facts.flag("AcceleratedNetworkingEnabled"),
            ephemeral_os_disk: facts.ephemeral_os_disk(),
            encryption_at_host: facts.flag("EncryptionAtHostSupported"),
            trusted_launch: facts.list_contains("HyperVGenerations", "v2")
                && !facts.flag("TrustedLaunchDisabled"),
            spot: facts.flag("LowPriorityCapable"),
            max_data_disks: facts.integer("MaxDataDiskCount"),
            zones: places()
                .flat_map(|info| &info.zones)
                .filter(|z| !restricted.contains(z))
                .cloned()
                .collect(),
            ultra_ssd_regional: facts.flag("UltraSSDAvailable"),
            ultra_ssd_zones: places()
                .flat_map(|info| &info.zone_details)
                .filter(|detail| Facts(&detail.capabilities).flag("UltraSSDAvailable"))
                .flat_map(|detail| detail.name.iter().cloned())
                .collect(),
            size,
        })
    }

    /// Memory in whole MiB, as the labels state it.
    #[expect(clippy::cast_possible_truncation, reason = "memory sizes are far below 2^53 MiB")]
    pub fn memory_mib(&self) -> i64 {
        (self.memory_gib * 1024.0) as i64
    }

    /// Whether an OS disk of this size would be ephemeral.
    pub fn uses_ephemeral_os_disk(&self, os_disk_gb: i64) -> bool {
        self.ephemeral_os_disk.is_some_and(|(largest, _)| os_disk_gb <= largest)
    }
}

/// Access to a list of capabilities. The first of duplicates counts.
struct Facts<'a>(&'a [Capability]);

impl Facts<'_> {
    fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|fact| fact.name == name).map(|fact| fact.value.as_str())
    }

    fn integer(&self, name: &str) -> Option<i64> {
        self.text(name)?.parse().ok()
    }

    fn any_case(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|fact| fact.name.eq_ignore_ascii_case(name))
            .map(|fact| fact.value.as_str())
    }

    fn flag(&self, name: &str) -> bool {
        self.any_case(name).is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }

    fn list_contains(&self, name: &str, mark: &str) -> bool {
        self.any_case(name).is_some_and(|value| {
            value.replace(' ', "").to_lowercase().contains(&mark.to_lowercase())
        })
    }

    /// Largest ephemeral OS disk in GB. The first source that is not empty counts, even if a later
    /// one is larger, as in AKS.
    fn ephemeral_os_disk(&self) -> Option<(i64, EphemeralPlacement)> {
        if !self.flag("EphemeralOSDiskSupported") {
            return None;
        }
        let amount = |name: &str| self.integer(name).filter(|amount| *amount > 0);
        let mebibytes = |name: &str| amount(name).map(|mib| mib.saturating_mul(1 << 20));
        let nvme = mebibytes("NvmeDiskSizeInMiB")
            .filter(|_| self.list_contains("SupportedEphemeralOSDiskPlacements", "NvmeDisk"));
        let (bytes, placement) = if let Some(bytes) = nvme {
            (bytes, EphemeralPlacement::NvmeDisk)
        } else if let Some(bytes) = amount("CachedDiskBytes") {
            (bytes, EphemeralPlacement::CacheDisk)
        } else {
            (mebibytes("MaxResourceVolumeMB")?, EphemeralPlacement::ResourceDisk)
        };
        let gigabytes = bytes / 1_000_000_000;
        (gigabytes > 0).then_some((gigabytes, placement))
    }
}

/// Lists the items of a region.
pub async fn list(
    arm: &ArmClient,
    subscription: &str,
    region: &str,
) -> Result<Vec<ResourceSku>, CloudError> {
    let path = format!(
        "/subscriptions/{subscription}/providers/Microsoft.Compute/skus?api-version=2021-07-01&$filter={}",
        crate::arm::percent_encode(&format!("location eq '{region}'"))
    );
    arm.list(&format!("list VM sizes in {region}"), &path).await
}
