//! Checks of containers: resources, ports, probes, and mounts of the volumes of their pod.

use std::cmp::Ordering;

use nap_units::{Quantity, Rounding};
use serde_json::{Value, json};

use super::metadata;
use super::scheduling::one_of;
use crate::error::{FieldError, Problem};
use crate::object;

/// Resources without a prefix that a container may ask for, beside huge pages.
const STANDARD: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
const HANDLERS: [&str; 4] = ["exec", "httpGet", "tcpSocket", "grpc"];
const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];

/// Names of the sound volumes of a pod; `claims` are those that a StatefulSet adds.
pub(super) fn volumes<'a>(
    spec: &'a Value,
    claims: &[&'a str],
    path: &str,
    errors: &mut Vec<FieldError>,
) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for (index, volume) in object::list(spec, &["volumes"]).iter().enumerate() {
        let field = format!("{path}.volumes[{index}].name");
        let name = object::text(volume, &["name"]);
        if name.is_empty() {
            errors.push(FieldError::required(field, ""));
        } else if !metadata::is_label(name) {
            errors.push(FieldError::invalid(field, name, metadata::LABEL));
        } else if names.contains(&name) {
            errors.push(FieldError { field, problem: Problem::Duplicate(name.into()) });
        } else {
            names.push(name);
        }
    }
    names.extend(claims);
    names
}

/// Checks one container of `list`; `volumes` are the names that it may mount.
pub(super) fn check(
    container: &Value,
    list: &str,
    volumes: &[&str],
    path: &str,
    errors: &mut Vec<FieldError>,
) {
    ports(container, path, errors);
    mounts(container, volumes, path, errors);
    resources(&container["resources"], &format!("{path}.resources"), errors);
    // Only sidecars among init containers may have probes.
    if list == "containers" || object::text(container, &["restartPolicy"]) == "Always" {
        for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
            if let Some(value) = container.get(probe).filter(|value| value.is_object()) {
                self::probe(value, probe, &format!("{path}.{probe}"), errors);
            }
        }
    }
}

fn ports(container: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let mut names: Vec<&str> = Vec::new();
    for (index, port) in object::list(container, &["ports"]).iter().enumerate() {
        let path = format!("{path}.ports[{index}]");
        let name = object::text(port, &["name"]);
        let mistakes = if name.is_empty() { Vec::new() } else { port_name(name) };
        for mistake in &mistakes {
            errors.push(FieldError::invalid(format!("{path}.name"), name, *mistake));
        }
        if mistakes.is_empty() && !name.is_empty() {
            if names.contains(&name) {
                let problem = Problem::Duplicate(name.into());
                errors.push(FieldError { field: format!("{path}.name"), problem });
            }
            names.push(name);
        }
        for field in ["containerPort", "hostPort"] {
            let number = object::integer(port, &[field]).unwrap_or(0);
            let field_path = format!("{path}.{field}");
            if number == 0 {
                if field == "containerPort" {
                    errors.push(FieldError::required(field_path, ""));
                }
            } else if !(1..=65535).contains(&number) {
                let detail = "must be between 1 and 65535, inclusive";
                errors.push(FieldError::invalid(field_path, number, detail));
            }
        }
        let protocol = object::text(port, &["protocol"]);
        if !protocol.is_empty() {
            one_of(protocol, &PROTOCOLS, format!("{path}.protocol"), errors);
        }
    }
}

fn port_name(name: &str) -> Vec<&'static str> {
    let mut mistakes = Vec::new();
    if name.len() > 15 {
        mistakes.push("must be no more than 15 characters");
    }
    if !name.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-') {
        mistakes.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)");
    }
    if !name.bytes().any(|c| c.is_ascii_lowercase()) {
        mistakes.push("must contain at least one letter (a-z)");
    }
    if name.contains("--") {
        mistakes.push("must not contain consecutive hyphens");
    }
    if name.starts_with('-') || name.ends_with('-') {
        mistakes.push("must not begin or end with a hyphen");
    }
    mistakes
}

fn mounts(container: &Value, volumes: &[&str], path: &str, errors: &mut Vec<FieldError>) {
    for (list, place) in [("volumeMounts", "mountPath"), ("volumeDevices", "devicePath")] {
        let mut places: Vec<&str> = Vec::new();
        for (index, mount) in object::list(container, &[list]).iter().enumerate() {
            let path = format!("{path}.{list}[{index}]");
            let name = object::text(mount, &["name"]);
            if name.is_empty() {
                errors.push(FieldError::required(format!("{path}.name"), ""));
            }
            if !volumes.contains(&name) {
                let problem = Problem::NotFound(name.into());
                errors.push(FieldError { field: format!("{path}.name"), problem });
            }
            let at = object::text(mount, &[place]);
            let field = format!("{path}.{place}");
            if at.is_empty() {
                errors.push(FieldError::required(field.clone(), ""));
            }
            if places.contains(&at) {
                errors.push(FieldError::invalid(field, at, "must be unique"));
            }
            places.push(at);
        }
    }
}

fn probe(probe: &Value, kind: &str, path: &str, errors: &mut Vec<FieldError>) {
    let given = HANDLERS.iter().filter(|one| probe.get(one).is_some_and(Value::is_object));
    for (index, handler) in given.clone().enumerate() {
        if index > 0 {
            let detail = "may not specify more than 1 handler type";
            errors.push(FieldError::forbidden(format!("{path}.{handler}"), detail));
        }
    }
    if given.count() == 0 {
        errors.push(FieldError::required(path, "must specify a handler type"));
    }
    for field in [
        "initialDelaySeconds",
        "timeoutSeconds",
        "periodSeconds",
        "successThreshold",
        "failureThreshold",
    ] {
        not_negative(probe, field, path, errors);
    }
    let threshold = object::integer(probe, &["successThreshold"]);
    if kind != "readinessProbe"
        && let Some(threshold) = threshold.filter(|threshold| !matches!(threshold, 0 | 1))
    {
        let field = format!("{path}.successThreshold");
        errors.push(FieldError::invalid(field, threshold, "must be 1"));
    }
}

/// Refuses a negative number.
pub(super) fn not_negative(spec: &Value, field: &str, path: &str, errors: &mut Vec<FieldError>) {
    let number = object::integer(spec, &[field]).unwrap_or(0);
    if number < 0 {
        let detail = "must be greater than or equal to 0";
        errors.push(FieldError::invalid(format!("{path}.{field}"), number, detail));
    }
}

/// Refuses negative quantities of a resource list.
pub(super) fn amounts_of(list: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for (name, amount) in list.as_object().into_iter().flatten() {
        let text = amount.as_str().unwrap_or_default();
        if text.parse().is_ok_and(|amount: Quantity| amount < Quantity::from_units(0)) {
            let detail = "must be greater than or equal to 0";
            errors.push(FieldError::invalid(format!("{path}[{name}]"), text, detail));
        }
    }
}

fn resources(resources: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let limits = resources.get("limits").and_then(Value::as_object);
    for kind in ["limits", "requests"] {
        let Some(amounts) = resources.get(kind).and_then(Value::as_object) else { continue };
        for name in amounts.keys() {
            resource_name(name, &format!("{path}.{kind}[{name}]"), errors);
        }
        amounts_of(&resources[kind], &format!("{path}.{kind}"), errors);
        for (name, amount) in amounts {
            let text = amount.as_str().unwrap_or_default();
            let amount: Option<Quantity> = text.parse().ok();
            if !is_native(name) && amount.is_some_and(|amount| !is_whole(amount)) {
                let field = format!("{path}.{kind}[{name}]");
                errors.push(FieldError::invalid(field, text, "must be an integer"));
            }
            if kind == "limits" {
                continue;
            }
            let limit = limits.and_then(|limits| limits.get(name)).and_then(Value::as_str);
            // GPUs and huge pages belong to one pod: what it asks for is what it gets.
            let shared = is_native(name) && !name.starts_with("hugepages-");
            let Some(limit) = limit else {
                if !shared {
                    let detail = "Limit must be set for non overcommitable resources";
                    errors.push(FieldError::required(format!("{path}.limits"), detail));
                }
                continue;
            };
            let words = match amount.cmp(&limit.parse().ok()) {
                Ordering::Equal => continue,
                _ if !shared => "equal to",
                Ordering::Greater => "less than or equal to",
                Ordering::Less => continue,
            };
            let detail = format!("must be {words} {name} limit of {limit}");
            errors.push(FieldError::invalid(format!("{path}.requests"), text, detail));
        }
    }
    let asks = |of: &dyn Fn(&str) -> bool| {
        let lists = ["limits", "requests"].map(|kind| resources.get(kind));
        lists.into_iter().flatten().filter_map(Value::as_object).any(|l| l.keys().any(|k| of(k)))
    };
    if asks(&|name| name.starts_with("hugepages-"))
        && !asks(&|name| matches!(name, "cpu" | "memory"))
    {
        errors.push(FieldError::forbidden(path, "HugePages require cpu or memory"));
    }
}

fn resource_name(name: &str, field: &str, errors: &mut Vec<FieldError>) {
    let mut refuse = |detail: &str| errors.push(FieldError::invalid(field, name, detail));
    if !metadata::is_qualified(name) {
        refuse(metadata::QUALIFIED);
        if !name.contains('/') {
            refuse("must be a standard resource for containers");
        }
    } else if !name.contains('/') {
        if STANDARD.contains(&name) || name.starts_with("hugepages-") {
            return;
        }
        // Storage, and what counts objects, is a standard resource of quotas and nodes.
        if !is_standard(name) {
            refuse("must be a standard resource type or fully qualified");
        }
        refuse("must be a standard resource for containers");
    } else if !is_native(name) && name.starts_with("requests.") {
        refuse("doesn't follow extended resource name standard");
    }
}

/// Whether some object of Kubernetes counts a resource by this name without a prefix.
fn is_standard(name: &str) -> bool {
    const OF_QUOTAS: [&str; 13] = [
        "requests.cpu",
        "requests.memory",
        "requests.storage",
        "requests.ephemeral-storage",
        "limits.cpu",
        "limits.memory",
        "limits.ephemeral-storage",
        "storage",
        "pods",
        "resourcequotas",
        "services",
        "replicationcontrollers",
        "secrets",
    ];
    const OF_QUOTAS_TOO: [&str; 4] =
        ["configmaps", "persistentvolumeclaims", "services.nodeports", "services.loadbalancers"];
    OF_QUOTAS.contains(&name)
        || OF_QUOTAS_TOO.contains(&name)
        || name.starts_with("requests.hugepages-")
}

/// Whether a resource is one of Kubernetes itself, not an extended one.
fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

fn is_whole(amount: Quantity) -> bool {
    amount.to_milli(Rounding::Up) % 1000 == 0
}

/// Checks a count or percentage of pods, such as `maxSurge`.
pub(super) fn count(value: &Value, field: &str, errors: &mut Vec<FieldError>) {
    match value {
        Value::String(text) if percentage(text).is_none() => {
            let detail = "a valid percent string must be a numeric string followed by an ending \
                          '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";
            errors.push(FieldError::invalid(field, text.as_str(), detail));
        }
        Value::Number(number) if number.as_i64().is_some_and(|number| number < 0) => {
            let detail = "must be greater than or equal to 0";
            errors.push(FieldError::invalid(field, json!(number), detail));
        }
        _ => {}
    }
}

/// Refuses more than all pods.
pub(super) fn at_most_all(value: &Value, field: &str, errors: &mut Vec<FieldError>) {
    if value.as_str().and_then(percentage).is_some_and(|percent| percent > 100) {
        let detail = "must not be greater than 100%";
        errors.push(FieldError::invalid(field, value.clone(), detail));
    }
}

/// Number or percentage; text that is neither is 0.
pub(super) fn count_of(value: &Value) -> i64 {
    match value {
        Value::String(text) => percentage(text).or_else(|| text.parse().ok()).unwrap_or_default(),
        other => other.as_i64().unwrap_or_default(),
    }
}

fn percentage(text: &str) -> Option<i64> {
    let digits = text.strip_suffix('%')?;
    let sound = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    sound.then(|| digits.parse().unwrap_or(i64::MAX))
}
