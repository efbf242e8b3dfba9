//! Two consolidations on the same fleet, in turn, pinned to one core. The steps of both are
//! replayed and priced by the same judge.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail};
use nap_problem::{Problem, RunningFleet, StepsFile, judge_steps};
use serde::Deserialize;

use super::Report;
use super::converge::{count, finish, report};
use crate::bench::args::DisruptionArgs;
use crate::bench::{measure, read};

/// Output of the other solver. Times are in seconds.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PeerReport {
    version: String,
    first_pass_seconds: f64,
    /// The pass that found nothing; absent if none did within the limit.
    nothing_seconds: Option<f64>,
    total_seconds: f64,
    peak_rss_mi_b: Option<f64>,
}

/// Runs both on one fleet; the other only up to its size limit.
pub(super) fn in_turn(
    args: &DisruptionArgs,
    problem: &Problem,
    budget: u32,
    peer: &Path,
) -> anyhow::Result<Vec<Report>> {
    let folder = std::env::temp_dir().join(format!("nap-bench-fleet-{}", std::process::id()));
    std::fs::create_dir_all(&folder).with_context(|| format!("{}", folder.display()))?;
    let result = both(args, problem, budget, peer, &folder);
    std::fs::remove_dir_all(&folder).with_context(|| format!("{}", folder.display()))?;
    result
}

fn both(
    args: &DisruptionArgs,
    problem: &Problem,
    budget: u32,
    peer: &Path,
    folder: &Path,
) -> anyhow::Result<Vec<Report>> {
    let file = folder.join("fleet.json");
    measure::write(&file, &problem.to_text())?;
    let mut reports = Vec::new();
    if problem.nodes.len() <= args.peer_up_to {
        let steps = folder.join("peer-steps.json");
        let text = run(args, peer, &[], &file, budget, &steps)?;
        let said: PeerReport = serde_json::from_str(&text)
            .with_context(|| format!("what {} printed", peer.display()))?;
        reports.push(judged(problem, budget, said, &StepsFile::parse(&read(&steps)?)?)?);
    }
    let nap = std::env::current_exe()?;
    let steps = folder.join("nap-steps.json");
    let judge = args.judge_up_to.to_string();
    let own = ["bench", "disruption", "--json", "--judge-up-to", &judge];
    let text = run(args, &nap, &own, &file, budget, &steps)?;
    reports.push(serde_json::from_str(&text).context("what nap printed")?);
    Ok(reports)
}

/// The other's report with the verdict about its steps. Cost and moves are those of all its steps,
/// valid or not.
fn judged(
    problem: &Problem,
    budget: u32,
    said: PeerReport,
    file: &StepsFile,
) -> anyhow::Result<Report> {
    let mut report = report("karpenter", problem, budget)?;
    let verdict = judge_steps(problem, usize::try_from(budget)?, &file.decisions)?;
    report.valid = Some(verdict.is_valid());
    report.violation = verdict.violations.first().cloned();
    report.undecided = verdict.undecided;
    let mut running = RunningFleet::new(problem.clone(), usize::try_from(budget)?)?;
    for steps in &file.decisions {
        running.apply(steps)?;
        count(&mut report, steps);
    }
    finish(&mut report, problem, running.problem());
    report.version = said.version;
    report.first_pass_seconds = said.first_pass_seconds;
    report.nothing_seconds = said.nothing_seconds;
    report.settled = said.nothing_seconds.is_some();
    report.total_seconds = said.total_seconds;
    report.peak_rss_mi_b = said.peak_rss_mi_b;
    Ok(report)
}

fn run(
    args: &DisruptionArgs,
    program: &Path,
    first: &[&str],
    file: &Path,
    budget: u32,
    steps: &Path,
) -> anyhow::Result<String> {
    let pinned =
        Command::new("taskset").arg("--version").output().is_ok_and(|done| done.status.success());
    let mut command = if pinned {
        let mut command = Command::new("taskset");
        command.arg("-c").arg(args.core.to_string()).arg(program);
        command
    } else {
        eprintln!("warning: `taskset` is not there, so the solvers are not pinned to a core");
        Command::new(program)
    };
    command.args(first).arg("--problem").arg(file).arg("--steps").arg(steps);
    command.arg("--budget").arg(budget.to_string()).arg("--limit").arg(args.limit.to_string());
    let done = command.output().with_context(|| format!("starting {}", program.display()))?;
    // nap itself fails after its report if a step is wrong: the report says so.
    if !done.status.success() && done.stdout.is_empty() {
        let said = String::from_utf8_lossy(&done.stderr);
        bail!("{} failed: {}", program.display(), said.trim());
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}
