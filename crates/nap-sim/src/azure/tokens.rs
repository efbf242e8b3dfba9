//! Tokens: workload identity at Entra, managed identity at the instance metadata service.

use std::collections::BTreeMap;

use http::Method;
use jiff::SignedDuration;
use serde_json::json;

use super::Inner;
use super::request::{Answer, ArmRequest, reply};
use super::state::TokenRecord;

/// API version of the metadata service that gives tokens.
const METADATA_VERSION: &str = "2018-02-01";

/// Answers a request to Entra.
pub(super) fn entra_token(inner: &Inner, request: &ArmRequest) -> Answer {
    let form = String::from_utf8_lossy(&request.body);
    let form: BTreeMap<_, _> = form_urlencoded::parse(form.as_bytes()).collect();
    let value = |name: &str| form.get(name).filter(|value| !value.is_empty());
    let is_complete = request.method == Method::POST && value("client_assertion").is_some();
    let (Some(client_id), Some(scope), true) = (value("client_id"), value("scope"), is_complete)
    else {
        return refused("invalid_request", "a parameter is missing");
    };
    let Some(audience) = scope.strip_suffix("/.default") else {
        let text = format!("AADSTS1002012: The provided value for scope {scope} is not valid.");
        return refused("invalid_scope", &text);
    };
    if !is_audience(inner, request, audience) {
        let text = format!("AADSTS500011: The resource principal named {audience} was not found.");
        return refused("invalid_resource", &text);
    }
    let (token, seconds) = issue(inner, client_id);
    reply(200, &json!({ "token_type": "Bearer", "expires_in": seconds, "access_token": token }))
}

/// Answers a request to the metadata service.
pub(super) fn metadata_token(inner: &Inner, request: &ArmRequest) -> Answer {
    let resource = request.query.get("resource");
    let (Some("true"), Some(resource)) = (request.header("metadata"), resource) else {
        let text = "Required metadata header or resource not specified";
        return refused("invalid_request", text);
    };
    if request.query.get("api-version").map(String::as_str) != Some(METADATA_VERSION) {
        let text = format!("Invalid api-version was specified; supported: {METADATA_VERSION}");
        return refused("bad_request_102", &text);
    }
    if !is_audience(inner, request, resource) {
        let text = format!("AADSTS500011: The resource principal named {resource} was not found.");
        return refused("invalid_resource", &text);
    }
    let client_id = request.query.get("client_id").map_or("system", String::as_str);
    let (token, seconds) = issue(inner, client_id);
    let seconds = seconds.to_string();
    reply(200, &json!({ "token_type": "Bearer", "expires_in": seconds, "access_token": token }))
}

fn refused(error: &str, description: &str) -> Answer {
    reply(400, &json!({ "error": error, "error_description": description }))
}

/// Whether tokens for an audience are for the emulated ARM, which may be named by its address.
fn is_audience(inner: &Inner, request: &ArmRequest, audience: &str) -> bool {
    let audience = audience.trim_end_matches('/');
    let host = audience.split_once("://").map_or(audience, |(_, rest)| rest);
    let host = host.split([':', '/']).next().unwrap_or_default();
    let mut known = inner.config.token_audiences.iter();
    ["127.0.0.1", "localhost"].contains(&host)
        || audience == request.base
        || known.any(|known| known.trim_end_matches('/') == audience)
}

fn issue(inner: &Inner, principal: &str) -> (String, u64) {
    let now = inner.config.clock.now();
    let lifetime = inner.config.token_lifetime;
    let expires =
        SignedDuration::try_from(lifetime).ok().and_then(|lifetime| now.checked_add(lifetime).ok());
    let mut state = inner.state();
    state.tokens.retain(|_, token| token.expires > now);
    let token = format!("emulated-{:016x}", inner.hash(&format!("token/{}", state.next())));
    let record = TokenRecord { expires: expires.unwrap_or(now), principal: principal.to_owned() };
    state.tokens.insert(token.clone(), record);
    (token, lifetime.as_secs())
}
