//! Real kubectl against the server on a loopback socket.

use std::process::{Output, Stdio};

use nap_apiserver::{ApiServer, Config};
use nap_clock::Clock;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::task::JoinSet;

use crate::support::widget_definition;

struct Cluster {
    url: String,
    home: std::path::PathBuf,
    _tasks: JoinSet<()>,
}

impl Cluster {
    async fn start(name: &str) -> Self {
        let server = ApiServer::new(Config {
            clock: Clock::fixed("2030-01-01T00:00:00Z".parse().unwrap()),
            seed: 1,
            git_version: "v1.34.2".to_owned(),
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            axum::serve(listener, axum::Router::new().fallback_service(server)).await.unwrap();
        });
        let home = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::remove_dir_all(&home).ok();
        std::fs::create_dir_all(&home).unwrap();
        Self { url, home, _tasks: tasks }
    }

    async fn output(&self, arguments: &str, input: &str) -> Output {
        let mut child = Command::new(nap_controlplane_build::kubectl().unwrap())
            .args(["--server", &self.url])
            .args(arguments.split_whitespace())
            .env("HOME", &self.home)
            .env("KUBECONFIG", "/dev/null")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // The marker makes kubectl read flow style as YAML instead of JSON.
        stdin.write_all(format!("---\n{input}").as_bytes()).await.unwrap();
        drop(stdin);
        child.wait_with_output().await.unwrap()
    }

    /// Standard output of a command that must succeed.
    async fn run(&self, arguments: &str, input: &str) -> String {
        let output = self.output(arguments, input).await;
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "kubectl {arguments}: {errors}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    async fn fails(&self, arguments: &str, input: &str) -> String {
        let output = self.output(arguments, input).await;
        assert!(!output.status.success(), "kubectl {arguments} should fail");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

/// Cells of a printed table, one row per line.
fn cells(table: &str) -> Vec<Vec<&str>> {
    table.lines().map(|line| line.split_whitespace().collect()).collect()
}

const DEPLOYMENT: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: main
        image: pause:3.9
        resources: {requests: {cpu: 100m}}
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg_attr(no_kubectl, ignore = "there is no kubectl; `make controlplane` builds it")]
async fn kubectl_works_on_built_in_kinds() {
    let cluster = Cluster::start("kubectl_works_on_built_in_kinds").await;
    assert!(cluster.run("version", "").await.contains("Server Version: v1.34.2"));
    let resources = cluster.run("api-resources", "").await;
    assert!(resources.contains("poddisruptionbudgets"), "{resources}");

    cluster.run("apply -f -", DEPLOYMENT).await;
    let changed = DEPLOYMENT.replace("pause:3.9", "pause:3.10");
    assert_eq!(cluster.run("apply -f -", &changed).await, "deployment.apps/web configured\n");
    assert_eq!(cluster.run("apply -f -", &changed).await, "deployment.apps/web unchanged\n");
    assert_eq!(
        cluster.run("apply --server-side -f -", &changed).await.trim(),
        "deployment.apps/web serverside-applied"
    );
    assert_eq!(
        cells(&cluster.run("get deployments", "").await),
        [
            vec!["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE"],
            vec!["web", "0/2", "0", "0", "0s"]
        ]
    );
    cluster.run("scale deployment web --replicas 5", "").await;
    cluster.run("label deployment web team=a", "").await;
    cluster.run("annotate deployment web note=b", "").await;
    let yaml = cluster.run("get deployment web -o yaml", "").await;
    for expected in ["replicas: 5", "team: a", "note: b", "image: pause:3.10", "maxSurge: 25%"] {
        assert!(yaml.contains(expected), "{expected} in {yaml}");
    }
    assert!(cluster.run("describe deployment web", "").await.contains("5 desired"));
    let status = r#"{"status":{"replicas":5,"updatedReplicas":5,"readyReplicas":5,"availableReplicas":5,"observedGeneration":3}}"#;
    cluster
        .run(&format!("patch deployment web --subresource status --type merge -p {status}"), "")
        .await;
    assert!(
        cluster
            .run("rollout status deployment web --timeout 20s", "")
            .await
            .contains("successfully rolled out")
    );
    cluster.run("run lone --image pause:3.9", "").await;
    let pods = cluster.run("get pods -o wide", "").await;
    assert_eq!(cells(&pods)[1][..4], ["lone", "0/1", "Pending", "0"]);
    assert!(cluster.run("get all", "").await.contains("deployment.apps/web"));
    cluster.run("delete pod lone", "").await;
    cluster.run("create -f -", "{apiVersion: v1, kind: Namespace, metadata: {name: team}}").await;
    assert!(cluster.run("get namespaces", "").await.contains("team              Active   0s"));
    cluster.run("delete deployment web", "").await;
    assert!(cluster.fails("get deployment web", "").await.contains("(NotFound)"));
    let refused = cluster.fails("apply -f -", &DEPLOYMENT.replace("replicas", "replica")).await;
    assert!(refused.contains("unknown field \"spec.replica\""), "{refused}");
}

/// These commands speak protobuf instead of JSON.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg_attr(no_kubectl, ignore = "there is no kubectl; `make controlplane` builds it")]
async fn kubectl_imperative_commands_work() {
    let cluster = Cluster::start("kubectl_imperative_commands_work").await;
    cluster.run("create namespace team", "").await;
    cluster.run("create configmap settings -n team --from-literal colour=red", "").await;
    cluster.run("create secret generic token -n team --from-literal key=value", "").await;
    cluster.run("create serviceaccount robot -n team", "").await;
    cluster.run("create deployment web --image pause:3.9 --replicas 3 --port 80", "").await;
    cluster.run("create poddisruptionbudget web --selector app=web --min-available 50%", "").await;
    cluster.run("create priorityclass high --value 1000", "").await;
    let shown = cluster.run("get configmap settings -n team -o jsonpath={.data.colour}", "").await;
    assert_eq!(shown, "red");
    let shown = cluster.run("get secret token -n team -o jsonpath={.data.key}", "").await;
    assert_eq!(shown, "dmFsdWU=");
    let shown = cluster
        .run("get deployment web -o jsonpath={.spec.replicas}/{.spec.template.spec.containers[0].image}", "")
        .await;
    assert_eq!(shown, "3/pause:3.9");
    let shown = cluster.run("get pdb web -o jsonpath={.spec.minAvailable}", "").await;
    assert_eq!(shown, "50%");

    cluster.run("apply -f -", "{apiVersion: v1, kind: Node, metadata: {name: n1}}").await;
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {nodeName: n1, terminationGracePeriodSeconds: 0, containers: [{name: main, image: pause}]}}";
    cluster.run("apply -f -", pod).await;
    cluster.run("cordon n1", "").await;
    assert!(cluster.run("get nodes", "").await.contains("SchedulingDisabled"));
    assert!(cluster.run("drain n1 --force --timeout 20s", "").await.contains("drained"));
    assert_eq!(cluster.run("get pods -o name", "").await, "");
    cluster.run("uncordon n1", "").await;
    cluster.run("delete namespace team", "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg_attr(no_kubectl, ignore = "there is no kubectl; `make controlplane` builds it")]
async fn kubectl_works_on_custom_resources() {
    let cluster = Cluster::start("kubectl_works_on_custom_resources").await;
    cluster.run("create -f -", &widget_definition().to_string()).await;
    cluster.run("wait --for condition=Established crd/widgets.example.com --timeout 20s", "").await;
    let widget = "{apiVersion: example.com/v1, kind: Widget, metadata: {name: a}, spec: {size: 3}}";
    assert_eq!(cluster.run("apply -f -", widget).await, "widget.example.com/a created\n");
    let larger = widget.replace("size: 3", "size: 4");
    assert_eq!(cluster.run("apply -f -", &larger).await, "widget.example.com/a configured\n");
    assert_eq!(
        cells(&cluster.run("get wd", "").await),
        [["NAME", "SIZE", "AGE"], ["a", "4", "0s"]]
    );
    let wide = cluster.run("get toys -o wide", "").await;
    assert_eq!(cells(&wide), [["NAME", "SIZE", "MODE", "AGE"], ["a", "4", "Gentle", "0s"]]);
    let refused = cluster.fails("apply -f -", &widget.replace("size: 3", "size: 30")).await;
    assert!(refused.contains("size must not exceed limit"), "{refused}");
    let refused = cluster.fails("apply -f -", &widget.replace("size", "sise")).await;
    assert!(refused.contains("unknown field \"spec.sise\""), "{refused}");
    assert!(cluster.run("explain widget.spec.policy", "").await.contains("mode"));
    assert!(cluster.run("describe widget a", "").await.contains("Mode:  Gentle"));
    cluster.run("scale widget a --replicas 3", "").await;
    assert!(cluster.run("get widget a -o jsonpath={.spec.replicas}", "").await.contains('3'));
    let old = cluster.output("get widgets.v1beta1.example.com", "").await;
    assert!(
        String::from_utf8_lossy(&old.stderr)
            .contains("Warning: example.com/v1beta1 Widget is deprecated")
    );
    cluster.run("delete widget a", "").await;
    cluster.run("delete crd widgets.example.com", "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg_attr(no_kubectl, ignore = "there is no kubectl; `make controlplane` builds it")]
async fn kubectl_watches_and_waits() {
    use tokio::io::{AsyncBufReadExt, BufReader};
    let cluster = Cluster::start("kubectl_watches_and_waits").await;
    let map = |name: &str, data: &str| {
        format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}}}, data: {{{data}}}}}")
    };
    cluster.run("create -f -", &map("a", "")).await;
    let mut child = Command::new(nap_controlplane_build::kubectl().unwrap())
        .args(["--server", &cluster.url, "get", "configmaps", "--watch"])
        .env("HOME", &cluster.home)
        .env("KUBECONFIG", "/dev/null")
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(cells(&lines.next_line().await.unwrap().unwrap()), [["NAME", "DATA", "AGE"]]);
    assert_eq!(cells(&lines.next_line().await.unwrap().unwrap()), [["a", "0", "0s"]]);
    cluster.run("create -f -", &map("b", "x: one")).await;
    assert_eq!(cells(&lines.next_line().await.unwrap().unwrap()), [["b", "1", "0s"]]);
    child.kill().await.unwrap();
}
