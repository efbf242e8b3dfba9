//! VMs, Nodes, pods and the work that is due for them. Synchronous: events and outcomes in, writes
//! out.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::runtime::watcher::Event;
use serde_json::json;

use crate::by_hand;
use crate::cloud_nodes::GoneVms;
use crate::due::{Due, PodKey, Work};
use crate::node::{self, Machine, Reported};
use crate::vm_event::VmEvent;
use crate::watches::Change;
use crate::write::{Outcome, Write};
use crate::{KubeletConfig, RETRY, pod};

/// Longest pause between two attempts to register a Node, as of a real kubelet.
const MAX_BACKOFF: Duration = Duration::from_secs(7);
/// Pause before containers that failed are started again; it doubles each time.
const CRASH_BACKOFF: Duration = Duration::from_secs(10);
const MAX_CRASH_BACKOFF: Duration = Duration::from_mins(5);
/// Maximum number of writes between two looks at the watches.
const MAX_BATCH: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Booting { attempts: u32 },
    Joined,
    Ready,
}

#[derive(Debug)]
struct Vm {
    machine: Machine,
    boots: u32,
    life: Life,
    /// Conditions that were reported, by type.
    reported: BTreeMap<String, Reported>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    New,
    Starting(Timestamp),
    Running,
    /// The containers have ended by themselves.
    Ended,
    Stopped,
}

/// A pod as its kubelet runs it.
#[derive(Debug)]
struct Run {
    uid: Option<String>,
    step: Step,
    /// Time when the kubelet saw the deletion.
    stop_began: Option<Timestamp>,
    restarts: u32,
    /// When the containers end by themselves; `None` before they run, and if they do not.
    ends: Option<Timestamp>,
}

/// The state of all kubelets.
#[derive(Debug)]
pub(crate) struct State {
    config: KubeletConfig,
    /// Running VMs by Node name.
    vms: BTreeMap<String, Vm>,
    gone: GoneVms,
    nodes: BTreeMap<String, Node>,
    pods: BTreeMap<PodKey, Pod>,
    runs: BTreeMap<PodKey, Run>,
    /// Keys of an unfinished list.
    listed_nodes: BTreeSet<String>,
    listed_pods: BTreeSet<PodKey>,
    /// Whether Nodes and pods were listed once.
    complete: (bool, bool),
    due: Due,
    addresses: u32,
}

impl State {
    pub(crate) fn new(config: KubeletConfig) -> Self {
        Self {
            config,
            vms: BTreeMap::new(),
            gone: GoneVms::default(),
            nodes: BTreeMap::new(),
            pods: BTreeMap::new(),
            runs: BTreeMap::new(),
            listed_nodes: BTreeSet::new(),
            listed_pods: BTreeSet::new(),
            complete: (false, false),
            due: Due::default(),
            addresses: 0,
        }
    }

    /// Whether both kinds were listed once.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete == (true, true)
    }

    /// Time of the next work; `None` before the first lists are complete.
    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        self.due.first().filter(|_| self.is_complete())
    }

    /// Records a VM event.
    pub(crate) fn apply_vm(&mut self, event: VmEvent, now: Timestamp) {
        match event {
            VmEvent::Created {
                provider_id,
                node_name: name,
                labels,
                taints,
                capacity,
                allocatable,
                boot,
            } => {
                self.gone.remove(&name);
                let address = self.address("10.224");
                let version = self.config.version.clone();
                let machine = Machine {
                    provider_id,
                    name,
                    labels,
                    taints,
                    capacity,
                    allocatable,
                    address,
                    version,
                };
                self.start(machine, boot, now);
            }
            VmEvent::Condition { node_name: name, condition, status, reason, message } => {
                let Some(vm) = self.vms.get_mut(&name) else { return };
                vm.reported.insert(condition, Reported { status, reason, message });
                self.due.at(now, Work::Status(name));
            }
            VmEvent::Rebooted { node_name: name, boot } => {
                let Some(vm) = self.vms.get_mut(&name) else { return };
                vm.boots += 1;
                vm.life = Life::Booting { attempts: 0 };
                self.due.at(after(now, boot), Work::Vm(name.clone()));
                let on_node = |(key, _): &(&PodKey, &mut Run)| {
                    self.pods.get(*key).is_some_and(|pod| pod::node_name(pod) == name)
                };
                for (_, run) in self.runs.iter_mut().filter(on_node) {
                    if run.step == Step::Running {
                        (run.step, run.restarts) = (Step::New, run.restarts + 1);
                    }
                }
            }
            VmEvent::Deleted { provider_id, node_name: name } => {
                let known = self.vms.get(&name).filter(|vm| vm.machine.provider_id == provider_id);
                let registered = known.is_some_and(|vm| !matches!(vm.life, Life::Booting { .. }));
                if known.is_some() {
                    self.stop(&name);
                }
                let coming = registered && !self.nodes.contains_key(&name);
                self.gone.insert(name.clone(), provider_id, coming);
                self.due.at(now, Work::GoneVm(name));
            }
        }
    }

    /// Starts the kubelet of a machine.
    fn start(&mut self, machine: Machine, boot: Duration, now: Timestamp) {
        let name = machine.name.clone();
        self.due.at(after(now, boot), Work::Vm(name.clone()));
        let life = Life::Booting { attempts: 0 };
        self.vms.insert(name, Vm { machine, boots: 1, life, reported: BTreeMap::new() });
    }

    fn stop(&mut self, name: &str) {
        self.vms.remove(name);
        for work in [Work::Vm, Work::Lease, Work::Status] {
            self.due.cancel(&work(name.to_owned()));
        }
    }

    /// Ends the kubelet of a Node that was made by hand and is gone.
    fn release(&mut self, name: &str) {
        if self.vms.get(name).is_some_and(|vm| vm.machine.is_by_hand()) {
            self.stop(name);
        }
    }

    /// Applies one watch event; returns false if the watch failed.
    pub(crate) fn apply(&mut self, change: Change, now: Timestamp) -> bool {
        match change {
            Change::Node(event) => self.apply_node(*event, now),
            Change::Pod(event) => self.apply_pod(*event, now),
            Change::Failure(error) => {
                tracing::warn!(%error, "watch failed");
                return false;
            }
        }
        true
    }

    fn apply_node(&mut self, event: Event<Node>, now: Timestamp) {
        match event {
            Event::Init => self.listed_nodes.clear(),
            Event::InitApply(node) => {
                self.listed_nodes.insert(node.name_any());
                self.put_node(node, now);
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listed_nodes);
                let gone = self.nodes.keys().filter(|name| !listed.contains(*name));
                for name in gone.cloned().collect::<Vec<_>>() {
                    self.nodes.remove(&name);
                    self.release(&name);
                }
                self.complete.0 = true;
            }
            Event::Apply(node) => self.put_node(node, now),
            Event::Delete(node) => {
                let name = node.name_any();
                self.nodes.remove(&name);
                self.gone.remove(&name);
                self.release(&name);
            }
        }
    }

    fn apply_pod(&mut self, event: Event<Pod>, now: Timestamp) {
        match event {
            Event::Init => self.listed_pods.clear(),
            Event::InitApply(pod) => {
                self.listed_pods.insert(key(&pod));
                self.put_pod(pod, now);
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listed_pods);
                self.pods.retain(|key, _| listed.contains(key));
                self.runs.retain(|key, _| listed.contains(key));
                self.complete.1 = true;
            }
            Event::Apply(pod) => self.put_pod(pod, now),
            Event::Delete(pod) => {
                let key = key(&pod);
                self.due.cancel(&Work::Pod(key.clone()));
                self.runs.remove(&key);
                self.pods.remove(&key);
            }
        }
    }

    fn put_node(&mut self, mut node: Node, now: Timestamp) {
        node.metadata.managed_fields = None;
        let name = node.name_any();
        if self.config.adopts_nodes && !self.vms.contains_key(&name) && by_hand::is_by_hand(&node) {
            self.gone.remove(&name);
            let (address, version) = (self.address("10.224"), self.config.version.clone());
            self.start(by_hand::machine(&node, address, version), Duration::ZERO, now);
        }
        self.nodes.insert(name.clone(), node);
        if self.gone.contains(&name) {
            self.due.at(now, Work::GoneVm(name));
        } else {
            self.start_lease(name, now);
        }
    }

    fn put_pod(&mut self, mut pod: Pod, now: Timestamp) {
        if !self.vms.contains_key(pod::node_name(&pod)) && !self.config.adopts_nodes {
            // Bound to a node that is not ours, or whose VM is gone: nobody runs it.
            return;
        }
        pod.metadata.managed_fields = None;
        let key = key(&pod);
        self.pods.insert(key.clone(), pod);
        self.due.at(now, Work::Pod(key));
    }

    /// Starts the renewals of a Lease, if the kubelet runs and its Node exists.
    fn start_lease(&mut self, name: String, now: Timestamp) {
        let runs = self.vms.get(&name).is_some_and(|vm| !matches!(vm.life, Life::Booting { .. }));
        let work = Work::Lease(name);
        if self.config.heartbeats.is_some() && runs && !self.due.contains(&work) {
            self.due.at(now, work);
        }
    }

    /// Takes the writes that are due.
    pub(crate) fn due_writes(&mut self, now: Timestamp) -> Vec<(Work, Write)> {
        let mut writes = Vec::new();
        while writes.len() < MAX_BATCH
            && let Some(work) = self.due.pop(now)
        {
            let write = match &work {
                Work::Vm(name) => self.vm_write(name, now),
                Work::Lease(name) => self.lease_write(name, now),
                Work::Status(name) => self.status_write(name, now),
                Work::Pod(key) => self.pod_write(key, now),
                Work::GoneVm(name) => {
                    self.gone.write(name, self.nodes.get(name), self.config.is_monitored)
                }
            };
            writes.extend(write.map(|write| (work, write)));
        }
        writes
    }

    fn vm_write(&self, name: &str, now: Timestamp) -> Option<Write> {
        let vm = self.vms.get(name)?;
        let held = self.nodes.get(name);
        let ours = held.filter(|node| node::provider_id(node) == vm.machine.provider_id);
        let ready = match vm.life {
            Life::Booting { .. } if ours.is_none() => {
                return match vm.machine.node(vm.boots, now) {
                    Ok(node) => Some(Write::CreateNode(Box::new(node))),
                    Err(error) => {
                        tracing::error!(%error, node = name, "invalid Node object");
                        None
                    }
                };
            }
            Life::Booting { .. } => false,
            Life::Joined => true,
            Life::Ready => return None,
        };
        let mut patch = json!({ "status": vm.machine.status(vm.boots, ready, held, now) });
        if vm.machine.is_by_hand() && !ready {
            patch["metadata"] = json!({ "labels": vm.machine.labels });
        }
        Some(Write::NodeStatus { name: name.to_owned(), patch })
    }

    /// A Node that is deleted while its VM runs stays away: a kubelet registers when it starts, and
    /// not again.
    fn lease_write(&mut self, name: &str, now: Timestamp) -> Option<Write> {
        let heartbeats = self.config.heartbeats?;
        let vm = self.vms.get(name).filter(|vm| !matches!(vm.life, Life::Booting { .. }))?;
        let node = self.nodes.get(name)?;
        if vm.life == Life::Ready && vm.is_ready() && !node::is_ready(node) {
            self.due.at(now, Work::Status(name.to_owned()));
        }
        self.due.at(after(now, heartbeats.lease), Work::Lease(name.to_owned()));
        node::lease(node, heartbeats.lease, now).ok().map(|lease| Write::Lease(Box::new(lease)))
    }

    fn status_write(&mut self, name: &str, now: Timestamp) -> Option<Write> {
        let vm = self.vms.get(name).filter(|vm| vm.life == Life::Ready)?;
        let mut reported = vm.reported.clone();
        let ready = Reported { status: true, ..Reported::default() };
        reported.entry("Ready".to_owned()).or_insert(ready);
        let conditions = node::reported_conditions(&reported, self.nodes.get(name), now);
        if let Some(heartbeats) = self.config.heartbeats {
            self.due.at(after(now, heartbeats.status), Work::Status(name.to_owned()));
        }
        let patch = json!({ "status": { "conditions": conditions } });
        Some(Write::NodeStatus { name: name.to_owned(), patch })
    }

    fn pod_write(&mut self, key: &PodKey, now: Timestamp) -> Option<Write> {
        let pod = self.pods.get(key)?;
        let vm = self.vms.get(pod::node_name(pod))?;
        if matches!(vm.life, Life::Booting { .. }) || pod::is_mirror(pod) {
            return None;
        }
        let run = self.runs.entry(key.clone()).or_insert_with(|| Run::new(pod));
        if run.uid != pod.uid() {
            *run = Run::new(pod);
        }
        if let Some(grace_ends) = pod::grace_ends(pod) {
            if run.step == Step::Stopped {
                return None;
            }
            let began = *run.stop_began.get_or_insert(now);
            let stops = match run.step {
                Step::New | Step::Ended => began,
                _ => after(began, pod::stop_time(pod, self.config.pod_stop)),
            };
            let at = stops.min(grace_ends);
            if at > now {
                self.due.at(at, Work::Pod(key.clone()));
                return None;
            }
            return Some(Write::DeletePod { pod: key.clone(), uid: pod.uid() });
        }
        if vm.life != Life::Ready || matches!(pod::phase(pod), "Succeeded" | "Failed") {
            return None;
        }
        let patch = match run.step {
            Step::New => pod::starting(pod, &vm.machine.address, run.restarts, now),
            Step::Starting(at) if at > now => {
                self.due.at(at, Work::Pod(key.clone()));
                return None;
            }
            Step::Starting(_) => {
                let restarts = run.restarts;
                let address = self.address("10.244");
                pod::running(&self.pods[key], &address, restarts, now)
            }
            Step::Running => {
                let (time, code) = pod::run_time(pod)?;
                let at = *run.ends.get_or_insert_with(|| after(now, time));
                if at > now {
                    self.due.at(at, Work::Pod(key.clone()));
                    return None;
                }
                if code != 0 && pod::restarts_on_failure(pod) {
                    pod::crashed(pod, run.restarts + 1, now)
                } else {
                    pod::ended(pod, run.restarts, code, now)
                }
            }
            Step::Ended | Step::Stopped => return None,
        };
        Some(Write::PodStatus { pod: key.clone(), patch })
    }

    /// Records the outcome of a write.
    pub(crate) fn settle(&mut self, work: &Work, outcome: Outcome, now: Timestamp) {
        let retry = after(now, RETRY);
        match (work, outcome) {
            (Work::Vm(name), outcome) => self.settle_vm(name, outcome, now),
            (_, Outcome::Failed) => self.due.at(retry, work.clone()),
            (Work::Pod(key), outcome) => self.settle_pod(key, &outcome, now),
            (Work::Lease(_) | Work::Status(_) | Work::GoneVm(_), _) => {}
        }
    }

    fn settle_vm(&mut self, name: &str, outcome: Outcome, now: Timestamp) {
        let Some(vm) = self.vms.get_mut(name) else { return };
        match (vm.life, outcome) {
            (Life::Booting { .. }, Outcome::Done) => {
                vm.life = Life::Joined;
                let ready = after(now, self.config.ready_after);
                self.due.at(ready, Work::Vm(name.to_owned()));
                if self.nodes.contains_key(name) {
                    self.start_lease(name.to_owned(), now);
                }
            }
            (Life::Booting { attempts }, _) => {
                // Refused, perhaps by an admission policy, or a Node of that name exists.
                vm.life = Life::Booting { attempts: attempts.saturating_add(1) };
                let pause = RETRY.saturating_mul(1 << attempts.min(8)).min(MAX_BACKOFF);
                self.due.at(after(now, pause), Work::Vm(name.to_owned()));
            }
            (Life::Joined, Outcome::Failed) => {
                self.due.at(after(now, RETRY), Work::Vm(name.to_owned()));
            }
            // A conflict means that the Node is gone; the kubelet goes on without it.
            (Life::Joined, Outcome::Done | Outcome::Conflict) => {
                vm.life = Life::Ready;
                if let Some(heartbeats) = self.config.heartbeats {
                    let next = after(now, heartbeats.status);
                    self.due.at(next, Work::Status(name.to_owned()));
                }
                let here = self.pods.iter().filter(|(_, pod)| pod::node_name(pod) == name);
                for (key, _) in here {
                    self.due.at(now, Work::Pod(key.clone()));
                }
            }
            (Life::Ready, _) => {}
        }
    }

    fn settle_pod(&mut self, key: &PodKey, outcome: &Outcome, now: Timestamp) {
        let Some(run) = self.runs.get_mut(key) else { return };
        if run.stop_began.is_some() {
            run.step = Step::Stopped;
        } else if matches!(outcome, Outcome::Done) {
            run.step = match run.step {
                Step::New => {
                    let at = after(now, self.config.pod_start);
                    self.due.at(at, Work::Pod(key.clone()));
                    Step::Starting(at)
                }
                Step::Running => {
                    let pod = self.pods.get(key);
                    let failed = pod.and_then(pod::run_time).is_some_and(|(_, code)| code != 0);
                    if failed && pod.is_some_and(pod::restarts_on_failure) {
                        let pause = CRASH_BACKOFF.saturating_mul(1 << run.restarts.min(8));
                        run.restarts += 1;
                        let at = after(now, pause.min(MAX_CRASH_BACKOFF));
                        self.due.at(at, Work::Pod(key.clone()));
                        Step::Starting(at)
                    } else {
                        Step::Ended
                    }
                }
                _ => {
                    run.ends = None;
                    Step::Running
                }
            };
        }
    }

    fn address(&mut self, network: &str) -> String {
        self.addresses += 1;
        format!("{network}.{}.{}", self.addresses / 250 % 250, self.addresses % 250 + 1)
    }
}

impl Vm {
    /// Whether its kubelet reports the Node as ready once it has joined.
    fn is_ready(&self) -> bool {
        self.reported.get("Ready").is_none_or(|reported| reported.status)
    }
}

impl Run {
    fn new(pod: &Pod) -> Self {
        let step = if pod::phase(pod) == "Running" { Step::Running } else { Step::New };
        Self { uid: pod.uid(), step, stop_began: None, restarts: 0, ends: None }
    }
}

fn key(pod: &Pod) -> PodKey {
    (pod.namespace().unwrap_or_default(), pod.name_any())
}

fn after(now: Timestamp, delay: Duration) -> Timestamp {
    let delay = SignedDuration::try_from(delay).unwrap_or(SignedDuration::MAX);
    now.checked_add(delay).unwrap_or(Timestamp::MAX)
}
