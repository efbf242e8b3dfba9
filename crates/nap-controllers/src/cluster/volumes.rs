//! Node requirements that follow from a pod's volumes, and attach limits of nodes.
//!
//! A bound volume restricts its pod to the nodes that can reach it; an unbound claim with
//! `WaitForFirstConsumer` to the topologies that its StorageClass allows. A pod whose claim is
//! missing or waits for binding cannot be helped by a new node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    PersistentVolume, PersistentVolumeClaimSpec, PersistentVolumeSpec,
};
use k8s_openapi::api::storage::v1::{CSINode, StorageClass};
use kube::ResourceExt;
use nap_api::{Requirement, Requirements, labels};
use nap_engine::{ATTACHABLE_VOLUMES, VolumeProblem};
use nap_units::{Resources, Rounding};

use super::node_affinity::term_requirements;
use super::{Index, NodeView, Pod, PodVolume, VolumeSource};

/// Annotation of the StorageClass for claims that name none.
const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";

/// CSI driver of Azure disks.
const AZURE_DISK: &str = "disk.csi.azure.com";

/// Most alternatives that are kept for the volumes of one pod.
const MAX_PLACES: usize = 64;

impl Index {
    /// Node requirements that suit all volumes of a pod, as alternatives; empty means any node.
    /// `Err` says which volume cannot be placed, and why.
    pub(crate) fn volume_terms(&self, pod: &Pod) -> Result<Vec<Requirements>, VolumeProblem> {
        let mut places: Vec<Requirements> = Vec::new();
        for volume in pod.volumes() {
            let found = self.places(pod, volume)?;
            if found.is_empty() {
                continue;
            }
            if places.is_empty() {
                places = found;
                continue;
            }
            let mut both: Vec<Requirements> = Vec::new();
            for (mine, other) in
                places.iter().flat_map(|mine| found.iter().map(move |other| (mine, other)))
            {
                if mine.intersects(other).is_ok() && both.len() < MAX_PLACES {
                    let mut one = mine.clone();
                    one.extend(other);
                    both.push(one);
                }
            }
            if both.is_empty() {
                return Err(VolumeProblem::Elsewhere(volume.name.clone()));
            }
            places = both;
        }
        Ok(places)
    }

    /// The PersistentVolumeClaim behind a volume: its name, and its spec if it exists or can be
    /// made from a template.
    fn volume_claim_of<'a>(
        &'a self,
        pod: &Pod,
        volume: &'a PodVolume,
    ) -> (String, Option<&'a PersistentVolumeClaimSpec>) {
        let (name, template) = match &volume.source {
            VolumeSource::Claim(name) => (name.clone(), None),
            VolumeSource::Ephemeral(template) => {
                (format!("{}-{}", pod.name(), volume.name), template.as_deref())
            }
        };
        let claim = self.volume_claims.get(&format!("{}/{name}", pod.namespace()));
        (name, claim.and_then(|claim| claim.spec.as_ref()).or(template))
    }

    fn places(&self, pod: &Pod, volume: &PodVolume) -> Result<Vec<Requirements>, VolumeProblem> {
        let (name, spec) = self.volume_claim_of(pod, volume);
        let Some(spec) = spec else {
            return Err(VolumeProblem::ClaimMissing(name));
        };
        match bound(spec) {
            Some(bound) => match self.volumes.get(bound) {
                Some(volume) => where_it_is(volume),
                None => Err(VolumeProblem::VolumeMissing(bound.to_owned())),
            },
            None => self.where_it_can_be(&name, spec),
        }
    }

    fn where_it_can_be(
        &self,
        claim: &str,
        spec: &PersistentVolumeClaimSpec,
    ) -> Result<Vec<Requirements>, VolumeProblem> {
        if spec.storage_class_name.as_deref() == Some("") {
            return Err(VolumeProblem::ClaimWaitsForVolume(claim.to_owned()));
        }
        let Some(class) = self.class_of(spec) else {
            return Err(VolumeProblem::StorageClassMissing(claim.to_owned()));
        };
        if class.volume_binding_mode.as_deref() != Some("WaitForFirstConsumer") {
            return Err(VolumeProblem::ClaimUnbound(claim.to_owned()));
        }
        let topologies = class.allowed_topologies.iter().flatten();
        let place = |topology: &k8s_openapi::api::core::v1::TopologySelectorTerm| {
            let mut place = Requirements::new();
            for expression in topology.match_label_expressions.iter().flatten() {
                let values = expression.values.iter().map(String::as_str);
                place.add(&expression.key, Requirement::is_in(values));
            }
            place
        };
        Ok(topologies.map(place).collect())
    }

    fn class_of(&self, spec: &PersistentVolumeClaimSpec) -> Option<&Arc<StorageClass>> {
        match spec.storage_class_name.as_deref() {
            Some(name) => self.storage_classes.get(name),
            None => self.default_class(),
        }
    }

    /// The newest StorageClass that is annotated as the default.
    fn default_class(&self) -> Option<&Arc<StorageClass>> {
        let marked = self.storage_classes.values().filter(|class| {
            class.annotations().get(DEFAULT_CLASS).is_some_and(|value| value == "true")
        });
        marked.max_by_key(|class| {
            let made = class.metadata.creation_timestamp.as_ref().map(|time| time.0);
            (made, std::cmp::Reverse(class.name_any()))
        })
    }
}

impl Index {
    /// Names of the PersistentVolumes that a pod uses.
    pub(crate) fn volume_names(&self, pod: &Pod) -> BTreeSet<String> {
        let claims = pod.volumes().iter().filter_map(|volume| self.volume_claim_of(pod, volume).1);
        claims.filter_map(bound).map(str::to_owned).collect()
    }

    /// Volumes of a pod that its node must attach, as pairs of CSI driver and volume handle.
    pub(crate) fn attached(&self, pod: &Pod) -> BTreeSet<(String, String)> {
        let attached = pod.volumes().iter().filter_map(|volume| {
            let (name, spec) = self.volume_claim_of(pod, volume);
            let spec = spec?;
            if let Some(bound) = bound(spec) {
                return driver_of(self.volumes.get(bound)?.spec.as_ref()?);
            }
            let driver = current_name(&self.class_of(spec)?.provisioner);
            Some((driver.to_owned(), format!("{}/{name}", pod.namespace())))
        });
        attached.collect()
    }

    /// Attach limits of a node by CSI driver: from its CSINode once the driver is registered, until
    /// then from its NodeClaim. A driver that is not named has no limit.
    pub(crate) fn attach_limits(&self, view: &NodeView) -> Resources {
        let claim = view.claim.as_ref().and_then(|claim| claim.status.as_ref());
        let expected = claim.iter().flat_map(|status| &status.allocatable);
        let expected = expected.filter(|(name, _)| name.starts_with(ATTACHABLE_VOLUMES));
        let mut limits: BTreeMap<String, i64> =
            expected.map(|(name, limit)| (name.clone(), limit.to_units(Rounding::Down))).collect();
        for driver in self.csi_node(view).into_iter().flat_map(|node| &node.spec.drivers) {
            let name = resource(&driver.name);
            match driver.allocatable.as_ref().and_then(|allocatable| allocatable.count) {
                Some(limit) => drop(limits.insert(name, limit.into())),
                None => drop(limits.remove(&name)),
            }
        }
        limits.into_iter().fold(Resources::new(), |all, (name, limit)| all.with(name, limit))
    }
}

impl Index {
    /// The CSINode of a view; `None` until it joins.
    pub(crate) fn csi_node(&self, view: &NodeView) -> Option<&Arc<CSINode>> {
        self.csi_nodes.get(view.node.as_ref()?.metadata.name.as_deref()?)
    }
}

/// Volumes counted by CSI driver, as a resource per driver.
pub(crate) fn counted_by_driver<'a>(
    volumes: impl IntoIterator<Item = &'a (String, String)>,
) -> Resources {
    let mut counted = Resources::new();
    for (driver, _) in volumes {
        counted.add(&Resources::new().with(resource(driver), 1));
    }
    counted
}

fn resource(driver: &str) -> String {
    format!("{ATTACHABLE_VOLUMES}{driver}")
}

/// The PersistentVolume that a claim is bound to; `None` while it is unbound.
fn bound(spec: &PersistentVolumeClaimSpec) -> Option<&str> {
    spec.volume_name.as_deref().filter(|name| !name.is_empty())
}

/// The CSI name of a driver that used to be built into Kubernetes.
fn current_name(driver: &str) -> &str {
    if driver == "kubernetes.io/azure-disk" { AZURE_DISK } else { driver }
}

fn driver_of(spec: &PersistentVolumeSpec) -> Option<(String, String)> {
    let disk =
        || spec.azure_disk.as_ref().map(|disk| (AZURE_DISK.to_owned(), disk.disk_uri.clone()));
    let csi = spec.csi.as_ref().map(|csi| (csi.driver.clone(), csi.volume_handle.clone()));
    csi.or_else(disk)
}

fn where_it_is(volume: &PersistentVolume) -> Result<Vec<Requirements>, VolumeProblem> {
    let Some(spec) = &volume.spec else { return Ok(Vec::new()) };
    let required = spec.node_affinity.as_ref().and_then(|affinity| affinity.required.as_ref());
    let is_local = spec.local.is_some() || spec.host_path.is_some();
    let mut places = Vec::new();
    for term in required.into_iter().flat_map(|required| &required.node_selector_terms) {
        let mut place = term_requirements(term)
            .map_err(|field| VolumeProblem::Affinity { volume: volume.name_any(), field })?;
        if is_local {
            // The node with the data may be gone; another node in the same zone is the best left.
            place = place.iter().filter(|(key, _)| *key != labels::HOSTNAME).fold(
                Requirements::new(),
                |mut kept, (key, requirement)| {
                    kept.add(key, requirement.clone());
                    kept
                },
            );
        }
        places.push(place);
    }
    Ok(places)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use k8s_openapi::api::core::v1::PersistentVolumeClaim;
    use serde_json::{Value, json};

    use super::*;

    const T0: Timestamp = Timestamp::UNIX_EPOCH;

    fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn index() -> Index {
        let mut state = Index::default();
        state.apply::<StorageClass>(
            object(json!({
                "metadata": { "name": "disk", "annotations": { DEFAULT_CLASS: "true" } },
                "provisioner": "disk.csi.azure.com", "volumeBindingMode": "WaitForFirstConsumer",
                "allowedTopologies": [{ "matchLabelExpressions": [
                    { "key": "topology.disk.csi.azure.com/zone", "values": ["z-1", "z-2"] },
                ] }],
            })),
            T0,
        );
        state.apply::<StorageClass>(
            object(json!({
                "metadata": { "name": "now" }, "provisioner": "x", "volumeBindingMode": "Immediate",
            })),
            T0,
        );
        let csi = json!({ "driver": AZURE_DISK, "volumeHandle": "disk-1" });
        state.apply::<PersistentVolume>(
            object(json!({ "metadata": { "name": "pv-1" }, "spec": { "csi": csi, "nodeAffinity": {
            "required": { "nodeSelectorTerms": [{ "matchExpressions": [
                { "key": "topology.disk.csi.azure.com/zone", "operator": "In", "values": ["z-2"] },
            ] }] },
        } } })),
            T0,
        );
        for (name, spec) in [
            ("bound", json!({ "volumeName": "pv-1" })),
            ("free", json!({})),
            ("lost", json!({ "volumeName": "gone" })),
            ("waiting", json!({ "storageClassName": "now" })),
        ] {
            let metadata = json!({ "name": name, "namespace": "shop" });
            let claim = object(json!({ "metadata": metadata, "spec": spec }));
            state.apply::<PersistentVolumeClaim>(claim, T0);
        }
        state
    }

    fn zones(claims: &[&str]) -> Result<Vec<String>, VolumeProblem> {
        let places = index().volume_terms(&pod("db-0", claims))?;
        Ok(places.iter().map(|place| place.get(labels::ZONE).unwrap().to_string()).collect())
    }

    #[test]
    fn a_volume_restricts_its_pod_to_its_zone() {
        assert_eq!(zones(&[]).unwrap(), Vec::<String>::new());
        assert_eq!(zones(&["bound"]).unwrap(), ["In [z-2]"]);
        assert_eq!(zones(&["free"]).unwrap(), ["In [z-1, z-2]"]);
        assert_eq!(zones(&["free", "bound"]).unwrap(), ["In [z-2]"]);
    }

    fn pod(name: &str, claims: &[&str]) -> Pod {
        let volumes: Vec<Value> = claims
            .iter()
            .map(|claim| json!({ "name": claim, "persistentVolumeClaim": { "claimName": claim } }))
            .collect();
        Pod::from(object::<k8s_openapi::api::core::v1::Pod>(json!({
            "metadata": { "name": name, "namespace": "shop" },
            "spec": { "containers": [], "volumes": volumes },
        })))
    }

    #[test]
    fn a_shared_volume_is_counted_once_per_driver() {
        let state = index();
        let both = [
            state.attached(&pod("db-0", &["free", "bound"])),
            state.attached(&pod("db-1", &["bound"])),
        ];
        let counted = counted_by_driver(both.iter().flatten().collect::<BTreeSet<_>>());
        assert_eq!(counted, Resources::new().with("attachable-volumes-csi-disk.csi.azure.com", 2));
        assert!(state.attached(&pod("db-2", &["absent"])).is_empty());
    }

    #[test]
    fn attach_limits_come_from_the_csi_node_and_before_that_from_the_claim() {
        let mut state = index();
        let disks = |state: &Index, view: &NodeView| {
            let limits = state.attach_limits(view);
            limits
                .contains("attachable-volumes-csi-disk.csi.azure.com")
                .then(|| limits.get("attachable-volumes-csi-disk.csi.azure.com"))
        };
        let claim: nap_api::NodeClaim = object(json!({
            "metadata": { "name": "claim" },
            "spec": { "requirements": [], "nodeClassRef": { "group": "g", "kind": "k", "name": "n" } },
            "status": { "allocatable": { "attachable-volumes-csi-disk.csi.azure.com": "8", "cpu": "2" } },
        }));
        let node: k8s_openapi::api::core::v1::Node =
            object(json!({ "metadata": { "name": "node" } }));
        let view = NodeView { claim: Some(Arc::new(claim)), node: Some(Arc::new(node)) };
        assert_eq!(disks(&state, &view), Some(8));
        let csi = |allocatable: Value| {
            let driver =
                json!({ "name": AZURE_DISK, "nodeID": "node", "allocatable": allocatable });
            object(json!({ "metadata": { "name": "node" }, "spec": { "drivers": [driver] } }))
        };
        state.apply::<CSINode>(csi(json!({ "count": 4 })), T0);
        assert_eq!(disks(&state, &view), Some(4));
        state.apply::<CSINode>(csi(Value::Null), T0);
        assert_eq!(disks(&state, &view), None, "a driver without a count has no limit");
    }

    #[test]
    fn volumes_that_cannot_be_placed_are_named() {
        assert_eq!(
            zones(&["absent"]).unwrap_err(),
            VolumeProblem::ClaimMissing("absent".to_owned())
        );
        assert_eq!(zones(&["lost"]).unwrap_err(), VolumeProblem::VolumeMissing("gone".to_owned()));
        assert_eq!(
            zones(&["waiting"]).unwrap_err(),
            VolumeProblem::ClaimUnbound("waiting".to_owned())
        );
    }
}
