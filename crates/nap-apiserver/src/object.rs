//! Small, panic-free accessors for untyped objects. Objects are plain JSON here because the server
//! must serve kinds it has never heard of; these helpers keep the rest of the code readable.

use serde_json::{Map, Value, json};

/// The value at `path`, if every step exists.
pub(crate) fn at<'a>(value: &'a Value, path: &[impl AsRef<str>]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, step| value.get(step.as_ref()))
}

/// The string at `path`, or the empty string.
pub(crate) fn text<'a>(value: &'a Value, path: &[&str]) -> &'a str {
    at(value, path).and_then(Value::as_str).unwrap_or_default()
}

/// The array at `path`, or an empty slice.
pub(crate) fn list<'a>(value: &'a Value, path: &[&str]) -> &'a [Value] {
    at(value, path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The integer at `path`.
pub(crate) fn integer(value: &Value, path: &[&str]) -> Option<i64> {
    at(value, path).and_then(Value::as_i64)
}

/// The fields of `value`; anything that is not an object becomes an empty one first.
pub(crate) fn fields_mut(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = json!({});
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("the value was just made an object"),
    }
}

/// The object under `key`, created when missing.
pub(crate) fn child<'a>(value: &'a mut Value, key: &str) -> &'a mut Value {
    fields_mut(value).entry(key).or_insert_with(|| json!({}))
}

/// Sets `key` unless it holds something other than null.
pub(crate) fn default(value: &mut Value, key: &str, fallback: impl FnOnce() -> Value) {
    let map = fields_mut(value);
    if map.get(key).is_none_or(Value::is_null) {
        map.insert(key.to_owned(), fallback());
    }
}

pub(crate) fn metadata(value: &mut Value) -> &mut Map<String, Value> {
    fields_mut(child(value, "metadata"))
}

pub(crate) fn name(value: &Value) -> &str {
    text(value, &["metadata", "name"])
}

pub(crate) fn namespace(value: &Value) -> &str {
    text(value, &["metadata", "namespace"])
}

pub(crate) fn uid(value: &Value) -> &str {
    text(value, &["metadata", "uid"])
}

pub(crate) fn resource_version(value: &Value) -> &str {
    text(value, &["metadata", "resourceVersion"])
}

pub(crate) fn finalizers(value: &Value) -> Vec<&str> {
    list(value, &["metadata", "finalizers"]).iter().filter_map(Value::as_str).collect()
}

pub(crate) fn is_deleting(value: &Value) -> bool {
    !text(value, &["metadata", "deletionTimestamp"]).is_empty()
}

pub(crate) fn owner_uids(value: &Value) -> Vec<&str> {
    list(value, &["metadata", "ownerReferences"])
        .iter()
        .map(|owner| text(owner, &["uid"]))
        .filter(|uid| !uid.is_empty())
        .collect()
}

/// `metav1.Time`: seconds, UTC.
pub(crate) fn time(now: jiff::Timestamp) -> String {
    now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A copy without the given top-level keys.
pub(crate) fn without(value: &Value, keys: &[&str]) -> Value {
    match value {
        Value::Object(map) => Value::Object(
            map.iter()
                .filter(|(key, _)| !keys.contains(&key.as_str()))
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
        ),
        other => other.clone(),
    }
}
