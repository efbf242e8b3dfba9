//! Fields of built-in kinds that take one of a few values, and claims and LimitRanges, whose
//! values depend on each other.

use nap_units::Quantity;
use serde_json::Value;

use super::scheduling::one_of;
use super::{containers, metadata};
use crate::error::{FieldError, Problem};
use crate::object;
use crate::resources::Resource;

/// Group, resource, path of a field and its values, in the order of the real server. A field that
/// is absent has a default.
const CHOICES: [(&str, &str, &[&str], &[&str]); 9] = [
    ("", "services", &["spec", "type"], &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"]),
    ("", "services", &["spec", "sessionAffinity"], &["ClientIP", "None"]),
    (
        "",
        "persistentvolumes",
        &["spec", "persistentVolumeReclaimPolicy"],
        &["Delete", "Recycle", "Retain"],
    ),
    ("", "persistentvolumes", &["spec", "volumeMode"], &["Block", "Filesystem"]),
    ("batch", "jobs", &["spec", "completionMode"], &["NonIndexed", "Indexed"]),
    (
        "batch",
        "cronjobs",
        &["spec", "jobTemplate", "spec", "completionMode"],
        &["NonIndexed", "Indexed"],
    ),
    (
        "storage.k8s.io",
        "storageclasses",
        &["volumeBindingMode"],
        &["Immediate", "WaitForFirstConsumer"],
    ),
    ("storage.k8s.io", "storageclasses", &["reclaimPolicy"], &["Delete", "Retain"]),
    (
        "policy",
        "poddisruptionbudgets",
        &["spec", "unhealthyPodEvictionPolicy"],
        &["AlwaysAllow", "IfHealthyBudget"],
    ),
];

const ACCESS_MODES: [&str; 4] =
    ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];
const DNS_POLICIES: [&str; 4] = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
const LIMIT_TYPES: [&str; 3] = ["Container", "PersistentVolumeClaim", "Pod"];

/// Checks the fields of an object that take one of a few values.
pub(super) fn check(resource: &Resource, object: &Value, errors: &mut Vec<FieldError>) {
    for (group, plural, path, values) in CHOICES {
        let text = object::text(object, path);
        if resource.is(group, plural) && !text.is_empty() {
            one_of(text, values, path.join("."), errors);
        }
    }
    let spec = object.get("spec").unwrap_or(&Value::Null);
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("apps", "deployments") => {
            strategy(spec, "strategy", &["Recreate", "RollingUpdate"], errors);
            let rolling = object::at(spec, &["strategy", "rollingUpdate"]);
            let kind = object::text(spec, &["strategy", "type"]);
            if kind == "Recreate" && rolling.is_some_and(|rolling| !rolling.is_null()) {
                let detail = "may not be specified when strategy `type` is 'Recreate'";
                errors.push(FieldError::forbidden("spec.strategy.rollingUpdate", detail));
            }
            rolling_update(spec, "strategy", errors);
            progress_deadline(spec, errors);
        }
        ("apps", "daemonsets") => {
            strategy(spec, "updateStrategy", &["RollingUpdate", "OnDelete"], errors);
            rolling_update(spec, "updateStrategy", errors);
        }
        ("apps", "statefulsets") => stateful_set(spec, errors),
        ("", "persistentvolumeclaims") => claim(spec, "spec", errors),
        _ => {}
    }
}

/// Checks the policies of a pod spec.
pub(super) fn pod_spec(spec: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let policy = object::text(spec, &["dnsPolicy"]);
    if !policy.is_empty() {
        one_of(policy, &DNS_POLICIES, format!("{path}.dnsPolicy"), errors);
    }
}

/// Checks the policy of a container.
pub(super) fn container(container: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let policy = object::text(container, &["imagePullPolicy"]);
    if !policy.is_empty() {
        one_of(policy, &PULL_POLICIES, format!("{path}.imagePullPolicy"), errors);
    }
}

/// A strategy as the real server writes one into a message.
fn written(strategy: &Value) -> String {
    let kind = strategy.get("type").cloned().unwrap_or_default();
    let rolling = strategy.get("rollingUpdate").cloned().unwrap_or_default();
    format!("{{\"Type\":{kind},\"RollingUpdate\":{rolling}}}")
}

fn strategy(spec: &Value, field: &str, known: &[&str], errors: &mut Vec<FieldError>) {
    let kind = object::text(spec, &[field, "type"]);
    if !kind.is_empty() && !known.contains(&kind) {
        let known: Vec<String> = known.iter().map(|value| format!("{value:?}")).collect();
        let value = written(&spec[field]);
        let text = format!("Unsupported value: {value}: supported values: {}", known.join(", "));
        let problem = Problem::Written("FieldValueNotSupported", text);
        errors.push(FieldError { field: format!("spec.{field}"), problem });
    }
}

/// Checks how many pods a rollout may take away or add at a time.
fn rolling_update(spec: &Value, strategy: &str, errors: &mut Vec<FieldError>) {
    let Some(rolling) = object::at(spec, &[strategy, "rollingUpdate"]).filter(|r| r.is_object())
    else {
        return;
    };
    if object::text(spec, &[strategy, "type"]) != "RollingUpdate" {
        return;
    }
    let path = format!("spec.{strategy}.rollingUpdate");
    let (away, more) = (format!("{path}.maxUnavailable"), format!("{path}.maxSurge"));
    let (unavailable, surge) = (&rolling["maxUnavailable"], &rolling["maxSurge"]);
    containers::count(unavailable, &away, errors);
    containers::count(surge, &more, errors);
    let none = [unavailable, surge].map(|value| containers::count_of(value) == 0);
    if strategy == "strategy" {
        if none == [true, true] {
            let detail = "may not be 0 when `maxSurge` is 0";
            errors.push(FieldError::invalid(away.clone(), unavailable.clone(), detail));
        }
        containers::at_most_all(unavailable, &away, errors);
        return;
    }
    containers::at_most_all(unavailable, &away, errors);
    containers::at_most_all(surge, &more, errors);
    match none {
        [false, false] => {
            let detail = "may not be set when maxUnavailable is non-zero";
            errors.push(FieldError::invalid(more, surge.clone(), detail));
        }
        [true, true] => {
            errors.push(FieldError::required(away, "cannot be 0 when maxSurge is 0"));
        }
        _ => {}
    }
}

fn progress_deadline(spec: &Value, errors: &mut Vec<FieldError>) {
    containers::not_negative(spec, "progressDeadlineSeconds", "spec", errors);
    let ready = object::integer(spec, &["minReadySeconds"]).unwrap_or(0);
    let deadline = object::integer(spec, &["progressDeadlineSeconds"]);
    if let Some(deadline) = deadline.filter(|deadline| *deadline <= ready) {
        let detail = "must be greater than minReadySeconds";
        errors.push(FieldError::invalid("spec.progressDeadlineSeconds", deadline, detail));
    }
}

fn stateful_set(spec: &Value, errors: &mut Vec<FieldError>) {
    let policy = object::text(spec, &["podManagementPolicy"]);
    if !matches!(policy, "" | "OrderedReady" | "Parallel") {
        let detail = "must be 'OrderedReady' or 'Parallel'";
        errors.push(FieldError::invalid("spec.podManagementPolicy", policy, detail));
    }
    let kind = object::text(spec, &["updateStrategy", "type"]);
    if !matches!(kind, "" | "RollingUpdate" | "OnDelete") {
        let value = written(&spec["updateStrategy"]);
        let text = format!("Invalid value: {value}: must be 'RollingUpdate' or 'OnDelete'");
        let problem = Problem::Written("FieldValueInvalid", text);
        errors.push(FieldError { field: "spec.updateStrategy".to_owned(), problem });
    }
    if kind == "RollingUpdate" {
        let rolling = object::at(spec, &["updateStrategy", "rollingUpdate"]);
        let rolling = rolling.unwrap_or(&Value::Null);
        let path = "spec.updateStrategy.rollingUpdate";
        containers::not_negative(rolling, "partition", path, errors);
        if let Some(unavailable) = rolling.get("maxUnavailable").filter(|value| !value.is_null()) {
            let field = format!("{path}.maxUnavailable");
            containers::count(unavailable, &field, errors);
            if containers::count_of(unavailable) == 0 {
                errors.push(FieldError::invalid(&*field, unavailable.clone(), "cannot be 0"));
            }
            containers::at_most_all(unavailable, &field, errors);
        }
    }
}

/// Checks the claims that a new StatefulSet makes. They cannot change afterwards.
pub(super) fn claim_templates(spec: &Value, errors: &mut Vec<FieldError>) {
    for (index, template) in object::list(spec, &["volumeClaimTemplates"]).iter().enumerate() {
        let path = format!("spec.volumeClaimTemplates[{index}].spec");
        claim(&template["spec"], &path, errors);
    }
}

fn claim(spec: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let modes = object::list(spec, &["accessModes"]);
    let field = format!("{path}.accessModes");
    if modes.is_empty() {
        errors.push(FieldError::required(&*field, "at least 1 access mode is required"));
    }
    for mode in modes {
        one_of(mode.as_str().unwrap_or_default(), &ACCESS_MODES, field.clone(), errors);
    }
    if modes.iter().any(|mode| mode == "ReadWriteOncePod") && modes.len() > 1 {
        let detail = "may not use ReadWriteOncePod with other access modes";
        errors.push(FieldError::forbidden(field, detail));
    }
    let field = format!("{path}.resources[storage]");
    match object::at(spec, &["resources", "requests", "storage"]).and_then(Value::as_str) {
        None => errors.push(FieldError::required(field, "")),
        Some(text) if amount(text).is_some_and(|amount| amount <= Quantity::from_units(0)) => {
            errors.push(FieldError::invalid(field, text, "must be greater than zero"));
        }
        Some(_) => {}
    }
    let mode = object::text(spec, &["volumeMode"]);
    if !mode.is_empty() {
        one_of(mode, &["Block", "Filesystem"], format!("{path}.volumeMode"), errors);
    }
}

fn amount(text: &str) -> Option<Quantity> {
    text.parse().ok()
}

/// Checks one entry of a LimitRange.
pub(super) fn limit(item: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let kind = object::text(item, &["type"]);
    if !kind.is_empty() && !kind.contains('/') && !LIMIT_TYPES.contains(&kind) {
        let detail = "must be a standard limit type or fully qualified";
        if metadata::is_qualified(kind) {
            errors.push(FieldError::invalid(format!("{path}.type"), kind, detail));
        }
    }
    if kind == "Pod" {
        for list in ["default", "defaultRequest"] {
            if item[list].as_object().is_some_and(|list| !list.is_empty()) {
                let detail = "may not be specified when `type` is 'Pod'";
                errors.push(FieldError::forbidden(format!("{path}.{list}"), detail));
            }
        }
    }
    // Lower and higher bound, the one whose field and value are named, and the words for both.
    let pairs = [
        ("min", "max", "min", "min value", "max value"),
        ("min", "defaultRequest", "defaultRequest", "min value", "default request value"),
        ("defaultRequest", "max", "defaultRequest", "default request value", "max value"),
        (
            "defaultRequest",
            "default",
            "defaultRequest",
            "default request value",
            "default limit value",
        ),
        ("min", "default", "default", "min value", "default value"),
        ("default", "max", "default", "default value", "max value"),
    ];
    for (low, high, named, low_text, high_text) in pairs {
        for (name, lower) in item[low].as_object().into_iter().flatten() {
            let (Some(lower), Some(higher)) = (lower.as_str(), item[high][name].as_str()) else {
                continue;
            };
            if amount(lower) > amount(higher) && amount(higher).is_some() {
                // The real server shows the bound that is not in the field for defaults.
                let shown = match (low, named) {
                    ("min", "default") => lower,
                    (_, "default") => higher,
                    (_, named) if named == low => lower,
                    _ => higher,
                };
                let detail = format!("{low_text} {lower} is greater than {high_text} {higher}");
                errors.push(FieldError::invalid(format!("{path}.{named}[{name}]"), shown, detail));
            }
        }
    }
    for (name, ratio) in item["maxLimitRequestRatio"].as_object().into_iter().flatten() {
        let text = ratio.as_str().unwrap_or_default();
        if amount(text).is_some_and(|ratio| ratio < Quantity::from_units(1)) {
            let detail = format!("ratio {text} is less than 1");
            let field = format!("{path}.maxLimitRequestRatio[{name}]");
            errors.push(FieldError::invalid(field, text, detail));
        }
    }
}
