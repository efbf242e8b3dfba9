//! Columns of the built-in kinds beyond the everyday ones: batch, storage, autoscaling, networking,
//! quotas, roles and policies.

use nap_units::{Quantity, Rounding};
use serde_json::{Value, json};

use super::builtin::{AGE, CONTAINERS, IMAGES, NAME, SELECTOR, labels, or_none, status};
use super::{Column, Row, age};
use crate::object;
use crate::resources::Resource;

/// The columns of a kind; `None` for one that has only a name and an age.
pub(super) fn columns(resource: &Resource) -> Option<Vec<Column>> {
    Some(match (resource.group.as_str(), resource.kind.as_str()) {
        ("batch", "Job") => vec![
            NAME,
            Column::new("Status", |row| json!(job_status(row))),
            Column::new("Completions", |row| json!(job_completions(row))),
            Column::new("Duration", |row| json!(job_duration(row))),
            AGE,
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
        ("batch", "CronJob") => vec![
            NAME,
            Column::new("Schedule", |row| json!(row.text(&["spec", "schedule"]))),
            Column::new("Timezone", |row| or_none(row.text(&["spec", "timeZone"]))),
            Column::new("Suspend", |row| {
                let suspended = object::at(row.object, &["spec", "suspend"]) == Some(&json!(true));
                json!(if suspended { "True" } else { "False" })
            })
            .printed(),
            Column::number("Active", |row| {
                json!(object::list(row.object, &["status", "active"]).len())
            }),
            Column::new("Last Schedule", |row| match row.text(&["status", "lastScheduleTime"]) {
                "" => json!("<none>"),
                time => json!(age::since(time, row.now)),
            }),
            AGE,
            Column::wide("Containers", |row| json!(cron_containers(row, "name"))),
            Column::wide("Images", |row| json!(cron_containers(row, "image"))),
            Column::wide("Selector", |_| json!("<none>")),
        ],
        ("", "PersistentVolumeClaim") => vec![
            NAME,
            Column::new("Status", |row| {
                json!(if object::is_deleting(row.object) {
                    "Terminating"
                } else {
                    row.text(&["status", "phase"])
                })
            }),
            Column::new("Volume", |row| json!(row.text(&["spec", "volumeName"]))),
            Column::new("Capacity", |row| json!(row.text(&["status", "capacity", "storage"]))),
            Column::new("Access Modes", |row| json!(access_modes(row, &["status", "accessModes"]))),
            Column::new("StorageClass", |row| json!(row.text(&["spec", "storageClassName"]))),
            Column::new("VolumeAttributesClass", |row| {
                json!(unset(row.text(&["spec", "volumeAttributesClassName"])))
            }),
            AGE,
            Column::wide("VolumeMode", |row| json!(row.text(&["spec", "volumeMode"]))),
        ],
        ("", "PersistentVolume") => vec![
            NAME,
            Column::new("Capacity", |row| json!(row.text(&["spec", "capacity", "storage"]))),
            Column::new("Access Modes", |row| json!(access_modes(row, &["spec", "accessModes"]))),
            Column::new("Reclaim Policy", |row| {
                json!(row.text(&["spec", "persistentVolumeReclaimPolicy"]))
            }),
            Column::new("Status", |row| {
                json!(if object::is_deleting(row.object) {
                    "Terminating"
                } else {
                    row.text(&["status", "phase"])
                })
            }),
            Column::new("Claim", |row| {
                let of = |field: &str| row.text(&["spec", "claimRef", field]);
                json!(match of("name") {
                    "" => String::new(),
                    name => format!("{}/{name}", of("namespace")),
                })
            }),
            Column::new("StorageClass", |row| json!(row.text(&["spec", "storageClassName"]))),
            Column::new("VolumeAttributesClass", |row| {
                json!(unset(row.text(&["spec", "volumeAttributesClassName"])))
            }),
            Column::new("Reason", |row| json!(row.text(&["status", "reason"]))),
            AGE,
            Column::wide("VolumeMode", |row| json!(row.text(&["spec", "volumeMode"]))),
        ],
        ("storage.k8s.io", "StorageClass") => vec![
            Column::new("Name", |row| {
                let key = "storageclass.kubernetes.io/is-default-class";
                let is_default = row.text(&["metadata", "annotations", key]) == "true";
                let suffix = if is_default { " (default)" } else { "" };
                json!(format!("{}{suffix}", object::name(row.object)))
            }),
            Column::new("Provisioner", |row| json!(row.text(&["provisioner"]))),
            Column::new("ReclaimPolicy", |row| json!(row.text(&["reclaimPolicy"]))),
            Column::new("VolumeBindingMode", |row| json!(row.text(&["volumeBindingMode"]))),
            Column::new("AllowVolumeExpansion", |row| {
                json!(row.object.get("allowVolumeExpansion") == Some(&json!(true)))
            }),
            AGE,
        ],
        ("storage.k8s.io", "CSINode") => vec![
            NAME,
            Column::number("Drivers", |row| {
                json!(object::list(row.object, &["spec", "drivers"]).len())
            }),
            AGE,
        ],
        ("storage.k8s.io", "VolumeAttachment") => vec![
            NAME,
            Column::new("Attacher", |row| json!(row.text(&["spec", "attacher"]))),
            Column::new("PV", |row| json!(row.text(&["spec", "source", "persistentVolumeName"]))),
            Column::new("Node", |row| json!(row.text(&["spec", "nodeName"]))),
            Column::new("Attached", |row| {
                json!(object::at(row.object, &["status", "attached"]) == Some(&json!(true)))
            })
            .printed(),
            AGE,
        ],
        ("autoscaling", "HorizontalPodAutoscaler") => vec![
            NAME,
            Column::new("Reference", |row| {
                let of = |field: &str| row.text(&["spec", "scaleTargetRef", field]);
                json!(format!("{}/{}", of("kind"), of("name")))
            }),
            Column::new("Targets", |row| json!(targets(row))),
            Column::new("MinPods", |row| {
                match object::integer(row.object, &["spec", "minReplicas"]) {
                    Some(least) => json!(least.to_string()),
                    None => json!("<unset>"),
                }
            }),
            Column::new("MaxPods", |row| {
                json!(object::integer(row.object, &["spec", "maxReplicas"]).unwrap_or(0))
            }),
            Column::new("Replicas", |row| json!(status(row, "currentReplicas"))),
            AGE,
        ],
        ("", "Endpoints") => vec![NAME, Column::new("Endpoints", |row| json!(endpoints(row))), AGE],
        ("discovery.k8s.io", "EndpointSlice") => vec![
            NAME,
            Column::new("AddressType", |row| json!(row.text(&["addressType"]))),
            Column::new("Ports", |row| {
                let ports = object::list(row.object, &["ports"]).iter();
                let ports = ports.filter_map(|port| object::integer(port, &["port"]));
                json!(unset(&few(ports.map(|port| port.to_string()).collect())))
            }),
            Column::new("Endpoints", |row| {
                let endpoints = object::list(row.object, &["endpoints"]).iter();
                let addresses = endpoints
                    .flat_map(|endpoint| object::list(endpoint, &["addresses"]))
                    .filter_map(Value::as_str);
                json!(unset(&few(addresses.map(str::to_owned).collect())))
            }),
            AGE,
        ],
        ("", "ServiceAccount") => vec![NAME, AGE],
        ("", "ResourceQuota") => vec![
            NAME,
            Column::new("Request", |row| json!(quota(row, |name| !name.starts_with("limits.")))),
            Column::new("Limit", |row| json!(quota(row, |name| name.starts_with("limits.")))),
            AGE,
        ],
        ("", "LimitRange") => vec![
            NAME,
            Column::new("Created At", |row| json!(row.text(&["metadata", "creationTimestamp"])))
                .dated(),
        ],
        ("networking.k8s.io", "Ingress") => vec![
            NAME,
            Column::new("Class", |row| or_none(row.text(&["spec", "ingressClassName"]))),
            Column::new("Hosts", |row| {
                let rules = object::list(row.object, &["spec", "rules"]).iter();
                let hosts: Vec<String> = rules
                    .map(|rule| object::text(rule, &["host"]))
                    .filter(|host| !host.is_empty())
                    .map(str::to_owned)
                    .collect();
                json!(if hosts.is_empty() { "*".to_owned() } else { few(hosts) })
            }),
            Column::new("Address", |_| json!("")),
            Column::new("Ports", |row| {
                let secure = !object::list(row.object, &["spec", "tls"]).is_empty();
                json!(if secure { "80, 443" } else { "80" })
            }),
            AGE,
        ],
        ("networking.k8s.io", "IngressClass") => vec![
            NAME,
            Column::new("Controller", |row| json!(row.text(&["spec", "controller"]))),
            Column::new("Parameters", |row| {
                let of = |key: &str| row.text(&["spec", "parameters", key]);
                match (of("apiGroup"), of("kind"), of("name")) {
                    ("", "", _) => json!("<none>"),
                    ("", kind, name) => json!(format!("{kind}/{name}")),
                    (group, kind, name) => json!(format!("{kind}.{group}/{name}")),
                }
            }),
            AGE,
        ],
        ("apps", "ControllerRevision") => vec![
            NAME,
            Column::new("Controller", |row| {
                let owners = object::list(row.object, &["metadata", "ownerReferences"]);
                let owner = owners.iter().find(|owner| owner["controller"] == json!(true));
                let name = owner.map(|owner| {
                    let group = object::text(owner, &["apiVersion"]).split_once('/');
                    let kind = object::text(owner, &["kind"]).to_lowercase();
                    let name = object::text(owner, &["name"]);
                    group.map_or(format!("{kind}/{name}"), |(group, _)| {
                        format!("{kind}.{group}/{name}")
                    })
                });
                or_none(&name.unwrap_or_default())
            }),
            Column::new("Revision", |row| row.object["revision"].clone()),
            AGE,
        ],
        ("networking.k8s.io", "NetworkPolicy") => vec![
            NAME,
            Column::new("Pod-Selector", |row| {
                labels(object::at(row.object, &["spec", "podSelector", "matchLabels"]))
            }),
            AGE,
        ],
        ("rbac.authorization.k8s.io", "ClusterRole" | "Role") => vec![
            NAME,
            Column::new("Created At", |row| json!(row.text(&["metadata", "creationTimestamp"])))
                .dated(),
        ],
        ("rbac.authorization.k8s.io", _) => vec![
            NAME,
            Column::new("Role", |row| {
                let of = |field: &str| row.text(&["roleRef", field]);
                json!(format!("{}/{}", of("kind"), of("name")))
            }),
            AGE,
            Column::wide("Users", |row| json!(subjects(row, "User"))),
            Column::wide("Groups", |row| json!(subjects(row, "Group"))),
            Column::wide("ServiceAccounts", |row| json!(subjects(row, "ServiceAccount"))),
        ],
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy") => vec![
            NAME,
            Column::number("Validations", |row| {
                json!(object::list(row.object, &["spec", "validations"]).len())
            }),
            Column::new("ParamKind", |row| {
                let of = |field: &str| row.text(&["spec", "paramKind", field]);
                json!(match of("kind") {
                    "" => "<unset>".to_owned(),
                    kind => format!("{}/{kind}", of("apiVersion")),
                })
            }),
            AGE,
        ],
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding") => vec![
            NAME,
            Column::new("PolicyName", |row| json!(row.text(&["spec", "policyName"]))),
            Column::new("ParamRef", |row| json!(unset(row.text(&["spec", "paramRef", "name"])))),
            AGE,
        ],
        ("admissionregistration.k8s.io", _) => vec![
            NAME,
            Column::number("Webhooks", |row| json!(object::list(row.object, &["webhooks"]).len())),
            AGE,
        ],
        ("node.k8s.io", "RuntimeClass") => {
            vec![NAME, Column::new("Handler", |row| json!(row.text(&["handler"]))), AGE]
        }
        _ => return None,
    })
}

/// Subjects of one kind in a binding of a role.
fn subjects(row: &Row<'_>, kind: &str) -> String {
    let all = object::list(row.object, &["subjects"]).iter();
    let names = all.filter(|subject| object::text(subject, &["kind"]) == kind).map(|subject| {
        let name = object::text(subject, &["name"]);
        match object::text(subject, &["namespace"]) {
            namespace if kind == "ServiceAccount" => format!("{namespace}/{name}"),
            _ => name.to_owned(),
        }
    });
    names.collect::<Vec<_>>().join(", ")
}

fn unset(text: &str) -> &str {
    if text.is_empty() { "<unset>" } else { text }
}

/// The first three, and how many there are beside them.
fn few(all: Vec<String>) -> String {
    let more = all.len().saturating_sub(3);
    let shown: Vec<String> = all.into_iter().take(3).collect();
    let tail = if more > 0 { format!(" + {more} more...") } else { String::new() };
    format!("{}{tail}", shown.join(","))
}

fn has_condition(row: &Row<'_>, kind: &str) -> bool {
    object::list(row.object, &["status", "conditions"]).iter().any(|condition| {
        object::text(condition, &["type"]) == kind && object::text(condition, &["status"]) == "True"
    })
}

fn job_status(row: &Row<'_>) -> &'static str {
    if has_condition(row, "Complete") {
        "Complete"
    } else if has_condition(row, "Failed") {
        "Failed"
    } else if object::is_deleting(row.object) {
        "Terminating"
    } else if has_condition(row, "Suspended") {
        "Suspended"
    } else if has_condition(row, "FailureTarget") {
        "FailureTarget"
    } else if has_condition(row, "SuccessCriteriaMet") {
        "SuccessCriteriaMet"
    } else {
        "Running"
    }
}

fn job_completions(row: &Row<'_>) -> String {
    let done = status(row, "succeeded");
    let spec = |field: &str| object::integer(row.object, &["spec", field]);
    match (spec("completions"), spec("parallelism").unwrap_or(1)) {
        (Some(wanted), _) => format!("{done}/{wanted}"),
        (None, parallelism) if parallelism > 1 => format!("{done}/1 of {parallelism}"),
        (None, _) => format!("{done}/1"),
    }
}

fn job_duration(row: &Row<'_>) -> String {
    let time = |field: &str| row.text(&["status", field]).parse::<jiff::Timestamp>().ok();
    let Some(started) = time("startTime") else { return String::new() };
    let ended = time("completionTime").unwrap_or(row.now);
    age::human(ended.as_second() - started.as_second())
}

fn cron_containers(row: &Row<'_>, field: &str) -> String {
    let path = ["spec", "jobTemplate", "spec", "template", "spec", "containers"];
    let containers = object::list(row.object, &path).iter();
    containers.map(|container| object::text(container, &[field])).collect::<Vec<_>>().join(",")
}

fn access_modes(row: &Row<'_>, path: &[&str]) -> String {
    let modes = object::list(row.object, path).iter().filter_map(Value::as_str);
    let short = modes.map(|mode| match mode {
        "ReadWriteOnce" => "RWO",
        "ReadOnlyMany" => "ROX",
        "ReadWriteMany" => "RWX",
        "ReadWriteOncePod" => "RWOP",
        other => other,
    });
    short.collect::<Vec<_>>().join(",")
}

/// `cpu: 150%/75%` for each metric.
fn targets(row: &Row<'_>) -> String {
    let current = object::list(row.object, &["status", "currentMetrics"]);
    let metrics = object::list(row.object, &["spec", "metrics"]).iter();
    let shown: Vec<String> = metrics
        .map(|metric| {
            let field = match object::text(metric, &["type"]) {
                "ContainerResource" => "containerResource",
                _ => "resource",
            };
            let name = object::text(metric, &[field, "name"]);
            let held = current.iter().find(|held| object::text(held, &[field, "name"]) == name);
            let value = |of: Option<&Value>, part: &str| {
                let of = of?;
                if let Some(percent) = object::integer(of, &[field, part, "averageUtilization"]) {
                    return Some(format!("{percent}%"));
                }
                let amount = object::text(of, &[field, part, "averageValue"]);
                (!amount.is_empty()).then(|| amount.to_owned())
            };
            let is_percent = object::at(metric, &[field, "target", "averageUtilization"]).is_some();
            let seen = if is_percent {
                held.and_then(|held| {
                    object::integer(held, &[field, "current", "averageUtilization"])
                })
                .map(|percent| format!("{percent}%"))
            } else {
                held.map(|held| object::text(held, &[field, "current", "averageValue"]).to_owned())
            };
            let seen = seen.unwrap_or_else(|| "<unknown>".to_owned());
            let wanted = value(Some(metric), "target").unwrap_or_else(|| "<auto>".to_owned());
            format!("{name}: {seen}/{wanted}")
        })
        .collect();
    if shown.is_empty() { "<none>".to_owned() } else { shown.join(", ") }
}

fn endpoints(row: &Row<'_>) -> String {
    let mut all = Vec::new();
    for subset in object::list(row.object, &["subsets"]) {
        let ports = object::list(subset, &["ports"]);
        for address in object::list(subset, &["addresses"]) {
            let ip = object::text(address, &["ip"]);
            if ports.is_empty() {
                all.push(ip.to_owned());
            }
            for port in ports {
                all.push(format!("{ip}:{}", object::integer(port, &["port"]).unwrap_or(0)));
            }
        }
    }
    if all.is_empty() { "<none>".to_owned() } else { few(all) }
}

fn quota(row: &Row<'_>, chosen: fn(&str) -> bool) -> String {
    let hard = object::at(row.object, &["status", "hard"]).and_then(Value::as_object);
    let shown: Vec<String> = hard
        .into_iter()
        .flatten()
        .filter(|(name, _)| chosen(name))
        .map(|(name, hard)| {
            let used = object::at(row.object, &["status", "used", name]).and_then(Value::as_str);
            format!("{name}: {}/{}", used.unwrap_or("0"), hard.as_str().unwrap_or_default())
        })
        .collect();
    shown.join(", ")
}

/// A quantity of bytes in the largest binary unit that keeps three digits.
pub(super) fn readable_bytes(text: &str) -> Option<String> {
    let bytes = text.parse::<Quantity>().ok()?.to_units(Rounding::Down);
    let units = [("Ti", 40), ("Gi", 30), ("Mi", 20)];
    let (unit, shift) = units.into_iter().find(|(_, shift)| bytes >= 100 << shift)?;
    Some(format!("{}{unit}", bytes >> shift))
}
