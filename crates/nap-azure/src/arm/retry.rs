//! The retry policy of every HTTP request to Azure: bounded attempts, exponential back-off with
//! jitter.

use std::hash::Hasher;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body_util::Full;
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use nap_clock::Clock;
use nap_cloud::{CloudError, ErrorClass};
use tower::ServiceExt;

use super::HttpService;

/// Most attempts of one request.
pub const MAX_ATTEMPTS: u32 = 4;
/// Wait after the first failure; it doubles with each further one.
const FIRST_WAIT: Duration = Duration::from_millis(800);
/// Longest wait between two attempts (before jitter), whatever `Retry-After` says.
const MAX_WAIT: Duration = Duration::from_mins(1);
/// Time limit of one attempt at a request to Azure.
pub(super) const ATTEMPT_TIMEOUT: Duration = Duration::from_mins(1);

/// The attempts of one request.
pub(super) struct Retries<'a> {
    clock: &'a Clock,
    operation: &'a str,
    failures: u32,
    max_attempts: u32,
}

impl<'a> Retries<'a> {
    pub(super) fn new(clock: &'a Clock, operation: &'a str) -> Self {
        Self { clock, operation, failures: 0, max_attempts: MAX_ATTEMPTS }
    }

    /// As many attempts at most.
    pub(super) fn at_most(self, max_attempts: u32) -> Self {
        Self { max_attempts, ..self }
    }

    /// Waits before the next attempt. Returns the error if no attempt is left.
    pub(super) async fn wait(
        &mut self,
        error: CloudError,
        retry_after: Option<Duration>,
    ) -> Result<(), CloudError> {
        self.failures += 1;
        if self.failures >= self.max_attempts {
            return Err(error);
        }
        let wait = wait(self.operation, self.failures, retry_after);
        let (operation, attempt) = (self.operation, self.failures);
        tracing::debug!(
            operation,
            attempt,
            code = error.code,
            correlation_id = error.correlation_id,
            ?wait,
            "retrying request to Azure"
        );
        self.clock.sleep(wait).await;
        Ok(())
    }
}

/// Wait after a failure: `Retry-After`, or the back-off plus up to a quarter of it as jitter. The
/// jitter is seeded by the operation, which names the resource, so that requests for different
/// resources spread out and a simulation can be repeated.
fn wait(operation: &str, failures: u32, retry_after: Option<Duration>) -> Duration {
    if let Some(wait) = retry_after {
        return wait.min(MAX_WAIT);
    }
    let wait = FIRST_WAIT.saturating_mul(2_u32.saturating_pow(failures - 1)).min(MAX_WAIT);
    let mut hasher = fnv::FnvHasher::default();
    hasher.write(operation.as_bytes());
    hasher.write_u32(failures);
    let thousandths = u32::try_from(hasher.finish() % 250).unwrap_or(0);
    wait + wait * thousandths / 1000
}

/// Sends a request once, within a time limit. A failure of the transport is a transient error.
pub(super) async fn send_once(
    service: &HttpService,
    operation: &str,
    request: Request<Full<Bytes>>,
    limit: Duration,
) -> Result<Response<Bytes>, CloudError> {
    let transient = |code: &str, message: String| {
        CloudError::new(ErrorClass::Transient, operation, code, message)
    };
    match tokio::time::timeout(limit, service.clone().oneshot(request)).await {
        Ok(Ok(response)) => Ok(response),
        Ok(Err(error)) => Err(transient("TransportError", error.to_string())),
        Err(_) => Err(transient("Timeout", format!("no answer within {} s", limit.as_secs()))),
    }
}

/// Whether the same request may succeed later.
pub(super) fn is_passing(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 429 | 500 | 502 | 503 | 504)
}

/// Wait that the `Retry-After` header asks for, in seconds or as an HTTP date. `None` if it cannot
/// be read, or if its date has passed: the back-off then decides, whatever the clocks say.
pub(super) fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = rfc2822::DateTimeParser::new().parse_timestamp(text).ok()?;
    Duration::try_from(date.duration_since(now)).ok().filter(|wait| !wait.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_with_bounded_repeatable_jitter() {
        for (failures, base) in [(1, 800), (2, 1600), (3, 3200)] {
            let base = Duration::from_millis(base);
            let first = wait("create machine a", failures, None);
            assert!(first >= base && first < base * 5 / 4, "{first:?}");
            assert_eq!(first, wait("create machine a", failures, None));
        }
        assert_ne!(wait("create machine a", 1, None), wait("create machine b", 1, None));
    }

    #[test]
    fn retry_after_is_read_as_seconds_and_as_a_date() {
        let now: Timestamp = "2026-01-31T23:59:50Z".parse().unwrap();
        for (value, wait) in [
            ("17", Some(17)),
            (" 0 ", Some(0)),
            ("Sun, 01 Feb 2026 00:00:05 GMT", Some(15)),
            ("Sat, 31 Jan 2026 23:59:50 GMT", None),
            ("Sat, 31 Jan 2026 23:00:00 GMT", None),
            ("Mon, 01 Feb 2026 00:00:05 GMT", None),
            ("-5", None),
            ("1.5", None),
            ("soon", None),
            ("", None),
        ] {
            let headers = HeaderMap::from_iter([(header::RETRY_AFTER, value.parse().unwrap())]);
            assert_eq!(retry_after(&headers, now), wait.map(Duration::from_secs), "{value}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }

    #[test]
    fn retry_after_is_respected_up_to_a_minute() {
        assert_eq!(wait("x", 1, Some(Duration::from_secs(10))), Duration::from_secs(10));
        assert_eq!(wait("x", 1, Some(Duration::from_hours(1))), Duration::from_mins(1));
    }
}
