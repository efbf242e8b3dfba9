//! Tables: the columns `kubectl get` prints, for built-in kinds from one list and for custom
//! resources from their definition.

mod age;
mod builtin;
mod jsonpath;
mod storage_and_batch;

use serde_json::{Value, json};

use crate::object;
use crate::render;
use crate::request::Include;
use crate::resources::{PrinterColumn, Resource};

/// One object to be shown.
struct Row<'a> {
    object: &'a Value,
    now: jiff::Timestamp,
}

impl Row<'_> {
    fn text(&self, path: &[&str]) -> &str {
        object::text(self.object, path)
    }

    fn age_of(&self, path: &[&str]) -> String {
        age::since(self.text(path), self.now)
    }
}

/// A column of a built-in kind.
struct Column {
    name: &'static str,
    kind: &'static str,
    /// Above zero means: only with `-o wide`.
    priority: i64,
    cell: fn(&Row<'_>) -> Value,
}

impl Column {
    const fn new(name: &'static str, cell: fn(&Row<'_>) -> Value) -> Self {
        Self { name, kind: "string", priority: 0, cell }
    }

    const fn wide(name: &'static str, cell: fn(&Row<'_>) -> Value) -> Self {
        Self { name, kind: "string", priority: 1, cell }
    }

    /// A column whose flag is shown as a word.
    const fn printed(self) -> Self {
        Self { kind: "boolean", ..self }
    }

    /// A column of dates.
    const fn dated(self) -> Self {
        Self { kind: "date", ..self }
    }

    const fn number(name: &'static str, cell: fn(&Row<'_>) -> Value) -> Self {
        Self { name, kind: "integer", priority: 0, cell }
    }
}

/// A `meta.k8s.io/v1` Table of the objects; without `headed` only the rows.
pub(crate) fn render(
    resource: &Resource,
    objects: &[&Value],
    metadata: &Value,
    now: jiff::Timestamp,
    headed: bool,
    include: Include,
) -> Value {
    let columns = if resource.columns.is_empty() { builtin::columns(resource) } else { Vec::new() };
    let rows: Vec<Value> = objects
        .iter()
        .map(|object| {
            let row = Row { object, now };
            let mut cells = Vec::new();
            if resource.columns.is_empty() {
                cells.extend(columns.iter().map(|column| (column.cell)(&row)));
            } else {
                cells.push(json!(object::name(object)));
                cells.extend(resource.columns.iter().map(|column| custom_cell(column, &row)));
            }
            let mut shown = json!({ "cells": cells });
            if let Some(condition) = completed(resource, object) {
                shown["conditions"] = json!([condition]);
            }
            match include {
                Include::Metadata => shown["object"] = render::partial(object),
                Include::Object => shown["object"] = render::present(resource, object).into_owned(),
                Include::None => {}
            }
            shown
        })
        .collect();
    let definitions = headed.then(|| {
        if resource.columns.is_empty() {
            columns.iter().map(definition).collect::<Vec<_>>()
        } else {
            let name = definition(&Column::new("Name", |_| Value::Null));
            std::iter::once(name).chain(resource.columns.iter().map(custom_definition)).collect()
        }
    });
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
        "columnDefinitions": definitions, "rows": rows,
    })
}

/// Condition of the row of a pod that has ended.
fn completed(resource: &Resource, object: &Value) -> Option<Value> {
    let phase = object::text(object, &["status", "phase"]);
    let message = match phase {
        "Succeeded" => "The pod has completed successfully.",
        "Failed" => "The pod failed.",
        _ => return None,
    };
    resource.is("", "pods").then(
        || json!({ "type": "Completed", "status": "True", "reason": phase, "message": message }),
    )
}

fn definition(column: &Column) -> Value {
    json!({
        "name": column.name,
        "type": column.kind,
        "format": if matches!(column.name, "Name" | "Attacher") { "name" } else { "" },
        "description": "",
        "priority": column.priority,
    })
}

fn custom_definition(column: &PrinterColumn) -> Value {
    json!({
        "name": column.name,
        "type": column.kind,
        "format": column.format,
        "description": column.description,
        "priority": column.priority,
    })
}

fn custom_cell(column: &PrinterColumn, row: &Row<'_>) -> Value {
    let Some(found) = jsonpath::first(row.object, &column.json_path) else {
        return if column.kind == "date" { json!("<unknown>") } else { Value::Null };
    };
    match (column.kind.as_str(), found) {
        ("date", Value::String(text)) => json!(age::since(text, row.now)),
        // Memory and storage in bytes are for machines; the object still has them.
        ("string", Value::String(text)) if is_bytes(&column.json_path, text) => {
            storage_and_batch::readable_bytes(text)
                .map_or_else(|| found.clone(), |text| json!(text))
        }
        ("string", Value::String(_))
        | ("integer" | "number", Value::Number(_))
        | (_, Value::Bool(_)) => found.clone(),
        ("string", other) => json!(other.to_string()),
        _ => found.clone(),
    }
}

/// Whether a column shows an amount of memory or storage in bytes, without a unit.
fn is_bytes(path: &str, text: &str) -> bool {
    let named = path.ends_with("memory") || path.ends_with("storage");
    named && text.len() > 9 && text.bytes().all(|byte| byte.is_ascii_digit())
}
