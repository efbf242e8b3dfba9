//! The trace hash: FNV-1a over the method, URI, time and response status of every request. Two runs
//! with equal hashes did the same.

use std::hash::Hasher as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use fnv::FnvHasher;
use futures::future::{BoxFuture, FutureExt};
use http::{Request, Response};
use nap_clock::Clock;
use tower::Service;

/// A running hash. Clones share it.
#[derive(Clone)]
pub struct Trace {
    clock: Clock,
    hash: Arc<Mutex<u64>>,
}

impl Trace {
    /// A trace of no requests.
    pub fn new(clock: Clock) -> Self {
        Self { clock, hash: Arc::new(Mutex::new(FnvHasher::default().finish())) }
    }

    /// The hash of the requests so far.
    pub fn hash(&self) -> u64 {
        *self.hash.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, text: &str) {
        let mut hash = self.hash.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now().as_nanosecond().to_le_bytes();
        let mut hasher = FnvHasher::with_key(*hash);
        hasher.write(text.as_bytes());
        hasher.write(&now);
        *hash = hasher.finish();
    }
}

/// A tower service that adds its requests and responses to a [`Trace`].
#[derive(Clone)]
pub struct Traced<S> {
    inner: S,
    trace: Trace,
}

impl<S> Traced<S> {
    /// Wraps a service.
    pub fn new(inner: S, trace: Trace) -> Self {
        Self { inner, trace }
    }
}

impl<S, B, R> Service<Request<B>> for Traced<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let what = format!("{} {}", request.method(), request.uri());
        self.trace.add(&what);
        let trace = self.trace.clone();
        let answer = self.inner.call(request);
        async move {
            let response = answer.await?;
            trace.add(response.status().as_str());
            Ok(response)
        }
        .boxed()
    }
}
