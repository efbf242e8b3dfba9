//! The number of replicas that one metric asks for.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::autoscaling::v2::{
    ContainerResourceMetricStatus, MetricSpec, MetricStatus, MetricTarget, MetricValueStatus,
    ResourceMetricStatus,
};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use kube::ResourceExt;
use nap_units::{Quantity, Rounding};
use serde_json::Value;

use crate::cluster::pods;

/// Deviation from the target, in thousandths, that is left alone.
const TOLERANCE: i128 = 100;

/// Use of resources in thousandths, by pod and container.
#[derive(Debug, Default)]
pub(super) struct Usage(BTreeMap<String, BTreeMap<String, BTreeMap<String, i128>>>);

impl Usage {
    /// Reads a `PodMetricsList`.
    pub(super) fn read(list: &Value) -> Self {
        let mut all: BTreeMap<String, BTreeMap<String, BTreeMap<String, i128>>> = BTreeMap::new();
        for pod in list["items"].as_array().into_iter().flatten() {
            let containers = all.entry(text(&pod["metadata"]["name"])).or_default();
            for container in pod["containers"].as_array().into_iter().flatten() {
                let used = container["usage"].as_object().into_iter().flatten();
                let used = used.filter_map(|(name, amount)| {
                    Some((name.clone(), thousandths(amount.as_str()?)?))
                });
                containers.insert(text(&container["name"]), used.collect());
            }
        }
        Self(all)
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn thousandths(text: &str) -> Option<i128> {
    let amount: Quantity = text.parse().ok()?;
    Some(amount.to_milli(Rounding::Up).into())
}

/// What a metric asks for, and its value as the status shows it.
pub(super) struct Proposal {
    pub(super) replicas: i32,
    pub(super) status: MetricStatus,
}

/// A metric that cannot be read: reason and message of the condition.
pub(super) type Problem = (&'static str, String);

/// Replicas that a metric asks for.
pub(super) fn propose(
    metric: &MetricSpec,
    current: i32,
    all: &[&Arc<Pod>],
    usage: &Usage,
) -> Result<Proposal, Problem> {
    match (&metric.resource, &metric.container_resource) {
        (Some(resource), _) => {
            let found = calculate(&resource.name, None, &resource.target, current, all, usage)?;
            let status = MetricStatus {
                type_: metric.type_.clone(),
                resource: Some(ResourceMetricStatus {
                    name: resource.name.clone(),
                    current: found.1,
                }),
                ..MetricStatus::default()
            };
            Ok(Proposal { replicas: found.0, status })
        }
        (None, Some(resource)) => {
            let container = Some(resource.container.as_str());
            let found =
                calculate(&resource.name, container, &resource.target, current, all, usage)?;
            let status = MetricStatus {
                type_: metric.type_.clone(),
                container_resource: Some(ContainerResourceMetricStatus {
                    name: resource.name.clone(),
                    container: resource.container.clone(),
                    current: found.1,
                }),
                ..MetricStatus::default()
            };
            Ok(Proposal { replicas: found.0, status })
        }
        (None, None) => Err((
            "InvalidMetricSourceType",
            format!("the embedded cluster has no metrics of type {}", metric.type_),
        )),
    }
}

/// Sum over containers that are meant.
fn sum<'a>(amounts: impl Iterator<Item = (&'a str, i128)>, only: Option<&str>) -> i128 {
    amounts
        .filter(|(name, _)| only.is_none_or(|only| only == *name))
        .map(|(_, amount)| amount)
        .sum()
}

fn calculate(
    resource: &str,
    container: Option<&str>,
    target: &MetricTarget,
    current: i32,
    all: &[&Arc<Pod>],
    usage: &Usage,
) -> Result<(i32, MetricValueStatus), Problem> {
    let failed = |why: String| ("FailedGetResourceMetric", why);
    let running = all.iter().filter(|pod| !pods::is_finished(pod) && !pods::is_deleting(pod));
    let (mut used, mut requested, mut measured, mut others) = (0, 0, 0_i128, 0_i128);
    let mut requested_by_others = 0;
    for pod in running {
        let request = request_of(pod, resource, container);
        let metrics = usage.0.get(&pod.name_any()).filter(|_| pods::is_ready(pod));
        let request = match (request, target.average_utilization) {
            (Err(name), Some(_)) => {
                return Err(failed(format!(
                    "failed to get {resource} utilization: missing request for {resource} in \
                     container {name} of Pod {}",
                    pod.name_any()
                )));
            }
            (request, _) => request.unwrap_or(0),
        };
        if let Some(metrics) = metrics {
            let amounts = metrics
                .iter()
                .map(|(name, used)| (name.as_str(), used.get(resource).copied().unwrap_or(0)));
            used += sum(amounts, container);
            requested += request;
            measured += 1;
        } else {
            requested_by_others += request;
            others += 1;
        }
    }
    if measured == 0 {
        return Err(failed(format!(
            "unable to get metrics for resource {resource}: no metrics returned from resource \
             metrics API"
        )));
    }
    // Shares of the target in thousandths: of all that is measured, then with the other pods, which
    // count as idle when it would grow and as just right when it would shrink.
    let wanted = match (target.average_utilization, &target.average_value) {
        (Some(percent), _) => (requested, requested_by_others, i128::from(percent)),
        (None, Some(value)) => {
            let value = thousandths(&value.0).unwrap_or(0);
            (value * measured * 100, value * others * 100, 1)
        }
        (None, None) => return Err(failed("the target has no value".to_owned())),
    };
    let share = |used: i128, base: i128, percent: i128| match base * percent {
        0 => 1000,
        goal => used * 100 * 1000 / goal,
    };
    let (base, base_of_others, percent) = wanted;
    let first = share(used, base, percent);
    let (ratio, pods) = if others == 0 || (first - 1000).abs() <= TOLERANCE {
        (first, measured)
    } else if first > 1000 {
        (share(used, base + base_of_others, percent), measured + others)
    } else {
        let assumed = used + base_of_others * percent / 100;
        (share(assumed, base + base_of_others, percent), measured + others)
    };
    let turned = (first > 1000) != (ratio > 1000);
    let replicas = if (ratio - 1000).abs() <= TOLERANCE || turned {
        current
    } else {
        i32::try_from((ratio * pods + 999) / 1000).unwrap_or(i32::MAX)
    };
    let utilization = (requested > 0).then(|| used * 100 / requested);
    let status = MetricValueStatus {
        average_utilization: target
            .average_utilization
            .and(utilization)
            .and_then(|percent| i32::try_from(percent).ok()),
        average_value: Some(ApiQuantity(readable(used / measured, resource))),
        value: None,
    };
    Ok((replicas, status))
}

/// Thousandths as a quantity: CPU in thousandths, others in whole units.
fn readable(amount: i128, resource: &str) -> String {
    if resource == "cpu" && amount % 1000 != 0 {
        format!("{amount}m")
    } else {
        format!("{}", amount / 1000)
    }
}

/// Request of a pod in thousandths; an error names the first container without one.
fn request_of(pod: &Pod, resource: &str, only: Option<&str>) -> Result<i128, String> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut total = 0;
    for container in containers.filter(|one| only.is_none_or(|only| only == one.name)) {
        let requests =
            container.resources.as_ref().and_then(|resources| resources.requests.as_ref());
        let amount = requests.and_then(|requests| thousandths(&requests.get(resource)?.0));
        total += amount.ok_or_else(|| container.name.clone())?;
    }
    Ok(total)
}
