//! The driver: runs due reconciles side by side, one at a time per key.

use std::future::Future;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use tokio::time::Instant;

use super::queue::WorkQueue;
use super::watches::{Update, watch_cluster, watch_workload_selectors};
use crate::cluster::{Dirty, Kind, WORKLOAD_SELECTOR_KINDS};
use crate::context::{Context, Outcome};
use crate::nodeclaim::garbage_collection;
use crate::{disruption, node, nodeclaim, nodeclass, nodeoverlay, nodepool, provisioning};

/// Most reconciles at once. Most of them wait for the cloud.
const MAX_RUNNING: usize = 1024;

/// A unit of work in the queue.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    NodeClass(String),
    NodePool(String),
    Node(String),
    NodeClaim(String),
    Overlays,
    Provisioning,
    Disruption,
    GarbageCollection,
}

impl From<Dirty> for Key {
    fn from(dirty: Dirty) -> Self {
        match dirty {
            Dirty::NodeClass(name) => Self::NodeClass(name),
            Dirty::NodePool(name) => Self::NodePool(name),
            Dirty::Node(name) => Self::Node(name),
            Dirty::NodeClaim(name) => Self::NodeClaim(name),
            Dirty::Overlays => Self::Overlays,
            Dirty::PendingPod | Dirty::Provisioning => Self::Provisioning,
            Dirty::Disruption => Self::Disruption,
        }
    }
}

/// Runs all controllers until `shutdown`. Reconciles that are under way then are dropped: each of
/// them survives a crash at any point.
pub async fn run(context: &Context, shutdown: impl Future<Output = ()>) {
    let mut shutdown = std::pin::pin!(shutdown);
    let mut updates = watch_cluster(&context.client);
    if context.settings.engine.default_spread.is_empty() {
        for kind in WORKLOAD_SELECTOR_KINDS {
            context.index().mark_synced(Kind::Workload(kind));
        }
    } else {
        updates.extend(watch_workload_selectors(&context.client));
    }
    let mut driver = Driver { context, queue: WorkQueue::new() };
    let mut running = FuturesUnordered::new();
    driver.add(Key::Disruption);
    driver.add(Key::GarbageCollection);
    loop {
        driver.enqueue_dirty();
        let due = driver.queue.next_due().filter(|_| running.len() < MAX_RUNNING);
        tokio::select! {
            biased;
            () = &mut shutdown => break,
            Some(update) = updates.next() => driver.apply(update),
            Some((key, outcome)) = running.next() => driver.finish(key, outcome),
            () = wait_until(due) => {
                if let Some(key) = driver.queue.pop(Instant::now()) {
                    running.push(async move {
                        let outcome = reconcile(context, &key).await;
                        (key, outcome)
                    });
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

async fn reconcile(context: &Context, key: &Key) -> Outcome {
    match key {
        Key::NodeClass(name) => nodeclass::reconcile(context, name).await,
        Key::NodePool(name) => nodepool::reconcile(context, name).await,
        Key::Node(name) => node::termination::reconcile(context, name).await,
        Key::NodeClaim(name) => nodeclaim::reconcile(context, name).await,
        Key::Overlays => nodeoverlay::reconcile(context).await,
        Key::Provisioning => provisioning::reconcile(context).await,
        Key::Disruption => disruption::reconcile(context).await,
        Key::GarbageCollection => garbage_collection::reconcile(context).await,
    }
}

struct Driver<'a> {
    context: &'a Context,
    queue: WorkQueue<Key>,
}

impl Driver<'_> {
    fn add(&mut self, key: Key) {
        self.queue.add(key, Instant::now());
    }

    fn apply(&mut self, update: Update) {
        update(&mut self.context.index(), self.context.clock.now());
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

    fn finish(&mut self, key: Key, outcome: Outcome) {
        let now = Instant::now();
        match outcome {
            Ok(next) => {
                let next = next
                    .map(|wait| now + self.context.clock.real(wait).max(Duration::from_millis(1)));
                self.queue.succeeded(key, next);
            }
            Err(error) => {
                let what = format!("{key:?}");
                let wait = self.queue.failed(key, now);
                tracing::warn!(key = what, %error, ?wait, "reconcile failed, retrying");
            }
        }
    }
}
