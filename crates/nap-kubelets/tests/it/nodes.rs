//! Life of a Node: registration, readiness, heartbeats, reboot, end of the VM.

use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams};

use crate::world::{World, boot_id, condition, uid};

#[tokio::test(start_paused = true)]
async fn node_registers_after_boot_with_its_labels_and_taints() {
    let world = World::start();
    world.create_vm("vm").await;
    world.wait(9).await;
    assert!(world.node("vm").await.is_none());
    world.wait(2).await;
    let node = world.node("vm").await.unwrap();
    assert_eq!(node.labels()["team"], "red");
    let spec = node.spec.as_ref().unwrap();
    assert_eq!(spec.provider_id.as_deref(), Some("azure:///vm"));
    let taints: Vec<&str> = spec.taints.iter().flatten().map(|taint| &*taint.key).collect();
    assert_eq!(taints, ["karpenter.sh/unregistered", "node.kubernetes.io/not-ready"]);
    assert_eq!(condition(&node, "Ready"), "False");
    assert_eq!(node.status.as_ref().unwrap().allocatable.as_ref().unwrap()["cpu"].0, "4");
    world.wait(5).await;
    assert_eq!(condition(&world.node("vm").await.unwrap(), "Ready"), "True");
}

#[tokio::test(start_paused = true)]
async fn refused_registration_is_tried_again() {
    let world = World::start();
    world.refuse_nodes(true);
    world.create_vm("vm").await;
    world.wait(300).await;
    assert!(world.node("vm").await.is_none());
    world.refuse_nodes(false);
    world.wait(8 + 6).await;
    assert_eq!(condition(&world.node("vm").await.unwrap(), "Ready"), "True");
}

#[tokio::test(start_paused = true)]
async fn lease_is_owned_by_the_node_and_renewed() {
    let world = World::start();
    world.create_vm("vm").await;
    world.wait(20).await;
    let renewed = async || world.lease("vm").await.unwrap().spec.unwrap().renew_time.unwrap().0;
    let first = renewed().await;
    world.wait(10).await;
    assert_eq!(renewed().await.duration_since(first).as_secs(), 10);
    let lease = world.lease("vm").await.unwrap();
    let owner = &lease.owner_references()[0];
    let node = world.node("vm").await.unwrap();
    assert_eq!((owner.kind.as_str(), &owner.uid), ("Node", &uid(&node)));
    world.delete_vm("vm").await;
    world.wait(1).await;
    let last = renewed().await;
    world.wait(60).await;
    assert_eq!(renewed().await, last, "a VM that is gone renews nothing");
}

#[tokio::test(start_paused = true)]
async fn foreign_conditions_survive_and_ready_is_restored() {
    let world = World::start();
    world.create_vm("vm").await;
    world.wait(20).await;
    world.set_condition("vm", "NodeHealthy", "False").await;
    world.set_condition("vm", "Ready", "Unknown").await;
    world.wait(11).await;
    let node = world.node("vm").await.unwrap();
    assert_eq!(
        (condition(&node, "NodeHealthy"), condition(&node, "Ready")),
        ("False".into(), "True".into())
    );
    world.wait(600).await;
    assert_eq!(condition(&world.node("vm").await.unwrap(), "NodeHealthy"), "False");
}

#[tokio::test(start_paused = true)]
async fn unchanged_condition_keeps_its_transition_time() {
    let world = World::start();
    world.create_vm("vm").await;
    world.wait(20).await;
    let times = async || {
        let conditions = world.node("vm").await.unwrap().status.unwrap().conditions.unwrap();
        let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready").unwrap();
        (ready.last_transition_time.unwrap().0, ready.last_heartbeat_time.unwrap().0)
    };
    let before = times().await;
    world.wait(600).await;
    let after = times().await;
    assert_eq!(before.0, after.0);
    assert_eq!(after.1.duration_since(before.1).as_secs(), 600);
}

#[tokio::test(start_paused = true)]
async fn deleted_node_of_a_running_vm_stays_away_until_a_reboot() {
    let world = World::start();
    world.create_vm("vm").await;
    world.wait(20).await;
    world.nodes().delete("vm", &DeleteParams::default()).await.unwrap();
    world.wait(600).await;
    assert!(world.node("vm").await.is_none());
    world.reboot_vm("vm").await;
    world.wait(20).await;
    assert_eq!(condition(&world.node("vm").await.unwrap(), "Ready"), "True");
}

#[tokio::test(start_paused = true)]
async fn reboot_changes_the_boot_id_and_keeps_the_node() {
    let world = World::start();
    world.create_vm("vm").await;
    world.wait(20).await;
    let before = world.node("vm").await.unwrap();
    world.reboot_vm("vm").await;
    world.wait(20).await;
    let after = world.node("vm").await.unwrap();
    assert_eq!(uid(&before), uid(&after));
    assert_ne!(boot_id(&before), boot_id(&after));
    assert_eq!(condition(&after, "Ready"), "True");
}

#[tokio::test(start_paused = true)]
async fn node_of_a_gone_vm_is_deleted_once_it_is_not_ready() {
    let world = World::start();
    world.create_vm("vm").await;
    world.wait(20).await;
    world.delete_vm("vm").await;
    world.wait(30).await;
    assert!(world.node("vm").await.is_some(), "the cloud controller leaves ready Nodes alone");
    world.set_condition("vm", "Ready", "Unknown").await;
    world.wait(1).await;
    assert!(world.node("vm").await.is_none());
}

#[tokio::test(start_paused = true)]
async fn vm_deleted_during_boot_never_registers() {
    let world = World::start();
    world.create_vm("vm").await;
    world.wait(5).await;
    world.delete_vm("vm").await;
    world.wait(60).await;
    assert!(world.node("vm").await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_thousand_nodes_cost_a_few_requests_each() {
    let world = World::start();
    for number in 0..1000 {
        world.create_vm(&format!("vm-{number:04}")).await;
    }
    world.wait(30).await;
    let nodes = world.nodes().list(&ListParams::default()).await.unwrap();
    let ready = nodes.items.iter().filter(|node| condition(node, "Ready") == "True").count();
    assert_eq!(ready, 1000);
    let joined = world.requests();
    assert!(joined <= 6 * 1000 + 10, "{joined} requests to join");
    world.wait(60).await;
    let renewals = world.requests() - joined;
    assert!((5 * 1000..=7 * 1000).contains(&renewals), "{renewals} requests in a minute");
}
