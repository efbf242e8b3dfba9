//! Times for kubectl on a cluster whose clock runs faster than the computer's.
//!
//! `kubectl describe` and `kubectl events` count ages from the clock of the computer, on which the
//! objects are of the future. Responses to clients of people therefore show every time as long ago
//! by that clock as it is by the cluster's. Other clients, such as `nap run`, get the times of the
//! cluster.

use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response, header};
use http_body_util::BodyExt as _;
use jiff::{SignedDuration, Timestamp};
use nap_clock::Clock;
use tower::Service;

/// User agents that show ages to people.
const FOR_PEOPLE: [&str; 2] = ["kubectl", "k9s"];

/// Length of a time in whole seconds, up to the fraction or the `Z`.
const SECONDS: usize = "2026-01-01T00:00:00".len();

/// A service whose responses have times of the computer's clock, for people.
#[derive(Clone)]
pub(super) struct ByWallClock<S> {
    inner: S,
    cluster: Clock,
    wall: Clock,
}

impl<S> ByWallClock<S> {
    pub(super) fn new(inner: S, cluster: Clock) -> Self {
        Self { inner, cluster, wall: Clock::wall() }
    }
}

impl<S, B> Service<Request<Body>> for ByWallClock<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<axum::BoxError>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let agent = request.headers().get(header::USER_AGENT);
        let agent = agent.and_then(|agent| agent.to_str().ok()).unwrap_or_default();
        let for_people = FOR_PEOPLE.iter().any(|name| agent.starts_with(name));
        let answer = self.inner.call(request);
        let (cluster, wall) = (self.cluster.clone(), self.wall.clone());
        Box::pin(async move {
            let response = answer.await?;
            if !for_people {
                return Ok(response.map(Body::new));
            }
            // The API server writes an object, a list or an event in one frame.
            Ok(response.map(|body| {
                Body::new(body.map_frame(move |frame| {
                    frame.map_data(|data| {
                        let ahead = cluster.now().duration_since(wall.now());
                        shifted(&data, ahead)
                    })
                }))
            }))
        })
    }
}

/// JSON with every string that is a time set back by a duration; its length stays the same.
fn shifted(json: &[u8], by: SignedDuration) -> Bytes {
    let mut out = json.to_vec();
    let mut at = 0;
    while let Some(quote) = out.get(at..).and_then(|rest| rest.iter().position(|b| *b == b'"')) {
        at += quote + 1;
        if let Some((length, text)) = out.get(at..).and_then(|rest| earlier(rest, by))
            && let Some(place) = out.get_mut(at..at + length)
        {
            place.copy_from_slice(text.as_bytes());
            at += length;
        }
    }
    Bytes::from(out)
}

/// The time at the start of a string, up to its closing quote, set back; `None` if it is none.
fn earlier(rest: &[u8], by: SignedDuration) -> Option<(usize, String)> {
    let zone = rest.get(4) == Some(&b'-') && rest.get(10) == Some(&b'T');
    let end = rest.iter().take(SECONDS + 12).position(|b| *b == b'"').filter(|_| zone)?;
    let text = std::str::from_utf8(rest.get(..end)?).ok()?;
    let fraction = text.get(SECONDS..)?.strip_suffix('Z')?;
    let time: Timestamp = text.parse().ok()?;
    let time = time.checked_sub(by).ok()?;
    let nanos = format!("{:09}", time.subsec_nanosecond());
    let digits = fraction.len().saturating_sub(1);
    let mut text = time.strftime("%Y-%m-%dT%H:%M:%S").to_string();
    if digits > 0 {
        text.push('.');
        text.push_str(nanos.get(..digits)?);
    }
    text.push('Z');
    (text.len() == end).then_some((end, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_set_back_and_nothing_else_is_touched() {
        let by = SignedDuration::from_secs(90);
        let shift = |text: &str| String::from_utf8(shifted(text.as_bytes(), by).to_vec()).unwrap();
        assert_eq!(
            shift(r#"{"a":"2026-01-01T00:01:00Z","b":["2026-01-01T00:01:30.250000Z"]}"#),
            r#"{"a":"2025-12-31T23:59:30Z","b":["2026-01-01T00:00:00.250000Z"]}"#
        );
        for other in [
            r#"{"a":"since 2026-01-01T00:01:00Z","b":"2026-01-01","c":"2026-01-01T00:01:00+01:00"}"#,
            r#"{"a":"2026-01-01T00:01:00Z"#,
            r#"{"a":"2026-13-01T00:01:00Z"}"#,
            "",
            "\"",
        ] {
            assert_eq!(shift(other), other);
        }
    }
}
