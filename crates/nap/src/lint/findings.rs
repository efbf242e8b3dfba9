//! Findings of `nap lint`, as text, JSON and SARIF.

use std::fmt;

use serde::Serialize;
use serde_json::{Value, json};

use crate::manifests::check;
use crate::manifests::read::Document;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Accepted; the text says how it is interpreted.
    Note,
    /// Accepted, but probably a mistake.
    Warning,
    /// Refused by the API server, or by nap.
    Error,
}

impl Level {
    fn as_str(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }

    /// Identity of the rule in SARIF, and what it says in general.
    fn rule(self) -> (&'static str, &'static str) {
        match self {
            Self::Note => ("old-spelling", "A spelling of an earlier version, and its meaning"),
            Self::Warning => ("likely-mistake", "Accepted, and probably not what was meant"),
            Self::Error => ("refused", "Refused by the API server or by nap"),
        }
    }
}

/// A finding in a manifest.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// Severity.
    pub level: Level,
    /// File, or `standard input`.
    pub file: String,
    /// Line of the field, from 1; `None` if the file cannot be read.
    pub line: Option<usize>,
    /// Kind and name; empty if the file cannot be read.
    pub object: String,
    /// Path of the field; empty if it is about the whole object.
    pub field: String,
    /// What is wrong, and what to do.
    pub message: String,
}

impl Finding {
    /// A finding about a field of an object.
    pub fn new(level: Level, document: &Document, field: &str, message: String) -> Self {
        let title = document.title().replace('`', "");
        Self {
            level,
            file: document.file().to_owned(),
            line: Some(document.line(field)),
            object: title,
            field: field.to_owned(),
            message,
        }
    }

    /// A finding of nap's own checks, whose message begins with the field.
    pub fn of_message(level: Level, document: &Document, message: &str) -> Self {
        let problem = check::split(message);
        Self::new(level, document, &problem.field, problem.text)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.level.as_str())?;
        if let Some(line) = self.line {
            write!(f, "{}:{line}: {}: ", self.file, self.object)?;
        }
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)
    }
}

/// The document of `-o json`.
pub fn json(findings: &[Finding]) -> Value {
    json!({ "version": 1, "findings": findings })
}

/// The document of `-o sarif`, for code scanning.
pub fn sarif(findings: &[Finding]) -> Value {
    let rules = [Level::Error, Level::Warning, Level::Note].map(|level| {
        let (id, text) = level.rule();
        json!({ "id": id, "shortDescription": { "text": text } })
    });
    let results: Vec<Value> = findings
        .iter()
        .map(|finding| {
            let mut place = json!({ "artifactLocation": { "uri": finding.file } });
            if let Some(line) = finding.line {
                place["region"] = json!({ "startLine": line });
            }
            let parts = [&finding.object, &finding.field, &finding.message];
            let parts: Vec<&str> =
                parts.into_iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
            json!({
                "ruleId": finding.level.rule().0,
                "level": finding.level,
                "message": { "text": parts.join(": ") },
                "locations": [{ "physicalLocation": place }],
            })
        })
        .collect();
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": {
                "name": "nap lint", "version": env!("CARGO_PKG_VERSION"), "rules": rules,
            } },
            "results": results,
        }],
    })
}
