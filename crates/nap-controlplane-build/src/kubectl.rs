//! kubectl for tests: one runner for every test crate.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// kubectl with a kubeconfig.
#[derive(Clone, Debug)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
}

impl Kubectl {
    /// The kubectl that [`crate::kubectl`] finds, or its one line of text if there is none.
    pub fn new(kubeconfig: &Path) -> Result<Self, String> {
        Ok(Self { program: crate::kubectl()?, kubeconfig: kubeconfig.to_owned() })
    }

    /// kubectl with these arguments. Its discovery cache is beside the kubeconfig.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let home = self.kubeconfig.parent().unwrap_or(&self.kubeconfig);
        let mut command = Command::new(&self.program);
        command.arg("--kubeconfig").arg(&self.kubeconfig).args(arguments).env("HOME", home);
        command
    }

    /// Runs kubectl to its end with a manifest on standard input.
    pub fn run(&self, arguments: &[&str], manifest: &str) -> std::io::Result<Output> {
        let mut child = self
            .command(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            // A kubectl that does not read its input closes the pipe.
            stdin.write_all(manifest.as_bytes()).or_else(ignore_closed_pipe)?;
        }
        child.wait_with_output()
    }
}

fn ignore_closed_pipe(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == std::io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) }
}
