//! Predicates on pods (unschedulable, reschedulable, drainable …) and their resource requests.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
pub(super) use k8s_openapi::apimachinery::pkg::api::resource::Quantity as WireQuantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt;
use nap_api::duration::parse_go_duration;
use nap_api::taints::{self, Taint};
use nap_api::{Effect, Toleration, labels};
use nap_units::{PODS, Quantity, Resources, Rounding};

use super::Pod;

/// Whether a pod is being deleted.
pub fn is_terminating(pod: &Pod) -> bool {
    pod.deletion().is_some()
}

/// Whether a pod has neither ended nor is being deleted.
pub fn is_active(pod: &Pod) -> bool {
    !pod.is_terminal() && !is_terminating(pod)
}

fn is_owned_by(pod: &Pod, kind: &str) -> bool {
    pod.owners().iter().any(|owner| owner.kind == kind)
}

/// Whether a pod belongs to a DaemonSet.
pub fn is_daemon(pod: &Pod) -> bool {
    is_owned_by(pod, "DaemonSet")
}

/// Whether a pod is a mirror pod, which the kubelet runs from a file.
pub fn is_mirror(pod: &Pod) -> bool {
    is_owned_by(pod, "Node")
}

/// Whether no controller makes a pod again once it is gone.
pub fn is_bare(pod: &Pod) -> bool {
    !pod.owners().iter().any(|owner| owner.is_controller)
}

/// Whether a pod belongs to a Job: it ends by itself, and starts over if it is evicted.
pub fn is_of_job(pod: &Pod) -> bool {
    pod.owners().iter().any(|owner| owner.is_controller && owner.kind == "Job")
}

/// The time at which a pod is ended by its `activeDeadlineSeconds`; `None` if it has none, or has
/// not started.
pub fn deadline(pod: &Pod) -> Option<Timestamp> {
    let seconds = SignedDuration::from_secs(pod.spec().active_deadline_seconds?);
    pod.started()?.checked_add(seconds).ok()
}

/// Whether kube-scheduler marked a pod unschedulable and a new node could help it.
pub fn is_provisionable(pod: &Pod) -> bool {
    pod.attempt().is_some_and(|attempt| attempt.reason == "Unschedulable")
        && is_active(pod)
        && pod.node().is_none()
        && !is_daemon(pod)
        && !is_mirror(pod)
}

/// Whether a change of a pod shows that kube-scheduler has tried it again: a pod that was
/// unschedulable is bound, its `PodScheduled` condition changed, or its nomination was cleared. The
/// first attempt does not count: a new pod in the queue makes it try no other.
pub fn was_retried(old: Option<&Pod>, new: &Pod) -> bool {
    let Some(old) = old.filter(|old| is_provisionable(old)) else { return false };
    old.attempt() != new.attempt() || lost_nomination(old, new)
}

/// Whether a pod that is still unbound is no longer nominated: kube-scheduler tried it in vain.
pub fn lost_nomination(old: &Pod, new: &Pod) -> bool {
    old.nominated_node().is_some() && new.nominated_node().is_none() && new.node().is_none()
}

/// Whether a pod needs capacity elsewhere when its node is removed. A terminating pod of a
/// StatefulSet does: its successor has the same requests.
pub fn is_reschedulable(pod: &Pod) -> bool {
    let comes_back = is_active(pod)
        || (is_terminating(pod) && !pod.is_terminal() && is_owned_by(pod, "StatefulSet"));
    comes_back && !is_daemon(pod) && !is_mirror(pod)
}

/// Time since a pod's start for which `karpenter.sh/do-not-disrupt` protects it; `None` without
/// protection.
fn do_not_disrupt_for(pod: &Pod) -> Option<Duration> {
    let value = pod.annotations().get(labels::DO_NOT_DISRUPT)?;
    if value == "true" {
        return Some(Duration::MAX);
    }
    parse_go_duration(value).filter(|duration| !duration.is_zero())
}

/// Whether `karpenter.sh/do-not-disrupt` protects a pod, for good or for a while.
pub fn is_annotated_do_not_disrupt(pod: &Pod) -> bool {
    do_not_disrupt_for(pod).is_some()
}

/// Whether `karpenter.sh/do-not-disrupt` protects a pod now: `true`, or a duration since its start.
pub fn is_do_not_disrupt(pod: &Pod, now: Timestamp) -> bool {
    do_not_disrupt_for(pod).is_some_and(|protected| {
        let started = pod.started();
        started.is_none_or(|started| now.duration_since(started).unsigned_abs() < protected)
    })
}

fn tolerates_disruption(pod: &Pod) -> bool {
    let taint = Taint::new(taints::DISRUPTED, Effect::NoSchedule);
    let mut tolerations = pod.spec().tolerations.iter().flatten().map(Toleration::from);
    tolerations.any(|toleration| toleration.tolerates(&taint))
}

/// Whether a drain evicts a pod and waits for it.
pub fn is_drainable(pod: &Pod, now: Timestamp) -> bool {
    // A pod that exists a minute after its grace period is stuck and must not block the drain.
    let stuck = pod.deletion().is_some_and(|due| now.duration_since(due).as_secs() > 60);
    !pod.is_terminal() && !tolerates_disruption(pod) && !is_mirror(pod) && !stuck
}

/// Whether a PodDisruptionBudget selects a pod.
pub fn budget_covers(budget: &PodDisruptionBudget, pod: &Pod) -> bool {
    budget.namespace().unwrap_or_default() == pod.namespace()
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
    policy == Some("AlwaysAllow") && pod.ready() == Some(false)
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
    fn another_attempt_of_the_scheduler_shows_in_the_pod() {
        let pending = pending_pod("shop", "web");
        let mut nominated = pending.clone();
        nominated.status.as_mut().unwrap().nominated_node_name = Some("n".to_owned());
        let mut told = pending.clone();
        let conditions = told.status.as_mut().unwrap().conditions.as_mut().unwrap();
        conditions[0].message = Some("0/3 nodes are available".to_owned());
        let bound = pod("shop", "web", json!({ "spec": { "nodeName": "n" } }));
        let [pending, nominated, told, bound] = [pending, nominated, told, bound].map(Pod::from);
        assert!(was_retried(Some(&pending), &bound) && !lost_nomination(&nominated, &bound));
        assert!(was_retried(Some(&pending), &told));
        assert!(was_retried(Some(&nominated), &pending), "a nomination was cleared");
        assert!(!was_retried(Some(&pending), &nominated), "a nomination is nap's own");
        assert!(!was_retried(Some(&pending), &pending));
        assert!(!was_retried(None, &pending), "a first attempt makes it try no other pod");
        let untried = Pod::from(pod("shop", "web", json!({})));
        assert!(!was_retried(Some(&untried), &pending), "likewise");
    }
}
