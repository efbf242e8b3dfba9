//! A cluster for the suites: `nap try` with a real control plane, and `nap run` on it.

use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, bail};
use nap_clock::Clock;
use nap_controlplane_build::Kubectl;

use crate::Session;
use crate::process::Supervised;

/// Maximum time until a control plane is up on a busy computer.
const START: Duration = Duration::from_mins(4);
/// Time for the last VMs of a spec to go.
const CLEAN: Duration = Duration::from_mins(2);
/// Everything that a spec must not leave behind.
const REMAINS: &str = "nodes,nodepools,nodeclaims,aksnodeclasses,nodeoverlays,capacitybuffers,\
                       deployments,daemonsets,poddisruptionbudgets,pods,persistentvolumes,\
                       validatingadmissionpolicies,validatingadmissionpolicybindings";
/// The policy that nap installs itself, and its binding.
const OURS: &str = "/nap-old-spellings";

/// A running cluster with nap; ends on drop.
pub(crate) struct Plane {
    // The order of the fields is the order of their end: nap first.
    _nap: Supervised,
    _cluster: Supervised,
    pub(crate) kubeconfig: PathBuf,
    pub(crate) nap_log: PathBuf,
    kubectl: Kubectl,
}

impl Plane {
    /// Starts a control plane, an emulator with fast VMs, kubelets and nap.
    pub(crate) fn start(session: &Session, number: u16) -> anyhow::Result<Self> {
        let log = session.folder.join(format!("plane-{number}.log"));
        let seed = number.to_string();
        let arguments = [
            "try",
            "--control-plane",
            "real",
            "--no-controllers",
            "--default-nodepool=false",
            "--vm-delays",
            "0.1",
            "--seed",
            &seed,
        ];
        let cluster = Supervised::start(&session.nap, &arguments, &[], &log)?;
        let (kubeconfig, env) = wait_for_files(&log, &session.clock)?;
        let mut env: Vec<(String, String)> = std::fs::read_to_string(&env)?
            .lines()
            .filter_map(|line| line.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        // Drain order is judged on pods that must share a node; without a price of nodes two
        // smaller ones may be a fraction of a cent cheaper.
        env.push(("NAP_NODE_COST".to_owned(), "0.01".to_owned()));
        env.push(("FEATURE_GATES".to_owned(), "NodeRepair=true".to_owned()));
        env.push(("NO_COLOR".to_owned(), "1".to_owned()));
        let nap_log = session.folder.join(format!("nap-{number}.log"));
        let nap = Supervised::start(&session.nap, &["run"], &env, &nap_log)?;
        let kubectl = Kubectl::new(&kubeconfig).map_err(anyhow::Error::msg)?;
        Ok(Self { _nap: nap, _cluster: cluster, kubeconfig, nap_log, kubectl })
    }

    /// Output of kubectl, or its error text.
    pub(crate) fn kubectl(&self, arguments: &str) -> Result<String, String> {
        let words: Vec<&str> = arguments.split_whitespace().collect();
        let output = self.kubectl.run(&words, "").map_err(|error| error.to_string())?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    /// Applies a manifest.
    pub(crate) fn apply(&self, manifest: &str) -> anyhow::Result<()> {
        let output = self.kubectl.run(&["apply", "--server-side", "-f", "-"], manifest)?;
        let error = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "kubectl apply: {error}");
        Ok(())
    }

    /// Waits until nothing of a spec is left; the error names what is.
    pub(crate) fn wait_until_clean(&self, session: &Session) -> Result<(), String> {
        let started = session.clock.now();
        loop {
            let remains = self.remains()?;
            if remains.is_empty() {
                return Ok(());
            }
            if session.clock.now().duration_since(started).unsigned_abs() > CLEAN {
                return Err(remains.join(", "));
            }
            sleep(Duration::from_secs(1));
        }
    }

    fn remains(&self) -> Result<Vec<String>, String> {
        let listed = self.kubectl(&format!("get {REMAINS} --all-namespaces --output name"))?;
        let foreign = |line: &&str| !line.is_empty() && !line.ends_with(OURS);
        Ok(listed.lines().filter(foreign).map(str::to_owned).collect())
    }
}

/// Paths of the kubeconfig and of the environment that `nap try` prints.
fn wait_for_files(log: &Path, clock: &Clock) -> anyhow::Result<(PathBuf, PathBuf)> {
    let started = clock.now();
    loop {
        let text = std::fs::read_to_string(log)?;
        let find = |start: &str, end: &str| {
            let line = text.lines().find_map(|line| line.trim().strip_prefix(start))?;
            Some(PathBuf::from(line.trim_end_matches(end)))
        };
        if text.contains("Ctrl-C ends it") {
            let kubeconfig = find("export KUBECONFIG=", "");
            let env = find("set -a; . ", "; set +a");
            return kubeconfig.zip(env).context("`nap try` printed no paths");
        }
        if text.contains("error: ") || clock.now().duration_since(started).unsigned_abs() > START {
            bail!("the control plane did not start: {text}");
        }
        sleep(Duration::from_millis(200));
    }
}
