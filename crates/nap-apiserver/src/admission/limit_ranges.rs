//! LimitRanger: defaults and bounds of the requests and limits of a pod.

use nap_units::Quantity;
use serde_json::{Map, Value, json};

use crate::builtin::pod_spec;
use crate::error::{ApiError, Result};
use crate::object;
use crate::resources::{GroupResource, Resource};
use crate::server::State;

impl State {
    /// Fills the defaults of the namespace's LimitRanges into a pod, and refuses it beyond their
    /// bounds.
    pub(super) fn apply_limit_ranges(&self, resource: &Resource, pod: &mut Value) -> Result<()> {
        let namespace = object::namespace(pod).to_owned();
        let ranges = self.in_namespace(&GroupResource::new("", "limitranges"), &namespace);
        let limits: Vec<&Value> =
            ranges.iter().flat_map(|range| object::list(range, &["spec", "limits"])).collect();
        if limits.is_empty() {
            return Ok(());
        }
        let of = |kind: &str| -> Vec<&Value> {
            limits.iter().copied().filter(|limit| object::text(limit, &["type"]) == kind).collect()
        };
        let spec = object::child(pod, "spec");
        for list in ["initContainers", "containers"] {
            let containers = spec.get_mut(list).and_then(Value::as_array_mut);
            for container in containers.into_iter().flatten() {
                for limit in of("Container") {
                    fill(container, limit);
                }
            }
        }
        let class = pod_spec::qos_class(spec);
        pod["status"]["qosClass"] = json!(class);
        let mut problems = Vec::new();
        for limit in of("Container") {
            for list in ["initContainers", "containers"] {
                for container in object::list(pod, &["spec", list]) {
                    let amounts = |kind: &str| {
                        object::at(container, &["resources", kind])
                            .and_then(Value::as_object)
                            .cloned()
                            .unwrap_or_default()
                    };
                    bounds(
                        limit,
                        &amounts("requests"),
                        &amounts("limits"),
                        "Container",
                        &mut problems,
                    );
                }
            }
        }
        for limit in of("Pod") {
            let total = |kind: &str| total(pod, kind);
            bounds(limit, &total("requests"), &total("limits"), "Pod", &mut problems);
        }
        if problems.is_empty() {
            return Ok(());
        }
        let why = if let [only] = problems.as_slice() {
            only.clone()
        } else {
            format!("[{}]", problems.join(", "))
        };
        Err(ApiError::forbidden(resource, object::name(pod), &why))
    }
}

/// Adds the defaults of one LimitRange entry to a container.
fn fill(container: &mut Value, limit: &Value) {
    let resources = object::child(container, "resources");
    // A limit that the container states is its request too, before the default request.
    let stated = resources.get("limits").and_then(Value::as_object).cloned().unwrap_or_default();
    for (kind, source) in [("limits", "default"), ("requests", "defaultRequest")] {
        let Some(Value::Object(defaults)) = limit.get(source) else { continue };
        for (name, amount) in defaults {
            let amount = match (kind, stated.get(name)) {
                ("requests", Some(limit)) => limit,
                _ => amount,
            };
            let amounts = object::fields_mut(object::child(resources, kind));
            amounts.entry(name.clone()).or_insert_with(|| amount.clone());
        }
    }
}

/// Sum of the containers of a pod, as quantities.
fn total(pod: &Value, kind: &str) -> Map<String, Value> {
    let mut sums: std::collections::BTreeMap<String, Quantity> = std::collections::BTreeMap::new();
    for container in object::list(pod, &["spec", "containers"]) {
        let amounts = object::at(container, &["resources", kind]).and_then(Value::as_object);
        for (name, amount) in amounts.into_iter().flatten() {
            let Ok(amount) = amount.as_str().unwrap_or_default().parse::<Quantity>() else {
                continue;
            };
            let sum = sums.entry(name.clone()).or_insert(Quantity::from_units(0));
            *sum = super::quotas::sum(*sum, amount);
        }
    }
    sums.into_iter().map(|(name, amount)| (name, json!(amount.to_string()))).collect()
}

fn bounds(
    limit: &Value,
    requests: &Map<String, Value>,
    limits: &Map<String, Value>,
    kind: &str,
    problems: &mut Vec<String>,
) {
    let quantity = |value: Option<&Value>| -> Option<Quantity> { value?.as_str()?.parse().ok() };
    let rules =
        |field: &str| limit.get(field).and_then(Value::as_object).cloned().unwrap_or_default();
    for (name, least) in rules("min") {
        let bound = quantity(Some(&least));
        let shown = least.as_str().unwrap_or_default();
        match quantity(requests.get(&name)) {
            None => problems.push(format!(
                "minimum {name} usage per {kind} is {shown}.  No request is specified"
            )),
            Some(request) if Some(request) < bound => problems.push(format!(
                "minimum {name} usage per {kind} is {shown}, but request is {request}"
            )),
            Some(_) => {}
        }
    }
    for (name, most) in rules("max") {
        let bound = quantity(Some(&most));
        let shown = most.as_str().unwrap_or_default();
        match quantity(limits.get(&name)) {
            None => problems.push(format!(
                "maximum {name} usage per {kind} is {shown}.  No limit is specified"
            )),
            Some(limit) if bound.is_some_and(|bound| limit > bound) => problems
                .push(format!("maximum {name} usage per {kind} is {shown}, but limit is {limit}")),
            Some(_) => {}
        }
    }
    for (name, most) in rules("maxLimitRequestRatio") {
        let (request, limit) = (quantity(requests.get(&name)), quantity(limits.get(&name)));
        let (Some(ratio), Some(request), Some(limit)) = (quantity(Some(&most)), request, limit)
        else {
            continue;
        };
        let milli = |amount: Quantity| i128::from(amount.to_milli(nap_units::Rounding::Up));
        if milli(limit) * 1000 > milli(request) * milli(ratio) {
            let shown = most.as_str().unwrap_or_default();
            problems.push(format!(
                "{name} max limit to request ratio per {kind} is {shown}, but it is exceeded"
            ));
        }
    }
}
