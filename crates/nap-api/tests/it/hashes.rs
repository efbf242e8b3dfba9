//! Hashes, digit for digit as the incumbent's own code computes them.
//!
//! `hashes.json` was written by that code: `go run ./hashes < hashes.json` in
//! `crates/nap-controlplane-build/incumbent` refreshes it.

use nap_api::{AKSNodeClassSpec, NodePoolSpec, hash};
use serde_json::Value;

#[test]
fn hashes_are_the_incumbents() {
    let objects: Vec<Value> = serde_json::from_str(include_str!("hashes.json")).unwrap();
    let mut differences = Vec::new();
    for object in &objects {
        let ours = if object["kind"] == "NodePool" {
            let spec: NodePoolSpec = serde_json::from_value(object["spec"].clone()).unwrap();
            hash::nodepool_hash(&spec)
        } else {
            let spec: AKSNodeClassSpec = serde_json::from_value(object["spec"].clone()).unwrap();
            hash::aks_node_class_hash(&spec)
        };
        if object["hash"] != ours.as_str() {
            differences.push(format!(
                "{} {}: {} is not {ours}",
                object["kind"], object["metadata"]["name"], object["hash"]
            ));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
