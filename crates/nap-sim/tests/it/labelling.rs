//! Labels that requirements stand for: on the NodeClaim, on the Node, and no drift because of them;
//! and what else a Node says about itself.

use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use nap_api::{AKSNodeClass, conditions, nodeclaim::condition::DRIFTED};
use serde_json::{Value, json};

use crate::harness::User;

/// Runs a pod on a pool with one more requirement; returns the values of the label on its NodeClaim
/// and its Node ten minutes later.
async fn label_by(requirement: Value, pod: Value) -> (Option<String>, Option<String>) {
    let user = User::new().await;
    let key = requirement["key"].as_str().unwrap().to_owned();
    let mut labels = (None, None);
    user.run(async {
        let requirements = json!([
            { "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"] },
            { "key": "karpenter.azure.com/sku-family", "operator": "In", "values": ["D"] },
            requirement,
        ]);
        user.default_pool(json!({ "spec": { "template": { "spec": {
            "requirements": requirements,
        } } } }))
        .await;
        user.deploy("inflate", 1, pod).await;
        user.until_running(1).await;
        user.pass(600).await;
        assert_eq!(user.machines_ever(), 1, "{key}: bought again, or drifted");
        let claim = &user.claims().await[0];
        let status = claim.status.as_ref().unwrap();
        assert!(!conditions::is_true(&status.conditions, DRIFTED), "{key}: {status:?}");
        let node = &user.nodes().await[0];
        labels = (claim.labels().get(&key).cloned(), node.labels().get(&key).cloned());
    })
    .await;
    labels
}

fn both(value: &str) -> (Option<String>, Option<String>) {
    (Some(value.to_owned()), Some(value.to_owned()))
}

#[tokio::test(start_paused = true)]
async fn a_custom_requirement_with_several_values_becomes_one_label() {
    let team = json!({ "key": "team", "operator": "In", "values": ["a", "b"] });
    assert_eq!(label_by(team.clone(), json!({})).await, both("a"));
    let pod = json!({ "spec": { "nodeSelector": { "team": "b" } } });
    assert_eq!(label_by(team, pod).await, both("b"));
}

#[tokio::test(start_paused = true)]
async fn bounds_and_existence_become_labels_that_satisfy_them() {
    let rank = json!({ "key": "example.com/rank", "operator": "Gt", "values": ["4"] });
    assert_eq!(label_by(rank, json!({})).await, both("5"));
    let exists = json!({ "key": "example.com/kind", "operator": "Exists" });
    let (claim, node) = label_by(exists, json!({})).await;
    assert!(claim.is_some() && claim == node);
}

#[tokio::test(start_paused = true)]
async fn a_label_that_aks_refuses_on_the_machine_reaches_the_node() {
    let key = "node-restriction.kubernetes.io/team";
    let restricted = json!({ "key": key, "operator": "In", "values": ["a"] });
    let pod = json!({ "spec": { "nodeSelector": { key: "a" } } });
    assert_eq!(label_by(restricted, pod).await, both("a"));
}

#[tokio::test(start_paused = true)]
async fn labels_of_a_size_that_can_be_either_are_those_of_the_machine() {
    let generation = |values: Value| {
        json!({
            "key": "karpenter.azure.com/sku-hyperv-generation", "operator": "In", "values": values,
        })
    };
    assert_eq!(label_by(generation(json!(["1", "2"])), json!({})).await, both("2"));
    assert_eq!(label_by(generation(json!(["1"])), json!({})).await, both("1"));
    let mode = json!({
        "key": "kubernetes.azure.com/mode", "operator": "In", "values": ["system", "user"],
    });
    assert_eq!(label_by(mode, json!({})).await, both("user"));
}

#[tokio::test(start_paused = true)]
async fn a_node_says_the_system_of_its_image_and_its_memory_in_ki() {
    for (family, expected) in [("Ubuntu2404", "Ubuntu 24.04"), ("AzureLinux", "Azure Linux 3")] {
        let user = User::new().await;
        user.run(async {
            let change = json!({ "spec": { "imageFamily": family } });
            let classes = user.api::<AKSNodeClass>();
            classes.patch("default", &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
            user.default_pool(json!({})).await;
            user.deploy("inflate", 1, json!({})).await;
            user.until_running(1).await;
            let status = user.nodes().await[0].status.clone().unwrap();
            let system = status.node_info.unwrap().os_image;
            assert!(system.contains(expected), "{family}: {system}");
            for list in [status.capacity.unwrap(), status.allocatable.unwrap()] {
                assert!(list["memory"].0.ends_with("Ki"), "{list:?}");
            }
        })
        .await;
    }
}
