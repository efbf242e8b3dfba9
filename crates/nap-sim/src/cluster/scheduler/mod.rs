//! A scheduler after kube-scheduler's default profile: highest priority first, filters that must
//! all pass, and a simple score (the emptiest node, then the first by name). A nominated node is
//! tried first and its resources are reserved against pods of the same or a lower priority; an
//! unschedulable pod loses its nomination, and is retried when nodes or the pods on them have
//! changed.
//!
//! Nodes and bound pods are kept between passes ([`Scheduler`]), and waiting pods are grouped by
//! what the filters read of them ([`queue`]): of pods that are alike, one attempt refuses all.
//!
//! A pod with a required constraint that is not implemented is never bound: it stays pending with a
//! message that says so.

mod filters;
mod queue;
mod relations;
pub(super) mod verdict;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kube::ResourceExt;
use nap_units::{CPU, MEMORY, Resources};
use serde_json::json;

use super::index::{Change, Index, Key, Reader, key};
use super::pods;
use super::storage;
use super::write::Writer;
use filters::{Candidate, PodInfo};
pub(super) use filters::{matches_taint, wants_daemon};
use queue::{ClassId, Queue};
use relations::Relations;
use volumes::{Disks, VolumeNeeds};

/// The default `schedulerName` of pods.
const NAME: &str = "default-scheduler";

/// What the scheduler knows of the cluster, and the pods that wait.
#[derive(Default)]
pub(super) struct Scheduler {
    nodes: BTreeMap<String, Candidate>,
    /// Bound pods that have not finished.
    bound: BTreeMap<Key, Arc<PodInfo>>,
    /// Number of pods with anti-affinity, by node.
    repelling: BTreeMap<String, usize>,
    queue: Queue,
    /// Pods that could not be bound as decided, for the next pass.
    aside: BTreeSet<Key>,
    /// Number of changes of nodes and bound pods so far.
    version: u64,
    /// Counts for the pods that were tried last, at a version.
    counted: Option<(ClassId, u64, Relations)>,
}

/// Which waiting pods a change may help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Helps<'n> {
    All,
    /// Pods that are nominated to this node, or to none. Others wait for their own node: an attempt
    /// would cost them the nomination, which kube-scheduler's back-off mostly spares them.
    Through(&'n str),
    /// Pods with rules about other pods, or with claims.
    WithRules,
}

impl Scheduler {
    /// Tries the waiting pods that a change may help, each once; every binding counts for the pods
    /// after it. Returns when messages are due to be written again.
    pub(super) async fn pass(
        &mut self,
        index: &mut Index,
        writer: &mut Writer,
        all: bool,
    ) -> Option<Timestamp> {
        self.read(index);
        for key in std::mem::take(&mut self.aside) {
            if let Some(pod) = index.pods.get(&key).filter(|pod| is_waiting(pod)) {
                self.wait(pod);
            }
        }
        if all {
            let waiting = index.pods.values().filter(|pod| is_waiting(pod));
            waiting.for_each(|pod| self.wait(pod));
            self.queue.wake(Helps::All);
        }
        while let Some((class, pod)) = self.queue.next() {
            self.attempt(&class, &pod, index, writer).await;
        }
        for (key, refusal) in self.queue.take_untold(writer.now()) {
            if let Some(pod) = index.pods.get(&key).cloned() {
                refuse(&pod, &refusal, index, writer).await;
            }
        }
        self.queue.next_refresh()
    }

    /// Binds a pod, or refuses all that are like it.
    async fn attempt(
        &mut self,
        class: &ClassId,
        pod: &Arc<Pod>,
        index: &mut Index,
        writer: &mut Writer,
    ) {
        let of = key(&**pod);
        let Some(spec) = pod.spec.as_ref() else { return self.queue.remove(&of, None) };
        let volumes = VolumeNeeds::of(pod, index);
        let mut relations = match self.counted.take() {
            Some((counted, version, relations)) if counted == *class && version == self.version => {
                relations
            }
            _ => self.relations(pod, spec, index),
        };
        let name = match self.place(pod, spec, &volumes, &relations) {
            Ok(name) => name,
            Err(refusal) => return self.queue.refuse(class, refusal, writer.now()),
        };
        let volumes = volumes.unwrap_or_default();
        if !volumes::provision(&volumes, &name, index, writer).await
            || !writer.bind(&mut index.pods, pod, &name).await
        {
            self.queue.remove(&of, None);
            self.aside.insert(of);
            return;
        }
        let before = self.version;
        self.read(index);
        if let (true, Some(bound), Some(node)) =
            (self.version == before + 1, self.bound.get(&of), self.nodes.get(&name))
        {
            relations.add(spec, node, std::iter::once(&bound.pod), index);
            self.counted = Some((class.clone(), self.version, relations));
        }
        // A pod that is still not bound here has been replaced by another of its name.
        if !self.bound.contains_key(&of) {
            self.queue.remove(&of, None);
        }
        let message = format!("Successfully assigned {}/{} to {name}", of.0, of.1);
        writer.event(&**pod, NAME, "Normal", "Scheduled", &message).await;
    }

    /// Takes in what has changed.
    fn read(&mut self, index: &mut Index) {
        const READER: Reader = Reader::Scheduler;
        for change in index.nodes.changes(READER) {
            self.put_node(&change.key.1, index);
        }
        for change in index.csi_nodes.changes(READER) {
            self.refresh_disks(&change.key.1, index);
            self.queue.wake(Helps::WithRules);
        }
        for change in index.pods.changes(READER) {
            self.put_pod(&change, index);
        }
        let storage = [
            !index.claims.changes(READER).is_empty(),
            !index.volumes.changes(READER).is_empty(),
            !index.storage_classes.changes(READER).is_empty(),
        ];
        if storage.contains(&true) {
            let claimants = self.bound.values().filter(|pod| storage::uses_claims(&pod.pod));
            let nodes: BTreeSet<String> = claimants.map(|pod| pod.node().to_owned()).collect();
            for node in &nodes {
                self.refresh_disks(node, index);
            }
            self.queue.wake(Helps::WithRules);
        }
        if !index.namespaces.changes(READER).is_empty() {
            self.version += 1;
            self.queue.wake(Helps::WithRules);
        }
    }

    fn put_node(&mut self, name: &str, index: &Index) {
        let node = index.nodes.get(&(String::new(), name.to_owned()));
        let Some(node) = node.filter(|node| node.metadata.deletion_timestamp.is_none()) else {
            if self.nodes.remove(name).is_some() {
                self.version += 1;
                self.queue.wake(Helps::Through(name));
            }
            return;
        };
        if self.nodes.get(name).is_some_and(|held| held.looks_like(node)) {
            return;
        }
        let mut candidate = Candidate::new(Arc::clone(node));
        for pod in index.pods.on_node(name) {
            if let Some(pod) = self.bound.get(&key(&**pod)) {
                candidate.add(Arc::clone(pod));
            }
        }
        self.nodes.insert(name.to_owned(), candidate);
        self.refresh_disks(name, index);
        self.version += 1;
        self.queue.wake(Helps::Through(name));
    }

    fn put_pod(&mut self, change: &Change<Pod>, index: &Index) {
        let runs = |pod: &&Arc<Pod>| !pods::node_of(pod).is_empty() && !pods::is_finished(pod);
        let old = self.bound.get(&change.key).map(|held| Arc::clone(&held.pod));
        let new = change.after.as_ref().filter(runs);
        let looks = |pod: &Arc<Pod>| {
            let (node, labels) = (pods::node_of(pod).to_owned(), pod.labels().clone());
            (pod.uid(), node, labels, pods::is_deleting(pod))
        };
        if old.as_ref().map(looks) != new.map(looks) {
            self.version += 1;
            let left = old.as_ref().filter(|old| {
                let stays = |new: &Arc<Pod>| {
                    new.uid() == old.uid() && pods::node_of(new) == pods::node_of(old)
                };
                !new.is_some_and(stays)
            });
            self.queue.wake(match left {
                Some(old) => Helps::Through(pods::node_of(old)),
                None => Helps::WithRules,
            });
        }
        if let Some(old) = self.bound.remove(&change.key) {
            let node = old.node().to_owned();
            if let Some(candidate) = self.nodes.get_mut(&node) {
                candidate.remove(&change.key);
            }
            self.repel(&old, false);
            if storage::uses_claims(&old.pod) {
                self.refresh_disks(&node, index);
            }
        }
        if let Some(pod) = new {
            let info = Arc::new(PodInfo::new(Arc::clone(pod)));
            let node = info.node().to_owned();
            if let Some(candidate) = self.nodes.get_mut(&node) {
                candidate.add(Arc::clone(&info));
            }
            self.repel(&info, true);
            let claims = storage::uses_claims(pod);
            self.bound.insert(change.key.clone(), info);
            if claims {
                self.refresh_disks(&node, index);
            }
        }
        match change.after.as_ref().filter(|pod| is_waiting(pod)) {
            Some(pod) => self.wait(pod),
            None => self.queue.remove(&change.key, new.map(|pod| pods::node_of(pod))),
        }
    }

    /// Queues a pod. One that is nominated to a node which is still closed is not tried before the
    /// node opens.
    fn wait(&mut self, pod: &Arc<Pod>) {
        let node = nomination(pod).map(|name| self.nodes.get(name));
        let opens = |node: &Candidate| pod.spec.as_ref().is_some_and(|s| node.tolerates_all(s));
        self.queue.put(pod, node.is_some_and(|node| !node.is_some_and(opens)));
    }

    fn repel(&mut self, pod: &PodInfo, more: bool) {
        let repels = pod.pod.spec.as_ref().is_some_and(|s| !relations::anti_affinity(s).is_empty());
        if !repels {
            return;
        }
        let count = self.repelling.entry(pod.node().to_owned()).or_default();
        *count = if more { *count + 1 } else { count.saturating_sub(1) };
        if *count == 0 {
            self.repelling.remove(pod.node());
        }
    }

    fn refresh_disks(&mut self, name: &str, index: &Index) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        let mut disks = Disks::of(name, index);
        for pod in node.pods() {
            disks.add(storage::claims_of(&pod.pod).into_iter().filter_map(|claim| {
                storage::attachable(storage::bound_volume(index.claims.get(&claim)?, index)?)
            }));
        }
        node.disks = disks;
    }

    /// Counts for a pod of the pods on all nodes that can matter to it.
    fn relations(&self, pod: &Arc<Pod>, spec: &PodSpec, index: &Index) -> Relations {
        if relations::has_rules(spec) {
            return Relations::of(pod, spec, self.nodes.values(), index);
        }
        let nodes = self.repelling.keys().filter_map(|name| self.nodes.get(name));
        Relations::of(pod, spec, nodes, index)
    }

    /// The node for a pod.
    fn place(
        &self,
        pod: &Pod,
        spec: &PodSpec,
        volumes: &Result<VolumeNeeds, String>,
        relations: &Relations,
    ) -> Result<String, Refusal> {
        let needs = pods::occupies(spec);
        if let (Some(node), Ok(volumes)) =
            (nomination(pod).and_then(|name| self.nodes.get(name)), volumes)
            && filters::unsupported(spec).is_none()
            && self.passes(node, pod, spec, &needs, volumes, relations)
        {
            return Ok(node.name().to_owned());
        }
        let feasible = self.feasible(pod, spec, volumes, relations)?;
        let best = feasible.iter().min_by_key(|node| {
            (node.avoided(spec), std::cmp::Reverse(emptiness(node, &needs)), node.name())
        });
        let chosen = best.map(|node| node.name().to_owned());
        chosen.ok_or(Refusal { reason: "Unschedulable", message: String::new() })
    }

    /// Whether a node passes all filters.
    fn passes(
        &self,
        node: &Candidate,
        pod: &Pod,
        spec: &PodSpec,
        needs: &Resources,
        volumes: &VolumeNeeds,
        relations: &Relations,
    ) -> bool {
        node.admits(spec, &self.queue.with_nominated(node.name(), pod, needs))
            && volumes.problem(node).is_none()
            && relations.problem(node).is_none()
    }

    /// The nodes that pass all filters; the refusal counts the failures if there are none.
    fn feasible(
        &self,
        pod: &Pod,
        spec: &PodSpec,
        volumes: &Result<VolumeNeeds, String>,
        relations: &Relations,
    ) -> Result<Vec<&Candidate>, Refusal> {
        let unschedulable = |message| Err(Refusal { reason: "Unschedulable", message });
        if self.nodes.is_empty() {
            return unschedulable("no nodes available to schedule pods".to_owned());
        }
        let all = self.nodes.len();
        let volumes = match volumes {
            Ok(volumes) => volumes,
            Err(message) => {
                return unschedulable(format!("0/{all} nodes are available: {message}."));
            }
        };
        let needs = pods::occupies(spec);
        let passes = |node: &&Candidate| self.passes(node, pod, spec, &needs, volumes, relations);
        let feasible: Vec<&Candidate> = self.nodes.values().filter(passes).collect();
        // Every other filter passes somewhere, so only the unimplemented constraint keeps the pod
        // pending; a new node would not help.
        if let (false, Some(what)) = (feasible.is_empty(), filters::unsupported(spec)) {
            let message =
                format!("the embedded scheduler does not support {what}, so the pod is left alone");
            return Err(Refusal { reason: "SchedulerError", message });
        }
        if !feasible.is_empty() {
            return Ok(feasible);
        }
        let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
        for node in self.nodes.values() {
            let wanted = self.queue.with_nominated(node.name(), pod, &needs);
            let mut problems = node.problems(spec, &wanted);
            if problems.is_empty() {
                problems.extend(volumes.problem(node).map(str::to_owned));
            }
            if problems.is_empty() {
                problems.extend(relations.problem(node).map(str::to_owned));
            }
            for problem in problems {
                *reasons.entry(problem).or_default() += 1;
            }
        }
        let mut reasons: Vec<String> =
            reasons.into_iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        reasons.sort();
        unschedulable(format!("0/{all} nodes are available: {}.", reasons.join(", ")))
    }
}

fn is_waiting(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| {
        spec.node_name.as_deref().unwrap_or_default().is_empty()
            && spec.scheduler_name.as_deref().unwrap_or(NAME) == NAME
            && spec.scheduling_gates.as_ref().is_none_or(Vec::is_empty)
    }) && !pods::is_deleting(pod)
        && !pods::is_finished(pod)
}

fn nomination(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.nominated_node_name.as_deref().filter(|node| !node.is_empty())
}

fn priority(pod: &Pod) -> i32 {
    pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0)
}

/// Reason why a pod was not bound.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Refusal {
    reason: &'static str,
    message: String,
}

/// Free share of CPU plus free share of memory after the pod, in thousandths.
fn emptiness(node: &Candidate, needs: &Resources) -> i64 {
    [CPU, MEMORY]
        .into_iter()
        .map(|name| {
            let all = node.allocatable.get(name);
            let free = node.free.get(name).saturating_sub(needs.get(name)).max(0);
            if all > 0 {
                i64::try_from(i128::from(free) * 1000 / i128::from(all)).unwrap_or(0)
            } else {
                0
            }
        })
        .sum()
}

async fn refuse(pod: &Pod, refusal: &Refusal, index: &mut Index, writer: &mut Writer) {
    let held = pods::condition(pod, "PodScheduled");
    if held == Some(("False", refusal.message.as_str())) && nomination(pod).is_none() {
        return;
    }
    let stamp = writer.stamp();
    let mut condition = json!({
        "type": "PodScheduled", "status": "False", "reason": refusal.reason, "message": refusal.message,
    });
    if held.is_none_or(|(status, _)| status != "False") {
        condition["lastTransitionTime"] = json!(stamp);
    }
    let mut status = json!({ "conditions": [condition] });
    // A nomination that came since this version of the pod is not this attempt's to clear.
    if nomination(pod).is_some() {
        status["nominatedNodeName"] = json!(null);
    }
    writer.patch_status(&mut index.pods, &key(pod), &status).await;
    writer.event(pod, NAME, "Warning", "FailedScheduling", &refusal.message).await;
}
