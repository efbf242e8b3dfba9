//! Bad input gets one clear line and a hint, and changes nothing.

use crate::process::{nap, output, text};

fn refused(arguments: &[&str]) -> String {
    let output = output(arguments);
    assert!(!output.status.success(), "nap {arguments:?} succeeded");
    let error = text(&output.stderr);
    assert!(error.starts_with("error: "), "{error}");
    assert!(error.contains("\nhint: "), "{error}");
    assert_eq!(error.trim_end().lines().count(), 2, "{error}");
    error
}

#[test]
fn an_unknown_region_names_the_nearest() {
    for command in ["demo", "try", "sim", "bench"] {
        let error = refused(&[command, "--region", "eastsu"]);
        assert!(error.contains("`eastsu`") && error.contains("eastus"), "{error}");
    }
}

#[test]
fn a_port_that_is_taken_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let error = refused(&["try", "--listen", &address]);
    assert!(error.contains(&address) && error.contains("--listen"), "{error}");
}

#[test]
fn the_open_cluster_listens_on_loopback_only() {
    let error = refused(&["try", "--listen", "0.0.0.0:0"]);
    assert!(error.contains("loopback"), "{error}");
}

#[test]
fn without_a_cluster_the_missing_file_is_named() {
    for command in [&["run"][..], &["crds", "install"]] {
        let error = refused(&[command, &["--kubeconfig", "does/not/exist"]].concat());
        assert!(error.contains("no cluster to run on"), "{error}");
    }
}

#[test]
fn help_and_version_help() {
    let help = text(&output(&["--help"]).stdout);
    for command in
        ["demo", "try", "run", "plan", "explain", "replay", "sim", "bench", "crds", "version"]
    {
        assert!(help.contains(command), "{help}");
    }
    assert!(text(&nap(&["version"]).output().unwrap().stdout).starts_with("nap "));
}
