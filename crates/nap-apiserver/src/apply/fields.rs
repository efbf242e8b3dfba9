//! Sets of fields, as `managedFields` has them: `f:name`, `k:{"name":"main"}` for an item of a list
//! with keys, and `v:"value"` for an item of a set.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::schema::{ListRule, Node};
use crate::object;

/// One field: the steps from the object to it.
pub(super) type Path = Vec<String>;

/// Fields that somebody has set.
pub(super) type FieldSet = BTreeSet<Path>;

/// Fields of metadata that the server owns.
const SERVER_OWNED: [&str; 11] = [
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
    "selfLink",
    "generateName",
];

/// The fields that an object sets.
pub(super) fn fields_of(value: &Value, root: Node<'_>) -> FieldSet {
    let mut found = FieldSet::new();
    walk(value, root, &mut Vec::new(), &mut found);
    found.retain(|path| {
        let names: Vec<&str> = path.iter().map(String::as_str).collect();
        match names.as_slice() {
            ["f:apiVersion" | "f:kind" | "f:metadata"] => false,
            ["f:metadata", name, ..] => {
                let name = name.strip_prefix("f:").unwrap_or(name);
                !SERVER_OWNED.contains(&name)
            }
            _ => true,
        }
    });
    found
}

fn walk(value: &Value, node: Node<'_>, path: &mut Path, found: &mut FieldSet) {
    match value {
        Value::Object(map) if !map.is_empty() && !node.is_atomic() => {
            for (name, value) in map {
                path.push(format!("f:{name}"));
                walk(value, node.child(name), path, found);
                path.pop();
            }
        }
        Value::Array(items) => match node.list_rule() {
            ListRule::Atomic => drop(found.insert(path.clone())),
            ListRule::Set => {
                for item in items {
                    path.push(format!("v:{item}"));
                    found.insert(path.clone());
                    path.pop();
                }
            }
            ListRule::Keys(keys) => {
                for item in items {
                    path.push(key_of(item, &keys));
                    found.insert(path.clone());
                    if let Value::Object(map) = item {
                        for (name, value) in map {
                            path.push(format!("f:{name}"));
                            walk(value, node.item().child(name), path, found);
                            path.pop();
                        }
                    }
                    path.pop();
                }
            }
        },
        _ => drop(found.insert(path.clone())),
    }
}

/// `k:{…}` of an item. A key that is missing has its default, which for ports is TCP.
fn key_of(item: &Value, keys: &[&str]) -> String {
    let mut key = Map::new();
    for name in keys {
        let value = item.get(name).cloned();
        let fallback = if *name == "protocol" { json!("TCP") } else { Value::Null };
        key.insert((*name).to_owned(), value.unwrap_or(fallback));
    }
    format!("k:{}", Value::Object(key))
}

/// The place of the item that a step names.
fn position(items: &[Value], step: &str) -> Option<usize> {
    if let Some(value) = step.strip_prefix("v:") {
        let wanted: Value = serde_json::from_str(value).ok()?;
        return items.iter().position(|item| *item == wanted);
    }
    let key: Map<String, Value> = serde_json::from_str(step.strip_prefix("k:")?).ok()?;
    let names: Vec<&str> = key.keys().map(String::as_str).collect();
    items.iter().position(|item| key_of(item, &names) == step)
}

/// The value of a field.
pub(super) fn get<'v>(value: &'v Value, path: &[String]) -> Option<&'v Value> {
    path.iter().try_fold(value, |value, step| {
        if let Some(name) = step.strip_prefix("f:") {
            return value.get(name);
        }
        let items = value.as_array()?;
        items.get(position(items, step)?)
    })
}

/// Removes a field, and the objects that it leaves empty.
pub(super) fn remove(value: &mut Value, path: &[String]) {
    let Some((step, rest)) = path.split_first() else { return };
    if let Some(name) = step.strip_prefix("f:") {
        let Some(fields) = value.as_object_mut() else { return };
        if rest.is_empty() {
            fields.remove(name);
        } else if let Some(child) = fields.get_mut(name) {
            remove(child, rest);
            let is_empty = match child {
                Value::Object(map) => map.is_empty(),
                Value::Array(items) => items.is_empty(),
                _ => false,
            };
            if is_empty {
                fields.remove(name);
            }
        }
        return;
    }
    let Some(items) = value.as_array_mut() else { return };
    let Some(place) = position(items, step) else { return };
    if rest.is_empty() {
        items.remove(place);
    } else if let Some(item) = items.get_mut(place) {
        remove(item, rest);
    }
}

/// Merges what somebody applies into an object.
pub(super) fn merge(target: &mut Value, applied: &Value, node: Node<'_>) {
    match (target, applied) {
        (Value::Object(held), Value::Object(given)) if !node.is_atomic() => {
            for (name, value) in given {
                if value.is_null() {
                    continue;
                }
                match held.get_mut(name) {
                    Some(slot) => merge(slot, value, node.child(name)),
                    None => drop(held.insert(name.clone(), value.clone())),
                }
            }
        }
        (Value::Array(held), Value::Array(given)) => match node.list_rule() {
            ListRule::Atomic => given.clone_into(held),
            ListRule::Set => {
                for item in given {
                    if !held.contains(item) {
                        held.push(item.clone());
                    }
                }
            }
            ListRule::Keys(keys) => {
                for item in given {
                    let place = position(held, &key_of(item, &keys));
                    match place.and_then(|place| held.get_mut(place)) {
                        Some(slot) => merge(slot, item, node.item()),
                        None => held.push(item.clone()),
                    }
                }
            }
        },
        (target, applied) => applied.clone_into(target),
    }
}

/// The set as `fieldsV1`.
pub(super) fn render(fields: &FieldSet) -> Value {
    let mut root = json!({});
    for path in fields {
        let mut place = &mut root;
        for step in path {
            place = object::child(place, step);
        }
        // An item of a list is owned itself, beside the fields in it.
        if path.last().is_some_and(|step| step.starts_with("k:")) {
            object::child(place, ".");
        }
    }
    root
}

/// Reads `fieldsV1`.
pub(super) fn parse(rendered: &Value) -> FieldSet {
    fn read(value: &Value, path: &mut Path, found: &mut FieldSet) {
        let Some(map) = value.as_object() else { return };
        if map.is_empty() && !path.is_empty() {
            found.insert(path.clone());
        }
        for (step, value) in map {
            if step == "." {
                found.insert(path.clone());
                continue;
            }
            path.push(step.clone());
            read(value, path, found);
            path.pop();
        }
    }
    let mut found = FieldSet::new();
    read(rendered, &mut Vec::new(), &mut found);
    found
}

/// `.spec.template.spec.containers[name="main"].image`: a field as messages show it.
pub(super) fn show(path: &[String]) -> String {
    path.iter()
        .map(|step| match step.split_once(':') {
            Some(("f", name)) => format!(".{name}"),
            Some(("k", key)) => {
                let key: Map<String, Value> = serde_json::from_str(key).unwrap_or_default();
                let parts: Vec<String> =
                    key.iter().map(|(name, value)| format!("{name}={value}")).collect();
                format!("[{}]", parts.join(","))
            }
            Some((_, value)) => format!("[={value}]"),
            None => step.clone(),
        })
        .collect()
}
