//! What every control loop has at hand.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use kube::Client;
use nap_clock::Clock;
use nap_cloud::{CloudError, CloudProvider};

use crate::events::Recorder;
use crate::market::Kept;
use crate::state::State;

/// Shared by all loops.
pub struct Context {
    /// The cluster.
    pub client: Client,
    /// The cloud.
    pub cloud: Arc<dyn CloudProvider>,
    /// The time.
    pub clock: Clock,
    /// What is known of the cluster.
    state: Mutex<State>,
    /// What is kept of one decision for the next.
    pub(crate) kept: Kept,
    /// Where events go.
    pub events: Recorder,
    /// What may be changed about the loops.
    pub settings: Settings,
}

/// What may be changed about the loops.
#[derive(Clone, Debug)]
pub struct Settings {
    /// A batch of pending pods ends when no new one came for this long …
    pub batch_idle: Duration,
    /// … and after this long in any case.
    pub batch_max: Duration,
    /// How the engine decides.
    pub engine: nap_engine::Options,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            batch_idle: Duration::from_secs(1),
            batch_max: Duration::from_secs(10),
            engine: nap_engine::Options::default(),
        }
    }
}

/// Why a reconcile did not succeed. It is tried again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The cluster refused or was out of reach.
    #[error("{doing}: {source}")]
    Kube {
        /// What was being done, and to what.
        doing: String,
        /// Why it failed.
        source: kube::Error,
    },
    /// The cloud refused or was out of reach.
    #[error(transparent)]
    Cloud(#[from] CloudError),
}

/// When a reconcile wants to be called again; `None` means on the next change.
pub type Outcome = Result<Option<Duration>, Error>;

impl Context {
    /// A context with an empty state.
    pub fn new(
        client: Client,
        cloud: Arc<dyn CloudProvider>,
        clock: Clock,
        settings: Settings,
    ) -> Self {
        let events = Recorder::new(client.clone(), clock.clone());
        Self {
            client,
            cloud,
            clock,
            state: Mutex::default(),
            kept: Kept::default(),
            events,
            settings,
        }
    }

    /// The state. Hold it briefly and never across an await.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Adds what was being done to a kube error.
pub trait Doing<T> {
    /// Says what was being done, and to what.
    fn doing(self, what: &str, name: &str) -> Result<T, Error>;
}

impl<T> Doing<T> for Result<T, kube::Error> {
    fn doing(self, what: &str, name: &str) -> Result<T, Error> {
        self.map_err(|source| Error::Kube { doing: format!("{what} `{name}`"), source })
    }
}

/// Whether the object was not there.
pub fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// Whether somebody else changed the object first.
pub fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}
