//! Cluster components other than nap: kube-controller-manager, kube-scheduler, cloud controller and
//! kubelets, as far as a node provisioner can tell the difference.
//!
//! ```text
//! watches ──► index ──► one pass: workloads, kubelets, budgets, scheduler ──► API server
//!               ▲                                                                 │
//!               └──────────────────── responses of the writes ◄───────────────────┘
//! ```
//!
//! Everything runs in one task. All events are applied before a pass, a pass visits objects in key
//! order, and its writes are in the index before the next step reads it: the same events in the
//! same order lead to the same writes.
//!
//! Not implemented: StatefulSets and Jobs (their objects can be stored, but get no pods), and the
//! eviction of running pods for a later `NoExecute` taint.

mod disruption_budgets;
mod index;
mod kubelets;
mod pods;
mod scheduler;
mod workloads;
mod write;

use std::convert::Infallible;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use nap_clock::Clock;
use tokio::sync::mpsc;

use crate::vm_events::VmEvent;
use index::{Index, News};
use kubelets::Kubelets;
use write::Writer;

/// Delay after a watch or a write failed unexpectedly.
const RETRY: Duration = Duration::from_secs(1);

/// Runs the components until the future is dropped.
pub async fn run(client: Client, clock: Clock, machines: mpsc::Receiver<VmEvent>) -> Infallible {
    let mut news = News::new(&client);
    let mut index = Index::default();
    let mut machines = Some(machines);
    let mut kubelets = Kubelets::default();
    let mut tried = scheduler::Tried::default();
    let mut writer = Writer::new(client, clock.clone());
    let mut wake: Option<Timestamp> = None;
    loop {
        tokio::select! {
            biased;
            event = news.next() => {
                if !index.apply(event) {
                    clock.sleep(RETRY).await;
                }
            }
            event = next_machine(&mut machines) => match event {
                Some(event) => kubelets.apply(event, clock.now()),
                None => machines = None,
            },
            () = sleep_until(&clock, wake) => {}
        }
        while let Some(event) = news.ready() {
            index.apply(event);
        }
        while let Some(event) = machines.as_mut().and_then(|machines| machines.try_recv().ok()) {
            kubelets.apply(event, clock.now());
        }
        if !index.is_complete() {
            continue;
        }
        workloads::pass(&mut index, &mut writer).await;
        wake = kubelets.pass(&mut index, &mut writer).await;
        let expiry = disruption_budgets::pass(&mut index, &mut writer).await;
        scheduler::pass(&mut index, &mut writer, &mut tried).await;
        wake = earliest(wake, expiry);
        if writer.take_trouble() {
            let retry = clock.now().checked_add(jiff::SignedDuration::from_secs(1)).ok();
            wake = earliest(wake, retry);
        }
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
