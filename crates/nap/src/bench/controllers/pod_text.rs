//! The text of synthetic pods. They look as a real cluster shows them, with managed fields and a
//! status.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// Begins and ends the name of a gap.
const GAP: char = '§';

/// A pod with gaps for what differs: a server that serialised each pod anew would take longer than
/// the controllers that are measured.
pub(super) struct PodText(String);

impl PodText {
    /// A running pod.
    pub(super) fn running() -> Self {
        let since = "2026-01-01T00:00:10Z";
        let condition =
            |type_: &str| json!({ "type": type_, "status": "True", "lastTransitionTime": since });
        let conditions = ["PodScheduled", "Initialized", "ContainersReady", "Ready"].map(condition);
        let status = json!({
            "phase": "Running", "qosClass": "Burstable", "startTime": since, "hostIP": "10.224.0.4",
            "podIP": "10.244.0.7", "podIPs": [{ "ip": "10.244.0.7" }],
            "conditions": conditions,
            "containerStatuses": [{
                "name": "app", "ready": true, "started": true, "restartCount": 0,
                "image": "registry.example.com/team/app:1.2.3",
                "imageID": format!("registry.example.com/team/app@sha256:{:064x}", 7),
                "containerID": "containerd://§id§",
                "state": { "running": { "startedAt": since } },
            }],
        });
        Self(pod(json!({ "nodeName": "§node§" }), &status).to_string())
    }

    /// A pod that kube-scheduler could not place, for the nodes of one NodePool.
    pub(super) fn pending(pool: &str) -> Self {
        let condition = json!({
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": "0/1 nodes are available", "lastTransitionTime": "2026-01-01T00:00:10Z",
        });
        let status = json!({ "phase": "Pending", "conditions": [condition] });
        Self(pod(json!({ "nodeSelector": { "bench": pool } }), &status).to_string())
    }

    /// Appends a pod.
    pub(super) fn write(
        &self,
        text: &mut String,
        name: &str,
        app: &str,
        number: usize,
        node: &str,
    ) {
        let id = format!("{number:064x}");
        for (position, piece) in self.0.split(GAP).enumerate() {
            match piece {
                piece if position % 2 == 0 => text.push_str(piece),
                "name" => text.push_str(name),
                "app" => text.push_str(app),
                "node" => text.push_str(node),
                "version" => text.push_str(&(number + 1).to_string()),
                "id" => text.push_str(&id),
                _ => text.push_str(&number.to_string()),
            }
        }
    }
}

/// What a real API server shows beside the fields that matter.
fn managed_fields() -> Value {
    let fields: BTreeMap<String, Value> = ["image", "imagePullPolicy", "name", "resources"]
        .iter()
        .map(|name| (format!("f:{name}"), json!({})))
        .collect();
    let container = json!({ "f:containers": { "k:{\"name\":\"app\"}": fields } });
    json!([
        {
            "manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1",
            "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1",
            "fieldsV1": { "f:metadata": { "f:generateName": {}, "f:labels": { ".": {}, "f:app": {} },
                "f:ownerReferences": { ".": {} } }, "f:spec": container },
        },
        {
            "manager": "kubelet", "operation": "Update", "apiVersion": "v1",
            "time": "2026-01-01T00:00:10Z", "fieldsType": "FieldsV1", "subresource": "status",
            "fieldsV1": { "f:status": { "f:conditions": { "k:{\"type\":\"Ready\"}": { ".": {},
                "f:lastProbeTime": {}, "f:lastTransitionTime": {}, "f:status": {}, "f:type": {} } },
                "f:containerStatuses": {}, "f:hostIP": {}, "f:phase": {}, "f:podIP": {} } },
        },
    ])
}

fn pod(spec: Value, status: &Value) -> Value {
    let owner = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "§app§", "controller": true,
        "blockOwnerDeletion": true, "uid": "rs-§app§",
    });
    let mut pod = json!({
        "metadata": {
            "name": "§name§", "namespace": "default", "uid": "pod-§name§",
            "resourceVersion": "§version§",
            "creationTimestamp": "2026-01-01T00:00:00Z", "generateName": "§app§-",
            "labels": { "app": "§app§", "pod-template-hash": "6b7c8d9f5d", "version": "v1" },
            "ownerReferences": [owner], "managedFields": managed_fields(),
        },
        "spec": {
            "containers": [{
                "name": "app", "image": "registry.example.com/team/app:1.2.3",
                "imagePullPolicy": "IfNotPresent",
                "env": [{ "name": "REGION", "value": "eastus" }, { "name": "LOG", "value": "info" }],
                "ports": [{ "containerPort": 8080, "protocol": "TCP" }],
                "resources": { "requests": { "cpu": "200m", "memory": "256Mi" } },
                "readinessProbe": { "httpGet": { "path": "/ready", "port": 8080 }, "periodSeconds": 10 },
                "terminationMessagePath": "/dev/termination-log",
                "volumeMounts": [{ "name": "kube-api-access-§number§", "readOnly": true,
                    "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount" }],
            }],
            "volumes": [{ "name": "kube-api-access-§number§", "projected": { "defaultMode": 420,
                "sources": [{ "serviceAccountToken": { "expirationSeconds": 3607, "path": "token" } }] } }],
            "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "default", "schedulerName": "default-scheduler", "priority": 0,
            "enableServiceLinks": true, "securityContext": {},
            "tolerations": [
                { "key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300 },
                { "key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300 },
            ],
        },
        "status": status,
    });
    if let (Some(into), Value::Object(more)) = (pod["spec"].as_object_mut(), spec) {
        into.extend(more);
    }
    pod
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_gap_is_filled() {
        for (pod, node) in [(PodText::running(), "node-3"), (PodText::pending("burst"), "")] {
            let mut text = String::new();
            pod.write(&mut text, "web-7", "web", 7, node);
            assert!(!text.contains(GAP), "{text}");
            let pod: k8s_openapi::api::core::v1::Pod = serde_json::from_str(&text).unwrap();
            assert_eq!(pod.metadata.name.as_deref(), Some("web-7"));
            assert_eq!(pod.metadata.resource_version.as_deref(), Some("8"));
            assert_eq!(pod.spec.unwrap().node_name.unwrap_or_default(), node);
        }
    }
}
