//! What AKS does to a cluster over time: upgrades of the control plane, new node images,
//! maintenance configurations, and machines that it wants recreated.

use std::collections::BTreeMap;

use http::Method;
use serde_json::{Value, json};

use super::members::check_maintenance;
use super::request::{Answer, ArmRequest, page, refuse, reply};
use super::{Emulator, EmulatorConfig, Inner};

/// Version of every image that was published before the newest.
const PREVIOUS_IMAGE: &str = "202601.5.0";

/// The maintenance configurations that AKS knows.
const NAMES: [&str; 3] =
    ["default", "aksManagedAutoUpgradeSchedule", "aksManagedNodeOSUpgradeSchedule"];

/// Changes of the cluster since the start.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Kubernetes version of the control plane; `None` before the first upgrade.
    kubernetes_version: Option<String>,
    /// Image versions that were published.
    images: Vec<String>,
    /// Maintenance configurations by name.
    maintenance: BTreeMap<String, Value>,
}

impl Changes {
    /// Kubernetes version of the control plane.
    pub(crate) fn kubernetes_version<'a>(&'a self, config: &'a EmulatorConfig) -> &'a str {
        self.kubernetes_version.as_deref().unwrap_or(&config.kubernetes_version)
    }

    /// Upgrades the control plane.
    pub(crate) fn upgrade(&mut self, version: String) {
        self.kubernetes_version = Some(version);
    }

    /// Publishes a new version of every node image.
    pub(crate) fn publish_image(&mut self, version: String) {
        self.images.push(version);
    }

    /// Versions of every image, the oldest first.
    pub(crate) fn image_versions<'a>(&'a self, config: &'a EmulatorConfig) -> Vec<&'a str> {
        let before = [PREVIOUS_IMAGE, &config.image_version];
        before.into_iter().chain(self.images.iter().map(String::as_str)).collect()
    }
}

/// An action that AKS asks for, with its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DriftAction {
    pub action: String,
    pub reason: String,
}

impl Emulator {
    /// Upgrades the control plane.
    pub fn upgrade_control_plane(&self, version: &str) {
        self.0.state().changes.upgrade(version.to_owned());
    }

    /// Publishes a new version of every node image.
    pub fn publish_image(&self, version: &str) {
        self.0.state().changes.publish_image(version.to_owned());
    }

    /// Sets the `properties` of a maintenance configuration, as a PUT does. Returns whether AKS
    /// has a configuration of that name.
    pub fn set_maintenance_configuration(&self, name: &str, properties: Value) -> bool {
        let known = NAMES.iter().find(|known| known.eq_ignore_ascii_case(name));
        let maintenance = &mut self.0.state().changes.maintenance;
        known.map(|name| maintenance.insert((*name).to_owned(), properties)).is_some()
    }

    /// Lets AKS ask for an action on a machine, such as `Recreate`. Returns whether there is such a
    /// machine.
    pub fn set_drift_action(&self, machine: &str, action: &str, reason: &str) -> bool {
        let mut state = self.0.state();
        let Some(machine) = state.machines.get_mut(machine) else { return false };
        let (action, reason) = (action.to_owned(), reason.to_owned());
        machine.drift_action = Some(DriftAction { action, reason });
        true
    }
}

impl Inner {
    /// Handles requests below `maintenanceConfigurations`; `rest` is a name or nothing.
    pub(crate) fn maintenance(&self, request: &ArmRequest, rest: &[&str]) -> Answer {
        let name = match rest {
            [] if request.method == Method::GET => {
                let state = self.state();
                let all = &state.changes.maintenance;
                let all: Vec<Value> = all.iter().map(|(name, it)| self.shown(name, it)).collect();
                return page(request, &all, self.config.page_size, ("value", "nextLink"));
            }
            [name] => NAMES.iter().find(|known| known.eq_ignore_ascii_case(name)),
            _ => None,
        };
        let Some(name) = name else {
            let message = format!("Maintenance configurations are {}.", NAMES.join(", "));
            return refuse(400, "InvalidMaintenanceConfigurationName", &message);
        };
        let mut state = self.state();
        let all = &mut state.changes.maintenance;
        match request.method {
            Method::GET => all.get(*name).map_or_else(
                || {
                    let message = format!("Maintenance configuration {name} not found.");
                    refuse(404, "ResourceNotFound", &message)
                },
                |properties| reply(200, &self.shown(name, properties)),
            ),
            Method::PUT => {
                let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
                if let Err(refusal) = check_maintenance(&body) {
                    return refusal.answer();
                }
                let Some(properties) = body.get("properties").filter(|it| it.is_object()) else {
                    let message = "Required parameter properties is missing.";
                    return refuse(400, "InvalidParameter", message);
                };
                all.insert((*name).to_owned(), properties.clone());
                reply(200, &self.shown(name, properties))
            }
            Method::DELETE => {
                let status = if all.remove(*name).is_some() { 200 } else { 204 };
                reply(status, &Value::Null)
            }
            _ => refuse(405, "MethodNotAllowed", "The method is not allowed."),
        }
    }

    fn shown(&self, name: &str, properties: &Value) -> Value {
        let cluster = self.config.azure_config().cluster_path();
        json!({
            "id": format!("{cluster}/maintenanceConfigurations/{name}"),
            "name": name,
            "type": "Microsoft.ContainerService/managedClusters/maintenanceConfigurations",
            "properties": properties,
        })
    }
}
