//! Requests with one wrong value each, which both servers must refuse in the same words.

use serde_json::{Value, json};

use super::compare::{JSON, Request};

fn template(pod: &Value) -> Value {
    let mut spec = json!({ "containers": [{ "name": "main", "image": "pause:3.9" }] });
    json_patch::merge(&mut spec, pod);
    json!({ "metadata": { "labels": { "app": "web" } }, "spec": spec })
}

/// A workload of `apps/v1`, with changes of its spec and of the spec of its pods.
fn workload(path: &'static str, kind: &str, change: &Value, pod: &Value) -> Request {
    let mut spec =
        json!({ "selector": { "matchLabels": { "app": "web" } }, "template": template(pod) });
    json_patch::merge(&mut spec, change);
    let object = json!({ "apiVersion": "apps/v1", "kind": kind,
        "metadata": { "name": "wrong" }, "spec": spec });
    ("POST", path, JSON, object)
}

fn deployment(change: &Value, pod: &Value) -> Request {
    workload("apis/apps/v1/@/deployments", "Deployment", change, pod)
}

fn container(change: &Value) -> Request {
    let mut container = json!({ "name": "main", "image": "pause:3.9" });
    json_patch::merge(&mut container, change);
    deployment(&json!({}), &json!({ "containers": [container] }))
}

fn resources(requests: &Value, limits: &Value) -> Request {
    container(&json!({ "resources": { "requests": requests, "limits": limits } }))
}

pub(super) fn containers() -> Vec<Request> {
    let pod = |change: Value| deployment(&json!({}), &change);
    let toleration = |one: Value| pod(json!({ "tolerations": [one] }));
    let port = |port: Value| container(&json!({ "ports": [port] }));
    let mount = |name: &str| json!([{ "name": name, "mountPath": "/data" }]);
    let volumes = json!([{ "name": "a", "emptyDir": {} }, { "name": "a", "emptyDir": {} }]);
    let set = json!({ "serviceName": "web", "volumeClaimTemplates": [{
        "metadata": { "name": "data" },
        "spec": { "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "1Gi" } } } }] });
    let mounted = |name: &str| {
        let container =
            json!({ "name": "main", "image": "pause:3.9", "volumeMounts": mount(name) });
        let pod = json!({ "containers": [container] });
        workload("apis/apps/v1/@/statefulsets", "StatefulSet", &set, &pod)
    };
    vec![
        resources(&json!({ "nvidia.com/gpu": 1 }), &json!({})),
        resources(&json!({ "nvidia.com/gpu": 1 }), &json!({ "nvidia.com/gpu": 2 })),
        resources(&json!({ "nvidia.com/gpu": "1500m" }), &json!({ "nvidia.com/gpu": "1500m" })),
        resources(&json!({ "cpus": 1 }), &json!({})),
        resources(&json!({ "gpu": 1 }), &json!({})),
        resources(&json!({ "pods": 1 }), &json!({})),
        resources(&json!({}), &json!({ "storage": "1Gi" })),
        resources(&json!({ "cpu": "2" }), &json!({ "cpu": "1" })),
        resources(&json!({ "bad key!": 1 }), &json!({})),
        resources(&json!({ "requests.example.com/a": 1 }), &json!({})),
        resources(&json!({}), &json!({ "hugepages-2Mi": "4Mi" })),
        resources(&json!({ "cpu": 1, "hugepages-2Mi": "4Mi" }), &json!({})),
        pod(json!({ "nodeSelector": { "bad key!": "a" } })),
        pod(json!({ "nodeSelector": { "key": "bad value!" } })),
        toleration(json!({ "key": "a", "operator": "Exists", "value": "b" })),
        toleration(json!({ "key": "bad key!", "operator": "Exists" })),
        toleration(json!({ "key": "a", "value": "bad value!" })),
        toleration(json!({ "key": "a", "operator": "Maybe" })),
        toleration(json!({ "key": "a", "operator": "Gt", "value": "1" })),
        toleration(json!({ "key": "a", "operator": "Exists", "tolerationSeconds": 5 })),
        container(&json!({ "volumeMounts": mount("missing") })),
        container(&json!({ "volumeDevices": [{ "name": "missing", "devicePath": "/dev/a" }] })),
        pod(json!({ "volumes": volumes })),
        pod(json!({ "volumes": [{ "name": "Bad_Name", "emptyDir": {} }] })),
        mounted("missing"),
        port(json!({ "containerPort": 99999 })),
        port(json!({ "containerPort": 80, "hostPort": -1 })),
        port(json!({ "name": "no-port" })),
        port(json!({ "containerPort": 80, "protocol": "HTTP" })),
        port(json!({ "containerPort": 80, "name": "a-very-long-port-name" })),
        port(json!({ "containerPort": 80, "name": "Bad_Name" })),
        container(&json!({ "readinessProbe": { "periodSeconds": 5 } })),
        container(&json!({ "livenessProbe": {
            "exec": { "command": ["a"] }, "tcpSocket": { "port": 80 } } })),
        container(&json!({ "livenessProbe": {
            "tcpSocket": { "port": 80 }, "successThreshold": 2 } })),
        container(&json!({ "readinessProbe": {
            "tcpSocket": { "port": 80 }, "periodSeconds": -1 } })),
    ]
}

pub(super) fn rollouts() -> Vec<Request> {
    let none = json!({});
    let spec = |change: Value| deployment(&change, &none);
    let rolling = |change: Value| spec(json!({ "strategy": { "rollingUpdate": change } }));
    let daemons = |change: Value| {
        let change = json!({ "updateStrategy": { "rollingUpdate": change } });
        workload("apis/apps/v1/@/daemonsets", "DaemonSet", &change, &none)
    };
    let set = |change: Value| {
        let change = json!({ "serviceName": "web", "updateStrategy": { "rollingUpdate": change } });
        workload("apis/apps/v1/@/statefulsets", "StatefulSet", &change, &none)
    };
    vec![
        spec(json!({ "minReadySeconds": -1 })),
        spec(json!({ "revisionHistoryLimit": -1 })),
        spec(json!({ "progressDeadlineSeconds": 5, "minReadySeconds": 5 })),
        rolling(json!({ "maxSurge": 0, "maxUnavailable": 0 })),
        rolling(json!({ "maxSurge": "20p" })),
        rolling(json!({ "maxSurge": -1 })),
        rolling(json!({ "maxUnavailable": "101%" })),
        daemons(json!({ "maxSurge": 1, "maxUnavailable": 1 })),
        daemons(json!({ "maxSurge": 0, "maxUnavailable": 0 })),
        daemons(json!({ "maxUnavailable": "many" })),
        set(json!({ "partition": -1 })),
    ]
}

pub(super) fn autoscalers() -> Vec<Request> {
    let autoscaler = |change: Value| {
        let mut spec = json!({ "maxReplicas": 5,
            "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" } });
        json_patch::merge(&mut spec, &change);
        let object = json!({ "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
            "metadata": { "name": "wrong" }, "spec": spec });
        ("POST", "apis/autoscaling/v2/@/horizontalpodautoscalers", JSON, object)
    };
    let metric = |metric: Value| autoscaler(json!({ "metrics": [metric] }));
    let target = |target: Value| {
        metric(json!({ "type": "Resource", "resource": { "name": "cpu", "target": target } }))
    };
    let policy =
        |policy: Value| autoscaler(json!({ "behavior": { "scaleUp": { "policies": [policy] } } }));
    vec![
        autoscaler(json!({ "maxReplicas": 0 })),
        autoscaler(json!({ "maxReplicas": -1 })),
        autoscaler(json!({ "minReplicas": 0 })),
        autoscaler(json!({ "minReplicas": 6 })),
        metric(json!({ "type": "Nope" })),
        metric(json!({ "type": "Pods" })),
        target(json!({ "type": "Bananas", "averageUtilization": 50 })),
        target(json!({ "type": "Utilization" })),
        target(json!({ "type": "Utilization", "averageUtilization": 0 })),
        target(json!({ "type": "AverageValue", "averageValue": "0" })),
        metric(json!({ "type": "Pods", "resource": { "name": "cpu",
            "target": { "type": "Utilization", "averageUtilization": 50 } } })),
        policy(json!({ "type": "Some", "value": 1, "periodSeconds": 15 })),
        policy(json!({ "type": "Pods", "value": 0, "periodSeconds": 15 })),
        policy(json!({ "type": "Pods", "value": 1, "periodSeconds": 9999 })),
        autoscaler(json!({ "behavior": { "scaleDown": { "selectPolicy": "Mean" } } })),
        autoscaler(json!({ "behavior": { "scaleDown": { "stabilizationWindowSeconds": 9999 } } })),
    ]
}
