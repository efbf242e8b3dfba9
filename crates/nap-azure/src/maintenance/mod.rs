//! Planned maintenance of the managed cluster: the windows in which AKS may upgrade nodes.
//!
//! [`MaintenanceWindow`] is a pure calendar, [`read_window`] gets one from ARM.

mod parse;
#[cfg(test)]
mod tests;
mod window;

use nap_api::disruption::{Maintenance, MaintenanceSchedule, Span};
use nap_cloud::{CloudError, ErrorClass};

pub use parse::ParseWindowError;
pub use window::{DateSpan, MaintenanceWindow, Schedule, WeekIndex};

use crate::AzureConfig;
use crate::arm::ArmClient;
use crate::machines::API_VERSION;

/// Reads the window of a maintenance configuration of the cluster; `None` if it has none.
pub async fn read_window(
    arm: &ArmClient,
    config: &AzureConfig,
    schedule: MaintenanceSchedule,
) -> Result<Option<MaintenanceWindow>, CloudError> {
    let operation = format!("get maintenance configuration {schedule}");
    let path = format!(
        "{}/maintenanceConfigurations/{schedule}?api-version={API_VERSION}",
        config.cluster_path()
    );
    let body = match arm.get(&operation, &path).await {
        Ok(body) => body,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(error),
    };
    MaintenanceWindow::parse(&body)
        .map_err(|error| CloudError::new(ErrorClass::Invalid, operation, "InvalidWindow", error))
}

/// Reads when the window of a maintenance configuration of the cluster is open.
pub async fn read(
    arm: &ArmClient,
    config: &AzureConfig,
    schedule: MaintenanceSchedule,
    within: Span,
) -> Result<Maintenance, CloudError> {
    Ok(match read_window(arm, config, schedule).await? {
        None => Maintenance::Absent,
        Some(window) => Maintenance::Known { within, open: window.spans(within) },
    })
}
