//! Child processes that end with this one, however it ends.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Runs a program until standard input ends, which happens when the parent stops it or dies; then
/// asks the program to end.
const SUPERVISOR: &str = r#"
trap '' INT TERM HUP
"$@" &
cat >/dev/null
kill -TERM $! 2>/dev/null
wait $! 2>/dev/null
exit 0
"#;

/// A long-running child; stopped on drop.
pub(crate) struct Supervised(Child);

impl Supervised {
    /// Starts a program with its output in a file.
    pub(crate) fn start(
        program: &Path,
        arguments: &[&str],
        env: &[(String, String)],
        log: &Path,
    ) -> anyhow::Result<Self> {
        let log = File::create(log)?;
        let child = Command::new("sh")
            .args(["-c", SUPERVISOR, "sh"])
            .arg(program)
            .args(arguments)
            .envs(env.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        Ok(Self(child))
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // It ends once the program has ended.
        let _ = self.0.wait();
    }
}
