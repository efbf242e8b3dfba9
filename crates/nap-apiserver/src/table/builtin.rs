//! The columns of built-in kinds, as kubectl users know them.

use serde_json::{Value, json};

use super::{Column, Row, age, storage_and_batch};
use crate::object;
use crate::resources::Resource;

pub(super) const NAME: Column = Column::new("Name", |row| json!(object::name(row.object)));
pub(super) const AGE: Column =
    Column::new("Age", |row| json!(row.age_of(&["metadata", "creationTimestamp"])));

/// The columns of a kind; name and age for those without their own.
pub(super) fn columns(resource: &Resource) -> Vec<Column> {
    match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "Pod") => vec![
            NAME,
            Column::new("Ready", |row| json!(pod_ready(row))),
            Column::new("Status", |row| json!(pod_status(row))),
            Column::new("Restarts", |row| json!(pod_restarts(row))),
            AGE,
            Column::wide("IP", |row| or_none(row.text(&["status", "podIP"]))),
            Column::wide("Node", |row| or_none(row.text(&["spec", "nodeName"]))),
            Column::wide("Nominated Node", |row| {
                or_none(row.text(&["status", "nominatedNodeName"]))
            }),
            Column::wide("Readiness Gates", |_| json!("<none>")),
        ],
        ("", "Node") => vec![
            NAME,
            Column::new("Status", |row| json!(node_status(row))),
            Column::new("Roles", |row| json!(node_roles(row))),
            AGE,
            Column::new("Version", |row| {
                json!(row.text(&["status", "nodeInfo", "kubeletVersion"]))
            }),
            Column::wide("Internal-IP", |row| node_address(row, "InternalIP")),
            Column::wide("External-IP", |row| node_address(row, "ExternalIP")),
            Column::wide("OS-Image", |row| {
                or_unknown(row.text(&["status", "nodeInfo", "osImage"]))
            }),
            Column::wide("Kernel-Version", |row| {
                let kernel = row.text(&["status", "nodeInfo", "kernelVersion"]);
                match row.text(&["status", "nodeInfo", "architecture"]) {
                    architecture if kernel.is_empty() || architecture.is_empty() => {
                        or_unknown(kernel)
                    }
                    architecture => json!(format!("{kernel} ({architecture})")),
                }
            }),
            Column::wide("Container-Runtime", |row| {
                or_unknown(row.text(&["status", "nodeInfo", "containerRuntimeVersion"]))
            }),
        ],
        ("apps", "Deployment") => vec![
            NAME,
            Column::new("Ready", |row| {
                json!(format!("{}/{}", status(row, "readyReplicas"), replicas(row)))
            }),
            Column::new("Up-to-date", |row| json!(status(row, "updatedReplicas"))),
            Column::new("Available", |row| json!(status(row, "availableReplicas"))),
            AGE,
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
        ("apps", "ReplicaSet") | ("", "ReplicationController") => vec![
            NAME,
            Column::number("Desired", |row| json!(replicas(row))),
            Column::number("Current", |row| json!(status(row, "replicas"))),
            Column::number("Ready", |row| json!(status(row, "readyReplicas"))),
            AGE,
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
        ("apps", "DaemonSet") => vec![
            NAME,
            Column::number("Desired", |row| json!(status(row, "desiredNumberScheduled"))),
            Column::number("Current", |row| json!(status(row, "currentNumberScheduled"))),
            Column::number("Ready", |row| json!(status(row, "numberReady"))),
            Column::number("Up-to-date", |row| json!(status(row, "updatedNumberScheduled"))),
            Column::number("Available", |row| json!(status(row, "numberAvailable"))),
            Column::new("Node Selector", |row| {
                labels(object::at(row.object, &["spec", "template", "spec", "nodeSelector"]))
            }),
            AGE,
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
        ("apps", "StatefulSet") => vec![
            NAME,
            Column::new("Ready", |row| {
                json!(format!("{}/{}", status(row, "readyReplicas"), replicas(row)))
            }),
            AGE,
            CONTAINERS,
            IMAGES,
        ],
        ("" | "events.k8s.io", "Event") => vec![
            Column::new("Last Seen", |row| json!(last_seen(row))),
            Column::new("Type", |row| json!(row.text(&["type"]))),
            Column::new("Reason", |row| json!(row.text(&["reason"]))),
            Column::new("Object", |row| {
                let kind = row.text(&["involvedObject", "kind"]).to_lowercase();
                json!(format!("{kind}/{}", row.text(&["involvedObject", "name"])))
            }),
            Column::wide("Subobject", |row| json!(row.text(&["involvedObject", "fieldPath"]))),
            Column::wide("Source", |row| json!(event_source(row))),
            Column::new("Message", |row| json!(row.text(&["message"]).trim())),
            Column::wide("First Seen", |row| json!(first_seen(row))),
            Column::wide("Count", |row| {
                json!(object::integer(row.object, &["count"]).unwrap_or(1))
            }),
            Column::wide("Name", |row| json!(object::name(row.object))),
        ],
        ("", "Namespace") => {
            vec![NAME, Column::new("Status", |row| json!(row.text(&["status", "phase"]))), AGE]
        }
        ("policy", "PodDisruptionBudget") => vec![
            NAME,
            Column::new("Min Available", |row| or_not_applicable(row, "minAvailable")),
            Column::new("Max Unavailable", |row| or_not_applicable(row, "maxUnavailable")),
            Column::number("Allowed Disruptions", |row| json!(status(row, "disruptionsAllowed"))),
            AGE,
        ],
        ("", "Service") => vec![
            NAME,
            Column::new("Type", |row| json!(row.text(&["spec", "type"]))),
            Column::new("Cluster-IP", |row| or_none(row.text(&["spec", "clusterIP"]))),
            Column::new("External-IP", |_| json!("<none>")),
            Column::new("Port(s)", |row| json!(service_ports(row))),
            AGE,
            Column::wide("Selector", |row| labels(object::at(row.object, &["spec", "selector"]))),
        ],
        ("", "ConfigMap") => vec![NAME, Column::new("Data", |row| json!(data_count(row))), AGE],
        ("", "Secret") => vec![
            NAME,
            Column::new("Type", |row| json!(row.text(&["type"]))),
            Column::new("Data", |row| json!(data_count(row))),
            AGE,
        ],
        ("coordination.k8s.io", "Lease") => {
            vec![
                NAME,
                Column::new("Holder", |row| json!(row.text(&["spec", "holderIdentity"]))),
                AGE,
            ]
        }
        ("scheduling.k8s.io", "PriorityClass") => vec![
            NAME,
            Column::number("Value", |row| row.object["value"].clone()),
            Column::new("Global-Default", |row| {
                json!(row.object.get("globalDefault").and_then(Value::as_bool).unwrap_or_default())
            })
            .printed(),
            AGE,
            Column::new("PreemptionPolicy", |row| json!(row.text(&["preemptionPolicy"]))),
        ],
        ("apiextensions.k8s.io", "CustomResourceDefinition") => {
            vec![
                NAME,
                Column::new("Created At", |row| {
                    json!(row.text(&["metadata", "creationTimestamp"]))
                })
                .dated(),
            ]
        }
        _ => storage_and_batch::columns(resource).unwrap_or_else(|| vec![NAME, AGE]),
    }
}

pub(super) const CONTAINERS: Column =
    Column::wide("Containers", |row| json!(containers(row, "name")));
pub(super) const IMAGES: Column = Column::wide("Images", |row| json!(containers(row, "image")));
pub(super) const SELECTOR: Column = Column::wide("Selector", |row| {
    let selector = object::at(row.object, &["spec", "selector", "matchLabels"]);
    labels(selector.or_else(|| object::at(row.object, &["spec", "selector"])))
});

pub(super) fn or_none(text: &str) -> Value {
    json!(if text.is_empty() { "<none>" } else { text })
}

fn or_unknown(text: &str) -> Value {
    json!(if text.is_empty() { "<unknown>" } else { text })
}

fn or_not_applicable(row: &Row<'_>, field: &str) -> Value {
    match object::at(row.object, &["spec", field]) {
        Some(Value::String(text)) => json!(text),
        Some(Value::Null) | None => json!("N/A"),
        Some(other) => json!(other.to_string()),
    }
}

pub(super) fn status(row: &Row<'_>, field: &str) -> i64 {
    object::integer(row.object, &["status", field]).unwrap_or(0)
}

fn replicas(row: &Row<'_>) -> i64 {
    object::integer(row.object, &["spec", "replicas"]).unwrap_or(0)
}

fn data_count(row: &Row<'_>) -> usize {
    ["data", "binaryData"]
        .iter()
        .filter_map(|field| row.object.get(field).and_then(Value::as_object))
        .map(serde_json::Map::len)
        .sum()
}

fn containers(row: &Row<'_>, field: &str) -> String {
    let containers = object::list(row.object, &["spec", "template", "spec", "containers"]);
    containers
        .iter()
        .map(|container| object::text(container, &[field]))
        .collect::<Vec<_>>()
        .join(",")
}

pub(super) fn labels(labels: Option<&Value>) -> Value {
    let pairs: Vec<String> = labels
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| value.as_str().map(|value| format!("{key}={value}")))
        .collect();
    or_none(&pairs.join(","))
}

fn service_ports(row: &Row<'_>) -> String {
    let ports = object::list(row.object, &["spec", "ports"]).iter().map(|port| {
        let (number, protocol) =
            (object::integer(port, &["port"]), object::text(port, &["protocol"]));
        format!("{}/{protocol}", number.unwrap_or(0))
    });
    ports.collect::<Vec<_>>().join(",")
}

fn pod_ready(row: &Row<'_>) -> String {
    let total = object::list(row.object, &["spec", "containers"]).len();
    let ready = object::list(row.object, &["status", "containerStatuses"])
        .iter()
        .filter(|status| status.get("ready").and_then(Value::as_bool) == Some(true))
        .count();
    format!("{ready}/{total}")
}

fn pod_status(row: &Row<'_>) -> String {
    let ended = matches!(row.text(&["status", "phase"]), "Succeeded" | "Failed");
    if object::is_deleting(row.object) && !ended {
        return if row.text(&["status", "reason"]) == "NodeLost" {
            "Unknown"
        } else {
            "Terminating"
        }
        .to_owned();
    }
    let gated = object::list(row.object, &["status", "conditions"]).iter().any(|condition| {
        object::text(condition, &["type"]) == "PodScheduled"
            && object::text(condition, &["reason"]) == "SchedulingGated"
    });
    if gated {
        return "SchedulingGated".to_owned();
    }
    let waiting = object::list(row.object, &["status", "containerStatuses"]).iter().rev().find_map(
        |status| {
            ["waiting", "terminated"]
                .iter()
                .map(|state| object::text(status, &["state", state, "reason"]))
                .find(|reason| !reason.is_empty())
        },
    );
    let reason = row.text(&["status", "reason"]);
    match (waiting, reason) {
        (Some(waiting), _) => waiting.to_owned(),
        (None, "") => row.text(&["status", "phase"]).to_owned(),
        (None, reason) => reason.to_owned(),
    }
}

fn pod_restarts(row: &Row<'_>) -> String {
    let statuses = object::list(row.object, &["status", "containerStatuses"]);
    let count: i64 = statuses.iter().filter_map(|s| object::integer(s, &["restartCount"])).sum();
    let last =
        statuses.iter().map(|s| object::text(s, &["lastState", "terminated", "finishedAt"])).max();
    match last {
        Some(last) if count > 0 && !last.is_empty() => {
            format!("{count} ({} ago)", age::since(last, row.now))
        }
        _ => count.to_string(),
    }
}

fn node_status(row: &Row<'_>) -> String {
    let ready = object::list(row.object, &["status", "conditions"])
        .iter()
        .find(|condition| object::text(condition, &["type"]) == "Ready")
        .map(|condition| object::text(condition, &["status"]));
    let mut text = match ready {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if object::at(row.object, &["spec", "unschedulable"]).and_then(Value::as_bool) == Some(true) {
        text.push_str(",SchedulingDisabled");
    }
    text
}

fn node_roles(row: &Row<'_>) -> String {
    let labels = object::at(row.object, &["metadata", "labels"]).and_then(Value::as_object);
    let roles: Vec<&str> = labels
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) if !role.is_empty() => Some(role),
            _ if key == "kubernetes.io/role" => value.as_str(),
            _ => None,
        })
        .collect();
    if roles.is_empty() { "<none>".to_owned() } else { roles.join(",") }
}

fn node_address(row: &Row<'_>, kind: &str) -> Value {
    let found = object::list(row.object, &["status", "addresses"])
        .iter()
        .find(|address| object::text(address, &["type"]) == kind);
    or_none(found.map_or("", |address| object::text(address, &["address"])))
}

fn last_seen(row: &Row<'_>) -> String {
    let times = [
        &["series", "lastObservedTime"][..],
        &["lastTimestamp"],
        &["eventTime"],
        &["metadata", "creationTimestamp"],
    ];
    let found = times.iter().map(|path| row.text(path)).find(|time| !time.is_empty());
    age::since(found.unwrap_or_default(), row.now)
}

fn first_seen(row: &Row<'_>) -> String {
    let times = [&["firstTimestamp"][..], &["eventTime"], &["metadata", "creationTimestamp"]];
    let found = times.iter().map(|path| row.text(path)).find(|time| !time.is_empty());
    age::since(found.unwrap_or_default(), row.now)
}

fn event_source(row: &Row<'_>) -> String {
    let (component, host) = (row.text(&["source", "component"]), row.text(&["source", "host"]));
    let component =
        if component.is_empty() { row.text(&["reportingComponent"]) } else { component };
    if host.is_empty() { component.to_owned() } else { format!("{component}, {host}") }
}
