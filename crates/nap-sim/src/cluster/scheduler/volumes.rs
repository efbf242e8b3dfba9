//! Filters that depend on the pod's volumes, with kube-scheduler's messages: where a volume can be
//! reached, where it can be made, and how many disks a node can hold.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    NodeSelectorTerm, PersistentVolumeClaim, Pod, TopologySelectorTerm,
};
use kube::ResourceExt;
use serde_json::json;

use super::filters::Candidate;
use crate::cluster::index::{Index, key};
use crate::cluster::storage;
use crate::cluster::write::Writer;

/// A disk that a node must attach: driver and handle, or the claim that it will be made for.
type Disk = (String, String);

/// What the volumes of one pod ask of a node.
#[derive(Debug, Default)]
pub(super) struct VolumeNeeds {
    /// For each bound volume with an affinity, the terms of which one must match.
    reachable: Vec<Vec<NodeSelectorTerm>>,
    /// For each volume that is still to be made, the topologies of which one must match.
    creatable: Vec<Vec<TopologySelectorTerm>>,
    /// Claims that are bound once the node is known.
    pub(super) unbound: Vec<Arc<PersistentVolumeClaim>>,
    disks: BTreeSet<Disk>,
}

impl VolumeNeeds {
    /// The needs of a pod; an error is a message about a claim that no node can help.
    pub(super) fn of(pod: &Pod, index: &Index) -> Result<Self, String> {
        let mut needs = Self::default();
        let mut claims = Vec::new();
        for name in storage::claims_of(pod) {
            let Some(claim) = index.claims.get(&name) else {
                return Err(format!("persistentvolumeclaim {:?} not found", name.1));
            };
            if claim.metadata.deletion_timestamp.is_some() {
                return Err(format!("persistentvolumeclaim {:?} is being deleted", name.1));
            }
            claims.push((name, claim));
        }
        for (name, claim) in claims {
            if let Some(volume) = storage::bound_volume(claim, index) {
                needs.disks.extend(storage::attachable(volume));
                let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
                if let Some(required) = affinity.and_then(|affinity| affinity.required.as_ref()) {
                    needs.reachable.push(required.node_selector_terms.clone());
                }
                continue;
            }
            let class = storage::class_of(claim, index);
            let Some(class) = class.filter(|class| storage::waits_for_consumer(class)) else {
                return Err("pod has unbound immediate PersistentVolumeClaims".to_owned());
            };
            if !storage::is_served(class) {
                return Err(format!(
                    "the embedded cluster does not run the provisioner {:?} of claim {:?}",
                    class.provisioner, name.1
                ));
            }
            if let Some(topologies) = &class.allowed_topologies {
                needs.creatable.push(topologies.clone());
            }
            if class.provisioner == storage::DISK {
                needs.disks.insert((class.provisioner.clone(), format!("{}/{}", name.0, name.1)));
            }
            needs.unbound.push(Arc::clone(claim));
        }
        Ok(needs)
    }

    /// The first failing filter; `None` if the volumes suit the node.
    pub(super) fn problem(&self, node: &Candidate) -> Option<&'static str> {
        if node.disks.is_over(&self.disks) {
            return Some("node(s) exceed max volume count");
        }
        if self.reachable.iter().any(|terms| !terms.iter().any(|term| node.meets(term))) {
            return Some("node(s) didn't match PersistentVolume's node affinity");
        }
        let allowed = |topology: &TopologySelectorTerm| {
            topology.match_label_expressions.iter().flatten().all(|expression| {
                node.labels()
                    .get(&expression.key)
                    .is_some_and(|value| expression.values.contains(value))
            })
        };
        let somewhere = |topologies: &Vec<TopologySelectorTerm>| topologies.iter().any(allowed);
        (!self.creatable.iter().all(somewhere))
            .then_some("node(s) didn't find available persistent volumes to bind")
    }
}

/// Disks of a node and how many it can hold.
#[derive(Debug, Default)]
pub(super) struct Disks {
    attached: BTreeSet<Disk>,
    /// Most disks by driver; a driver that is not named has no limit.
    limits: BTreeMap<String, usize>,
}

impl Disks {
    /// The limits of a node, from its CSINode.
    pub(super) fn of(node: &str, index: &Index) -> Self {
        let csi_node = index.csi_nodes.get(&(String::new(), node.to_owned()));
        let drivers = csi_node.iter().flat_map(|node| &node.spec.drivers);
        let limits = drivers.filter_map(|driver| {
            let limit = driver.allocatable.as_ref()?.count?;
            Some((driver.name.clone(), usize::try_from(limit).unwrap_or(0)))
        });
        Self { attached: BTreeSet::new(), limits: limits.collect() }
    }

    pub(super) fn add(&mut self, disks: impl IntoIterator<Item = Disk>) {
        self.attached.extend(disks);
    }

    fn is_over(&self, more: &BTreeSet<Disk>) -> bool {
        self.limits.iter().any(|(driver, limit)| {
            let of = |disk: &&Disk| disk.0 == *driver;
            let new = more.iter().filter(of).filter(|disk| !self.attached.contains(*disk)).count();
            new > 0 && self.attached.iter().filter(of).count() + new > *limit
        })
    }
}

/// Makes and binds the volumes of a pod for its node; false if one is still missing.
pub(super) async fn provision(
    needs: &VolumeNeeds,
    node: &str,
    index: &mut Index,
    writer: &mut Writer,
) -> bool {
    for claim in &needs.unbound {
        let of = key(&**claim);
        let annotations = json!({ "volume.kubernetes.io/selected-node": node });
        let patch = json!({ "metadata": { "annotations": annotations } });
        writer.patch(&mut index.claims, &of, &patch).await;
        let Some(claim) = index.claims.get(&of).cloned() else { return false };
        storage::provision_for(&claim, index, writer).await;
        let bound = index.claims.get(&of).is_some_and(|claim| {
            claim.uid().is_some() && storage::bound_volume(claim, index).is_some()
        });
        if !bound {
            return false;
        }
    }
    true
}
