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
            let live = list.clone();
            for item in items {
                if !list.contains(item) {
                    list.push(item.clone());
                }
            }
            put_in_order(list, items, &live, None);
        }
        Strategy::ByKey(key) => {
            let live = list.clone();
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
            put_in_order(list, items, &live, Some(key));
        }
    }
}

fn reorder(map: &mut Map<String, Value>, parent: &str, field: &str, order: &[Value]) {
    let key = match strategy(parent, field) {
        Strategy::ByKey(key) => Some(key),
        Strategy::Set => None,
        Strategy::Replace => return,
    };
    if let Some(Value::Array(list)) = map.get_mut(field) {
        let live = list.clone();
        put_in_order(list, order, &live, key);
    }
}

/// Elements that the patch names come in its order. Each of the others comes before the first of
/// them that it precedes in the live list, so that an element which is new comes before those that
/// the patch does not name.
fn put_in_order(list: &mut Vec<Value>, order: &[Value], live: &[Value], key: Option<&str>) {
    let place = |among: &[Value], item: &Value| {
        let identity = key.map_or(Some(item), |key| item.get(key));
        among.iter().position(|held| key.map_or(Some(held), |key| held.get(key)) == identity)
    };
    let (mut named, others): (Vec<Value>, Vec<Value>) =
        list.drain(..).partition(|item| place(order, item).is_some());
    named.sort_by_key(|item| place(order, item));
    let mut others = others.into_iter().peekable();
    for item in named {
        if let Some(here) = place(live, &item) {
            while let Some(other) =
                others.next_if(|other| place(live, other).is_some_and(|there| there < here))
            {
                list.push(other);
            }
        }
        list.push(item);
    }
    list.extend(others);
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
                    {"name": "a", "image": "2", "env": [{"name": "Y", "value": "2"}, {"name": "X", "value": "1"}]},
                    {"name": "c"},
                ],
                "tolerations": [{"key": "new"}],
            }})
        );
    }

    #[test]
    fn new_elements_come_first_and_known_ones_keep_their_place() {
        let containers = |names: &[&str]| {
            let list: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
            json!({"spec": {"containers": list}})
        };
        for (live, patch, expected) in [
            (&["a"][..], &["new"][..], &["new", "a"][..]),
            (&["a", "b", "c"], &["b"], &["a", "b", "c"]),
            (&["a", "b", "c"], &["b", "new"], &["a", "b", "new", "c"]),
            (&["a", "b", "c"], &["new", "b"], &["new", "a", "b", "c"]),
            (&["a", "b", "c"], &["c", "a"], &["b", "c", "a"]),
        ] {
            let found = merged(containers(live), &containers(patch));
            assert_eq!(found, containers(expected), "{patch:?} in {live:?}");
        }
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
