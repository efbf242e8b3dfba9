//! Planes come and go, and nothing of them stays behind.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Waits for what another process does.
fn soon(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..1500 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{what} did not come true");
}

fn port_of(plane_url: &str) -> u16 {
    plane_url.rsplit(':').next().unwrap().parse().unwrap()
}

fn answers(port: u16) -> bool {
    std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
}

/// The process that holds the plane is killed in the hardest way, and so is the plane.
#[test]
#[cfg_attr(no_control_plane, ignore = "there is no control plane; `make controlplane` builds it")]
fn a_plane_ends_with_the_process_that_started_it() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_nap-controlplane"))
        .arg("api")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let kubeconfig = PathBuf::from(line.trim().strip_prefix("export KUBECONFIG=").unwrap());
    let text = std::fs::read_to_string(&kubeconfig).unwrap();
    let text = text.split("\"server\":\"").nth(1).unwrap();
    let port = port_of(text.split('"').next().unwrap());
    assert!(answers(port));
    child.kill().unwrap();
    child.wait().unwrap();
    soon("the server is gone", || !answers(port));
    soon("its folder is gone", || !kubeconfig.parent().unwrap().exists());
}
