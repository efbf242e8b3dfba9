//! Voluntary disruption must stay within the budgets of a NodePool.
//!
//! A node counts as disrupted while it has the `karpenter.sh/disrupted` taint and its NodeClaim is
//! younger than `expireAfter`: expired nodes are exempt from budgets. Budgets with a schedule or
//! with reasons are not checked.

use std::sync::Arc;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use nap_api::{NodePool, labels, taints};

use super::Observation;

pub(super) fn check(seen: &Observation) -> Vec<String> {
    let mut faults = Vec::new();
    for pool in &seen.pools {
        let name = pool.name_any();
        let is_own = |node: &&Arc<Node>| node.labels().get(labels::NODEPOOL) == Some(&name);
        let nodes: Vec<&Arc<Node>> = seen.nodes.iter().filter(is_own).collect();
        let disrupted = nodes.iter().filter(|node| is_disrupted(seen, node)).count();
        let Some(allowed) = allowed(pool, nodes.len()) else { continue };
        if disrupted > allowed {
            faults.push(format!(
                "NodePool {name}: {disrupted} of {} nodes are disrupted, {allowed} may be",
                nodes.len()
            ));
        }
    }
    faults
}

fn is_disrupted(seen: &Observation, node: &Node) -> bool {
    let mut taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let expired = seen.claims.iter().any(|claim| {
        let created = claim.metadata.creation_timestamp.as_ref().map_or(seen.now, |time| time.0);
        let age = seen.now.duration_since(created);
        let is_its = claim.status.as_ref().and_then(|status| status.node_name.as_deref())
            == node.metadata.name.as_deref();
        let after = claim.spec.expire_after.get();
        is_its && after.is_some_and(|after| age >= SignedDuration::try_from(after).unwrap_or(age))
    });
    taints.any(|taint| taint.key == taints::DISRUPTED) && !expired
}

/// Nodes that may be disrupted at the same time; `None` without a budget that is checked.
fn allowed(pool: &NodePool, nodes: usize) -> Option<usize> {
    let budgets = pool.spec.disruption.budgets.iter();
    let always = budgets.filter(|one| one.schedule.is_none() && one.reasons.is_none());
    let allowed = always.filter_map(|budget| match budget.nodes.strip_suffix('%') {
        Some(percent) => Some((percent.parse::<usize>().ok()? * nodes).div_ceil(100)),
        None => budget.nodes.parse().ok(),
    });
    allowed.min()
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{nothing, object};
    use super::*;
    use serde_json::{Value, json};

    fn faults(budgets: &Value, disrupted: usize) -> usize {
        let class = json!({ "group": "karpenter.azure.com", "kind": "AKSNodeClass", "name": "c" });
        let template = json!({ "spec": { "nodeClassRef": class, "requirements": [] } });
        let disruption = json!({ "consolidateAfter": "0s", "budgets": budgets });
        let pool = json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool",
            "metadata": { "name": "default" },
            "spec": { "disruption": disruption, "template": template },
        });
        let node = |number: usize| {
            let taint = json!([{ "key": "karpenter.sh/disrupted", "effect": "NoSchedule" }]);
            let taints = if number < disrupted { taint } else { json!([]) };
            object(json!({
                "metadata": {
                    "name": format!("n{number}"),
                    "labels": { "karpenter.sh/nodepool": "default" },
                },
                "spec": { "taints": taints },
            }))
        };
        let nodes = (0..11).map(node).collect();
        check(&Observation { nodes, pools: vec![object(pool)], ..nothing() }).len()
    }

    #[test]
    fn more_disrupted_nodes_than_the_smallest_budget_is_a_fault() {
        assert_eq!(faults(&json!([{ "nodes": "10%" }]), 2), 0, "percentages are rounded up");
        assert_eq!(faults(&json!([{ "nodes": "10%" }]), 3), 1);
        assert_eq!(faults(&json!([{ "nodes": "50%" }, { "nodes": "1" }]), 2), 1);
        assert_eq!(faults(&json!([{ "nodes": "0" }]), 0), 0);
    }
}
