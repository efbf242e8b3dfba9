//! Structural validation with the messages of the real server, and ratcheting: on an update, a
//! part of the object that did not change is not judged again.

use serde_json::Value;

use super::schema::Schema;
use crate::error::{FieldError, Problem};

/// Validates a whole custom resource; `old` is the object an update replaces.
pub(crate) fn check(value: &Value, old: Option<&Value>, schema: &Schema) -> Vec<FieldError> {
    let mut errors = Vec::new();
    node(value, old, schema, "", &mut errors);
    errors
}

fn node(
    value: &Value,
    old: Option<&Value>,
    schema: &Schema,
    path: &str,
    errors: &mut Vec<FieldError>,
) {
    if old == Some(value) {
        return;
    }
    if value.is_null() && schema.nullable {
        return;
    }
    if !type_matches(value, schema) {
        let expected = if schema.int_or_string { "integer,string" } else { &schema.kind };
        let found = type_name(value);
        errors.push(FieldError {
            field: path.to_owned(),
            problem: Problem::TypeInvalid(
                found.into(),
                format!("{path} in body must be of type {expected}: \"{found}\""),
            ),
        });
        return;
    }
    if !schema.allowed.is_empty() && !schema.allowed.contains(value) {
        errors.push(FieldError::not_supported(path, value.clone(), schema.allowed.clone()));
    }
    match value {
        Value::String(text) => string(text, schema, path, errors),
        Value::Number(_) => number(value, schema, path, errors),
        Value::Array(items) => array(items, old, schema, path, errors),
        Value::Object(map) => {
            let count = map.len() as u64;
            if let Some(least) = schema.property_count.0.filter(|least| count < *least) {
                let detail = format!("{path} in body should have at least {least} properties");
                errors.push(FieldError::invalid(path, count, detail));
            }
            if let Some(most) = schema.property_count.1.filter(|most| count > *most) {
                errors.push(FieldError {
                    field: path.into(),
                    problem: Problem::TooMany(count, most),
                });
            }
            for name in schema.required.iter().filter(|name| !map.contains_key(*name)) {
                errors.push(FieldError::required(super::pruning::join(path, name), ""));
            }
            for (key, value) in map {
                // The server itself owns the metadata of the resource.
                if path.is_empty() && matches!(key.as_str(), "metadata" | "apiVersion" | "kind") {
                    continue;
                }
                if let Some(property) = schema.property(key) {
                    let old = old.and_then(|old| old.get(key));
                    node(value, old, property, &super::pruning::join(path, key), errors);
                }
            }
        }
        Value::Bool(_) | Value::Null => {}
    }
    junctors(value, schema, path, errors);
}

fn junctors(value: &Value, schema: &Schema, path: &str, errors: &mut Vec<FieldError>) {
    let passes = |branch: &Schema| {
        let mut found = Vec::new();
        node(value, None, branch, path, &mut found);
        found.is_empty()
    };
    let shown = || if path.is_empty() { "<nil>" } else { path };
    for branch in &schema.all_of {
        node(value, None, branch, path, errors);
    }
    if !schema.any_of.is_empty() && !schema.any_of.iter().any(passes) {
        let detail = format!("\"{}\" must validate at least one schema (anyOf)", shown());
        errors.push(FieldError::invalid(shown(), value.clone(), detail));
    }
    if !schema.one_of.is_empty() {
        let passed = schema.one_of.iter().filter(|branch| passes(branch)).count();
        if passed != 1 {
            let detail = format!(
                "\"{}\" must validate one and only one schema (oneOf). Found {}",
                shown(),
                if passed == 0 {
                    "none valid".to_owned()
                } else {
                    format!("{passed} valid alternatives")
                }
            );
            errors.push(FieldError::invalid(shown(), value.clone(), detail));
        }
    }
    if schema.not.as_deref().is_some_and(passes) {
        let detail = format!("\"{}\" must not validate the schema (not)", shown());
        errors.push(FieldError::invalid(shown(), value.clone(), detail));
    }
}

/// The first violation by a string, if any; later ones are not reported.
fn string(text: &str, schema: &Schema, path: &str, errors: &mut Vec<FieldError>) {
    let length = text.chars().count() as u64;
    if let Some(most) = schema.length.1.filter(|most| length > *most) {
        errors.push(FieldError { field: path.into(), problem: Problem::TooLong(most) });
        return;
    }
    let detail = if let Some(least) = schema.length.0.filter(|least| length < *least) {
        format!("{path} in body should be at least {least} chars long")
    } else if let Some(pattern) = schema.pattern.as_ref().filter(|pattern| !pattern.is_match(text))
    {
        format!("{path} in body should match '{pattern}'")
    } else if schema.format == "date-time" && text.parse::<jiff::Timestamp>().is_err() {
        format!("{path} in body must be of type date-time: \"{text}\"")
    } else {
        return;
    };
    errors.push(FieldError::invalid(path, text, detail));
}

fn number(value: &Value, schema: &Schema, path: &str, errors: &mut Vec<FieldError>) {
    let Some(found) = value.as_f64() else { return };
    let mut invalid =
        |detail: String| errors.push(FieldError::invalid(path, value.clone(), detail));
    if let Some((bound, exclusive)) = schema.minimum
        && (found < bound || (exclusive && found <= bound))
    {
        let relation = if exclusive { "greater than" } else { "greater than or equal to" };
        invalid(format!("{path} in body should be {relation} {bound}"));
    }
    if let Some((bound, exclusive)) = schema.maximum
        && (found > bound || (exclusive && found >= bound))
    {
        let relation = if exclusive { "less than" } else { "less than or equal to" };
        invalid(format!("{path} in body should be {relation} {bound}"));
    }
    if let Some(step) = schema.multiple_of
        && step > 0.0
        && (found / step).fract().abs() > f64::EPSILON
    {
        invalid(format!("{path} in body should be a multiple of {step}"));
    }
    if schema.format == "int32" && value.as_i64().is_none_or(|n| i32::try_from(n).is_err()) {
        invalid(format!("{path} in body must be of type int32: \"{value}\""));
    }
}

fn array(
    items: &[Value],
    old: Option<&Value>,
    schema: &Schema,
    path: &str,
    errors: &mut Vec<FieldError>,
) {
    let count = items.len() as u64;
    if let Some(least) = schema.item_count.0.filter(|least| count < *least) {
        let detail = format!("{path} in body should have at least {least} items");
        errors.push(FieldError::invalid(path, count, detail));
    }
    if let Some(most) = schema.item_count.1.filter(|most| count > *most) {
        errors.push(FieldError { field: path.into(), problem: Problem::TooMany(count, most) });
    }
    let identity = |item: &Value| -> Option<Value> {
        match schema.list_type.as_str() {
            "set" => Some(item.clone()),
            "map" => {
                let keys = schema.list_keys.iter();
                Some(
                    keys.map(|key| (key.clone(), item.get(key).cloned().unwrap_or_default()))
                        .collect(),
                )
            }
            _ if schema.unique_items => Some(item.clone()),
            _ => None,
        }
    };
    let mut seen: Vec<Value> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let identity_of_item = identity(item);
        if let Some(identity) = &identity_of_item {
            if seen.contains(identity) {
                let problem = Problem::Duplicate(identity.clone());
                errors.push(FieldError { field: path.clone(), problem });
            }
            seen.push(identity.clone());
        }
        if let Some(schema_of_items) = &schema.items {
            // Only the elements of a map list can be told apart across an update.
            let old = (schema.list_type == "map")
                .then(|| old.and_then(Value::as_array))
                .flatten()
                .and_then(|old| old.iter().find(|old| identity(old) == identity_of_item));
            node(item, old, schema_of_items, &path, errors);
        }
    }
}

pub(crate) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn type_matches(value: &Value, schema: &Schema) -> bool {
    let whole = |value: &Value| {
        value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|n| n.fract() == 0.0)
    };
    if schema.int_or_string {
        return value.is_string() || whole(value);
    }
    match schema.kind.as_str() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => whole(value),
        "number" => value.is_number(),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema() -> Schema {
        Schema::parse(
            &json!({"type": "object", "required": ["spec"], "properties": {"spec": {"type": "object", "required": ["kind"], "properties": {
                "kind": {"type": "string", "enum": ["a", "b"]},
                "weight": {"type": "integer", "minimum": 1, "maximum": 100},
                "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 4},
                "port": {"x-kubernetes-int-or-string": true},
                "items": {"type": "array", "maxItems": 2, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
                    "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "integer"}}}},
                "one": {"type": "object", "oneOf": [{"required": ["x"]}, {"required": ["y"]}], "x-kubernetes-preserve-unknown-fields": true},
            }}}}),
            "",
        )
        .unwrap()
    }

    fn messages(spec: &Value, old: Option<&Value>) -> Vec<String> {
        let old = old.map(|old| json!({"spec": old}));
        check(&json!({"spec": spec}), old.as_ref(), &schema())
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn messages_are_those_of_the_real_server() {
        assert_eq!(messages(&json!({"kind": "a", "port": "http", "one": {"x": 1}}), None), [""; 0]);
        assert_eq!(messages(&json!({}), None), ["spec.kind: Required value"]);
        assert_eq!(
            messages(&json!({"kind": "a", "name": "ABC"}), None),
            [r#"spec.name: Invalid value: "ABC": spec.name in body should match '^[a-z]+$'"#]
        );
        assert_eq!(
            messages(&json!({"kind": "c", "weight": 0, "name": "ABCDE", "port": true}), None),
            [
                r#"spec.kind: Unsupported value: "c": supported values: "a", "b""#,
                "spec.name: Too long: may not be more than 4 bytes",
                r#"spec.port: Invalid value: "boolean": spec.port in body must be of type integer,string: "boolean""#,
                "spec.weight: Invalid value: 0: spec.weight in body should be greater than or equal to 1",
            ]
        );
        assert_eq!(
            messages(&json!({"kind": "a", "items": [{"k": "1"}, {"k": "1", "v": "x"}]}), None),
            [
                r#"spec.items[1]: Duplicate value: {"k":"1"}"#,
                r#"spec.items[1].v: Invalid value: "string": spec.items[1].v in body must be of type integer: "string""#,
            ]
        );
        assert_eq!(messages(&json!({"kind": "a", "one": {}}), None).len(), 1);
    }

    #[test]
    fn unchanged_parts_are_not_judged_again() {
        let old = json!({"kind": "c", "weight": 5});
        assert_eq!(messages(&json!({"kind": "c", "weight": 6}), Some(&old)), [""; 0]);
        assert_eq!(messages(&json!({"kind": "d", "weight": 6}), Some(&old)).len(), 1);
    }
}
