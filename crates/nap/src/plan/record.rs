//! Saved decisions: `nap plan --save` and `nap replay`.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use nap_azure::Shortage;
use nap_engine::{Options, Snapshot};
use nap_units::Resources;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::document::PlanDocument;
use super::{Decision, Problem, show};
use crate::catalogue::Origin;
use crate::cli::Format;
use crate::user_error::UserError;

/// Version of the files.
pub const VERSION: u32 = 1;
/// `kind` of a file with a plan.
const KIND: &str = "nap plan";
/// `kind` of a file with a decision about running nodes.
pub const DISRUPTION_KIND: &str = nap_controllers::decisions::inputs::FILE_KIND;
/// First bytes of a compressed file.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// Maximum size of an unpacked file, in bytes.
const MAX_SIZE: u64 = 8 << 30;
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
        write(file, self)
    }
}

/// Writes what `nap replay` reads.
pub fn write(file: &Path, record: &impl Serialize) -> anyhow::Result<()> {
    let written = std::fs::File::create(file).and_then(|file| {
        let mut packed = GzEncoder::new(file, Compression::default());
        serde_json::to_writer(&mut packed, record)?;
        packed.finish()
    });
    written.map(drop).map_err(|error| {
        let message = format!("--save: {}: cannot be written: {error}", file.display());
        UserError::new(message, "name a file in a folder that exists").into()
    })
}

/// A file of `nap plan --save`, `nap plan disruption --save` or `nap decisions --save`.
pub struct Stored {
    /// The file.
    pub file: PathBuf,
    content: Value,
}

impl Stored {
    /// Whether it is a decision about running nodes.
    pub fn is_disruption(&self) -> bool {
        self.content.get("kind").and_then(Value::as_str) == Some(DISRUPTION_KIND)
    }

    /// The record in it.
    pub fn parse<T: DeserializeOwned>(&self) -> anyhow::Result<T> {
        T::deserialize(&self.content)
            .map_err(|error| refuse(&self.file, &format!("cannot be understood: {error}")))
    }
}

/// Reads a file whose kind and version are known.
pub fn read(file: &Path) -> anyhow::Result<Stored> {
    let unreadable = |error: std::io::Error| refuse(file, &format!("cannot be read: {error}"));
    let bytes = std::fs::read(file).map_err(unreadable)?;
    let mut text = String::new();
    // Files of earlier versions are not compressed.
    if bytes.starts_with(&GZIP) {
        let unpacked = GzDecoder::new(bytes.as_slice()).take(MAX_SIZE);
        std::io::BufReader::new(unpacked).read_to_string(&mut text).map_err(unreadable)?;
    } else {
        bytes.as_slice().read_to_string(&mut text).map_err(unreadable)?;
    }
    let content: Value = serde_json::from_str(&text)
        .map_err(|error| refuse(file, &format!("is not JSON: {error}")))?;
    let kind = content.get("kind").and_then(Value::as_str);
    if !kind.is_some_and(|kind| [KIND, DISRUPTION_KIND].contains(&kind)) {
        return Err(refuse(file, "is not a stored plan"));
    }
    if content.get("version").and_then(Value::as_u64) != Some(VERSION.into()) {
        let version = content.get("version").cloned().unwrap_or_default();
        let problem = format!("has version {version}; this nap reads version {VERSION}");
        return Err(refuse(file, &problem));
    }
    Ok(Stored { file: file.to_owned(), content })
}

fn refuse(file: &Path, problem: &str) -> anyhow::Error {
    let message = format!("{}: {problem}", file.display());
    UserError::new(message, "`nap plan --save FILE` writes what `nap replay` reads").into()
}

/// Says whether the new decision is the stored one, and fails if it is not.
pub fn verdict(
    file: &Path,
    what: &str,
    differences: &[String],
    format: Format,
) -> anyhow::Result<()> {
    if differences.is_empty() {
        let verdict = format!("identical to the stored {what}");
        if matches!(format, Format::Table | Format::Wide) {
            return show(&format!("\n{verdict}\n"));
        }
        eprintln!("{verdict}");
        return Ok(());
    }
    for difference in differences {
        eprintln!("{difference}");
    }
    let message = format!("{}: the {what} differs from the stored one", file.display());
    let hint = "the file was changed, or another version of nap wrote it: `nap plan --save` stores it anew";
    Err(UserError::new(message, hint).into())
}

/// Differences between the stored and the new decision: field, stored value, new value.
pub fn differences(stored: &Value, present: &impl Serialize) -> anyhow::Result<Vec<String>> {
    // Through text, so that numbers are compared in their written form.
    let text = serde_json::to_string(present).context("writing the decision")?;
    let present: Value = serde_json::from_str(&text).context("reading the decision")?;
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
            // Fields that an earlier version of nap did not write are not compared.
            let written = |key: &&&String| !path.is_empty() || old.contains_key(**key);
            for key in keys.iter().filter(written) {
                let value = |map: &serde_json::Map<String, Value>| {
                    map.get(*key).cloned().unwrap_or_default()
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
