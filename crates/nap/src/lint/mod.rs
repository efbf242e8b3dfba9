//! `nap lint`: validation of manifests without a cluster.
//!
//! Objects are judged by the code of the embedded API server, so the verdict is that of a cluster.
//! Accepted objects are then read as nap reads them and searched for suspicious settings.

pub mod findings;
mod offerings;
pub mod sizes;
mod suspicious;

use anyhow::Context as _;
use nap_api::{AKSNodeClass, NodePool, normalise, validation};

use crate::catalogue;
use crate::cli::{LintArgs, LintFormat};
use crate::manifests::check::Checker;
use crate::manifests::read::{self, Document};
use crate::plan::show;
use crate::user_error::UserError;
use findings::{Finding, Level};

/// Checks the files and prints the findings. Fails on errors, and with `--deny-warnings` on
/// warnings too.
pub fn lint(args: &LintArgs) -> anyhow::Result<()> {
    let sizes = catalogue::load(&args.catalogue)?;
    catalogue::require_region(&sizes, &args.region)?;
    let mut findings = Vec::new();
    let mut documents = Vec::new();
    let files = read::files(&args.files)?;
    for file in &files {
        if let Err(error) = read::read_file(file, &mut documents) {
            findings.push(Finding {
                level: Level::Error,
                file: file.display().to_string(),
                line: None,
                object: String::new(),
                field: String::new(),
                message: format!("{error:#}"),
            });
        }
    }
    if documents.is_empty() && findings.is_empty() {
        return Err(read::no_objects(&args.files));
    }
    let mut checker = Checker::new(&documents)?;
    let mut pools = Vec::new();
    let mut classes = Vec::new();
    for document in &documents {
        let checked = checker.check(document);
        let problems = checked.problems.iter();
        findings.extend(problems.map(|problem| {
            Finding::new(Level::Error, document, &problem.field, problem.text.clone())
        }));
        if !checked.is_known || !checked.is_readable() {
            continue;
        }
        for understood in normalise::manifest(&mut document.value.clone()) {
            let text = understood.to_string();
            findings.push(Finding::of_message(Level::Note, document, &text));
        }
        match (group(document), document.text("/kind")) {
            ("karpenter.sh", "NodePool") => {
                let pool: NodePool =
                    serde_json::from_value(checked.stored).context("reading a NodePool")?;
                pools.push((document, pool));
            }
            ("karpenter.azure.com", "AKSNodeClass") => {
                let class: AKSNodeClass =
                    serde_json::from_value(checked.stored).context("reading an AKSNodeClass")?;
                for problem in validation::validate_nodeclass(&class) {
                    findings.push(Finding::of_message(Level::Error, document, &problem));
                }
                classes.push(class);
            }
            ("autoscaling.x-k8s.io", _) => {
                let text = "nap does not act on objects of this kind yet".to_owned();
                findings.push(Finding::new(Level::Warning, document, "kind", text));
            }
            _ => {}
        }
    }
    findings.extend(suspicious::find(&pools, &classes, &documents, (&sizes, &args.region))?);
    conclude(&findings, args, files.len())
}

fn group(document: &Document) -> &str {
    document.text("/apiVersion").split_once('/').map_or("", |(group, _)| group)
}

fn conclude(findings: &[Finding], args: &LintArgs, files: usize) -> anyhow::Result<()> {
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    let (errors, warnings) = (count(Level::Error), count(Level::Warning));
    let summary = format!("{errors} refused, {warnings} likely mistakes, in {files} files");
    let failed = errors > 0 || (args.deny_warnings && warnings > 0);
    match args.output {
        LintFormat::Text => {
            let mut lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
            if !failed {
                lines.push(summary.clone());
            }
            show(&(lines.join("\n") + "\n"))?;
        }
        LintFormat::Json => {
            show(&(serde_json::to_string_pretty(&findings::json(findings))? + "\n"))?;
        }
        LintFormat::Sarif => {
            show(&(serde_json::to_string_pretty(&findings::sarif(findings))? + "\n"))?;
        }
    }
    if failed {
        let hint = "each finding names the field and what to do";
        return Err(UserError::new(summary, hint).into());
    }
    Ok(())
}
