//! The embedded cluster components without nap: workloads, scheduler, kubelets, budgets.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, DeleteParams, EvictParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use nap_api::Taint;
use nap_apiserver::{ApiServer, Config};
use nap_clock::Clock;
use nap_kubelets::VmEvent;
use nap_sim::cluster::{self, ForUsers};
use nap_units::Resources;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tower::ServiceExt as _;

pub(crate) struct World {
    pub(crate) client: Client,
    clock: Clock,
    machines: mpsc::Sender<VmEvent>,
    requests: Arc<AtomicU64>,
    _tasks: JoinSet<()>,
}

impl World {
    pub(crate) fn start() -> Self {
        Self::start_for(ForUsers::default())
    }

    /// With the writes that only people see.
    pub(crate) fn start_for(users: ForUsers) -> Self {
        let clock = Clock::starting_at("2030-01-01T00:00:00Z".parse().unwrap(), 1);
        let server = ApiServer::new(Config {
            clock: clock.clone(),
            seed: 1,
            git_version: "v1.34.2".to_owned(),
        });
        let requests = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&requests);
        let counted = server.map_request(move |request| {
            counter.fetch_add(1, Ordering::Relaxed);
            request
        });
        let client = Client::new(counted, "default");
        let (machines, events) = mpsc::channel(16);
        let mut tasks = JoinSet::new();
        let (cluster_client, cluster_clock) = (client.clone(), clock.clone());
        tasks.spawn(async move {
            cluster::run_with(cluster_client, cluster_clock, events, Vec::new(), users).await;
        });
        Self { client, clock, machines, requests, _tasks: tasks }
    }

    /// Number of requests to the API server so far.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    fn api<T>(&self) -> Api<T>
    where
        T: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::default_namespaced(self.client.clone())
    }

    pub(crate) async fn create<T>(&self, object: Value) -> T
    where
        T: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + serde::de::DeserializeOwned
            + serde::Serialize
            + Clone
            + std::fmt::Debug,
    {
        let object: T = serde_json::from_value(object).unwrap();
        self.api::<T>().create(&PostParams::default(), &object).await.unwrap()
    }

    pub(crate) async fn add_machine(&self, name: &str, milli_cpu: i64) {
        self.add_tainted_machine(name, milli_cpu, Vec::new()).await;
    }

    /// A machine in a zone.
    pub(crate) async fn add_machine_in(&self, name: &str, milli_cpu: i64, zone: &str) {
        let zones = ["topology.kubernetes.io/zone", "topology.disk.csi.azure.com/zone"];
        let zones = zones.map(|key| (key.to_owned(), zone.to_owned())).into();
        self.add(name, milli_cpu, Vec::new(), zones).await;
    }

    async fn add_tainted_machine(&self, name: &str, milli_cpu: i64, taints: Vec<Taint>) {
        self.add(name, milli_cpu, taints, BTreeMap::new()).await;
    }

    async fn add(
        &self,
        name: &str,
        milli_cpu: i64,
        taints: Vec<Taint>,
        mut labels: BTreeMap<String, String>,
    ) {
        labels.insert("kubernetes.io/hostname".to_owned(), name.to_owned());
        let size: Resources =
            [("cpu", milli_cpu), ("memory", 8 << 30), ("pods", 10)].into_iter().collect();
        let event = VmEvent::Created {
            provider_id: format!("azure:///{name}"),
            node_name: name.to_owned(),
            labels,
            taints,
            capacity: size.clone(),
            allocatable: size,
            boot: Duration::from_secs(30),
        };
        self.machines.send(event).await.unwrap();
    }

    pub(crate) async fn remove_machine(&self, name: &str) {
        let event = VmEvent::Deleted {
            provider_id: format!("azure:///{name}"),
            node_name: name.to_owned(),
        };
        self.machines.send(event).await.unwrap();
    }

    pub(crate) async fn pods(&self) -> Vec<Pod> {
        self.api::<Pod>().list(&ListParams::default()).await.unwrap().items
    }

    pub(crate) async fn wait(&self, seconds: u64) {
        self.clock.sleep(Duration::from_secs(seconds)).await;
    }

    pub(crate) async fn scale(&self, replicas: i32) {
        let patch = Patch::Merge(json!({ "spec": { "replicas": replicas } }));
        self.api::<Deployment>().patch_scale("web", &PatchParams::default(), &patch).await.unwrap();
    }
}

pub(crate) fn deployment(replicas: i32, cpu: &str) -> Value {
    json!({
        "metadata": { "name": "web" },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": { "containers": [
                    { "name": "main", "image": "pause:3.9", "resources": { "requests": { "cpu": cpu } } },
                ] },
            },
        },
    })
}

pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

pub(crate) fn running(pods: &[Pod]) -> usize {
    pods.iter()
        .filter(|pod| phase(pod) == "Running" && pod.metadata.deletion_timestamp.is_none())
        .count()
}

pub(crate) fn unschedulable(pod: &Pod) -> String {
    let conditions =
        pod.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
    let found = conditions.into_iter().find(|condition| condition.type_ == "PodScheduled").unwrap();
    assert_eq!(found.status, "False");
    format!("{}: {}", found.reason.unwrap_or_default(), found.message.unwrap_or_default())
}

#[tokio::test(start_paused = true)]
async fn deployment_waits_for_a_node_then_runs_and_scales() {
    let world = World::start();
    world.create::<Deployment>(deployment(3, "1")).await;
    world.wait(1).await;
    let pods = world.pods().await;
    assert_eq!(pods.len(), 3);
    assert_eq!(unschedulable(&pods[0]), "Unschedulable: no nodes available to schedule pods");
    let events: Api<Event> = world.api();
    let events =
        events.list(&ListParams::default().fields("reason=FailedScheduling")).await.unwrap();
    assert_eq!(events.items.len(), 3);

    world.add_machine("small", 2000).await;
    world.wait(60).await;
    let nodes: Api<Node> = Api::all(world.client.clone());
    let node = nodes.get("small").await.unwrap();
    assert_eq!(node.metadata.creation_timestamp.unwrap().0.to_string(), "2030-01-01T00:00:31Z");
    assert!(node.spec.unwrap().taints.is_none_or(|taints| taints.is_empty()));
    let pods = world.pods().await;
    assert_eq!(running(&pods), 2);
    let waiting = pods.iter().find(|pod| phase(pod) == "Pending").unwrap();
    assert_eq!(
        unschedulable(waiting),
        "Unschedulable: 0/1 nodes are available: 1 Insufficient cpu."
    );

    world.add_machine("second", 2000).await;
    world.wait(60).await;
    assert_eq!(running(&world.pods().await), 3);
    let status = world.api::<Deployment>().get("web").await.unwrap().status.unwrap();
    assert_eq!(
        (status.ready_replicas, status.available_replicas, status.observed_generation),
        (Some(3), Some(3), Some(1))
    );
    assert!(status.conditions.unwrap().iter().all(|condition| condition.status == "True"));

    world.scale(1).await;
    world.wait(60).await;
    assert_eq!(world.pods().await.len(), 1);
    world.api::<Deployment>().delete("web", &DeleteParams::background()).await.unwrap();
    world.wait(60).await;
    assert_eq!(world.pods().await.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_budget_blocks_an_eviction_until_it_can_spare_a_pod() {
    let world = World::start();
    world.add_machine("one", 4000).await;
    world.create::<Deployment>(deployment(2, "1")).await;
    world
        .create::<PodDisruptionBudget>(json!({
            "metadata": { "name": "web" },
            "spec": { "minAvailable": 2, "selector": { "matchLabels": { "app": "web" } } },
        }))
        .await;
    world.wait(120).await;
    let budgets: Api<PodDisruptionBudget> = world.api();
    let status = budgets.get("web").await.unwrap().status.unwrap();
    assert_eq!(
        (status.current_healthy, status.desired_healthy, status.disruptions_allowed),
        (2, 2, 0)
    );
    let victim = world.pods().await[0].name_any();
    let refused = world.api::<Pod>().evict(&victim, &EvictParams::default()).await.unwrap_err();
    assert!(matches!(&refused, kube::Error::Api(status) if status.code == 429), "{refused}");

    world.scale(3).await;
    world.wait(30).await;
    world.api::<Pod>().evict(&victim, &EvictParams::default()).await.unwrap();
    let pods = world.pods().await;
    let again = pods.iter().find(|pod| phase(pod) == "Running" && pod.name_any() != victim);
    let again = again.unwrap().name_any();
    let refused = world.api::<Pod>().evict(&again, &EvictParams::default()).await.unwrap_err();
    assert!(matches!(&refused, kube::Error::Api(status) if status.code == 429), "{refused}");
    world.wait(60).await;
    assert_eq!(running(&world.pods().await), 3);
    let status = budgets.get("web").await.unwrap().status.unwrap();
    assert_eq!((status.disruptions_allowed, status.disrupted_pods), (1, None));
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_deleted_vm_are_recreated() {
    let world = World::start();
    world.add_machine("one", 4000).await;
    world.create::<Deployment>(deployment(2, "1")).await;
    world.wait(60).await;
    let before: Vec<String> = world.pods().await.iter().map(ResourceExt::name_any).collect();
    world.remove_machine("one").await;
    world.wait(5).await;
    let nodes: Api<Node> = Api::all(world.client.clone());
    assert!(nodes.get_opt("one").await.unwrap().is_none());
    let pods = world.pods().await;
    assert_eq!(pods.len(), 2);
    assert!(pods.iter().all(|pod| phase(pod) == "Pending" && !before.contains(&pod.name_any())));
    world.add_machine("two", 4000).await;
    world.wait(60).await;
    assert_eq!(running(&world.pods().await), 2);
}

#[tokio::test(start_paused = true)]
async fn daemons_run_on_every_node_and_taints_keep_pods_away() {
    let world = World::start();
    let daemon = json!({
        "metadata": { "name": "agent" },
        "spec": {
            "selector": { "matchLabels": { "app": "agent" } },
            "template": {
                "metadata": { "labels": { "app": "agent" } },
                "spec": {
                    "tolerations": [{ "operator": "Exists" }],
                    "containers": [{ "name": "main", "image": "pause:3.9" }],
                },
            },
        },
    });
    world.create::<DaemonSet>(daemon).await;
    world.add_machine("open", 1000).await;
    let taint = Taint::new("example.com/closed", nap_api::Effect::NoSchedule);
    world.add_tainted_machine("closed", 8000, vec![taint]).await;
    world.create::<Deployment>(deployment(2, "600m")).await;
    world.wait(90).await;
    let pods = world.pods().await;
    let on = |node: &str, app: &str| {
        pods.iter()
            .filter(|pod| pod.labels()["app"] == app)
            .filter(|pod| pod.spec.as_ref().unwrap().node_name.as_deref() == Some(node))
            .count()
    };
    assert_eq!((on("open", "agent"), on("closed", "agent")), (1, 1));
    assert_eq!((on("open", "web"), on("closed", "web")), (1, 0));
    let waiting = pods.iter().find(|pod| phase(pod) == "Pending").unwrap();
    assert_eq!(
        unschedulable(waiting),
        "Unschedulable: 0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint \
         {example.com/closed: }."
    );
    let status = world.api::<DaemonSet>().get("agent").await.unwrap().status.unwrap();
    assert_eq!((status.desired_number_scheduled, status.number_ready), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn rollout_keeps_within_max_unavailable() {
    let world = World::start();
    world.add_machine("one", 8000).await;
    world.create::<Deployment>(deployment(4, "1")).await;
    world.wait(60).await;
    let image = json!({ "spec": { "template": { "spec": { "containers": [{ "name": "main", "image": "pause:3.10" }] } } } });
    let web: Api<Deployment> = world.api();
    web.patch("web", &PatchParams::default(), &Patch::Strategic(image)).await.unwrap();
    let mut least = usize::MAX;
    for _ in 0..60 {
        world.wait(1).await;
        let pods = world.pods().await;
        least = least.min(running(&pods));
        assert!(pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).count() <= 5);
    }
    assert_eq!(least, 3);
    let pods = world.pods().await;
    assert_eq!(running(&pods), 4);
    assert!(
        pods.iter()
            .all(|pod| pod.spec.as_ref().unwrap().containers[0].image.as_deref()
                == Some("pause:3.10"))
    );
    let sets = world.api::<ReplicaSet>().list(&ListParams::default()).await.unwrap();
    assert_eq!(sets.items.len(), 2);
    let status = web.get("web").await.unwrap().status.unwrap();
    assert_eq!((status.updated_replicas, status.replicas), (Some(4), Some(4)));
}

#[tokio::test(start_paused = true)]
async fn pod_with_an_unimplemented_constraint_is_never_bound() {
    let world = World::start();
    world.add_machine("one", 8000).await;
    let mut apart = deployment(1, "1");
    apart["spec"]["template"]["spec"]["affinity"] = json!({ "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [{
            "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": { "app": "web" } },
        }],
    }});
    apart["spec"]["template"]["spec"]["resourceClaims"] =
        json!([{ "name": "gpu", "resourceClaimName": "gpu" }]);
    world.create::<Deployment>(apart).await;
    world.wait(60).await;
    let pods = world.pods().await;
    assert_eq!(running(&pods), 0);
    assert!(unschedulable(&pods[0]).contains("resource claims"));
}

#[tokio::test(start_paused = true)]
async fn host_anti_affinity_waits_for_another_node() {
    let world = World::start();
    world.add_machine("one", 8000).await;
    let mut apart = deployment(2, "1");
    apart["spec"]["template"]["spec"]["affinity"] = json!({ "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            { "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": { "app": "web" } } },
        ],
    }});
    world.create::<Deployment>(apart).await;
    world.wait(60).await;
    let pods = world.pods().await;
    assert_eq!(running(&pods), 1);
    world.add_machine("two", 8000).await;
    world.wait(60).await;
    assert_eq!(running(&world.pods().await), 2);
}

#[tokio::test(start_paused = true)]
async fn pods_are_bound_to_their_nominated_node() {
    let world = World::start();
    world.add_machine("a", 8000).await;
    world.add_machine("b", 2000).await;
    world.wait(60).await;
    let mut gated = deployment(1, "1");
    gated["spec"]["template"]["spec"]["schedulingGates"] = json!([{ "name": "example.com/wait" }]);
    world.create::<Deployment>(gated).await;
    world.wait(5).await;
    let pods: Api<Pod> = world.api();
    let name = world.pods().await[0].name_any();
    let nominate = json!({ "status": { "nominatedNodeName": "b" } });
    pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(nominate)).await.unwrap();
    let release = json!({ "spec": { "schedulingGates": null } });
    pods.patch(&name, &PatchParams::default(), &Patch::Merge(release)).await.unwrap();
    world.wait(5).await;
    assert_eq!(pods.get(&name).await.unwrap().spec.unwrap().node_name.as_deref(), Some("b"));
}

#[tokio::test(start_paused = true)]
async fn equal_runs_give_equal_pods_and_events() {
    async fn story() -> String {
        let world = World::start();
        world.create::<Deployment>(deployment(5, "1")).await;
        for name in ["one", "two", "three"] {
            world.add_machine(name, 2000).await;
        }
        world.wait(45).await;
        world.remove_machine("two").await;
        world.wait(100).await;
        let events: Api<Event> = world.api();
        let events = events.list(&ListParams::default()).await.unwrap().items;
        serde_json::to_string(&(world.pods().await, events)).unwrap()
    }
    let (first, second) = (story().await, story().await);
    assert_eq!(first, second);
}
