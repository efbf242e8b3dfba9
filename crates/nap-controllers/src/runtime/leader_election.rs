//! Leader election by a Lease, as client-go does it: of several replicas one acts, the others keep
//! their index warm and take over.
//!
//! The Lease's own times are never compared with the local clock: a replica that waits measures how
//! long the Lease has not changed, and one that leads stops acting some time before the others may
//! take over.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client, ResourceExt};
use nap_clock::Clock;
use tokio::sync::watch;

use crate::context::{is_conflict, is_not_found};
use crate::permissions::{Permission, Scope};

/// Time after the last renewal at which another replica may take over.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// Time after the last renewal at which the leader stops acting.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// Interval between two attempts to acquire or renew.
const RETRY_PERIOD: Duration = Duration::from_secs(2);
/// Longest wait for an answer to one attempt.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The Lease is created once and then read and written.
pub const PERMISSIONS: &[Permission] = &[
    Permission::new("coordination.k8s.io", "leases", &["create"]).within(Scope::Own),
    Permission::new("coordination.k8s.io", "leases", &["get", "update"]).within(Scope::OwnLease),
];

/// The Lease that replicas compete for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderElection {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// This replica: `<pod>_<id>`, different at each start.
    pub identity: String,
}

/// Until when this replica may act. Clones share it.
#[derive(Clone)]
pub struct Leadership(Arc<watch::Sender<Option<Timestamp>>>);

impl Leadership {
    /// Leadership that is held for ever, without an election.
    pub fn undisputed() -> Self {
        Self(Arc::new(watch::Sender::new(Some(Timestamp::MAX))))
    }

    /// Leadership that has to be acquired.
    pub fn contested() -> Self {
        Self(Arc::new(watch::Sender::new(None)))
    }

    /// Whether this replica may act.
    pub fn is_held(&self, now: Timestamp) -> bool {
        self.0.borrow().is_some_and(|until| now < until)
    }

    /// Reports each change, renewals included.
    pub fn changes(&self) -> watch::Receiver<Option<Timestamp>> {
        self.0.subscribe()
    }

    fn set(&self, until: Option<Timestamp>) {
        self.0.send_replace(until);
    }
}

/// Competes for the Lease until dropped, and keeps `leadership` up to date.
pub async fn compete(
    client: Client,
    clock: Clock,
    election: LeaderElection,
    leadership: Leadership,
) {
    let mut elector = Elector::new(client, clock, election);
    loop {
        let sent = elector.clock.now();
        let deadline = after(sent, RENEW_DEADLINE);
        let held_until = elector.held_until;
        // An unanswered renewal must not outlast the leadership.
        let left = |until: Timestamp| Duration::try_from(until.duration_since(sent));
        let wait = held_until.map_or(REQUEST_TIMEOUT, |until| left(until).unwrap_or_default());
        let wait = elector.clock.real(wait.min(REQUEST_TIMEOUT));
        let attempt = tokio::time::timeout(wait, elector.attempt()).await.ok();
        match attempt {
            Some(Ok(true)) => elector.held_until = Some(deadline),
            Some(Ok(false)) => elector.held_until = None,
            Some(Err(error)) => tracing::warn!(%error, "cannot reach the leader election Lease"),
            None => tracing::warn!("no answer from the leader election Lease"),
        }
        if elector.held_until.is_some_and(|until| until <= elector.clock.now()) {
            elector.held_until = None;
        }
        if held_until.is_some() != elector.held_until.is_some() {
            let identity = &elector.election.identity;
            if elector.held_until.is_some() {
                tracing::info!(identity, "became leader");
            } else {
                tracing::warn!(identity, "lost leadership");
            }
        }
        leadership.set(elector.held_until);
        elector.pause().await;
    }
}

/// Gives the Lease up, so that another replica takes over at once.
pub async fn release(client: &Client, clock: &Clock, election: &LeaderElection) {
    let api: Api<Lease> = Api::namespaced(client.clone(), &election.namespace);
    let released = async {
        let Some(mut lease) = api.get_opt(&election.name).await? else { return Ok(()) };
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() != Some(&election.identity) {
            return Ok(());
        }
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        spec.renew_time = Some(MicroTime(clock.now()));
        api.replace(&election.name, &PostParams::default(), &lease).await.map(|_| ())
    };
    match tokio::time::timeout(clock.real(REQUEST_TIMEOUT), released).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "leader election Lease not released"),
        Err(_) => tracing::warn!("leader election Lease not released: no answer"),
    }
}

struct Elector {
    api: Api<Lease>,
    clock: Clock,
    election: LeaderElection,
    held_until: Option<Timestamp>,
    /// Version of the Lease when it was last seen to change, and when that was.
    seen: Option<(String, Timestamp)>,
}

impl Elector {
    fn new(client: Client, clock: Clock, election: LeaderElection) -> Self {
        let api = Api::namespaced(client, &election.namespace);
        Self { api, clock, election, held_until: None, seen: None }
    }

    /// Acquires or renews the Lease. Returns whether this replica holds it now.
    async fn attempt(&mut self) -> Result<bool, kube::Error> {
        let now = self.clock.now();
        let Some(lease) = self.api.get_opt(&self.election.name).await? else {
            return self.create(now).await;
        };
        let version = lease.resource_version().unwrap_or_default();
        if self.seen.as_ref().is_none_or(|(seen, _)| *seen != version) {
            self.seen = Some((version, now));
        }
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        let ours = holder == self.election.identity;
        if !ours && !holder.is_empty() && !self.has_expired(&spec, now) {
            return Ok(false);
        }
        let mut renewed = lease;
        renewed.spec = Some(self.renewed(&spec, ours, now));
        match self.api.replace(&self.election.name, &PostParams::default(), &renewed).await {
            Ok(written) => {
                self.seen = Some((written.resource_version().unwrap_or_default(), now));
                Ok(true)
            }
            Err(error) if is_conflict(&error) || is_not_found(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn create(&mut self, now: Timestamp) -> Result<bool, kube::Error> {
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(self.election.name.clone()),
                namespace: Some(self.election.namespace.clone()),
                ..ObjectMeta::default()
            },
            spec: Some(self.renewed(&LeaseSpec::default(), false, now)),
        };
        match self.api.create(&PostParams::default(), &lease).await {
            Ok(_) => Ok(true),
            Err(error) if is_conflict(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether the Lease of another replica has not changed for its whole duration.
    fn has_expired(&self, spec: &LeaseSpec, now: Timestamp) -> bool {
        let seconds = spec.lease_duration_seconds.and_then(|one| u64::try_from(one).ok());
        let duration = seconds.map_or(LEASE_DURATION, Duration::from_secs);
        self.seen.as_ref().is_some_and(|(_, since)| after(*since, duration) <= now)
    }

    fn renewed(&self, before: &LeaseSpec, ours: bool, now: Timestamp) -> LeaseSpec {
        let transitions = before.lease_transitions.unwrap_or(0);
        LeaseSpec {
            holder_identity: Some(self.election.identity.clone()),
            lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
            acquire_time: before.acquire_time.clone().filter(|_| ours).or(Some(MicroTime(now))),
            renew_time: Some(MicroTime(now)),
            lease_transitions: Some(if ours { transitions } else { transitions + 1 }),
            ..LeaseSpec::default()
        }
    }

    /// Waits for the next attempt, but not beyond the end of the leadership.
    async fn pause(&self) {
        let next = after(self.clock.now(), RETRY_PERIOD);
        self.clock.sleep_until(self.held_until.map_or(next, |until| until.min(next))).await;
    }
}

fn after(time: Timestamp, wait: Duration) -> Timestamp {
    let wait = SignedDuration::try_from(wait).unwrap_or(SignedDuration::MAX);
    time.checked_add(wait).unwrap_or(Timestamp::MAX)
}
