//! A built-in copy of Azure's VM sizes and list prices, for planning without a subscription and for
//! the emulator.
//!
//! The files in `catalogue/` name their sources. They hold the data of one day and of no particular
//! subscription; with a live cluster, live data is used instead. Published tables have no spot
//! prices and no zones of sizes: these are estimates until [`refresh`] has read the live APIs.

mod files;
mod lifecycle;
pub mod refresh;
mod sku;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use nap_units::UsdPerHour;

use crate::AzureError;
use crate::config::canonical_region;
use crate::prices::Prices;
use crate::skus::ResourceSku;

pub use lifecycle::{CATALOGUE_DAY, Gone, Lifecycle};
pub use sku::CatalogueSku;

/// Sizes, regions and list prices.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EmbeddedCatalogue {
    regions: BTreeMap<String, Region>,
    skus: BTreeMap<String, CatalogueSku>,
    /// By size, then by region.
    sales: BTreeMap<String, BTreeMap<String, Sale>>,
}

/// A size in a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sale {
    /// List price.
    pub on_demand: UsdPerHour,
    /// Spot price, `Some(None)` if it is not sold as spot; `None` leaves it to be estimated.
    pub spot: Option<Option<UsdPerHour>>,
    /// Zones that sell it, as bare numbers; `None` assumes every zone of the region.
    pub zones: Option<Vec<String>>,
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
    /// Day of its prices, such as `2026-06-18`.
    pub prices_of: String,
    /// Whether its data comes from the live APIs. Otherwise it comes from published tables: spot
    /// prices are list prices times a ratio, and every size is assumed in every zone.
    pub is_live: bool,
}

/// Driver support of a GPU size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// `nvidia` or `amd`.
    pub manufacturer: String,
    /// `ubuntu`, `azurelinux`, `azurelinux3`.
    pub operating_systems: Vec<String>,
}

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

    /// The three regions with the most similar names, most similar first.
    pub fn nearest_regions(&self, name: &str) -> Vec<String> {
        let wanted = canonical_region(name);
        let mut near: Vec<(usize, &String)> = self
            .regions
            .keys()
            .map(|region| (strsim::levenshtein(&wanted, region), region))
            .collect();
        near.sort();
        near.into_iter().take(3).map(|(_, name)| name.clone()).collect()
    }

    /// Sizes that can be bought in a region, in name order.
    pub fn skus_in(&self, region: &str) -> impl Iterator<Item = &CatalogueSku> {
        let region = canonical_region(region);
        self.priced_in(region.clone()).filter(move |sku| self.gone(&sku.name, &region).is_none())
    }

    /// Sizes that cannot be bought in a region although they have a price there, in name order.
    pub fn gone_in(&self, region: &str) -> impl Iterator<Item = (&CatalogueSku, Gone)> {
        let region = canonical_region(region);
        self.priced_in(region.clone())
            .filter_map(move |sku| self.gone(&sku.name, &region).map(|gone| (sku, gone)))
    }

    /// Why a size cannot be bought in a region; `None` if nothing speaks against it. The live API
    /// lists no size that is gone, whatever the table says.
    pub fn gone(&self, name: &str, region: &str) -> Option<Gone> {
        let region = canonical_region(region);
        if self.regions.get(&region).is_some_and(|region| region.is_live) {
            return None;
        }
        Lifecycle::built_in().gone(name, &region, CATALOGUE_DAY)
    }

    fn priced_in(&self, region: String) -> impl Iterator<Item = &CatalogueSku> {
        self.skus.values().filter(move |sku| self.sale(&sku.name, &region).is_some())
    }

    /// A size by its exact name, in any region.
    pub fn sku(&self, name: &str) -> Option<&CatalogueSku> {
        self.skus.get(name)
    }

    /// Every size, in name order.
    pub fn skus(&self) -> impl Iterator<Item = &CatalogueSku> {
        self.skus.values()
    }

    /// Price and zones of a size; `None` if the region does not sell it.
    pub fn sale(&self, name: &str, region: &str) -> Option<&Sale> {
        self.sales.get(name)?.get(region)
    }

    /// Reason why the price of a size in a region was left out of the built-in catalogue.
    pub fn left_out(name: &str, region: &str) -> Option<&'static str> {
        let text = include_str!("../../catalogue/left_out.csv");
        text.lines().skip(1).find_map(|line| {
            let (place, rest) = line.split_once(',')?;
            let (pattern, reason) = rest.split_once(',')?;
            let (front, back) = pattern.split_once('*').unwrap_or((pattern, ""));
            let middle = name.strip_prefix(front)?.strip_suffix(back)?;
            let matches = place == region && middle.bytes().all(|byte| byte.is_ascii_digit());
            matches.then_some(reason)
        })
    }

    /// Item of the Resource SKUs API for a size, in the zones that sell it.
    pub fn resource_sku(&self, sku: &CatalogueSku, region: &Region) -> ResourceSku {
        let mut row = sku.to_resource_sku(region);
        let stated = self.sale(&sku.name, &region.name).and_then(|sale| sale.zones.as_ref());
        if let (Some(zones), Some(info)) = (stated, row.location_info.first_mut()) {
            info.zones.clone_from(zones);
        }
        row
    }

    /// Prices of a region, also of sizes that are gone. A spot price that is not stated is the list
    /// price times the ratio of the size.
    pub fn prices_in(&self, region: &str) -> Prices {
        let region = canonical_region(region);
        let mut prices = Prices::default();
        for sku in self.priced_in(region.clone()) {
            let Some(sale) = self.sale(&sku.name, &region) else { continue };
            let list = sale.on_demand;
            prices.on_demand.insert(sku.name.clone(), list);
            let estimate = || {
                let ratio = sku.spot_ratio_milli?;
                Some(UsdPerHour::from_micros(list.micros().saturating_mul(ratio) / 1000))
            };
            if let Some(spot) = sale.spot.unwrap_or_else(estimate) {
                prices.spot.insert(sku.name.clone(), spot);
            }
        }
        prices
    }

    /// Replaces the sizes, zones and prices of one region. Sizes come with the zones that sell
    /// them; a size without a price is left out.
    pub fn replace_region(
        &mut self,
        region: Region,
        sizes: Vec<(CatalogueSku, Vec<String>)>,
        prices: &Prices,
    ) {
        for row in self.sales.values_mut() {
            row.remove(&region.name);
        }
        for (mut sku, zones) in sizes {
            let Some(list) = prices.on_demand.get(&sku.name) else { continue };
            let spot = prices.spot.get(&sku.name).filter(|_| sku.spot_ratio_milli.is_some());
            // The ratio serves regions that state no spot price.
            let known = self.skus.get(&sku.name).and_then(|known| known.spot_ratio_milli);
            let ratio = spot.map(|spot| {
                // Rounded up, so that no spot price is understated.
                (spot.micros().saturating_mul(1000) + list.micros() - 1) / list.micros().max(1)
            });
            sku.spot_ratio_milli = known.or(ratio);
            let sale = Sale { on_demand: *list, spot: Some(spot.copied()), zones: Some(zones) };
            self.sales.entry(sku.name.clone()).or_default().insert(region.name.clone(), sale);
            self.skus.insert(sku.name.clone(), sku);
        }
        self.sales.retain(|_, row| !row.is_empty());
        self.skus.retain(|name, _| self.sales.contains_key(name));
        self.regions.insert(region.name.clone(), region);
    }

    /// Adds a size with its sales by region.
    pub fn add_size(&mut self, sku: CatalogueSku, sales: BTreeMap<String, Sale>) {
        self.sales.insert(sku.name.clone(), sales);
        self.skus.insert(sku.name.clone(), sku);
    }

    /// Adds a region, or replaces its zones.
    pub fn add_region(&mut self, region: Region) {
        self.regions.insert(region.name.clone(), region);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_that_is_gone_keeps_its_price_but_is_not_offered() {
        let catalogue = EmbeddedCatalogue::embedded();
        assert!(catalogue.regions().count() >= 50);
        assert!(catalogue.skus_in("East US").count() > 900);
        let offered = |name: &str| catalogue.skus_in("EASTUS").any(|sku| sku.name == name);
        assert!(offered("Standard_D4s_v5") && !offered("Standard_NC6s_v3"));
        assert!(!offered("Standard_NC6_Promo") && !offered("Standard_A2"));
        let gone: Vec<_> = catalogue.gone_in("eastus").map(|(sku, _)| &*sku.name).collect();
        assert!(gone.contains(&"Standard_NC6s_v3"), "{gone:?}");
        assert!(catalogue.skus_in("jioindiawest").any(|sku| sku.name == "Standard_NC6s_v3"));
        let prices = catalogue.prices_in("eastus");
        assert_eq!(prices.on_demand.get("Standard_D4s_v5"), UsdPerHour::parse("0.192").as_ref());
        assert_eq!(prices.on_demand.get("Standard_NC6s_v3"), UsdPerHour::parse("3.06").as_ref());
        let spot = prices.spot.get("Standard_D4s_v5").unwrap();
        assert!(*spot < UsdPerHour::parse("0.1").unwrap());
    }

    #[test]
    fn an_unknown_region_is_refused_with_similar_names() {
        let error = EmbeddedCatalogue::embedded().region("eatsus").unwrap_err();
        assert_eq!(error.to_string(), "region `eatsus` is unknown");
        let hint = error.hint().unwrap();
        assert!(hint.contains("`eastus`"), "{hint}");
    }
}
