//! VM sizes and prices without a cluster: the built-in catalogue, or a refreshed one in a folder.
//! And what is said about where they, or those of Azure itself, come from.

use std::borrow::Cow;
use std::fmt::Write as _;

use jiff::Timestamp;
use nap_api::AKSNodeClass;
use nap_azure::embedded::{EmbeddedCatalogue, Lifecycle, Region, refresh};
use nap_azure::instance_types::{Settings, from_catalogue_where};
use nap_azure::{
    AzureConfig, AzureError, CatalogueSource, PriceSource, REFERENCE_REGION, Shortage,
};
use nap_engine::{CapacityType, PriceEstimates};
use serde::{Deserialize, Serialize};

use crate::cli::CatalogueArgs;
use crate::user_error::UserError;

/// Region if the user names none.
pub const DEFAULT_REGION: &str = "eastus";

/// A catalogue of sizes and prices.
pub type Sizes = Cow<'static, EmbeddedCatalogue>;

/// The catalogue that the options select.
pub fn load(args: &CatalogueArgs) -> anyhow::Result<Sizes> {
    let Some(folder) = &args.catalogue else {
        return Ok(Cow::Borrowed(EmbeddedCatalogue::embedded()));
    };
    refresh::read_files(folder).map(Cow::Owned).map_err(|error| {
        let hint = "`nap azure catalogue refresh` writes such a folder";
        UserError::new(format!("--catalogue: {error}"), hint).into()
    })
}

/// A region by its name; an unknown one is a user error with similar names.
pub fn region<'a>(sizes: &'a EmbeddedCatalogue, name: &str) -> anyhow::Result<&'a Region> {
    sizes.region(name).map_err(explain)
}

/// Provider settings from a node class; defaults without one.
pub fn settings(region: &str, class: Option<&AKSNodeClass>) -> Settings {
    // Of the cluster nothing is known but the region.
    let config = AzureConfig::new("", "", "", region);
    let settings = Settings::new(&config, &class.cloned().unwrap_or_default());
    Settings { region: region.to_owned(), node_resource_group: String::new(), ..settings }
}

/// Instance types for these settings, with some offerings left out; an unknown region is a user
/// error.
pub fn instance_types(
    sizes: &EmbeddedCatalogue,
    settings: &Settings,
    left_out: &[Shortage],
) -> anyhow::Result<nap_engine::Catalogue> {
    from_catalogue_where(sizes, settings, |sku, zone, capacity_type| {
        !left_out.iter().any(|one| one.covers(sku, zone, capacity_type))
    })
    .map_err(explain)
}

/// Refuses a region that the catalogue does not have.
pub fn require_region(sizes: &EmbeddedCatalogue, name: &str) -> anyhow::Result<()> {
    sizes.region(name).map(|_| ()).map_err(explain)
}

fn explain(error: AzureError) -> anyhow::Error {
    match error {
        AzureError::UnknownRegion { name, nearest } => {
            let hint = format!("the nearest names are {}", nearest.join(", "));
            UserError::new(format!("--region: there is no region `{name}` in the catalogue"), hint)
                .into()
        }
        other => other.into(),
    }
}

/// Where VM sizes come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Source {
    /// The built-in catalogue.
    #[default]
    BuiltIn,
    /// A folder of `nap azure catalogue refresh`.
    Folder,
    /// Azure itself, for the subscription.
    Live,
}

/// Note below costs of the emulated Azure with spot VMs.
pub const SPOT_NOTE: &str =
    "~ marks estimated prices: spot prices are list prices times the spot ratio of 2024.";

/// Where sizes, prices, zones and quota come from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Day of the prices.
    pub date: String,
    /// Whether prices are those of the live APIs, today or when a catalogue was refreshed. If not,
    /// spot prices are estimates, and so are zones unless the source is live.
    pub is_live: bool,
    /// Source of the sizes.
    #[serde(default)]
    pub source: Source,
    /// Time at which Azure listed the sizes, if the source is live.
    #[serde(default)]
    pub time: Option<Timestamp>,
    /// Whether the quota of the subscription is known and limits the plan.
    #[serde(default)]
    pub has_quota: bool,
    /// Region whose list prices stand in for the region's, which has none; `None` if it has.
    #[serde(default)]
    pub reference: Option<String>,
}

impl Origin {
    /// The origin of a region's data in a catalogue.
    pub fn of(region: &Region, args: &CatalogueArgs) -> Self {
        let source = if args.catalogue.is_some() { Source::Folder } else { Source::BuiltIn };
        let (date, is_live) = (region.prices_of.clone(), region.is_live);
        Self { date, is_live, source, ..Self::default() }
    }

    /// The origin of the data that a provider has fetched.
    pub fn live(source: CatalogueSource, region: &str) -> Self {
        let priced = match source.prices {
            PriceSource::Live => None,
            PriceSource::BuiltIn => Some(region),
            PriceSource::Reference => Some(REFERENCE_REGION),
        };
        let built_in = priced.and_then(|name| EmbeddedCatalogue::embedded().region(name).ok());
        let today = || source.listed.strftime("%Y-%m-%d").to_string();
        Self {
            date: built_in.map_or_else(today, |region| region.prices_of.clone()),
            is_live: source.prices == PriceSource::Live,
            source: Source::Live,
            time: Timestamp::from_second(source.listed.as_second()).ok(),
            has_quota: source.has_quota,
            reference: priced.filter(|name| *name != region).map(str::to_owned),
        }
    }

    /// What is an estimate, in the words of the plan document.
    pub fn estimates(&self) -> Vec<&'static str> {
        let all = [
            (self.reference.is_some(), "listPrices"),
            (!self.is_live, "spotPrices"),
            (!self.is_live && self.source != Source::Live, "zones"),
        ];
        all.into_iter().filter_map(|(is_estimate, name)| is_estimate.then_some(name)).collect()
    }

    /// Prices that are estimates: published tables have no spot prices.
    pub fn price_estimates(&self) -> PriceEstimates {
        match (&self.reference, self.is_live) {
            (Some(_), _) => PriceEstimates::All,
            (None, true) => PriceEstimates::None,
            (None, false) => PriceEstimates::Spot,
        }
    }

    /// Whether a price is an estimate.
    pub fn is_estimate(&self, capacity_type: CapacityType) -> bool {
        self.price_estimates().covers(capacity_type)
    }

    /// `~` before an estimated price.
    pub fn mark(&self, capacity_type: CapacityType) -> &'static str {
        self.price_estimates().mark(capacity_type)
    }

    /// What is known about sizes, prices, zones and quota, for people. `estimated`: whether an
    /// estimated price was shown.
    pub fn text(&self, estimated: bool) -> String {
        let mut text = match (self.source, self.time) {
            (Source::Live, Some(time)) => self.live_text(time),
            _ if self.is_live => {
                return format!("Prices and zones as Azure stated them on {}.", self.date);
            }
            _ => format!("List prices of {}; the zones of a size are an estimate.", self.date),
        };
        match &self.reference {
            Some(region) if estimated => {
                let _ = write!(text, " ~ marks estimated prices: list prices of {region}.");
            }
            None if estimated && !self.is_live => {
                text.push_str(
                    " ~ marks estimated prices: list prices times the spot ratio of 2024.",
                );
            }
            _ => {}
        }
        text
    }

    fn live_text(&self, time: Timestamp) -> String {
        let mut live = vec!["Sizes", "zones"];
        live.extend(self.is_live.then_some("prices"));
        live.extend(self.has_quota.then_some("quota"));
        let last = live.pop().unwrap_or_default();
        let mut text = format!("{} and {last} as Azure stated them at {time}.", live.join(", "));
        if !self.is_live {
            let _ = write!(text, " Built-in list prices of {}.", self.date);
        }
        if !self.has_quota {
            text.push_str(" Quota could not be read and limits nothing.");
        }
        text
    }
}

/// What a buyer of a size must know: that it is closed, or will be retired.
pub fn caution(size: &str, region: &str) -> Option<String> {
    let table = Lifecycle::built_in();
    let closed = table.closed_since(size).map(|since| {
        format!("closed to new subscriptions since {since}, and no subscription gets more quota")
    });
    let retires = table.retires_on(size, region).map(|on| format!("to be retired on {on}"));
    let parts: Vec<String> = closed.into_iter().chain(retires).collect();
    (!parts.is_empty()).then(|| format!("{size} is {}", parts.join("; ")))
}
