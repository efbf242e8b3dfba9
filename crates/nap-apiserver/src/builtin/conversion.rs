//! Conversion between the versions of built-in kinds that are stored once: autoscalers of
//! `autoscaling/v1`, and events of `events.k8s.io`.

use serde_json::{Map, Value, json};

use crate::object;
use crate::resources::Resource;

/// Names of the fields that differ: in `events.k8s.io`, and in the core group.
const EVENT_FIELDS: [(&str, &str); 7] = [
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
];

/// Whether objects of the resource are stored in another version.
pub(crate) fn is_needed(resource: &Resource) -> bool {
    !resource.is_custom()
        && (resource.storage_group != resource.group
            || resource.storage_version != resource.version)
}

/// The stored object in the version of `resource`.
pub(crate) fn from_storage(resource: &Resource, mut object: Value) -> Value {
    match resource.group.as_str() {
        "events.k8s.io" => {
            rename(&mut object, |(new, old)| (old, new));
            // Required by the newer version, and absent in events of older clients.
            object::default(&mut object, "eventTime", || Value::Null);
        }
        "autoscaling" => autoscaler_from_v2(&mut object),
        _ => {}
    }
    object["apiVersion"] = json!(resource.api_version());
    object
}

/// Turns an object of `resource` into the version that is stored.
pub(crate) fn to_storage(resource: &Resource, object: &mut Value) {
    match resource.group.as_str() {
        "events.k8s.io" if is_needed(resource) => {
            rename(object, |(new, old)| (new, old));
            if object.get("involvedObject").is_none() {
                object["involvedObject"] = json!({});
            }
        }
        "autoscaling" if is_needed(resource) => autoscaler_to_v2(object),
        _ => {}
    }
    object["apiVersion"] = json!(resource.storage_api_version());
}

fn rename(
    object: &mut Value,
    direction: impl Fn((&'static str, &'static str)) -> (&'static str, &'static str),
) {
    let fields = object::fields_mut(object);
    for pair in EVENT_FIELDS {
        let (from, to) = direction(pair);
        if let Some(value) = fields.remove(from) {
            fields.insert(to.to_owned(), value);
        }
    }
}

fn is_cpu_utilization(metric: &Value) -> bool {
    object::text(metric, &["resource", "name"]) == "cpu"
        && (object::at(metric, &["resource", "target", "averageUtilization"]).is_some()
            || object::at(metric, &["resource", "current", "averageUtilization"]).is_some())
}

/// The one metric that `v1` has, and the others as the annotation that it keeps them in.
fn autoscaler_from_v2(object: &mut Value) {
    let mut notes = Map::new();
    for (part, list, field, path, note) in [
        (
            "spec",
            "metrics",
            "targetCPUUtilizationPercentage",
            "target",
            "autoscaling.alpha.kubernetes.io/metrics",
        ),
        (
            "status",
            "currentMetrics",
            "currentCPUUtilizationPercentage",
            "current",
            "autoscaling.alpha.kubernetes.io/current-metrics",
        ),
    ] {
        let Some(Value::Object(fields)) = object.get_mut(part) else { continue };
        let Some(Value::Array(mut metrics)) = fields.remove(list) else { continue };
        if let Some(place) = metrics.iter().position(is_cpu_utilization) {
            let metric = metrics.remove(place);
            let percent = object::at(&metric, &["resource", path, "averageUtilization"]);
            fields.insert(field.to_owned(), percent.cloned().unwrap_or_default());
        }
        if !metrics.is_empty() {
            notes.insert(note.to_owned(), json!(Value::Array(metrics).to_string()));
        }
    }
    let status = object::child(object, "status");
    if let Some(fields) = status.as_object_mut()
        && let Some(conditions) = fields.remove("conditions")
    {
        let note = "autoscaling.alpha.kubernetes.io/conditions".to_owned();
        notes.insert(note, json!(conditions.to_string()));
    }
    for field in ["currentReplicas", "desiredReplicas"] {
        object::default(status, field, || json!(0));
    }
    if !notes.is_empty() {
        let annotations =
            object::metadata(object).entry("annotations").or_insert_with(|| json!({}));
        object::fields_mut(annotations).extend(notes);
    }
}

fn autoscaler_to_v2(object: &mut Value) {
    let mut metrics = Vec::new();
    let annotations =
        object::metadata(object).get_mut("annotations").and_then(Value::as_object_mut);
    if let Some(annotations) = annotations {
        let kept = annotations.remove("autoscaling.alpha.kubernetes.io/metrics");
        let kept = kept.and_then(|text| serde_json::from_str(text.as_str()?).ok());
        if let Some(Value::Array(kept)) = kept {
            metrics.extend(kept);
        }
        annotations.remove("autoscaling.alpha.kubernetes.io/current-metrics");
        annotations.remove("autoscaling.alpha.kubernetes.io/conditions");
    }
    let spec = object::fields_mut(object::child(object, "spec"));
    if let Some(percent) = spec.remove("targetCPUUtilizationPercentage") {
        let target = json!({ "type": "Utilization", "averageUtilization": percent });
        let metric = json!({ "type": "Resource", "resource": { "name": "cpu", "target": target } });
        metrics.insert(0, metric);
    }
    if !metrics.is_empty() {
        spec.insert("metrics".to_owned(), Value::Array(metrics));
    }
    if let Some(Value::Object(status)) = object.get_mut("status") {
        status.remove("currentCPUUtilizationPercentage");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources;

    fn resource(group: &str, version: &str, plural: &str) -> Resource {
        let mut all = resources::builtin().into_iter();
        all.find(|r| r.is(group, plural) && r.version == version).unwrap()
    }

    #[test]
    fn an_autoscaler_survives_the_way_through_the_old_version() {
        let old = resource("autoscaling", "v1", "horizontalpodautoscalers");
        let target = |name: &str| {
            json!({ "type": "Resource", "resource": {
            "name": name, "target": { "type": "Utilization", "averageUtilization": 70 } } })
        };
        let stored = json!({
            "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
            "metadata": { "name": "web" },
            "spec": { "maxReplicas": 5, "metrics": [target("cpu"), target("memory")] },
            "status": { "desiredReplicas": 2, "currentReplicas": 1 },
        });
        let mut shown = from_storage(&old, stored.clone());
        assert_eq!(shown["apiVersion"], "autoscaling/v1");
        assert_eq!(shown["spec"]["targetCPUUtilizationPercentage"], 70);
        to_storage(&old, &mut shown);
        shown["metadata"] = stored["metadata"].clone();
        assert_eq!(shown, stored);
    }

    #[test]
    fn an_event_survives_the_way_through_the_newer_group() {
        let newer = resource("events.k8s.io", "v1", "events");
        let stored = json!({
            "apiVersion": "v1", "kind": "Event", "metadata": { "name": "e" },
            "involvedObject": { "kind": "Pod" }, "message": "text", "count": 3, "eventTime": null,
            "source": { "component": "karpenter" }, "reportingComponent": "karpenter",
        });
        let mut shown = from_storage(&newer, stored.clone());
        assert_eq!((&shown["note"], &shown["deprecatedCount"]), (&json!("text"), &json!(3)));
        to_storage(&newer, &mut shown);
        assert_eq!(shown, stored);
    }
}
