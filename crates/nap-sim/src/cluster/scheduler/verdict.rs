//! The filters alone: where one pod could run, without binding it. The real scheduler judges the
//! same objects in tests.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSINode, StorageClass};

use super::Scheduler;
use crate::cluster::index::Index;
use crate::cluster::scheduler::volumes::VolumeNeeds;

/// All objects that the filters read.
#[derive(Clone, Debug, Default)]
pub struct SchedulingObjects {
    /// Nodes.
    pub nodes: Vec<Node>,
    /// Bound pods; others are ignored.
    pub pods: Vec<Pod>,
    /// Namespaces, for selectors of their labels.
    pub namespaces: Vec<Namespace>,
    /// Claims of the pods.
    pub claims: Vec<PersistentVolumeClaim>,
    /// Volumes.
    pub volumes: Vec<PersistentVolume>,
    /// Storage classes.
    pub storage_classes: Vec<StorageClass>,
    /// Attach limits.
    pub csi_nodes: Vec<CSINode>,
}

/// Where a pod could run.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// The names of the nodes that pass all filters, at least one.
    Feasible(Vec<String>),
    /// The message of the condition `PodScheduled`.
    Unschedulable(String),
}

/// Judges one pod.
pub fn verdict(objects: &SchedulingObjects, pod: &Pod) -> Verdict {
    let mut index = Index::default();
    objects.nodes.iter().for_each(|one| index.nodes.put(one.clone()));
    objects.pods.iter().for_each(|one| index.pods.put(one.clone()));
    objects.namespaces.iter().for_each(|one| index.namespaces.put(one.clone()));
    objects.claims.iter().for_each(|one| index.claims.put(one.clone()));
    objects.volumes.iter().for_each(|one| index.volumes.put(one.clone()));
    objects.storage_classes.iter().for_each(|one| index.storage_classes.put(one.clone()));
    objects.csi_nodes.iter().for_each(|one| index.csi_nodes.put(one.clone()));
    let mut scheduler = Scheduler::default();
    scheduler.read(&mut index);
    let pod = Arc::new(pod.clone());
    let spec = pod.spec.clone().unwrap_or_default();
    let volumes = VolumeNeeds::of(&pod, &index);
    let relations = scheduler.relations(&pod, &spec, &index);
    match scheduler.feasible(&pod, &spec, &volumes, &relations) {
        Ok(nodes) => Verdict::Feasible(nodes.iter().map(|node| node.name().to_owned()).collect()),
        Err(refusal) => Verdict::Unschedulable(refusal.message),
    }
}
