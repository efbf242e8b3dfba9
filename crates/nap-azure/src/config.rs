//! Settings of the provider, from the environment variables of the incumbent.

use std::collections::BTreeMap;

use nap_engine::PriceEstimates;

use crate::AzureError;
use crate::clouds::{AzureCloud, Entra, url};

/// Network plugin of the cluster, which determines the default number of pods per node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkPlugin {
    /// Azure CNI with an overlay network.
    AzureOverlay,
    /// Azure CNI with pods in the node subnet.
    AzureNodeSubnet,
    /// None: the cluster brings its own.
    None,
}

impl NetworkPlugin {
    /// Pods per node if the node class states no number.
    pub fn default_max_pods(self) -> i64 {
        match self {
            Self::AzureOverlay | Self::None => 250,
            Self::AzureNodeSubnet => 30,
        }
    }
}

/// Most tags of a resource.
const MAX_TAGS: usize = 50;
/// Tags of a machine that name the cluster, the NodePool, the NodeClaim and the billing of AKS.
const OWN_TAGS: usize = 4;
/// Longest name of a tag, in characters.
const MAX_TAG_NAME: usize = 512;
/// Longest value of a tag, in characters.
const MAX_TAG: usize = 256;

/// Identity of the cluster and settings of its machines.
#[derive(Clone, Debug, PartialEq)]
pub struct AzureConfig {
    /// Subscription of the cluster.
    pub subscription_id: String,
    /// Resource group of the cluster.
    pub resource_group: String,
    /// Resource group of the VMs.
    pub node_resource_group: String,
    /// Name of the managed cluster.
    pub cluster_name: String,
    /// Region in its short spelling, such as `eastus`.
    pub location: String,
    /// Machines-mode agent pool of all machines.
    pub agent_pool: String,
    /// URL of ARM.
    pub arm_endpoint: String,
    /// Issuer of tokens for ARM.
    pub entra: Entra,
    /// URL of the retail price API.
    pub prices_endpoint: String,
    /// Kubernetes version of new machines without `v`; `None` follows the control plane.
    pub kubernetes_version: Option<String>,
    /// Network plugin.
    pub network_plugin: NetworkPlugin,
    /// Subnet of the cluster; `None` if AKS manages it.
    pub vnet_subnet_id: Option<String>,
    /// Subscription of the shared image galleries.
    pub gallery_subscription_id: String,
    /// Share of the nominal memory that the hypervisor and the kernel use, from 0 to 1. The
    /// variable is called `VM_MEMORY_OVERHEAD_PERCENT` and holds a ratio too, as the incumbent's
    /// does.
    pub vm_memory_overhead_ratio: f64,
    /// Azure tags of every machine. Tags of the node class win.
    pub additional_tags: BTreeMap<String, String>,
    /// Estimates among the prices that the price API serves. Azure serves none; an emulated region
    /// has no other spot prices.
    pub served_estimates: PriceEstimates,
}

/// Agent pool that AKS uses for node auto-provisioning.
pub const DEFAULT_AGENT_POOL: &str = "aksmanagedap";
/// URL of the public retail price API.
pub const DEFAULT_PRICES_ENDPOINT: &str = "https://prices.azure.com";

impl AzureConfig {
    /// Creates settings with defaults for a cluster in the public cloud.
    pub fn new(
        subscription_id: impl Into<String>,
        resource_group: impl Into<String>,
        cluster_name: impl Into<String>,
        location: impl Into<String>,
    ) -> Self {
        let (subscription_id, resource_group) = (subscription_id.into(), resource_group.into());
        let (cluster_name, location) = (cluster_name.into(), canonical_region(&location.into()));
        let AzureCloud { arm_endpoint, entra } = AzureCloud::default();
        Self {
            node_resource_group: format!("MC_{resource_group}_{cluster_name}_{location}"),
            gallery_subscription_id: subscription_id.clone(),
            subscription_id,
            resource_group,
            cluster_name,
            location,
            agent_pool: DEFAULT_AGENT_POOL.to_owned(),
            arm_endpoint,
            entra,
            prices_endpoint: DEFAULT_PRICES_ENDPOINT.to_owned(),
            kubernetes_version: None,
            network_plugin: NetworkPlugin::AzureOverlay,
            vnet_subnet_id: None,
            vm_memory_overhead_ratio: 0.075,
            additional_tags: BTreeMap::new(),
            served_estimates: PriceEstimates::None,
        }
    }

    /// Reads the environment of the process.
    pub fn from_env() -> Result<Self, AzureError> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    /// Reads variables from any source. An empty variable counts as unset.
    pub fn from_variables(read: impl Fn(&str) -> Option<String>) -> Result<Self, AzureError> {
        let get =
            |name: &str| read(name).map(|value| value.trim().to_owned()).filter(|v| !v.is_empty());
        let need = |name: &'static str, hint: &'static str| {
            get(name).ok_or(AzureError::MissingVariable { name, hint })
        };
        let subscription_id = match get("AZURE_SUBSCRIPTION_ID") {
            Some(value) => value,
            None => need("ARM_SUBSCRIPTION_ID", "the id of the cluster's subscription")?,
        };
        let mut config = Self::new(
            subscription_id,
            need("ARM_RESOURCE_GROUP", "the resource group that holds the managed cluster")?,
            need("CLUSTER_NAME", "the name of the managed cluster")?,
            need("LOCATION", "the cluster's region, such as `eastus`")?,
        );
        config.node_resource_group =
            need("AZURE_NODE_RESOURCE_GROUP", "the resource group that holds the cluster's VMs")?;
        if let Some(value) = get("AKS_MACHINES_POOL_NAME") {
            config.agent_pool = value;
        }
        if let Some(value) = get("SIG_SUBSCRIPTION_ID") {
            config.gallery_subscription_id = value;
        }
        config.kubernetes_version =
            get("KUBERNETES_VERSION").map(|version| version.trim_start_matches('v').to_owned());
        config.vnet_subnet_id = get("VNET_SUBNET_ID");
        let AzureCloud { arm_endpoint, entra } = AzureCloud::from_variables(&read)?;
        (config.arm_endpoint, config.entra) = (arm_endpoint, entra);
        if let Some(value) = get("NAP_PRICES_ENDPOINT") {
            config.prices_endpoint = url("NAP_PRICES_ENDPOINT", value)?;
        }
        // An empty mode is a value of its own: no overlay.
        let mode = read("NETWORK_PLUGIN_MODE").map(|value| value.trim().to_owned());
        config.network_plugin = match (get("NETWORK_PLUGIN").as_deref(), mode.as_deref()) {
            (None | Some("azure"), None | Some("overlay")) => NetworkPlugin::AzureOverlay,
            (None | Some("azure"), Some("" | "none")) => NetworkPlugin::AzureNodeSubnet,
            (Some("none"), None | Some("" | "none")) => NetworkPlugin::None,
            (plugin, mode) => {
                return Err(AzureError::InvalidVariable {
                    name: "NETWORK_PLUGIN",
                    value: format!("{} {}", plugin.unwrap_or("azure"), mode.unwrap_or_default()),
                    why: "is not `azure` (mode `overlay` or `none`) or `none`".to_owned(),
                });
            }
        };
        if let Some(value) = get("VM_MEMORY_OVERHEAD_PERCENT") {
            config.vm_memory_overhead_ratio =
                value.parse().ok().filter(|share: &f64| (0.0..1.0).contains(share)).ok_or_else(
                    || AzureError::InvalidVariable {
                        name: "VM_MEMORY_OVERHEAD_PERCENT",
                        value: value.clone(),
                        why: "is not a number from 0 to 1".to_owned(),
                    },
                )?;
        }
        if let Some(value) = get("ADDITIONAL_TAGS") {
            for pair in value.split(',').filter(|pair| !pair.trim().is_empty()) {
                let Some((key, tag)) = pair.split_once('=') else {
                    let why = "is not a list of `key=value`".to_owned();
                    return Err(AzureError::InvalidVariable {
                        name: "ADDITIONAL_TAGS",
                        value,
                        why,
                    });
                };
                config.additional_tags.insert(key.trim().to_owned(), tag.trim().to_owned());
            }
            if let Some(why) = wrong_tag(&config.additional_tags) {
                return Err(AzureError::InvalidVariable { name: "ADDITIONAL_TAGS", value, why });
            }
        }
        Ok(config)
    }

    /// Fails if Azure would refuse every machine because of a setting. `nap azure check` reports
    /// the same as a finding.
    pub fn check(&self) -> Result<(), AzureError> {
        if is_pool_name(&self.agent_pool) {
            return Ok(());
        }
        Err(AzureError::InvalidVariable {
            name: "AKS_MACHINES_POOL_NAME",
            value: self.agent_pool.clone(),
            why: "is not at most 12 lower-case letters and digits, a letter first".to_owned(),
        })
    }

    /// ARM path of the cluster.
    pub fn cluster_path(&self) -> String {
        format!(
            "/subscriptions/{}/resourceGroups/{}/providers/Microsoft.ContainerService/managedClusters/{}",
            self.subscription_id, self.resource_group, self.cluster_name
        )
    }

    /// ARM path of the agent pool.
    pub fn agent_pool_path(&self) -> String {
        format!("{}/agentPools/{}", self.cluster_path(), self.agent_pool)
    }
}

/// Whether AKS accepts a name for a Linux agent pool.
pub(crate) fn is_pool_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_lowercase())
        && bytes.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        && name.len() <= 12
}

/// Why Azure refuses tags, as the rest of a sentence about them; `None` if it takes them. A slash
/// is allowed: it becomes an underscore.
fn wrong_tag(tags: &BTreeMap<String, String>) -> Option<String> {
    if tags.len() > MAX_TAGS - OWN_TAGS {
        let (count, own) = (tags.len(), OWN_TAGS);
        return Some(format!("has {count} tags; Azure takes {MAX_TAGS}, and {own} are nap's own"));
    }
    tags.iter().find_map(|(name, tag)| {
        let odd = name.chars().find(|one| "<>%&\\?".contains(*one));
        if name.is_empty() || name.chars().count() > MAX_TAG_NAME {
            Some(format!("has a tag name that is empty or longer than {MAX_TAG_NAME} characters"))
        } else if let Some(odd) = odd {
            Some(format!("has `{odd}` in the name of tag `{name}`"))
        } else if tag.chars().count() > MAX_TAG {
            Some(format!("has more than {MAX_TAG} characters in tag `{name}`"))
        } else {
            None
        }
    })
}

/// Short spelling of a region: `West Europe` becomes `westeurope`.
pub fn canonical_region(name: &str) -> String {
    name.chars().filter(|character| !character.is_whitespace()).collect::<String>().to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<AzureConfig, AzureError> {
        let map: BTreeMap<String, String> =
            pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        AzureConfig::from_variables(|name| map.get(name).cloned())
    }

    const WHOLE: [(&str, &str); 5] = [
        ("ARM_SUBSCRIPTION_ID", "s"),
        ("ARM_RESOURCE_GROUP", "rg"),
        ("AZURE_NODE_RESOURCE_GROUP", "mc"),
        ("CLUSTER_NAME", "c"),
        ("LOCATION", "West Europe"),
    ];

    #[test]
    fn every_missing_variable_is_named() {
        for (index, (name, _)) in WHOLE.iter().enumerate() {
            let mut pairs = WHOLE.to_vec();
            pairs.remove(index);
            let error = read(&pairs).unwrap_err().to_string();
            assert!(error.contains(&format!("`{name}` is not set")), "{error}");
        }
    }

    #[test]
    fn tags_that_azure_refuses_are_refused_with_the_reason() {
        let many: Vec<String> = (0..47).map(|number| format!("t{number}=x")).collect();
        let long = |name: usize, tag: usize| format!("{}={}", "n".repeat(name), "v".repeat(tag));
        for (tags, why) in [
            (many.join(","), "has 47 tags; Azure takes 50, and 4 are nap's own"),
            ("team=a,a%b=c".to_owned(), "has `%` in the name of tag `a%b`"),
            ("a\\b=c".to_owned(), "has `\\` in the name"),
            (long(513, 1), "longer than 512"),
            ("=c".to_owned(), "empty"),
            (long(1, 257), "has more than 256 characters in tag `n`"),
        ] {
            let mut pairs = WHOLE.to_vec();
            pairs.push(("ADDITIONAL_TAGS", &tags));
            let error = read(&pairs).unwrap_err().to_string();
            assert!(error.contains("`ADDITIONAL_TAGS`") && error.contains(why), "{error}");
        }
        for tags in [many[1..].join(","), "example.com/team=a<b".to_owned(), long(512, 256)] {
            let mut pairs = WHOLE.to_vec();
            pairs.push(("ADDITIONAL_TAGS", &tags));
            assert!(read(&pairs).is_ok(), "{tags}");
        }
    }

    #[test]
    fn a_name_that_no_agent_pool_can_have_is_refused() {
        for (name, is_fine) in [
            ("nap1", true),
            ("Nap", false),
            ("1nap", false),
            ("nap-1", false),
            ("abcdefghijklm", false),
        ] {
            let mut pairs = WHOLE.to_vec();
            pairs.push(("AKS_MACHINES_POOL_NAME", name));
            assert_eq!(read(&pairs).unwrap().check().is_ok(), is_fine, "{name}");
        }
    }

    #[test]
    fn a_complete_environment_is_parsed() {
        let mut pairs = WHOLE.to_vec();
        assert_eq!(read(&pairs).unwrap().kubernetes_version, None);
        pairs.push(("KUBERNETES_VERSION", "v1.34.1"));
        pairs
            .extend([("NAP_ARM_ENDPOINT", "http://127.0.0.1:9/"), ("ADDITIONAL_TAGS", "a=b, c=d")]);
        let config = read(&pairs).unwrap();
        assert_eq!(config.location, "westeurope");
        assert_eq!(config.kubernetes_version.as_deref(), Some("1.34.1"));
        assert_eq!(config.agent_pool, "aksmanagedap");
        assert_eq!(config.arm_endpoint, "http://127.0.0.1:9");
        assert_eq!(config.entra.token_audience, "http://127.0.0.1:9/");
        assert_eq!(config.additional_tags.get("c").map(String::as_str), Some("d"));
        assert_eq!(config.network_plugin, NetworkPlugin::AzureOverlay);
        pairs.push(("NETWORK_PLUGIN_MODE", ""));
        assert_eq!(read(&pairs).unwrap().network_plugin, NetworkPlugin::AzureNodeSubnet);
        pairs.push(("NETWORK_PLUGIN", "kubenet"));
        assert!(read(&pairs).unwrap_err().to_string().contains("NETWORK_PLUGIN"));
        let mut pairs = WHOLE.to_vec();
        pairs.push(("ARM_CLOUD", "azurechinacloud"));
        let config = read(&pairs).unwrap();
        assert_eq!(config.arm_endpoint, "https://management.chinacloudapi.cn");
        assert_eq!(config.entra.authority_host, "https://login.chinacloudapi.cn");
    }
}
