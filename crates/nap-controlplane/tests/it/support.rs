//! The two API servers under test, and their verdicts on objects.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use kube::api::{Api, DeleteParams, DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, Error, ResourceExt};
use nap_apiserver::{ApiServer, Config};
use nap_clock::Clock;
use nap_controlplane::{Parts, Plane};
use nap_controlplane_build::Kubectl;
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard, OnceCell};
use tokio::task::JoinSet;

/// Defines a test per server for every named function. Tests that need a control plane are ignored
/// without one.
macro_rules! on_both_servers {
    ($($test:ident),+ $(,)?) => {
        mod embedded {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                #[cfg_attr(no_control_plane, ignore = "there is no kubectl of a control plane; `make controlplane` builds it")]
                async fn $test() {
                    super::$test(&crate::support::Cluster::embedded().await).await;
                }
            )+
        }
        mod real {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                #[cfg_attr(no_control_plane, ignore = "there is no control plane; `make controlplane` builds it")]
                async fn $test() {
                    super::$test(&crate::support::Cluster::real().await).await;
                }
            )+
        }
    };
}
pub(crate) use on_both_servers;

/// The plane that all tests of this binary share one after another.
static PLANE: OnceCell<Plane> = OnceCell::const_new();
static TURN: Mutex<()> = Mutex::const_new(());

/// A server with nap's definitions and without custom resources.
pub(crate) struct Cluster {
    pub(crate) client: Client,
    kubeconfig: PathBuf,
    _serving: JoinSet<()>,
    _turn: Option<MutexGuard<'static, ()>>,
}

impl Cluster {
    /// The embedded server, which kubectl reaches over loopback.
    pub(crate) async fn embedded() -> Self {
        let server = embedded_server();
        let client = Client::new(server.clone(), "default");
        nap_controllers::install::install(&client, |_, _, _| {}).await.unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            axum::serve(listener, axum::Router::new().fallback_service(server)).await.unwrap();
        });
        let kubeconfig = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("{}.kubeconfig", address.port()));
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "embedded",
            "clusters": [{ "name": "embedded", "cluster": { "server": format!("http://{address}") } }],
            "contexts": [{ "name": "embedded", "context": { "cluster": "embedded", "user": "" } }],
        });
        std::fs::write(&kubeconfig, text.to_string()).unwrap();
        Self { client, kubeconfig, _serving: serving, _turn: None }
    }

    /// The real server.
    pub(crate) async fn real() -> Self {
        let turn = TURN.lock().await;
        let plane = PLANE.get_or_init(async || Plane::start(Parts::Api).await.unwrap()).await;
        let client = plane.client().await.unwrap();
        nap_controllers::install::install(&client, |_, _, _| {}).await.unwrap();
        clear(&client).await;
        let kubeconfig = plane.kubeconfig();
        Self { client, kubeconfig, _serving: JoinSet::new(), _turn: Some(turn) }
    }

    /// The kubeconfig of the server.
    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Runs kubectl with the words of a command and a manifest on standard input.
    pub(crate) async fn kubectl(&self, words: &str, manifest: &str) -> Output {
        kubectl(&self.kubeconfig, words, manifest).await
    }

    /// Output of kubectl, which must succeed.
    pub(crate) async fn prints(&self, words: &str, manifest: &str) -> String {
        let output = self.kubectl(words, manifest).await;
        assert!(
            output.status.success(),
            "kubectl {words}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

/// An embedded server without definitions.
fn embedded_server() -> ApiServer {
    ApiServer::new(Config {
        clock: Clock::fixed("2030-01-01T00:00:00Z".parse().unwrap()),
        seed: 1,
        git_version: "v1.36.4".to_owned(),
    })
}

/// A client of an in-process server with nap's definitions.
pub(crate) async fn embedded_client() -> Client {
    let client = Client::new(embedded_server(), "default");
    nap_controllers::install::install(&client, |_, _, _| {}).await.unwrap();
    client
}

/// What `kubectl edit` does instead of opening an editor.
const EDITOR: &str = "sed -i s/blue/green/";

pub(crate) async fn kubectl(kubeconfig: &Path, words: &str, manifest: &str) -> Output {
    let kubectl = Kubectl::new(kubeconfig).unwrap();
    let (words, manifest) = (words.to_owned(), manifest.to_owned());
    let run = move || {
        let arguments: Vec<&str> = words.split_whitespace().collect();
        let mut command = kubectl.command(&arguments);
        command.env("KUBE_EDITOR", EDITOR);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        // A kubectl that does not read its input closes the pipe.
        let _ = child.stdin.take().map(|mut input| input.write_all(manifest.as_bytes()));
        child.wait_with_output()
    };
    tokio::task::spawn_blocking(run).await.unwrap().unwrap()
}

/// Deletes the objects of previous tests.
async fn clear(client: &Client) {
    for (version, kind) in [
        ("karpenter.sh/v1", "NodePool"),
        ("karpenter.sh/v1", "NodeClaim"),
        ("karpenter.sh/v1alpha1", "NodeOverlay"),
        ("karpenter.azure.com/v1beta1", "AKSNodeClass"),
        ("autoscaling.x-k8s.io/v1beta1", "CapacityBuffer"),
        ("apps/v1", "Deployment"),
    ] {
        let api = api(client, &json!({ "apiVersion": version, "kind": kind }));
        for object in api.list(&ListParams::default()).await.unwrap() {
            api.delete(&object.name_any(), &DeleteParams::default()).await.unwrap();
        }
    }
}

pub(crate) fn api(client: &Client, object: &Value) -> Api<DynamicObject> {
    let text = |key: &str| object[key].as_str().unwrap();
    let (group, version) = text("apiVersion").split_once('/').unwrap();
    let (plural, namespaced) = match text("kind") {
        "NodePool" => ("nodepools", false),
        "NodeClaim" => ("nodeclaims", false),
        "NodeOverlay" => ("nodeoverlays", false),
        "AKSNodeClass" => ("aksnodeclasses", false),
        "CapacityBuffer" => ("capacitybuffers", true),
        "Deployment" => ("deployments", true),
        other => panic!("no tests apply a {other}"),
    };
    let kind = GroupVersionKind::gvk(group, version, text("kind"));
    let resource = ApiResource::from_gvk_with_plural(&kind, plural);
    if namespaced {
        Api::namespaced_with(client.clone(), "default", &resource)
    } else {
        Api::all_with(client.clone(), &resource)
    }
}

/// A server's verdict on an object.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Verdict {
    /// The stored object, without metadata that the server generates.
    Accepted(Value),
    Refused(Refusal),
}

/// A server's error.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Refusal {
    pub(crate) message: String,
    /// Field and message; a set, because the order is not defined.
    pub(crate) causes: BTreeSet<(String, String)>,
}

/// The request for an object.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum How {
    /// Dry-run create.
    CreateDry,
    /// Create.
    Create,
    /// Dry-run replace.
    ReplaceDry,
}

/// Sends an object with strict field validation, as kubectl does.
pub(crate) async fn send(client: &Client, object: &Value, how: How) -> Verdict {
    let api = api(client, object);
    let name = object["metadata"]["name"].as_str().unwrap();
    let mut object = object.clone();
    let dry = if how == How::Create { "" } else { "&dryRun=All" };
    let query = format!("?fieldValidation=Strict{dry}");
    let url = api.resource_url();
    let request = if how == How::ReplaceDry {
        object["metadata"]["resourceVersion"] =
            json!(api.get(name).await.unwrap().resource_version());
        http::Request::put(format!("{url}/{name}{query}"))
    } else {
        http::Request::post(format!("{url}{query}"))
    };
    let request = request
        .header("Content-Type", "application/json")
        .body(object.to_string().into_bytes())
        .unwrap();
    match client.request::<Value>(request).await {
        Ok(mut stored) => {
            let metadata = stored["metadata"].as_object_mut().unwrap();
            for volatile in
                ["creationTimestamp", "uid", "resourceVersion", "managedFields", "generation"]
            {
                metadata.remove(volatile);
            }
            Verdict::Accepted(stored)
        }
        Err(Error::Api(status)) => {
            let causes = status.details.iter().flat_map(|details| details.causes.iter());
            Verdict::Refused(Refusal {
                message: status.message.clone(),
                causes: causes.map(|cause| (cause.field.clone(), cause.message.clone())).collect(),
            })
        }
        Err(other) => panic!("{other}"),
    }
}

/// The object with a JSON merge patch (RFC 7386) applied.
pub(crate) fn merged(mut object: Value, change: &Value) -> Value {
    json_patch::merge(&mut object, change);
    object
}

/// A NodePool in the current version.
pub(crate) fn pool() -> Value {
    json!({
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": { "name": "pool" },
        "spec": { "template": { "spec": {
            "requirements": [],
            "nodeClassRef": { "group": "karpenter.azure.com", "kind": "AKSNodeClass", "name": "default" },
        } } },
    })
}
