//! Sending a request, and what differs in two answers.

use std::collections::BTreeMap;

use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

/// A request: method, path below the namespace or absolute, content type (of a read: the accepted
/// one), body.
pub(super) type Request = (&'static str, &'static str, &'static str, Value);

pub(super) const JSON: &str = "application/json";
pub(super) const MERGE: &str = "application/merge-patch+json";
pub(super) const STRATEGIC: &str = "application/strategic-merge-patch+json";
pub(super) const APPLY: &str = "application/apply-patch+yaml";
pub(super) const PATCH: &str = "application/json-patch+json";

/// Status code and body as sent; text that is no JSON is a string.
pub(super) async fn raw(
    client: &Client,
    namespace: &str,
    request: (&str, &str, &str, &Value),
) -> (u16, Value) {
    let response = open(client, namespace, request).await;
    let code = response.status().as_u16();
    let bytes = response.into_body().collect_bytes().await.unwrap();
    let text = || json!(String::from_utf8_lossy(&bytes).trim());
    (code, serde_json::from_slice(&bytes).unwrap_or_else(|_| text()))
}

/// The response to a request, with its body still to be read. `@` stands for the namespace.
pub(super) async fn open(
    client: &Client,
    namespace: &str,
    (method, path, content, body): (&str, &str, &str, &Value),
) -> http::Response<Body> {
    let path = format!("/{}", path.replace('@', &format!("namespaces/{namespace}")));
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let header = if method == "GET" { "Accept" } else { "Content-Type" };
    let request =
        http::Request::builder().method(method).uri(path).header(header, content).body(body.into());
    client.send(request.unwrap()).await.unwrap()
}

/// Status code and normalised body.
pub(super) async fn send(
    client: &Client,
    namespace: &str,
    (method, path, content, body): &Request,
) -> (u16, Value) {
    let (code, mut value) = raw(client, namespace, (method, path, content, body)).await;
    normalise(&mut value);
    (code, value)
}

/// Removes the differences that the document states in words: tracked fields of objects that were
/// never applied, the kind of the items of a list, and descriptions of columns.
pub(super) fn forgive(body: &mut Value, applies: bool) {
    if !body.is_object() {
        return;
    }
    for column in
        body.get_mut("columnDefinitions").and_then(Value::as_array_mut).into_iter().flatten()
    {
        column["description"] = json!("");
    }
    let without = |object: &mut Value| {
        if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
            metadata.remove("managedFields");
        }
    };
    if !applies {
        without(body);
    }
    for row in body.get_mut("rows").and_then(Value::as_array_mut).into_iter().flatten() {
        without(&mut row["object"]);
    }
    for item in body.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten() {
        without(item);
        if let Some(item) = item.as_object_mut() {
            item.remove("kind");
            item.remove("apiVersion");
        }
    }
}

/// Replaces what every server makes up by itself.
pub(super) fn normalise(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for volatile in ["uid", "resourceVersion", "selfLink", "remainingItemCount"] {
                map.remove(volatile);
            }
            for (key, value) in map.iter_mut() {
                let made_up = matches!(
                    key.as_str(),
                    "creationTimestamp"
                        | "time"
                        | "clusterIP"
                        | "lastTransitionTime"
                        | "deletionTimestamp"
                );
                if made_up && value.is_string() {
                    *value = json!("<made up>");
                } else if key == "clusterIPs" {
                    *value = json!(["<made up>"]);
                } else if let (true, Value::Array(cells)) = (key == "cells", &mut *value) {
                    for cell in cells {
                        if cell.as_str().is_some_and(is_age) {
                            *cell = json!("<age>");
                        }
                    }
                }
                if let Value::String(text) = value {
                    *value = json!(without_uids(text));
                }
                normalise(value);
            }
            let renamed: Vec<String> =
                map.keys().filter(|key| without_uids(key) != **key).cloned().collect();
            for key in renamed {
                if let Some(value) = map.remove(&key) {
                    map.insert(without_uids(&key), value);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(normalise),
        Value::String(text) => *text = without_uids(text),
        _ => {}
    }
}

/// The text with every uuid replaced.
fn without_uids(text: &str) -> String {
    let is_uid = |part: &str| {
        part.len() == 36
            && part.char_indices().all(|(place, letter)| match place {
                8 | 13 | 18 | 23 => letter == '-',
                _ => letter.is_ascii_hexdigit(),
            })
    };
    if is_uid(text) { "<made up>".to_owned() } else { text.to_owned() }
}

/// Most rows of one request; the others are counted.
const MAX_ROWS: usize = 12;

/// Rows for the fields that differ.
pub(super) fn differences(of: &str, ours: &(u16, Value), theirs: &(u16, Value)) -> Vec<String> {
    let row = |field: &str, one: &str, other: &str| {
        format!("| {of} | {} | {} | {} |", cell(field), cell(one), cell(other))
    };
    let mut rows = Vec::new();
    if ours.0 != theirs.0 {
        rows.push(row("code", &ours.0.to_string(), &theirs.0.to_string()));
    }
    let (mut one, mut other) = (BTreeMap::new(), BTreeMap::new());
    leaves("", &ours.1, &mut one);
    leaves("", &theirs.1, &mut other);
    let absent = "–".to_owned();
    let keys: std::collections::BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    for key in keys {
        let (a, b) = (one.get(key).unwrap_or(&absent), other.get(key).unwrap_or(&absent));
        if a != b {
            rows.push(row(key, a, b));
        }
    }
    if rows.len() > MAX_ROWS {
        let rest = rows.split_off(MAX_ROWS);
        rows.push(more(of, &rest));
    }
    rows
}

/// The row for those that are too many, with a hash: another difference is another row.
fn more(of: &str, rest: &[String]) -> String {
    format!("| {of} | and {} more ({}) | | |", rest.len(), short_hash(&rest.join("\n")))
}

/// FNV-1a of 32 bits, in hexadecimal.
fn short_hash(text: &str) -> String {
    let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    format!("{:08x}", text.bytes().fold(0x811c_9dc5, step))
}

fn leaves(path: &str, value: &Value, found: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, value) in map {
                // The sets of fields are compared as a whole.
                if key == "fieldsV1" {
                    found.insert(format!("{path}.{key}"), value.to_string());
                } else {
                    leaves(&format!("{path}.{key}"), value, found);
                }
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (place, value) in items.iter().enumerate() {
                leaves(&format!("{path}[{place}]"), value, found);
            }
        }
        Value::Null => {}
        other => drop(found.insert(path.to_owned(), other.to_string())),
    }
}

/// A value in a table: of a long one its start, and a hash of the whole.
pub(super) fn cell(text: &str) -> String {
    const MAX: usize = 120;
    let text = text.replace('|', "\\|").replace('\n', " ");
    let short: String = text.chars().take(MAX).collect();
    if short.is_empty() {
        "(nothing)".to_owned()
    } else if short.contains("Invalid value: \"{") {
        // The object in it depends on how far its controllers are.
        format!("`{short}…`")
    } else if short.len() < text.len() {
        format!("`{short}…` ({})", short_hash(&without_made_up(&text)))
    } else {
        format!("`{short}`")
    }
}

/// A text without the letters of uids, times, revisions and addresses, which differ in every run.
fn without_made_up(text: &str) -> String {
    let is_made_up = |letter: char| letter.is_ascii_hexdigit() || "-:.TZ".contains(letter);
    text.chars().filter(|letter| !is_made_up(*letter)).collect()
}

/// Whether a word is an age of some seconds.
fn is_age(word: &str) -> bool {
    let digits = word.strip_suffix('s').unwrap_or_default();
    (1..4).contains(&digits.len()) && digits.chars().all(|letter| letter.is_ascii_digit())
}

/// Text of kubectl without ages, times, addresses, uids, revisions, what a certificate says, and
/// names of temporary files.
pub(super) fn normalised_text(text: &str) -> String {
    let word = |word: &str| {
        let (key, value) = word.rsplit_once('=').unwrap_or(("", word));
        let is_time = value.trim_matches('"').parse::<jiff::Timestamp>().is_ok();
        match () {
            () if is_age(word) => "<age>".to_owned(),
            () if word.parse::<std::net::Ipv4Addr>().is_ok() => "<address>".to_owned(),
            () if is_time || without_uids(value) != value => format!("{key}=<made up>"),
            () => word.to_owned(),
        }
    };
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("diff" | "---" | "+++" | "Extra:") => String::new(),
            Some(
                field @ ("CreationTimestamp:" | "IP:" | "IPs:" | "Username" | "resourceVersion:"),
            ) => {
                format!("{field} <made up>")
            }
            first => first.into_iter().chain(words).map(word).collect::<Vec<_>>().join(" "),
        }
    };
    text.lines().map(line).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
}

/// Rows for the lines that only one side has, in pairs. Equal lines in another order are one row.
pub(super) fn line_differences(of: &str, one: &str, other: &str) -> Vec<String> {
    let only = |here: &str, there: &str| -> Vec<String> {
        let mut there: Vec<&str> = there.lines().collect();
        let mut left = Vec::new();
        for line in here.lines() {
            match there.iter().position(|other| *other == line) {
                Some(place) => drop(there.swap_remove(place)),
                None => left.push(line.to_owned()),
            }
        }
        left
    };
    let (ours, theirs) = (only(one, other), only(other, one));
    let row = |a: &str, b: &str| format!("| {of} | output | {} | {} |", cell(a), cell(b));
    if ours.is_empty() && theirs.is_empty() {
        return vec![row("(the same lines", "in another order)")];
    }
    let text = |lines: &[String], place: usize| lines.get(place).cloned().unwrap_or_default();
    let most = ours.len().max(theirs.len());
    let mut rows: Vec<String> =
        (0..most).map(|at| row(&text(&ours, at), &text(&theirs, at))).collect();
    if rows.len() > MAX_ROWS {
        let rest = rows.split_off(MAX_ROWS);
        rows.push(more(of, &rest));
    }
    rows
}
