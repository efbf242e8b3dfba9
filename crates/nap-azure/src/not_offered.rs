//! Why a VM size of the catalogue is not offered, and which sizes serve instead.

use std::fmt;

use jiff::civil::Date;
use nap_engine::{CapacityType, InstanceType};
use nap_units::{CPU, MEMORY, UsdPerHour};

use crate::embedded::{CatalogueSku, EmbeddedCatalogue, Gone, Lifecycle, Region};
use crate::instance_types::{Settings, Unsuited, unsuited};
use crate::prices::Prices;
use crate::size_name::SizeName;
use crate::skus::{Exclusion, ResourceSku, Sku};

/// Most sizes that are named as replacements.
const MAX_REPLACEMENTS: usize = 3;

/// Reason why a size is not offered in a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotOffered {
    /// It cannot be bought any more, or never could.
    Gone(Gone),
    /// AKS cannot use it for nodes.
    Excluded(Exclusion),
    /// The node class cannot use it.
    Unsuited(Unsuited),
    /// Azure does not list it for the subscription.
    NotListed,
    /// It has no price in the region.
    NoPrice,
    /// Its price in the region is not believed.
    LeftOut(&'static str),
    /// No size has this name.
    Unknown,
}

impl fmt::Display for NotOffered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone(gone) => gone.fmt(f),
            Self::Excluded(exclusion) => exclusion.fmt(f),
            Self::Unsuited(unsuited) => unsuited.fmt(f),
            Self::NotListed => f.write_str("not listed for the subscription in the region"),
            Self::NoPrice => f.write_str("no price in the region"),
            Self::LeftOut(why) => write!(f, "its price is not believed: {why}"),
            Self::Unknown => f.write_str("no such size is known"),
        }
    }
}

/// Whether a node class can have a size in a region of the catalogue.
pub fn offered(
    catalogue: &EmbeddedCatalogue,
    region: &Region,
    settings: &Settings,
    name: &str,
) -> Result<Sku, NotOffered> {
    if let Some(gone) = catalogue.gone(name, &region.name) {
        return Err(NotOffered::Gone(gone));
    }
    let row = catalogue.sku(name).ok_or(NotOffered::Unknown)?;
    let sku = Sku::read(&catalogue.resource_sku(row, region), &region.name)
        .map_err(NotOffered::Excluded)?;
    if let Some(unsuited) = unsuited(&sku, settings) {
        return Err(NotOffered::Unsuited(unsuited));
    }
    if catalogue.sale(name, &region.name).is_none() {
        let left_out = EmbeddedCatalogue::left_out(name, &region.name);
        return Err(left_out.map_or(NotOffered::NoPrice, NotOffered::LeftOut));
    }
    Ok(sku)
}

/// Whether a node class can have a size of which Azure lists this row for the subscription; `None`
/// if it lists none.
pub fn offered_live(
    row: Option<&ResourceSku>,
    prices: &Prices,
    settings: &Settings,
    name: &str,
    today: Date,
) -> Result<Sku, NotOffered> {
    let region = &settings.region;
    let gone = || Lifecycle::built_in().gone(name, region, today).map(NotOffered::Gone);
    let Some(row) = row else {
        let known = EmbeddedCatalogue::embedded().sku(name).is_some();
        let unknown = if known { NotOffered::NotListed } else { NotOffered::Unknown };
        return Err(gone().unwrap_or(unknown));
    };
    let sku = Sku::read(row, region).map_err(|exclusion| {
        // Azure lists what it has retired with a restriction.
        let is_restricted = exclusion == Exclusion::RestrictedLocation;
        gone().filter(|_| is_restricted).unwrap_or(NotOffered::Excluded(exclusion))
    })?;
    if let Some(unsuited) = unsuited(&sku, settings) {
        return Err(NotOffered::Unsuited(unsuited));
    }
    let is_priced = prices.on_demand.contains_key(name) || prices.spot.contains_key(name);
    if is_priced { Ok(sku) } else { Err(NotOffered::NoPrice) }
}

/// The cheapest open sizes that serve instead of one that is not offered: with as many GPUs and of
/// the same kind (`NC`, `NV`) if there are such, else with as many vCPUs and as much memory.
pub fn replacements(wanted: &CatalogueSku, types: &[InstanceType]) -> Vec<(String, UsdPerHour)> {
    let kind = |name: &str| {
        let name = SizeName::parse(name.strip_prefix("Standard_").unwrap_or(name))?;
        Some((name.family, name.subfamily))
    };
    #[expect(clippy::cast_possible_truncation, reason = "memory sizes are far below 2^53 bytes")]
    let memory = (wanted.memory_gib * f64::from(1 << 30)) as i64;
    let gpus = |one: &InstanceType| {
        ["nvidia.com/gpu", "amd.com/gpu"].iter().map(|name| one.capacity.get(name)).sum::<i64>()
    };
    let serves = |one: &&InstanceType| {
        if wanted.gpus > 0 {
            return gpus(one) == wanted.gpus;
        }
        // A node reports less memory than its size states; a tenth less is the same size.
        let enough = one.capacity.get(MEMORY).saturating_mul(10) >= memory.saturating_mul(9);
        gpus(one) == 0 && one.capacity.get(CPU) >= wanted.vcpus * 1000 && enough
    };
    let price = |one: &InstanceType| {
        let on_demand = one.offerings.iter().filter(|offering| {
            offering.available && offering.capacity_type == CapacityType::OnDemand
        });
        on_demand.map(|offering| offering.price).min()
    };
    let mut found: Vec<(bool, bool, UsdPerHour, &str)> = types
        .iter()
        .filter(serves)
        .filter_map(|one| {
            let other_kind = kind(&one.name) != kind(&wanted.name);
            Some((other_kind, one.closed, price(one)?, one.name.as_str()))
        })
        .collect();
    found.sort();
    let best = found.first().map(|(other_kind, ..)| *other_kind);
    found
        .into_iter()
        .filter(|(other_kind, ..)| Some(*other_kind) == best)
        .take(MAX_REPLACEMENTS)
        .map(|(_, _, price, name)| (name.to_owned(), price))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AzureConfig;
    use crate::instance_types::from_catalogue;
    use nap_api::AKSNodeClass;

    #[test]
    fn each_reason_is_said() {
        let catalogue = EmbeddedCatalogue::embedded();
        let class = AKSNodeClass::default();
        let why = |region: &str, name: &str| {
            let settings = Settings::new(&AzureConfig::new("s", "g", "c", region), &class);
            let region = catalogue.region(region).unwrap();
            offered(catalogue, region, &settings, name).err().map(|why| why.to_string())
        };
        for (region, name, says) in [
            ("eastus", "Standard_NC6s_v3", "retired since 2025-09-30"),
            ("eastus", "Standard_NC6", "retired since 2023-08-31"),
            ("eastus", "Standard_D4as_v5_Promo", "in price lists only"),
            ("eastus", "Standard_A1_v2", "AKS does not accept"),
            ("eastus", "Standard_D1_v2", "fewer than 2 vCPUs"),
            ("eastus", "Standard_DC4s_v3", "confidential"),
            ("eastus", "Standard_NV4as_v4", "AKS has no driver"),
            ("eastus", "Standard_NV8ads_V710_v5", "no GPU driver for the image"),
            ("malaysiawest", "Standard_D4as_v5", "not believed: the whole series"),
            ("jioindiacentral", "Standard_ND96isr_H100_v5", "no price in the region"),
            ("eastus", "Standard_D4x_v5", "no such size"),
        ] {
            let said = why(region, name).unwrap_or_default();
            assert!(said.contains(says), "{name} in {region}: {said}");
        }
        assert_eq!(why("eastus", "Standard_D4s_v5"), None);
    }

    #[test]
    fn a_node_class_is_named_as_the_reason_where_it_is_one() {
        let catalogue = EmbeddedCatalogue::embedded();
        let region = catalogue.region("eastus").unwrap();
        let why = |spec: serde_json::Value, name: &str| {
            let mut class = AKSNodeClass::default();
            let mut merged = serde_json::to_value(&class.spec).unwrap();
            for (key, value) in spec.as_object().unwrap() {
                merged[key] = value.clone();
            }
            class.spec = serde_json::from_value(merged).unwrap();
            let settings = Settings::new(&AzureConfig::new("s", "g", "c", "eastus"), &class);
            offered(catalogue, region, &settings, name).err().map(|why| why.to_string())
        };
        let dns = serde_json::json!({ "localDNS": {
            "mode": "Required", "vnetDNSOverrides": [], "kubeDNSOverrides": [] } });
        let streaming = serde_json::json!({ "artifactStreaming": { "enabled": true } });
        let trusted = serde_json::json!({ "security": { "trustedLaunch": { "vtpm": true } } });
        let fips = serde_json::json!({ "fipsMode": "FIPS" });
        let encrypted = serde_json::json!({ "security": { "encryptionAtHost": true } });
        for (spec, name, says) in [
            (&dns, "Standard_D2s_v5", "too small for LocalDNS"),
            (&streaming, "Standard_D4ps_v5", "no artifact streaming on arm64"),
            (&trusted, "Standard_D4_v2", "no trusted launch"),
            (&fips, "Standard_D4ps_v5", "no arm64 image"),
            (&encrypted, "Standard_D4_v2", "no encryption at host"),
        ] {
            let said = why(spec.clone(), name).unwrap_or_default();
            assert!(said.contains(says), "{name}: {said}");
            assert_eq!(why(spec.clone(), "Standard_D4s_v5"), None, "{says}");
        }
    }

    #[test]
    fn replacements_are_of_the_same_kind_and_cheapest() {
        let catalogue = EmbeddedCatalogue::embedded();
        let settings =
            Settings::new(&AzureConfig::new("s", "g", "c", "eastus"), &AKSNodeClass::default());
        let types = from_catalogue(catalogue, &settings).unwrap();
        let first = |name: &str| {
            let found = replacements(catalogue.sku(name).unwrap(), types.types());
            found.first().map(|(name, _)| name.clone()).unwrap_or_default()
        };
        assert_eq!(first("Standard_NC6s_v3"), "Standard_NC4as_T4_v3");
        assert_eq!(first("Standard_NC24s_v3"), "Standard_NC64as_T4_v3");
        assert_eq!(first("Standard_NV12s_v3"), "Standard_NV6ads_A10_v5");
        assert!(first("Standard_A4").starts_with("Standard_"), "{}", first("Standard_A4"));
    }
}
