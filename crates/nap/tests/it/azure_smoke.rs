//! `nap azure smoke` as a process: no machine is left, whatever happens.

use std::io::{BufRead, BufReader, Read as _};
use std::process::{Command, Output, Stdio};

use nap_sim::azure::SUBSCRIPTION;

use crate::azure_server::AzureServer;
use crate::process::{Cluster, nap, text};

/// Most looks for a machine, 5 ms apart.
const MAX_POLLS: u32 = 12_000;

fn read(path: &std::path::Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn a_machine_is_created_joins_and_is_deleted() {
    let cluster = Cluster::start(&["--no-controllers"]);
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("smoke-good.txt");
    let output = nap(&["azure", "smoke", "--transcript", path.to_str().unwrap()])
        .envs(cluster.environment())
        .output()
        .unwrap();
    let transcript = read(&path);
    assert!(output.status.success(), "{transcript}{}", text(&output.stderr));
    assert!(cluster.vms().is_empty());
    let mut steps = transcript.lines();
    for step in [
        "check pass     agent-pool",
        "is to be created",
        "created: Standard_D2",
        "the machine is provisioned",
        "joined",
        "the node is ready, kubelet v",
        "the machine is gone",
        "the node is gone",
        "result: passed",
    ] {
        assert!(steps.any(|line| line.contains(step)), "`{step}` in its place\n{transcript}");
    }
    for secret in [SUBSCRIPTION, "MC_nap_nap", "127.0.0.1", "emulated-", "federated-token"] {
        assert!(!transcript.contains(secret), "{secret}\n{transcript}");
    }
    let farewell = cluster.stop();
    assert!(farewell.contains("1 VM(s) created, 0 left"), "{farewell}");
}

#[test]
fn a_reader_that_has_gone_keeps_no_machine() {
    let azure = AzureServer::start("smoke-closed", |_| {});
    let path = azure.path("transcript.txt");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = azure.nap_azure(&["smoke", "--transcript", path.to_str().unwrap()]);
    let output = command.stdout(writer).output().unwrap();
    let transcript = read(&path);
    assert!(transcript.contains("the machine is gone"), "{transcript}{}", text(&output.stderr));
    assert!(transcript.ends_with("result: passed\n"), "{transcript}");
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// Starts a smoke run, sends SIGINT when a machine is announced or, with `exists`, when it exists,
/// and waits for the end.
fn interrupted(azure: &AzureServer, exists: bool) -> (Output, String) {
    let line = "is to be created";
    let path = azure.path("transcript.txt");
    let mut child = azure
        .nap_azure(&["smoke", "--transcript", path.to_str().unwrap()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    loop {
        let mut text = String::new();
        assert!(lines.read_line(&mut text).unwrap() > 0, "it ended before `{line}`");
        if text.contains(line) {
            break;
        }
    }
    let is_there = || !azure.emulator.machines().is_empty();
    if exists {
        for _ in 0..MAX_POLLS {
            if is_there() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert!(is_there(), "no machine was created");
    }
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    (output, read(&path))
}

#[test]
fn an_interrupted_run_leaves_no_machine() {
    let azure = AzureServer::start("smoke-interrupted", |config| {
        // The creation never ends by itself.
        config.faults.stuck_creates = true;
    });
    let (output, transcript) = interrupted(&azure, true);
    assert_eq!(output.status.code(), Some(1), "{transcript}");
    assert_eq!(azure.emulator.machines(), []);
    for line in ["failed: interrupted", "the machine is gone", "result: failed"] {
        assert!(transcript.contains(line), "{line}\n{transcript}");
    }
    assert!(text(&output.stderr).contains("error: interrupted\nhint: the machine was deleted"));
}

#[test]
fn a_run_that_is_interrupted_at_once_leaves_no_machine() {
    let azure = AzureServer::start("smoke-at-once", |_| {});
    let (output, transcript) = interrupted(&azure, false);
    assert_eq!(output.status.code(), Some(1), "{transcript}");
    assert_eq!(azure.emulator.machines(), [], "{transcript}");
    assert!(transcript.ends_with("result: failed\n"), "{transcript}");
}

#[test]
fn a_failed_creation_leaves_no_machine() {
    let azure = AzureServer::start("smoke-failed", |config| {
        config.sizes = ["Standard_D2s_v5".to_owned()].into();
        for zone in ["0", "eastus-1", "eastus-2", "eastus-3"] {
            let place = ("Standard_D2s_v5".to_owned(), zone.to_owned());
            config.faults.capacity_errors.insert(place);
        }
    });
    let path = azure.path("transcript.txt");
    let arguments = ["smoke", "--transcript", path.to_str().unwrap()];
    let output = azure.nap_azure(&arguments).output().unwrap();
    let transcript = read(&path);
    assert_eq!(output.status.code(), Some(1), "{transcript}");
    assert!(transcript.contains("failed: create machine nap-smoke-"), "{transcript}");
    assert!(transcript.contains("AllocationFailed"), "{transcript}");
    assert_eq!(azure.emulator.machines(), []);
}

#[test]
fn a_cluster_that_fails_the_check_gets_no_machine_without_force() {
    let azure = AzureServer::start("smoke-refused", |config| {
        config.surroundings.registrations =
            [("Microsoft.Compute".to_owned(), "NotRegistered".to_owned())].into();
    });
    let path = azure.path("transcript.txt");
    let arguments = ["smoke", "--transcript", path.to_str().unwrap()];
    let output = azure.nap_azure(&arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    let expected = "error: 1 prerequisite(s) not met: no machine was created\nhint: ";
    assert!(error.starts_with(expected), "{error}");
    assert!(read(&path).contains("check FAIL     provider-registration"));
    assert!(azure.emulator.bill().is_empty());
    let forced = azure.nap_azure(&arguments).arg("--force").output().unwrap();
    assert!(forced.status.success(), "{}", text(&forced.stderr));
    assert_eq!((azure.emulator.bill().len(), azure.emulator.machines().len()), (1, 0));
}
