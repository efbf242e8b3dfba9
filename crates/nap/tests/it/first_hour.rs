//! The first hour of a new user: the script that a fresh clone has for it.

use std::path::PathBuf;
use std::process::Command;

use crate::process::text;

/// Runs parts of `examples/first-hour.sh`.
fn run(parts: &[&str]) -> String {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/first-hour.sh");
    let mut command = Command::new("sh");
    command.arg(script).args(parts).env("NAP", env!("CARGO_BIN_EXE_nap"));
    command.env("NAP_LOG", "warn,kube_client=off").env("HOME", env!("CARGO_TARGET_TMPDIR"));
    if let Ok(kubectl) = nap_controlplane_build::kubectl() {
        let folder = kubectl.parent().expect("it is in a folder").display();
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{folder}:{path}"));
    }
    let ran = command.output().expect("there is a shell");
    let said = text(&ran.stdout);
    assert!(ran.status.success(), "{said}\n{}", text(&ran.stderr));
    assert!(said.contains("== the first hour is over"), "{said}");
    said
}

#[test]
fn public_kinds_of_manifests_are_planned() {
    let said = run(&["plan"]);
    assert!(said.matches("/month").count() >= 10, "{said}");
}

#[test]
#[cfg_attr(no_kubectl, ignore = "there is no kubectl; `make controlplane` builds it")]
fn public_kinds_of_manifests_become_ready_on_a_cluster() {
    let said = run(&["try"]);
    assert!(said.contains("every StatefulSet is ready"), "{said}");
    assert!(said.contains("the CronJob has run"), "{said}");
}
