//! Manifests from files, folders and standard input.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::lines::Source;
use crate::user_error::UserError;

/// Maximum depth of folders.
const MAX_DEPTH: usize = 32;

/// One object of a manifest.
#[derive(Clone)]
pub struct Document {
    /// The object.
    pub value: Value,
    /// Number of the object among all that were read, from 1.
    pub number: usize,
    source: Arc<Source>,
    /// Path of the object in its document; empty unless it is an item of a list.
    within: String,
}

impl Document {
    /// An object of a cluster, which no file has.
    pub fn of_cluster(value: Value, number: usize) -> Self {
        Self { value, number, source: Source::new("cluster", "", 0), within: String::new() }
    }

    /// The text at a JSON pointer; empty if there is none.
    pub fn text(&self, pointer: &str) -> &str {
        self.value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    /// File of the object, or `standard input`.
    pub fn file(&self) -> &str {
        &self.source.file
    }

    /// Line of a field, or of what is written of its path.
    pub fn line(&self, field: &str) -> usize {
        self.source.line(&format!("{}.{field}", self.within))
    }

    /// Kind, namespace and name.
    pub fn title(&self) -> String {
        let (kind, name) = (self.text("/kind"), self.text("/metadata/name"));
        match self.text("/metadata/namespace") {
            "" => format!("{kind} `{name}`"),
            namespace => format!("{kind} `{namespace}/{name}`"),
        }
    }

    /// Deserializes the object.
    pub fn read<T: DeserializeOwned>(&self) -> anyhow::Result<T> {
        T::deserialize(&self.value).map_err(|error| self.error("", error))
    }

    /// A user error about a field.
    pub fn error(&self, field: &str, problem: impl std::fmt::Display) -> anyhow::Error {
        UserError::new(self.message(field, &problem.to_string()), HINT).into()
    }

    /// One line about a field: file, line, object, field and problem.
    pub fn message(&self, field: &str, problem: &str) -> String {
        let colon = if field.is_empty() { "" } else { ": " };
        let (file, line) = (self.file(), self.line(field));
        format!("{file}:{line}: {}: {field}{colon}{problem}", self.title())
    }
}

/// The hint of errors in manifests.
pub const HINT: &str = "correct the fields; `kubectl explain` says what a field may be";

/// Bounds of a YAML document. A dump of a cluster exceeds the default budget.
pub fn budget() -> Option<serde_saphyr::Budget> {
    serde_saphyr::budget! {
        max_events: 200_000_000, max_nodes: 100_000_000, max_total_scalar_bytes: 4_000_000_000,
    }
}

/// Reads all documents. Fails if there is none.
pub fn read(paths: &[PathBuf]) -> anyhow::Result<Vec<Document>> {
    let mut documents = Vec::new();
    for file in files(paths)? {
        read_file(&file, &mut documents)?;
    }
    if documents.is_empty() { Err(no_objects(paths)) } else { Ok(documents) }
}

/// The error of paths without any object.
pub fn no_objects(paths: &[PathBuf]) -> anyhow::Error {
    let names: Vec<String> = paths.iter().map(|path| shown(path)).collect();
    UserError::new(format!("no objects in {}", names.join(", ")), EACH).into()
}

/// The files of some paths. Folders are walked in name order, for `.yaml`, `.yml` and `.json`.
pub fn files(paths: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        if path == Path::new("-") {
            files.push(path.clone());
        } else {
            find(path, true, MAX_DEPTH, &mut files)?;
        }
    }
    Ok(files)
}

/// Appends the documents of one file, or of standard input (`-`).
pub fn read_file(file: &Path, documents: &mut Vec<Document>) -> anyhow::Result<()> {
    let text = if file == Path::new("-") {
        std::io::read_to_string(std::io::stdin()).context("reading standard input")?
    } else {
        std::fs::read_to_string(file).map_err(|error| cannot_read(file, &error))?
    };
    parse(&shown(file), &text, documents)
}

fn shown(path: &Path) -> String {
    if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() }
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
    let malformed = |line: usize, what: &str, error: String| {
        let problem = error.lines().next().unwrap_or_default().trim_end_matches(':');
        let message = format!("{file}:{line}: is not {what}: {problem}");
        anyhow::Error::from(UserError::new(message, EACH))
    };
    if text.trim_start().starts_with('{') {
        let mut stream = serde_json::Deserializer::from_str(text).into_iter::<Value>();
        loop {
            let begin = stream.byte_offset();
            let before = text[..begin].matches('\n').count();
            let Some(value) = stream.next() else { return Ok(()) };
            let value =
                value.map_err(|error| malformed(error.line().max(1), "JSON", error.to_string()))?;
            let part = text.get(begin..stream.byte_offset()).unwrap_or_default();
            let source = Source::new(file, part, before);
            take(&source, String::new(), value, documents)?;
        }
    }
    for (before, part) in split(text) {
        let has_content = part.lines().any(|line| {
            let line = line.trim_start();
            !(line.is_empty() || line.starts_with('#') || line.starts_with("---"))
        });
        if !has_content {
            continue;
        }
        let options = serde_saphyr::options! { budget: budget() };
        // Leading empty lines keep the line numbers of the file in error messages.
        let padded = format!("{}{part}", "\n".repeat(before));
        let value: Value =
            serde_saphyr::from_str_with_options(&padded, options).map_err(|error| {
                let line = error.location().and_then(|at| usize::try_from(at.line()).ok());
                malformed(line.unwrap_or(before + 1), "YAML", error.to_string())
            })?;
        take(&Source::new(file, &part, before), String::new(), value, documents)?;
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

/// What every document must be.
const EACH: &str = "each document is one Kubernetes object, or a List of them";

/// Appends an object, or each item of a list.
fn take(
    source: &Arc<Source>,
    within: String,
    mut value: Value,
    documents: &mut Vec<Document>,
) -> anyhow::Result<()> {
    if value.is_null() {
        return Ok(());
    }
    let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    if api_version.is_empty() || kind.is_empty() {
        let missing = if kind.is_empty() { "kind" } else { "apiVersion" };
        let (file, line) = (&source.file, source.line(&within));
        let message = format!("{file}:{line}: {missing}: is missing, so nobody knows what this is");
        return Err(UserError::new(message, EACH).into());
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
                take(source, format!("{within}.items[{index}]"), item, documents)?;
            }
            Ok(())
        }
        (Some(_), None | Some(Value::Null)) => Ok(()),
        _ => {
            let (source, number) = (Arc::clone(source), documents.len() + 1);
            documents.push(Document { value, number, source, within });
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> anyhow::Result<Vec<Document>> {
        let mut documents = Vec::new();
        parse("file", text, &mut documents)?;
        Ok(documents)
    }

    #[test]
    fn documents_and_list_items_are_read_separately() {
        let text = "# nothing\n---\n---\napiVersion: v1\nkind: Pod\ndata: |\n  ---\n--- # more\napiVersion: v1\nkind: List\nitems:\n\
                    - { apiVersion: v1, kind: Node }\n---\napiVersion: v1\nkind: PodList\nitems:\n- metadata: {}\n- metadata:\n    name: b\n";
        let found = parsed(text).unwrap();
        let kinds: Vec<&str> = found.iter().map(|document| document.text("/kind")).collect();
        assert_eq!(kinds, ["Pod", "Node", "Pod", "Pod"]);
        assert_eq!(found[0].text("/data"), "---\n");
        let lines: Vec<usize> = found.iter().map(|document| document.line("metadata")).collect();
        assert_eq!(lines, [4, 12, 17, 18]);
        assert_eq!(
            found[3].message("metadata.name", "is b"),
            "file:19: Pod `b`: metadata.name: is b"
        );
    }

    #[test]
    fn unreadable_document_is_named() {
        for (text, expected) in [
            ("apiVersion: v1\nkind: A\n---\na: [", "file:4: is not YAML"),
            ("{\"apiVersion\": 1", "file:1: is not JSON"),
            ("\na: 1", "file:2: kind: is missing"),
        ] {
            let error = parsed(text).map(|_| ()).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
