//! Where the data of a region comes from, and the prices to use if Azure states none.

use std::time::Duration;

use jiff::Timestamp;
use nap_engine::PriceEstimates;

use crate::arm::ArmClient;
use crate::embedded::EmbeddedCatalogue;
use crate::prices::{self, Prices};

/// Region of the built-in catalogue whose prices stand in for those of a region that has none: one
/// of a sovereign cloud, or a new one.
pub const REFERENCE_REGION: &str = "eastus";

/// Where the prices of a region come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PriceSource {
    /// The retail price API.
    Live,
    /// The built-in catalogue: list prices of the region, estimated spot prices.
    BuiltIn,
    /// The built-in catalogue, in [`REFERENCE_REGION`]: all of them are estimates.
    Reference,
}

impl PriceSource {
    /// Prices that are estimates.
    pub fn estimates(self) -> PriceEstimates {
        match self {
            Self::Live => PriceEstimates::None,
            Self::BuiltIn => PriceEstimates::Spot,
            Self::Reference => PriceEstimates::All,
        }
    }

    /// Prices that are used while newer ones cannot be fetched, for logs.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Live => "older ones of the price API",
            Self::BuiltIn => "built-in list prices of the region",
            Self::Reference => "estimates: built-in list prices of the reference region eastus",
        }
    }
}

/// Where the data of a region comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CatalogueSource {
    /// Time at which Azure listed the sizes and their zones.
    pub listed: Timestamp,
    /// Source of the prices.
    pub prices: PriceSource,
    /// Whether quota is counted; otherwise it limits nothing.
    pub has_quota: bool,
}

/// Longest time for which prices and quota are waited for before there are any. The price endpoint
/// is not among those that AKS needs, and a firewall may drop what is sent to it.
pub(crate) const MAX_FIRST_WAIT: Duration = Duration::from_secs(10);

/// The prices of a region: those of the price API or, if it has none or does not answer within ten
/// seconds, the built-in ones.
pub async fn prices_or_built_in(client: &ArmClient, region: &str) -> (Prices, PriceSource) {
    let fetched = tokio::time::timeout(MAX_FIRST_WAIT, prices::fetch(client, region)).await;
    match fetched {
        Ok(Ok(prices)) if !prices.on_demand.is_empty() => (prices, PriceSource::Live),
        _ => built_in_prices(region),
    }
}

/// The built-in prices of a region; those of the reference region if it has none.
pub(crate) fn built_in_prices(region: &str) -> (Prices, PriceSource) {
    let catalogue = EmbeddedCatalogue::embedded();
    let prices = catalogue.prices_in(region);
    if prices.on_demand.is_empty() {
        (catalogue.prices_in(REFERENCE_REGION), PriceSource::Reference)
    } else {
        (prices, PriceSource::BuiltIn)
    }
}
