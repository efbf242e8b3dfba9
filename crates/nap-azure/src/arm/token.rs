//! Bearer tokens: from a federated token file (workload identity), from the instance metadata
//! service (managed identity), or a fixed one; cached until shortly before they expire.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::Full;
use jiff::{SignedDuration, Timestamp};
use nap_clock::Clock;
use nap_cloud::{CloudError, ErrorClass};
use serde::Deserialize;
use tower::ServiceExt;

use super::HttpService;
use crate::AzureError;

/// A token and when it ends.
#[derive(Clone, PartialEq, Eq)]
pub struct AccessToken {
    /// What goes after `Bearer`.
    pub secret: String,
    /// When it is no longer accepted.
    pub expires: Timestamp,
}

/// Something that gets tokens for ARM.
#[async_trait]
pub trait TokenProvider: Send + Sync {
    /// A new token, not a cached one.
    async fn token(&self) -> Result<AccessToken, CloudError>;
}

/// A token that was given from outside; it never expires. For tests and emulators.
pub struct StaticToken(pub String);

#[async_trait]
impl TokenProvider for StaticToken {
    async fn token(&self) -> Result<AccessToken, CloudError> {
        Ok(AccessToken { secret: self.0.clone(), expires: Timestamp::MAX })
    }
}

/// A Kubernetes service account that is trusted by an Entra application.
pub struct WorkloadIdentity {
    /// How requests are sent.
    pub service: HttpService,
    /// Tells when a token ends.
    pub clock: Clock,
    /// Such as `https://login.microsoftonline.com`.
    pub authority: String,
    /// The tenant's id.
    pub tenant_id: String,
    /// The application's id.
    pub client_id: String,
    /// The file that the kubelet keeps fresh; read anew each time.
    pub token_file: PathBuf,
    /// Such as `https://management.azure.com/.default`.
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
        let body = form.map(|(key, value)| format!("{key}={}", percent_encode(value))).join("&");
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!(
                "{}/{}/oauth2/v2.0/token",
                self.authority.trim_end_matches('/'),
                self.tenant_id
            ))
            .header(http::header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(Full::new(Bytes::from(body)));
        exchange(&self.service, &self.clock, operation, request).await
    }
}

/// The identity that Azure gives to the machine itself.
pub struct ManagedIdentity {
    /// How requests are sent.
    pub service: HttpService,
    /// Tells when a token ends.
    pub clock: Clock,
    /// The metadata service, `http://169.254.169.254` on Azure.
    pub endpoint: String,
    /// Which user-assigned identity, if not the only one.
    pub client_id: Option<String>,
    /// Such as `https://management.azure.com/`.
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
        exchange(&self.service, &self.clock, "get a token by managed identity", request).await
    }
}

/// Picks the identity that the environment describes: workload identity if its webhook was here,
/// else managed identity.
pub fn tokens_from_env(
    service: HttpService,
    clock: Clock,
    arm_endpoint: &str,
) -> Result<Arc<dyn TokenProvider>, AzureError> {
    let get = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let Some(token_file) = get("AZURE_FEDERATED_TOKEN_FILE") else {
        return Ok(Arc::new(ManagedIdentity {
            service,
            clock,
            endpoint: get("NAP_IMDS_ENDPOINT")
                .unwrap_or_else(|| "http://169.254.169.254".to_owned()),
            client_id: get("AZURE_CLIENT_ID"),
            resource: format!("{arm_endpoint}/"),
        }));
    };
    let need = |name: &'static str| {
        let hint = "workload identity needs it beside `AZURE_FEDERATED_TOKEN_FILE`";
        get(name).ok_or(AzureError::MissingVariable { name, hint })
    };
    Ok(Arc::new(WorkloadIdentity {
        service,
        clock,
        authority: get("AZURE_AUTHORITY_HOST")
            .unwrap_or_else(|| "https://login.microsoftonline.com".to_owned()),
        tenant_id: need("AZURE_TENANT_ID")?,
        client_id: need("AZURE_CLIENT_ID")?,
        token_file: token_file.into(),
        scope: format!("{arm_endpoint}/.default"),
    }))
}

/// Keeps a token until shortly before it ends.
pub struct TokenCache {
    provider: Arc<dyn TokenProvider>,
    clock: Clock,
    /// The lock is held while a new token is fetched, so that many callers ask only once.
    cached: tokio::sync::Mutex<Option<AccessToken>>,
}

impl TokenCache {
    /// How long before its end a token is replaced.
    const MARGIN: SignedDuration = SignedDuration::from_mins(5);

    /// A cache over a provider.
    pub fn new(provider: Arc<dyn TokenProvider>, clock: Clock) -> Self {
        Self { provider, clock, cached: tokio::sync::Mutex::new(None) }
    }

    /// A token that still holds for a while.
    pub async fn token(&self) -> Result<String, CloudError> {
        let mut cached = self.cached.lock().await;
        if let Some(token) = &*cached
            && token.expires.duration_since(self.clock.now()) > Self::MARGIN
        {
            return Ok(token.secret.clone());
        }
        let token = self.provider.token().await?;
        let secret = token.secret.clone();
        *cached = Some(token);
        Ok(secret)
    }

    /// Forgets a token that was refused.
    pub async fn forget(&self, secret: &str) {
        let mut cached = self.cached.lock().await;
        if cached.as_ref().is_some_and(|token| token.secret == secret) {
            *cached = None;
        }
    }
}

#[derive(Deserialize)]
struct TokenResponse {
    access_token: String,
    /// A number from Entra, a string from the metadata service.
    expires_in: serde_json::Value,
}

const TOKEN_ATTEMPTS: u32 = 4;

async fn exchange(
    service: &HttpService,
    clock: &Clock,
    operation: &str,
    request: Result<Request<Full<Bytes>>, http::Error>,
) -> Result<AccessToken, CloudError> {
    let request = request.map_err(|error| {
        CloudError::new(ErrorClass::Invalid, operation, "InvalidRequest", error)
    })?;
    let mut wait = Duration::from_secs(1);
    let mut attempt = 0;
    loop {
        attempt += 1;
        let failure = match service.clone().oneshot(request.clone()).await {
            Ok(response) if response.status() == StatusCode::OK => {
                let token: TokenResponse =
                    serde_json::from_slice(response.body()).map_err(|error| {
                        CloudError::new(ErrorClass::Auth, operation, "InvalidTokenResponse", error)
                    })?;
                let seconds = match &token.expires_in {
                    serde_json::Value::String(text) => text.parse().unwrap_or(0),
                    value => value.as_i64().unwrap_or(0),
                };
                let expires = clock
                    .now()
                    .checked_add(SignedDuration::from_secs(seconds.clamp(0, 7 * 86_400)))
                    .unwrap_or(Timestamp::MAX);
                return Ok(AccessToken { secret: token.access_token, expires });
            }
            Ok(response) => {
                let status = response.status();
                let text: String =
                    String::from_utf8_lossy(response.body()).chars().take(300).collect();
                let passing = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
                let class = if passing { ErrorClass::Transient } else { ErrorClass::Auth };
                CloudError::new(class, operation, format!("HTTP{}", status.as_u16()), text)
            }
            Err(error) => {
                CloudError::new(ErrorClass::Transient, operation, "TransportError", error)
            }
        };
        if failure.class != ErrorClass::Transient || attempt >= TOKEN_ATTEMPTS {
            return Err(failure);
        }
        clock.sleep(wait).await;
        wait *= 2;
    }
}

/// Percent-encodes everything but unreserved characters.
pub(crate) fn percent_encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push('%');
            for nibble in [byte >> 4, byte & 15] {
                encoded.push(char::from(b"0123456789ABCDEF"[usize::from(nibble)]));
            }
        }
    }
    encoded
}
