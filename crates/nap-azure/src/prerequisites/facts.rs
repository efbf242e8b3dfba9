//! What was read of a cluster and its surroundings, reduced to the fields that the checks look at.
//!
//! Documents of ARM are parsed after their `null`s were removed, so that absent and `null` are one.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::security_rules::SecurityGroup;
use super::versions::CliVersions;
use crate::AzureConfig;

/// Reason why a fact could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unknown(pub String);

/// A fact, as far as it could be read.
pub(super) type Fact<T> = Result<T, Unknown>;

/// The value of a fact; the row is unknown without it.
pub(super) fn known<T>(fact: &Fact<T>) -> Result<&T, Unknown> {
    fact.as_ref().map_err(Unknown::clone)
}

/// The value of a fact by name; the row is unknown without it.
pub(super) fn known_of<'a, T>(
    facts: &'a BTreeMap<String, Fact<T>>,
    name: &str,
) -> Result<&'a T, Unknown> {
    match facts.get(&name.to_lowercase()) {
        Some(fact) => known(fact),
        None => Err(Unknown(format!("`{}` was not read", last_segment(name)))),
    }
}

/// Facts about a cluster, its network, its subscription and this computer.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Settings of `nap run`.
    pub(super) config: AzureConfig,
    /// Variables that `nap run` needs and that are unset.
    pub(super) unset: Vec<&'static str>,
    pub(super) cluster: ManagedCluster,
    pub(super) pools: Fact<Vec<AgentPool>>,
    /// Names of the maintenance configurations.
    pub(super) maintenance: Fact<Vec<String>>,
    /// By lower-cased id.
    pub(super) subnets: BTreeMap<String, Fact<Subnet>>,
    /// By lower-cased id.
    pub(super) security_groups: BTreeMap<String, Fact<SecurityGroup>>,
    /// By lower-cased id.
    pub(super) route_tables: BTreeMap<String, Fact<RouteTable>>,
    /// Roles of the cluster's identity on a subnet or above it, by the lower-cased id of the
    /// subnet.
    pub(super) identity_roles: BTreeMap<String, Fact<Vec<Role>>>,
    /// Permissions of the caller on the cluster.
    pub(super) caller_on_cluster: Fact<Vec<Permission>>,
    /// Permissions of the caller on the resource group of the cluster.
    pub(super) caller_on_group: Fact<Vec<Permission>>,
    /// State of the subscription.
    pub(super) subscription: Fact<String>,
    /// Registration states of resource providers.
    pub(super) providers: BTreeMap<&'static str, Fact<String>>,
    /// Registration state of the preview feature; `None` if Azure does not list it.
    pub(super) feature: Fact<Option<String>>,
    pub(super) usages: Fact<Vec<Usage>>,
    /// Lists of the region that `nap run` reads, by name.
    pub(super) region_reads: BTreeMap<&'static str, Read>,
    /// Versions of the Azure CLI; `None` if it is not installed.
    pub(super) cli: Fact<Option<CliVersions>>,
    /// Answer of the retail price API to this computer: nothing, or the failure.
    pub(super) prices: Result<(), String>,
    /// What NodePools can buy; empty if no NodePool is known.
    pub(super) node_pools: Vec<PoolNeeds>,
}

/// What a NodePool can buy, in terms of quota.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolNeeds {
    /// Name of the NodePool.
    pub name: String,
    /// vCPUs of the smallest size that it allows on demand, by lower-cased quota family.
    pub families: BTreeMap<String, i64>,
    /// vCPUs of the smallest size that it allows as spot; `None` if it allows none.
    pub spot: Option<i64>,
}

impl Facts {
    /// Settings of `nap run`, with what the managed cluster states where variables are unset.
    pub fn config(&self) -> &AzureConfig {
        &self.config
    }

    /// Whether the agent pool of the settings exists, in any mode; `None` if it is unknown.
    pub fn has_agent_pool(&self) -> Option<bool> {
        let pools = self.pools.as_ref().ok()?;
        Some(pools.iter().any(|pool| pool.name.eq_ignore_ascii_case(&self.config.agent_pool)))
    }

    /// Sets the NodePools that quota is checked for.
    pub fn set_node_pools(&mut self, node_pools: Vec<PoolNeeds>) {
        self.node_pools = node_pools;
    }

    /// Network profile of the cluster.
    pub(super) fn network(&self) -> &NetworkProfile {
        &self.cluster.properties.network_profile
    }

    /// Whether AKS manages a subnet: it is in the resource group of the nodes.
    pub(super) fn is_managed(&self, subnet: &str) -> bool {
        let group = self.cluster.properties.node_resource_group.to_lowercase();
        !group.is_empty() && subnet.to_lowercase().contains(&format!("/resourcegroups/{group}/"))
    }

    /// Lower-cased ids of the subnets of nodes: those of the pools and that of `nap run`. Empty if
    /// AKS manages the network.
    pub(super) fn node_subnets(&self) -> Result<Vec<String>, Unknown> {
        let pools = known(&self.pools)?;
        let of_pools = pools.iter().filter_map(|pool| pool.properties.vnet_subnet_id.clone());
        let mut ids: Vec<String> = of_pools
            .chain(self.config.vnet_subnet_id.clone())
            .filter(|id| !id.is_empty() && !self.is_managed(id))
            .map(|id| id.to_lowercase())
            .collect();
        ids.sort();
        ids.dedup();
        Ok(ids)
    }

    /// Lower-cased id of the subnet of the API server; `None` without VNet integration, or in a
    /// network that AKS manages.
    pub(super) fn api_server_subnet(&self) -> Option<String> {
        let id = self.cluster.properties.api_server_access_profile.subnet_id.as_deref()?;
        (!id.is_empty() && !self.is_managed(id)).then(|| id.to_lowercase())
    }
}

/// Outcome of reading a list of which only the permission matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Read {
    Done,
    /// The caller may not read it.
    Forbidden,
    /// Another failure.
    Failed(String),
}

/// The last part of an ARM id, its name.
pub(super) fn last_segment(id: &str) -> &str {
    id.rsplit('/').next().unwrap_or(id)
}

/// Parses a document of ARM.
pub(super) fn parse<T: DeserializeOwned>(mut document: Value) -> Result<T, serde_json::Error> {
    remove_nulls(&mut document);
    serde_json::from_value(document)
}

fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(remove_nulls);
        }
        Value::Array(items) => {
            items.retain(|item| !item.is_null());
            items.iter_mut().for_each(remove_nulls);
        }
        _ => {}
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ManagedCluster {
    pub location: String,
    pub identity: Identity,
    pub properties: ClusterProperties,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Identity {
    #[serde(rename = "type")]
    pub kind: String,
    pub principal_id: Option<String>,
    /// By ARM id.
    pub user_assigned_identities: BTreeMap<String, UserAssignedIdentity>,
}

impl Identity {
    /// Object ids of the cluster's identities.
    pub fn principals(&self) -> Vec<&str> {
        let assigned = self.user_assigned_identities.values();
        let assigned = assigned.filter_map(|one| one.principal_id.as_deref());
        assigned.chain(self.principal_id.as_deref()).collect()
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct UserAssignedIdentity {
    pub principal_id: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ClusterProperties {
    pub provisioning_state: String,
    pub power_state: PowerState,
    pub kubernetes_version: String,
    pub current_kubernetes_version: Option<String>,
    pub node_resource_group: String,
    #[serde(rename = "diskEncryptionSetID")]
    pub disk_encryption_set_id: Option<String>,
    pub service_principal_profile: ServicePrincipalProfile,
    pub network_profile: NetworkProfile,
    pub http_proxy_config: HttpProxyConfig,
    pub security_profile: SecurityProfile,
    pub auto_upgrade_profile: AutoUpgradeProfile,
    pub node_provisioning_profile: NodeProvisioningProfile,
    pub api_server_access_profile: ApiServerAccessProfile,
    pub aad_profile: AadProfile,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PowerState {
    pub code: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ServicePrincipalProfile {
    /// `msi` with a managed identity.
    pub client_id: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct HttpProxyConfig {
    pub http_proxy: Option<String>,
    pub https_proxy: Option<String>,
    pub enabled: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct SecurityProfile {
    #[serde(rename = "customCATrustCertificates")]
    pub custom_ca_trust_certificates: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct AutoUpgradeProfile {
    pub upgrade_channel: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeProvisioningProfile {
    pub mode: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ApiServerAccessProfile {
    pub subnet_id: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct AadProfile {
    #[serde(rename = "enableAzureRBAC")]
    pub enable_azure_rbac: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct NetworkProfile {
    pub network_plugin: String,
    pub network_plugin_mode: Option<String>,
    pub network_policy: Option<String>,
    pub network_dataplane: Option<String>,
    pub load_balancer_sku: Option<String>,
    pub outbound_type: Option<String>,
    pub ip_families: Vec<String>,
    pub pod_cidr: Option<String>,
    pub pod_cidrs: Vec<String>,
    pub service_cidr: Option<String>,
    pub service_cidrs: Vec<String>,
    pub load_balancer_profile: OutboundProfile,
    pub nat_gateway_profile: OutboundProfile,
}

impl NetworkProfile {
    /// Whether pods have addresses of their own range instead of the node subnet's.
    pub fn is_overlay(&self) -> bool {
        self.network_plugin_mode.as_deref().is_some_and(|mode| mode.eq_ignore_ascii_case("overlay"))
    }

    /// Ranges of pods, without duplicates.
    pub fn pod_ranges(&self) -> Vec<String> {
        ranges(self.pod_cidr.as_ref(), &self.pod_cidrs)
    }

    /// Ranges of Services, without duplicates.
    pub fn service_ranges(&self) -> Vec<String> {
        ranges(self.service_cidr.as_ref(), &self.service_cidrs)
    }
}

fn ranges(first: Option<&String>, all: &[String]) -> Vec<String> {
    let mut ranges: Vec<String> = first.into_iter().chain(all).cloned().collect();
    ranges.sort();
    ranges.dedup();
    ranges
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct OutboundProfile {
    #[serde(rename = "effectiveOutboundIPs")]
    pub effective_outbound_ips: Vec<Reference>,
}

/// A reference to another resource.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Reference {
    pub id: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct AgentPool {
    pub name: String,
    pub properties: AgentPoolProperties,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct AgentPoolProperties {
    pub mode: String,
    pub provisioning_state: Option<String>,
    pub os_type: Option<String>,
    pub enable_auto_scaling: bool,
    #[serde(rename = "vnetSubnetID")]
    pub vnet_subnet_id: Option<String>,
    #[serde(rename = "podSubnetID")]
    pub pod_subnet_id: Option<String>,
    #[serde(rename = "podIPAllocationMode")]
    pub pod_ip_allocation_mode: Option<String>,
    pub kubelet_config: Option<Value>,
    #[serde(rename = "enableCustomCATrust")]
    pub enable_custom_ca_trust: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Subnet {
    pub name: String,
    pub properties: SubnetProperties,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct SubnetProperties {
    pub address_prefix: Option<String>,
    pub address_prefixes: Vec<String>,
    pub delegations: Vec<Delegation>,
    pub network_security_group: Option<Reference>,
    pub route_table: Option<Reference>,
    pub nat_gateway: Option<Reference>,
    /// Addresses in use, one entry each.
    pub ip_configurations: Vec<Reference>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Delegation {
    pub properties: DelegationProperties,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct DelegationProperties {
    pub service_name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RouteTable {
    pub name: String,
    pub properties: RouteTableProperties,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RouteTableProperties {
    pub routes: Vec<Route>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Route {
    pub properties: RouteProperties,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RouteProperties {
    pub address_prefix: String,
    pub next_hop_type: String,
    pub next_hop_ip_address: Option<String>,
}

/// vCPUs in use and their limit, of a family or of the region.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Usage {
    pub current_value: Option<i64>,
    pub limit: Option<i64>,
    pub name: UsageName,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct UsageName {
    pub value: Option<String>,
}

/// A role with its permissions.
#[derive(Clone, Debug)]
pub(super) struct Role {
    pub name: String,
    pub permissions: Vec<Permission>,
}

/// Allowed actions, less the excluded ones.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Permission {
    pub actions: Vec<String>,
    pub not_actions: Vec<String>,
    pub data_actions: Vec<String>,
    pub not_data_actions: Vec<String>,
}
