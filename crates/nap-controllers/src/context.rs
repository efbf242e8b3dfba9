//! The context that every controller gets: client, cloud, clock, index and memory.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use nap_clock::Clock;
use nap_cloud::{CloudError, CloudProvider, RepairPolicy};

use crate::cluster::{Index, Indexed};
use crate::decision_memory::DecisionMemory;
use crate::events::Recorder;
use crate::metrics::Metrics;
use crate::nodeclaim::Launches;
use crate::provisioning::SolverState;
use crate::runtime::{Guard, LeaderElection, Leadership, RateLimit, Writes, guarded};

/// Namespace of what nap stores for itself where no Lease names one.
const DEFAULT_NAMESPACE: &str = "kube-system";

/// Shared by all controllers.
pub struct Context {
    /// Client of the API server: rate-limited, and without writes unless this replica leads. In a
    /// dry run it writes events only.
    pub client: Client,
    /// Client without these limits, for the leader election itself.
    pub(crate) unguarded: Client,
    /// Until when this replica may act.
    pub leadership: Leadership,
    /// The cloud provider.
    pub cloud: Arc<dyn CloudProvider>,
    /// The only source of time.
    pub clock: Clock,
    /// Launches that wait for the cloud.
    pub(crate) launches: Launches,
    /// Time at which a Node was last opened to pods. Held while one is: a nomination to a closed
    /// Node is lost when another is opened.
    pub(crate) opened: tokio::sync::Mutex<Option<Timestamp>>,
    index: Mutex<Index>,
    memory: Mutex<DecisionMemory>,
    pub(crate) solver: Arc<SolverState>,
    /// Publisher of Kubernetes events.
    pub events: Recorder,
    /// What has happened, as metrics.
    pub metrics: Arc<Metrics>,
    /// Whether a watch has failed for so long that the index may be old.
    stale_watch: AtomicBool,
    /// Number of reconciles so far.
    reconciles: AtomicU64,
    /// Settings of the controllers.
    pub settings: Settings,
}

/// Settings of the controllers.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct Settings {
    /// Idle time after which a batch of pending pods closes.
    pub batch_idle: Duration,
    /// Longest time that a batch of pending pods stays open.
    pub batch_max: Duration,
    /// Options of the engine.
    pub engine: nap_engine::Options,
    /// Whether plans and disruption passes are made on threads of their own. A simulation makes
    /// them in its only thread, where a run can be repeated exactly.
    pub solve_on_worker_thread: bool,
    /// Limit of requests to the API server.
    pub rate_limit: RateLimit,
    /// The Lease that replicas compete for; `None` if there is only one replica.
    pub leader_election: Option<LeaderElection>,
    /// Whether unhealthy nodes are replaced: the feature gate `NodeRepair`.
    pub node_repair: bool,
    /// Whether spot nodes are replaced by cheaper spot nodes where a NodePool does not say.
    pub spot_to_spot: bool,
    /// Whether decisions are only reported: nothing is written but events and the Lease.
    pub dry_run: bool,
    /// Whether new pods are made to avoid nodes that the fleet could do without.
    pub avoid_surplus: bool,
    /// Whether the inputs of the last decisions are kept in the cluster, for `nap replay`.
    pub keeps_inputs: bool,
    /// Whether metrics of single nodes, pods and conditions are reported.
    pub observes_objects: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            batch_idle: Duration::from_secs(1),
            batch_max: Duration::from_secs(10),
            engine: nap_engine::Options {
                node_cost: nap_engine::DEFAULT_NODE_COST,
                ..nap_engine::Options::default()
            },
            solve_on_worker_thread: false,
            rate_limit: RateLimit::default(),
            leader_election: None,
            node_repair: false,
            spot_to_spot: false,
            dry_run: false,
            avoid_surplus: true,
            keeps_inputs: false,
            observes_objects: true,
        }
    }
}

impl Settings {
    /// The namespace of what nap stores for itself: that of its Lease.
    pub fn own_namespace(&self) -> &str {
        let election = self.leader_election.as_ref();
        election.map_or(DEFAULT_NAMESPACE, |election| election.namespace.as_str())
    }
}

/// Failure of a reconcile, which is retried with back-off.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused a request or was unreachable.
    #[error("{doing}: {source}")]
    Kube {
        /// Operation and object.
        doing: String,
        /// The failure.
        source: kube::Error,
    },
    /// The cloud provider failed.
    #[error(transparent)]
    Cloud(#[from] CloudError),
}

/// Time until a reconcile is to be called again; `None` means on the next change.
pub type Outcome = Result<Option<Duration>, Error>;

impl Context {
    /// Creates a context with an empty index.
    pub fn new(
        client: Client,
        cloud: Arc<dyn CloudProvider>,
        clock: Clock,
        settings: Settings,
    ) -> Self {
        let leadership = match &settings.leader_election {
            Some(_) => Leadership::contested(),
            None => Leadership::undisputed(),
        };
        let unguarded = client.clone();
        let writes = if settings.dry_run { Writes::Events } else { Writes::All };
        let metrics: Arc<Metrics> = Arc::default();
        let guard = Guard { limit: settings.rate_limit, leadership: leadership.clone(), writes };
        let client = guarded(client, clock.clone(), guard, Arc::clone(&metrics));
        let events = Recorder::new(client.clone(), clock.clone(), Arc::clone(&metrics));
        Self {
            client,
            unguarded,
            leadership,
            cloud,
            clock,
            launches: Launches::default(),
            opened: tokio::sync::Mutex::default(),
            index: Mutex::default(),
            memory: Mutex::default(),
            solver: Arc::default(),
            events,
            metrics,
            stale_watch: AtomicBool::new(false),
            reconciles: AtomicU64::new(0),
            settings,
        }
    }

    /// The cluster index. Hold it briefly and never across an await.
    pub fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The memory of past decisions. Hold it briefly, never across an await, and lock it after the
    /// index if both are needed.
    pub fn memory(&self) -> MutexGuard<'_, DecisionMemory> {
        self.memory.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Policies that nodes are repaired by; none if they are not repaired.
    pub(crate) fn repair_policies(&self) -> &[RepairPolicy] {
        if self.settings.node_repair { self.cloud.repair_policies() } else { &[] }
    }

    /// Whether every kind was listed once: from then on decisions rest on the whole cluster.
    pub fn is_synced(&self) -> bool {
        self.index().is_synced()
    }

    /// Whether a watch has failed for so long that the index may be old.
    pub fn has_stale_watch(&self) -> bool {
        self.stale_watch.load(Ordering::Relaxed)
    }

    /// Id of the next reconcile, for logs.
    pub(crate) fn next_reconcile_id(&self) -> String {
        format!("{:016x}", self.reconciles.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn set_stale_watch(&self, stale: bool) {
        self.stale_watch.store(stale, Ordering::Relaxed);
    }

    /// Indexes the answer to a write, before the watch reports it.
    pub fn observe<K: Indexed>(&self, object: K) {
        self.index().observe(object, self.clock.now());
    }
}

/// Adds the operation to an error of kube.
pub trait Doing<T> {
    /// Names the operation and the object.
    fn doing(self, what: &str, name: &str) -> Result<T, Error>;
}

impl<T> Doing<T> for Result<T, kube::Error> {
    fn doing(self, what: &str, name: &str) -> Result<T, Error> {
        self.map_err(|source| Error::Kube { doing: format!("{what} `{name}`"), source })
    }
}

/// Whether the object does not exist.
pub fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// Whether a write that failed may have been done: no answer came, or one that says that the API
/// server does not know.
pub fn may_be_done(error: &kube::Error) -> bool {
    !matches!(error, kube::Error::Api(status) if status.code < 500)
}

/// Whether the object was changed concurrently.
pub fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}
