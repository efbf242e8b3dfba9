//! Agent-pool machines: the AKS API that makes one VM with everything that a node needs.

use std::collections::BTreeMap;

use http::Method;
use jiff::Timestamp;
use nap_api::{AKSNodeClass, Effect, NodeClaim, Requirements, Taint, labels, taints};
use nap_cloud::{CloudError, ErrorClass};
use nap_engine::{CapacityType, InstanceType, Offering};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::AzureConfig;
use crate::arm::{ArmClient, ArmErrorBody, Operation, classify, nullable};
use crate::choice::fnv1;
use crate::images;
use crate::skus::Sku;
use crate::unavailable::REGIONAL;

/// Creating machines needs a preview version of the API.
pub const API_VERSION: &str = "2026-05-02-preview";
/// The tag with the NodePool's name.
pub const NODEPOOL_TAG: &str = "karpenter.sh_nodepool";
/// The tag with the NodeClaim's name.
pub const NODECLAIM_TAG: &str = "karpenter.azure.com_aksmachine_nodeclaim";
const CLUSTER_TAG: &str = "karpenter.azure.com_cluster";
const MAX_NAME: usize = 34;

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
            |zone| crate::unavailable::zone_label(region, zone),
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

/// The machine's name for a claim: the claim's own, or a shortened one with a hash that keeps it
/// unique.
pub fn machine_name(claim: &str) -> Result<String, CloudError> {
    if claim.len() <= MAX_NAME && !claim.is_empty() {
        return Ok(claim.to_owned());
    }
    let split = claim.rfind('-').filter(|_| claim.is_ascii());
    let parts =
        split.map(|at| claim.split_at(at)).filter(|(_, suffix)| suffix.len() + 6 < MAX_NAME);
    let Some((prefix, suffix)) = parts else {
        let message = format!(
            "`{claim}` is longer than {MAX_NAME} characters and has no short suffix after a dash"
        );
        return Err(CloudError::new(ErrorClass::Invalid, "name a machine", "InvalidName", message));
    };
    let (kept, rest) = prefix.split_at((MAX_NAME - suffix.len() - 6).min(prefix.len()));
    let mut hash = fnv1(rest);
    let mut digits = [b'0'; 6];
    for digit in digits.iter_mut().rev() {
        *digit = b"0123456789abcdefghijklmnopqrstuvwxyz"[usize::try_from(hash % 36).unwrap_or(0)];
        hash /= 36;
    }
    Ok(format!("{kept}{}{suffix}", String::from_utf8_lossy(&digits)))
}

/// The machine's name in a VM name or provider id of the shape `aks-<pool>-<machine>-########-vm`.
pub fn machine_name_of(provider_id: &str, pool: &str) -> Option<String> {
    let vm = provider_id.rsplit('/').next()?;
    let inner =
        vm.strip_prefix("aks-")?.strip_prefix(pool)?.strip_prefix('-')?.strip_suffix("-vm")?;
    let (name, digits) = inner.rsplit_once('-')?;
    (digits.len() == 8 && digits.bytes().all(|byte| byte.is_ascii_digit())).then(|| name.to_owned())
}

/// What a machine is made from.
pub struct MachineRequest<'a> {
    /// The cluster's settings.
    pub config: &'a AzureConfig,
    /// The claim.
    pub claim: &'a NodeClaim,
    /// The node class.
    pub class: &'a AKSNodeClass,
    /// The chosen size.
    pub sku: &'a Sku,
    /// The same, as the engine sees it.
    pub instance_type: &'a InstanceType,
    /// The chosen offering.
    pub offering: &'a Offering,
    /// The chosen image's id.
    pub image_id: &'a str,
    /// The Kubernetes version.
    pub kubernetes_version: &'a str,
}

impl MachineRequest<'_> {
    /// The body of the PUT.
    pub fn body(&self) -> Result<Value, CloudError> {
        let spec = &self.class.spec;
        let image = images::node_image_version(self.image_id).ok_or_else(|| {
            let message = format!("`{}` is not the id of a shared-gallery image", self.image_id);
            CloudError::new(ErrorClass::Invalid, "make a machine", "InvalidImage", message)
        })?;
        let node_labels = self.labels();
        let system = node_labels.get(labels::AKS_MODE).is_some_and(|mode| mode == "system");
        let zones: Vec<&str> = match self.offering.zone.rsplit_once('-') {
            Some((_, zone)) if self.offering.zone != REGIONAL => vec![zone],
            _ => Vec::new(),
        };
        let mut hardware = json!({ "vmSize": self.sku.name, "ultraSsdEnabled": self.ultra_ssd() });
        if self.sku.gpu.is_some() {
            hardware["gpuProfile"] = json!({ "driver": "Install" });
        }
        let mut kubernetes = json!({
            "nodeLabels": node_labels.into_iter().filter(|(key, _)| is_ours(key)).collect::<BTreeMap<_, _>>(),
            "orchestratorVersion": self.kubernetes_version,
            "nodeInitializationTaints": self.taints(),
            "nodeTaints": [],
        });
        if let Some(max_pods) = spec.max_pods {
            kubernetes["maxPods"] = max_pods.into();
        }
        let ephemeral = self.sku.uses_ephemeral_os_disk(spec.os_disk_size_gb.into());
        let network =
            spec.vnet_subnet_id.as_ref().map_or(json!({}), |id| json!({ "vnetSubnetID": id }));
        Ok(json!({
            "zones": zones,
            "properties": {
                "nodeImageVersion": image,
                "network": network,
                "hardware": hardware,
                "operatingSystem": {
                    "osType": "Linux",
                    "osSKU": images::os_sku(spec.image_family, self.kubernetes_version),
                    "osDiskSizeGB": spec.os_disk_size_gb,
                    "osDiskType": if ephemeral { "Ephemeral" } else { "Managed" },
                    "enableFIPS": false,
                },
                "kubernetes": kubernetes,
                "mode": if system { "System" } else { "User" },
                "security": {
                    "sshAccess": "LocalUser",
                    "enableEncryptionAtHost": false,
                    "enableVTPM": false,
                    "enableSecureBoot": false,
                },
                "priority": if self.offering.capacity_type == CapacityType::Spot { "Spot" } else { "Regular" },
                "tags": self.tags(),
            },
        }))
    }

    /// Ultra disks are switched on only for a claim that insists on them.
    fn ultra_ssd(&self) -> bool {
        let requirements = Requirements::from_specs(&self.claim.spec.requirements);
        requirements
            .get(labels::SKU_STORAGE_ULTRA_SSD)
            .is_some_and(|wanted| wanted.allows("true") && !wanted.allows("false"))
    }

    /// Later sources win: the claim's labels, its single-valued requirements, the size's, the
    /// offering's.
    fn labels(&self) -> BTreeMap<String, String> {
        let mut all = self.claim.metadata.labels.clone().unwrap_or_default();
        all.extend(Requirements::from_specs(&self.claim.spec.requirements).labels());
        all.extend(self.instance_type.requirements.labels());
        all.extend(self.offering.requirements.labels());
        all.insert(labels::SKU_STORAGE_ULTRA_SSD.to_owned(), self.ultra_ssd().to_string());
        all
    }

    fn taints(&self) -> Vec<String> {
        let spec = &self.claim.spec;
        let unregistered = Taint::new(taints::UNREGISTERED, Effect::NoExecute);
        let mut texts: Vec<String> = Vec::new();
        for taint in spec.taints.iter().chain(&spec.startup_taints).chain([&unregistered]) {
            let value =
                if taint.value.is_empty() { String::new() } else { format!("={}", taint.value) };
            let text = format!("{}{value}:{}", taint.key, taint.effect.as_str());
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
        texts
    }

    fn tags(&self) -> BTreeMap<String, String> {
        let key = |key: &String| key.replace('/', "_");
        let given = self.config.additional_tags.iter().chain(&self.class.spec.tags);
        let mut tags: BTreeMap<String, String> =
            given.map(|(name, value)| (key(name), value.clone())).collect();
        tags.insert(CLUSTER_TAG.to_owned(), self.config.cluster_name.clone());
        tags.insert("compute.aks.billing".to_owned(), "linux".to_owned());
        if let Some(pool) =
            self.claim.metadata.labels.as_ref().and_then(|map| map.get(labels::NODEPOOL))
        {
            tags.insert(NODEPOOL_TAG.to_owned(), pool.clone());
        }
        let claim = self.claim.metadata.name.clone().unwrap_or_default();
        tags.insert(NODECLAIM_TAG.to_owned(), claim);
        tags
    }
}

/// Whether we may set a label through the machines API: AKS and the kubelet set their own and
/// refuse others.
fn is_ours(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let within = |parent: &str| domain == parent || domain.ends_with(&format!(".{parent}"));
    if within("kubernetes.azure.com")
        || matches!(key, "agentpool" | "storageprofile" | "storagetier" | "accelerator")
    {
        return false;
    }
    if matches!(
        key,
        labels::INSTANCE_TYPE
            | labels::HOSTNAME
            | labels::ARCH
            | labels::OS
            | labels::ZONE
            | labels::REGION
    ) {
        return false;
    }
    let reserved = within("kubernetes.io") || within("k8s.io");
    !reserved || within("node.kubernetes.io") || within("kubelet.kubernetes.io")
}

/// The machines of one agent pool.
#[derive(Clone)]
pub struct Machines {
    arm: ArmClient,
    pool_path: String,
}

impl Machines {
    /// The machines of the cluster's agent pool.
    pub fn new(arm: ArmClient, config: &AzureConfig) -> Self {
        Self { arm, pool_path: config.agent_pool_path() }
    }

    fn path(&self, name: &str) -> String {
        format!("{}/machines/{name}?api-version={API_VERSION}", self.pool_path)
    }

    /// A machine by its name.
    pub async fn get(&self, name: &str) -> Result<Machine, CloudError> {
        let operation = format!("get machine {name}");
        let body = self.arm.get(&operation, &self.path(name)).await?;
        serde_json::from_value(body).map_err(|error| {
            CloudError::new(ErrorClass::Transient, operation, "InvalidResponse", error)
        })
    }

    /// Every machine of the pool; none if there is no pool yet.
    pub async fn list(&self) -> Result<Vec<Machine>, CloudError> {
        let path = format!("{}/machines?api-version={API_VERSION}", self.pool_path);
        match self.arm.list("list machines", &path).await {
            Err(error) if error.is_not_found() => Ok(Vec::new()),
            other => other,
        }
    }

    /// Asks for a machine; the operation goes on after that.
    pub async fn put(&self, name: &str, body: &Value) -> Result<Operation, CloudError> {
        let headers = [("AllowSpotVMSystemNode", "true")];
        let operation = format!("create machine {name}");
        let response =
            self.arm.send(&operation, Method::PUT, &self.path(name), &headers, Some(body)).await?;
        Ok(Operation::of(&response))
    }

    /// Asks for a machine's deletion; the operation goes on after that.
    pub async fn delete(&self, name: &str) -> Result<Operation, CloudError> {
        let path = format!("{}/deleteMachines?api-version={API_VERSION}", self.pool_path);
        let body = json!({ "machineNames": [name] });
        let operation = format!("delete machine {name}");
        match self.arm.send(&operation, Method::POST, &path, &[], Some(&body)).await {
            Ok(response) => Ok(Operation::of(&response)),
            Err(mut error) => {
                if error.code == "InvalidParameter"
                    && error.message.contains("Cannot find any valid machines")
                {
                    error.class = ErrorClass::NotFound;
                }
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_claim_names_are_shortened_as_the_incumbent_does() {
        assert_eq!(machine_name("default-abc12").unwrap(), "default-abc12");
        assert_eq!(
            machine_name("thisisaverylongnodepoolnamethatexceeds-a1b2c").unwrap(),
            "thisisaverylongnodepooap1tx8-a1b2c"
        );
        assert_eq!(machine_name(&"x".repeat(40)).unwrap_err().class, ErrorClass::Invalid);
    }

    #[test]
    fn nulls_hide_nothing() {
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
    fn vm_names_lead_back_to_machines() {
        let id = "azure:///subscriptions/s/resourceGroups/mc/providers/Microsoft.Compute/virtualMachines/aks-aksmanagedap-default-abc12-12345678-vm";
        assert_eq!(machine_name_of(id, "aksmanagedap").as_deref(), Some("default-abc12"));
        assert_eq!(machine_name_of("azure:///x/aks-default-abc12", "aksmanagedap"), None);
    }

    #[test]
    fn labels_of_aks_and_the_kubelet_are_left_to_them() {
        for (key, ours) in [
            ("team", true),
            ("karpenter.sh/nodepool", true),
            ("karpenter.azure.com/sku-cpu", true),
            ("kubernetes.azure.com/mode", false),
            ("agentpool", false),
            ("kubernetes.io/arch", false),
            ("node.kubernetes.io/instance-type", false),
            ("node.kubernetes.io/custom", true),
            ("node-restriction.kubernetes.io/x", false),
            ("example.k8s.io/x", false),
        ] {
            assert_eq!(is_ours(key), ours, "{key}");
        }
    }
}
