//! An API server with any number of synthetic pods, in front of the embedded one.
//!
//! Pods are made as they are listed, so that a cluster of half a million pods needs no memory here.

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

use super::pod_text::PodText;

/// The server. Clones share everything.
#[derive(Clone)]
pub(super) struct SyntheticServer {
    inner: ApiServer,
    shared: Arc<Shared>,
}

struct Shared {
    nodes: usize,
    pods: usize,
    running: PodText,
    watchers: Mutex<Vec<mpsc::UnboundedSender<String>>>,
    log: watch::Sender<Log>,
}

/// A burst of pods that are pending.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    /// The NodePool whose nodes they select.
    pub(super) pool: String,
    /// Number of the burst among those of the NodePool.
    pub(super) round: usize,
    /// Number of pods.
    pub(super) pods: usize,
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
        let running = PodText::running();
        Self { inner, shared: Arc::new(Shared { nodes, pods, running, watchers, log }) }
    }

    /// What the controllers have asked for, and its changes.
    pub(super) fn log(&self) -> watch::Receiver<Log> {
        self.shared.log.subscribe()
    }

    /// Shows new pods that kube-scheduler could not place, for a NodePool of their own. Forgets the
    /// NodeClaims that the NodePool had before.
    pub(super) fn add_pending(&self, burst: &Pending) {
        self.shared.log.send_modify(|log| {
            log.creates.remove(&burst.pool);
        });
        self.send("ADDED", burst);
    }

    /// Shows that the pods are gone.
    pub(super) fn remove_pending(&self, burst: &Pending) {
        self.send("DELETED", burst);
    }

    fn send(&self, event: &str, burst: &Pending) {
        let pending = PodText::pending(&burst.pool);
        // A real API server writes the type first: a client can then parse the object at once.
        let begin = format!(r#"{{"type":"{event}","object":"#);
        let mut lines = String::new();
        for number in 0..burst.pods {
            lines.push_str(&begin);
            let name = format!("{}-{}-{number}", burst.pool, burst.round);
            let version = 2_000_000 + burst.round * burst.pods + number;
            pending.write(&mut lines, &name, &burst.pool, version, "");
            lines.push_str("}\n");
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
            let (app, name) = running_pod_name(number);
            let node = format!("node-{}", number % self.shared.nodes.max(1));
            self.shared.running.write(&mut text, &name, &app, number, &node);
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
