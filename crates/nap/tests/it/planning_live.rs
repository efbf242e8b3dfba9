//! `nap plan` and `nap explain` with the sizes, prices and quota of a subscription, as a process
//! against the emulator.

use std::process::{Command, Output};

use nap_sim::azure::SUBSCRIPTION;
use serde_json::{Value, json};

use crate::azure_server::AzureServer;
use crate::process::{Cluster, nap, text};

const POOL: &str = "
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: { name: only }
spec:
  template:
    spec:
      nodeClassRef: { group: karpenter.azure.com, kind: AKSNodeClass, name: default }
      requirements:
        - { key: karpenter.sh/capacity-type, operator: In, values: [CAPACITY] }
        - { key: karpenter.azure.com/sku-family, operator: In, values: [D] }
---
apiVersion: apps/v1
kind: Deployment
metadata: { name: web }
spec:
  replicas: 2
  selector: { matchLabels: { app: web } }
  template:
    metadata: { labels: { app: web } }
    spec:
      containers: [{ name: c, image: i, resources: { requests: { cpu: 1200m } } }]
";

/// A manifest with a pool of one capacity type and two pods of 1.2 cores.
fn manifest(azure: &AzureServer, capacity_type: &str) -> String {
    let file = azure.path("manifest.yaml");
    std::fs::write(&file, POOL.replace("CAPACITY", capacity_type)).unwrap();
    file.to_str().unwrap().to_owned()
}

fn document(output: &Output) -> Value {
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_str(&text(&output.stdout)).unwrap()
}

fn size(document: &Value) -> &Value {
    &document["launches"][0]["instanceType"]
}

/// The error and its hint, one line each.
fn refused(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let error = text(&output.stderr);
    assert!(!output.status.success(), "{}", text(&output.stdout));
    assert!(error.starts_with("error: ") && error.contains("\nhint: "), "{error}");
    assert_eq!(error.trim_end().lines().count(), 2, "{error}");
    error
}

#[test]
fn sizes_prices_and_quota_are_those_of_the_subscription() {
    let azure = AzureServer::start("plan-live", |config| {
        config.sizes = ["Standard_D8s_v5", "Standard_D16s_v5"].map(str::to_owned).into();
        config.regional_quota = 8;
    });
    let file = manifest(&azure, "on-demand");
    let plan = ["plan", "-f", &file, "-o", "json"];
    let live = azure.nap(&[&plan[..], &["--subscription", SUBSCRIPTION]].concat());
    let live = document(&{ live }.output().unwrap());
    assert_eq!(size(&live), "Standard_D8s_v5");
    assert_eq!(live["catalogue"]["source"], "live");
    assert_eq!(live["catalogue"]["hasQuota"], true);
    assert!(live["catalogue"]["time"].as_str().unwrap().ends_with('Z'), "{live}");
    assert_eq!(live["prices"]["estimates"], json!([]));
    assert_eq!(live["prices"]["region"], "eastus");
    let d16 = live["launches"][0]["alternatives"].as_array().unwrap();
    assert!(!d16.iter().any(|one| one["instanceType"] == "Standard_D16s_v5"), "over quota: {live}");

    // The environment alone does not change a plan of manifests.
    let built_in = document(&azure.nap(&plan).output().unwrap());
    assert_ne!(size(&built_in), "Standard_D8s_v5");
    assert_eq!(
        built_in["catalogue"],
        json!({ "source": "builtIn", "time": null, "hasQuota": false })
    );

    let explain = ["explain", "pod", "web", "-f", &file, "--subscription", SUBSCRIPTION];
    let explained = text(&azure.nap(&explain).output().unwrap().stdout);
    assert!(explained.contains("Standard_D8s_v5"), "{explained}");
    assert!(
        explained.contains("Sizes, zones, prices and quota as Azure stated them at 20"),
        "{explained}"
    );
}

#[test]
fn vms_that_exceed_the_quota_only_together_are_noted() {
    let azure = AzureServer::start("plan-quota", |config| {
        config.sizes = ["Standard_D2s_v5".to_owned()].into();
        config.regional_quota = 3;
    });
    let file = manifest(&azure, "on-demand");
    let plan = ["plan", "-f", &file, "--subscription", SUBSCRIPTION];
    let output = azure.nap(&plan).output().unwrap();
    let notes = text(&output.stderr);
    assert!(notes.contains("exceed the quota `cores` by 1 vCPUs"), "{notes}");
}

#[test]
fn launches_are_split_over_the_families_that_have_quota() {
    let azure = AzureServer::start("plan-split", |config| {
        config.sizes = ["Standard_D2s_v5", "Standard_D2as_v5"].map(str::to_owned).into();
        config.faults.family_quota.insert("standardDASv5Family".to_owned(), 3);
    });
    let file = manifest(&azure, "on-demand");
    let plan = ["plan", "-f", &file, "-o", "json", "--subscription", SUBSCRIPTION];
    let output = azure.nap(&plan).output().unwrap();
    let found = document(&output);
    let launches = found["launches"].as_array().unwrap();
    let mut sizes: Vec<&str> =
        launches.iter().filter_map(|one| one["instanceType"].as_str()).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, ["Standard_D2as_v5", "Standard_D2s_v5"], "{found:#}");
    assert!(!text(&output.stderr).contains("exceed the quota"), "{}", text(&output.stderr));
}

#[test]
fn a_price_api_that_fails_leaves_built_in_list_prices() {
    let azure = AzureServer::start("plan-unpriced", |_| {});
    let file = manifest(&azure, "spot");
    let plan = ["plan", "-f", &file, "-o", "json", "--subscription", SUBSCRIPTION];
    let nowhere = azure.cloud_file();
    let arm: Value = serde_json::from_slice(&std::fs::read(nowhere).unwrap()).unwrap();
    let prices = format!("{}/nothing", arm["resourceManagerEndpoint"].as_str().unwrap());
    let output = azure.nap(&plan).args(["--prices-endpoint", &prices]).output().unwrap();
    let notes = text(&output.stderr);
    assert!(notes.contains("the price API has no answer for `eastus`"), "{notes}");
    let found = document(&output);
    assert_eq!(found["catalogue"]["source"], "live");
    assert_eq!(found["prices"]["estimates"], json!(["spotPrices"]), "zones are Azure's");
    assert_eq!(found["launches"][0]["priceIsEstimate"], true);
}

#[test]
fn a_region_without_prices_is_planned_with_estimates() {
    let azure = AzureServer::start_as("plan-sovereign", "usgovvirginia", |_| {});
    let file = manifest(&azure, "on-demand");
    let plan = ["plan", "-f", &file, "--region", "USGov Virginia", "--subscription", SUBSCRIPTION];
    let output = azure.nap(&plan).output().unwrap();
    let (table, notes) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{notes}");
    let warning = "there are no prices of `usgovvirginia`: those of eastus are used as estimates";
    assert_eq!(notes.matches(warning).count(), 1, "{notes}");
    assert!(table.contains("in usgovvirginia for 2 pods: ~$"), "{table}");
    assert!(table.contains("~ marks estimated prices: list prices of eastus."), "{table}");
    let found = document(&azure.nap(&[&plan[..], &["-o", "json"]].concat()).output().unwrap());
    assert_eq!(found["launches"][0]["zone"], "usgovvirginia-1");
    assert_eq!(found["launches"][0]["priceIsEstimate"], true);
    assert_eq!(found["prices"]["estimates"], json!(["listPrices", "spotPrices"]));
    assert_eq!(found["prices"]["region"], "eastus");
}

#[test]
fn a_failed_login_is_one_line_that_names_what_was_tried() {
    let azure = AzureServer::start("plan-login", |_| {});
    let file = manifest(&azure, "on-demand");
    let plan = ["plan", "-f", &file, "--subscription", SUBSCRIPTION];
    let error = refused(azure.nap(&plan).env("AZURE_FEDERATED_TOKEN_FILE", "/nowhere/token"));
    assert!(error.contains("workload identity") && error.contains("/nowhere/token"), "{error}");
    assert!(error.contains("hint: log in") && error.contains("--offline"), "{error}");
    let error = refused(azure.nap(&plan).args(["--region", "usgovvirginia"]));
    assert!(error.contains("`usgovvirginia`") && error.contains("hint: check --region"), "{error}");
    let mut laptop = azure.nap(&plan);
    laptop.env_remove("AZURE_FEDERATED_TOKEN_FILE").env("NAP_IMDS_ENDPOINT", "http://127.0.0.1:1");
    let error = refused(&mut laptop);
    assert!(
        error.contains("managed identity: ") && error.contains("Azure CLI: `az` is not on"),
        "{error}"
    );
}

#[test]
fn a_file_or_a_name_describes_the_cloud() {
    let azure = AzureServer::start("plan-cloud", |_| {});
    let file = manifest(&azure, "on-demand");
    let plan = ["plan", "-f", &file, "-o", "json", "--subscription", SUBSCRIPTION];
    let cloud = azure.cloud_file();
    let of_file = |arguments: &[&str]| {
        let mut command = azure.nap(arguments);
        command.env_remove("NAP_ARM_ENDPOINT").env_remove("AZURE_AUTHORITY_HOST");
        command.env("AZURE_ENVIRONMENT_FILEPATH", &cloud);
        command
    };
    assert_eq!(document(&of_file(&plan).output().unwrap())["catalogue"]["source"], "live");
    let skus = of_file(&["azure", "skus"]).output().unwrap();
    assert!(text(&skus.stdout).contains("quota: as Azure states it now"), "{}", text(&skus.stderr));
    let check = of_file(&["azure", "check"]).output().unwrap();
    assert!(text(&check.stdout).contains("Cluster `"), "{}", text(&check.stderr));
    let error = refused(azure.nap(&plan).env("ARM_CLOUD", "AzureMoonCloud"));
    assert!(error.contains("`ARM_CLOUD`") && error.contains("`AzureChinaCloud`"), "{error}");
    let error = refused(of_file(&plan).env("AZURE_ENVIRONMENT_FILEPATH", "/nowhere/cloud.json"));
    assert!(error.contains("/nowhere/cloud.json"), "{error}");
}

#[test]
fn a_folder_and_a_subscription_are_refused_together() {
    let folder = env!("CARGO_TARGET_TMPDIR");
    let manifests = format!("{}/../../examples/inflate.yaml", env!("CARGO_MANIFEST_DIR"));
    let both = ["plan", "-f", &manifests, "--catalogue", folder, "--subscription", "s"];
    let error = refused(&mut nap(&both));
    assert!(error.contains("--subscription") && error.contains("--catalogue"), "{error}");
}

#[test]
fn a_cluster_is_planned_with_the_subscription_of_the_environment() {
    let cluster = Cluster::start(&["--no-controllers"]);
    let plan = |arguments: &[&str]| {
        let mut command = nap(&["plan", "-o", "json", "--kubeconfig"]);
        command.arg(&cluster.kubeconfig).args(arguments);
        command
    };
    let live = plan(&[]).envs(cluster.environment()).output().unwrap();
    assert_eq!(document(&live)["catalogue"]["source"], "live");
    let offline = plan(&["--offline"]).envs(cluster.environment()).output().unwrap();
    assert_eq!(document(&offline)["catalogue"]["source"], "builtIn");
    let nameless = plan(&[]).output().unwrap();
    assert_eq!(document(&nameless)["catalogue"]["source"], "builtIn");
    let notes = text(&nameless.stderr);
    assert!(notes.contains("no subscription is named") && notes.contains("of 2026-"), "{notes}");
}

const ONE_SIZE: &str = "
apiVersion: v1
kind: Pod
metadata: { name: picky, namespace: default }
spec:
  nodeSelector: { node.kubernetes.io/instance-type: Standard_D4s_v5 }
  containers: [{ name: c, image: example.com/app:1, resources: { requests: { cpu: 1 } } }]
";

#[test]
#[cfg_attr(no_kubectl, ignore = "there is no kubectl; `make controlplane` builds it")]
fn offerings_that_azure_lately_refused_are_left_out_of_a_plan_of_the_cluster() {
    let cluster = Cluster::start(&["--no-controllers"]);
    cluster.apply(ONE_SIZE);
    let pod = ["get", "pod", "picky", "-o", "yaml"];
    cluster.until("the pod waits", &pod, |text| text.contains("reason: Unschedulable"));
    let run = |arguments: &[&str]| {
        let mut command = nap(arguments);
        command.arg("--offline").arg("--kubeconfig").arg(&cluster.kubeconfig);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        output
    };
    let before = document(&run(&["plan", "-o", "json"]));
    assert_eq!((size(&before), &before["leftOut"]), (&json!("Standard_D4s_v5"), &json!([])));

    let mark = |size: Option<&str>, zone: &str, until: &str| {
        let family = size.map_or(Some("standarddsv5family"), |_| None);
        json!({
            "instanceType": size, "family": family, "minVcpus": family.map(|_| 4), "zone": zone,
            "capacityType": "on-demand", "unavailableUntil": until, "failures": 1,
            "lifetimeSeconds": 3600, "cause": if size.is_some() { "quota" } else { "capacity" },
        })
    };
    let (soon, late) = ("2099-01-01T00:00:00Z", "2099-02-03T04:05:06.789Z");
    let marks = [
        mark(Some("Standard_D4s_v5"), "eastus-1", soon),
        mark(None, "eastus-2", late),
        mark(None, "eastus-3", late),
        mark(None, "0", late),
        mark(Some("Standard_D2s_v5"), "eastus-1", "2020-01-01T00:00:00Z"),
    ];
    let memory = json!({ "offerings": marks }).to_string();
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": { "memory.json": memory },
        "metadata": { "name": "nap-capacity-memory", "namespace": "kube-system" },
    });
    cluster.apply(&map.to_string());

    let after = document(&run(&["plan", "-o", "json"]));
    assert_eq!(after["launches"], json!([]), "{after}");
    let left_out = after["leftOut"].as_array().unwrap();
    assert_eq!(left_out.len(), 4, "one mark has expired: {left_out:?}");
    assert_eq!(left_out[0]["until"], soon, "the first to be tried again is first");
    let table = text(&run(&["plan"]).stdout);
    for part in [
        "Left out for now",
        "Azure has no capacity:",
        "sizes of standarddsv5family with 4 or more vCPUs on-demand without a zone until 2099-02-03",
        "quota is used up:",
        "Standard_D4s_v5 on-demand in eastus-1 until 2099-01-01T00:00:00Z",
    ] {
        let joined = table.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(joined.contains(part), "{part}: {table}");
    }
    let why = text(&run(&["explain", "pod", "default/picky"]).stdout);
    let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "0 available at present",
        "4 offerings that would hold it are left out for now:",
        "until 2099-01-01T00:00:00Z: Standard_D4s_v5 on-demand in eastus-1 (quota is used up)",
        "until 2099-02-03T04:05:06Z: Standard_D4s_v5 on-demand without a zone and 2 others (Azure \
         has no capacity)",
    ] {
        assert!(why.contains(part), "{part}: {why}");
    }

    let broken = json!({ "data": { "memory.json": "{" } }).to_string();
    cluster.ok(&["-n", "kube-system", "patch", "cm", "nap-capacity-memory", "-p", &broken]);
    let output = run(&["plan", "-o", "json"]);
    assert_eq!(size(&document(&output)), "Standard_D4s_v5", "a plan is made without it");
    let notes = text(&output.stderr);
    assert!(notes.contains("ConfigMap `nap-capacity-memory`: `memory.json`"), "{notes}");
}
