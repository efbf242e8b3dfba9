//! An in-memory Kubernetes API server, as a tower `Service`.
//!
//! The same value serves `kube::Client::new` in-process (virtual time, no sockets) and
//! `axum::Router::fallback_service` over TCP (kubectl). It knows the built-in kinds from one table
//! and learns all others from CustomResourceDefinitions. What it does not do it refuses with a
//! `Status`; it never gives a wrong answer on purpose.
//!
//! ```text
//! request ── request.rs ──► server.rs (routing) ──► verbs/ ──► store.rs ──► watch.rs
//!                                      │               │
//!                                      │               ├─ crd/: defaulting, pruning, CEL
//!                                      │               ├─ builtin/: defaults and validation
//!                                      │               ├─ admission/: limits, quotas, policies
//!                                      │               └─ garbage_collection.rs
//!                                      └─ discovery.rs, openapi.rs, table/ (for kubectl)
//! ```
//!
//! Every request is carried out under one lock and without awaiting, time comes from
//! [`Config::clock`], and names and uids come from [`Config::seed`]: equal requests in equal order
//! give byte-equal answers.

mod admission;
mod apply;
mod builtin;
mod crd;
mod discovery;
mod error;
mod garbage_collection;
mod judge;
mod object;
mod openapi;
mod patch;
mod protobuf;
mod render;
mod request;
mod resources;
mod selectors;
mod server;
mod store;
mod table;
mod verbs;
mod watch;

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, Limited, combinators::UnsyncBoxBody};
use nap_clock::Clock;

use error::ApiError;
pub use judge::{FieldProblem, Judge, Verdict};
use request::ApiRequest;
use server::State;
pub use store::Observed;

/// The body of every response; watches stream through it.
pub type ResponseBody = UnsyncBoxBody<Bytes, Infallible>;

/// Requests with a larger body are refused, as etcd's limit makes the real server do.
const MAX_BODY: usize = 3 * 1024 * 1024;

/// Inputs of a server: a clock, a seed, and the version that it reports.
#[derive(Clone, Debug)]
pub struct Config {
    /// The clock that stamps objects.
    pub clock: Clock,
    /// The seed of generated names and uids.
    pub seed: u64,
    /// `gitVersion` of `/version`, for example `v1.34.2`.
    pub git_version: String,
}

/// The API server. Clones share one cluster.
#[derive(Clone, Debug)]
pub struct ApiServer {
    state: Arc<Mutex<State>>,
}

impl ApiServer {
    /// A server with the built-in kinds and the four standard namespaces.
    pub fn new(config: Config) -> Self {
        Self { state: Arc::new(Mutex::new(State::new(config))) }
    }

    /// Creates an object that the cluster starts with. Later names and uids do not depend on it.
    pub fn provide(&self, object: serde_json::Value) -> Result<(), String> {
        lock(&self.state).provide(object)
    }

    /// Calls a function with every later change of an object, at the time of the change. It runs
    /// inside of the request and must not call the server.
    pub fn observe(&self, observer: impl FnMut(Observed<'_>) + Send + 'static) {
        lock(&self.state).store.observers.push(store::Observer(Box::new(observer)));
    }

    /// Calls a function with every object, as if it were created now, and then as
    /// [`Self::observe`] does.
    pub fn observe_all(&self, mut observer: impl FnMut(Observed<'_>) + Send + 'static) {
        let store = &mut lock(&self.state).store;
        for (resource, collection) in &store.collections {
            let (group, plural) = (resource.group.as_str(), resource.plural.as_str());
            for object in collection.objects.values() {
                observer(Observed { group, plural, old: None, new: Some(object) });
            }
        }
        store.observers.push(store::Observer(Box::new(observer)));
    }

    /// Number of watches that wait for an event. For tests and metrics.
    pub fn idle_watches(&self) -> usize {
        lock(&self.state).store.collections.values().map(|c| c.wakers.len()).sum()
    }
}

/// A panic while the lock was held is a bug that was already reported; the data is still whole
/// because objects are replaced, never edited in place.
pub(crate) fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<B> tower::Service<Request<B>> for ApiServer
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let state = Arc::clone(&self.state);
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let answer = match Limited::new(body, MAX_BODY).collect().await {
                Ok(body) => server::handle(&state, &ApiRequest::new(&parts, body.to_bytes())),
                Err(error) => {
                    Err(ApiError::bad_request(format!("unable to read the body: {error}")))
                }
            };
            Ok(answer.unwrap_or_else(|error| {
                tracing::debug!(method = %parts.method, path = parts.uri.path(), code = error.code,
                    reason = error.reason, message = error.message, "request refused");
                render::failure(&error)
            }))
        })
    }
}

pub(crate) fn full(body: impl Into<Bytes>) -> ResponseBody {
    Full::new(body.into()).boxed_unsync()
}
