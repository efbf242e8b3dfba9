//! Raw requests to the emulator, for tests that look at its answers themselves.

use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt, Full};
use nap_sim::azure::Emulator;
use serde_json::{Value, json};
use tower::ServiceExt;

/// URL of the emulated subscription.
pub const BASE: &str =
    "https://management.azure.com/subscriptions/00000000-0000-0000-0000-000000000001";
/// API version of agent-pool machines.
pub const MACHINES_VERSION: &str = "2026-05-02-preview";
/// A node image that the emulator publishes.
pub const IMAGE: &str = "AKSUbuntu-2404gen2containerd-202610.12.0";

/// A client without retries.
pub struct Arm {
    emulator: Emulator,
    token: String,
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    /// Null if it is empty.
    pub body: Value,
}

impl Answer {
    /// Code of an error with or without its envelope; empty if there is none.
    pub fn code(&self) -> &str {
        let error = self.body.get("error").unwrap_or(&self.body);
        error.get("code").and_then(Value::as_str).unwrap_or_default()
    }

    pub fn message(&self) -> &str {
        let error = self.body.get("error").unwrap_or(&self.body);
        error.get("message").and_then(Value::as_str).unwrap_or_default()
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub fn text(&self, pointer: &str) -> &str {
        self.body.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }
}

/// Where the metadata service gives tokens.
pub const TOKEN_URL: &str = "http://169.254.169.254/metadata/identity/oauth2/token";

impl Arm {
    /// A client with a token of the metadata endpoint.
    pub async fn new(emulator: &Emulator) -> Self {
        Self::with_identity(emulator, "").await
    }

    /// A client with a token of a user-assigned identity.
    pub async fn with_identity(emulator: &Emulator, client_id: &str) -> Self {
        let mut arm = Self { emulator: emulator.clone(), token: String::new() };
        let url = format!(
            "{TOKEN_URL}?api-version=2018-02-01&resource=https://management.azure.com/\
             &client_id={client_id}"
        );
        let answer = arm.send(Method::GET, &url, &[("metadata", "true")], &Value::Null).await;
        answer.text("/access_token").clone_into(&mut arm.token);
        arm
    }

    pub async fn send(
        &self,
        method: Method,
        url: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Answer {
        let mut request = Request::builder()
            .method(method)
            .uri(url)
            .header("authorization", format!("Bearer {}", self.token));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = request.body(Full::new(bytes::Bytes::from(body))).unwrap();
        let response = self.emulator.clone().oneshot(request).await.unwrap();
        let (head, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&bytes).unwrap_or_default();
        Answer { status: head.status.as_u16(), headers: head.headers, body }
    }

    pub async fn get(&self, url: &str) -> Answer {
        self.send(Method::GET, url, &[], &Value::Null).await
    }

    pub async fn put(&self, url: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
        self.send(Method::PUT, url, headers, body).await
    }
}

/// URL of the agent pool, with what follows.
pub fn pool_url(rest: &str) -> String {
    format!(
        "{BASE}/resourceGroups/nap/providers/Microsoft.ContainerService/managedClusters/nap/agentPools/aksmanagedap{rest}?api-version={MACHINES_VERSION}"
    )
}

/// URL of a machine.
pub fn machine_url(name: &str) -> String {
    pool_url(&format!("/machines/{name}"))
}

/// Body of an on-demand machine.
pub fn machine_body(size: &str, zones: &[&str], tags: &Value) -> Value {
    json!({
        "zones": zones,
        "properties": {
            "hardware": { "vmSize": size },
            "nodeImageVersion": IMAGE,
            "operatingSystem": { "osSKU": "Ubuntu2404", "osDiskSizeGB": 128 },
            "kubernetes": { "nodeLabels": { "team": "a" }, "nodeTaints": [] },
            "tags": tags,
        },
    })
}
