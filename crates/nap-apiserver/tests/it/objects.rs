//! Create, read, update, patch, delete, and the subresources of built-in kinds.

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{
    Api, DeleteParams, EvictParams, ListParams, Patch, PatchParams, PostParams, Preconditions,
    PropagationPolicy,
};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use crate::support::{client, pod, refusal, typed};

fn pods(client: &Client) -> Api<Pod> {
    Api::namespaced(client.clone(), "default")
}

fn created() -> PostParams {
    PostParams::default()
}

fn config_map(name: &str) -> ConfigMap {
    typed(json!({ "metadata": { "name": name }, "data": { "a": "1" } }))
}

async fn bind(client: &Client, name: &str, node: &str) -> Result<(), kube::Error> {
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": { "name": name },
        "target": { "apiVersion": "v1", "kind": "Node", "name": node },
    });
    let request = http::Request::post(format!("/api/v1/namespaces/default/pods/{name}/binding"))
        .header("content-type", "application/json")
        .body(serde_json::to_vec(&binding).unwrap())
        .unwrap();
    client.request::<Value>(request).await.map(|_| ())
}

async fn run(client: &Client, name: &str) {
    bind(client, name, "node-1").await.unwrap();
    let status = json!({ "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] } });
    let api = pods(client);
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_defaulted_and_its_status_is_its_own() {
    let api = pods(&client());
    let mut wanted = pod("web");
    wanted.status = Some(typed(json!({ "phase": "Running" })));
    let web = api.create(&created(), &wanted).await.unwrap();
    let spec = web.spec.clone().unwrap();
    assert_eq!(spec.scheduler_name.as_deref(), Some("default-scheduler"));
    assert_eq!(spec.termination_grace_period_seconds, Some(30));
    assert_eq!(spec.priority, Some(0));
    let status = web.status.clone().unwrap();
    assert_eq!(status.phase.as_deref(), Some("Pending"));
    assert_eq!(status.qos_class.as_deref(), Some("Burstable"));
    let resources = spec.containers[0].resources.clone().unwrap();
    assert_eq!(resources.requests.unwrap()["memory"].0, "1Gi");
    assert_eq!(web.metadata.generation, Some(1));
    assert!(web.uid().is_some());
    assert_eq!(web.creation_timestamp().unwrap().0.to_string(), "2030-01-01T00:00:00Z");

    let again = refusal(api.create(&created(), &pod("web")).await);
    assert_eq!(again, (409, "AlreadyExists".into(), "pods \"web\" already exists".into()));
    let missing = refusal(api.get("other").await);
    assert_eq!(missing, (404, "NotFound".into(), "pods \"other\" not found".into()));
}

#[tokio::test(start_paused = true)]
async fn creation_needs_a_namespace_a_name_and_a_sound_object() {
    let client = client();
    let nowhere: Api<Pod> = Api::namespaced(client.clone(), "nowhere");
    let (code, _, message) = refusal(nowhere.create(&created(), &pod("web")).await);
    assert_eq!((code, message.as_str()), (404, "namespaces \"nowhere\" not found"));

    let api = pods(&client);
    let mut nameless = pod("x");
    nameless.metadata.name = None;
    assert_eq!(refusal(api.create(&created(), &nameless).await).0, 422);
    nameless.metadata.generate_name = Some("web-".into());
    let first = api.create(&created(), &nameless).await.unwrap().name_any();
    let second = api.create(&created(), &nameless).await.unwrap().name_any();
    assert!(first.starts_with("web-") && first.len() == 9 && first != second);

    assert_eq!(refusal(api.create(&created(), &pod("Not_A_Name")).await).0, 422);
    let mut empty = pod("empty");
    empty.spec.as_mut().unwrap().containers.clear();
    let (code, _, message) = refusal(api.create(&created(), &empty).await);
    assert_eq!(
        (code, message.as_str()),
        (422, "Pod \"empty\" is invalid: spec.containers: Required value")
    );
    let mut odd = pod("odd");
    let resources = odd.spec.as_mut().unwrap().containers[0].resources.as_mut().unwrap();
    resources.requests.as_mut().unwrap().get_mut("cpu").unwrap().0 = "lots".into();
    assert_eq!(refusal(api.create(&created(), &odd).await).0, 400);
    let mut unknown = pod("unknown");
    unknown.spec.as_mut().unwrap().priority_class_name = Some("nope".into());
    assert_eq!(refusal(api.create(&created(), &unknown).await).0, 403);
}

#[tokio::test(start_paused = true)]
async fn stale_writes_conflict_and_idle_ones_change_nothing() {
    let api: Api<ConfigMap> = Api::default_namespaced(client());
    let first = api.create(&created(), &config_map("c")).await.unwrap();
    let mut second = first.clone();
    second.data.as_mut().unwrap().insert("b".into(), "2".into());
    let second = api.replace("c", &created(), &second).await.unwrap();
    assert_ne!(first.resource_version(), second.resource_version());
    let (code, reason, _) = refusal(api.replace("c", &created(), &first).await);
    assert_eq!((code, reason.as_str()), (409, "Conflict"));
    let same = api.replace("c", &created(), &second).await.unwrap();
    assert_eq!(same.resource_version(), second.resource_version());
}

#[tokio::test(start_paused = true)]
async fn json_merge_and_strategic_patches_apply() {
    let client = client();
    let api: Api<Node> = Api::all(client);
    let node: Node =
        typed(json!({ "metadata": { "name": "n" }, "status": { "capacity": { "cpu": "2" },
        "conditions": [{ "type": "Ready", "status": "False" }] } }));
    let node = api.create(&created(), &node).await.unwrap();
    let taints = node.spec.unwrap().taints.unwrap();
    assert_eq!(taints[0].key, "node.kubernetes.io/not-ready");
    assert_eq!(node.status.unwrap().allocatable.unwrap()["cpu"].0, "2");

    let params = PatchParams::default();
    let merge = json!({ "metadata": { "labels": { "a": "1" } }, "spec": { "taints": null, "unschedulable": true } });
    let node = api.patch("n", &params, &Patch::Merge(merge)).await.unwrap();
    assert_eq!(node.labels()["a"], "1");
    assert!(node.spec.unwrap().taints.is_none());
    let strategic =
        json!({ "status": { "conditions": [{ "type": "DiskPressure", "status": "False" }] } });
    let node = api.patch_status("n", &params, &Patch::Strategic(strategic)).await.unwrap();
    assert_eq!(node.status.unwrap().conditions.unwrap().len(), 2);
    let request = http::Request::patch("/api/v1/nodes/n")
        .header("content-type", "application/json-patch+json")
        .body(br#"[{"op": "replace", "path": "/metadata/labels/a", "value": "2"}]"#.to_vec())
        .unwrap();
    let node: Node = api.clone().into_client().request(request).await.unwrap();
    assert_eq!(node.labels()["a"], "2");
    let stale = json!({ "metadata": { "resourceVersion": "1", "labels": { "b": "1" } } });
    assert_eq!(refusal(api.patch("n", &params, &Patch::Merge(stale)).await).0, 409);
}

#[tokio::test(start_paused = true)]
async fn server_side_apply_creates_then_takes_back_what_is_not_applied_any_more() {
    let api: Api<ConfigMap> = Api::default_namespaced(client());
    let params = PatchParams::apply("test");
    let body = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "c" }, "data": { "a": "1" } });
    api.patch("c", &params, &Patch::Apply(body)).await.unwrap();
    let body = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "c" }, "data": { "b": "2" } });
    let map = api.patch("c", &params, &Patch::Apply(body)).await.unwrap();
    assert_eq!(map.data.unwrap().into_keys().collect::<Vec<_>>(), ["b"]);
}

#[tokio::test(start_paused = true)]
async fn binding_places_a_pod_once() {
    let client = client();
    let api = pods(&client);
    api.create(&created(), &pod("web")).await.unwrap();
    bind(&client, "web", "node-1").await.unwrap();
    let web = api.get("web").await.unwrap();
    assert_eq!(web.spec.unwrap().node_name.as_deref(), Some("node-1"));
    let conditions = web.status.unwrap().conditions.unwrap();
    assert!(conditions.iter().any(|c| c.type_ == "PodScheduled" && c.status == "True"));
    let (code, _, message) = refusal(bind(&client, "web", "node-2").await);
    assert_eq!(code, 409);
    assert!(message.contains("already assigned to node \"node-1\""), "{message}");
    let on_node = ListParams::default().fields("spec.nodeName=node-1");
    assert_eq!(api.list(&on_node).await.unwrap().items.len(), 1);
    let mut moved = api.get("web").await.unwrap();
    moved.spec.as_mut().unwrap().node_name = Some("node-2".into());
    assert_eq!(refusal(api.replace("web", &created(), &moved).await).0, 422);
}

#[tokio::test(start_paused = true)]
async fn a_running_pod_has_grace_and_a_waiting_one_does_not() {
    let client = client();
    let api = pods(&client);
    for name in ["bound", "free"] {
        api.create(&created(), &pod(name)).await.unwrap();
    }
    run(&client, "bound").await;
    let free = api.delete("free", &DeleteParams::default()).await.unwrap().unwrap_left();
    assert_eq!(free.metadata.deletion_grace_period_seconds, Some(0));
    assert!(api.get_opt("free").await.unwrap().is_none());
    let bound = api.delete("bound", &DeleteParams::default()).await.unwrap().unwrap_left();
    assert_eq!(bound.metadata.deletion_grace_period_seconds, Some(30));
    assert_eq!(bound.metadata.deletion_timestamp.unwrap().0.to_string(), "2030-01-01T00:00:30Z");
    let shorter = DeleteParams::default().grace_period(5);
    let bound = api.delete("bound", &shorter).await.unwrap().unwrap_left();
    assert_eq!(bound.metadata.deletion_timestamp.unwrap().0.to_string(), "2030-01-01T00:00:05Z");
    api.delete("bound", &DeleteParams::default().grace_period(0)).await.unwrap();
    assert!(api.get_opt("bound").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn finalizers_hold_an_object_until_they_are_gone() {
    let api: Api<ConfigMap> = Api::default_namespaced(client());
    let mut map = config_map("held");
    map.metadata.finalizers = Some(vec!["example.com/hold".into()]);
    let map = api.create(&created(), &map).await.unwrap();
    let wrong = DeleteParams::default()
        .preconditions(Preconditions { uid: Some("other".into()), resource_version: None });
    assert_eq!(refusal(api.delete("held", &wrong).await).0, 409);
    let right = DeleteParams::default()
        .preconditions(Preconditions { uid: map.uid(), resource_version: None });
    let map = api.delete("held", &right).await.unwrap().unwrap_left();
    assert!(map.metadata.deletion_timestamp.is_some());
    let params = PatchParams::default();
    let more = json!({ "metadata": { "finalizers": ["example.com/hold", "example.com/new"] } });
    assert_eq!(refusal(api.patch("held", &params, &Patch::Merge(more)).await).0, 422);
    let none = json!({ "metadata": { "finalizers": null } });
    api.patch("held", &params, &Patch::Merge(none)).await.unwrap();
    assert!(api.get_opt("held").await.unwrap().is_none());
}

fn deployment(name: &str) -> Deployment {
    typed(json!({
        "metadata": { "name": name },
        "spec": {
            "selector": { "matchLabels": { "app": name } },
            "template": { "metadata": { "labels": { "app": name } },
                "spec": { "containers": [{ "name": "main", "image": "pause" }] } },
        },
    }))
}

#[tokio::test(start_paused = true)]
async fn deployments_default_scale_and_keep_their_selector() {
    let api: Api<Deployment> = Api::default_namespaced(client());
    let web = api.create(&created(), &deployment("web")).await.unwrap();
    let spec = web.spec.clone().unwrap();
    assert_eq!((spec.replicas, spec.progress_deadline_seconds), (Some(1), Some(600)));
    assert_eq!(spec.strategy.unwrap().type_.as_deref(), Some("RollingUpdate"));
    let patch = Patch::Merge(json!({ "spec": { "replicas": 4 } }));
    let scale = api.patch_scale("web", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(scale.spec.unwrap().replicas, Some(4));
    assert_eq!(scale.status.unwrap().selector.as_deref(), Some("app=web"));
    let web = api.get("web").await.unwrap();
    assert_eq!((web.spec.as_ref().unwrap().replicas, web.metadata.generation), (Some(4), Some(2)));
    let status = json!({ "status": { "readyReplicas": 1 }, "spec": { "replicas": 9 } });
    let web =
        api.patch_status("web", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    assert_eq!((web.spec.as_ref().unwrap().replicas, web.metadata.generation), (Some(4), Some(2)));

    let mut other = web.clone();
    other.spec.as_mut().unwrap().selector.match_labels =
        Some([("app".to_owned(), "b".to_owned())].into());
    let (code, _, message) = refusal(api.replace("web", &created(), &other).await);
    assert_eq!(code, 422);
    assert!(message.contains("`selector` does not match template `labels`"), "{message}");
}

async fn owned_pod(client: &Client, name: &str, owner: &ReplicaSet, blocking: bool) {
    let mut child = pod(name);
    child.metadata.owner_references = Some(vec![typed(json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner.name_any(), "uid": owner.uid(),
        "controller": true, "blockOwnerDeletion": blocking,
    }))]);
    pods(client).create(&created(), &child).await.unwrap();
}

async fn replica_set(client: &Client, name: &str) -> (Api<ReplicaSet>, ReplicaSet) {
    let api: Api<ReplicaSet> = Api::default_namespaced(client.clone());
    let spec = serde_json::to_value(deployment(name).spec.unwrap()).unwrap();
    let set: ReplicaSet = typed(json!({ "metadata": { "name": name },
        "spec": { "selector": spec["selector"], "template": spec["template"] } }));
    let set = api.create(&created(), &set).await.unwrap();
    (api, set)
}

#[tokio::test(start_paused = true)]
async fn dependents_follow_their_owner() {
    let client = client();
    let (sets, owner) = replica_set(&client, "a").await;
    owned_pod(&client, "a-1", &owner, false).await;
    sets.delete("a", &DeleteParams::background()).await.unwrap();
    assert!(pods(&client).get_opt("a-1").await.unwrap().is_none());
    // An owner that is already gone takes new dependents along.
    owned_pod(&client, "a-2", &owner, false).await;
    assert!(pods(&client).get_opt("a-2").await.unwrap().is_none());

    let (_, owner) = replica_set(&client, "b").await;
    owned_pod(&client, "b-1", &owner, false).await;
    let orphan = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Orphan),
        ..DeleteParams::default()
    };
    sets.delete("b", &orphan).await.unwrap();
    assert!(pods(&client).get("b-1").await.unwrap().owner_references().is_empty());

    let (_, owner) = replica_set(&client, "c").await;
    owned_pod(&client, "c-1", &owner, true).await;
    run(&client, "c-1").await;
    sets.delete("c", &DeleteParams::foreground()).await.unwrap();
    let waiting = sets.get("c").await.unwrap();
    assert_eq!(waiting.finalizers(), ["foregroundDeletion"]);
    pods(&client).delete("c-1", &DeleteParams::default().grace_period(0)).await.unwrap();
    assert!(sets.get_opt("c").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_namespace_goes_when_it_is_empty() {
    let client = client();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let space: Namespace = typed(json!({ "metadata": { "name": "team" } }));
    let space = namespaces.create(&created(), &space).await.unwrap();
    assert_eq!(space.labels()["kubernetes.io/metadata.name"], "team");
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "team");
    let mut map = config_map("held");
    map.metadata.finalizers = Some(vec!["example.com/hold".into()]);
    maps.create(&created(), &map).await.unwrap();
    maps.create(&created(), &config_map("free")).await.unwrap();
    namespaces.delete("team", &DeleteParams::default()).await.unwrap();
    let space = namespaces.get("team").await.unwrap();
    assert_eq!(space.status.unwrap().phase.as_deref(), Some("Terminating"));
    assert_eq!(maps.list(&ListParams::default()).await.unwrap().items.len(), 1);
    assert_eq!(refusal(maps.create(&created(), &config_map("late")).await).0, 403);
    maps.patch(
        "held",
        &PatchParams::default(),
        &Patch::Merge(json!({ "metadata": { "finalizers": null } })),
    )
    .await
    .unwrap();
    assert!(namespaces.get_opt("team").await.unwrap().is_none());
    assert_eq!(refusal(namespaces.delete("default", &DeleteParams::default()).await).0, 403);
}

#[tokio::test(start_paused = true)]
async fn evictions_ask_the_disruption_budget() {
    let client = client();
    let api = pods(&client);
    let evict = EvictParams::default();
    for name in ["web", "waiting"] {
        let mut wanted = pod(name);
        wanted.metadata.labels = Some([("app".to_owned(), "web".to_owned())].into());
        api.create(&created(), &wanted).await.unwrap();
    }
    run(&client, "web").await;
    let budgets: Api<PodDisruptionBudget> = Api::default_namespaced(client.clone());
    let budget: PodDisruptionBudget = typed(json!({ "metadata": { "name": "web" },
        "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": "web" } } } }));
    budgets.create(&created(), &budget).await.unwrap();
    let (code, _, _) = refusal(api.evict("web", &evict).await);
    assert_eq!(code, 429, "a budget that was never observed allows nothing");
    let status = |allowed: i32| {
        Patch::Merge(
            json!({ "status": { "disruptionsAllowed": allowed, "currentHealthy": 1, "desiredHealthy": 1,
            "expectedPods": 1, "observedGeneration": 1 } }),
        )
    };
    budgets.patch_status("web", &PatchParams::default(), &status(0)).await.unwrap();
    let error = api.evict("web", &evict).await.unwrap_err();
    let kube::Error::Api(refused) = error else { panic!("{error:?}") };
    assert_eq!((refused.code, refused.reason.as_str()), (429, "TooManyRequests"));
    assert_eq!(
        refused.message,
        "Cannot evict pod as it would violate the pod's disruption budget."
    );
    let cause = &refused.details.as_ref().unwrap().causes[0];
    assert_eq!(cause.reason, "DisruptionBudget");
    assert_eq!(cause.message, "The disruption budget web needs 1 healthy pods and has 1 currently");
    // A pod that is not running is not protected.
    api.evict("waiting", &evict).await.unwrap();
    budgets.patch_status("web", &PatchParams::default(), &status(1)).await.unwrap();
    api.evict("web", &evict).await.unwrap();
    let status = budgets.get("web").await.unwrap().status.unwrap();
    assert_eq!(status.disruptions_allowed, 0);
    assert!(status.disrupted_pods.unwrap().contains_key("web"));
    let evicted = api.get("web").await.unwrap();
    assert!(evicted.metadata.deletion_timestamp.is_some());
    let conditions = evicted.status.unwrap().conditions.unwrap();
    let target = conditions.iter().find(|one| one.type_ == "DisruptionTarget").unwrap();
    assert_eq!(target.reason.as_deref(), Some("EvictionByEvictionAPI"));
    assert_eq!(target.message.as_deref(), Some("Eviction API: evicting"));
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_of_an_eviction_leaves_no_condition() {
    let client = client();
    let api = pods(&client);
    api.create(&created(), &pod("web")).await.unwrap();
    run(&client, "web").await;
    let is_marked = async || {
        let conditions = api.get("web").await.unwrap().status.unwrap().conditions;
        conditions.into_iter().flatten().any(|one| one.type_ == "DisruptionTarget")
    };
    let tried = EvictParams {
        post_options: PostParams { dry_run: true, ..PostParams::default() },
        ..EvictParams::default()
    };
    api.evict("web", &tried).await.unwrap();
    assert!(!is_marked().await);
    api.evict("web", &EvictParams::default()).await.unwrap();
    assert!(is_marked().await);
}

#[tokio::test(start_paused = true)]
async fn two_budgets_on_one_pod_are_a_server_error() {
    let client = client();
    pods(&client).create(&created(), &pod("web")).await.unwrap();
    run(&client, "web").await;
    let budgets: Api<PodDisruptionBudget> = Api::default_namespaced(client.clone());
    for name in ["a", "b"] {
        let budget: PodDisruptionBudget = typed(
            json!({ "metadata": { "name": name }, "spec": { "maxUnavailable": 1, "selector": {} } }),
        );
        budgets.create(&created(), &budget).await.unwrap();
    }
    assert_eq!(refusal(pods(&client).evict("web", &EvictParams::default()).await).0, 500);
}

#[tokio::test(start_paused = true)]
async fn collections_are_deleted_by_selector() {
    let api = pods(&client());
    for name in ["a", "b", "c"] {
        api.create(&created(), &pod(name)).await.unwrap();
    }
    api.delete_collection(&DeleteParams::default(), &ListParams::default().labels("app in (a,b)"))
        .await
        .unwrap();
    let left: Vec<String> =
        api.list(&ListParams::default()).await.unwrap().iter().map(ResourceExt::name_any).collect();
    assert_eq!(left, ["c"]);
}

#[tokio::test(start_paused = true)]
async fn dry_runs_leave_nothing_and_unknown_fields_can_be_refused() {
    let client = client();
    let api = pods(&client);
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    api.create(&dry, &pod("web")).await.unwrap();
    assert!(api.get_opt("web").await.unwrap().is_none());
    let body = json!({ "metadata": { "name": "c" }, "datum": {} });
    let request =
        http::Request::post("/api/v1/namespaces/default/configmaps?fieldValidation=Strict")
            .body(serde_json::to_vec(&body).unwrap())
            .unwrap();
    let (code, _, message) = refusal(client.request::<ConfigMap>(request).await);
    assert_eq!(code, 400);
    assert!(message.contains("strict decoding error: unknown field \"datum\""), "{message}");
}

#[tokio::test(start_paused = true)]
async fn events_are_forgotten_after_an_hour() {
    let api: Api<k8s_openapi::api::core::v1::Event> = Api::default_namespaced(client());
    for (name, wait) in [("old", 0), ("young", 3000), ("new", 1200)] {
        tokio::time::sleep(std::time::Duration::from_secs(wait)).await;
        let event =
            typed(json!({ "metadata": { "name": name }, "involvedObject": {}, "reason": "Test" }));
        api.create(&created(), &event).await.unwrap();
    }
    let left: Vec<String> =
        api.list(&ListParams::default()).await.unwrap().iter().map(ResourceExt::name_any).collect();
    assert_eq!(left, ["new", "young"]);
}

#[tokio::test(start_paused = true)]
async fn unserved_requests_are_refused() {
    let client = client();
    let get = |path: &str| http::Request::get(path).body(Vec::new()).unwrap();
    assert_eq!(refusal(client.request::<Value>(get("/apis/example.com/v1/things")).await).0, 404);
    assert_eq!(
        refusal(client.request::<Value>(get("/api/v1/pods?fieldSelector=spec.hostname%3Dx")).await)
            .0,
        400
    );
    assert_eq!(
        refusal(client.request::<Value>(get("/api/v1/namespaces/default/pods/x/log")).await).0,
        501
    );
    let post =
        http::Request::post("/api/v1/namespaces/default/configmaps/x").body(Vec::new()).unwrap();
    assert_eq!(refusal(client.request::<Value>(post).await).0, 405);
}

#[tokio::test(start_paused = true)]
async fn a_bound_pod_has_the_zone_and_the_region_of_its_node() {
    let client = client();
    let node: Node = typed(json!({ "metadata": { "name": "node-1", "labels": {
        "topology.kubernetes.io/zone": "westeurope-2", "topology.kubernetes.io/region": "westeurope",
        "disk": "fast",
    } } }));
    Api::<Node>::all(client.clone()).create(&created(), &node).await.unwrap();
    let api = pods(&client);
    api.create(&created(), &pod("scheduled")).await.unwrap();
    bind(&client, "scheduled", "node-1").await.unwrap();
    let mut placed = pod("placed");
    placed.spec.as_mut().unwrap().node_name = Some("node-1".to_owned());
    placed.labels_mut().insert("topology.kubernetes.io/zone".to_owned(), "elsewhere".to_owned());
    api.create(&created(), &placed).await.unwrap();
    let in_zone = ListParams::default().labels(
        "topology.kubernetes.io/zone=westeurope-2,topology.kubernetes.io/region=westeurope",
    );
    let found = api.list(&in_zone).await.unwrap();
    assert_eq!(found.items.iter().map(Pod::name_any).collect::<Vec<_>>(), ["placed", "scheduled"]);
    assert_eq!(found.items[1].labels().len(), 3, "{:?}", found.items[1].labels());
    api.create(&created(), &pod("lost")).await.unwrap();
    bind(&client, "lost", "no-such-node").await.unwrap();
    assert_eq!(api.get("lost").await.unwrap().labels().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_address_of_a_pod_is_listed() {
    let api = pods(&client());
    api.create(&created(), &pod("web")).await.unwrap();
    let status = json!({ "status": { "podIP": "10.0.0.7" } });
    api.patch_status("web", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    let status = api.get("web").await.unwrap().status.unwrap();
    assert_eq!(status.pod_ips.unwrap()[0].ip, "10.0.0.7");
}

#[tokio::test(start_paused = true)]
async fn a_job_without_labels_is_found_by_its_name() {
    let api: Api<Job> = Api::namespaced(client(), "default");
    let job = |name: &str, labels: Value| -> Job {
        typed(json!({
            "metadata": { "name": name, "labels": labels },
            "spec": { "template": { "spec": {
                "restartPolicy": "Never", "containers": [{ "name": "main", "image": "busybox" }],
            } } },
        }))
    };
    let sum = api.create(&created(), &job("sum", json!(null))).await.unwrap();
    for key in ["job-name", "batch.kubernetes.io/job-name"] {
        assert_eq!(sum.labels()[key], "sum");
    }
    assert_eq!(sum.labels()["controller-uid"], sum.uid().unwrap());
    let labelled = api.create(&created(), &job("product", json!({ "team": "a" }))).await.unwrap();
    assert_eq!(labelled.labels().len(), 1, "{:?}", labelled.labels());
}

#[tokio::test(start_paused = true)]
async fn a_group_that_is_not_served_is_no_page() {
    let client = client();
    let text = async |path: &str| {
        let request = http::Request::get(path).body(kube::client::Body::empty()).unwrap();
        let answer = client.send(request).await.unwrap();
        assert_eq!(answer.status(), 404);
        let body = answer.into_body().collect_bytes().await.unwrap();
        String::from_utf8(body.to_vec()).unwrap()
    };
    for path in ["/apis/nothing.example.com/v1", "/apis/nothing.example.com", "/apis/apps/v9/x"] {
        assert_eq!(text(path).await, "404 page not found", "{path}");
    }
    assert!(text("/apis/apps/v1/nothings").await.contains("could not find the requested resource"));
}
