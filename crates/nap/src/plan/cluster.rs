//! The cluster that a plan is made for: the index that the controllers fill from watches, so that
//! `nap plan` and the controllers solve the same snapshot, and what every cluster on AKS has.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;
use kube::api::ObjectMeta;
use nap_api::{AKSNodeClass, NodePool, conditions, labels, validation};
use nap_controllers::cluster::{self, Index, Indexed, VolumeSource, pods};

use super::asked::KnownWorkload;
use crate::manifests::DEFAULT_NODEPOOL;
use crate::manifests::read;

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
    /// Notes about autoscalers, one line each. A cluster may have very many.
    pub autoscaler_notes: Vec<String>,
    /// Workloads, as far as they were read.
    pub workloads: Vec<KnownWorkload>,
    /// Number of pods that admission would refuse.
    pub refused: usize,
    /// What the controllers have learnt about the capacity of Azure; `None` if nothing is known.
    pub capacity_memory: Option<String>,
}

/// Adds an object of a manifest, which has no time of its own.
pub fn apply<K: Indexed>(index: &mut Index, object: K) {
    index.apply(object, Timestamp::UNIX_EPOCH);
}

impl Cluster {
    /// Adds AKS's StorageClasses if the manifests have none.
    pub fn add_storage_classes(&mut self) {
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
    pub fn note_nodes_without_claims(&mut self) {
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
