//! The region's read-only APIs: VM sizes, retail prices and quota usages, from the raw rows of the
//! embedded catalogue.

use std::collections::BTreeMap;

use nap_azure::AzureError;
use nap_azure::embedded::EmbeddedCatalogue;
use nap_engine::{CapacityType, PriceEstimates};
use nap_units::UsdPerHour;
use serde_json::{Value, json};

use super::EmulatorConfig;
use super::faults::{REGIONAL_QUOTA, SPOT_QUOTA};
use super::request::{Answer, ArmRequest, page, refuse};
use super::sizes::{Sizes, VmSize};
use super::state::State;

/// Sizes and prices of one region.
pub(crate) struct RegionCatalogue {
    sizes: Sizes,
    prices: BTreeMap<String, Price>,
    /// Rows of the retail price API.
    meters: Vec<Value>,
    pub estimates: PriceEstimates,
}

/// Prices of a size.
struct Price {
    on_demand: UsdPerHour,
    /// `None` if it is not sold as spot.
    spot: Option<UsdPerHour>,
}

impl RegionCatalogue {
    pub(crate) fn new(config: &EmulatorConfig) -> Result<Self, AzureError> {
        let catalogue = EmbeddedCatalogue::embedded();
        let region = catalogue.region(&config.region)?;
        let gone = catalogue.gone_in(&region.name).map(|(sku, _)| sku);
        let mut prices = BTreeMap::new();
        // The price list keeps sizes that are not sold any more.
        for sku in catalogue.skus_in(&region.name).chain(gone) {
            let Some(sale) = catalogue.sale(&sku.name, &region.name) else { continue };
            if !config.sizes.is_empty() && !config.sizes.contains(&sku.name) {
                continue;
            }
            let estimate = sku.spot_ratio_milli.map(|ratio| {
                UsdPerHour::from_micros(sale.on_demand.micros().saturating_mul(ratio) / 1000)
            });
            let spot = sale.spot.unwrap_or(estimate);
            prices.insert(sku.name.clone(), Price { on_demand: sale.on_demand, spot });
        }
        let meters = price_meters(&region.name, &prices);
        let estimates = if region.is_live { PriceEstimates::None } else { PriceEstimates::Spot };
        Ok(Self { sizes: Sizes::new(config, region), prices, meters, estimates })
    }

    /// The VM size with this exact name; `None` if AKS nodes cannot have it.
    pub(crate) fn size(&self, name: &str) -> Option<&VmSize> {
        self.sizes.get(name)
    }

    /// Names of all sizes that are listed.
    pub(crate) fn size_names(&self) -> impl Iterator<Item = &str> {
        self.sizes.names()
    }

    /// Names of all quota families.
    pub(crate) fn families(&self) -> Vec<&str> {
        self.sizes.families()
    }

    pub(crate) fn price(&self, name: &str, capacity_type: CapacityType) -> UsdPerHour {
        let price = self.prices.get(name);
        let price = price.and_then(|price| match capacity_type {
            CapacityType::Spot => price.spot,
            _ => Some(price.on_demand),
        });
        price.unwrap_or(UsdPerHour::ZERO)
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
        page(request, &self.sizes.rows, config.page_size, ("value", "nextLink"))
    }

    pub(crate) fn prices(&self, config: &EmulatorConfig, request: &ArmRequest) -> Answer {
        let filter = request.query.get("$filter").map(String::as_str).unwrap_or_default();
        let here = quoted_after(filter, "armRegionName eq ") == Some(&config.region);
        let meters = if here { self.meters.as_slice() } else { &[] };
        page(request, meters, config.page_size, ("Items", "NextPageLink"))
    }

    pub(crate) fn usages(
        &self,
        config: &EmulatorConfig,
        state: &State,
        request: &ArmRequest,
    ) -> Answer {
        let usage = |name: &str, current: i64, limit: i64| {
            json!({
                "unit": "Count", "currentValue": current, "limit": limit,
                "name": { "value": name, "localizedValue": name },
            })
        };
        let families = self.sizes.families().into_iter();
        let mut usages: Vec<Value> = families
            .map(|family| {
                usage(family, family_cores(state, family), family_limit(config, state, family))
            })
            .collect();
        let spot = state.cores(|machine| machine.capacity_type == CapacityType::Spot);
        let cores = state.cores(|_| true) - spot;
        usages.push(usage("cores", cores, regional_limit(config, state)));
        usages.push(usage("lowPriorityCores", spot, spot_limit(config, state)));
        page(request, &usages, config.page_size, ("value", "nextLink"))
    }
}

/// On-demand vCPUs of a quota family that are in use.
pub(crate) fn family_cores(state: &State, family: &str) -> i64 {
    state.cores(|machine| {
        machine.capacity_type == CapacityType::OnDemand && machine.size.family == family
    })
}

/// On-demand vCPU quota of a family.
pub(crate) fn family_limit(config: &EmulatorConfig, state: &State, family: &str) -> i64 {
    state.faults.quota(family, config.clock.now()).unwrap_or(config.default_family_quota)
}

/// On-demand vCPU quota of the region.
pub(crate) fn regional_limit(config: &EmulatorConfig, state: &State) -> i64 {
    state.faults.quota(REGIONAL_QUOTA, config.clock.now()).unwrap_or(config.regional_quota)
}

/// Spot vCPU quota of the region.
pub(crate) fn spot_limit(config: &EmulatorConfig, state: &State) -> i64 {
    state.faults.quota(SPOT_QUOTA, config.clock.now()).unwrap_or(config.spot_quota)
}

/// Rows of the retail price API, including those that a client must not take for the price: Windows
/// and Cloud Services, an outdated price, one of another meter region, low priority, dev/test.
fn price_meters(region: &str, prices: &BTreeMap<String, Price>) -> Vec<Value> {
    let mut meters = Vec::new();
    for (name, price) in prices {
        let short = name.trim_start_matches("Standard_").replace('_', " ");
        let series = format!("Virtual Machines {short} Series");
        let meter = |suffix: &str, product: &str, micros: i64| {
            json!({
                "currencyCode": "USD",
                "retailPrice": dollars(micros),
                "unitPrice": dollars(micros),
                "armRegionName": region,
                "serviceName": "Virtual Machines",
                "serviceFamily": "Compute",
                "productName": product,
                "skuName": format!("{short}{suffix}"),
                "meterName": format!("{short}{suffix}"),
                "armSkuName": name,
                "unitOfMeasure": "1 Hour",
                "type": "Consumption",
                "isPrimaryMeterRegion": true,
                "effectiveStartDate": "2024-05-01T00:00:00Z",
            })
        };
        let changed = |mut row: Value, changes: &[(&str, Value)]| {
            for (member, value) in changes {
                row[*member] = value.clone();
            }
            row
        };
        let list = price.on_demand.micros();
        let outdated = [("effectiveStartDate", json!("2021-06-01T00:00:00Z"))];
        let elsewhere = [
            ("isPrimaryMeterRegion", json!(false)),
            ("effectiveStartDate", json!("2025-05-01T00:00:00Z")),
        ];
        let dev_test = [("type", json!("DevTestConsumption"))];
        meters.push(changed(meter("", &series, list * 9 / 10), &outdated));
        meters.push(meter("", &series, list));
        meters.push(changed(meter("", &series, list * 8 / 10), &elsewhere));
        meters.push(meter("", &format!("{series} Windows"), list * 2));
        meters.push(meter("", &format!("{series} Cloud Services"), list * 2));
        meters.push(changed(meter("", &series, list * 7 / 10), &dev_test));
        if let Some(spot) = price.spot {
            meters.push(meter(" Spot", &series, spot.micros()));
            meters.push(meter(" Spot", &format!("{series} Windows"), spot.micros() * 2));
            meters.push(meter(" Low Priority", &series, list / 5));
        }
    }
    meters
}

#[expect(clippy::cast_precision_loss, reason = "prices are far below 2^53 micro-dollars")]
fn dollars(micros: i64) -> f64 {
    micros as f64 / 1e6
}

/// The single-quoted text after `phrase`; `None` if there is none.
fn quoted_after<'a>(text: &'a str, phrase: &str) -> Option<&'a str> {
    text.split_once(phrase)?.1.strip_prefix('\'')?.split('\'').next()
}
