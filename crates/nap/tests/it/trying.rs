//! `nap try` on a real control plane and beside a cluster that exists.

use std::io::{BufRead as _, Write as _};
use std::process::Stdio;

use crate::errors::refused;
use crate::process::{Cluster, Process, get, nap};

const INFLATE: &str = include_str!("../../../../examples/inflate.yaml");
const RUNNING: [&str; 5] = ["get", "pods", "--field-selector=status.phase=Running", "-o", "name"];
const NODES: [&str; 4] = ["get", "nodes", "-o", "name"];

#[test]
#[cfg_attr(no_control_plane, ignore = "there is no control plane; `make controlplane` builds it")]
fn real_control_plane_scales_up_and_ends_without_a_trace() {
    let cluster = Cluster::start_in_real_time(&["--control-plane", "real", "--vm-delays", "0.1"]);
    cluster.apply(INFLATE);
    cluster.until("10 pods run", &RUNNING, |text| text.lines().count() == 10);
    let version =
        cluster.ok(&["get", "nodes", "-o", "jsonpath={.items[*].status.nodeInfo.kubeletVersion}"]);
    assert!(version.contains("v1.3"), "{version}");
    cluster.ok(&["scale", "deployment", "inflate", "--replicas=0"]);
    cluster.until("no node is left", &NODES, |text| text.trim().is_empty());
    let farewell = cluster.stop();
    assert!(farewell.contains("0 left"), "{farewell}");
}

#[test]
#[cfg_attr(no_kubectl, ignore = "there is no kubectl; `make controlplane` builds it")]
fn cluster_with_an_aks_node_is_refused() {
    let cluster = Cluster::start(&["--no-controllers"]);
    cluster.apply(
        "apiVersion: v1\nkind: Node\nmetadata:\n  name: aks-system-1\n  labels:\n    kubernetes.azure.com/agentpool: system\n",
    );
    let kubeconfig = cluster.kubeconfig.to_str().unwrap();
    let error = refused(&["try", "--kubeconfig", kubeconfig]);
    assert!(error.contains("`aks-system-1`") && error.contains("--force"), "{error}");
}

#[test]
#[cfg_attr(no_kubectl, ignore = "there is no kubectl; `make controlplane` builds it")]
fn emulator_runs_beside_a_cluster_and_creates_no_nodepool() {
    let theirs = Cluster::start_in_real_time(&["--no-controllers", "--default-nodepool=false"]);
    let kubeconfig = theirs.kubeconfig.to_str().unwrap();
    let beside = Cluster::start_beside(&["--kubeconfig", kubeconfig, "--vm-delays", "0.05"]);
    assert_eq!(theirs.ok(&["get", "nodepools,aksnodeclasses", "-o", "name"]).trim(), "");
    theirs.apply(include_str!("../../../../examples/default-nodepool.yaml"));
    theirs.apply(INFLATE);
    theirs.until("10 pods run", &RUNNING, |text| text.lines().count() == 10);
    let farewell = beside.stop();
    assert!(farewell.contains("stay in your cluster"), "{farewell}");
    // The nodes that it left are no AKS nodes: a new one is not refused.
    Cluster::start_beside(&["--kubeconfig", kubeconfig, "--no-controllers"]).stop();
}

#[test]
fn a_typed_line_injects_a_fault() {
    let mut command = nap(&["try", "--no-controllers", "--speed", "30"]);
    let mut process = Process::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let (mut input, output) = process.pipes();
    let mut lines = output.lines().map_while(Result::ok);
    let mut until = |part: &str| lines.find(|line| line.contains(part)).expect(part);
    let sourced = until("set -a; . ");
    let file =
        sourced.trim().strip_prefix("set -a; . ").and_then(|rest| rest.strip_suffix("; set +a"));
    until("Ctrl-C ends it");
    let environment = std::fs::read_to_string(file.unwrap()).unwrap();
    let endpoint = environment.lines().find_map(|line| line.strip_prefix("NAP_ARM_ENDPOINT="));
    let port: u16 = endpoint.unwrap().rsplit(':').next().unwrap().parse().unwrap();
    let prices = || get(port, "/api/retail/prices").map(|(status, _)| status);
    assert_eq!(prices(), Some(200));
    writeln!(input, "noPrices: {{}}").unwrap();
    until("fault: scheduled");
    assert_eq!(prices(), Some(503));
    writeln!(input, "noPrises: {{}}").unwrap();
    assert!(until("fault: not understood").contains("noPrices"), "the known ones are named");
    writeln!(input, "clear").unwrap();
    until("fault: all ended");
    assert_eq!(prices(), Some(200));
    drop(input);
    process.kill();
}

/// What a user stores: a time as data, and a workload with times in its template.
const TIMES: &str = "
apiVersion: v1
kind: ConfigMap
metadata:
  name: times
  annotations: { seen: '2026-01-01T00:00:00Z' }
data: { when: '2026-01-01T00:00:00Z' }
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: times
spec:
  selector: { matchLabels: { app: times } }
  template:
    metadata:
      labels: { app: times }
      annotations: { since: '2026-01-01T00:00:00Z' }
    spec:
      containers:
        - name: main
          image: pause:3.9
          env: [{ name: SINCE, value: '2026-01-01T00:00:00Z' }]
";

#[test]
#[cfg_attr(no_kubectl, ignore = "there is no kubectl; `make controlplane` builds it")]
fn data_that_is_a_time_stays_at_any_speed() {
    let cluster = Cluster::start(&["--no-controllers"]);
    cluster.apply(TIMES);
    let pods = ["get", "replicasets", "-l", "app=times", "-o", "name"];
    cluster.until("there is a ReplicaSet", &pods, |text| text.lines().count() == 1);
    let again = cluster.apply(TIMES);
    assert_eq!(again.matches("unchanged").count(), 2, "{again}");
    let manifest = cluster.write("times.yaml", TIMES);
    cluster.ok(&["diff", "-f", &manifest]);
    for object in ["configmap/times", "deployment/times"] {
        let stored = cluster.ok(&["get", object, "-o", "yaml"]);
        assert!(stored.contains("2026-01-01T00:00:00Z"), "{stored}");
        assert!(!stored.contains("2025-"), "{stored}");
        let file = cluster.write("stored.yaml", &stored);
        cluster.ok(&["replace", "-f", &file]);
    }
    let when = cluster.ok(&["get", "configmap", "times", "-o", "jsonpath={.data.when}"]);
    assert_eq!(when, "2026-01-01T00:00:00Z");
    let generation = ["get", "deployment", "times", "-o", "jsonpath={.metadata.generation}"];
    assert_eq!(cluster.ok(&generation), "1", "nothing rolls out");
    // Ages are right nevertheless.
    let description = cluster.ok(&["describe", "pods"]);
    let created = cluster.ok(&["get", "deployment", "times", "-o", CREATED]);
    let created: jiff::Timestamp = created.parse().unwrap();
    assert!(created <= nap_clock::Clock::wall().now(), "{created}");
    assert!(!description.contains("<invalid>"), "{description}");
}

const CREATED: &str = "jsonpath={.metadata.creationTimestamp}";
