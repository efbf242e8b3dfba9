//! `nap disable --wait` on a real control plane, with a PodDisruptionBudget that holds a node until
//! it is lifted.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use crate::process::{Cluster, nap};

const INFLATE: &str = include_str!("../../../../examples/inflate.yaml");
const POOL: &str = include_str!("../../../../examples/default-nodepool.yaml");

const BUDGET: &str = r"
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: { name: inflate, namespace: default }
spec:
  maxUnavailable: 0
  selector: { matchLabels: { app: inflate } }
";

/// A node outside of every NodePool with room for all pods, in place of a fixed agent pool.
const FIXED: &str = r"
apiVersion: karpenter.sh/v1
kind: NodeClaim
metadata: { name: fixed }
spec:
  nodeClassRef: { group: karpenter.azure.com, kind: AKSNodeClass, name: default }
  requirements:
    - { key: node.kubernetes.io/instance-type, operator: In, values: [Standard_D32s_v5] }
    - { key: karpenter.sh/capacity-type, operator: In, values: [on-demand] }
";

#[test]
#[cfg_attr(no_control_plane, ignore = "there is no control plane; `make controlplane` builds it")]
fn a_budget_holds_a_node_until_it_is_lifted() {
    let cluster = Cluster::start_in_real_time(&["--control-plane=real", "--vm-delays=0.1"]);
    cluster.apply(&POOL.replace("10%", "100%"));
    cluster.apply(INFLATE);
    let available = ["get", "deployment", "inflate", "-o=jsonpath={.status.availableReplicas}"];
    cluster.until("ten pods run", &available, |seen| seen == "10");
    cluster.apply(BUDGET);
    cluster.apply(FIXED);
    let path = "-o=jsonpath={.status.conditions[?(@.type==\"Initialized\")].status}";
    let fixed = ["get", "nodeclaim", "fixed", path];
    cluster.until("another node has room", &fixed, |seen| seen == "True");
    let of_pools = ["get", "nodes", "-l=karpenter.sh/nodepool", "-o=name"];
    let nodes = cluster.ok(&of_pools);
    assert!(!nodes.is_empty());

    let kubeconfig = cluster.kubeconfig.to_str().expect("text");
    let arguments = ["disable", "--wait", "--timeout=5m", "--kubeconfig", kubeconfig];
    let mut child = nap(&arguments).stdout(Stdio::piped()).spawn().expect("nap starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut said: Vec<String> = Vec::new();
    let mut read_until = |part: &str| loop {
        let line = lines.next().unwrap_or_else(|| panic!("no `{part}`: {said:#?}")).expect("text");
        said.push(line);
        if said.last().is_some_and(|line| line.contains(part)) {
            return said.clone();
        }
    };
    read_until("nodepool default: limits.cpu is 0 and nodes are tainted");
    let held = read_until("default/inflate");
    assert!(held.iter().any(|line| line.contains("(default): ")), "{held:#?}");
    std::thread::sleep(std::time::Duration::from_secs(20));
    assert_eq!(cluster.ok(&of_pools), nodes, "the budget holds the nodes");
    assert_eq!(cluster.ok(&available), "10", "nothing that runs is disturbed");

    cluster.ok(&["delete", "pdb", "inflate"]);
    let gone = read_until("no node of a NodePool is left");
    let count = gone.iter().filter(|line| line.ends_with(": gone")).count();
    assert_eq!(count, nodes.lines().count(), "{gone:#?}");
    assert!(child.wait().expect("it ends").success());
    cluster.until("ten pods run elsewhere", &available, |seen| seen == "10");
    assert!(cluster.ok(&of_pools).is_empty());
    assert_eq!(cluster.ok(&["get", "nodeclaims", "-o=name"]).lines().count(), 1, "the fixed one");
}
