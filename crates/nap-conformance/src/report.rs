//! The summary on the terminal, and the document with every spec.

use std::fmt::Write as _;

use crate::results::{Outcome, Record, Results};
use crate::specs::Spec;

/// Prints counts, failures and specs that were not run; returns the number of specs that had to
/// pass and did not.
pub(crate) fn summary(
    specs: &[Spec],
    text: Option<&str>,
    all: bool,
    commit: &str,
    results: &Results,
) -> usize {
    let asked = |spec: &&Spec| text.is_none_or(|text| spec.name.contains(text));
    let mut failed = 0;
    let mut passed = 0;
    for spec in specs.iter().filter(asked) {
        let excuse = spec.excuse.as_deref();
        if let Some(excuse) = excuse.filter(|_| !all) {
            println!("not run: {}: {} ({excuse})", spec.suite, spec.name);
            continue;
        }
        let record = results.last(spec, commit);
        match record.map(|record| record.outcome) {
            Some(Outcome::Passed) => passed += 1,
            Some(Outcome::Skipped) => println!("skipped: {}: {}", spec.suite, spec.name),
            outcome => {
                failed += usize::from(excuse.is_none());
                let outcome = outcome.map_or("no result", Outcome::as_str);
                let reason = record.map(|record| record.reason.as_str()).unwrap_or_default();
                println!("{outcome}: {}: {}: {reason}", spec.suite, spec.name);
            }
        }
    }
    println!("{passed} passed, {failed} of those that must pass did not");
    failed
}

/// The document: a table of all specs with their last results at a commit.
pub(crate) fn document(specs: &[Spec], commit: &str, results: &Results) -> String {
    let version = nap_controlplane_build::suites_version();
    let count = |outcome: Outcome| {
        let found = specs.iter().filter_map(|spec| results.last(spec, commit));
        found.filter(|record| record.outcome == outcome).count()
    };
    let not_run = specs.iter().filter(|spec| results.last(spec, commit).is_none()).count();
    let mut text = format!(
        "# Karpenter's end-to-end suites\n\n\
         Written by `make conformance`; see [judges.md](judges.md). The regression and disruption suites of\n\
         Karpenter {version}, unchanged, against nap {commit} on a real control plane with an emulated Azure.\n\n\
         | passed | failed | stopped | skipped themselves | not judged | not run |\n\
         |---|---|---|---|---|---|\n\
         | {} | {} | {} | {} | {} | {not_run} |\n\n\
         | suite | spec | result | seconds | reason |\n|---|---|---|---|---|\n",
        count(Outcome::Passed),
        count(Outcome::Failed),
        count(Outcome::Stopped),
        count(Outcome::Skipped),
        count(Outcome::NotJudged),
    );
    for spec in specs {
        let record = results.last(spec, commit);
        let (result, seconds, reason) = match record {
            Some(Record { outcome, seconds, reason, .. }) => {
                (outcome.as_str(), seconds.to_string(), reason.as_str())
            }
            None => ("not run", String::new(), spec.excuse.as_deref().unwrap_or_default()),
        };
        let name = spec.name.replace('|', "/");
        // Writing to a String cannot fail.
        let _ = writeln!(text, "| {} | {name} | {result} | {seconds} | {reason} |", spec.suite);
    }
    text
}
