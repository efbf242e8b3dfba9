//! Bearer tokens: workload identity (a federated token file), managed identity (the instance
//! metadata service), the login of the Azure CLI or a fixed token; cached until shortly before they
//! expire.
//!
//! `docs/adr/0007-azure-tokens.md` says why these flows are not taken from `azure_identity`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use jiff::{SignedDuration, Timestamp};
use nap_clock::Clock;
use nap_cloud::{CloudError, ErrorClass};
use serde::Deserialize;

use super::azure_cli::AzureCli;
use super::chained_tokens::ChainedTokens;
use super::client::answered_id;
use super::retry::{Retries, is_passing, retry_after, send_once};
use super::{HttpService, percent_encode};
use crate::AzureError;
use crate::clouds::Entra;

/// How a source of tokens is asked.
struct Source {
    /// Time limit of an attempt.
    limit: Duration,
    max_attempts: u32,
    /// Statuses that pass, beside those of every request.
    passing: &'static [u16],
}

const ENTRA: Source = Source { limit: Duration::from_secs(10), max_attempts: 3, passing: &[] };
/// The metadata service is next to the VM; outside of Azure nothing answers. While it is updated it
/// has no path (404) or is gone (410), for about a minute.
const METADATA: Source =
    Source { limit: Duration::from_secs(3), max_attempts: 2, passing: &[404, 410] };

/// A token and its expiry.
#[derive(Clone, PartialEq, Eq)]
pub struct AccessToken {
    /// Value after `Bearer`.
    pub secret: String,
    /// Time at which it is no longer accepted.
    pub expires: Timestamp,
}

/// A source of tokens for ARM.
#[async_trait]
pub trait TokenProvider: Send + Sync {
    /// Fetches a new token.
    async fn token(&self) -> Result<AccessToken, CloudError>;
}

/// A fixed token that never expires, for tests and emulators.
pub struct StaticToken(pub String);

#[async_trait]
impl TokenProvider for StaticToken {
    async fn token(&self) -> Result<AccessToken, CloudError> {
        Ok(AccessToken { secret: self.0.clone(), expires: Timestamp::MAX })
    }
}

/// Workload identity: a Kubernetes service account that an Entra application trusts.
pub struct WorkloadIdentity {
    /// Transport.
    pub service: HttpService,
    /// Clock that expiry is computed by.
    pub clock: Clock,
    /// Entra endpoint, such as `https://login.microsoftonline.com`.
    pub authority: String,
    /// Id of the tenant.
    pub tenant_id: String,
    /// Id of the application.
    pub client_id: String,
    /// Token file, which the kubelet rotates; it is read for each token.
    pub token_file: PathBuf,
    /// OAuth scope, such as `https://management.azure.com/.default`.
    pub scope: String,
}

#[async_trait]
impl TokenProvider for WorkloadIdentity {
    async fn token(&self) -> Result<AccessToken, CloudError> {
        let operation = "get a token by workload identity";
        let assertion = std::fs::read_to_string(&self.token_file).map_err(|error| {
            let message = format!("cannot read `{}`: {error}", self.token_file.display());
            CloudError::new(ErrorClass::Auth, operation, "FederatedTokenUnreadable", message)
        })?;
        let form = [
            ("client_id", self.client_id.as_str()),
            ("scope", &self.scope),
            ("grant_type", "client_credentials"),
            ("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"),
            ("client_assertion", assertion.trim()),
        ];
        let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(form).finish();
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!(
                "{}/{}/oauth2/v2.0/token",
                self.authority.trim_end_matches('/'),
                self.tenant_id
            ))
            .header(http::header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(Full::new(Bytes::from(body)));
        exchange(&self.service, &self.clock, operation, request, ENTRA).await
    }
}

/// Managed identity of the VM that the process runs on.
pub struct ManagedIdentity {
    /// Transport.
    pub service: HttpService,
    /// Clock that expiry is computed by.
    pub clock: Clock,
    /// Endpoint of the metadata service, `http://169.254.169.254` on Azure.
    pub endpoint: String,
    /// Client id of a user-assigned identity; `None` for the only or the system-assigned one.
    pub client_id: Option<String>,
    /// Resource that the token is for, such as `https://management.azure.com/`.
    pub resource: String,
}

#[async_trait]
impl TokenProvider for ManagedIdentity {
    async fn token(&self) -> Result<AccessToken, CloudError> {
        let mut uri = format!(
            "{}/metadata/identity/oauth2/token?api-version=2018-02-01&resource={}",
            self.endpoint.trim_end_matches('/'),
            percent_encode(&self.resource)
        );
        if let Some(client_id) = &self.client_id {
            uri.push_str("&client_id=");
            uri.push_str(&percent_encode(client_id));
        }
        let request = Request::builder().uri(uri).header("Metadata", "true").body(Full::default());
        let operation = "get a token by managed identity";
        exchange(&self.service, &self.clock, operation, request, METADATA).await
    }
}

/// The identity that the environment describes: workload identity if its webhook has set
/// `AZURE_FEDERATED_TOKEN_FILE`, else managed identity, else the login of the Azure CLI, which may
/// have several tenants: the subscription tells which.
pub fn tokens_from_env(
    service: HttpService,
    clock: Clock,
    entra: &Entra,
    subscription: Option<&str>,
) -> Result<Arc<dyn TokenProvider>, AzureError> {
    let get = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let Some(token_file) = get("AZURE_FEDERATED_TOKEN_FILE") else {
        let resource = entra.token_audience.clone();
        let managed = ManagedIdentity {
            service,
            clock,
            endpoint: get("NAP_IMDS_ENDPOINT")
                .unwrap_or_else(|| "http://169.254.169.254".to_owned()),
            client_id: get("AZURE_CLIENT_ID"),
            resource: resource.clone(),
        };
        let subscription = subscription.map(str::to_owned);
        let cli = AzureCli { program: "az".into(), resource, subscription };
        let sources: Vec<(&'static str, Arc<dyn TokenProvider>)> =
            vec![("managed identity", Arc::new(managed)), ("Azure CLI", Arc::new(cli))];
        let tokens = ChainedTokens::new(sources);
        // In a pod on Azure a metadata service that does not answer is out of order.
        let is_pod = get("KUBERNETES_SERVICE_HOST").is_some();
        return Ok(Arc::new(if is_pod { tokens.where_silence_passes() } else { tokens }));
    };
    let need = |name: &'static str| {
        let hint = "workload identity needs it beside `AZURE_FEDERATED_TOKEN_FILE`";
        get(name).ok_or(AzureError::MissingVariable { name, hint })
    };
    Ok(Arc::new(WorkloadIdentity {
        service,
        clock,
        authority: entra.authority_host.clone(),
        tenant_id: match get("ARM_TENANT_ID").filter(|_| get("AZURE_TENANT_ID").is_none()) {
            Some(tenant_id) => tenant_id,
            None => need("AZURE_TENANT_ID")?,
        },
        client_id: need("AZURE_CLIENT_ID")?,
        token_file: token_file.into(),
        scope: entra.scope(),
    }))
}

/// A cache of one token.
pub struct TokenCache {
    provider: Arc<dyn TokenProvider>,
    clock: Clock,
    /// Locked while a new token is fetched, so that concurrent callers fetch it once.
    cached: tokio::sync::Mutex<Cached>,
}

#[derive(Default)]
struct Cached {
    token: Option<AccessToken>,
    /// Time before which a token that still serves is not replaced again; `None` after a success.
    retry: Option<Timestamp>,
}

impl TokenCache {
    /// Time before its expiry at which a token is replaced.
    const MARGIN: SignedDuration = SignedDuration::from_mins(5);
    /// Wait after a token could not be replaced, during which the old one serves.
    const RETRY: SignedDuration = SignedDuration::from_secs(30);
    /// Time before its expiry from which a token does not serve any more: a request takes a while.
    const LAST: SignedDuration = SignedDuration::from_secs(30);

    /// Creates a cache over a provider.
    pub fn new(provider: Arc<dyn TokenProvider>, clock: Clock) -> Self {
        Self { provider, clock, cached: tokio::sync::Mutex::default() }
    }

    /// A token that is valid for at least the margin or, while none can be had, the old one.
    pub async fn token(&self) -> Result<String, CloudError> {
        let mut cached = self.cached.lock().await;
        let now = self.clock.now();
        let is_tried = cached.retry.is_some_and(|retry| now < retry);
        if let Some(secret) =
            cached.valid_for(if is_tried { Self::LAST } else { Self::MARGIN }, now)
        {
            return Ok(secret);
        }
        match self.provider.token().await {
            Ok(token) => {
                let secret = token.secret.clone();
                *cached = Cached { token: Some(token), retry: None };
                Ok(secret)
            }
            Err(error) => {
                let now = self.clock.now();
                let Some(secret) = cached.valid_for(Self::LAST, now) else { return Err(error) };
                tracing::warn!(%error, "token not replaced, using the old one until it expires");
                cached.retry = now.checked_add(Self::RETRY).ok();
                Ok(secret)
            }
        }
    }

    /// Drops a token that was refused.
    pub async fn forget(&self, secret: &str) {
        let mut cached = self.cached.lock().await;
        if cached.token.as_ref().is_some_and(|token| token.secret == secret) {
            *cached = Cached::default();
        }
    }
}

impl Cached {
    /// The token, if it is valid for longer than a time.
    fn valid_for(&self, time: SignedDuration, now: Timestamp) -> Option<String> {
        let token = self.token.as_ref()?;
        (token.expires.duration_since(now) > time).then(|| token.secret.clone())
    }
}

#[derive(Deserialize)]
struct TokenResponse {
    access_token: String,
    /// Lifetime in seconds: a number from Entra, a string from the metadata service.
    expires_in: serde_json::Value,
}

async fn exchange(
    service: &HttpService,
    clock: &Clock,
    operation: &str,
    request: Result<Request<Full<Bytes>>, http::Error>,
    source: Source,
) -> Result<AccessToken, CloudError> {
    let request = request.map_err(|error| {
        CloudError::new(ErrorClass::Invalid, operation, "InvalidRequest", error)
    })?;
    let mut retries = Retries::new(clock, operation).at_most(source.max_attempts);
    loop {
        let response = match send_once(service, operation, request.clone(), source.limit).await {
            Ok(response) => response,
            Err(error) => {
                retries.wait(error, None).await?;
                continue;
            }
        };
        let status = response.status();
        let id = correlation_id(&response);
        if status == StatusCode::OK {
            let token = parse(operation, response.body(), clock.now());
            return token.map_err(|error| error.with_correlation_id(id));
        }
        let passing = is_passing(status)
            || status.is_server_error()
            || source.passing.contains(&status.as_u16());
        let class = if passing { ErrorClass::Transient } else { ErrorClass::Auth };
        let text: String = String::from_utf8_lossy(response.body()).chars().take(300).collect();
        let error = CloudError::new(class, operation, format!("HTTP{}", status.as_u16()), text)
            .with_correlation_id(id);
        if !passing {
            return Err(error);
        }
        retries.wait(error, retry_after(response.headers(), clock.now())).await?;
    }
}

/// Id by which support finds a request for a token: that of the error, else of the answer's
/// headers. `None` if it has none.
fn correlation_id(response: &Response<Bytes>) -> Option<String> {
    #[derive(Deserialize)]
    struct Failure {
        correlation_id: Option<String>,
    }
    let failure = serde_json::from_slice::<Failure>(response.body()).ok();
    failure.and_then(|failure| failure.correlation_id).or_else(|| answered_id(response.headers()))
}

/// Parses a token response. A lifetime that is missing or absurd is bounded to a week.
fn parse(operation: &str, body: &[u8], now: Timestamp) -> Result<AccessToken, CloudError> {
    let token: TokenResponse = serde_json::from_slice(body).map_err(|error| {
        CloudError::new(ErrorClass::Auth, operation, "InvalidTokenResponse", error)
    })?;
    let seconds = match &token.expires_in {
        serde_json::Value::String(text) => text.parse().unwrap_or(0),
        value => value.as_i64().unwrap_or(0),
    };
    let lifetime = SignedDuration::from_secs(seconds.clamp(0, 7 * 86_400));
    let expires = now.checked_add(lifetime).unwrap_or(Timestamp::MAX);
    Ok(AccessToken { secret: token.access_token, expires })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// An identity whose endpoint answers with these statuses one after the other, then the last.
    fn identity(statuses: &[u16], body: &str) -> ManagedIdentity {
        let statuses = Arc::new(Mutex::new(statuses.to_vec()));
        let body = body.to_owned();
        let answer = move |_: Request<Full<Bytes>>| {
            let mut left = statuses.lock().unwrap();
            let status = if left.len() > 1 { left.remove(0) } else { left[0] };
            let token = r#"{"access_token":"t","expires_in":"3600"}"#;
            let body = if status == 200 { token.to_owned() } else { body.clone() };
            let body = Full::new(Bytes::from(body));
            let response =
                Response::builder().status(status).header("x-ms-request-id", "by-header");
            async { Ok::<_, std::convert::Infallible>(response.body(body).unwrap()) }
        };
        ManagedIdentity {
            service: super::super::http_service(tower::service_fn(answer)),
            clock: clock(),
            endpoint: "http://169.254.169.254".to_owned(),
            client_id: None,
            resource: "https://management.azure.com/".to_owned(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_update_of_the_metadata_service_passes() {
        for status in [404, 410, 429, 500] {
            assert!(identity(&[status, 200], "").token().await.is_ok(), "{status}");
            let error = identity(&[status], "").token().await.map(|_| ()).unwrap_err();
            assert_eq!(error.class, ErrorClass::Transient, "{status}");
        }
        let error = identity(&[400], "Identity not found").token().await.map(|_| ()).unwrap_err();
        assert_eq!(error.class, ErrorClass::Auth);
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_serves_until_it_expires_while_there_is_no_new_one() {
        let managed = identity(&[200, 410], "");
        let clock = managed.clock.clone();
        let cache = TokenCache::new(Arc::new(managed), clock.clone());
        cache.token().await.unwrap();
        for minute in [56, 57, 59] {
            let now = clock.now().as_duration().unsigned_abs();
            clock.sleep(Duration::from_mins(minute).saturating_sub(now)).await;
            assert!(cache.token().await.is_ok(), "minute {minute}");
        }
        // Callers do not wait for further attempts each.
        let begun = tokio::time::Instant::now();
        for _ in 0..5 {
            cache.token().await.unwrap();
        }
        assert!(begun.elapsed().is_zero());
        clock.sleep(Duration::from_mins(1)).await;
        assert_eq!(cache.token().await.unwrap_err().code, "HTTP410");
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_keeps_its_correlation_id_however_long_it_is() {
        let description = "x".repeat(400);
        let body = format!(
            r#"{{"error":"invalid_client","error_description":"{description}","correlation_id":"c"}}"#
        );
        for (body, id) in [(&*body, "c"), ("denied", "by-header")] {
            let error = identity(&[401], body).token().await.map(|_| ()).unwrap_err();
            assert_eq!(error.correlation_id.as_deref(), Some(id), "{error}");
        }
    }

    /// An endpoint that takes requests and never answers, as behind a firewall that drops them.
    fn silent() -> HttpService {
        super::super::http_service(tower::service_fn(|_: Request<Full<Bytes>>| async {
            std::future::pending::<()>().await;
            Ok::<_, std::convert::Infallible>(http::Response::new(Full::<Bytes>::default()))
        }))
    }

    fn clock() -> Clock {
        Clock::starting_at(Timestamp::UNIX_EPOCH, 1)
    }

    #[tokio::test(start_paused = true)]
    async fn outside_of_azure_managed_identity_gives_up_within_seconds() {
        let managed = ManagedIdentity {
            service: silent(),
            clock: clock(),
            endpoint: "http://169.254.169.254".to_owned(),
            client_id: None,
            resource: "https://management.azure.com/".to_owned(),
        };
        let begun = tokio::time::Instant::now();
        let error = managed.token().await.map(|_| ()).unwrap_err();
        assert_eq!(error.message, "no answer within 3 s");
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn an_entra_that_never_answers_fails_every_caller_in_bounded_time() {
        let token_file = std::env::temp_dir().join(format!("nap-token-{}", std::process::id()));
        std::fs::write(&token_file, "assertion").unwrap();
        let identity = WorkloadIdentity {
            service: silent(),
            clock: clock(),
            authority: "https://login.microsoftonline.com".to_owned(),
            tenant_id: "t".to_owned(),
            client_id: "c".to_owned(),
            token_file: token_file.clone(),
            scope: "https://management.azure.com/.default".to_owned(),
        };
        let cache = TokenCache::new(Arc::new(identity), clock());
        let begun = tokio::time::Instant::now();
        // The second waits for the lock of the first.
        let (first, second) = tokio::join!(cache.token(), cache.token());
        std::fs::remove_file(token_file).unwrap();
        for token in [first, second] {
            let error = token.unwrap_err();
            assert_eq!(
                (error.code.as_str(), &*error.message),
                ("Timeout", "no answer within 10 s")
            );
            assert_eq!(error.operation, "get a token by workload identity");
        }
        // Three attempts each, with pauses of a few seconds.
        assert!(begun.elapsed() < Duration::from_secs(75), "{:?}", begun.elapsed());
    }
}
