//! The cluster that manifests describe.
//!
//! The manifests fill the index that the controllers fill from watches, so `nap plan` and the
//! controllers solve the same snapshot. Fields that a running cluster sets itself (the
//! Unschedulable condition, the namespace, the priority) are filled in first.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, ReplicaSetSpec, StatefulSet};
use k8s_openapi::api::core::v1::{
    Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, PodCondition, PodSpec,
    ReplicationController, Service,
};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::api::storage::v1::{CSINode, StorageClass};
use kube::ResourceExt;
use kube::api::ObjectMeta;
use nap_api::{
    AKSNodeClass, NodeClaim, NodeOverlay, NodePool, conditions, labels, normalise, validation,
};
use nap_controllers::cluster::{self, Index, Indexed, VolumeSource, pods};
use serde::de::DeserializeOwned;

use super::read::{self, Document};
use super::workloads::{Owner, Workload, expand};
use crate::manifests::DEFAULT_NODEPOOL;
use crate::user_error::UserError;

/// Maximum number of pods of a plan.
const MAX_PODS: usize = 500_000;

/// Disk StorageClasses of every AKS cluster; the first is the default.
const AKS_DISKS: [&str; 5] =
    ["default", "managed-csi", "managed-csi-premium", "managed", "managed-premium"];

/// The index of a cluster, and notes for the user about how it was read.
#[derive(Default)]
pub struct Cluster {
    /// The index of the controllers.
    pub state: Index,
    /// Notes for the user, one line each.
    pub notes: Vec<String>,
    /// What the controllers have learnt about the capacity of Azure; `None` if nothing is known.
    pub capacity_memory: Option<String>,
}

/// The objects of the manifests, by kind.
#[derive(Default)]
struct Objects {
    cluster: Cluster,
    pods: Vec<Pod>,
    workloads: BTreeMap<Owner, Workload>,
    priorities: BTreeMap<String, PriorityClass>,
    runtimes: BTreeMap<String, RuntimeClass>,
    pools: Vec<(NodePool, Document)>,
    left_out: BTreeMap<String, usize>,
    keep_ties: bool,
}

/// Reads a cluster from manifests. With `keep_ties`, keeps the workload selectors that default
/// spread constraints need.
pub fn from_manifests(documents: Vec<Document>, keep_ties: bool) -> anyhow::Result<Cluster> {
    let mut objects = Objects { keep_ties, ..Objects::default() };
    for document in documents {
        objects.take(document)?;
    }
    if !objects.left_out.is_empty() {
        let kinds = objects.left_out.iter().map(|(kind, count)| format!("{kind} ({count})"));
        let kinds: Vec<String> = kinds.collect();
        objects
            .note(format!("left out, as they make no difference to a plan: {}", kinds.join(", ")));
    }
    objects.check_pools()?;
    objects.make_pods()?;
    let mut cluster = objects.cluster;
    cluster.add_storage_classes();
    cluster.add_default_pool()?;
    cluster.make_ready();
    cluster.note_nodes_without_claims();
    Ok(cluster)
}

impl Objects {
    fn note(&mut self, text: String) {
        self.cluster.notes.push(text);
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
                let copy =
                    Document { place: document.place.clone(), value: document.value.clone() };
                self.pools.push((document.read()?, copy));
            }
            ("karpenter.sh", "NodeOverlay") => apply::<NodeOverlay>(state, document.read()?),
            ("", "Service") if self.keep_ties => {
                apply::<Service>(state, named(document)?);
            }
            ("", "ReplicationController") if self.keep_ties => {
                apply::<ReplicationController>(state, named(document)?);
            }
            ("scheduling.k8s.io", "PriorityClass") => {
                let class: PriorityClass = document.read()?;
                self.priorities.insert(class.name_any(), class);
            }
            ("node.k8s.io", "RuntimeClass") => {
                let class: RuntimeClass = document.read()?;
                self.runtimes.insert(class.name_any(), class);
            }
            _ => *self.left_out.entry(kind).or_default() += 1,
        }
        Ok(())
    }

    fn workload(&mut self, workload: Workload, document: &Document) -> anyhow::Result<()> {
        if workload.wanted() > MAX_PODS {
            return Err(document.error(format!("wants more than {MAX_PODS} pods at once")));
        }
        self.workloads.insert(workload.owner.clone(), workload);
        Ok(())
    }

    fn check_pools(&mut self) -> anyhow::Result<()> {
        for (pool, document) in std::mem::take(&mut self.pools) {
            if let Some(problem) = validation::validate_nodepool(&pool).into_iter().next() {
                return Err(document.error(problem));
            }
            let reference = &pool.spec.template.spec.node_class_ref;
            if (reference.group.as_str(), reference.kind.as_str())
                != (labels::AZURE_GROUP, "AKSNodeClass")
            {
                return Err(document.error(format!(
                    "spec.template.spec.nodeClassRef: is {}/{}, not {}/AKSNodeClass",
                    reference.group,
                    reference.kind,
                    labels::AZURE_GROUP
                )));
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
        let mut gated = 0;
        for mut pod in std::mem::take(&mut self.pods).into_iter().chain(expanded.pods) {
            let spec = pod.spec.get_or_insert_default();
            admit(spec, &self.priorities, &self.runtimes);
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
        if gated > 0 {
            self.note(format!("{} held back by scheduling gates; left out", count(gated, "pod")));
        }
        Ok(())
    }
}

/// Adds an object of a manifest, which has no time of its own.
fn apply<K: Indexed>(index: &mut Index, object: K) {
    index.apply(object, Timestamp::UNIX_EPOCH);
}

/// Reads a namespaced object; the namespace is `default` if it has none. Fails without a name.
fn named<T: DeserializeOwned + kube::Resource>(document: &Document) -> anyhow::Result<T> {
    let mut object: T = document.read()?;
    if object.meta().namespace.as_deref().unwrap_or_default().is_empty() {
        object.meta_mut().namespace = Some("default".to_owned());
    }
    if object.meta().name.is_none() {
        let Some(prefix) = object.meta().generate_name.clone() else {
            return Err(document.error("metadata.name: a name is needed"));
        };
        let number: String = document.place.chars().filter(char::is_ascii_digit).collect();
        object.meta_mut().name = Some(format!("{prefix}{number}"));
    }
    Ok(object)
}

/// Sets the fields that admission sets: the priority of the PriorityClass and the overhead of the
/// RuntimeClass.
fn admit(
    spec: &mut PodSpec,
    priorities: &BTreeMap<String, PriorityClass>,
    runtimes: &BTreeMap<String, RuntimeClass>,
) {
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
    if spec.overhead.is_none()
        && let Some(runtime) = spec.runtime_class_name.as_ref().and_then(|name| runtimes.get(name))
    {
        spec.overhead = runtime.overhead.as_ref().and_then(|overhead| overhead.pod_fixed.clone());
    }
}

impl Cluster {
    /// Adds AKS's StorageClasses if the manifests have none.
    fn add_storage_classes(&mut self) {
        if self.state.storage_classes().next().is_some() {
            return;
        }
        let state = &self.state;
        let claims = state.volume_claims().filter_map(|(_, claim)| claim.spec.as_ref());
        let ephemeral = state
            .pods()
            .flat_map(|(_, pod)| pod.volumes())
            .any(|volume| matches!(volume.source, VolumeSource::Ephemeral(_)));
        let unbound = claims
            .filter(|spec| spec.volume_name.as_deref().unwrap_or_default().is_empty())
            .count();
        if unbound == 0 && !ephemeral {
            return;
        }
        for name in AKS_DISKS {
            let is_default =
                ("storageclass.kubernetes.io/is-default-class".to_owned(), "true".to_owned());
            let annotations = (name == AKS_DISKS[0]).then(|| BTreeMap::from([is_default]));
            let metadata =
                ObjectMeta { name: Some(name.to_owned()), annotations, ..ObjectMeta::default() };
            let class = StorageClass {
                metadata,
                provisioner: "disk.csi.azure.com".to_owned(),
                volume_binding_mode: Some("WaitForFirstConsumer".to_owned()),
                ..StorageClass::default()
            };
            apply(&mut self.state, class);
        }
        self.notes.push("no StorageClass given: those of AKS for disks are used".to_owned());
    }

    /// Adds the managed product's default NodePool if there is none.
    pub fn add_default_pool(&mut self) -> anyhow::Result<()> {
        if self.state.pools().next().is_none() {
            let mut documents = Vec::new();
            read::parse("the default NodePool", DEFAULT_NODEPOOL, &mut documents)?;
            for document in documents {
                match document.text("/kind") {
                    "NodePool" => apply::<NodePool>(&mut self.state, document.read()?),
                    _ if self.state.class(document.text("/metadata/name")).is_some() => {}
                    _ => apply::<AKSNodeClass>(&mut self.state, document.read()?),
                }
            }
            let text = "no NodePool given: the default one of AKS Node Auto-Provisioning is used (on-demand Linux VMs of the D family)";
            self.notes.push(text.to_owned());
        }
        let used: BTreeSet<String> = self
            .state
            .pools()
            .map(|(_, pool)| pool.spec.template.spec.node_class_ref.name.clone())
            .collect();
        for name in used {
            if self.state.class(&name).is_none() {
                self.notes
                    .push(format!("AKSNodeClass `{name}` is not given: its defaults are used"));
                let mut class = AKSNodeClass::default();
                class.metadata.name = Some(name);
                apply(&mut self.state, class);
            }
        }
        Ok(())
    }

    /// Sets the status of NodePools that have none, as the controllers would.
    pub fn make_ready(&mut self) {
        let pools: Vec<NodePool> =
            self.state.pools().map(|(_, pool)| NodePool::clone(pool)).collect();
        for mut pool in pools {
            let name = pool.name_any();
            let class = self.state.class(&pool.spec.template.spec.node_class_ref.name);
            let problems =
                class.map(|class| validation::validate_nodeclass(class)).unwrap_or_default();
            let status = pool.status.get_or_insert_default();
            let known = conditions::get(&status.conditions, conditions::READY).cloned();
            if let Some(problem) = problems.first() {
                let text = format!("NodePool `{name}` makes no nodes: its AKSNodeClass: {problem}");
                self.notes.push(text);
                conditions::clear(&mut status.conditions, conditions::READY);
            } else if let Some(ready) = known {
                if ready.status != "True" {
                    self.notes.push(format!(
                        "NodePool `{name}` is not ready, so it makes no nodes: {}",
                        ready.message
                    ));
                }
                continue;
            } else {
                let generation = pool.metadata.generation;
                conditions::set_true(
                    &mut status.conditions,
                    conditions::READY,
                    generation,
                    Timestamp::UNIX_EPOCH,
                );
            }
            // The index ignores a version that it has.
            pool.metadata.resource_version = None;
            apply(&mut self.state, pool);
        }
    }

    /// Notes nodes without a NodeClaim: they do not count towards limits.
    fn note_nodes_without_claims(&mut self) {
        let limited = self.state.pools().filter(|(_, pool)| pool.spec.limits.is_some());
        let limited: BTreeSet<String> = limited.map(|(name, _)| name.clone()).collect();
        let count = self
            .state
            .views()
            .filter(|view| view.claim.is_none())
            .filter_map(|view| view.node.as_ref()?.labels().get(labels::NODEPOOL).cloned())
            .filter(|pool| limited.contains(pool))
            .count();
        if count > 0 {
            let nodes = self::count(count, "node");
            self.notes.push(format!(
                "{nodes} given without a NodeClaim: limits are counted without them"
            ));
        }
    }
}

/// Reason why a pod is not to be placed: it runs, has finished, or is being deleted.
pub fn settled(pod: &cluster::Pod) -> String {
    match pod.node() {
        _ if !pods::is_active(pod) => "it has ended".to_owned(),
        Some(node) => format!("it runs on node `{node}` already"),
        None if pods::is_daemon(pod) => {
            "it belongs to a DaemonSet, which places it by itself".to_owned()
        }
        None if pods::is_provisionable(pod) => "a node is being launched for it".to_owned(),
        None => "the scheduler has not said that it finds no room for it".to_owned(),
    }
}

/// A number with its noun, in the singular or plural.
pub fn count(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}
