//! The region's read-only APIs: VM sizes, retail prices, quota usages and node images, from the
//! embedded catalogue.

use std::collections::BTreeSet;

use nap_api::aksnodeclass::ImageFamily;
use nap_azure::AzureError;
use nap_azure::embedded::EmbeddedCatalogue;
use nap_azure::images::{self, ImageChoice, ImageVersion};
use nap_azure::prices::{PriceItem, Prices};
use nap_azure::skus::{ResourceSku, Sku};
use nap_engine::CapacityType;
use nap_units::UsdPerHour;
use serde_json::{Value, json};

use super::EmulatorConfig;
use super::request::{Answer, ArmRequest, page, refuse};
use super::state::State;

/// Sizes and prices of one region.
pub(crate) struct RegionCatalogue {
    rows: Vec<ResourceSku>,
    prices: Prices,
    items: Vec<PriceItem>,
}

impl RegionCatalogue {
    pub(crate) fn new(config: &EmulatorConfig) -> Result<Self, AzureError> {
        let catalogue = EmbeddedCatalogue::embedded();
        let region = catalogue.region(&config.region)?;
        let prices = catalogue.prices_in(&region.name);
        let sold = |name: &str| config.sizes.is_empty() || config.sizes.contains(name);
        let retired = catalogue.gone_in(&region.name).map(|(sku, _)| sku);
        let retired = retired.filter(|_| config.retired_sizes);
        let skus = catalogue.skus_in(&region.name).chain(retired);
        let rows = skus.map(|sku| catalogue.resource_sku(sku, region));
        let mut items = price_items(&region.name, &prices);
        items.retain(|item| sold(&item.arm_sku_name));
        Ok(Self { rows: rows.filter(|row| sold(&row.name)).collect(), items, prices })
    }

    /// The VM size with this exact name; `None` if AKS nodes cannot have it.
    pub(crate) fn sku(&self, config: &EmulatorConfig, name: &str) -> Option<Sku> {
        let row = self.rows.iter().find(|row| row.name == name)?;
        Sku::read(row, &config.region).ok()
    }

    pub(crate) fn price(&self, name: &str, capacity_type: CapacityType) -> UsdPerHour {
        self.prices.get(name, capacity_type).unwrap_or(UsdPerHour::ZERO)
    }

    pub(crate) fn skus(&self, config: &EmulatorConfig, request: &ArmRequest) -> Answer {
        if let Some(filter) = request.query.get("$filter") {
            let location = quoted_after(filter, "location eq ").unwrap_or_default();
            if !location.eq_ignore_ascii_case(&config.region) {
                let message =
                    format!("The filter '{filter}' names no location of this subscription.");
                return refuse(400, "InvalidFilter", &message);
            }
        }
        page(request, &self.rows, config.page_size, ("value", "nextLink"))
    }

    pub(crate) fn prices(&self, config: &EmulatorConfig, request: &ArmRequest) -> Answer {
        let filter = request.query.get("$filter").map(String::as_str).unwrap_or_default();
        let here = quoted_after(filter, "armRegionName eq ") == Some(&config.region);
        let items = if here { self.items.as_slice() } else { &[] };
        page(request, items, config.page_size, ("Items", "NextPageLink"))
    }

    pub(crate) fn usages(
        &self,
        config: &EmulatorConfig,
        state: &State,
        request: &ArmRequest,
    ) -> Answer {
        let mut families: Vec<&str> = self
            .rows
            .iter()
            .map(|row| row.family.as_str())
            .filter(|family| !family.is_empty())
            .collect();
        families.sort_unstable();
        families.dedup();
        let usage = |name: &str, current: i64, limit: i64| {
            json!({
                "unit": "Count", "currentValue": current, "limit": limit,
                "name": { "value": name, "localizedValue": name },
            })
        };
        let mut usages: Vec<Value> = families
            .into_iter()
            .map(|family| {
                usage(family, family_cores(state, family), family_limit(config, state, family))
            })
            .collect();
        let spot = state.cores(|machine| machine.capacity_type == CapacityType::Spot);
        let limit = config.default_family_quota;
        usages.push(usage("cores", state.cores(|_| true) - spot, limit));
        usages.push(usage("lowPriorityCores", spot, state.faults.spot_quota.unwrap_or(limit)));
        page(request, &usages, config.page_size, ("value", "nextLink"))
    }

    pub(crate) fn images(config: &EmulatorConfig, state: &State, request: &ArmRequest) -> Answer {
        let images: Vec<ImageVersion> = published_images(config, state)
            .into_iter()
            .map(|(gallery, definition, version)| ImageVersion {
                full_name: format!("{gallery}-{definition}-{version}"),
                os: gallery.to_owned(),
                sku: definition.to_owned(),
                version,
            })
            .collect();
        page(request, &images, config.page_size, ("value", "nextLink"))
    }
}

/// On-demand vCPUs of a quota family that are in use.
pub(crate) fn family_cores(state: &State, family: &str) -> i64 {
    state.cores(|machine| {
        machine.capacity_type == CapacityType::OnDemand && machine.sku.family == family
    })
}

/// On-demand vCPU quota of a family.
pub(crate) fn family_limit(config: &EmulatorConfig, state: &State, family: &str) -> i64 {
    state.faults.family_quota.get(family).copied().unwrap_or(config.default_family_quota)
}

/// Gallery, definition and version of all published images.
pub(crate) fn published_images(
    config: &EmulatorConfig,
    state: &State,
) -> Vec<(&'static str, &'static str, String)> {
    let families = [
        (ImageFamily::Ubuntu, "1.33"),
        (ImageFamily::Ubuntu2204, "1.33"),
        (ImageFamily::Ubuntu2404, "1.34"),
        (ImageFamily::AzureLinux, "1.31"),
        (ImageFamily::AzureLinux, "1.34"),
    ];
    let kinds = [(false, false), (false, true), (true, false), (true, true)];
    let definitions: BTreeSet<(&str, &str)> = families
        .into_iter()
        .flat_map(|(family, version)| {
            kinds.map(|(fips, trusted_launch)| {
                images::definitions(ImageChoice { family, fips, trusted_launch }, version)
            })
        })
        .flatten()
        .collect();
    definitions
        .into_iter()
        .flat_map(|(gallery, definition)| {
            let versions = state.changes.image_versions(config).into_iter();
            versions.map(move |version| (gallery, definition, version.to_owned()))
        })
        .collect()
}

/// Rows of the retail price API, including those that a client must not take for the price: Windows
/// and Cloud Services, an outdated price, one of another meter region, low priority, dev/test.
fn price_items(region: &str, prices: &Prices) -> Vec<PriceItem> {
    let mut items = Vec::new();
    for (name, price) in &prices.on_demand {
        let short = name.trim_start_matches("Standard_").replace('_', " ");
        let series = format!("Virtual Machines {short} Series");
        let item = |suffix: &str, product: &str, micros: i64| PriceItem {
            currency_code: "USD".to_owned(),
            retail_price: dollars(micros),
            arm_region_name: region.to_owned(),
            product_name: product.to_owned(),
            sku_name: format!("{short}{suffix}"),
            meter_name: format!("{short}{suffix}"),
            arm_sku_name: name.clone(),
            unit_of_measure: "1 Hour".to_owned(),
            kind: "Consumption".to_owned(),
            is_primary_meter_region: true,
            effective_start_date: "2024-05-01T00:00:00Z".to_owned(),
        };
        let micros = price.micros();
        items.push(PriceItem {
            effective_start_date: "2021-06-01T00:00:00Z".to_owned(),
            ..item("", &series, micros * 9 / 10)
        });
        items.push(item("", &series, micros));
        items.push(PriceItem {
            is_primary_meter_region: false,
            effective_start_date: "2025-05-01T00:00:00Z".to_owned(),
            ..item("", &series, micros * 8 / 10)
        });
        items.push(item("", &format!("{series} Windows"), micros * 2));
        items.push(item("", &format!("{series} Cloud Services"), micros * 2));
        items.push(PriceItem {
            kind: "DevTestConsumption".to_owned(),
            ..item("", &series, micros * 7 / 10)
        });
        if let Some(spot) = prices.spot.get(name) {
            items.push(item(" Spot", &series, spot.micros()));
            items.push(item(" Spot", &format!("{series} Windows"), spot.micros() * 2));
            items.push(item(" Low Priority", &series, micros / 5));
        }
    }
    items
}

#[expect(clippy::cast_precision_loss, reason = "prices are far below 2^53 micro-dollars")]
fn dollars(micros: i64) -> f64 {
    micros as f64 / 1e6
}

/// The single-quoted text after `phrase`; `None` if there is none.
fn quoted_after<'a>(text: &'a str, phrase: &str) -> Option<&'a str> {
    text.split_once(phrase)?.1.strip_prefix('\'')?.split('\'').next()
}
