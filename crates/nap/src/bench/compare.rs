//! `nap bench compare`: two solvers alternate on one core, on the same files; one judge checks and
//! prices both plans.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};
use nap_problem::{Problem, judge};
use serde::Deserialize;

use super::args::CompareArgs;
use super::document;
use super::measure::{self, Report, Seconds, dollars, gap_percent};
use super::{read, read_plan, read_problem};

/// Measurements of one solver on one problem, over all rounds. Times are in seconds, costs in
/// dollars per hour.
#[derive(Clone, Debug, Default)]
pub(super) struct Side {
    pub(super) version: String,
    /// Time to the first plan; nap only.
    pub(super) first: Option<f64>,
    /// Median of the rounds' medians.
    pub(super) median: f64,
    /// Maximum over the rounds.
    pub(super) p99: f64,
    pub(super) cpu: Option<f64>,
    pub(super) nodes: usize,
    /// Costs of the cheapest and of the most expensive plan.
    pub(super) cost: (f64, f64),
    pub(super) unplaced: usize,
    /// Number of rounds with a valid plan.
    pub(super) valid: u32,
    pub(super) rounds: u32,
    /// Maximum number of undecided pods in a plan.
    pub(super) undecided: usize,
    /// Number of distinct plans.
    pub(super) plans: usize,
    pub(super) peak_mib: Option<f64>,
    /// Growth of resident memory during the first solve.
    pub(super) solver_mib: Option<f64>,
    /// Time to sort the catalogue, before any decision.
    pub(super) tables: Option<f64>,
    /// The first violation of any plan.
    pub(super) wrong: Option<String>,
}

/// One problem, measured with both solvers.
#[derive(Clone, Debug, Default)]
pub(super) struct Line {
    pub(super) name: String,
    pub(super) recipe: String,
    pub(super) file: String,
    pub(super) pods: usize,
    pub(super) classes: usize,
    pub(super) bound: Option<f64>,
    pub(super) nap: Side,
    pub(super) peer: Option<Side>,
}

impl Line {
    /// Percent by which a cost exceeds the lower bound; `None` without a bound.
    pub(super) fn gap(&self, cost: f64) -> Option<f64> {
        self.bound.map(|bound| gap_percent(cost, bound))
    }
}

/// Output of the other solver.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PeerReport {
    version: String,
    final_plan_seconds: Seconds,
    cpu_seconds: Option<Seconds>,
    peak_rss_mi_b: Option<f64>,
}

/// Measurements of one round of one solver.
struct Turn {
    version: String,
    first: Option<f64>,
    seconds: Seconds,
    cpu: Option<f64>,
    peak_mib: Option<f64>,
    solver_mib: Option<f64>,
    tables: Option<f64>,
    plan: PathBuf,
}

/// `nap bench compare`.
pub(super) fn compare(args: &CompareArgs) -> anyhow::Result<()> {
    let folder = match &args.plans {
        Some(folder) => folder.clone(),
        None => std::env::temp_dir().join(format!("nap-bench-{}", std::process::id())),
    };
    std::fs::create_dir_all(&folder).with_context(|| format!("{}", folder.display()))?;
    let result = lines(args, &folder);
    if args.plans.is_none() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("{}", folder.display()))?;
    }
    let lines = result?;
    println!("{}", document::table(&lines));
    if let Some(path) = &args.write {
        measure::write(path, &document::document(args, &lines))?;
    }
    Ok(())
}

fn lines(args: &CompareArgs, folder: &Path) -> anyhow::Result<Vec<Line>> {
    let pinned =
        Command::new("taskset").arg("--version").output().is_ok_and(|done| done.status.success());
    if !pinned {
        eprintln!("warning: `taskset` is not there, so the solvers are not pinned to a core");
    }
    let runner = Runner { args, folder, pinned };
    args.problems.iter().map(|path| runner.line(path)).collect()
}

/// Problem file and number of a round.
struct TurnArgs<'a> {
    path: &'a Path,
    round: u32,
}

struct Runner<'a> {
    args: &'a CompareArgs,
    folder: &'a Path,
    pinned: bool,
}

impl Runner<'_> {
    fn line(&self, path: &Path) -> anyhow::Result<Line> {
        let problem = read_problem(path)?;
        eprintln!("{}", problem.name);
        let peer = self.args.peer.as_ref().filter(|_| problem.pending() <= self.args.peer_up_to);
        let turn = |round| TurnArgs { path, round };
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        let mut report = Report::default();
        for round in 0..self.args.rounds {
            if let Some(peer) = peer {
                theirs.push(self.peer(peer, &turn(round))?);
            }
            let (turn, measured) = self.nap(&turn(round))?;
            ours.push(turn);
            report = measured;
        }
        Ok(Line {
            name: problem.name.clone(),
            recipe: problem.recipe.as_str().unwrap_or_default().to_owned(),
            file: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            pods: problem.pending(),
            classes: problem.pods.len(),
            bound: report.lower_bound_usd_per_hour,
            nap: side(&problem, &ours)?,
            peer: if theirs.is_empty() { None } else { Some(side(&problem, &theirs)?) },
        })
    }

    fn nap(&self, turn: &TurnArgs<'_>) -> anyhow::Result<(Turn, Report)> {
        let own = std::env::current_exe().context("the path of this program")?;
        let plan = self.folder.join(format!("nap-{}.json", turn.round));
        let text = self.run(&own, &["bench", "--json"], turn, &plan)?;
        let report: Report = serde_json::from_str(&text).context("what nap printed")?;
        let took = Turn {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            first: Some(report.first_plan_seconds.median),
            seconds: report.final_plan_seconds,
            cpu: report.final_plan_cpu_seconds.map(|seconds| seconds.median),
            peak_mib: report.peak_rss_mi_b,
            solver_mib: report.solver_mi_b,
            tables: Some(report.catalogue_seconds.median),
            plan,
        };
        Ok((took, report))
    }

    fn peer(&self, peer: &Path, turn: &TurnArgs<'_>) -> anyhow::Result<Turn> {
        let plan = self.folder.join(format!("peer-{}.json", turn.round));
        let text = self.run(peer, &[], turn, &plan)?;
        let report: PeerReport = serde_json::from_str(&text)
            .with_context(|| format!("what {} printed", peer.display()))?;
        Ok(Turn {
            version: report.version,
            first: None,
            seconds: report.final_plan_seconds,
            cpu: report.cpu_seconds.map(|seconds| seconds.median),
            peak_mib: report.peak_rss_mi_b,
            solver_mib: None,
            tables: None,
            plan,
        })
    }

    fn run(
        &self,
        program: &Path,
        first: &[&str],
        turn: &TurnArgs<'_>,
        plan: &Path,
    ) -> anyhow::Result<String> {
        let mut command = if self.pinned {
            let mut command = Command::new("taskset");
            command.arg("-c").arg(self.args.core.to_string()).arg(program);
            command
        } else {
            Command::new(program)
        };
        command.args(first).arg("--problem").arg(turn.path).arg("--plan").arg(plan);
        command.arg("--repeat").arg(self.args.repeat.to_string());
        let done = command.output().with_context(|| format!("starting {}", program.display()))?;
        if !done.status.success() {
            let said = String::from_utf8_lossy(&done.stderr);
            bail!("{} failed on {}: {}", program.display(), turn.path.display(), said.trim());
        }
        Ok(String::from_utf8_lossy(&done.stdout).into_owned())
    }
}

/// Judges and prices the plan of every round.
fn side(problem: &Problem, turns: &[Turn]) -> anyhow::Result<Side> {
    let mut side =
        Side { rounds: u32::try_from(turns.len())?, cost: (f64::INFINITY, 0.0), ..Side::default() };
    let mut seen: Vec<String> = Vec::new();
    let mut firsts = Vec::new();
    let mut medians = Vec::new();
    let mut cpus = Vec::new();
    let mut tables = Vec::new();
    for turn in turns {
        side.version.clone_from(&turn.version);
        firsts.extend(turn.first);
        medians.push(turn.seconds.median);
        cpus.extend(turn.cpu);
        side.p99 = side.p99.max(turn.seconds.p99);
        side.peak_mib = turn.peak_mib.into_iter().chain(side.peak_mib).reduce(f64::max);
        side.solver_mib = turn.solver_mib.into_iter().chain(side.solver_mib).reduce(f64::max);
        tables.extend(turn.tables);
        let text = read(&turn.plan)?;
        let verdict = judge(problem, &read_plan(&turn.plan)?)?;
        side.valid += u32::from(verdict.is_valid());
        let what = verdict.violations.into_iter().next();
        side.wrong = side.wrong.or(what);
        let cost = dollars(verdict.cost);
        side.cost = (side.cost.0.min(cost), side.cost.1.max(cost));
        side.nodes = verdict.nodes;
        side.unplaced = side.unplaced.max(verdict.unplaced);
        side.undecided = side.undecided.max(verdict.undecided);
        if !seen.contains(&text) {
            seen.push(text);
        }
    }
    side.plans = seen.len();
    side.first = (!firsts.is_empty()).then(|| Seconds::of(firsts).median);
    side.median = Seconds::of(medians).median;
    side.cpu = (!cpus.is_empty()).then(|| Seconds::of(cpus).median);
    side.tables = (!tables.is_empty()).then(|| Seconds::of(tables).median);
    Ok(side)
}
