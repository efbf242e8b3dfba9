//! Capacity, allocatable, labels and offerings of every size equal the incumbent's, also for other
//! settings, full quota and failed offerings.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use jiff::Timestamp;
use nap_api::aksnodeclass::ImageFamily;
use nap_api::{AKSNodeClass, Requirement, labels};
use nap_azure::arm::{ArmClient, Failure, http_service};
use nap_azure::instance_types::{Settings, instance_type, suits};
use nap_azure::prices::Prices;
use nap_azure::quota::{self, Quota, REGIONAL_CORES};
use nap_azure::skus::{Capability, Exclusion, ResourceSku, Sku};
use nap_azure::unavailable_offerings::{REGIONAL, UnavailableOfferings};
use nap_azure::{AzureConfig, EVICTION_THRESHOLD, SizeName, canonical_region};
use nap_clock::Clock;
use nap_engine::{ATTACHABLE_VOLUMES, CapacityType, InstanceType};
use nap_units::{CPU, EPHEMERAL_STORAGE, MEMORY, PODS, Resources, UsdPerHour};
use serde_json::{Value, json};

/// Capabilities by the number that the rows use.
const CAPABILITIES: [&str; 21] = [
    "MaxResourceVolumeMB",
    "CpuArchitectureType",
    "PremiumIO",
    "vCPUs",
    "LowPriorityCapable",
    "MemoryGB",
    "vCPUsAvailable",
    "HyperVGenerations",
    "EncryptionAtHostSupported",
    "AcceleratedNetworkingEnabled",
    "MaxDataDiskCount",
    "EphemeralOSDiskSupported",
    "SupportedEphemeralOSDiskPlacements",
    "UltraSSDAvailable",
    "NvmeDiskSizeInMiB",
    "GPUs",
    "TrustedLaunchDisabled",
    "CachedDiskBytes",
    "premiumio",
    "acceleratednetworkingENABLED",
    "hypervgenerations",
];

/// Labels in the order of the rows.
const LABELS: [&str; 13] = [
    labels::SKU_FAMILY,
    labels::SKU_SERIES,
    labels::SKU_VERSION,
    labels::SKU_CPU,
    labels::SKU_MEMORY,
    labels::SKU_GPU_COUNT,
    labels::SKU_GPU_MANUFACTURER,
    labels::SKU_GPU_NAME,
    labels::SKU_HYPERV_GENERATION,
    labels::SKU_NETWORKING_ACCELERATED,
    labels::SKU_STORAGE_PREMIUM_CAPABLE,
    labels::SKU_STORAGE_EPHEMERAL_OS_MAX_SIZE,
    labels::ARCH,
];

/// A row of the Resource SKUs API, and what the incumbent makes of it.
struct Case {
    region: String,
    row: ResourceSku,
    /// Labels, amounts, offerings and ephemeral disk, each with its parts; `None` if excluded.
    expected: Option<[Vec<String>; 4]>,
}

impl Case {
    fn key(&self) -> String {
        format!("{}/{}", self.region, self.row.name)
    }
}

fn cases() -> Vec<Case> {
    read(include_str!("../data/incumbent_types.tsv").lines())
}

fn read<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<Case> {
    let mut places: Vec<Value> = Vec::new();
    let mut cases = Vec::new();
    for line in lines {
        if let Some(place) = line.strip_prefix('@') {
            places.push(serde_json::from_str(place).unwrap());
            continue;
        }
        let cells: Vec<&str> = line.split('\t').collect();
        let [name, size, family, place, capabilities, rest @ ..] = cells.as_slice() else {
            panic!("{line}")
        };
        let place = &places[place.parse::<usize>().unwrap()];
        let mut row: ResourceSku = serde_json::from_value(place.clone()).unwrap();
        (*name).clone_into(&mut row.name);
        (*family).clone_into(&mut row.family);
        let short = name.strip_prefix("Standard_").unwrap_or(name);
        if size.is_empty() { short } else { size }.clone_into(&mut row.size);
        row.capabilities = capabilities
            .split(';')
            .filter_map(|pair| pair.split_once('='))
            .map(|(number, value)| Capability {
                name: CAPABILITIES[number.parse::<usize>().unwrap()].to_owned(),
                value: value.to_owned(),
            })
            .collect();
        let expected = match rest {
            [why] => {
                assert!(why.starts_with('!'), "{line}");
                None
            }
            [labels, amounts, offerings, disk] => {
                Some([parts(labels), parts(amounts), parts(offerings), parts(disk)])
            }
            _ => panic!("{line}"),
        };
        cases.push(Case { region: canonical_region(&row.locations[0]), row, expected });
    }
    cases
}

fn parts(cell: &str) -> Vec<String> {
    cell.split('/').map(str::to_owned).collect()
}

/// What differs from the default case.
#[derive(Default)]
struct Variant {
    /// Class and cluster settings, by the incumbent's names.
    given: Value,
    /// Types that are missing.
    removed: BTreeSet<String>,
    /// Types that are not in the default case, with their cells.
    added: BTreeMap<String, [Vec<String>; 4]>,
    /// Zones with their availability, by type.
    zones: BTreeMap<String, String>,
}

fn variants() -> BTreeMap<String, Variant> {
    let mut variants: BTreeMap<String, Variant> = BTreeMap::new();
    let mut name = String::new();
    for line in include_str!("../data/incumbent_variants.tsv").lines() {
        let (kind, rest) = line.split_at(1);
        match kind {
            "@" => {
                let (title, given) = rest.split_once('\t').unwrap();
                title.clone_into(&mut name);
                variants.entry(name.clone()).or_default().given =
                    serde_json::from_str(given).unwrap();
            }
            "-" => {
                variants.get_mut(&name).unwrap().removed.insert(rest.to_owned());
            }
            "+" => {
                let (key, cells) = rest.split_once('\t').unwrap();
                let cells: Vec<Vec<String>> = cells.split('\t').map(parts).collect();
                let added = &mut variants.get_mut(&name).unwrap().added;
                added.insert(key.to_owned(), cells.try_into().unwrap());
            }
            _ => {
                let (key, zones) = rest.split_once('\t').unwrap();
                variants.get_mut(&name).unwrap().zones.insert(key.to_owned(), zones.to_owned());
            }
        }
    }
    variants
}

fn settings(region: &str, given: &Value) -> Settings {
    let mut config = AzureConfig::new("s", "rg", "test-cluster", region);
    "test-resourceGroup".clone_into(&mut config.node_resource_group);
    if let Some(share) = given.get("vmMemoryOverheadPercent").and_then(Value::as_f64) {
        config.vm_memory_overhead_ratio = share;
    }
    if let Some(plugin) = given.get("networkPlugin").and_then(Value::as_str) {
        config.network_plugin = match plugin {
            "azure" => nap_azure::NetworkPlugin::AzureNodeSubnet,
            _ => nap_azure::NetworkPlugin::None,
        };
    }
    let mut class = AKSNodeClass::default();
    let number = |key: &str| given.get(key).and_then(Value::as_i64).map(|n| n.try_into().unwrap());
    class.spec.max_pods = number("maxPods");
    class.spec.os_disk_size_gb = number("osDiskSizeGB").unwrap_or(class.spec.os_disk_size_gb);
    // Members of the class, by their paths.
    let mut spec = serde_json::to_value(&class.spec).unwrap();
    for (path, value) in given.as_object().into_iter().flatten() {
        let mut place = &mut spec;
        if path.contains('.') || matches!(path.as_str(), "imageFamily" | "fipsMode") {
            for name in path.split('.') {
                place = &mut place[name];
            }
            *place = value.clone();
        }
    }
    if given.get("status.localDNSState").is_some() {
        spec["localDNS"] =
            json!({ "mode": "Required", "vnetDNSOverrides": [], "kubeDNSOverrides": [] });
    }
    class.spec = serde_json::from_value(spec).unwrap();
    Settings::new(&config, &class)
}

/// Quota as the usages API would report it.
fn quota(given: &Value) -> Option<Quota> {
    let usages = given.get("usages")?;
    let body = Bytes::from(json!({ "value": usages }).to_string());
    let service = http_service(tower::service_fn(move |_: Request<Full<Bytes>>| {
        let body = body.clone();
        async move { Ok::<_, Infallible>(Response::new(Full::new(body))) }
    }));
    let arm = ArmClient::anonymous(service, Clock::wall(), "https://arm.example");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let mut left = runtime.block_on(quota::fetch(&arm, "s", "eastus")).unwrap();
    // The incumbent knows only the quotas of families.
    left.remove(REGIONAL_CORES);
    Some(Quota::counted(left))
}

/// Failures that leave the marks of a variant.
fn marks(given: &Value, skus: &BTreeMap<String, Sku>, region: &str) -> UnavailableOfferings {
    let mut unavailable = UnavailableOfferings::default();
    let now = Timestamp::UNIX_EPOCH;
    for mark in given.get("marks").and_then(Value::as_array).into_iter().flatten() {
        let text = |key: &str| mark[key].as_str().unwrap();
        let any = skus.values().next().unwrap();
        let (sku, failure, capacity_type) = if text("Kind") == "spot" {
            (any, Failure::SpotQuota, CapacityType::Spot)
        } else {
            let Some(sku) = skus.get(text("SKU")) else { continue };
            let capacity_type = CapacityType::parse(text("Capacity")).unwrap();
            (sku, Failure::OverconstrainedZonal, capacity_type)
        };
        unavailable.learn(failure, sku, region, text("Zone"), capacity_type, now);
    }
    unavailable
}

/// Every difference of all sizes under a variant, in words, and the number of sizes.
fn differences(cases: &[Case], variant: &Variant) -> (usize, Vec<String>) {
    let mut found = Vec::new();
    let quota = quota(&variant.given);
    let mut skus: BTreeMap<&str, BTreeMap<String, Sku>> = BTreeMap::new();
    for case in cases {
        let of_region = skus.entry(&case.region).or_default();
        if let Ok(sku) = Sku::read(&case.row, &case.region) {
            of_region.insert(sku.name.clone(), sku);
        }
    }
    let marks: BTreeMap<&str, UnavailableOfferings> =
        skus.iter().map(|(region, skus)| (*region, marks(&variant.given, skus, region))).collect();
    for case in cases {
        let key = case.key();
        let settings = settings(&case.region, &variant.given);
        let read = Sku::read(&case.row, &case.region).ok().filter(|sku| suits(sku, &settings));
        let expected = case.expected.as_ref().filter(|_| !variant.removed.contains(&key));
        // The incumbent keeps these and fails at the launch, for lack of an image.
        let has_image = |cells: &&[Vec<String>; 4]| settings.arm64_image || cells[0][12] != "arm64";
        let expected = expected.or_else(|| variant.added.get(&key)).filter(has_image);
        let (sku, expected) = match (read, expected) {
            (None, None) => continue,
            // The incumbent does not know the letter.
            (Some(_), None) if case.row.size.contains("ixds_") => continue,
            (Some(_), None) => {
                found.push(format!("{key}: is not excluded"));
                continue;
            }
            (None, Some(_)) => {
                let why = Sku::read(&case.row, &case.region).err();
                found.push(format!("{key}: is excluded: {why:?}"));
                continue;
            }
            (Some(sku), Some(expected)) => (sku, expected),
        };
        let [label_parts, amounts, offerings, disk] = expected;
        let price = UsdPerHour::from_micros(offerings[0].parse().unwrap());
        let mut prices = Prices::default();
        prices.on_demand.insert(sku.name.clone(), price);
        prices.spot.insert(sku.name.clone(), price);
        let made = instance_type(&sku, &settings, &prices, |zone, capacity_type| {
            let charge = quota::charge(&sku.family, sku.vcpus, CapacityType::OnDemand);
            let fits = quota.as_ref().is_none_or(|quota| quota.fits(&charge));
            let marked = &marks[&*case.region];
            (capacity_type == CapacityType::Spot || fits)
                && !marked.contains(&sku, zone, capacity_type, Timestamp::UNIX_EPOCH)
        });
        let mut compare = |what: &str, ours: String, theirs: String| {
            if ours != theirs {
                found.push(format!("{key}: {what}: {ours} instead of {theirs}"));
            }
        };
        compare("labels", label_text(&made), label_text_of(case, label_parts, &settings));
        let (capacity, allocatable) = resources(amounts, &settings);
        compare("capacity", amount_text(&made.capacity), amount_text(&capacity));
        compare("allocatable", amount_text(&made.allocatable), amount_text(&allocatable));
        let zones = variant.zones.get(&key).unwrap_or(&offerings[1]);
        compare("offerings", zone_text(&made, &case.region, price), zones.clone());
        let used = match settings.os_disk_gb {
            30 => &disk[3],
            1024 => &disk[4],
            _ => &disk[2],
        };
        let (largest, placement) = sku
            .ephemeral_os_disk
            .map_or((0, String::new()), |(largest, place)| (largest, format!("{place:?}")));
        let ours =
            format!("{largest} {placement} {}", sku.uses_ephemeral_os_disk(settings.os_disk_gb));
        compare("ephemeral", ours, format!("{} {} {}", disk[0], disk[1], used == "y"));
    }
    (cases.len(), found)
}

/// Every label of a type, the absent ones too.
fn label_text(made: &InstanceType) -> String {
    let all = made.requirements.iter().map(|(key, values)| {
        let values: Vec<&str> = values.values().iter().collect();
        (key.to_owned(), values.join("+"))
    });
    format!("{:?}", all.collect::<BTreeMap<_, _>>())
}

fn label_text_of(case: &Case, parts: &[String], settings: &Settings) -> String {
    let mut all: BTreeMap<String, String> =
        LABELS.iter().zip(parts).map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
    let azure_linux = settings.image.family == ImageFamily::AzureLinux;
    let fips = if settings.image.fips { "true" } else { "" };
    for (key, value) in [
        (labels::SKU_NAME, case.row.name.as_str()),
        (labels::INSTANCE_TYPE, &case.row.name),
        (labels::REGION, &case.region),
        (labels::AKS_SKU_CPU, &parts[3]),
        (labels::AKS_SKU_MEMORY, &parts[4]),
        (labels::AKS_CLUSTER, "test-resourceGroup"),
        (labels::AKS_FIPS_ENABLED, fips),
        (labels::AKS_MODE, "system+user"),
        (labels::AKS_OS_SKU, if azure_linux { "AzureLinux" } else { "Ubuntu" }),
        (labels::OS, "linux"),
    ] {
        all.insert(key.to_owned(), value.to_owned());
    }
    format!("{all:?}")
}

/// Capacity and allocatable of a row under some settings.
fn resources(amounts: &[String], settings: &Settings) -> (Resources, Resources) {
    let amount = |index: usize| amounts[index].parse::<i64>().unwrap();
    let memory = match settings.memory_overhead {
        0.0 => amount(6),
        0.1 => amount(7),
        _ => amount(1),
    };
    let mut capacity = Resources::new()
        .with(CPU, amount(0))
        .with(MEMORY, memory)
        .with(EPHEMERAL_STORAGE, settings.os_disk_gb * 1_000_000_000)
        .with(PODS, settings.max_pods);
    for (resource, index) in [("nvidia.com/gpu", 2), ("amd.com/gpu", 3)] {
        if amount(index) > 0 {
            capacity.set(resource, amount(index));
        }
    }
    let mut allocatable = capacity.clone();
    allocatable.set(CPU, amount(0) - amount(4));
    allocatable.set(MEMORY, (memory - amount(5) - EVICTION_THRESHOLD).max(0));
    (capacity, allocatable)
}

fn amount_text(resources: &Resources) -> String {
    // The incumbent does not know how many volumes a size can attach.
    let known = resources.iter().filter(|(name, _)| !name.starts_with(ATTACHABLE_VOLUMES));
    format!("{:?}", known.collect::<BTreeMap<_, _>>())
}

/// For each zone: its number, whether on-demand and spot are available, and ultra disks.
fn zone_text(made: &InstanceType, region: &str, price: UsdPerHour) -> String {
    let mut zones: BTreeMap<String, [Option<bool>; 3]> = BTreeMap::new();
    for offering in &made.offerings {
        assert_eq!(offering.price, price, "{}", made.name);
        let spot = offering.capacity_type == CapacityType::Spot;
        let label = |key: &str| offering.requirements.get(key).unwrap();
        for key in [labels::AKS_PRIORITY, labels::AKS_SCALE_SET_PRIORITY] {
            assert_eq!(label(key).single(), Some(if spot { "spot" } else { "regular" }));
        }
        let regional = offering.zone == REGIONAL;
        let scope = label(labels::PLACEMENT_SCOPE).single();
        assert_eq!(scope, Some(if regional { "regional" } else { "zonal" }));
        let number = offering.zone.strip_prefix(&format!("{region}-")).unwrap_or(&offering.zone);
        let entry = zones.entry(number.to_owned()).or_default();
        entry[usize::from(spot)] = Some(offering.available);
        entry[2] = Some(label(labels::SKU_STORAGE_ULTRA_SSD).values().contains("true"));
    }
    let text = |(number, [on_demand, spot, ultra]): (String, [Option<bool>; 3])| {
        let yes = |known: Option<bool>| if known.unwrap() { "y" } else { "n" };
        let ultra = if ultra.unwrap() { "u" } else { "-" };
        format!("{number}{}{}{ultra}", yes(on_demand), yes(spot))
    };
    zones.into_iter().map(text).collect::<Vec<_>>().join("+")
}

#[test]
fn every_size_is_as_the_incumbent_has_it() {
    let (sizes, found) = differences(&cases(), &Variant::default());
    assert_eq!(sizes, 1288, "with the 61 of the newer parser these are all 1,349");
    assert!(found.is_empty(), "{} differ: {:#?}", found.len(), &found[..found.len().min(10)]);
}

#[test]
fn every_size_is_as_the_incumbent_has_it_under_other_settings_quota_and_marks() {
    let cases = cases();
    let variants = variants();
    assert_eq!(variants.len(), 23, "with the plugin that is refused these are all 24");
    for (name, variant) in &variants {
        let (_, found) = differences(&cases, variant);
        let some = &found[..found.len().min(10)];
        assert!(found.is_empty(), "{name}: {} differ: {some:#?}", found.len());
    }
}

/// vCPUs and memory of a row as Azure states them.
fn stated(row: &ResourceSku) -> (Option<&str>, Option<&str>) {
    let value = |name: &str| {
        let found = row.capabilities.iter().find(|one| one.name == name);
        found.map(|one| one.value.as_str())
    };
    (value("vCPUs"), value("MemoryGB"))
}

#[test]
fn names_of_the_newer_parser_are_read_as_it_reads_them() {
    let mut names: Vec<Vec<String>> = Vec::new();
    let rows = include_str!("../data/newer_names.tsv").lines().map(|line| {
        let named = line.rsplit_once('\t').filter(|_| !line.starts_with('@'));
        named.map_or(line, |(row, name)| {
            names.push(parts(name));
            row
        })
    });
    let newer = read(rows);
    assert_eq!((newer.len(), names.len()), (61, 61));
    let cases = cases();
    let mut compared = 0;
    for (case, name) in newer.iter().zip(&names) {
        let key = case.key();
        let size = SizeName::parse(&case.row.size).unwrap_or_else(|| panic!("{key} is not read"));
        let constrained = size.constrained.map(|vcpus| vcpus.to_string());
        let version = size.version.map(|digit| format!("v{digit}"));
        let accelerator = size.accelerator.clone();
        let [constrained, accelerator, version] =
            [constrained, accelerator, version].map(Option::unwrap_or_default);
        let subfamily = size.subfamily.clone();
        let family = size.family.to_string();
        let ours = [family, subfamily, constrained, size.features.clone(), accelerator, version];
        assert_eq!(ours.as_slice(), name.as_slice(), "{key}");
        let sku = match Sku::read(&case.row, &case.region) {
            Ok(sku) => sku,
            Err(why) => {
                assert_ne!(why, Exclusion::UnknownName, "{key}");
                continue;
            }
        };
        // Amounts depend on vCPUs and memory only: those of an older size with as much are known.
        let mut same = cases.iter().filter(|one| stated(&one.row) == stated(&case.row));
        let Some([_, amounts, ..]) = same.find_map(|one| one.expected.as_ref()) else {
            continue;
        };
        let settings = settings(&case.region, &Value::Null);
        let made = instance_type(&sku, &settings, &Prices::default(), |_, _| true);
        let (capacity, allocatable) = resources(amounts, &settings);
        for resource in [CPU, MEMORY] {
            assert_eq!(made.capacity.get(resource), capacity.get(resource), "{key}");
            assert_eq!(made.allocatable.get(resource), allocatable.get(resource), "{key}");
        }
        let series = made.requirements.get(labels::SKU_SERIES).and_then(Requirement::single);
        let expected = format!("{}{}{}_{}", name[0], name[1], name[3], name[5]);
        assert_eq!(series, Some(expected.as_str()), "{key}");
        compared += 1;
    }
    assert!(compared >= 30, "only {compared} sizes have an older one with the same amounts");
}

#[test]
fn the_plugin_of_the_remaining_variant_is_refused() {
    let read = |plugin: &str| {
        AzureConfig::from_variables(|name| match name {
            "NETWORK_PLUGIN" => Some(plugin.to_owned()),
            "NETWORK_PLUGIN_MODE" => Some(String::new()),
            "ARM_SUBSCRIPTION_ID"
            | "ARM_RESOURCE_GROUP"
            | "CLUSTER_NAME"
            | "AZURE_NODE_RESOURCE_GROUP" => Some("x".to_owned()),
            "LOCATION" => Some("eastus".to_owned()),
            _ => None,
        })
    };
    assert!(read("azure").is_ok());
    let error = read("kubenet").err().unwrap().to_string();
    assert!(error.contains("NETWORK_PLUGIN") && error.contains("kubenet"), "{error}");
}
