//! One spec on one plane.

use std::fmt::Write as _;
use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::thread::sleep;
use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;

use crate::Session;
use crate::plane::Plane;
use crate::process;
use crate::results::{Outcome, Record};
use crate::specs::Spec;

/// Time of ginkgo for the clean-up of a spec whose time is over.
const GRACE: Duration = Duration::from_mins(1);
/// Interval of the snapshots that a failed spec keeps.
const SAMPLE: Duration = Duration::from_secs(10);
/// Port that the Chaos specs listen on.
const FIXED_PORT: u16 = 8080;
/// Objects in a snapshot.
const SAMPLED: &str = "get nodepools,nodeclaims,nodes,pods --all-namespaces --output wide";
/// Maximum length of a reason in the table.
const MAX_REASON: usize = 240;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Report {
    spec_reports: Vec<SpecReport>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SpecReport {
    leaf_node_type: String,
    state: String,
    failure: Option<Failure>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failure {
    message: String,
    #[serde(default)]
    location: Location,
    /// Of a spec whose time was over.
    #[serde(default)]
    progress_report: Progress,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Location {
    file_name: String,
    line_number: u32,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Progress {
    current_step_text: String,
    current_step_location: Location,
}

impl Failure {
    /// What was expected and where, in one line.
    fn reason(&self) -> String {
        let step = &self.progress_report.current_step_text;
        let (text, location) = if step.is_empty() {
            (&self.message, &self.location)
        } else {
            (step, &self.progress_report.current_step_location)
        };
        let file = location.file_name.rsplit('/').next().unwrap_or_default();
        let line = one_line(text);
        if file.is_empty() { line } else { format!("{line} ({file}:{})", location.line_number) }
    }
}

/// Runs a spec. Its output, nap's log and snapshots of the cluster stay in a folder if it fails.
pub(crate) fn run(session: &Session, plane: &Plane, spec: &Spec) -> anyhow::Result<Record> {
    let folder = session.folder.join(slug(spec));
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    let log_start = std::fs::metadata(&plane.nap_log).map_or(0, |file| file.len());
    let started = session.clock.now();
    let (outcome, reason) = if spec.needs_port() && port_taken() {
        (Outcome::NotJudged, format!("port {FIXED_PORT} of this computer is taken"))
    } else {
        let mut child = start(session, plane, spec, &folder)?;
        let status = wait(session, plane, spec, &mut child, &folder)?;
        let stopped = Some(limit(session, spec)).filter(|limit| *limit < spec.limit());
        judge(&folder.join("report.json"), status, stopped)
    };
    let seconds = session.clock.now().duration_since(started).as_secs();
    let failed = matches!(outcome, Outcome::Failed | Outcome::Stopped);
    if failed {
        keep_remains(plane, &folder, log_start)?;
    } else {
        std::fs::remove_dir_all(&folder)?;
    }
    Ok(Record {
        version: nap_controlplane_build::suites_version().to_owned(),
        commit: session.commit.clone(),
        suite: spec.suite.clone(),
        spec: spec.name.clone(),
        outcome,
        seconds,
        reason,
        folder: failed.then(|| folder.display().to_string()),
    })
}

/// Time after which a spec ends: its own limit, or that of this run for one that need not pass.
fn limit(session: &Session, spec: &Spec) -> Duration {
    let of_run = session.limit.filter(|_| spec.excuse.is_some());
    of_run.map_or(spec.limit(), |limit| limit.min(spec.limit()))
}

fn start(session: &Session, plane: &Plane, spec: &Spec, folder: &Path) -> anyhow::Result<Child> {
    let output = File::create(folder.join("output.log"))?;
    let file = |name: &str| session.manifests.join(name).display().to_string();
    let mut command = process::until_done(&session.suites.join(format!("{}.test", spec.suite)));
    command
        .arg(format!("--default-nodeclass={}", file("aksnodeclass.yaml")))
        .arg(format!("--default-nodepool={}", file(spec.nodepool())))
        .arg("--repair-condition=kubernetes.azure.com/NodeHealthy=False")
        .args(["--ginkgo.v", "--ginkgo.no-color"])
        .arg(format!("--ginkgo.focus={}", spec.focus()))
        .arg(format!("--ginkgo.timeout={}s", limit(session, spec).as_secs()))
        .arg(format!("--ginkgo.grace-period={}s", GRACE.as_secs()))
        .arg(format!("--ginkgo.json-report={}", folder.join("report.json").display()))
        .env("KUBECONFIG", &plane.kubeconfig)
        .env("OUTPUT_DIR", folder)
        .current_dir(folder)
        .stdout(output.try_clone()?)
        .stderr(output);
    Ok(command.spawn()?)
}

/// Waits for the end, with snapshots of the cluster meanwhile. A suite that outlives its own limit
/// is killed.
fn wait(
    session: &Session,
    plane: &Plane,
    spec: &Spec,
    child: &mut Child,
    folder: &Path,
) -> anyhow::Result<Option<ExitStatus>> {
    let started = session.clock.now();
    let mut sampled = started;
    let mut samples = String::new();
    let passed = |since: Timestamp| session.clock.now().duration_since(since).unsigned_abs();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if passed(started) > limit(session, spec) + GRACE * 4 {
            drop(child.stdin.take());
            child.wait()?;
            return Ok(None);
        }
        if passed(sampled) >= SAMPLE {
            sampled = session.clock.now();
            let state = plane.kubectl(SAMPLED).unwrap_or_else(|error| error);
            writeln!(samples, "--- {sampled}\n{state}")?;
            std::fs::write(folder.join("snapshots.log"), &samples)?;
        }
        sleep(Duration::from_millis(100));
    }
}

/// The verdict on a spec; `stopped` is the limit of this run if it is shorter than the spec's own.
fn judge(
    report: &Path,
    status: Option<ExitStatus>,
    stopped: Option<Duration>,
) -> (Outcome, String) {
    let late = |reason: String| match stopped {
        Some(limit) => {
            let minutes = (limit.as_secs_f64() / 6.0).round() / 10.0;
            (Outcome::Stopped, format!("stopped after {minutes} min: {reason}"))
        }
        None => (Outcome::Failed, reason),
    };
    let Some(status) = status else {
        return late("the suite did not end in time and was killed".to_owned());
    };
    let reports: Option<Vec<Report>> =
        std::fs::read(report).ok().and_then(|text| serde_json::from_slice(&text).ok());
    let Some(reports) = reports else {
        return (Outcome::Failed, format!("the suite wrote no report ({status})"));
    };
    let specs: Vec<SpecReport> =
        reports.into_iter().flat_map(|report| report.spec_reports).collect();
    // Of the specs of the suite, all but one are skipped without a message.
    let judged = |spec: &&SpecReport| {
        let message = spec.failure.as_ref().is_some_and(|failure| !failure.message.is_empty());
        spec.state != "skipped" || message
    };
    let mut its = specs.iter().filter(|spec| spec.leaf_node_type == "It").filter(judged);
    let (found, more) = (its.next(), its.next());
    // The set-up of the suite can fail too.
    let broken = specs.iter().find(|spec| {
        spec.leaf_node_type != "It" && !matches!(spec.state.as_str(), "passed" | "skipped" | "")
    });
    match (broken.or(found), more) {
        (Some(spec), None) => {
            let message = spec.failure.as_ref().map(Failure::reason);
            let message = message.unwrap_or_default();
            match spec.state.as_str() {
                "passed" if status.success() => (Outcome::Passed, String::new()),
                "skipped" => (Outcome::Skipped, message),
                "timedout" => late(format!("timedout: {message}")),
                state => (Outcome::Failed, format!("{state}: {message}")),
            }
        }
        (Some(_), Some(_)) => (Outcome::NotJudged, "more than one spec ran".to_owned()),
        (None, _) => (Outcome::NotJudged, "no spec ran".to_owned()),
    }
}

fn one_line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let line: String = words.join(" ").chars().take(MAX_REASON).collect();
    line.replace('|', "/")
}

fn keep_remains(plane: &Plane, folder: &Path, log_start: u64) -> anyhow::Result<()> {
    let log = std::fs::read(&plane.nap_log)?;
    let log_start = usize::try_from(log_start)?.min(log.len());
    std::fs::write(folder.join("nap.log"), &log[log_start..])?;
    for (name, arguments) in [
        ("objects.yaml", "get nodepools,nodeclaims,nodes,aksnodeclasses --output yaml"),
        ("events.log", "get events --all-namespaces --sort-by .lastTimestamp"),
    ] {
        let text = plane.kubectl(arguments).unwrap_or_else(|error| error);
        std::fs::write(folder.join(name), text)?;
    }
    Ok(())
}

fn port_taken() -> bool {
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, FIXED_PORT)).is_err()
}

/// Name of a spec's folder.
fn slug(spec: &Spec) -> String {
    let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '-' };
    let name: String = spec.name.chars().map(plain).collect();
    let words: Vec<&str> = name.split('-').filter(|word| !word.is_empty()).collect();
    let name: String = words.join("-").to_lowercase().chars().take(150).collect();
    format!("{}-{name}", spec.suite)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    fn judged(reports: &str, code: i32) -> (Outcome, String) {
        let file = std::env::temp_dir().join(format!(
            "nap-conformance-{}-{code}-{}",
            std::process::id(),
            reports.len()
        ));
        std::fs::write(&file, format!("[{{\"SpecReports\":[{reports}]}}]")).unwrap();
        let verdict = judge(&file, Some(ExitStatus::from_raw(code << 8)), None);
        let stopped = Some(Duration::from_mins(7));
        let limited = judge(&file, Some(ExitStatus::from_raw(code << 8)), stopped);
        std::fs::remove_file(&file).unwrap();
        if reports.contains("timedout") {
            assert_eq!(limited.0, Outcome::Stopped, "a spec that the run stopped");
            assert!(limited.1.starts_with("stopped after 7 min: timedout"), "{}", limited.1);
        } else {
            assert_eq!(limited, verdict, "a spec that ended by itself");
        }
        verdict
    }

    #[test]
    fn report_of_one_spec_among_skipped_ones_is_judged() {
        let skipped = r#"{"LeafNodeType":"It","State":"skipped"}"#;
        let passed = r#"{"LeafNodeType":"It","State":"passed"}"#;
        let failed = r#"{"LeafNodeType":"It","State":"timedout","Failure":{"Message":"a\n  b"}}"#;
        let itself = r#"{"LeafNodeType":"It","State":"skipped","Failure":{"Message":"no zone"}}"#;
        let setup =
            r#"{"LeafNodeType":"BeforeSuite","State":"panicked","Failure":{"Message":"x"}}"#;
        assert_eq!(judged(&format!("{skipped},{passed}"), 0).0, Outcome::Passed);
        assert_eq!(judged(passed, 1).0, Outcome::Failed, "the suite itself failed");
        let (outcome, reason) = judged(&format!("{skipped},{failed}"), 1);
        assert_eq!((outcome, reason.as_str()), (Outcome::Failed, "timedout: a b"));
        let late = r#"{"LeafNodeType":"It","State":"timedout","Failure":{"Message":"late","ProgressReport":
            {"CurrentStepText":"waiting","CurrentStepLocation":{"FileName":"a/b_test.go","LineNumber":7}}}}"#;
        assert_eq!(judged(late, 1).1, "timedout: waiting (b_test.go:7)");
        assert_eq!(judged(itself, 0), (Outcome::Skipped, "no zone".to_owned()));
        assert_eq!(judged(&format!("{setup},{skipped}"), 1).0, Outcome::Failed);
        assert_eq!(judged(skipped, 0).0, Outcome::NotJudged);
        assert_eq!(judge(Path::new("/nonexistent"), None, None).0, Outcome::Failed);
        let limit = Some(Duration::from_secs(90));
        let (outcome, reason) = judge(Path::new("/nonexistent"), None, limit);
        assert_eq!(outcome, Outcome::Stopped);
        assert!(reason.starts_with("stopped after 1.5 min"), "{reason}");
    }
}
