//! Custom resources: what a CustomResourceDefinition makes the server do.

mod defaulting;
mod definition;
mod pruning;
mod schema;
mod validation;

use kube::core::cel::{
    CompiledSchema, ErrorKind, ValidationError, ValidationErrors, compile_schema, validate_compiled,
};
use serde_json::Value;

pub(crate) use definition::{complete, resources_of};
pub(crate) use validation::type_name;

use crate::error::{FieldError, Problem};
pub(crate) use schema::Schema;

/// The schema of one version of a custom resource, ready to use.
pub(crate) struct CustomSchema {
    schema: Schema,
    rules: CompiledSchema,
    /// The rules that compare with the past, for the parts of an object that did not change.
    transition_rules: CompiledSchema,
    /// The schema as written in the CRD; `/openapi/v3` publishes it.
    pub(crate) raw: Value,
}

impl std::fmt::Debug for CustomSchema {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CustomSchema").finish_non_exhaustive()
    }
}

impl CustomSchema {
    /// The structure that defaulting, pruning and validation follow.
    pub(crate) fn structure(&self) -> &Schema {
        &self.schema
    }

    /// Parses the schema and compiles its rules; `path` is where it stands in the CRD.
    pub(crate) fn parse(raw: &Value, path: &str) -> Result<Self, Vec<FieldError>> {
        let schema = Schema::parse(raw, path)
            .map_err(|(path, why)| vec![FieldError::invalid(path, Value::Null, why)])?;
        let rules = compile_schema(raw);
        let mut transitions = raw.clone();
        keep_transition_rules(&mut transitions);
        let transition_rules = compile_schema(&transitions);
        let mut broken = Vec::new();
        broken_rules(&rules, path, &mut broken);
        broken.sort_by(|a: &FieldError, b| a.field.cmp(&b.field));
        if !broken.is_empty() {
            return Err(broken);
        }
        Ok(Self { schema, rules, transition_rules, raw: raw.clone() })
    }

    /// Prunes and defaults; returns the paths of the fields that were dropped.
    pub(crate) fn normalise(&self, value: &mut Value) -> Vec<String> {
        let dropped = pruning::apply(value, &self.schema);
        defaulting::apply(value, &self.schema);
        dropped
    }

    pub(crate) fn default(&self, value: &mut Value) {
        defaulting::apply(value, &self.schema);
    }

    /// Structure first; the CEL rules run only on a sound structure, as in the real server.
    pub(crate) fn validate(&self, value: &Value, old: Option<&Value>) -> Vec<FieldError> {
        let mut errors = validation::check(value, old, &self.schema);
        let blocking = errors.iter().any(|error| {
            matches!(
                error.problem,
                Problem::TypeInvalid(..)
                    | Problem::Required(_)
                    | Problem::NotSupported(..)
                    | Problem::TooLong(_)
                    | Problem::TooMany(..)
            )
        });
        if blocking {
            errors.push(FieldError::invalid(
                "<nil>",
                Value::Null,
                "some validation rules were not checked because the object was invalid; correct \
                 the existing errors to complete validation",
            ));
            return errors;
        }
        errors.extend(self.check_rules(value, old));
        errors
    }

    fn check_rules(&self, value: &Value, old: Option<&Value>) -> Vec<FieldError> {
        let mut errors = Vec::new();
        for (path, failure) in self.failures(value, old) {
            let found = lookup(value, &path);
            // Ratcheting: what did not change is only judged by rules that compare with the past.
            let unchanged = old.is_some_and(|old| found.is_some() && lookup(old, &path) == found);
            if unchanged && !failure.rule.contains("oldSelf") {
                continue;
            }
            let problem = match (failure.kind, failure.reason.as_deref()) {
                (ErrorKind::ValidationFailure, Some("FieldValueRequired")) => {
                    Problem::Required(failure.message)
                }
                (ErrorKind::ValidationFailure, Some("FieldValueForbidden")) => {
                    Problem::Forbidden(failure.message)
                }
                (ErrorKind::ValidationFailure, _) => match found {
                    Some(shown) if !shown.is_object() && !shown.is_array() => {
                        Problem::Invalid(shown.clone(), failure.message)
                    }
                    _ => Problem::Rule(failure.message),
                },
                _ => {
                    let kind = found.map_or("object", validation::type_name);
                    let rule = message_of(&self.raw, &failure.rule).unwrap_or(&failure.rule);
                    let message = format!("{} evaluating rule: {rule}", failure.message);
                    Problem::Invalid(kind.into(), message)
                }
            };
            errors.push(FieldError {
                field: if path.is_empty() { "<nil>".into() } else { path },
                problem,
            });
        }
        // The validator walks hash maps; the answer must not show their order.
        errors.sort_by_cached_key(ToString::to_string);
        errors
    }

    /// The rules that fail, each with the path of its field. On an update, a property that did not
    /// change is judged only by rules that compare with the past.
    fn failures(&self, value: &Value, old: Option<&Value>) -> Vec<(String, ValidationError)> {
        let judge = |rules: &CompiledSchema, value: &Value, old: Option<&Value>, at: &str| {
            let failed = validate_compiled(rules, value, old).err();
            let failed = failed.map(ValidationErrors::into_vec).unwrap_or_default();
            let path = |failure: &ValidationError| {
                let below = failure.field_path.trim_start_matches('.');
                match (at.is_empty(), below.is_empty(), below.starts_with('[')) {
                    (true, ..) => below.to_owned(),
                    (false, true, _) => at.to_owned(),
                    (false, false, true) => format!("{at}{below}"),
                    (false, false, false) => format!("{at}.{below}"),
                }
            };
            failed.into_iter().map(|failure| (path(&failure), failure)).collect::<Vec<_>>()
        };
        let whole = self.raw.get("x-kubernetes-validations").is_some();
        let (Some(old), false) = (old, whole) else { return judge(&self.rules, value, old, "") };
        let mut failures = Vec::new();
        for (name, rules) in &self.rules.properties {
            let Some(now) = value.get(name) else { continue };
            let before = old.get(name);
            let rules = match self.transition_rules.properties.get(name) {
                Some(transitions) if before == Some(now) => transitions,
                _ => rules,
            };
            if has_rules(rules) {
                failures.extend(judge(rules, now, before, name));
            }
        }
        failures
    }
}

/// Whether there is a rule anywhere in a schema. Without one there is nothing to evaluate, and
/// converting the value for CEL would cost more than all other checks of an update.
fn has_rules(rules: &CompiledSchema) -> bool {
    !rules.validations.is_empty()
        || rules.properties.values().any(has_rules)
        || rules.items.as_deref().is_some_and(has_rules)
        || rules.additional_properties.as_deref().is_some_and(has_rules)
        || [&rules.all_of, &rules.any_of, &rules.one_of].into_iter().flatten().any(has_rules)
}

/// Removes the rules that do not compare with the past, and `self == oldSelf`, which always holds
/// where nothing changed.
fn keep_transition_rules(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if let Some(Value::Array(rules)) = fields.get_mut("x-kubernetes-validations") {
                rules.retain(|rule| {
                    let rule = rule["rule"].as_str().unwrap_or_default();
                    rule.contains("oldSelf") && rule.trim() != "self == oldSelf"
                });
            }
            fields.values_mut().for_each(keep_transition_rules);
        }
        Value::Array(items) => items.iter_mut().for_each(keep_transition_rules),
        _ => {}
    }
}

/// The rules that do not compile, anywhere in the schema.
fn broken_rules(rules: &CompiledSchema, path: &str, broken: &mut Vec<FieldError>) {
    for error in rules.compilation_errors() {
        let field = format!("{path}.x-kubernetes-validations");
        broken.push(FieldError::invalid(
            field,
            Value::Null,
            format!("compilation failed: {error}"),
        ));
    }
    for (name, property) in &rules.properties {
        broken_rules(property, &format!("{path}.properties[{name}]"), broken);
    }
    if let Some(items) = &rules.items {
        broken_rules(items, &format!("{path}.items"), broken);
    }
    if let Some(additional) = &rules.additional_properties {
        broken_rules(additional, &format!("{path}.additionalProperties"), broken);
    }
}

/// The message that a schema has for one of its rules.
fn message_of<'a>(schema: &'a Value, rule: &str) -> Option<&'a str> {
    match schema {
        Value::Object(fields) if fields.get("rule").is_some_and(|written| written == rule) => {
            fields.get("message")?.as_str()
        }
        Value::Object(fields) => fields.values().find_map(|field| message_of(field, rule)),
        Value::Array(items) => items.iter().find_map(|item| message_of(item, rule)),
        _ => None,
    }
}

/// The value at a printed field path such as `spec.list[2].name`.
fn lookup<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').filter(|step| !step.is_empty()).try_fold(value, |value, step| {
        let (name, indexes) = step.split_once('[').map_or((step, ""), |(name, rest)| (name, rest));
        let value = if name.is_empty() { value } else { value.get(name)? };
        indexes.split(['[', ']']).filter(|index| !index.is_empty()).try_fold(
            value,
            |value, index| match index.parse::<usize>() {
                Ok(position) => value.get(position),
                Err(_) => value.get(index),
            },
        )
    })
}
