//! StatefulSets, Jobs, CronJobs, autoscalers, storage and Services of the embedded cluster.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{
    Endpoints, Event, Namespace, PersistentVolume, PersistentVolumeClaim, Pod, Service,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::storage::v1::{StorageClass, VolumeAttachment};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use crate::cluster::{World, phase, running};

fn container(command: &str) -> Value {
    json!({ "name": "main", "image": "example.com/app:1", "command": ["sh", "-c", command],
        "resources": { "requests": { "cpu": "100m", "memory": "64Mi" } } })
}

#[expect(clippy::needless_pass_by_value, reason = "callers write the changes in place")]
fn stateful(replicas: usize, changes: Value) -> Value {
    let claim = json!({
        "metadata": { "name": "data" },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "disk",
            "resources": { "requests": { "storage": "8Gi" } },
        },
    });
    let mut set = json!({
        "metadata": { "name": "db" },
        "spec": {
            "serviceName": "db", "replicas": replicas,
            "selector": { "matchLabels": { "app": "db" } },
            "template": {
                "metadata": { "labels": { "app": "db" } },
                "spec": { "containers": [container("serve")] },
            },
            "volumeClaimTemplates": [claim],
        },
    });
    json_patch::merge(&mut set, &changes);
    set
}

async fn disk_class(world: &World) {
    let class: StorageClass = serde_json::from_value(json!({
        "metadata": { "name": "disk" }, "provisioner": "disk.csi.azure.com",
        "volumeBindingMode": "WaitForFirstConsumer", "reclaimPolicy": "Delete",
    }))
    .unwrap();
    let api: Api<StorageClass> = Api::all(world.client.clone());
    api.create(&PostParams::default(), &class).await.unwrap();
}

async fn list<T>(world: &World) -> Vec<T>
where
    T: Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    Api::<T>::all(world.client.clone()).list(&ListParams::default()).await.unwrap().items
}

fn names<T: ResourceExt>(objects: &[T]) -> Vec<String> {
    objects.iter().map(ResourceExt::name_any).collect()
}

#[tokio::test(start_paused = true)]
async fn stateful_set_starts_in_order_with_claims_and_keeps_them_when_it_shrinks() {
    let world = World::start();
    disk_class(&world).await;
    world.add_machine_in("one", 4000, "z-1").await;
    world.create::<StatefulSet>(stateful(3, json!({}))).await;
    // The second pod is created when the first one is ready, and not before.
    world.wait(32).await;
    assert_eq!(names(&world.pods().await), ["db-0"]);
    world.wait(60).await;
    let pods = world.pods().await;
    assert_eq!(names(&pods), ["db-0", "db-1", "db-2"]);
    assert_eq!(running(&pods), 3);
    let started = |pod: &Pod| pod.status.as_ref().unwrap().start_time.clone().unwrap().0;
    assert!(started(&pods[0]) < started(&pods[1]) && started(&pods[1]) < started(&pods[2]));
    assert_eq!(
        names(&list::<PersistentVolumeClaim>(&world).await),
        ["data-db-0", "data-db-1", "data-db-2"]
    );
    let volumes = list::<PersistentVolume>(&world).await;
    let zone = serde_json::to_value(&volumes[0].spec).unwrap();
    let expected =
        json!([{ "key": "topology.disk.csi.azure.com/zone", "operator": "In", "values": ["z-1"] }]);
    assert_eq!(
        zone["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"],
        expected
    );
    assert_eq!(list::<VolumeAttachment>(&world).await.len(), 3);

    let sets: Api<StatefulSet> = Api::default_namespaced(world.client.clone());
    let status = sets.get("db").await.unwrap().status.unwrap();
    assert_eq!((status.replicas, status.ready_replicas), (3, Some(3)));
    let shrink = json!({ "spec": { "replicas": 1 } });
    sets.patch("db", &PatchParams::default(), &Patch::Merge(shrink)).await.unwrap();
    // Less than a pod needs to stop.
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    let left: Vec<Pod> = world.pods().await;
    let going: Vec<String> = left
        .iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_some())
        .map(ResourceExt::name_any)
        .collect();
    assert_eq!(going, ["db-2"], "one at a time, the last one first");
    world.wait(60).await;
    assert_eq!(names(&world.pods().await), ["db-0"]);
    assert_eq!(list::<PersistentVolumeClaim>(&world).await.len(), 3);
    assert_eq!(list::<VolumeAttachment>(&world).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn pod_returns_to_the_zone_of_its_volume_and_the_volume_goes_with_its_claim() {
    let world = World::start();
    disk_class(&world).await;
    world.add_machine_in("one", 4000, "z-1").await;
    world.create::<StatefulSet>(stateful(1, json!({}))).await;
    world.wait(60).await;
    assert_eq!(running(&world.pods().await), 1);
    world.remove_machine("one").await;
    world.add_machine_in("other", 4000, "z-2").await;
    world.wait(60).await;
    let pods = world.pods().await;
    assert_eq!(phase(&pods[0]), "Pending");
    let message = crate::cluster::unschedulable(&pods[0]);
    assert!(message.contains("node(s) didn't match PersistentVolume's node affinity"), "{message}");
    world.add_machine_in("back", 4000, "z-1").await;
    world.wait(60).await;
    let pods = world.pods().await;
    assert_eq!(pods[0].spec.as_ref().unwrap().node_name.as_deref(), Some("back"));

    // A claim that is in use stays until its pod is gone; then its volume goes too.
    let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(world.client.clone());
    claims.delete("data-db-0", &DeleteParams::default()).await.unwrap();
    world.wait(5).await;
    assert!(claims.get("data-db-0").await.unwrap().metadata.deletion_timestamp.is_some());
    let sets: Api<StatefulSet> = Api::default_namespaced(world.client.clone());
    sets.delete("db", &DeleteParams::background()).await.unwrap();
    world.wait(60).await;
    assert_eq!(list::<PersistentVolumeClaim>(&world).await.len(), 0);
    assert_eq!(list::<PersistentVolume>(&world).await.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn stateful_set_is_updated_from_the_last_pod_down_to_the_partition() {
    let world = World::start();
    world.add_machine("one", 4000).await;
    let no_disks = json!({ "spec": { "volumeClaimTemplates": null } });
    world.create::<StatefulSet>(stateful(3, no_disks)).await;
    world.wait(90).await;
    let sets: Api<StatefulSet> = Api::default_namespaced(world.client.clone());
    let image = json!({ "spec": {
        "updateStrategy": { "rollingUpdate": { "partition": 1 } },
        "template": { "spec": { "containers": [{ "name": "main", "image": "example.com/app:2" }] } },
    } });
    sets.patch("db", &PatchParams::default(), &Patch::Strategic(image)).await.unwrap();
    world.wait(90).await;
    let images: Vec<String> = world
        .pods()
        .await
        .iter()
        .map(|pod| pod.spec.as_ref().unwrap().containers[0].image.clone().unwrap())
        .collect();
    assert_eq!(images, ["example.com/app:1", "example.com/app:2", "example.com/app:2"]);
    let status = sets.get("db").await.unwrap().status.unwrap();
    assert_eq!((status.updated_replicas, status.ready_replicas), (Some(2), Some(3)));
    assert_ne!(status.current_revision, status.update_revision);
}

#[expect(clippy::needless_pass_by_value, reason = "callers write the changes in place")]
fn job(name: &str, command: &str, changes: Value) -> Value {
    let mut job = json!({
        "metadata": { "name": name },
        "spec": { "template": { "spec": {
            "restartPolicy": "Never", "containers": [container(command)],
        } } },
    });
    json_patch::merge(&mut job["spec"], &changes);
    job
}

fn ended(job: &Job) -> Option<String> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let ended = conditions.iter().find(|held| {
        matches!(held.type_.as_str(), "Complete" | "Failed") && held.status == "True"
    })?;
    Some(format!("{}: {}", ended.type_, ended.reason.clone().unwrap_or_default()))
}

#[tokio::test(start_paused = true)]
async fn job_runs_its_completions_in_parallel_and_is_forgotten_after_its_ttl() {
    let world = World::start();
    world.add_machine("one", 4000).await;
    world.wait(60).await;
    let spec = json!({ "completions": 5, "parallelism": 2, "ttlSecondsAfterFinished": 100 });
    world.create::<Job>(job("sum", "sleep 20", spec)).await;
    let jobs: Api<Job> = Api::default_namespaced(world.client.clone());
    let mut most = 0;
    for _ in 0..90 {
        world.wait(1).await;
        most = most.max(running(&world.pods().await));
    }
    assert_eq!(most, 2);
    let done = jobs.get("sum").await.unwrap();
    let status = done.status.as_ref().unwrap();
    assert_eq!((status.succeeded, status.failed, status.active), (Some(5), None, None));
    assert_eq!(ended(&done).unwrap(), "Complete: CompletionsReached");
    assert!(world.pods().await.iter().all(|pod| pod.finalizers().is_empty()));
    world.wait(100).await;
    assert!(jobs.get_opt("sum").await.unwrap().is_none());
    assert_eq!(world.pods().await.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn job_fails_after_its_backoff_limit_with_growing_pauses() {
    let world = World::start();
    world.add_machine("one", 4000).await;
    world.wait(60).await;
    world.create::<Job>(job("bad", "sleep 1; exit 3", json!({ "backoffLimit": 2 }))).await;
    let restarting = json!({
        "backoffLimit": 2, "template": { "spec": { "restartPolicy": "OnFailure" } },
    });
    world.create::<Job>(job("again", "sleep 1; exit 3", restarting)).await;
    let jobs: Api<Job> = Api::default_namespaced(world.client.clone());
    world.wait(10).await;
    assert_eq!(jobs.get("bad").await.unwrap().status.unwrap().failed, Some(1));
    world.wait(20).await;
    assert_eq!(ended(&jobs.get("bad").await.unwrap()), None);
    world.wait(60).await;
    for (name, pods) in [("bad", 3), ("again", 1)] {
        let job = jobs.get(name).await.unwrap();
        assert_eq!(ended(&job).as_deref(), Some("Failed: BackoffLimitExceeded"), "{name}");
        assert_eq!(job.status.unwrap().failed, Some(pods), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn results_of_a_job_survive_their_node_and_indexes_run_once() {
    let world = World::start();
    world.add_machine("one", 4000).await;
    world.wait(60).await;
    let spec = json!({ "completions": 4, "parallelism": 2, "completionMode": "Indexed" });
    world.create::<Job>(job("part", "sleep 30", spec)).await;
    world.wait(40).await;
    let jobs: Api<Job> = Api::default_namespaced(world.client.clone());
    let status = jobs.get("part").await.unwrap().status.unwrap();
    assert_eq!((status.succeeded, status.completed_indexes.as_deref()), (Some(2), Some("0,1")));
    world.remove_machine("one").await;
    world.add_machine("two", 4000).await;
    world.wait(150).await;
    let done = jobs.get("part").await.unwrap();
    assert_eq!(ended(&done).as_deref(), Some("Complete: CompletionsReached"));
    let status = done.status.unwrap();
    assert_eq!((status.succeeded, status.completed_indexes.as_deref()), (Some(4), Some("0-3")));
    assert_eq!(status.failed, Some(2), "the two that ran on the lost node");
}

#[tokio::test(start_paused = true)]
async fn job_with_a_deadline_or_suspended_stops_its_pods() {
    let world = World::start();
    world.add_machine("one", 4000).await;
    world.wait(60).await;
    world.create::<Job>(job("late", "sleep 600", json!({ "activeDeadlineSeconds": 30 }))).await;
    world.create::<Job>(job("held", "sleep 600", json!({ "suspend": true }))).await;
    world.wait(20).await;
    assert_eq!(world.pods().await.len(), 1);
    world.wait(60).await;
    let jobs: Api<Job> = Api::default_namespaced(world.client.clone());
    let late = jobs.get("late").await.unwrap();
    assert_eq!(ended(&late).as_deref(), Some("Failed: DeadlineExceeded"));
    assert_eq!(running(&world.pods().await), 0);
    let resume = json!({ "spec": { "suspend": false } });
    jobs.patch("held", &PatchParams::default(), &Patch::Merge(resume)).await.unwrap();
    world.wait(20).await;
    assert_eq!(running(&world.pods().await), 1);
}

#[expect(clippy::needless_pass_by_value, reason = "callers write the changes in place")]
fn cron_job(name: &str, changes: Value) -> Value {
    let mut cron_job = json!({
        "metadata": { "name": name },
        "spec": {
            "schedule": "*/10 * * * *",
            "jobTemplate": { "spec": job("", "sleep 60", json!({}))["spec"] },
        },
    });
    json_patch::merge(&mut cron_job["spec"], &changes);
    cron_job
}

#[tokio::test(start_paused = true)]
async fn cron_job_runs_on_schedule_in_its_time_zone_and_keeps_a_history() {
    let world = World::start();
    world.add_machine("one", 4000).await;
    world.create::<CronJob>(cron_job("often", json!({}))).await;
    // Six o'clock in Kolkata is half past midnight in UTC.
    let zone = json!({ "schedule": "0 6 * * *", "timeZone": "Asia/Kolkata" });
    world.create::<CronJob>(cron_job("daily", zone)).await;
    world.wait(3720).await;
    let jobs = list::<Job>(&world).await;
    let of = |name: &str| -> Vec<String> {
        let prefix = format!("{name}-");
        names(&jobs).into_iter().filter(|job| job.starts_with(&prefix)).collect()
    };
    assert_eq!(of("often").len(), 3, "{:?}", names(&jobs));
    assert_eq!(of("daily"), [format!("daily-{}", 1_893_456_000 / 60 + 30)]);
    let cron_jobs: Api<CronJob> = Api::default_namespaced(world.client.clone());
    let status = cron_jobs.get("often").await.unwrap().status.unwrap();
    assert_eq!(status.last_schedule_time.unwrap().0.to_string(), "2030-01-01T01:00:00Z");
    assert!(status.last_successful_time.is_some());
}

#[tokio::test(start_paused = true)]
async fn concurrency_policies_forbid_and_replace() {
    let world = World::start();
    world.add_machine("one", 4000).await;
    for (name, policy) in [("one-only", "Forbid"), ("newest", "Replace"), ("all", "Allow")] {
        let spec = json!({
            "schedule": "* * * * *", "concurrencyPolicy": policy,
            "jobTemplate": { "spec": { "template": { "spec": {
                "containers": [container("sleep 3600")],
            } } } },
        });
        world.create::<CronJob>(cron_job(name, spec)).await;
    }
    world.wait(200).await;
    let mut by_owner: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for job in list::<Job>(&world).await {
        let owner = job.owner_references()[0].name.clone();
        by_owner.entry(owner).or_default().push(job.name_any());
    }
    let minute = |number: i64| 1_893_456_000 / 60 + number;
    assert_eq!(by_owner["one-only"], [format!("one-only-{}", minute(1))]);
    assert_eq!(by_owner["newest"], [format!("newest-{}", minute(3))]);
    assert_eq!(by_owner["all"].len(), 3);
}

#[tokio::test(start_paused = true)]
async fn autoscaler_follows_the_use_that_pods_state() {
    let world = World::start();
    world.add_machine("one", 8000).await;
    let deployment = json!({
        "metadata": { "name": "web" },
        "spec": {
            "replicas": 2,
            "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": {
                    "labels": { "app": "web" },
                    "annotations": { "kwok.x-k8s.io/usage-cpu": "150m" },
                },
                "spec": { "containers": [container("serve")] },
            },
        },
    });
    world.create::<Deployment>(deployment).await;
    world.wait(60).await;
    let autoscaler = json!({
        "metadata": { "name": "web" },
        "spec": {
            "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" },
            "minReplicas": 1, "maxReplicas": 5,
            "metrics": [{ "type": "Resource", "resource": {
                "name": "cpu", "target": { "type": "Utilization", "averageUtilization": 75 } } }],
        },
    });
    world.create::<HorizontalPodAutoscaler>(autoscaler).await;
    world.wait(5).await;
    // 150 % of the request is twice the target.
    assert_eq!(world.pods().await.len(), 4);
    world.wait(60).await;
    assert_eq!(running(&world.pods().await), 5, "no more than the maximum");
    let autoscalers: Api<HorizontalPodAutoscaler> = Api::default_namespaced(world.client.clone());
    let status = autoscalers.get("web").await.unwrap().status.unwrap();
    assert_eq!((status.current_replicas, status.desired_replicas), (Some(5), 5));
    let shown = serde_json::to_value(&status.current_metrics).unwrap();
    assert_eq!(shown[0]["resource"]["current"]["averageUtilization"], 150);
    let limited = status.conditions.unwrap().into_iter().find(|one| one.type_ == "ScalingLimited");
    assert_eq!(limited.unwrap().reason.as_deref(), Some("TooManyReplicas"));

    for pod in world.pods().await {
        let idle = json!({ "metadata": { "annotations": { "kwok.x-k8s.io/usage-cpu": "15m" } } });
        let pods: Api<Pod> = Api::default_namespaced(world.client.clone());
        pods.patch(&pod.name_any(), &PatchParams::default(), &Patch::Merge(idle)).await.unwrap();
    }
    world.wait(240).await;
    assert_eq!(running(&world.pods().await), 5, "it waits for five minutes");
    world.wait(120).await;
    assert_eq!(running(&world.pods().await), 1);
}

#[tokio::test(start_paused = true)]
async fn service_has_the_addresses_of_its_ready_pods() {
    let world = World::start();
    world.add_machine("one", 2000).await;
    let service = json!({
        "metadata": { "name": "db" },
        "spec": {
            "selector": { "app": "db" },
            "ports": [{ "name": "sql", "port": 80, "targetPort": 5432 }],
        },
    });
    world.create::<Service>(service).await;
    let no_disks = json!({ "spec": { "volumeClaimTemplates": null } });
    world.create::<StatefulSet>(stateful(2, no_disks)).await;
    world.wait(90).await;
    let endpoints: Api<Endpoints> = Api::default_namespaced(world.client.clone());
    let found = serde_json::to_value(endpoints.get("db").await.unwrap().subsets).unwrap();
    assert_eq!(found[0]["addresses"].as_array().unwrap().len(), 2);
    assert_eq!(found[0]["ports"], json!([{ "name": "sql", "port": 5432, "protocol": "TCP" }]));
    let slices = list::<EndpointSlice>(&world).await;
    assert_eq!(slices.len(), 1);
    assert_eq!(slices[0].endpoints.len(), 2);
    let services: Api<Service> = Api::default_namespaced(world.client.clone());
    services.delete("db", &DeleteParams::default()).await.unwrap();
    world.wait(5).await;
    assert!(endpoints.get_opt("db").await.unwrap().is_none());
    assert_eq!(list::<EndpointSlice>(&world).await.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn quota_stops_a_workload_and_a_limit_range_fills_its_requests() {
    let world = World::start();
    world.add_machine("one", 8000).await;
    let default = json!({
        "metadata": { "name": "limits" },
        "spec": { "limits": [{
            "type": "Container", "defaultRequest": { "cpu": "250m" }, "max": { "cpu": "1" },
            "default": { "cpu": "500m" },
        }] },
    });
    world.create::<k8s_openapi::api::core::v1::LimitRange>(default).await;
    let quota =
        json!({ "metadata": { "name": "team" }, "spec": { "hard": { "requests.cpu": "1" } } });
    world.create::<k8s_openapi::api::core::v1::ResourceQuota>(quota).await;
    let deployment = json!({
        "metadata": { "name": "web" },
        "spec": {
            "replicas": 6, "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": { "containers": [{ "name": "main", "image": "example.com/app:1" }] },
            },
        },
    });
    world.create::<Deployment>(deployment).await;
    world.wait(60).await;
    assert_eq!(running(&world.pods().await), 4);
    let events = list::<Event>(&world).await;
    let refused = events.iter().find(|event| event.reason.as_deref() == Some("FailedCreate"));
    let message = refused.unwrap().message.clone().unwrap();
    let expected = "exceeded quota: team, requested: requests.cpu=250m, used: requests.cpu=1, \
                    limited: requests.cpu=1";
    assert!(message.contains(expected), "{message}");
    let failure = || async {
        let deployment = list::<Deployment>(&world).await.remove(0);
        let conditions = deployment.status.unwrap().conditions.unwrap();
        conditions.into_iter().find(|condition| condition.type_ == "ReplicaFailure")
    };
    let condition = failure().await.expect("the Deployment says that its pods are refused");
    assert_eq!(condition.reason.as_deref(), Some("FailedCreate"));
    assert!(condition.message.unwrap().contains("exceeded quota: team"));
    let quotas: Api<k8s_openapi::api::core::v1::ResourceQuota> =
        Api::default_namespaced(world.client.clone());
    let used = quotas.get("team").await.unwrap().status.unwrap().used.unwrap();
    assert_eq!(used["requests.cpu"].0, "1");
    let wider = json!({ "spec": { "hard": { "requests.cpu": "2" } } });
    quotas.patch("team", &PatchParams::default(), &Patch::Merge(wider)).await.unwrap();
    world.wait(60).await;
    assert_eq!(running(&world.pods().await), 6);
    assert_eq!(failure().await, None);
}

#[tokio::test(start_paused = true)]
async fn namespace_ends_with_everything_in_it() {
    let world = World::start();
    world.add_machine("one", 4000).await;
    let namespaces: Api<Namespace> = Api::all(world.client.clone());
    let team: Namespace =
        serde_json::from_value(json!({ "metadata": { "name": "team" } })).unwrap();
    namespaces.create(&PostParams::default(), &team).await.unwrap();
    let jobs: Api<Job> = Api::namespaced(world.client.clone(), "team");
    let running_job: Job = serde_json::from_value(job("work", "sleep 600", json!({}))).unwrap();
    jobs.create(&PostParams::default(), &running_job).await.unwrap();
    world.wait(60).await;
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), "team");
    assert_eq!(running(&pods.list(&ListParams::default()).await.unwrap().items), 1);
    namespaces.delete("team", &DeleteParams::default()).await.unwrap();
    assert_eq!(
        namespaces.get("team").await.unwrap().status.unwrap().phase.as_deref(),
        Some("Terminating")
    );
    world.wait(60).await;
    assert!(namespaces.get_opt("team").await.unwrap().is_none());
}
