//! A pod as it is read from the API server: without the fields that no decision reads.
//!
//! Managed fields, environment, images, probes and container statuses are most of the text of a
//! pod. Here they are skipped, not parsed: taking in a cluster and a burst of pods costs half.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    self as core, Affinity, Container, ContainerPort, ContainerStatus, EphemeralVolumeSource,
    PersistentVolumeClaimVolumeSource, PodCondition, PodResourceClaim, PodSpec, PodStatus,
    ResourceRequirements, Toleration, TopologySpreadConstraint, Volume,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::Resource;
use serde::{Deserialize, Deserializer};

/// A pod with the fields that [`super::Pod`] is made from. A field that is added there has to be
/// added here too; a test compares the two ways of reading a pod.
#[derive(Clone, Debug)]
pub struct WatchedPod(pub(super) core::Pod);

impl From<WatchedPod> for super::Pod {
    fn from(pod: WatchedPod) -> Self {
        pod.0.into()
    }
}

impl<'de> Deserialize<'de> for WatchedPod {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wire = WirePod::deserialize(deserializer)?;
        Ok(Self(core::Pod {
            metadata: wire.metadata.unwrap_or_default().into(),
            spec: wire.spec.map(PodSpec::from),
            status: wire.status.map(PodStatus::from),
        }))
    }
}

impl Resource for WatchedPod {
    type DynamicType = ();
    type Scope = <core::Pod as Resource>::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        core::Pod::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        core::Pod::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        core::Pod::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        core::Pod::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.0.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.0.metadata
    }
}

#[derive(Deserialize)]
struct WirePod {
    metadata: Option<WireMetadata>,
    spec: Option<WireSpec>,
    status: Option<WireStatus>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireMetadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    owner_references: Option<Vec<OwnerReference>>,
}

impl From<WireMetadata> for ObjectMeta {
    fn from(wire: WireMetadata) -> Self {
        Self {
            name: wire.name,
            namespace: wire.namespace,
            uid: wire.uid,
            resource_version: wire.resource_version,
            creation_timestamp: wire.creation_timestamp,
            deletion_timestamp: wire.deletion_timestamp,
            labels: wire.labels,
            annotations: wire.annotations,
            owner_references: wire.owner_references,
            ..Self::default()
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireSpec {
    affinity: Option<Affinity>,
    containers: Option<Vec<WireContainer>>,
    init_containers: Option<Vec<WireContainer>>,
    node_name: Option<String>,
    node_selector: Option<BTreeMap<String, String>>,
    overhead: Option<BTreeMap<String, Quantity>>,
    priority: Option<i32>,
    priority_class_name: Option<String>,
    resource_claims: Option<Vec<PodResourceClaim>>,
    resources: Option<ResourceRequirements>,
    termination_grace_period_seconds: Option<i64>,
    tolerations: Option<Vec<Toleration>>,
    topology_spread_constraints: Option<Vec<TopologySpreadConstraint>>,
    volumes: Option<Vec<WireVolume>>,
}

impl From<WireSpec> for PodSpec {
    fn from(wire: WireSpec) -> Self {
        let containers = |all: Vec<WireContainer>| all.into_iter().map(Container::from).collect();
        let volumes = |all: Vec<WireVolume>| all.into_iter().map(Volume::from).collect();
        Self {
            affinity: wire.affinity,
            containers: wire.containers.map(containers).unwrap_or_default(),
            init_containers: wire.init_containers.map(containers),
            node_name: wire.node_name,
            node_selector: wire.node_selector,
            overhead: wire.overhead,
            priority: wire.priority,
            priority_class_name: wire.priority_class_name,
            resource_claims: wire.resource_claims,
            resources: wire.resources,
            termination_grace_period_seconds: wire.termination_grace_period_seconds,
            tolerations: wire.tolerations,
            topology_spread_constraints: wire.topology_spread_constraints,
            volumes: wire.volumes.map(volumes),
            ..Self::default()
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireContainer {
    name: Option<String>,
    ports: Option<Vec<ContainerPort>>,
    resources: Option<ResourceRequirements>,
    restart_policy: Option<String>,
}

impl From<WireContainer> for Container {
    fn from(wire: WireContainer) -> Self {
        Self {
            name: wire.name.unwrap_or_default(),
            ports: wire.ports,
            resources: wire.resources,
            restart_policy: wire.restart_policy,
            ..Self::default()
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireVolume {
    name: Option<String>,
    persistent_volume_claim: Option<PersistentVolumeClaimVolumeSource>,
    ephemeral: Option<EphemeralVolumeSource>,
}

impl From<WireVolume> for Volume {
    fn from(wire: WireVolume) -> Self {
        Self {
            name: wire.name.unwrap_or_default(),
            persistent_volume_claim: wire.persistent_volume_claim,
            ephemeral: wire.ephemeral,
            ..Self::default()
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireStatus {
    phase: Option<String>,
    conditions: Option<Vec<PodCondition>>,
    nominated_node_name: Option<String>,
    start_time: Option<Time>,
    container_statuses: Option<Vec<WireContainerStatus>>,
    init_container_statuses: Option<Vec<WireContainerStatus>>,
}

impl From<WireStatus> for PodStatus {
    fn from(wire: WireStatus) -> Self {
        let statuses =
            |all: Vec<WireContainerStatus>| all.into_iter().map(ContainerStatus::from).collect();
        Self {
            phase: wire.phase,
            conditions: wire.conditions,
            nominated_node_name: wire.nominated_node_name,
            start_time: wire.start_time,
            container_statuses: wire.container_statuses.map(statuses),
            init_container_statuses: wire.init_container_statuses.map(statuses),
            ..Self::default()
        }
    }
}

#[derive(Deserialize)]
struct WireContainerStatus {
    name: Option<String>,
    resources: Option<ResourceRequirements>,
}

impl From<WireContainerStatus> for ContainerStatus {
    fn from(wire: WireContainerStatus) -> Self {
        let name = wire.name.unwrap_or_default();
        Self { name, resources: wire.resources, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::Pod;

    /// A pod with every field that decisions read, among fields that none reads.
    fn rich() -> Value {
        let requests =
            json!({ "requests": { "cpu": "1", "memory": "1Gi" }, "limits": { "cpu": "2" } });
        let selector = json!({ "matchLabels": { "app": "web" } });
        let volume_claim = json!({ "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
            "resources": { "requests": { "storage": "1Gi" } },
        } });
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "web-0", "namespace": "shop", "uid": "u", "resourceVersion": "7",
                "generateName": "web-", "generation": 3, "selfLink": "/x",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "deletionTimestamp": "2026-01-01T01:00:00Z", "deletionGracePeriodSeconds": 30,
                "labels": { "app": "web" }, "finalizers": ["x"],
                "annotations": { "karpenter.sh/do-not-disrupt": "true", "other": "x" },
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": "o",
                    "controller": true,
                }],
                "managedFields": [{ "manager": "kubelet", "fieldsV1": { "f:spec": {} } }],
            },
            "spec": {
                "nodeName": "n", "nodeSelector": { "zone": "1" }, "priority": 5,
                "priorityClassName": "system-cluster-critical", "dnsPolicy": "ClusterFirst",
                "terminationGracePeriodSeconds": 7, "overhead": { "cpu": "50m" },
                "resources": { "requests": { "memory": "4Gi" } },
                "resourceClaims": [{ "name": "gpu", "resourceClaimName": "gpu" }],
                "affinity": {
                    "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{ "matchExpressions": [
                            { "key": "arch", "operator": "In", "values": ["arm64"] },
                        ] }],
                    } },
                    "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [
                        { "topologyKey": "kubernetes.io/hostname", "labelSelector": selector },
                    ] },
                },
                "tolerations": [{ "key": "dedicated", "operator": "Exists" }],
                "topologySpreadConstraints": [{
                    "maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone",
                    "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector,
                }],
                "containers": [{
                    "name": "app", "image": "i", "env": [{ "name": "A", "value": "b" }],
                    "ports": [{ "containerPort": 81, "hostPort": 81, "protocol": "UDP" }],
                    "resources": requests, "livenessProbe": { "httpGet": { "port": "http" } },
                }],
                "initContainers": [{
                    "name": "sidecar", "restartPolicy": "Always", "resources": requests,
                    "ports": [{ "containerPort": 82, "hostPort": 82, "hostIP": "10.0.0.1" }],
                }],
                "volumes": [
                    { "name": "token", "projected": { "sources": [] } },
                    { "name": "data", "persistentVolumeClaim": { "claimName": "data" } },
                    { "name": "cache", "ephemeral": { "volumeClaimTemplate": volume_claim } },
                ],
            },
            "status": {
                "phase": "Running", "nominatedNodeName": "m", "startTime": "2026-01-01T00:00:05Z",
                "qosClass": "Burstable", "podIPs": [{ "ip": "10.0.0.1" }],
                "conditions": [
                    {
                        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                        "message": "0/1", "lastTransitionTime": "2026-01-01T00:00:01Z",
                    },
                    { "type": "Ready", "status": "True" },
                    { "type": "PodResizePending", "status": "True", "reason": "Deferred" },
                ],
                "containerStatuses": [{
                    "name": "app", "ready": true, "restartCount": 0, "image": "i", "imageID": "i",
                    "resources": { "requests": { "cpu": "3" } },
                }],
                "initContainerStatuses": [{
                    "name": "sidecar", "ready": true, "restartCount": 0, "image": "i",
                    "imageID": "i", "resources": { "requests": { "cpu": "2" } },
                }],
            },
        })
    }

    #[track_caller]
    fn assert_same(value: &Value) -> Pod {
        let text = value.to_string();
        let full = Pod::from(serde_json::from_str::<core::Pod>(&text).unwrap());
        let watched = Pod::from(serde_json::from_str::<WatchedPod>(&text).unwrap());
        assert_eq!(watched, full);
        watched
    }

    #[test]
    fn a_watched_pod_is_the_pod_that_the_whole_object_gives() {
        let pod = assert_same(&rich());
        assert_eq!(pod.node(), Some("n"));
        assert_eq!((pod.host_ports().len(), pod.volumes().len()), (2, 2));
        let mut unbound = rich();
        unbound["spec"]["nodeName"] = json!("");
        assert!(assert_same(&unbound).attempt().is_some());
    }

    #[test]
    fn every_field_may_be_null_or_absent() {
        assert_same(&json!({ "metadata": { "name": "p", "namespace": "d" } }));
        assert_same(
            &json!({ "metadata": { "name": "p", "namespace": "d" }, "spec": null, "status": null }),
        );
        for part in ["metadata", "spec", "status"] {
            for field in rich()[part].as_object().unwrap().keys() {
                if matches!(field.as_str(), "name" | "namespace") {
                    continue;
                }
                let mut value = rich();
                value[part][field] = Value::Null;
                assert_same(&value);
                value[part].as_object_mut().unwrap().remove(field);
                assert_same(&value);
            }
        }
    }
}
