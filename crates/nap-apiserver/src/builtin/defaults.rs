//! Defaults of the built-in kinds, as far as users and controllers notice them.

use nap_units::Quantity;
use serde_json::{Value, json};

use super::pod_spec;
use crate::error::{ApiError, FieldError, Result};
use crate::object;
use crate::resources::Resource;
use crate::server::State;

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
        let mut errors = Vec::new();
        canonical_quantities(object, "", &mut errors);
        if let Some(error) = errors.first() {
            return Err(ApiError::bad_request(error.to_string()));
        }
    }
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "pods") => {
            pod_spec::defaults(object::child(object, "spec"));
            pod_spec::status_defaults(object);
            if old.is_none() {
                pod_spec::pod_defaults(state, object)?;
            }
        }
        ("apps", "deployments") => {
            let spec = object::child(object, "spec");
            object::default(spec, "replicas", || json!(1));
            object::default(spec, "revisionHistoryLimit", || json!(10));
            object::default(spec, "progressDeadlineSeconds", || json!(600));
            let strategy = object::child(spec, "strategy");
            object::default(strategy, "type", || json!("RollingUpdate"));
            if strategy["type"] == "RollingUpdate" {
                let rolling = object::child(strategy, "rollingUpdate");
                object::default(rolling, "maxUnavailable", || json!("25%"));
                object::default(rolling, "maxSurge", || json!("25%"));
            }
            template(spec);
        }
        ("apps", "replicasets") => {
            let spec = object::child(object, "spec");
            object::default(spec, "replicas", || json!(1));
            template(spec);
        }
        ("", "replicationcontrollers") => {
            let spec = object::child(object, "spec");
            object::default(spec, "replicas", || json!(1));
            template(spec);
            if let Some(labels) = object::at(spec, &["template", "metadata", "labels"]).cloned() {
                object::default(spec, "selector", || labels);
            }
            labels_of_template(object);
        }
        ("apps", "daemonsets") => {
            let spec = object::child(object, "spec");
            object::default(spec, "revisionHistoryLimit", || json!(10));
            let strategy = object::child(spec, "updateStrategy");
            object::default(strategy, "type", || json!("RollingUpdate"));
            if strategy["type"] == "RollingUpdate" {
                let rolling = object::child(strategy, "rollingUpdate");
                object::default(rolling, "maxUnavailable", || json!(1));
                object::default(rolling, "maxSurge", || json!(0));
            }
            template(spec);
        }
        ("apps", "statefulsets") => {
            let spec = object::child(object, "spec");
            object::default(spec, "replicas", || json!(1));
            object::default(spec, "revisionHistoryLimit", || json!(10));
            object::default(spec, "podManagementPolicy", || json!("OrderedReady"));
            let strategy = object::child(spec, "updateStrategy");
            object::default(strategy, "type", || json!("RollingUpdate"));
            if strategy["type"] == "RollingUpdate" {
                object::default(object::child(strategy, "rollingUpdate"), "partition", || json!(0));
            }
            let retention = object::child(spec, "persistentVolumeClaimRetentionPolicy");
            object::default(retention, "whenDeleted", || json!("Retain"));
            object::default(retention, "whenScaled", || json!("Retain"));
            template(spec);
        }
        ("batch", "jobs") => job(object),
        ("batch", "cronjobs") => {
            let spec = object::child(object, "spec");
            object::default(spec, "concurrencyPolicy", || json!("Allow"));
            object::default(spec, "suspend", || json!(false));
            object::default(spec, "successfulJobsHistoryLimit", || json!(3));
            object::default(spec, "failedJobsHistoryLimit", || json!(1));
            let job = object::child(spec, "jobTemplate");
            object::default(job, "metadata", || json!({}));
            template(object::child(job, "spec"));
        }
        ("", "namespaces") => {
            let name = object::name(object).to_owned();
            let labels = object::metadata(object).entry("labels").or_insert_with(|| json!({}));
            labels["kubernetes.io/metadata.name"] = json!(name);
            object::default(object::child(object, "spec"), "finalizers", || json!(["kubernetes"]));
            object::default(object::child(object, "status"), "phase", || json!("Active"));
        }
        ("autoscaling", "horizontalpodautoscalers") => {
            object::default(object::child(object, "spec"), "minReplicas", || json!(1));
            object::default(object::child(object, "status"), "desiredReplicas", || json!(0));
        }
        ("networking.k8s.io", "networkpolicies") => {
            let spec = object::child(object, "spec");
            let outgoing = spec.get("egress").is_some();
            let kinds = if outgoing { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
            object::default(spec, "policyTypes", || kinds);
        }
        ("policy", "poddisruptionbudgets") => {
            let status = object::child(object, "status");
            for count in ["currentHealthy", "desiredHealthy", "disruptionsAllowed", "expectedPods"]
            {
                object::default(status, count, || json!(0));
            }
        }
        ("", "nodes") => node(old, object),
        ("", "services") => service(state, object),
        ("", "secrets") => object::default(object, "type", || json!("Opaque")),
        ("", "persistentvolumeclaims") => {
            object::default(object::child(object, "spec"), "volumeMode", || json!("Filesystem"));
            object::default(object::child(object, "status"), "phase", || json!("Pending"));
        }
        ("", "persistentvolumes") => {
            let spec = object::child(object, "spec");
            object::default(spec, "volumeMode", || json!("Filesystem"));
            object::default(spec, "persistentVolumeReclaimPolicy", || json!("Retain"));
            object::default(object::child(object, "status"), "phase", || json!("Pending"));
        }
        ("", "limitranges") => limit_range(object::child(object, "spec")),
        ("storage.k8s.io", "storageclasses") => {
            object::default(object, "reclaimPolicy", || json!("Delete"));
            object::default(object, "volumeBindingMode", || json!("Immediate"));
        }
        ("scheduling.k8s.io", "priorityclasses") => {
            object::default(object, "preemptionPolicy", || json!("PreemptLowerPriority"));
        }
        _ => {}
    }
    Ok(())
}

/// Completes the defaults for containers: a maximum is the default limit, and that, or else the
/// minimum, the default request.
fn limit_range(spec: &mut Value) {
    let items = spec.get_mut("limits").and_then(Value::as_array_mut);
    for item in items.into_iter().flatten() {
        if item["type"] != "Container" {
            continue;
        }
        for (from, to) in
            [("max", "default"), ("default", "defaultRequest"), ("min", "defaultRequest")]
        {
            let amounts = item.get(from).and_then(Value::as_object).cloned().unwrap_or_default();
            let defaults = object::fields_mut(object::child(item, to));
            for (name, amount) in amounts {
                defaults.entry(name).or_insert(amount);
            }
        }
        // What is empty is not written.
        object::fields_mut(item).retain(|_, value| value != &json!({}));
    }
}

fn template(spec: &mut Value) {
    if spec.get("template").is_some() {
        let template = object::child(spec, "template");
        object::default(template, "metadata", || json!({}));
        pod_spec::defaults(object::child(template, "spec"));
    }
}

/// An object that has no labels gets those of its pods.
fn labels_of_template(object: &mut Value) {
    let labels = object::at(object, &["spec", "template", "metadata", "labels"]).cloned();
    let held = object::at(object, &["metadata", "labels"]).and_then(Value::as_object);
    if let Some(labels) = labels
        && held.is_none_or(serde_json::Map::is_empty)
    {
        object::metadata(object).insert("labels".to_owned(), labels);
    }
}

/// A job selects its pods by its own uid unless it manages the selector itself.
fn job(object: &mut Value) {
    let (uid, name) = (object::uid(object).to_owned(), object::name(object).to_owned());
    let spec = object::child(object, "spec");
    object::default(spec, "backoffLimit", || json!(6));
    object::default(spec, "completionMode", || json!("NonIndexed"));
    object::default(spec, "suspend", || json!(false));
    if spec.get("completions").is_none() && spec.get("parallelism").is_none() {
        object::default(spec, "completions", || json!(1));
    }
    object::default(spec, "parallelism", || json!(1));
    object::default(spec, "manualSelector", || json!(false));
    let has_policy = spec.get("podFailurePolicy").is_some();
    let replacement = if has_policy { "Failed" } else { "TerminatingOrFailed" };
    object::default(spec, "podReplacementPolicy", || json!(replacement));
    if spec.get("manualSelector").and_then(Value::as_bool) != Some(true) {
        object::default(
            spec,
            "selector",
            || json!({ "matchLabels": { "batch.kubernetes.io/controller-uid": uid } }),
        );
        let metadata = object::child(object::child(spec, "template"), "metadata");
        let labels = object::fields_mut(object::child(metadata, "labels"));
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
    labels_of_template(object);
}

/// A new node is not ready until its kubelet says so; the taint keeps pods away meanwhile.
fn node(old: Option<&Value>, object: &mut Value) {
    const NOT_READY: &str = "node.kubernetes.io/not-ready";
    if old.is_none() {
        let spec = object::child(object, "spec");
        let taints = object::fields_mut(spec).entry("taints").or_insert_with(|| json!([]));
        if let Value::Array(list) = taints
            && !list.iter().any(|t| t["key"] == NOT_READY && t["effect"] == "NoSchedule")
        {
            list.push(json!({ "key": NOT_READY, "effect": "NoSchedule" }));
        }
    }
    let Some(Value::Object(capacity)) = object::at(object, &["status", "capacity"]).cloned() else {
        return;
    };
    let allocatable =
        object::fields_mut(object::child(object::child(object, "status"), "allocatable"));
    for (name, amount) in capacity {
        allocatable.entry(name).or_insert(amount);
    }
}

fn service(state: &State, object: &mut Value) {
    let revision = state.store.revision();
    let spec = object::child(object, "spec");
    object::default(spec, "type", || json!("ClusterIP"));
    object::default(spec, "sessionAffinity", || json!("None"));
    if spec["type"] != "ExternalName" {
        // Revisions are never used twice, so neither are the addresses (until the range is spent).
        let address = format!("10.96.{}.{}", revision / 250 % 250, revision % 250 + 1);
        object::default(spec, "clusterIP", || json!(address));
        let address = spec["clusterIP"].clone();
        object::default(spec, "clusterIPs", || json!([address]));
        object::default(spec, "ipFamilies", || json!(["IPv4"]));
        object::default(spec, "ipFamilyPolicy", || json!("SingleStack"));
        object::default(spec, "internalTrafficPolicy", || json!("Cluster"));
    }
    if let Some(Value::Array(ports)) = spec.get_mut("ports") {
        for port in ports {
            object::default(port, "protocol", || json!("TCP"));
            let number = port.get("port").cloned().unwrap_or_default();
            object::default(port, "targetPort", || number);
        }
    }
    object::default(object::child(object, "status"), "loadBalancer", || json!({}));
}

/// Whether a kind has resource lists; in other kinds a field of such a name means something else.
pub(crate) fn holds_quantities(resource: &Resource) -> bool {
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

/// The real server's words for what is no quantity.
const QUANTITY: &str = "quantities must match the regular expression \
     '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";

/// Fields of built-in kinds that hold resource lists.
const RESOURCE_LISTS: [&str; 14] = [
    "requests",
    "limits",
    "capacity",
    "allocatable",
    "allocatedResources",
    "overhead",
    "podFixed",
    "hard",
    "used",
    "default",
    "defaultRequest",
    "maxLimitRequestRatio",
    "max",
    "min",
];

/// Rewrites quantities canonically; what is none is an error.
pub(crate) fn canonical_quantities(value: &mut Value, path: &str, errors: &mut Vec<FieldError>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map.iter_mut() {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                match value {
                    Value::Object(amounts) if RESOURCE_LISTS.contains(&key.as_str()) => {
                        for (name, amount) in amounts {
                            canonical(amount, || format!("{path}[{name}]"), errors);
                        }
                    }
                    value => canonical_quantities(value, &path, errors),
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                canonical_quantities(item, &format!("{path}[{index}]"), errors);
            }
        }
        _ => {}
    }
}

fn canonical(amount: &mut Value, field: impl Fn() -> String, errors: &mut Vec<FieldError>) {
    let Value::String(text) = amount else { return };
    match text.parse::<Quantity>() {
        Ok(amount) => *text = amount.to_string(),
        Err(_) => errors.push(FieldError::invalid(field(), text.as_str(), QUANTITY)),
    }
}
