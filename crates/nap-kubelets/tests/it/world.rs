//! An API server, kubelets, and VMs that tests create and delete.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt as _};
use nap_api::{Effect, Taint};
use nap_apiserver::{ApiServer, Config};
use nap_clock::Clock;
use nap_kubelets::{KubeletConfig, VmEvent};
use nap_units::Resources;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tower::ServiceExt as _;

pub(crate) struct World {
    pub(crate) client: Client,
    pub(crate) clock: Clock,
    vms: mpsc::Sender<VmEvent>,
    refuse_nodes: Arc<AtomicBool>,
    requests: Arc<AtomicU64>,
    _tasks: JoinSet<()>,
}

impl World {
    pub(crate) fn start() -> Self {
        let clock = Clock::starting_at("2030-01-01T00:00:00Z".parse().unwrap(), 1);
        let server = ApiServer::new(Config {
            clock: clock.clone(),
            seed: 1,
            git_version: "v1.34.2".to_owned(),
        });
        let client = Client::new(server.clone(), "default");
        let refuse_nodes = Arc::new(AtomicBool::new(false));
        let refuse = Arc::clone(&refuse_nodes);
        let requests = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&requests);
        // Any error, as when an admission policy refuses the Node.
        let guarded = server.map_request(move |mut request: http::Request<kube::client::Body>| {
            let creates =
                request.method() == http::Method::POST && request.uri().path() == "/api/v1/nodes";
            counter.fetch_add(1, Ordering::Relaxed);
            if creates && refuse.load(Ordering::Relaxed) {
                *request.uri_mut() = http::Uri::from_static("/api/v1/refused");
            }
            request
        });
        let (vms, events) = mpsc::channel(16);
        let kubelets = nap_kubelets::run(
            Client::new(guarded, "default"),
            clock.clone(),
            KubeletConfig::default(),
            events,
        );
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            kubelets.await;
        });
        Self { client, clock, vms, refuse_nodes, requests, _tasks: tasks }
    }

    /// Refuses or allows the creation of Nodes.
    pub(crate) fn refuse_nodes(&self, refuse: bool) {
        self.refuse_nodes.store(refuse, Ordering::Relaxed);
    }

    /// Number of requests of the kubelets so far.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// A VM with a boot time of ten seconds.
    pub(crate) async fn create_vm(&self, name: &str) {
        let size: Resources =
            [("cpu", 4000), ("memory", 8 << 30), ("pods", 10)].into_iter().collect();
        let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let event = VmEvent::Created {
            provider_id: format!("azure:///{name}"),
            node_name: name.to_owned(),
            labels: BTreeMap::from([label("kubernetes.io/hostname", name), label("team", "red")]),
            taints: vec![Taint::new("karpenter.sh/unregistered", Effect::NoExecute)],
            capacity: size.clone(),
            allocatable: size,
            boot: Duration::from_secs(10),
        };
        self.vms.send(event).await.unwrap();
    }

    pub(crate) async fn reboot_vm(&self, name: &str) {
        let event = VmEvent::Rebooted { node_name: name.to_owned(), boot: Duration::from_secs(10) };
        self.vms.send(event).await.unwrap();
    }

    pub(crate) async fn delete_vm(&self, name: &str) {
        let event = VmEvent::Deleted {
            provider_id: format!("azure:///{name}"),
            node_name: name.to_owned(),
        };
        self.vms.send(event).await.unwrap();
    }

    pub(crate) async fn wait(&self, seconds: u64) {
        self.clock.sleep(Duration::from_secs(seconds)).await;
    }

    pub(crate) fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::default_namespaced(self.client.clone())
    }

    pub(crate) async fn node(&self, name: &str) -> Option<Node> {
        self.nodes().get_opt(name).await.unwrap()
    }

    pub(crate) async fn lease(&self, name: &str) -> Option<Lease> {
        Api::namespaced(self.client.clone(), "kube-node-lease").get_opt(name).await.unwrap()
    }

    pub(crate) async fn pod(&self, name: &str) -> Option<Pod> {
        self.pods().get_opt(name).await.unwrap()
    }

    /// Changes one condition of a Node, as another controller does.
    pub(crate) async fn set_condition(&self, node: &str, kind: &str, status: &str) {
        let patch = json!({ "status": { "conditions": [{ "type": kind, "status": status }] } });
        let patch = Patch::Strategic(patch);
        self.nodes().patch_status(node, &PatchParams::default(), &patch).await.unwrap();
    }

    /// A pod on the node `vm`; `changes` are fields beside its container.
    pub(crate) async fn create_pod(&self, name: &str, metadata: Value, container: Value) -> Pod {
        let mut object = json!({ "metadata": metadata, "spec": {
            "nodeName": "vm", "terminationGracePeriodSeconds": 120, "containers": [container],
        } });
        object["metadata"]["name"] = json!(name);
        object["spec"]["containers"][0]["name"] = json!("main");
        object["spec"]["containers"][0]["image"] = json!("pause:3.9");
        let pod: Pod = serde_json::from_value(object).unwrap();
        self.pods().create(&PostParams::default(), &pod).await.unwrap()
    }

    pub(crate) async fn delete_pod(&self, name: &str, grace: Option<u32>) {
        let parameters = DeleteParams { grace_period_seconds: grace, ..DeleteParams::default() };
        self.pods().delete(name, &parameters).await.unwrap();
    }
}

/// Status of a condition of a Node.
pub(crate) fn condition(node: &Node, kind: &str) -> String {
    let conditions = node.status.as_ref().unwrap().conditions.iter().flatten();
    let mut found = conditions.filter(|condition| condition.type_ == kind);
    found.next().map_or_else(|| "-".to_owned(), |condition| condition.status.clone())
}

/// Phase and readiness of a pod.
pub(crate) fn phase(pod: &Pod) -> (String, bool) {
    let status = pod.status.clone().unwrap_or_default();
    let mut conditions = status.conditions.unwrap_or_default().into_iter();
    let ready =
        conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True");
    (status.phase.unwrap_or_default(), ready)
}

pub(crate) fn boot_id(node: &Node) -> String {
    node.status.as_ref().unwrap().node_info.as_ref().unwrap().boot_id.clone()
}

pub(crate) fn uid(node: &Node) -> String {
    node.uid().unwrap()
}
