//! Prices from the public retail price API.

use std::collections::BTreeMap;

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
    /// the most expensive counts: the order of items then does not matter, and a plan never costs
    /// more than stated.
    pub fn from_items(items: &[PriceItem]) -> Self {
        let mut prices = Self::default();
        for item in items {
            let wanted = item.kind == "Consumption"
                && (item.unit_of_measure.is_empty() || item.unit_of_measure == "1 Hour")
                && !item.arm_sku_name.is_empty()
                && !item.product_name.ends_with(" Windows")
                && !item.meter_name.ends_with(" Low Priority")
                && !item.sku_name.ends_with(" Low Priority");
            // Zero is a placeholder for sizes that are not sold yet.
            let Some(price) = UsdPerHour::parse(&format!("{:.9}", item.retail_price.max(0.0)))
                .filter(|price| wanted && *price > UsdPerHour::ZERO)
            else {
                continue;
            };
            let table = if item.sku_name.ends_with(" Spot") {
                &mut prices.spot
            } else {
                &mut prices.on_demand
            };
            let entry = table.entry(item.arm_sku_name.clone()).or_insert(price);
            *entry = (*entry).max(price);
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
    Ok(Prices::from_items(&items))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_linux_pay_as_you_go_and_spot_rows_count() {
        let item = |product: &str, sku: &str, meter: &str, kind: &str, price: f64| PriceItem {
            retail_price: price,
            product_name: product.into(),
            sku_name: sku.into(),
            meter_name: meter.into(),
            arm_sku_name: "Standard_D4s_v5".into(),
            unit_of_measure: "1 Hour".into(),
            kind: kind.into(),
            ..PriceItem::default()
        };
        let mut items = vec![
            item("Dsv5 Series", "D4s v5", "D4s v5", "Consumption", 0.192),
            item("Dsv5 Series", "D4s v5", "D4s v5", "Consumption", 0.0),
            item("Dsv5 Series Windows", "D4s v5", "D4s v5", "Consumption", 0.376),
            item("Dsv5 Series", "D4s v5 Spot", "D4s v5 Spot", "Consumption", 0.021_12),
            item(
                "Dsv5 Series",
                "D4s v5 Low Priority",
                "D4s v5 Low Priority",
                "Consumption",
                0.0384,
            ),
            item("Dsv5 Series", "D4s v5", "D4s v5", "Reservation", 1000.0),
            item("Dsv5 Series", "D4s v5", "D4s v5", "DevTestConsumption", 0.19),
            item("Dsv5 Series", "D4s v5", "D4s v5", "Consumption", 0.18),
        ];
        let prices = Prices::from_items(&items);
        assert_eq!(
            prices.get("Standard_D4s_v5", CapacityType::OnDemand),
            UsdPerHour::parse("0.192")
        );
        assert_eq!(prices.get("Standard_D4s_v5", CapacityType::Spot), UsdPerHour::parse("0.02112"));
        items.reverse();
        assert_eq!(Prices::from_items(&items), prices, "the order of the answer does not matter");
    }
}
