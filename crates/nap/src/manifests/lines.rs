//! Lines of the fields of a document, found again in its text when there is something to say.

use std::sync::{Arc, OnceLock};

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

/// A document's text and where it begins.
pub struct Source {
    /// The file, or `standard input`.
    pub file: String,
    text: String,
    /// Lines of the file before the text.
    before: usize,
    tree: OnceLock<Option<Node>>,
}

impl Source {
    /// The text of one document, after so many lines of its file.
    pub fn new(file: &str, text: &str, before: usize) -> Arc<Self> {
        let (file, text) = (file.to_owned(), text.to_owned());
        Arc::new(Self { file, text, before, tree: OnceLock::new() })
    }

    /// Line of the innermost field of a path that is written in the document, from 1.
    pub fn line(&self, path: &str) -> usize {
        let tree = self.tree.get_or_init(|| {
            let options = serde_saphyr::options! { budget: super::read::budget() };
            serde_saphyr::from_str_with_options(&self.text, options).ok()
        });
        let within = tree.as_ref().map_or(1, |tree| tree.line_of(path));
        self.before + within.max(1)
    }
}

/// A value with the line of its first character.
struct Node {
    line: usize,
    value: Kind,
}

enum Kind {
    Scalar,
    /// Keys, each with its own line.
    Map(Vec<(String, usize, Node)>),
    List(Vec<Node>),
}

impl Node {
    fn line_of(&self, path: &str) -> usize {
        let (mut node, mut line, mut rest) = (self, self.line, path);
        loop {
            rest = rest.trim_start_matches('.');
            if rest.is_empty() {
                return line;
            }
            let next = match &node.value {
                Kind::Scalar => None,
                Kind::List(items) => {
                    let step = rest.strip_prefix('[').and_then(|rest| rest.split_once(']'));
                    step.and_then(|(index, rest)| {
                        let item = items.get(index.parse::<usize>().ok()?)?;
                        Some((item, item.line, rest))
                    })
                }
                // A key may hold dots, so the longest that fits is meant.
                Kind::Map(fields) => fields
                    .iter()
                    .filter_map(|(key, line, value)| {
                        let rest = match rest.strip_prefix('[') {
                            Some(rest) => rest.strip_prefix(key.as_str())?.strip_prefix(']')?,
                            None => rest.strip_prefix(key.as_str())?,
                        };
                        let ends = rest.is_empty() || rest.starts_with(['.', '[']);
                        ends.then_some((key.len(), value, *line, rest))
                    })
                    .max_by_key(|(length, ..)| *length)
                    .map(|(_, value, line, rest)| (value, line, rest)),
            };
            let Some(found) = next else { return line };
            (node, line, rest) = found;
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Kind>::deserialize(deserializer)?;
        let line = usize::try_from(spanned.referenced.line()).unwrap_or(0);
        Ok(Self { line, value: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(KindVisitor)
    }
}

struct KindVisitor;

impl<'de> Visitor<'de> for KindVisitor {
    type Value = Kind;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Kind, E> {
        Ok(Kind::Scalar)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Kind, E> {
        Ok(Kind::Scalar)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Kind, E> {
        Ok(Kind::Scalar)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Kind, E> {
        Ok(Kind::Scalar)
    }

    fn visit_str<E>(self, _: &str) -> Result<Kind, E> {
        Ok(Kind::Scalar)
    }

    fn visit_unit<E>(self) -> Result<Kind, E> {
        Ok(Kind::Scalar)
    }

    fn visit_none<E>(self) -> Result<Kind, E> {
        Ok(Kind::Scalar)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Kind, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Kind::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Kind, A::Error> {
        let mut fields = Vec::new();
        while let Some(key) = access.next_key::<Spanned<String>>()? {
            let line = usize::try_from(key.referenced.line()).unwrap_or(0);
            fields.push((key.value, line, access.next_value()?));
        }
        Ok(Kind::Map(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_the_innermost_field_that_is_written() {
        let text = "kind: A\nmetadata:\n  labels:\n    app.kubernetes.io/name: x\nspec:\n  list:\n  - a: 1\n    b: {c: 2,\n      d: 3}\n  - [1,\n     2]\n";
        let source = Source::new("f.yaml", text, 10);
        for (path, line) in [
            ("", 11),
            ("kind", 11),
            ("metadata.labels", 13),
            ("metadata.labels.app.kubernetes.io/name", 14),
            ("metadata.labels[app.kubernetes.io/name]", 14),
            ("spec.list[0].b", 18),
            ("spec.list[0].b.d", 19),
            ("spec.list[0].missing.deeper", 17),
            ("spec.list[1][1]", 21),
            ("spec.nothing", 15),
        ] {
            assert_eq!(source.line(path), line, "{path}");
        }
    }

    #[test]
    fn json_has_lines_too() {
        let source = Source::new(
            "f.json",
            "{\n\t\"kind\": \"A\",\n\t\"spec\": {\n\t\t\"a\": 1\n\t}\n}\n",
            0,
        );
        assert_eq!(source.line("spec.a"), 4);
    }
}
