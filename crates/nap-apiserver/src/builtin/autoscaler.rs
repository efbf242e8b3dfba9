//! Checks of HorizontalPodAutoscalers: bounds, target, metrics, behaviour.

use nap_units::Quantity;
use serde_json::Value;

use super::scheduling::one_of;
use crate::error::FieldError;
use crate::object;

const TYPES: [(&str, &str); 5] = [
    ("ContainerResource", "containerResource"),
    ("External", "external"),
    ("Object", "object"),
    ("Pods", "pods"),
    ("Resource", "resource"),
];
const MAX_WINDOW_SECONDS: i64 = 3600;
const MAX_PERIOD_SECONDS: i64 = 1800;

/// Checks the spec of `autoscaling/v2`.
pub(super) fn check(spec: &Value, errors: &mut Vec<FieldError>) {
    let least = object::integer(spec, &["minReplicas"]);
    let most = object::integer(spec, &["maxReplicas"]).unwrap_or(0);
    if let Some(least) = least.filter(|least| *least < 1) {
        let detail = "must be greater than or equal to 1";
        errors.push(FieldError::invalid("spec.minReplicas", least, detail));
    }
    if most == 0 {
        errors.push(FieldError::required("spec.maxReplicas", "must be set and greater than 0"));
    } else if most < 0 {
        let detail = "must be greater than or equal to 1";
        errors.push(FieldError::invalid("spec.maxReplicas", most, detail));
    }
    if most < least.unwrap_or(i64::MIN) {
        let detail = "must be greater than or equal to `minReplicas`";
        errors.push(FieldError::invalid("spec.maxReplicas", most, detail));
    }
    for field in ["kind", "name"] {
        if object::text(spec, &["scaleTargetRef", field]).is_empty() {
            errors.push(FieldError::required(format!("spec.scaleTargetRef.{field}"), ""));
        }
    }
    let mut scales_to_zero = false;
    for (index, metric) in object::list(spec, &["metrics"]).iter().enumerate() {
        self::metric(metric, &format!("spec.metrics[{index}]"), errors);
        scales_to_zero |= matches!(object::text(metric, &["type"]), "Object" | "External");
    }
    if least == Some(0) && !scales_to_zero {
        let detail = "must specify at least one Object or External metric to support scaling to \
                      zero replicas";
        errors.push(FieldError::forbidden("spec.metrics", detail));
    }
    for direction in ["scaleUp", "scaleDown"] {
        if let Some(rules) = object::at(spec, &["behavior", direction]).filter(|r| r.is_object()) {
            scaling_rules(rules, &format!("spec.behavior.{direction}"), errors);
        }
    }
}

fn metric(metric: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let kind = object::text(metric, &["type"]);
    let known = TYPES.map(|(name, _)| name);
    let field = format!("{path}.type");
    if kind.is_empty() {
        errors.push(FieldError::required(&*field, "must specify a metric source type"));
    }
    one_of(kind, &known, field.clone(), errors);
    let given = |name: &str| metric.get(name).filter(|source| source.is_object());
    // The real server looks into the first source that it finds, in this order.
    let order = ["object", "external", "pods", "resource", "containerResource"];
    if let Some((name, source)) = order.iter().find_map(|name| Some((*name, given(name)?))) {
        self::source(name, source, &format!("{path}.{name}"), errors);
    }
    let expected = TYPES.iter().find(|(name, _)| *name == kind).map(|(_, source)| *source);
    match expected {
        Some(source) if given(source).is_none() => {
            let detail = "must populate information for the given metric source";
            errors.push(FieldError::required(format!("{path}.{source}"), detail));
        }
        Some(_) => {}
        // The real server says it twice.
        None => one_of(kind, &known, field, errors),
    }
    let present: Vec<&str> = order.into_iter().filter(|name| given(name).is_some()).collect();
    if present.len() > 1 {
        for name in present.into_iter().filter(|name| Some(*name) != expected) {
            let detail = "must populate the given metric source only";
            errors.push(FieldError::forbidden(format!("{path}.{name}"), detail));
        }
    }
}

fn source(kind: &str, source: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let by_resource = matches!(kind, "resource" | "containerResource");
    if by_resource {
        if object::text(source, &["name"]).is_empty() {
            let detail = "must specify a resource name";
            errors.push(FieldError::required(format!("{path}.name"), detail));
        }
        if kind == "containerResource" && object::text(source, &["container"]).is_empty() {
            let detail = "must specify a container";
            errors.push(FieldError::required(format!("{path}.container"), detail));
        }
    } else if object::text(source, &["metric", "name"]).is_empty() {
        let detail = "must specify a metric name";
        errors.push(FieldError::required(format!("{path}.metric.name"), detail));
    }
    let path = format!("{path}.target");
    let target = source.get("target").unwrap_or(&Value::Null);
    let kind_of_target = object::text(target, &["type"]);
    let field = format!("{path}.type");
    if kind_of_target.is_empty() {
        errors.push(FieldError::required(&*field, "must specify a metric target type"));
    }
    if !matches!(kind_of_target, "Utilization" | "Value" | "AverageValue") {
        let detail = "must be either Utilization, Value, or AverageValue";
        errors.push(FieldError::invalid(field, kind_of_target, detail));
    }
    for field in ["value", "averageValue"] {
        let text = object::text(target, &[field]);
        if text.parse().is_ok_and(|amount: Quantity| amount <= Quantity::from_units(0)) {
            errors.push(FieldError::invalid(format!("{path}.{field}"), text, "must be positive"));
        }
    }
    let utilization = object::integer(target, &["averageUtilization"]);
    if let Some(percent) = utilization.filter(|percent| *percent < 1) {
        let field = format!("{path}.averageUtilization");
        errors.push(FieldError::invalid(field, percent, "must be greater than 0"));
    }
    let has = |field: &str| target.get(field).is_some_and(|value| !value.is_null());
    let missing = match kind {
        "resource" | "containerResource" if utilization.is_none() && !has("averageValue") => Some(
            ("averageUtilization", "must set either a target raw value or a target utilization"),
        ),
        "object" if !has("value") && !has("averageValue") => {
            Some(("averageValue", "must set either a target value or averageValue"))
        }
        "external" if !has("value") && !has("averageValue") => {
            Some(("averageValue", "must set either a target value for metric or a per-pod target"))
        }
        "pods" if !has("averageValue") => {
            Some(("averageValue", "must specify a positive target averageValue"))
        }
        _ => None,
    };
    if let Some((field, detail)) = missing {
        errors.push(FieldError::required(format!("{path}.{field}"), detail));
    }
    if by_resource && utilization.is_some() && has("averageValue") {
        let detail = "may not set both a target raw value and a target utilization";
        errors.push(FieldError::forbidden(format!("{path}.averageValue"), detail));
    }
}

fn scaling_rules(rules: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if let Some(window) = object::integer(rules, &["stabilizationWindowSeconds"]) {
        let field = format!("{path}.stabilizationWindowSeconds");
        if window < 0 {
            let detail = "must be greater than or equal to zero";
            errors.push(FieldError::invalid(field, window, detail));
        } else if window > MAX_WINDOW_SECONDS {
            let detail = format!("must be less than or equal to {MAX_WINDOW_SECONDS}");
            errors.push(FieldError::invalid(field, window, detail));
        }
    }
    let select = object::text(rules, &["selectPolicy"]);
    if !select.is_empty() {
        one_of(select, &["Disabled", "Max", "Min"], format!("{path}.selectPolicy"), errors);
    }
    let policies = object::list(rules, &["policies"]);
    for (index, policy) in policies.iter().enumerate() {
        let path = format!("{path}.policies[{index}]");
        let kind = object::text(policy, &["type"]);
        one_of(kind, &["Percent", "Pods"], format!("{path}.type"), errors);
        for field in ["value", "periodSeconds"] {
            let number = object::integer(policy, &[field]).unwrap_or(0);
            let field_path = format!("{path}.{field}");
            if number <= 0 {
                let detail = "must be greater than zero";
                errors.push(FieldError::invalid(field_path, number, detail));
            } else if field == "periodSeconds" && number > MAX_PERIOD_SECONDS {
                let detail = format!("must be less than or equal to {MAX_PERIOD_SECONDS}");
                errors.push(FieldError::invalid(field_path, number, detail));
            }
        }
    }
}
