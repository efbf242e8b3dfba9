//! Pruning: fields the schema does not know are dropped, and reported so that strict requests can
//! be refused and the others warned.

use serde_json::Value;

use super::schema::{Additional, Schema};

/// Prunes a whole custom resource; returns the paths of the dropped fields.
pub(crate) fn apply(value: &mut Value, schema: &Schema) -> Vec<String> {
    let mut dropped = Vec::new();
    prune(value, schema, true, "", &mut dropped);
    dropped
}

fn prune(
    value: &mut Value,
    schema: &Schema,
    resource: bool,
    path: &str,
    dropped: &mut Vec<String>,
) {
    match value {
        Value::Object(map) => {
            let special = |key: &str| resource && matches!(key, "apiVersion" | "kind" | "metadata");
            if !schema.preserve_unknown && matches!(schema.additional, Additional::None) {
                let unknown: Vec<String> = map
                    .keys()
                    .filter(|key| !special(key) && !schema.properties.contains_key(*key))
                    .cloned()
                    .collect();
                for key in unknown {
                    map.remove(&key);
                    dropped.push(join(path, &key));
                }
            }
            for (key, value) in map.iter_mut() {
                if let (false, Some(property)) = (special(key), schema.property(key)) {
                    prune(value, property, property.embedded_resource, &join(path, key), dropped);
                }
            }
        }
        Value::Array(items) => {
            if let Some(schema) = &schema.items {
                for (index, item) in items.iter_mut().enumerate() {
                    let path = format!("{path}[{index}]");
                    prune(item, schema, schema.embedded_resource, &path, dropped);
                }
            }
        }
        _ => {}
    }
}

pub(crate) fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn unknown_fields_go_and_preserved_ones_stay() {
        let schema = Schema::parse(
            &json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "list": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}},
            }}}}),
            "",
        )
        .unwrap();
        let mut value = json!({"kind": "X", "metadata": {"name": "x"}, "other": 1, "spec": {
            "free": {"any": {"thing": 1}}, "labels": {"k": "v"}, "list": [{"a": "1", "b": "2"}], "c": 3}});
        let dropped = apply(&mut value, &schema);
        assert_eq!(dropped, ["other", "spec.c", "spec.list[0].b"]);
        assert_eq!(
            value,
            json!({"kind": "X", "metadata": {"name": "x"}, "spec": {
                "free": {"any": {"thing": 1}}, "labels": {"k": "v"}, "list": [{"a": "1"}]}})
        );
    }
}
