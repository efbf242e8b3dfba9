//! The driver: runs due reconciles side by side, one at a time per key.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use jiff::{SignedDuration, Timestamp};
use kube::Api;
use kube::api::ListParams;
use nap_api::NodeClaim;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::Instrument as _;

use super::leader_election::{compete, release};
use super::queue::WorkQueue;
use super::watches::{Update, watch_cluster, watch_workload_selectors};
use crate::cluster::{Dirty, Indexed, Kind, Milestone, WORKLOAD_SELECTOR_KINDS};
use crate::context::{Context, Doing, Error, Outcome};
use crate::decisions::store::Stored;
use crate::metrics::catalogue::{RECONCILE_DURATION, RECONCILE_ERRORS};
use crate::nodeclaim::garbage_collection;
use crate::permissions::{KARPENTER, Permission};
use crate::{
    capacity_memory, decisions, disruption, maintenance, node, nodeclaim, nodeclass, nodeoverlay,
    nodepool, provisioning,
};

/// NodeClaims that no watch has shown are listed and read.
pub const CATCH_UP: &[Permission] = &[Permission::new(KARPENTER, "nodeclaims", &["list", "get"])];

/// Most reconciles at once, besides those that wait for the cloud. Each is some ten kilobytes of
/// memory, and the API server gets no more requests at a time.
const MAX_RUNNING: usize = 256;

/// Wait before NodeClaims are listed again after a failure.
const CATCH_UP_RETRY: Duration = Duration::from_secs(1);
/// Age at which a NodeClaim that no watch has shown is read.
const CONFIRM_AFTER: SignedDuration = SignedDuration::from_secs(30);
/// Interval at which NodeClaims that no watch has shown are looked at.
const CONFIRM_INTERVAL: Duration = Duration::from_secs(10);
/// Time of failures after which a watch counts as stale.
const STALE_AFTER: SignedDuration = SignedDuration::from_secs(45);
/// Time without another failure after which a watch counts as recovered; longer than the longest
/// wait between two attempts.
const RECOVERED_AFTER: SignedDuration = SignedDuration::from_secs(40);

/// A unit of work in the queue.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    /// The NodeClaims of the leader before, and those whose creation was not answered.
    CatchUp,
    /// NodeClaims that nap created and no watch has shown.
    Unconfirmed,
    NodeClass(String),
    NodePool(String),
    Node(String),
    NodeClaim(String),
    Overlays,
    Provisioning,
    Disruption,
    GarbageCollection,
    CapacityMemory,
    Decisions,
    Maintenance,
}

impl Key {
    /// Whether its reconcile reads and decides, and in a dry run writes nothing but events.
    fn only_decides(&self) -> bool {
        match self {
            Self::CatchUp
            | Self::Unconfirmed
            | Self::Provisioning
            | Self::Disruption
            | Self::CapacityMemory
            | Self::Maintenance => true,
            Self::NodeClass(_)
            | Self::NodePool(_)
            | Self::Node(_)
            | Self::NodeClaim(_)
            | Self::Overlays
            | Self::GarbageCollection
            | Self::Decisions => false,
        }
    }
}

impl Key {
    /// Name of the object; empty for a key without one.
    fn name(&self) -> &str {
        match self {
            Self::NodeClass(name)
            | Self::NodePool(name)
            | Self::Node(name)
            | Self::NodeClaim(name) => name,
            _ => "",
        }
    }

    /// Name of the controller that reconciles it, in metrics and logs.
    fn controller(&self) -> &'static str {
        match self {
            Self::CatchUp | Self::Unconfirmed => "nodeclaim.catchup",
            Self::NodeClass(_) => "nodeclass",
            Self::NodePool(_) => "nodepool",
            Self::Node(_) => "node.termination",
            Self::NodeClaim(_) => "nodeclaim.lifecycle",
            Self::Overlays => "nodeoverlay",
            Self::Provisioning => "provisioner",
            Self::Disruption => "disruption",
            Self::GarbageCollection => "nodeclaim.garbagecollection",
            Self::CapacityMemory => "capacitymemory",
            Self::Decisions => "decisions",
            Self::Maintenance => "maintenance",
        }
    }
}

/// The key that goes first.
const URGENT: Key = Key::Provisioning;

impl From<Dirty> for Key {
    fn from(dirty: Dirty) -> Self {
        match dirty {
            Dirty::NodeClass(name) => Self::NodeClass(name),
            Dirty::NodePool(name) => Self::NodePool(name),
            Dirty::Node(name) => Self::Node(name),
            Dirty::NodeClaim(name) => Self::NodeClaim(name),
            Dirty::Unconfirmed => Self::Unconfirmed,
            Dirty::Overlays => Self::Overlays,
            Dirty::PendingPod | Dirty::Provisioning => Self::Provisioning,
            Dirty::Disruption => Self::Disruption,
        }
    }
}

/// Runs all controllers until `shutdown`, as long as this replica leads. Reconciles that are under
/// way when it stops are dropped: each of them survives a crash at any point.
pub async fn run(context: &Context, shutdown: impl Future<Output = ()>) {
    // On a task of its own, the Lease is renewed whatever else happens. Dropping the set ends it.
    let mut tasks = JoinSet::new();
    let election = context.settings.leader_election.clone();
    if let Some(election) = election.clone() {
        let (client, clock) = (context.unguarded.clone(), context.clock.clone());
        tasks.spawn(compete(client, clock, election, context.leadership.clone()));
    }
    tokio::select! {
        biased;
        () = drive(context, shutdown) => {}
        () = context.events.post() => {}
    }
    tasks.shutdown().await;
    if let Some(election) = election {
        release(&context.unguarded, &context.clock, &election).await;
    }
}

async fn drive(context: &Context, shutdown: impl Future<Output = ()>) {
    let mut shutdown = std::pin::pin!(shutdown);
    let mut updates = watch_cluster(&context.client);
    if context.settings.engine.default_spread.is_empty() {
        for kind in WORKLOAD_SELECTOR_KINDS {
            context.index().mark_synced(Kind::Workload(kind));
        }
    } else {
        updates.extend(watch_workload_selectors(&context.client));
    }
    let mut leadership = context.leadership.changes();
    let mut driver = Driver {
        context,
        queue: WorkQueue::new(),
        failing: FailingWatches::default(),
        standing: match context.settings.leader_election {
            Some(_) => Standing::StandBy,
            // There was no leader before.
            None => Standing::Leading,
        },
    };
    let mut running = FuturesUnordered::new();
    let mut creating = FuturesUnordered::new();
    driver.add(Key::Disruption);
    driver.add(Key::GarbageCollection);
    driver.add(Key::CapacityMemory);
    driver.add(Key::Decisions);
    driver.add(Key::Maintenance);
    loop {
        driver.enqueue_dirty();
        driver.report_milestones();
        let leads = context.leadership.is_held(context.clock.now());
        if !leads && driver.standing != Standing::StandBy {
            running.clear();
            creating.clear();
            driver.stand_by();
        } else if leads && driver.may_have_missed_claims() {
            driver.standing = Standing::CatchingUp;
            running.push(start(context, Key::CatchUp));
        }
        let creations = std::mem::take(&mut context.memory().creations);
        creating.extend(creations.into_iter().map(|plan| plan.create(context)));
        let is_full = running.len() >= MAX_RUNNING + context.launches.running();
        let due = driver.next_due(is_full);
        tokio::select! {
            biased;
            () = &mut shutdown => break,
            Ok(()) = leadership.changed() => {}
            Some(update) = updates.next() => driver.apply(update),
            Some((key, outcome)) = running.next() => driver.finish(key, outcome),
            Some(created) = creating.next() => driver.created(created),
            () = context.launches.changed(), if is_full => {}
            () = wait_until(due) => {
                if let Some(key) = driver.pop(is_full) {
                    running.push(start(context, key));
                }
            }
        }
    }
}

async fn wait_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

async fn start(context: &Context, key: Key) -> (Key, Outcome) {
    let begun = context.clock.now();
    let span = tracing::info_span!(
        target: "nap_reconcile",
        "reconcile",
        controller = key.controller(),
        namespace = "",
        name = key.name(),
        reconcileID = context.next_reconcile_id(),
    );
    let outcome = reconcile(context, &key).instrument(span).await;
    let taken = context.clock.now().duration_since(begun);
    context.metrics.observe(&RECONCILE_DURATION, &[key.controller()], taken);
    (key, outcome)
}

async fn reconcile(context: &Context, key: &Key) -> Outcome {
    if context.settings.dry_run && !key.only_decides() {
        return Ok(None);
    }
    match key {
        Key::CatchUp => catch_up(context).await,
        Key::Unconfirmed => confirm_claims(context).await,
        Key::NodeClass(name) => nodeclass::reconcile(context, name).await,
        Key::NodePool(name) => nodepool::reconcile(context, name).await,
        Key::Node(name) => node::termination::reconcile(context, name).await,
        Key::NodeClaim(name) => nodeclaim::reconcile(context, name).await,
        Key::Overlays => nodeoverlay::reconcile(context).await,
        Key::Provisioning => provisioning::reconcile(context).await,
        Key::Disruption => disruption::reconcile(context).await,
        Key::GarbageCollection => garbage_collection::reconcile(context).await,
        Key::CapacityMemory => capacity_memory::reconcile(context).await,
        Key::Decisions => decisions::store::reconcile(context).await,
        Key::Maintenance => maintenance::reconcile(context).await,
    }
}

/// What this replica may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Keep the index, and nothing else.
    StandBy,
    /// Read the NodeClaims that exist now.
    CatchingUp,
    /// Act.
    Leading,
}

struct Driver<'a> {
    context: &'a Context,
    queue: WorkQueue<Key>,
    failing: FailingWatches,
    standing: Standing,
}

impl Driver<'_> {
    fn add(&mut self, key: Key) {
        self.queue.add(key, Instant::now());
    }

    fn apply(&mut self, update: Update) {
        let now = self.context.clock.now();
        match update.change {
            Some(change) => {
                self.failing.succeeded(update.kind);
                change(&mut self.context.index(), now);
            }
            None => self.failing.failed(update.kind, now),
        }
    }

    /// Due time of the next reconcile; `None` if none may run. An index that is incomplete or old
    /// leads to wrong decisions: a Node that it lacks looks gone.
    fn next_due(&self, is_full: bool) -> Option<Instant> {
        let may_act = self.standing == Standing::Leading
            && self.context.index().is_synced()
            && !self.failing.is_any_stale(self.context.clock.now());
        let next = if is_full { self.queue.due_at(&URGENT) } else { self.queue.next_due() };
        next.filter(|_| may_act)
    }

    /// Takes the next key that is due. Pending pods do not wait behind a backlog of other keys.
    fn pop(&mut self, is_full: bool) -> Option<Key> {
        let now = Instant::now();
        let urgent = self.queue.pop_key(&URGENT, now);
        if is_full { urgent } else { urgent.or_else(|| self.queue.pop(now)) }
    }

    /// Whether NodeClaims may exist that neither a watch nor the answer to a creation has shown.
    fn may_have_missed_claims(&self) -> bool {
        match self.standing {
            Standing::StandBy => self.context.index().is_synced(),
            Standing::CatchingUp => false,
            Standing::Leading => std::mem::take(&mut self.context.memory().creation_unanswered),
        }
    }

    /// Stops acting. What was under way is due again.
    fn stand_by(&mut self) {
        self.standing = Standing::StandBy;
        {
            let mut memory = self.context.memory();
            memory.creations.clear();
            memory.stored_decisions = Stored::default();
        }
        self.context.index().forget_decided();
        self.queue.requeue_running(Instant::now());
    }

    /// Queues what the index reports as dirty, whether a watch or a controller's own write changed
    /// it.
    fn enqueue_dirty(&mut self) {
        let dirty = self.context.index().take_dirty();
        if dirty.contains(&Dirty::PendingPod) {
            self.context.memory().batch.extend(self.context.clock.now());
        }
        for dirty in dirty {
            self.add(dirty.into());
        }
    }

    /// Publishes the transitions of conditions, of Nodes only if nap launched them.
    fn publish_transitions(&self, milestones: &[Milestone]) {
        for milestone in milestones {
            let Milestone::Transition(transition) = milestone else { continue };
            let name = transition.object.name.as_deref().unwrap_or_default();
            let is_ours = transition.kind != Kind::Node || {
                let index = self.context.index();
                index.node(name).is_some_and(|node| index.claim_of_node(node).is_some())
            };
            if is_ours {
                self.context.events.publish_transition(transition);
            }
        }
    }

    /// Counts what the index has noticed, if this replica leads, and whether a watch is stale.
    fn report_milestones(&self) {
        let milestones = self.context.index().take_milestones();
        if self.standing == Standing::Leading {
            self.context.count_milestones(&milestones);
            self.publish_transitions(&milestones);
        }
        self.context.set_stale_watch(self.failing.is_any_stale(self.context.clock.now()));
    }

    /// Records that the NodeClaims of a plan were created, or that some could not be.
    fn created(&self, created: Result<(), Error>) {
        let mut memory = self.context.memory();
        match created {
            Ok(()) => memory.creation_backoff.succeeded(),
            Err(error) => {
                let wait = memory.creation_backoff.failed(self.context.clock.now());
                tracing::warn!(%error, ?wait, "creating nodeclaims failed, planning again");
            }
        }
    }

    fn finish(&mut self, key: Key, outcome: Outcome) {
        if key == Key::CatchUp {
            self.standing = Standing::Leading;
            return;
        }
        let now = Instant::now();
        match outcome {
            Ok(next) => {
                let next = next
                    .map(|wait| now + self.context.clock.real(wait).max(Duration::from_millis(1)));
                self.queue.succeeded(key, next);
            }
            Err(error) => {
                let what = format!("{key:?}");
                self.context.metrics.increment(&RECONCILE_ERRORS, &[key.controller()]);
                let wait = self.queue.failed(key, now);
                tracing::warn!(key = what, %error, ?wait, "reconcile failed, retrying");
            }
        }
    }
}

/// Reads the NodeClaims that exist now into the index. The watch may lag behind the last writes of
/// the leader before and behind a creation that was not answered, and a NodeClaim that is not known
/// is bought again.
async fn catch_up(context: &Context) -> Outcome {
    let api: Api<NodeClaim> = Api::all(context.client.clone());
    loop {
        match api.list(&ListParams::default()).await {
            Ok(list) => {
                let (mut index, now) = (context.index(), context.clock.now());
                let claims = list.items.into_iter().filter(Indexed::is_managed);
                claims.for_each(|claim| index.observe_created(claim, now));
                return Ok(None);
            }
            Err(error) => {
                tracing::warn!(%error, "cannot list NodeClaims, retrying");
                context.clock.sleep(CATCH_UP_RETRY).await;
            }
        }
    }
}

/// Reads NodeClaims that nap created a while ago and no watch has shown: one that was deleted at
/// once may never be shown.
async fn confirm_claims(context: &Context) -> Outcome {
    let now = context.clock.now();
    let then = now.checked_sub(CONFIRM_AFTER).unwrap_or(Timestamp::MIN);
    let api: Api<NodeClaim> = Api::all(context.client.clone());
    // In the head of the loop the guard would be held through its body.
    let unconfirmed = context.index().unconfirmed_claims(then);
    for name in unconfirmed {
        let found = api.get_opt(&name).await.doing("reading NodeClaim", &name)?;
        let mut index = context.index();
        match found {
            Some(claim) => index.apply(claim, now),
            None => index.delete::<NodeClaim>(&name),
        }
    }
    let left = !context.index().unconfirmed_claims(Timestamp::MAX).is_empty();
    Ok(left.then_some(CONFIRM_INTERVAL))
}

/// Watches that fail, by kind.
#[derive(Debug, Default)]
struct FailingWatches(BTreeMap<Kind, Failing>);

#[derive(Clone, Copy, Debug)]
struct Failing {
    first: Timestamp,
    last: Timestamp,
}

impl FailingWatches {
    fn failed(&mut self, kind: Kind, now: Timestamp) {
        let failing = self.0.entry(kind).or_insert(Failing { first: now, last: now });
        if now.duration_since(failing.last) > RECOVERED_AFTER {
            failing.first = now;
        }
        failing.last = now;
    }

    fn succeeded(&mut self, kind: Kind) {
        self.0.remove(&kind);
    }

    /// Whether a watch has failed again and again for so long that the index may be old. A watch
    /// that recovers without news shows only by not failing again.
    fn is_any_stale(&self, now: Timestamp) -> bool {
        self.0.values().any(|failing| {
            failing.last.duration_since(failing.first) >= STALE_AFTER
                && now.duration_since(failing.last) <= RECOVERED_AFTER
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    #[test]
    fn a_watch_that_keeps_failing_makes_the_index_stale_until_it_recovers() {
        let mut watches = FailingWatches::default();
        watches.failed(Kind::Node, at(0));
        assert!(!watches.is_any_stale(at(1)), "one failure is common");
        watches.failed(Kind::Node, at(30));
        assert!(!watches.is_any_stale(at(30)));
        watches.failed(Kind::Node, at(60));
        assert!(watches.is_any_stale(at(60)));
        assert!(!watches.is_any_stale(at(101)), "it has not failed again");
        watches.succeeded(Kind::Node);
        assert!(!watches.is_any_stale(at(61)));
    }

    #[test]
    fn failures_that_are_far_apart_do_not_add_up() {
        let mut watches = FailingWatches::default();
        for minute in 0..10 {
            watches.failed(Kind::Pod, at(60 * minute));
            assert!(!watches.is_any_stale(at(60 * minute)));
        }
    }
}
