//! The client of the controllers: rate-limited, and without writes unless this replica leads.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use nap_clock::Clock;
use tokio::time::Instant;
use tower::{BoxError, Service};

use super::leader_election::Leadership;
use super::requested::Requested;
use crate::metrics::Metrics;

/// Rate limit of requests to the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Requests per second in the long run.
    pub qps: u32,
    /// Requests that may be sent at once after a quiet time.
    pub burst: u32,
}

impl Default for RateLimit {
    fn default() -> Self {
        Self { qps: 200, burst: 300 }
    }
}

/// Writes that the client may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// All.
    All,
    /// Events: a dry run.
    Events,
}

impl Writes {
    fn allow(self, method: &Method, path: &str) -> bool {
        match self {
            Self::All => true,
            // New ones, and repeated ones that are counted up.
            Self::Events => match *method {
                Method::POST => path.ends_with("/events"),
                Method::PATCH => path.contains("/events/"),
                _ => false,
            },
        }
    }
}

/// Wraps a client: requests are limited, and writes are refused unless `leadership` is held and
/// they are among `writes`.
pub fn guarded(client: Client, clock: Clock, guard: Guard, metrics: Arc<Metrics>) -> Client {
    let namespace = client.default_namespace().to_owned();
    let bucket = Arc::new(Mutex::new(TokenBucket::new(guard.limit)));
    Client::new(Guarded { inner: client, clock, bucket, guard, metrics }, namespace)
}

/// Limits of a client.
#[derive(Clone)]
pub struct Guard {
    /// Requests per second.
    pub limit: RateLimit,
    /// Whether this replica may write.
    pub leadership: Leadership,
    /// What it may write.
    pub writes: Writes,
}

/// Refusal of a write after the leadership was lost.
#[derive(Debug, thiserror::Error)]
#[error("not the leader: nothing was written")]
pub struct NotLeader;

/// Refusal of a write in a dry run.
#[derive(Debug, thiserror::Error)]
#[error("dry run: nothing was written")]
pub struct DryRun;

#[derive(Clone)]
struct Guarded {
    inner: Client,
    clock: Clock,
    bucket: Arc<Mutex<TokenBucket>>,
    guard: Guard,
    metrics: Arc<Metrics>,
}

impl Service<Request<Body>> for Guarded {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (inner, clock) = (self.inner.clone(), self.clock.clone());
        let (Guard { leadership, writes, .. }, metrics) =
            (self.guard.clone(), Arc::clone(&self.metrics));
        let wait = self.bucket.lock().unwrap_or_else(PoisonError::into_inner).take(Instant::now());
        async move {
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
            let reads = matches!(*request.method(), Method::GET | Method::HEAD);
            if !reads && !leadership.is_held(clock.now()) {
                return Err(NotLeader.into());
            }
            if !reads && !writes.allow(request.method(), request.uri().path()) {
                return Err(DryRun.into());
            }
            let (requested, method) = (Requested::of(&request), request.method().clone());
            let begun = clock.now();
            let answer = inner.send(request).await;
            let taken = clock.now().duration_since(begun);
            let code = answer.as_ref().map_or(0, |answer| answer.status().as_u16());
            requested.count(&metrics, &method, code, taken);
            Ok(answer?)
        }
        .boxed()
    }
}

/// A token bucket that hands out waits.
#[derive(Debug)]
struct TokenBucket {
    interval: Duration,
    burst: Duration,
    /// Time at which the bucket is full again.
    full_at: Option<Instant>,
}

impl TokenBucket {
    fn new(limit: RateLimit) -> Self {
        let interval = Duration::from_secs(1) / limit.qps.max(1);
        Self { interval, burst: interval * limit.burst.max(1), full_at: None }
    }

    /// Takes one token. Returns the wait until it is there.
    fn take(&mut self, now: Instant) -> Duration {
        let full_at = self.full_at.map_or(now, |at| at.max(now)) + self.interval;
        self.full_at = Some(full_at);
        full_at.duration_since(now).saturating_sub(self.burst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dry_run_writes_new_events_and_nothing_else() {
        let events = "/api/v1/namespaces/default/events";
        assert!(Writes::Events.allow(&Method::POST, events));
        assert!(Writes::Events.allow(&Method::PATCH, &format!("{events}/a")));
        assert!(!Writes::Events.allow(&Method::DELETE, events));
        assert!(!Writes::Events.allow(&Method::POST, "/apis/karpenter.sh/v1/nodeclaims"));
        assert!(!Writes::Events.allow(&Method::POST, "/api/v1/namespaces/a/pods/b/eviction"));
        assert!(!Writes::Events.allow(&Method::PATCH, "/api/v1/nodes/a"));
        assert!(Writes::All.allow(&Method::PATCH, "/api/v1/nodes/a"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_is_free_and_then_requests_are_spaced() {
        let mut bucket = TokenBucket::new(RateLimit { qps: 10, burst: 3 });
        let now = Instant::now();
        let waits: Vec<u128> = (0..5).map(|_| bucket.take(now).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 100, 200]);
        let later = now + Duration::from_secs(10);
        assert_eq!(bucket.take(later), Duration::ZERO, "it fills up again");
    }
}
