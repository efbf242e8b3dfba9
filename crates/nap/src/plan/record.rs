//! Saved decisions: `nap plan --save` and `nap replay`.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;
use nap_azure::Shortage;
use nap_engine::{Options, Snapshot};
use nap_units::Resources;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::document::PlanDocument;
use super::{Decision, Problem};
use crate::catalogue::Origin;
use crate::user_error::UserError;

/// Version of the file.
const VERSION: u32 = 1;
/// The file's `kind`.
const KIND: &str = "nap plan";
/// Maximum number of differences shown.
const MAX_DIFFERENCES: usize = 20;

/// The file that `nap plan --save` writes.
#[derive(Serialize, Deserialize)]
pub struct Record {
    kind: String,
    version: u32,
    /// Region of the sizes and prices.
    pub region: String,
    /// Where the prices and zones come from.
    #[serde(default)]
    pub origin: Origin,
    /// `spec.limits` by NodePool.
    pub limits: BTreeMap<String, Resources>,
    /// Input of the engine.
    pub snapshot: Snapshot,
    /// Options of the engine.
    #[serde(default)]
    pub options: Options,
    /// Offerings that were left out.
    #[serde(default)]
    pub left_out: Vec<Shortage>,
    /// The plan, as `nap plan -o json` prints it.
    pub plan: Value,
}

impl Record {
    /// The record of a decision.
    pub fn new(problem: &Problem, decision: &Decision) -> Self {
        Self {
            kind: KIND.to_owned(),
            version: VERSION,
            region: problem.region.clone(),
            origin: problem.origin.clone(),
            limits: problem.limits.clone(),
            snapshot: problem.snapshot.clone(),
            options: problem.options.clone(),
            left_out: problem.left_out.clone(),
            plan: serde_json::to_value(PlanDocument::new(problem, decision)).unwrap_or_default(),
        }
    }

    /// Writes the file.
    pub fn save(&self, file: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string(self)?;
        std::fs::write(file, text + "\n").map_err(|error| {
            let message = format!("--save: {}: cannot be written: {error}", file.display());
            UserError::new(message, "name a file in a folder that exists").into()
        })
    }

    /// Reads a file.
    pub fn load(file: &Path) -> anyhow::Result<Self> {
        let refuse = |problem: String| {
            let message = format!("{}: {problem}", file.display());
            anyhow::Error::from(UserError::new(
                message,
                "`nap plan --save FILE` writes what `nap replay` reads",
            ))
        };
        let text = std::fs::read_to_string(file)
            .map_err(|error| refuse(format!("cannot be read: {error}")))?;
        let head: Value =
            serde_json::from_str(&text).map_err(|error| refuse(format!("is not JSON: {error}")))?;
        if head.get("kind").and_then(Value::as_str) != Some(KIND) {
            return Err(refuse("is not a stored plan".to_owned()));
        }
        if head.get("version").and_then(Value::as_u64) != Some(VERSION.into()) {
            let version = head.get("version").cloned().unwrap_or_default();
            return Err(refuse(format!("has version {version}; this nap reads version {VERSION}")));
        }
        serde_json::from_value(head)
            .map_err(|error| refuse(format!("cannot be understood: {error}")))
    }
}

/// Differences between the stored and the new plan: field, stored value, new value.
pub fn differences(stored: &Value, present: &PlanDocument) -> anyhow::Result<Vec<String>> {
    // Through text, so that numbers are compared in their written form.
    let text = serde_json::to_string(present).context("writing the plan")?;
    let present: Value = serde_json::from_str(&text).context("reading the plan")?;
    let mut found = Vec::new();
    compare("", stored, &present, &mut found);
    Ok(found)
}

fn compare(path: &str, stored: &Value, present: &Value, found: &mut Vec<String>) {
    if found.len() == MAX_DIFFERENCES || stored == present {
        return;
    }
    let at = |step: &str| if path.is_empty() { step.to_owned() } else { format!("{path}.{step}") };
    match (stored, present) {
        (Value::Object(old), Value::Object(new)) => {
            let keys: std::collections::BTreeSet<&String> = old.keys().chain(new.keys()).collect();
            for key in keys {
                let value = |map: &serde_json::Map<String, Value>| {
                    map.get(key).cloned().unwrap_or_default()
                };
                compare(&at(key), &value(old), &value(new), found);
            }
        }
        (Value::Array(old), Value::Array(new)) if old.len() == new.len() => {
            for (index, (old, new)) in old.iter().zip(new).enumerate() {
                compare(&format!("{path}[{index}]"), old, new, found);
            }
        }
        _ => found.push(format!("{path}: stored {}, now {}", short(stored), short(present))),
    }
}

fn short(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("{} items", items.len()),
        Value::Object(_) => "an object".to_owned(),
        other => other.to_string(),
    }
}
