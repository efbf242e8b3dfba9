//! Sets the cfg `no_python` where Python cannot make environments, so that the tests with Azure's
//! Python SDK are ignored and reported as ignored.

use std::process::{Command, Stdio};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=PATH");
    println!("cargo::rustc-check-cfg=cfg(no_python)");
    let mut command = Command::new("python3");
    command.args(["-c", "import venv, ensurepip"]).stdout(Stdio::null()).stderr(Stdio::null());
    if !command.status().is_ok_and(|status| status.success()) {
        println!("cargo::rustc-cfg=no_python");
    }
}
