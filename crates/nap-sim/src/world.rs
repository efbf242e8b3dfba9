//! A Kubernetes cluster and an Azure that fit in one process.
//!
//! The API server, the cluster's own controllers, the kubelets and the Azure emulator run around
//! the *unchanged* nap controllers, which reach Azure through the real provider. With
//! [`World::client`] everything stays in the process, without a socket, so that the same world runs
//! in real time, scaled, or on tokio's paused clock.

use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::PostParams;
use kube::{Api, Client};
use nap_apiserver::ApiServer;
use nap_azure::arm::{ManagedIdentity, http_service};
use nap_azure::embedded::EmbeddedCatalogue;
use nap_azure::{AzureConfig, AzureError, AzureProvider};
use nap_clock::Clock;
use nap_controllers::{Context, Settings};
use tokio::sync::mpsc;

use crate::azure::{Emulator, EmulatorConfig};
use crate::cluster;
use crate::machines::MachineEvent;
use crate::trace::{Trace, Traced};

/// The Kubernetes version that the world claims to be.
const KUBERNETES_VERSION: &str = "1.34.2";

/// How a world is made.
#[derive(Clone, Debug)]
pub struct WorldConfig {
    /// The Azure region whose sizes and prices are used.
    pub region: String,
    /// Where names, ids and delays come from.
    pub seed: u64,
    /// How many times faster than tokio's clock the world's clock runs.
    pub speed: u32,
    /// What the world's clock shows at the start.
    pub epoch: Timestamp,
}

/// Why a world could not be made or kept up.
#[derive(Debug, thiserror::Error)]
pub enum WorldError {
    /// The catalogue has no such region.
    #[error("there is no region `{region}` in the catalogue")]
    UnknownRegion {
        /// What was asked for.
        region: String,
        /// The names that look most like it.
        nearest: Vec<String>,
    },
    /// The emulator refused its settings.
    #[error("starting the Azure emulator: {0}")]
    Azure(#[from] AzureError),
    /// A request to the world's own API server failed.
    #[error("{doing}: {source}")]
    Kube {
        /// What was being done.
        doing: &'static str,
        /// Why it failed.
        source: kube::Error,
    },
    /// The cluster's components ran only once.
    #[error("the world already runs")]
    AlreadyRunning,
}

/// A cluster and its cloud. Must be made inside a tokio runtime.
pub struct World {
    server: ApiServer,
    azure: Emulator,
    clock: Clock,
    trace: Trace,
    azure_config: AzureConfig,
    settings: Settings,
    machines: Mutex<Option<mpsc::Receiver<MachineEvent>>>,
}

impl World {
    /// A world with nothing in it but the cluster itself.
    pub fn new(config: &WorldConfig) -> Result<Self, WorldError> {
        let catalogue = EmbeddedCatalogue::embedded();
        if catalogue.region(&config.region).is_err() {
            let nearest = catalogue.nearest_regions(&config.region);
            return Err(WorldError::UnknownRegion { region: config.region.clone(), nearest });
        }
        let clock = Clock::starting_at(config.epoch, config.speed);
        let mut emulator = EmulatorConfig::new(&config.region, config.seed, clock.clone());
        KUBERNETES_VERSION.clone_into(&mut emulator.kubernetes_version);
        emulator.any_subnet = true;
        let azure_config = emulator.azure_config();
        let (azure, machines) = Emulator::new(emulator)?;
        let now = {
            let clock = clock.clone();
            Arc::new(move || clock.now())
        };
        let git_version = format!("v{KUBERNETES_VERSION}");
        let server = ApiServer::new(nap_apiserver::Config { now, seed: config.seed, git_version });
        let trace = Trace::new(clock.clone());
        let machines = Mutex::new(Some(machines));
        let settings = Settings::default();
        Ok(Self { server, azure, clock, trace, azure_config, settings, machines })
    }

    /// The same world with other settings of nap.
    #[must_use]
    pub fn with_settings(self, settings: Settings) -> Self {
        Self { settings, ..self }
    }

    /// A client that reaches the API server inside the process.
    pub fn client(&self) -> Client {
        Client::new(Traced::new(self.server.clone(), self.trace.clone()), "default")
    }

    /// The API server, to be served over HTTP.
    pub fn server(&self) -> &ApiServer {
        &self.server
    }

    /// The emulated Azure.
    pub fn azure(&self) -> &Emulator {
        &self.azure
    }

    /// The world's clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Everything that was asked of the API server and of Azure so far, as one number.
    pub fn trace_hash(&self) -> u64 {
        self.trace.hash()
    }

    /// Installs nap's custom resource definitions.
    pub async fn install_crds(&self) -> Result<(), WorldError> {
        let api: Api<CustomResourceDefinition> = Api::all(self.client());
        for crd in nap_api::crds::all() {
            let created = api.create(&PostParams::default(), &crd).await;
            created.map_err(|source| WorldError::Kube {
                doing: "installing the definitions",
                source,
            })?;
        }
        Ok(())
    }

    /// The provider that reaches the emulator inside the process.
    pub fn provider(&self) -> AzureProvider {
        let service = http_service(Traced::new(self.azure.clone(), self.trace.clone()));
        let tokens = ManagedIdentity {
            service: service.clone(),
            clock: self.clock.clone(),
            endpoint: "http://169.254.169.254".to_owned(),
            client_id: None,
            resource: format!("{}/", self.azure_config.arm_endpoint),
        };
        AzureProvider::new(self.azure_config.clone(), self.clock.clone(), service, Arc::new(tokens))
    }

    /// What another process needs in its environment to reach the emulator at an address.
    pub fn azure_environment(&self, endpoint: &str) -> Vec<(&'static str, String)> {
        let config = &self.azure_config;
        vec![
            ("ARM_SUBSCRIPTION_ID", config.subscription_id.clone()),
            ("ARM_RESOURCE_GROUP", config.resource_group.clone()),
            ("AZURE_NODE_RESOURCE_GROUP", config.node_resource_group.clone()),
            ("CLUSTER_NAME", config.cluster_name.clone()),
            ("LOCATION", config.location.clone()),
            ("NAP_ARM_ENDPOINT", endpoint.to_owned()),
            ("NAP_PRICES_ENDPOINT", endpoint.to_owned()),
            ("AZURE_AUTHORITY_HOST", endpoint.to_owned()),
            ("AZURE_TENANT_ID", "00000000-0000-0000-0000-000000000002".to_owned()),
            ("AZURE_CLIENT_ID", "00000000-0000-0000-0000-000000000003".to_owned()),
        ]
    }

    /// Runs the cluster, with or without nap in it, for ever.
    pub async fn run(&self, with_controllers: bool) -> Result<(), WorldError> {
        let machines = self.machines.lock().unwrap_or_else(PoisonError::into_inner).take();
        let machines = machines.ok_or(WorldError::AlreadyRunning)?;
        let cluster = cluster::run(self.client(), self.clock.clone(), machines);
        let nap = async {
            if with_controllers {
                self.run_nap(std::future::pending()).await;
            } else {
                std::future::pending::<()>().await;
            }
        };
        tokio::join!(cluster, nap);
        Ok(())
    }

    /// Runs only nap, until `shutdown`. Can be called again afterwards: that is a restart.
    pub async fn run_nap(&self, shutdown: impl Future<Output = ()>) {
        let provider = Arc::new(self.provider());
        let context =
            Context::new(self.client(), provider, self.clock.clone(), self.settings.clone());
        nap_controllers::run(&context, shutdown).await;
    }
}
