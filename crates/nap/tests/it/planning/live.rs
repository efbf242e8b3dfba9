//! `nap plan` and `nap explain` on a live cluster.

use super::folder;
use crate::process::{Cluster, nap, text};

#[test]
#[cfg_attr(no_kubectl, ignore = "there is no kubectl; `make controlplane` builds it")]
fn plan_of_a_live_cluster_writes_nothing() {
    let cluster = Cluster::start(&["--no-controllers"]);
    cluster.apply(include_str!("../../../../../examples/inflate.yaml"));
    let waiting = ["get", "pods", "-o", "jsonpath={.items[*].status.conditions[*].reason}"];
    cluster.until("10 pods wait", &waiting, |text| text.matches("Unschedulable").count() == 10);
    let before = cluster.ok(&["get", "nodes,nodepools,nodeclaims,pods", "-A", "-o", "name"]);
    let plan = nap(&["plan", "--kubeconfig"]).arg(&cluster.kubeconfig).output().unwrap();
    let (said, notes) = (text(&plan.stdout), text(&plan.stderr));
    assert!(plan.status.success(), "{notes}");
    assert!(said.contains("for 10 pods: $") && said.contains("default/inflate ("), "{said}");
    assert!(said.starts_with("No nodes.\n"), "{said}");
    let more = include_str!("../../../../../examples/inflate.yaml")
        .replace("replicas: 10", "replicas: 14");
    let more = folder("on-cluster", &[("m.yaml", &more)]).join("m.yaml").display().to_string();
    let changed =
        nap(&["plan", "-f", &more, "--kubeconfig"]).arg(&cluster.kubeconfig).output().unwrap();
    let said = text(&changed.stdout);
    assert!(said.contains("+ pods default/inflate (4)\n"), "{said}{}", text(&changed.stderr));
    let name = cluster.ok(&["get", "pods", "-o", "jsonpath={.items[0].metadata.name}"]);
    let explained =
        nap(&["explain", "pod", &name, "--kubeconfig"]).arg(&cluster.kubeconfig).output().unwrap();
    assert!(text(&explained.stdout).contains("gets a new VM"), "{}", text(&explained.stderr));
    assert_eq!(before, cluster.ok(&["get", "nodes,nodepools,nodeclaims,pods", "-A", "-o", "name"]));
}
