//! Checks of metadata that hold for every kind: names, labels, annotations, owners, finalizers.

use serde_json::Value;

use crate::error::FieldError;
use crate::object;
use crate::resources::Resource;

const MAX_ANNOTATIONS: usize = 256 * 1024;

pub(crate) fn check(resource: &Resource, object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let name = object::name(object);
    let label_name = resource.is("", "namespaces") || resource.is("", "services");
    // Roles and their bindings may hold any name that fits into a path.
    if resource.group == "rbac.authorization.k8s.io" {
        if matches!(name, "." | "..") || name.contains(['/', '%']) {
            let detail = "may not be '.' or '..' and may not contain '/' or '%'";
            errors.push(FieldError::invalid("metadata.name", name, detail));
        }
    } else if label_name && !is_label(name) {
        errors.push(FieldError::invalid("metadata.name", name, LABEL));
    } else if !is_subdomain(name) {
        errors.push(FieldError::invalid(
            "metadata.name",
            name,
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or \
             '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex \
             used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
        ));
    }
    labels(object, &["metadata", "labels"], "metadata.labels", &mut errors);
    if let Some(annotations) =
        object::at(object, &["metadata", "annotations"]).and_then(Value::as_object)
    {
        for key in annotations.keys().filter(|key| !is_qualified(&key.to_lowercase())) {
            errors.push(FieldError::invalid("metadata.annotations", key.as_str(), QUALIFIED));
        }
        let size: usize = annotations
            .iter()
            .map(|(key, value)| key.len() + value.as_str().map_or(0, str::len))
            .sum();
        if size > MAX_ANNOTATIONS {
            errors.push(FieldError {
                field: "metadata.annotations".to_owned(),
                problem: crate::error::Problem::TooLong(MAX_ANNOTATIONS as u64),
            });
        }
    }
    for finalizer in object::finalizers(object) {
        if !is_qualified(&finalizer.to_lowercase()) {
            errors.push(FieldError::invalid("metadata.finalizers", finalizer, QUALIFIED));
        }
    }
    let owners = object::list(object, &["metadata", "ownerReferences"]);
    for owner in owners {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if object::text(owner, &[field]).is_empty() {
                let path = format!("metadata.ownerReferences.{field}");
                errors.push(FieldError::invalid(path, "", "must not be empty"));
            }
        }
    }
    let controllers = owners
        .iter()
        .filter(|o| o.get("controller").and_then(Value::as_bool) == Some(true))
        .count();
    if controllers > 1 {
        errors.push(FieldError::invalid(
            "metadata.ownerReferences",
            Value::Array(owners.to_vec()),
            "Only one reference can have Controller set to true",
        ));
    }
    errors
}

/// Rules for updates of metadata.
pub(crate) fn check_update(old: &Value, new: &Value) -> Vec<FieldError> {
    if !object::is_deleting(old) {
        return Vec::new();
    }
    let held = object::finalizers(old);
    let added: Vec<&str> =
        object::finalizers(new).into_iter().filter(|finalizer| !held.contains(finalizer)).collect();
    if added.is_empty() {
        return Vec::new();
    }
    let detail = format!(
        "no new finalizers can be added if the object is being deleted, found new finalizers {added:?}"
    );
    vec![FieldError::forbidden("metadata.finalizers", detail)]
}

/// What a name must be that is one label of a DNS name.
pub(crate) const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric \
     characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or \
     '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";

pub(crate) const QUALIFIED: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must \
     start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex \
     used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";

/// Checks keys and values of a label map.
pub(crate) fn labels(object: &Value, path: &[&str], field: &str, errors: &mut Vec<FieldError>) {
    let Some(labels) = object::at(object, path).and_then(Value::as_object) else { return };
    for (key, value) in labels {
        if !is_qualified(key) {
            errors.push(FieldError::invalid(field, key.as_str(), QUALIFIED));
        }
        let value = value.as_str().unwrap_or_default();
        if let Some(problem) = label_value_problem(value) {
            errors.push(FieldError::invalid(field, value, problem));
        }
    }
}

/// What is wrong with the value of a label; `None` if it is sound.
pub(crate) fn label_value_problem(value: &str) -> Option<&'static str> {
    if value.len() > 63 {
        return Some("must be no more than 63 bytes");
    }
    (!value.is_empty() && !is_name_part(value)).then_some(
        "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or \
         '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or \
         'my_value',  or '12345', regex used for validation is \
         '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')",
    )
}

fn is_edge(character: Option<char>) -> bool {
    character.is_some_and(|c| c.is_ascii_alphanumeric())
}

fn is_name_part(text: &str) -> bool {
    text.len() <= 63
        && is_edge(text.chars().next())
        && is_edge(text.chars().last())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

pub(crate) fn is_label(text: &str) -> bool {
    text.len() <= 63
        && is_edge(text.chars().next())
        && is_edge(text.chars().last())
        && text.chars().all(|c| c.is_ascii_digit() || c.is_ascii_lowercase() || c == '-')
}

pub(crate) fn is_subdomain(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 253
        && text.split('.').all(|part| {
            is_edge(part.chars().next())
                && is_edge(part.chars().last())
                && part.chars().all(|c| c.is_ascii_digit() || c.is_ascii_lowercase() || c == '-')
        })
}

/// `name` or `prefix/name`.
pub(crate) fn is_qualified(text: &str) -> bool {
    match text.split_once('/') {
        None => is_name_part(text),
        Some((prefix, name)) => is_subdomain(prefix) && is_name_part(name),
    }
}
