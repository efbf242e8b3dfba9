//! The life of one fleet under nap's consolidation.

use nap_clock::Clock;
use nap_engine::{Consolidation, ConsolidationCache, ConsolidationOptions, Fleet, consolidate};
use nap_problem::{Problem, RunningFleet, StepFile, StepsFile};
use nap_units::UsdPerHour;

use super::Report;
use crate::bench::args::DisruptionArgs;
use crate::bench::measure::{dollars, gap_percent};
use crate::bench::process::{forget_peak, peak_mib};

/// Distance to the lower bound at which a fleet counts as consolidated well, in percent.
const GOAL_PERCENT: u32 = 5;

/// Maximum number of passes over one fleet.
const MAX_PASSES: usize = 10_000;

/// Consolidates a fleet until a pass finds nothing, or until the limit.
pub(super) fn converge(
    args: &DisruptionArgs,
    problem: &Problem,
    budget: u32,
) -> anyhow::Result<(Report, StepsFile)> {
    let percent = usize::try_from(budget)?;
    let mut report = report("nap", problem, budget)?;
    let is_judged = problem.nodes.len() <= args.judge_up_to;
    report.valid = is_judged.then_some(true);
    let mut running = RunningFleet::new(problem.clone(), percent)?;
    let mut file = StepsFile::default();
    let mut cache = ConsolidationCache::default();
    let wall = Clock::wall();
    let began = wall.now();
    forget_peak();
    for pass in 0..MAX_PASSES {
        let (decision, seconds) = timed(running.fleet(), &mut cache);
        report.total_seconds += seconds;
        if pass == 0 {
            report.first_pass_seconds = seconds;
        }
        if decision.steps.is_empty() {
            report.nothing_seconds = Some(seconds);
            report.settled = true;
            break;
        }
        let steps = StepFile::of(&decision);
        if is_judged {
            let verdict = running.judge(&steps)?;
            report.undecided += verdict.undecided;
            if let Some(violation) = verdict.violations.first() {
                report.valid = Some(false);
                report.violation = Some(format!("pass {pass}: {violation}"));
                break;
            }
        }
        running.apply(&steps)?;
        count(&mut report, &steps);
        file.decisions.push(steps);
        eprintln!(
            "  pass {pass}: {} steps in {seconds:.3} s, {} nodes at {}/h",
            decision.steps.len(),
            running.problem().nodes.len(),
            running.problem().fleet_cost(),
        );
        if wall.now().duration_since(began).as_secs_f64() > f64::from(args.limit) {
            break;
        }
    }
    finish(&mut report, problem, running.problem());
    report.peak_rss_mi_b = peak_mib();
    if report.settled {
        let cold = &mut ConsolidationCache::default();
        report.nothing_cold_seconds = Some(timed(running.fleet(), cold).1);
        report.change_seconds = change(&mut running).then(|| timed(running.fleet(), &mut cache).1);
    }
    Ok((report, file))
}

/// Removes a pod from the node in the middle; false if it has none.
fn change(running: &mut RunningFleet) -> bool {
    let nodes = &running.problem().nodes;
    let middle = nodes.get(nodes.len() / 2);
    let first = middle.and_then(|node| Some((node.name.clone(), node.pods.keys().next()?.clone())));
    first.is_some_and(|(node, class)| running.remove_pod(&node, &class))
}

/// A decision and its wall time, in seconds.
fn timed(fleet: &Fleet, cache: &mut ConsolidationCache) -> (Consolidation, f64) {
    let options = ConsolidationOptions::default();
    let wall = Clock::wall();
    let began = wall.now();
    let decision = consolidate(fleet, &options, cache);
    (decision, wall.now().duration_since(began).as_secs_f64())
}

/// A report with what is known of a fleet before it is consolidated.
pub(super) fn report(solver: &str, problem: &Problem, budget: u32) -> anyhow::Result<Report> {
    let bound = problem.consolidation_bound()?;
    let percent = i64::from(100 + GOAL_PERCENT);
    let goal = bound.map(|bound| UsdPerHour::from_micros(bound.micros() * percent / 100));
    let bound = bound.map(dollars);
    let cost = dollars(problem.fleet_cost());
    Ok(Report {
        name: problem.name.clone(),
        solver: solver.to_owned(),
        nodes: problem.nodes.len(),
        pods: problem.running(),
        budget_percent: budget,
        cost_usd_per_hour: cost,
        lower_bound_usd_per_hour: bound,
        gap_percent: bound.map(|bound| gap_percent(cost, bound)),
        fewest_moves_to_goal: goal.map(|goal| problem.fewest_moves(goal)),
        ..Report::default()
    })
}

/// Adds the steps of a decision that was carried out.
pub(super) fn count(report: &mut Report, steps: &[StepFile]) {
    report.passes += 1;
    for step in steps {
        report.removed += step.remove.len();
        report.launched += step.plan.nodes.len();
        report.moves += step.moves();
    }
}

/// Adds what is known of the fleet at the end.
pub(super) fn finish(report: &mut Report, before: &Problem, after: &Problem) {
    let cost = dollars(after.fleet_cost());
    report.fewest_moves = before.fewest_moves(after.fleet_cost());
    report.nodes_after = after.nodes.len();
    report.cost_after_usd_per_hour = cost;
    if report.cost_usd_per_hour > 0.0 {
        report.saving_percent = (1.0 - cost / report.cost_usd_per_hour) * 100.0;
    }
    report.gap_after_percent =
        report.lower_bound_usd_per_hour.map(|bound| gap_percent(cost, bound));
}
