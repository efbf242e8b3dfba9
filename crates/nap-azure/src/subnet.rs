//! Validation of the subnet of a node class, and its free addresses.

use std::collections::BTreeMap;

use nap_api::aksnodeclass::AKSNodeClassSpec;
use nap_cloud::{CloudError, ErrorClass, NodeClassFinding};
use serde_json::Value;

use crate::arm::ArmClient;
use crate::{AzureConfig, NetworkPlugin};

/// The parts of a subnet's ARM id.
#[derive(Debug, PartialEq, Eq)]
struct SubnetId<'a> {
    subscription: &'a str,
    group: &'a str,
    network: &'a str,
    subnet: &'a str,
}

impl<'a> SubnetId<'a> {
    fn parse(id: &'a str) -> Option<Self> {
        let parts: Vec<&str> = id.split('/').collect();
        let [empty, names @ ..] = parts.as_slice() else { return None };
        let expected = [
            "subscriptions",
            "resourceGroups",
            "providers",
            "Microsoft.Network",
            "virtualNetworks",
            "subnets",
        ];
        let [word1, subscription, word2, group, word3, word4, word5, network, word6, subnet] =
            names
        else {
            return None;
        };
        let words = [word1, word2, word3, word4, word5, word6];
        let shape =
            words.iter().zip(expected).all(|(word, expected)| word.eq_ignore_ascii_case(expected));
        let filled = [subscription, group, network, subnet].iter().all(|part| !part.is_empty());
        (shape && filled && empty.is_empty()).then_some(Self {
            subscription,
            group,
            network,
            subnet,
        })
    }

    /// Whether both subnets are in one virtual network. ARM ids ignore case.
    fn shares_network(&self, other: &Self) -> bool {
        self.subscription.eq_ignore_ascii_case(other.subscription)
            && self.group.eq_ignore_ascii_case(other.group)
            && self.network.eq_ignore_ascii_case(other.network)
    }

    /// Whether AKS manages the virtual network, in which other subnets are not allowed.
    fn is_managed(&self, node_resource_group: &str) -> bool {
        let digits = self.network.strip_prefix("aks-vnet-").unwrap_or_default();
        self.group.eq_ignore_ascii_case(node_resource_group)
            && digits.len() == 8
            && digits.bytes().all(|byte| byte.is_ascii_digit())
            && self.subnet != "aks-subnet"
    }
}

/// Number of free addresses below which people are told.
const FEW_ADDRESSES: u64 = 100;
/// Addresses of every subnet that Azure reserves.
const RESERVED_ADDRESSES: u64 = 5;

/// The finding about the subnet of a node class; `None` if it can be used and has room.
pub(crate) async fn inspect(
    arm: &ArmClient,
    config: &AzureConfig,
    spec: &AKSNodeClassSpec,
) -> Result<Option<NodeClassFinding>, CloudError> {
    let violated = |reason: &str, message| Ok(Some(NodeClassFinding::violated(reason, message)));
    let id = spec.vnet_subnet_id.as_deref().or(config.vnet_subnet_id.as_deref());
    let Some(id) = id else { return Ok(None) };
    let Some(subnet) = SubnetId::parse(id) else {
        return violated("SubnetIDInvalid", format!("`{id}` is not the id of a subnet"));
    };
    if subnet.is_managed(&config.node_resource_group) {
        return violated("SubnetIDInvalid", format!("`{id}` is in the network that AKS manages"));
    }
    if let Some(cluster) = config.vnet_subnet_id.as_deref().and_then(SubnetId::parse)
        && !subnet.shares_network(&cluster)
    {
        return violated(
            "SubnetIDInvalid",
            format!("`{id}` is not in the cluster's virtual network"),
        );
    }
    let operation = format!("get subnet {}", subnet.subnet);
    match arm.get(&operation, &format!("{id}?api-version=2022-01-01")).await {
        Ok(body) => Ok(room(&body, subnet.subnet, addresses_per_node(config, spec))),
        Err(error) if error.class == ErrorClass::NotFound => {
            violated("SubnetNotFound", format!("subnet `{id}` does not exist"))
        }
        Err(error) if error.class == ErrorClass::Auth => {
            violated("SubnetUnknownError", error.condition_message())
        }
        Err(error) => Err(error),
    }
}

/// Addresses that a node takes from its subnet: one, or one for each pod if pods live there too.
fn addresses_per_node(config: &AzureConfig, spec: &AKSNodeClassSpec) -> u64 {
    let plugin = config.network_plugin;
    let pods = spec.max_pods.map_or(plugin.default_max_pods(), i64::from);
    match plugin {
        NetworkPlugin::AzureOverlay | NetworkPlugin::None => 1,
        NetworkPlugin::AzureNodeSubnet => u64::try_from(pods).unwrap_or(1),
    }
}

/// The finding about the free addresses of a subnet; `None` if there are many, or if Azure does not
/// tell.
fn room(subnet: &Value, name: &str, needed: u64) -> Option<NodeClassFinding> {
    let free = free_addresses(subnet)?;
    if free < needed {
        let message = format!(
            "subnet `{name}` has {free} free addresses, and a node takes {needed}; enlarge it or \
             name another in vnetSubnetID"
        );
        return Some(NodeClassFinding::violated("SubnetFull", message));
    }
    let message = format!("subnet `{name}` has {free} free addresses");
    (free < FEW_ADDRESSES.max(needed * 2)).then_some(NodeClassFinding::Holds { message })
}

/// IPv4 addresses of a subnet that no network interface has; `None` without a prefix.
fn free_addresses(subnet: &Value) -> Option<u64> {
    let properties = subnet.get("properties")?;
    let list = properties.get("addressPrefixes").and_then(Value::as_array);
    let prefixes = list.into_iter().flatten().chain(properties.get("addressPrefix"));
    let sizes: BTreeMap<&str, u64> = prefixes
        .filter_map(Value::as_str)
        .filter(|prefix| !prefix.contains(':'))
        .filter_map(|prefix| {
            let bits: u32 = prefix.rsplit_once('/')?.1.parse().ok()?;
            Some((prefix, 1 << 32_u32.checked_sub(bits)?))
        })
        .collect();
    let usable = sizes.values().map(|size: &u64| size.saturating_sub(RESERVED_ADDRESSES));
    let used = properties.get("ipConfigurations").and_then(Value::as_array).map_or(0, Vec::len);
    let used = u64::try_from(used).unwrap_or(u64::MAX);
    (!sizes.is_empty()).then(|| usable.sum::<u64>().saturating_sub(used))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn subnet(prefix: &str, used: usize) -> Value {
        let taken: Vec<Value> = (0..used).map(|number| json!({ "id": number })).collect();
        json!({ "properties": { "addressPrefix": prefix, "ipConfigurations": taken } })
    }

    #[test]
    fn addresses_of_all_prefixes_are_counted_once() {
        assert_eq!(free_addresses(&subnet("10.0.0.0/24", 0)), Some(251));
        assert_eq!(free_addresses(&subnet("10.0.0.0/28", 20)), Some(0));
        let both = json!({ "properties": {
            "addressPrefix": "10.0.0.0/28", "addressPrefixes": ["10.0.0.0/28", "fd00::/64"],
        } });
        assert_eq!(free_addresses(&both), Some(11));
        assert_eq!(free_addresses(&json!({ "properties": {} })), None);
        assert_eq!(free_addresses(&subnet("10.0.0.0/99", 0)), None);
    }

    #[test]
    fn a_subnet_without_room_for_a_node_is_full() {
        let found = |used, needed| room(&subnet("10.0.0.0/24", used), "nodes", needed);
        assert_eq!(found(0, 1), None);
        let few = Some(NodeClassFinding::Holds {
            message: "subnet `nodes` has 51 free addresses".to_owned(),
        });
        assert_eq!(found(200, 1), few);
        let full = "subnet `nodes` has 0 free addresses, and a node takes 1; enlarge it or name \
                    another in vnetSubnetID";
        assert_eq!(found(251, 1), Some(NodeClassFinding::violated("SubnetFull", full)));
        assert!(matches!(found(230, 30), Some(NodeClassFinding::Violated { .. })), "pods count");
    }
}
