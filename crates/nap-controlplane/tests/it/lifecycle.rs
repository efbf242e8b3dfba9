//! Lifetime of a plane: it ends with its process, however that ends, and leaves nothing behind.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ObjectMeta, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};

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

    /// Process id of the API server.
    fn api_server(&self) -> String {
        let file = self.kubeconfig.with_file_name("kube-apiserver.pid");
        std::fs::read_to_string(file).unwrap().trim().to_owned()
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
        let api_server = self.api_server();
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        soon("the server is gone", || !signal("-0", &api_server));
        soon("its port is free", || std::net::TcpStream::connect(server).is_err());
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

/// Sends a signal to a process. Returns whether it exists.
fn signal(signal: &str, id: &str) -> bool {
    Command::new("kill").args([signal, id]).stderr(Stdio::null()).status().unwrap().success()
}

#[tokio::test]
#[cfg_attr(no_control_plane, ignore = "there is no control plane; `make controlplane` builds it")]
async fn api_server_that_dies_is_started_again_with_what_it_had() {
    let plane = Holder::start();
    let namespaces: Api<Namespace> = Api::all(plane.client().await);
    let shop = Namespace {
        metadata: ObjectMeta { name: Some("shop".to_owned()), ..ObjectMeta::default() },
        ..Namespace::default()
    };
    namespaces.create(&PostParams::default(), &shop).await.unwrap();
    let first = plane.api_server();
    assert!(signal("-KILL", &first));
    soon("another one is started", || plane.api_server() != first);
    for _ in 0..1500 {
        if namespaces.get("shop").await.is_ok() {
            return plane.kill();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it does not answer");
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
