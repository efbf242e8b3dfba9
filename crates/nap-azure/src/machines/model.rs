//! The machine resource as the API returns it, reduced to the fields that the provider reads.

use std::collections::BTreeMap;

use jiff::Timestamp;
use nap_cloud::{CloudError, ErrorClass};
use nap_engine::CapacityType;
use serde::Deserialize;

use super::{CLUSTER_TAG, NODECLAIM_TAG, NODEPOOL_TAG};
use crate::arm::{ArmErrorBody, nullable};
use crate::unavailable_offerings::{REGIONAL, zone_label};

/// A machine.
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
    pub provisioning_state: ProvisioningState,
    /// The ARM id of the VM.
    pub resource_id: Option<String>,
    pub node_image_version: Option<String>,
    pub priority: Option<String>,
    pub mode: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub tags: BTreeMap<String, String>,
    #[serde(deserialize_with = "nullable")]
    pub network: MachineNetwork,
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
#[serde(default)]
#[expect(missing_docs, reason = "the names are Azure's")]
pub struct MachineNetwork {
    #[serde(rename = "vnetSubnetID")]
    pub vnet_subnet_id: Option<String>,
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
    #[serde(rename = "enableFIPS", deserialize_with = "nullable")]
    pub enable_fips: bool,
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
    pub current_orchestrator_version: Option<String>,
}

/// See [`Machine`].
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the names are Azure's")]
pub struct MachineStatus {
    pub provisioning_error: Option<ArmErrorBody>,
    pub creation_timestamp: Option<String>,
    /// `Synced`, or what AKS wants to be done because the cluster's configuration has changed.
    pub drift_action: Option<String>,
    pub drift_reason: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub vm_state: VmState,
}

/// State of the machine resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub enum ProvisioningState {
    /// The VM runs.
    Succeeded,
    /// The VM could not be created.
    Failed,
    /// The VM is being deleted.
    Deleting,
    /// `Creating`, `Updating` and states that may be added.
    #[default]
    InProgress,
}

impl From<String> for ProvisioningState {
    fn from(state: String) -> Self {
        match state.as_str() {
            "Succeeded" => Self::Succeeded,
            "Failed" => Self::Failed,
            "Deleting" => Self::Deleting,
            _ => Self::InProgress,
        }
    }
}

/// State of the VM behind the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub enum VmState {
    /// The VM does not exist any more.
    Deleted,
    /// Any other state, and none.
    #[default]
    Other,
}

impl From<String> for VmState {
    fn from(state: String) -> Self {
        if state == "Deleted" { Self::Deleted } else { Self::Other }
    }
}

impl Machine {
    /// Capacity type; a machine without a priority is on demand.
    pub fn capacity_type(&self) -> CapacityType {
        match self.properties.priority.as_deref() {
            Some("Spot") => CapacityType::Spot,
            _ => CapacityType::OnDemand,
        }
    }

    /// Value of its zone label.
    pub fn zone(&self, region: &str) -> String {
        self.zones.first().map_or_else(|| REGIONAL.to_owned(), |zone| zone_label(region, zone))
    }

    /// Provider id: the ARM id of the VM, with the resource group in lower case. `None` until the
    /// VM exists.
    pub fn provider_id(&self) -> Option<String> {
        let mut parts: Vec<String> =
            self.properties.resource_id.as_deref()?.split('/').map(str::to_owned).collect();
        if let Some(group) = parts.get_mut(4) {
            *group = group.to_lowercase();
        }
        Some(format!("azure://{}", parts.join("/")))
    }

    /// The classified failure of a machine that has failed; `None` if it has not.
    pub fn failure(&self, operation: &str) -> Option<CloudError> {
        if self.properties.provisioning_state != ProvisioningState::Failed {
            return None;
        }
        let error = self.properties.status.provisioning_error.as_ref();
        let unexplained = || {
            let (code, message) = ("ProvisioningFailed", "the machine failed without a reason");
            CloudError::new(ErrorClass::Transient, operation, code, message)
        };
        Some(error.map_or_else(unexplained, |error| {
            error.to_error(None, operation, "ProvisioningFailed")
        }))
    }

    /// Name of the NodeClaim that it was created for; `None` if its tags do not tell.
    pub fn owner(&self) -> Option<&str> {
        self.properties.tags.get(NODECLAIM_TAG).map(String::as_str)
    }

    /// Whether it was created for a NodeClaim of a cluster. Machines of older versions carry only
    /// the name of their NodePool; one that names another cluster is never of this one.
    pub fn is_of_cluster(&self, cluster: &str) -> bool {
        let tags = &self.properties.tags;
        match tags.get(CLUSTER_TAG) {
            Some(name) => {
                name == cluster && (self.owner().is_some() || tags.contains_key(NODEPOOL_TAG))
            }
            None => tags.contains_key(NODEPOOL_TAG),
        }
    }

    /// Whether its VM has a provider id, in any case.
    pub fn has_provider_id(&self, provider_id: &str) -> bool {
        self.provider_id().is_some_and(|id| id.eq_ignore_ascii_case(provider_id))
    }

    /// Whether it failed before it had a VM.
    pub fn is_failed_without_vm(&self) -> bool {
        self.properties.provisioning_state == ProvisioningState::Failed
            && self.properties.resource_id.is_none()
    }

    /// Time of creation; `None` if the API does not tell.
    pub fn created(&self) -> Option<Timestamp> {
        self.properties.status.creation_timestamp.as_deref()?.parse().ok()
    }

    /// Whether its VM is gone without a request, as after a spot eviction.
    pub fn is_lost(&self) -> bool {
        self.properties.status.vm_state == VmState::Deleted
    }

    /// Whether it is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.properties.provisioning_state == ProvisioningState::Deleting
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

    #[test]
    fn a_machine_of_another_cluster_is_never_of_this_one() {
        let of = |tags: serde_json::Value| -> bool {
            let machine = json!({ "properties": { "tags": tags } });
            serde_json::from_value::<Machine>(machine).unwrap().is_of_cluster("mine")
        };
        assert!(of(json!({ CLUSTER_TAG: "mine", NODECLAIM_TAG: "c" })));
        assert!(of(json!({ NODEPOOL_TAG: "default" })));
        assert!(!of(json!({ CLUSTER_TAG: "other", NODECLAIM_TAG: "c", NODEPOOL_TAG: "default" })));
        assert!(!of(json!({ CLUSTER_TAG: "mine" })), "a user's own machine");
        assert!(!of(json!({})));
    }

    #[test]
    fn states_are_parsed_and_unknown_ones_are_in_progress() {
        let state = |text: &str| {
            let machine = json!({ "properties": { "provisioningState": text } });
            let machine: Machine = serde_json::from_value(machine).unwrap();
            machine.properties.provisioning_state
        };
        assert_eq!(state("Succeeded"), ProvisioningState::Succeeded);
        assert_eq!(state("Failed"), ProvisioningState::Failed);
        assert_eq!(state("Deleting"), ProvisioningState::Deleting);
        assert_eq!(state("Migrating"), ProvisioningState::InProgress);
    }

    #[test]
    fn a_failed_machine_reports_the_cause() {
        let error = json!({ "code": "X", "details": [{ "code": "ZonalAllocationFailed" }] });
        let machine: Machine = serde_json::from_value(json!({ "properties": {
            "provisioningState": "Failed", "status": { "provisioningError": error },
        } }))
        .unwrap();
        let failure = machine.failure("create machine m").unwrap();
        assert_eq!(failure.class, ErrorClass::Capacity);
        assert_eq!(failure.code, "ZonalAllocationFailed");
    }
}
