//! Configuration of the emulator.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::Duration;

use nap_azure::AzureConfig;
use nap_clock::Clock;

use super::{FaultPlan, RequestLimits, Surroundings};

/// Id of the emulated subscription, by which the nodes of its VMs are known.
pub const SUBSCRIPTION: &str = "00000000-0000-0000-0000-000000000001";

/// What the ids of VMs tell about their machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VmIds {
    /// A VM's name has the name of its machine in it.
    #[default]
    NamedByMachine,
    /// Names of VMs do not lead back to their machines.
    Opaque,
    /// As by default, but a machine whose creation fails has no VM id.
    MissingIfFailed,
    /// No machine has a VM id before its VM exists.
    MissingUntilCreated,
}

/// The emulated AKS cluster, its delays and its faults.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct EmulatorConfig {
    /// Short name of the region, such as `eastus`.
    pub region: String,
    /// VM sizes that are sold; empty for all of the catalogue.
    pub sizes: BTreeSet<String>,
    /// Whether sizes are still sold that Azure has retired; otherwise they are listed with a
    /// restriction.
    pub retired_sizes: bool,
    /// Zones in which the subscription may not use a size, by name; none for the whole region.
    pub restrictions: BTreeMap<String, Vec<String>>,
    /// Whether sizes with premium disks take ultra disks in every zone.
    pub ultra_disks: bool,
    /// Seed of every random number.
    pub seed: u64,
    /// Clock of all delays.
    pub clock: Clock,
    /// Id of the only subscription.
    pub subscription_id: String,
    /// Resource group of the cluster.
    pub resource_group: String,
    /// Resource group of the cluster's VMs.
    pub node_resource_group: String,
    /// Name of the only cluster.
    pub cluster_name: String,
    /// Name of its only machines-mode agent pool.
    pub agent_pool: String,
    /// Kubernetes version of the cluster.
    pub kubernetes_version: String,
    /// Newest version of every node image.
    pub image_version: String,
    /// `maxPods` of machines whose request has none.
    pub max_pods: i64,
    /// Time from the create request until the VM exists.
    pub vm_create: RangeInclusive<Duration>,
    /// Time from the delete request until the VM is gone.
    pub vm_delete: RangeInclusive<Duration>,
    /// Time from the VM's existence until its kubelet joins.
    pub node_boot: RangeInclusive<Duration>,
    /// Validity of an access token.
    pub token_lifetime: Duration,
    /// Audiences of tokens for ARM, beside loopback addresses, at which processes reach the
    /// emulator.
    pub token_audiences: BTreeSet<String>,
    /// Maximum number of items on a page of a list.
    pub page_size: usize,
    /// vCPU quota of families that [`FaultPlan::family_quota`] does not name.
    pub default_family_quota: i64,
    /// On-demand vCPU quota of the region, unless [`FaultPlan::regional_quota`] has another.
    pub regional_quota: i64,
    /// Spot vCPU quota of the region, unless [`FaultPlan::spot_quota`] has another.
    pub spot_quota: i64,
    /// ARM's request limits; `None` for none.
    pub request_limits: Option<RequestLimits>,
    /// `Retry-After` of operations in progress.
    pub retry_after: Duration,
    /// ARM ids of the subnets that exist.
    pub subnets: BTreeSet<String>,
    /// Whether every other subnet exists too, in any subscription, so that manifests of guides
    /// work.
    pub any_subnet: bool,
    /// Whether machines state their subnet as AKS knows it: in upper case, and that of the cluster
    /// if the request names none.
    pub states_subnets: bool,
    /// What surrounds the cluster.
    pub surroundings: Surroundings,
    /// Faults from the start.
    pub faults: FaultPlan,
    /// What machines say of their VMs.
    pub vm_ids: VmIds,
}

impl EmulatorConfig {
    /// A cluster in a region, with typical delays and without faults.
    pub fn new(region: &str, seed: u64, clock: Clock) -> Self {
        let seconds = |from, to| Duration::from_secs(from)..=Duration::from_secs(to);
        let subscription_id = SUBSCRIPTION.to_owned();
        let node_resource_group = format!("MC_nap_nap_{region}");
        let subnet = format!(
            "/subscriptions/{subscription_id}/resourceGroups/{node_resource_group}/providers/Microsoft.Network/virtualNetworks/aks-vnet-12345678/subnets/aks-subnet"
        );
        Self {
            region: region.to_owned(),
            sizes: BTreeSet::new(),
            retired_sizes: false,
            restrictions: BTreeMap::new(),
            ultra_disks: false,
            seed,
            clock,
            subscription_id,
            resource_group: "nap".to_owned(),
            node_resource_group,
            cluster_name: "nap".to_owned(),
            agent_pool: "aksmanagedap".to_owned(),
            kubernetes_version: "1.34.1".to_owned(),
            image_version: "202610.12.0".to_owned(),
            max_pods: 250,
            vm_create: seconds(15, 30),
            vm_delete: seconds(20, 40),
            node_boot: seconds(25, 45),
            token_lifetime: Duration::from_hours(1),
            token_audiences: BTreeSet::from(["https://management.azure.com".to_owned()]),
            page_size: 400,
            default_family_quota: 100_000,
            regional_quota: 100_000,
            spot_quota: 100_000,
            request_limits: Some(RequestLimits::default()),
            retry_after: Duration::from_secs(5),
            subnets: BTreeSet::from([subnet]),
            any_subnet: false,
            states_subnets: false,
            surroundings: Surroundings::default(),
            faults: FaultPlan::default(),
            vm_ids: VmIds::default(),
        }
    }

    /// Multiplies the delays of VMs by a factor.
    #[must_use]
    pub fn with_vm_delays(mut self, factor: f64) -> Self {
        for range in [&mut self.vm_create, &mut self.vm_delete, &mut self.node_boot] {
            *range = range.start().mul_f64(factor)..=range.end().mul_f64(factor);
        }
        self
    }

    /// Environment variables for a nap process that reaches the emulator at `endpoint`.
    pub fn environment(&self, endpoint: &str) -> Vec<(&'static str, String)> {
        vec![
            ("ARM_SUBSCRIPTION_ID", self.subscription_id.clone()),
            ("ARM_RESOURCE_GROUP", self.resource_group.clone()),
            ("AZURE_NODE_RESOURCE_GROUP", self.node_resource_group.clone()),
            ("CLUSTER_NAME", self.cluster_name.clone()),
            ("LOCATION", self.region.clone()),
            ("NAP_ARM_ENDPOINT", endpoint.to_owned()),
            ("NAP_PRICES_ENDPOINT", endpoint.to_owned()),
            ("AZURE_AUTHORITY_HOST", endpoint.to_owned()),
            ("AZURE_TENANT_ID", "00000000-0000-0000-0000-000000000002".to_owned()),
            ("AZURE_CLIENT_ID", "00000000-0000-0000-0000-000000000003".to_owned()),
        ]
    }

    /// Whether a subnet exists.
    pub(crate) fn has_subnet(&self, id: &str) -> bool {
        let mut known = self.subnets.iter().chain(self.surroundings.resources.keys());
        self.any_subnet || known.any(|known| known.eq_ignore_ascii_case(id))
    }

    /// ARM id of the cluster.
    pub(crate) fn cluster_id(&self) -> String {
        format!(
            "/subscriptions/{}/resourceGroups/{}/providers/Microsoft.ContainerService/managedClusters/{}",
            self.subscription_id, self.resource_group, self.cluster_name
        )
    }

    /// ARM id of the agent pool.
    pub(crate) fn agent_pool_id(&self) -> String {
        format!("{}/agentPools/{}", self.cluster_id(), self.agent_pool)
    }

    /// Configuration of a provider for this cluster.
    pub fn azure_config(&self) -> AzureConfig {
        let mut config = AzureConfig::new(
            &self.subscription_id,
            &self.resource_group,
            &self.cluster_name,
            &self.region,
        );
        config.node_resource_group.clone_from(&self.node_resource_group);
        config.agent_pool.clone_from(&self.agent_pool);
        config
    }
}
