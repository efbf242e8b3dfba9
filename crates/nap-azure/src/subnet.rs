//! Validation of the subnet of a node class.

use nap_cloud::{CloudError, ErrorClass, NodeClassProblem};

use crate::AzureConfig;
use crate::arm::ArmClient;

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

/// The problem with the subnet of a node class; `None` if it can be used.
pub(crate) async fn inspect(
    arm: &ArmClient,
    config: &AzureConfig,
    id: Option<&str>,
) -> Result<Option<NodeClassProblem>, CloudError> {
    let problem = |reason: &str, message: String| {
        Ok(Some(NodeClassProblem { reason: reason.to_owned(), message }))
    };
    let Some(id) = id.or(config.vnet_subnet_id.as_deref()) else { return Ok(None) };
    let Some(subnet) = SubnetId::parse(id) else {
        return problem("SubnetIDInvalid", format!("`{id}` is not the id of a subnet"));
    };
    if subnet.is_managed(&config.node_resource_group) {
        return problem("SubnetIDInvalid", format!("`{id}` is in the network that AKS manages"));
    }
    if let Some(cluster) = config.vnet_subnet_id.as_deref().and_then(SubnetId::parse)
        && !subnet.shares_network(&cluster)
    {
        return problem(
            "SubnetIDInvalid",
            format!("`{id}` is not in the cluster's virtual network"),
        );
    }
    let operation = format!("get subnet {}", subnet.subnet);
    match arm.get(&operation, &format!("{id}?api-version=2022-01-01")).await {
        Ok(_) => Ok(None),
        Err(error) if error.class == ErrorClass::NotFound => {
            problem("SubnetNotFound", format!("subnet `{id}` does not exist"))
        }
        Err(error) if error.class == ErrorClass::Auth => {
            problem("SubnetUnknownError", error.to_string())
        }
        Err(error) => Err(error),
    }
}
