//! A pod as decisions see it, made from the API's object as it enters the index.
//!
//! Most of a pod on the wire is managed fields, images, environment and container statuses, which
//! no decision reads. Of the rest, the pods of one workload share nearly all: it is kept once, so a
//! pod costs some hundred bytes. What follows from a spec alone (requests, host ports) is computed
//! once per shared spec.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    self as core, Container, ContainerStatus, ObjectReference, PersistentVolumeClaimSpec, PodSpec,
    PodStatus, ResourceRequirements, Volume,
};
use kube::ResourceExt;
use nap_engine::{HostPort, PodKey};
use nap_units::Resources;

use super::pod_rules::host_ports;
use super::pods;

/// Prefixes of the annotations that are kept.
const ANNOTATIONS: [&str; 4] =
    ["karpenter.sh/", "nap.karpenter.sh/", "kubernetes.io/config.", "controller.kubernetes.io/"];
/// Templates and label sets per workload that are compared with those of a further pod. A rollout
/// has two; pods without an owner are one workload, and hardly share anything.
const MAX_COMPARED: usize = 8;

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// A pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Pod {
    key: PodKey,
    uid: Option<Box<str>>,
    version: Option<u64>,
    node: Option<Arc<str>>,
    nominated_node: Option<Box<str>>,
    created: Option<Timestamp>,
    deletion: Option<Timestamp>,
    started: Option<Timestamp>,
    phase: Phase,
    ready: Option<bool>,
    attempt: Option<Box<Attempt>>,
    /// Resources that the pod occupies while it is resized; `None` if they are its requests.
    resized: Option<Box<Resources>>,
    volumes: Box<[PodVolume]>,
    labels: Arc<Labels>,
    template: Arc<PodTemplate>,
}

/// Identity of the parts that pods of one workload share. The order means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PartsId {
    template: usize,
    labels: usize,
}

/// The phases that make a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// `Pending`, `Running` or not known.
    Live,
    /// `Failed` or `Succeeded`.
    Terminal,
}

/// The `PodScheduled` condition of a pod that is not bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// `Unschedulable`, `SchedulingGated`, …
    pub reason: String,
    /// Why no node suits the pod, in the words of kube-scheduler.
    pub message: String,
    since: Option<Timestamp>,
}

/// A volume that is backed by a PersistentVolumeClaim.
#[derive(Clone, Debug, PartialEq)]
pub struct PodVolume {
    /// Name of the volume.
    pub name: String,
    /// Where it comes from.
    pub source: VolumeSource,
}

/// Source of a [`PodVolume`].
#[derive(Clone, Debug, PartialEq)]
pub enum VolumeSource {
    /// The claim of this name.
    Claim(String),
    /// A claim that is made with the pod, from this template.
    Ephemeral(Option<Box<PersistentVolumeClaimSpec>>),
}

/// What the pods of one workload have in common.
#[derive(Clone, Debug, PartialEq)]
pub struct PodTemplate {
    annotations: BTreeMap<String, String>,
    owners: Vec<Owner>,
    spec: PodSpec,
    requests: Result<Resources, String>,
    host_ports: Vec<HostPort>,
}

/// An owner of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Kind of the owner.
    pub kind: String,
    /// Name of the owner.
    pub name: String,
    /// Whether it is the controller of the pod.
    pub is_controller: bool,
}

impl Pod {
    /// Namespace and name.
    pub fn key(&self) -> &PodKey {
        &self.key
    }

    /// Namespace.
    pub fn namespace(&self) -> &str {
        self.key.namespace()
    }

    /// Name.
    pub fn name(&self) -> &str {
        self.key.parts().1
    }

    /// What the pod shares with others of its workload, as far as decisions about places go; `None`
    /// if it has volumes of its own. Equal while both pods are in the index.
    pub fn parts_id(&self) -> Option<PartsId> {
        let parts = PartsId {
            template: Arc::as_ptr(&self.template).addr(),
            labels: Arc::as_ptr(&self.labels).addr(),
        };
        self.volumes.is_empty().then_some(parts)
    }

    /// Unique id; `None` in a manifest.
    pub fn uid(&self) -> Option<&str> {
        self.uid.as_deref()
    }

    /// Labels.
    pub fn labels(&self) -> &Labels {
        &self.labels
    }

    /// Annotations that decisions read.
    pub fn annotations(&self) -> &BTreeMap<String, String> {
        &self.template.annotations
    }

    /// Owners.
    pub fn owners(&self) -> &[Owner] {
        &self.template.owners
    }

    /// The part of the spec that decisions read, without the node and the volumes.
    pub fn spec(&self) -> &PodSpec {
        &self.template.spec
    }

    /// Requests with one `pods`, as kube-scheduler counts them. `Err` names a field that cannot be
    /// parsed.
    pub fn requests(&self) -> Result<&Resources, &String> {
        self.template.requests.as_ref()
    }

    /// Resources that the pod occupies on its node: its requests, or more while it is resized.
    /// `None` if they cannot be parsed.
    pub fn occupies(&self) -> Option<&Resources> {
        self.resized.as_deref().or(self.template.requests.as_ref().ok())
    }

    /// Host ports, those of its sidecars included.
    pub fn host_ports(&self) -> &[HostPort] {
        &self.template.host_ports
    }

    /// Volumes that are backed by claims.
    pub fn volumes(&self) -> &[PodVolume] {
        &self.volumes
    }

    /// The node that the pod is bound to; `None` while it is unbound.
    pub fn node(&self) -> Option<&str> {
        self.node.as_deref()
    }

    /// The node in `status.nominatedNodeName`; `None` if the pod is not nominated.
    pub fn nominated_node(&self) -> Option<&str> {
        self.nominated_node.as_deref()
    }

    /// Time of creation.
    pub fn created(&self) -> Option<Timestamp> {
        self.created
    }

    /// Time by which a pod that is being deleted is to be gone; `None` if it is not being deleted.
    pub fn deletion(&self) -> Option<Timestamp> {
        self.deletion
    }

    /// Time at which its kubelet accepted it.
    pub fn started(&self) -> Option<Timestamp> {
        self.started
    }

    /// Whether its phase is `Failed` or `Succeeded`.
    pub fn is_terminal(&self) -> bool {
        self.phase == Phase::Terminal
    }

    /// The `Ready` condition; `None` if it is unknown.
    pub fn ready(&self) -> Option<bool> {
        self.ready
    }

    /// The scheduler's last word on an unbound pod; `None` if it has not been tried.
    pub fn attempt(&self) -> Option<&Attempt> {
        self.attempt.as_deref()
    }

    /// A reference to the pod, for events.
    pub fn object_ref(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(self.namespace().to_owned()),
            name: Some(self.name().to_owned()),
            uid: self.uid().map(str::to_owned),
            resource_version: self.version.map(|version| version.to_string()),
            field_path: None,
        }
    }

    /// Whether this differs from what is known of the pod: neither older nor the same version.
    /// Pods without a version, as in manifests, always replace.
    pub(super) fn is_newer_than(&self, known: &Self) -> bool {
        match (known.version, self.version) {
            (Some(known_version), Some(version)) if known.uid == self.uid => {
                version > known_version
            }
            _ => true,
        }
    }

    /// Replaces its key by an equal one that is shared.
    pub(super) fn share_key(&mut self, key: &PodKey) {
        self.key = key.clone();
    }

    /// Replaces the name of its node by an equal one that is shared.
    pub(super) fn share_node(&mut self, node: &Arc<str>) {
        self.node = Some(Arc::clone(node));
    }
}

impl From<core::Pod> for Pod {
    fn from(pod: core::Pod) -> Self {
        let key = PodKey::new(&pod.namespace().unwrap_or_default(), &pod.name_any());
        let core::Pod { metadata, spec, status } = pod;
        let (mut spec, status) = (spec.unwrap_or_default(), status.unwrap_or_default());
        let resized = occupied_by_resized(&spec, &status).map(Box::new);
        let node = spec.node_name.take().filter(|node| !node.is_empty());
        let volumes = spec.volumes.take().unwrap_or_default();
        let time = |time: Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>| {
            time.map(|time| time.0)
        };
        let condition = |type_: &str| {
            let mut all = status.conditions.iter().flatten();
            all.find(|condition| condition.type_ == type_)
        };
        let attempt = condition("PodScheduled").filter(|_| node.is_none()).map(|condition| {
            Box::new(Attempt {
                reason: condition.reason.clone().unwrap_or_default(),
                message: condition.message.clone().unwrap_or_default(),
                since: condition.last_transition_time.as_ref().map(|time| time.0),
            })
        });
        let ready = condition("Ready").and_then(|condition| match condition.status.as_str() {
            "True" => Some(true),
            "False" => Some(false),
            _ => None,
        });
        let phase = match status.phase.as_deref() {
            Some("Failed" | "Succeeded") => Phase::Terminal,
            _ => Phase::Live,
        };
        let mut annotations = metadata.annotations.unwrap_or_default();
        annotations.retain(|key, _| ANNOTATIONS.iter().any(|prefix| key.starts_with(prefix)));
        let owners = metadata.owner_references.into_iter().flatten().map(|owner| Owner {
            kind: owner.kind,
            name: owner.name,
            is_controller: owner.controller == Some(true),
        });
        Self {
            key,
            uid: metadata.uid.map(String::into_boxed_str),
            version: metadata.resource_version.and_then(|version| version.parse().ok()),
            node: node.map(Arc::from),
            nominated_node: status
                .nominated_node_name
                .filter(|node| !node.is_empty())
                .map(String::into_boxed_str),
            created: time(metadata.creation_timestamp),
            deletion: time(metadata.deletion_timestamp),
            started: time(status.start_time),
            phase,
            ready,
            attempt,
            resized,
            volumes: volumes.into_iter().filter_map(volume).collect(),
            labels: Arc::new(metadata.labels.unwrap_or_default()),
            template: Arc::new(PodTemplate {
                annotations,
                owners: owners.collect(),
                requests: pods::requests(&spec),
                host_ports: host_ports(&spec),
                spec: slim_spec(spec),
            }),
        }
    }
}

fn volume(volume: Volume) -> Option<PodVolume> {
    let source = match (volume.persistent_volume_claim, volume.ephemeral) {
        (Some(claim), _) => VolumeSource::Claim(claim.claim_name),
        (None, Some(ephemeral)) => {
            let template = ephemeral.volume_claim_template;
            VolumeSource::Ephemeral(template.map(|template| Box::new(template.spec)))
        }
        (None, None) => return None,
    };
    Some(PodVolume { name: volume.name, source })
}

fn slim_spec(full: PodSpec) -> PodSpec {
    PodSpec {
        active_deadline_seconds: full.active_deadline_seconds,
        affinity: full.affinity,
        node_selector: full.node_selector,
        priority: full.priority,
        priority_class_name: full.priority_class_name,
        resource_claims: full.resource_claims,
        termination_grace_period_seconds: full.termination_grace_period_seconds,
        tolerations: full.tolerations,
        topology_spread_constraints: full.topology_spread_constraints,
        ..PodSpec::default()
    }
}

/// Resources that a pod occupies during an in-place resize: the larger of requested and allocated;
/// if the kubelet declared the resize infeasible, only the allocated. `None` if it is not resized.
fn occupied_by_resized(spec: &PodSpec, status: &PodStatus) -> Option<Resources> {
    let requests = |resources: &Option<ResourceRequirements>| {
        resources.as_ref().and_then(|one| one.requests.clone()).unwrap_or_default()
    };
    let containers = || spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let differs = |status: &&ContainerStatus| {
        let container = containers().find(|one| one.name == status.name);
        status.resources.is_some()
            && container.is_none_or(|one| requests(&one.resources) != requests(&status.resources))
    };
    let statuses = status.container_statuses.iter().chain(&status.init_container_statuses);
    let resized: Vec<&ContainerStatus> = statuses.flatten().filter(differs).collect();
    if resized.is_empty() {
        return None;
    }
    let infeasible = status.conditions.iter().flatten().any(|condition| {
        condition.type_ == "PodResizePending" && condition.reason.as_deref() == Some("Infeasible")
    });
    let mut spec = spec.clone();
    let all = spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten());
    for container in all {
        let status = resized.iter().find(|status| status.name == container.name);
        if let Some(status) = status {
            count_allocated(container, &requests(&status.resources), infeasible);
        }
    }
    pods::requests(&spec).ok()
}

fn count_allocated(
    container: &mut Container,
    allocated: &BTreeMap<String, pods::WireQuantity>,
    infeasible: bool,
) {
    let wanted = container.resources.get_or_insert_default().requests.get_or_insert_default();
    for (name, has) in allocated {
        let known = |quantity: &pods::WireQuantity| quantity.0.parse::<nap_units::Quantity>().ok();
        let is_larger = wanted.get(name).is_none_or(|wanted| known(wanted) < known(has));
        if infeasible || is_larger {
            wanted.insert(name.clone(), has.clone());
        }
    }
}

/// Templates and label sets of the indexed pods, by workload.
#[derive(Debug, Default)]
pub(super) struct SharedParts(BTreeMap<String, Workload>);

#[derive(Debug, Default)]
struct Workload {
    templates: Vec<Weak<PodTemplate>>,
    labels: Vec<Weak<Labels>>,
}

impl SharedParts {
    /// Makes a pod use the parts of other pods of its workload where they are equal.
    pub(super) fn share(&mut self, pod: &mut Pod) {
        let workload = self.0.entry(workload_of(pod)).or_default();
        share(&mut workload.templates, &mut pod.template);
        share(&mut workload.labels, &mut pod.labels);
    }

    /// Forgets the parts of a pod that has left the index, if it was the last one to use them.
    pub(super) fn release(&mut self, pod: &Pod) {
        let key = workload_of(pod);
        let Some(workload) = self.0.get_mut(&key) else { return };
        forget(&mut workload.templates, &pod.template);
        forget(&mut workload.labels, &pod.labels);
        if workload.templates.is_empty() && workload.labels.is_empty() {
            self.0.remove(&key);
        }
    }
}

fn workload_of(pod: &Pod) -> String {
    let owner = pod.owners().iter().find(|owner| owner.is_controller);
    let (kind, name) = owner.map_or(("", ""), |owner| (owner.kind.as_str(), owner.name.as_str()));
    format!("{}/{kind}/{name}", pod.namespace())
}

fn share<T: PartialEq>(known: &mut Vec<Weak<T>>, part: &mut Arc<T>) {
    known.retain(|one| one.strong_count() > 0);
    let equal = known.iter().filter_map(Weak::upgrade).find(|one| one == part);
    if let Some(equal) = equal {
        *part = equal;
        return;
    }
    if known.len() == MAX_COMPARED {
        known.remove(0);
    }
    known.push(Arc::downgrade(part));
}

fn forget<T>(known: &mut Vec<Weak<T>>, part: &Arc<T>) {
    if Arc::strong_count(part) == 1 {
        known.retain(|one| one.as_ptr() != Arc::as_ptr(part));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::Index;
    use crate::testing::{at, pod};

    fn full() -> serde_json::Value {
        json!({
            "metadata": {
                "name": "web", "namespace": "shop", "labels": { "app": "web" },
                "annotations": { "karpenter.sh/do-not-disrupt": "true", "other": "x" },
                "managedFields": [{ "manager": "kubelet" }],
            },
            "spec": {
                "nodeName": "n", "nodeSelector": { "zone": "1" },
                "containers": [{
                    "name": "app", "image": "i", "env": [{ "name": "A", "value": "b" }],
                    "ports": [{ "containerPort": 80 }, { "containerPort": 81, "hostPort": 81 }],
                    "resources": { "requests": { "cpu": "2" } },
                }],
                "volumes": [
                    { "name": "token", "projected": {} },
                    { "name": "data", "persistentVolumeClaim": { "claimName": "data" } },
                ],
            },
            "status": {
                "phase": "Running",
                "containerStatuses": [{
                    "name": "app", "image": "i", "imageID": "i", "ready": true, "restartCount": 0,
                    "resources": { "requests": { "cpu": "2" } },
                }],
            },
        })
    }

    fn indexed(value: serde_json::Value) -> Pod {
        Pod::from(serde_json::from_value::<core::Pod>(value).unwrap())
    }

    #[test]
    fn a_pod_keeps_what_decisions_read() {
        let pod = indexed(full());
        assert_eq!((pod.namespace(), pod.name(), pod.node()), ("shop", "web", Some("n")));
        assert_eq!(pod.spec().node_selector.as_ref().unwrap()["zone"], "1");
        assert_eq!(pod.volumes().len(), 1);
        assert_eq!(pod.host_ports()[0].port, 81);
        assert_eq!(pod.requests().unwrap().get("cpu"), 2000);
        assert_eq!(pod.annotations().len(), 1);
        assert_eq!(pod.resized, None);
    }

    #[test]
    fn a_pod_being_resized_occupies_the_larger_of_requested_and_allocated() {
        let resized = |from: &str, to: &str, conditions: serde_json::Value| -> Resources {
            let mut value = full();
            let requests = json!({ "requests": { "cpu": to, "memory": "1Gi" } });
            value["spec"]["containers"][0]["resources"] = requests;
            value["status"]["containerStatuses"][0]["resources"]["requests"]["cpu"] = json!(from);
            value["status"]["conditions"] = conditions;
            indexed(value).occupies().unwrap().clone()
        };
        assert_eq!(resized("1", "2", json!([])).get("cpu"), 2000);
        assert_eq!(resized("2", "1500m", json!([])).get("cpu"), 2000);
        assert_eq!(resized("2", "1500m", json!([])).get("memory"), 1 << 30);
        let never =
            json!([{ "type": "PodResizePending", "status": "True", "reason": "Infeasible" }]);
        assert_eq!(resized("1", "64", never).get("cpu"), 1000);
    }

    fn of_web(name: &str, version: &str) -> core::Pod {
        let owner = json!({
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u", "controller": true,
        });
        let labels = json!({ "app": "web", "version": version });
        pod("shop", name, json!({ "metadata": { "labels": labels, "ownerReferences": [owner] } }))
    }

    #[test]
    fn pods_of_one_workload_share_what_is_equal() {
        let mut index = Index::default();
        for (name, version) in [("a", "1"), ("b", "1"), ("c", "2")] {
            index.apply(of_web(name, version), at(0));
        }
        let get = |name: &str| index.pod(&PodKey::new("shop", name)).unwrap();
        let (a, b, c) = (get("a"), get("b"), get("c"));
        assert!(Arc::ptr_eq(&a.template, &b.template) && Arc::ptr_eq(&a.labels, &b.labels));
        assert!(Arc::ptr_eq(&a.template, &c.template) && !Arc::ptr_eq(&a.labels, &c.labels));
    }

    #[test]
    fn parts_without_a_pod_are_forgotten() {
        let mut parts = SharedParts::default();
        let mut pods = ["a", "b"].map(|name| Pod::from(of_web(name, "1")));
        for pod in &mut pods {
            parts.share(pod);
        }
        let [a, b] = pods;
        parts.release(&a);
        drop(a);
        assert_eq!(parts.0.len(), 1, "the other pod uses them");
        parts.release(&b);
        assert!(parts.0.is_empty());
    }
}
