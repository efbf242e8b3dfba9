//! The decision of a network security group about traffic.
//!
//! Rules are tried by priority; the first that matches decides. A rule may match only a part of the
//! traffic in question. A part that is denied counts as denied. Parts that are allowed are not put
//! together: if the rest meets a denial, the decision is unclear.

use serde::Deserialize;

use super::cidr::Cidr;

/// Address from which Azure's load balancer probes.
const LOAD_BALANCER_ADDRESS: &str = "168.63.129.16";

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct SecurityGroup {
    pub name: String,
    pub properties: SecurityGroupProperties,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct SecurityGroupProperties {
    pub security_rules: Vec<Rule>,
    pub default_security_rules: Vec<Rule>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Rule {
    pub name: String,
    pub properties: RuleProperties,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RuleProperties {
    pub priority: u32,
    pub direction: String,
    pub access: String,
    pub protocol: String,
    pub source_address_prefix: Option<String>,
    pub source_address_prefixes: Vec<String>,
    pub source_port_range: Option<String>,
    pub source_port_ranges: Vec<String>,
    pub destination_address_prefix: Option<String>,
    pub destination_address_prefixes: Vec<String>,
    pub destination_port_range: Option<String>,
    pub destination_port_ranges: Vec<String>,
}

/// Side of a subnet at which traffic is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Inbound,
    Outbound,
}

/// One end of traffic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Endpoint {
    /// Addresses of the virtual network, or of pods in it.
    Range(Cidr),
    /// The probes of Azure's load balancer.
    LoadBalancer,
    /// Addresses outside of the virtual network.
    Internet,
}

/// Traffic that is to be allowed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Traffic {
    pub source: Endpoint,
    pub destination: Endpoint,
    /// `Tcp`, `Udp` or `Icmp`.
    pub protocol: &'static str,
    /// First and last destination port.
    pub ports: (u16, u16),
}

/// Decision about traffic. The name is that of the rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Allowed,
    /// All of it, or a part.
    Denied(String),
    /// Parts are allowed by other rules, and the rest is denied by this one.
    Unclear(String),
}

/// How much of the traffic a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Match {
    Nothing,
    Part,
    All,
}

impl SecurityGroup {
    /// Decides about traffic.
    pub fn decide(&self, direction: Direction, traffic: &Traffic) -> Decision {
        let named = if direction == Direction::Inbound { "Inbound" } else { "Outbound" };
        let own = &self.properties.security_rules;
        let defaults = if self.properties.default_security_rules.is_empty() {
            default_rules()
        } else {
            self.properties.default_security_rules.clone()
        };
        let mut rules: Vec<&Rule> = own
            .iter()
            .chain(&defaults)
            .filter(|rule| rule.properties.direction.eq_ignore_ascii_case(named))
            .collect();
        rules.sort_by_key(|rule| rule.properties.priority);
        let mut allowed_in_part = false;
        for rule in rules {
            let allows = rule.properties.access.eq_ignore_ascii_case("Allow");
            match (rule.properties.matches(traffic), allows) {
                (Match::Nothing, _) => {}
                (Match::All, true) => return Decision::Allowed,
                (Match::Part, true) => allowed_in_part = true,
                (Match::All, false) if allowed_in_part => {
                    return Decision::Unclear(rule.name.clone());
                }
                (Match::All | Match::Part, false) => return Decision::Denied(rule.name.clone()),
            }
        }
        Decision::Denied("no rule".to_owned())
    }
}

impl RuleProperties {
    fn matches(&self, traffic: &Traffic) -> Match {
        let all = |one: &Option<String>, many: &[String]| -> Vec<String> {
            one.iter().chain(many).filter(|text| !text.is_empty()).cloned().collect()
        };
        let source = all(&self.source_address_prefix, &self.source_address_prefixes);
        let destination = all(&self.destination_address_prefix, &self.destination_address_prefixes);
        let protocol = if self.protocol == "*"
            || self.protocol.eq_ignore_ascii_case(traffic.protocol)
            || self.protocol.eq_ignore_ascii_case("Any")
        {
            Match::All
        } else {
            Match::Nothing
        };
        let source_ports = all(&self.source_port_range, &self.source_port_ranges);
        // Clients use any port: a rule for some of them matches only a part.
        let source_ports = match_ports(&source_ports, (0, u16::MAX));
        let ports = all(&self.destination_port_range, &self.destination_port_ranges);
        [
            protocol,
            source_ports,
            match_ports(&ports, traffic.ports),
            match_addresses(&source, traffic.source),
            match_addresses(&destination, traffic.destination),
        ]
        .into_iter()
        .min()
        .unwrap_or(Match::Nothing)
    }
}

/// A rule without prefixes names application security groups, whose members are not known here.
fn match_addresses(prefixes: &[String], endpoint: Endpoint) -> Match {
    if prefixes.is_empty() {
        return if matches!(endpoint, Endpoint::Range(_)) { Match::Part } else { Match::Nothing };
    }
    prefixes.iter().map(|prefix| match_address(prefix, endpoint)).max().unwrap_or(Match::Nothing)
}

/// `VirtualNetwork` includes the ranges of pods: traffic of overlay pods is allowed by default.
fn match_address(prefix: &str, endpoint: Endpoint) -> Match {
    let is_tag = |tag: &str| prefix.eq_ignore_ascii_case(tag);
    let whole = |matches: bool| if matches { Match::All } else { Match::Nothing };
    if prefix == "*" || is_tag("Any") {
        return Match::All;
    }
    let Some(range) = Cidr::parse(prefix) else {
        return match endpoint {
            Endpoint::Range(_) => whole(is_tag("VirtualNetwork")),
            Endpoint::LoadBalancer => whole(is_tag("AzureLoadBalancer")),
            Endpoint::Internet if is_tag("Internet") => Match::All,
            Endpoint::Internet if is_tag("VirtualNetwork") || is_tag("AzureLoadBalancer") => {
                Match::Nothing
            }
            // Tags of services, such as `Storage`.
            Endpoint::Internet => Match::Part,
        };
    };
    match endpoint {
        Endpoint::Range(wanted) if range.contains(wanted) => Match::All,
        Endpoint::Range(wanted) if range.overlaps(wanted) => Match::Part,
        Endpoint::Range(_) => Match::Nothing,
        Endpoint::LoadBalancer => {
            whole(Cidr::parse(LOAD_BALANCER_ADDRESS).is_some_and(|probe| range.contains(probe)))
        }
        Endpoint::Internet if range.prefix == 0 => Match::All,
        Endpoint::Internet if range.is_private() => Match::Nothing,
        Endpoint::Internet => Match::Part,
    }
}

fn match_ports(ranges: &[String], wanted: (u16, u16)) -> Match {
    let one = |text: &String| {
        if text == "*" {
            return Match::All;
        }
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (Ok(first), Ok(last)) = (first.trim().parse::<u16>(), last.trim().parse::<u16>())
        else {
            return Match::Nothing;
        };
        if first <= wanted.0 && wanted.1 <= last {
            Match::All
        } else if first <= wanted.1 && wanted.0 <= last {
            Match::Part
        } else {
            Match::Nothing
        }
    };
    ranges.iter().map(one).max().unwrap_or(Match::Nothing)
}

/// The rules that Azure adds to every group.
fn default_rules() -> Vec<Rule> {
    let rule = |name: &str, priority, direction: &str, access: &str, from: &str, to: &str| Rule {
        name: name.to_owned(),
        properties: RuleProperties {
            priority,
            direction: direction.to_owned(),
            access: access.to_owned(),
            protocol: "*".to_owned(),
            source_address_prefix: Some(from.to_owned()),
            source_port_range: Some("*".to_owned()),
            destination_address_prefix: Some(to.to_owned()),
            destination_port_range: Some("*".to_owned()),
            ..RuleProperties::default()
        },
    };
    let network = "VirtualNetwork";
    vec![
        rule("AllowVnetInBound", 65000, "Inbound", "Allow", network, network),
        rule("AllowAzureLoadBalancerInBound", 65001, "Inbound", "Allow", "AzureLoadBalancer", "*"),
        rule("DenyAllInBound", 65500, "Inbound", "Deny", "*", "*"),
        rule("AllowVnetOutBound", 65000, "Outbound", "Allow", network, network),
        rule("AllowInternetOutBound", 65001, "Outbound", "Allow", "*", "Internet"),
        rule("DenyAllOutBound", 65500, "Outbound", "Deny", "*", "*"),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::facts::parse;
    use super::*;

    fn group(rules: &[Value]) -> SecurityGroup {
        let rules: Vec<Value> = rules
            .iter()
            .enumerate()
            .map(|(index, properties)| {
                let mut all = json!({
                    "priority": 100 + index, "direction": "Inbound", "protocol": "*",
                    "sourceAddressPrefix": "*", "sourcePortRange": "*",
                    "destinationAddressPrefix": "*", "destinationPortRange": "*",
                });
                for (key, value) in properties.as_object().unwrap() {
                    all[key] = value.clone();
                }
                json!({ "name": format!("rule-{index}"), "properties": all })
            })
            .collect();
        parse(json!({ "name": "nsg", "properties": { "securityRules": rules } })).unwrap()
    }

    fn range(text: &str) -> Endpoint {
        Endpoint::Range(Cidr::parse(text).unwrap())
    }

    fn decide(rules: &[Value], traffic: &Traffic) -> Decision {
        group(rules).decide(Direction::Inbound, traffic)
    }

    #[test]
    fn first_matching_rule_decides() {
        let traffic = Traffic {
            source: range("10.1.0.0/24"),
            destination: range("10.0.0.0/28"),
            protocol: "Tcp",
            ports: (443, 443),
        };
        let denied = |index: usize| Decision::Denied(format!("rule-{index}"));
        let deny = json!({ "access": "Deny" });
        let allow = |change: Value| {
            let mut rule = json!({ "access": "Allow" });
            for (key, value) in change.as_object().unwrap() {
                rule[key] = value.clone();
            }
            rule
        };
        for (rules, expected) in [
            (vec![], Decision::Allowed),
            (vec![deny.clone()], denied(0)),
            (vec![allow(json!({})), deny.clone()], Decision::Allowed),
            (
                vec![allow(json!({ "destinationPortRange": "443" })), deny.clone()],
                Decision::Allowed,
            ),
            (vec![allow(json!({ "destinationPortRange": "80" })), deny.clone()], denied(1)),
            (vec![allow(json!({ "protocol": "Udp" })), deny.clone()], denied(1)),
            (
                vec![allow(json!({ "sourceAddressPrefix": "VirtualNetwork" })), deny.clone()],
                Decision::Allowed,
            ),
            (
                vec![allow(json!({ "sourceAddressPrefix": "10.1.0.0/25" })), deny.clone()],
                Decision::Unclear("rule-1".to_owned()),
            ),
            (vec![json!({ "access": "Deny", "sourceAddressPrefix": "10.1.0.128/25" })], denied(0)),
            (
                vec![json!({ "access": "Deny", "sourceAddressPrefix": "Internet" })],
                Decision::Allowed,
            ),
            (
                vec![json!({ "access": "Deny", "destinationPortRanges": ["80", "400-500"],
                    "destinationPortRange": null })],
                denied(0),
            ),
        ] {
            assert_eq!(decide(&rules, &traffic), expected, "{rules:?}");
        }
    }

    #[test]
    fn load_balancer_and_internet_are_not_the_virtual_network() {
        let probe = Traffic {
            source: Endpoint::LoadBalancer,
            destination: range("10.0.0.0/28"),
            protocol: "Tcp",
            ports: (9988, 9988),
        };
        let deny_others = json!({ "access": "Deny", "sourceAddressPrefix": "VirtualNetwork" });
        assert_eq!(decide(&[deny_others], &probe), Decision::Allowed);
        let deny = json!({ "access": "Deny", "sourceAddressPrefix": "AzureLoadBalancer" });
        assert_eq!(decide(&[deny], &probe), Decision::Denied("rule-0".to_owned()));
        let egress = Traffic {
            source: range("10.1.0.0/24"),
            destination: Endpoint::Internet,
            protocol: "Tcp",
            ports: (443, 443),
        };
        assert_eq!(group(&[]).decide(Direction::Outbound, &egress), Decision::Allowed);
        let deny = json!({ "access": "Deny", "direction": "Outbound",
            "destinationAddressPrefix": "Internet" });
        let decision = group(&[deny]).decide(Direction::Outbound, &egress);
        assert_eq!(decision, Decision::Denied("rule-0".to_owned()));
    }
}
