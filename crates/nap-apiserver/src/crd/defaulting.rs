//! Structural defaulting. A default that was just inserted is itself defaulted, as in the real
//! server: an empty object as default thus comes out with all of its own defaults.

use serde_json::Value;

use super::schema::Schema;

/// Fills defaults into `value` and drops nulls that the schema does not allow and cannot default.
pub(crate) fn apply(value: &mut Value, schema: &Schema) {
    match value {
        Value::Object(map) => {
            let dropped: Vec<String> = map
                .iter()
                .filter(|(key, value)| {
                    value.is_null() && schema.property(key).is_some_and(|s| !s.nullable)
                })
                .map(|(key, _)| key.clone())
                .collect();
            for key in dropped {
                map.remove(&key);
            }
            for (name, property) in &schema.properties {
                if let Some(default) = &property.default
                    && !map.contains_key(name)
                {
                    map.insert(name.clone(), default.clone());
                }
            }
            for (key, value) in map.iter_mut() {
                if let Some(property) = schema.property(key) {
                    apply(value, property);
                }
            }
        }
        Value::Array(items) => {
            if let Some(schema) = &schema.items {
                for item in items {
                    if item.is_null()
                        && !schema.nullable
                        && let Some(default) = &schema.default
                    {
                        *item = default.clone();
                    }
                    apply(item, schema);
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn inserted_defaults_are_defaulted_too() {
        let schema = Schema::parse(
            &json!({"type": "object", "properties": {"spec": {"type": "object", "default": {"after": "0s"}, "properties": {
                "after": {"type": "string"},
                "policy": {"type": "string", "default": "WhenEmpty"},
                "budgets": {"type": "array", "default": [{}], "items": {"type": "object", "properties": {
                    "nodes": {"type": "string", "default": "10%"}}}},
            }}}}),
            "",
        )
        .unwrap();
        let mut value = json!({});
        apply(&mut value, &schema);
        assert_eq!(
            value,
            json!({"spec": {"after": "0s", "policy": "WhenEmpty", "budgets": [{"nodes": "10%"}]}})
        );
        let mut value = json!({"spec": {"policy": null, "after": null}});
        apply(&mut value, &schema);
        assert_eq!(value, json!({"spec": {"policy": "WhenEmpty", "budgets": [{"nodes": "10%"}]}}));
    }
}
