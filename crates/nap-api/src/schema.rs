//! Parts of the schemas that cannot be derived: rules across fields, list types, and what several
//! kinds share.
//!
//! A path names a place in a schema: `spec.taints[].key` is the property `key` of the items of
//! `spec.taints`.

use serde_json::{Map, Value, json};

/// Merges keys into the schema at a path; `null` removes a key.
///
/// The paths stand in our own code, so a path that leads nowhere is a mistake in it.
pub(crate) fn patch(schema: &mut Value, path: &str, change: &Value) {
    let target = locate(schema, path).and_then(Value::as_object_mut);
    let target = target.unwrap_or_else(|| panic!("the schema has no `{path}`"));
    for (key, value) in change.as_object().into_iter().flatten() {
        if value.is_null() {
            target.remove(key);
        } else {
            target.insert(key.clone(), value.clone());
        }
    }
}

fn locate<'a>(schema: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    let mut place = schema;
    for step in path.split('.').filter(|step| !step.is_empty()) {
        let name = step.trim_end_matches("[]");
        place = place.get_mut("properties")?.get_mut(name)?;
        for _ in 0..(step.len() - name.len()) / 2 {
            place = place.get_mut("items")?;
        }
    }
    Some(place)
}

/// A rule in the expression language of Kubernetes, and what a user reads when it is broken.
pub(crate) fn rule(rule: &str, message: &str) -> Value {
    json!({ "rule": rule, "message": message })
}

/// Adds rules to the schema at a path, after those that are there.
pub(crate) fn rules(schema: &mut Value, path: &str, rules: impl IntoIterator<Item = Value>) {
    let key = "x-kubernetes-validations";
    let there = locate(schema, path).and_then(|place| place.get(key)).and_then(Value::as_array);
    let all: Vec<Value> = there.into_iter().flatten().cloned().chain(rules).collect();
    patch(schema, path, &json!({ key: all }));
}

/// Brings a derived schema into the shape that API servers take: absent instead of null, and
/// quantities as they are everywhere.
pub(crate) fn tidy(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            map.remove("nullable");
            if map.contains_key("x-kubernetes-int-or-string") {
                map.insert(
                    "anyOf".to_owned(),
                    json!([{ "type": "integer" }, { "type": "string" }]),
                );
                return;
            }
            map.values_mut().for_each(tidy);
        }
        Value::Array(items) => items.iter_mut().for_each(tidy),
        _ => {}
    }
}

/// `name` or `prefix/name`, the prefix a DNS name in lower case.
const QUALIFIED_NAME: &str = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*(\/))?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$";
/// That pattern, or the empty string.
const QUALIFIED_NAME_OR_EMPTY: &str = r"^(([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*(\/))?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$";
/// Pattern of a label value.
const LABEL_VALUE: &str = r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$";

/// A list of requirements. Those of a NodePool may not name the pool's own label, and those of an
/// overlay have no `minValues`.
pub(crate) fn requirements(schema: &mut Value, path: &str, nodepool: bool, overlay: bool) {
    patch(schema, path, &json!({ "x-kubernetes-list-type": "atomic" }));
    let key = format!("{path}[].key");
    patch(schema, &key, &json!({ "maxLength": 316, "pattern": QUALIFIED_NAME }));
    patch(schema, &format!("{path}[].values"), &json!({ "x-kubernetes-list-type": "atomic" }));
    let domain = r#"self in ["karpenter.sh/capacity-type", "karpenter.sh/nodepool"] || !self.find("^([^/]+)").endsWith("karpenter.sh")"#;
    rules(schema, &key, [rule(domain, "label domain \"karpenter.sh\" is restricted")]);
    if nodepool {
        let own = r#"self != "karpenter.sh/nodepool""#;
        rules(schema, &key, [rule(own, "label \"karpenter.sh/nodepool\" is restricted")]);
    }
    let hostname = r#"self != "kubernetes.io/hostname""#;
    rules(schema, &key, [rule(hostname, "label \"kubernetes.io/hostname\" is restricted")]);
    let filled = |operator: &str| {
        rule(
            &format!(
                "self.all(x, x.operator != '{operator}' || (has(x.values) && x.values.size() > 0))"
            ),
            &format!("requirements with operator '{operator}' must have a value defined"),
        )
    };
    if overlay {
        rules(schema, path, [filled("NotIn")]);
    }
    let numeric = "self.all(x, !(x.operator in ['Gt', 'Lt', 'Gte', 'Lte']) || \
                   (has(x.values) && x.values.size() == 1 && int(x.values[0]) >= 0))";
    let message = "requirements operator 'Gt', 'Lt', 'Gte', or 'Lte' must have a single positive integer value";
    rules(schema, path, [filled("In"), rule(numeric, message)]);
    if !overlay {
        let enough = "self.all(x, x.operator != 'In' || !has(x.minValues) || (has(x.values) && x.values.size() >= x.minValues))";
        let message = "requirements with 'minValues' must have at least that many values specified in the 'values' field";
        rules(schema, path, [rule(enough, message)]);
    }
}

/// A list of taints. The bounds are far beyond what a node can carry; they keep the rule's cost
/// known.
pub(crate) fn taints(schema: &mut Value, path: &str) {
    patch(schema, path, &json!({ "x-kubernetes-list-type": "atomic", "maxItems": 1000 }));
    let key = format!("{path}[].key");
    patch(schema, &key, &json!({ "minLength": 1, "maxLength": 317, "pattern": QUALIFIED_NAME }));
    let message =
        "a taint key may not have a comma in it: remove the comma, or make two taints of it";
    rules(schema, &key, [rule("!self.contains(',')", message)]);
    patch(schema, &format!("{path}[].value"), &json!({ "pattern": QUALIFIED_NAME_OR_EMPTY }));
    let added = json!({
        "description": "When the taint was set, as Kubernetes writes it; not used.",
        "type": "string",
        "format": "date-time",
    });
    property(schema, &format!("{path}[]"), "timeAdded", added);
}

/// Labels that nodes get.
pub(crate) fn template_labels(schema: &mut Value, path: &str) {
    let change = json!({
        "additionalProperties": { "type": "string", "maxLength": 63, "pattern": LABEL_VALUE },
        "maxProperties": 100,
        "x-kubernetes-map-type": "atomic",
    });
    patch(schema, path, &change);
    let domain = r#"self.all(x, x in ["karpenter.sh/capacity-type", "karpenter.sh/nodepool"] || !x.find("^([^/]+)").endsWith("karpenter.sh"))"#;
    let all = [
        rule(domain, "label domain \"karpenter.sh\" is restricted"),
        rule(
            r#"self.all(x, x != "karpenter.sh/nodepool")"#,
            "label \"karpenter.sh/nodepool\" is restricted",
        ),
        rule(
            r#"self.all(x, x != "kubernetes.io/hostname")"#,
            "label \"kubernetes.io/hostname\" is restricted",
        ),
    ];
    rules(schema, path, all);
}

/// A reference to a node class.
pub(crate) fn node_class_ref(schema: &mut Value, path: &str) {
    for field in ["group", "kind", "name"] {
        let field_path = format!("{path}.{field}");
        patch(schema, &field_path, &json!({ "minLength": null }));
        rules(schema, &field_path, [rule("self != ''", &format!("{field} may not be empty"))]);
    }
    patch(schema, &format!("{path}.group"), &json!({ "pattern": "^[^/]*$" }));
}

/// Adds a property to the object at a path.
pub(crate) fn property(schema: &mut Value, path: &str, name: &str, property: Value) {
    let place = locate(schema, path).and_then(Value::as_object_mut);
    let place = place.unwrap_or_else(|| panic!("the schema has no `{path}`"));
    let properties = place.entry("properties").or_insert_with(|| Value::Object(Map::new()));
    properties[name] = property;
}

/// Status conditions, as in every kind of Kubernetes.
pub(crate) fn conditions(schema: &mut Value, as_map: bool) {
    let mut list = json!({
        "description": "What is known about the object, one entry per aspect.",
        "type": "array",
        "items": {
            "description": "One aspect of the object.",
            "type": "object",
            "required": ["lastTransitionTime", "status", "type"],
            "properties": {
                "type": {
                    "description": "Which aspect.",
                    "type": "string",
                    "maxLength": 316,
                    "pattern": r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
                },
                "status": {
                    "description": "Whether it holds.",
                    "type": "string",
                    "enum": ["True", "False", "Unknown"],
                },
                "reason": {
                    "description": "Why, in one word for programs.",
                    "type": "string",
                    "maxLength": 1024,
                    "pattern": r"^([A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?|)$",
                },
                "message": { "description": "Why, for people.", "type": "string", "maxLength": 32768 },
                "lastTransitionTime": {
                    "description": "When the status last changed.",
                    "type": "string",
                    "format": "date-time",
                },
                "observedGeneration": {
                    "description": "The generation of the object that was looked at.",
                    "type": "integer",
                    "format": "int64",
                    "minimum": 0,
                },
            },
        },
    });
    if as_map {
        list["x-kubernetes-list-type"] = json!("map");
        list["x-kubernetes-list-map-keys"] = json!(["type"]);
    }
    property(schema, "status", "conditions", list);
}
