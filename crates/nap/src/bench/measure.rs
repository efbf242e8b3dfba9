//! Measurement of solves: time, memory, cost and lower bound.

use std::path::Path;

use anyhow::Context as _;
use nap_clock::Clock;
use nap_engine::{Catalogue, Options, Plan, Snapshot, solve, solve_first_fit};
use nap_problem::{PlanFile, Problem};
use nap_units::UsdPerHour;
use serde::{Deserialize, Serialize};

use super::args::BenchArgs;
use super::process::{cpu_seconds, forget_peak, peak_mib, resident_mib};
use super::read_problem;

/// Median and 99th percentile of several runs, in seconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Seconds {
    pub(super) median: f64,
    pub(super) p99: f64,
}

impl Seconds {
    /// Statistics of a list; zero for an empty one.
    pub(super) fn of(mut list: Vec<f64>) -> Self {
        list.sort_by(f64::total_cmp);
        let last = list.len().saturating_sub(1);
        let at = |index: usize| list.get(index).copied().unwrap_or_default();
        let rank = (list.len() * 99).div_ceil(100).saturating_sub(1);
        Self { median: f64::midpoint(at(last / 2), at(last.div_ceil(2))), p99: at(rank) }
    }
}

/// Results of one problem, as `--json` prints them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    pub(super) name: String,
    pub(super) pods: usize,
    pub(super) classes: usize,
    pub(super) repeat: u32,
    /// Time to the first-fit plan, the incumbent's algorithm.
    pub(super) first_plan_seconds: Seconds,
    /// Time to the plan that is carried out.
    pub(super) final_plan_seconds: Seconds,
    /// Time to sort the offerings of a catalogue: once per change of the catalogue, not per
    /// decision.
    pub(super) catalogue_seconds: Seconds,
    /// CPU time to the final plan; `None` where the system does not report it.
    pub(super) final_plan_cpu_seconds: Option<Seconds>,
    pub(super) nodes: usize,
    pub(super) first_cost_usd_per_hour: f64,
    pub(super) cost_usd_per_hour: f64,
    pub(super) lower_bound_usd_per_hour: Option<f64>,
    pub(super) gap_percent: Option<f64>,
    pub(super) unplaced: usize,
    /// Peak resident memory of the process; `None` where the system does not report it.
    pub(super) peak_rss_mi_b: Option<f64>,
    /// Growth of resident memory during the first solve; `None` where the system does not report
    /// it.
    pub(super) solver_mi_b: Option<f64>,
    pub(super) tier: String,
}

/// `nap bench --problem …`.
pub(super) fn measure(args: &BenchArgs) -> anyhow::Result<()> {
    let several = args.problem.len() > 1;
    if let Some(folder) = args.plan.as_ref().filter(|_| several) {
        std::fs::create_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
    }
    for (number, path) in args.problem.iter().enumerate() {
        forget_peak();
        let problem = read_problem(path)?;
        if number == 0 && !args.json {
            println!("{}", heading());
        }
        let (report, plan) = run(&problem, args.repeat)?;
        if let Some(out) = &args.plan {
            let stem = path.file_stem().unwrap_or_default().to_string_lossy();
            let out = if several { out.join(format!("{stem}.plan.json")) } else { out.clone() };
            write(&out, &plan.to_text())?;
        }
        println!("{}", if args.json { serde_json::to_string(&report)? } else { row(&report) });
    }
    Ok(())
}

/// Measures problems and prints the table or one JSON object each.
pub(super) fn table(problems: &[Problem], repeat: u32, json: bool) -> anyhow::Result<()> {
    if !json {
        println!("{}", heading());
    }
    for problem in problems {
        forget_peak();
        let (report, _) = run(problem, repeat)?;
        println!("{}", if json { serde_json::to_string(&report)? } else { row(&report) });
    }
    Ok(())
}

pub(super) fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("{}", path.display()))
}

/// Solves a problem several times, each time from a fresh snapshot.
fn run(problem: &Problem, repeat: u32) -> anyhow::Result<(Report, PlanFile)> {
    let options = Options::default();
    let mut first = Vec::new();
    let mut last = Vec::new();
    let mut on_core = Vec::new();
    let mut plans = None;
    let (mut memory, mut grown) = (None, None);
    for _ in 0..repeat {
        let snapshot = problem.snapshot()?;
        memory.get_or_insert_with(Memory::before_solving);
        let (guard, seconds, _) = timed(&snapshot, |snapshot| solve_first_fit(snapshot, &options));
        first.push(seconds);
        drop(snapshot);
        let snapshot = problem.snapshot()?;
        let (plan, seconds, cpu) = timed(&snapshot, |snapshot| solve(snapshot, &options));
        last.push(seconds);
        on_core.extend(cpu);
        plans = Some((guard, plan));
        grown = grown.or_else(|| memory?.growth());
    }
    let memory = memory.unwrap_or_default();
    let peak = memory.peak();
    let snapshot = problem.snapshot()?;
    let catalogues = (0..repeat).map(|_| tables_seconds(&snapshot)).collect();
    let (guard, plan) = plans.context("--repeat must be at least 1")?;
    let cost = dollars(plan.cost);
    let bound = plan.lower_bound.map(dollars);
    let report = Report {
        name: problem.name.clone(),
        pods: problem.pending(),
        classes: problem.pods.len(),
        repeat,
        first_plan_seconds: Seconds::of(first),
        final_plan_seconds: Seconds::of(last),
        catalogue_seconds: Seconds::of(catalogues),
        final_plan_cpu_seconds: (!on_core.is_empty()).then(|| Seconds::of(on_core)),
        nodes: plan.launches.len(),
        first_cost_usd_per_hour: dollars(guard.cost),
        cost_usd_per_hour: cost,
        lower_bound_usd_per_hour: bound,
        gap_percent: bound.map(|bound| gap_percent(cost, bound)),
        unplaced: plan.unplaced.len(),
        peak_rss_mi_b: peak,
        solver_mi_b: grown,
        tier: serde_json::to_value(plan.tier)?.as_str().unwrap_or_default().to_owned(),
    };
    Ok((report, PlanFile::of(&plan)))
}

/// Resident memory before the first solve, and its peak until then, in MiB.
#[derive(Clone, Copy, Debug, Default)]
struct Memory {
    resident: Option<f64>,
    peak: Option<f64>,
}

impl Memory {
    fn before_solving() -> Self {
        let memory = Self { resident: resident_mib(), peak: peak_mib() };
        forget_peak();
        memory
    }

    /// Peak resident memory until now.
    fn peak(self) -> Option<f64> {
        self.peak.into_iter().chain(peak_mib()).reduce(f64::max)
    }

    /// Growth of resident memory since then.
    fn growth(self) -> Option<f64> {
        Some(peak_mib()? - self.resident?)
    }
}

/// Time to sort the catalogues of a snapshot.
fn tables_seconds(snapshot: &Snapshot) -> f64 {
    let wall = Clock::wall();
    let copies: Vec<Catalogue> =
        snapshot.catalogues.values().map(|catalogue| Catalogue::clone(catalogue)).collect();
    let began = wall.now();
    copies.iter().for_each(Catalogue::prepare);
    wall.now().duration_since(began).as_secs_f64()
}

/// A plan, its wall time and its CPU time, in seconds.
fn timed(snapshot: &Snapshot, solve: impl Fn(&Snapshot) -> Plan) -> (Plan, f64, Option<f64>) {
    let wall = Clock::wall();
    let cpu = cpu_seconds();
    let began = wall.now();
    let plan = solve(snapshot);
    let seconds = wall.now().duration_since(began).as_secs_f64();
    let cpu = cpu.and_then(|before| Some(cpu_seconds()? - before));
    (plan, seconds, cpu)
}

/// A price in dollars, for JSON.
#[expect(clippy::cast_precision_loss, reason = "shown, never calculated with")]
pub(super) fn dollars(price: UsdPerHour) -> f64 {
    price.micros() as f64 / 1e6
}

/// Percent by which a cost exceeds a bound; 0 for a bound of 0.
pub(super) fn gap_percent(cost: f64, bound: f64) -> f64 {
    if bound > 0.0 { (cost / bound - 1.0) * 100.0 } else { 0.0 }
}

fn heading() -> String {
    format!(
        "{:<34} {:>7} {:>8} {:>11} {:>11} {:>11} {:>7} {:>12} {:>12} {:>7} {:>9} {:>9} {:>10}  {}",
        "problem",
        "pods",
        "classes",
        "first plan",
        "final plan",
        "p99",
        "nodes",
        "$/h",
        "bound $/h",
        "gap %",
        "unplaced",
        "peak MiB",
        "solver MiB",
        "tier"
    )
}

fn row(report: &Report) -> String {
    let or_unknown = |number: Option<f64>, digits: usize| {
        number.map_or_else(|| "unknown".to_owned(), |number| format!("{number:.digits$}"))
    };
    format!(
        "{:<34} {:>7} {:>8} {:>11} {:>11} {:>11} {:>7} {:>12.3} {:>12} {:>7} {:>9} {:>9} {:>10}  {}",
        report.name,
        report.pods,
        report.classes,
        human(report.first_plan_seconds.median),
        human(report.final_plan_seconds.median),
        human(report.final_plan_seconds.p99),
        report.nodes,
        report.cost_usd_per_hour,
        or_unknown(report.lower_bound_usd_per_hour, 3),
        or_unknown(report.gap_percent, 2),
        report.unplaced,
        or_unknown(report.peak_rss_mi_b, 0),
        or_unknown(report.solver_mi_b, 0),
        report.tier,
    )
}

/// A time with its unit: µs, ms or s.
pub(super) fn human(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.2} ms", seconds * 1e3) } else { format!("{seconds:.2} s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_p99_of_short_lists() {
        let check = |list: &[f64], median: f64, p99: f64| {
            let seconds = Seconds::of(list.to_vec());
            assert!((seconds.median - median).abs() < 1e-12, "{list:?}: {seconds:?}");
            assert!((seconds.p99 - p99).abs() < 1e-12, "{list:?}: {seconds:?}");
        };
        check(&[3.0], 3.0, 3.0);
        check(&[4.0, 1.0], 2.5, 4.0);
        check(&[9.0, 1.0, 2.0], 2.0, 9.0);
    }

    #[test]
    fn json_report_has_the_documented_keys() {
        let json = serde_json::to_value(Report::default()).unwrap();
        for key in [
            "name",
            "firstPlanSeconds",
            "finalPlanSeconds",
            "nodes",
            "costUsdPerHour",
            "lowerBoundUsdPerHour",
            "gapPercent",
            "unplaced",
            "peakRssMiB",
            "solverMiB",
            "catalogueSeconds",
            "tier",
        ] {
            assert!(json.get(key).is_some(), "{key} is missing in {json}");
        }
        assert!(
            json["finalPlanSeconds"]["median"].is_number()
                && json["finalPlanSeconds"]["p99"].is_number()
        );
    }
}
