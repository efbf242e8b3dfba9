//! Prices from the public retail price API.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use jiff::Timestamp;
use nap_cloud::CloudError;
use nap_engine::CapacityType;
use nap_units::UsdPerHour;
use serde::{Deserialize, Serialize};

use crate::arm::{ArmClient, nullable};

/// Prices of the sizes of one region. A size without a price is not launched: any guess, however
/// high, would make it win whenever nothing else fits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prices {
    /// Pay-as-you-go prices by size name.
    pub on_demand: BTreeMap<String, UsdPerHour>,
    /// Current spot prices by size name.
    pub spot: BTreeMap<String, UsdPerHour>,
}

/// An item of the retail price API.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the names are Azure's")]
pub struct PriceItem {
    #[serde(deserialize_with = "nullable")]
    pub currency_code: String,
    #[serde(deserialize_with = "nullable")]
    pub retail_price: f64,
    #[serde(deserialize_with = "nullable")]
    pub arm_region_name: String,
    #[serde(deserialize_with = "nullable")]
    pub product_name: String,
    #[serde(deserialize_with = "nullable")]
    pub sku_name: String,
    #[serde(deserialize_with = "nullable")]
    pub meter_name: String,
    #[serde(deserialize_with = "nullable")]
    pub arm_sku_name: String,
    #[serde(deserialize_with = "nullable")]
    pub unit_of_measure: String,
    #[serde(rename = "type")]
    #[serde(deserialize_with = "nullable")]
    pub kind: String,
    #[serde(deserialize_with = "nullable")]
    pub is_primary_meter_region: bool,
    #[serde(deserialize_with = "nullable")]
    pub effective_start_date: String,
}

impl PriceItem {
    /// Whether the item is a pay-as-you-go or spot price of a Linux VM per hour. Cloud Services
    /// have meters for the same sizes, at the price of Windows.
    fn is_linux_vm(&self) -> bool {
        let product = self.product_name.to_lowercase().replace(' ', "");
        let is_low_priority = |text: &str| text.to_lowercase().contains("low priority");
        self.kind == "Consumption"
            && (self.unit_of_measure.is_empty() || self.unit_of_measure == "1 Hour")
            && !self.arm_sku_name.is_empty()
            && !product.contains("cloudservices")
            && !product.contains("windows")
            && !is_low_priority(&self.meter_name)
            && !is_low_priority(&self.sku_name)
    }

    fn is_spot(&self) -> bool {
        self.sku_name.ends_with(" Spot") || self.meter_name.ends_with(" Spot")
    }

    /// Time from which the price holds; `None` if it states none.
    fn begins(&self) -> Option<Timestamp> {
        self.effective_start_date.parse().ok()
    }

    /// The price; `None` for zero, a placeholder for sizes that are not sold yet.
    fn price(&self) -> Option<UsdPerHour> {
        UsdPerHour::parse(&format!("{:.9}", self.retail_price.max(0.0)))
            .filter(|price| *price > UsdPerHour::ZERO)
    }
}

impl Prices {
    /// Price of a size; `None` if it is unknown.
    pub fn get(&self, name: &str, capacity_type: CapacityType) -> Option<UsdPerHour> {
        match capacity_type {
            CapacityType::OnDemand => self.on_demand.get(name).copied(),
            CapacityType::Spot => self.spot.get(name).copied(),
            CapacityType::Reserved => None,
        }
    }

    /// Builds the table from the Linux pay-as-you-go and spot items. Of several meters for one size
    /// the one of the primary region counts, then the newest, then the cheapest: the order of items
    /// does not matter. A price that begins after `now` is announced, and counts for nothing.
    pub fn from_items(items: &[PriceItem], now: Timestamp) -> Self {
        // By spot and size: whether the meter is of a secondary region, newest start, price.
        let mut best: BTreeMap<(bool, &str), (bool, Reverse<&str>, UsdPerHour)> = BTreeMap::new();
        let is_current =
            |item: &&PriceItem| item.is_linux_vm() && item.begins().is_none_or(|at| at <= now);
        for item in items.iter().filter(is_current) {
            let Some(price) = item.price() else { continue };
            let start = Reverse(item.effective_start_date.as_str());
            let rank = (!item.is_primary_meter_region, start, price);
            let entry = best.entry((item.is_spot(), &item.arm_sku_name)).or_insert(rank);
            *entry = (*entry).min(rank);
        }
        let mut prices = Self::default();
        for ((is_spot, name), (_, _, price)) in best {
            let table = if is_spot { &mut prices.spot } else { &mut prices.on_demand };
            table.insert(name.to_owned(), price);
        }
        prices
    }
}

/// Fetches every price of a region.
pub async fn fetch(client: &ArmClient, region: &str) -> Result<Prices, CloudError> {
    let filter = format!(
        "priceType eq 'Consumption' and currencyCode eq 'USD' and serviceFamily eq 'Compute' and \
         serviceName eq 'Virtual Machines' and armRegionName eq '{region}'"
    );
    let path = format!(
        "/api/retail/prices?api-version=2023-01-01-preview&$filter={}",
        crate::arm::percent_encode(&filter)
    );
    let items: Vec<PriceItem> = client.list(&format!("list prices in {region}"), &path).await?;
    Ok(Prices::from_items(&items, client.clock().now()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(product: &str, suffix: &str, kind: &str, price: f64) -> PriceItem {
        PriceItem {
            retail_price: price,
            product_name: format!("Virtual Machines {product}"),
            sku_name: format!("D4as v5{suffix}"),
            meter_name: format!("D4as v5{suffix}"),
            arm_sku_name: "Standard_D4as_v5".into(),
            unit_of_measure: "1 Hour".into(),
            kind: kind.into(),
            is_primary_meter_region: true,
            effective_start_date: "2024-01-01T00:00:00Z".into(),
            ..PriceItem::default()
        }
    }

    fn of(mut items: Vec<PriceItem>) -> (Option<UsdPerHour>, Option<UsdPerHour>) {
        let now: Timestamp = "2026-06-01T00:00:00Z".parse().unwrap();
        let prices = Prices::from_items(&items, now);
        items.reverse();
        assert_eq!(
            Prices::from_items(&items, now),
            prices,
            "the order of the answer does not matter"
        );
        let get = |kind| prices.get("Standard_D4as_v5", kind);
        (get(CapacityType::OnDemand), get(CapacityType::Spot))
    }

    #[test]
    fn only_linux_pay_as_you_go_and_spot_rows_count() {
        let found = of(vec![
            item("Dasv5 Series", "", "Consumption", 0.172),
            item("Dasv5 Series", "", "Consumption", 0.0),
            item("Dasv5 Series Windows", "", "Consumption", 0.356),
            item("Dasv5 Series Windows Preview", "", "Consumption", 0.1),
            item("Dasv5 Series Cloud Services", "", "Consumption", 0.1),
            item("Dasv5 Series CloudServices", "", "Consumption", 0.1),
            item("Dasv5 Series", " Spot", "Consumption", 0.021_12),
            item("Dasv5 Series Windows", " Spot", "Consumption", 0.01),
            item("Dasv5 Series", " Low Priority", "Consumption", 0.0384),
            item("Dasv5 Series", "", "Reservation", 1000.0),
            item("Dasv5 Series", "", "DevTestConsumption", 0.1),
            PriceItem {
                unit_of_measure: "1 Month".into(),
                ..item("Dasv5 Series", "", "Consumption", 0.1)
            },
        ]);
        assert_eq!(found, (UsdPerHour::parse("0.172"), UsdPerHour::parse("0.02112")));
    }

    #[test]
    fn of_several_meters_the_primary_then_the_newest_then_the_cheapest_counts() {
        let meter = |primary, start: &str, price| PriceItem {
            is_primary_meter_region: primary,
            effective_start_date: format!("{start}T00:00:00Z"),
            ..item("Dasv5 Series", "", "Consumption", price)
        };
        let on_demand = |items| of(items).0;
        let secondary = meter(false, "2026-01-01", 0.1);
        let old = meter(true, "2021-06-01", 0.15);
        let (dear, cheap) = (meter(true, "2024-01-01", 0.18), meter(true, "2024-01-01", 0.172));
        let all = vec![secondary.clone(), old.clone(), dear, cheap];
        assert_eq!(on_demand(all), UsdPerHour::parse("0.172"));
        assert_eq!(on_demand(vec![secondary.clone(), old]), UsdPerHour::parse("0.15"));
        assert_eq!(on_demand(vec![secondary]), UsdPerHour::parse("0.1"));
        let announced = meter(true, "2026-06-02", 0.3);
        let current = meter(true, "2026-06-01", 0.2);
        assert_eq!(on_demand(vec![announced.clone(), current]), UsdPerHour::parse("0.2"));
        assert_eq!(on_demand(vec![announced]), None);
    }
}
