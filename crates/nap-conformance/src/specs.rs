//! The specs of the suites, and what is known about them.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde::Deserialize;

/// The suites, and the descriptions that their specs' full texts begin with.
const SUITES: [(&str, &str); 2] = [("regression", "Regression"), ("disruption", "Disruption")];
/// Usual duration of a spec without a row.
const USUAL: Duration = Duration::from_mins(1);

/// One spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spec {
    pub(crate) suite: String,
    /// Texts of its containers and of itself.
    pub(crate) name: String,
    /// Usual duration.
    pub(crate) usual: Duration,
    /// Why nap need not pass it.
    pub(crate) excuse: Option<String>,
}

impl Spec {
    /// Regular expression that only this spec's full text matches.
    pub(crate) fn focus(&self) -> String {
        let description = SUITES.iter().find(|(suite, _)| *suite == self.suite);
        let description = description.map_or("", |(_, description)| description);
        format!("^{description} {}$", regex::escape(&self.name))
    }

    /// Time after which the spec counts as failed.
    pub(crate) fn limit(&self) -> Duration {
        self.usual * 2 + Duration::from_mins(3)
    }

    /// Whether the spec listens on a fixed port of this computer.
    pub(crate) fn needs_port(&self) -> bool {
        self.name.starts_with("Chaos ")
    }

    /// NodePool of the spec, a file beside the table.
    pub(crate) fn nodepool(&self) -> &'static str {
        if self.name.starts_with("CapacityBuffer ") { "pool-2vcpu.yaml" } else { "pool-d.yaml" }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Report {
    spec_reports: Vec<SpecReport>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SpecReport {
    container_hierarchy_texts: Option<Vec<String>>,
    leaf_node_type: String,
    leaf_node_text: String,
}

/// All specs, from a dry run of each suite.
pub(crate) fn list(suites: &Path, table: &Path, folder: &Path) -> anyhow::Result<Vec<Spec>> {
    let rows = std::fs::read_to_string(table).with_context(|| table.display().to_string())?;
    let rows = parse(&rows)?;
    let mut specs = Vec::new();
    for (suite, _) in SUITES {
        let report = folder.join(format!("{suite}.json"));
        let status = Command::new(suites.join(format!("{suite}.test")))
            .arg("--ginkgo.dry-run")
            .arg(format!("--ginkgo.json-report={}", report.display()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()?;
        ensure!(status.success(), "the dry run of the {suite} suite failed");
        let reports: Vec<Report> = serde_json::from_slice(&std::fs::read(&report)?)?;
        let all = reports.into_iter().flat_map(|report| report.spec_reports);
        for spec in all.filter(|spec| spec.leaf_node_type == "It") {
            let mut texts = spec.container_hierarchy_texts.unwrap_or_default();
            texts.push(spec.leaf_node_text);
            texts.retain(|text| !text.is_empty());
            specs.push(describe(suite, &texts.join(" "), &rows));
        }
    }
    // The suites list their groups in random order.
    specs.sort_by(|a, b| (&b.suite, &a.name).cmp(&(&a.suite, &b.name)));
    Ok(specs)
}

/// A row of the table.
struct Row {
    suite: String,
    start: String,
    usual: Duration,
    excuse: Option<String>,
}

fn parse(text: &str) -> anyhow::Result<Vec<Row>> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    lines
        .map(|line| {
            let columns: Vec<&str> = line.split('|').map(str::trim).collect();
            let [suite, start, seconds, excuse] = columns[..] else {
                anyhow::bail!("`{line}` has {} columns instead of 4", columns.len());
            };
            let seconds = seconds.parse().with_context(|| format!("`{line}`"))?;
            Ok(Row {
                suite: suite.to_owned(),
                start: start.to_owned(),
                usual: Duration::from_secs(seconds),
                excuse: (!excuse.is_empty()).then(|| excuse.to_owned()),
            })
        })
        .collect()
}

fn describe(suite: &str, name: &str, rows: &[Row]) -> Spec {
    let row = rows.iter().find(|row| row.suite == suite && name.starts_with(&row.start));
    Spec {
        suite: suite.to_owned(),
        name: name.to_owned(),
        usual: row.map_or(USUAL, |row| row.usual),
        excuse: row.and_then(|row| row.excuse.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str =
        "# comment\n\ndisruption | Repair | 300 | not built\nregression | Chaos | 320 |\n";

    #[test]
    fn first_row_that_fits_describes_a_spec() {
        let rows = parse(TABLE).unwrap();
        let repair = describe("disruption", "Repair repairs a node", &rows);
        assert_eq!(repair.excuse.as_deref(), Some("not built"));
        let chaos = describe("regression", "Chaos Runaway", &rows);
        assert_eq!((chaos.excuse.clone(), chaos.limit().as_secs()), (None, 820));
        assert!(chaos.needs_port());
        let other = describe("regression", "Repair repairs a node", &rows);
        assert_eq!((other.excuse, other.usual), (None, USUAL));
        assert!(parse("regression | Chaos | 320").is_err());
    }

    #[test]
    fn focus_fits_no_other_spec() {
        let spec = describe("regression", "NodeClaim should create (a.b) one", &[]);
        let focus = regex::Regex::new(&spec.focus()).unwrap();
        assert!(focus.is_match("Regression NodeClaim should create (a.b) one"));
        assert!(!focus.is_match("Regression NodeClaim should create (a.b) one more"));
        assert!(!focus.is_match("Regression NodeClaim should create (axb) one"));
    }
}
