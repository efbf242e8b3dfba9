//! Runs Karpenter's own end-to-end suites against `nap run`.
//!
//! ```text
//!  suites (Go, built by name) ──dry run──► specs, longest first
//!                                             │
//!             ┌───────────────┬───────────────┤
//!          plane 1         plane 2         plane 3      each: etcd, kube-apiserver, controllers,
//!             │               │               │         scheduler, kubelets, Azure emulator, nap
//!             └───────────────┴───────────────┴──► results.jsonl ──► docs/conformance-karpenter.md
//! ```
//!
//! Each spec is an invocation of its own, focused on exactly that spec, with its own time limit. A
//! plane that is not clean afterwards is replaced, so that no spec fails for another's remains.

mod commit;
mod plane;
mod process;
mod queue;
mod realisation;
mod report;
mod results;
mod run_folder;
mod run_spec;
mod specs;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Parser;
use jiff::SignedDuration;
use nap_clock::Clock;

use plane::Plane;
use queue::Queue;
use realisation::Burst;
use results::{Outcome, Record, Results};
use specs::Spec;

/// Shortest `--limit`: the suites need some seconds to begin.
const MIN_LIMIT: Duration = Duration::from_secs(10);

/// Run Karpenter's end-to-end suites against nap, and write docs/conformance-karpenter.md
#[derive(Debug, Parser)]
#[command(name = "nap-conformance")]
struct Args {
    /// Number of control planes side by side
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=16))]
    planes: u16,
    /// Run only the specs whose name contains this text; the document is not written
    #[arg(long, value_name = "TEXT")]
    spec: Option<String>,
    /// Stop a spec that nap need not pass after this time, as `10m`; one that is stopped does not
    /// count as passed
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    limit: Option<Duration>,
    /// Skip the specs that passed at this commit before
    #[arg(long)]
    resume: bool,
    /// Run the specs of features that nap does not have too
    #[arg(long)]
    all: bool,
    /// The nap to judge
    #[arg(long, value_name = "FILE", default_value = "target/debug/nap")]
    nap: PathBuf,
    /// Measure how often plans come true on kube-scheduler instead, with this many runs per burst
    #[arg(
        long, value_name = "RUNS",
        conflicts_with_all = ["spec", "limit", "resume", "all", "list"]
    )]
    realisation: Option<usize>,
    /// Measure only this burst
    #[arg(long, value_enum, requires = "realisation")]
    burst: Option<Burst>,
    /// Print the names of the specs and run nothing
    #[arg(long)]
    list: bool,
}

/// What all planes share.
struct Session {
    /// Folder with the suites; empty when none is run.
    suites: PathBuf,
    /// Folder with the manifests for the suites.
    manifests: PathBuf,
    /// Folder of this run: logs and remains of failed specs.
    folder: PathBuf,
    /// A copy of nap, so that a build during the run changes nothing.
    nap: PathBuf,
    commit: String,
    /// Time after which a spec is stopped, if that is before its own limit.
    limit: Option<Duration>,
    clock: Clock,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether every spec that must pass did.
fn run(args: &Args) -> anyhow::Result<bool> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    nap_controlplane_build::build().map_err(anyhow::Error::msg)?;
    let shared = root.join("target/conformance");
    let folder = run_folder::create(&shared)?;
    let manifests = root.join("conformance/karpenter");
    if let Some(runs) = args.realisation {
        let session = session(args, &root, folder, manifests, PathBuf::new())?;
        let measured = realisation::measure(&session, args.planes, runs, args.burst);
        run_folder::close(&session.folder)?;
        return measured;
    }
    let suites = nap_controlplane_build::build_suites().map_err(anyhow::Error::msg)?;
    let specs = specs::list(&suites, &manifests.join("specs"), &folder)?;
    let wanted: Vec<Spec> = specs
        .iter()
        .filter(|spec| args.spec.as_ref().is_none_or(|text| spec.name.contains(text.as_str())))
        .filter(|spec| args.all || spec.excuse.is_none())
        .cloned()
        .collect();
    ensure!(!wanted.is_empty(), "no spec fits; --list prints their names, --all adds the rest");
    if args.list {
        for spec in &wanted {
            println!("{}: {}", spec.suite, spec.name);
        }
        run_folder::close(&folder)?;
        return Ok(true);
    }
    let session = session(args, &root, folder, manifests, suites)?;
    let file = shared.join("results.jsonl");
    let results = Mutex::new(Results::open(&file)?);
    let wanted = not_passed(wanted, args.resume, &session, &results);
    println!("{} specs on {} planes, at {}", wanted.len(), args.planes, session.commit);
    run_all(&session, args.planes, wanted, &results)?;
    // Another run may have appended results meanwhile.
    let results = Results::open(&file)?;
    let failed = report::summary(&specs, args.spec.as_deref(), args.all, &session.commit, &results);
    if args.spec.is_none() {
        let file = root.join("docs/conformance-karpenter.md");
        std::fs::write(&file, report::document(&specs, &session.commit, &results))?;
        println!("wrote {}", file.display());
    }
    run_folder::close(&session.folder)?;
    Ok(failed == 0)
}

/// What all planes share, with a copy of nap.
fn session(
    args: &Args,
    root: &Path,
    folder: PathBuf,
    manifests: PathBuf,
    suites: PathBuf,
) -> anyhow::Result<Session> {
    let original = root.join(&args.nap);
    let nap = run_folder::take(&original, &folder)
        .with_context(|| format!("{}; `cargo build -p nap` builds it", args.nap.display()))?;
    // Measurements are not recorded.
    let commit = if args.realisation.is_none() { commit::of(&original)? } else { String::new() };
    let clock = Clock::wall();
    Ok(Session { suites, manifests, folder, nap, commit, limit: args.limit, clock })
}

/// A duration with units, as `10m` or `1h30m`.
fn duration(text: &str) -> Result<Duration, String> {
    let example = "give a time such as `10m` or `90s`";
    let parsed: SignedDuration = text.parse().map_err(|_| example.to_owned())?;
    let parsed = Duration::try_from(parsed).map_err(|_| example.to_owned())?;
    if parsed < MIN_LIMIT {
        return Err(format!("at least {} s", MIN_LIMIT.as_secs()));
    }
    Ok(parsed)
}

fn not_passed(
    specs: Vec<Spec>,
    resume: bool,
    session: &Session,
    results: &Mutex<Results>,
) -> Vec<Spec> {
    let results = results.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let passed = |spec: &Spec| {
        let last = results.last(spec, &session.commit);
        last.is_some_and(|record| record.outcome == Outcome::Passed)
    };
    specs.into_iter().filter(|spec| !resume || !passed(spec)).collect()
}

fn run_all(
    session: &Session,
    planes: u16,
    specs: Vec<Spec>,
    results: &Mutex<Results>,
) -> anyhow::Result<()> {
    let total = specs.len();
    let (queue, done) = (&Queue::new(specs), &AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (1..=planes)
            .map(|number| scope.spawn(move || work(session, number, queue, (done, total), results)))
            .collect();
        let ended = workers.into_iter().map(|worker| match worker.join() {
            Ok(result) => result,
            Err(_) => Err(anyhow::anyhow!("a worker panicked")),
        });
        ended.collect::<Vec<_>>().into_iter().collect()
    })
}

/// Runs specs on one plane after another until none is left.
fn work(
    session: &Session,
    number: u16,
    queue: &Queue,
    (done, total): (&AtomicUsize, usize),
    results: &Mutex<Results>,
) -> anyhow::Result<()> {
    let mut plane: Option<Plane> = None;
    while let Some(taken) = queue.take() {
        let ready = match plane.take() {
            Some(plane) => plane,
            None => start_plane(session, number)?,
        };
        let record = run_spec::run(session, &ready, taken.spec())?;
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        print_progress(done, total, number, &record);
        let mut results = results.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        results.append(record)?;
        drop((results, taken));
        if queue.is_empty() {
            continue;
        }
        match ready.wait_until_clean(session) {
            Ok(()) => plane = Some(ready),
            Err(remains) => println!("plane {number} is not clean, starting another: {remains}"),
        }
    }
    Ok(())
}

/// Starts a plane; on a busy computer the first attempt may take too long.
fn start_plane(session: &Session, number: u16) -> anyhow::Result<Plane> {
    Plane::start(session, number).or_else(|error| {
        println!("plane {number}: {error:#}; trying again");
        Plane::start(session, number)
    })
}

fn print_progress(done: usize, total: usize, plane: u16, record: &Record) {
    let outcome = record.outcome.as_str();
    println!(
        "[{done}/{total}] {outcome} {} s, plane {plane}: {}: {}",
        record.seconds, record.suite, record.spec
    );
    if matches!(record.outcome, Outcome::Failed | Outcome::Stopped) {
        println!("    {}", record.reason);
        println!("    {}", record.folder.as_deref().unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_is_a_time_with_a_unit() {
        assert_eq!(duration("10m"), Ok(Duration::from_mins(10)));
        assert_eq!(duration("1h30m"), Ok(Duration::from_mins(90)));
        for wrong in ["", "10", "-5m", "soon", "3s"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
