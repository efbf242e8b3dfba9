//! `nap azure check` as a process against an Azure over TCP.

use std::process::Output;

use nap_sim::azure::EmulatorConfig;
use serde_json::{Value, json};

use crate::azure_server::{AzureServer, custom_network, deny_port, network_id};
use crate::process::{Cluster, text};

/// Ids of the rows with a status in a JSON document.
fn ids<'a>(document: &'a Value, status: &str) -> Vec<&'a str> {
    let rows = document["rows"].as_array().unwrap().iter();
    rows.filter(|row| row["status"] == status).filter_map(|row| row["id"].as_str()).collect()
}

fn document(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}{}", text(&output.stdout), text(&output.stderr)))
}

#[test]
fn a_cluster_that_meets_every_prerequisite_passes() {
    let azure = AzureServer::start("check-good", custom_network);
    azure.install_cli("2.80.0", "18.0.0b1");
    let window = json!({ "maintenanceWindow": { "durationHours": 4, "startTime": "01:00" } });
    let schedule = "aksManagedAutoUpgradeSchedule";
    assert!(azure.emulator.set_maintenance_configuration(schedule, window));
    let subnet = network_id("virtualNetworks/v/subnets/nodes");
    let check = |arguments: &[&str]| {
        let arguments = [&["check"], arguments].concat();
        azure.nap_azure(&arguments).env("VNET_SUBNET_ID", &subnet).output().unwrap()
    };
    let output = check(&["-o", "json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let document = document(&output);
    assert_eq!(document["counts"]["pass"], 50, "{document:#}");
    assert_eq!(ids(&document, "notApplicable"), ["role-rbac-writer"]);
    for row in document["rows"].as_array().unwrap() {
        assert!(row["document"].as_str().unwrap().len() > 10, "{row}");
        assert!(row["fix"].is_null(), "{row}");
    }
    let wide = text(&check(&["-o", "wide"]).stdout);
    assert_eq!(wide.matches("   see: ").count(), 51, "{wide}");
    let table = text(&check(&[]).stdout);
    assert!(!table.contains("see: "), "{table}");
    assert!(
        table.contains("pass     Standard load balancer: Standard  [load-balancer]"),
        "{table}"
    );
    assert!(table.ends_with("\n50 pass, 0 warn, 0 FAIL, 0 unknown, 1 n/a\n"), "{table}");
}

/// A cluster with one problem of each kind.
fn troubled(config: &mut EmulatorConfig) {
    custom_network(config);
    let surroundings = &mut config.surroundings;
    let properties = &mut surroundings.cluster["properties"];
    properties["networkProfile"]["loadBalancerSku"] = json!("basic");
    properties["networkProfile"]["networkPolicy"] = json!("calico");
    properties["nodeProvisioningProfile"] = json!({ "mode": "Auto" });
    properties["servicePrincipalProfile"] = json!({ "clientId": "a-service-principal" });
    properties["httpProxyConfig"] = json!({ "httpProxy": "http://user:password@proxy:3128" });
    properties["powerState"] = json!({ "code": "Stopped" });
    let pool = json!({ "mode": "User", "osType": "Windows", "enableAutoScaling": true });
    surroundings.agent_pools.insert("win".to_owned(), pool);
    surroundings.machines_pool = false;
    let api_server = network_id("virtualNetworks/v/subnets/apiserver");
    let resource = surroundings.resources.get_mut(&api_server).unwrap();
    resource["addressPrefix"] = json!("10.2.0.0/29");
    resource["delegations"] = json!([]);
    let group = network_id("networkSecurityGroups/g");
    surroundings.resources.insert(group, json!({ "securityRules": [deny_port(9988)] }));
    surroundings.role_assignments[0].role = "Reader";
    surroundings.caller_actions = vec!["*/read".to_owned()];
    surroundings.registrations.insert("Microsoft.Compute".to_owned(), "NotRegistered".to_owned());
    surroundings.forbidden.extend(["maintenanceConfigurations", "skus"]);
    config.default_family_quota = 1;
    config.regional_quota = 1;
}

#[test]
fn each_problem_of_a_cluster_is_a_row_with_its_fix() {
    let azure = AzureServer::start("check-bad", troubled);
    azure.install_cli("2.57.0", "9.0.0b1");
    let check = |arguments: &[&str]| {
        let arguments = [&["check"], arguments].concat();
        azure.nap_azure(&arguments).output().unwrap()
    };
    let output = check(&["-o", "json", "--allow-unknown"]);
    assert_eq!(output.status.code(), Some(1));
    let document = document(&output);
    let failed = [
        "cluster-running",
        "managed-provisioning",
        "agent-pool",
        "managed-identity",
        "cluster-autoscaler",
        "windows-pools",
        "http-proxy",
        "network-policy",
        "load-balancer",
        "api-server-subnet-size",
        "api-server-subnet-delegation",
        "api-server-subnet-addresses",
        "nsg-load-balancer-to-api-server",
        "nsg-nodes-to-nodes",
        "nsg-pods-to-nodes",
        "nsg-pods-to-pods",
        "role-node-subnets",
        "role-api-server-subnet",
        "role-machines",
        "role-region",
        "provider-registration",
        "quota-family",
        "quota-regional",
        "cli-version",
        "cli-extension",
    ];
    assert_eq!(ids(&document, "fail"), failed, "{document:#}");
    assert_eq!(ids(&document, "unknown"), ["maintenance-window"]);
    for row in document["rows"].as_array().unwrap() {
        let is_done = row["status"] == "pass" || row["status"] == "notApplicable";
        assert_eq!(row["fix"].is_null(), is_done, "{row}");
    }
    let output = check(&[]);
    let (table, error) = (text(&output.stdout), text(&output.stderr));
    for expected in [
        "FAIL     AKS does not run node auto-provisioning itself",
        "or let nap take its nodes over with `nap run --take-over`",
        "rule `no` of `g` denies it into subnet `apiserver`",
        "see: Node autoprovisioning: Network security group rules",
        "(AuthorizationFailed)",
        "25 FAIL, 1 unknown",
    ] {
        assert!(table.contains(expected), "{expected}\n{table}");
    }
    assert!(!table.contains("password"), "{table}");
    assert!(error.lines().any(|line| line == "error: 25 prerequisite(s) not met"), "{error}");
}

#[test]
fn unknown_rows_fail_unless_they_are_allowed() {
    let azure = AzureServer::start("check-unknown", |config| {
        custom_network(config);
        config.surroundings.forbidden.insert("roleAssignments");
    });
    let run = |arguments: &[&str]| azure.nap_azure(arguments).output().unwrap();
    let output = run(&["check", "-o", "json"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let unknown = ["role-node-subnets", "role-api-server-subnet"];
    assert_eq!(ids(&document(&output), "unknown"), unknown);
    assert_eq!(run(&["check", "--allow-unknown"]).status.code(), Some(0));
}

#[test]
fn quota_is_checked_for_the_nodepools_of_a_file() {
    let azure = AzureServer::start("check-pools", |config| {
        config.faults.family_quota.insert("Standard NCASv3_T4 Family".to_owned(), 0);
    });
    let file = azure.path("gpu.yaml");
    let pool = r"
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: { name: gpu }
spec:
  template:
    spec:
      requirements:
        - { key: karpenter.sh/capacity-type, operator: In, values: [on-demand] }
        - { key: node.kubernetes.io/instance-type, operator: In, values: [Standard_NC4as_T4_v3] }
      nodeClassRef: { group: karpenter.azure.com, kind: AKSNodeClass, name: default }
";
    std::fs::write(&file, pool).unwrap();
    let check = |arguments: &[&str]| {
        azure.nap_azure(&[&["check", "-o", "json"], arguments].concat()).output().unwrap()
    };
    let without = check(&[]);
    assert_eq!(ids(&document(&without), "fail"), Vec::<&str>::new());
    assert_eq!(document(&without)["nodePools"], json!([]));
    let noted = text(&without.stderr);
    assert!(noted.starts_with("note: the quota rows are about the default NodePool: no cluster"));
    assert_eq!(noted.lines().count(), 1, "{noted}");
    let found = document(&check(&["-f", file.to_str().unwrap()]));
    assert_eq!(ids(&found, "fail"), ["quota-family"], "{found:#}");
    assert_eq!(found["nodePools"], json!(["gpu"]));
    assert!(ids(&found, "notApplicable").contains(&"quota-spot"), "{found:#}");
    let named = check(&["--kubeconfig", "/nowhere/config"]);
    assert_eq!(named.status.code(), Some(1));
    assert!(text(&named.stderr).starts_with("error: no cluster"), "{}", text(&named.stderr));
    std::fs::write(&file, "kind: ConfigMap\napiVersion: v1\nmetadata: { name: x }\n").unwrap();
    let refused = check(&["-f", file.to_str().unwrap()]);
    let error = text(&refused.stderr);
    assert!(error.starts_with("error: -f: there is no NodePool\nhint: "), "{error}");
}

#[test]
#[cfg_attr(no_kubectl, ignore = "there is no kubectl; `make controlplane` builds it")]
fn quota_is_checked_for_the_nodepools_of_the_cluster() {
    let azure = AzureServer::start("check-cluster", |config| {
        config.faults.family_quota.insert("Standard NCASv3_T4 Family".to_owned(), 0);
    });
    let cluster = Cluster::start(&["--no-controllers"]);
    let kubeconfig = cluster.kubeconfig.to_str().unwrap();
    let gpu = r#"[{"op": "replace", "path": "/spec/template/spec/requirements", "value": [
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
        {"key": "node.kubernetes.io/instance-type", "operator": "In",
         "values": ["Standard_NC4as_T4_v3"]}]}]"#;
    let document = || {
        let mut command = azure.nap_azure(&["check", "-o", "json"]);
        document(&command.env("KUBECONFIG", kubeconfig).output().unwrap())
    };
    let before = document();
    assert_eq!(before["nodePools"], json!(["default"]));
    assert_eq!(ids(&before, "fail"), Vec::<&str>::new());
    cluster.ok(&["patch", "nodepool", "default", "--type=json", "-p", gpu]);
    assert_eq!(ids(&document(), "fail"), ["quota-family"]);
}

#[test]
fn the_agent_pool_is_created_on_request() {
    let azure = AzureServer::start("check-pool", |config| {
        config.surroundings.machines_pool = false;
    });
    let check = |arguments: &[&str]| {
        azure.nap_azure(&[&["check", "-o", "json"], arguments].concat()).output().unwrap()
    };
    assert_eq!(ids(&document(&check(&[])), "fail"), ["agent-pool"]);
    let created = check(&["--create-pool"]);
    assert_eq!(created.status.code(), Some(0), "{}", text(&created.stderr));
    assert!(text(&created.stderr).contains("creating agent pool `aksmanagedap`"));
    assert_eq!(azure.emulator.requests()["PUT agentPools"], 1);
    let again = check(&["--create-pool"]);
    assert!(text(&again.stderr).contains("exists already"), "{}", text(&again.stderr));
    assert_eq!(azure.emulator.requests()["PUT agentPools"], 1);
    let bad = check(&["--create-pool", "--pool", "Bad_Name"]);
    let error = text(&bad.stderr);
    assert!(error.contains("AKS_MACHINES_POOL_NAME: `Bad_Name` is not"), "{error}");
}

#[test]
fn a_cluster_that_cannot_be_read_is_told_from_one_that_fails() {
    let azure = AzureServer::start("check-unreadable", |_| {});
    let output = azure.nap_azure(&["check", "--name", "other"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = text(&output.stderr);
    assert!(error.starts_with("error: cannot read the cluster: "), "{error}");
    assert!(error.contains("was not found") && error.contains("\nhint: "), "{error}");
    assert_eq!(error.lines().count(), 2, "{error}");
    let output = azure.nap_azure(&["check"]).env_remove("CLUSTER_NAME").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("`CLUSTER_NAME` is not set"));
}

#[test]
fn region_and_node_resource_group_are_taken_from_the_cluster() {
    let azure = AzureServer::start("check-derived", |_| {});
    let output = azure
        .nap_azure(&["check", "-g", "nap", "-n", "nap"])
        .env_remove("LOCATION")
        .env_remove("AZURE_NODE_RESOURCE_GROUP")
        .env_remove("ARM_RESOURCE_GROUP")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    let expected = "fix: set LOCATION=eastus AZURE_NODE_RESOURCE_GROUP=MC_nap_nap_eastus";
    assert!(table.contains(expected), "{table}");
}
