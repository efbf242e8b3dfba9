//! A running control plane.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::ServiceAccount;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::json;

use crate::certificates::{Authority, Pem, signing_key};

/// Supervisor script: runs a component, and starts it again a second after it ended, until standard
/// input ends, which happens when the parent stops it or dies. Then kills the component by its
/// process id and removes the plane's folder. Ignores signals from a terminal, because they reach
/// the parent as well.
const SUPERVISOR: &str = r#"
trap '' INT TERM HUP
folder=$1 name=$2; shift 2
(
    trap 'kill -9 $! 2>/dev/null; wait $! 2>/dev/null; exit 0' USR1
    while :; do
        "$@" >>"$folder/$name.log" 2>&1 &
        echo $! >"$folder/$name.pid"
        wait $!
        sleep 1
    done
) 2>/dev/null &
cat >/dev/null
kill -USR1 $!
wait $!
rm -rf "$folder" 2>/dev/null
exit 0
"#;

/// Policy of the audit log: who did what to which object, once it is answered.
const AUDIT_POLICY: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{ level: Metadata }]\n\
                            omitStages: [RequestReceived, ResponseStarted, Panic]\n";

/// Maximum time until a plane is ready: seconds on an idle computer, longer under load.
const PATIENCE: Duration = Duration::from_mins(2);
/// Maximum number of starts, if another process takes one of the ports first.
const ATTEMPTS: u32 = 3;

/// Components of a control plane.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Parts {
    /// etcd and the API server: definitions, objects and access rules work, but pods cannot be
    /// created.
    Api,
    /// etcd, the API server and the scheduler, for fake nodes and pods. Admission that needs
    /// controllers is off: pods need no service account, new nodes are not tainted, volumes can be
    /// deleted at once.
    Scheduler,
    /// All components, including controllers and scheduler.
    All,
}

/// Failure to start a plane.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The binaries are missing.
    #[error("there is no control plane to start: {0}")]
    Missing(String),
    /// A file or process could not be created.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// A certificate could not be created.
    #[error("certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// The kubeconfig could not be read.
    #[error("kubeconfig: {0}")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    /// The client could not be created.
    #[error("client: {0}")]
    Client(#[from] kube::Error),
    /// A component did not become ready.
    #[error("the control plane was not ready after {} s; the end of its logs:\n{logs}", PATIENCE.as_secs())]
    NotReady {
        /// The last lines of every component's log.
        logs: String,
    },
}

/// A control plane on loopback, with its own ports, certificates and data; stopped on drop. A
/// component that ends is started again, as the kubelet does with a static pod; its process id is
/// in `<component>.pid` beside the kubeconfig.
#[derive(Debug)]
pub struct Plane {
    folder: PathBuf,
    binaries: PathBuf,
    supervisors: Vec<Child>,
    url: String,
    /// Health ports of the components.
    health: Vec<u16>,
}

impl Plane {
    /// Starts a plane and waits until it is ready.
    pub async fn start(parts: Parts) -> Result<Self, Error> {
        Self::start_as(parts, false).await
    }

    /// Starts a plane whose API server writes an [audit log](Self::audit_log) of every request.
    pub async fn start_audited(parts: Parts) -> Result<Self, Error> {
        Self::start_as(parts, true).await
    }

    async fn start_as(parts: Parts, audited: bool) -> Result<Self, Error> {
        let binaries = nap_controlplane_build::binaries().map_err(Error::Missing)?;
        if parts != Parts::Api {
            nap_controlplane_build::runs_pods(&binaries).map_err(Error::Missing)?;
        }
        let mut attempt = 1;
        loop {
            let plane = Self::launch(parts, audited, binaries.clone())?;
            match plane.ready(parts).await {
                Err(Error::NotReady { logs })
                    if attempt < ATTEMPTS && logs.contains(PORT_TAKEN) =>
                {
                    attempt += 1;
                }
                Err(error) => return Err(error),
                Ok(()) => return Ok(plane),
            }
        }
    }

    /// URL of the API server.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Path of the administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.join("admin.kubeconfig")
    }

    /// A client with administrator rights. Each tokio runtime needs its own, because connections
    /// belong to a runtime.
    pub async fn client(&self) -> Result<Client, Error> {
        let kubeconfig = Kubeconfig::read_from(self.kubeconfig())?;
        let config =
            Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        Ok(Client::try_from(config)?)
    }

    /// The plane's kubectl, with the administrator's kubeconfig.
    pub fn kubectl(&self) -> Command {
        let mut command = Command::new(self.binaries.join("kubectl"));
        command.arg("--kubeconfig").arg(self.kubeconfig()).env("HOME", &self.folder);
        command
    }

    /// Path of the audit log: one JSON object per answered request. It exists if the plane was
    /// started with one.
    pub fn audit_log(&self) -> PathBuf {
        self.folder.join("audit.json")
    }

    fn launch(parts: Parts, audited: bool, binaries: PathBuf) -> Result<Self, Error> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let folder =
            std::env::temp_dir().join(format!("nap-controlplane-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let [etcd, etcd_peer, server, manager, scheduler] = free_ports()?;
        let url = format!("https://127.0.0.1:{server}");
        let etcd_url = format!("http://127.0.0.1:{etcd}");
        let mut plane = Self { folder, binaries, supervisors: Vec::new(), url, health: Vec::new() };
        plane.write_secrets()?;
        let path = |name: &str| plane.folder.join(name).display().to_string();

        let peers = format!("http://127.0.0.1:{etcd_peer}");
        let etcd = vec![
            format!("--data-dir={}", path("etcd")),
            format!("--listen-client-urls={etcd_url}"),
            format!("--advertise-client-urls={etcd_url}"),
            format!("--listen-peer-urls={peers}"),
            format!("--initial-advertise-peer-urls={peers}"),
            format!("--initial-cluster=default={peers}"),
            "--unsafe-no-fsync=true".to_owned(),
            "--log-level=warn".to_owned(),
        ];
        let mut apiserver = vec![
            format!("--etcd-servers={etcd_url}"),
            "--bind-address=127.0.0.1".to_owned(),
            "--advertise-address=127.0.0.1".to_owned(),
            format!("--secure-port={server}"),
            "--endpoint-reconciler-type=none".to_owned(),
            "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
            format!("--tls-cert-file={}", path("server.crt")),
            format!("--tls-private-key-file={}", path("server.key")),
            format!("--client-ca-file={}", path("authority.crt")),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={}", path("accounts.pub")),
            format!("--service-account-signing-key-file={}", path("accounts.key")),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--allow-privileged=true".to_owned(),
        ];
        if audited {
            std::fs::write(plane.folder.join("audit.policy"), AUDIT_POLICY)?;
            apiserver.push(format!("--audit-policy-file={}", path("audit.policy")));
            apiserver.push(format!("--audit-log-path={}", path("audit.json")));
        }
        if parts == Parts::Scheduler {
            let waiting = "ServiceAccount,TaintNodesByCondition,StorageObjectInUseProtection";
            apiserver.push(format!("--disable-admission-plugins={waiting}"));
        }
        let manager_arguments = vec![
            format!("--kubeconfig={}", path("manager.kubeconfig")),
            "--leader-elect=false".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={manager}"),
            "--kube-api-qps=500".to_owned(),
            "--kube-api-burst=1000".to_owned(),
            "--use-service-account-credentials=true".to_owned(),
            format!("--service-account-private-key-file={}", path("accounts.key")),
            format!("--root-ca-file={}", path("authority.crt")),
            format!("--cluster-signing-cert-file={}", path("authority.crt")),
            format!("--cluster-signing-key-file={}", path("authority.key")),
            "--controllers=*".to_owned(),
        ];
        let scheduler_arguments = vec![
            format!("--config={}", path("scheduler.config")),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={scheduler}"),
        ];
        plane.run("etcd", &etcd)?;
        plane.run("kube-apiserver", &apiserver)?;
        if parts == Parts::All {
            plane.run("kube-controller-manager", &manager_arguments)?;
            plane.health.push(manager);
        }
        if parts != Parts::Api {
            plane.run("kube-scheduler", &scheduler_arguments)?;
            plane.health.push(scheduler);
        }
        Ok(plane)
    }

    fn write_secrets(&self) -> Result<(), Error> {
        let authority = Authority::new()?;
        let (private, public) = signing_key()?;
        let server = authority.server()?;
        for (name, text) in [
            ("authority.crt", &authority.pem.certificate),
            ("authority.key", &authority.pem.key),
            ("server.crt", &server.certificate),
            ("server.key", &server.key),
            ("accounts.key", &private),
            ("accounts.pub", &public),
        ] {
            std::fs::write(self.folder.join(name), text)?;
        }
        for (name, user, group) in [
            ("admin", "nap-test-admin", Some("system:masters")),
            ("manager", "system:kube-controller-manager", None),
            ("scheduler", "system:kube-scheduler", None),
        ] {
            self.write_kubeconfig(name, &authority.client(user, group)?)?;
        }
        // Unschedulable pods are retried after one second instead of ten.
        let scheduler = json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
            "clientConnection": { "kubeconfig": self.folder.join("scheduler.kubeconfig"), "qps": 500, "burst": 1000 },
            "leaderElection": { "leaderElect": false },
            "podInitialBackoffSeconds": 1, "podMaxBackoffSeconds": 1,
        });
        std::fs::write(self.folder.join("scheduler.config"), scheduler.to_string())?;
        Ok(())
    }

    fn write_kubeconfig(&self, name: &str, client: &Pem) -> Result<(), Error> {
        let path = |file: String| self.folder.join(file).display().to_string();
        let (certificate, key) = (format!("{name}.crt"), format!("{name}.key"));
        std::fs::write(self.folder.join(&certificate), &client.certificate)?;
        std::fs::write(self.folder.join(&key), &client.key)?;
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "plane",
            "clusters": [{ "name": "plane", "cluster": {
                "server": self.url, "certificate-authority": path("authority.crt".to_owned()),
            } }],
            "users": [{ "name": name, "user": { "client-certificate": path(certificate), "client-key": path(key) } }],
            "contexts": [{ "name": "plane", "context": { "cluster": "plane", "user": name } }],
        });
        std::fs::write(self.folder.join(format!("{name}.kubeconfig")), kubeconfig.to_string())?;
        Ok(())
    }

    fn run(&mut self, name: &str, arguments: &[String]) -> Result<(), Error> {
        let supervisor = Command::new("sh")
            .args(["-c", SUPERVISOR, "sh"])
            .arg(&self.folder)
            .arg(name)
            .arg(self.binaries.join(name))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        self.supervisors.push(supervisor);
        Ok(())
    }

    async fn ready(&self, parts: Parts) -> Result<(), Error> {
        let client = self.client().await?;
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
        let started = tokio::time::Instant::now();
        loop {
            let answers = client.request_text(readyz()).await.is_ok();
            let pods = parts != Parts::All
                || accounts.get_opt("default").await.is_ok_and(|account| account.is_some());
            let serving = |port: &u16| TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).is_ok();
            if answers && pods && self.health.iter().all(serving) {
                return Ok(());
            }
            let logs = self.logs();
            if started.elapsed() > PATIENCE || logs.contains(PORT_TAKEN) {
                return Err(Error::NotReady { logs });
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The last lines of every component's log.
    fn logs(&self) -> String {
        let mut all = String::new();
        let Ok(entries) = std::fs::read_dir(&self.folder) else { return all };
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.extension().is_some_and(|extension| extension == "log") {
                let text = std::fs::read_to_string(&path).unwrap_or_default();
                let lines: Vec<&str> = text.lines().collect();
                let last = lines[lines.len().saturating_sub(15)..].join("\n");
                all = format!("{all}--- {}\n{last}\n", path.display());
            }
        }
        all
    }
}

const PORT_TAKEN: &str = "address already in use";

fn readyz() -> http::Request<Vec<u8>> {
    http::Request::get("/readyz").body(Vec::new()).expect("a request with a constant path")
}

/// Free ports.
fn free_ports<const N: usize>() -> Result<[u16; N], Error> {
    // All are held until the last is found, so that they are distinct.
    let mut held = Vec::with_capacity(N);
    let mut ports = [0; N];
    for port in &mut ports {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        *port = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(ports)
}

impl Drop for Plane {
    fn drop(&mut self) {
        for supervisor in &mut self.supervisors {
            drop(supervisor.stdin.take());
        }
        for supervisor in &mut self.supervisors {
            supervisor.wait().ok();
        }
    }
}
