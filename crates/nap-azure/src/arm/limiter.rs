//! Limits on the requests of one client, so that ARM need not refuse them.
//!
//! ARM keeps a token bucket for reads, writes and deletes of each subscription and principal. The
//! client keeps the same buckets, corrects them by the remaining tokens that ARM reports, and holds
//! back every request of a kind after one of them was throttled.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{HeaderMap, Method};
use jiff::{SignedDuration, Timestamp};
use nap_clock::Clock;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Most requests that are under way at the same time.
const MAX_REQUESTS: usize = 64;
/// Wait of all requests of a kind after one was throttled without a `Retry-After`.
const THROTTLED_WAIT: Duration = Duration::from_secs(5);
/// Longest wait after a throttled request, whatever `Retry-After` says.
const MAX_THROTTLED_WAIT: Duration = Duration::from_mins(10);
/// One token, in thousandths.
const TOKEN: i64 = 1000;

/// Kinds of requests that ARM counts apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
    Delete,
}

impl Kind {
    pub(super) fn of(method: &Method) -> Self {
        match *method {
            Method::GET | Method::HEAD => Self::Read,
            Method::DELETE => Self::Delete,
            _ => Self::Write,
        }
    }

    /// Size of the bucket, and tokens that it gains each second.
    fn bucket(self) -> (i64, i64) {
        match self {
            Self::Read => (250, 25),
            Self::Write | Self::Delete => (200, 10),
        }
    }

    /// Header with the tokens that are left.
    fn header(self) -> &'static str {
        match self {
            Self::Read => "x-ms-ratelimit-remaining-subscription-reads",
            Self::Write => "x-ms-ratelimit-remaining-subscription-writes",
            Self::Delete => "x-ms-ratelimit-remaining-subscription-deletes",
        }
    }
}

/// The buckets of one client.
pub(super) struct Limiter {
    clock: Clock,
    buckets: Mutex<[Bucket; 3]>,
    places: Semaphore,
}

#[derive(Clone, Copy)]
struct Bucket {
    kind: Kind,
    /// Thousandths of a token at the time; negative while requests wait for theirs.
    tokens: i64,
    at: Timestamp,
    blocked_until: Timestamp,
}

impl Bucket {
    fn new(kind: Kind, at: Timestamp) -> Self {
        Self { kind, tokens: kind.bucket().0 * TOKEN, at, blocked_until: Timestamp::MIN }
    }

    fn refill(&mut self, now: Timestamp) {
        let (size, rate) = self.kind.bucket();
        let passed = i64::try_from(now.duration_since(self.at).as_millis()).unwrap_or(i64::MAX);
        // A thousandth of a token each millisecond, times the tokens of a second.
        let gained = passed.max(0).saturating_mul(rate);
        self.tokens = self.tokens.saturating_add(gained).min(size * TOKEN);
        self.at = now;
    }

    /// Takes a token. Returns the wait until it is there.
    fn take(&mut self, now: Timestamp) -> Duration {
        self.refill(now);
        self.tokens -= TOKEN;
        let missing = u64::try_from(-self.tokens).unwrap_or(0);
        let rate = u64::try_from(self.kind.bucket().1).unwrap_or(1);
        let refilled = Duration::from_millis(missing.div_ceil(rate));
        refilled.max(self.blocked(now))
    }

    /// Time for which all requests are held back after one was throttled.
    fn blocked(&self, now: Timestamp) -> Duration {
        Duration::try_from(self.blocked_until.duration_since(now)).unwrap_or_default()
    }
}

impl Limiter {
    pub(super) fn new(clock: Clock) -> Self {
        let now = clock.now();
        let buckets = [Kind::Read, Kind::Write, Kind::Delete].map(|kind| Bucket::new(kind, now));
        Self { clock, buckets: Mutex::new(buckets), places: Semaphore::new(MAX_REQUESTS) }
    }

    fn buckets(&self) -> MutexGuard<'_, [Bucket; 3]> {
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a request may be sent. The place is free again when the permit is dropped.
    pub(super) async fn acquire(&self, kind: Kind) -> Option<SemaphorePermit<'_>> {
        let mut wait = self.buckets()[kind as usize].take(self.clock.now());
        loop {
            if !wait.is_zero() {
                tracing::debug!(?kind, ?wait, "holding request to Azure back");
                self.clock.sleep(wait).await;
            }
            // The semaphore is never closed.
            let place = self.places.acquire().await.ok();
            // Another request may have been throttled meanwhile.
            wait = self.buckets()[kind as usize].blocked(self.clock.now());
            if wait.is_zero() {
                return place;
            }
        }
    }

    /// Takes over the number of tokens that ARM reports, if it is lower.
    pub(super) fn observe(&self, kind: Kind, headers: &HeaderMap) {
        let remaining = headers.get(kind.header()).and_then(|value| value.to_str().ok());
        let remaining = remaining.and_then(|text| text.trim().parse::<i64>().ok());
        if let Some(remaining) = remaining {
            let now = self.clock.now();
            let bucket = &mut self.buckets()[kind as usize];
            bucket.refill(now);
            bucket.tokens = bucket.tokens.min(remaining.saturating_mul(TOKEN));
        }
    }

    /// Holds back all requests of a kind after one was throttled.
    pub(super) fn throttled(&self, kind: Kind, retry_after: Option<Duration>) {
        let wait = retry_after.unwrap_or(THROTTLED_WAIT).min(MAX_THROTTLED_WAIT);
        let wait = SignedDuration::try_from(wait).unwrap_or(SignedDuration::MAX);
        let until = self.clock.now().checked_add(wait).unwrap_or(Timestamp::MAX);
        let bucket = &mut self.buckets()[kind as usize];
        bucket.blocked_until = bucket.blocked_until.max(until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(limiter: &Limiter, begun: Timestamp) -> i64 {
        limiter.clock.now().duration_since(begun).as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn requests_beyond_the_bucket_wait_for_its_rate() {
        let clock = Clock::starting_at(Timestamp::UNIX_EPOCH, 1);
        let limiter = Limiter::new(clock.clone());
        let begun = clock.now();
        for _ in 0..200 {
            limiter.acquire(Kind::Write).await;
        }
        assert_eq!(seconds(&limiter, begun), 0);
        for _ in 0..50 {
            limiter.acquire(Kind::Write).await;
        }
        assert_eq!(seconds(&limiter, begun), 5);
        limiter.acquire(Kind::Read).await;
        assert_eq!(seconds(&limiter, begun), 5, "reads have a bucket of their own");
    }

    #[tokio::test(start_paused = true)]
    async fn one_throttled_request_holds_all_of_its_kind_back() {
        let clock = Clock::starting_at(Timestamp::UNIX_EPOCH, 1);
        let limiter = Limiter::new(clock.clone());
        let begun = clock.now();
        limiter.throttled(Kind::Write, Some(Duration::from_secs(17)));
        limiter.acquire(Kind::Read).await;
        assert_eq!(seconds(&limiter, begun), 0);
        limiter.acquire(Kind::Write).await;
        assert_eq!(seconds(&limiter, begun), 17);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_waits_for_its_token_is_held_back_too() {
        let clock = Clock::starting_at(Timestamp::UNIX_EPOCH, 1);
        let limiter = Limiter::new(clock.clone());
        let begun = clock.now();
        for _ in 0..200 {
            limiter.acquire(Kind::Write).await;
        }
        let throttle = async {
            clock.sleep(Duration::from_millis(50)).await;
            limiter.throttled(Kind::Write, Some(Duration::from_secs(17)));
        };
        tokio::join!(limiter.acquire(Kind::Write), throttle);
        assert_eq!(seconds(&limiter, begun), 17);
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_that_others_have_used_are_not_counted_on() {
        let clock = Clock::starting_at(Timestamp::UNIX_EPOCH, 1);
        let limiter = Limiter::new(clock.clone());
        let header = Kind::Read.header();
        let headers = HeaderMap::from_iter([(header.parse().unwrap(), "0".parse().unwrap())]);
        limiter.observe(Kind::Read, &headers);
        let begun = clock.now();
        for _ in 0..25 {
            limiter.acquire(Kind::Read).await;
        }
        assert_eq!(seconds(&limiter, begun), 1);
    }
}
