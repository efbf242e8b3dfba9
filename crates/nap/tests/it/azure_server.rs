//! The Azure emulator over TCP in the process of a test, and `nap azure` against it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use nap_clock::Clock;
use nap_sim::azure::{CLUSTER_IDENTITY, Emulator, EmulatorConfig, RoleAssignment, SUBSCRIPTION};
use serde_json::{Value, json};

use crate::process::nap;

/// Speed of the emulator's delays, which commands take from `NAP_SPEED`.
const SPEED: u32 = 30;

/// An emulator that listens on loopback until the test ends.
pub struct AzureServer {
    pub emulator: Emulator,
    endpoint: String,
    folder: PathBuf,
}

impl AzureServer {
    /// Starts an emulator. `name` tells the files of tests apart.
    pub fn start(name: &str, change: impl FnOnce(&mut EmulatorConfig)) -> Self {
        Self::start_as(name, "eastus", change)
    }

    /// Starts an emulator of eastus that calls itself by another name, under which the price API
    /// has no prices.
    pub fn start_as(
        name: &str,
        region: &'static str,
        change: impl FnOnce(&mut EmulatorConfig),
    ) -> Self {
        let clock = Clock::starting_at(Clock::wall().now(), SPEED);
        let mut config = EmulatorConfig::new("eastus", 1, clock);
        change(&mut config);
        config.token_audiences.insert("https://aud.example".to_owned());
        let (emulator, events) = Emulator::new(config).expect("a region");
        let (sender, receiver) = std::sync::mpsc::channel();
        let served = emulator.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async move {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
                let listener = listener.expect("loopback");
                let _ = sender.send(listener.local_addr().expect("bound"));
                // Dropped events would stop the emulator's VMs from being announced.
                let _events = events;
                let router = axum::Router::new().fallback_service(served);
                let rename = move |request, next| renamed(region, request, next);
                let router = router.layer(axum::middleware::from_fn(rename));
                axum::serve(listener, router).await.expect("serving");
            });
        });
        let address = receiver.recv().expect("the server starts");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("azure-{name}"));
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join("token"), "federated-token").expect("the folder is ours");
        Self { emulator, endpoint: format!("http://{address}"), folder }
    }

    /// A path in the folder of the test.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Installs an Azure CLI that knows only its version.
    pub fn install_cli(&self, version: &str, extension: &str) {
        use std::os::unix::fs::PermissionsExt as _;
        let bin = self.path("bin");
        std::fs::create_dir_all(&bin).expect("a folder");
        let versions = json!({ "azure-cli": version, "extensions": { "aks-preview": extension } });
        let az = bin.join("az");
        std::fs::write(&az, format!("#!/bin/sh\necho '{versions}'\n")).expect("a file");
        std::fs::set_permissions(&az, std::fs::Permissions::from_mode(0o755)).expect("ours");
    }

    /// `nap azure` with these arguments, in the environment of this Azure.
    pub fn nap_azure(&self, arguments: &[&str]) -> Command {
        self.nap(&[&["azure"], arguments].concat())
    }

    /// `nap` with these arguments, in the environment of this Azure.
    pub fn nap(&self, arguments: &[&str]) -> Command {
        let mut command = nap(arguments);
        command.envs(self.environment());
        command
    }

    /// Environment file of a cloud whose ARM and Entra are this Azure.
    pub fn cloud_file(&self) -> PathBuf {
        let file = self.path("cloud.json");
        let content = json!({ "name": "AzureStackCloud", "tokenAudience": "https://aud.example/",
            "resourceManagerEndpoint": self.endpoint, "activeDirectoryEndpoint": self.endpoint });
        std::fs::write(&file, content.to_string()).expect("the folder is ours");
        file
    }

    /// Environment of commands.
    fn environment(&self) -> BTreeMap<&'static str, String> {
        let file = |name: &str| self.path(name).to_str().expect("text").to_owned();
        let mut all: BTreeMap<_, _> =
            self.emulator.config().environment(&self.endpoint).into_iter().collect();
        all.insert("AZURE_FEDERATED_TOKEN_FILE", file("token"));
        all.insert("NAP_SPEED", SPEED.to_string());
        all.insert("PATH", file("bin"));
        all
    }
}

/// Replaces the name of a region in requests by `eastus`, except in those for prices, and back in
/// answers.
async fn renamed(
    region: &str,
    mut request: axum::extract::Request,
    next: axum::middleware::Next,
) -> axum::response::Response {
    if region == "eastus" {
        return next.run(request).await;
    }
    let uri = request.uri().to_string();
    if !uri.contains("/retail/") {
        *request.uri_mut() = uri.replace(region, "eastus").parse().expect("a URI");
    }
    let (parts, body) = next.run(request).await.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.expect("an answer in memory");
    let text = String::from_utf8_lossy(&body).replace("eastus", region);
    let mut response = axum::response::Response::new(axum::body::Body::from(text));
    *response.status_mut() = parts.status;
    response
}

/// ARM id of a resource of the network.
pub fn network_id(path: &str) -> String {
    format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/net/providers/Microsoft.Network/{path}")
}

/// Puts the cluster into a virtual network of the user's, with a security group at its subnets.
pub fn custom_network(config: &mut EmulatorConfig) {
    let nodes = network_id("virtualNetworks/v/subnets/nodes");
    let api_server = network_id("virtualNetworks/v/subnets/apiserver");
    let group = network_id("networkSecurityGroups/g");
    let surroundings = &mut config.surroundings;
    for pool in surroundings.agent_pools.values_mut() {
        pool["vnetSubnetID"] = json!(nodes);
    }
    surroundings.cluster["properties"]["apiServerAccessProfile"] =
        json!({ "subnetId": api_server, "enableVnetIntegration": true });
    let delegation = json!({ "name": "aks",
        "properties": { "serviceName": "Microsoft.ContainerService/managedClusters" } });
    surroundings.resources = BTreeMap::from([
        (nodes, json!({ "addressPrefix": "10.1.0.0/24", "networkSecurityGroup": { "id": group } })),
        (
            api_server,
            json!({ "addressPrefix": "10.2.0.0/28", "delegations": [delegation],
                "networkSecurityGroup": { "id": group } }),
        ),
        (group, json!({ "securityRules": [], "defaultSecurityRules": [] })),
    ]);
    surroundings.role_assignments = vec![RoleAssignment {
        scope: network_id("virtualNetworks/v"),
        principal: CLUSTER_IDENTITY.to_owned(),
        role: "Network Contributor",
    }];
}

/// A rule of a security group that denies inbound TCP traffic to a port.
pub fn deny_port(port: u16) -> Value {
    json!({ "name": "no", "properties": {
        "priority": 200, "direction": "Inbound", "access": "Deny", "protocol": "Tcp",
        "sourceAddressPrefix": "*", "sourcePortRange": "*",
        "destinationAddressPrefix": "*", "destinationPortRange": port.to_string() } })
}
