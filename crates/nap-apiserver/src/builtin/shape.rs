//! Types of the fields of built-in kinds. Decoding stops at the first field of a wrong type and
//! does not name it; this walk finds all of them, and the names that an unknown field may have
//! meant.

use schemars::{Schema, SchemaGenerator};
use serde_json::Value;

use crate::crd::type_name;
use crate::error::{FieldError, Problem};
use crate::object;

/// Prefix of a reference to another definition of the same schema.
const DEFINITIONS: &str = "#/$defs/";
/// Maximum depth of a walk; JSON itself is refused beyond 128.
const MAX_DEPTH: usize = 200;

/// The types of a built-in kind: a reference to its schema, beside all definitions.
pub(crate) fn types(add: fn(&mut SchemaGenerator) -> Schema) -> Value {
    let mut generator = SchemaGenerator::default();
    let mut root = add(&mut generator).to_value();
    root["$defs"] = Value::Object(generator.take_definitions(true));
    root
}

/// Removes every field of a wrong type, and says which and why.
pub(crate) fn remove_wrong_types(root: &Value, value: &mut Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    node(root, root, value, "", MAX_DEPTH, &mut errors);
    errors
}

/// The field names at the place where an unknown field stands.
pub(crate) fn names_beside<'a>(root: &'a Value, path: &str) -> Vec<&'a str> {
    let mut schema = root;
    let mut steps: Vec<&str> = path.split('.').collect();
    steps.pop();
    for step in steps {
        let (name, rest) = step.split_once('[').map_or((step, ""), |(name, rest)| (name, rest));
        let Some(next) = property(root, schema, name) else { return Vec::new() };
        schema = next;
        for _ in rest.split('[').filter(|index| !index.is_empty()) {
            let Some(items) = resolve(root, schema).get("items") else { return Vec::new() };
            schema = items;
        }
    }
    let fields = resolve(root, schema).get("properties").and_then(Value::as_object);
    fields.into_iter().flat_map(|fields| fields.keys()).map(String::as_str).collect()
}

fn resolve<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    let name = schema.get("$ref").and_then(Value::as_str);
    let definition = name.and_then(|name| root.get("$defs")?.get(name.strip_prefix(DEFINITIONS)?));
    definition.unwrap_or(schema)
}

fn property<'a>(root: &'a Value, schema: &'a Value, name: &str) -> Option<&'a Value> {
    let schema = resolve(root, schema);
    let listed = schema.get("properties").and_then(|fields| fields.get(name));
    listed.or_else(|| schema.get("additionalProperties").filter(|value| value.is_object()))
}

/// Whether a value has the type of its field; `false` removes it from its parent.
fn node(
    root: &Value,
    schema: &Value,
    value: &mut Value,
    path: &str,
    depth: usize,
    errors: &mut Vec<FieldError>,
) -> bool {
    // Null means absent.
    if value.is_null() || depth == 0 {
        return true;
    }
    let schema = resolve(root, schema);
    let flag = |key: &str| schema.get(key).and_then(Value::as_bool) == Some(true);
    let expected = object::text(schema, &["type"]);
    let sound = match expected {
        _ if flag("x-kubernetes-int-or-string") => value.is_string() || value.is_number(),
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => match object::text(schema, &["format"]) {
            "int32" => value.as_i64().is_some_and(|number| i32::try_from(number).is_ok()),
            _ => value.is_i64() || value.is_u64(),
        },
        "number" => value.is_number(),
        _ => true,
    };
    if !sound {
        let expected = if expected.is_empty() { "number or string" } else { expected };
        let found = match value {
            Value::Number(_) | Value::String(_) | Value::Bool(_) => value.to_string(),
            other => type_name(other).to_owned(),
        };
        let problem = Problem::Rule(format!("{found}: must be of type {expected}"));
        errors.push(FieldError { field: path.to_owned(), problem });
        return false;
    }
    match value {
        Value::Object(fields) => {
            let names: Vec<String> = fields.keys().cloned().collect();
            for name in names {
                let Some(schema) = property(root, schema, &name) else { continue };
                let listed = schema_lists(root, path, schema);
                let path = join(path, &name, listed);
                let Some(value) = fields.get_mut(&name) else { continue };
                if !node(root, schema, value, &path, depth - 1, errors) {
                    fields.remove(&name);
                }
            }
        }
        Value::Array(items) => {
            let Some(schema) = schema.get("items") else { return true };
            let mut index = 0;
            items.retain_mut(|item| {
                let path = format!("{path}[{index}]");
                index += 1;
                node(root, schema, item, &path, depth - 1, errors)
            });
        }
        _ => {}
    }
    true
}

/// Whether a field is an entry of a resource list, which is written in brackets.
fn schema_lists(root: &Value, path: &str, schema: &Value) -> bool {
    let is_quantity = resolve(root, schema).get("x-kubernetes-int-or-string").is_some();
    is_quantity && ["requests", "limits", "hard", "overhead"].iter().any(|end| path.ends_with(end))
}

fn join(path: &str, name: &str, in_brackets: bool) -> String {
    match (path.is_empty(), in_brackets) {
        (true, _) => name.to_owned(),
        (false, true) => format!("{path}[{name}]"),
        (false, false) => format!("{path}.{name}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn deployment() -> Value {
        let found = crate::resources::builtin();
        let resource = found.iter().find(|resource| resource.kind == "Deployment").unwrap();
        types(resource.json_schema.unwrap())
    }

    #[test]
    fn every_wrong_type_is_named_and_removed() {
        let mut value = json!({ "spec": {
            "replicas": "three",
            "paused": "no",
            "minReadySeconds": 5_000_000_000_i64,
            "template": { "spec": { "containers": [
                { "name": 7, "resources": { "requests": { "cpu": true, "memory": 1 } } },
                "sidecar",
            ], "nodeSelector": { "a": 1 } } },
        } });
        let errors = remove_wrong_types(&deployment(), &mut value);
        let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
        assert_eq!(
            fields,
            [
                "spec.minReadySeconds",
                "spec.paused",
                "spec.replicas",
                "spec.template.spec.containers[0].name",
                "spec.template.spec.containers[0].resources.requests[cpu]",
                "spec.template.spec.containers[1]",
                "spec.template.spec.nodeSelector.a",
            ]
        );
        assert_eq!(
            errors[2].to_string(),
            "spec.replicas: Invalid value: \"three\": must be of type integer"
        );
        let containers = json!([{ "resources": { "requests": { "memory": 1 } } }]);
        assert_eq!(value["spec"]["template"]["spec"]["containers"], containers);
    }

    #[test]
    fn names_beside_an_unknown_field_are_those_of_its_object() {
        let schema = deployment();
        let names = names_beside(&schema, "spec.template.spec.containers[0].imag");
        assert!(names.contains(&"image") && !names.contains(&"nodeSelector"), "{names:?}");
        assert!(names_beside(&schema, "spec.template.spec.nodeSelectr").contains(&"nodeSelector"));
        assert!(names_beside(&schema, "spec.wrong.deeper").is_empty());
    }
}
