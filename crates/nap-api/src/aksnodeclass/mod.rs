//! AKSNodeClass: Azure settings of VMs.

mod kubelet;
mod linux;
mod local_dns;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use kubelet::{CpuManagerPolicy, KubeletConfiguration, TopologyManagerPolicy};
pub use linux::{
    LinuxOsConfiguration, SysctlConfiguration, TransparentHugePageDefrag, TransparentHugePages,
};
pub use local_dns::{
    ForwardDestination, ForwardPolicy, LocalDns, LocalDnsMode, LocalDnsProtocol, LocalDnsZone,
    QueryLogging, ServeStale,
};

use crate::requirement::NodeSelectorRequirement;

/// An enum whose variants have a name on the wire.
macro_rules! words {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        pub enum $name {
            $($(#[$doc])* #[serde(rename = $text)] $variant,)+
        }

        impl $name {
            /// The name on the wire.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }
        }
    };
}
use words;

/// Azure settings of VMs.
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
    printcolumn(
        name = "ImageFamily",
        type_ = "string",
        json_path = ".spec.imageFamily",
        priority = 1
    )
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
    /// Whether the image is one with validated cryptography; absent means it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fips_mode: Option<FipsMode>,
    /// Azure tags of the VM. Changing them replaces no node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// Settings of the node's kubelet; what is absent takes its default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelet: Option<KubeletConfiguration>,
    /// The most pods on a node; absent means what the network plugin allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 10, max = 250))]
    pub max_pods: Option<i32>,
    /// Security profile of the VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security: Option<Security>,
    /// A DNS cache on every node.
    #[serde(rename = "localDNS", default, skip_serializing_if = "Option::is_none")]
    pub local_dns: Option<LocalDns>,
    /// GPU profile: settings of VMs with a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Gpu>,
    /// Starts containers before their image is complete; never on arm64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_streaming: Option<ArtifactStreaming>,
    /// Settings of the operating system.
    #[serde(rename = "linuxOSConfig", default, skip_serializing_if = "Option::is_none")]
    pub linux_os_config: Option<LinuxOsConfiguration>,
}

impl Default for AKSNodeClassSpec {
    fn default() -> Self {
        Self {
            vnet_subnet_id: None,
            os_disk_size_gb: default_os_disk_size_gb(),
            image_family: ImageFamily::default(),
            fips_mode: None,
            tags: BTreeMap::new(),
            kubelet: None,
            max_pods: None,
            security: None,
            local_dns: None,
            gpu: None,
            artifact_streaming: None,
            linux_os_config: None,
        }
    }
}

words! {
    /// The operating system of a VM.
    #[derive(Default)]
    ImageFamily {
        /// The Ubuntu that suits the cluster's version.
        #[default]
        Ubuntu = "Ubuntu",
        /// Ubuntu 22.04.
        Ubuntu2204 = "Ubuntu2204",
        /// Ubuntu 24.04.
        Ubuntu2404 = "Ubuntu2404",
        /// Azure Linux.
        AzureLinux = "AzureLinux",
    }
}

words! {
    /// Whether the image is one with validated cryptography.
    FipsMode {
        /// It is.
        Fips = "FIPS",
        /// It is not.
        Disabled = "Disabled",
    }
}

/// Security profile of the VM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Security {
    /// Encrypts disks and caches on the host that runs the VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption_at_host: Option<bool>,
    /// Protects the VM while it boots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trusted_launch: Option<TrustedLaunch>,
}

/// Protects the VM while it boots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrustedLaunch {
    /// Gives the VM a virtual TPM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vtpm: Option<bool>,
    /// Boots signed code only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secure_boot: Option<bool>,
}

/// GPU profile: settings of VMs with a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Gpu {
    /// Driver installation.
    #[serde(default = "default_gpu_mode", skip_serializing_if = "Option::is_none")]
    pub mode: Option<GpuMode>,
}

words! {
    /// Installation of the GPU driver.
    GpuMode {
        /// The image does.
        Driver = "Driver",
        /// Not installed; the user brings a driver.
        None = "None",
    }
}

/// Starts containers before their image is complete.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ArtifactStreaming {
    /// Whether it is on; absent means off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

/// Observed state of an AKSNodeClass.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AKSNodeClassStatus {
    /// The images that new VMs get, in order of preference.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<NodeImage>,
    /// The Kubernetes version that new VMs get.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes_version: Option<String>,
    /// Whether new VMs get the DNS cache.
    #[serde(rename = "localDNSState", default, skip_serializing_if = "Option::is_none")]
    pub local_dns_state: Option<LocalDnsState>,
    /// Status conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

words! {
    /// Whether new VMs get the DNS cache.
    LocalDnsState {
        /// They do.
        Enabled = "Enabled",
        /// They do not.
        Disabled = "Disabled",
    }
}

/// An image and the VMs it suits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeImage {
    /// The image's id in Azure.
    pub id: String,
    /// The VMs it suits.
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
    /// It is known whether VMs get the DNS cache.
    pub const LOCAL_DNS_READY: &str = "LocalDNSReady";
    /// The conditions that `Ready` depends on.
    pub const DEPENDENTS: [&str; 5] = [
        KUBERNETES_VERSION_READY,
        IMAGES_READY,
        SUBNETS_READY,
        VALIDATION_SUCCEEDED,
        LOCAL_DNS_READY,
    ];
}

fn default_os_disk_size_gb() -> i32 {
    128
}

#[expect(clippy::unnecessary_wraps, reason = "serde wants the field's type")]
fn default_gpu_mode() -> Option<GpuMode> {
    Some(GpuMode::Driver)
}
