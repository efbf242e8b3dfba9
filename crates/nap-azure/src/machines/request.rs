//! The body of the PUT that creates a machine.

use std::collections::BTreeMap;

use nap_api::{AKSNodeClass, Effect, NodeClaim, Requirements, Taint, labels, taints};
use nap_cloud::{CloudError, ErrorClass};
use nap_engine::{CapacityType, InstanceType, Offering};
use serde_json::{Value, json};

use super::{CLUSTER_TAG, NODECLAIM_TAG, NODEPOOL_TAG};
use crate::AzureConfig;
use crate::images;
use crate::skus::Sku;
use crate::unavailable_offerings::REGIONAL;

/// Inputs of a machine.
pub struct MachineRequest<'a> {
    /// Settings of the provider.
    pub config: &'a AzureConfig,
    /// NodeClaim.
    pub claim: &'a NodeClaim,
    /// Node class.
    pub class: &'a AKSNodeClass,
    /// Size.
    pub sku: &'a Sku,
    /// Size in the engine's terms.
    pub instance_type: &'a InstanceType,
    /// Offering.
    pub offering: &'a Offering,
    /// Id of the image.
    pub image_id: &'a str,
    /// Kubernetes version.
    pub kubernetes_version: &'a str,
}

impl MachineRequest<'_> {
    /// The body of the PUT.
    pub fn body(&self) -> Result<Value, CloudError> {
        let spec = &self.class.spec;
        let image = images::node_image_version(self.image_id).ok_or_else(|| {
            let message = format!("`{}` is not the id of a shared-gallery image", self.image_id);
            CloudError::new(ErrorClass::Invalid, "create a machine", "InvalidImage", message)
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

    /// Whether ultra disks are enabled: only for a NodeClaim that requires them.
    fn ultra_ssd(&self) -> bool {
        let requirements = Requirements::from_specs(&self.claim.spec.requirements);
        requirements
            .get(labels::SKU_STORAGE_ULTRA_SSD)
            .is_some_and(|wanted| wanted.allows("true") && !wanted.allows("false"))
    }

    /// Labels of the node. Later sources win: the NodeClaim's labels, its single-valued
    /// requirements, the size's, the offering's.
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

/// Whether a label may be set through the machines API. AKS and the kubelet set their own labels
/// and refuse them here.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_owned_by_aks_or_the_kubelet_are_not_set() {
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
