//! The kubelets of emulated VMs, against any API server.
//!
//! ```text
//!  VmEvents ───────┐
//!  Nodes, pods ────┴──► state ──► due work ──► writes, at most 32 at once ──► API server
//!                         ▲                      │
//!                         └────── outcomes ◄─────┘
//! ```
//!
//! One task runs the kubelets of all VMs. A kubelet registers its Node after the boot of its VM,
//! reports it ready, keeps its Lease, runs the pods bound to it and stops them within their grace
//! period. No container runs: a started pod is Running and Ready until it is deleted, or, if it is
//! not restarted for ever, until its time is over. Beside the kubelets, [`run`] does what the cloud
//! controller manager does: it deletes the Node of a VM that is gone.
//!
//! Every write follows from the order of the events and the [`Clock`], so two runs on a paused
//! clock are equal.

mod by_hand;
mod cloud_nodes;
mod due;
mod node;
mod pod;
mod state;
mod vm_event;
mod watches;
mod write;

use std::convert::Infallible;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream;
use jiff::Timestamp;
use kube::Client;
use nap_clock::Clock;
use tokio::sync::mpsc;

use state::State;
pub use vm_event::VmEvent;
use watches::Watches;

/// Delay after a watch or a write failed.
const RETRY: Duration = Duration::from_secs(1);
/// Maximum number of writes in flight.
const MAX_WRITES: usize = 32;

/// Timing of the kubelets.
#[derive(Clone, Debug)]
pub struct KubeletConfig {
    /// Time from registration until the Node is ready: network plugin, first status.
    pub ready_after: Duration,
    /// Time from binding a pod until its containers run.
    pub pod_start: Duration,
    /// Time that containers need to stop, after their preStop hooks.
    pub pod_stop: Duration,
    /// Intervals of Lease and status updates; `None` in simulations, whose hours would be filled
    /// with heartbeats.
    pub heartbeats: Option<Heartbeats>,
    /// Whether a node lifecycle controller marks Nodes without heartbeats, so that the Node of a VM
    /// that is gone stays until then.
    pub is_monitored: bool,
    /// Whether a Node that was made by hand gets a kubelet, which ends with it. Only where no other
    /// kubelets can come.
    pub adopts_nodes: bool,
    /// Kubernetes version of the kubelets, such as `v1.34.2`.
    pub version: String,
}

/// Intervals of the signs of life.
#[derive(Clone, Copy, Debug)]
pub struct Heartbeats {
    /// Renewal of the Lease in `kube-node-lease`. A Node status that another client changed is
    /// corrected at the same interval.
    pub lease: Duration,
    /// Update of an unchanged Node status.
    pub status: Duration,
}

impl Default for KubeletConfig {
    /// The timing of AKS nodes, with the intervals of a real kubelet.
    fn default() -> Self {
        Self {
            ready_after: Duration::from_secs(5),
            pod_start: Duration::from_secs(2),
            pod_stop: Duration::from_secs(1),
            heartbeats: Some(Heartbeats {
                lease: Duration::from_secs(10),
                status: Duration::from_mins(5),
            }),
            is_monitored: true,
            adopts_nodes: false,
            version: "v1.34.2".to_owned(),
        }
    }
}

/// Runs the kubelets of all VMs until the future is dropped.
pub async fn run(
    client: Client,
    clock: Clock,
    config: KubeletConfig,
    vms: mpsc::Receiver<VmEvent>,
) -> Infallible {
    let mut watches = Watches::new(&client);
    let mut vms = Some(vms);
    let mut state = State::new(config);
    loop {
        tokio::select! {
            biased;
            change = watches.next() => {
                if !state.apply(change, clock.now()) {
                    clock.sleep(RETRY).await;
                }
            }
            event = next_vm(&mut vms) => match event {
                Some(event) => state.apply_vm(event, clock.now()),
                None => vms = None,
            },
            () = sleep_until(&clock, state.next_due()) => {}
        }
        loop {
            while let Some(change) = watches.ready() {
                state.apply(change, clock.now());
            }
            while let Some(event) = vms.as_mut().and_then(|vms| vms.try_recv().ok()) {
                state.apply_vm(event, clock.now());
            }
            if !state.is_complete() {
                break;
            }
            let writes = state.due_writes(clock.now());
            if writes.is_empty() {
                break;
            }
            let outcomes: Vec<_> = stream::iter(writes)
                .map(|(work, write)| {
                    let client = client.clone();
                    async move { (work, write::perform(client, write).await) }
                })
                .buffered(MAX_WRITES)
                .collect()
                .await;
            for (work, outcome) in outcomes {
                state.settle(&work, outcome, clock.now());
            }
        }
    }
}

async fn next_vm(vms: &mut Option<mpsc::Receiver<VmEvent>>) -> Option<VmEvent> {
    match vms {
        Some(vms) => vms.recv().await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(clock: &Clock, when: Option<Timestamp>) {
    match when {
        Some(when) => clock.sleep_until(when).await,
        None => std::future::pending().await,
    }
}
