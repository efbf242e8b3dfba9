//! Manifests from files, folders and standard input.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::user_error::UserError;

/// Maximum depth of folders.
const MAX_DEPTH: usize = 32;
/// Maximum number of attempts to read an unreadable document without one of its fields, to find the
/// culprit.
const MAX_TRIES: usize = 2_000;

/// One object of a manifest.
pub struct Document {
    /// File and number of the document.
    pub place: String,
    /// The object.
    pub value: Value,
}

impl Document {
    /// The text at a JSON pointer; empty if there is none.
    pub fn text(&self, pointer: &str) -> &str {
        self.value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    /// Deserializes the object. The error names the field.
    pub fn read<T: DeserializeOwned>(&self) -> anyhow::Result<T> {
        T::deserialize(&self.value).map_err(|error| {
            let field = Culprit::<T>::find(&self.value)
                .map(|field| format!("{field}: "))
                .unwrap_or_default();
            self.error(format!("{field}{error}"))
        })
    }

    /// A user error at this place.
    pub fn error(&self, problem: impl std::fmt::Display) -> anyhow::Error {
        let kind = self.text("/kind");
        let name = self.text("/metadata/name");
        let message = format!("{}: {kind} `{name}`: {problem}", self.place);
        UserError::new(message, "`kubectl explain` and `nap lint -f FILE` say what a field may be")
            .into()
    }
}

/// Reads all documents. Folders are walked in name order, for `.yaml`, `.yml` and `.json`.
pub fn read(paths: &[PathBuf]) -> anyhow::Result<Vec<Document>> {
    let mut documents = Vec::new();
    for path in paths {
        if path == Path::new("-") {
            let text =
                std::io::read_to_string(std::io::stdin()).context("reading standard input")?;
            parse("standard input", &text, &mut documents)?;
            continue;
        }
        let mut files = Vec::new();
        find(path, true, MAX_DEPTH, &mut files)?;
        for file in files {
            let text =
                std::fs::read_to_string(&file).map_err(|error| cannot_read(&file, &error))?;
            parse(&file.display().to_string(), &text, &mut documents)?;
        }
    }
    Ok(documents)
}

fn cannot_read(path: &Path, error: &std::io::Error) -> anyhow::Error {
    let message = format!("{}: cannot be read: {error}", path.display());
    UserError::new(message, "-f takes files, folders, and `-` for standard input").into()
}

fn find(path: &Path, named: bool, depth: usize, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let metadata = std::fs::metadata(path).map_err(|error| cannot_read(path, &error))?;
    if metadata.is_dir() {
        anyhow::ensure!(
            depth > 0,
            "{}: folders are nested more than {MAX_DEPTH} deep",
            path.display()
        );
        let entries = std::fs::read_dir(path).map_err(|error| cannot_read(path, &error))?;
        let mut entries: Vec<PathBuf> =
            entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
        entries.sort();
        for entry in entries {
            find(&entry, false, depth - 1, files)?;
        }
    } else if named
        || path.extension().is_some_and(|extension| {
            ["yaml", "yml", "json"].iter().any(|known| extension == *known)
        })
    {
        files.push(path.to_owned());
    }
    Ok(())
}

/// Appends the documents of one text.
pub fn parse(file: &str, text: &str, documents: &mut Vec<Document>) -> anyhow::Result<()> {
    let malformed = |number: usize, what: &str, error: String| {
        let line = error.lines().next().unwrap_or_default().trim_end_matches(':');
        let message = format!("{file}, document {number}: is not {what}: {line}");
        anyhow::Error::from(UserError::new(
            message,
            "each document is one Kubernetes object, or a List of them",
        ))
    };
    if text.trim_start().starts_with('{') {
        let stream = serde_json::Deserializer::from_str(text).into_iter::<Value>();
        for (index, value) in stream.enumerate() {
            let value = value.map_err(|error| malformed(index + 1, "JSON", error.to_string()))?;
            take(format!("{file}, document {}", index + 1), value, documents)?;
        }
        return Ok(());
    }
    let mut number = 0;
    for (before, part) in split(text) {
        let has_content = part.lines().any(|line| {
            let line = line.trim_start();
            !(line.is_empty() || line.starts_with('#') || line.starts_with("---"))
        });
        if !has_content {
            continue;
        }
        number += 1;
        // Leading empty lines keep the line numbers of the file in error messages.
        let padded = format!("{}{part}", "\n".repeat(before));
        // A dump of a cluster exceeds the default budget.
        let budget = serde_saphyr::budget! {
            max_events: 200_000_000, max_nodes: 100_000_000, max_total_scalar_bytes: 4_000_000_000,
        };
        let options = serde_saphyr::options! { budget: budget };
        let value: Value = serde_saphyr::from_str_with_options(&padded, options)
            .map_err(|error| malformed(number, "YAML", error.to_string()))?;
        take(format!("{file}, document {number}"), value, documents)?;
    }
    Ok(())
}

/// Documents of a YAML text, each with the number of lines before it.
fn split(text: &str) -> Vec<(usize, String)> {
    let mut parts = vec![(0, String::new())];
    for (number, line) in text.lines().enumerate() {
        if line == "---" || line.starts_with("--- ") {
            parts.push((number, String::new()));
        }
        if let Some((_, part)) = parts.last_mut() {
            part.push_str(line);
            part.push('\n');
        }
    }
    parts
}

/// Appends an object, or each item of a list.
fn take(place: String, mut value: Value, documents: &mut Vec<Document>) -> anyhow::Result<()> {
    if value.is_null() {
        return Ok(());
    }
    let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    if api_version.is_empty() || kind.is_empty() {
        let missing = if kind.is_empty() { "kind" } else { "apiVersion" };
        let message = format!("{place}: {missing}: is missing, so nobody knows what this is");
        return Err(UserError::new(
            message,
            "each document is one Kubernetes object, or a List of them",
        )
        .into());
    }
    let of_items = kind.strip_suffix("List").map(str::to_owned);
    match (of_items, value.get_mut("items").map(Value::take)) {
        (Some(of_items), Some(Value::Array(items))) => {
            for (index, mut item) in items.into_iter().enumerate() {
                // Items of a typed list may lack `apiVersion` and `kind`.
                if let Some(item) = item.as_object_mut().filter(|_| !of_items.is_empty()) {
                    item.entry("kind").or_insert_with(|| Value::String(of_items.clone()));
                    item.entry("apiVersion").or_insert_with(|| Value::String(api_version.clone()));
                }
                take(format!("{place}, item {}", index + 1), item, documents)?;
            }
            Ok(())
        }
        (Some(_), None | Some(Value::Null)) => Ok(()),
        _ => {
            documents.push(Document { place, value });
            Ok(())
        }
    }
}

/// Search for the field that makes a document unreadable: the innermost one without which it can be
/// read.
struct Culprit<T> {
    tries: usize,
    whole: Value,
    wanted: std::marker::PhantomData<T>,
}

impl<T: DeserializeOwned> Culprit<T> {
    fn find(value: &Value) -> Option<String> {
        let mut search = Self { tries: 0, whole: value.clone(), wanted: std::marker::PhantomData };
        let mut path = search.within(&mut Vec::new())?;
        search.deepen(&mut path);
        Some(path.iter().fold(String::new(), |text, step| match step.parse::<usize>() {
            Ok(index) => format!("{text}[{index}]"),
            Err(_) if text.is_empty() => step.clone(),
            Err(_) => format!("{text}.{step}"),
        }))
    }

    /// Extends the path by one field. If removing a required field changes the error, the error was
    /// about that field.
    fn deepen(&mut self, path: &mut Vec<String>) {
        let complaint = self.complaint_without(&[]);
        if complaint.as_ref().is_none_or(|complaint| complaint.starts_with("missing field")) {
            return;
        }
        while let Some(child) = self.children(path).into_iter().find(|child| {
            path.push(child.clone());
            let other = self.complaint_without(path);
            path.pop();
            other != complaint
        }) {
            path.push(child);
        }
    }

    fn children(&mut self, path: &[String]) -> Vec<String> {
        match at(&mut self.whole, path) {
            Some(Value::Object(map)) => map.keys().cloned().collect(),
            Some(Value::Array(items)) => (0..items.len()).map(|index| index.to_string()).collect(),
            _ => Vec::new(),
        }
    }

    fn within(&mut self, path: &mut Vec<String>) -> Option<Vec<String>> {
        let children = self.children(path);
        for child in &children {
            path.push(child.clone());
            if self.complaint_without(path).is_none() {
                let deeper = self.within(path);
                return deeper.or_else(|| Some(path.clone()));
            }
            path.pop();
        }
        for child in children {
            path.push(child);
            if let Some(found) = self.within(path) {
                return Some(found);
            }
            path.pop();
        }
        None
    }

    /// The error of the document without the field at `path`; `None` if it can be read. An empty
    /// path removes nothing.
    fn complaint_without(&mut self, path: &[String]) -> Option<String> {
        let complaint = |whole: &Value| T::deserialize(whole).err().map(|error| error.to_string());
        self.tries += 1;
        let Some((last, parents)) = path.split_last().filter(|_| self.tries <= MAX_TRIES) else {
            return complaint(&self.whole);
        };
        let before = at(&mut self.whole, parents)?.clone();
        match at(&mut self.whole, parents) {
            Some(Value::Object(map)) => drop(map.remove(last)),
            Some(Value::Array(items)) => {
                let index = last.parse().ok().filter(|index| *index < items.len());
                drop(index.map(|index: usize| items.remove(index)));
            }
            _ => {}
        }
        let found = complaint(&self.whole);
        if let Some(parent) = at(&mut self.whole, parents) {
            *parent = before;
        }
        found
    }
}

fn at<'v>(value: &'v mut Value, path: &[String]) -> Option<&'v mut Value> {
    path.iter().try_fold(value, |value, step| match value {
        Value::Object(map) => Map::get_mut(map, step),
        Value::Array(items) => items.get_mut(step.parse::<usize>().ok()?),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::Deployment;
    use serde_json::json;

    use super::*;

    fn parsed(text: &str) -> anyhow::Result<Vec<Document>> {
        let mut documents = Vec::new();
        parse("file", text, &mut documents)?;
        Ok(documents)
    }

    #[test]
    fn documents_and_list_items_are_read_separately() {
        let text = "# nothing\n---\n---\napiVersion: v1\nkind: Pod\ndata: |\n  ---\n--- # more\napiVersion: v1\nkind: List\nitems:\n\
                    - { apiVersion: v1, kind: Node }\n---\napiVersion: v1\nkind: PodList\nitems: [{ metadata: {} }]\n";
        let found = parsed(text).unwrap();
        let kinds: Vec<&str> = found.iter().map(|document| document.text("/kind")).collect();
        assert_eq!(kinds, ["Pod", "Node", "Pod"]);
        assert_eq!(found[0].text("/data"), "---\n");
        assert_eq!(found[2].place, "file, document 3, item 1");
    }

    #[test]
    fn unreadable_document_is_named() {
        for (text, expected) in [
            ("apiVersion: v1\nkind: A\n---\na: [", "file, document 2: is not YAML"),
            ("{\"apiVersion\": 1", "file, document 1: is not JSON"),
            ("a: 1", "file, document 1: kind: is missing"),
        ] {
            let error = parsed(text).map(|_| ()).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn error_names_the_innermost_wrong_field() {
        let container =
            |name: serde_json::Value| json!({ "name": name, "ports": [{ "containerPort": 80 }] });
        for (spec, field) in [
            (json!({ "replicas": "many" }), "spec.replicas"),
            (
                json!({ "template": { "spec": { "containers": [container(json!("a")), container(json!(7))] } } }),
                "spec.template.spec.containers[1].name",
            ),
        ] {
            let value = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web" }, "spec": spec });
            let document = Document { place: "file".to_owned(), value };
            let error = document.read::<Deployment>().unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("file: Deployment `web`: {field}: invalid type")),
                "{error}"
            );
        }
    }
}
