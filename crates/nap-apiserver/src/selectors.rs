//! Label and field selectors: which objects of a collection a list or watch is about.

use std::borrow::Cow;

use serde_json::Value;

use crate::error::{ApiError, Result};
use crate::object;
use crate::resources::Resource;

/// Everything that narrows a list or a watch.
#[derive(Debug, Clone, Default)]
pub(crate) struct Filter {
    pub(crate) namespace: String,
    pub(crate) name: String,
    labels: Vec<LabelRequirement>,
    fields: Vec<FieldRequirement>,
}

impl Filter {
    pub(crate) fn new(
        resource: &Resource,
        namespace: &str,
        label_selector: &str,
        field_selector: &str,
    ) -> Result<Self> {
        Ok(Self {
            namespace: namespace.to_owned(),
            name: String::new(),
            labels: parse_labels(label_selector)?,
            fields: parse_fields(resource, field_selector)?,
        })
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        (self.namespace.is_empty() || object::namespace(object) == self.namespace)
            && (self.name.is_empty() || object::name(object) == self.name)
            && labels_match(&self.labels, object::at(object, &["metadata", "labels"]))
            && self.fields.iter().all(|requirement| requirement.matches(object))
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum LabelRequirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Missing(String),
    Greater(String, i64),
    Less(String, i64),
}

/// Whether every requirement holds for `labels` (a JSON object or nothing).
pub(crate) fn labels_match(requirements: &[LabelRequirement], labels: Option<&Value>) -> bool {
    let get = |key: &String| labels.and_then(|l| l.get(key)).and_then(Value::as_str);
    requirements.iter().all(|requirement| match requirement {
        LabelRequirement::In(key, values) => {
            get(key).is_some_and(|found| values.iter().any(|v| v == found))
        }
        LabelRequirement::NotIn(key, values) => {
            get(key).is_none_or(|found| values.iter().all(|v| v != found))
        }
        LabelRequirement::Exists(key) => get(key).is_some(),
        LabelRequirement::Missing(key) => get(key).is_none(),
        LabelRequirement::Greater(key, bound) => {
            get(key).and_then(|v| v.parse::<i64>().ok()).is_some_and(|v| v > *bound)
        }
        LabelRequirement::Less(key, bound) => {
            get(key).and_then(|v| v.parse::<i64>().ok()).is_some_and(|v| v < *bound)
        }
    })
}

/// A `metav1.LabelSelector` object as requirements.
pub(crate) fn from_object(selector: &Value) -> Vec<LabelRequirement> {
    let mut requirements = Vec::new();
    if let Some(labels) = selector.get("matchLabels").and_then(Value::as_object) {
        for (key, value) in labels {
            let value = value.as_str().unwrap_or_default().to_owned();
            requirements.push(LabelRequirement::In(key.clone(), vec![value]));
        }
    }
    for expression in object::list(selector, &["matchExpressions"]) {
        let key = object::text(expression, &["key"]).to_owned();
        let values = object::list(expression, &["values"])
            .iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect();
        requirements.push(match object::text(expression, &["operator"]) {
            "NotIn" => LabelRequirement::NotIn(key, values),
            "Exists" => LabelRequirement::Exists(key),
            "DoesNotExist" => LabelRequirement::Missing(key),
            _ => LabelRequirement::In(key, values),
        });
    }
    requirements
}

pub(crate) fn parse_labels(text: &str) -> Result<Vec<LabelRequirement>> {
    split_outside_parentheses(text).into_iter().map(parse_label).collect()
}

fn split_outside_parentheses(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0_i32, 0);
    for (index, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text.get(start..index).unwrap_or_default().trim());
                start = index + 1;
            }
            _ => {}
        }
    }
    parts.push(text.get(start..).unwrap_or_default().trim());
    parts.retain(|part| !part.is_empty());
    parts
}

fn parse_label(text: &str) -> Result<LabelRequirement> {
    let unparsable = || {
        let found = text.split_whitespace().nth(1).unwrap_or(text);
        ApiError::bad_request(format!(
            "unable to parse requirement: found '{found}', expected: in, notin, =, ==, !=, gt, lt"
        ))
    };
    let requirement = if let Some((key, value)) = text.split_once("!=") {
        LabelRequirement::NotIn(key.trim().to_owned(), vec![value.trim().to_owned()])
    } else if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        LabelRequirement::In(key.trim().to_owned(), vec![value.trim().to_owned()])
    } else if let Some(key) = text.strip_prefix('!') {
        LabelRequirement::Missing(key.trim().to_owned())
    } else if let Some((head, values)) = text.split_once('(') {
        let values = values
            .trim()
            .strip_suffix(')')
            .ok_or_else(unparsable)?
            .split(',')
            .map(|value| value.trim().to_owned())
            .collect();
        let mut words = head.split_whitespace();
        let key = words.next().ok_or_else(unparsable)?.to_owned();
        match (words.next(), words.next()) {
            (Some("in"), None) => LabelRequirement::In(key, values),
            (Some("notin"), None) => LabelRequirement::NotIn(key, values),
            _ => return Err(unparsable()),
        }
    } else if let Some((key, bound)) = text.split_once('>') {
        let bound = bound.trim().parse().map_err(|_| unparsable())?;
        LabelRequirement::Greater(key.trim().to_owned(), bound)
    } else if let Some((key, bound)) = text.split_once('<') {
        let bound = bound.trim().parse().map_err(|_| unparsable())?;
        LabelRequirement::Less(key.trim().to_owned(), bound)
    } else {
        LabelRequirement::Exists(text.to_owned())
    };
    let key = match &requirement {
        LabelRequirement::In(key, _)
        | LabelRequirement::NotIn(key, _)
        | LabelRequirement::Exists(key)
        | LabelRequirement::Missing(key)
        | LabelRequirement::Greater(key, _)
        | LabelRequirement::Less(key, _) => key,
    };
    if key.is_empty() || key.contains(char::is_whitespace) {
        return Err(unparsable());
    }
    Ok(requirement)
}

#[derive(Debug, Clone)]
struct FieldRequirement {
    paths: Vec<Vec<String>>,
    value: String,
    equal: bool,
}

impl FieldRequirement {
    fn matches(&self, object: &Value) -> bool {
        let found = self.paths.iter().find_map(|path| match object::at(object, path)? {
            Value::Null => None,
            Value::String(text) => (!text.is_empty()).then_some(Cow::Borrowed(text.as_str())),
            other => Some(Cow::Owned(other.to_string())),
        });
        let found = found.unwrap_or_else(|| Cow::Borrowed(self.absent()));
        (found == self.value) == self.equal
    }

    /// Value that an unset field compares as: the zero value of its type.
    fn absent(&self) -> &'static str {
        let last = self.paths.first().and_then(|path| path.last()).map(String::as_str);
        match last {
            Some("unschedulable" | "hostNetwork") => "false",
            Some("replicas") => "0",
            _ => "",
        }
    }
}

fn parse_fields(resource: &Resource, text: &str) -> Result<Vec<FieldRequirement>> {
    let mut requirements = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (key, value, equal) = if let Some((key, value)) = part.split_once("!=") {
            (key, value, false)
        } else if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
            (key, value, true)
        } else {
            return Err(ApiError::bad_request(format!(
                "invalid selector: '{part}'; can't understand '{part}'"
            )));
        };
        let paths = field_paths(resource, key).ok_or_else(|| {
            ApiError::bad_request(if resource.is_custom() || has_own_fields(resource) {
                format!("field label not supported: {key}")
            } else {
                format!(
                    "{key:?} is not a known field selector: only \"metadata.name\", \
                     \"metadata.namespace\""
                )
            })
        })?;
        requirements.push(FieldRequirement { paths, value: value.to_owned(), equal });
    }
    Ok(requirements)
}

/// Whether a built-in kind has field selectors beyond name and namespace.
fn has_own_fields(resource: &Resource) -> bool {
    matches!(
        (resource.group.as_str(), resource.kind.as_str()),
        ("", "Pod" | "Node" | "Namespace" | "Secret" | "ReplicationController" | "Service")
            | ("" | "events.k8s.io", "Event")
            | ("apps", "ReplicaSet")
            | ("batch", "Job")
    )
}

/// Path of a field selector key; `None` if the kind does not support it.
fn field_paths(resource: &Resource, key: &str) -> Option<Vec<Vec<String>>> {
    let own = vec![key.split('.').map(str::to_owned).collect::<Vec<_>>()];
    if key == "metadata.name" || (key == "metadata.namespace" && resource.namespaced) {
        return Some(own);
    }
    if resource.selectable_fields.iter().any(|field| field == key) {
        return Some(own);
    }
    let supported: &[&str] = match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "Pod") => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ],
        ("", "Node") => &["spec.unschedulable"],
        ("", "Namespace") => &["status.phase"],
        ("", "Secret") => &["type"],
        ("", "ReplicationController") | ("apps", "ReplicaSet") => &["status.replicas"],
        ("batch", "Job") => &["status.successful"],
        ("", "Service") => &["spec.clusterIP", "spec.type"],
        ("events.k8s.io", "Event") => {
            // Stored as events of the core group.
            let stored = match key.strip_prefix("regarding.") {
                Some(rest) => format!("involvedObject.{rest}"),
                None if key == "reportingController" => "reportingComponent".to_owned(),
                None if matches!(key, "reason" | "type") => key.to_owned(),
                None => return None,
            };
            return Some(vec![stored.split('.').map(str::to_owned).collect()]);
        }
        ("", "Event") => {
            if key == "source" {
                return Some(vec![
                    vec!["source".into(), "component".into()],
                    vec!["reportingComponent".into()],
                ]);
            }
            &[
                "involvedObject.kind",
                "involvedObject.namespace",
                "involvedObject.name",
                "involvedObject.uid",
                "involvedObject.apiVersion",
                "involvedObject.resourceVersion",
                "involvedObject.fieldPath",
                "reason",
                "reportingComponent",
                "type",
            ]
        }
        _ => &[],
    };
    supported.contains(&key).then_some(own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources;
    use serde_json::json;

    fn labels(selector: &str, object: &Value) -> bool {
        labels_match(&parse_labels(selector).unwrap(), Some(object))
    }

    #[test]
    fn label_selectors_follow_the_grammar() {
        let object = json!({"app": "web", "tier": "2"});
        for (selector, expected) in [
            ("", true),
            ("app=web", true),
            ("app==web,tier", true),
            ("app!=web", false),
            ("other!=web", true),
            ("app in (api, web)", true),
            ("app notin (api,web)", false),
            ("!other", true),
            ("tier>1,tier<3", true),
        ] {
            assert_eq!(labels(selector, &object), expected, "{selector}");
        }
        assert!(parse_labels("app within (x)").is_err());
        assert!(parse_labels("app in (x").is_err());
    }

    #[test]
    fn unknown_field_selectors_are_refused() {
        let resources = resources::builtin();
        let pods = resources.iter().find(|r| r.kind == "Pod").unwrap();
        let filter = Filter::new(pods, "", "", "spec.nodeName=,status.phase!=Failed").unwrap();
        assert!(filter.matches(&json!({"status": {"phase": "Pending"}})));
        assert!(!filter.matches(&json!({"spec": {"nodeName": "a"}})));
        let error = Filter::new(pods, "", "", "spec.hostname=x").unwrap_err();
        assert_eq!(error.code, 400);
        assert!(error.message.contains("field label not supported: spec.hostname"));
    }
}
