//! A structural schema, parsed once when its CRD is written.

use std::collections::BTreeMap;

use regex::Regex;
use serde_json::Value;

use crate::object;

/// Deeper schemas are refused, so that walking one can never exhaust the stack.
const MAX_DEPTH: usize = 100;

/// One node of a structural schema: what defaulting, pruning and validation need to know.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "the flags of OpenAPI, one by one")]
pub(crate) struct Schema {
    pub(crate) kind: String,
    pub(crate) nullable: bool,
    pub(crate) int_or_string: bool,
    pub(crate) preserve_unknown: bool,
    pub(crate) embedded_resource: bool,
    pub(crate) default: Option<Value>,
    pub(crate) properties: BTreeMap<String, Schema>,
    pub(crate) additional: Additional,
    pub(crate) items: Option<Box<Schema>>,
    pub(crate) required: Vec<String>,
    pub(crate) allowed: Vec<Value>,
    pub(crate) pattern: Option<Regex>,
    pub(crate) format: String,
    pub(crate) minimum: Option<(f64, bool)>,
    pub(crate) maximum: Option<(f64, bool)>,
    pub(crate) multiple_of: Option<f64>,
    pub(crate) length: (Option<u64>, Option<u64>),
    pub(crate) item_count: (Option<u64>, Option<u64>),
    pub(crate) property_count: (Option<u64>, Option<u64>),
    pub(crate) unique_items: bool,
    pub(crate) list_type: String,
    pub(crate) list_keys: Vec<String>,
    pub(crate) all_of: Vec<Schema>,
    pub(crate) any_of: Vec<Schema>,
    pub(crate) one_of: Vec<Schema>,
    pub(crate) not: Option<Box<Schema>>,
}

/// Schema of properties that are not listed (`additionalProperties`).
#[derive(Debug, Default)]
pub(crate) enum Additional {
    #[default]
    None,
    Anything,
    Schema(Box<Schema>),
}

impl Schema {
    /// Parses `openAPIV3Schema`; the error says where and why it cannot be used.
    pub(crate) fn parse(raw: &Value, path: &str) -> Result<Self, (String, String)> {
        Self::parse_at(raw, path, 0)
    }

    fn parse_at(raw: &Value, path: &str, depth: usize) -> Result<Self, (String, String)> {
        if depth > MAX_DEPTH {
            return Err((path.to_owned(), "the schema is nested too deeply".to_owned()));
        }
        let Value::Object(_) = raw else {
            return Err((path.to_owned(), "must be a schema object".to_owned()));
        };
        let flag = |key: &str| raw.get(key).and_then(Value::as_bool).unwrap_or_default();
        let count = |key: &str| raw.get(key).and_then(Value::as_u64);
        let number = |key: &str| raw.get(key).and_then(Value::as_f64);
        let strings = |key: &str| -> Vec<String> {
            object::list(raw, &[key]).iter().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let branches = |key: &str| -> Result<Vec<Self>, (String, String)> {
            object::list(raw, &[key])
                .iter()
                .enumerate()
                .map(|(i, branch)| Self::parse_at(branch, &format!("{path}.{key}[{i}]"), depth + 1))
                .collect()
        };
        let optional = |key: &str| -> Result<Option<Box<Self>>, (String, String)> {
            raw.get(key)
                .filter(|value| value.is_object())
                .map(|value| {
                    Self::parse_at(value, &format!("{path}.{key}"), depth + 1).map(Box::new)
                })
                .transpose()
        };
        let mut properties = BTreeMap::new();
        if let Some(Value::Object(map)) = raw.get("properties") {
            for (name, property) in map {
                let at = format!("{path}.properties[{name}]");
                properties.insert(name.clone(), Self::parse_at(property, &at, depth + 1)?);
            }
        }
        let pattern = match raw.get("pattern").and_then(Value::as_str) {
            None | Some("") => None,
            Some(text) => Some(Regex::new(text).map_err(|error| {
                (
                    format!("{path}.pattern"),
                    format!("must be a valid regular expression, but isn't: {error}"),
                )
            })?),
        };
        let additional = match raw.get("additionalProperties") {
            None | Some(Value::Null | Value::Bool(false)) => Additional::None,
            Some(Value::Object(_)) => match optional("additionalProperties")? {
                Some(schema) => Additional::Schema(schema),
                None => Additional::None,
            },
            Some(_) => Additional::Anything,
        };
        Ok(Self {
            kind: object::text(raw, &["type"]).to_owned(),
            nullable: flag("nullable"),
            int_or_string: flag("x-kubernetes-int-or-string"),
            preserve_unknown: flag("x-kubernetes-preserve-unknown-fields"),
            embedded_resource: flag("x-kubernetes-embedded-resource"),
            default: raw.get("default").filter(|value| !value.is_null()).cloned(),
            properties,
            additional,
            items: optional("items")?,
            required: strings("required"),
            allowed: object::list(raw, &["enum"]).to_vec(),
            pattern,
            format: object::text(raw, &["format"]).to_owned(),
            minimum: number("minimum").map(|bound| (bound, flag("exclusiveMinimum"))),
            maximum: number("maximum").map(|bound| (bound, flag("exclusiveMaximum"))),
            multiple_of: number("multipleOf"),
            length: (count("minLength"), count("maxLength")),
            item_count: (count("minItems"), count("maxItems")),
            property_count: (count("minProperties"), count("maxProperties")),
            unique_items: flag("uniqueItems"),
            list_type: object::text(raw, &["x-kubernetes-list-type"]).to_owned(),
            list_keys: strings("x-kubernetes-list-map-keys"),
            all_of: branches("allOf")?,
            any_of: branches("anyOf")?,
            one_of: branches("oneOf")?,
            not: optional("not")?,
        })
    }

    /// The schema of a property, listed or additional.
    pub(crate) fn property(&self, name: &str) -> Option<&Self> {
        self.properties.get(name).or(match &self.additional {
            Additional::Schema(schema) => Some(schema),
            Additional::None | Additional::Anything => None,
        })
    }
}
