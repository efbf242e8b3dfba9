//! Defaults of a pod spec, whether in a pod or in a template.

use nap_units::Quantity;
use serde_json::{Value, json};

use crate::error::{ApiError, Result};
use crate::object;
use crate::resources::GroupResource;
use crate::server::State;

const CONTAINER_LISTS: [&str; 2] = ["initContainers", "containers"];

/// Defaults of every pod spec, also inside a template.
pub(crate) fn defaults(spec: &mut Value) {
    object::default(spec, "restartPolicy", || json!("Always"));
    object::default(spec, "terminationGracePeriodSeconds", || json!(30));
    object::default(spec, "dnsPolicy", || json!("ClusterFirst"));
    object::default(spec, "schedulerName", || json!("default-scheduler"));
    object::default(spec, "securityContext", || json!({}));
    for list in CONTAINER_LISTS {
        for container in containers_mut(spec, list) {
            let image = object::text(container, &["image"]).to_owned();
            let tag = image.rsplit('/').next().unwrap_or_default();
            let pinned = tag.contains(':') && !tag.ends_with(":latest");
            let policy = if pinned { "IfNotPresent" } else { "Always" };
            object::default(container, "imagePullPolicy", || json!(policy));
            object::default(container, "resources", || json!({}));
            object::default(container, "terminationMessagePath", || json!("/dev/termination-log"));
            object::default(container, "terminationMessagePolicy", || json!("File"));
            if let Some(Value::Array(ports)) = container.get_mut("ports") {
                for port in ports {
                    object::default(port, "protocol", || json!("TCP"));
                }
            }
        }
    }
}

/// Defaults of a pod at creation, not of a template.
pub(crate) fn pod_defaults(state: &State, pod: &mut Value) -> Result<()> {
    let name = object::name(pod).to_owned();
    let spec = object::child(pod, "spec");
    for list in CONTAINER_LISTS {
        for container in containers_mut(spec, list) {
            backfill_requests(object::child(container, "resources"));
        }
    }
    default_tolerations(spec);
    resolve_priority(state, spec, &name)?;
    object::default(spec, "enableServiceLinks", || json!(true));
    let class = qos_class(spec);
    let status = object::child(pod, "status");
    object::default(status, "phase", || json!("Pending"));
    status["qosClass"] = json!(class);
    Ok(())
}

fn containers_mut<'a>(spec: &'a mut Value, list: &str) -> impl Iterator<Item = &'a mut Value> {
    spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten()
}

/// A limit without a request is also the request.
fn backfill_requests(resources: &mut Value) {
    let Some(Value::Object(limits)) = resources.get("limits").cloned() else { return };
    let requests = object::fields_mut(object::child(resources, "requests"));
    for (name, limit) in limits {
        requests.entry(name).or_insert(limit);
    }
}

/// Pods stay five minutes on a node that stops answering, unless they say otherwise.
fn default_tolerations(spec: &mut Value) {
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let covered = object::list(spec, &["tolerations"]).iter().any(|toleration| {
            let (held, effect) =
                (object::text(toleration, &["key"]), object::text(toleration, &["effect"]));
            (held == key || held.is_empty()) && (effect == "NoExecute" || effect.is_empty())
        });
        if covered {
            continue;
        }
        let tolerations =
            object::fields_mut(spec).entry("tolerations").or_insert_with(|| json!([]));
        if let Value::Array(list) = tolerations {
            list.push(json!({
                "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300,
            }));
        }
    }
}

/// A status always lists the address of the pod, and the states of its containers even when empty.
pub(crate) fn status_defaults(pod: &mut Value) {
    let Some(status) = pod.get_mut("status") else { return };
    let address = object::text(status, &["podIP"]).to_owned();
    if !address.is_empty() && object::list(status, &["podIPs"]).is_empty() {
        object::fields_mut(status).insert("podIPs".to_owned(), json!([{ "ip": address }]));
    }
    for list in ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"] {
        let containers = status.get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            object::default(container, "state", || json!({}));
            object::default(container, "lastState", || json!({}));
        }
    }
}

fn resolve_priority(state: &State, spec: &mut Value, pod: &str) -> Result<()> {
    let classes = GroupResource::new("scheduling.k8s.io", "priorityclasses");
    let wanted = object::text(spec, &["priorityClassName"]).to_owned();
    let class = if wanted.is_empty() {
        state.store.collections.get(&classes).and_then(|held| {
            let mut defaults: Vec<_> = held
                .objects
                .values()
                .filter(|class| class.get("globalDefault").and_then(Value::as_bool) == Some(true))
                .collect();
            // With several global defaults the lowest value wins, as in the real server.
            defaults.sort_by_key(|class| object::integer(class, &["value"]));
            defaults.first().map(|class| (***class).clone())
        })
    } else {
        let found =
            state.store.get(&classes, &(String::new(), wanted.clone())).ok_or_else(|| {
                let mut error = ApiError::bad_request(format!(
                    "pods \"{pod}\" is forbidden: no PriorityClass with name {wanted} was found"
                ));
                (error.code, error.reason) = (403, "Forbidden");
                error
            })?;
        Some((*found).clone())
    };
    let policy = class
        .as_ref()
        .map(|class| object::text(class, &["preemptionPolicy"]).to_owned())
        .filter(|policy| !policy.is_empty())
        .unwrap_or_else(|| "PreemptLowerPriority".to_owned());
    if let Some(class) = &class {
        spec["priorityClassName"] = json!(object::name(class));
    }
    let value = class.as_ref().and_then(|class| object::integer(class, &["value"])).unwrap_or(0);
    spec["priority"] = json!(value);
    object::default(spec, "preemptionPolicy", || json!(policy));
    Ok(())
}

/// `status.qosClass` of a pod with this spec.
pub(crate) fn qos_class(spec: &Value) -> &'static str {
    let (mut any, mut guaranteed) = (false, true);
    for list in CONTAINER_LISTS {
        for container in object::list(spec, &[list]) {
            for name in ["cpu", "memory"] {
                let amount = |kind: &str| {
                    let text = object::text(container, &["resources", kind, name]);
                    let amount: Option<Quantity> = text.parse().ok();
                    amount.filter(|amount| *amount > Quantity::from_units(0))
                };
                let (request, limit) = (amount("requests"), amount("limits"));
                any |= request.is_some() || limit.is_some();
                guaranteed &=
                    limit.is_some() && request.is_none_or(|request| Some(request) == limit);
            }
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}
