//! Times for kubectl on a cluster whose clock runs faster than the computer's.
//!
//! `kubectl describe` and `kubectl events` count ages from the clock of the computer, on which the
//! objects are of the future. What people read therefore shows the times that the cluster itself
//! has set as long ago by that clock as they are by the cluster's: those of `metadata`, `status`,
//! Events and Leases. Data of users never changes, even if it is a time. Other clients, such as
//! `nap run`, and commands that write what they have read, such as `kubectl apply`, `diff` and
//! `edit`, get the times of the cluster.

use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderMap, Method, Request, Response, header};
use http_body_util::BodyExt as _;
use jiff::{SignedDuration, Timestamp};
use nap_clock::Clock;
use tower::Service;

/// User agents that show ages to people.
const FOR_PEOPLE: [&str; 2] = ["kubectl", "k9s"];

/// Commands of kubectl whose output is for people; it names them in this header.
const COMMAND_HEADER: &str = "kubectl-command";
const SHOWING: [&str; 3] = ["get", "describe", "events"];

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
        let for_people = request.method() == Method::GET && is_for_people(request.headers());
        let kind = Kind::of(request.uri().path());
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
                        shifted(&data, ahead, kind)
                    })
                }))
            }))
        })
    }
}

fn is_for_people(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let agent = text(header::USER_AGENT.as_str()).unwrap_or_default();
    FOR_PEOPLE.iter().any(|name| agent.starts_with(name))
        && text(COMMAND_HEADER).is_none_or(|command| {
            command.split(' ').nth(1).is_some_and(|verb| SHOWING.contains(&verb))
        })
}

/// Kinds that have times outside of `metadata` and `status`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Event,
    Lease,
    Metrics,
    Other,
}

impl Kind {
    fn of(path: &str) -> Self {
        let mut parts = path.split('/');
        let (_, root, group) = (parts.next(), parts.next(), parts.next());
        let is = |resource: &str| path.split('/').any(|part| part == resource);
        match (root, group) {
            (Some("api"), _) | (_, Some("events.k8s.io")) if is("events") => Self::Event,
            (_, Some("coordination.k8s.io")) if is("leases") => Self::Lease,
            (_, Some("metrics.k8s.io")) => Self::Metrics,
            _ => Self::Other,
        }
    }
}

/// Part of a response that a value is in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// An object, or a list, a Table or an event of a watch that holds some.
    Object,
    Metadata,
    ManagedFields,
    LeaseSpec,
    /// Every text in it that is a time was set by the cluster.
    Times,
    Data,
}

impl Place {
    fn below(self, key: &[u8], kind: Kind) -> Self {
        match (self, key, kind) {
            (Self::Object, b"items" | b"rows" | b"object", _) => Self::Object,
            (Self::Object, b"metadata", _) => Self::Metadata,
            (Self::Object, b"spec", Kind::Lease) => Self::LeaseSpec,
            (Self::Times, ..)
            | (Self::Object, b"status", _)
            | (
                Self::Object,
                b"firstTimestamp"
                | b"lastTimestamp"
                | b"eventTime"
                | b"series"
                | b"deprecatedFirstTimestamp"
                | b"deprecatedLastTimestamp",
                Kind::Event,
            )
            | (Self::Object, b"timestamp", Kind::Metrics)
            | (Self::Metadata, b"creationTimestamp" | b"deletionTimestamp", _)
            | (Self::ManagedFields, b"time", _)
            | (Self::LeaseSpec, b"acquireTime" | b"renewTime", _) => Self::Times,
            (Self::Metadata, b"managedFields", _) => Self::ManagedFields,
            _ => Self::Data,
        }
    }
}

/// JSON with the times that the cluster has set back by a duration; its length stays the same.
fn shifted(json: &[u8], by: SignedDuration, kind: Kind) -> Bytes {
    let mut out = json.to_vec();
    // Place of each open container; `true` for an array, whose items are in its own place.
    let mut open: Vec<(Place, bool)> = Vec::new();
    let (mut place, mut at) = (Place::Object, 0);
    let mut key_is_next = false;
    while let Some(byte) = out.get(at).copied() {
        at += 1;
        match byte {
            b'{' | b'[' => {
                open.push((place, byte == b'['));
                key_is_next = byte == b'{';
            }
            b'}' | b']' => {
                open.pop();
                key_is_next = false;
            }
            b',' => match open.last() {
                Some((outer, true)) => place = *outer,
                Some((_, false)) => key_is_next = true,
                None => {}
            },
            b'"' => {
                let Some(text) = out.get(at..).and_then(string) else { break };
                let end = at + text.len();
                if key_is_next {
                    let outer = open.last().map_or(Place::Data, |(outer, _)| *outer);
                    place = outer.below(text, kind);
                    key_is_next = false;
                } else if place == Place::Times
                    && let Some(time) = earlier(text, by)
                    && let Some(slot) = out.get_mut(at..end)
                {
                    slot.copy_from_slice(time.as_bytes());
                }
                at = end + 1;
            }
            // Events of a watch follow each other.
            b'\n' if open.is_empty() => place = Place::Object,
            _ => {}
        }
    }
    Bytes::from(out)
}

/// The rest of a string up to its closing quote; `None` if it has none.
fn string(rest: &[u8]) -> Option<&[u8]> {
    let mut at = 0;
    loop {
        at += rest.get(at..)?.iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
        if rest.get(at) == Some(&b'"') {
            return rest.get(..at);
        }
        at += 2;
    }
}

/// The same time set back, in a text of the same length; `None` if it is none.
fn earlier(text: &[u8], by: SignedDuration) -> Option<String> {
    if text.get(4) != Some(&b'-') || text.get(10) != Some(&b'T') {
        return None;
    }
    let text = std::str::from_utf8(text).ok()?;
    let fraction = text.get(SECONDS..)?.strip_suffix('Z')?;
    let time: Timestamp = text.parse().ok()?;
    let time = time.checked_sub(by).ok()?;
    let nanos = format!("{:09}", time.subsec_nanosecond());
    let digits = fraction.len().saturating_sub(1);
    let mut earlier = time.strftime("%Y-%m-%dT%H:%M:%S").to_string();
    if digits > 0 {
        earlier.push('.');
        earlier.push_str(nanos.get(..digits)?);
    }
    earlier.push('Z');
    (earlier.len() == text.len()).then_some(earlier)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shift(text: &str, kind: Kind) -> String {
        let by = SignedDuration::from_secs(90);
        String::from_utf8(shifted(text.as_bytes(), by, kind).to_vec()).unwrap()
    }

    #[test]
    fn times_that_the_cluster_has_set_are_set_back() {
        for (text, kind) in [
            (r#"{"metadata":{"creationTimestamp":"T","deletionTimestamp":"T"}}"#, Kind::Other),
            (r#"{"metadata":{"managedFields":[{"time":"T"}],"name":"T\""},"spec":1}"#, Kind::Other),
            (r#"{"items":[{"spec":{"a":[1]},"status":{"a":[{"b":"T"},"T"]}}]}"#, Kind::Other),
            (r#"{"rows":[{"object":{"metadata":{"creationTimestamp":"T"}}}]}"#, Kind::Other),
            (r#"{"object":{"eventTime":"T","series":{"lastObservedTime":"T"}}}"#, Kind::Event),
            (r#"{"spec":{"renewTime":"T"}}"#, Kind::Lease),
            ("{\"status\":\"T\"}\n{\"status\":\"T\"}\n", Kind::Other),
        ] {
            for (before, after) in [
                ("2026-01-01T00:01:00Z", "2025-12-31T23:59:30Z"),
                ("2026-01-01T00:01:30.250000Z", "2026-01-01T00:00:00.250000Z"),
            ] {
                let quoted = |time: &str| text.replace("\"T\"", &format!("\"{time}\""));
                assert_eq!(shift(&quoted(before), kind), quoted(after));
            }
        }
    }

    #[test]
    fn data_of_users_and_other_texts_stay() {
        for text in [
            r#"{"data":{"when":"2026-01-01T00:01:00Z","status":"2026-01-01T00:01:00Z"}}"#,
            r#"{"metadata":{"labels":{"creationTimestamp":"2026-01-01T00:01:00Z"}}}"#,
            r#"{"metadata":{"annotations":{"time":"2026-01-01T00:01:00Z"}}}"#,
            r#"{"spec":{"renewTime":"2026-01-01T00:01:00Z","template":{"metadata":
                {"creationTimestamp":"2026-01-01T00:01:00Z"}}}}"#,
            r#"{"rows":[{"cells":["2026-01-01T00:01:00Z"]}]}"#,
            r#"{"status":"since 2026-01-01T00:01:00Z","b":"2026-01-01"}"#,
            r#"{"status":"2026-01-01T00:01:00+01:00"}"#,
            r#"{"status":"2026-01-01T00:01:00Z"#,
            r#"{"status":"2026-13-01T00:01:00Z"}"#,
            "",
            "\"",
            "\"\\",
        ] {
            assert_eq!(shift(text, Kind::Other), text);
        }
    }

    #[test]
    fn only_commands_that_show_are_for_people() {
        let headers = |agent: &str, command: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::USER_AGENT, agent.parse().unwrap());
            if let Some(command) = command {
                headers.insert(COMMAND_HEADER, command.parse().unwrap());
            }
            headers
        };
        for command in [None, Some("kubectl get"), Some("kubectl describe")] {
            assert!(is_for_people(&headers("kubectl/v1.36.0", command)), "{command:?}");
        }
        assert!(is_for_people(&headers("k9s/0.50", None)));
        for command in ["kubectl diff", "kubectl apply view-last-applied", "kubectl"] {
            assert!(!is_for_people(&headers("kubectl/v1.36.0", Some(command))), "{command}");
        }
        assert!(!is_for_people(&headers("nap/1", None)));
    }
}
