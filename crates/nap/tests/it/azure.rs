//! `nap azure` and sizes that are gone, as a user meets them.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::Stdio;

use nap_azure::embedded::{EmbeddedCatalogue, refresh};
use nap_sim::azure::SUBSCRIPTION;
use serde_json::Value;

use crate::azure_server::AzureServer;
use crate::errors::refused;
use crate::process::{Cluster, nap, output, text};

/// NodePool for GPU workloads as a published guide has it, with sizes that were retired since.
const GPU_POOL: &str = r#"
apiVersion: karpenter.sh/v1alpha5
kind: NodePool
metadata:
  name: gpu-workloads
spec:
  template:
    spec:
      requirements:
        - { key: karpenter.sh/capacity-type, operator: In, values: [on-demand] }
        - key: node.kubernetes.io/instance-type
          operator: In
          values: [Standard_NC6s_v3, Standard_NC12s_v3, Standard_NC24s_v3]
      nodeClassRef: { name: default }
      taints: [{ key: nvidia.com/gpu, value: "true", effect: NoSchedule }]
  limits: { cpu: "24", memory: 448Gi }
"#;

const GPU_POD: &str = r"
apiVersion: v1
kind: Pod
metadata: { name: train }
spec:
  tolerations: [{ key: nvidia.com/gpu, operator: Exists, effect: NoSchedule }]
  containers:
    - { name: c, image: example.com/train:1, resources: { limits: { nvidia.com/gpu: 1 }, requests: { cpu: 1 } } }
";

fn skus(arguments: &[&str]) -> String {
    let command = [&["azure", "skus"], arguments].concat();
    let found = output(&command);
    assert!(found.status.success(), "{}", text(&found.stderr));
    text(&found.stdout)
}

fn reason<'a>(document: &'a Value, name: &str) -> Option<&'a str> {
    let excluded = document["excluded"].as_array().unwrap();
    excluded.iter().find(|one| one["name"] == name).and_then(|one| one["reason"].as_str())
}

#[test]
fn skus_are_shown_with_price_zones_and_the_reason_of_each_exclusion() {
    let table =
        skus(&["--region", "East US", "--requirements", "karpenter.azure.com/sku-family=D"]);
    assert!(table.contains("sizes would be considered in eastus"), "{table}");
    assert!(table.contains("quota: not known without a login"), "{table}");
    assert!(table.contains("closed since 2026-07"), "{table}");
    assert!(table.contains("retired since 2025-09-30: Standard_NC12s_v3"), "{table}");
    let json = ["-o", "json", "--requirements", "karpenter.azure.com/sku-family=D"];
    let document: Value = serde_json::from_str(&skus(&json)).unwrap();
    let considered = document["considered"].as_array().unwrap();
    let d4 = considered.iter().find(|one| one["name"] == "Standard_D4s_v5").unwrap();
    assert_eq!(d4["onDemandUsdPerHour"], 0.192);
    assert_eq!(d4["zones"], serde_json::json!(["1", "2", "3"]));
    assert_eq!(document["prices"]["estimates"], serde_json::json!(["spotPrices", "zones"]));
    for (size, why) in [
        ("Standard_NC6s_v3", "retired since 2025-09-30"),
        ("Standard_E4s_v5", "excluded by the requirement on karpenter.azure.com/sku-family"),
        ("Standard_D1_v2", "fewer than 2 vCPUs"),
        ("Standard_B1s", "AKS does not accept it for nodes"),
    ] {
        assert_eq!(reason(&document, size), Some(why), "{size}");
    }
}

#[test]
fn with_a_login_sizes_prices_and_quota_are_those_of_the_subscription() {
    let azure = AzureServer::start("skus-live", |config| {
        config.sizes =
            ["Standard_D4s_v5", "Standard_D8s_v5", "Standard_E4s_v5"].map(str::to_owned).into();
        config.restrictions.insert("Standard_E4s_v5".to_owned(), Vec::new());
        config.faults.family_quota.insert("standardDSv5Family".to_owned(), 6);
    });
    let run = |more: &[&str]| {
        let command = [&["azure", "skus", "--subscription", SUBSCRIPTION], more].concat();
        let found = azure.nap(&command).output().unwrap();
        assert!(found.status.success(), "{}", text(&found.stderr));
        text(&found.stdout)
    };
    let names = "node.kubernetes.io/instance-type=Standard_D4s_v5|Standard_D8s_v5|Standard_E4s_v5|Standard_NC6s_v3|Standard_D2s_v5";
    let document: Value =
        serde_json::from_str(&run(&["-o", "json", "--requirements", names])).unwrap();
    let considered = document["considered"].as_array().unwrap();
    let shown: Vec<(&str, Option<i64>, Option<bool>)> = considered
        .iter()
        .map(|one| {
            let (left, within) = (one["quotaLeftVcpus"].as_i64(), one["withinQuota"].as_bool());
            (one["name"].as_str().unwrap(), left, within)
        })
        .collect();
    assert_eq!(
        shown,
        [("Standard_D4s_v5", Some(6), Some(true)), ("Standard_D8s_v5", Some(6), Some(false)),]
    );
    assert_eq!(considered[0]["onDemandUsdPerHour"], 0.192);
    assert_eq!(document["prices"]["estimates"], serde_json::json!([]));
    for (size, why) in [
        ("Standard_E4s_v5", "the subscription may not use it in the region"),
        ("Standard_NC6s_v3", "retired since 2025-09-30"),
        ("Standard_D2s_v5", "not listed for the subscription in the region"),
    ] {
        assert_eq!(reason(&document, size), Some(why), "{size}");
    }
    let table = run(&[]);
    assert!(table.contains("QUOTA LEFT") && table.contains("over quota"), "{table}");
    assert!(table.contains("Sizes, zones, prices and quota as Azure stated them at 20"), "{table}");
}

#[test]
fn skus_of_a_region_that_the_catalogue_lacks_are_those_of_the_subscription() {
    let azure = AzureServer::start_as("skus-gov", "usgovvirginia", |config| {
        config.sizes = ["Standard_D4s_v5".to_owned()].into();
    });
    let command = ["azure", "skus", "--subscription", SUBSCRIPTION, "--region", "usgovvirginia"];
    let found = azure.nap(&command).output().unwrap();
    let (table, notes) = (text(&found.stdout), text(&found.stderr));
    assert!(found.status.success(), "{notes}");
    assert!(table.contains("1 sizes would be considered in usgovvirginia"), "{table}");
    assert!(table.contains("~$0.192") && table.contains("vCPUs left for spot"), "{table}");
    assert!(notes.contains("note: the price API has no answer: built-in list prices"), "{notes}");
}

#[test]
fn bad_options_of_skus_are_refused_in_one_line() {
    let error = refused(&["azure", "skus", "--region", "eatsus"]);
    assert!(error.contains("no region `eatsus`") && error.contains("eastus"), "{error}");
    let error = refused(&["azure", "skus", "--requirements", "karpenter.azure.com/sku-family"]);
    assert!(error.contains("--requirements: `karpenter.azure.com/sku-family` is not"), "{error}");
    let error = refused(&["azure", "skus", "-f", "/nowhere.yaml"]);
    assert!(error.contains("/nowhere.yaml: cannot be read"), "{error}");
    let error = refused(&["azure", "catalogue", "refresh", "--region", "eastus", "--folder", "x"]);
    assert!(error.contains("--subscription: the list of sizes needs one"), "{error}");
}

#[test]
fn skus_take_the_requirements_of_a_nodepool() {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("skus-gpu.yaml");
    std::fs::write(&file, GPU_POOL).unwrap();
    let table = skus(&["-f", file.to_str().unwrap()]);
    assert!(table.starts_with("0 sizes would be considered in eastus"), "{table}");
    let encrypted = "\napiVersion: karpenter.azure.com/v1beta1\nkind: AKSNodeClass\n\
                     metadata: { name: default }\nspec: { security: { encryptionAtHost: true } }\n";
    let pool = GPU_POOL.replace("Standard_NC6s_v3", "Standard_NC4as_T4_v3");
    std::fs::write(&file, format!("{pool}---{encrypted}")).unwrap();
    let table = skus(&["-f", file.to_str().unwrap()]);
    assert!(table.starts_with("1 sizes would be considered in eastus"), "{table}");
    assert!(table.contains("encryption at host estimated"), "{table}");
    std::fs::write(&file, GPU_POOL).unwrap();
    let lint = output(&["lint", "-f", file.to_str().unwrap()]);
    let said = text(&lint.stdout);
    assert!(!lint.status.success());
    assert!(said.contains("`Standard_NC6s_v3` is not offered in eastus: retired"), "{said}");
    assert!(said.contains("instead serve `Standard_NC4as_T4_v3` ($0.526/h)"), "{said}");
    assert!(said.contains("no size that it names is offered"), "{said}");
}

#[test]
#[cfg_attr(no_kubectl, ignore = "there is no kubectl; `make controlplane` builds it")]
fn a_refresh_says_what_changed_and_plans_can_use_it() {
    let cluster = Cluster::start(&["--no-controllers", "--retired-sizes"]);
    let base = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("catalogue-base");
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("catalogue-new");
    std::fs::create_dir_all(&base).unwrap();
    // The region of the emulator sells D4s_v5 at $0.192; the base says more.
    let [(_, skus), (_, prices), (_, regions)] = EmbeddedCatalogue::embedded().to_files();
    let row = prices.lines().find(|line| line.starts_with("Standard_D4s_v5,")).unwrap();
    let other = prices.replace(row, &row.replace(",0.192", ",0.3"));
    let catalogue = EmbeddedCatalogue::parse(&skus, &other, &regions).unwrap();
    refresh::write_files(&catalogue, &base).unwrap();
    let environment = cluster.environment();
    let endpoint = &environment["NAP_ARM_ENDPOINT"];
    let refreshed = nap(&["azure", "catalogue", "refresh", "--region", "East US"])
        .args(["--folder", folder.to_str().unwrap(), "--catalogue", base.to_str().unwrap()])
        .args(["--subscription", &environment["ARM_SUBSCRIPTION_ID"]])
        .args(["--arm-endpoint", endpoint, "--prices-endpoint", endpoint])
        .envs(environment.iter().filter(|(name, _)| !name.starts_with("NAP_")))
        .output()
        .unwrap();
    let said = text(&refreshed.stdout);
    assert!(refreshed.status.success(), "{said}{}", text(&refreshed.stderr));
    assert!(said.contains("Standard_NC6s_v3") && said.contains("added ("), "{said}");
    assert!(said.contains("Standard_D4s_v5 $0.300 -> $0.192"), "{said}");
    assert!(!said.contains("removed ("), "{said}");
    let folder = folder.to_str().unwrap();
    let table =
        self::skus(&["--catalogue", folder, "--requirements", "karpenter.azure.com/sku-family=N"]);
    assert!(table.contains("\nStandard_NC6s_v3 ") && !table.contains('~'), "{table}");
    assert!(table.contains("Prices and zones as Azure stated them on 20"), "{table}");
    drop(cluster);
}

#[test]
#[cfg_attr(no_kubectl, ignore = "there is no kubectl; `make controlplane` builds it")]
fn a_guide_with_retired_gpu_sizes_can_be_followed() {
    let cluster = Cluster::start(&["--retired-sizes"]);
    cluster.apply(GPU_POOL);
    cluster.apply(GPU_POD);
    let running = ["get", "pods", "--field-selector=status.phase=Running", "-o", "name"];
    cluster.until("the pod runs", &running, |text| text.contains("pod/train"));
    let sizes = [
        "get",
        "nodes",
        "-o",
        "jsonpath={.items[*].metadata.labels.node\\.kubernetes\\.io/instance-type}",
    ];
    assert_eq!(cluster.ok(&sizes).trim(), "Standard_NC6s_v3");
    let farewell = cluster.stop();
    assert!(farewell.contains("1 VM(s) created"), "{farewell}");
}

#[test]
#[cfg_attr(no_kubectl, ignore = "there is no kubectl; `make controlplane` builds it")]
fn nap_starts_beside_managed_node_auto_provisioning_only_to_take_over() {
    let cluster = Cluster::start(&["--no-controllers"]);
    let azure = AzureServer::start("managed", |config| {
        let properties = &mut config.surroundings.cluster["properties"];
        properties["nodeProvisioningProfile"] = serde_json::json!({ "mode": "Auto" });
    });
    let kubeconfig = cluster.kubeconfig.to_str().unwrap();
    let ports = ["--metrics-port=0", "--health-probe-port=0"];
    let run = [&["run", "--kubeconfig", kubeconfig], &ports[..]].concat();
    let refused = azure.nap(&run).output().unwrap();
    let error = text(&refused.stderr);
    assert!(!refused.status.success(), "{error}");
    assert!(error.contains("error: AKS runs node auto-provisioning in this cluster"), "{error}");
    assert!(error.contains("hint: ") && error.contains("--take-over"), "{error}");

    // A cluster that does not exist is a wrong setting, not an outage.
    let wrong = azure.nap(&run).env("CLUSTER_NAME", "another").output().unwrap();
    let error = text(&wrong.stderr);
    assert!(!wrong.status.success() && error.contains("cannot tell whether AKS runs"), "{error}");
    assert!(error.contains("hint: `nap azure check`"), "{error}");

    let mut command = azure.nap(&[&run[..], &["--take-over"]].concat());
    command.env("NAP_LOG", "info,kube_client=off");
    let mut started = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let lines = BufReader::new(started.stdout.take().unwrap()).lines().map_while(Result::ok);
    let log: Vec<String> = lines.take_while(|line| !line.contains("starting")).collect();
    let runs = started.try_wait().unwrap().is_none();
    started.kill().unwrap();
    started.wait().unwrap();
    assert!(runs, "{log:?}");
}
