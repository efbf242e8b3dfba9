//! The ARM client: authorised, retried and paged requests.

use std::hash::Hasher as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::Full;
use nap_clock::Clock;
use nap_cloud::{CloudError, ErrorClass};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::limiter::{Kind, Limiter};
use super::retry::{ATTEMPT_TIMEOUT, Retries, is_passing, retry_after, send_once};
use super::{ArmErrorBody, HttpService, TokenCache, TokenProvider};

/// Most times that one request is sent again because ARM throttles. Other requests wait too then.
const MAX_THROTTLED: u32 = 10;
/// Most pages of one list; a longer list is an error.
pub const MAX_PAGES: usize = 1000;

/// A successful response.
#[derive(Clone, Debug)]
pub struct ArmResponse {
    /// Status, below 300.
    pub status: StatusCode,
    /// Headers, which name asynchronous operations.
    pub headers: HeaderMap,
    /// Body; null if it is empty.
    pub body: Value,
}

/// A failed request with the whole error of ARM, where its details matter.
#[derive(Clone, Debug)]
pub struct ArmFailure {
    /// The error, by its cause.
    pub error: CloudError,
    /// The body of the response; empty if there was none.
    pub body: ArmErrorBody,
}

impl From<CloudError> for Box<ArmFailure> {
    fn from(error: CloudError) -> Self {
        Self::new(ArmFailure { error, body: ArmErrorBody::default() })
    }
}

/// A client of ARM or, without tokens, of public APIs.
#[derive(Clone)]
pub struct ArmClient {
    service: HttpService,
    tokens: Option<Arc<TokenCache>>,
    clock: Clock,
    endpoint: String,
    limiter: Arc<Limiter>,
    request_ids: Arc<RequestIds>,
}

/// Ids of requests, by which Azure's logs can be searched.
struct RequestIds {
    /// Differs between clients that were started at different times.
    prefix: u64,
    next: AtomicU64,
}

impl RequestIds {
    fn new(clock: &Clock, endpoint: &str) -> Self {
        let mut hasher = fnv::FnvHasher::default();
        hasher.write_i128(clock.now().as_nanosecond());
        hasher.write(endpoint.as_bytes());
        Self { prefix: hasher.finish(), next: AtomicU64::new(1) }
    }

    /// A new id in the form of a GUID.
    fn next(&self) -> String {
        let (prefix, number) = (self.prefix, self.next.fetch_add(1, Ordering::Relaxed));
        let (a, b, c) = (prefix >> 32, (prefix >> 16) & 0xffff, prefix & 0xffff);
        format!("{a:08x}-{b:04x}-{c:04x}-8000-{:012x}", number & 0xffff_ffff_ffff)
    }
}

/// The id by which Azure's support finds a request: ARM's own, else the one that was sent.
fn correlation_id(headers: &HeaderMap, sent: &str) -> String {
    answered_id(headers).unwrap_or_else(|| sent.to_owned())
}

/// Correlation id of an answer; `None` if it has none.
pub(super) fn answered_id(headers: &HeaderMap) -> Option<String> {
    let names = ["x-ms-correlation-request-id", "x-ms-request-id"];
    names.iter().find_map(|name| headers.get(*name)?.to_str().ok()).map(str::to_owned)
}

/// A successful answer.
struct Answered {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
    /// Correlation id.
    id: String,
}

impl ArmResponse {
    /// Id by which Azure's support finds the request; `None` if the answer has none.
    pub fn correlation_id(&self) -> Option<String> {
        answered_id(&self.headers)
    }
}

impl ArmClient {
    /// Creates a client of an endpoint such as `https://management.azure.com`.
    pub fn new(
        service: HttpService,
        tokens: Arc<dyn TokenProvider>,
        clock: Clock,
        endpoint: &str,
    ) -> Self {
        let tokens = Arc::new(TokenCache::new(tokens, clock.clone()));
        Self { tokens: Some(tokens), ..Self::anonymous(service, clock, endpoint) }
    }

    /// Creates a client that sends no token, for public APIs.
    pub fn anonymous(service: HttpService, clock: Clock, endpoint: &str) -> Self {
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        let limiter = Arc::new(Limiter::new(clock.clone()));
        let request_ids = Arc::new(RequestIds::new(&clock, &endpoint));
        Self { service, tokens: None, clock, endpoint, limiter, request_ids }
    }

    /// The clock that waits are measured by.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Sends a request. `path` is a path with its query, or a URL below the endpoint, as in a
    /// `nextLink`.
    pub async fn send(
        &self,
        operation: &str,
        method: Method,
        path: &str,
        headers: &[(&'static str, &str)],
        body: Option<&Value>,
    ) -> Result<ArmResponse, CloudError> {
        let sent = self.send_in_detail(operation, method, path, headers, body).await;
        sent.map_err(|failure| failure.error)
    }

    /// As [`ArmClient::send`], with the details of a failure.
    pub async fn send_in_detail(
        &self,
        operation: &str,
        method: Method,
        path: &str,
        headers: &[(&'static str, &str)],
        body: Option<&Value>,
    ) -> Result<ArmResponse, Box<ArmFailure>> {
        let answer = self.exchange(operation, method, path, headers, body).await?;
        let Answered { status, headers, body, id } = answer;
        let body = if body.is_empty() { Ok(Value::Null) } else { read(operation, &body) };
        let body = body.map_err(|error| error.with_correlation_id(Some(id)))?;
        Ok(ArmResponse { status, headers, body })
    }

    async fn exchange(
        &self,
        operation: &str,
        method: Method,
        path: &str,
        headers: &[(&'static str, &str)],
        body: Option<&Value>,
    ) -> Result<Answered, Box<ArmFailure>> {
        let url = self.url(operation, path)?;
        let body = body.map(|body| Bytes::from(body.to_string()));
        let mut retries = Retries::new(&self.clock, operation);
        let mut token_refused = false;
        let mut throttled = 0;
        let kind = Kind::of(&method);
        loop {
            let token = match &self.tokens {
                Some(tokens) => Some(tokens.token().await?),
                None => None,
            };
            let id = self.request_ids.next();
            let request = build(&method, &url, headers, token.as_deref(), &id, body.clone());
            let request = request.map_err(|error| {
                CloudError::new(ErrorClass::Invalid, operation, "InvalidRequest", error)
            })?;
            let place = self.limiter.acquire(kind).await;
            let sent = send_once(&self.service, operation, request, ATTEMPT_TIMEOUT).await;
            drop(place);
            let response = match sent {
                Ok(response) => response,
                Err(error) => {
                    retries.wait(error.with_correlation_id(Some(id)), None).await?;
                    continue;
                }
            };
            self.limiter.observe(kind, response.headers());
            let status = response.status();
            if status == StatusCode::TOO_MANY_REQUESTS {
                self.limiter.throttled(kind, retry_after(response.headers(), self.clock.now()));
                throttled += 1;
                if throttled <= MAX_THROTTLED {
                    continue;
                }
            }
            if status.is_success() {
                let id = correlation_id(response.headers(), &id);
                let (head, body) = response.into_parts();
                return Ok(Answered { status, headers: head.headers, body, id });
            }
            if let (StatusCode::UNAUTHORIZED, Some(tokens), Some(token)) =
                (status, &self.tokens, &token)
                && !token_refused
            {
                // The token may have been revoked before it expired: one new token is tried.
                token_refused = true;
                tokens.forget(token).await;
                continue;
            }
            let fallback = format!("HTTP{}", status.as_u16());
            let body_of_error = ArmErrorBody::parse(response.body());
            let error = body_of_error.to_error(Some(status), operation, &fallback);
            let id = correlation_id(response.headers(), &id);
            tracing::debug!(operation, %method, %status, correlation_id = id, "request failed");
            let error = error.with_correlation_id(Some(id));
            if !is_passing(status) {
                return Err(Box::new(ArmFailure { error, body: body_of_error }));
            }
            let retry =
                retries.wait(error, retry_after(response.headers(), self.clock.now())).await;
            retry.map_err(|error| Box::new(ArmFailure { error, body: body_of_error }))?;
        }
    }

    /// Gets one resource.
    pub async fn get(&self, operation: &str, path: &str) -> Result<Value, CloudError> {
        Ok(self.send(operation, Method::GET, path, &[], None).await?.body)
    }

    /// Gets every item of a paged list. Pages are linked by `nextLink` or `NextPageLink`; items are
    /// in `value` or `Items`. A malformed item is left out: it does not hide the others.
    pub async fn list<T: DeserializeOwned>(
        &self,
        operation: &str,
        path: &str,
    ) -> Result<Vec<T>, CloudError> {
        self.pages(operation, path, read_page).await
    }

    /// As [`ArmClient::list`], for lists in which what is missing counts as gone: a malformed item
    /// is an error.
    pub async fn list_all<T: DeserializeOwned>(
        &self,
        operation: &str,
        path: &str,
    ) -> Result<Vec<T>, CloudError> {
        self.pages(operation, path, read::<Page<T>>).await
    }

    async fn pages<T: DeserializeOwned>(
        &self,
        operation: &str,
        path: &str,
        read_page: fn(&str, &[u8]) -> Result<Page<T>, CloudError>,
    ) -> Result<Vec<T>, CloudError> {
        let mut items = Vec::new();
        let mut next = path.to_owned();
        let mut last = None;
        for _ in 0..MAX_PAGES {
            let sent = self.exchange(operation, Method::GET, &next, &[], None).await;
            let Answered { body, id, .. } = sent.map_err(|failure| failure.error)?;
            last = Some(id);
            let page = read_page(operation, &body);
            let page = page.map_err(|error| error.with_correlation_id(last.clone()))?;
            items.extend(page.items);
            match page.next {
                Some(link) if !link.is_empty() => next = link,
                _ => return Ok(items),
            }
        }
        let message = format!("the list has more than {MAX_PAGES} pages");
        let error = CloudError::new(ErrorClass::Transient, operation, "EndlessList", message);
        Err(error.with_correlation_id(last))
    }

    /// The URL of a path. A link that leads away from the endpoint is refused, so that tokens are
    /// sent nowhere else.
    fn url(&self, operation: &str, path: &str) -> Result<String, CloudError> {
        if path.starts_with('/') {
            return Ok(format!("{}{path}", self.endpoint));
        }
        let below = path
            .strip_prefix(&self.endpoint)
            .is_some_and(|rest| rest.starts_with(['/', '?']) || rest.starts_with(":443/"));
        if below || self.tokens.is_none() {
            return Ok(path.to_owned());
        }
        let message = format!("the link `{path}` leads away from `{}`", self.endpoint);
        Err(CloudError::new(ErrorClass::Invalid, operation, "ForeignLink", message))
    }
}

fn build(
    method: &Method,
    url: &str,
    headers: &[(&'static str, &str)],
    token: Option<&str>,
    request_id: &str,
    body: Option<Bytes>,
) -> Result<Request<Full<Bytes>>, http::Error> {
    let mut request = Request::builder()
        .method(method)
        .uri(url)
        .header(header::ACCEPT, "application/json")
        .header(header::USER_AGENT, concat!("nap/", env!("CARGO_PKG_VERSION")))
        .header("x-ms-client-request-id", request_id)
        .header("x-ms-return-client-request-id", "true");
    if let Some(token) = token {
        let mut value = HeaderValue::try_from(format!("Bearer {token}"))?;
        value.set_sensitive(true);
        request = request.header(header::AUTHORIZATION, value);
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    if body.is_some() {
        request = request.header(header::CONTENT_TYPE, "application/json");
    }
    request.body(Full::new(body.unwrap_or_default()))
}

#[derive(Deserialize)]
struct Page<T> {
    #[serde(alias = "Items", alias = "value")]
    items: Vec<T>,
    #[serde(default, alias = "nextLink", alias = "NextPageLink")]
    next: Option<String>,
}

/// Parses a page at once and, if that fails, item by item: one malformed item does not hide the
/// others.
fn read_page<T: DeserializeOwned>(operation: &str, body: &[u8]) -> Result<Page<T>, CloudError> {
    if let Ok(page) = serde_json::from_slice(body) {
        return Ok(page);
    }
    let page: Page<Value> = read(operation, body)?;
    let mut items = Vec::with_capacity(page.items.len());
    for item in page.items {
        match serde_json::from_value(item) {
            Ok(item) => items.push(item),
            Err(error) => tracing::warn!(operation, %error, "skipped malformed list item"),
        }
    }
    Ok(Page { items, next: page.next })
}

fn read<T: DeserializeOwned>(operation: &str, body: &[u8]) -> Result<T, CloudError> {
    serde_json::from_slice(body).map_err(|error| {
        CloudError::new(ErrorClass::Transient, operation, "InvalidResponse", error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn tokens_are_not_sent_to_other_hosts() {
        let service =
            super::super::http_service(tower::service_fn(|_: Request<Full<Bytes>>| async {
                Ok::<_, std::convert::Infallible>(http::Response::new(Full::<Bytes>::default()))
            }));
        let token = Arc::new(super::super::StaticToken("secret".to_owned()));
        let client = ArmClient::new(service, token, Clock::wall(), "https://arm.example");
        for url in ["/x", "https://arm.example/x", "https://arm.example:443/x"] {
            assert!(client.get("x", url).await.is_ok(), "{url}");
        }
        for url in
            ["https://arm.example.evil/x", "https://arm.example:a@evil/x", "https://evil/x", "x"]
        {
            assert_eq!(client.get("x", url).await.unwrap_err().code, "ForeignLink", "{url}");
        }
    }

    #[tokio::test]
    async fn an_answer_that_cannot_be_read_has_its_correlation_id() {
        let endless = r#"{"value":[],"nextLink":"https://arm.example/more"}"#;
        for (body, code) in [("nonsense", "InvalidResponse"), (endless, "EndlessList")] {
            let answer = move |_: Request<Full<Bytes>>| async move {
                let response = http::Response::builder().header("x-ms-request-id", "arm-1");
                let response = response.body(Full::new(Bytes::from(body)));
                Ok::<_, std::convert::Infallible>(response.unwrap())
            };
            let service = super::super::http_service(tower::service_fn(answer));
            let client = ArmClient::anonymous(service, Clock::wall(), "https://arm.example");
            let error = client.list_all::<Value>("list x", "/x").await.unwrap_err();
            let found = (error.code.as_str(), error.correlation_id.as_deref());
            assert_eq!(found, (code, Some("arm-1")));
            let sent = client.send("get x", Method::GET, "/x", &[], None).await;
            let id = sent.err().and_then(|error| error.correlation_id);
            assert_eq!(id.as_deref(), (code == "InvalidResponse").then_some("arm-1"));
        }
    }

    /// A body that begins and never ends.
    struct Stalled;

    impl http_body::Body for Stalled {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
            std::task::Poll::Pending
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_whose_answer_never_comes_or_never_ends_fails_in_bounded_time() {
        for has_head in [false, true] {
            let service = super::super::http_service(tower::service_fn(
                move |_: Request<Full<Bytes>>| async move {
                    if !has_head {
                        std::future::pending::<()>().await;
                    }
                    Ok::<_, std::convert::Infallible>(http::Response::new(Stalled))
                },
            ));
            let clock = Clock::starting_at(jiff::Timestamp::UNIX_EPOCH, 1);
            let client = ArmClient::anonymous(service, clock, "https://arm.example");
            let begun = tokio::time::Instant::now();
            let error = client.get("get a machine", "/x").await.unwrap_err();
            assert_eq!((error.class, &*error.code), (ErrorClass::Transient, "Timeout"));
            assert!(error.correlation_id.is_some());
            // Four attempts of a minute, with pauses of a few seconds.
            assert_eq!(begun.elapsed().as_secs() / 60, 4, "{:?}", begun.elapsed());
        }
    }

    #[test]
    fn a_malformed_item_does_not_hide_the_others() {
        let page: Page<u8> = read_page("x", br#"{"value":[1,"two",3],"nextLink":"n"}"#).unwrap();
        assert_eq!((page.items, page.next.as_deref()), (vec![1, 3], Some("n")));
        let page: Page<u8> = read_page("x", br#"{"Items":[1],"NextPageLink":null}"#).unwrap();
        assert_eq!((page.items, page.next), (vec![1], None));
        assert!(read_page::<u8>("x", b"{}").is_err());
        // Where what is missing counts as gone, a list with such an item is none.
        assert!(read::<Page<u8>>("x", br#"{"value":[1,"two",3]}"#).is_err());
    }
}
