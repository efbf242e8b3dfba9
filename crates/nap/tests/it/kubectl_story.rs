//! The kubectl commands of published guides, on `nap try`.

use crate::process::Cluster;

const NODE_POOL: &str = include_str!("../../../../examples/default-nodepool.yaml");
const INFLATE: &str = include_str!("../../../../examples/inflate.yaml");
const OLD_NODE_CLASS: &str = "
apiVersion: karpenter.azure.com/v1alpha2
kind: AKSNodeClass
metadata:
  name: default
spec:
  vnetSubnetID: /subscriptions/12345678-1234-1234-1234-123456789012/resourceGroups/nap-demo-rg/providers/Microsoft.Network/virtualNetworks/nap-vnet/subnets/aks-subnet
  osDiskSizeGB: 128
";

#[test]
#[cfg_attr(no_kubectl, ignore = "there is no kubectl; `make controlplane` builds it")]
fn kubectl_commands_of_the_guides_work() {
    let cluster = Cluster::start(&[]);
    cluster.apply(NODE_POOL);
    cluster.apply(OLD_NODE_CLASS);
    cluster.until("the pool is ready", &["get", "nodepools"], |text| text.contains("True"));
    cluster.apply(INFLATE);
    let running =
        ["get", "pods", "-l", "app=inflate", "--field-selector=status.phase=Running", "-o", "name"];
    cluster.until("10 pods run", &running, |text| text.lines().count() == 10);

    let all = cluster.ok(&["get", "nodes,nodeclaims,nodepools"]);
    for column in ["STATUS", "ROLES", "TYPE", "CAPACITY", "ZONE", "NODECLASS", "NODES", "READY"] {
        assert!(all.contains(column), "no column {column} in:\n{all}");
    }
    assert!(all.contains("Standard_D") && all.contains("on-demand"), "{all}");
    let managed = cluster.ok(&["get", "nodes", "-l", "karpenter.sh/nodepool", "-o", "wide"]);
    assert!(managed.contains("Ready"), "{managed}");
    let events = cluster.ok(&["get", "events", "-A", "--field-selector", "source=karpenter"]);
    assert!(events.contains("Launching") && events.contains("Nominated"), "{events}");
    let provisioned = cluster.ok(&["get", "events", "--field-selector", "reason=Provisioned"]);
    assert!(provisioned.contains("Provisioned Standard_D"), "{provisioned}");
    // The clock of the cluster runs ahead; ages are right nevertheless.
    let node = cluster.ok(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]);
    for words in [&["describe", "node", node.as_str()][..], &["describe", "pods"], &["events"]] {
        let shown = cluster.ok(words);
        assert!(!shown.contains("<invalid>"), "{shown}");
    }
    let prices = cluster.ok(&["get", "nodeclaims", "-o", "wide"]);
    assert!(prices.contains("PRICE") && prices.contains("0.322"), "{prices}");
    let description = cluster.ok(&["describe", "nodepool", "default"]);
    assert!(description.contains("Consolidation Policy"), "{description}");

    cluster.ok(&["scale", "deployment", "inflate", "--replicas=2"]);
    // The amount saved depends on which pods were deleted.
    let disrupted = ["get", "events", "--field-selector", "reason=DisruptionTerminating"];
    cluster.until("a machine is removed or replaced", &disrupted, |text| text.contains("saving $"));
    let names = ["get", "nodeclaims", "-o", "name"];
    let large = ["get", "nodeclaims", "-l", "karpenter.azure.com/sku-cpu=8", "-o", "name"];
    cluster.until("the large machine is gone", &large, |text| text.trim().is_empty());
    assert!(!cluster.ok(&names).trim().is_empty());
    cluster.until("2 pods run", &running, |text| text.lines().count() == 2);

    let node = cluster.ok(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]);
    cluster.ok(&["delete", "node", &node, "--timeout=60s"]);
    let nodes = ["get", "nodes", "-o", "name"];
    cluster.until("the node is gone", &nodes, |text| !text.contains(&node));
    cluster.until("2 pods run again", &running, |text| text.lines().count() == 2);
    cluster.ok(&["delete", "nodepool", "default", "--timeout=60s"]);
    cluster.until("no node is left", &nodes, |text| text.trim().is_empty());
    let farewell = cluster.stop();
    assert!(farewell.contains("0 left"), "{farewell}");
}
