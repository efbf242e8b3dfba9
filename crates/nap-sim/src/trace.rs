//! A running hash of every request, its time and its answer's status: two runs that agree on it did
//! the same things.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures::future::{BoxFuture, FutureExt};
use http::{Request, Response};
use nap_clock::Clock;
use tower::Service;

/// The hash so far. Clones share it.
#[derive(Clone)]
pub struct Trace {
    clock: Clock,
    hash: Arc<Mutex<u64>>,
}

impl Trace {
    /// An empty trace.
    pub fn new(clock: Clock) -> Self {
        Self { clock, hash: Arc::new(Mutex::new(0xcbf2_9ce4_8422_2325)) }
    }

    /// The hash so far.
    pub fn hash(&self) -> u64 {
        *self.hash.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, text: &str) {
        let mut hash = self.hash.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now().as_nanosecond().to_le_bytes();
        for byte in text.bytes().chain(now) {
            *hash = (*hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// A service whose requests are traced.
#[derive(Clone)]
pub struct Traced<S> {
    inner: S,
    trace: Trace,
}

impl<S> Traced<S> {
    /// Traces what goes through a service.
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
