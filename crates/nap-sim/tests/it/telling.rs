//! What the embedded controllers tell people: events of workloads, the deadline of a rollout, the
//! end of bare pods, and who wrote a field.

use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, StatefulSet};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::ResourceExt as _;
use kube::api::{Api, ListParams, Patch, PatchParams};
use nap_sim::cluster::ForUsers;
use serde_json::{Value, json};

use crate::cluster::{World, phase};

fn told() -> World {
    World::start_for(ForUsers { workload_events: true, ..ForUsers::default() })
}

fn workload(name: &str, replicas: u32) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": {
            "replicas": replicas, "selector": { "matchLabels": { "app": name } },
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": { "containers": [{ "name": "main", "image": "example.com/app:1" }] },
            },
        },
    })
}

/// Reason, message and count of the events about objects of a kind.
async fn events(world: &World, kind: &str) -> Vec<(String, String, i32)> {
    let api: Api<Event> = Api::default_namespaced(world.client.clone());
    let all = api.list(&ListParams::default()).await.unwrap().items;
    all.into_iter()
        .filter(|event| event.involved_object.kind.as_deref() == Some(kind))
        .map(|event| {
            let text = |text: Option<String>| text.unwrap_or_default();
            (text(event.reason), text(event.message), event.count.unwrap_or(0))
        })
        .collect()
}

fn has(events: &[(String, String, i32)], reason: &str, start: &str, end: &str) -> bool {
    events.iter().any(|(why, message, _)| {
        why == reason && message.starts_with(start) && message.ends_with(end)
    })
}

async fn scale(world: &World, replicas: u32) {
    let api: Api<Deployment> = Api::default_namespaced(world.client.clone());
    let patch = json!({ "spec": { "replicas": replicas } });
    api.patch("web", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    world.wait(30).await;
}

#[tokio::test(start_paused = true)]
async fn workloads_have_events_about_their_pods() {
    let world = told();
    world.add_machine("one", 8000).await;
    world.create::<Deployment>(workload("web", 3)).await;
    let mut set = workload("db", 1);
    set["spec"]["serviceName"] = json!("db");
    world.create::<StatefulSet>(set).await;
    world.wait(60).await;
    scale(&world, 2).await;
    let of_deployment = events(&world, "Deployment").await;
    let scaled = "ScalingReplicaSet";
    assert!(has(&of_deployment, scaled, "Scaled up replica set web-", "from 0 to 3"));
    assert!(has(&of_deployment, scaled, "Scaled down replica set web-", "from 3 to 2"));
    let of_set = events(&world, "ReplicaSet").await;
    assert_eq!(of_set.iter().filter(|(why, ..)| why == "SuccessfulCreate").count(), 3);
    assert!(has(&of_set, "SuccessfulDelete", "Deleted pod: web-", ""));
    let of_stateful = events(&world, "StatefulSet").await;
    let created = "create Pod db-0 in StatefulSet db successful";
    assert!(has(&of_stateful, "SuccessfulCreate", created, ""), "{of_stateful:?}");
    // Many pods are a few events.
    scale(&world, 60).await;
    let of_set = events(&world, "ReplicaSet").await;
    assert!(of_set.len() < 14, "{of_set:?}");
    let combined = of_set.iter().find(|(_, message, _)| message.starts_with("(combined from"));
    assert!(combined.is_some_and(|(.., count)| *count > 10), "{of_set:?}");
}

#[tokio::test(start_paused = true)]
async fn simulations_without_users_have_no_events_of_workloads() {
    let world = World::start();
    world.add_machine("one", 8000).await;
    world.create::<Deployment>(workload("web", 3)).await;
    world.wait(60).await;
    assert_eq!(events(&world, "Deployment").await, []);
    assert_eq!(events(&world, "ReplicaSet").await, []);
}

async fn progressing(world: &World) -> DeploymentCondition {
    let api: Api<Deployment> = Api::default_namespaced(world.client.clone());
    let status = api.get("web").await.unwrap().status.unwrap();
    let mut conditions = status.conditions.unwrap().into_iter();
    conditions.find(|condition| condition.type_ == "Progressing").unwrap()
}

#[tokio::test(start_paused = true)]
async fn rollout_without_progress_exceeds_its_deadline_and_may_end_later() {
    let world = World::start();
    let mut deployment = workload("web", 2);
    deployment["spec"]["progressDeadlineSeconds"] = json!(60);
    world.create::<Deployment>(deployment).await;
    world.wait(50).await;
    let condition = progressing(&world).await;
    assert_eq!(condition.status, "True");
    assert_eq!(condition.reason.as_deref(), Some("ReplicaSetUpdated"));
    world.wait(15).await;
    let condition = progressing(&world).await;
    assert_eq!(condition.status, "False");
    assert_eq!(condition.reason.as_deref(), Some("ProgressDeadlineExceeded"));
    assert!(condition.message.unwrap().ends_with("has timed out progressing."));
    world.add_machine("one", 8000).await;
    world.wait(60).await;
    let condition = progressing(&world).await;
    assert_eq!(condition.status, "True");
    assert_eq!(condition.reason.as_deref(), Some("NewReplicaSetAvailable"));
    // It has ended: pods that are missing later are no rollout.
    let before = condition;
    let api: Api<Deployment> = Api::default_namespaced(world.client.clone());
    let patch = json!({ "spec": { "replicas": 30 } });
    api.patch("web", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    world.wait(120).await;
    assert_eq!(progressing(&world).await, before);
}

#[tokio::test(start_paused = true)]
async fn bare_pod_that_is_not_restarted_ends() {
    let world = World::start();
    world.add_machine("one", 8000).await;
    for (name, policy, command) in
        [("once", "Never", "sleep 3"), ("fails", "Never", "exit 4"), ("stays", "Always", "sleep 3")]
    {
        let pod = json!({
            "metadata": { "name": name },
            "spec": { "restartPolicy": policy, "containers": [
                { "name": "main", "image": "busybox", "command": ["sh", "-c", command] }] },
        });
        world.create::<Pod>(pod).await;
    }
    world.wait(60).await;
    let pods = world.pods().await;
    let of = |name: &str| phase(pods.iter().find(|pod| pod.name_any() == name).unwrap()).to_owned();
    assert_eq!(["once", "fails", "stays"].map(of), ["Succeeded", "Failed", "Running"]);
}

#[tokio::test(start_paused = true)]
async fn fields_of_components_have_their_managers() {
    let world = World::start();
    world.add_machine("one", 8000).await;
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "solo" },
        "spec": { "containers": [{ "name": "main", "image": "busybox" }] } });
    let mut deployment = workload("web", 1);
    deployment["apiVersion"] = json!("apps/v1");
    deployment["kind"] = json!("Deployment");
    let ann = PatchParams::apply("ann");
    let pods: Api<Pod> = Api::default_namespaced(world.client.clone());
    pods.patch("solo", &ann, &Patch::Apply(pod)).await.unwrap();
    let deployments: Api<Deployment> = Api::default_namespaced(world.client.clone());
    deployments.patch("web", &ann, &Patch::Apply(deployment)).await.unwrap();
    world.wait(60).await;
    let managers =
        |fields: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry]| {
            let mut names: Vec<_> =
                fields.iter().filter_map(|entry| entry.manager.clone()).collect();
            names.sort();
            names.dedup();
            names
        };
    let pod = pods.get("solo").await.unwrap();
    let of_pod = managers(pod.managed_fields());
    assert!(of_pod.contains(&"kubelet".to_owned()), "{of_pod:?}");
    assert!(!of_pod.contains(&"unknown".to_owned()), "{of_pod:?}");
    let of_deployment = managers(deployments.get("web").await.unwrap().managed_fields());
    assert_eq!(of_deployment, ["ann", "kube-controller-manager"]);
}
