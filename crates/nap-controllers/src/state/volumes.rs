//! Where the volumes of a pod are or can be, and how many of them its node must attach.
//!
//! A volume that exists ties its pod to the nodes that can reach it; one that is still to be made
//! for the pod's first node can be made wherever its class allows. What cannot be told yet (a claim
//! that does not exist, or one that waits to be bound) is a reason to leave the pod alone: a node
//! would not help it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    PersistentVolume, PersistentVolumeClaimSpec, PersistentVolumeSpec, Pod, Volume,
};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;
use nap_api::{Requirement, Requirements, labels};
use nap_engine::{ATTACHABLE_VOLUMES, VolumeProblem};
use nap_units::{Resources, Rounding};

use super::snapshot::term_requirements;
use super::{Machine, State};

/// Marks the class of claims that name none.
const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";

/// The CSI driver of disks on Azure.
const AZURE_DISK: &str = "disk.csi.azure.com";

/// The most combinations of places that are kept for the volumes of one pod.
const MAX_PLACES: usize = 64;

impl State {
    /// The places that suit all volumes of a pod, as alternatives; none means any place. `Err` says
    /// which volume cannot be placed, and why.
    pub(super) fn volume_terms(&self, pod: &Pod) -> Result<Vec<Requirements>, VolumeProblem> {
        let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
        let mut places: Vec<Requirements> = Vec::new();
        for volume in volumes.into_iter().flatten() {
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

    /// The name and the contents of the claim that stands behind a volume; nothing for volumes of
    /// other kinds.
    fn claim<'a>(
        &'a self,
        pod: &Pod,
        volume: &'a Volume,
    ) -> Option<(String, Option<&'a PersistentVolumeClaimSpec>)> {
        let (name, template) = match (&volume.persistent_volume_claim, &volume.ephemeral) {
            (Some(claim), _) => (claim.claim_name.clone(), None),
            (None, Some(ephemeral)) => {
                let template =
                    ephemeral.volume_claim_template.as_ref().map(|template| &template.spec);
                (format!("{}-{}", pod.name_any(), volume.name), template)
            }
            (None, None) => return None,
        };
        let claim =
            self.volume_claims.get(&format!("{}/{name}", pod.namespace().unwrap_or_default()));
        Some((name, claim.and_then(|claim| claim.spec.as_ref()).or(template)))
    }

    fn places(&self, pod: &Pod, volume: &Volume) -> Result<Vec<Requirements>, VolumeProblem> {
        let Some((name, spec)) = self.claim(pod, volume) else { return Ok(Vec::new()) };
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

    /// The newest class that is marked as the default.
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

impl State {
    /// The volumes of a pod that its node must attach: the CSI driver, and what tells the volume
    /// from others.
    pub(super) fn attached(&self, pod: &Pod) -> BTreeSet<(String, String)> {
        let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
        let attached = volumes.into_iter().flatten().filter_map(|volume| {
            let (name, spec) = self.claim(pod, volume)?;
            let spec = spec?;
            if let Some(bound) = bound(spec) {
                return driver_of(self.volumes.get(bound)?.spec.as_ref()?);
            }
            let driver = current_name(&self.class_of(spec)?.provisioner);
            Some((driver.to_owned(), format!("{}/{name}", pod.namespace().unwrap_or_default())))
        });
        attached.collect()
    }

    /// How many volumes of each CSI driver a machine can attach: as its CSINode says once the
    /// driver is there, until then as its claim expects. A driver that is not named has no limit.
    pub(super) fn attach_limits(&self, machine: &Machine) -> Resources {
        let claim = machine.claim.as_ref().and_then(|claim| claim.status.as_ref());
        let expected = claim.iter().flat_map(|status| &status.allocatable);
        let expected = expected.filter(|(name, _)| name.starts_with(ATTACHABLE_VOLUMES));
        let mut limits: BTreeMap<String, i64> =
            expected.map(|(name, limit)| (name.clone(), limit.to_units(Rounding::Down))).collect();
        let node = machine.node.as_ref().and_then(|node| self.csi_nodes.get(&node.name_any()));
        for driver in node.into_iter().flat_map(|node| &node.spec.drivers) {
            let name = resource(&driver.name);
            match driver.allocatable.as_ref().and_then(|allocatable| allocatable.count) {
                Some(limit) => drop(limits.insert(name, limit.into())),
                None => drop(limits.remove(&name)),
            }
        }
        limits.into_iter().fold(Resources::new(), |all, (name, limit)| all.with(name, limit))
    }
}

/// Volumes as a resource, counted by driver.
pub(super) fn counted<'a>(volumes: impl IntoIterator<Item = &'a (String, String)>) -> Resources {
    let mut counted = Resources::new();
    for (driver, _) in volumes {
        counted.add(&Resources::new().with(resource(driver), 1));
    }
    counted
}

fn resource(driver: &str) -> String {
    format!("{ATTACHABLE_VOLUMES}{driver}")
}

/// The volume that a claim is bound to.
fn bound(spec: &PersistentVolumeClaimSpec) -> Option<&str> {
    spec.volume_name.as_deref().filter(|name| !name.is_empty())
}

/// What the built-in driver of disks is called since it moved out of Kubernetes.
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
            // The node that has it may be gone; another one of its kind is as good as it gets.
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
    use serde_json::{Value, json};

    use super::*;

    fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn state() -> State {
        let mut state = State::default();
        state.apply_storage_class(object(json!({
            "metadata": { "name": "disk", "annotations": { DEFAULT_CLASS: "true" } },
            "provisioner": "disk.csi.azure.com", "volumeBindingMode": "WaitForFirstConsumer",
            "allowedTopologies": [{ "matchLabelExpressions": [
                { "key": "topology.disk.csi.azure.com/zone", "values": ["z-1", "z-2"] },
            ] }],
        })));
        state.apply_storage_class(object(json!({
            "metadata": { "name": "now" }, "provisioner": "x", "volumeBindingMode": "Immediate",
        })));
        let csi = json!({ "driver": AZURE_DISK, "volumeHandle": "disk-1" });
        state.apply_volume(object(
            json!({ "metadata": { "name": "pv-1" }, "spec": { "csi": csi, "nodeAffinity": {
            "required": { "nodeSelectorTerms": [{ "matchExpressions": [
                { "key": "topology.disk.csi.azure.com/zone", "operator": "In", "values": ["z-2"] },
            ] }] },
        } } }),
        ));
        for (name, spec) in [
            ("bound", json!({ "volumeName": "pv-1" })),
            ("free", json!({})),
            ("lost", json!({ "volumeName": "gone" })),
            ("waiting", json!({ "storageClassName": "now" })),
        ] {
            let metadata = json!({ "name": name, "namespace": "shop" });
            state.apply_volume_claim(object(json!({ "metadata": metadata, "spec": spec })));
        }
        state
    }

    fn zones(claims: &[&str]) -> Result<Vec<String>, VolumeProblem> {
        let places = state().volume_terms(&pod("db-0", claims))?;
        Ok(places.iter().map(|place| place.get(labels::ZONE).unwrap().to_string()).collect())
    }

    #[test]
    fn a_volume_ties_its_pod_to_its_zone() {
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
        object(json!({
            "metadata": { "name": name, "namespace": "shop" },
            "spec": { "containers": [], "volumes": volumes },
        }))
    }

    #[test]
    fn volumes_are_counted_by_driver_and_once() {
        let state = state();
        let both = [
            state.attached(&pod("db-0", &["free", "bound"])),
            state.attached(&pod("db-1", &["bound"])),
        ];
        let counted = counted(both.iter().flatten().collect::<BTreeSet<_>>());
        assert_eq!(counted, Resources::new().with("attachable-volumes-csi-disk.csi.azure.com", 2));
        assert!(state.attached(&pod("db-2", &["absent"])).is_empty());
    }

    #[test]
    fn a_node_says_how_much_it_can_attach_and_until_then_its_claim_does() {
        let mut state = state();
        let disks = |state: &State, machine: &Machine| {
            let limits = state.attach_limits(machine);
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
        let machine = Machine { claim: Some(Arc::new(claim)), node: Some(Arc::new(node)) };
        assert_eq!(disks(&state, &machine), Some(8));
        let csi = |allocatable: Value| {
            let driver =
                json!({ "name": AZURE_DISK, "nodeID": "node", "allocatable": allocatable });
            object(json!({ "metadata": { "name": "node" }, "spec": { "drivers": [driver] } }))
        };
        state.apply_csi_node(csi(json!({ "count": 4 })));
        assert_eq!(disks(&state, &machine), Some(4));
        state.apply_csi_node(csi(Value::Null));
        assert_eq!(disks(&state, &machine), None, "a driver without a count has no limit");
    }

    #[test]
    fn a_volume_that_cannot_be_placed_is_named() {
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
