//! Objects without what no decision reads, made as they enter the index: most of a Pod or a Node on
//! the wire is managed fields, images, environment and container statuses.
//!
//! Writes send only differences, so what is missing here stays on the server.

use k8s_openapi::api::core::v1::{
    Container, ContainerStatus, Node, Pod, PodSpec, PodStatus, ResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Prefixes of the pod annotations that are kept.
const POD_ANNOTATIONS: [&str; 3] =
    ["karpenter.sh/", "kubernetes.io/config.", "controller.kubernetes.io/"];

pub(super) fn metadata(metadata: &mut ObjectMeta) {
    metadata.managed_fields = None;
}

pub(super) fn pod(pod: &mut Pod) {
    metadata(&mut pod.metadata);
    pod.metadata.generate_name = None;
    if let Some(annotations) = &mut pod.metadata.annotations {
        annotations.retain(|key, _| POD_ANNOTATIONS.iter().any(|prefix| key.starts_with(prefix)));
    }
    pod.metadata.annotations.take_if(|annotations| annotations.is_empty());
    pod.spec = pod.spec.take().map(spec);
    let containers = pod
        .spec
        .iter()
        .flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
    let containers: Vec<Container> = containers.cloned().collect();
    pod.status = pod.status.take().map(|one| status(one, &containers));
}

fn spec(full: PodSpec) -> PodSpec {
    let mut volumes = full.volumes.unwrap_or_default();
    volumes.retain(|volume| volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some());
    PodSpec {
        affinity: full.affinity,
        containers: full.containers.into_iter().map(container).collect(),
        host_network: full.host_network,
        init_containers: full.init_containers.map(|all| all.into_iter().map(container).collect()),
        node_name: full.node_name,
        node_selector: full.node_selector,
        os: full.os,
        overhead: full.overhead,
        preemption_policy: full.preemption_policy,
        priority: full.priority,
        priority_class_name: full.priority_class_name,
        resource_claims: full.resource_claims,
        resources: full.resources,
        scheduler_name: full.scheduler_name,
        scheduling_gates: full.scheduling_gates,
        termination_grace_period_seconds: full.termination_grace_period_seconds,
        tolerations: full.tolerations,
        topology_spread_constraints: full.topology_spread_constraints,
        volumes: (!volumes.is_empty()).then_some(volumes),
        ..PodSpec::default()
    }
}

fn container(full: Container) -> Container {
    let mut ports = full.ports.unwrap_or_default();
    ports.retain(|port| port.host_port.is_some());
    Container {
        name: full.name,
        ports: (!ports.is_empty()).then_some(ports),
        resources: full.resources,
        restart_policy: full.restart_policy,
        ..Container::default()
    }
}

fn status(full: PodStatus, containers: &[Container]) -> PodStatus {
    PodStatus {
        conditions: full.conditions,
        container_statuses: resized(full.container_statuses, containers),
        init_container_statuses: resized(full.init_container_statuses, containers),
        nominated_node_name: full.nominated_node_name,
        phase: full.phase,
        start_time: full.start_time,
        ..PodStatus::default()
    }
}

/// The statuses of containers whose resources are not those of the spec: they are being resized.
fn resized(
    statuses: Option<Vec<ContainerStatus>>,
    containers: &[Container],
) -> Option<Vec<ContainerStatus>> {
    let requests = |resources: &Option<ResourceRequirements>| {
        resources.as_ref().and_then(|one| one.requests.clone()).unwrap_or_default()
    };
    let differs = |status: &ContainerStatus| {
        let container = containers.iter().find(|one| one.name == status.name);
        status.resources.is_some()
            && container.is_none_or(|one| requests(&one.resources) != requests(&status.resources))
    };
    let kept: Vec<ContainerStatus> = statuses
        .into_iter()
        .flatten()
        .filter(differs)
        .map(|full| ContainerStatus {
            name: full.name,
            resources: full.resources,
            ..ContainerStatus::default()
        })
        .collect();
    (!kept.is_empty()).then_some(kept)
}

pub(super) fn node(node: &mut Node) {
    metadata(&mut node.metadata);
    if let Some(status) = &mut node.status {
        status.images = None;
        status.volumes_attached = None;
        status.volumes_in_use = None;
        status.features = None;
        status.runtime_handlers = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::pods;
    use serde_json::json;

    fn full() -> Pod {
        serde_json::from_value(json!({
            "metadata": {
                "name": "web", "namespace": "shop", "labels": { "app": "web" },
                "annotations": { "karpenter.sh/do-not-disrupt": "true", "other": "x" },
                "managedFields": [{ "manager": "kubelet" }],
            },
            "spec": {
                "nodeName": "n", "nodeSelector": { "zone": "1" },
                "containers": [{
                    "name": "app", "image": "i", "env": [{ "name": "A", "value": "b" }],
                    "ports": [{ "containerPort": 80 }, { "containerPort": 81, "hostPort": 81 }],
                    "resources": { "requests": { "cpu": "2" } },
                }],
                "volumes": [
                    { "name": "token", "projected": {} },
                    { "name": "data", "persistentVolumeClaim": { "claimName": "data" } },
                ],
            },
            "status": {
                "phase": "Running",
                "containerStatuses": [{
                    "name": "app", "image": "i", "imageID": "i", "ready": true, "restartCount": 0,
                    "resources": { "requests": { "cpu": "2" } },
                }],
            },
        }))
        .unwrap()
    }

    #[test]
    fn a_pod_keeps_what_decisions_read() {
        let mut slim = full();
        pod(&mut slim);
        assert_eq!(pods::occupies(&slim), pods::occupies(&full()));
        let spec = slim.spec.as_ref().unwrap();
        assert_eq!(spec.node_selector, full().spec.unwrap().node_selector);
        assert_eq!(spec.volumes.as_ref().unwrap().len(), 1);
        assert_eq!(spec.containers[0].ports.as_ref().unwrap().len(), 1);
        assert_eq!(spec.containers[0].image, None);
        assert_eq!(slim.metadata.annotations.unwrap().len(), 1);
        assert_eq!(
            (slim.metadata.managed_fields, slim.status.unwrap().container_statuses),
            (None, None)
        );
    }

    #[test]
    fn a_pod_that_is_being_resized_keeps_what_it_has() {
        let mut resizing = full();
        let statuses = resizing.status.as_mut().unwrap().container_statuses.as_mut().unwrap();
        let has = json!({ "requests": { "cpu": "3" } });
        statuses[0].resources = Some(serde_json::from_value(has).unwrap());
        let before = pods::occupies(&resizing);
        pod(&mut resizing);
        assert_eq!(pods::occupies(&resizing), before);
        assert_eq!(before.unwrap().get("cpu"), 3000);
    }
}
