//! The nodes of a NodePool that stay must not have more than its `spec.limits`. A node that is
//! leaving does not count: its replacement comes first.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use nap_api::{labels, taints};

use super::Observation;
use super::quantities::{Amounts, add, amounts};

pub(super) fn check(seen: &Observation) -> Vec<String> {
    let mut used: BTreeMap<&str, Amounts> = BTreeMap::new();
    for node in seen.nodes.iter().filter(|node| !is_leaving(node)) {
        let Some(pool) = node.labels().get(labels::NODEPOOL) else { continue };
        let has = amounts(node.status.as_ref().and_then(|status| status.capacity.as_ref()));
        let used = used.entry(pool).or_default();
        add(used, &has);
        *used.entry("nodes".to_owned()).or_default() += 1000;
    }
    let mut faults = Vec::new();
    for pool in &seen.pools {
        let (name, limits) = (pool.name_any(), pool.spec.limits.iter().flatten());
        let Some(used) = used.get(name.as_str()) else { continue };
        for (resource, limit) in limits {
            let used = used.get(resource).copied().unwrap_or(0);
            if used > limit.to_milli(nap_units::Rounding::Down) {
                faults.push(format!("NodePool {name} exceeds its limit of {resource}"));
            }
        }
    }
    faults
}

fn is_leaving(node: &Node) -> bool {
    let mut taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.any(|taint| taint.key == taints::DISRUPTED)
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{nothing, object};
    use super::*;
    use serde_json::json;

    #[test]
    fn nodepool_with_more_capacity_than_its_limits_is_a_fault() {
        let pool = |limits: serde_json::Value| {
            let class =
                json!({ "group": "karpenter.azure.com", "kind": "AKSNodeClass", "name": "c" });
            let template = json!({ "spec": { "nodeClassRef": class, "requirements": [] } });
            object(json!({
                "apiVersion": "karpenter.sh/v1", "kind": "NodePool",
                "metadata": { "name": "default" },
                "spec": { "limits": limits, "template": template },
            }))
        };
        let node = json!({
            "metadata": { "name": "n", "labels": { "karpenter.sh/nodepool": "default" } },
            "status": { "capacity": { "cpu": "4", "memory": "8Gi" } },
        });
        let faults = |limits| {
            let nodes = vec![object(node.clone()), object(node.clone())];
            check(&Observation { nodes, pools: vec![pool(limits)], ..nothing() }).len()
        };
        assert_eq!(faults(json!({ "cpu": "8", "memory": "16Gi", "nodes": "2" })), 0);
        assert_eq!(faults(json!({ "cpu": "7" })), 1);
        assert_eq!(faults(json!({ "nodes": "1", "memory": "15Gi" })), 2);
        let mut leaving = node.clone();
        leaving["spec"] =
            json!({ "taints": [{ "key": taints::DISRUPTED, "effect": "NoSchedule" }] });
        let nodes = vec![object(node.clone()), object(leaving)];
        let pools = vec![pool(json!({ "nodes": "1" }))];
        assert_eq!(check(&Observation { nodes, pools, ..nothing() }).len(), 0);
    }
}
