//! The machine resource as the API returns it, reduced to the fields that the provider reads.

use std::collections::BTreeMap;

use jiff::Timestamp;
use nap_cloud::{CloudError, ErrorClass};
use nap_engine::CapacityType;
use serde::Deserialize;

use crate::arm::{ArmErrorBody, classify, nullable};
use crate::unavailable_offerings::{REGIONAL, zone_label};

/// A machine as the API shows it; only what is used.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the names are Azure's")]
pub struct Machine {
    #[serde(deserialize_with = "nullable")]
    pub id: String,
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    #[serde(deserialize_with = "nullable")]
    pub zones: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub properties: MachineProperties,
}

/// See [`Machine`].
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the names are Azure's")]
pub struct MachineProperties {
    #[serde(deserialize_with = "nullable")]
    pub provisioning_state: String,
    /// The ARM id of the VM.
    pub resource_id: Option<String>,
    pub node_image_version: Option<String>,
    pub priority: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub tags: BTreeMap<String, String>,
    #[serde(deserialize_with = "nullable")]
    pub hardware: MachineHardware,
    #[serde(deserialize_with = "nullable")]
    pub operating_system: MachineOperatingSystem,
    #[serde(deserialize_with = "nullable")]
    pub kubernetes: MachineKubernetes,
    #[serde(deserialize_with = "nullable")]
    pub status: MachineStatus,
}

/// See [`Machine`].
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the names are Azure's")]
pub struct MachineHardware {
    #[serde(deserialize_with = "nullable")]
    pub vm_size: String,
    #[serde(deserialize_with = "nullable")]
    pub ultra_ssd_enabled: bool,
}

/// See [`Machine`].
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the names are Azure's")]
pub struct MachineOperatingSystem {
    #[serde(rename = "osDiskSizeGB")]
    pub os_disk_size_gb: Option<i64>,
    #[serde(rename = "osSKU")]
    #[serde(deserialize_with = "nullable")]
    pub os_sku: String,
}

/// See [`Machine`].
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the names are Azure's")]
pub struct MachineKubernetes {
    #[serde(deserialize_with = "nullable")]
    pub node_labels: BTreeMap<String, String>,
    pub max_pods: Option<i64>,
    pub orchestrator_version: Option<String>,
}

/// See [`Machine`].
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the names are Azure's")]
pub struct MachineStatus {
    pub provisioning_error: Option<ArmErrorBody>,
    pub creation_timestamp: Option<String>,
    pub vm_state: Option<String>,
}

impl Machine {
    /// How it is paid for; a machine that does not say is a regular one.
    pub fn capacity_type(&self) -> CapacityType {
        match self.properties.priority.as_deref() {
            Some("Spot") => CapacityType::Spot,
            _ => CapacityType::OnDemand,
        }
    }

    /// The value of its zone label.
    pub fn zone(&self, region: &str) -> String {
        self.zones.first().map_or_else(
            || REGIONAL.to_owned(),
            |zone| zone_label(region, zone),
        )
    }

    /// Its id, as the Node carries it: the VM's, with the resource group in lower case.
    pub fn provider_id(&self) -> Option<String> {
        let mut parts: Vec<String> =
            self.properties.resource_id.as_deref()?.split('/').map(str::to_owned).collect();
        if let Some(group) = parts.get_mut(4) {
            *group = group.to_lowercase();
        }
        Some(format!("azure://{}", parts.join("/")))
    }

    /// Its failure, classified, if it has failed.
    pub fn failure(&self, operation: &str) -> Option<CloudError> {
        let error = self.properties.status.provisioning_error.as_ref();
        if self.properties.provisioning_state != "Failed" {
            return None;
        }
        let Some(cause) = error.map(ArmErrorBody::cause) else {
            let message = "the machine failed and does not say why";
            return Some(CloudError::new(
                ErrorClass::Transient,
                operation,
                "ProvisioningFailed",
                message,
            ));
        };
        let class = classify(None, &cause.code, &cause.message);
        Some(CloudError::new(class, operation, &cause.code, &cause.message))
    }

    /// When it was made.
    pub fn created(&self) -> Option<Timestamp> {
        self.properties.status.creation_timestamp.as_deref()?.parse().ok()
    }

    /// Its VM is gone although nobody asked for that, as after a spot eviction.
    pub fn is_lost(&self) -> bool {
        self.properties.status.vm_state.as_deref() == Some("Deleted")
    }

    /// It is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.properties.provisioning_state == "Deleting"
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn null_fields_read_as_their_defaults() {
        let machine: Machine = serde_json::from_value(json!({
            "name": "m", "zones": null,
            "properties": { "tags": null, "kubernetes": null, "hardware": { "vmSize": "S", "ultraSsdEnabled": null } },
        }))
        .unwrap();
        assert_eq!(
            (machine.name.as_str(), machine.properties.hardware.vm_size.as_str()),
            ("m", "S")
        );
    }
}
