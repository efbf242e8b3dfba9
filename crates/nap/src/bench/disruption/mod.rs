//! `nap bench disruption`: fleets are consolidated until nothing is left to save.
//!
//! Each fleet goes through the same life: a first pass, which finds something; the steps are judged
//! and carried out, and passes repeat until one finds nothing; then one pod goes and one more pass
//! runs. One cache serves them all, as it does in the controllers. With `--peer`, another solver
//! does the same to the same fleet, on the same core.

mod converge;
mod peer;

use anyhow::bail;
use nap_problem::Problem;
use serde::{Deserialize, Serialize};

use super::args::DisruptionArgs;
use super::measure::human;
use super::{document, generate, measure, read_problem};

/// Results of one fleet under one budget, as `--json` prints them. Times are in seconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    name: String,
    solver: String,
    nodes: usize,
    pods: usize,
    budget_percent: u32,
    /// The first pass.
    first_pass_seconds: f64,
    /// The pass that found nothing, with the cache of the passes before; `None` if none did.
    nothing_seconds: Option<f64>,
    /// The same pass with an empty cache; `None` if no pass found nothing, or for a peer.
    nothing_cold_seconds: Option<f64>,
    /// A pass after one pod was removed from the settled fleet; `None` as above.
    change_seconds: Option<f64>,
    /// All passes until nothing was found or the limit was reached.
    total_seconds: f64,
    /// Number of decisions that were carried out.
    passes: usize,
    /// Whether a pass found nothing within the limit.
    settled: bool,
    nodes_after: usize,
    removed: usize,
    launched: usize,
    moves: usize,
    /// Lower bound on the moves of any consolidation that ends at the same cost.
    fewest_moves: usize,
    /// The same for a cost 5 % above the lower bound; `None` without a bound.
    #[serde(default)]
    fewest_moves_to_goal: Option<usize>,
    cost_usd_per_hour: f64,
    cost_after_usd_per_hour: f64,
    saving_percent: f64,
    /// Lower bound on the cost of any consolidation; `None` without pods.
    lower_bound_usd_per_hour: Option<f64>,
    gap_percent: Option<f64>,
    gap_after_percent: Option<f64>,
    /// Whether every step is valid; `None` if the fleet is too large to be judged.
    valid: Option<bool>,
    /// The first violation.
    violation: Option<String>,
    /// Pods for which the judge found no binding order and could not rule one out.
    undecided: usize,
    peak_rss_mi_b: Option<f64>,
    /// Version of the other solver; empty for nap.
    version: String,
}

/// `nap bench disruption`.
pub(super) fn measure(args: &DisruptionArgs) -> anyhow::Result<()> {
    let mut reports = Vec::new();
    for make in fleets(args) {
        let problem = make()?;
        for budget in &args.budget {
            eprintln!("{}, budget {budget} %", problem.name);
            for report in run(args, &problem, *budget)? {
                if args.json {
                    println!("{}", serde_json::to_string(&report)?);
                }
                reports.push(report);
            }
        }
    }
    if !args.json {
        println!("{}", table(&reports));
        for report in reports.iter().filter(|report| report.violation.is_some()) {
            let violation = report.violation.as_deref().unwrap_or_default();
            println!("- {} of {}: {violation}", report.solver, report.name);
        }
    }
    if let Some(wrong) =
        reports.iter().find(|report| report.solver == "nap" && report.valid == Some(false))
    {
        bail!("{}: a step is wrong: {}", wrong.name, wrong.violation.as_deref().unwrap_or_default())
    }
    Ok(())
}

type MakeFleet<'a> = Box<dyn Fn() -> anyhow::Result<Problem> + 'a>;

/// The fleets to measure, each made when its turn comes.
fn fleets(args: &DisruptionArgs) -> Vec<MakeFleet<'_>> {
    if !args.problem.is_empty() {
        return args
            .problem
            .iter()
            .map(|path| -> MakeFleet<'_> { Box::new(|| read_problem(path)) })
            .collect();
    }
    let mut list: Vec<MakeFleet<'_>> = Vec::new();
    for kind in &args.fleet {
        for nodes in &args.nodes {
            let churns: Vec<Option<u32>> = if kind.is_packed() {
                args.churn.iter().copied().map(Some).collect()
            } else {
                vec![None]
            };
            for churn in churns {
                list.push(Box::new(move || {
                    generate::fleet(*kind, *nodes, churn, args.seed, &args.region)
                }));
            }
        }
    }
    list
}

fn run(args: &DisruptionArgs, problem: &Problem, budget: u32) -> anyhow::Result<Vec<Report>> {
    if let Some(peer) = &args.peer {
        return peer::in_turn(args, problem, budget, peer);
    }
    let (report, steps) = converge::converge(args, problem, budget)?;
    if let Some(path) = &args.steps {
        measure::write(path, &steps.to_text())?;
    }
    Ok(vec![report])
}

fn table(reports: &[Report]) -> String {
    let heading = [
        "fleet",
        "pods",
        "budget",
        "solver",
        "first pass",
        "nothing",
        "nothing, cold",
        "one change",
        "all passes",
        "passes",
        "nodes",
        "$/h",
        "saved %",
        "gap % before",
        "gap % after",
        "moves",
        "at least",
        "to 5 %",
        "launched",
        "valid",
        "peak MiB",
    ];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    let dash = || "–".to_owned();
    let time = |seconds: Option<f64>| seconds.map_or_else(dash, human);
    let gap = |gap: Option<f64>| gap.map_or_else(dash, |gap| format!("{gap:.1}"));
    for report in reports {
        rows.push(vec![
            report.name.clone(),
            report.pods.to_string(),
            format!("{} %", report.budget_percent),
            report.solver.clone(),
            human(report.first_pass_seconds),
            time(report.nothing_seconds),
            time(report.nothing_cold_seconds),
            time(report.change_seconds),
            human(report.total_seconds),
            format!("{}{}", report.passes, if report.settled { "" } else { " and more" }),
            format!("{} → {}", report.nodes, report.nodes_after),
            format!("{:.3} → {:.3}", report.cost_usd_per_hour, report.cost_after_usd_per_hour),
            format!("{:.1}", report.saving_percent),
            gap(report.gap_percent),
            gap(report.gap_after_percent),
            report.moves.to_string(),
            report.fewest_moves.to_string(),
            report.fewest_moves_to_goal.map_or_else(dash, |moves| moves.to_string()),
            report.launched.to_string(),
            match report.valid {
                Some(true) => "yes".to_owned(),
                Some(false) => "no".to_owned(),
                None => "not judged".to_owned(),
            },
            report.peak_rss_mi_b.map_or_else(dash, |peak| format!("{peak:.0}")),
        ]);
    }
    document::markdown(&rows)
}
