//! Routing of requests: tokens, public prices, and ARM resources behind authorization.

use std::sync::Arc;

use http::{Method, header};
use jiff::SignedDuration;
use serde_json::json;

use super::Inner;
use super::prerequisites;
use super::region::RegionCatalogue;
use super::request::{Answer, ArmRequest, refuse, reply, reply_with};
use super::state::OperationRecord;

/// Handles a request.
pub(crate) fn answer(inner: &Arc<Inner>, request: &ArmRequest) -> Answer {
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
            count(inner, request, "prices", inner.region.prices(&inner.config, request))
        }
        _ => arm(inner, request, &parts),
    }
}

fn count(inner: &Inner, request: &ArmRequest, kind: &str, answer: Answer) -> Answer {
    let key = format!("{} {kind}", request.method);
    *inner.state().requests.entry(key).or_default() += 1;
    answer
}

fn arm(inner: &Arc<Inner>, request: &ArmRequest, parts: &[&str]) -> Answer {
    if let Some(refusal) = unauthorised(inner, request) {
        return count(inner, request, "refused", refusal);
    }
    if let Some(fault) = fault(inner) {
        return count(inner, request, "fault", fault);
    }
    // Before the versions are checked: a scope and what is asked about it have different ones.
    if let Some((kind, answer)) = prerequisites::answer(inner, request, parts) {
        return count(inner, request, kind, answer);
    }
    if request.query.get("api-version").is_none_or(String::is_empty) {
        let message =
            "The api-version query parameter (?api-version=) is required for all requests.";
        return refuse(400, "MissingApiVersionParameter", message);
    }
    let config = &inner.config;
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
            ("nodeImageVersions", RegionCatalogue::images(config, request))
        }
        ("microsoft.containerservice", ["locations", _, "operations", id]) => {
            ("operations", operation(inner, request, id))
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

fn unauthorised(inner: &Inner, request: &ArmRequest) -> Option<Answer> {
    let sent = request
        .header(header::AUTHORIZATION.as_str())
        .and_then(|value| value.strip_prefix("Bearer "));
    let Some(token) = sent else {
        let message = "Authentication failed. The 'Authorization' header is missing.";
        return Some(refuse(401, "AuthenticationFailed", message));
    };
    let now = inner.config.clock.now();
    match inner.state().tokens.get(token) {
        Some(expires) if now < *expires => None,
        Some(_) => Some(refuse(401, "ExpiredAuthenticationToken", "The access token has expired.")),
        None => Some(refuse(401, "InvalidAuthenticationToken", "The access token is invalid.")),
    }
}

fn fault(inner: &Inner) -> Option<Answer> {
    let faults = &mut inner.state().faults;
    if faults.throttle_next > 0 {
        faults.throttle_next -= 1;
        let body = json!({ "error": { "code": "TooManyRequests", "message": "The request is being throttled." } });
        return Some(reply_with(429, &body, &[("retry-after", "7".to_owned())]));
    }
    if faults.unavailable_next > 0 {
        faults.unavailable_next -= 1;
        return Some(refuse(503, "ServerTimeout", "The server is busy."));
    }
    None
}

fn entra_token(inner: &Inner, request: &ArmRequest) -> Answer {
    let form = String::from_utf8_lossy(&request.body);
    let has =
        |name: &str| form.split('&').any(|pair| pair.starts_with(name) && pair.len() > name.len());
    if request.method != Method::POST
        || !has("client_assertion=")
        || !has("client_id=")
        || !has("scope=")
    {
        let body =
            json!({ "error": "invalid_request", "error_description": "a parameter is missing" });
        return reply(400, &body);
    }
    let (token, seconds) = issue(inner);
    reply(200, &json!({ "token_type": "Bearer", "expires_in": seconds, "access_token": token }))
}

fn metadata_token(inner: &Inner, request: &ArmRequest) -> Answer {
    if request.header("metadata") != Some("true") || !request.query.contains_key("resource") {
        let description = "Required metadata header or resource not specified";
        return reply(
            400,
            &json!({ "error": "invalid_request", "error_description": description }),
        );
    }
    let (token, seconds) = issue(inner);
    reply(
        200,
        &json!({ "token_type": "Bearer", "expires_in": seconds.to_string(), "access_token": token }),
    )
}

fn issue(inner: &Inner) -> (String, u64) {
    let now = inner.config.clock.now();
    let lifetime = inner.config.token_lifetime;
    let expires =
        SignedDuration::try_from(lifetime).ok().and_then(|lifetime| now.checked_add(lifetime).ok());
    let mut state = inner.state();
    state.tokens.retain(|_, end| *end > now);
    let token = format!("emulated-{:016x}", inner.hash(&format!("token/{}", state.next())));
    state.tokens.insert(token.clone(), expires.unwrap_or(now));
    (token, lifetime.as_secs())
}

fn operation(inner: &Inner, request: &ArmRequest, id: &str) -> Answer {
    let number = u64::from_str_radix(id, 16).ok();
    let state = inner.state();
    let Some(record) = number.and_then(|number| state.operations.get(&number)) else {
        return refuse(404, "NotFound", &format!("operation `{id}` is unknown"));
    };
    let body = match record {
        OperationRecord::InProgress => {
            json!({ "id": request.path, "name": id, "status": "InProgress" })
        }
        OperationRecord::Succeeded => {
            json!({ "id": request.path, "name": id, "status": "Succeeded" })
        }
        OperationRecord::Failed { code, message } => json!({
            "id": request.path, "name": id, "status": "Failed", "error": { "code": code, "message": message },
        }),
    };
    reply(200, &body)
}

fn subnet(inner: &Inner, request: &ArmRequest) -> Answer {
    let known = inner.config.subnets.iter().find(|id| id.eq_ignore_ascii_case(&request.path));
    match known.or(inner.config.any_subnet.then_some(&request.path)) {
        Some(id) => {
            let properties =
                json!({ "addressPrefix": "10.224.0.0/16", "provisioningState": "Succeeded" });
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
    reply(
        200,
        &prerequisites::complete(
            inner,
            json!({
                "id": config.azure_config().cluster_path(),
                "name": config.cluster_name,
                "location": config.region,
                "properties": {
                    "provisioningState": "Succeeded",
                    "powerState": { "code": "Running" },
                    "kubernetesVersion": config.kubernetes_version,
                    "currentKubernetesVersion": config.kubernetes_version,
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
            "id": config.azure_config().agent_pool_path(),
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
