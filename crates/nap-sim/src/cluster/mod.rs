//! Cluster components other than nap: kube-controller-manager and kube-scheduler, as far as a node
//! provisioner can tell the difference, beside the kubelets of [`nap_kubelets`].
//!
//! ```text
//! watches ──► index ──► one pass: workloads, nodes, storage, ──► API server
//!               ▲       budgets, services, scheduler               │
//!               └────────── responses of the writes ◄──────────────┘
//! ```
//!
//! Everything runs in one task. All events are applied before a pass, a pass visits objects in key
//! order, and its writes are in the index before the next step reads it: the same events in the
//! same order lead to the same writes.
//!
//! Not implemented: ReplicationControllers (they can be stored, but get no pods), preemption, and
//! the eviction of running pods for a later `NoExecute` taint.

mod disruption_budgets;
mod index;
mod node_lifecycle;
mod pods;
mod scheduler;
mod services;
mod storage;
mod workloads;
mod write;

use std::convert::Infallible;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use nap_clock::Clock;
use nap_kubelets::{KubeletConfig, VmEvent};
use tokio::sync::mpsc;

use index::{Index, News};
use node_lifecycle::GoneVms;
pub use scheduler::verdict::{SchedulingObjects, Verdict, verdict};
pub use storage::storage_classes;
use workloads::Autoscaling;
use write::Writer;

/// Maximum number of VM events that wait for the kubelets.
const MAX_WAITING_EVENTS: usize = 1024;

/// Delay after a watch or a write failed unexpectedly.
const RETRY: Duration = Duration::from_secs(1);

/// Runs the components and the kubelets until the future is dropped.
pub async fn run(client: Client, clock: Clock, machines: mpsc::Receiver<VmEvent>) -> Infallible {
    run_with(client, clock, machines, Vec::new()).await
}

/// Runs the components and the kubelets, with machines that are there from the start.
pub async fn run_with(
    client: Client,
    clock: Clock,
    machines: mpsc::Receiver<VmEvent>,
    fixed: Vec<VmEvent>,
) -> Infallible {
    let (vms, events) = mpsc::channel(MAX_WAITING_EVENTS);
    let config = KubeletConfig { heartbeats: None, ..KubeletConfig::default() };
    let kubelets = nap_kubelets::run(client.clone(), clock.clone(), config, events);
    tokio::select! {
        biased;
        never = components(client, clock, machines, vms, fixed) => never,
        never = kubelets => never,
    }
}

async fn components(
    client: Client,
    clock: Clock,
    machines: mpsc::Receiver<VmEvent>,
    vms: mpsc::Sender<VmEvent>,
    fixed: Vec<VmEvent>,
) -> Infallible {
    let mut news = News::new(&client);
    let mut index = Index::default();
    let mut machines = Some(machines);
    let mut gone = GoneVms::default();
    for event in fixed {
        forward(event, &mut gone, &vms).await;
    }
    let mut tried = scheduler::Tried::default();
    let mut autoscaling = Autoscaling::default();
    let mut writer = Writer::new(client, clock.clone());
    let mut wake: Option<Timestamp> = None;
    loop {
        tokio::select! {
            biased;
            event = news.next() => {
                if !event(&mut index) {
                    clock.sleep(RETRY).await;
                }
            }
            event = next_machine(&mut machines) => match event {
                Some(event) => forward(event, &mut gone, &vms).await,
                None => machines = None,
            },
            () = sleep_until(&clock, wake) => {}
        }
        while let Some(event) = news.ready() {
            event(&mut index);
        }
        while let Some(event) = machines.as_mut().and_then(|machines| machines.try_recv().ok()) {
            forward(event, &mut gone, &vms).await;
        }
        if !index.is_complete() {
            continue;
        }
        wake = workloads::pass(&mut index, &mut writer, &mut autoscaling).await;
        wake = earliest(wake, node_lifecycle::pass(&mut gone, &mut index, &mut writer).await);
        storage::pass(&mut index, &mut writer).await;
        wake = earliest(wake, disruption_budgets::pass(&mut index, &mut writer).await);
        services::pass(&mut index, &mut writer).await;
        scheduler::pass(&mut index, &mut writer, &mut tried).await;
        wake = earliest(wake, writer.take_retry());
    }
}

/// Records a VM event and gives it to the kubelets.
async fn forward(event: VmEvent, gone: &mut GoneVms, vms: &mpsc::Sender<VmEvent>) {
    gone.apply(&event);
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
