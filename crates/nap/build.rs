//! The commit and its day, for `nap --version`. Tests that need kubectl or a control plane are
//! ignored without it, and counted as such.

use std::process::Command;

fn main() {
    nap_controlplane_build::set_cfgs();
    // A development build changes with every commit, so only release builds look.
    let is_release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let given = |variable: &str| {
        println!("cargo::rerun-if-env-changed={variable}");
        std::env::var(variable).ok().filter(|value| !value.is_empty())
    };
    let commit = given("NAP_COMMIT");
    let date = given("NAP_DATE");
    let (commit, date) = if is_release {
        if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
            println!("cargo::rerun-if-changed={log}");
        }
        (
            commit.or_else(|| git(&["rev-parse", "--short=12", "HEAD"])),
            date.or_else(|| git(&["show", "-s", "--format=%cs", "HEAD"])),
        )
    } else {
        (commit.or(Some("development build".to_owned())), date.or(Some("no date".to_owned())))
    };
    println!("cargo::rustc-env=NAP_COMMIT={}", commit.unwrap_or("unknown commit".to_owned()));
    println!("cargo::rustc-env=NAP_DATE={}", date.unwrap_or("unknown date".to_owned()));
}

/// What git prints; `None` without git or outside of a repository.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}
