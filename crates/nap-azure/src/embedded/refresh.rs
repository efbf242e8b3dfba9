//! Refresh of the catalogue files from the live APIs, one region at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use nap_units::UsdPerHour;

use super::{CatalogueSku, EmbeddedCatalogue, Region};
use crate::AzureError;
use crate::arm::ArmClient;
use crate::config::canonical_region;
use crate::skus::ResourceSku;
use crate::{prices, skus};

/// Result of a refresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refreshed {
    /// Number of sizes with a price.
    pub sizes: usize,
    /// Number of sizes without a price, which are left out.
    pub unpriced: usize,
}

/// Differences between two catalogues in one region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Sizes that only the new one offers.
    pub added: Vec<String>,
    /// Sizes that only the old one offers.
    pub removed: Vec<String>,
    /// List prices, old and new, that differ by more than 5 %.
    pub prices: Vec<(String, UsdPerHour, UsdPerHour)>,
}

impl Changes {
    /// Compares the offered sizes.
    pub fn between(old: &EmbeddedCatalogue, new: &EmbeddedCatalogue, region: &str) -> Self {
        let region = canonical_region(region);
        let offered = |catalogue: &EmbeddedCatalogue| -> BTreeMap<String, UsdPerHour> {
            let sizes = catalogue.skus_in(&region);
            let priced = sizes.filter_map(|sku| {
                Some((sku.name.clone(), catalogue.sale(&sku.name, &region)?.on_demand))
            });
            priced.collect()
        };
        let (old, new) = (offered(old), offered(new));
        let only = |one: &BTreeMap<String, UsdPerHour>, other: &BTreeMap<String, UsdPerHour>| {
            one.keys().filter(|name| !other.contains_key(*name)).cloned().collect()
        };
        let prices = old.iter().filter_map(|(name, before)| {
            let after = new.get(name)?;
            let change = (after.micros() - before.micros()).abs();
            (change * 20 > before.micros()).then(|| (name.clone(), *before, *after))
        });
        Self { added: only(&new, &old), removed: only(&old, &new), prices: prices.collect() }
    }

    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Refreshes one region of a catalogue.
pub async fn refresh(
    catalogue: &mut EmbeddedCatalogue,
    arm: &ArmClient,
    price_client: &ArmClient,
    subscription_id: &str,
    region: &str,
) -> Result<Refreshed, AzureError> {
    let name = canonical_region(region);
    let rows = skus::list(arm, subscription_id, &name).await?;
    let prices = prices::fetch(price_client, &name).await?;
    let here = |location: &String| canonical_region(location) == name;
    // Retired sizes stay in the list, restricted for every subscription.
    let restricted = |row: &ResourceSku| {
        let mut restrictions = row.restrictions.iter();
        restrictions.any(|one| one.kind == "Location" && one.values.iter().any(here))
    };
    let rows: Vec<_> =
        rows.into_iter().filter(|row| row.locations.iter().any(here) && !restricted(row)).collect();
    let zones: BTreeSet<String> = rows
        .iter()
        .flat_map(|row| &row.location_info)
        .filter(|info| here(&info.location))
        .flat_map(|info| info.zones.iter().cloned())
        .collect();
    let display_name =
        catalogue.region(&name).map_or(name.clone(), |known| known.display_name.clone());
    let zones_of = |row: &ResourceSku| {
        let places = row.location_info.iter().filter(|info| here(&info.location));
        let zones: BTreeSet<String> = places.flat_map(|info| info.zones.iter().cloned()).collect();
        zones.into_iter().collect()
    };
    let sizes: Vec<(CatalogueSku, Vec<String>)> = rows
        .iter()
        .filter_map(|row| Some((CatalogueSku::from_resource_sku(row)?, zones_of(row))))
        .collect();
    let priced = sizes.iter().filter(|(sku, _)| prices.on_demand.contains_key(&sku.name)).count();
    let result = Refreshed { sizes: priced, unpriced: sizes.len() - priced };
    let prices_of = price_client.clock().now().strftime("%Y-%m-%d").to_string();
    let zones = zones.into_iter().collect();
    let region = Region { name, display_name, zones, prices_of, is_live: true };
    catalogue.replace_region(region, sizes, &prices);
    Ok(result)
}

/// Reads the catalogue files of a folder.
pub fn read_files(folder: &Path) -> Result<EmbeddedCatalogue, AzureError> {
    let read = |name: &str| {
        let path = folder.join(name);
        std::fs::read_to_string(&path).map_err(|source| AzureError::File { path, source })
    };
    EmbeddedCatalogue::parse(&read("skus.csv")?, &read("prices.csv")?, &read("regions.csv")?)
}

/// Writes the catalogue files into a folder.
pub fn write_files(catalogue: &EmbeddedCatalogue, folder: &Path) -> Result<(), AzureError> {
    for (name, content) in catalogue.to_files() {
        let path = folder.join(name);
        std::fs::write(&path, content).map_err(|source| AzureError::File { path, source })?;
    }
    Ok(())
}
