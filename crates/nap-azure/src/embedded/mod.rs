//! A built-in copy of Azure's VM sizes and list prices, for planning without a subscription and for
//! the emulator.
//!
//! The files in `catalogue/` name their sources. They hold the data of one day and of no particular
//! subscription; with a live cluster, live data is used instead.

pub mod refresh;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use nap_units::UsdPerHour;

use crate::AzureError;
use crate::config::canonical_region;
use crate::prices::Prices;
use crate::skus::{Capability, LocationInfo, ResourceSku};

/// Sizes, regions and list prices.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EmbeddedCatalogue {
    regions: BTreeMap<String, Region>,
    skus: BTreeMap<String, CatalogueSku>,
    /// By size, then by region.
    prices: BTreeMap<String, BTreeMap<String, UsdPerHour>>,
}

/// A region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// Short name, such as `eastus`.
    pub name: String,
    /// Name in the portal, such as `East US`.
    pub display_name: String,
    /// Zones as bare numbers.
    pub zones: Vec<String>,
}

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
    /// Whether the host can encrypt its temporary disks.
    pub encryption_at_host: bool,
    /// Spot price in thousandths of the list price; `None` if it is not sold as spot.
    pub spot_ratio_milli: Option<i64>,
    /// Most data disks that can be attached; `None` if Azure does not state it.
    pub max_data_disks: Option<i64>,
}

/// Driver support of a GPU size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// `nvidia` or `amd`.
    pub manufacturer: String,
    /// `ubuntu`, `azurelinux`, `azurelinux3`.
    pub operating_systems: Vec<String>,
}

const SKUS: &str = "skus.csv";
const PRICES: &str = "prices.csv";
const REGIONS: &str = "regions.csv";
const SKU_HEADER: &str = "name,family,vcpus,memory_gib,arch,gpus,premium_io,accelerated_networking,hyperv_generations,\
                          ephemeral_os_disk,nvme_mib,cache_bytes,temp_mib,ephemeral_placement,encryption_at_host,spot_ratio,max_data_disks";

static EMBEDDED: LazyLock<EmbeddedCatalogue> = LazyLock::new(|| {
    let files = [
        include_str!("../../catalogue/skus.csv"),
        include_str!("../../catalogue/prices.csv"),
        include_str!("../../catalogue/regions.csv"),
    ];
    EmbeddedCatalogue::parse(files[0], files[1], files[2])
        .expect("the embedded catalogue is checked by a test")
});

static GPUS: LazyLock<BTreeMap<String, Gpu>> = LazyLock::new(|| {
    include_str!("../../catalogue/gpus.csv")
        .lines()
        .skip(1)
        .filter_map(|line| {
            let mut cells = line.split(',');
            let (name, manufacturer, systems) = (cells.next()?, cells.next()?, cells.next()?);
            let operating_systems = systems.split('+').map(str::to_owned).collect();
            Some((
                name.to_owned(),
                Gpu { manufacturer: manufacturer.to_owned(), operating_systems },
            ))
        })
        .collect()
});

/// Driver support of a size; `None` if AKS has no driver for it.
pub fn gpu(name: &str) -> Option<&'static Gpu> {
    GPUS.get(&name.to_lowercase())
}

impl EmbeddedCatalogue {
    /// The built-in copy.
    pub fn embedded() -> &'static Self {
        &EMBEDDED
    }

    /// Parses the three files.
    pub fn parse(skus: &str, prices: &str, regions: &str) -> Result<Self, AzureError> {
        let mut catalogue = Self::default();
        for (line, cells) in rows(regions) {
            let [name, display_name, zones] = cells.as_slice() else {
                return Err(bad(REGIONS, line, "a region has three cells"));
            };
            let zones =
                zones.split('+').filter(|zone| !zone.is_empty()).map(str::to_owned).collect();
            let region = Region {
                name: (*name).to_owned(),
                display_name: (*display_name).to_owned(),
                zones,
            };
            catalogue.regions.insert(region.name.clone(), region);
        }
        for (line, cells) in rows(skus) {
            let sku = read_sku(&cells).map_err(|why| bad(SKUS, line, why))?;
            catalogue.skus.insert(sku.name.clone(), sku);
        }
        let header = prices.lines().next().unwrap_or_default();
        let columns: Vec<&str> = header.split(',').skip(1).collect();
        for (line, cells) in rows(prices) {
            let Some((name, cells)) = cells.split_first() else { continue };
            if cells.len() != columns.len() {
                return Err(bad(PRICES, line, "the number of cells differs from the header's"));
            }
            let mut row = BTreeMap::new();
            for (region, cell) in columns.iter().zip(cells).filter(|(_, cell)| !cell.is_empty()) {
                let price = UsdPerHour::parse(cell)
                    .ok_or_else(|| bad(PRICES, line, "a price is not a number"))?;
                row.insert((*region).to_owned(), price);
            }
            catalogue.prices.insert((*name).to_owned(), row);
        }
        Ok(catalogue)
    }

    /// The three files as pairs of name and content.
    pub fn to_files(&self) -> [(&'static str, String); 3] {
        let mut skus = format!("{SKU_HEADER}\n");
        for sku in self.skus.values() {
            skus.push_str(&write_sku(sku));
        }
        let mut regions = "name,display_name,zones\n".to_owned();
        for region in self.regions.values() {
            let cells = [region.name.as_str(), &region.display_name, &region.zones.join("+")];
            regions.push_str(&cells.join(","));
            regions.push('\n');
        }
        let columns: Vec<&str> = self.regions.keys().map(String::as_str).collect();
        let mut prices = format!("name,{}\n", columns.join(","));
        for (name, row) in &self.prices {
            let cells: Vec<String> = columns
                .iter()
                .map(|region| row.get(*region).map(|p| dollars(*p)).unwrap_or_default())
                .collect();
            prices.push_str(
                &([name.clone()].into_iter().chain(cells).collect::<Vec<_>>().join(",") + "\n"),
            );
        }
        [(SKUS, skus), (PRICES, prices), (REGIONS, regions)]
    }

    /// Every region, in name order.
    pub fn regions(&self) -> impl Iterator<Item = &Region> {
        self.regions.values()
    }

    /// The region of a name in any spelling. The error for an unknown one suggests similar names.
    pub fn region(&self, name: &str) -> Result<&Region, AzureError> {
        self.regions.get(&canonical_region(name)).ok_or_else(|| AzureError::UnknownRegion {
            name: name.to_owned(),
            nearest: self.nearest_regions(name),
        })
    }

    /// Up to three regions with similar names, most similar first.
    pub fn nearest_regions(&self, name: &str) -> Vec<String> {
        let wanted = canonical_region(name);
        let mut near: Vec<(usize, &String)> = self
            .regions
            .keys()
            .map(|region| (strsim::levenshtein(&wanted, region), region))
            .collect();
        near.sort();
        let bound = (wanted.len() / 3).max(2);
        near.into_iter()
            .filter(|(distance, _)| *distance <= bound)
            .take(3)
            .map(|(_, name)| name.clone())
            .collect()
    }

    /// Sizes with a price in a region, in name order.
    pub fn skus_in(&self, region: &str) -> impl Iterator<Item = &CatalogueSku> {
        let region = canonical_region(region);
        self.skus.values().filter(move |sku| {
            self.prices.get(&sku.name).is_some_and(|row| row.contains_key(&region))
        })
    }

    /// Prices of a region. A spot price is the list price times the ratio of the size.
    pub fn prices_in(&self, region: &str) -> Prices {
        let canonical = canonical_region(region);
        let mut prices = Prices::default();
        for sku in self.skus_in(region) {
            let Some(price) = self.prices.get(&sku.name).and_then(|row| row.get(&canonical)) else {
                continue;
            };
            prices.on_demand.insert(sku.name.clone(), *price);
            if let Some(ratio) = sku.spot_ratio_milli {
                let spot = UsdPerHour::from_micros(price.micros().saturating_mul(ratio) / 1000);
                prices.spot.insert(sku.name.clone(), spot);
            }
        }
        prices
    }

    /// Replaces the sizes, zones and prices of one region.
    pub fn replace_region(&mut self, region: Region, skus: Vec<CatalogueSku>, prices: &Prices) {
        for row in self.prices.values_mut() {
            row.remove(&region.name);
        }
        for mut sku in skus {
            let Some(price) = prices.on_demand.get(&sku.name) else { continue };
            if let (Some(ratio), Some(spot)) =
                (&mut sku.spot_ratio_milli, prices.spot.get(&sku.name))
            {
                // Rounded up, so that no spot price is understated.
                *ratio = (spot.micros().saturating_mul(1000) + price.micros() - 1)
                    / price.micros().max(1);
            }
            self.prices.entry(sku.name.clone()).or_default().insert(region.name.clone(), *price);
            self.skus.insert(sku.name.clone(), sku);
        }
        self.prices.retain(|_, row| !row.is_empty());
        self.skus.retain(|name, _| self.prices.contains_key(name));
        self.regions.insert(region.name.clone(), region);
    }
}

impl CatalogueSku {
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
            ("EncryptionAtHostSupported", flag(self.encryption_at_host)),
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
            encryption_at_host: flag("EncryptionAtHostSupported"),
            spot_ratio_milli: flag("LowPriorityCapable").then_some(1000),
            max_data_disks: Some(number("MaxDataDiskCount")).filter(|disks| *disks > 0),
        })
    }
}

fn rows(text: &str) -> impl Iterator<Item = (usize, Vec<&str>)> {
    text.lines()
        .enumerate()
        .skip(1)
        .filter(|(_, line)| !line.is_empty())
        .map(|(index, line)| (index + 1, line.split(',').collect()))
}

fn bad(file: &'static str, line: usize, why: impl Into<String>) -> AzureError {
    AzureError::Catalogue { file, line, why: why.into() }
}

fn read_sku(cells: &[&str]) -> Result<CatalogueSku, String> {
    let [name, family, vcpus, memory, arch, gpus, premium, network, hyperv, rest @ ..] = cells
    else {
        return Err("a size has seventeen cells".to_owned());
    };
    let [ephemeral, nvme, cache, temp, placement, encryption, spot, disks] = rest else {
        return Err("a size has seventeen cells".to_owned());
    };
    let number = |cell: &str| {
        if cell.is_empty() {
            Ok(0)
        } else {
            cell.parse::<i64>().map_err(|_| format!("`{cell}` is not a number"))
        }
    };
    let memory_gib = memory.parse().map_err(|_| format!("`{memory}` is not a number"))?;
    let ratio = UsdPerHour::parse(spot).map(|ratio| ratio.micros() / 1000);
    Ok(CatalogueSku {
        name: (*name).to_owned(),
        family: (*family).to_owned(),
        vcpus: number(vcpus)?,
        memory_gib,
        arch: (*arch).to_owned(),
        gpus: number(gpus)?,
        premium_io: *premium == "1",
        accelerated_networking: *network == "1",
        hyperv_generations: (*hyperv).to_owned(),
        ephemeral_os_disk: *ephemeral == "1",
        nvme_mib: number(nvme)?,
        cache_bytes: number(cache)?,
        temp_mib: number(temp)?,
        nvme_placement: *placement == "nvme",
        encryption_at_host: *encryption == "1",
        spot_ratio_milli: ratio,
        max_data_disks: Some(number(disks)?).filter(|disks| *disks > 0),
    })
}

fn write_sku(sku: &CatalogueSku) -> String {
    let number = |value: i64| if value == 0 { String::new() } else { value.to_string() };
    let flag = |value: bool| if value { "1" } else { "" }.to_owned();
    let cells = [
        sku.name.clone(),
        sku.family.clone(),
        sku.vcpus.to_string(),
        sku.memory_gib.to_string(),
        sku.arch.clone(),
        number(sku.gpus),
        flag(sku.premium_io),
        flag(sku.accelerated_networking),
        sku.hyperv_generations.clone(),
        flag(sku.ephemeral_os_disk),
        number(sku.nvme_mib),
        number(sku.cache_bytes),
        number(sku.temp_mib),
        if sku.nvme_placement { "nvme" } else { "" }.to_owned(),
        flag(sku.encryption_at_host),
        sku.spot_ratio_milli
            .map(|ratio| format!("{}.{:03}", ratio / 1000, ratio % 1000))
            .unwrap_or_default(),
        number(sku.max_data_disks.unwrap_or(0)),
    ];
    format!("{}\n", cells.join(","))
}

fn dollars(price: UsdPerHour) -> String {
    let micros = price.micros().max(0);
    let text = format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_files_survive_a_round_trip() {
        let catalogue = EmbeddedCatalogue::embedded();
        assert!(catalogue.regions().count() >= 50);
        assert!(catalogue.skus_in("East US").count() > 1000);
        let prices = catalogue.prices_in("eastus");
        assert_eq!(prices.on_demand.get("Standard_D4s_v5"), UsdPerHour::parse("0.192").as_ref());
        let spot = prices.spot.get("Standard_D4s_v5").unwrap();
        assert!(*spot < UsdPerHour::parse("0.1").unwrap());
        let [skus, prices, regions] = catalogue.to_files().map(|(_, text)| text);
        assert!(EmbeddedCatalogue::parse(&skus, &prices, &regions).unwrap() == *catalogue);
        assert_eq!(skus, include_str!("../../catalogue/skus.csv"));
        assert_eq!(prices, include_str!("../../catalogue/prices.csv"));
    }

    #[test]
    fn an_unknown_region_is_refused_with_similar_names() {
        let error = EmbeddedCatalogue::embedded().region("eatsus").unwrap_err().to_string();
        assert!(
            error.contains("region `eatsus` is unknown") && error.contains("`eastus`"),
            "{error}"
        );
    }

    #[test]
    fn a_malformed_file_is_refused_with_its_line() {
        let error = EmbeddedCatalogue::parse(&format!("{SKU_HEADER}\nx,y\n"), "name\n", "name\n")
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "catalogue file `skus.csv`, line 2: a size has seventeen cells"
        );
    }
}
