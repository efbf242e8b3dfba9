//! Routing of requests: tokens, public prices, and ARM resources behind authorization.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, Method, header};
use jiff::SignedDuration;
use jiff::fmt::rfc2822::DateTimePrinter;
use serde_json::json;

use super::faults::Fault;
use super::images::list_images;
use super::prerequisites;
use super::request::{Answer, ArmRequest, Refusal, refuse, reply, reply_with};
use super::subnets::DEFAULT_PREFIX;
use super::throttle::RequestKind;
use super::tokens::{entra_token, metadata_token};
use super::versions::{check_prices_query, check_version, namespace_of};
use super::{EmulatorConfig, Inner};

/// Handles a request.
pub(crate) fn answer(inner: &Arc<Inner>, request: &ArmRequest) -> Answer {
    let mut answer = route(inner, request);
    add_ids(inner, request, answer.headers_mut());
    answer
}

fn route(inner: &Arc<Inner>, request: &ArmRequest) -> Answer {
    let lower = request.path.to_lowercase();
    let parts: Vec<&str> = lower.split('/').skip(1).collect();
    match parts.as_slice() {
        [_, "oauth2", "v2.0", "token"] => {
            count(inner, request, "token", entra_token(inner, request))
        }
        ["metadata", "identity", "oauth2", "token"] => {
            count(inner, request, "token", metadata_token(inner, request))
        }
        ["api", "retail", "prices"] if request.method == Method::GET => {
            let now = inner.config.clock.now();
            let is_closed = inner.state().faults.active(now).any(|one| *one == Fault::NoPrices);
            let answer = if is_closed {
                refuse(503, "ServiceUnavailable", "The price list is being published.")
            } else {
                let checked = check_prices_query(&request.query);
                checked.map_or_else(
                    |refusal| refusal.answer(),
                    |()| inner.region.prices(&inner.config, request),
                )
            };
            count(inner, request, "prices", answer)
        }
        _ => arm(inner, request, &parts),
    }
}

/// Adds the ids by which a support case names a request. The client's own id is returned if it
/// asks for that.
fn add_ids(inner: &Inner, request: &ArmRequest, headers: &mut HeaderMap) {
    let number = {
        let mut state = inner.state();
        state.responses += 1;
        state.responses
    };
    let id = inner.guid(&format!("request/{number}"));
    let correlation = request.header("x-ms-correlation-request-id").unwrap_or(&id);
    let mut add = |name: &'static str, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    };
    add("x-ms-request-id", &id);
    add("x-ms-correlation-request-id", correlation);
    let returned = request.header("x-ms-return-client-request-id");
    if let Some(sent) = request.header("x-ms-client-request-id")
        && returned.is_some_and(|wanted| wanted.eq_ignore_ascii_case("true"))
    {
        add("x-ms-client-request-id", sent);
    }
}

fn count(inner: &Inner, request: &ArmRequest, kind: &str, answer: Answer) -> Answer {
    let key = format!("{} {kind}", request.method);
    *inner.state().requests.entry(key).or_default() += 1;
    answer
}

/// A request to ARM: authorized, within its principal's limits, and counted there.
fn arm(inner: &Arc<Inner>, request: &ArmRequest, parts: &[&str]) -> Answer {
    let principal = match principal(inner, request) {
        Ok(principal) => principal,
        Err(refusal) => return count(inner, request, "refused", refusal.answer()),
    };
    let kind = RequestKind::of(&request.method);
    let left = match take(inner, &principal, kind) {
        Ok(left) => left,
        Err(seconds) => {
            let throttled = throttled(inner, &principal, kind, seconds);
            return count(inner, request, "throttled", throttled);
        }
    };
    let mut answer = resource(inner, request, parts);
    if let Some(left) = left {
        answer.headers_mut().insert(kind.header(), HeaderValue::from(left));
    }
    answer
}

/// Takes a request from the principal's bucket; `None` left if there are no limits, an error with
/// the seconds to wait if it is empty.
fn take(inner: &Inner, principal: &str, kind: RequestKind) -> Result<Option<i64>, i64> {
    let config = &inner.config;
    let Some(limits) = &config.request_limits else { return Ok(None) };
    inner.state().buckets.take(limits, principal, kind, config.clock.now()).map(Some)
}

fn throttled(inner: &Inner, principal: &str, kind: RequestKind, seconds: i64) -> Answer {
    let message = format!(
        "Number of '{}' requests for subscription '{}' actor '{principal}' exceeded. Please try \
         again after '{seconds}' seconds.",
        kind.word(),
        inner.config.subscription_id
    );
    let error = json!({ "code": "SubscriptionRequestsThrottled", "message": message });
    let headers = [("retry-after", seconds.to_string()), (kind.header(), "0".to_owned())];
    reply_with(429, &json!({ "error": error }), &headers)
}

fn resource(inner: &Arc<Inner>, request: &ArmRequest, parts: &[&str]) -> Answer {
    if let Some(fault) = fault(inner) {
        return count(inner, request, "fault", fault);
    }
    let config = &inner.config;
    if let Err(refusal) = check_api_version(config, request, parts) {
        return refusal.answer();
    }
    if let Some((kind, answer)) = prerequisites::answer(inner, request, parts) {
        return count(inner, request, kind, answer);
    }
    let Some((&"subscriptions", [subscription, rest @ ..])) = parts.split_first() else {
        return refuse(404, "NotFound", &format!("nothing is at `{}`", request.path));
    };
    if config.any_subnet
        && request.method == Method::GET
        && let [
            "resourcegroups",
            _,
            "providers",
            "microsoft.network",
            "virtualnetworks",
            _,
            "subnets",
            _,
        ] = rest
    {
        return count(inner, request, "subnets", subnet(inner, request));
    }
    if !subscription.eq_ignore_ascii_case(&config.subscription_id) {
        let message = format!("The subscription '{subscription}' could not be found.");
        return refuse(404, "SubscriptionNotFound", &message);
    }
    let (kind, answer) = match rest {
        ["providers", provider, rest @ ..] => provider_level(inner, request, provider, rest),
        ["resourcegroups", group, "providers", provider, rest @ ..] => {
            group_level(inner, request, group, provider, rest)
        }
        _ => ("unknown", not_implemented(request)),
    };
    count(inner, request, kind, answer)
}

/// Refuses a request without an API version, or with one that the resource type does not have.
fn check_api_version(
    config: &EmulatorConfig,
    request: &ArmRequest,
    parts: &[&str],
) -> Result<(), Refusal> {
    let version = request.query.get("api-version").filter(|version| !version.is_empty());
    let Some(version) = version else {
        let message =
            "The api-version query parameter (?api-version=) is required for all requests.";
        return Err(Refusal::new(400, "MissingApiVersionParameter", message));
    };
    match namespace_of(parts) {
        Some((namespace, rest)) => check_version(namespace, rest, version, &config.region),
        None => Ok(()),
    }
}

fn provider_level(
    inner: &Arc<Inner>,
    request: &ArmRequest,
    provider: &str,
    rest: &[&str],
) -> (&'static str, Answer) {
    if request.method != Method::GET {
        return ("unknown", not_implemented(request));
    }
    let config = &inner.config;
    let here = |location: &str| location == config.region;
    match (provider, rest) {
        ("microsoft.compute", ["skus"]) => ("skus", inner.region.skus(config, request)),
        (_, ["locations", location, ..]) if !here(location) => {
            let message =
                format!("No registered resource provider found for location '{location}'.");
            ("unknown", refuse(400, "NoRegisteredProviderFound", &message))
        }
        ("microsoft.compute", ["locations", _, "usages"]) => {
            ("usages", inner.region.usages(config, &inner.state(), request))
        }
        ("microsoft.containerservice", ["locations", _, "nodeimageversions"]) => {
            ("nodeImageVersions", list_images(config, &inner.state().changes, request))
        }
        ("microsoft.containerservice", ["locations", _, "operations", id]) => {
            ("operations", inner.operation(request, id))
        }
        ("microsoft.containerservice", ["locations", _, "operationresults", id]) => {
            ("operationResults", inner.operation_result(request, id))
        }
        _ => ("unknown", not_implemented(request)),
    }
}

fn group_level(
    inner: &Arc<Inner>,
    request: &ArmRequest,
    group: &str,
    provider: &str,
    rest: &[&str],
) -> (&'static str, Answer) {
    let config = &inner.config;
    match (provider, rest) {
        ("microsoft.network", ["virtualnetworks", _, "subnets", _])
            if request.method == Method::GET =>
        {
            ("subnets", subnet(inner, request))
        }
        ("microsoft.containerservice", ["managedclusters", cluster, rest @ ..]) => {
            let known = group.eq_ignore_ascii_case(&config.resource_group)
                && cluster.eq_ignore_ascii_case(&config.cluster_name);
            if !known {
                return ("managedClusters", missing("managedClusters", cluster, group));
            }
            match rest {
                [] if request.method == Method::GET => ("managedClusters", managed_cluster(inner)),
                ["maintenanceconfigurations", rest @ ..] => {
                    ("maintenanceConfigurations", inner.maintenance(request, rest))
                }
                ["agentpools", pool, ..] if !pool.eq_ignore_ascii_case(&config.agent_pool) => {
                    ("agentPools", missing("managedClusters/agentPools", pool, group))
                }
                ["agentpools", _] if request.method == Method::GET => {
                    ("agentPools", agent_pool(inner))
                }
                // Resource names keep their case, so they come from the path before it is
                // lowercased.
                ["agentpools", _, "machines"] if request.method == Method::GET => {
                    ("machines", inner.list_machines(request))
                }
                ["agentpools", _, "machines", _] => {
                    let name = request.path.rsplit('/').next().unwrap_or_default();
                    match request.method {
                        Method::GET => ("machine", inner.get_machine(name)),
                        Method::PUT => ("machine", inner.put_machine(request, name)),
                        _ => ("machine", not_implemented(request)),
                    }
                }
                ["agentpools", _, "deletemachines"] if request.method == Method::POST => {
                    ("deleteMachines", inner.delete_machines(request))
                }
                _ => ("unknown", not_implemented(request)),
            }
        }
        _ => ("unknown", not_implemented(request)),
    }
}

/// The identity of the request's token.
fn principal(inner: &Inner, request: &ArmRequest) -> Result<String, Refusal> {
    let sent = request
        .header(header::AUTHORIZATION.as_str())
        .and_then(|value| value.strip_prefix("Bearer "));
    let refused = |code, message: &str| Err(Refusal::new(401, code, message));
    let Some(token) = sent else {
        let message = "Authentication failed. The 'Authorization' header is missing.";
        return refused("AuthenticationFailed", message);
    };
    let now = inner.config.clock.now();
    match inner.state().tokens.get(token) {
        Some(token) if now < token.expires => Ok(token.principal.clone()),
        Some(_) => refused("ExpiredAuthenticationToken", "The access token has expired."),
        None => refused("InvalidAuthenticationToken", "The access token is invalid."),
    }
}

/// Wait in seconds that requests are told which a fault throttles.
const THROTTLE_SECONDS: i64 = 7;

fn fault(inner: &Inner) -> Option<Answer> {
    let faults = &mut inner.state().faults;
    if faults.throttle_next > 0 {
        faults.throttle_next -= 1;
        let body = json!({ "error": { "code": "TooManyRequests", "message": "The request is being throttled." } });
        let wait = if faults.throttles_until_a_date {
            let end = inner.config.clock.now() + SignedDuration::from_secs(THROTTLE_SECONDS);
            DateTimePrinter::new().timestamp_to_rfc9110_string(&end).unwrap_or_default()
        } else {
            THROTTLE_SECONDS.to_string()
        };
        return Some(reply_with(429, &body, &[("retry-after", wait)]));
    }
    if faults.unavailable_next > 0 {
        faults.unavailable_next -= 1;
        return Some(refuse(503, "ServerTimeout", "The server is busy."));
    }
    None
}

fn subnet(inner: &Inner, request: &ArmRequest) -> Answer {
    let known = inner.config.subnets.iter().find(|id| id.eq_ignore_ascii_case(&request.path));
    let exists = inner.config.has_subnet(&request.path);
    match known.or(exists.then_some(&request.path)) {
        Some(id) => {
            let mut properties =
                json!({ "addressPrefix": DEFAULT_PREFIX, "provisioningState": "Succeeded" });
            inner.add_addresses(id, &mut properties);
            reply(
                200,
                &json!({ "id": id, "name": id.rsplit('/').next(), "properties": properties }),
            )
        }
        None => refuse(404, "NotFound", &format!("Resource {} not found.", request.path)),
    }
}

fn managed_cluster(inner: &Inner) -> Answer {
    let config = &inner.config;
    let state = inner.state();
    let version = state.changes.kubernetes_version(config);
    reply(
        200,
        &prerequisites::complete(
            inner,
            json!({
                "id": config.cluster_id(),
                "name": config.cluster_name,
                "location": config.region,
                "properties": {
                    "provisioningState": "Succeeded",
                    "powerState": { "code": "Running" },
                    "kubernetesVersion": version,
                    "currentKubernetesVersion": version,
                    "nodeResourceGroup": config.node_resource_group,
                    "networkProfile": { "networkPlugin": "azure", "networkPluginMode": "overlay" },
                },
            }),
        ),
    )
}

fn agent_pool(inner: &Inner) -> Answer {
    let config = &inner.config;
    let count = inner.state().machines.len();
    reply(
        200,
        &json!({
            "id": config.agent_pool_id(),
            "name": config.agent_pool,
            "properties": { "mode": "Machines", "provisioningState": "Succeeded", "count": count },
        }),
    )
}

fn missing(kind: &str, name: &str, group: &str) -> Answer {
    let message = format!(
        "The Resource 'Microsoft.ContainerService/{kind}/{name}' under resource group '{group}' was not found."
    );
    refuse(404, "ResourceNotFound", &message)
}

fn not_implemented(request: &ArmRequest) -> Answer {
    let message = format!("the emulator does not know `{} {}`", request.method, request.path);
    refuse(501, "NotImplemented", &message)
}
