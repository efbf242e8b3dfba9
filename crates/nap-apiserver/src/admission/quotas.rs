//! ResourceQuota: refuses what would exceed a quota, and keeps `status.used`.
//!
//! Use is counted from the stored objects whenever it is needed, so it cannot drift.

use std::collections::BTreeMap;
use std::sync::Arc;

use nap_units::{Quantity, Rounding};
use serde_json::{Value, json};

use crate::error::{ApiError, Result};
use crate::object;
use crate::resources::{GroupResource, Resource};
use crate::server::State;

type Amounts = BTreeMap<String, Quantity>;

/// Exact sum.
pub(super) fn sum(one: Quantity, other: Quantity) -> Quantity {
    let milli = |amount: Quantity| amount.to_milli(Rounding::Up);
    if milli(one) % 1000 == 0 && milli(other) % 1000 == 0 {
        let units = one.to_units(Rounding::Up).saturating_add(other.to_units(Rounding::Up));
        let binary = other.format() == nap_units::Format::BinarySi;
        if binary { Quantity::from_bytes(units) } else { Quantity::from_units(units) }
    } else {
        Quantity::from_milli(milli(one).saturating_add(milli(other)))
    }
}

impl State {
    /// The objects of a collection in a namespace.
    pub(super) fn in_namespace(
        &self,
        collection: &GroupResource,
        namespace: &str,
    ) -> Vec<Arc<Value>> {
        let from = (namespace.to_owned(), String::new());
        let held = self.store.collections.get(collection);
        held.into_iter()
            .flat_map(|held| held.objects.range(from.clone()..))
            .take_while(|(key, _)| key.0 == namespace)
            .map(|(_, object)| Arc::clone(object))
            .collect()
    }

    fn quotas(&self, namespace: &str) -> Vec<Arc<Value>> {
        self.in_namespace(&GroupResource::new("", "resourcequotas"), namespace)
    }

    pub(super) fn check_quotas(
        &self,
        resource: &Resource,
        old: Option<&Value>,
        object: &Value,
    ) -> Result<()> {
        let namespace = object::namespace(object);
        if namespace.is_empty() || resource.is("", "resourcequotas") {
            return Ok(());
        }
        for quota in self.quotas(namespace) {
            let more = consumed(resource, object);
            let hard = amounts(object::at(&quota, &["spec", "hard"]));
            if !in_scope(&quota, resource, object) {
                continue;
            }
            let before = old.map(|old| consumed(resource, old)).unwrap_or_default();
            let added: Amounts = more
                .into_iter()
                .filter(|(name, amount)| {
                    hard.contains_key(name) && before.get(name).is_none_or(|before| amount > before)
                })
                .collect();
            let name = object::name(&quota);
            if resource.is("", "pods") && old.is_none() {
                let missing: Vec<&str> = hard
                    .keys()
                    .map(String::as_str)
                    .filter(|wanted| must_be_stated(wanted) && !added.contains_key(*wanted))
                    .collect();
                if !missing.is_empty() {
                    let why = format!("failed quota: {name}: must specify {}", missing.join(","));
                    return Err(ApiError::forbidden(resource, object::name(object), &why));
                }
            }
            if added.is_empty() {
                continue;
            }
            let used = self.used(&quota, &hard);
            let over: Vec<&String> = added
                .iter()
                .filter(|(name, amount)| {
                    let held = used.get(*name).copied().unwrap_or(Quantity::from_units(0));
                    let held = match before.get(*name) {
                        Some(before) => difference(held, *before),
                        None => held,
                    };
                    hard.get(*name).is_some_and(|hard| sum(held, **amount) > *hard)
                })
                .map(|(name, _)| name)
                .collect();
            if over.is_empty() {
                continue;
            }
            let show = |list: &Amounts| {
                let parts = over.iter().map(|name| {
                    let amount = list.get(*name).copied().unwrap_or(Quantity::from_units(0));
                    format!("{name}={amount}")
                });
                parts.collect::<Vec<_>>().join(",")
            };
            let why = format!(
                "exceeded quota: {name}, requested: {}, used: {}, limited: {}",
                show(&added),
                show(&used),
                show(&hard)
            );
            return Err(ApiError::forbidden(resource, object::name(object), &why));
        }
        Ok(())
    }

    /// Use of what a quota limits.
    fn used(&self, quota: &Value, hard: &Amounts) -> Amounts {
        let namespace = object::namespace(quota);
        let mut used: Amounts =
            hard.keys().map(|name| (name.clone(), Quantity::from_units(0))).collect();
        let limited = |resource: &Arc<Resource>| {
            resource.namespaced && resource.version == resource.storage_version
        };
        for resource in self.registry.iter().filter(|resource| limited(resource)) {
            for held in self.in_namespace(&resource.group_resource(), namespace) {
                if !in_scope(quota, resource, &held) {
                    continue;
                }
                for (name, amount) in consumed(resource, &held) {
                    if let Some(total) = used.get_mut(&name) {
                        *total = sum(*total, amount);
                    }
                }
            }
        }
        used
    }

    /// Writes the use of every quota of a namespace into its status, where it has changed.
    pub(crate) fn refresh_quotas(&mut self, namespace: &str) {
        if namespace.is_empty() {
            return;
        }
        let collection = GroupResource::new("", "resourcequotas");
        for quota in self.quotas(namespace) {
            let hard = amounts(object::at(&quota, &["spec", "hard"]));
            let used = self.used(&quota, &hard);
            let show = |list: &Amounts| -> Value {
                list.iter()
                    .map(|(name, amount)| (name.clone(), json!(amount.to_string())))
                    .collect()
            };
            let status = json!({ "hard": show(&hard), "used": show(&used) });
            if quota.get("status") != Some(&status) {
                let mut quota = (*quota).clone();
                quota["status"] = status;
                self.store.put(&collection, quota);
            }
        }
    }
}

/// `one` less `other`, not below zero.
fn difference(one: Quantity, other: Quantity) -> Quantity {
    let milli = |amount: Quantity| amount.to_milli(Rounding::Up);
    Quantity::from_milli((milli(one) - milli(other)).max(0))
}

fn amounts(list: Option<&Value>) -> Amounts {
    let list = list.and_then(Value::as_object).into_iter().flatten();
    list.filter_map(|(name, amount)| Some((name.clone(), amount.as_str()?.parse().ok()?))).collect()
}

/// Resources that every pod must state once a quota limits them.
fn must_be_stated(name: &str) -> bool {
    let plain = name.strip_prefix("requests.").or_else(|| name.strip_prefix("limits."));
    matches!(plain.unwrap_or(name), "cpu" | "memory")
}

/// What an object counts for, by the names that quotas use.
fn consumed(resource: &Resource, object: &Value) -> Amounts {
    let one = Quantity::from_units(1);
    let counted = if resource.group.is_empty() {
        format!("count/{}", resource.plural)
    } else {
        format!("count/{}.{}", resource.plural, resource.group)
    };
    let mut used = Amounts::from([(counted, one)]);
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "pods") => {
            let phase = object::text(object, &["status", "phase"]);
            if matches!(phase, "Succeeded" | "Failed") {
                return used;
            }
            used.insert("pods".to_owned(), one);
            for container in object::list(object, &["spec", "containers"]) {
                for kind in ["requests", "limits"] {
                    for (name, amount) in amounts(object::at(container, &["resources", kind])) {
                        let mut add = |key: String| {
                            let held = used.entry(key).or_insert(Quantity::from_units(0));
                            *held = sum(*held, amount);
                        };
                        add(format!("{kind}.{name}"));
                        if kind == "requests" {
                            add(name);
                        }
                    }
                }
            }
        }
        ("", "persistentvolumeclaims") => {
            used.insert("persistentvolumeclaims".to_owned(), one);
            let asked = amounts(object::at(object, &["spec", "resources", "requests"]));
            if let Some(storage) = asked.get("storage") {
                used.insert("requests.storage".to_owned(), *storage);
                let class = object::text(object, &["spec", "storageClassName"]);
                let prefix = format!("{class}.storageclass.storage.k8s.io/");
                used.insert(format!("{prefix}requests.storage"), *storage);
                used.insert(format!("{prefix}persistentvolumeclaims"), one);
            }
        }
        ("", "services") => {
            used.insert("services".to_owned(), one);
            match object::text(object, &["spec", "type"]) {
                "LoadBalancer" => drop(used.insert("services.loadbalancers".to_owned(), one)),
                "NodePort" => drop(used.insert("services.nodeports".to_owned(), one)),
                _ => {}
            }
        }
        ("", plural @ ("configmaps" | "secrets" | "replicationcontrollers" | "resourcequotas")) => {
            used.insert(plural.to_owned(), one);
        }
        _ => {}
    }
    used
}

/// Whether a quota is about an object: its scopes and its scope selector.
fn in_scope(quota: &Value, resource: &Resource, object: &Value) -> bool {
    let scopes = object::list(quota, &["spec", "scopes"]).iter().filter_map(Value::as_str);
    let expressions = object::list(quota, &["spec", "scopeSelector", "matchExpressions"]);
    let is_pod = resource.is("", "pods");
    let holds = |scope: &str| match scope {
        "BestEffort" => object::text(object, &["status", "qosClass"]) == "BestEffort",
        "NotBestEffort" => object::text(object, &["status", "qosClass"]) != "BestEffort",
        "Terminating" => object::at(object, &["spec", "activeDeadlineSeconds"]).is_some(),
        "NotTerminating" => object::at(object, &["spec", "activeDeadlineSeconds"]).is_none(),
        "PriorityClass" => !object::text(object, &["spec", "priorityClassName"]).is_empty(),
        _ => true,
    };
    let mut scopes = scopes.peekable();
    if scopes.peek().is_none() && expressions.is_empty() {
        return true;
    }
    is_pod
        && scopes.all(holds)
        && expressions.iter().all(|expression| {
            let name = object::text(expression, &["scopeName"]);
            if name != "PriorityClass" {
                return holds(name);
            }
            let class = object::text(object, &["spec", "priorityClassName"]);
            let listed = object::list(expression, &["values"]).iter().any(|value| value == class);
            match object::text(expression, &["operator"]) {
                "In" => listed,
                "NotIn" => !listed,
                "Exists" => !class.is_empty(),
                "DoesNotExist" => class.is_empty(),
                _ => false,
            }
        })
}
