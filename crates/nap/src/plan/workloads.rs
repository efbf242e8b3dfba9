//! Pods that workload controllers would create.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::{CronJob, Job, JobSpec};
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, PodTemplateSpec,
    ReplicationController, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::ResourceExt;
use nap_controllers::cluster::{self, pods};

use super::asked::KnownWorkload;

/// Label that distinguishes the pods of a Deployment's revisions.
const TEMPLATE_HASH: &str = "pod-template-hash";

/// Kind, namespace and name.
pub type Owner = (&'static str, String, String);
/// Workloads by their own identity.
pub type Workloads = BTreeMap<Owner, Workload>;

/// A workload: an object whose controller creates pods.
pub struct Workload {
    /// The workload itself.
    pub owner: Owner,
    /// The controller owner of the workload; `None` if it has none.
    parent: Option<Owner>,
    /// Desired number of pods.
    wanted: usize,
    template: PodTemplateSpec,
    /// Ordinal of its first pod.
    first: usize,
    /// Volume claim templates.
    claims: Vec<PersistentVolumeClaim>,
    /// Whether it needs no more pods: a completed Job.
    finished: bool,
}

fn owner_of(kind: &'static str, object: &impl ResourceExt) -> Owner {
    (kind, object.namespace().unwrap_or_default(), object.name_any())
}

fn parent_of(object: &impl ResourceExt) -> Option<Owner> {
    let owner = object.owner_references().iter().find(|owner| owner.controller == Some(true))?;
    let kind = KINDS.into_iter().find(|kind| *kind == owner.kind)?;
    Some((kind, object.namespace().unwrap_or_default(), owner.name.clone()))
}

const KINDS: [&str; 6] =
    ["Deployment", "ReplicaSet", "ReplicationController", "StatefulSet", "Job", "CronJob"];

fn count(number: Option<i32>, default: usize) -> usize {
    number.map_or(default, |number| usize::try_from(number).unwrap_or(0))
}

impl Workload {
    fn new(owner: Owner, wanted: usize, template: PodTemplateSpec) -> Self {
        let (parent, claims) = (None, Vec::new());
        Self { owner, parent, wanted, template, first: 1, claims, finished: false }
    }

    /// A Deployment.
    pub fn deployment(object: Deployment) -> Self {
        let owner = owner_of("Deployment", &object);
        let spec = object.spec.unwrap_or_default();
        Self::new(owner, count(spec.replicas, 1), spec.template)
    }

    /// A ReplicationController.
    pub fn replication_controller(object: ReplicationController) -> Self {
        let owner = owner_of("ReplicationController", &object);
        let spec = object.spec.unwrap_or_default();
        Self::new(owner, count(spec.replicas, 1), spec.template.unwrap_or_default())
    }

    /// A ReplicaSet.
    pub fn replica_set(object: ReplicaSet) -> Self {
        let (owner, parent) = (owner_of("ReplicaSet", &object), parent_of(&object));
        let spec = object.spec.unwrap_or_default();
        Self {
            parent,
            ..Self::new(owner, count(spec.replicas, 1), spec.template.unwrap_or_default())
        }
    }

    /// A StatefulSet.
    pub fn stateful_set(object: StatefulSet) -> Self {
        let owner = owner_of("StatefulSet", &object);
        let spec = object.spec.unwrap_or_default();
        Self {
            first: count(spec.ordinals.and_then(|ordinals| ordinals.start), 0),
            claims: spec.volume_claim_templates.unwrap_or_default(),
            ..Self::new(owner, count(spec.replicas, 1), spec.template)
        }
    }

    /// A Job.
    pub fn job(object: Job) -> Self {
        let (owner, parent) = (owner_of("Job", &object), parent_of(&object));
        let status = object.status.unwrap_or_default();
        let ended = status.conditions.iter().flatten().any(|condition| {
            matches!(condition.type_.as_str(), "Complete" | "Failed") && condition.status == "True"
        });
        let mut job =
            Self::of_job(owner, object.spec.unwrap_or_default(), count(status.succeeded, 0));
        if ended {
            job.wanted = 0;
        }
        Self { parent, finished: ended, ..job }
    }

    /// One run of a CronJob.
    pub fn cron_job(object: CronJob) -> Self {
        let owner = owner_of("CronJob", &object);
        let spec = object.spec.unwrap_or_default();
        let mut job = Self::of_job(owner, spec.job_template.spec.unwrap_or_default(), 0);
        if spec.suspend == Some(true) {
            job.wanted = 0;
        }
        job
    }

    fn of_job(owner: Owner, spec: JobSpec, succeeded: usize) -> Self {
        let left = count(spec.completions, usize::MAX).saturating_sub(succeeded);
        let wanted =
            if spec.suspend == Some(true) { 0 } else { count(spec.parallelism, 1).min(left) };
        Self::new(owner, wanted, spec.template)
    }

    /// The Jobs that an autoscaler starts from one template, so many at once.
    pub fn jobs(owner: Owner, spec: JobSpec, jobs: usize) -> Self {
        let one = Self::of_job(owner, spec, 0);
        Self { wanted: one.wanted.saturating_mul(jobs), ..one }
    }

    /// The workload for people who ask about it.
    pub fn known(&self, refusal: Option<String>) -> KnownWorkload {
        let (kind, namespace, name) = &self.owner;
        KnownWorkload {
            kind: (*kind).to_owned(),
            namespace: namespace.clone(),
            name: name.clone(),
            owner: self.parent.as_ref().map(|(kind, _, name)| ((*kind).to_owned(), name.clone())),
            wanted: self.wanted,
            refusal,
        }
    }

    /// Desired number of pods.
    pub fn wanted(&self) -> usize {
        self.wanted
    }

    /// Sets the desired number of pods, as an autoscaler does.
    pub fn set_wanted(&mut self, wanted: usize) {
        self.wanted = wanted;
    }

    fn pod(&self, name: String, number: usize, hash: Option<&str>) -> Pod {
        let (kind, namespace, workload) = &self.owner;
        let template = self.template.metadata.clone().unwrap_or_default();
        let mut labels = template.labels.unwrap_or_default();
        let mut spec = self.template.spec.clone().unwrap_or_default();
        match *kind {
            "Deployment" => {
                labels.insert(TEMPLATE_HASH.to_owned(), hash.unwrap_or("planned").to_owned());
            }
            "StatefulSet" => {
                labels.insert("statefulset.kubernetes.io/pod-name".to_owned(), name.clone());
                labels.insert("apps.kubernetes.io/pod-index".to_owned(), number.to_string());
            }
            _ => {}
        }
        for claim in &self.claims {
            let volume = claim.name_any();
            let source = PersistentVolumeClaimVolumeSource {
                claim_name: self.claim_name(claim, number),
                read_only: None,
            };
            let volumes = spec.volumes.get_or_insert_default();
            volumes.retain(|one| one.name != volume);
            volumes.push(Volume {
                name: volume,
                persistent_volume_claim: Some(source),
                ..Volume::default()
            });
        }
        // The ReplicaSet of a Deployment gets the same name here.
        let maker = if *kind == "Deployment" { "ReplicaSet" } else { kind };
        let owner = OwnerReference {
            kind: maker.to_owned(),
            name: workload.clone(),
            controller: Some(true),
            ..OwnerReference::default()
        };
        let metadata = ObjectMeta {
            name: Some(name),
            namespace: Some(namespace.clone()),
            labels: Some(labels),
            annotations: template.annotations,
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        };
        Pod { metadata, spec: Some(spec), status: None }
    }

    fn claim_name(&self, claim: &PersistentVolumeClaim, number: usize) -> String {
        format!("{}-{}-{number}", claim.name_any(), self.owner.2)
    }

    fn claims_of(&self, number: usize) -> impl Iterator<Item = PersistentVolumeClaim> {
        self.claims.iter().map(move |claim| {
            let mut one = claim.clone();
            one.metadata.name = Some(self.claim_name(claim, number));
            one.metadata.namespace = Some(self.owner.1.clone());
            one
        })
    }
}

/// Missing pods of workloads, and the volume claims of these pods.
#[derive(Default)]
pub struct Expanded {
    /// The pods.
    pub pods: Vec<Pod>,
    /// The volume claims of the pods.
    pub claims: Vec<PersistentVolumeClaim>,
}

/// Expands every workload. Existing pods count towards the desired number; a workload with an owner
/// among the workloads is left to that owner.
pub fn expand(workloads: &Workloads, existing: &[Pod]) -> Expanded {
    let mut have: BTreeMap<Owner, usize> = BTreeMap::new();
    let mut hashes: BTreeMap<Owner, String> = BTreeMap::new();
    for pod in existing.iter().filter(|pod| is_active(pod)) {
        for owner in owners(pod, workloads) {
            *have.entry(owner.clone()).or_default() += 1;
            if let Some(hash) = pod.labels().get(TEMPLATE_HASH) {
                hashes.insert(owner, hash.clone());
            }
        }
    }
    let running: BTreeSet<&Owner> = workloads
        .values()
        .filter(|one| !one.finished)
        .filter_map(|one| one.parent.as_ref())
        .collect();
    let mut names: BTreeSet<(String, String)> =
        existing.iter().map(|pod| (pod.namespace().unwrap_or_default(), pod.name_any())).collect();
    let mut expanded = Expanded::default();
    for (owner, workload) in workloads {
        let (kind, namespace, name) = owner;
        let is_made = workload.parent.as_ref().is_some_and(|parent| workloads.contains_key(parent));
        let runs_now = *kind == "CronJob" && running.contains(owner);
        if (is_made && *kind == "ReplicaSet") || runs_now {
            continue;
        }
        let mut missing = workload.wanted.saturating_sub(have.get(owner).copied().unwrap_or(0));
        let mut number = workload.first;
        while missing > 0 {
            let plain = format!("{name}-{number}");
            let taken = names.contains(&(namespace.clone(), plain.clone()));
            // Only the names of StatefulSet pods are fixed.
            if !taken || *kind != "StatefulSet" {
                let free =
                    if taken { format!("{name}-{}-{number}", kind.to_lowercase()) } else { plain };
                names.insert((namespace.clone(), free.clone()));
                let hash = hashes.get(owner).map(String::as_str);
                expanded.pods.push(workload.pod(free, number, hash));
                expanded.claims.extend(workload.claims_of(number));
                missing -= 1;
            }
            number += 1;
        }
    }
    expanded
}

/// Whether a pod has neither ended nor is being deleted.
fn is_active(pod: &Pod) -> bool {
    pods::is_active(&cluster::Pod::from(pod.clone()))
}

/// The workload of a pod and the owner of that workload.
fn owners(pod: &Pod, workloads: &Workloads) -> Vec<Owner> {
    let Some(direct) = parent_of(pod) else { return Vec::new() };
    let above = workloads.get(&direct).map(|workload| workload.parent.clone());
    let above = above.unwrap_or_else(|| {
        // The manifests lack the ReplicaSet: derive the Deployment from its name.
        let hash = pod.labels().get(TEMPLATE_HASH).filter(|_| direct.0 == "ReplicaSet")?;
        let deployment = direct.2.strip_suffix(hash)?.strip_suffix('-')?;
        Some(("Deployment", direct.1.clone(), deployment.to_owned()))
    });
    [Some(direct), above].into_iter().flatten().collect()
}
