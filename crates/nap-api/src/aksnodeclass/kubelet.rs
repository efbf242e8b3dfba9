//! The kubelet settings of an AKSNodeClass. Defaults apply only when the object is there at all.
#![expect(clippy::unnecessary_wraps, reason = "serde wants defaults of the field's type")]

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::words;

/// Settings of a node's kubelet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubeletConfiguration {
    /// Whether pods with whole CPUs get CPUs of their own.
    #[serde(default = "default_cpu_manager", skip_serializing_if = "Option::is_none")]
    pub cpu_manager_policy: Option<CpuManagerPolicy>,
    /// Whether CPU limits are enforced.
    #[serde(
        rename = "cpuCFSQuota",
        default = "default_quota",
        skip_serializing_if = "Option::is_none"
    )]
    pub cpu_cfs_quota: Option<bool>,
    /// Over which period CPU limits are enforced, from `1ms` to `1s`.
    #[serde(
        rename = "cpuCFSQuotaPeriod",
        default = "default_period",
        skip_serializing_if = "Option::is_none"
    )]
    pub cpu_cfs_quota_period: Option<String>,
    /// Disk usage in percent above which unused images are always removed.
    #[serde(
        rename = "imageGCHighThresholdPercent",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(range(min = 0, max = 100))]
    pub image_gc_high_threshold_percent: Option<i32>,
    /// Disk usage in percent below which unused images are never removed.
    #[serde(
        rename = "imageGCLowThresholdPercent",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(range(min = 0, max = 100))]
    pub image_gc_low_threshold_percent: Option<i32>,
    /// Whether a pod's CPUs, memory and devices must be close to each other.
    #[serde(default = "default_topology", skip_serializing_if = "Option::is_none")]
    pub topology_manager_policy: Option<TopologyManagerPolicy>,
    /// Unsafe sysctls, or patterns such as `net.*`, that pods may set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_unsafe_sysctls: Option<Vec<String>>,
    /// Maximum size of a container's log file before it is rotated.
    #[serde(default = "default_log_size", skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^\d+(E|P|T|G|M|K|Ei|Pi|Ti|Gi|Mi|Ki)$"))]
    pub container_log_max_size: Option<String>,
    /// Maximum number of log files per container.
    #[serde(default = "default_log_files", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 2))]
    pub container_log_max_files: Option<i32>,
    /// Maximum number of processes per pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_pids_limit: Option<i64>,
    /// Whether the kubelet refuses to start on a VM with swap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fail_swap_on: Option<bool>,
}

impl Default for KubeletConfiguration {
    fn default() -> Self {
        Self {
            cpu_manager_policy: default_cpu_manager(),
            cpu_cfs_quota: default_quota(),
            cpu_cfs_quota_period: default_period(),
            image_gc_high_threshold_percent: None,
            image_gc_low_threshold_percent: None,
            topology_manager_policy: default_topology(),
            allowed_unsafe_sysctls: None,
            container_log_max_size: default_log_size(),
            container_log_max_files: default_log_files(),
            pod_pids_limit: None,
            fail_swap_on: None,
        }
    }
}

words! {
    /// Whether pods with whole CPUs get CPUs of their own.
    CpuManagerPolicy {
        /// All share.
        None = "none",
        /// They do.
        Static = "static",
    }
}

words! {
    /// Whether a pod's CPUs, memory and devices must be close to each other.
    TopologyManagerPolicy {
        /// A pod that cannot have them close is refused.
        Restricted = "restricted",
        /// If that is possible.
        BestEffort = "best-effort",
        /// It does not matter.
        None = "none",
        /// All on one NUMA node.
        SingleNumaNode = "single-numa-node",
    }
}

fn default_cpu_manager() -> Option<CpuManagerPolicy> {
    Some(CpuManagerPolicy::None)
}

fn default_quota() -> Option<bool> {
    Some(true)
}

fn default_period() -> Option<String> {
    Some("100ms".to_owned())
}

fn default_topology() -> Option<TopologyManagerPolicy> {
    Some(TopologyManagerPolicy::None)
}

fn default_log_size() -> Option<String> {
    Some("50Mi".to_owned())
}

fn default_log_files() -> Option<i32> {
    Some(5)
}
