//! Instance types of a region from the embedded catalogue.

use nap_api::AKSNodeClass;
use nap_api::aksnodeclass::ImageFamily;
use nap_azure::AzureError;
use nap_azure::embedded::EmbeddedCatalogue;
use nap_azure::instance_types::{Settings, from_catalogue};

use crate::user_error::UserError;

/// Region if the user names none.
pub const DEFAULT_REGION: &str = "eastus";

/// Provider settings from a node class; defaults without one.
pub fn settings(region: &str, class: Option<&AKSNodeClass>) -> Settings {
    let spec = class.map(|class| class.spec.clone()).unwrap_or_default();
    Settings {
        region: region.to_owned(),
        node_resource_group: String::new(),
        image_family: class.map_or(ImageFamily::Ubuntu, |class| class.spec.image_family),
        os_disk_gb: spec.os_disk_size_gb.into(),
        max_pods: spec.max_pods.map_or(250, i64::from),
        memory_overhead: 0.075,
    }
}

/// Instance types for these settings; an unknown region is a user error.
pub fn instance_types(settings: &Settings) -> anyhow::Result<nap_engine::Catalogue> {
    from_catalogue(EmbeddedCatalogue::embedded(), settings).map_err(|error| match error {
        AzureError::UnknownRegion { name, nearest } => {
            let hint = format!("the nearest names are {}", nearest.join(", "));
            UserError::new(format!("--region: there is no region `{name}` in the catalogue"), hint)
                .into()
        }
        other => other.into(),
    })
}
