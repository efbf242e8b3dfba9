//! Checks of built-in kinds: what the types alone do not refuse, limited to mistakes people make.

use serde_json::{Value, json};

use super::containers::{amounts_of, not_negative};
use super::{autoscaler, choices, containers, cron_job, metadata, scheduling};
use crate::error::{FieldError, Problem};
use crate::object;
use crate::resources::Resource;
use crate::selectors;

/// Checks an object about to be stored; `old` is what an update replaces.
pub(crate) fn check(resource: &Resource, old: Option<&Value>, object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if resource.is_custom() {
        return errors;
    }
    let spec = object.get("spec").unwrap_or(&Value::Null);
    choices::check(resource, object, &mut errors);
    if old.is_none() && resource.is("apps", "statefulsets") {
        choices::claim_templates(spec, &mut errors);
    }
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "pods") => {
            pod_spec(spec, &[], "spec", &mut errors);
            if let Some(old) = old {
                pod_update(&old["spec"], spec, &mut errors);
            }
        }
        ("apps", _)
            if spec.get("template").is_some()
                || resource.scale.is_some()
                || resource.plural == "daemonsets" =>
        {
            workload(spec, &mut errors);
            if let Some(old) = old
                && old["spec"]["selector"] != spec["selector"]
            {
                errors.push(FieldError::invalid(
                    "spec.selector",
                    spec["selector"].clone(),
                    "field is immutable",
                ));
            }
        }
        ("batch", "jobs") => job(spec, "spec", &mut errors),
        ("batch", "cronjobs") => {
            cron_job::check(spec, &mut errors);
            job(&spec["jobTemplate"]["spec"], "spec.jobTemplate.spec", &mut errors);
        }
        ("", "replicationcontrollers") => {
            not_negative(spec, "replicas", "spec", &mut errors);
            if spec.get("template").is_some() {
                pod_spec(&spec["template"]["spec"], &[], "spec.template.spec", &mut errors);
            }
        }
        ("", "limitranges") => limit_range(spec, &mut errors),
        ("", "resourcequotas") => amounts_of(&spec["hard"], "spec.hard", &mut errors),
        ("autoscaling", "horizontalpodautoscalers") => autoscaler::check(spec, &mut errors),
        ("", "nodes") => node(old, spec, &mut errors),
        ("policy", "poddisruptionbudgets") => budget(spec, &mut errors),
        ("scheduling.k8s.io", "priorityclasses")
            if old.is_some_and(|old| old["value"] != object["value"]) =>
        {
            errors.push(FieldError::forbidden("value", "may not be changed in an update."));
        }
        _ => {}
    }
    errors
}

/// Checks a pod spec; `claims` are volumes that a StatefulSet adds to it.
fn pod_spec(spec: &Value, claims: &[&str], path: &str, errors: &mut Vec<FieldError>) {
    let volumes = containers::volumes(spec, claims, path, errors);
    if object::list(spec, &["containers"]).is_empty() {
        errors.push(FieldError::required(format!("{path}.containers"), ""));
    }
    let policy = object::text(spec, &["restartPolicy"]);
    if !matches!(policy, "" | "Always" | "OnFailure" | "Never") {
        let supported = vec![json!("Always"), json!("OnFailure"), json!("Never")];
        errors.push(FieldError::not_supported(format!("{path}.restartPolicy"), policy, supported));
    }
    choices::pod_spec(spec, path, errors);
    let mut names: Vec<&str> = Vec::new();
    for list in ["initContainers", "containers"] {
        for (index, container) in object::list(spec, &[list]).iter().enumerate() {
            let path = format!("{path}.{list}[{index}]");
            let name = object::text(container, &["name"]);
            if name.is_empty() {
                errors.push(FieldError::required(format!("{path}.name"), ""));
            } else if !metadata::is_label(name) {
                errors.push(FieldError::invalid(format!("{path}.name"), name, metadata::LABEL));
            } else if names.contains(&name) {
                let problem = Problem::Duplicate(name.into());
                errors.push(FieldError { field: format!("{path}.name"), problem });
            }
            names.push(name);
            if object::text(container, &["image"]).is_empty() {
                errors.push(FieldError::required(format!("{path}.image"), ""));
            }
            choices::container(container, &path, errors);
            containers::check(container, list, &volumes, &path, errors);
        }
    }
    metadata::labels(spec, &["nodeSelector"], &format!("{path}.nodeSelector"), errors);
    scheduling::check(spec, path, errors);
    for (index, toleration) in object::list(spec, &["tolerations"]).iter().enumerate() {
        self::toleration(toleration, &format!("{path}.tolerations[{index}]"), errors);
    }
}

fn toleration(toleration: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let text = |field: &str| object::text(toleration, &[field]);
    let (key, operator, value) = (text("key"), text("operator"), text("value"));
    let field = format!("{path}.operator");
    if !key.is_empty() && !metadata::is_qualified(key) {
        errors.push(FieldError::invalid(format!("{path}.key"), key, metadata::QUALIFIED));
    }
    if key.is_empty() && operator != "Exists" {
        let detail = "operator must be Exists when `key` is empty, which means \"match all values \
                      and all keys\"";
        errors.push(FieldError::invalid(&*field, operator, detail));
    }
    let lasts = toleration.get("tolerationSeconds").is_some_and(|seconds| !seconds.is_null());
    if lasts && text("effect") != "NoExecute" {
        let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        errors.push(FieldError::invalid(format!("{path}.effect"), text("effect"), detail));
    }
    match operator {
        "" | "Equal" => {
            if let Some(detail) = metadata::label_value_problem(value) {
                errors.push(FieldError::invalid(field, value, detail));
            }
        }
        "Exists" if value.is_empty() => {}
        "Exists" => {
            let detail = "value must be empty when `operator` is 'Exists'";
            errors.push(FieldError::invalid(field, value, detail));
        }
        "Lt" | "Gt" => {
            let supported = ["Equal", "Exists", "Lt", "Gt"].map(|one| json!(one)).to_vec();
            errors.push(FieldError::not_supported(field, operator, supported));
        }
        other => {
            let supported = vec![json!("Equal"), json!("Exists")];
            errors.push(FieldError::not_supported(field, other, supported));
        }
    }
    effect(toleration, path, true, errors);
}

fn job(spec: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for field in ["parallelism", "completions", "backoffLimit", "activeDeadlineSeconds"] {
        not_negative(spec, field, path, errors);
    }
    let path = format!("{path}.template.spec");
    pod_spec(&spec["template"]["spec"], &[], &path, errors);
    let policy = object::text(spec, &["template", "spec", "restartPolicy"]);
    let field = format!("{path}.restartPolicy");
    if matches!(policy, "" | "Always") {
        errors.push(FieldError::required(field, "valid values: \"OnFailure\", \"Never\""));
    } else {
        scheduling::one_of(policy, &["OnFailure", "Never"], field, errors);
    }
}

fn limit_range(spec: &Value, errors: &mut Vec<FieldError>) {
    for (index, item) in object::list(spec, &["limits"]).iter().enumerate() {
        let path = format!("spec.limits[{index}]");
        if object::text(item, &["type"]).is_empty() {
            errors.push(FieldError::required(format!("{path}.type"), ""));
        }
        for list in ["default", "defaultRequest", "min", "max"] {
            amounts_of(&item[list], &format!("{path}.{list}"), errors);
        }
        choices::limit(item, &path, errors);
    }
}

/// Most of a pod's spec cannot change once it exists.
fn pod_update(old: &Value, new: &Value, errors: &mut Vec<FieldError>) {
    let gated = !object::list(old, &["schedulingGates"]).is_empty();
    let frozen = |spec: &Value| {
        let mut spec = object::without(
            spec,
            &[
                "activeDeadlineSeconds",
                "tolerations",
                "schedulingGates",
                "terminationGracePeriodSeconds",
            ],
        );
        if gated {
            spec = object::without(&spec, &["nodeSelector", "affinity"]);
        }
        for list in ["containers", "initContainers"] {
            if let Some(Value::Array(containers)) = spec.get_mut(list) {
                for container in containers {
                    object::fields_mut(container).remove("image");
                }
            }
        }
        spec
    };
    if frozen(old) != frozen(new) {
        errors.push(FieldError::forbidden(
            "spec",
            "pod updates may not change fields other than `spec.containers[*].image`,\
             `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only \
             additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set \
             to 1 if it was previously negative)",
        ));
    }
    let kept = object::list(new, &["tolerations"]);
    if object::list(old, &["tolerations"]).iter().any(|toleration| !kept.contains(toleration)) {
        errors.push(FieldError::forbidden(
            "spec.tolerations",
            "existing toleration can not be modified except its tolerationSeconds",
        ));
    }
}

fn workload(spec: &Value, errors: &mut Vec<FieldError>) {
    let replicas = object::integer(spec, &["replicas"]).unwrap_or(0);
    if replicas < 0 {
        let detail = "must be greater than or equal to 0";
        errors.push(FieldError::invalid("spec.replicas", replicas, detail));
    }
    let Some(selector) =
        spec.get("selector").filter(|s| s.as_object().is_some_and(|s| !s.is_empty()))
    else {
        errors.push(FieldError::required("spec.selector", ""));
        return;
    };
    let labels = object::at(spec, &["template", "metadata", "labels"]);
    if !selectors::labels_match(&selectors::from_object(selector), labels) {
        errors.push(FieldError::invalid(
            "spec.template.metadata.labels",
            labels.cloned().unwrap_or_else(|| json!({})),
            "`selector` does not match template `labels`",
        ));
    }
    metadata::labels(spec, &["template", "metadata", "labels"], "spec.template.labels", errors);
    let claims: Vec<&str> = object::list(spec, &["volumeClaimTemplates"])
        .iter()
        .map(|template| object::text(template, &["metadata", "name"]))
        .collect();
    pod_spec(&spec["template"]["spec"], &claims, "spec.template.spec", errors);
    for field in ["minReadySeconds", "revisionHistoryLimit"] {
        not_negative(spec, field, "spec", errors);
    }
    let policy = object::text(spec, &["template", "spec", "restartPolicy"]);
    if !matches!(policy, "" | "Always") {
        let supported = vec![json!("Always")];
        errors.push(FieldError::not_supported(
            "spec.template.spec.restartPolicy",
            policy,
            supported,
        ));
    }
}

fn effect(value: &Value, path: &str, optional: bool, errors: &mut Vec<FieldError>) {
    let effect = object::text(value, &["effect"]);
    let known = matches!(effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute");
    if !(known || optional && effect.is_empty()) {
        let supported = vec![json!("NoSchedule"), json!("PreferNoSchedule"), json!("NoExecute")];
        errors.push(FieldError::not_supported(format!("{path}.effect"), effect, supported));
    }
}

fn node(old: Option<&Value>, spec: &Value, errors: &mut Vec<FieldError>) {
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for (index, taint) in object::list(spec, &["taints"]).iter().enumerate() {
        let path = format!("spec.taints[{index}]");
        let (key, effect_name) = (object::text(taint, &["key"]), object::text(taint, &["effect"]));
        if !metadata::is_qualified(key) {
            errors.push(FieldError::invalid(
                format!("{path}.key"),
                key,
                "name part must be non-empty",
            ));
        }
        effect(taint, &path, false, errors);
        if seen.contains(&(key, effect_name)) {
            errors.push(FieldError { field: path, problem: Problem::Duplicate(taint.clone()) });
        }
        seen.push((key, effect_name));
    }
    if let Some(old) = old {
        let held = object::text(old, &["spec", "providerID"]);
        if !held.is_empty() && held != object::text(spec, &["providerID"]) {
            let detail = "node updates may only change labels, taints, or capacity (or configSource, if \
                 the DynamicKubeletConfig feature gate is enabled)";
            errors.push(FieldError::forbidden("spec.providerID", detail));
        }
    }
}

fn budget(spec: &Value, errors: &mut Vec<FieldError>) {
    let given = |field: &str| spec.get(field).filter(|value| !value.is_null());
    if given("minAvailable").is_some() && given("maxUnavailable").is_some() {
        errors.push(FieldError::invalid(
            "spec",
            spec.clone(),
            "minAvailable and maxUnavailable cannot be both set",
        ));
    }
    for field in ["minAvailable", "maxUnavailable"] {
        let Some(value) = given(field) else { continue };
        let sound = match value {
            Value::String(text) => text
                .strip_suffix('%')
                .is_some_and(|digits| digits.parse::<u32>().is_ok_and(|percent| percent <= 100)),
            other => other.as_i64().is_some_and(|count| count >= 0),
        };
        if !sound {
            let detail = "must be a non-negative number or a percentage up to 100%";
            errors.push(FieldError::invalid(format!("spec.{field}"), value.clone(), detail));
        }
    }
}
