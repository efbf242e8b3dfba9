//! Faults between nap and the services that it calls: lists that arrive late, connections that
//! break, and a crash at a chosen request.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt};
use http::{Method, Request, Response};
use http_body::{Body, Frame};
use nap_clock::Clock;
use tokio::sync::watch;
use tower::{BoxError, Service};

/// Faults of one replica. Clones share them.
#[derive(Clone)]
pub struct Faults {
    clock: Clock,
    plan: Arc<Mutex<Plan>>,
    connected: watch::Sender<bool>,
    crashed: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Plan {
    list_delays: BTreeMap<String, Duration>,
    writes: usize,
    azure_reads: usize,
    crash_at: Option<Crash>,
}

/// A crash at a request. The answer to it is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// At a write to Kubernetes or Azure.
    Write {
        /// Number of the write, from 1.
        number: usize,
        /// Whether the service still gets the write.
        delivered: bool,
    },
    /// At a read from Azure Resource Manager.
    AzureRead {
        /// Number of the read, from 1.
        number: usize,
    },
}

impl Faults {
    /// No faults.
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            plan: Arc::default(),
            connected: watch::Sender::new(true),
            crashed: watch::Sender::new(false),
        }
    }

    /// Delays every list of a resource, such as `nodes`.
    pub fn delay_list(&self, resource: &str, delay: Duration) {
        self.plan().list_delays.insert(resource.to_owned(), delay);
    }

    /// Crashes at a request.
    pub fn crash_at(&self, crash: Crash) {
        self.plan().crash_at = Some(crash);
    }

    /// Breaks every connection and refuses new ones, or lets them through again.
    pub fn set_connected(&self, connected: bool) {
        self.connected.send_replace(connected);
    }

    /// Number of writes so far, without events and leases: their loss changes no state.
    pub fn writes(&self) -> usize {
        self.plan().writes
    }

    /// Number of reads from Azure Resource Manager so far.
    pub fn azure_reads(&self) -> usize {
        self.plan().azure_reads
    }

    /// Returns once the crash has happened.
    pub async fn crashed(&self) {
        let mut crashed = self.crashed.subscribe();
        if crashed.wait_for(|crashed| *crashed).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    fn plan(&self) -> std::sync::MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a write; returns the crash if this is its time.
    fn count_write(&self, path: &str) -> Option<Crash> {
        if path.contains("/events") || path.contains("/leases") {
            return None;
        }
        let mut plan = self.plan();
        plan.writes += 1;
        let is_now =
            |crash: &Crash| matches!(crash, Crash::Write { number, .. } if *number == plan.writes);
        plan.crash_at.filter(is_now)
    }

    /// Counts a read; returns the crash if this is its time.
    fn count_read(&self, path: &str) -> Option<Crash> {
        if !path.starts_with("/subscriptions/") {
            return None;
        }
        let mut plan = self.plan();
        plan.azure_reads += 1;
        let now = Crash::AzureRead { number: plan.azure_reads };
        plan.crash_at.filter(|crash| *crash == now)
    }
}

/// A service behind [`Faults`].
#[derive(Clone)]
pub struct Faulty<S> {
    inner: S,
    faults: Faults,
}

impl<S> Faulty<S> {
    /// Puts a service behind faults.
    pub fn new(inner: S, faults: Faults) -> Self {
        Self { inner, faults }
    }
}

impl<S, B, R> Service<Request<B>> for Faulty<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: Send + 'static,
    R: Body<Data = Bytes, Error = Infallible> + Unpin + Send + 'static,
{
    type Response = Response<Breakable<R>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (mut inner, faults) = (self.inner.clone(), self.faults.clone());
        async move {
            let mut connected = faults.connected.subscribe();
            if !*connected.borrow_and_update() {
                return Err("connection refused".into());
            }
            let path = request.uri().path().to_owned();
            if request.method() == Method::GET {
                let resource = path.rsplit('/').next().unwrap_or_default();
                let is_watch = request.uri().query().is_some_and(|query| query.contains("watch="));
                let delay = faults.plan().list_delays.get(resource).copied();
                if let Some(delay) = delay.filter(|_| !is_watch) {
                    faults.clock.sleep(delay).await;
                }
            }
            let crash = match *request.method() {
                Method::GET => faults.count_read(&path),
                _ => faults.count_write(&path),
            };
            if let Some(crash) = crash {
                if matches!(crash, Crash::Write { delivered: true, .. }) {
                    drop(inner.call(request).await);
                }
                faults.crashed.send_replace(true);
                return std::future::pending().await;
            }
            let response = inner.call(request).await.map_err(Into::into)?;
            let broken = async move { drop(connected.wait_for(|connected| !connected).await) };
            Ok(response.map(|body| Breakable { body, broken: broken.boxed() }))
        }
        .boxed()
    }
}

/// A body that ends when the connection breaks.
pub struct Breakable<R> {
    body: R,
    broken: BoxFuture<'static, ()>,
}

impl<R: Body<Data = Bytes, Error = Infallible> + Unpin> Body for Breakable<R> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.broken.as_mut().poll(context).is_ready() {
            return Poll::Ready(None);
        }
        Pin::new(&mut self.body).poll_frame(context)
    }
}
