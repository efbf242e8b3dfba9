//! Rows about the managed cluster and its agent pools.

#![expect(clippy::unnecessary_wraps, reason = "every check has the same type")]

use nap_api::disruption::MaintenanceSchedule;

use super::facts::{AgentPool, Facts, Unknown, known};
use super::versions::Version;
use super::{Check, Document, Finding, NODE_AUTOPROVISIONING, OVERVIEW, RUNNING, join};
use crate::config::is_pool_name;
use crate::{NetworkPlugin, canonical_region};

const LIMITATIONS: Document = Document(OVERVIEW, "Limitations and unsupported features");
const UPGRADES: Document =
    Document(OVERVIEW, "Kubernetes upgrade behavior for node auto-provisioning nodes");

/// Oldest Kubernetes version with node auto-provisioning.
const MIN_KUBERNETES: &str = "1.26";
/// Maintenance configuration for upgrades of Kubernetes.
const UPGRADE_SCHEDULE: MaintenanceSchedule = MaintenanceSchedule::AutoUpgrade;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "cluster-running",
        title: "The cluster runs; it must not be stopped",
        document: LIMITATIONS,
        run: running,
    },
    Check {
        id: "kubernetes-version",
        title: "Kubernetes 1.26 or later",
        document: Document(
            "Supported Kubernetes versions in Azure Kubernetes Service (AKS)",
            "Kubernetes version support policy",
        ),
        run: kubernetes_version,
    },
    Check {
        id: "settings",
        title: "The environment of `nap run` agrees with the cluster",
        document: Document(RUNNING, "Environment"),
        run: settings,
    },
    Check {
        id: "managed-provisioning",
        title: "AKS does not run node auto-provisioning itself",
        document: Document(
            "Enable or disable node auto-provisioning (NAP) in Azure Kubernetes Service (AKS)",
            "Disable node auto-provisioning (NAP) on an AKS cluster",
        ),
        run: managed_provisioning,
    },
    Check {
        id: "agent-pool",
        title: "An agent pool in Machines mode",
        document: Document("az aks machine", "Commands"),
        run: agent_pool,
    },
    Check {
        id: "managed-identity",
        title: "A managed identity, not a service principal",
        document: LIMITATIONS,
        run: managed_identity,
    },
    Check {
        id: "cluster-autoscaler",
        title: "No node pool with the cluster autoscaler",
        document: LIMITATIONS,
        run: cluster_autoscaler,
    },
    Check {
        id: "windows-pools",
        title: "No Windows node pools",
        document: LIMITATIONS,
        run: windows_pools,
    },
    Check {
        id: "disk-encryption-set",
        title: "No disk encryption set",
        document: LIMITATIONS,
        run: disk_encryption_set,
    },
    Check {
        id: "custom-ca",
        title: "No custom CA certificates",
        document: LIMITATIONS,
        run: custom_ca,
    },
    Check { id: "http-proxy", title: "No HTTP proxy", document: LIMITATIONS, run: http_proxy },
    Check {
        id: "kubelet-config",
        title: "No custom kubelet configuration of node pools",
        document: Document(NODE_AUTOPROVISIONING, "Unsupported features"),
        run: kubelet_config,
    },
    Check {
        id: "auto-upgrade-channel",
        title: "An auto-upgrade channel (recommended)",
        document: UPGRADES,
        run: auto_upgrade_channel,
    },
    Check {
        id: "maintenance-window",
        title: "A maintenance window for upgrades (recommended)",
        document: UPGRADES,
        run: maintenance_window,
    },
];

fn running(facts: &Facts) -> Result<Finding, Unknown> {
    let properties = &facts.cluster.properties;
    if properties.power_state.code.eq_ignore_ascii_case("Stopped") {
        let fix = facts.az_aks("start", "");
        return Ok(Finding::fail("the cluster is stopped", fix.trim_end()));
    }
    let state = &properties.provisioning_state;
    if state.eq_ignore_ascii_case("Failed") || state.eq_ignore_ascii_case("Canceled") {
        let fix = facts.az_aks("update", "");
        return Ok(Finding::fail(
            format!("the last operation on the cluster ended as {state}"),
            format!("repair the cluster, for example with `{}`", fix.trim_end()),
        ));
    }
    let power = &properties.power_state.code;
    let power = if power.is_empty() { "no power state" } else { power };
    Ok(Finding::pass(format!("{power}, {state}")))
}

fn kubernetes_version(facts: &Facts) -> Result<Finding, Unknown> {
    let properties = &facts.cluster.properties;
    let text =
        properties.current_kubernetes_version.as_ref().unwrap_or(&properties.kubernetes_version);
    let found = Version::parse(text)
        .ok_or_else(|| Unknown(format!("the cluster states the version as `{text}`")))?;
    if Version::parse(MIN_KUBERNETES).is_some_and(|oldest| found < oldest) {
        let fix = facts.az_aks("upgrade", "--kubernetes-version VERSION");
        return Ok(Finding::fail(text.clone(), fix));
    }
    Ok(Finding::pass(text.clone()))
}

/// Settings that contradict the cluster, and those that are missing.
fn settings(facts: &Facts) -> Result<Finding, Unknown> {
    let (config, properties) = (&facts.config, &facts.cluster.properties);
    let mut wrong = Vec::new();
    let mut right = Vec::new();
    let region = canonical_region(&facts.cluster.location);
    if !region.is_empty() && config.location != region {
        wrong.push(format!("LOCATION is `{}`", config.location));
        right.push(format!("LOCATION={region}"));
    }
    let group = &properties.node_resource_group;
    if !group.is_empty() && !config.node_resource_group.eq_ignore_ascii_case(group) {
        wrong.push(format!("AZURE_NODE_RESOURCE_GROUP is `{}`", config.node_resource_group));
        right.push(format!("AZURE_NODE_RESOURCE_GROUP={group}"));
    }
    let network = facts.network();
    let plugin = match network.network_plugin.to_lowercase().as_str() {
        "none" => Some(NetworkPlugin::None),
        "azure" if network.is_overlay() => Some(NetworkPlugin::AzureOverlay),
        "azure" => Some(NetworkPlugin::AzureNodeSubnet),
        // Not supported at all, which is another row.
        _ => None,
    };
    if plugin.is_some_and(|plugin| plugin != config.network_plugin) {
        let mode = network.network_plugin_mode.as_deref().unwrap_or("none");
        wrong
            .push("NETWORK_PLUGIN and NETWORK_PLUGIN_MODE are those of another network".to_owned());
        right.push(format!("NETWORK_PLUGIN={}", network.network_plugin));
        right.push(format!("NETWORK_PLUGIN_MODE={mode}"));
    }
    let pools = known(&facts.pools)?;
    let subnets: Vec<&str> = pools
        .iter()
        .filter_map(|pool| pool.properties.vnet_subnet_id.as_deref())
        .filter(|id| !facts.is_managed(id))
        .collect();
    let own = config.vnet_subnet_id.as_ref().filter(|id| !facts.is_managed(id));
    match (own, subnets.first()) {
        (Some(own), Some(first)) if network_of(own) != network_of(first) => {
            wrong.push("VNET_SUBNET_ID is in another virtual network".to_owned());
            right.push(format!("VNET_SUBNET_ID={first}"));
        }
        (Some(_), None) => {
            wrong.push("VNET_SUBNET_ID is set, and AKS manages the network".to_owned());
            right.push("VNET_SUBNET_ID=".to_owned());
        }
        _ => {}
    }
    if !wrong.is_empty() {
        return Ok(Finding::fail(join(&wrong), format!("set {}", right.join(" "))));
    }
    let mut missing: Vec<String> = Vec::new();
    for name in &facts.unset {
        missing.push(match *name {
            "LOCATION" => format!("LOCATION={region}"),
            "AZURE_NODE_RESOURCE_GROUP" => format!("AZURE_NODE_RESOURCE_GROUP={group}"),
            other => format!("{other}=…"),
        });
    }
    if let (None, Some(first)) = (own, subnets.first()) {
        missing.push(format!("VNET_SUBNET_ID={first}"));
    }
    if missing.is_empty() {
        return Ok(Finding::pass("they agree"));
    }
    let names: Vec<&str> = missing.iter().filter_map(|pair| pair.split('=').next()).collect();
    let found = format!("`nap run` needs variables that are unset: {}", names.join(", "));
    Ok(Finding::warn(found, format!("set {}", missing.join(" "))))
}

/// The virtual network of a subnet id, in lower case.
fn network_of(subnet: &str) -> String {
    let lower = subnet.to_lowercase();
    lower.split("/subnets/").next().unwrap_or_default().to_owned()
}

fn managed_provisioning(facts: &Facts) -> Result<Finding, Unknown> {
    let mode = facts.cluster.properties.node_provisioning_profile.mode.as_deref();
    let mode = mode.unwrap_or("Manual");
    if mode.eq_ignore_ascii_case("Auto") {
        let off = facts.az_aks("update", "--node-provisioning-mode Manual");
        return Ok(Finding::fail(
            "`nodeProvisioningProfile.mode` is `Auto`: two controllers would act on the same \
             NodeClaims",
            format!(
                "disable it with `{off}`, for which it may have no nodes left, or let nap take its \
                 nodes over with `nap run --take-over`"
            ),
        ));
    }
    Ok(Finding::pass(format!("`nodeProvisioningProfile.mode` is `{mode}`")))
}

fn agent_pool(facts: &Facts) -> Result<Finding, Unknown> {
    let name = &facts.config.agent_pool;
    if !is_pool_name(name) {
        return Ok(Finding::fail(
            format!("`{name}` cannot be the name of an agent pool"),
            "set AKS_MACHINES_POOL_NAME to at most 12 lower-case letters and digits, a letter first",
        ));
    }
    let found = known(&facts.pools)?.iter().find(|pool| pool.name.eq_ignore_ascii_case(name));
    let Some(pool) = found else {
        return Ok(Finding::fail(
            format!("there is no agent pool `{name}`"),
            "create it with `nap azure check --create-pool`, or name another with \
             AKS_MACHINES_POOL_NAME",
        ));
    };
    let mode = &pool.properties.mode;
    if !mode.eq_ignore_ascii_case("Machines") {
        return Ok(Finding::fail(
            format!("agent pool `{name}` has the mode `{mode}`"),
            "set AKS_MACHINES_POOL_NAME to another name, and create that pool with `nap azure \
             check --create-pool`",
        ));
    }
    let state = pool.properties.provisioning_state.as_deref().unwrap_or("Succeeded");
    if state.eq_ignore_ascii_case("Failed") || state.eq_ignore_ascii_case("Deleting") {
        let delete = facts.az_nodepool("delete", name, "");
        return Ok(Finding::fail(
            format!("agent pool `{name}` is {state}"),
            format!("`{delete}`, then `nap azure check --create-pool`"),
        ));
    }
    Ok(Finding::pass(format!("`{name}`")))
}

fn managed_identity(facts: &Facts) -> Result<Finding, Unknown> {
    let kind = &facts.cluster.identity.kind;
    let client = facts.cluster.properties.service_principal_profile.client_id.as_deref();
    let is_principal = client.is_some_and(|id| !id.eq_ignore_ascii_case("msi"));
    let is_managed = kind.contains("SystemAssigned") || kind.contains("UserAssigned");
    if is_principal || !is_managed {
        let fix = facts.az_aks("update", "--enable-managed-identity");
        return Ok(Finding::fail("the cluster uses a service principal", fix));
    }
    Ok(Finding::pass(kind.clone()))
}

/// Names of the pools that have a property.
fn pools_with(facts: &Facts, has: impl Fn(&AgentPool) -> bool) -> Result<Vec<String>, Unknown> {
    let pools = known(&facts.pools)?.iter();
    Ok(pools.filter(|pool| has(pool)).map(|pool| pool.name.clone()).collect())
}

fn cluster_autoscaler(facts: &Facts) -> Result<Finding, Unknown> {
    let pools = pools_with(facts, |pool| pool.properties.enable_auto_scaling)?;
    let Some(first) = pools.first() else { return Ok(Finding::pass("none")) };
    let fix = facts.az_nodepool("update", first, "--disable-cluster-autoscaler");
    Ok(Finding::fail(format!("enabled for {}", join(&pools)), format!("for each: `{fix}`")))
}

fn windows_pools(facts: &Facts) -> Result<Finding, Unknown> {
    let windows = |pool: &AgentPool| {
        pool.properties.os_type.as_deref().is_some_and(|os| os.eq_ignore_ascii_case("Windows"))
    };
    let pools = pools_with(facts, windows)?;
    let Some(first) = pools.first() else { return Ok(Finding::pass("none")) };
    let fix = facts.az_nodepool("delete", first, "");
    Ok(Finding::fail(join(&pools), format!("move their workloads, then for each: `{fix}`")))
}

fn disk_encryption_set(facts: &Facts) -> Result<Finding, Unknown> {
    match facts.cluster.properties.disk_encryption_set_id.as_deref() {
        None | Some("") => Ok(Finding::pass("none")),
        Some(id) => Ok(Finding::fail(
            format!("the cluster has `{}`", super::facts::last_segment(id)),
            "create a cluster without `--node-osdisk-diskencryptionset-id`: it cannot be removed",
        )),
    }
}

fn custom_ca(facts: &Facts) -> Result<Finding, Unknown> {
    let certificates = facts.cluster.properties.security_profile.custom_ca_trust_certificates.len();
    if certificates > 0 {
        return Ok(Finding::fail(
            format!("the cluster has {certificates}"),
            "remove them from `securityProfile.customCATrustCertificates`, or create a cluster \
             without `--custom-ca-trust-certificates`",
        ));
    }
    let pools = pools_with(facts, |pool| pool.properties.enable_custom_ca_trust)?;
    let Some(first) = pools.first() else { return Ok(Finding::pass("none")) };
    let fix = facts.az_nodepool("update", first, "--disable-custom-ca-trust");
    Ok(Finding::fail(format!("trusted by {}", join(&pools)), format!("for each: `{fix}`")))
}

fn http_proxy(facts: &Facts) -> Result<Finding, Unknown> {
    let proxy = &facts.cluster.properties.http_proxy_config;
    let is_set = [&proxy.http_proxy, &proxy.https_proxy]
        .into_iter()
        .any(|url| url.as_deref().is_some_and(|url| !url.is_empty()));
    if !is_set || proxy.enabled == Some(false) {
        return Ok(Finding::pass("none"));
    }
    let fix = facts.az_aks("update", "--disable-http-proxy");
    // The URL may hold a password.
    Ok(Finding::fail("the cluster has one", fix))
}

fn kubelet_config(facts: &Facts) -> Result<Finding, Unknown> {
    let pools = pools_with(facts, |pool| pool.properties.kubelet_config.is_some())?;
    if pools.is_empty() {
        return Ok(Finding::pass("none"));
    }
    Ok(Finding::warn(
        format!("set for {}: it does not apply to the nodes of nap", join(&pools)),
        "keep pods that rely on it on these pools; `spec.kubelet` of an AKSNodeClass is for the \
         nodes of nap",
    ))
}

fn auto_upgrade_channel(facts: &Facts) -> Result<Finding, Unknown> {
    match facts.cluster.properties.auto_upgrade_profile.upgrade_channel.as_deref() {
        None | Some("" | "none") => {
            let fix = facts.az_aks("update", "--auto-upgrade-channel stable");
            Ok(Finding::warn("none: nodes follow the control plane, which you upgrade", fix))
        }
        Some(channel) => Ok(Finding::pass(channel)),
    }
}

fn maintenance_window(facts: &Facts) -> Result<Finding, Unknown> {
    let names = known(&facts.maintenance)?;
    if names.iter().any(|name| name.eq_ignore_ascii_case(UPGRADE_SCHEDULE.as_str())) {
        return Ok(Finding::pass(UPGRADE_SCHEDULE.as_str()));
    }
    let (group, cluster) = (&facts.config.resource_group, &facts.config.cluster_name);
    Ok(Finding::warn(
        format!("no `{UPGRADE_SCHEDULE}`: upgrades may begin at any time"),
        format!(
            "az aks maintenanceconfiguration add --resource-group {group} --cluster-name {cluster} \
             --name {UPGRADE_SCHEDULE} --schedule-type Weekly --day-of-week Saturday \
             --interval-weeks 1 --start-time 01:00 --duration 4"
        ),
    ))
}
