//! The cluster that manifests describe.
//!
//! Fields that a running cluster sets itself (the Unschedulable condition, the namespace, the
//! priority, what autoscalers and admission set) are filled in first.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, ReplicaSetSpec, StatefulSet};
use k8s_openapi::api::core::v1::{
    LimitRange, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, PodCondition,
    PodSpec, ReplicationController, ResourceQuota, Service,
};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::api::storage::v1::{CSINode, StorageClass};
use kube::ResourceExt;
use nap_api::{AKSNodeClass, NodeClaim, NodeOverlay, NodePool, labels, normalise};
use nap_controllers::cluster::Indexed;
use serde::de::DeserializeOwned;

use super::admission::Admission;
use super::autoscaling::{self, Autoscaler};
use super::cluster::{Cluster, apply, count};
use super::system_daemons;
use super::workloads::{Workload, Workloads, expand};
use crate::cli::{Replicas, SourceArgs};
use crate::manifests::read::Document;
use crate::user_error::UserError;

/// Maximum number of pods of a plan.
const MAX_PODS: usize = 500_000;

/// The objects of the manifests, by kind.
#[derive(Default)]
struct Objects {
    cluster: Cluster,
    pods: Vec<Pod>,
    workloads: Workloads,
    autoscalers: Vec<Autoscaler>,
    admission: Admission,
    /// Number of pods that admission refuses, by workload and reason.
    refused: BTreeMap<(String, String), usize>,
    priorities: BTreeMap<String, PriorityClass>,
    runtimes: BTreeMap<String, RuntimeClass>,
    pools: Vec<(NodePool, Document)>,
    left_out: BTreeMap<Effect, BTreeMap<String, usize>>,
    keep_ties: bool,
    replicas: Replicas,
}

/// What is known about kinds that a plan does not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Effect {
    /// They have nothing to do with the placement of pods.
    None,
    /// They may change pods when these are created.
    ChangesPods,
    /// They may refuse pods when these are created.
    RefusesPods,
    /// Nothing: their controllers may make pods.
    Unknown,
}

/// Kinds that have nothing to do with the placement of pods, with their groups.
const WITHOUT_EFFECT: [(&str, &str); 29] = [
    ("", "ConfigMap"),
    ("", "Endpoints"),
    ("", "Event"),
    ("", "PodTemplate"),
    ("", "Secret"),
    ("", "Service"),
    ("", "ServiceAccount"),
    ("apiextensions.k8s.io", "CustomResourceDefinition"),
    ("apiregistration.k8s.io", "APIService"),
    ("apps", "ControllerRevision"),
    ("certificates.k8s.io", "CertificateSigningRequest"),
    ("coordination.k8s.io", "Lease"),
    ("discovery.k8s.io", "EndpointSlice"),
    ("events.k8s.io", "Event"),
    ("flowcontrol.apiserver.k8s.io", "FlowSchema"),
    ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration"),
    ("monitoring.coreos.com", "PodMonitor"),
    ("monitoring.coreos.com", "PrometheusRule"),
    ("monitoring.coreos.com", "ServiceMonitor"),
    ("networking.k8s.io", "Ingress"),
    ("networking.k8s.io", "IngressClass"),
    ("networking.k8s.io", "NetworkPolicy"),
    ("rbac.authorization.k8s.io", "ClusterRole"),
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"),
    ("rbac.authorization.k8s.io", "Role"),
    ("rbac.authorization.k8s.io", "RoleBinding"),
    ("storage.k8s.io", "CSIDriver"),
    ("storage.k8s.io", "CSIStorageCapacity"),
    ("storage.k8s.io", "VolumeAttachment"),
];

fn effect(group: &str, kind: &str) -> Effect {
    match group {
        "admissionregistration.k8s.io" if kind.starts_with("Validating") => Effect::RefusesPods,
        "admissionregistration.k8s.io" if kind.starts_with("Mutating") => Effect::ChangesPods,
        _ if WITHOUT_EFFECT.contains(&(group, kind)) => Effect::None,
        _ => Effect::Unknown,
    }
}

/// Reads a cluster from manifests. With `keep_ties`, keeps the workload selectors that default
/// spread constraints need.
pub fn from_manifests(
    documents: Vec<Document>,
    source: &SourceArgs,
    keep_ties: bool,
) -> anyhow::Result<Cluster> {
    let mut objects =
        Objects { keep_ties, replicas: source.hpa.unwrap_or_default(), ..Objects::default() };
    for document in documents {
        objects.take(document)?;
    }
    objects.note_left_out();
    objects.check_pools()?;
    for autoscaler in std::mem::take(&mut objects.autoscalers) {
        let note = autoscaler.apply(&mut objects.workloads, objects.replicas);
        objects.cluster.autoscaler_notes.push(note);
    }
    objects.make_pods()?;
    let mut cluster = objects.cluster;
    cluster.add_storage_classes();
    system_daemons::add(&mut cluster, &source.system_daemons)?;
    cluster.add_default_pool()?;
    cluster.make_ready();
    cluster.note_nodes_without_claims();
    Ok(cluster)
}

impl Objects {
    fn note(&mut self, text: String) {
        self.cluster.notes.push(text);
    }

    fn note_left_out(&mut self) {
        for (effect, kinds) in std::mem::take(&mut self.left_out) {
            let why = match effect {
                Effect::None => "left out, as they make no difference to a plan",
                Effect::ChangesPods => {
                    "may change pods when they are created, which the plan does not know"
                }
                Effect::RefusesPods => {
                    "may refuse pods when they are created, which the plan does not know"
                }
                Effect::Unknown => "not understood, so they and any pods of theirs do not count",
            };
            let kinds: Vec<String> =
                kinds.iter().map(|(kind, count)| format!("{kind} ({count})")).collect();
            self.note(format!("{why}: {}", kinds.join(", ")));
        }
    }

    /// Records the selector of a workload. A Deployment's pods belong to a ReplicaSet of the same
    /// name.
    fn tie(&mut self, kind: &str, document: &Document) -> anyhow::Result<()> {
        let known = &mut self.cluster.state;
        match kind {
            "ReplicaSet" => apply::<ReplicaSet>(known, named(document)?),
            "StatefulSet" => apply::<StatefulSet>(known, named(document)?),
            "Deployment" => {
                let deployment: Deployment = named(document)?;
                let selector = deployment.spec.map(|spec| spec.selector).unwrap_or_default();
                let spec = Some(ReplicaSetSpec { selector, ..ReplicaSetSpec::default() });
                let set = ReplicaSet { metadata: deployment.metadata, spec, status: None };
                apply(known, set);
            }
            _ => {}
        }
        Ok(())
    }

    fn take(&mut self, mut document: Document) -> anyhow::Result<()> {
        normalise::manifest(&mut document.value);
        let group =
            document.text("/apiVersion").split_once('/').map_or("", |(group, _)| group).to_owned();
        let kind = document.text("/kind").to_owned();
        let document = &document;
        if self.keep_ties && group == "apps" {
            self.tie(&kind, document)?;
        }
        let state = &mut self.cluster.state;
        match (group.as_str(), kind.as_str()) {
            ("", "Pod") => {
                let pod = named(document)?;
                self.pods.push(pod);
            }
            ("apps", "Deployment") => {
                self.workload(Workload::deployment(named(document)?), document)?;
            }
            ("apps", "ReplicaSet") => {
                self.workload(Workload::replica_set(named(document)?), document)?;
            }
            ("apps", "StatefulSet") => {
                self.workload(Workload::stateful_set(named(document)?), document)?;
            }
            ("batch", "Job") => self.workload(Workload::job(named(document)?), document)?,
            ("batch", "CronJob") => {
                let run = Workload::cron_job(named(document)?);
                let (_, namespace, name) = &run.owner;
                let pods = run.wanted();
                self.note(format!(
                    "CronJob `{namespace}/{name}`: planned for one run of {}",
                    count(pods, "pod")
                ));
                self.workload(run, document)?;
            }
            ("", "ReplicationController") => {
                if self.keep_ties {
                    apply::<ReplicationController>(state, named(document)?);
                }
                let controller = Workload::replication_controller(named(document)?);
                self.workload(controller, document)?;
            }
            ("autoscaling", "HorizontalPodAutoscaler") | ("keda.sh", "ScaledObject") => {
                self.autoscalers.extend(Autoscaler::read(document));
            }
            ("keda.sh", "ScaledJob") => {
                let Some((workload, note)) = autoscaling::scaled_job(document, self.replicas)
                else {
                    let problem = "is not a Job's spec; write its template";
                    return Err(document.error("spec.jobTargetRef", problem));
                };
                self.note(note);
                self.workload(workload, document)?;
            }
            ("autoscaling.k8s.io", "VerticalPodAutoscaler") => {
                self.cluster.autoscaler_notes.extend(autoscaling::vertical(document));
            }
            ("", "LimitRange") => {
                let range: LimitRange = named(document)?;
                self.admission.add_range(range.clone());
                apply(state, range);
            }
            ("", "ResourceQuota") => {
                let quota: ResourceQuota = named(document)?;
                let others = self.admission.add_quota(&quota);
                if !others.is_empty() {
                    let title = document.title();
                    self.note(format!("{title} counts for pods only, not {}", others.join(", ")));
                }
            }
            ("apps", "DaemonSet") => apply::<DaemonSet>(state, named(document)?),
            ("", "Node") => apply::<Node>(state, document.read()?),
            ("", "Namespace") => apply::<Namespace>(state, document.read()?),
            ("", "PersistentVolume") => apply::<PersistentVolume>(state, document.read()?),
            ("", "PersistentVolumeClaim") => {
                apply::<PersistentVolumeClaim>(state, named(document)?);
            }
            ("storage.k8s.io", "StorageClass") => {
                apply::<StorageClass>(state, document.read()?);
            }
            ("storage.k8s.io", "CSINode") => apply::<CSINode>(state, document.read()?),
            ("policy", "PodDisruptionBudget") => {
                apply::<PodDisruptionBudget>(state, named(document)?);
            }
            ("karpenter.sh", "NodeClaim") => apply::<NodeClaim>(state, document.read()?),
            ("karpenter.azure.com", "AKSNodeClass") => {
                apply::<AKSNodeClass>(state, document.read()?);
            }
            ("karpenter.sh", "NodePool") => {
                self.pools.push((document.read()?, document.clone()));
            }
            ("karpenter.sh", "NodeOverlay") => apply::<NodeOverlay>(state, document.read()?),
            ("", "Service") if self.keep_ties => {
                apply::<Service>(state, named(document)?);
            }
            ("scheduling.k8s.io", "PriorityClass") => {
                let class: PriorityClass = document.read()?;
                self.priorities.insert(class.name_any(), class);
            }
            ("node.k8s.io", "RuntimeClass") => {
                let class: RuntimeClass = document.read()?;
                self.runtimes.insert(class.name_any(), class);
            }
            _ => {
                let effect = effect(&group, &kind);
                // A kind of another group may have the name of a built-in one.
                let title = match effect {
                    Effect::Unknown if !group.is_empty() => format!("{kind} of {group}"),
                    _ => kind,
                };
                *self.left_out.entry(effect).or_default().entry(title).or_default() += 1;
            }
        }
        Ok(())
    }

    fn workload(&mut self, workload: Workload, document: &Document) -> anyhow::Result<()> {
        if workload.wanted() > MAX_PODS {
            let problem = format!("wants more than {MAX_PODS} pods at once");
            return Err(document.error("spec", problem));
        }
        self.workloads.insert(workload.owner.clone(), workload);
        Ok(())
    }

    fn check_pools(&mut self) -> anyhow::Result<()> {
        for (pool, document) in std::mem::take(&mut self.pools) {
            let reference = &pool.spec.template.spec.node_class_ref;
            if (reference.group.as_str(), reference.kind.as_str())
                != (labels::AZURE_GROUP, "AKSNodeClass")
            {
                let problem = format!(
                    "is {}/{}, not {}/AKSNodeClass",
                    reference.group,
                    reference.kind,
                    labels::AZURE_GROUP
                );
                return Err(document.error("spec.template.spec.nodeClassRef", problem));
            }
            apply(&mut self.cluster.state, pool);
        }
        Ok(())
    }

    fn make_pods(&mut self) -> anyhow::Result<()> {
        for pod in &mut self.pods {
            pod.metadata.namespace.get_or_insert_with(|| "default".to_owned());
        }
        let expanded = expand(&self.workloads, &self.pods);
        let total = self.pods.len() + expanded.pods.len();
        if total > MAX_PODS {
            let message = format!("the manifests make {total} pods, more than {MAX_PODS}");
            return Err(UserError::new(message, "plan for a part of them at a time").into());
        }
        let state = &mut self.cluster.state;
        for claim in expanded.claims {
            let key = nap_controllers::cluster::key_of(&claim);
            if PersistentVolumeClaim::get(state, &key).is_none() {
                apply(state, claim);
            }
        }
        let is_there = |pod: &Pod| pod.metadata.uid.is_some();
        for pod in self.pods.iter().filter(|pod| is_there(pod)) {
            let spec = pod.spec.clone().unwrap_or_default();
            self.admission.count(&pod.namespace().unwrap_or_default(), &spec);
        }
        let mut gated = 0;
        for mut pod in std::mem::take(&mut self.pods).into_iter().chain(expanded.pods) {
            let (was_there, maker) = (is_there(&pod), maker(&pod, &self.workloads));
            let namespace = pod.namespace().unwrap_or_default();
            let spec = pod.spec.get_or_insert_default();
            let admitted = admit(spec, &self.priorities, &self.runtimes);
            if !was_there
                && let Err(reason) = admitted.and_then(|()| self.admission.admit(&namespace, spec))
            {
                *self.refused.entry((maker, reason)).or_default() += 1;
                continue;
            }
            let is_gated = spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty());
            gated += usize::from(is_gated);
            if !is_gated {
                let status = pod.status.get_or_insert_default();
                let conditions = status.conditions.get_or_insert_default();
                conditions.retain(|condition| condition.type_ != "PodScheduled");
                conditions.push(PodCondition {
                    type_: "PodScheduled".to_owned(),
                    status: "False".to_owned(),
                    reason: Some("Unschedulable".to_owned()),
                    ..PodCondition::default()
                });
            }
            apply(&mut self.cluster.state, pod);
        }
        for workload in self.workloads.values() {
            let (kind, namespace, name) = &workload.owner;
            let title = format!("{kind} `{namespace}/{name}`");
            let refused = self.refused.keys().find(|(maker, _)| *maker == title);
            let refusal = refused.map(|(_, reason)| reason.clone());
            self.cluster.workloads.push(workload.known(refusal));
        }
        for ((maker, reason), pods) in std::mem::take(&mut self.refused) {
            self.cluster.refused += pods;
            let pods = count(pods, "pod");
            self.note(format!("{pods} of {maker} would be refused, so left out: {reason}"));
        }
        if gated > 0 {
            self.note(format!("{} held back by scheduling gates; left out", count(gated, "pod")));
        }
        Ok(())
    }
}

/// The workload of a pod, for people.
fn maker(pod: &Pod, workloads: &Workloads) -> String {
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    let deployment = |name: &str| ("Deployment", namespace.clone(), name.to_owned());
    match pod.owner_references().first() {
        Some(owner) if workloads.contains_key(&deployment(&owner.name)) => {
            format!("Deployment `{namespace}/{}`", owner.name)
        }
        Some(owner) => format!("{} `{namespace}/{}`", owner.kind, owner.name),
        None => format!("Pod `{namespace}/{name}`"),
    }
}

/// Reads a namespaced object; the namespace is `default` if it has none. Fails without a name.
fn named<T: DeserializeOwned + kube::Resource>(document: &Document) -> anyhow::Result<T> {
    let mut object: T = document.read()?;
    if object.meta().namespace.as_deref().unwrap_or_default().is_empty() {
        object.meta_mut().namespace = Some("default".to_owned());
    }
    if object.meta().name.is_none() {
        let Some(prefix) = object.meta().generate_name.clone() else {
            return Err(document.error("metadata.name", "a name is needed"));
        };
        object.meta_mut().name = Some(format!("{prefix}{}", document.number));
    }
    Ok(object)
}

/// Sets the fields that admission sets: the priority of the PriorityClass, and the overhead, node
/// selector and tolerations of the RuntimeClass. `Err` says why it refuses the pod.
fn admit(
    spec: &mut PodSpec,
    priorities: &BTreeMap<String, PriorityClass>,
    runtimes: &BTreeMap<String, RuntimeClass>,
) -> Result<(), String> {
    if spec.priority.is_none() {
        spec.priority = match spec.priority_class_name.as_deref().filter(|name| !name.is_empty()) {
            Some("system-cluster-critical") => Some(2_000_000_000),
            Some("system-node-critical") => Some(2_000_001_000),
            Some(name) => priorities.get(name).map(|class| class.value),
            None => priorities
                .values()
                .find(|one| one.global_default == Some(true))
                .map(|one| one.value),
        };
    }
    if let Some(runtime) = spec.runtime_class_name.as_ref().and_then(|name| runtimes.get(name)) {
        let overhead = runtime.overhead.as_ref().and_then(|overhead| overhead.pod_fixed.clone());
        spec.overhead = spec.overhead.take().or(overhead);
        let scheduling = runtime.scheduling.clone().unwrap_or_default();
        for (label, value) in scheduling.node_selector.into_iter().flatten() {
            let selector = spec.node_selector.get_or_insert_default();
            match selector.get(&label) {
                Some(own) if *own != value => {
                    return Err(format!(
                        "RuntimeClass `{}` wants nodes with `{label}: {value}`, and the pod those \
                         with `{own}`",
                        runtime.name_any()
                    ));
                }
                _ => drop(selector.insert(label, value)),
            }
        }
        for toleration in scheduling.tolerations.into_iter().flatten() {
            let own = spec.tolerations.get_or_insert_default();
            if !own.contains(&toleration) {
                own.push(toleration);
            }
        }
    }
    Ok(())
}
