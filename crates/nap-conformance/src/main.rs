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

mod plane;
mod process;
mod queue;
mod realisation;
mod report;
mod results;
mod run_spec;
mod specs;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, ensure};
use clap::Parser;
use nap_clock::Clock;

use plane::Plane;
use queue::Queue;
use realisation::Burst;
use results::{Outcome, Record, Results};
use specs::Spec;

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
    #[arg(long, value_name = "RUNS", conflicts_with_all = ["spec", "resume", "all", "list"])]
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
    /// Folder of results, logs and remains of failed specs.
    folder: PathBuf,
    /// A copy of nap, so that a build during the run changes nothing.
    nap: PathBuf,
    commit: String,
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
    let folder = root.join("target/conformance");
    std::fs::create_dir_all(&folder)?;
    let manifests = root.join("conformance/karpenter");
    if let Some(runs) = args.realisation {
        let session = session(args, &root, folder, manifests, PathBuf::new())?;
        return realisation::measure(&session, args.planes, runs, args.burst);
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
        return Ok(true);
    }
    let session = session(args, &root, folder, manifests, suites)?;
    let results = Mutex::new(Results::open(&session.folder.join("results.jsonl"))?);
    let wanted = not_passed(wanted, args.resume, &session, &results);
    println!("{} specs on {} planes, at {}", wanted.len(), args.planes, session.commit);
    run_all(&session, args.planes, wanted, &results)?;
    let results = results.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let failed = report::summary(&specs, args.spec.as_deref(), args.all, &session.commit, &results);
    if args.spec.is_none() {
        let file = root.join("docs/conformance-karpenter.md");
        std::fs::write(&file, report::document(&specs, &session.commit, &results))?;
        println!("wrote {}", file.display());
    }
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
    let nap = folder.join("nap");
    std::fs::copy(root.join(&args.nap), &nap)
        .with_context(|| format!("{}; `cargo build -p nap` builds it", args.nap.display()))?;
    let commit = commit(root)?;
    Ok(Session { suites, manifests, folder, nap, commit, clock: Clock::wall() })
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
    if record.outcome == Outcome::Failed {
        println!("    {}", record.reason);
        println!("    {}", record.folder.as_deref().unwrap_or_default());
    }
}

/// The commit of the working tree; `-dirty` if files differ from it.
fn commit(root: &Path) -> anyhow::Result<String> {
    let git = |arguments: &[&str]| -> anyhow::Result<String> {
        let output = Command::new("git").arg("-C").arg(root).args(arguments).output()?;
        ensure!(output.status.success(), "git {arguments:?} failed");
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed = git(&["status", "--porcelain", "--untracked-files=no", "--", "crates"])?;
    Ok(if changed.is_empty() { commit } else { format!("{commit}-dirty") })
}
