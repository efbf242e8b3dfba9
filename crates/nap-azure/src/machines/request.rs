//! The body of the PUT that creates a machine.

use std::collections::BTreeMap;

use nap_api::aksnodeclass::GpuMode;
use nap_api::{AKSNodeClass, Effect, NodeClaim, Requirements, Taint, labels, taints};
use nap_cloud::{CloudError, ErrorClass};
use nap_engine::{CapacityType, InstanceType, Offering};
use serde_json::{Value, json};

use super::profiles::{kubelet_config, linux_os_config, local_dns_profile};
use super::{CLUSTER_TAG, NODECLAIM_TAG, NODEPOOL_TAG};
use crate::AzureConfig;
use crate::images::{self, ImageChoice};
use crate::instance_types::has_local_dns;
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
        let mut properties = json!({
            "nodeImageVersion": image,
            "network": spec
                .vnet_subnet_id
                .as_ref()
                .map_or(json!({}), |id| json!({ "vnetSubnetID": id })),
            "hardware": self.hardware(),
            "operatingSystem": self.operating_system(),
            "kubernetes": self.kubernetes(&node_labels),
            "mode": if system { "System" } else { "User" },
            "security": self.security(),
            "priority": if self.offering.capacity_type == CapacityType::Spot { "Spot" } else { "Regular" },
            "tags": machine_tags(self.config, self.claim, self.class),
        });
        if let Some(dns) = &spec.local_dns {
            properties["localDNSProfile"] = local_dns_profile(dns, has_local_dns(self.class));
        }
        Ok(json!({ "zones": zones, "properties": properties }))
    }

    fn hardware(&self) -> Value {
        let mut hardware = json!({ "vmSize": self.sku.name, "ultraSsdEnabled": self.ultra_ssd() });
        if self.sku.gpu.is_some() {
            let mode = self.class.spec.gpu.as_ref().and_then(|gpu| gpu.mode);
            let driver = if mode == Some(GpuMode::None) { "None" } else { "Install" };
            hardware["gpuProfile"] = json!({ "driver": driver });
        }
        hardware
    }

    fn operating_system(&self) -> Value {
        let spec = &self.class.spec;
        let choice = ImageChoice::of(spec);
        let ephemeral = self.sku.uses_ephemeral_os_disk(spec.os_disk_size_gb.into());
        let mut system = json!({
            "osType": "Linux",
            "osSKU": images::os_sku(choice, self.kubernetes_version),
            "osDiskSizeGB": spec.os_disk_size_gb,
            "osDiskType": if ephemeral { "Ephemeral" } else { "Managed" },
            "enableFIPS": choice.fips,
        });
        if let Some(linux) = &spec.linux_os_config {
            system["linuxProfile"] = json!({ "linuxOSConfig": linux_os_config(linux) });
        }
        system
    }

    fn kubernetes(&self, node_labels: &BTreeMap<String, String>) -> Value {
        let spec = &self.class.spec;
        let ours = node_labels.iter().filter(|(key, _)| is_ours(key));
        let mut kubernetes = json!({
            "nodeLabels": ours.collect::<BTreeMap<_, _>>(),
            "orchestratorVersion": self.kubernetes_version,
            "nodeInitializationTaints": self.taints(),
            "nodeTaints": [],
        });
        if let Some(max_pods) = spec.max_pods {
            kubernetes["maxPods"] = max_pods.into();
        }
        if let Some(kubelet) = &spec.kubelet {
            kubernetes["kubeletConfig"] = kubelet_config(kubelet);
        }
        if spec.artifact_streaming.as_ref().is_some_and(|it| it.enabled == Some(true)) {
            kubernetes["artifactStreamingProfile"] = json!({ "enabled": true });
        }
        kubernetes
    }

    fn security(&self) -> Value {
        let security = self.class.spec.security.clone().unwrap_or_default();
        let launch = security.trusted_launch.unwrap_or_default();
        json!({
            "sshAccess": "LocalUser",
            "enableEncryptionAtHost": security.encryption_at_host == Some(true),
            "enableVTPM": launch.vtpm == Some(true),
            "enableSecureBoot": launch.secure_boot == Some(true),
        })
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
}

/// Azure tags of a NodeClaim's machine.
pub(crate) fn machine_tags(
    config: &AzureConfig,
    claim: &NodeClaim,
    class: &AKSNodeClass,
) -> BTreeMap<String, String> {
    let mut tags = common_tags(config, claim, class);
    tags.insert(NODECLAIM_TAG.to_owned(), claim.metadata.name.clone().unwrap_or_default());
    tags
}

/// Azure tags that do not name the NodeClaim. Later sources win: the settings of the provider, the
/// node class, the tags by which nap and AKS know the cluster and the NodePool.
pub(crate) fn common_tags(
    config: &AzureConfig,
    claim: &NodeClaim,
    class: &AKSNodeClass,
) -> BTreeMap<String, String> {
    let key = |key: &String| key.replace('/', "_");
    let given = config.additional_tags.iter().chain(&class.spec.tags);
    let mut tags: BTreeMap<String, String> =
        given.map(|(name, value)| (key(name), value.clone())).collect();
    tags.insert(CLUSTER_TAG.to_owned(), config.cluster_name.clone());
    tags.insert("compute.aks.billing".to_owned(), "linux".to_owned());
    let pool = claim.metadata.labels.as_ref().and_then(|map| map.get(labels::NODEPOOL));
    if let Some(pool) = pool {
        tags.insert(NODEPOOL_TAG.to_owned(), pool.clone());
    }
    tags
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
