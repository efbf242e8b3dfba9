//! Rows about the network profile and the subnets.

#![expect(clippy::unnecessary_wraps, reason = "every check has the same type")]

use super::cidr::{Cidr, RESERVED_ADDRESSES};
use super::facts::{Facts, Subnet, Unknown, known, known_of, last_segment};
use super::{Check, Document, Finding, NETWORKING, NODE_AUTOPROVISIONING, OVERVIEW, join};

const LIMITATIONS: Document = Document(OVERVIEW, "Limitations and unsupported features");
const SUPPORTED: Document = Document(NETWORKING, "Supported networking configurations for NAP");
const API_SERVER: Document = Document(NODE_AUTOPROVISIONING, "Prerequisites");

/// Longest prefix of the subnet of the API server.
const MAX_API_SERVER_PREFIX: u32 = 28;
/// Addresses that AKS keeps of the subnet of the API server, at least.
const API_SERVER_ADDRESSES: u64 = 9;
/// Service that the subnet of the API server is delegated to.
const DELEGATION: &str = "Microsoft.ContainerService/managedClusters";
/// Nodes that a subnet should still have room for.
const COMFORTABLE_NODES: u64 = 10;
/// Said of rows about a network that AKS manages.
const MANAGED: &str = "AKS manages the network";
/// Said of rows about a subnet of the API server that does not exist.
const NO_INTEGRATION: &str = "the API server is not in a subnet of yours";

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "network-plugin",
        title: "Network plugin azure, or none with your own CNI",
        document: SUPPORTED,
        run: plugin,
    },
    Check {
        id: "network-plugin-mode",
        title: "Azure CNI Overlay or node subnet",
        document: SUPPORTED,
        run: plugin_mode,
    },
    Check {
        id: "pod-ip-allocation",
        title: "No pod subnets (dynamic IP allocation, static CIDR blocks)",
        document: Document(NODE_AUTOPROVISIONING, "Networking configuration"),
        run: pod_ip_allocation,
    },
    Check {
        id: "network-dataplane",
        title: "Data plane azure or cilium",
        document: SUPPORTED,
        run: dataplane,
    },
    Check {
        id: "network-policy",
        title: "Network policy cilium or none, not calico",
        document: Document(NODE_AUTOPROVISIONING, "Networking configuration"),
        run: policy,
    },
    Check { id: "ip-family", title: "IPv4 only", document: LIMITATIONS, run: ip_family },
    Check {
        id: "load-balancer",
        title: "Standard load balancer",
        document: LIMITATIONS,
        run: load_balancer,
    },
    Check {
        id: "outbound-type",
        title: "Outbound type with its resources; it cannot be changed later",
        document: LIMITATIONS,
        run: outbound_type,
    },
    Check {
        id: "node-subnet-addresses",
        title: "Free addresses in the subnets of nodes",
        document: Document(NETWORKING, "CIDR considerations for NAP custom subnet configurations"),
        run: node_addresses,
    },
    Check {
        id: "node-subnet-overlap",
        title: "Subnets of nodes apart from the ranges of pods and Services",
        document: Document(NETWORKING, "Common CIDR conflicts"),
        run: overlap,
    },
    Check {
        id: "api-server-subnet-size",
        title: "Subnet of the API server of at least /28",
        document: API_SERVER,
        run: api_server_size,
    },
    Check {
        id: "api-server-subnet-delegation",
        title: "Subnet of the API server delegated to AKS",
        document: API_SERVER,
        run: api_server_delegation,
    },
    Check {
        id: "api-server-subnet-dedicated",
        title: "Subnet of the API server without nodes",
        document: API_SERVER,
        run: api_server_dedicated,
    },
    Check {
        id: "api-server-subnet-addresses",
        title: "Addresses for the API server",
        document: Document(NODE_AUTOPROVISIONING, "Create a virtual network"),
        run: api_server_addresses,
    },
];

/// Fix of what can only be chosen when a cluster is created.
fn recreate(arguments: &str) -> String {
    format!("create a cluster with `az aks create {arguments}`: it cannot be changed here")
}

fn plugin(facts: &Facts) -> Result<Finding, Unknown> {
    let plugin = &facts.network().network_plugin;
    match plugin.to_lowercase().as_str() {
        "azure" | "none" => Ok(Finding::pass(plugin.clone())),
        "" => Err(Unknown("the cluster states no network plugin".to_owned())),
        "kubenet" => {
            let fix =
                facts.az_aks("update", "--network-plugin azure --network-plugin-mode overlay");
            Ok(Finding::fail("kubenet", fix))
        }
        other => Ok(Finding::fail(other, recreate("--network-plugin azure"))),
    }
}

fn plugin_mode(facts: &Facts) -> Result<Finding, Unknown> {
    let network = facts.network();
    let mode = network.network_plugin_mode.as_deref().unwrap_or_default();
    match (network.network_plugin.to_lowercase().as_str(), mode.to_lowercase().as_str()) {
        ("none", "" | "none") => Ok(Finding::not_applicable("you bring your own CNI")),
        ("azure", "overlay") => Ok(Finding::pass("overlay")),
        ("azure", "" | "none") => {
            Ok(Finding::pass("node subnet: each node takes an address for each of its pods"))
        }
        (plugin, _) => Ok(Finding::fail(
            format!("mode `{mode}` with plugin `{plugin}`"),
            recreate("--network-plugin azure --network-plugin-mode overlay"),
        )),
    }
}

fn pod_ip_allocation(facts: &Facts) -> Result<Finding, Unknown> {
    let pools = known(&facts.pools)?;
    let names: Vec<&str> = pools
        .iter()
        .filter(|pool| {
            let properties = &pool.properties;
            let mode = properties.pod_ip_allocation_mode.as_deref().unwrap_or_default();
            properties.pod_subnet_id.as_deref().is_some_and(|id| !id.is_empty())
                || mode.eq_ignore_ascii_case("StaticBlock")
        })
        .map(|pool| pool.name.as_str())
        .collect();
    if names.is_empty() {
        return Ok(Finding::pass("none"));
    }
    Ok(Finding::fail(
        format!("node pools {}", join(&names)),
        recreate("--network-plugin azure --network-plugin-mode overlay"),
    ))
}

fn dataplane(facts: &Facts) -> Result<Finding, Unknown> {
    let network = facts.network();
    let dataplane = network.network_dataplane.as_deref().unwrap_or_default();
    match dataplane.to_lowercase().as_str() {
        "" if network.network_plugin.eq_ignore_ascii_case("none") => {
            Ok(Finding::not_applicable("you bring your own CNI"))
        }
        "" => Ok(Finding::pass("azure, the default")),
        "azure" | "cilium" => Ok(Finding::pass(dataplane)),
        other => Ok(Finding::fail(other, facts.az_aks("update", "--network-dataplane cilium"))),
    }
}

fn policy(facts: &Facts) -> Result<Finding, Unknown> {
    let policy = facts.network().network_policy.as_deref().unwrap_or("none");
    let fix = facts.az_aks("update", "--network-policy cilium --network-dataplane cilium");
    match policy.to_lowercase().as_str() {
        "" | "none" | "cilium" => Ok(Finding::pass(policy)),
        "calico" => {
            let off = facts.az_aks("update", "--network-policy none");
            Ok(Finding::fail("calico", format!("`{off}`, then perhaps `{fix}`")))
        }
        other => Ok(Finding::warn(format!("{other}: the recommended engine is cilium"), fix)),
    }
}

fn ip_family(facts: &Facts) -> Result<Finding, Unknown> {
    let network = facts.network();
    let ranges = network.pod_ranges().into_iter().chain(network.service_ranges());
    let is_six = network.ip_families.iter().any(|family| family.eq_ignore_ascii_case("IPv6"))
        || ranges.into_iter().any(|range| range.contains(':'));
    if is_six {
        return Ok(Finding::fail("the cluster has IPv6", recreate("--ip-families IPv4")));
    }
    Ok(Finding::pass("IPv4"))
}

fn load_balancer(facts: &Facts) -> Result<Finding, Unknown> {
    let sku = facts.network().load_balancer_sku.as_deref().unwrap_or_default();
    match sku.to_lowercase().as_str() {
        "standard" => Ok(Finding::pass("Standard")),
        "" => Err(Unknown("the cluster states no load balancer SKU".to_owned())),
        _ => Ok(Finding::fail(sku, recreate("--load-balancer-sku standard"))),
    }
}

fn outbound_type(facts: &Facts) -> Result<Finding, Unknown> {
    let network = facts.network();
    let kind = network.outbound_type.as_deref().unwrap_or("loadBalancer");
    let addresses = |count: usize, fix: &str| {
        if count == 0 {
            Finding::fail(
                format!("{kind} without an outbound address"),
                facts.az_aks("update", fix),
            )
        } else {
            Finding::pass(format!("{kind} with {count} outbound address(es)"))
        }
    };
    match kind.to_lowercase().as_str() {
        "loadbalancer" => Ok(addresses(
            network.load_balancer_profile.effective_outbound_ips.len(),
            "--load-balancer-managed-outbound-ip-count 1",
        )),
        "managednatgateway" | "managednatgatewayv2" => Ok(addresses(
            network.nat_gateway_profile.effective_outbound_ips.len(),
            "--nat-gateway-managed-outbound-ip-count 1",
        )),
        "userassignednatgateway" => {
            needs(facts, kind, "a NAT gateway", "--nat-gateway", |subnet| {
                subnet.properties.nat_gateway.is_some()
            })
        }
        "userdefinedrouting" => needs(facts, kind, "a route table", "--route-table", |subnet| {
            subnet.properties.route_table.is_some()
        }),
        "none" | "block" => Ok(Finding::warn(
            format!("{kind}: AKS sets up no egress"),
            "give nodes a way to the endpoints that AKS and nap need (rows `egress-…`)",
        )),
        _ => Ok(Finding::warn(
            format!("{kind}, which this version of nap does not know"),
            "see that nodes reach the endpoints that AKS and nap need (rows `egress-…`)",
        )),
    }
}

/// Whether each subnet of nodes has the resource of an outbound type.
fn needs(
    facts: &Facts,
    kind: &str,
    what: &str,
    option: &str,
    has: impl Fn(&Subnet) -> bool,
) -> Result<Finding, Unknown> {
    let ids = facts.node_subnets()?;
    let mut without = Vec::new();
    for id in &ids {
        if !has(known_of(&facts.subnets, id)?) {
            without.push(id.as_str());
        }
    }
    if let Some(first) = without.first() {
        let names: Vec<&str> = without.iter().map(|id| last_segment(id)).collect();
        return Ok(Finding::fail(
            format!("{kind} and no {} at subnet {}", what.trim_start_matches("a "), join(&names)),
            format!("az network vnet subnet update --ids {first} {option} NAME"),
        ));
    }
    if ids.is_empty() {
        return Ok(Finding::warn(
            format!("{kind} without a subnet of yours"),
            "name the subnet with VNET_SUBNET_ID",
        ));
    }
    Ok(Finding::pass(format!("{kind} with {what}")))
}

/// Ranges of a subnet. IPv6 ranges are left out: they are another row.
pub(super) fn ranges(subnet: &Subnet) -> Result<Vec<Cidr>, Unknown> {
    let properties = &subnet.properties;
    let texts = properties.address_prefix.iter().chain(&properties.address_prefixes);
    let mut ranges: Vec<Cidr> = texts.filter_map(|text| Cidr::parse(text)).collect();
    ranges.sort_by_key(ToString::to_string);
    ranges.dedup();
    if ranges.is_empty() {
        return Err(Unknown(format!("subnet `{}` states no IPv4 range", subnet.name)));
    }
    Ok(ranges)
}

/// Addresses of a subnet that are not in use.
fn free(subnet: &Subnet) -> Result<u64, Unknown> {
    let total: u64 = ranges(subnet)?
        .into_iter()
        .map(|range| range.addresses().saturating_sub(RESERVED_ADDRESSES))
        .sum();
    let used = u64::try_from(subnet.properties.ip_configurations.len()).unwrap_or(u64::MAX);
    Ok(total.saturating_sub(used))
}

fn node_addresses(facts: &Facts) -> Result<Finding, Unknown> {
    let ids = facts.node_subnets()?;
    if ids.is_empty() {
        return Ok(Finding::not_applicable(MANAGED));
    }
    let takes_pods = facts.network().network_plugin.eq_ignore_ascii_case("azure")
        && !facts.network().is_overlay();
    let per_node = if takes_pods { 31 } else { 1 };
    let mut found = Vec::new();
    let mut fewest = u64::MAX;
    for id in &ids {
        let subnet = known_of(&facts.subnets, id)?;
        let free = free(subnet)?;
        fewest = fewest.min(free / per_node);
        found.push(format!("{}: {free} free", last_segment(id)));
    }
    let fix = "add a larger subnet to the virtual network, and name it with `spec.vnetSubnetID` of \
               an AKSNodeClass";
    Ok(match fewest {
        0 => Finding::fail(format!("no room for a node ({})", join(&found)), fix),
        1..COMFORTABLE_NODES => {
            Finding::warn(format!("room for {fewest} nodes ({})", join(&found)), fix)
        }
        _ => Finding::pass(join(&found)),
    })
}

fn overlap(facts: &Facts) -> Result<Finding, Unknown> {
    let ids = facts.node_subnets()?;
    if ids.is_empty() {
        return Ok(Finding::not_applicable(MANAGED));
    }
    let network = facts.network();
    let mut others: Vec<(&str, Cidr)> = Vec::new();
    for (what, texts) in [("pods", network.pod_ranges()), ("Services", network.service_ranges())] {
        others.extend(texts.iter().filter_map(|text| Some((what, Cidr::parse(text)?))));
    }
    let mut conflicts = Vec::new();
    for id in &ids {
        for range in ranges(known_of(&facts.subnets, id)?)? {
            for (what, other) in others.iter().filter(|(_, other)| other.overlaps(range)) {
                let name = last_segment(id);
                conflicts.push(format!("{name} {range} overlaps {other} of {what}"));
            }
        }
    }
    if conflicts.is_empty() {
        return Ok(Finding::pass("they are apart"));
    }
    Ok(Finding::fail(
        join(&conflicts),
        "use a subnet with another range; the ranges of pods and Services cannot be changed here",
    ))
}

/// The subnet of the API server; `None` if it is in none of the user's.
fn api_server(facts: &Facts) -> Result<Option<&Subnet>, Unknown> {
    facts.api_server_subnet().map(|id| known_of(&facts.subnets, &id)).transpose()
}

fn api_server_size(facts: &Facts) -> Result<Finding, Unknown> {
    let Some(subnet) = api_server(facts)? else {
        return Ok(Finding::not_applicable(NO_INTEGRATION));
    };
    let ranges = ranges(subnet)?;
    let texts: Vec<String> = ranges.iter().map(ToString::to_string).collect();
    if ranges.iter().all(|range| range.prefix > MAX_API_SERVER_PREFIX) {
        return Ok(Finding::fail(
            join(&texts),
            "create a cluster with a subnet of at least /28 in `--apiserver-subnet-id`",
        ));
    }
    Ok(Finding::pass(join(&texts)))
}

fn api_server_delegation(facts: &Facts) -> Result<Finding, Unknown> {
    let Some(subnet) = api_server(facts)? else {
        return Ok(Finding::not_applicable(NO_INTEGRATION));
    };
    let names: Vec<&str> = subnet
        .properties
        .delegations
        .iter()
        .map(|one| one.properties.service_name.as_str())
        .collect();
    if names.iter().any(|name| name.eq_ignore_ascii_case(DELEGATION)) {
        return Ok(Finding::pass(DELEGATION));
    }
    let id = facts.api_server_subnet().unwrap_or_default();
    let found = if names.is_empty() { "not delegated".to_owned() } else { join(&names) };
    let fix = format!("az network vnet subnet update --ids {id} --delegations {DELEGATION}");
    Ok(Finding::fail(found, fix))
}

fn api_server_dedicated(facts: &Facts) -> Result<Finding, Unknown> {
    let Some(id) = facts.api_server_subnet() else {
        return Ok(Finding::not_applicable(NO_INTEGRATION));
    };
    if facts.node_subnets()?.contains(&id) {
        return Ok(Finding::fail(
            format!("nodes are in `{}` too", last_segment(&id)),
            "give nodes another subnet (`--vnet-subnet-id`, VNET_SUBNET_ID)",
        ));
    }
    Ok(Finding::pass(format!("`{}` is its own", last_segment(&id))))
}

fn api_server_addresses(facts: &Facts) -> Result<Finding, Unknown> {
    let Some(subnet) = api_server(facts)? else {
        return Ok(Finding::not_applicable(NO_INTEGRATION));
    };
    let free = free(subnet)?;
    let used = u64::try_from(subnet.properties.ip_configurations.len()).unwrap_or(u64::MAX);
    let found = format!("{used} used, {free} free");
    let fix = "use a larger subnet: an API server that finds no address cannot scale";
    if used.saturating_add(free) < API_SERVER_ADDRESSES || free == 0 {
        return Ok(Finding::fail(found, fix));
    }
    Ok(Finding::pass(found))
}
