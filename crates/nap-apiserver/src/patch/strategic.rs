//! Strategic merge patch: like a JSON merge patch, but lists with a merge key merge by element.
//!
//! The keys are those the Kubernetes Go types declare with `patchMergeKey`. They are looked up by
//! field name and the field that holds it, which is unambiguous for the built-in kinds.

use serde_json::{Map, Value};

/// Merges `patch` into `target` by the strategic rules.
pub(crate) fn merge(target: &mut Value, patch: &Value) {
    merge_under(target, patch, "");
}

enum Strategy {
    ByKey(&'static str),
    Set,
    Replace,
}

fn strategy(parent: &str, field: &str) -> Strategy {
    match (parent, field) {
        (
            _,
            "containers"
            | "initContainers"
            | "ephemeralContainers"
            | "env"
            | "volumes"
            | "imagePullSecrets"
            | "secrets"
            | "resourceClaims",
        ) => Strategy::ByKey("name"),
        (_, "volumeMounts") => Strategy::ByKey("mountPath"),
        (_, "volumeDevices") => Strategy::ByKey("devicePath"),
        (_, "hostAliases" | "podIPs" | "hostIPs") => Strategy::ByKey("ip"),
        (_, "topologySpreadConstraints") => Strategy::ByKey("topologyKey"),
        ("spec", "ports") => Strategy::ByKey("port"),
        ("containers" | "initContainers" | "ephemeralContainers", "ports") => {
            Strategy::ByKey("containerPort")
        }
        ("status", "conditions" | "addresses") => Strategy::ByKey("type"),
        ("metadata", "ownerReferences") => Strategy::ByKey("uid"),
        ("metadata", "finalizers") | ("spec", "podCIDRs") => Strategy::Set,
        _ => Strategy::Replace,
    }
}

fn merge_under(target: &mut Value, patch: &Value, parent: &str) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    match patch.get("$patch").and_then(Value::as_str) {
        Some("replace") => {
            *target = Value::Object(plain(patch));
            return;
        }
        Some("delete") => {
            *target = Value::Object(Map::new());
            return;
        }
        _ => {}
    }
    let map = crate::object::fields_mut(target);
    if let Some(Value::Array(keep)) = patch.get("$retainKeys") {
        map.retain(|key, _| keep.iter().any(|kept| kept.as_str() == Some(key)));
    }
    for (key, value) in patch {
        if let Some(field) = key.strip_prefix("$deleteFromPrimitiveList/") {
            if let (Some(Value::Array(list)), Value::Array(gone)) = (map.get_mut(field), value) {
                list.retain(|item| !gone.contains(item));
            }
        } else if key.starts_with('$') {
            // `$setElementOrder/…` is honoured after the merge; the other directives are done.
        } else if value.is_null() {
            map.remove(key);
        } else if let Value::Array(items) = value {
            merge_list(map, parent, key, items);
        } else if value.is_object() {
            let slot = map.entry(key.clone()).or_insert(Value::Null);
            merge_under(slot, value, key);
        } else {
            map.insert(key.clone(), value.clone());
        }
    }
    for (key, order) in patch {
        if let (Some(field), Value::Array(order)) = (key.strip_prefix("$setElementOrder/"), order) {
            reorder(map, parent, field, order);
        }
    }
}

fn merge_list(map: &mut Map<String, Value>, parent: &str, field: &str, items: &[Value]) {
    let replaces = items.iter().any(|item| directive(item) == Some("replace"));
    let strategy = if replaces { Strategy::Replace } else { strategy(parent, field) };
    let slot = map.entry(field.to_owned()).or_insert_with(|| Value::Array(Vec::new()));
    if !slot.is_array() {
        *slot = Value::Array(Vec::new());
    }
    let Value::Array(list) = slot else { return };
    match strategy {
        Strategy::Replace => {
            *list = items
                .iter()
                .filter(|item| directive(item) != Some("replace"))
                .map(without_directives)
                .collect();
        }
        Strategy::Set => {
            for item in items {
                if !list.contains(item) {
                    list.push(item.clone());
                }
            }
        }
        Strategy::ByKey(key) => {
            for item in items {
                let wanted = item.get(key);
                let position =
                    list.iter().position(|held| wanted.is_some() && held.get(key) == wanted);
                match (directive(item), position) {
                    (Some("delete"), Some(index)) => {
                        list.remove(index);
                    }
                    (Some("delete"), None) => {}
                    (_, Some(index)) => {
                        if let Some(held) = list.get_mut(index) {
                            merge_under(held, item, field);
                        }
                    }
                    (_, None) => list.push(without_directives(item)),
                }
            }
        }
    }
}

/// Elements that the order names come in that order; the others keep their place at the end.
fn reorder(map: &mut Map<String, Value>, parent: &str, field: &str, order: &[Value]) {
    let key = match strategy(parent, field) {
        Strategy::ByKey(key) => Some(key),
        Strategy::Set => None,
        Strategy::Replace => return,
    };
    if let Some(Value::Array(list)) = map.get_mut(field) {
        let identity =
            |item: &Value| key.map_or_else(|| Some(item.clone()), |key| item.get(key).cloned());
        list.sort_by_key(|item| {
            let identity = identity(item);
            order
                .iter()
                .position(|wanted| {
                    key.map_or(Some(wanted), |key| wanted.get(key)) == identity.as_ref()
                })
                .unwrap_or(usize::MAX)
        });
    }
}

fn directive(item: &Value) -> Option<&str> {
    item.get("$patch").and_then(Value::as_str)
}

fn without_directives(value: &Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(plain(map)),
        Value::Array(items) => Value::Array(items.iter().map(without_directives).collect()),
        other => other.clone(),
    }
}

fn plain(map: &Map<String, Value>) -> Map<String, Value> {
    map.iter()
        .filter(|(key, value)| !key.starts_with('$') && !value.is_null())
        .map(|(key, value)| (key.clone(), without_directives(value)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn merged(mut target: Value, patch: &Value) -> Value {
        merge(&mut target, patch);
        target
    }

    #[test]
    fn containers_merge_by_name_and_tolerations_are_replaced() {
        let pod = json!({"spec": {
            "containers": [{"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}]}, {"name": "b"}],
            "tolerations": [{"key": "old"}],
        }});
        let patch = json!({"spec": {
            "containers": [
                {"name": "a", "image": "2", "env": [{"name": "Y", "value": "2"}]},
                {"name": "b", "$patch": "delete"},
                {"name": "c"},
            ],
            "tolerations": [{"key": "new"}],
        }});
        assert_eq!(
            merged(pod, &patch),
            json!({"spec": {
                "containers": [
                    {"name": "a", "image": "2", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]},
                    {"name": "c"},
                ],
                "tolerations": [{"key": "new"}],
            }})
        );
    }

    #[test]
    fn conditions_merge_by_type_and_nulls_delete() {
        let node = json!({"metadata": {"labels": {"a": "1", "b": "2"}}, "status": {"conditions": [{"type": "Ready", "status": "False"}]}});
        let patch = json!({"metadata": {"labels": {"a": null}}, "status": {"conditions": [
            {"type": "Ready", "status": "True"}, {"type": "DiskPressure", "status": "False"}]}});
        assert_eq!(
            merged(node, &patch),
            json!({"metadata": {"labels": {"b": "2"}}, "status": {"conditions": [
                {"type": "Ready", "status": "True"}, {"type": "DiskPressure", "status": "False"}]}})
        );
    }

    #[test]
    fn directives_delete_reorder_and_replace() {
        let target = json!({"metadata": {"finalizers": ["a", "b"]}, "spec": {"containers": [{"name": "a"}, {"name": "b"}], "strategy": {"type": "RollingUpdate", "rollingUpdate": {}}}});
        let patch = json!({
            "metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]},
            "spec": {
                "$setElementOrder/containers": [{"name": "b"}, {"name": "a"}],
                "strategy": {"$retainKeys": ["type"], "type": "Recreate"},
            },
        });
        assert_eq!(
            merged(target, &patch),
            json!({"metadata": {"finalizers": ["b"]}, "spec": {"containers": [{"name": "b"}, {"name": "a"}], "strategy": {"type": "Recreate"}}})
        );
    }
}
