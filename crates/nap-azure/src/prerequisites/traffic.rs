//! Rows about traffic that must be allowed: the table of security rules, and egress.

#![expect(clippy::unnecessary_wraps, reason = "every check has the same type")]

use super::cidr::Cidr;
use super::facts::{Facts, Unknown, known_of, last_segment};
use super::network::ranges;
use super::security_rules::{Decision, Direction, Endpoint, SecurityGroup, Traffic};
use super::{Check, Document, EGRESS, Finding, NODE_AUTOPROVISIONING, RUNNING, join};
use crate::AzureConfig;

const RULES: Document = Document(NODE_AUTOPROVISIONING, "Network security group rules");

/// Names that nodes must reach in every cloud.
const EVERYWHERE: &str = "mcr.microsoft.com, *.data.mcr.microsoft.com, packages.microsoft.com, \
                          packages.aks.azure.com, acs-mirror.azureedge.net";
/// Names of API servers by the end of the name of ARM; those of the public cloud come last.
const API_SERVERS: [(&str, &str); 3] = [
    (".usgovcloudapi.net", "*.hcp.REGION.cx.aks.containerservice.azure.us"),
    (".chinacloudapi.cn", "*.hcp.REGION.cx.prod.service.azk8s.cn, *.azk8s.cn"),
    ("", "*.hcp.REGION.azmk8s.io"),
];
/// Every protocol of a rule for all protocols.
const PROTOCOLS: [&str; 3] = ["Tcp", "Udp", "Icmp"];
const ALL_PORTS: (u16, u16) = (0, u16::MAX);

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "nsg-nodes-to-api-server",
        title: "Security rules allow nodes to API server, TCP 443 and 4443",
        document: RULES,
        run: nodes_to_api_server,
    },
    Check {
        id: "nsg-load-balancer-to-api-server",
        title: "Security rules allow load balancer to API server, TCP 9988",
        document: RULES,
        run: load_balancer_to_api_server,
    },
    Check {
        id: "nsg-nodes-to-nodes",
        title: "Security rules allow node to node, everything",
        document: RULES,
        run: nodes_to_nodes,
    },
    Check {
        id: "nsg-pods-to-nodes",
        title: "Security rules allow pod to node, everything",
        document: RULES,
        run: pods_to_nodes,
    },
    Check {
        id: "nsg-pods-to-pods",
        title: "Security rules allow pod to pod, everything",
        document: RULES,
        run: pods_to_pods,
    },
    Check {
        id: "egress-security-rules",
        title: "Security rules allow nodes to reach the Internet, TCP 443",
        document: Document(EGRESS, "Required outbound network rules and FQDNs for AKS clusters"),
        run: egress_rules,
    },
    Check {
        id: "egress-firewall",
        title: "No firewall or dead end on the default route, or one whose rules are checked by hand",
        document: Document(EGRESS, "Required outbound network rules and FQDNs for AKS clusters"),
        run: egress_firewall,
    },
    Check {
        id: "egress-prices",
        title: "The retail price API answers",
        document: Document(RUNNING, "Environment"),
        run: egress_prices,
    },
];

/// A subnet with its ranges and its security group.
struct Place<'a> {
    id: String,
    ranges: Vec<Cidr>,
    /// `None` if every traffic is allowed.
    group: Option<&'a SecurityGroup>,
}

fn place<'a>(facts: &'a Facts, id: &str) -> Result<Place<'a>, Unknown> {
    let subnet = known_of(&facts.subnets, id)?;
    let group = subnet.properties.network_security_group.as_ref();
    let group = group.map(|group| known_of(&facts.security_groups, &group.id)).transpose()?;
    Ok(Place { id: id.to_owned(), ranges: ranges(subnet)?, group })
}

/// The subnets of nodes; none if AKS manages the network.
fn node_places(facts: &Facts) -> Result<Vec<Place<'_>>, Unknown> {
    facts.node_subnets()?.iter().map(|id| place(facts, id)).collect()
}

/// Ranges of pods: their own, or those of the node subnets.
fn pod_ranges(facts: &Facts, nodes: &[Place<'_>]) -> Vec<Cidr> {
    let network = facts.network();
    let own: Vec<Cidr> = network.pod_ranges().iter().filter_map(|text| Cidr::parse(text)).collect();
    if own.is_empty() || !(network.is_overlay() || network.network_plugin == "none") {
        return nodes.iter().flat_map(|place| place.ranges.clone()).collect();
    }
    own
}

/// Collects the decisions about several kinds of traffic into one finding.
#[derive(Default)]
struct Decisions {
    denied: Vec<String>,
    unclear: Vec<String>,
    groups: usize,
}

impl Decisions {
    /// Asks the security group of a subnet about traffic from each source to each destination.
    fn ask(
        &mut self,
        place: &Place<'_>,
        direction: Direction,
        (sources, destinations): (&[Endpoint], &[Endpoint]),
        protocols: &[&'static str],
        ports: (u16, u16),
    ) {
        let Some(group) = place.group else { return };
        self.groups += 1;
        for source in sources {
            for destination in destinations {
                for protocol in protocols {
                    let traffic =
                        Traffic { source: *source, destination: *destination, protocol, ports };
                    let (decision, list) = match group.decide(direction, &traffic) {
                        Decision::Allowed => continue,
                        Decision::Denied(rule) => (rule, &mut self.denied),
                        Decision::Unclear(rule) => (rule, &mut self.unclear),
                    };
                    let name = if group.name.is_empty() { "the group" } else { &group.name };
                    let side = if direction == Direction::Inbound { "into" } else { "out of" };
                    let subnet = last_segment(&place.id);
                    let what =
                        format!("rule `{decision}` of `{name}` denies it {side} subnet `{subnet}`");
                    if !list.contains(&what) {
                        list.push(what);
                    }
                }
            }
        }
    }

    fn finding(self, rule: &str) -> Result<Finding, Unknown> {
        if !self.denied.is_empty() {
            let fix = format!(
                "add a rule with a lower priority number: az network nsg rule create \
                 --resource-group GROUP --nsg-name NAME --name nap --priority 100 --access Allow \
                 {rule}"
            );
            return Ok(Finding::fail(join(&self.denied), fix));
        }
        if !self.unclear.is_empty() {
            let why = join(&self.unclear);
            return Err(Unknown(format!(
                "several rules allow parts of it, and then {why}; look at the rules yourself"
            )));
        }
        Ok(Finding::pass(match self.groups {
            0 => "no security group at the subnets",
            _ => "allowed",
        }))
    }
}

fn endpoints(ranges: &[Cidr]) -> Vec<Endpoint> {
    ranges.iter().copied().map(Endpoint::Range).collect()
}

fn nodes_to_api_server(facts: &Facts) -> Result<Finding, Unknown> {
    let Some(id) = facts.api_server_subnet() else {
        return Ok(Finding::not_applicable("the API server is not in a subnet of yours"));
    };
    let server = place(facts, &id)?;
    let mut decisions = Decisions::default();
    for node in node_places(facts)? {
        let ends = (endpoints(&node.ranges), endpoints(&server.ranges));
        for port in [443, 4443] {
            let ends = (&*ends.0, &*ends.1);
            decisions.ask(&node, Direction::Outbound, ends, &["Tcp"], (port, port));
            decisions.ask(&server, Direction::Inbound, ends, &["Tcp"], (port, port));
        }
    }
    decisions.finding("--protocol Tcp --destination-port-ranges 443 4443")
}

fn load_balancer_to_api_server(facts: &Facts) -> Result<Finding, Unknown> {
    let Some(id) = facts.api_server_subnet() else {
        return Ok(Finding::not_applicable("the API server is not in a subnet of yours"));
    };
    let server = place(facts, &id)?;
    let mut decisions = Decisions::default();
    let ends = (&[Endpoint::LoadBalancer][..], &*endpoints(&server.ranges));
    decisions.ask(&server, Direction::Inbound, ends, &["Tcp"], (9988, 9988));
    decisions.finding(
        "--direction Inbound --protocol Tcp --source-address-prefixes AzureLoadBalancer \
         --destination-port-ranges 9988",
    )
}

/// Traffic within the subnets of nodes, judged where it leaves and where it arrives.
fn within(
    facts: &Facts,
    ends: impl Fn(&[Place<'_>]) -> (Vec<Cidr>, Vec<Cidr>),
) -> Result<Finding, Unknown> {
    let nodes = node_places(facts)?;
    if nodes.is_empty() {
        return Ok(Finding::not_applicable("AKS manages the network"));
    }
    let (sources, destinations) = ends(&nodes);
    let (sources, destinations) = (endpoints(&sources), endpoints(&destinations));
    let mut decisions = Decisions::default();
    for node in &nodes {
        let ends = (&*sources, &*destinations);
        decisions.ask(node, Direction::Outbound, ends, &PROTOCOLS, ALL_PORTS);
        decisions.ask(node, Direction::Inbound, ends, &PROTOCOLS, ALL_PORTS);
    }
    let list = |ends: &[Endpoint]| {
        let texts = ends.iter().filter_map(|end| match end {
            Endpoint::Range(range) => Some(range.to_string()),
            Endpoint::LoadBalancer | Endpoint::Internet => None,
        });
        texts.collect::<Vec<_>>().join(" ")
    };
    decisions.finding(&format!(
        "--protocol '*' --source-address-prefixes {} --destination-address-prefixes {} \
         --destination-port-ranges '*'",
        list(&sources),
        list(&destinations)
    ))
}

fn node_ranges(nodes: &[Place<'_>]) -> Vec<Cidr> {
    nodes.iter().flat_map(|place| place.ranges.clone()).collect()
}

fn nodes_to_nodes(facts: &Facts) -> Result<Finding, Unknown> {
    within(facts, |nodes| (node_ranges(nodes), node_ranges(nodes)))
}

fn pods_to_nodes(facts: &Facts) -> Result<Finding, Unknown> {
    within(facts, |nodes| (pod_ranges(facts, nodes), node_ranges(nodes)))
}

fn pods_to_pods(facts: &Facts) -> Result<Finding, Unknown> {
    within(facts, |nodes| (pod_ranges(facts, nodes), pod_ranges(facts, nodes)))
}

fn egress_rules(facts: &Facts) -> Result<Finding, Unknown> {
    let nodes = node_places(facts)?;
    if nodes.is_empty() {
        return Ok(Finding::not_applicable("AKS manages the network"));
    }
    let mut decisions = Decisions::default();
    for node in &nodes {
        let ends = (&*endpoints(&node.ranges), &[Endpoint::Internet][..]);
        decisions.ask(node, Direction::Outbound, ends, &["Tcp"], (443, 443));
    }
    decisions.finding(
        "--direction Outbound --protocol Tcp --destination-address-prefixes Internet \
         --destination-port-ranges 443",
    )
}

/// Names that nodes and nap itself must reach in the cloud of the settings.
fn names(config: &AzureConfig) -> String {
    let host = |url: &str| {
        let rest = url.split("://").last().unwrap_or_default();
        rest.split('/').next().unwrap_or_default().to_owned()
    };
    let arm = host(&config.arm_endpoint);
    let api_server = API_SERVERS.iter().find(|(end, _)| arm.ends_with(end));
    let api_server = api_server.map_or("", |(_, name)| *name);
    format!(
        "{}, {arm}, {}, {EVERYWHERE} and, for prices, {}",
        api_server.replace("REGION", &config.location),
        host(&config.entra.authority_host),
        host(&config.prices_endpoint)
    )
}

fn egress_firewall(facts: &Facts) -> Result<Finding, Unknown> {
    let mut hops = Vec::new();
    let names = names(&facts.config);
    for id in facts.node_subnets()? {
        let subnet = known_of(&facts.subnets, &id)?;
        let Some(table) = &subnet.properties.route_table else { continue };
        let table = known_of(&facts.route_tables, &table.id)?;
        for route in &table.properties.routes {
            let route = &route.properties;
            if Cidr::parse(&route.address_prefix).is_none_or(|range| range.prefix > 0) {
                continue;
            }
            if route.next_hop_type.eq_ignore_ascii_case("None") {
                return Ok(Finding::fail(
                    format!("route table `{}` drops traffic to 0.0.0.0/0", table.name),
                    format!("lead the default route to a gateway or firewall that allows {names}"),
                ));
            }
            if !route.next_hop_type.eq_ignore_ascii_case("Internet") {
                let address = route.next_hop_ip_address.as_deref().unwrap_or_default();
                hops.push(format!("{} {address}", route.next_hop_type).trim_end().to_owned());
            }
        }
    }
    hops.sort();
    hops.dedup();
    if hops.is_empty() {
        return Ok(Finding::pass("no route table leads 0.0.0.0/0 to a firewall"));
    }
    Ok(Finding::warn(
        format!("the default route leads to {}, whose rules are not checked", join(&hops)),
        format!("see that it allows {names}"),
    ))
}

fn egress_prices(facts: &Facts) -> Result<Finding, Unknown> {
    let endpoint = &facts.config.prices_endpoint;
    match &facts.prices {
        Ok(()) => Ok(Finding::pass(format!("{endpoint} answers this computer"))),
        Err(why) => Ok(Finding::warn(
            format!("{endpoint} does not answer this computer: {why}"),
            "allow it at the firewall; until then nap uses its built-in list prices",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_firewall_must_allow_the_names_of_the_cloud() {
        let names = |cloud: &str, region: &str| {
            let config = AzureConfig::from_variables(|name| match name {
                "ARM_CLOUD" => Some(cloud.to_owned()),
                "LOCATION" => Some(region.to_owned()),
                "AZURE_SUBSCRIPTION_ID"
                | "ARM_SUBSCRIPTION_ID"
                | "ARM_RESOURCE_GROUP"
                | "CLUSTER_NAME"
                | "AZURE_NODE_RESOURCE_GROUP" => Some("x".to_owned()),
                _ => None,
            });
            names(&config.unwrap())
        };
        let public = names("AzurePublicCloud", "eastus");
        assert!(public.starts_with("*.hcp.eastus.azmk8s.io, management.azure.com, "), "{public}");
        assert!(
            public.contains("login.microsoftonline.com, mcr.")
                && public.ends_with("prices.azure.com")
        );
        let government = names("AzureUSGovernmentCloud", "usgovvirginia");
        for name in [".azure.us, ", "management.usgovcloudapi.net", "login.microsoftonline.us"] {
            assert!(government.contains(name), "{name}: {government}");
        }
        let china = names("AzureChinaCloud", "chinaeast2");
        for name in ["*.azk8s.cn", "management.chinacloudapi.cn", "login.chinacloudapi.cn"] {
            assert!(china.contains(name), "{name}: {china}");
        }
        assert!(!china.contains("azmk8s.io") && !china.contains("management.azure.com"));
    }
}
