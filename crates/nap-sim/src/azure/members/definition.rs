//! The published definition of bodies in [`super::MACHINES_VERSION`], in compact form.
//!
//! A test compares every list with the models of Azure's Python SDK for that version.

use super::Kind::{Bool, Int, List, Map, Number, Numbers, Object, OneOf, Text, TextMap, Texts};
use super::{Kind, Member, member, read_only};

/// Machines of agent pools.
pub(super) const MACHINE: &[Member] = &[
    read_only("id"),
    read_only("name"),
    read_only("type"),
    read_only("systemData"),
    member("properties", Object(PROPERTIES)),
    member("zones", Texts),
];
const PROPERTIES: &[Member] = &[
    member("network", Object(NETWORK)),
    read_only("resourceId"),
    member("hardware", Object(HARDWARE)),
    member("operatingSystem", Object(OPERATING_SYSTEM)),
    member("kubernetes", Object(KUBERNETES)),
    member("mode", OneOf(&["System", "User", "Gateway", "ManagedSystem", "Machines"])),
    member("security", Object(SECURITY)),
    member("priority", OneOf(&["Spot", "Regular"])),
    member("evictionPolicy", OneOf(&["Delete", "Deallocate"])),
    member("billing", Object(BILLING)),
    // Read-only in the definition; see above.
    member("nodeImageVersion", Text),
    read_only("provisioningState"),
    member("tags", TextMap),
    read_only("eTag"),
    read_only("status"),
    member("localDNSProfile", Object(LOCAL_DNS)),
];
const NETWORK: &[Member] = &[
    read_only("ipAddresses"),
    member("vnetSubnetID", Text),
    member("podSubnetID", Text),
    member("enableNodePublicIP", Bool),
    member("nodePublicIPPrefixID", Text),
    member("nodePublicIPTags", List(IP_TAG)),
];
const IP_TAG: &[Member] = &[member("ipTagType", Text), member("tag", Text)];
const HARDWARE: &[Member] = &[
    member("vmSize", Text),
    member("gpuInstanceProfile", OneOf(&["MIG1g", "MIG2g", "MIG3g", "MIG4g", "MIG7g"])),
    member("gpuProfile", Object(GPU)),
    member("ultraSsdEnabled", Bool),
];
const GPU: &[Member] = &[
    member("driver", OneOf(&["Install", "None"])),
    member("driverType", OneOf(&["GRID", "CUDA"])),
    member("nvidia", Object(NVIDIA)),
];
const NVIDIA: &[Member] = &[
    member("managementMode", OneOf(&["Unmanaged", "Managed"])),
    member("migStrategy", OneOf(&["None", "Single", "Mixed"])),
];
/// Values of `osSKU`.
const OS_SKUS: &[&str] = &[
    "Ubuntu",
    "AzureLinux",
    "AzureLinux3",
    "Mariner",
    "Flatcar",
    "CBLMariner",
    "Windows2019",
    "Windows2022",
    "Ubuntu2204",
    "Windows2025",
    "WindowsAnnual",
    "Ubuntu2404",
    "AzureContainerLinux",
];
const OPERATING_SYSTEM: &[Member] = &[
    member("osType", OneOf(&["Linux", "Windows"])),
    member("osSKU", OneOf(OS_SKUS)),
    member("osDiskSizeGB", Int),
    member("osDiskType", OneOf(&["Managed", "Ephemeral"])),
    member("enableFIPS", Bool),
    member("linuxProfile", Object(LINUX)),
    member("windowsProfile", Object(WINDOWS)),
];
const LINUX: &[Member] =
    &[member("linuxOSConfig", Object(LINUX_OS)), member("messageOfTheDay", Text)];
const WINDOWS: &[Member] = &[member("disableOutboundNat", Bool)];
const LINUX_OS: &[Member] = &[
    member("sysctls", Object(SYSCTLS)),
    member("transparentHugePageEnabled", Text),
    member("transparentHugePageDefrag", Text),
    member("swapFileSizeMB", Int),
];
const SYSCTLS: &[Member] = &[
    member("netCoreSomaxconn", Int),
    member("netCoreNetdevMaxBacklog", Int),
    member("netCoreRmemDefault", Int),
    member("netCoreRmemMax", Int),
    member("netCoreWmemDefault", Int),
    member("netCoreWmemMax", Int),
    member("netCoreOptmemMax", Int),
    member("netIpv4TcpMaxSynBacklog", Int),
    member("netIpv4TcpMaxTwBuckets", Int),
    member("netIpv4TcpFinTimeout", Int),
    member("netIpv4TcpKeepaliveTime", Int),
    member("netIpv4TcpKeepaliveProbes", Int),
    member("netIpv4TcpkeepaliveIntvl", Int),
    member("netIpv4TcpTwReuse", Bool),
    member("netIpv4IpLocalPortRange", Text),
    member("netIpv4NeighDefaultGcThresh1", Int),
    member("netIpv4NeighDefaultGcThresh2", Int),
    member("netIpv4NeighDefaultGcThresh3", Int),
    member("netNetfilterNfConntrackMax", Int),
    member("netNetfilterNfConntrackBuckets", Int),
    member("fsInotifyMaxUserWatches", Int),
    member("fsFileMax", Int),
    member("fsAioMaxNr", Int),
    member("fsNrOpen", Int),
    member("kernelThreadsMax", Int),
    member("vmMaxMapCount", Int),
    member("vmSwappiness", Int),
    member("vmVfsCachePressure", Int),
];
const KUBERNETES: &[Member] = &[
    member("nodeLabels", TextMap),
    member("orchestratorVersion", Text),
    read_only("currentOrchestratorVersion"),
    member("kubeletDiskType", OneOf(&["OS", "Temporary"])),
    member("kubeletConfig", Object(KUBELET)),
    member("nodeInitializationTaints", Texts),
    member("nodeTaints", Texts),
    member("maxPods", Int),
    read_only("nodeName"),
    member(
        "workloadRuntime",
        OneOf(&["OCIContainer", "WasmWasi", "KataMshvVmIsolation", "KataVmIsolation"]),
    ),
    member("artifactStreamingProfile", Object(ARTIFACT_STREAMING)),
];
const KUBELET: &[Member] = &[
    member("cpuManagerPolicy", Text),
    member("cpuCfsQuota", Bool),
    member("cpuCfsQuotaPeriod", Text),
    member("imageGcHighThreshold", Int),
    member("imageGcLowThreshold", Int),
    member("topologyManagerPolicy", Text),
    member("allowedUnsafeSysctls", Texts),
    member("failSwapOn", Bool),
    member("containerLogMaxSizeMB", Int),
    member("containerLogMaxFiles", Int),
    member("podMaxPids", Int),
    member("seccompDefault", OneOf(&["Unconfined", "RuntimeDefault"])),
    member("kubeReserved", Object(KUBE_RESERVED)),
    member("hardEvictionThreshold", Object(HARD_EVICTION)),
];
const KUBE_RESERVED: &[Member] = &[member("cpuMillicores", Int), member("memoryMB", Int)];
const HARD_EVICTION: &[Member] = &[
    member("memoryAvailable", Text),
    member("nodeFsAvailable", Text),
    member("nodeFsInodesFree", Text),
];
const ARTIFACT_STREAMING: &[Member] = &[member("enabled", Bool)];
const SECURITY: &[Member] = &[
    member("enableVTPM", Bool),
    member("enableSecureBoot", Bool),
    member("sshAccess", OneOf(&["LocalUser", "Disabled", "EntraId"])),
    member("enableEncryptionAtHost", Bool),
];
const BILLING: &[Member] = &[member("spotMaxPrice", Number)];
const LOCAL_DNS: &[Member] = &[
    member("mode", OneOf(&["Preferred", "Required", "Disabled"])),
    read_only("state"),
    member("vnetDNSOverrides", Map(DNS_OVERRIDE)),
    member("kubeDNSOverrides", Map(DNS_OVERRIDE)),
];
const DNS_OVERRIDE: &[Member] = &[
    member("queryLogging", OneOf(&["Error", "Log"])),
    member("protocol", OneOf(&["PreferUDP", "ForceTCP"])),
    member("forwardDestination", OneOf(&["ClusterCoreDNS", "VnetDNS"])),
    member("forwardPolicy", OneOf(&["Sequential", "RoundRobin", "Random"])),
    member("maxConcurrent", Int),
    member("cacheDurationInSeconds", Int),
    member("serveStaleDurationInSeconds", Int),
    member("serveStale", OneOf(&["Verify", "Immediate", "Disable"])),
];

/// Names of machines to delete.
pub(super) const DELETION: &[Member] = &[member("machineNames", Texts)];
/// Agent pools of every mode.
pub(super) const AGENT_POOL: &[Member] = &[
    read_only("id"),
    read_only("name"),
    read_only("type"),
    read_only("systemData"),
    member("properties", Object(POOL_PROPERTIES)),
];
const POOL_PROPERTIES: &[Member] = &[
    read_only("eTag"),
    member("count", Int),
    member("vmSize", Text),
    member("osDiskSizeGB", Int),
    member("osDiskType", OneOf(&["Managed", "Ephemeral"])),
    member("kubeletDiskType", OneOf(&["OS", "Temporary"])),
    member(
        "workloadRuntime",
        OneOf(&["OCIContainer", "WasmWasi", "KataMshvVmIsolation", "KataVmIsolation"]),
    ),
    member("messageOfTheDay", Text),
    member("vnetSubnetID", Text),
    member("podSubnetID", Text),
    member("podIPAllocationMode", OneOf(&["DynamicIndividual", "StaticBlock"])),
    member("maxPods", Int),
    member("osType", OneOf(&["Linux", "Windows"])),
    member("osSKU", OneOf(OS_SKUS)),
    member("maxCount", Int),
    member("minCount", Int),
    member("enableAutoScaling", Bool),
    member("scaleDownMode", OneOf(&["Delete", "Deallocate"])),
    member(
        "type",
        OneOf(&["VirtualMachineScaleSets", "AvailabilitySet", "VirtualMachines", "FlexNodes"]),
    ),
    member("mode", OneOf(&["System", "User", "Gateway", "ManagedSystem", "Machines"])),
    member("orchestratorVersion", Text),
    read_only("currentOrchestratorVersion"),
    member("nodeImageVersion", Text),
    member("upgradeStrategy", OneOf(&["Rolling", "BlueGreen"])),
    member("enableOSDiskFullCaching", Bool),
    member("upgradeSettings", Object(UPGRADE)),
    member("upgradeSettingsBlueGreen", Object(BLUE_GREEN_UPGRADE)),
    read_only("provisioningState"),
    member("powerState", Object(POWER_STATE)),
    member("availabilityZones", Texts),
    member("enableNodePublicIP", Bool),
    member("nodePublicIPPrefixID", Text),
    member("scaleSetPriority", OneOf(&["Spot", "Regular"])),
    member("scaleSetEvictionPolicy", OneOf(&["Delete", "Deallocate"])),
    member("spotMaxPrice", Number),
    member("tags", TextMap),
    member("nodeLabels", TextMap),
    member("nodeTaints", Texts),
    member("nodeInitializationTaints", Texts),
    member("proximityPlacementGroupID", Text),
    member("kubeletConfig", Object(KUBELET)),
    member("linuxOSConfig", Object(LINUX_OS)),
    member("enableEncryptionAtHost", Bool),
    member("enableUltraSSD", Bool),
    member("enableFIPS", Bool),
    member("gpuInstanceProfile", OneOf(&["MIG1g", "MIG2g", "MIG3g", "MIG4g", "MIG7g"])),
    member("creationData", Object(CREATION_DATA)),
    member("capacityReservationGroupID", Text),
    member("hostGroupID", Text),
    member("networkProfile", Object(POOL_NETWORK)),
    member("windowsProfile", Object(WINDOWS)),
    member("securityProfile", Object(POOL_SECURITY)),
    member("gpuProfile", Object(GPU)),
    member("gatewayProfile", Object(GATEWAY)),
    member("artifactStreamingProfile", Object(ARTIFACT_STREAMING)),
    member("virtualMachinesProfile", Object(VIRTUAL_MACHINES)),
    member("virtualMachineNodesStatus", List(VIRTUAL_MACHINE_NODES)),
    member("status", Object(POOL_STATUS)),
    member("localDNSProfile", Object(LOCAL_DNS)),
    member("preparedImageSpecificationProfile", Object(PREPARED_IMAGE)),
];
const UPGRADE: &[Member] = &[
    member("maxSurge", Text),
    member("maxUnavailable", Text),
    member("maxBlockedNodes", Text),
    member("drainTimeoutInMinutes", Int),
    member("nodeSoakDurationInMinutes", Int),
    member("undrainableNodeBehavior", OneOf(&["Cordon", "Schedule"])),
];
const BLUE_GREEN_UPGRADE: &[Member] = &[
    member("drainBatchSize", Text),
    member("drainTimeoutInMinutes", Int),
    member("batchSoakDurationInMinutes", Int),
    member("finalSoakDurationInMinutes", Int),
];
const POWER_STATE: &[Member] = &[member("code", OneOf(&["Running", "Stopped"]))];
const CREATION_DATA: &[Member] = &[member("sourceResourceId", Text)];
const POOL_NETWORK: &[Member] = &[
    member("nodePublicIPTags", List(IP_TAG)),
    member("nodePublicIPPrefixIDs", Texts),
    member("allowedHostPorts", List(PORT_RANGE)),
    member("applicationSecurityGroups", Texts),
    member("secondaryNetworkInterfaces", List(NETWORK_INTERFACE)),
];
const PORT_RANGE: &[Member] =
    &[member("portStart", Int), member("portEnd", Int), member("protocol", OneOf(&["TCP", "UDP"]))];
const NETWORK_INTERFACE: &[Member] = &[
    member("type", OneOf(&["Standard", "Dynamic"])),
    member("vnetSubnetId", Text),
    member("enableAcceleratedNetworking", Bool),
];
const POOL_SECURITY: &[Member] = &[
    member("enableVTPM", Bool),
    member("enableSecureBoot", Bool),
    member("sshAccess", OneOf(&["LocalUser", "Disabled", "EntraId"])),
];
const GATEWAY: &[Member] = &[member("publicIPPrefixSize", Int)];
const VIRTUAL_MACHINES: &[Member] = &[member("scale", Object(SCALE))];
const SCALE: &[Member] =
    &[member("manual", List(MANUAL_SCALE)), member("autoscale", List(AUTO_SCALE))];
const MANUAL_SCALE: &[Member] = &[member("size", Text), member("count", Int)];
const AUTO_SCALE: &[Member] =
    &[member("size", Text), member("minCount", Int), member("maxCount", Int)];
const VIRTUAL_MACHINE_NODES: &[Member] = &[member("size", Text), member("count", Int)];
const POOL_STATUS: &[Member] = &[read_only("provisioningError")];
const PREPARED_IMAGE: &[Member] = &[member("preparedImageSpecificationId", Text)];
/// Maintenance configurations.
pub(super) const MAINTENANCE: &[Member] = &[
    read_only("id"),
    read_only("name"),
    read_only("type"),
    read_only("systemData"),
    member("properties", Object(MAINTENANCE_PROPERTIES)),
];
const MAINTENANCE_PROPERTIES: &[Member] = &[
    member("timeInWeek", List(TIME_IN_WEEK)),
    member("notAllowedTime", List(TIME_SPAN)),
    member("maintenanceWindow", Object(WINDOW)),
    member("maintenanceWindowId", Text),
];
const WEEK_DAY: Kind =
    OneOf(&["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"]);
const TIME_IN_WEEK: &[Member] = &[member("day", WEEK_DAY), member("hourSlots", Numbers)];
const TIME_SPAN: &[Member] = &[member("start", Text), member("end", Text)];
const WINDOW: &[Member] = &[
    member("schedule", Object(SCHEDULE)),
    member("durationHours", Int),
    member("utcOffset", Text),
    member("startDate", Text),
    member("startTime", Text),
    member("notAllowedDates", List(TIME_SPAN)),
];
const SCHEDULE: &[Member] = &[
    member("daily", Object(&[member("intervalDays", Int)])),
    member("weekly", Object(&[member("intervalWeeks", Int), member("dayOfWeek", WEEK_DAY)])),
    member("absoluteMonthly", Object(&[member("intervalMonths", Int), member("dayOfMonth", Int)])),
    member(
        "relativeMonthly",
        Object(&[
            member("intervalMonths", Int),
            member("weekIndex", OneOf(&["First", "Second", "Third", "Fourth", "Last"])),
            member("dayOfWeek", WEEK_DAY),
        ]),
    ),
];
