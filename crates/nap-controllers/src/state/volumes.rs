//! Where the volumes of a pod are, or can be.
//!
//! A volume that exists ties its pod to the nodes that can reach it; one that is still to be made for the pod's first node can be made
//! wherever its class allows. What cannot be told yet (a claim that does not exist, or one that waits to be bound) is a reason to leave the
//! pod alone: a node would not help it.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaimSpec, Pod, Volume};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;
use nap_api::{Requirement, Requirements, labels};

use super::State;
use super::snapshot::term_requirements;

/// Marks the class of claims that name none.
const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";

/// The most combinations of places that are kept for the volumes of one pod.
const MOST_PLACES: usize = 64;

impl State {
    /// The places that suit all volumes of a pod, as alternatives; none means any place. `Err` says which volume cannot be placed, and why.
    pub(super) fn volume_terms(&self, pod: &Pod) -> Result<Vec<Requirements>, String> {
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
            for (mine, other) in places.iter().flat_map(|mine| found.iter().map(move |other| (mine, other))) {
                if mine.intersects(other).is_ok() && both.len() < MOST_PLACES {
                    let mut one = mine.clone();
                    one.extend(other);
                    both.push(one);
                }
            }
            if both.is_empty() {
                return Err(format!("spec.volumes: `{}` is nowhere near the other volumes", volume.name));
            }
            places = both;
        }
        Ok(places)
    }

    fn places(&self, pod: &Pod, volume: &Volume) -> Result<Vec<Requirements>, String> {
        let namespace = pod.namespace().unwrap_or_default();
        let (name, template) = match (&volume.persistent_volume_claim, &volume.ephemeral) {
            (Some(claim), _) => (claim.claim_name.clone(), None),
            (None, Some(ephemeral)) => {
                let template = ephemeral.volume_claim_template.as_ref().map(|template| &template.spec);
                (format!("{}-{}", pod.name_any(), volume.name), template)
            }
            (None, None) => return Ok(Vec::new()),
        };
        let claim = self.volume_claims.get(&format!("{namespace}/{name}"));
        let spec = claim.and_then(|claim| claim.spec.as_ref()).or(template);
        let Some(spec) = spec else { return Err(format!("spec.volumes: claim `{name}` does not exist")) };
        let bound = spec.volume_name.as_deref().filter(|name| !name.is_empty());
        match bound {
            Some(bound) => match self.volumes.get(bound) {
                Some(volume) => where_it_is(volume),
                None => Err(format!("spec.volumes: volume `{bound}` does not exist")),
            },
            None => self.where_it_can_be(&name, spec),
        }
    }

    fn where_it_can_be(
        &self,
        claim: &str,
        spec: &PersistentVolumeClaimSpec,
    ) -> Result<Vec<Requirements>, String> {
        let class = match spec.storage_class_name.as_deref() {
            Some("") => return Err(format!("spec.volumes: claim `{claim}` waits for a volume")),
            Some(name) => self.storage_classes.get(name),
            None => self.default_class(),
        };
        let Some(class) = class else {
            return Err(format!("spec.volumes: claim `{claim}` has no storage class that exists"));
        };
        if class.volume_binding_mode.as_deref() != Some("WaitForFirstConsumer") {
            return Err(format!("spec.volumes: claim `{claim}` is not bound yet"));
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

    /// The newest class that is marked as the default.
    fn default_class(&self) -> Option<&std::sync::Arc<StorageClass>> {
        let marked = self
            .storage_classes
            .values()
            .filter(|class| class.annotations().get(DEFAULT_CLASS).is_some_and(|value| value == "true"));
        marked.max_by_key(|class| {
            let made = class.metadata.creation_timestamp.as_ref().map(|time| time.0);
            (made, std::cmp::Reverse(class.name_any()))
        })
    }
}

fn where_it_is(volume: &PersistentVolume) -> Result<Vec<Requirements>, String> {
    let Some(spec) = &volume.spec else { return Ok(Vec::new()) };
    let required = spec.node_affinity.as_ref().and_then(|affinity| affinity.required.as_ref());
    let is_local = spec.local.is_some() || spec.host_path.is_some();
    let mut places = Vec::new();
    for term in required.into_iter().flat_map(|required| &required.node_selector_terms) {
        let mut place = term_requirements(term)
            .map_err(|field| format!("spec.volumes: volume `{}` ({field})", volume.name_any()))?;
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
        state.apply_volume(object(json!({ "metadata": { "name": "pv-1" }, "spec": { "nodeAffinity": {
            "required": { "nodeSelectorTerms": [{ "matchExpressions": [
                { "key": "topology.disk.csi.azure.com/zone", "operator": "In", "values": ["z-2"] },
            ] }] },
        } } })));
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

    fn zones(claims: &[&str]) -> Result<Vec<String>, String> {
        let volumes: Vec<Value> = claims
            .iter()
            .map(|claim| json!({ "name": claim, "persistentVolumeClaim": { "claimName": claim } }))
            .collect();
        let pod: Pod = object(json!({
            "metadata": { "name": "db-0", "namespace": "shop" },
            "spec": { "containers": [], "volumes": volumes },
        }));
        let places = state().volume_terms(&pod)?;
        Ok(places.iter().map(|place| place.get(labels::ZONE).unwrap().to_string()).collect())
    }

    #[test]
    fn a_volume_ties_its_pod_to_its_zone() {
        assert_eq!(zones(&[]).unwrap(), Vec::<String>::new());
        assert_eq!(zones(&["bound"]).unwrap(), ["In [z-2]"]);
        assert_eq!(zones(&["free"]).unwrap(), ["In [z-1, z-2]"]);
        assert_eq!(zones(&["free", "bound"]).unwrap(), ["In [z-2]"]);
    }

    #[test]
    fn a_volume_that_cannot_be_placed_is_named() {
        assert_eq!(zones(&["absent"]).unwrap_err(), "spec.volumes: claim `absent` does not exist");
        assert_eq!(zones(&["lost"]).unwrap_err(), "spec.volumes: volume `gone` does not exist");
        assert_eq!(zones(&["waiting"]).unwrap_err(), "spec.volumes: claim `waiting` is not bound yet");
    }
}
