//! Every label, annotation and finalizer that users and other controllers see, in one place.

/// The API group of NodePools and NodeClaims.
pub const GROUP: &str = "karpenter.sh";
/// The API group of AKSNodeClasses.
pub const AZURE_GROUP: &str = "karpenter.azure.com";

/// The NodePool that a NodeClaim or Node belongs to.
pub const NODEPOOL: &str = "karpenter.sh/nodepool";
/// `on-demand`, `spot` or `reserved`.
pub const CAPACITY_TYPE: &str = "karpenter.sh/capacity-type";
/// `true` on a Node once its startup is complete.
pub const INITIALIZED: &str = "karpenter.sh/initialized";
/// `true` on a Node once it was matched with its NodeClaim.
pub const REGISTERED: &str = "karpenter.sh/registered";
/// `true` on a Node whose taints are set by something else.
pub const DO_NOT_SYNC_TAINTS: &str = "karpenter.sh/do-not-sync-taints";
/// AKSNodeClass of a NodeClaim or Node; also marks it as managed by nap.
pub const AKS_NODE_CLASS: &str = "karpenter.azure.com/aksnodeclass";
/// Set to `karpenter` while a node drains.
pub const EXCLUDE_FROM_LOAD_BALANCERS: &str =
    "node.kubernetes.io/exclude-from-external-load-balancers";

/// The zone of a node, such as `eastus-1`.
pub const ZONE: &str = "topology.kubernetes.io/zone";
/// The region of a node.
pub const REGION: &str = "topology.kubernetes.io/region";
/// The VM size of a node.
pub const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";
/// `amd64` or `arm64`.
pub const ARCH: &str = "kubernetes.io/arch";
/// `linux`.
pub const OS: &str = "kubernetes.io/os";
/// The node's own name.
pub const HOSTNAME: &str = "kubernetes.io/hostname";
/// Windows build number.
pub const WINDOWS_BUILD: &str = "node.kubernetes.io/windows-build";

/// VM size name.
pub const SKU_NAME: &str = "karpenter.azure.com/sku-name";
/// The letter of the VM family, such as `D`.
pub const SKU_FAMILY: &str = "karpenter.azure.com/sku-family";
/// The VM series, such as `Dpls_v6`.
pub const SKU_SERIES: &str = "karpenter.azure.com/sku-series";
/// The VM generation without its `v`.
pub const SKU_VERSION: &str = "karpenter.azure.com/sku-version";
/// vCPUs of the VM size.
pub const SKU_CPU: &str = "karpenter.azure.com/sku-cpu";
/// Memory of the VM size in MiB.
pub const SKU_MEMORY: &str = "karpenter.azure.com/sku-memory";
/// GPU model.
pub const SKU_GPU_NAME: &str = "karpenter.azure.com/sku-gpu-name";
/// `nvidia` or `amd`.
pub const SKU_GPU_MANUFACTURER: &str = "karpenter.azure.com/sku-gpu-manufacturer";
/// GPUs of the VM size.
pub const SKU_GPU_COUNT: &str = "karpenter.azure.com/sku-gpu-count";
/// Whether the size has accelerated networking.
pub const SKU_NETWORKING_ACCELERATED: &str = "karpenter.azure.com/sku-networking-accelerated";
/// Whether the size takes premium disks.
pub const SKU_STORAGE_PREMIUM_CAPABLE: &str = "karpenter.azure.com/sku-storage-premium-capable";
/// Largest ephemeral OS disk in GB.
pub const SKU_STORAGE_EPHEMERAL_OS_MAX_SIZE: &str =
    "karpenter.azure.com/sku-storage-ephemeralos-maxsize";
/// Whether the offering takes ultra disks.
pub const SKU_STORAGE_ULTRA_SSD: &str = "karpenter.azure.com/sku-storage-ultra-ssd";
/// Hyper-V generations of the size.
pub const SKU_HYPERV_GENERATION: &str = "karpenter.azure.com/sku-hyperv-generation";
/// `zonal` or `regional`.
pub const PLACEMENT_SCOPE: &str = "karpenter.azure.com/placement-scope";

/// vCPUs, under AKS's own label.
pub const AKS_SKU_CPU: &str = "kubernetes.azure.com/sku-cpu";
/// Memory in MiB, under AKS's own label.
pub const AKS_SKU_MEMORY: &str = "kubernetes.azure.com/sku-memory";
/// The node resource group.
pub const AKS_CLUSTER: &str = "kubernetes.azure.com/cluster";
/// `system` or `user`.
pub const AKS_MODE: &str = "kubernetes.azure.com/mode";
/// `regular` or `spot`.
pub const AKS_SCALE_SET_PRIORITY: &str = "kubernetes.azure.com/scalesetpriority";
/// `regular` or `spot`.
pub const AKS_PRIORITY: &str = "kubernetes.azure.com/priority";
/// `Ubuntu` or `AzureLinux`.
pub const AKS_OS_SKU: &str = "kubernetes.azure.com/os-sku";
/// `true` on FIPS images.
pub const AKS_FIPS_ENABLED: &str = "kubernetes.azure.com/fips_enabled";

/// Labels that a pod may ask for although no NodePool defines them: the provider fills them in.
pub const WELL_KNOWN: &[&str] = &[
    NODEPOOL,
    CAPACITY_TYPE,
    ZONE,
    REGION,
    INSTANCE_TYPE,
    ARCH,
    OS,
    WINDOWS_BUILD,
    SKU_NAME,
    SKU_FAMILY,
    SKU_SERIES,
    SKU_VERSION,
    SKU_CPU,
    SKU_MEMORY,
    SKU_GPU_NAME,
    SKU_GPU_MANUFACTURER,
    SKU_GPU_COUNT,
    SKU_NETWORKING_ACCELERATED,
    SKU_STORAGE_PREMIUM_CAPABLE,
    SKU_STORAGE_EPHEMERAL_OS_MAX_SIZE,
    SKU_STORAGE_ULTRA_SSD,
    SKU_HYPERV_GENERATION,
    PLACEMENT_SCOPE,
    AKS_SKU_CPU,
    AKS_SKU_MEMORY,
    AKS_CLUSTER,
    AKS_MODE,
    AKS_SCALE_SET_PRIORITY,
    AKS_PRIORITY,
    AKS_OS_SKU,
    AKS_FIPS_ENABLED,
];

/// Whether the label is one of [`WELL_KNOWN`].
pub fn is_well_known(key: &str) -> bool {
    WELL_KNOWN.contains(&key)
}

/// Whether nap decides the value of a label that a requirement names: neither the provider nor the
/// kubelet nor a controller sets it.
pub fn is_custom(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    !is_well_known(key) && key != HOSTNAME && domain != GROUP
}

/// Old spellings of topology labels, brought to the current one.
pub fn normalise(key: &str) -> &str {
    match key {
        "failure-domain.beta.kubernetes.io/zone" | "topology.disk.csi.azure.com/zone" => ZONE,
        "failure-domain.beta.kubernetes.io/region" => REGION,
        "beta.kubernetes.io/arch" => ARCH,
        "beta.kubernetes.io/os" => OS,
        "beta.kubernetes.io/instance-type" => INSTANCE_TYPE,
        other => other,
    }
}

/// Keeps a pod, node or claim from being disrupted.
pub const DO_NOT_DISRUPT: &str = "karpenter.sh/do-not-disrupt";
/// `true` on a Node keeps it from being repaired.
pub const DO_NOT_REPAIR: &str = "karpenter.sh/do-not-repair";
/// Hash of a NodePool's template.
pub const NODEPOOL_HASH: &str = "karpenter.sh/nodepool-hash";
/// Version of the algorithm of [`NODEPOOL_HASH`].
pub const NODEPOOL_HASH_VERSION: &str = "karpenter.sh/nodepool-hash-version";
/// Time at which a terminating NodeClaim stops waiting for its pods (RFC 3339).
pub const TERMINATION_TIMESTAMP: &str = "karpenter.sh/nodeclaim-termination-timestamp";
/// Hash of an AKSNodeClass's spec.
pub const AKS_NODE_CLASS_HASH: &str = "karpenter.azure.com/aksnodeclass-hash";
/// Version of the algorithm of [`AKS_NODE_CLASS_HASH`].
pub const AKS_NODE_CLASS_HASH_VERSION: &str = "karpenter.azure.com/aksnodeclass-hash-version";
/// ARM id of the agent-pool machine of a NodeClaim.
pub const AKS_MACHINE_RESOURCE_ID: &str = "karpenter.azure.com/aks-machine-resource-id";
/// Hash of the settings of a NodeClaim's instance that are changed in place, such as its tags.
pub const IN_PLACE_UPDATE_HASH: &str = "karpenter.azure.com/in-place-update-hash";

/// Plan behind a NodeClaim, as a [`crate::PlanRecord`].
pub const PLAN: &str = "nap.karpenter.sh/plan";

/// Annotation of a NodeClaim and its Node: price in dollars per hour that the launch was planned
/// with.
pub const PRICE_PER_HOUR: &str = "nap.karpenter.sh/price-per-hour";

/// Annotation of a NodeClaim: URL of the Azure operation that creates its machine.
pub const AZURE_OPERATION: &str = "nap.karpenter.sh/azure-operation";

/// Annotation of a NodeClaim: correlation id of the request that created its machine, by which
/// Azure's support finds it.
pub const AZURE_CORRELATION_ID: &str = "nap.karpenter.sh/azure-correlation-id";

/// Annotation of a NodePool: highest price of a node in dollars per hour.
pub const MAX_PRICE_PER_NODE_HOUR: &str = "nap.karpenter.sh/max-price-per-node-hour";
/// Annotation of a NodePool: whether its spot nodes may be replaced by cheaper spot nodes.
pub const SPOT_TO_SPOT: &str = "nap.karpenter.sh/spot-to-spot-consolidation";
/// Annotation of a NodePool: `"true"` reports the voluntary disruption of its nodes and does not do
/// it.
pub const DRY_RUN: &str = "nap.karpenter.sh/dry-run";
/// Annotation of pods: how often the pods of their workload may be moved in a day, in all.
pub const MAX_EVICTIONS_PER_DAY: &str = "nap.karpenter.sh/max-evictions-per-day";
/// Annotation of a NodePool: windows in which its nodes may or may not be disrupted.
pub const DISRUPTION_WINDOWS: &str = "nap.karpenter.sh/disruption-windows";
/// Annotation of a NodePool: soak time between the waves in which drifted nodes are replaced.
pub const DRIFT_WAVES: &str = "nap.karpenter.sh/drift-waves";
/// Annotation of a NodePool: `graceful` replaces expired nodes as drifted ones are.
pub const EXPIRY: &str = "nap.karpenter.sh/expiry";
/// Version that the images of an AKSNodeClass are pinned to, such as `202610.12.0`. An annotation:
/// it is no field of the incumbent's definition.
pub const PIN_IMAGE_VERSION: &str = "nap.karpenter.sh/pin-image-version";

/// Value of [`ZONE`] on nodes without a zone.
pub const NO_ZONE: &str = "0";

/// Where a VM is, for people: `in eastus-1`, or `without a zone`.
pub fn zone_text(zone: &str) -> String {
    if zone == NO_ZONE { "without a zone".to_owned() } else { format!("in {zone}") }
}

/// Finalizer on NodeClaims and Nodes.
pub const TERMINATION_FINALIZER: &str = "karpenter.sh/termination";
/// Finalizer on AKSNodeClasses.
pub const AKS_NODE_CLASS_FINALIZER: &str = "karpenter.azure.com/termination";

/// Values of [`CAPACITY_TYPE`].
pub mod capacity_type {
    /// Pay as you go.
    pub const ON_DEMAND: &str = "on-demand";
    /// Spare capacity that can be taken back.
    pub const SPOT: &str = "spot";
    /// Paid for in advance.
    pub const RESERVED: &str = "reserved";
}
