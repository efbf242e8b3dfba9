//! Properties of pods that several components need.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, OwnerReference};
use kube::ResourceExt;
use nap_units::{PODS, Quantity, Resources, Rounding};

/// Name of the node that the pod is bound to; empty if it is unbound.
pub(super) fn node_of(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default()
}

pub(super) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

pub(super) fn is_finished(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

pub(super) fn is_deleting(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

pub(super) fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|(status, _)| status == "True")
}

/// Restarts of all containers.
pub(super) fn restarts(pod: &Pod) -> i32 {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    statuses.into_iter().flatten().map(|container| container.restart_count).sum()
}

/// Status and message of a condition.
pub(super) fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<(&'a str, &'a str)> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let found = conditions.iter().find(|condition| condition.type_ == kind)?;
    Some((&found.status, found.message.as_deref().unwrap_or_default()))
}

/// The controller owner of an object.
pub(super) fn controller_of(object: &impl ResourceExt) -> Option<&OwnerReference> {
    object.owner_references().iter().find(|owner| owner.controller == Some(true))
}

/// Whether the controller owner of the object has this uid.
pub(super) fn is_managed_by(object: &impl ResourceExt, uid: &str) -> bool {
    controller_of(object).is_some_and(|owner| owner.uid == uid)
}

/// Whether a selector matches labels. An empty selector matches everything.
pub(super) fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let exact = selector.match_labels.iter().flatten();
    exact.into_iter().all(|(key, value)| labels.get(key) == Some(value))
        && selector.match_expressions.iter().flatten().all(|expression| {
            let found = labels.get(&expression.key);
            let listed =
                |value: &String| expression.values.iter().flatten().any(|wanted| wanted == value);
            match expression.operator.as_str() {
                "In" => found.is_some_and(listed),
                "NotIn" => !found.is_some_and(listed),
                "Exists" => found.is_some(),
                "DoesNotExist" => found.is_none(),
                _ => false,
            }
        })
}

/// Requests of a pod as kube-scheduler counts them, and one pod slot.
pub(super) fn occupies(spec: &PodSpec) -> Resources {
    let mut running = Resources::new();
    for container in &spec.containers {
        running.add(&requested(container.resources.as_ref()));
    }
    // Init containers run one after another, beside the sidecars started before them.
    let (mut sidecars, mut peak) = (Resources::new(), Resources::new());
    for container in spec.init_containers.iter().flatten() {
        let mut needs = requested(container.resources.as_ref());
        if container.restart_policy.as_deref() == Some("Always") {
            sidecars.add(&needs);
            needs = sidecars.clone();
        } else {
            needs.add(&sidecars);
        }
        peak = peak.larger(&needs);
    }
    running.add(&sidecars);
    let mut total = running.larger(&peak);
    // Pod-level requests replace the requests of the containers.
    for (name, amount) in requested(spec.resources.as_ref()).iter() {
        total.set(name, amount);
    }
    if let Some(overhead) = &spec.overhead {
        total.add(&resources(overhead, Rounding::Up));
    }
    total.with(PODS, 1)
}

fn requested(requirements: Option<&ResourceRequirements>) -> Resources {
    let requests = requirements.and_then(|requirements| requirements.requests.as_ref());
    requests.map(|requests| resources(requests, Rounding::Up)).unwrap_or_default()
}

/// A Kubernetes resource list as amounts; an invalid quantity counts as 0.
pub(super) fn resources(
    list: &BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>,
    rounding: Rounding,
) -> Resources {
    let parsed: Vec<(&str, Quantity)> = list
        .iter()
        .filter_map(|(name, text)| Some((name.as_str(), text.0.parse().ok()?)))
        .collect();
    Resources::from_quantities(parsed.iter().map(|(name, quantity)| (*name, quantity)), rounding)
}
