//! The fields of the built-in kinds: their numbers in protobuf, their types, and how server-side
//! apply merges their lists.
//!
//! `types.txt` has a line per message: its name, then `number:name:type` of each field, and how the
//! field is merged if that is special. The facts are those of the published types of Kubernetes
//! 1.36.
//!
//! | type | meaning |
//! |---|---|
//! | `s` `i` `b` `F` `y` | string, integer, boolean, float, bytes |
//! | `t` `T` `d` | time, time with microseconds, duration |
//! | `q` `I` `r` `f` `j` | quantity, integer or string, raw JSON, field set, JSON |
//! | `group.version.Kind` | message |
//! | `@…` | message that is only a list |
//!
//! | merge | meaning |
//! |---|---|
//! | `a+b` | list of objects with these keys |
//! | `=` | set of values |
//! | `#` | atomic |
//! | none | merged field by field; lists are atomic |
//!
//! `*` is a list, `%` a map with string keys, `!` a field whose zero value counts, `&` a message
//! whose fields are those of its parent in JSON.

use std::collections::BTreeMap;
use std::sync::OnceLock;

const TABLE: &str = include_str!("types.txt");

/// Type of one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    Number,
    Flag,
    Float,
    Bytes,
    Time,
    MicroTime,
    Duration,
    Quantity,
    IntOrString,
    Raw,
    /// A message, by name.
    Message(&'static str),
    /// A message whose only field is a list; in JSON it is the list.
    Items(&'static str),
}

/// How many values a field has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    One,
    List,
    Map,
    /// A message whose fields are those of its parent in JSON.
    Inline,
}

/// How server-side apply merges a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Merge {
    /// Objects and maps field by field, lists and values as a whole.
    Plain,
    /// The whole field.
    Atomic,
    /// A list whose values have no order and no duplicates.
    Set,
    /// A list of objects that these fields identify.
    Keys(Vec<&'static str>),
}

#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) number: u64,
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) shape: Shape,
    /// Whether a zero is a value; otherwise it means that the field is unset.
    pub(crate) keeps_zero: bool,
    pub(crate) merge: Merge,
}

fn table() -> &'static BTreeMap<&'static str, Vec<Field>> {
    static TYPES: OnceLock<BTreeMap<&'static str, Vec<Field>>> = OnceLock::new();
    TYPES.get_or_init(|| TABLE.lines().filter_map(message_of_line).collect())
}

/// The fields of a message; `None` if it is not in the table.
pub(crate) fn fields(message: &str) -> Option<&'static [Field]> {
    table().get(message).map(Vec::as_slice)
}

/// The name of a message as the table has it; `None` if it is not in the table.
pub(crate) fn name_of(message: &str) -> Option<&'static str> {
    table().get_key_value(message).map(|(name, _)| *name)
}

/// Name of the message of a kind: the first word of the group, the version and the kind.
pub(crate) fn message_name(api_version: &str, kind: &str) -> String {
    if kind == "DeleteOptions" {
        return "meta.v1.DeleteOptions".to_owned();
    }
    let (group, version) = api_version.split_once('/').unwrap_or(("core", api_version));
    format!("{}.{version}.{kind}", group.split('.').next().unwrap_or_default())
}

fn message_of_line(line: &'static str) -> Option<(&'static str, Vec<Field>)> {
    let mut words = line.split(' ');
    let name = words.next().filter(|name| !name.is_empty())?;
    let fields = words.map(field).collect::<Option<Vec<Field>>>();
    debug_assert!(fields.is_some(), "a line of types.txt cannot be read: {line}");
    Some((name, fields?))
}

fn field(word: &'static str) -> Option<Field> {
    let mut parts = word.split(':');
    let (number, name, mut kind) = (parts.next()?.parse().ok()?, parts.next()?, parts.next()?);
    let mut shape = Shape::One;
    for (mark, meaning) in [("*", Shape::List), ("%", Shape::Map), ("&", Shape::Inline)] {
        if let Some(rest) = kind.strip_prefix(mark) {
            (kind, shape) = (rest, meaning);
        }
    }
    let keeps_zero = kind.starts_with('!');
    let kind = match kind.trim_start_matches('!') {
        "s" => Kind::Text,
        "i" => Kind::Number,
        "b" => Kind::Flag,
        "F" => Kind::Float,
        "y" => Kind::Bytes,
        "t" => Kind::Time,
        "T" => Kind::MicroTime,
        "d" => Kind::Duration,
        "q" => Kind::Quantity,
        "I" => Kind::IntOrString,
        "r" | "f" | "j" => Kind::Raw,
        message => match message.strip_prefix('@') {
            Some(list) => Kind::Items(list),
            None => Kind::Message(message),
        },
    };
    let merge = match parts.next() {
        None => Merge::Plain,
        Some("=") => Merge::Set,
        Some("#") => Merge::Atomic,
        Some(keys) => Merge::Keys(keys.split('+').collect()),
    };
    Some(Field { number, name, kind, shape, keeps_zero, merge })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    /// Adds what JSON has under `schema` and the message has not.
    fn compare(
        root: &Value,
        schema: &Value,
        message: &'static str,
        seen: &mut BTreeSet<(String, &'static str)>,
        missing: &mut Vec<String>,
    ) {
        let definition = schema["$ref"].as_str().unwrap_or_default();
        if !seen.insert((definition.to_owned(), message)) {
            return;
        }
        let name = definition.rsplit('/').next().unwrap_or_default();
        let schema = root["$defs"].get(name).unwrap_or(schema);
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let Some(field) = find(message, name) else {
                missing.push(format!("{message}.{name}"));
                continue;
            };
            let inner = match field.shape {
                Shape::List => &property["items"],
                Shape::Map => &property["additionalProperties"],
                Shape::One | Shape::Inline => property,
            };
            let inner = inner["allOf"].get(0).unwrap_or(inner);
            match field.kind {
                Kind::Message(target) => compare(root, inner, target, seen, missing),
                Kind::Items(target) => {
                    // In JSON such a message is the list itself.
                    let item = &inner["items"];
                    let kind = find(target, "items").map(|field| field.kind);
                    if let Some(Kind::Message(target)) = kind {
                        compare(root, item, target, seen, missing);
                    }
                }
                _ => {}
            }
        }
    }

    /// The field of this name, or that of an inlined message.
    fn find(message: &str, name: &str) -> Option<&'static Field> {
        let all = fields(message)?;
        all.iter().find(|field| field.name == name).or_else(|| {
            let inlined = all.iter().filter(|field| field.shape == Shape::Inline);
            inlined.into_iter().find_map(|field| match field.kind {
                Kind::Message(target) => find(target, name),
                _ => None,
            })
        })
    }

    #[test]
    fn every_field_of_every_built_in_kind_can_be_sent_as_protobuf() {
        let (mut kinds, mut seen, mut missing) = (0, BTreeSet::new(), Vec::new());
        let mut envelopes = BTreeSet::new();
        for resource in crate::resources::builtin() {
            let message = message_name(&resource.api_version(), &resource.kind);
            let (Some(message), Some(schema)) = (name_of(&message), resource.json_schema) else {
                continue;
            };
            let root = crate::builtin::shape::types(schema);
            seen.clear();
            compare(&root, &root, message, &mut seen, &mut missing);
            // They are in the envelope.
            envelopes.extend(["apiVersion", "kind"].map(|name| format!("{message}.{name}")));
            kinds += 1;
        }
        missing.retain(|field| !envelopes.contains(field));
        missing.sort();
        missing.dedup();
        assert!(kinds > 50 && seen.len() > 3, "{kinds} {seen:?}");
        assert_eq!(missing, Vec::<String>::new());
    }

    #[test]
    fn bodies_of_subresources_are_in_the_table() {
        for name in [
            "autoscaling.v1.Scale",
            "core.v1.Binding",
            "meta.v1.DeleteOptions",
            "policy.v1.Eviction",
        ] {
            assert!(fields(name).is_some(), "{name}");
        }
    }

    #[test]
    fn every_message_that_a_field_names_is_in_the_table() {
        for line in TABLE.lines() {
            let (name, fields) = message_of_line(line).unwrap();
            for field in fields {
                if let Kind::Message(target) | Kind::Items(target) = field.kind {
                    assert!(super::fields(target).is_some(), "{name}.{}: {target}", field.name);
                }
            }
        }
    }

    #[test]
    fn every_built_in_kind_but_definitions_is_in_the_table() {
        for resource in crate::resources::builtin() {
            let name = message_name(&resource.api_version(), &resource.kind);
            let known = fields(&name).is_some();
            let has_none =
                ["apiextensions.k8s.io", "metrics.k8s.io"].contains(&resource.group.as_str());
            assert_eq!(known, !has_none, "{name}");
        }
    }
}
