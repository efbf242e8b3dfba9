//! VM sizes and prices without a cluster: the built-in catalogue, or a refreshed one in a folder.

use std::borrow::Cow;

use nap_api::AKSNodeClass;
use nap_azure::embedded::{EmbeddedCatalogue, Lifecycle, Region, refresh};
use nap_azure::instance_types::{Settings, from_catalogue};
use nap_azure::{AzureConfig, AzureError};
use nap_engine::CapacityType;
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

/// Instance types for these settings; an unknown region is a user error.
pub fn instance_types(
    sizes: &EmbeddedCatalogue,
    settings: &Settings,
) -> anyhow::Result<nap_engine::Catalogue> {
    from_catalogue(sizes, settings).map_err(explain)
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

/// Where prices and zones come from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Day of the prices.
    pub date: String,
    /// Whether spot prices and zones are those of the live APIs, not estimates.
    pub is_live: bool,
}

impl Origin {
    /// The origin of a region's data.
    pub fn of(region: &Region) -> Self {
        Self { date: region.prices_of.clone(), is_live: region.is_live }
    }

    /// Whether a price is an estimate: published tables have no spot prices.
    pub fn is_estimate(&self, capacity_type: CapacityType) -> bool {
        !self.is_live && capacity_type == CapacityType::Spot
    }

    /// `~` before an estimated price.
    pub fn mark(&self, capacity_type: CapacityType) -> &'static str {
        if self.is_estimate(capacity_type) { "~" } else { "" }
    }

    /// What is known about prices and zones, for people. `spot`: whether a spot price was shown.
    pub fn text(&self, spot: bool) -> String {
        if self.is_live {
            return format!("Prices and zones as Azure stated them on {}.", self.date);
        }
        let mut text =
            format!("List prices of {}; the zones of a size are an estimate.", self.date);
        if spot {
            text.push_str(" ~ marks estimated prices: list prices times the spot ratio of 2024.");
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
