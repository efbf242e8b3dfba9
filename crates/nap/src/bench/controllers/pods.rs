//! An API server with any number of synthetic pods, in front of the embedded one.
//!
//! Pods are made as they are listed, so that a cluster of half a million pods needs no memory here.
//! They look as a real cluster shows them, with managed fields and a status.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use futures::future::{BoxFuture, FutureExt};
use futures::stream::{self, StreamExt};
use http::{Method, Request, Response};
use nap_apiserver::ApiServer;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tower::Service;

/// The server. Clones share everything.
#[derive(Clone)]
pub(super) struct SyntheticServer {
    inner: ApiServer,
    shared: Arc<Shared>,
}

struct Shared {
    nodes: usize,
    pods: usize,
    watchers: Mutex<Vec<mpsc::UnboundedSender<String>>>,
    log: watch::Sender<Log>,
}

/// What the controllers asked for, and when.
#[derive(Clone, Debug, Default)]
pub(super) struct Log {
    /// First list of pods.
    pub(super) listing_since: Option<Instant>,
    /// Beginning of the watch of pods: every page of the list was taken in.
    pub(super) listed_at: Option<Instant>,
    /// NodeClaims that were created, by the NodePool, with the time of the last.
    pub(super) creates: BTreeMap<String, (usize, Instant)>,
}

impl SyntheticServer {
    /// A server with `pods` running pods on `nodes` nodes that are called `node-0`, `node-1`, ….
    pub(super) fn new(inner: ApiServer, nodes: usize, pods: usize) -> Self {
        let (watchers, log) = (Mutex::default(), watch::Sender::new(Log::default()));
        Self { inner, shared: Arc::new(Shared { nodes, pods, watchers, log }) }
    }

    /// What the controllers have asked for, and its changes.
    pub(super) fn log(&self) -> watch::Receiver<Log> {
        self.shared.log.subscribe()
    }

    /// Shows new pods that kube-scheduler could not place, for a NodePool of their own.
    pub(super) fn add_pending(&self, pool: &str, count: usize) {
        let mut lines = String::new();
        for number in 0..count {
            let pod = pending_pod(pool, number);
            lines.push_str(&json!({ "type": "ADDED", "object": pod }).to_string());
            lines.push('\n');
        }
        let mut watchers = self.shared.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.retain(|watcher| watcher.send(lines.clone()).is_ok());
    }

    fn list(&self, query: &BTreeMap<String, String>) -> Response<Body> {
        let number = |name: &str| query.get(name).and_then(|text| text.parse::<usize>().ok());
        let first = number("continue").unwrap_or(0);
        let last =
            first.saturating_add(number("limit").unwrap_or(usize::MAX)).min(self.shared.pods);
        self.shared.log.send_modify(|log| {
            log.listing_since.get_or_insert_with(Instant::now);
        });
        let next = if last < self.shared.pods { last.to_string() } else { String::new() };
        let mut text = json!({ "resourceVersion": "1000000", "continue": next }).to_string();
        text.insert_str(0, r#"{"kind":"PodList","apiVersion":"v1","metadata":"#);
        text.push_str(r#","items":["#);
        for number in first..last {
            if number > first {
                text.push(',');
            }
            text.push_str(&running_pod(number, number % self.shared.nodes.max(1)).to_string());
        }
        text.push_str("]}");
        answer(Body::from(text))
    }

    fn watch(&self) -> Response<Body> {
        self.shared.log.send_modify(|log| {
            log.listed_at.get_or_insert_with(Instant::now);
        });
        let (sender, receiver) = mpsc::unbounded_channel();
        self.shared.watchers.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
        let lines = stream::unfold(receiver, |mut receiver| async {
            let line = receiver.recv().await?;
            Some((Ok::<_, Infallible>(Bytes::from(line)), receiver))
        });
        answer(Body::from_stream(lines.boxed()))
    }

    fn record_create(&self, claim: &Value) {
        let name = claim["metadata"]["generateName"].as_str().unwrap_or_default();
        let pool = name.trim_end_matches('-').to_owned();
        self.shared.log.send_modify(|log| {
            let entry = log.creates.entry(pool).or_insert((0, Instant::now()));
            *entry = (entry.0 + 1, Instant::now());
        });
    }
}

fn answer(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let json = http::HeaderValue::from_static("application/json");
    response.headers_mut().insert(http::header::CONTENT_TYPE, json);
    response
}

impl Service<Request<Body>> for SyntheticServer {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let mut server = self.clone();
        async move {
            let path = request.uri().path().to_owned();
            if request.method() == Method::GET && path == "/api/v1/pods" {
                let pairs = request.uri().query().unwrap_or_default().split('&');
                let query: BTreeMap<String, String> = pairs
                    .filter_map(|pair| pair.split_once('='))
                    .map(|(name, value)| (name.to_owned(), value.to_owned()))
                    .collect();
                return Ok(if query.contains_key("watch") {
                    server.watch()
                } else {
                    server.list(&query)
                });
            }
            let creates = request.method() == Method::POST && path.ends_with("/nodeclaims");
            if !creates {
                return server.inner.call(request).await.map(|response| response.map(Body::new));
            }
            let (head, body) = request.into_parts();
            let body = axum::body::to_bytes(body, usize::MAX).await.unwrap_or_default();
            if let Ok(claim) = serde_json::from_slice(&body) {
                server.record_create(&claim);
            }
            let request = Request::from_parts(head, Body::from(body));
            server.inner.call(request).await.map(|response| response.map(Body::new))
        }
        .boxed()
    }
}

/// What a real API server shows beside the fields that matter.
fn managed_fields() -> Value {
    let fields: BTreeMap<String, Value> = ["image", "imagePullPolicy", "name", "resources"]
        .iter()
        .map(|name| (format!("f:{name}"), json!({})))
        .collect();
    let container = json!({ "f:containers": { "k:{\"name\":\"app\"}": fields } });
    json!([
        {
            "manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1",
            "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1",
            "fieldsV1": { "f:metadata": { "f:generateName": {}, "f:labels": { ".": {}, "f:app": {} },
                "f:ownerReferences": { ".": {} } }, "f:spec": container },
        },
        {
            "manager": "kubelet", "operation": "Update", "apiVersion": "v1",
            "time": "2026-01-01T00:00:10Z", "fieldsType": "FieldsV1", "subresource": "status",
            "fieldsV1": { "f:status": { "f:conditions": { "k:{\"type\":\"Ready\"}": { ".": {},
                "f:lastProbeTime": {}, "f:lastTransitionTime": {}, "f:status": {}, "f:type": {} } },
                "f:containerStatuses": {}, "f:hostIP": {}, "f:phase": {}, "f:podIP": {} } },
        },
    ])
}

fn pod(name: &str, app: &str, number: usize, spec: Value, status: &Value) -> Value {
    let owner = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": app, "controller": true,
        "blockOwnerDeletion": true, "uid": format!("rs-{app}"),
    });
    let mut pod = json!({
        "metadata": {
            "name": name, "namespace": "default", "uid": format!("pod-{name}"),
            "resourceVersion": (number + 1).to_string(),
            "creationTimestamp": "2026-01-01T00:00:00Z", "generateName": format!("{app}-"),
            "labels": { "app": app, "pod-template-hash": "6b7c8d9f5d", "version": "v1" },
            "ownerReferences": [owner], "managedFields": managed_fields(),
        },
        "spec": {
            "containers": [{
                "name": "app", "image": "registry.example.com/team/app:1.2.3",
                "imagePullPolicy": "IfNotPresent",
                "env": [{ "name": "REGION", "value": "eastus" }, { "name": "LOG", "value": "info" }],
                "ports": [{ "containerPort": 8080, "protocol": "TCP" }],
                "resources": { "requests": { "cpu": "200m", "memory": "256Mi" } },
                "readinessProbe": { "httpGet": { "path": "/ready", "port": 8080 }, "periodSeconds": 10 },
                "terminationMessagePath": "/dev/termination-log",
                "volumeMounts": [{ "name": format!("kube-api-access-{number}"), "readOnly": true,
                    "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount" }],
            }],
            "volumes": [{ "name": format!("kube-api-access-{number}"), "projected": { "defaultMode": 420,
                "sources": [{ "serviceAccountToken": { "expirationSeconds": 3607, "path": "token" } }] } }],
            "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "default", "schedulerName": "default-scheduler", "priority": 0,
            "enableServiceLinks": true, "securityContext": {},
            "tolerations": [
                { "key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300 },
                { "key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300 },
            ],
        },
        "status": status,
    });
    if let (Some(into), Value::Object(more)) = (pod["spec"].as_object_mut(), spec) {
        into.extend(more);
    }
    pod
}

fn running_pod(number: usize, node: usize) -> Value {
    let since = "2026-01-01T00:00:10Z";
    let condition =
        |type_: &str| json!({ "type": type_, "status": "True", "lastTransitionTime": since });
    let conditions = ["PodScheduled", "Initialized", "ContainersReady", "Ready"].map(condition);
    let status = json!({
        "phase": "Running", "qosClass": "Burstable", "startTime": since, "hostIP": "10.224.0.4",
        "podIP": "10.244.0.7", "podIPs": [{ "ip": "10.244.0.7" }],
        "conditions": conditions,
        "containerStatuses": [{
            "name": "app", "ready": true, "started": true, "restartCount": 0,
            "image": "registry.example.com/team/app:1.2.3",
            "imageID": format!("registry.example.com/team/app@sha256:{:064x}", 7),
            "containerID": format!("containerd://{number:064x}"),
            "state": { "running": { "startedAt": since } },
        }],
    });
    let spec = json!({ "nodeName": format!("node-{node}") });
    let (app, name) = running_pod_name(number);
    pod(&name, &app, number, spec, &status)
}

/// The workload of a running pod, and its name.
fn running_pod_name(number: usize) -> (String, String) {
    let app = format!("app-{}", number / 50);
    let name = format!("{app}-{number}");
    (app, name)
}

/// `namespace/name` of a running pod.
pub(super) fn running_pod_key(number: usize) -> String {
    format!("default/{}", running_pod_name(number).1)
}

fn pending_pod(pool: &str, number: usize) -> Value {
    let condition = json!({
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "0/1 nodes are available", "lastTransitionTime": "2026-01-01T00:00:10Z",
    });
    let status = json!({ "phase": "Pending", "conditions": [condition] });
    let spec = json!({ "nodeSelector": { "bench": pool } });
    pod(&format!("{pool}-{number}"), pool, 2_000_000 + number, spec, &status)
}
