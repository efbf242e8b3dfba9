//! Kubelets, one per VM: registers the Node after boot, reports it ready, runs its pods, ends with
//! the VM.
//!
//! Also the parts of the node lifecycle controller, the cloud controller and pod garbage collection
//! that matter: the not-ready taint is removed from ready nodes, and the Node and pods of a deleted
//! VM are removed. Containers never finish by themselves.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use nap_units::Resources;
use serde_json::{Value, json};

use super::index::{Index, Key, key};
use super::write::Writer;
use super::{earliest, pods};
use crate::vm_events::VmEvent;

/// Time from registration until the Node is ready: network plugin, first status.
const READY_AFTER: SignedDuration = SignedDuration::from_secs(5);
/// Time from binding a pod until it runs.
const START_AFTER: SignedDuration = SignedDuration::from_secs(2);
/// Time from the deletion request of a pod until its containers have stopped.
const STOP_AFTER: SignedDuration = SignedDuration::from_secs(1);
const NOT_READY: &str = "node.kubernetes.io/not-ready";
const KUBELET_VERSION: &str = "v1.34.2";

#[derive(Debug, PartialEq, Eq)]
enum Life {
    Booting(Timestamp),
    Joined { ready_at: Timestamp },
    Ready,
}

#[derive(Debug)]
struct Vm {
    provider_id: String,
    node: Node,
    life: Life,
}

/// All kubelets.
#[derive(Debug, Default)]
pub(super) struct Kubelets {
    /// Running VMs by node name.
    vms: BTreeMap<String, Vm>,
    /// Nodes of deleted VMs whose objects may still exist: provider id by node name.
    dead: BTreeMap<String, String>,
    /// Time of the next step of a pod, by its uid and the step.
    due: BTreeMap<String, Timestamp>,
    addresses: u32,
}

impl Kubelets {
    /// Records a VM event.
    pub(super) fn apply(&mut self, event: VmEvent, now: Timestamp) {
        match event {
            VmEvent::Created {
                provider_id,
                node_name,
                labels,
                taints,
                capacity,
                allocatable,
                boot,
            } => {
                let boot = SignedDuration::try_from(boot).unwrap_or_default();
                let joins = now.checked_add(boot).unwrap_or(now);
                self.addresses += 1;
                let address = address("10.224", self.addresses);
                let node = json!({
                    "metadata": { "name": node_name, "labels": labels },
                    "spec": { "providerID": provider_id, "taints": taints },
                    "status": {
                        "capacity": amounts(&capacity),
                        "allocatable": amounts(&allocatable),
                        "addresses": [
                            { "type": "InternalIP", "address": address },
                            { "type": "Hostname", "address": node_name },
                        ],
                        "nodeInfo": node_info(&labels),
                    },
                });
                match serde_json::from_value(node) {
                    Ok(node) => {
                        self.dead.remove(&node_name);
                        let life = Life::Booting(joins);
                        self.vms.insert(node_name, Vm { provider_id, node, life });
                    }
                    Err(error) => {
                        tracing::error!(%error, node = node_name, "invalid Node object");
                    }
                }
            }
            VmEvent::Deleted { provider_id, node_name } => {
                let known =
                    self.vms.get(&node_name).is_some_and(|vm| vm.provider_id == provider_id);
                if known {
                    self.vms.remove(&node_name);
                }
                self.dead.insert(node_name, provider_id);
            }
        }
    }

    /// Takes every step that is due; returns when the next one is.
    pub(super) async fn pass(
        &mut self,
        index: &mut Index,
        writer: &mut Writer,
    ) -> Option<Timestamp> {
        self.bury(index, writer).await;
        let mut wake = None;
        for (name, vm) in &mut self.vms {
            wake = earliest(wake, live(name, vm, index, writer).await);
        }
        earliest(wake, self.run_pods(index, writer).await)
    }

    /// Removes the Nodes and pods of deleted VMs.
    async fn bury(&mut self, index: &mut Index, writer: &mut Writer) {
        for (name, provider_id) in self.dead.clone() {
            for pod in index.pods.snapshot().iter().filter(|pod| pods::node_of(pod) == name) {
                writer.delete(&mut index.pods, pod, Some(0)).await;
            }
            let node = index.nodes.get(&(String::new(), name.clone())).cloned();
            let ours = node.filter(|node| provider_id_of(node) == provider_id);
            match ours {
                Some(node) if node.metadata.deletion_timestamp.is_none() => {
                    writer.delete_node(&mut index.nodes, &name).await;
                }
                Some(_) => {}
                None => {
                    self.dead.remove(&name);
                }
            }
        }
    }

    async fn run_pods(&mut self, index: &mut Index, writer: &mut Writer) -> Option<Timestamp> {
        let now = writer.now();
        let mut due = BTreeMap::new();
        for pod in index.pods.snapshot() {
            let Some(vm) = self.vms.get(pods::node_of(&pod)) else { continue };
            let (Life::Ready, Some(uid)) = (&vm.life, pod.uid()) else { continue };
            let deleting = pods::is_deleting(&pod);
            let waiting = !deleting && pods::phase(&pod) == "Pending";
            if !deleting && !waiting {
                continue;
            }
            // Starting and stopping have separate timers: a deletion cancels the start.
            let slot = format!("{uid}/{}", if deleting { "stop" } else { "start" });
            let at = if let Some(at) = self.due.get(&slot) {
                *at
            } else {
                if waiting {
                    start(&pod, &vm.node, index, writer).await;
                }
                let delay = if deleting { STOP_AFTER } else { START_AFTER };
                now.checked_add(delay).unwrap_or(now)
            };
            if at > now {
                due.insert(slot, at);
            } else if deleting {
                writer.delete(&mut index.pods, &pod, Some(0)).await;
            } else {
                self.addresses += 1;
                let address = address("10.244", self.addresses);
                running(&pod, &address, index, writer).await;
            }
        }
        self.due = due;
        self.due.values().min().copied()
    }
}

/// Takes the next step of one VM; returns when there will be another.
async fn live(
    name: &str,
    vm: &mut Vm,
    index: &mut Index,
    writer: &mut Writer,
) -> Option<Timestamp> {
    let now = writer.now();
    if let Life::Booting(joins) = vm.life {
        if joins > now {
            return Some(joins);
        }
        let mut node = vm.node.clone();
        let status = node.status.get_or_insert_default();
        status.conditions = serde_json::from_value(conditions(&writer.stamp(), false)).ok();
        if !writer.create_node(&mut index.nodes, &node).await {
            return now.checked_add(READY_AFTER).ok();
        }
        vm.life = Life::Joined { ready_at: now.checked_add(READY_AFTER).unwrap_or(now) };
    }
    if let Life::Joined { ready_at } = vm.life {
        if ready_at > now {
            return Some(ready_at);
        }
        let status = json!({ "status": { "conditions": conditions(&writer.stamp(), true) } });
        writer.patch_node(&mut index.nodes, name, &status, true).await;
        vm.life = Life::Ready;
    }
    drop_not_ready(name, index, writer).await;
    None
}

/// Removes the not-ready taint, as the node lifecycle controller does.
async fn drop_not_ready(name: &str, index: &mut Index, writer: &mut Writer) {
    let Some(node) = index.nodes.get(&(String::new(), name.to_owned())).cloned() else { return };
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    let Some(taints) = taints.filter(|taints| taints.iter().any(|taint| taint.key == NOT_READY))
    else {
        return;
    };
    let kept: Vec<_> = taints.iter().filter(|taint| taint.key != NOT_READY).collect();
    let patch = json!({
        "metadata": { "resourceVersion": node.resource_version() },
        "spec": { "taints": kept },
    });
    writer.patch_node(&mut index.nodes, name, &patch, false).await;
}

async fn start(pod: &Pod, node: &Node, index: &mut Index, writer: &mut Writer) {
    let stamp = writer.stamp();
    let host = node.status.as_ref().and_then(|status| status.addresses.as_ref());
    let host = host.and_then(|addresses| addresses.first()).map(|address| address.address.clone());
    let status = json!({
        "startTime": stamp, "hostIP": host,
        "conditions": [
            { "type": "Initialized", "status": "True", "lastTransitionTime": stamp },
            { "type": "Ready", "status": "False", "reason": "ContainersNotReady", "lastTransitionTime": stamp },
            { "type": "ContainersReady", "status": "False", "reason": "ContainersNotReady", "lastTransitionTime": stamp },
        ],
        "containerStatuses": containers(pod, false, &json!({ "waiting": { "reason": "ContainerCreating" } })),
    });
    writer.patch_status(&mut index.pods, &key(pod), &status).await;
}

async fn running(pod: &Pod, address: &str, index: &mut Index, writer: &mut Writer) {
    let stamp = writer.stamp();
    let of: Key = key(pod);
    let status = json!({
        "phase": "Running", "podIP": address, "podIPs": [{ "ip": address }],
        "conditions": [
            { "type": "Ready", "status": "True", "reason": null, "lastTransitionTime": stamp },
            { "type": "ContainersReady", "status": "True", "reason": null, "lastTransitionTime": stamp },
        ],
        "containerStatuses": containers(pod, true, &json!({ "running": { "startedAt": stamp } })),
    });
    writer.patch_status(&mut index.pods, &of, &status).await;
}

fn containers(pod: &Pod, ready: bool, state: &Value) -> Vec<Value> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers
        .map(|container| {
            json!({
                "name": container.name, "image": container.image, "imageID": "", "restartCount": 0,
                "ready": ready, "started": ready, "state": state,
            })
        })
        .collect()
}

fn conditions(stamp: &str, ready: bool) -> Value {
    let condition = |kind: &str, status: bool, reason: &str, message: &str| {
        json!({
            "type": kind, "status": if status { "True" } else { "False" }, "reason": reason,
            "message": message, "lastHeartbeatTime": stamp, "lastTransitionTime": stamp,
        })
    };
    let (reason, message) = if ready {
        ("KubeletReady", "kubelet is posting ready status")
    } else {
        ("KubeletNotReady", "container runtime network not ready")
    };
    json!([
        condition(
            "MemoryPressure",
            false,
            "KubeletHasSufficientMemory",
            "kubelet has sufficient memory available"
        ),
        condition(
            "DiskPressure",
            false,
            "KubeletHasNoDiskPressure",
            "kubelet has no disk pressure"
        ),
        condition(
            "PIDPressure",
            false,
            "KubeletHasSufficientPID",
            "kubelet has sufficient PID available"
        ),
        condition("Ready", ready, reason, message),
    ])
}

fn node_info(labels: &BTreeMap<String, String>) -> Value {
    let label =
        |key: &str, fallback: &str| labels.get(key).cloned().unwrap_or_else(|| fallback.to_owned());
    json!({
        "architecture": label("kubernetes.io/arch", "amd64"),
        "operatingSystem": label("kubernetes.io/os", "linux"),
        "kubeletVersion": KUBELET_VERSION, "kubeProxyVersion": KUBELET_VERSION,
        "osImage": "Ubuntu 22.04 LTS", "kernelVersion": "5.15.0", "containerRuntimeVersion": "containerd://1.7.0",
        "bootID": "", "machineID": "", "systemUUID": "",
    })
}

fn amounts(resources: &Resources) -> BTreeMap<String, String> {
    resources
        .to_quantities()
        .into_iter()
        .map(|(name, quantity)| (name, quantity.to_string()))
        .collect()
}

fn address(network: &str, number: u32) -> String {
    format!("{network}.{}.{}", number / 250 % 250, number % 250 + 1)
}

fn provider_id_of(node: &Arc<Node>) -> &str {
    node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()).unwrap_or_default()
}
