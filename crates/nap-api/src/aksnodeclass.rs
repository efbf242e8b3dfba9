//! AKSNodeClass: the Azure settings of a machine.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::requirement::NodeSelectorRequirement;

/// The Azure settings of a machine.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "karpenter.azure.com",
    version = "v1beta1",
    kind = "AKSNodeClass",
    plural = "aksnodeclasses",
    singular = "aksnodeclass",
    shortname = "aksnc",
    shortname = "aksncs",
    category = "karpenter",
    category = "nap",
    status = "AKSNodeClassStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "ImageFamily", type_ = "string", json_path = ".spec.imageFamily", priority = 1)
)]
#[serde(rename_all = "camelCase")]
pub struct AKSNodeClassSpec {
    /// The subnet of the nodes; absent means the cluster's own.
    #[serde(rename = "vnetSubnetID", default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(
        pattern = r"(?i)^\/subscriptions\/[^\/]+\/resourceGroups\/[a-zA-Z0-9_\-().]{0,89}[a-zA-Z0-9_\-()]\/providers\/Microsoft\.Network\/virtualNetworks\/[^\/]+\/subnets\/[^\/]+$"
    ))]
    pub vnet_subnet_id: Option<String>,
    /// Size of the OS disk.
    #[serde(rename = "osDiskSizeGB", default = "default_os_disk_size_gb")]
    #[schemars(range(min = 30, max = 2048))]
    pub os_disk_size_gb: i32,
    /// The operating system.
    #[serde(default)]
    pub image_family: ImageFamily,
    /// Azure tags of the machine.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// The most pods on a node; absent means what the network plugin allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 10, max = 250))]
    pub max_pods: Option<i32>,
}

impl Default for AKSNodeClassSpec {
    fn default() -> Self {
        Self {
            vnet_subnet_id: None,
            os_disk_size_gb: default_os_disk_size_gb(),
            image_family: ImageFamily::default(),
            tags: BTreeMap::new(),
            max_pods: None,
        }
    }
}

/// The operating system of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ImageFamily {
    /// The Ubuntu that suits the cluster's version.
    #[default]
    Ubuntu,
    /// Ubuntu 22.04.
    Ubuntu2204,
    /// Ubuntu 24.04.
    Ubuntu2404,
    /// Azure Linux.
    AzureLinux,
}

/// What is known about a node class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AKSNodeClassStatus {
    /// The images that new machines get, in order of preference.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<NodeImage>,
    /// The Kubernetes version that new machines get.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes_version: Option<String>,
    /// Status conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// An image and the machines it suits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeImage {
    /// The image's id in Azure.
    pub id: String,
    /// The machines it suits.
    #[serde(default)]
    pub requirements: Vec<NodeSelectorRequirement>,
}

/// Condition types of an AKSNodeClass that `Ready` depends on.
pub mod condition {
    /// The Kubernetes version is known.
    pub const KUBERNETES_VERSION_READY: &str = "KubernetesVersionReady";
    /// The images are known.
    pub const IMAGES_READY: &str = "ImagesReady";
    /// The subnet exists.
    pub const SUBNETS_READY: &str = "SubnetsReady";
    /// Everything else that was checked is well.
    pub const VALIDATION_SUCCEEDED: &str = "ValidationSucceeded";
    /// The conditions that `Ready` depends on.
    pub const DEPENDENTS: [&str; 4] =
        [KUBERNETES_VERSION_READY, IMAGES_READY, SUBNETS_READY, VALIDATION_SUCCEEDED];
}

fn default_os_disk_size_gb() -> i32 {
    128
}
