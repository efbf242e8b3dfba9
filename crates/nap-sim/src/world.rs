//! The whole world: API server, cluster components, kubelets, Azure emulator and nap.
//!
//! The nap controllers are the production ones and reach the emulator through the real provider.
//! [`World::client`] needs no socket, so the same world runs in real time, accelerated, or on
//! tokio's paused clock.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::PostParams;
use kube::{Api, Client};
use nap_apiserver::ApiServer;
use nap_azure::arm::{HttpService, ManagedIdentity, http_service};
use nap_azure::embedded::EmbeddedCatalogue;
use nap_azure::{AzureConfig, AzureError, AzureProvider};
use nap_clock::Clock;
use nap_controllers::{Context, Settings};
use nap_kubelets::{Heartbeats, VmEvent};
use tokio::sync::mpsc;

use crate::azure::{Emulator, EmulatorConfig};
use crate::cluster::{self, ForUsers};
use crate::faults::{Faults, Faulty};
use crate::fixed_nodes;
use crate::invariants::{Guarded, Invariants};
use crate::trace::{Trace, Traced};

/// Kubernetes version of the API server and of AKS.
const KUBERNETES_VERSION: &str = "1.34.2";

/// Parameters of a world.
#[derive(Clone, Debug)]
pub struct WorldConfig {
    /// Azure region of the VM sizes and prices.
    pub region: String,
    /// Seed of names, ids and delays.
    pub seed: u64,
    /// Speed of the world's clock relative to tokio's.
    pub speed: u32,
    /// Time of the world's clock at the start.
    pub epoch: Timestamp,
    /// VM sizes that the region sells; empty for all of the catalogue.
    pub sizes: BTreeSet<String>,
    /// Whether the region still sells sizes that Azure has retired.
    pub retired_sizes: bool,
    /// Factor on the delays of VMs.
    pub vm_delays: f64,
    /// Nodes of a fixed pool, which nap does not manage.
    pub system_nodes: u32,
}

/// Failure to create or run a world.
#[derive(Debug, thiserror::Error)]
pub enum WorldError {
    /// The catalogue has no such region.
    #[error("there is no region `{region}` in the catalogue")]
    UnknownRegion {
        /// The requested region.
        region: String,
        /// The known regions with the most similar names.
        nearest: Vec<String>,
    },
    /// The emulator could not start.
    #[error("starting the Azure emulator: {0}")]
    Azure(#[from] AzureError),
    /// A request to the world's own API server failed.
    #[error("{doing}: {source}")]
    Kube {
        /// The action, as a gerund.
        doing: &'static str,
        /// The client's error.
        source: kube::Error,
    },
    /// The API server refused an object that every AKS cluster has.
    #[error("providing what AKS installs: {0}")]
    Provide(String),
    /// [`World::run`] was called a second time.
    #[error("the world already runs")]
    AlreadyRunning,
}

/// A cluster and its cloud. Must be created inside a tokio runtime.
pub struct World {
    server: ApiServer,
    azure: Emulator,
    clock: Clock,
    trace: Trace,
    invariants: Invariants,
    azure_config: AzureConfig,
    settings: Settings,
    machines: Mutex<Option<mpsc::Receiver<VmEvent>>>,
    fixed: Vec<VmEvent>,
    for_users: ForUsers,
}

impl World {
    /// A world without nodes, pods and custom resource definitions.
    pub fn new(config: &WorldConfig) -> Result<Self, WorldError> {
        let catalogue = EmbeddedCatalogue::embedded();
        if catalogue.region(&config.region).is_err() {
            let nearest = catalogue.nearest_regions(&config.region);
            return Err(WorldError::UnknownRegion { region: config.region.clone(), nearest });
        }
        let clock = Clock::starting_at(config.epoch, config.speed);
        let mut emulator = EmulatorConfig::new(&config.region, config.seed, clock.clone())
            .with_vm_delays(config.vm_delays);
        KUBERNETES_VERSION.clone_into(&mut emulator.kubernetes_version);
        emulator.any_subnet = true;
        emulator.sizes.clone_from(&config.sizes);
        emulator.retired_sizes = config.retired_sizes;
        let azure_config = emulator.azure_config();
        let (azure, machines) = Emulator::new(emulator)?;
        let git_version = format!("v{KUBERNETES_VERSION}");
        let (system_nodes, region) = (config.system_nodes, config.region.clone());
        let config = nap_apiserver::Config { clock: clock.clone(), seed: config.seed, git_version };
        let server = ApiServer::new(config);
        for class in cluster::storage_classes() {
            server.provide(class).map_err(WorldError::Provide)?;
        }
        let invariants = Invariants::new(clock.clone(), azure.clone());
        let observing = invariants.clone();
        server.observe(move |change| observing.observe(change));
        let fixed = fixed_nodes::machines(system_nodes, &region);
        let trace = Trace::new(clock.clone());
        let machines = Mutex::new(Some(machines));
        let settings = Settings::default();
        let for_users = ForUsers::default();
        Ok(Self {
            server,
            azure,
            clock,
            trace,
            invariants,
            azure_config,
            settings,
            machines,
            fixed,
            for_users,
        })
    }

    /// Lets nap mark the estimates among the prices of the emulated region. Without it the prices
    /// count as Azure's own.
    #[must_use]
    pub fn with_marked_estimates(mut self) -> Self {
        self.azure_config.served_estimates = self.azure.price_estimates();
        self
    }

    /// Replaces the settings of the nap controllers.
    #[must_use]
    pub fn with_settings(self, settings: Settings) -> Self {
        Self { settings, ..self }
    }

    /// Lets the kubelets keep their Leases and update their Nodes at these intervals.
    #[must_use]
    pub fn with_heartbeats(self, heartbeats: Heartbeats) -> Self {
        let for_users = ForUsers { heartbeats: Some(heartbeats), ..self.for_users };
        Self { for_users, ..self }
    }

    /// Lets the workload controllers publish what they do as events.
    #[must_use]
    pub fn with_workload_events(self) -> Self {
        let for_users = ForUsers { workload_events: true, ..self.for_users };
        Self { for_users, ..self }
    }

    /// A client of the in-process API server; its requests are traced.
    pub fn client(&self) -> Client {
        Client::new(Traced::new(self.server.clone(), self.trace.clone()), "default")
    }

    /// The API server, for serving it over HTTP.
    pub fn server(&self) -> &ApiServer {
        &self.server
    }

    /// The Azure emulator.
    pub fn azure(&self) -> &Emulator {
        &self.azure
    }

    /// The world's clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Hash of all requests to the API server and to Azure so far.
    pub fn trace_hash(&self) -> u64 {
        self.trace.hash()
    }

    /// Violations of what must hold at every instant, one line each: budgets and windows of
    /// NodePools, pods that end against their budgets or lose their node, moves that save nothing,
    /// that follow an undone one, or that never end.
    pub fn violations(&self) -> Vec<String> {
        self.invariants.violations()
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

    /// The production provider, connected to the in-process emulator.
    pub fn provider(&self) -> AzureProvider {
        self.provider_through(http_service(Traced::new(self.azure.clone(), self.trace.clone())))
    }

    fn provider_through(&self, service: HttpService) -> AzureProvider {
        let tokens = ManagedIdentity {
            service: service.clone(),
            clock: self.clock.clone(),
            endpoint: "http://169.254.169.254".to_owned(),
            client_id: None,
            resource: format!("{}/", self.azure_config.arm_endpoint),
        };
        AzureProvider::new(self.azure_config.clone(), self.clock.clone(), service, Arc::new(tokens))
    }

    /// Runs the cluster, with or without nap, until the future is dropped.
    pub async fn run(&self, with_controllers: bool) -> Result<(), WorldError> {
        let machines = self.machines.lock().unwrap_or_else(PoisonError::into_inner).take();
        let machines = machines.ok_or(WorldError::AlreadyRunning)?;
        let (client, clock) = (self.client(), self.clock.clone());
        let (fixed, for_users) = (self.fixed.clone(), self.for_users);
        let cluster = cluster::run_with(client, clock, machines, fixed, for_users);
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

    /// Runs the nap controllers until `shutdown`. A second call is a restart.
    pub async fn run_nap(&self, shutdown: impl Future<Output = ()>) {
        self.run_replica(&Faults::new(self.clock.clone()), self.settings.clone(), shutdown).await;
    }

    /// Runs a replica of the nap controllers behind faults until `shutdown` or its crash.
    pub async fn run_replica(
        &self,
        faults: &Faults,
        settings: Settings,
        shutdown: impl Future<Output = ()>,
    ) {
        self.invariants.restarted();
        let server = Guarded::new(self.server.clone(), self.invariants.clone());
        let server = Faulty::new(server, faults.clone());
        let client = Client::new(Traced::new(server, self.trace.clone()), "default");
        let azure = Faulty::new(self.azure.clone(), faults.clone());
        let azure = http_service(Traced::new(azure, self.trace.clone()));
        let provider = Arc::new(self.provider_through(azure));
        let context = Context::new(client, provider, self.clock.clone(), settings);
        tokio::select! {
            biased;
            () = faults.crashed() => {}
            () = Box::pin(nap_controllers::run(&context, shutdown)) => {}
        }
    }
}
