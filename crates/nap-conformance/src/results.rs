//! Results, appended to a file as they come.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::specs::Spec;

/// Outcome of a spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    /// The suite says so.
    Passed,
    /// An expectation of the suite did not hold, or its time was over.
    Failed,
    /// The spec skipped itself.
    Skipped,
    /// The limit of this run was shorter than the spec's own and ended it.
    Stopped,
    /// Something other than nap kept the spec from being judged.
    NotJudged,
}

impl Outcome {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "FAILED",
            Self::Skipped => "skipped",
            Self::Stopped => "stopped",
            Self::NotJudged => "not judged",
        }
    }
}

/// One run of one spec.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Version of the suites.
    pub(crate) version: String,
    /// Commit of nap.
    pub(crate) commit: String,
    pub(crate) suite: String,
    pub(crate) spec: String,
    pub(crate) outcome: Outcome,
    pub(crate) seconds: i64,
    /// Why it did not pass; one line.
    pub(crate) reason: String,
    /// Remains of a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) folder: Option<String>,
}

/// All results so far.
pub(crate) struct Results {
    file: File,
    records: Vec<Record>,
}

impl Results {
    /// Opens the file; lines that cannot be read, as after a crash, are left out.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let records = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self { file, records })
    }

    pub(crate) fn append(&mut self, record: Record) -> anyhow::Result<()> {
        // One write: another run may append to the file at the same time.
        self.file.write_all(format!("{}\n", serde_json::to_string(&record)?).as_bytes())?;
        self.records.push(record);
        Ok(())
    }

    /// The last result of a spec at a commit.
    pub(crate) fn last(&self, spec: &Spec, commit: &str) -> Option<&Record> {
        let version = nap_controlplane_build::suites_version();
        self.records.iter().rev().find(|record| {
            record.version == version
                && record.commit == commit
                && record.suite == spec.suite
                && record.spec == spec.name
        })
    }
}
