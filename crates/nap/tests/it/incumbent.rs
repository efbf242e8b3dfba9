//! The incumbent's own Azure controller, on a cluster of `nap try`.
//!
//! It is built from its module; the emulated Azure is served to it over TLS, with the few parts
//! that nap never asks Azure for, and as a cluster in which AKS runs it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use nap_azure::arm::{HttpService, https_client};
use nap_clock::Clock;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tower::ServiceExt as _;

use crate::process::{Cluster, Process};

/// Version of the machines API of the SDK that the incumbent is built with, and the next one, which
/// the emulator has.
const API_VERSIONS: [&str; 2] = ["2026-04-02-preview", "2026-05-02-preview"];

/// An emulated Azure as Go programs accept it: over TLS.
pub struct SecureAzure {
    endpoint: String,
    certificate: PathBuf,
}

impl SecureAzure {
    /// Environment with which nap uses this Azure.
    pub fn environment(&self) -> [(&str, &str); 2] {
        let certificate = self.certificate.to_str().expect("text");
        [("NAP_ARM_ENDPOINT", &self.endpoint), ("SSL_CERT_FILE", certificate)]
    }

    /// Serves the emulator of a cluster until the test ends. Files are in `folder`.
    pub fn start(emulator: &str, folder: &Path) -> Self {
        let key = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a key");
        let certificate = folder.join("azure.pem");
        std::fs::write(&certificate, key.cert.pem()).expect("the folder is ours");
        let chain = vec![key.cert.der().clone()];
        let private = key.signing_key.serialize_der().try_into().expect("a private key");
        let provider = rustls::crypto::ring::default_provider();
        let config = rustls::ServerConfig::builder_with_provider(provider.into())
            .with_safe_default_protocol_versions()
            .expect("versions of TLS")
            .with_no_client_auth()
            .with_single_cert(chain, private)
            .expect("a certificate");
        let acceptor = TlsAcceptor::from(std::sync::Arc::new(config));
        let (sender, receiver) = std::sync::mpsc::channel();
        let emulator = emulator.to_owned();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
                let own = format!("https://{}", listener.local_addr().expect("bound"));
                sender.send(own.clone()).expect("the test waits");
                let service = https_client().expect("a client");
                let router = axum::Router::new().fallback(move |request: Request| {
                    answer(service.clone(), emulator.clone(), own.clone(), request)
                });
                axum::serve(Tls { listener, acceptor }, router).await.expect("serving");
            });
        });
        Self { endpoint: receiver.recv().expect("it starts"), certificate }
    }
}

/// A listener that speaks TLS.
struct Tls {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl axum::serve::Listener for Tls {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let Ok((stream, address)) = self.listener.accept().await else { continue };
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

/// The emulator's answer to a request, with links to `own`.
async fn answer(service: HttpService, emulator: String, own: String, request: Request) -> Response {
    let (mut head, body) = request.into_parts();
    let path = head.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
    if path.to_lowercase().contains("microsoft.resourcegraph") {
        // Resource Graph lists VMs and network interfaces, which machines do not show there.
        let none = json!({ "totalRecords": 0, "count": 0, "data": [], "resultTruncated": "false" });
        return ([(header::CONTENT_TYPE, "application/json")], none.to_string()).into_response();
    }
    let asks_for_token = path.starts_with("/identity?");
    let path = path.replace("/identity?", "/metadata/identity/oauth2/token?");
    // The endpoint of App Service has a version of its own.
    let path = if asks_for_token {
        path.replace("api-version=2019-08-01", "api-version=2018-02-01")
    } else {
        path.replace(API_VERSIONS[0], API_VERSIONS[1])
    };
    head.uri = format!("{emulator}{path}").parse().expect("a path");
    head.headers.remove(header::HOST);
    head.headers.insert("metadata", HeaderValue::from_static("true"));
    let body = body.collect().await.expect("a body").to_bytes();
    let sent = service.oneshot(http::Request::from_parts(head, Full::new(body))).await;
    let Ok(answer) = sent else { return StatusCode::BAD_GATEWAY.into_response() };
    let (mut head, body) = answer.into_parts();
    for value in head.headers.values_mut() {
        let text = value.to_str().unwrap_or_default().replace(&emulator, &own);
        *value = text.parse().expect("a header");
    }
    head.headers.remove(header::CONTENT_LENGTH);
    let mut body = String::from_utf8_lossy(&body).replace(&emulator, &own);
    let resource = path.split('?').next().unwrap_or_default().to_lowercase();
    if resource.rsplit('/').nth(1) == Some("managedclusters") {
        let mut cluster: Value = serde_json::from_str(&body).expect("a cluster");
        cluster["properties"]["nodeProvisioningProfile"] = json!({ "mode": "Auto" });
        body = cluster.to_string();
    }
    if asks_for_token && head.status.is_success() {
        let mut token: Value = serde_json::from_str(&body).expect("a token");
        let expires = Clock::wall().now().as_second() + 3600;
        token["expires_on"] = json!(expires.to_string());
        body = token.to_string();
    }
    Response::from_parts(head, Body::from(Bytes::from(body)))
}

/// Environment that the incumbent and nap have in common.
pub fn shared_environment(cluster: &Cluster) -> BTreeMap<String, String> {
    let mut env = cluster.environment();
    let network = format!(
        "/subscriptions/{}/resourceGroups/{}/providers/Microsoft.Network/virtualNetworks/\
         aks-vnet-12345678/subnets/aks-subnet",
        env["ARM_SUBSCRIPTION_ID"], env["AZURE_NODE_RESOURCE_GROUP"]
    );
    for (name, value) in [
        ("VNET_SUBNET_ID", network.as_str()),
        ("SIG_SUBSCRIPTION_ID", "10945678-1234-1234-1234-123456789012"),
        ("AKS_MACHINES_POOL_NAME", "aksmanagedap"),
        ("LEADER_ELECTION_NAMESPACE", "kube-system"),
        ("METRICS_PORT", "0"),
        ("HEALTH_PROBE_PORT", "0"),
    ] {
        env.insert(name.to_owned(), value.to_owned());
    }
    env
}

/// Starts the incumbent's controller on a cluster. Its log is in `folder`.
pub fn start(cluster: &Cluster, azure: &SecureAzure, folder: &Path) -> Process {
    let tools = nap_controlplane_build::incumbent_controller();
    let config = std::fs::read_to_string(&cluster.kubeconfig).expect("a kubeconfig");
    let config: Value = serde_json::from_str(&config).expect("it is JSON");
    let of_cluster = &config["clusters"][0]["cluster"];
    let server = of_cluster["server"].as_str().expect("an address");
    let (host, port) = server.trim_start_matches("https://").split_once(':').expect("a port");
    let cloud = folder.join("cloud.json");
    let content = json!({ "name": "AzureStackCloud", "tokenAudience": azure.endpoint,
        "resourceManagerEndpoint": azure.endpoint, "activeDirectoryEndpoint": azure.endpoint });
    std::fs::write(&cloud, content.to_string()).expect("the folder is ours");
    let log = std::fs::File::options().create(true).append(true).open(folder.join("incumbent.log"));
    let log = log.expect("the folder is ours");
    let mut command = Command::new(tools.expect("tests are ignored without it").join("controller"));
    command.env_clear().envs(shared_environment(cluster)).current_dir(folder);
    // It has the identity of an app service, whose address can be set.
    for name in ["AZURE_FEDERATED_TOKEN_FILE", "AZURE_CLIENT_ID", "AZURE_AUTHORITY_HOST"] {
        command.env_remove(name);
    }
    command.env("KUBECONFIG", &cluster.kubeconfig);
    command.env("KUBERNETES_SERVICE_HOST", host).env("KUBERNETES_SERVICE_PORT", port);
    command.env("AZURE_ENVIRONMENT_FILEPATH", cloud);
    command.env("SSL_CERT_FILE", &azure.certificate);
    command.env("AZURE_TOKEN_CREDENTIALS", "ManagedIdentityCredential");
    command.env("IDENTITY_ENDPOINT", format!("{}/identity", azure.endpoint));
    command.env("IDENTITY_HEADER", "header");
    command.env("PROVISION_MODE", "aksmachineapi").env("USE_SIG", "true");
    command
        .env("CLUSTER_ENDPOINT", server)
        .env("KUBELET_BOOTSTRAP_TOKEN", "abcdef.0123456789abcdef");
    command.env("SSH_PUBLIC_KEY", "ssh-ed25519 AAAA nap");
    command.env("VNET_GUID", "00000000-0000-0000-0000-00000000000a");
    command.env("ENABLE_AZURE_SDK_LOGGING", "false");
    let errors = log.try_clone().expect("a file");
    Process::start(command.stdin(Stdio::null()).stdout(log).stderr(errors))
}
