//! The pods of a node must not request more than it has allocatable.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::Observation;
use super::quantities::{Amounts, add, amounts, requests};

pub(super) fn check(seen: &Observation) -> Vec<String> {
    let mut faults = Vec::new();
    for node in &seen.nodes {
        let name = node.name_any();
        let has = amounts(node.status.as_ref().and_then(|status| status.allocatable.as_ref()));
        let mut used = Amounts::new();
        let is_here = |pod: &&Arc<Pod>| {
            pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) == Some(&name)
        };
        for pod in seen.pods.iter().filter(is_here) {
            add(&mut used, &pod.spec.as_ref().map(requests).unwrap_or_default());
            *used.entry("pods".to_owned()).or_default() += 1000;
        }
        let is_short =
            |(name, amount): (&String, &i64)| *amount > has.get(name).copied().unwrap_or(0);
        if used.iter().any(is_short) {
            faults.push(format!("pods of node {name} request more than it has"));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{nothing, object};
    use super::*;
    use serde_json::json;

    fn faults(cpu: &str, pods: usize) -> usize {
        let node = json!({
            "metadata": { "name": "n" },
            "status": { "allocatable": { "cpu": "2", "pods": "3" } },
        });
        let pod = json!({
            "metadata": { "name": "p" },
            "spec": {
                "nodeName": "n",
                "containers": [{ "name": "c", "resources": { "requests": { "cpu": cpu } } }],
            },
        });
        let pods = (0..pods).map(|_| object(pod.clone())).collect();
        check(&Observation { nodes: vec![object(node)], pods, ..nothing() }).len()
    }

    #[test]
    fn node_with_more_requests_than_allocatable_is_a_fault() {
        assert_eq!(faults("1", 2), 0);
        assert_eq!(faults("1001m", 2), 1);
    }

    #[test]
    fn node_with_more_pods_than_slots_is_a_fault() {
        assert_eq!(faults("1m", 3), 0);
        assert_eq!(faults("1m", 4), 1);
    }
}
