//! A scheduler after kube-scheduler's default profile: highest priority first, filters that must
//! all pass, and a simple score (the emptiest node, then the first by name). A nominated node is
//! tried first and its resources are reserved against pods of the same or a lower priority; an
//! unschedulable pod loses its nomination, and is retried when nodes or the pods on them have
//! changed.
//!
//! A pod with a required constraint that is not implemented is never bound: it stays pending with a
//! message that says so.

mod filters;
mod relations;
pub(super) mod verdict;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kube::ResourceExt;
use nap_units::{CPU, MEMORY, Resources};
use serde_json::json;

use super::index::{Index, Key, key};
use super::pods;
use super::storage;
use super::write::Writer;
pub(super) use filters::Candidate;
use volumes::{Disks, VolumeNeeds};

/// The default `schedulerName` of pods.
const NAME: &str = "default-scheduler";

/// Pods that are unschedulable in an unchanged cluster, so that they are not retried.
#[derive(Debug, Default)]
pub(super) struct Tried {
    /// Hash of the nodes and the pods on them at that time.
    cluster: u64,
    /// Uids of the unschedulable pods.
    pods: BTreeSet<String>,
}

/// Tries every pending pod once; each binding counts for the pods after it.
pub(super) async fn pass(index: &mut Index, writer: &mut Writer, tried: &mut Tried) {
    let mut pending: Vec<Arc<Pod>> =
        index.pods.values().filter(|pod| is_waiting(pod)).cloned().collect();
    if pending.is_empty() {
        return;
    }
    let mut nodes = candidates(index);
    let cluster = looks_of(&nodes, index);
    if tried.cluster != cluster {
        *tried = Tried { cluster, pods: BTreeSet::new() };
    }
    let mut nominations = Nominations::of(&pending);
    pending.retain(|pod| !tried.pods.contains(pod.uid().as_deref().unwrap_or_default()));
    pending.sort_by_cached_key(|pod| {
        let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (std::cmp::Reverse(priority(pod)), created, key(&**pod))
    });
    for pod in pending {
        let Some(spec) = pod.spec.as_ref() else { continue };
        let volumes = VolumeNeeds::of(&pod, index);
        let placed = place(&pod, spec, &nodes, &nominations, &volumes, index);
        nominations.forget(&pod);
        match placed {
            Ok(name) => {
                let volumes = volumes.unwrap_or_default();
                if volumes::provision(&volumes, &name, index, writer).await
                    && writer.bind(&mut index.pods, &pod, &name).await
                {
                    if let Some(node) = nodes.iter_mut().find(|node| node.name == name) {
                        node.take(Arc::clone(&pod));
                        node.disks.add(volumes.disks().iter().cloned());
                    }
                    let (namespace, pod_name) = key(&*pod);
                    let message = format!("Successfully assigned {namespace}/{pod_name} to {name}");
                    writer.event(&*pod, NAME, "Normal", "Scheduled", &message).await;
                }
            }
            Err(refusal) => {
                tried.pods.extend(pod.uid());
                refuse(&pod, &refusal, index, writer).await;
            }
        }
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

fn candidates(index: &Index) -> Vec<Candidate> {
    let mut nodes: Vec<Candidate> = index
        .nodes
        .values()
        .filter(|node| node.metadata.deletion_timestamp.is_none())
        .map(|node| {
            let mut candidate = Candidate::new(node);
            candidate.disks = Disks::of(&candidate.name, index);
            candidate
        })
        .collect();
    let places: BTreeMap<String, usize> =
        nodes.iter().enumerate().map(|(place, node)| (node.name.clone(), place)).collect();
    for pod in index.pods.values().filter(|pod| !pods::is_finished(pod)) {
        let place = places.get(pods::node_of(pod)).copied();
        if let Some(node) = place.and_then(|place| nodes.get_mut(place)) {
            node.take(Arc::clone(pod));
            let claims = storage::claims_of(pod).into_iter().filter_map(|claim| {
                storage::attachable(storage::bound_volume(index.claims.get(&claim)?, index)?)
            });
            node.disks.add(claims);
        }
    }
    nodes
}

/// Hash of everything that filters read of the nodes, their pods and the storage.
fn looks_of(nodes: &[Candidate], index: &Index) -> u64 {
    let mut hasher = DefaultHasher::new();
    for claim in index.claims.values() {
        let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_ref());
        (&claim.metadata.uid, volume, claim.metadata.deletion_timestamp.is_some())
            .hash(&mut hasher);
    }
    for name in index.storage_classes.values().map(|class| class.name_any()) {
        name.hash(&mut hasher);
    }
    for namespace in index.namespaces.values() {
        (&namespace.metadata.name, &namespace.metadata.labels).hash(&mut hasher);
    }
    for node in nodes {
        node.hash_looks(&mut hasher);
    }
    hasher.finish()
}

fn nomination(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.nominated_node_name.as_deref().filter(|node| !node.is_empty())
}

fn priority(pod: &Pod) -> i32 {
    pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0)
}

/// Resources reserved by nominations: pod, priority and requests, by node.
struct Nominations(BTreeMap<String, Vec<(Key, i32, Resources)>>);

impl Nominations {
    fn of(pending: &[Arc<Pod>]) -> Self {
        let mut nodes: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for pod in pending {
            if let (Some(node), Some(spec)) = (nomination(pod), pod.spec.as_ref()) {
                nodes.entry(node.to_owned()).or_default().push((
                    key(&**pod),
                    priority(pod),
                    pods::occupies(spec),
                ));
            }
        }
        Self(nodes)
    }

    fn forget(&mut self, pod: &Pod) {
        for promised in self.0.values_mut() {
            promised.retain(|(who, _, _)| *who != key(pod));
        }
    }

    /// Resources that must be free for a pod: its own requests and those of the other pods
    /// nominated to the node with the same or a higher priority.
    fn with_others(&self, node: &str, pod: &Pod, needs: &Resources) -> Resources {
        let mut all = needs.clone();
        for (who, urgency, amount) in self.0.get(node).into_iter().flatten() {
            if *who != key(pod) && *urgency >= priority(pod) {
                all.add(amount);
            }
        }
        all
    }
}

/// Reason why a pod was not bound.
struct Refusal {
    reason: &'static str,
    message: String,
}

/// The node for a pod.
fn place(
    pod: &Pod,
    spec: &PodSpec,
    nodes: &[Candidate],
    nominations: &Nominations,
    volumes: &Result<VolumeNeeds, String>,
    index: &Index,
) -> Result<String, Refusal> {
    let feasible = feasible(pod, spec, nodes, nominations, volumes, index)?;
    let needs = pods::occupies(spec);
    let nominated = feasible.iter().find(|node| Some(node.name.as_str()) == nomination(pod));
    let best = || {
        feasible.iter().min_by_key(|node| {
            (node.avoided(spec), std::cmp::Reverse(emptiness(node, &needs)), node.name.clone())
        })
    };
    let chosen = nominated.or_else(best).map(|node| node.name.clone());
    chosen.ok_or(Refusal { reason: "Unschedulable", message: String::new() })
}

/// The nodes that pass all filters; the refusal counts the failures if there are none.
fn feasible<'n>(
    pod: &Pod,
    spec: &PodSpec,
    nodes: &'n [Candidate],
    nominations: &Nominations,
    volumes: &Result<VolumeNeeds, String>,
    index: &Index,
) -> Result<Vec<&'n Candidate>, Refusal> {
    if nodes.is_empty() {
        let message = "no nodes available to schedule pods".to_owned();
        return Err(Refusal { reason: "Unschedulable", message });
    }
    let volumes = match volumes {
        Ok(volumes) => volumes,
        Err(message) => {
            let message = format!("0/{} nodes are available: {message}.", nodes.len());
            return Err(Refusal { reason: "Unschedulable", message });
        }
    };
    let needs = pods::occupies(spec);
    let relations = relations::Relations::of(pod, spec, nodes, index);
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    let mut feasible: Vec<&Candidate> = Vec::new();
    for node in nodes {
        let mut problems = node.problems(spec, &nominations.with_others(&node.name, pod, &needs));
        if problems.is_empty() {
            problems.extend(volumes.problem(node).map(str::to_owned));
        }
        if problems.is_empty() {
            problems.extend(relations.problem(node).map(str::to_owned));
        }
        if problems.is_empty() {
            feasible.push(node);
        }
        for problem in problems {
            *reasons.entry(problem).or_default() += 1;
        }
    }
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
    let mut reasons: Vec<String> =
        reasons.into_iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    reasons.sort();
    let message = format!("0/{} nodes are available: {}.", nodes.len(), reasons.join(", "));
    Err(Refusal { reason: "Unschedulable", message })
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
    writer
        .patch_status(
            &mut index.pods,
            &key(pod),
            &json!({ "conditions": [condition], "nominatedNodeName": null }),
        )
        .await;
    writer.event(pod, NAME, "Warning", "FailedScheduling", &refusal.message).await;
}
