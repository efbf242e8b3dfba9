//! The surroundings of the cluster, which `nap azure check` reads: roles, permissions, subnets with
//! their security groups and route tables, agent pools, registrations.
//!
//! Resources of the network are served as they are configured; nothing follows from them. Role
//! assignments at a scope are those at the scope and above it, as `atScope()` asks for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use super::members::check_agent_pool;
use super::request::{Answer, ArmRequest, page, refuse, reply};
use super::{EmulatorConfig, Inner};

/// Object id of the cluster's identity.
pub const CLUSTER_IDENTITY: &str = "00000000-0000-0000-0000-000000000004";
/// Time from the request until an agent pool exists.
const POOL_CREATE: Duration = Duration::from_secs(6);
/// Built-in roles: id, name, actions, excluded actions.
const ROLES: [(&str, &str, &[&str], &[&str]); 4] = [
    ("acdd72a7-3385-48ef-bd42-f606fba81ae7", "Reader", &["*/read"], &[]),
    (
        "4d97b98b-1d4f-4787-a291-c67834d212e7",
        "Network Contributor",
        &["Microsoft.Authorization/*/read", "Microsoft.Network/*"],
        &[],
    ),
    (
        "b24988ac-6180-42a0-ab88-20f7382dd24c",
        "Contributor",
        &["*"],
        &["Microsoft.Authorization/*/Delete", "Microsoft.Authorization/*/Write"],
    ),
    ("8e3af657-a8ff-443c-a75c-2fe8c4bcb635", "Owner", &["*"], &[]),
];

/// The surroundings of the emulated cluster.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// Fields of the managed cluster, merged into it; `null` removes a field.
    pub cluster: Value,
    /// Properties of the agent pools beside the machines-mode one, by name.
    pub agent_pools: BTreeMap<String, Value>,
    /// Whether the machines-mode agent pool exists from the start.
    pub machines_pool: bool,
    /// Properties of subnets, security groups and route tables, by ARM id.
    pub resources: BTreeMap<String, Value>,
    /// Role assignments.
    pub role_assignments: Vec<RoleAssignment>,
    /// Actions that every caller may do.
    pub caller_actions: Vec<String>,
    /// State of the subscription.
    pub subscription_state: String,
    /// Registration states of resource providers and features that are not `Registered`, by name.
    pub registrations: BTreeMap<String, String>,
    /// Lists that callers may not read, by the last part of their path, such as `roleAssignments`.
    pub forbidden: BTreeSet<&'static str>,
}

/// Life of the machines-mode agent pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolState {
    Missing,
    Creating,
    Succeeded,
}

impl PoolState {
    pub(crate) fn new(config: &EmulatorConfig) -> Self {
        if config.surroundings.machines_pool { Self::Succeeded } else { Self::Missing }
    }

    /// `provisioningState` of the pool; `None` if it does not exist.
    fn as_str(self) -> Option<&'static str> {
        match self {
            Self::Missing => None,
            Self::Creating => Some("Creating"),
            Self::Succeeded => Some("Succeeded"),
        }
    }
}

impl Inner {
    fn pool_state(&self) -> PoolState {
        *self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_pool_state(&self, state: PoolState) {
        *self.pool.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }
}

/// The assignment of a built-in role.
#[derive(Clone, Debug)]
pub struct RoleAssignment {
    /// ARM id of a resource, resource group or subscription.
    pub scope: String,
    /// Object id of the principal.
    pub principal: String,
    /// Name of the role.
    pub role: &'static str,
}

impl Default for Surroundings {
    /// A cluster in a network of AKS that meets every prerequisite.
    fn default() -> Self {
        let network = json!({
            "networkPlugin": "azure", "networkPluginMode": "overlay",
            "networkDataplane": "cilium", "networkPolicy": "cilium",
            "loadBalancerSku": "standard", "outboundType": "loadBalancer", "ipFamilies": ["IPv4"],
            "podCidr": "10.244.0.0/16", "podCidrs": ["10.244.0.0/16"],
            "serviceCidr": "10.0.0.0/16", "serviceCidrs": ["10.0.0.0/16"],
            "loadBalancerProfile": { "effectiveOutboundIPs": [{ "id": "outbound" }] },
        });
        let system = json!({ "mode": "System", "osType": "Linux", "enableAutoScaling": false });
        Self {
            cluster: json!({
                "identity": { "type": "SystemAssigned", "principalId": CLUSTER_IDENTITY },
                "properties": {
                    "servicePrincipalProfile": { "clientId": "msi" },
                    "networkProfile": network,
                    "autoUpgradeProfile": { "upgradeChannel": "stable" },
                },
            }),
            agent_pools: BTreeMap::from([("system".to_owned(), system)]),
            machines_pool: true,
            resources: BTreeMap::new(),
            role_assignments: Vec::new(),
            caller_actions: vec!["*".to_owned()],
            subscription_state: "Enabled".to_owned(),
            registrations: BTreeMap::new(),
            forbidden: BTreeSet::new(),
        }
    }
}

/// The managed cluster with the fields of the surroundings.
pub(crate) fn complete(inner: &Inner, mut cluster: Value) -> Value {
    merge(&mut cluster, &inner.config.surroundings.cluster);
    cluster
}

/// Merges a document into another; `null` removes a field.
fn merge(into: &mut Value, from: &Value) {
    let (Value::Object(fields), Value::Object(changes)) = (&mut *into, from) else {
        *into = from.clone();
        return;
    };
    for (key, change) in changes {
        if change.is_null() {
            fields.remove(key);
        } else {
            merge(fields.entry(key.clone()).or_insert(Value::Null), change);
        }
    }
}

/// Handles a request about the surroundings; `None` leaves it to the other routes. `parts` is the
/// path in lower case.
pub(crate) fn answer(
    inner: &Arc<Inner>,
    request: &ArmRequest,
    parts: &[&str],
) -> Option<(&'static str, Answer)> {
    let ["subscriptions", subscription, rest @ ..] = parts else { return None };
    let is_versioned = request.query.get("api-version").is_some_and(|text| !text.is_empty());
    if !is_versioned || !subscription.eq_ignore_ascii_case(&inner.config.subscription_id) {
        return None;
    }
    let last = rest.last().copied().unwrap_or("subscriptions");
    let forbidden = &inner.config.surroundings.forbidden;
    if request.method == Method::GET
        && let Some(kind) = forbidden.iter().copied().find(|kind| kind.eq_ignore_ascii_case(last))
    {
        let message = format!("The client does not have authorization to read {kind}.");
        return Some((kind, refuse(403, "AuthorizationFailed", &message)));
    }
    route(inner, request, rest)
}

fn route(
    inner: &Arc<Inner>,
    request: &ArmRequest,
    rest: &[&str],
) -> Option<(&'static str, Answer)> {
    let surroundings = &inner.config.surroundings;
    let registration = |name: &str| {
        let found =
            surroundings.registrations.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map_or("Registered", |(_, state)| state.as_str())
    };
    let is_get = request.method == Method::GET;
    match rest {
        [.., "providers", "microsoft.authorization", "roleassignments"] if is_get => {
            Some(("roleAssignments", role_assignments(inner, request)))
        }
        [.., "providers", "microsoft.authorization", "roledefinitions", id] if is_get => {
            Some(("roleDefinitions", role_definition(id)))
        }
        [.., "providers", "microsoft.authorization", "permissions"] if is_get => {
            let value = json!([{ "actions": surroundings.caller_actions, "notActions": [] }]);
            Some(("permissions", reply(200, &json!({ "value": value }))))
        }
        [] if is_get => {
            let state = &surroundings.subscription_state;
            let body = json!({ "subscriptionId": inner.config.subscription_id, "state": state });
            Some(("subscriptions", reply(200, &body)))
        }
        ["providers", provider] if is_get => {
            let body =
                json!({ "namespace": provider, "registrationState": registration(provider) });
            Some(("providers", reply(200, &body)))
        }
        ["providers", "microsoft.features", "providers", _, "features", name] if is_get => {
            let body = json!({ "name": name, "properties": { "state": registration(name) } });
            Some(("features", reply(200, &body)))
        }
        ["resourcegroups", _, "providers", "microsoft.network", ..] if is_get => {
            network_resource(inner, request)
        }
        [
            "resourcegroups",
            group,
            "providers",
            "microsoft.containerservice",
            "managedclusters",
            name,
            rest @ ..,
        ] if group.eq_ignore_ascii_case(&inner.config.resource_group)
            && name.eq_ignore_ascii_case(&inner.config.cluster_name) =>
        {
            part_of_cluster(inner, request, rest)
        }
        _ => None,
    }
}

fn part_of_cluster(
    inner: &Arc<Inner>,
    request: &ArmRequest,
    rest: &[&str],
) -> Option<(&'static str, Answer)> {
    let is_get = request.method == Method::GET;
    match rest {
        ["agentpools"] if is_get => {
            Some(("agentPools", listed(inner, request, &agent_pools(inner))))
        }
        ["agentpools", pool] if is_get && fixed_pool(inner, pool).is_some() => {
            Some(("agentPools", reply(200, &fixed_pool(inner, pool)?)))
        }
        ["agentpools", pool] if request.method == Method::PUT => {
            Some(("agentPools", put_agent_pool(inner, request, pool)))
        }
        ["agentpools", pool, below @ ..] if *pool == inner.config.agent_pool => {
            match (inner.pool_state(), below) {
                (PoolState::Succeeded, _) => None,
                (PoolState::Creating, []) => Some(("agentPools", reply(200, &shown(inner)))),
                (PoolState::Missing | PoolState::Creating, _) => {
                    let message = format!("Agent pool '{pool}' was not found.");
                    Some(("agentPools", refuse(404, "NotFound", &message)))
                }
            }
        }
        _ => None,
    }
}

fn listed(inner: &Inner, request: &ArmRequest, items: &[Value]) -> Answer {
    page(request, items, inner.config.page_size, ("value", "nextLink"))
}

/// An agent pool beside the machines-mode one; `None` if there is none of that name.
fn fixed_pool(inner: &Inner, name: &str) -> Option<Value> {
    let mut pools = inner.config.surroundings.agent_pools.iter();
    pools.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(show_fixed)
}

fn show_fixed((name, properties): (&String, &Value)) -> Value {
    let mut properties = properties.clone();
    properties["provisioningState"] = json!("Succeeded");
    json!({ "name": name, "properties": properties })
}

fn agent_pools(inner: &Inner) -> Vec<Value> {
    let fixed = inner.config.surroundings.agent_pools.iter();
    let mut pools: Vec<Value> = fixed.map(show_fixed).collect();
    if inner.pool_state() != PoolState::Missing {
        pools.push(shown(inner));
    }
    pools
}

/// The machines-mode agent pool.
fn shown(inner: &Inner) -> Value {
    let state = inner.pool_state().as_str();
    let properties = json!({ "mode": "Machines", "provisioningState": state });
    json!({ "name": inner.config.agent_pool, "properties": properties })
}

fn put_agent_pool(inner: &Arc<Inner>, request: &ArmRequest, pool: &str) -> Answer {
    let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
    let invalid = |message: &str| refuse(400, "InvalidParameter", message);
    if let Err(refusal) = check_agent_pool(&body) {
        return refusal.answer();
    }
    if body.pointer("/properties/mode") != Some(&json!("Machines")) {
        return invalid("The emulator creates only agent pools of mode Machines.");
    }
    let mut others = body["properties"].as_object().into_iter().flatten();
    if let Some((name, _)) = others.find(|(name, value)| *name != "mode" && !value.is_null()) {
        let message = format!("the emulator does not know 'properties.{name}' of mode Machines");
        return refuse(501, "NotImplemented", &message);
    }
    if pool != inner.config.agent_pool {
        let message =
            format!("The emulator has machines only in agent pool '{}'.", inner.config.agent_pool);
        return invalid(&message);
    }
    if inner.pool_state() != PoolState::Missing {
        return reply(200, &shown(inner));
    }
    inner.set_pool_state(PoolState::Creating);
    inner.later(POOL_CREATE, |inner| {
        inner.set_pool_state(PoolState::Succeeded);
        None
    });
    reply(201, &shown(inner))
}

fn network_resource(inner: &Inner, request: &ArmRequest) -> Option<(&'static str, Answer)> {
    let resources = &inner.config.surroundings.resources;
    let (id, properties) =
        resources.iter().find(|(id, _)| id.eq_ignore_ascii_case(&request.path))?;
    let mut properties = properties.clone();
    inner.add_addresses(id, &mut properties);
    let body = json!({ "id": id, "name": id.rsplit('/').next(), "properties": properties });
    Some(("network", reply(200, &body)))
}

fn role_definition(id: &str) -> Answer {
    let Some((_, name, actions, not_actions)) = ROLES.iter().find(|role| role.0 == id) else {
        return refuse(404, "RoleDefinitionDoesNotExist", &format!("no role definition {id}"));
    };
    let permissions = json!([{ "actions": actions, "notActions": not_actions }]);
    let properties = json!({ "roleName": name, "permissions": permissions });
    reply(200, &json!({ "name": id, "properties": properties }))
}

fn role_assignments(inner: &Inner, request: &ArmRequest) -> Answer {
    let filter = request.query.get("$filter").map(String::as_str).unwrap_or_default();
    let principal = filter.strip_prefix("atScope() and assignedTo('");
    let Some(principal) = principal.and_then(|rest| rest.strip_suffix("')")) else {
        let message = format!("the emulator does not know the filter `{filter}`");
        return refuse(400, "InvalidFilter", &message);
    };
    let path = request.path.to_lowercase();
    let scope = path.split("/providers/microsoft.authorization").next().unwrap_or_default();
    let subscription = &inner.config.subscription_id;
    let items: Vec<Value> = inner
        .config
        .surroundings
        .role_assignments
        .iter()
        .filter(|one| one.principal == principal && is_at_or_below(scope, &one.scope))
        .map(|one| {
            let id = ROLES.iter().find(|role| role.1 == one.role).map_or(one.role, |role| role.0);
            let definition = format!(
                "/subscriptions/{subscription}/providers/Microsoft.Authorization/roleDefinitions/{id}"
            );
            json!({ "properties": {
                "roleDefinitionId": definition, "principalId": principal, "scope": one.scope } })
        })
        .collect();
    listed(inner, request, &items)
}

/// Whether a scope is another one or below it.
fn is_at_or_below(scope: &str, other: &str) -> bool {
    let rest = scope.strip_prefix(&other.to_lowercase());
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
