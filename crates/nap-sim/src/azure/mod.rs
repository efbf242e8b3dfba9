//! An Azure that fits in one process: the part of ARM that node auto-provisioning uses, answered
//! from memory.
//!
//! [`Emulator`] is a tower service over HTTP requests. In the same process it is handed to the
//! provider directly, which needs no socket and runs on a paused clock; over TCP it is the fallback
//! service of an axum router. Its state changes only by requests and by timers on the given clock,
//! and everything that looks random follows from one seed, so two runs of the same requests are
//! equal.
//!
//! What it does not know it refuses with an ARM error, never with a made-up answer.

mod config;
mod faults;
mod machines;
mod market;
mod node;
mod request;
mod routes;
mod state;

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
use nap_azure::{AzureError, AzureProvider};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tower::Service;

pub use config::EmulatorConfig;
pub use faults::FaultPlan;
pub use state::{BilledMachine, EmulatedMachine};

use crate::machines::MachineEvent;
use market::Market;
use request::{ArmRequest, refuse};
use state::State;

/// Events that may wait to be received; a world that does not listen for longer holds its own
/// timers up, nothing else.
const MAX_WAITING_EVENTS: usize = 1024;

/// The emulated Azure. Clones share one state.
#[derive(Clone)]
pub struct Emulator(Arc<Inner>);

pub(crate) struct Inner {
    config: EmulatorConfig,
    market: Market,
    state: Mutex<State>,
    events: mpsc::Sender<MachineEvent>,
    /// Timers live as long as the emulator and end with it.
    timers: Mutex<JoinSet<()>>,
}

impl Emulator {
    /// An Azure without machines, and where its machines are announced. An unknown region is
    /// refused.
    pub fn new(config: EmulatorConfig) -> Result<(Self, mpsc::Receiver<MachineEvent>), AzureError> {
        let (events, receiver) = mpsc::channel(MAX_WAITING_EVENTS);
        let inner = Inner {
            market: Market::new(&config)?,
            state: Mutex::new(State::new(config.faults.clone())),
            events,
            timers: Mutex::default(),
            config,
        };
        Ok((Self(Arc::new(inner)), receiver))
    }

    /// This emulator as the provider wants it: in the same process, with no socket.
    pub fn http_service(&self) -> HttpService {
        http_service(self.clone())
    }

    /// The real provider, talking to this emulator in the same process.
    pub fn provider(&self) -> AzureProvider {
        let service = self.http_service();
        let clock = self.0.config.clock.clone();
        let tokens = ManagedIdentity {
            service: service.clone(),
            clock: clock.clone(),
            endpoint: "http://169.254.169.254".to_owned(),
            client_id: None,
            resource: "https://management.azure.com/".to_owned(),
        };
        AzureProvider::new(self.0.config.azure_config(), clock, service, Arc::new(tokens))
    }

    /// Changes what goes wrong from now on.
    pub fn set_faults(&self, change: impl FnOnce(&mut FaultPlan)) {
        change(&mut self.0.state().faults);
    }

    /// Makes every token that was issued worthless, as a key roll would.
    pub fn revoke_tokens(&self) {
        self.0.state().tokens.clear();
    }

    /// Takes the VM of a machine away, as Azure does with spot VMs; the machine stays until it is
    /// deleted. Answers whether there was one.
    pub fn evict(&self, machine: &str) -> bool {
        self.0.evict(machine)
    }

    /// Every machine that exists, in name order.
    pub fn machines(&self) -> Vec<EmulatedMachine> {
        let price = |machine: &state::MachineRecord| {
            self.0.market.price(&machine.sku.name, machine.capacity_type)
        };
        self.0.state().machines.values().map(|machine| machine.shown(price(machine))).collect()
    }

    /// Every VM that ever ran, in the order of their creation.
    pub fn bill(&self) -> Vec<BilledMachine> {
        self.0.state().bill.clone()
    }

    /// What all VMs have cost until a time, in millionths of a dollar.
    pub fn total_cost_micros(&self, now: Timestamp) -> i64 {
        self.0.state().bill.iter().map(|machine| machine.cost_micros(now)).sum()
    }

    /// How many requests were answered, by method and kind of resource.
    pub fn requests(&self) -> std::collections::BTreeMap<String, u64> {
        self.0.state().requests.clone()
    }
}

impl Inner {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something after a time of the clock, if the emulator is still there.
    pub(crate) fn later<F>(self: &Arc<Self>, delay: std::time::Duration, action: F)
    where
        F: FnOnce(&Inner) -> Option<MachineEvent> + Send + 'static,
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
                // Nobody listens: the machines exist all the same.
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
