//! Predicates on pods (unschedulable, reschedulable, drainable …) and their resource requests.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as WireQuantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt;
use nap_api::duration::parse_go_duration;
use nap_api::taints::{self, Taint};
use nap_api::{Effect, Toleration, labels};
use nap_engine::PodKey;
use nap_units::{PODS, Quantity, Resources, Rounding};

/// The key of a pod.
pub fn key(pod: &Pod) -> PodKey {
    PodKey::new(&pod.namespace().unwrap_or_default(), &pod.name_any())
}

/// The node that a pod is bound to; `None` while it is unbound.
pub fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|node| !node.is_empty())
}

/// Whether a pod has ended: phase `Failed` or `Succeeded`.
pub fn is_terminal(pod: &Pod) -> bool {
    matches!(
        pod.status.as_ref().and_then(|status| status.phase.as_deref()),
        Some("Failed" | "Succeeded")
    )
}

/// Whether a pod is being deleted.
pub fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Whether a pod has neither ended nor is being deleted.
pub fn is_active(pod: &Pod) -> bool {
    !is_terminal(pod) && !is_terminating(pod)
}

fn is_owned_by(pod: &Pod, kind: &str) -> bool {
    pod.owner_references().iter().any(|owner| owner.kind == kind)
}

/// Whether a pod belongs to a DaemonSet.
pub fn is_daemon(pod: &Pod) -> bool {
    is_owned_by(pod, "DaemonSet")
}

/// Whether a pod is a mirror pod, which the kubelet runs from a file.
pub fn is_mirror(pod: &Pod) -> bool {
    is_owned_by(pod, "Node")
}

/// Whether kube-scheduler marked a pod unschedulable and a new node could help it.
pub fn is_provisionable(pod: &Pod) -> bool {
    let Some(status) = &pod.status else { return false };
    let unschedulable = status.conditions.iter().flatten().any(|condition| {
        condition.type_ == "PodScheduled" && condition.reason.as_deref() == Some("Unschedulable")
    });
    unschedulable && is_active(pod) && node_of(pod).is_none() && !is_daemon(pod) && !is_mirror(pod)
}

/// Whether a change of a pod shows that kube-scheduler has tried it in vain: its `PodScheduled`
/// condition changed, or its nomination was cleared.
pub fn was_tried(old: Option<&Pod>, new: &Pod) -> bool {
    if !is_provisionable(new) {
        return false;
    }
    let Some(old) = old else { return true };
    let scheduled = |pod: &Pod| {
        let conditions = pod.status.as_ref()?.conditions.as_ref()?;
        conditions.iter().find(|condition| condition.type_ == "PodScheduled").cloned()
    };
    scheduled(old) != scheduled(new)
        || (nominated_node(old).is_some() && nominated_node(new).is_none())
}

/// The node in `status.nominatedNodeName`; `None` if the pod is not nominated.
pub fn nominated_node(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.nominated_node_name.as_deref().filter(|node| !node.is_empty())
}

/// Whether a pod needs capacity elsewhere when its node is removed. A terminating pod of a
/// StatefulSet does: its successor has the same requests.
pub fn is_reschedulable(pod: &Pod) -> bool {
    let comes_back = is_active(pod)
        || (is_terminating(pod) && !is_terminal(pod) && is_owned_by(pod, "StatefulSet"));
    comes_back && !is_daemon(pod) && !is_mirror(pod)
}

/// Whether `karpenter.sh/do-not-disrupt` protects a pod now: `true`, or a duration since its start.
pub fn is_do_not_disrupt(pod: &Pod, now: Timestamp) -> bool {
    let Some(value) = pod.annotations().get(labels::DO_NOT_DISRUPT) else { return false };
    if value == "true" {
        return true;
    }
    let Some(protected) = parse_go_duration(value).filter(|duration| !duration.is_zero()) else {
        return false;
    };
    let started = pod.status.as_ref().and_then(|status| status.start_time.as_ref());
    started.is_none_or(|started| now.duration_since(started.0).unsigned_abs() < protected)
}

fn tolerations(pod: &Pod) -> Vec<Toleration> {
    let list = pod.spec.as_ref().and_then(|spec| spec.tolerations.as_ref());
    list.into_iter().flatten().map(Toleration::from).collect()
}

fn tolerates_disruption(pod: &Pod) -> bool {
    let taint = Taint::new(taints::DISRUPTED, Effect::NoSchedule);
    tolerations(pod).iter().any(|toleration| toleration.tolerates(&taint))
}

/// Whether a drain evicts a pod and waits for it.
pub fn is_drainable(pod: &Pod, now: Timestamp) -> bool {
    // A pod that exists a minute after its grace period is stuck and must not block the drain.
    let stuck = pod
        .metadata
        .deletion_timestamp
        .as_ref()
        .is_some_and(|due| now.duration_since(due.0).as_secs() > 60);
    !is_terminal(pod) && !tolerates_disruption(pod) && !is_mirror(pod) && !stuck
}

/// Whether a PodDisruptionBudget selects a pod.
pub fn budget_covers(budget: &PodDisruptionBudget, pod: &Pod) -> bool {
    budget.namespace() == pod.namespace()
        && budget
            .spec
            .as_ref()
            .and_then(|spec| spec.selector.as_ref())
            .is_some_and(|selector| selects(selector, pod.labels()))
}

/// Whether a PodDisruptionBudget lets a pod be evicted whatever its allowance: the pod is not
/// ready, and the budget says `unhealthyPodEvictionPolicy: AlwaysAllow`.
pub fn is_exempt_from(budget: &PodDisruptionBudget, pod: &Pod) -> bool {
    let policy =
        budget.spec.as_ref().and_then(|spec| spec.unhealthy_pod_eviction_policy.as_deref());
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    policy == Some("AlwaysAllow")
        && conditions.any(|one| one.type_ == "Ready" && one.status == "False")
}

/// Whether a label selector matches labels. An empty selector matches everything.
pub fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let equal =
        selector.match_labels.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    equal
        && selector.match_expressions.iter().flatten().all(|expression| {
            let value = labels.get(&expression.key);
            let listed = || {
                value
                    .is_some_and(|value| expression.values.iter().flatten().any(|one| one == value))
            };
            match expression.operator.as_str() {
                "In" => listed(),
                "NotIn" => !listed(),
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                _ => false,
            }
        })
}

/// Effective requests of a pod, its pod slot included, as kube-scheduler counts them. `Err` names a
/// field that cannot be parsed.
pub fn requests(spec: &PodSpec) -> Result<Resources, String> {
    let mut running = Resources::new();
    for (index, container) in spec.containers.iter().enumerate() {
        running.add(&container_requests(container, &format!("spec.containers[{index}]"))?);
    }
    let mut sidecars = Resources::new();
    let mut starting = Resources::new();
    for (index, container) in spec.init_containers.iter().flatten().enumerate() {
        let wanted = container_requests(container, &format!("spec.initContainers[{index}]"))?;
        if container.restart_policy.as_deref() == Some("Always") {
            sidecars.add(&wanted);
        } else {
            let mut with_sidecars = wanted;
            with_sidecars.add(&sidecars);
            starting = starting.larger(&with_sidecars);
        }
    }
    running.add(&sidecars);
    let mut total = running.larger(&starting);
    if let Some(pod_level) = &spec.resources {
        for (name, amount) in list(pod_level, "spec.resources")?.iter() {
            total.set(name, amount);
        }
    }
    if let Some(overhead) = &spec.overhead {
        total.add(&wire(overhead.iter(), "spec.overhead")?);
    }
    total.set(PODS, 1);
    Ok(total)
}

/// Resources that a bound pod occupies. During an in-place resize that is the larger of requested
/// and allocated; if the kubelet declared the resize infeasible, only the allocated. `Err` as in
/// [`requests`].
pub fn occupies(pod: &Pod) -> Result<Resources, String> {
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let Some(status) = &pod.status else { return requests(spec) };
    let actual: BTreeMap<&str, &BTreeMap<String, WireQuantity>> = status
        .container_statuses
        .iter()
        .chain(&status.init_container_statuses)
        .flatten()
        .filter_map(|one| Some((one.name.as_str(), one.resources.as_ref()?.requests.as_ref()?)))
        .collect();
    if actual.is_empty() {
        return requests(spec);
    }
    let infeasible = status.conditions.iter().flatten().any(|condition| {
        condition.type_ == "PodResizePending" && condition.reason.as_deref() == Some("Infeasible")
    });
    let mut spec = spec.clone();
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        let Some(has) = actual.get(container.name.as_str()) else { continue };
        let wanted = container.resources.get_or_insert_default().requests.get_or_insert_default();
        for (name, has) in *has {
            let known = |quantity: &WireQuantity| quantity.0.parse::<Quantity>().ok();
            let is_larger = wanted.get(name).is_none_or(|wanted| known(wanted) < known(has));
            if infeasible || is_larger {
                wanted.insert(name.clone(), has.clone());
            }
        }
    }
    requests(&spec)
}

fn container_requests(container: &Container, path: &str) -> Result<Resources, String> {
    match &container.resources {
        Some(resources) => list(resources, path),
        None => Ok(Resources::new()),
    }
}

/// Requests, defaulted from limits as the API server does.
fn list(resources: &ResourceRequirements, path: &str) -> Result<Resources, String> {
    let mut wanted = wire(resources.limits.iter().flatten(), path)?;
    for (name, amount) in wire(resources.requests.iter().flatten(), path)?.iter() {
        wanted.set(name, amount);
    }
    Ok(wanted)
}

fn wire<'a>(
    list: impl Iterator<Item = (&'a String, &'a WireQuantity)>,
    path: &str,
) -> Result<Resources, String> {
    let parsed: Vec<(&String, Quantity)> = list
        .map(|(name, quantity)| match quantity.0.parse() {
            Ok(quantity) => Ok((name, quantity)),
            Err(error) => Err(format!("{path}: {name}: {error}")),
        })
        .collect::<Result<_, _>>()?;
    Ok(Resources::from_quantities(
        parsed.iter().map(|(name, quantity)| (name.as_str(), quantity)),
        Rounding::Up,
    ))
}

/// A Node's resource list. A quantity that cannot be parsed counts as zero.
pub fn node_resources(list: Option<&BTreeMap<String, WireQuantity>>) -> Resources {
    let parsed: Vec<(&String, Quantity)> = list
        .into_iter()
        .flatten()
        .filter_map(|(name, quantity)| Some((name, quantity.0.parse().ok()?)))
        .collect();
    Resources::from_quantities(
        parsed.iter().map(|(name, quantity)| (name.as_str(), quantity)),
        Rounding::Down,
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{pending_pod, pod};

    fn spec(value: serde_json::Value) -> PodSpec {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_pod_being_resized_occupies_the_larger_of_requested_and_allocated() {
        let resized = |from: &str, to: &str, conditions: serde_json::Value| -> Resources {
            let pod: Pod = serde_json::from_value(json!({
                "metadata": {},
                "spec": { "containers": [{ "name": "c", "resources": { "requests": { "cpu": to, "memory": "1Gi" } } }] },
                "status": { "conditions": conditions, "containerStatuses": [{
                    "name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                    "resources": { "requests": { "cpu": from } },
                }] },
            }))
            .unwrap();
            occupies(&pod).unwrap()
        };
        assert_eq!(resized("1", "2", json!([])).get("cpu"), 2000);
        assert_eq!(resized("2", "1500m", json!([])).get("cpu"), 2000);
        assert_eq!(resized("2", "1500m", json!([])).get("memory"), 1 << 30);
        let never =
            json!([{ "type": "PodResizePending", "status": "True", "reason": "Infeasible" }]);
        assert_eq!(resized("1", "64", never).get("cpu"), 1000);
    }

    #[test]
    fn requests_count_init_containers_sidecars_and_overhead() {
        let container = |cpu: &str| json!({"name": "c", "resources": {"requests": {"cpu": cpu}}});
        let plain = spec(json!({"containers": [container("1"), container("500m")]}));
        assert_eq!(requests(&plain).unwrap().get("cpu"), 1500);
        assert_eq!(requests(&plain).unwrap().get("pods"), 1);
        let mut sidecar = container("200m");
        sidecar["restartPolicy"] = json!("Always");
        let with_init = spec(json!({
            "containers": [container("1")],
            "initContainers": [sidecar, container("2")],
            "overhead": {"cpu": "50m"},
        }));
        assert_eq!(requests(&with_init).unwrap().get("cpu"), 2250);
        let limited =
            spec(json!({"containers": [{"name": "c", "resources": {"limits": {"cpu": "3"}}}]}));
        assert_eq!(requests(&limited).unwrap().get("cpu"), 3000);
        let broken = spec(json!({"containers": [container("lots")]}));
        assert_eq!(
            requests(&broken).unwrap_err(),
            "spec.containers[0]: cpu: `lots` is not a quantity: it has no digits"
        );
    }

    #[test]
    fn an_attempt_of_the_scheduler_shows_in_the_pod() {
        let pending = pending_pod("shop", "web");
        let mut nominated = pending.clone();
        nominated.status.as_mut().unwrap().nominated_node_name = Some("n".to_owned());
        let mut told = pending.clone();
        let conditions = told.status.as_mut().unwrap().conditions.as_mut().unwrap();
        conditions[0].message = Some("0/3 nodes are available".to_owned());
        assert!(was_tried(None, &pending) && was_tried(Some(&pending), &told));
        assert!(was_tried(Some(&nominated), &pending), "a nomination was cleared");
        assert!(!was_tried(Some(&pending), &nominated), "a nomination is nap's own");
        assert!(!was_tried(Some(&pending), &pending));
        assert!(!was_tried(None, &pod("shop", "web", json!({}))), "it has not been tried");
    }
}
