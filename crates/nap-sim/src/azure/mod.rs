//! Azure emulator: the part of ARM that node auto-provisioning uses, in memory.
//!
//! [`Emulator`] is a tower service over HTTP requests. The provider calls it directly in the same
//! process, without a socket and on a paused clock; over TCP it is the fallback service of an axum
//! router. Its state changes only by requests and by timers on the given clock, and every random
//! number comes from one seed, so two runs of the same requests are equal.
//!
//! Unknown requests get an ARM error, never an invented response.

mod accept;
mod batch;
mod config;
mod fault_file;
mod faults;
mod images;
mod lifecycle;
mod machines;
mod maintenance;
mod members;
pub(crate) mod node;
mod prerequisites;
mod region;
mod request;
mod routes;
mod sizes;
mod state;
mod subnets;
mod throttle;
mod tokens;
mod versions;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use jiff::Timestamp;
use nap_azure::arm::{HttpService, ManagedIdentity, http_service};
use nap_azure::{AzureConfig, AzureError, AzureProvider};
use nap_engine::PriceEstimates;
use nap_kubelets::VmEvent;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tower::Service;

pub use config::{EmulatorConfig, SUBSCRIPTION, VmIds};
pub use fault_file::FaultFileError;
pub use faults::{Fault, FaultPlan, Place, TimedFault};
pub use members::published_members;
pub use prerequisites::{CLUSTER_IDENTITY, RoleAssignment, Surroundings};
pub use state::{BilledMachine, EmulatedMachine};
pub use throttle::{BucketLimit, RequestLimits};

use region::RegionCatalogue;
use request::{ArmRequest, refuse};
use state::State;

/// Maximum number of events that wait for the receiver; beyond it the emulator's timers wait too.
const MAX_WAITING_EVENTS: usize = 1024;

/// The Azure emulator. Clones share one state.
#[derive(Clone)]
pub struct Emulator(Arc<Inner>);

pub(crate) struct Inner {
    config: EmulatorConfig,
    region: RegionCatalogue,
    state: Mutex<State>,
    pool: Mutex<prerequisites::PoolState>,
    events: mpsc::Sender<VmEvent>,
    /// Pending timers; dropped with the emulator.
    timers: Mutex<JoinSet<()>>,
}

impl Emulator {
    /// An emulator without VMs, and the receiver of its VM events. Fails for an unknown region.
    pub fn new(config: EmulatorConfig) -> Result<(Self, mpsc::Receiver<VmEvent>), AzureError> {
        let (events, receiver) = mpsc::channel(MAX_WAITING_EVENTS);
        let inner = Inner {
            region: RegionCatalogue::new(&config)?,
            state: Mutex::new(State::new(config.faults.clone())),
            pool: Mutex::new(prerequisites::PoolState::new(&config)),
            events,
            timers: Mutex::default(),
            config,
        };
        Ok((Self(Arc::new(inner)), receiver))
    }

    /// Its configuration.
    pub fn config(&self) -> &EmulatorConfig {
        &self.0.config
    }

    /// The emulator as the provider's HTTP service, in process.
    pub fn http_service(&self) -> HttpService {
        http_service(self.clone())
    }

    /// The production provider, connected to this emulator in process.
    pub fn provider(&self) -> AzureProvider {
        self.provider_with(self.0.config.azure_config())
    }

    /// The production provider with settings that may be wrong, connected to the emulator.
    pub fn provider_with(&self, config: AzureConfig) -> AzureProvider {
        let service = self.http_service();
        let clock = self.0.config.clock.clone();
        let tokens = ManagedIdentity {
            service: service.clone(),
            clock: clock.clone(),
            endpoint: "http://169.254.169.254".to_owned(),
            client_id: None,
            resource: "https://management.azure.com/".to_owned(),
        };
        AzureProvider::new(config, clock, service, Arc::new(tokens))
    }

    /// Changes the injected faults.
    pub fn set_faults(&self, change: impl FnOnce(&mut FaultPlan)) {
        change(&mut self.0.state().faults);
    }

    /// Invalidates every issued token, as a key rotation does.
    pub fn revoke_tokens(&self) {
        self.0.state().tokens.clear();
    }

    /// Evicts the VM of an agent-pool machine, as Azure does with spot VMs; the machine object
    /// stays until it is deleted. Returns whether there was a VM.
    pub fn evict(&self, machine: &str) -> bool {
        self.0.evict(machine)
    }

    /// All agent-pool machines, by name.
    pub fn machines(&self) -> Vec<EmulatedMachine> {
        let price = |machine: &state::MachineRecord| {
            self.0.region.price(&machine.size.name, machine.capacity_type)
        };
        self.0.state().machines.values().map(|machine| machine.shown(price(machine))).collect()
    }

    /// All VMs that ever ran, in the order of their creation.
    pub fn bill(&self) -> Vec<BilledMachine> {
        self.0.state().bill.clone()
    }

    /// Prices that are estimates: the embedded catalogue has no spot prices of Azure.
    pub fn price_estimates(&self) -> PriceEstimates {
        self.0.region.estimates
    }

    /// `~` if a VM on the bill has an estimated price.
    pub fn bill_mark(&self) -> &'static str {
        let state = self.0.state();
        self.0.region.estimates.mark_sum(state.bill.iter().map(|machine| machine.capacity_type))
    }

    /// Cost of all VMs until `now`, in micro-dollars.
    pub fn total_cost_micros(&self, now: Timestamp) -> i64 {
        self.0.state().bill.iter().map(|machine| machine.cost_micros(now)).sum()
    }

    /// Number of requests by method and resource type.
    pub fn requests(&self) -> std::collections::BTreeMap<String, u64> {
        self.0.state().requests.clone()
    }
}

impl Inner {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `action` after `delay` unless the emulator is dropped before.
    pub(crate) fn later_with<F>(self: &Arc<Self>, delay: std::time::Duration, action: F)
    where
        F: FnOnce(&Arc<Inner>) + Send + 'static,
    {
        self.later(delay, move |inner| {
            action(inner);
            None
        });
    }

    /// Runs `action` after `delay` unless the emulator is dropped before, and sends the event it
    /// returns.
    pub(crate) fn later<F>(self: &Arc<Self>, delay: std::time::Duration, action: F)
    where
        F: FnOnce(&Arc<Inner>) -> Option<VmEvent> + Send + 'static,
    {
        let weak = Arc::downgrade(self);
        let clock = self.config.clock.clone();
        let mut timers = self.timers.lock().unwrap_or_else(PoisonError::into_inner);
        while timers.try_join_next().is_some() {}
        timers.spawn(async move {
            clock.sleep(delay).await;
            let Some(inner) = weak.upgrade() else { return };
            let event = action(&inner);
            let events = inner.events.clone();
            drop(inner);
            if let Some(event) = event {
                // The receiver was dropped: VMs exist without announcement.
                let _ = events.send(event).await;
            }
        });
    }
}

impl<B> Service<Request<B>> for Emulator
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Send,
{
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Full<Bytes>>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let inner = self.0.clone();
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let Ok(body) = body.collect().await else {
                return Ok(refuse(400, "InvalidRequestContent", "the body cannot be read"));
            };
            let request = ArmRequest::new(head, body.to_bytes());
            Ok(routes::answer(&inner, &request))
        })
    }
}
