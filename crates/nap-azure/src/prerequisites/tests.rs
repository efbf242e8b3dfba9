//! Every row by a passing and a failing fact.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::facts::{Facts, Permission, PoolNeeds, Read, Role, Unknown, Usage, parse};
use super::subscription::PROVIDERS;
use super::versions::CliVersions;
use super::{Row, Status, check, checks};
use crate::AzureConfig;

const VNET: &str =
    "/subscriptions/s/resourceGroups/net/providers/Microsoft.Network/virtualNetworks/v";
const NSG: &str =
    "/subscriptions/s/resourceGroups/net/providers/Microsoft.Network/networkSecurityGroups/g";
const ROUTES: &str =
    "/subscriptions/s/resourceGroups/net/providers/Microsoft.Network/routeTables/r";

fn nodes() -> String {
    format!("{VNET}/subnets/nodes")
}

fn api_server() -> String {
    format!("{VNET}/subnets/api")
}

/// A cluster in a custom virtual network for which every row passes.
fn good() -> Facts {
    let mut config = AzureConfig::new("s", "rg", "c", "eastus");
    config.vnet_subnet_id = Some(nodes());
    let cluster = json!({
        "location": "East US",
        "identity": { "type": "SystemAssigned", "principalId": "p" },
        "properties": {
            "provisioningState": "Succeeded", "powerState": { "code": "Running" },
            "kubernetesVersion": "1.34", "currentKubernetesVersion": "1.34.1",
            "nodeResourceGroup": "MC_rg_c_eastus",
            "servicePrincipalProfile": { "clientId": "msi" },
            "networkProfile": {
                "networkPlugin": "azure", "networkPluginMode": "overlay",
                "networkPolicy": "cilium", "networkDataplane": "cilium",
                "loadBalancerSku": "standard", "outboundType": "loadBalancer",
                "ipFamilies": ["IPv4"], "podCidr": "10.244.0.0/16", "serviceCidr": "10.0.0.0/16",
                "loadBalancerProfile": { "effectiveOutboundIPs": [{ "id": "ip" }] },
            },
            "httpProxyConfig": null, "diskEncryptionSetID": null,
            "autoUpgradeProfile": { "upgradeChannel": "stable" },
            "apiServerAccessProfile": { "subnetId": api_server() },
            "aadProfile": { "enableAzureRBAC": true },
        },
    });
    let all = Permission {
        actions: vec!["*".to_owned()],
        data_actions: vec!["*".to_owned()],
        ..Permission::default()
    };
    let network = Permission { actions: vec!["Microsoft.Network/*".to_owned()], ..all.clone() };
    let network = Role { name: "Network Contributor".to_owned(), permissions: vec![network] };
    let usage = |name: &str, limit: i64| json!({ "currentValue": 4, "limit": limit, "name": { "value": name } });
    let mut facts = Facts {
        config,
        unset: Vec::new(),
        cluster: parse(cluster).unwrap(),
        pools: Ok(Vec::new()),
        maintenance: Ok(vec!["aksManagedAutoUpgradeSchedule".to_owned()]),
        subnets: BTreeMap::new(),
        security_groups: BTreeMap::new(),
        route_tables: BTreeMap::new(),
        identity_roles: [nodes(), api_server()]
            .into_iter()
            .map(|id| (id.to_lowercase(), Ok(vec![network.clone()])))
            .collect(),
        caller_on_cluster: Ok(vec![all.clone()]),
        caller_on_group: Ok(vec![all]),
        subscription: Ok("Enabled".to_owned()),
        providers: PROVIDERS.iter().map(|name| (*name, Ok("Registered".to_owned()))).collect(),
        feature: Ok(Some("Registered".to_owned())),
        usages: Ok(Vec::new()),
        region_reads: ["quota", "sizes"].map(|name| (name, Read::Done)).into(),
        cli: Ok(Some(CliVersions {
            cli: "2.80.0".to_owned(),
            extensions: [("aks-preview".to_owned(), "18.0.0b1".to_owned())].into(),
        })),
        prices: Ok(()),
        node_pools: Vec::new(),
    };
    pool(&mut facts, "system", json!({ "mode": "System", "osType": "Linux" }));
    pool(&mut facts, "aksmanagedap", json!({ "mode": "Machines" }));
    subnet(&mut facts, &nodes(), &json!({ "addressPrefix": "10.1.0.0/24" }));
    let delegation =
        json!({ "properties": { "serviceName": "Microsoft.ContainerService/managedClusters" } });
    let api = json!({ "addressPrefixes": ["10.2.0.0/28"], "delegations": [delegation] });
    subnet(&mut facts, &api_server(), &api);
    usages(
        &mut facts,
        &[usage("standardDSv5Family", 100), usage("cores", 100), usage("lowPriorityCores", 100)],
    );
    facts
}

fn pool(facts: &mut Facts, name: &str, mut properties: Value) {
    if properties.get("mode").is_some_and(|mode| mode != "Machines") {
        properties["vnetSubnetID"] = json!(nodes());
    }
    let pool = parse(json!({ "name": name, "properties": properties })).unwrap();
    facts.pools.as_mut().unwrap().push(pool);
}

fn subnet(facts: &mut Facts, id: &str, properties: &Value) {
    let name = id.rsplit('/').next();
    let subnet = parse(json!({ "id": id, "name": name, "properties": properties })).unwrap();
    facts.subnets.insert(id.to_lowercase(), Ok(subnet));
}

fn usages(facts: &mut Facts, usages: &[Value]) {
    let parsed = usages.iter().map(|one| serde_json::from_value::<Usage>(one.clone()).unwrap());
    facts.usages = Ok(parsed.collect());
}

/// Attaches a security group with one denying rule to both subnets.
fn deny(facts: &mut Facts, rule: &Value) {
    let mut properties = json!({
        "priority": 200, "direction": "Inbound", "access": "Deny", "protocol": "*",
        "sourceAddressPrefix": "*", "sourcePortRange": "*",
        "destinationAddressPrefix": "*", "destinationPortRange": "*",
    });
    for (key, value) in rule.as_object().unwrap() {
        properties[key] = value.clone();
    }
    let group = json!({
        "name": "g", "properties": { "securityRules": [{ "name": "no", "properties": properties }] },
    });
    facts.security_groups.insert(NSG.to_lowercase(), Ok(parse(group).unwrap()));
    for subnet in facts.subnets.values_mut() {
        let group = parse(json!({ "id": NSG })).unwrap();
        subnet.as_mut().unwrap().properties.network_security_group = Some(group);
    }
}

fn route(facts: &mut Facts, hop: &str) {
    let route = json!({ "properties": {
        "addressPrefix": "0.0.0.0/0", "nextHopType": hop, "nextHopIpAddress": "10.9.0.4" } });
    let table = json!({ "name": "r", "properties": { "routes": [route] } });
    facts.route_tables.insert(ROUTES.to_lowercase(), Ok(parse(table).unwrap()));
    let nodes = facts.subnets.get_mut(&nodes().to_lowercase()).unwrap().as_mut().unwrap();
    nodes.properties.route_table = Some(parse(json!({ "id": ROUTES })).unwrap());
}

fn profile(facts: &mut Facts) -> &mut super::facts::NetworkProfile {
    &mut facts.cluster.properties.network_profile
}

fn row(facts: &Facts, id: &str) -> Row {
    check(facts).into_iter().find(|row| row.id == id).unwrap()
}

type Change = fn(&mut Facts);

/// A row, the change of the good facts that it must notice, and its status then.
const BAD: &[(&str, Status, Change)] = &[
    ("cluster-running", Status::Fail, |f| {
        f.cluster.properties.power_state.code = "Stopped".to_owned();
    }),
    ("cluster-running", Status::Fail, |f| {
        f.cluster.properties.provisioning_state = "Failed".to_owned();
    }),
    ("kubernetes-version", Status::Fail, |f| {
        f.cluster.properties.current_kubernetes_version = Some("1.25.9".to_owned());
    }),
    ("kubernetes-version", Status::Unknown, |f| {
        f.cluster.properties.current_kubernetes_version = Some("latest".to_owned());
    }),
    ("settings", Status::Fail, |f| f.config.location = "westus".to_owned()),
    ("settings", Status::Fail, |f| f.config.node_resource_group = "other".to_owned()),
    ("settings", Status::Fail, |f| profile(f).network_plugin_mode = None),
    ("settings", Status::Fail, |f| {
        f.config.vnet_subnet_id = Some(nodes().replace("/v/", "/w/"));
    }),
    ("settings", Status::Warn, |f| f.config.vnet_subnet_id = None),
    ("settings", Status::Warn, |f| f.unset = vec!["LOCATION"]),
    ("managed-provisioning", Status::Fail, |f| {
        f.cluster.properties.node_provisioning_profile.mode = Some("Auto".to_owned());
    }),
    ("agent-pool", Status::Fail, |f| f.config.agent_pool = "other".to_owned()),
    ("agent-pool", Status::Fail, |f| f.config.agent_pool = "Not-A-Name".to_owned()),
    ("agent-pool", Status::Fail, |f| f.config.agent_pool = "system".to_owned()),
    ("agent-pool", Status::Fail, |f| {
        let pools = f.pools.as_mut().unwrap();
        pools[1].properties.provisioning_state = Some("Failed".to_owned());
    }),
    ("managed-identity", Status::Fail, |f| {
        f.cluster.properties.service_principal_profile.client_id = Some("0-1".to_owned());
    }),
    ("managed-identity", Status::Fail, |f| f.cluster.identity.kind = "None".to_owned()),
    ("cluster-autoscaler", Status::Fail, |f| {
        pool(f, "web", json!({ "mode": "User", "enableAutoScaling": true }));
    }),
    ("windows-pools", Status::Fail, |f| {
        pool(f, "win", json!({ "mode": "User", "osType": "Windows" }));
    }),
    ("disk-encryption-set", Status::Fail, |f| {
        f.cluster.properties.disk_encryption_set_id = Some("/x/des".to_owned());
    }),
    ("custom-ca", Status::Fail, |f| {
        let profile = &mut f.cluster.properties.security_profile;
        profile.custom_ca_trust_certificates = vec!["cert".to_owned()];
    }),
    ("custom-ca", Status::Fail, |f| {
        pool(f, "ca", json!({ "mode": "User", "enableCustomCATrust": true }));
    }),
    ("http-proxy", Status::Fail, |f| {
        f.cluster.properties.http_proxy_config.https_proxy = Some("http://user:pw@p".to_owned());
    }),
    ("kubelet-config", Status::Warn, |f| {
        pool(f, "k", json!({ "mode": "User", "kubeletConfig": { "podMaxPids": 5 } }));
    }),
    ("auto-upgrade-channel", Status::Warn, |f| {
        f.cluster.properties.auto_upgrade_profile.upgrade_channel = None;
    }),
    ("maintenance-window", Status::Warn, |f| f.maintenance = Ok(Vec::new())),
    ("network-plugin", Status::Fail, |f| profile(f).network_plugin = "kubenet".to_owned()),
    ("network-plugin-mode", Status::Fail, |f| {
        profile(f).network_plugin_mode = Some("other".to_owned());
    }),
    ("pod-ip-allocation", Status::Fail, |f| {
        pool(f, "pods", json!({ "mode": "User", "podSubnetID": "/x" }));
    }),
    ("pod-ip-allocation", Status::Fail, |f| {
        pool(f, "pods", json!({ "mode": "User", "podIPAllocationMode": "StaticBlock" }));
    }),
    ("network-dataplane", Status::Fail, |f| {
        profile(f).network_dataplane = Some("ebpf".to_owned());
    }),
    ("network-policy", Status::Fail, |f| profile(f).network_policy = Some("calico".to_owned())),
    ("network-policy", Status::Warn, |f| profile(f).network_policy = Some("azure".to_owned())),
    ("ip-family", Status::Fail, |f| profile(f).ip_families.push("IPv6".to_owned())),
    ("ip-family", Status::Fail, |f| profile(f).pod_cidrs.push("fd12::/64".to_owned())),
    ("load-balancer", Status::Fail, |f| profile(f).load_balancer_sku = Some("Basic".to_owned())),
    ("outbound-type", Status::Fail, |f| {
        profile(f).load_balancer_profile.effective_outbound_ips.clear();
    }),
    ("outbound-type", Status::Fail, |f| {
        profile(f).outbound_type = Some("managedNATGateway".to_owned());
    }),
    ("outbound-type", Status::Fail, |f| {
        profile(f).outbound_type = Some("userAssignedNATGateway".to_owned());
    }),
    ("outbound-type", Status::Fail, |f| {
        profile(f).outbound_type = Some("userDefinedRouting".to_owned());
    }),
    ("outbound-type", Status::Warn, |f| profile(f).outbound_type = Some("none".to_owned())),
    ("node-subnet-addresses", Status::Fail, |f| {
        subnet(
            f,
            &nodes(),
            &json!({ "addressPrefix": "10.1.0.0/29",
            "ipConfigurations": [{}, {}, {}] }),
        );
    }),
    ("node-subnet-addresses", Status::Warn, |f| {
        subnet(f, &nodes(), &json!({ "addressPrefix": "10.1.0.0/28" }));
        let nodes = f.subnets.get_mut(&nodes().to_lowercase()).unwrap().as_mut().unwrap();
        nodes.properties.ip_configurations = vec![parse(json!({})).unwrap(); 3];
    }),
    ("node-subnet-overlap", Status::Fail, |f| {
        subnet(f, &nodes(), &json!({ "addressPrefix": "10.244.8.0/24" }));
    }),
    ("node-subnet-overlap", Status::Fail, |f| {
        subnet(f, &nodes(), &json!({ "addressPrefix": "10.0.10.0/24" }));
    }),
    ("api-server-subnet-size", Status::Fail, |f| {
        subnet(f, &api_server(), &json!({ "addressPrefix": "10.2.0.0/29" }));
    }),
    ("api-server-subnet-delegation", Status::Fail, |f| {
        subnet(f, &api_server(), &json!({ "addressPrefix": "10.2.0.0/28" }));
    }),
    ("api-server-subnet-dedicated", Status::Fail, |f| {
        f.config.vnet_subnet_id = Some(api_server());
    }),
    ("api-server-subnet-addresses", Status::Fail, |f| {
        let used = vec![json!({}); 11];
        subnet(
            f,
            &api_server(),
            &json!({ "addressPrefix": "10.2.0.0/28",
            "ipConfigurations": used }),
        );
    }),
    ("nsg-nodes-to-api-server", Status::Fail, |f| {
        deny(f, &json!({ "protocol": "Tcp", "destinationPortRange": "4443" }));
    }),
    ("nsg-nodes-to-api-server", Status::Fail, |f| {
        deny(f, &json!({ "direction": "Outbound", "destinationAddressPrefix": "10.2.0.0/28" }));
    }),
    ("nsg-load-balancer-to-api-server", Status::Fail, |f| {
        deny(f, &json!({ "sourceAddressPrefix": "AzureLoadBalancer" }));
    }),
    ("nsg-nodes-to-nodes", Status::Fail, |f| {
        deny(f, &json!({ "sourceAddressPrefix": "10.1.0.0/24", "destinationPortRange": "10250" }));
    }),
    ("nsg-pods-to-nodes", Status::Fail, |f| {
        deny(
            f,
            &json!({ "sourceAddressPrefix": "10.244.0.0/16",
            "destinationAddressPrefix": "10.1.0.0/24" }),
        );
    }),
    ("nsg-pods-to-pods", Status::Fail, |f| {
        deny(
            f,
            &json!({ "protocol": "Udp", "sourceAddressPrefix": "10.244.0.0/16",
            "destinationAddressPrefix": "10.244.0.0/16", "destinationPortRange": "53" }),
        );
    }),
    ("egress-security-rules", Status::Fail, |f| {
        deny(f, &json!({ "direction": "Outbound", "destinationAddressPrefix": "Internet" }));
    }),
    ("egress-firewall", Status::Warn, |f| route(f, "VirtualAppliance")),
    ("egress-firewall", Status::Fail, |f| route(f, "None")),
    ("egress-prices", Status::Warn, |f| f.prices = Err("no answer within 10 s".to_owned())),
    ("role-node-subnets", Status::Fail, |f| {
        f.identity_roles.insert(nodes().to_lowercase(), Ok(Vec::new()));
    }),
    ("role-api-server-subnet", Status::Fail, |f| {
        f.identity_roles.insert(api_server().to_lowercase(), Ok(Vec::new()));
    }),
    ("role-machines", Status::Fail, |f| f.caller_on_cluster = Ok(Vec::new())),
    ("role-region", Status::Fail, |f| {
        f.region_reads.insert("sizes", Read::Forbidden);
    }),
    ("role-region", Status::Unknown, |f| {
        f.region_reads.insert("sizes", Read::Failed("timeout".to_owned()));
    }),
    ("subscription", Status::Warn, |f| f.subscription = Ok("PastDue".to_owned())),
    ("role-policy-assignments", Status::Warn, |f| f.caller_on_group = Ok(Vec::new())),
    ("role-cluster-user", Status::Warn, |f| f.caller_on_cluster = Ok(Vec::new())),
    ("role-rbac-writer", Status::Warn, |f| f.caller_on_cluster = Ok(Vec::new())),
    ("subscription", Status::Fail, |f| f.subscription = Ok("Disabled".to_owned())),
    ("provider-registration", Status::Fail, |f| {
        f.providers.insert("Microsoft.Compute", Ok("NotRegistered".to_owned()));
    }),
    ("feature-registration", Status::Warn, |f| {
        f.feature = Ok(Some("NotRegistered".to_owned()));
    }),
    ("quota-family", Status::Fail, |f| {
        let value = json!({ "value": "standardDSv5Family" });
        usages(f, &[json!({ "currentValue": 9, "limit": 10, "name": value })]);
    }),
    ("quota-regional", Status::Fail, |f| {
        usages(f, &[json!({ "currentValue": 9, "limit": 10, "name": { "value": "cores" } })]);
    }),
    ("quota-spot", Status::Warn, |f| {
        let value = json!({ "value": "lowPriorityCores" });
        usages(f, &[json!({ "currentValue": 0, "limit": 0, "name": value })]);
    }),
    ("cli-version", Status::Fail, |f| {
        f.cli = Ok(Some(CliVersions { cli: "2.75.0".to_owned(), ..CliVersions::default() }));
    }),
    ("cli-extension", Status::Fail, |f| {
        let extensions = [("aks-preview".to_owned(), "13.0.0b2".to_owned())].into();
        f.cli = Ok(Some(CliVersions { cli: "2.80.0".to_owned(), extensions }));
    }),
];

#[test]
fn every_row_passes_for_the_good_cluster() {
    for row in check(&good()) {
        assert_eq!(row.status, Status::Pass, "{row:?}");
        assert_eq!(row.fix, None, "{row:?}");
    }
}

#[test]
fn every_row_notices_its_problem_and_says_what_to_do() {
    for (id, status, change) in BAD {
        let mut facts = good();
        change(&mut facts);
        let row = row(&facts, id);
        assert_eq!(row.status, *status, "{row:?}");
        assert!(row.fix.as_ref().is_some_and(|fix| fix.len() > 5), "{row:?}");
        assert!(!row.fix.unwrap().contains('\n') && !row.found.contains('\n'), "{id}");
    }
}

/// [`every_row_passes_for_the_good_cluster`] is the passing fact of every row.
#[test]
fn every_row_has_a_failing_fact_and_an_identifier_of_its_own() {
    let ids: Vec<&str> = checks().map(|check| check.id).collect();
    let unique: BTreeSet<&str> = ids.iter().copied().collect();
    assert_eq!(ids.len(), unique.len(), "{ids:?}");
    let bad = BAD.iter().filter(|(_, status, _)| matches!(status, Status::Fail | Status::Warn));
    let bad: BTreeSet<&str> = bad.map(|(id, ..)| *id).collect();
    assert_eq!(bad, unique);
}

#[test]
fn every_row_is_documented_with_its_source() {
    let text = include_str!("../../../../docs/azure-check.md");
    for row in check(&good()) {
        let line = format!("| `{}` | {} |", row.id, row.title);
        assert!(text.contains(&line), "docs/azure-check.md lacks {line}");
        assert!(text.contains(row.document.split(':').next().unwrap()), "{}", row.document);
    }
}

#[test]
fn what_cannot_be_read_is_unknown_and_never_passes() {
    let why = || Unknown("AuthorizationFailed".to_owned());
    let mut facts = good();
    facts.pools = Err(why());
    facts.maintenance = Err(why());
    facts.caller_on_cluster = Err(why());
    facts.caller_on_group = Err(why());
    facts.subscription = Err(why());
    facts.feature = Err(why());
    facts.usages = Err(why());
    facts.region_reads.insert("quota", Read::Failed("AuthorizationFailed".to_owned()));
    facts.cli = Err(why());
    facts.providers.values_mut().for_each(|fact| *fact = Err(why()));
    facts.subnets.values_mut().for_each(|fact| *fact = Err(why()));
    facts.identity_roles.values_mut().for_each(|fact| *fact = Err(why()));
    let passed: Vec<&str> = check(&facts)
        .iter()
        .filter(|row| row.status != Status::Unknown)
        .inspect(|row| assert_eq!(row.status, Status::Pass))
        .map(|row| row.id)
        .collect();
    // These need only the managed cluster and the answer of the price API.
    let expected = [
        "cluster-running",
        "kubernetes-version",
        "managed-provisioning",
        "managed-identity",
        "disk-encryption-set",
        "http-proxy",
        "auto-upgrade-channel",
        "network-plugin",
        "network-plugin-mode",
        "network-dataplane",
        "network-policy",
        "ip-family",
        "load-balancer",
        "outbound-type",
        "egress-prices",
    ];
    assert_eq!(passed, expected);
    let row = row(&facts, "role-node-subnets");
    assert!(row.found.contains("AuthorizationFailed"), "{row:?}");
}

#[test]
fn rows_about_a_network_of_aks_do_not_apply() {
    let mut hidden = good();
    hidden.config.vnet_subnet_id = None;
    for pool in hidden.pools.as_mut().unwrap() {
        pool.properties.vnet_subnet_id = None;
    }
    hidden.cluster.properties.api_server_access_profile.subnet_id = None;
    // AKS may also name the subnets that it keeps in the resource group of the nodes.
    let mut named = good();
    let managed = |id: String| Some(id.replace("/net/", "/MC_rg_c_eastus/"));
    named.config.vnet_subnet_id = managed(nodes());
    for pool in named.pools.as_mut().unwrap() {
        pool.properties.vnet_subnet_id = managed(nodes());
    }
    named.cluster.properties.api_server_access_profile.subnet_id = managed(api_server());
    for row in [hidden, named].iter().flat_map(check) {
        let about_network = row.id.starts_with("nsg-")
            || row.id.contains("subnet")
            || row.id == "egress-security-rules";
        let expected = if about_network { Status::NotApplicable } else { Status::Pass };
        assert_eq!(row.status, expected, "{row:?}");
    }
}

#[test]
fn a_proxy_with_a_password_is_not_shown() {
    let mut facts = good();
    facts.cluster.properties.http_proxy_config.http_proxy = Some("http://user:pw@p".to_owned());
    let row = row(&facts, "http-proxy");
    assert!(!format!("{row:?}").contains("pw"), "{row:?}");
}

#[test]
fn quota_is_checked_for_what_the_nodepools_can_buy() {
    let pool = |name: &str, family: &str, spot: Option<i64>| PoolNeeds {
        name: name.to_owned(),
        families: (!family.is_empty()).then(|| (family.to_owned(), 4)).into_iter().collect(),
        spot,
    };
    let check = |pools: &[PoolNeeds], spot_left: i64| {
        let mut facts = good();
        let usage = |name: &str, limit: i64| json!({ "currentValue": 0, "limit": limit, "name": { "value": name } });
        usages(
            &mut facts,
            &[
                usage("standardDSv5Family", 100),
                usage("StandardNCASv3_T4Family", 2),
                usage("lowPriorityCores", spot_left),
            ],
        );
        facts.set_node_pools(pools.to_vec());
        (row(&facts, "quota-family"), row(&facts, "quota-spot"))
    };
    let general = pool("general", "standarddsv5family", None);
    let gpu = pool("gpu", "standardncasv3_t4family", None);
    let (family, spot) = check(std::slice::from_ref(&general), 0);
    assert_eq!(family.found, "general: standarddsv5family: 100 left");
    assert_eq!((family.status, spot.status), (Status::Pass, Status::NotApplicable));
    let (family, _) = check(&[general.clone(), gpu], 0);
    assert_eq!(family.status, Status::Fail);
    assert!(family.found.contains("NodePool gpu allows"), "{family:?}");
    assert!(family.fix.is_some_and(|fix| fix.contains("standardncasv3_t4family")));
    let (family, spot) = check(&[pool("batch", "", Some(8))], 6);
    assert_eq!((family.status, spot.status), (Status::NotApplicable, Status::Fail));
    let (_, spot) = check(&[pool("mixed", "standarddsv5family", Some(2))], 6);
    assert_eq!(spot.status, Status::Pass);
    let unreported = pool("new", "standardnewfamily", None);
    assert!(check(&[unreported], 0).0.found.ends_with("no limit"));
}
