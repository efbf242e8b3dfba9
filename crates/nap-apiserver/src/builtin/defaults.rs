//! Defaults of the built-in kinds, as far as users and controllers notice them.

use serde_json::{Value, json};

use super::pod_spec;
use crate::meta;
use crate::quantity;
use crate::resources::Resource;
use crate::server::State;
use crate::status::{ApiError, Result};

/// Fills defaults into an object about to be stored; `old` is what an update replaces.
pub(crate) fn apply(
    state: &State,
    resource: &Resource,
    old: Option<&Value>,
    object: &mut Value,
) -> Result<()> {
    if resource.is_custom() {
        return Ok(());
    }
    if holds_quantities(resource) {
        canonical_quantities(object)?;
    }
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "pods") => {
            pod_spec::defaults(meta::child(object, "spec"));
            if old.is_none() {
                pod_spec::pod_defaults(state, object)?;
            }
        }
        ("apps", "deployments") => {
            let spec = meta::child(object, "spec");
            meta::default(spec, "replicas", || json!(1));
            meta::default(spec, "revisionHistoryLimit", || json!(10));
            meta::default(spec, "progressDeadlineSeconds", || json!(600));
            let strategy = meta::child(spec, "strategy");
            meta::default(strategy, "type", || json!("RollingUpdate"));
            if strategy["type"] == "RollingUpdate" {
                let rolling = meta::child(strategy, "rollingUpdate");
                meta::default(rolling, "maxUnavailable", || json!("25%"));
                meta::default(rolling, "maxSurge", || json!("25%"));
            }
            template(spec);
        }
        ("apps", "replicasets") | ("", "replicationcontrollers") => {
            let spec = meta::child(object, "spec");
            meta::default(spec, "replicas", || json!(1));
            template(spec);
        }
        ("apps", "daemonsets") => {
            let spec = meta::child(object, "spec");
            meta::default(spec, "revisionHistoryLimit", || json!(10));
            let strategy = meta::child(spec, "updateStrategy");
            meta::default(strategy, "type", || json!("RollingUpdate"));
            if strategy["type"] == "RollingUpdate" {
                let rolling = meta::child(strategy, "rollingUpdate");
                meta::default(rolling, "maxUnavailable", || json!(1));
                meta::default(rolling, "maxSurge", || json!(0));
            }
            template(spec);
        }
        ("apps", "statefulsets") => {
            let spec = meta::child(object, "spec");
            meta::default(spec, "replicas", || json!(1));
            meta::default(spec, "revisionHistoryLimit", || json!(10));
            meta::default(spec, "podManagementPolicy", || json!("OrderedReady"));
            let strategy = meta::child(spec, "updateStrategy");
            meta::default(strategy, "type", || json!("RollingUpdate"));
            if strategy["type"] == "RollingUpdate" {
                meta::default(meta::child(strategy, "rollingUpdate"), "partition", || json!(0));
            }
            let retention = meta::child(spec, "persistentVolumeClaimRetentionPolicy");
            meta::default(retention, "whenDeleted", || json!("Retain"));
            meta::default(retention, "whenScaled", || json!("Retain"));
            template(spec);
        }
        ("batch", "jobs") => job(object),
        ("batch", "cronjobs") => {
            let spec = meta::child(object, "spec");
            meta::default(spec, "concurrencyPolicy", || json!("Allow"));
            meta::default(spec, "suspend", || json!(false));
            meta::default(spec, "successfulJobsHistoryLimit", || json!(3));
            meta::default(spec, "failedJobsHistoryLimit", || json!(1));
            template(meta::child(meta::child(spec, "jobTemplate"), "spec"));
        }
        ("", "namespaces") => {
            let name = meta::name(object).to_owned();
            let labels = meta::metadata(object).entry("labels").or_insert_with(|| json!({}));
            labels["kubernetes.io/metadata.name"] = json!(name);
            meta::default(meta::child(object, "spec"), "finalizers", || json!(["kubernetes"]));
            meta::default(meta::child(object, "status"), "phase", || json!("Active"));
        }
        ("", "nodes") => node(old, object),
        ("", "services") => service(state, object),
        ("", "secrets") => meta::default(object, "type", || json!("Opaque")),
        ("", "persistentvolumeclaims") => {
            meta::default(meta::child(object, "spec"), "volumeMode", || json!("Filesystem"));
            meta::default(meta::child(object, "status"), "phase", || json!("Pending"));
        }
        ("", "persistentvolumes") => {
            let spec = meta::child(object, "spec");
            meta::default(spec, "volumeMode", || json!("Filesystem"));
            meta::default(spec, "persistentVolumeReclaimPolicy", || json!("Retain"));
            meta::default(meta::child(object, "status"), "phase", || json!("Pending"));
        }
        ("storage.k8s.io", "storageclasses") => {
            meta::default(object, "reclaimPolicy", || json!("Delete"));
            meta::default(object, "volumeBindingMode", || json!("Immediate"));
        }
        ("scheduling.k8s.io", "priorityclasses") => {
            meta::default(object, "preemptionPolicy", || json!("PreemptLowerPriority"));
        }
        _ => {}
    }
    Ok(())
}

fn template(spec: &mut Value) {
    if spec.get("template").is_some() {
        pod_spec::defaults(meta::child(meta::child(spec, "template"), "spec"));
    }
}

/// A job selects its pods by its own uid unless it manages the selector itself.
fn job(object: &mut Value) {
    let (uid, name) = (meta::uid(object).to_owned(), meta::name(object).to_owned());
    let spec = meta::child(object, "spec");
    meta::default(spec, "backoffLimit", || json!(6));
    meta::default(spec, "completionMode", || json!("NonIndexed"));
    meta::default(spec, "suspend", || json!(false));
    if spec.get("completions").is_none() && spec.get("parallelism").is_none() {
        meta::default(spec, "completions", || json!(1));
    }
    meta::default(spec, "parallelism", || json!(1));
    if spec.get("manualSelector").and_then(Value::as_bool) != Some(true) {
        meta::default(
            spec,
            "selector",
            || json!({ "matchLabels": { "batch.kubernetes.io/controller-uid": uid } }),
        );
        let metadata = meta::child(meta::child(spec, "template"), "metadata");
        let labels = meta::object(meta::child(metadata, "labels"));
        for (key, value) in [
            ("batch.kubernetes.io/controller-uid", &uid),
            ("batch.kubernetes.io/job-name", &name),
            ("controller-uid", &uid),
            ("job-name", &name),
        ] {
            labels.entry(key).or_insert_with(|| json!(value));
        }
    }
    template(spec);
}

/// A new node is not ready until its kubelet says so; the taint keeps pods away meanwhile.
fn node(old: Option<&Value>, object: &mut Value) {
    const NOT_READY: &str = "node.kubernetes.io/not-ready";
    if old.is_none() {
        let spec = meta::child(object, "spec");
        let taints = meta::object(spec).entry("taints").or_insert_with(|| json!([]));
        if let Value::Array(list) = taints
            && !list.iter().any(|t| t["key"] == NOT_READY && t["effect"] == "NoSchedule")
        {
            list.push(json!({ "key": NOT_READY, "effect": "NoSchedule" }));
        }
    }
    let Some(Value::Object(capacity)) = meta::at(object, &["status", "capacity"]).cloned() else {
        return;
    };
    let allocatable = meta::object(meta::child(meta::child(object, "status"), "allocatable"));
    for (name, amount) in capacity {
        allocatable.entry(name).or_insert(amount);
    }
}

fn service(state: &State, object: &mut Value) {
    let revision = state.store.revision();
    let spec = meta::child(object, "spec");
    meta::default(spec, "type", || json!("ClusterIP"));
    meta::default(spec, "sessionAffinity", || json!("None"));
    if spec["type"] != "ExternalName" {
        // Revisions are never used twice, so neither are the addresses (until the range is spent).
        let address = format!("10.96.{}.{}", revision / 250 % 250, revision % 250 + 1);
        meta::default(spec, "clusterIP", || json!(address));
        let address = spec["clusterIP"].clone();
        meta::default(spec, "clusterIPs", || json!([address]));
        meta::default(spec, "ipFamilies", || json!(["IPv4"]));
        meta::default(spec, "ipFamilyPolicy", || json!("SingleStack"));
        meta::default(spec, "internalTrafficPolicy", || json!("Cluster"));
    }
    if let Some(Value::Array(ports)) = spec.get_mut("ports") {
        for port in ports {
            meta::default(port, "protocol", || json!("TCP"));
            let number = port.get("port").cloned().unwrap_or_default();
            meta::default(port, "targetPort", || number);
        }
    }
    meta::default(meta::child(object, "status"), "loadBalancer", || json!({}));
}

/// Whether a kind has resource lists; in other kinds a field of such a name means something else.
fn holds_quantities(resource: &Resource) -> bool {
    let core = [
        "limitranges",
        "nodes",
        "persistentvolumeclaims",
        "persistentvolumes",
        "pods",
        "podtemplates",
        "replicationcontrollers",
        "resourcequotas",
    ];
    match resource.group.as_str() {
        "" => core.contains(&resource.plural.as_str()),
        "apps" => resource.plural != "controllerrevisions",
        "batch" | "node.k8s.io" => true,
        _ => false,
    }
}

/// Where resource lists stand in built-in kinds.
const RESOURCE_LISTS: [&str; 12] = [
    "requests",
    "limits",
    "capacity",
    "allocatable",
    "allocatedResources",
    "overhead",
    "podFixed",
    "hard",
    "used",
    "defaultRequest",
    "max",
    "min",
];

/// Rewrites quantities canonically and refuses what is none.
fn canonical_quantities(value: &mut Value) -> Result<()> {
    match value {
        Value::Object(map) => {
            for (key, value) in map.iter_mut() {
                if RESOURCE_LISTS.contains(&key.as_str())
                    && let Value::Object(amounts) = value
                {
                    for amount in amounts.values_mut() {
                        if let Value::String(text) = amount {
                            *text = quantity::canonical(text).ok_or_else(|| {
                                ApiError::bad_request(format!(
                                    "quantities must match the regular expression \
                                     '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$': {text:?}"
                                ))
                            })?;
                        }
                    }
                } else {
                    canonical_quantities(value)?;
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                canonical_quantities(item)?;
            }
        }
        _ => {}
    }
    Ok(())
}
