//! A Node that a user applies by hand joins the embedded cluster, and leaves it when deleted.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Event, Node};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};

use crate::cluster::{World, deployment, running};

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|one| one.type_ == "Ready" && one.status == "True")
}

async fn make(nodes: &Api<Node>, node: Value) {
    let node: Node = serde_json::from_value(node).unwrap();
    nodes.create(&PostParams::default(), &node).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_node_made_by_hand_runs_pods_until_it_is_deleted() {
    let world = World::start();
    let nodes: Api<Node> = Api::all(world.client.clone());
    world.create::<Deployment>(deployment(2, "1")).await;
    make(
        &nodes,
        json!({
            "metadata": { "name": "mine", "labels": { "team": "a" } },
            "status": { "capacity": { "cpu": "1500m", "memory": "8Gi", "example.com/card": "2" } },
        }),
    )
    .await;
    world.wait(20).await;
    let mine = nodes.get("mine").await.unwrap();
    assert!(is_ready(&mine), "{mine:?}");
    assert_eq!(mine.labels()["kubernetes.io/hostname"], "mine");
    assert_eq!(mine.labels()["team"], "a");
    let capacity = mine.status.unwrap().capacity.unwrap();
    for (name, amount) in [("cpu", "1500m"), ("memory", "8Gi"), ("example.com/card", "2")] {
        assert_eq!(capacity[name].0, amount);
    }
    assert_eq!(capacity["pods"].0, "110");
    assert!(mine.spec.unwrap().taints.is_none_or(|taints| taints.is_empty()));
    // The capacity that the user gave leaves room for one of the two.
    assert_eq!(running(&world.pods().await), 1);
    make(&nodes, json!({ "metadata": { "name": "default-size" } })).await;
    world.wait(20).await;
    assert_eq!(running(&world.pods().await), 2);

    nodes.delete("default-size", &DeleteParams::default()).await.unwrap();
    nodes.delete("mine", &DeleteParams::default()).await.unwrap();
    world.wait(120).await;
    assert!(nodes.list(&ListParams::default()).await.unwrap().items.is_empty());
    let left = world.pods().await;
    assert!(left.iter().all(|pod| pod.spec.as_ref().unwrap().node_name.is_none()), "{left:?}");
    // A Node of the same name is a new one.
    make(&nodes, json!({ "metadata": { "name": "mine" } })).await;
    world.wait(20).await;
    assert!(is_ready(&nodes.get("mine").await.unwrap()));
    assert_eq!(running(&world.pods().await), 2);
}

#[tokio::test(start_paused = true)]
async fn a_node_of_a_vm_that_does_not_exist_gets_no_kubelet() {
    let world = World::start();
    let nodes: Api<Node> = Api::all(world.client.clone());
    make(&nodes, json!({ "metadata": { "name": "vm" }, "spec": { "providerID": "azure:///vm" } }))
        .await;
    make(
        &nodes,
        json!({ "metadata": { "name": "claimed", "labels": {
        "karpenter.sh/nodepool": "default",
    } } }),
    )
    .await;
    world.wait(90).await;
    let events: Api<Event> = Api::namespaced(world.client.clone(), "default");
    let events = events.list(&ListParams::default()).await.unwrap().items;
    for name in ["vm", "claimed"] {
        assert!(!is_ready(&nodes.get(name).await.unwrap()), "{name}");
        let said = events.iter().any(|event| {
            event.involved_object.name.as_deref() == Some(name)
                && event.reason.as_deref() == Some("NodeNotReady")
        });
        assert!(said, "{name}");
    }
}
