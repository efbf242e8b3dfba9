//! Requests to ARM: authorised, retried within bounds, paged.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode, header};
use http_body_util::Full;
use nap_clock::Clock;
use nap_cloud::{CloudError, ErrorClass};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tower::ServiceExt;

use super::{ArmErrorBody, HttpService, TokenCache, TokenProvider, classify};

/// How often one request is sent before its failure is reported.
pub const MAX_ATTEMPTS: u32 = 4;
/// How many pages of a list are read before it is given up as endless.
pub const MAX_PAGES: usize = 1000;
/// The longest wait between two attempts, whatever `Retry-After` says.
const MAX_WAIT: Duration = Duration::from_mins(1);
/// How long one attempt may take.
const ATTEMPT_TIMEOUT: Duration = Duration::from_mins(1);

/// A successful answer.
#[derive(Clone, Debug)]
pub struct ArmResponse {
    /// The status, below 300.
    pub status: StatusCode,
    /// The headers, where asynchronous operations are named.
    pub headers: HeaderMap,
    /// The body; null if it is empty.
    pub body: Value,
}

/// A client for ARM and, without a token, for the APIs beside it.
#[derive(Clone)]
pub struct ArmClient {
    service: HttpService,
    tokens: Option<Arc<TokenCache>>,
    clock: Clock,
    endpoint: String,
}

impl ArmClient {
    /// A client for an endpoint such as `https://management.azure.com`.
    pub fn new(
        service: HttpService,
        tokens: Arc<dyn TokenProvider>,
        clock: Clock,
        endpoint: &str,
    ) -> Self {
        let tokens = Some(Arc::new(TokenCache::new(tokens, clock.clone())));
        Self { service, tokens, clock, endpoint: endpoint.trim_end_matches('/').to_owned() }
    }

    /// A client that sends no token, for public APIs.
    pub fn anonymous(service: HttpService, clock: Clock, endpoint: &str) -> Self {
        Self { service, tokens: None, clock, endpoint: endpoint.trim_end_matches('/').to_owned() }
    }

    /// The clock that it waits on.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Sends a request. `path` is a path with its query, or a whole URL below the endpoint (as in a
    /// `nextLink`).
    pub async fn send(
        &self,
        operation: &str,
        method: Method,
        path: &str,
        headers: &[(&'static str, &str)],
        body: Option<&Value>,
    ) -> Result<ArmResponse, CloudError> {
        let (status, headers, body) = self.exchange(operation, method, path, headers, body).await?;
        let body = if body.is_empty() { Value::Null } else { read(operation, &body)? };
        Ok(ArmResponse { status, headers, body })
    }

    async fn exchange(
        &self,
        operation: &str,
        method: Method,
        path: &str,
        headers: &[(&'static str, &str)],
        body: Option<&Value>,
    ) -> Result<(StatusCode, HeaderMap, Bytes), CloudError> {
        let url = self.url(operation, path)?;
        let body = body.map(|body| Bytes::from(body.to_string()));
        let mut refused = false;
        let mut attempt = 0;
        loop {
            attempt += 1;
            let token = match &self.tokens {
                Some(tokens) => Some(tokens.token().await?),
                None => None,
            };
            let request =
                build(&method, &url, headers, token.as_deref(), body.clone()).map_err(|error| {
                    CloudError::new(ErrorClass::Invalid, operation, "InvalidRequest", error)
                })?;
            let attempted =
                tokio::time::timeout(ATTEMPT_TIMEOUT, self.service.clone().oneshot(request)).await;
            let (failure, retry_after) = match attempted {
                Ok(Ok(response)) if response.status().is_success() => {
                    let (head, body) = response.into_parts();
                    return Ok((head.status, head.headers, body));
                }
                Ok(Ok(response)) => {
                    let status = response.status();
                    if let (StatusCode::UNAUTHORIZED, Some(tokens), Some(token)) =
                        (status, &self.tokens, &token)
                        && !refused
                    {
                        // The token may have been revoked early: one new one is worth a try.
                        refused = true;
                        tokens.forget(token).await;
                        continue;
                    }
                    let failure = failure(operation, status, response.body());
                    if !is_passing(status) {
                        return Err(failure);
                    }
                    (failure, retry_after(response.headers()))
                }
                Ok(Err(error)) => (
                    CloudError::new(ErrorClass::Transient, operation, "TransportError", error),
                    None,
                ),
                Err(_) => (
                    CloudError::new(
                        ErrorClass::Transient,
                        operation,
                        "Timeout",
                        "no answer within a minute",
                    ),
                    None,
                ),
            };
            if attempt >= MAX_ATTEMPTS {
                return Err(failure);
            }
            let wait = retry_after
                .unwrap_or(Duration::from_millis(800) * 2_u32.pow(attempt - 1))
                .min(MAX_WAIT);
            tracing::debug!(
                operation,
                attempt,
                code = failure.code,
                ?wait,
                "retrying a request to Azure"
            );
            self.clock.sleep(wait).await;
        }
    }

    /// Gets one thing.
    pub async fn get(&self, operation: &str, path: &str) -> Result<Value, CloudError> {
        Ok(self.send(operation, Method::GET, path, &[], None).await?.body)
    }

    /// Gets every page of a list. The pages are joined by `nextLink` or `NextPageLink`, the items
    /// are in `value` or `Items`.
    pub async fn list<T: DeserializeOwned>(
        &self,
        operation: &str,
        path: &str,
    ) -> Result<Vec<T>, CloudError> {
        let mut items = Vec::new();
        let mut next = path.to_owned();
        for _ in 0..MAX_PAGES {
            let (_, _, body) = self.exchange(operation, Method::GET, &next, &[], None).await?;
            let page = read_page(operation, &body)?;
            items.extend(page.items);
            match page.next {
                Some(link) if !link.is_empty() => next = link,
                _ => return Ok(items),
            }
        }
        let message = format!("the list has more than {MAX_PAGES} pages");
        Err(CloudError::new(ErrorClass::Transient, operation, "EndlessList", message))
    }

    /// Tokens are sent to the endpoint only, so a link that leads elsewhere is refused.
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
    body: Option<Bytes>,
) -> Result<Request<Full<Bytes>>, http::Error> {
    let mut request = Request::builder()
        .method(method)
        .uri(url)
        .header(header::ACCEPT, "application/json")
        .header(header::USER_AGENT, concat!("nap/", env!("CARGO_PKG_VERSION")));
    if let Some(token) = token {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
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

/// Reads a page in one go; if that fails, item by item, because one bad row must not hide every
/// other one.
fn read_page<T: DeserializeOwned>(operation: &str, body: &[u8]) -> Result<Page<T>, CloudError> {
    if let Ok(page) = serde_json::from_slice(body) {
        return Ok(page);
    }
    let page: Page<Value> = read(operation, body)?;
    let mut items = Vec::with_capacity(page.items.len());
    for item in page.items {
        match serde_json::from_value(item) {
            Ok(item) => items.push(item),
            Err(error) => tracing::warn!(operation, %error, "an item of a list cannot be read"),
        }
    }
    Ok(Page { items, next: page.next })
}

fn read<T: DeserializeOwned>(operation: &str, body: &[u8]) -> Result<T, CloudError> {
    serde_json::from_slice(body).map_err(|error| {
        CloudError::new(ErrorClass::Transient, operation, "InvalidResponse", error)
    })
}

fn failure(operation: &str, status: StatusCode, body: &[u8]) -> CloudError {
    let error = ArmErrorBody::parse(body);
    let cause = error.cause();
    let class = classify(Some(status), &cause.code, &cause.message);
    let code =
        if cause.code.is_empty() { format!("HTTP{}", status.as_u16()) } else { cause.code.clone() };
    let message = if cause.message.is_empty() {
        format!("HTTP status {status}")
    } else {
        cause.message.clone()
    };
    CloudError::new(class, operation, code, message)
}

fn is_passing(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 429 | 500 | 502 | 503 | 504)
}

/// Seconds only: ARM does not send the date form.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
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

    #[test]
    fn one_bad_row_does_not_hide_the_others() {
        let page: Page<u8> = read_page("x", br#"{"value":[1,"two",3],"nextLink":"n"}"#).unwrap();
        assert_eq!((page.items, page.next.as_deref()), (vec![1, 3], Some("n")));
        let page: Page<u8> = read_page("x", br#"{"Items":[1],"NextPageLink":null}"#).unwrap();
        assert_eq!((page.items, page.next), (vec![1], None));
        assert!(read_page::<u8>("x", b"{}").is_err());
    }
}
