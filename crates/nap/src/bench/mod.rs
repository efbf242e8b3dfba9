//! `nap bench`: solve times and plan costs on problem files, beside the incumbent's.
//!
//! - `measure`: solves problems and reports time, memory and cost.
//! - `generate`: writes problem files, `nap bench gen`.
//! - `controllers`: runs the controllers on a synthetic cluster.
//! - `launches`: launches a burst of machines on the emulated Azure.
//! - `disruption`: consolidates fleets until nothing is left to save.
//! - `week`: the week of a cluster under several policies.
//! - `apiserver`: rates and memory of the embedded API server.
//! - `compare`: runs nap and another solver on one core, judges and prices both plans.

mod apiserver;
mod args;
mod compare;
mod controllers;
mod disruption;
mod document;
mod generate;
mod launches;
mod measure;
mod process;
mod week;

use std::path::Path;

use anyhow::Context as _;
use nap_problem::{PlanFile, Problem, judge};

pub use args::BenchArgs;
use args::{BenchCommand, JudgeArgs, ProblemKind};

use crate::user_error::UserError;

/// Dispatches the subcommands of `nap bench`.
pub fn bench(args: &BenchArgs) -> anyhow::Result<()> {
    match &args.command {
        Some(BenchCommand::Gen(args)) => generate::write(args),
        Some(BenchCommand::Judge(args)) => judge_plan(args),
        Some(BenchCommand::Compare(args)) => compare::compare(args),
        Some(BenchCommand::Controllers(args)) => controllers::measure(args),
        Some(BenchCommand::Launches(args)) => launches::measure(args),
        Some(BenchCommand::Disruption(args)) => disruption::measure(args),
        Some(BenchCommand::Week(args)) => week::measure(args),
        Some(BenchCommand::Apiserver(args)) => apiserver::measure(args),
        None if args.problem.is_empty() => standard(args),
        None => measure::measure(args),
    }
}

/// Measures generated problems: plain pods and the incumbent's mix, by size.
fn standard(args: &BenchArgs) -> anyhow::Result<()> {
    if args.plan.is_some() {
        return Err(
            UserError::new("--plan needs a --problem", "make one with `nap bench gen`").into()
        );
    }
    let mut problems = Vec::new();
    for kind in [ProblemKind::Plain, ProblemKind::Mix] {
        for pods in [100, 1_000, 10_000] {
            problems.push(generate::standard(kind, pods, &args.region)?);
        }
    }
    measure::table(&problems, args.repeat, args.json)
}

/// `nap bench judge`: prints the verdict and fails if the plan is invalid.
fn judge_plan(args: &JudgeArgs) -> anyhow::Result<()> {
    let problem = read_problem(&args.problem)?;
    let plan = read_plan(&args.plan)?;
    let verdict = judge(&problem, &plan)?;
    if args.json {
        let answer = serde_json::json!({
            "name": problem.name,
            "valid": verdict.is_valid(),
            "violations": verdict.violations,
            "nodes": verdict.nodes,
            "costUsdPerHour": measure::dollars(verdict.cost),
            "placed": verdict.placed,
            "undecided": verdict.undecided,
            "unplaced": verdict.unplaced,
        });
        println!("{answer}");
    } else {
        println!("problem   {}", problem.name);
        println!("verdict   {}", if verdict.is_valid() { "valid" } else { "wrong" });
        println!("nodes     {}", verdict.nodes);
        println!("cost      {}/h", verdict.cost);
        println!("placed    {} ({} undecided)", verdict.placed, verdict.undecided);
        println!("unplaced  {}", verdict.unplaced);
        for violation in &verdict.violations {
            println!("  {violation}");
        }
    }
    let hint = "`nap bench judge` lists what is wrong on standard output";
    if verdict.is_valid() { Ok(()) } else { Err(UserError::new("the plan is wrong", hint).into()) }
}

fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("{}", path.display()))
}

/// Reads a problem file. The error is one line that begins with the path.
fn read_problem(path: &Path) -> anyhow::Result<Problem> {
    let text = read(path)?;
    let hint = "the format is described in docs/problem-format.md";
    Problem::parse(&text)
        .map_err(|error| UserError::new(format!("{}: {error}", path.display()), hint).into())
}

fn read_plan(path: &Path) -> anyhow::Result<PlanFile> {
    let text = read(path)?;
    let hint = "the format is described in docs/problem-format.md";
    PlanFile::parse(&text)
        .map_err(|error| UserError::new(format!("{}: {error}", path.display()), hint).into())
}
