//! Child processes of tests: `nap`, `nap try` with kubectl, `nap run`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nap_azure::AzureConfig;
use nap_azure::arm::{ArmClient, ManagedIdentity, https_client};
use nap_azure::machines::{Machine, Machines};
use nap_clock::Clock;
use nap_controlplane_build::Kubectl;

/// Maximum time to wait for a condition.
const PATIENCE: Duration = Duration::from_mins(2);

/// `nap` with these arguments.
pub fn nap(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nap"));
    command.args(arguments).env_remove("KUBECONFIG").env("NAP_LOG", "warn,kube_client=off");
    command
}

/// Runs `nap` to its end.
pub fn output(arguments: &[&str]) -> Output {
    nap(arguments).output().expect("nap starts")
}

/// Text of a stream.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Content of a file that `--save` has written.
pub fn unpacked(file: &std::path::Path) -> String {
    let packed = std::fs::read(file).expect("the file was saved");
    let mut content = String::new();
    let mut unpacking = flate2::read::GzDecoder::new(packed.as_slice());
    unpacking.read_to_string(&mut content).expect("it is compressed text");
    content
}

/// Two free ports.
pub fn ports() -> [u16; 2] {
    let held = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    held.each_ref().map(|one| one.local_addr().expect("an address").port())
}

/// Status and body of a GET; `None` if nothing listens.
pub fn get(port: u16, path: &str) -> Option<(u16, String)> {
    let (code, body) = get_bytes(port, path)?;
    Some((code, String::from_utf8(body).ok()?))
}

/// As [`get`], of any body.
pub fn get_bytes(port: u16, path: &str) -> Option<(u16, Vec<u8>)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: nap\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
    let head = text(&answer[..end]);
    Some((head.split(' ').nth(1)?.parse().ok()?, answer.split_off(end + 4)))
}

/// A child process; killed on drop.
pub struct Process(Child);

impl Process {
    pub fn start(command: &mut Command) -> Self {
        Self(command.spawn().expect("the process starts"))
    }

    /// Its standard input and output, which must be piped.
    pub fn pipes(&mut self) -> (ChildStdin, BufReader<ChildStdout>) {
        let input = self.0.stdin.take().expect("piped");
        (input, BufReader::new(self.0.stdout.take().expect("piped")))
    }

    /// Sends SIGKILL.
    pub fn kill(mut self) {
        self.0.kill().expect("the process is ours to kill");
        self.0.wait().expect("a killed process ends");
    }

    /// Sends SIGKILL, and returns the output.
    pub fn kill_with_output(mut self) -> String {
        self.0.kill().expect("the process is ours to kill");
        self.output()
    }

    /// Sends SIGTERM, waits, and returns the rest of the output.
    pub fn stop(mut self) -> String {
        let id = self.0.id().to_string();
        assert!(
            Command::new("kill").args(["-TERM", &id]).status().is_ok_and(|status| status.success())
        );
        let rest = self.output();
        assert!(
            self.0.wait().is_ok_and(|status| status.success()),
            "it did not end cleanly: {rest}"
        );
        rest
    }

    /// Output until the process ends.
    fn output(&mut self) -> String {
        let mut output = String::new();
        if let Some(stdout) = self.0.stdout.as_mut() {
            stdout.read_to_string(&mut output).expect("its output is text");
        }
        output
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails if the process has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A running `nap try`.
pub struct Cluster {
    process: Process,
    pub kubeconfig: PathBuf,
    folder: PathBuf,
    /// Environment of a `nap run`; only without controllers.
    env: Option<PathBuf>,
}

impl Cluster {
    /// Starts `nap try` at 30 times the speed and waits until it is up.
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_in_real_time(&[&["--speed", "30"], arguments].concat())
    }

    /// Starts `nap try` and waits until it is up.
    pub fn start_in_real_time(arguments: &[&str]) -> Self {
        let mut command = nap(&["try"]);
        let mut child =
            command.args(arguments).stdout(Stdio::piped()).spawn().expect("nap try starts");
        let (kubeconfig, env) = wait_until_up(&mut child);
        let kubeconfig = kubeconfig.expect("it prints the kubeconfig");
        let folder = kubeconfig.parent().expect("it is in a folder").to_owned();
        Self { process: Process(child), kubeconfig, folder, env }
    }

    /// Starts `nap try` beside the cluster of a kubeconfig and waits until it is up.
    pub fn start_beside(arguments: &[&str]) -> Process {
        Self::start_beside_without_controllers(arguments).0
    }

    /// As [`Self::start_beside`]; returns the file with the environment of a `nap run` too, which
    /// is there with `--no-controllers`.
    pub fn start_beside_without_controllers(arguments: &[&str]) -> (Process, Option<PathBuf>) {
        let mut child =
            nap(&["try"]).args(arguments).stdout(Stdio::piped()).spawn().expect("nap try starts");
        let (_, env) = wait_until_up(&mut child);
        (Process(child), env)
    }

    /// Environment of a `nap run` on this cluster.
    pub fn environment(&self) -> BTreeMap<String, String> {
        let env = self.env.as_ref().expect("nap try runs without controllers");
        let env = std::fs::read_to_string(env).expect("nap try writes it");
        let pairs = env.lines().filter_map(|line| line.split_once('='));
        pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    /// A `nap run` on this cluster. It adds to the [log](Self::log).
    pub fn nap_run(&self) -> Process {
        self.nap_run_with(&[])
    }

    /// The same with further variables.
    pub fn nap_run_with(&self, more: &[(&str, &str)]) -> Process {
        let log = File::options().create(true).append(true).open(self.log_path());
        let mut command = nap(&["run"]);
        command.envs(self.environment()).env("NAP_LOG", "info,kube_client=off");
        command.envs(more.iter().copied());
        command.env("LOG_OUTPUT_PATHS", "stderr");
        Process::start(command.stderr(log.expect("the folder is ours")))
    }

    fn log_path(&self) -> PathBuf {
        self.folder.join("nap-run.log")
    }

    /// Log of every `nap run` on this cluster.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// VMs of the emulated Azure.
    pub fn vms(&self) -> Vec<Machine> {
        let env = self.environment();
        let config = AzureConfig::from_variables(|name| env.get(name).cloned());
        let config = config.expect("nap try writes what nap run needs");
        let listed = async {
            let (service, clock) = (https_client().expect("a client"), Clock::wall());
            let tokens = ManagedIdentity {
                service: service.clone(),
                clock: clock.clone(),
                endpoint: config.arm_endpoint.clone(),
                client_id: None,
                resource: config.arm_endpoint.clone(),
            };
            let arm = ArmClient::new(service, Arc::new(tokens), clock, &config.arm_endpoint);
            Machines::new(arm, &config).list().await.expect("the emulator answers")
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(listed)
    }

    /// Sends a signal to a component of a real control plane.
    pub fn signal(&self, component: &str, signal: &str) {
        let file = self.folder.join(format!("{component}.pid"));
        let id = std::fs::read_to_string(file).expect("a real control plane writes it");
        let status = Command::new("kill").args([signal, id.trim()]).status();
        assert!(status.is_ok_and(|status| status.success()), "{component} does not run");
    }

    pub fn kubectl_command(&self) -> Kubectl {
        let kubectl = Kubectl::new(&self.kubeconfig);
        kubectl.expect("tests that need kubectl are ignored without it")
    }

    pub fn kubectl(&self, arguments: &[&str]) -> Output {
        self.kubectl_command().run(arguments, "").expect("kubectl starts")
    }

    /// A kubectl that runs on, such as `get --watch`; its output is read when it is stopped.
    pub fn kubectl_watch(&self, arguments: &[&str]) -> Process {
        let mut command = self.kubectl_command().command(arguments);
        Process::start(command.stdout(Stdio::piped()))
    }

    /// Output of kubectl; it must succeed.
    pub fn ok(&self, arguments: &[&str]) -> String {
        let output = self.kubectl(arguments);
        assert!(
            output.status.success(),
            "kubectl {arguments:?}: {}{}",
            text(&output.stdout),
            text(&output.stderr)
        );
        text(&output.stdout)
    }

    /// Applies a manifest from standard input.
    pub fn apply(&self, manifest: &str) -> String {
        self.ok(&["apply", "-f", &self.write("manifest.yaml", manifest)])
    }

    /// Path of a new file in the folder of the cluster.
    pub fn write(&self, name: &str, content: &str) -> String {
        let path = self.folder.join(name);
        std::fs::write(&path, content).expect("the folder is ours");
        path.to_str().expect("text").to_owned()
    }

    /// Repeats kubectl until its output is as expected.
    pub fn until(&self, what: &str, arguments: &[&str], expected: impl Fn(&str) -> bool) -> String {
        self.eventually(what, || self.ok(arguments), |text| expected(text))
    }

    /// As [`Self::until`], with another maximum time.
    pub fn until_within(
        &self,
        patience: Duration,
        what: &str,
        arguments: &[&str],
        expected: impl Fn(&str) -> bool,
    ) -> String {
        self.eventually_within(patience, what, || self.ok(arguments), |text| expected(text))
    }

    /// Repeats kubectl until it succeeds, as after a restart of the API server.
    pub fn until_it_answers(&self) {
        let answers = || self.kubectl(&["get", "--raw", "/readyz"]);
        self.eventually("the API server answers", answers, |output| output.status.success());
    }

    /// Looks until what is seen is as expected.
    pub fn eventually<T: std::fmt::Debug>(
        &self,
        what: &str,
        look: impl Fn() -> T,
        expected: impl Fn(&T) -> bool,
    ) -> T {
        self.eventually_within(PATIENCE, what, look, expected)
    }

    /// As [`Self::eventually`], with another maximum time.
    pub fn eventually_within<T: std::fmt::Debug>(
        &self,
        patience: Duration,
        what: &str,
        look: impl Fn() -> T,
        expected: impl Fn(&T) -> bool,
    ) -> T {
        let mut seen = look();
        for _ in 0..patience.as_millis() / 200 {
            if expected(&seen) {
                return seen;
            }
            std::thread::sleep(Duration::from_millis(200));
            seen = look();
        }
        panic!("never: {what}\n{seen:?}\n{}", self.log());
    }

    /// Stops `nap try`; returns its last lines, with the bill.
    pub fn stop(self) -> String {
        let farewell = self.process.stop();
        assert!(!self.folder.exists(), "it left {} behind", self.folder.display());
        farewell
    }
}

/// Reads what `nap try` prints until it is up; returns the kubeconfig and the environment of a
/// `nap run`.
fn wait_until_up(child: &mut Child) -> (Option<PathBuf>, Option<PathBuf>) {
    let mut lines = BufReader::new(child.stdout.take().expect("piped"));
    let (mut kubeconfig, mut env) = (None, None);
    loop {
        let mut line = String::new();
        assert!(lines.read_line(&mut line).expect("text") > 0, "nap try ended early");
        if let Some(path) = line.trim().strip_prefix("export KUBECONFIG=") {
            kubeconfig = Some(PathBuf::from(path));
        }
        if let Some(path) = line.trim().strip_prefix("set -a; . ") {
            env = path.strip_suffix("; set +a").map(PathBuf::from);
        }
        if line.contains("Ctrl-C ends it") {
            child.stdout = Some(lines.into_inner());
            return (kubeconfig, env);
        }
    }
}
