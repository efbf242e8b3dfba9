//! Lifetime of a plane: it ends with its process, however that ends, and leaves nothing behind.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

/// A process that holds a plane.
pub(crate) struct Holder {
    process: Child,
    kubeconfig: PathBuf,
}

impl Holder {
    pub(crate) fn start() -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_nap-controlplane"))
            .arg("api")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let kubeconfig = PathBuf::from(line.trim().strip_prefix("export KUBECONFIG=").unwrap());
        Self { process, kubeconfig }
    }

    pub(crate) async fn client(&self) -> Client {
        let kubeconfig = Kubeconfig::read_from(&self.kubeconfig).unwrap();
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
            .await
            .unwrap();
        Client::try_from(config).unwrap()
    }

    /// Sends SIGKILL to the process; the plane and its folder must be gone soon.
    pub(crate) fn kill(mut self) {
        let text = std::fs::read_to_string(&self.kubeconfig).unwrap();
        let server = text
            .split("\"server\":\"https://")
            .nth(1)
            .and_then(|rest| rest.split('"').next())
            .unwrap();
        assert!(std::net::TcpStream::connect(server).is_ok());
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        soon("the server is gone", || std::net::TcpStream::connect(server).is_err());
        soon("its folder is gone", || !self.kubeconfig.parent().unwrap().exists());
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // Fails if the process has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Waits until `holds`.
fn soon(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..1500 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{what} did not come true");
}
