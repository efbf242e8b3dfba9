//! Checks of the fields by which pods choose nodes: affinity and topology spread.

use serde_json::{Value, json};

use super::metadata;
use crate::error::FieldError;
use crate::object;

/// Checks the affinity and the spread constraints of a pod spec.
pub(super) fn check(spec: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for (index, constraint) in object::list(spec, &["topologySpreadConstraints"]).iter().enumerate()
    {
        spread(constraint, &format!("{path}.topologySpreadConstraints[{index}]"), errors);
    }
    let affinity = spec.get("affinity").unwrap_or(&Value::Null);
    let path = format!("{path}.affinity");
    node_affinity(&affinity["nodeAffinity"], &format!("{path}.nodeAffinity"), errors);
    for kind in ["podAffinity", "podAntiAffinity"] {
        pod_affinity(&affinity[kind], &format!("{path}.{kind}"), errors);
    }
}

fn spread(constraint: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let max_skew = object::integer(constraint, &["maxSkew"]).unwrap_or(0);
    if max_skew <= 0 {
        let field = format!("{path}.maxSkew");
        errors.push(FieldError::invalid(field, max_skew, "must be greater than zero"));
    }
    topology_key(constraint, path, errors);
    let when = object::text(constraint, &["whenUnsatisfiable"]);
    one_of(when, &["DoNotSchedule", "ScheduleAnyway"], format!("{path}.whenUnsatisfiable"), errors);
    if let Some(least) = object::integer(constraint, &["minDomains"]) {
        let field = format!("{path}.minDomains");
        if least <= 0 {
            errors.push(FieldError::invalid(field, least, "must be greater than zero"));
        } else if when == "ScheduleAnyway" {
            let detail = "can only use minDomains if whenUnsatisfiable=DoNotSchedule, not \
                          ScheduleAnyway";
            errors.push(FieldError::invalid(field, least, detail));
        }
    }
    for policy in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
        let text = object::text(constraint, &[policy]);
        if !text.is_empty() {
            one_of(text, &["Ignore", "Honor"], format!("{path}.{policy}"), errors);
        }
    }
    selector(&constraint["labelSelector"], &format!("{path}.labelSelector"), errors);
}

fn node_affinity(affinity: &Value, path: &str, errors: &mut Vec<FieldError>) {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
    if let Some(required) = affinity.get(REQUIRED).filter(|value| !value.is_null()) {
        let path = format!("{path}.{REQUIRED}.nodeSelectorTerms");
        let terms = object::list(required, &["nodeSelectorTerms"]);
        if terms.is_empty() {
            let detail = "must have at least one node selector term";
            errors.push(FieldError::required(path.clone(), detail));
        }
        for (index, term) in terms.iter().enumerate() {
            node_term(term, &format!("{path}[{index}]"), errors);
        }
    }
    for (index, preferred) in object::list(affinity, &[PREFERRED]).iter().enumerate() {
        let path = format!("{path}.{PREFERRED}[{index}]");
        weight(preferred, &path, errors);
        node_term(&preferred["preference"], &format!("{path}.preference"), errors);
    }
}

fn node_term(term: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for list in ["matchExpressions", "matchFields"] {
        for (index, expression) in object::list(term, &[list]).iter().enumerate() {
            let path = format!("{path}.{list}[{index}]");
            expression_of(expression, &["Gt", "Lt"], &path, errors);
        }
    }
}

/// Checks one expression; `ordered` are the operators that compare with one number.
fn expression_of(value: &Value, ordered: &[&str], path: &str, errors: &mut Vec<FieldError>) {
    let operator = object::text(value, &["operator"]);
    let values = object::list(value, &["values"]);
    match operator {
        "In" | "NotIn" if values.is_empty() => {
            let detail = "must be specified when `operator` is 'In' or 'NotIn'";
            errors.push(FieldError::required(format!("{path}.values"), detail));
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            errors.push(FieldError::forbidden(format!("{path}.values"), detail));
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        other if ordered.contains(&other) => {
            if values.len() != 1 {
                let detail = "must be specified single value when `operator` is 'Lt' or 'Gt'";
                errors.push(FieldError::required(format!("{path}.values"), detail));
            }
        }
        other => {
            let known = ["In", "NotIn", "Exists", "DoesNotExist"];
            let known: Vec<&str> = known.iter().chain(ordered).copied().collect();
            one_of(other, &known, format!("{path}.operator"), errors);
        }
    }
    let key = object::text(value, &["key"]);
    if !metadata::is_qualified(key) {
        let detail = "name part must consist of alphanumeric characters, '-', '_' or '.', and \
                      must start and end with an alphanumeric character";
        errors.push(FieldError::invalid(format!("{path}.key"), key, detail));
    }
}

fn pod_affinity(affinity: &Value, path: &str, errors: &mut Vec<FieldError>) {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
    for (index, term) in object::list(affinity, &[REQUIRED]).iter().enumerate() {
        pod_term(term, &format!("{path}.{REQUIRED}[{index}]"), errors);
    }
    for (index, preferred) in object::list(affinity, &[PREFERRED]).iter().enumerate() {
        let path = format!("{path}.{PREFERRED}[{index}]");
        weight(preferred, &path, errors);
        pod_term(&preferred["podAffinityTerm"], &format!("{path}.podAffinityTerm"), errors);
    }
}

fn pod_term(term: &Value, path: &str, errors: &mut Vec<FieldError>) {
    topology_key(term, path, errors);
    for kind in ["labelSelector", "namespaceSelector"] {
        selector(&term[kind], &format!("{path}.{kind}"), errors);
    }
}

/// Checks a label selector.
pub(super) fn selector(selector: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for (index, expression) in object::list(selector, &["matchExpressions"]).iter().enumerate() {
        expression_of(expression, &[], &format!("{path}.matchExpressions[{index}]"), errors);
    }
    metadata::labels(selector, &["matchLabels"], &format!("{path}.matchLabels"), errors);
}

fn topology_key(value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if object::text(value, &["topologyKey"]).is_empty() {
        let field = format!("{path}.topologyKey");
        errors.push(FieldError::required(field, "can not be empty"));
    }
}

fn weight(value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let weight = object::integer(value, &["weight"]).unwrap_or(0);
    if !(1..=100).contains(&weight) {
        let field = format!("{path}.weight");
        errors.push(FieldError::invalid(field, weight, "must be in the range 1-100"));
    }
}

/// Refuses a value that is none of the known ones.
pub(super) fn one_of(text: &str, known: &[&str], field: String, errors: &mut Vec<FieldError>) {
    if !known.contains(&text) {
        let known = known.iter().map(|value| json!(value)).collect();
        errors.push(FieldError::not_supported(field, text, known));
    }
}
