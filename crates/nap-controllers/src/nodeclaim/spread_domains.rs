//! Domains of topology spread constraints that planned Nodes will bring.
//!
//! kube-scheduler counts the domains of the Nodes that exist. A zone whose first Node has not
//! joined is none yet: if Nodes in other zones have room to spare, pods that were planned for the
//! missing zone are bound there, and `maxSkew` is broken for good as soon as the zone appears. So
//! the first Nodes wait until every zone of the plan has one. A Node that is closed by a taint is a
//! domain already.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use nap_api::requirement::Undefined;
use nap_api::{NodeClaim, Requirements, labels};
use nap_engine::{Pod, Spread};

use super::nomination::waiting_pods;
use crate::cluster::{Index, provider_id_of_claim};
use crate::snapshot::engine_pod;

/// Whether a spread constraint of the pods that wait for a NodeClaim is about a domain that has no
/// Node yet, and that another NodeClaim with such pods brings.
pub fn are_missing(index: &Index, claim: &NodeClaim) -> bool {
    let pods = waiting_pods(index, claim);
    let mut pods = pods.iter().filter_map(|key| index.pod(key)).map(|pod| engine_pod(index, pod));
    // Pods of one workload are alike: most NodeClaims have few distinct constraints.
    let mut seen: BTreeSet<(Spread, Vec<Requirements>)> = BTreeSet::new();
    pods.any(|pod| {
        let constraints = pod.spread.iter().filter(|one| one.topology_key != labels::HOSTNAME);
        let mut fresh = constraints.filter(|one| seen.insert(((*one).clone(), pod.terms.clone())));
        fresh.any(|constraint| is_missing(index, claim, &pod, constraint))
    })
}

fn is_missing(index: &Index, claim: &NodeClaim, pod: &Pod, constraint: &Spread) -> bool {
    let key = &constraint.topology_key;
    let mut coming: BTreeMap<&str, Vec<&NodeClaim>> = BTreeMap::new();
    for other in index.claims().filter(|other| !has_joined(index, other)) {
        let domain = other.labels().get(key).filter(|_| other.name_any() != claim.name_any());
        if let Some(domain) = domain.filter(|_| other.metadata.deletion_timestamp.is_none()) {
            coming.entry(domain).or_default().push(other);
        }
    }
    if coming.is_empty() {
        return false;
    }
    for node in index.nodes().map(|(_, node)| node).filter(|node| may_run_on(pod, node)) {
        if let Some(domain) = node.labels().get(key) {
            coming.remove(domain.as_str());
        }
    }
    let is_counted = |key: &nap_engine::PodKey| {
        key.namespace() == pod.key.namespace()
            && index.pod(key).is_some_and(|other| constraint.selector.matches(other.labels()))
    };
    coming.into_values().flatten().any(|other| waiting_pods(index, other).iter().any(is_counted))
}

fn has_joined(index: &Index, claim: &NodeClaim) -> bool {
    provider_id_of_claim(claim).is_some_and(|id| !index.nodes_with_provider_id(id).is_empty())
}

/// Whether a Node counts for the spread constraints of a pod: its labels match the node affinity.
fn may_run_on(pod: &Pod, node: &Node) -> bool {
    let labels = Requirements::from_labels(node.labels());
    let selects = |term: &Requirements| labels.compatible(term, Undefined::Deny).is_ok();
    pod.terms.is_empty() || pod.terms.iter().any(selects)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, claim, index, node, pending_pod};
    use serde_json::{Value, json};

    /// A NodeClaim in a zone that a pod was planned onto.
    fn planned(name: &str, zone: &str, pod: &str) -> NodeClaim {
        let plan = json!({ "version": 1, "pods": [format!("shop/{pod}")] });
        let over = json!({
            "metadata": {
                "labels": { labels::ZONE: zone },
                "annotations": { labels::PLAN: plan.to_string() },
            },
            "status": { "providerID": format!("azure:///{name}") },
        });
        claim(name, over)
    }

    fn joined(name: &str, zone: &str, pool: &str) -> Node {
        let labels = json!({ labels::ZONE: zone, labels::NODEPOOL: pool });
        let spec = json!({ "providerID": format!("azure:///{name}") });
        node(name, json!({ "metadata": { "labels": labels }, "spec": spec }))
    }

    /// A pending pod of `app`, whose spread counts the pods of `web`.
    fn spread_pod(name: &str, app: &str, key: &str) -> k8s_openapi::api::core::v1::Pod {
        let mut pod = pending_pod("shop", name);
        pod.labels_mut().insert("app".to_owned(), app.to_owned());
        let constraint: Value = json!([{
            "maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": { "matchLabels": { "app": "web" } },
        }]);
        let spec = pod.spec.as_mut().unwrap();
        spec.topology_spread_constraints = serde_json::from_value(constraint).unwrap();
        spec.node_selector = Some([(labels::NODEPOOL.to_owned(), "p".to_owned())].into());
        pod
    }

    /// Two planned NodeClaims in zones 1 and 2; the Node of the first has joined.
    fn cluster(key: &str, app_of_second: &str) -> (Index, NodeClaim) {
        let first = planned("a", "1", "x");
        let mut index = index([first.clone(), planned("b", "2", "y")]);
        index.apply(joined("a", "1", "p"), at(0));
        index.apply(spread_pod("x", "web", key), at(0));
        index.apply(spread_pod("y", app_of_second, key), at(0));
        (index, first)
    }

    #[test]
    fn a_zone_is_missing_until_its_first_node_joins() {
        let (mut index, first) = cluster(labels::ZONE, "web");
        assert!(are_missing(&index, &first));
        index.apply(joined("b", "2", "p"), at(0));
        assert!(!are_missing(&index, &first));
    }

    #[test]
    fn any_node_that_the_pod_may_run_on_brings_the_zone() {
        let (mut index, first) = cluster(labels::ZONE, "web");
        index.apply(joined("other", "2", "q"), at(0));
        assert!(are_missing(&index, &first), "the pod selects another NodePool");
        index.apply(joined("old", "2", "p"), at(0));
        assert!(!are_missing(&index, &first));
    }

    #[test]
    fn only_zones_of_pods_that_the_constraint_counts_matter() {
        let (index, first) = cluster(labels::ZONE, "other");
        assert!(!are_missing(&index, &first));
    }

    #[test]
    fn a_spread_over_hosts_waits_for_no_node() {
        let (index, first) = cluster(labels::HOSTNAME, "web");
        assert!(!are_missing(&index, &first));
    }

    #[test]
    fn a_nodeclaim_that_goes_brings_nothing() {
        let (mut index, first) = cluster(labels::ZONE, "web");
        let mut gone = planned("b", "2", "y");
        gone.metadata.deletion_timestamp =
            serde_json::from_value(json!("1970-01-01T00:00:00Z")).unwrap();
        gone.metadata.finalizers = Some(vec!["x/y".to_owned()]);
        index.apply(gone, at(0));
        assert!(!are_missing(&index, &first));
    }
}
