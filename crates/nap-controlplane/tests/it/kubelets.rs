//! The kubelets of emulated VMs on a real control plane, which taints, schedules and expires.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::{Client, ResourceExt as _};
use nap_clock::Clock;
use nap_controlplane::{Parts, Plane};
use nap_kubelets::{Heartbeats, KubeletConfig, VmEvent};
use nap_units::Resources;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Maximum time of one step on a busy computer.
const PATIENCE: Duration = Duration::from_mins(3);

struct World {
    client: Client,
    vms: mpsc::Sender<VmEvent>,
    _tasks: JoinSet<()>,
    _plane: Plane,
}

impl World {
    async fn start() -> Self {
        let plane = Plane::start(Parts::All).await.unwrap();
        let client = plane.client().await.unwrap();
        let (vms, events) = mpsc::channel(16);
        let config = KubeletConfig {
            ready_after: Duration::from_millis(100),
            heartbeats: Some(Heartbeats {
                lease: Duration::from_secs(1),
                status: Duration::from_secs(5),
            }),
            ..KubeletConfig::default()
        };
        let kubelets = nap_kubelets::run(client.clone(), Clock::wall(), config, events);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            kubelets.await;
        });
        Self { client, vms, _tasks: tasks, _plane: plane }
    }

    async fn create_vm(&self, name: &str, label: (&str, &str)) {
        let size: Resources =
            [("cpu", 4000), ("memory", 8 << 30), ("pods", 10)].into_iter().collect();
        let event = VmEvent::Created {
            provider_id: format!("azure:///{name}"),
            node_name: name.to_owned(),
            labels: BTreeMap::from([(label.0.to_owned(), label.1.to_owned())]),
            taints: Vec::new(),
            capacity: size.clone(),
            allocatable: size,
            boot: Duration::ZERO,
        };
        self.vms.send(event).await.unwrap();
    }

    fn all<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = ()>,
    {
        Api::all(self.client.clone())
    }

    fn pods(&self) -> Api<Pod> {
        Api::default_namespaced(self.client.clone())
    }

    async fn ready(&self, node: &str) -> bool {
        let node = self.all::<Node>().get_opt(node).await.unwrap();
        let conditions = node.and_then(|node| node.status?.conditions).unwrap_or_default();
        conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
    }
}

async fn create<K>(api: &Api<K>, object: Value) -> K
where
    K: Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    let object = serde_json::from_value(object).unwrap();
    api.create(&PostParams::default(), &object).await.unwrap()
}

async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, waiting).await.is_ok(), "never: {what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg_attr(no_control_plane, ignore = "there is no control plane; `make controlplane` builds it")]
async fn nodes_join_run_pods_and_leave() {
    let world = World::start().await;
    deployment_runs(&world).await;
    lease_is_owned_and_renewed(&world).await;
    grace_is_honoured(&world).await;
    refused_node_joins_later(&world).await;
    node_of_a_gone_vm_leaves(&world).await;
}

async fn deployment_runs(world: &World) {
    world.create_vm("one", ("team", "red")).await;
    until("the node is ready", async || world.ready("one").await).await;
    create::<Deployment>(
        &Api::default_namespaced(world.client.clone()),
        json!({
            "metadata": { "name": "web" },
            "spec": {
                "replicas": 2, "selector": { "matchLabels": { "app": "web" } },
                "template": {
                    "metadata": { "labels": { "app": "web" } },
                    "spec": { "containers": [{ "name": "main", "image": "pause:3.9" }] },
                },
            },
        }),
    )
    .await;
    until("two pods are available", async || {
        let web: Api<Deployment> = Api::default_namespaced(world.client.clone());
        web.get("web").await.unwrap().status.unwrap().available_replicas == Some(2)
    })
    .await;
}

async fn lease_is_owned_and_renewed(world: &World) {
    let leases: Api<Lease> = Api::namespaced(world.client.clone(), "kube-node-lease");
    let node = world.all::<Node>().get("one").await.unwrap();
    let lease = leases.get("one").await.unwrap();
    assert_eq!(lease.owner_references()[0].uid, node.uid().unwrap());
    let renewed = lease.spec.unwrap().renew_time;
    until("the lease is renewed", async || {
        leases.get("one").await.unwrap().spec.unwrap().renew_time > renewed
    })
    .await;
}

async fn grace_is_honoured(world: &World) {
    let pod = json!({
        "metadata": { "name": "slow" },
        "spec": {
            "terminationGracePeriodSeconds": 600,
            "containers": [{
                "name": "main", "image": "pause:3.9",
                "lifecycle": { "preStop": { "sleep": { "seconds": 500 } } },
            }],
        },
    });
    create(&world.pods(), pod).await;
    let running = async || {
        let pod = world.pods().get("slow").await.unwrap();
        pod.status.and_then(|status| status.phase).as_deref() == Some("Running")
    };
    until("the slow pod runs", running).await;
    let delete = async |grace: u32| {
        let parameters = DeleteParams::default().grace_period(grace);
        world.pods().delete("slow", &parameters).await.unwrap();
    };
    delete(600).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(world.pods().get_opt("slow").await.unwrap().is_some(), "its hook still runs");
    delete(1).await;
    until("the shorter grace is honoured", async || {
        world.pods().get_opt("slow").await.unwrap().is_none()
    })
    .await;
}

async fn refused_node_joins_later(world: &World) {
    let (policies, bindings) =
        (world.all::<ValidatingAdmissionPolicy>(), world.all::<ValidatingAdmissionPolicyBinding>());
    let policy = json!({
        "metadata": { "name": "no-nodes" },
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": { "resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["nodes"],
            }] },
            "validations": [{ "expression": "!('refused' in object.metadata.labels)" }],
        },
    });
    create(&policies, policy).await;
    let binding = json!({
        "metadata": { "name": "no-nodes" },
        "spec": { "policyName": "no-nodes", "validationActions": ["Deny"] },
    });
    create(&bindings, binding).await;
    let node: Node = serde_json::from_value(
        json!({ "metadata": { "name": "probe", "labels": { "refused": "yes" } } }),
    )
    .unwrap();
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    until("the policy is in force", async || {
        world.all::<Node>().create(&dry, &node).await.is_err()
    })
    .await;
    world.create_vm("refused", ("refused", "yes")).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(world.all::<Node>().get_opt("refused").await.unwrap().is_none());
    bindings.delete("no-nodes", &DeleteParams::default()).await.unwrap();
    until("the refused node joins", async || world.ready("refused").await).await;
}

async fn node_of_a_gone_vm_leaves(world: &World) {
    let event =
        VmEvent::Deleted { provider_id: "azure:///one".to_owned(), node_name: "one".to_owned() };
    world.vms.send(event).await.unwrap();
    until("the Node is gone", async || world.all::<Node>().get_opt("one").await.unwrap().is_none())
        .await;
    assert!(world.ready("refused").await, "the other node renews its lease");
    until("the pods run elsewhere", async || {
        let pods = world.pods().list(&ListParams::default().labels("app=web")).await.unwrap();
        let on = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        pods.items.len() == 2 && pods.items.iter().all(|pod| on(pod).as_deref() == Some("refused"))
    })
    .await;
}
