//! Child processes that end with this one, however it ends.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Runs a program until standard input ends, which happens when the parent stops it or dies; then
/// asks the program to end, and kills it if it has not ended some seconds later.
const SUPERVISOR: &str = r#"
trap '' INT TERM HUP
patience=$1; shift
"$@" &
program=$!
cat >/dev/null
kill -TERM $program 2>/dev/null
{ sleep $patience; kill -KILL $program; } >/dev/null 2>&1 &
wait $program 2>/dev/null
exit 0
"#;

/// Runs a program to its end, or kills it when standard input ends before.
const UNTIL_DONE: &str = r#"
exec 3<&0
"$@" 3<&- &
program=$!
{ cat <&3 >/dev/null; kill -KILL $program 2>/dev/null; } &
watcher=$!
wait $program
code=$?
kill $watcher 2>/dev/null
exit $code
"#;

/// A command that runs another to its end, with its exit code. The other dies with this process, or
/// once the command's standard input is dropped.
pub(crate) fn until_done(program: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", UNTIL_DONE, "sh"]).arg(program).stdin(Stdio::piped());
    command
}

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
        Self::start_patiently(15, program, arguments, env, log)
    }

    /// Starts a program that is killed if it does not end within `patience` seconds.
    fn start_patiently(
        patience: u32,
        program: &Path,
        arguments: &[&str],
        env: &[(String, String)],
        log: &Path,
    ) -> anyhow::Result<Self> {
        let log = File::create(log)?;
        let child = Command::new("sh")
            .args(["-c", SUPERVISOR, "sh", &patience.to_string()])
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_code_is_that_of_the_program() {
        let status = |text: &str| {
            let mut child = until_done(Path::new("sh")).args(["-c", text]).spawn().unwrap();
            // `wait` would close standard input at once.
            let stdin = child.stdin.take();
            let code = child.wait().unwrap().code();
            drop(stdin);
            code
        };
        assert_eq!((status("exit 0"), status("exit 7")), (Some(0), Some(7)));
    }

    #[test]
    fn program_that_ignores_the_request_to_end_is_killed() {
        let log = std::env::temp_dir().join(format!("nap-conformance-{}.log", std::process::id()));
        let deaf = ["-c", "trap '' TERM; echo up; while :; do sleep 1; done"];
        let program = Supervised::start_patiently(1, Path::new("sh"), &deaf, &[], &log).unwrap();
        while std::fs::read_to_string(&log).unwrap().is_empty() {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        drop(program);
        std::fs::remove_file(&log).unwrap();
    }

    #[test]
    fn program_is_killed_when_its_parent_lets_go() {
        let mut child = until_done(Path::new("sleep")).arg("600").spawn().unwrap();
        drop(child.stdin.take());
        let code = child.wait().unwrap().code();
        assert_eq!(code, Some(128 + 9));
    }
}
