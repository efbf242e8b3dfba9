//! Cluster components other than nap: kube-controller-manager and kube-scheduler, as far as a node
//! provisioner can tell the difference, beside the kubelets of [`nap_kubelets`].
//!
//! ```text
//! watches ──► index ──► one pass: workloads, nodes, storage, ──► API server
//!               ▲       budgets, services, scheduler               │
//!               └────────── responses of the writes ◄──────────────┘
//! ```
//!
//! Everything runs in one task. All events are applied before a pass, a pass visits the objects
//! that have changed in key order, and its writes are in the index before the next step reads it:
//! the same events in the same order lead to the same writes. Passes follow each other until one
//! changes nothing.
//!
//! Not implemented: ReplicationControllers (they can be stored, but get no pods) and preemption.

mod disruption_budgets;
mod index;
mod node_lifecycle;
mod pods;
mod scheduler;
mod services;
mod similar_events;
mod storage;
mod taint_eviction;
mod workloads;
mod write;

use std::convert::Infallible;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use nap_clock::Clock;
use nap_kubelets::{Heartbeats, KubeletConfig, VmEvent};
use tokio::sync::mpsc;

use disruption_budgets::DisruptionBudgets;
use index::{Index, News};
use node_lifecycle::NodeLifecycle;
use scheduler::Scheduler;
pub use scheduler::verdict::{SchedulingObjects, Verdict, verdict};
use services::Services;
pub use storage::storage_classes;
use taint_eviction::TaintEviction;
use workloads::Workloads;
use write::{CONTROLLERS, SCHEDULER, Writer};

/// Maximum number of VM events that wait for the kubelets.
const MAX_WAITING_EVENTS: usize = 1024;

/// Delay after a watch or a write failed unexpectedly.
const RETRY: Duration = Duration::from_secs(1);

/// Runs the components and the kubelets until the future is dropped.
pub async fn run(client: Client, clock: Clock, machines: mpsc::Receiver<VmEvent>) -> Infallible {
    run_with(client, clock, machines, Vec::new(), ForUsers::default()).await
}

/// Writes that only people see, and that a simulation therefore leaves out.
#[derive(Clone, Copy, Debug, Default)]
pub struct ForUsers {
    /// How often nodes renew their Leases; `None` for nodes without.
    pub heartbeats: Option<Heartbeats>,
    /// Whether controllers publish what they do for workloads as events.
    pub workload_events: bool,
}

/// Runs the components and the kubelets, with machines that are there from the start.
pub async fn run_with(
    client: Client,
    clock: Clock,
    machines: mpsc::Receiver<VmEvent>,
    fixed: Vec<VmEvent>,
    for_users: ForUsers,
) -> Infallible {
    let (vms, events) = mpsc::channel(MAX_WAITING_EVENTS);
    let config = KubeletConfig {
        heartbeats: for_users.heartbeats,
        is_monitored: false,
        adopts_nodes: true,
        ..KubeletConfig::default()
    };
    let kubelets = nap_kubelets::run(client.clone(), clock.clone(), config, events);
    tokio::select! {
        biased;
        never = components(client, clock, machines, vms, fixed, for_users) => never,
        never = kubelets => never,
    }
}

async fn components(
    client: Client,
    clock: Clock,
    machines: mpsc::Receiver<VmEvent>,
    vms: mpsc::Sender<VmEvent>,
    fixed: Vec<VmEvent>,
    for_users: ForUsers,
) -> Infallible {
    let mut news = News::new(&client);
    let mut index = Index::default();
    let mut machines = Some(machines);
    let mut controllers = Controllers::default();
    for event in fixed {
        forward(event, &mut controllers.nodes, &vms).await;
    }
    let mut writer = Writer::new(client, clock.clone(), for_users.workload_events);
    let mut wake: Option<Timestamp> = None;
    let mut is_behind = false;
    loop {
        if !is_behind {
            tokio::select! {
                biased;
                event = news.next() => {
                    if !event(&mut index) {
                        clock.sleep(RETRY).await;
                    }
                }
                event = next_machine(&mut machines) => match event {
                    Some(event) => forward(event, &mut controllers.nodes, &vms).await,
                    None => machines = None,
                },
                () = sleep_until(&clock, wake) => {}
            }
        }
        while let Some(event) = news.ready() {
            event(&mut index);
        }
        while let Some(event) = machines.as_mut().and_then(|machines| machines.try_recv().ok()) {
            forward(event, &mut controllers.nodes, &vms).await;
        }
        if index.is_complete() {
            let before = index.positions();
            wake = controllers.pass(&mut index, &mut writer).await;
            is_behind = index.positions() != before;
            index.forget_before(&before);
        }
    }
}

/// All controllers, and what they remember between passes.
#[derive(Default)]
struct Controllers {
    workloads: Workloads,
    nodes: NodeLifecycle,
    evictions: TaintEviction,
    budgets: DisruptionBudgets,
    services: Services,
    scheduler: Scheduler,
    /// When a write that failed is tried again.
    retry: Option<Timestamp>,
}

impl Controllers {
    /// One turn of each controller; returns when the next one is due without a change.
    async fn pass(&mut self, index: &mut Index, writer: &mut Writer) -> Option<Timestamp> {
        let all = self.retry.take_if(|at| *at <= writer.now()).is_some();
        let mut wake = self.workloads.pass(index, writer, all).await;
        wake = earliest(wake, self.nodes.pass(index, writer, all).await);
        wake = earliest(wake, self.evictions.pass(index, writer, all).await);
        storage::pass(index, writer, all).await;
        wake = earliest(wake, self.budgets.pass(index, writer, all).await);
        self.services.pass(index, writer, all).await;
        writer.act_as(SCHEDULER);
        wake = earliest(wake, self.scheduler.pass(index, writer, all).await);
        writer.act_as(CONTROLLERS);
        self.retry = earliest(self.retry, writer.take_retry());
        earliest(wake, self.retry)
    }
}

/// Records a VM event and gives it to the kubelets.
async fn forward(event: VmEvent, nodes: &mut NodeLifecycle, vms: &mpsc::Sender<VmEvent>) {
    nodes.apply(&event);
    if vms.send(event).await.is_err() {
        tracing::error!("the kubelets have stopped");
    }
}

fn earliest(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

async fn next_machine(machines: &mut Option<mpsc::Receiver<VmEvent>>) -> Option<VmEvent> {
    match machines {
        Some(machines) => machines.recv().await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(clock: &Clock, when: Option<Timestamp>) {
    match when {
        Some(when) => clock.sleep_until(when).await,
        None => std::future::pending().await,
    }
}
