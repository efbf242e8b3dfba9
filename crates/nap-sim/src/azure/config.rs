//! Settings of the emulated Azure.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::Duration;

use nap_azure::AzureConfig;
use nap_clock::Clock;

use super::FaultPlan;

/// Which cluster is emulated, and how fast its machines come and go.
#[derive(Clone, Debug)]
pub struct EmulatorConfig {
    /// The region, in the short spelling.
    pub region: String,
    /// Everything that looks random follows from this.
    pub seed: u64,
    /// Delays pass on this clock.
    pub clock: Clock,
    /// The only subscription.
    pub subscription_id: String,
    /// The only cluster's resource group.
    pub resource_group: String,
    /// The resource group of its machines.
    pub node_resource_group: String,
    /// The only cluster.
    pub cluster_name: String,
    /// Its only machines-mode agent pool.
    pub agent_pool: String,
    /// Its Kubernetes version.
    pub kubernetes_version: String,
    /// The newest version of every node image.
    pub image_version: String,
    /// Pods on a node when the machine does not say.
    pub max_pods: i64,
    /// From the request until the VM exists.
    pub vm_create: RangeInclusive<Duration>,
    /// From the request until the VM is gone.
    pub vm_delete: RangeInclusive<Duration>,
    /// From the VM's existence until its kubelet joins.
    pub node_boot: RangeInclusive<Duration>,
    /// How long a token holds.
    pub token_lifetime: Duration,
    /// Items on a page of a list.
    pub page_size: usize,
    /// Cores per family that are not limited by [`FaultPlan::family_quota`].
    pub default_family_quota: i64,
    /// ARM ids of the subnets that exist.
    pub subnets: BTreeSet<String>,
    /// Every other subnet exists too, in any subscription: a playground must not refuse what a
    /// guide says.
    pub any_subnet: bool,
    /// What goes wrong.
    pub faults: FaultPlan,
}

impl EmulatorConfig {
    /// A cluster in a region, with the delays of a good day.
    pub fn new(region: &str, seed: u64, clock: Clock) -> Self {
        let seconds = |from, to| Duration::from_secs(from)..=Duration::from_secs(to);
        let subscription_id = "00000000-0000-0000-0000-000000000001".to_owned();
        let node_resource_group = format!("MC_nap_nap_{region}");
        let subnet = format!(
            "/subscriptions/{subscription_id}/resourceGroups/{node_resource_group}/providers/Microsoft.Network/virtualNetworks/aks-vnet-12345678/subnets/aks-subnet"
        );
        Self {
            region: region.to_owned(),
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
            page_size: 400,
            default_family_quota: 100_000,
            subnets: BTreeSet::from([subnet]),
            any_subnet: false,
            faults: FaultPlan::default(),
        }
    }

    /// Settings for a provider of this cluster.
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
