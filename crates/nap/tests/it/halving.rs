//! Consolidation on a real control plane: a fleet whose nodes are half empty reaches its packing
//! in minutes, all at once where the budget allows it, and no pod is lost on the way.

use std::time::Duration;

use crate::process::Cluster;

/// Two pods fill a node of the only size.
const PODS: &str = r"
apiVersion: apps/v1
kind: Deployment
metadata: { name: inflate }
spec:
  replicas: 154
  selector: { matchLabels: { app: inflate } }
  template:
    metadata: { labels: { app: inflate } }
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - name: app
          image: example.com/app:1
          resources: { requests: { cpu: 1500m } }
";

const POOL: &str = r#"{"spec":{
    "disruption": {"consolidateAfter": "0s", "budgets": [{"nodes": "100%"}]},
    "template": {"spec": {"requirements": [
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
        {"key": "node.kubernetes.io/instance-type", "operator": "In",
         "values": ["Standard_D4as_v5"]}
    ]}}
}}"#;

const NODES: [&str; 4] = ["get", "nodes", "-o", "name"];
const READY: [&str; 4] = ["get", "deployment", "inflate", "-o=jsonpath={.status.readyReplicas}"];

fn lines(text: &str) -> usize {
    text.lines().count()
}

#[test]
#[cfg_attr(no_control_plane, ignore = "there is no control plane; `make controlplane` builds it")]
fn seventy_seven_half_empty_nodes_reach_their_packing() {
    let arguments = ["--control-plane", "real", "--vm-delays", "0.1"];
    let cluster = Cluster::start_in_real_time(&arguments);
    cluster.ok(&["patch", "nodepool", "default", "--type=merge", "-p", POOL]);
    cluster.apply(PODS);
    let patience = Duration::from_mins(5);
    cluster.until_within(patience, "all pods run", &READY, |ready| ready == "154");
    assert_eq!(lines(&cluster.ok(&NODES)), 77);

    // The ReplicaSet controller ends pods of nodes with several of them first.
    cluster.ok(&["scale", "deployment", "inflate", "--replicas=77"]);
    cluster.until_within(patience, "half of the pods are gone", &READY, |ready| ready == "77");
    assert!(lines(&cluster.ok(&NODES)) > 60, "nodes went before they were half empty");
    cluster.until_within(patience, "two pods a node", &NODES, |nodes| lines(nodes) == 39);
    cluster.until("all pods run", &READY, |ready| ready == "77");

    // The last step of the tutorial: what is left fits on one node.
    cluster.ok(&["scale", "deployment", "inflate", "--replicas=2"]);
    cluster.until_within(patience, "one node", &NODES, |nodes| lines(nodes) == 1);
    cluster.until("both pods run", &READY, |ready| ready == "2");
    let bill = cluster.stop();
    assert!(bill.contains("77 VM(s) created"), "{bill}");
}
