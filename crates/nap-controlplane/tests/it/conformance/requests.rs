//! The requests of the suite.

use serde_json::{Value, json};

use super::compare::{APPLY, JSON, MERGE, PATCH, Request, STRATEGIC};
use super::wrong;

fn pod_template() -> Value {
    json!({
        "metadata": { "labels": { "app": "web" } },
        "spec": { "containers": [{ "name": "main", "image": "pause:3.9",
            "resources": { "requests": { "cpu": "100m" }, "limits": { "memory": "64Mi" } } }] },
    })
}

fn deployment(replicas: i64) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web" },
        "spec": {
            "replicas": replicas, "selector": { "matchLabels": { "app": "web" } },
            "template": pod_template(),
        },
    })
}

pub(super) fn cases() -> Vec<(&'static str, Vec<Request>)> {
    let none = Value::Null;
    let job_spec = json!({ "template": { "spec": {
        "restartPolicy": "Never", "containers": [{ "name": "main", "image": "busybox" }],
    } } });
    let map = |name: &str, labels: Value| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name, "labels": labels },
            "data": { "a": "1" },
        })
    };
    let deployments = "apis/apps/v1/@/deployments";
    let web = "apis/apps/v1/@/deployments/web";
    let apply = "apis/apps/v1/@/deployments/web?fieldManager=ann";
    vec![
        (
            "deployment: create, patch, scale, delete",
            vec![
                ("POST", deployments, JSON, deployment(2)),
                ("POST", deployments, JSON, deployment(2)),
                ("PATCH", web, MERGE, json!({ "spec": { "replicas": 3 } })),
                (
                    "PATCH",
                    web,
                    STRATEGIC,
                    json!({ "spec": { "template": { "spec": {
                "containers": [{ "name": "side", "image": "pause:3.9" }] } } } }),
                ),
                (
                    "PATCH",
                    web,
                    PATCH,
                    json!([{ "op": "replace", "path": "/spec/replicas", "value": 4 }]),
                ),
                ("PATCH", web, PATCH, json!([{ "op": "remove", "path": "/spec/nothing" }])),
                ("GET", "apis/apps/v1/@/deployments/web/scale", JSON, none.clone()),
                ("PATCH", web, MERGE, json!({ "spec": { "replicas": -1 } })),
                (
                    "PATCH",
                    web,
                    MERGE,
                    json!({ "spec": { "selector": { "matchLabels": { "x": "y" } } } }),
                ),
                (
                    "PUT",
                    web,
                    JSON,
                    json!({ "apiVersion": "apps/v1", "kind": "Deployment",
                "metadata": { "name": "web", "resourceVersion": "1" }, "spec": deployment(1)["spec"] }),
                ),
                ("DELETE", web, JSON, none.clone()),
                ("GET", web, JSON, none.clone()),
            ],
        ),
        (
            "server-side apply",
            vec![
                ("PATCH", apply, APPLY, deployment(2)),
                ("PATCH", "apis/apps/v1/@/deployments/web?fieldManager=bob", APPLY, deployment(3)),
                (
                    "PATCH",
                    "apis/apps/v1/@/deployments/web?fieldManager=bob&force=true",
                    APPLY,
                    deployment(3),
                ),
                ("PATCH", apply, APPLY, deployment(2)),
                ("PATCH", web, APPLY, deployment(2)),
                ("DELETE", web, JSON, none.clone()),
            ],
        ),
        (
            "field validation",
            vec![
                ("POST", "apis/apps/v1/@/deployments?fieldValidation=Strict", JSON, {
                    let mut wrong = deployment(1);
                    wrong["spec"]["replica"] = json!(1);
                    wrong
                }),
                (
                    "POST",
                    deployments,
                    JSON,
                    json!({ "apiVersion": "apps/v1", "kind": "Deployment",
                "metadata": { "name": "Bad_Name" }, "spec": deployment(1)["spec"] }),
                ),
                ("POST", deployments, JSON, json!({ "apiVersion": "v1", "kind": "Pod" })),
            ],
        ),
        (
            "lists, limits and selectors",
            vec![
                ("POST", "api/v1/@/configmaps", JSON, map("a", json!({ "tier": "x" }))),
                ("POST", "api/v1/@/configmaps", JSON, map("b", json!({ "tier": "y" }))),
                ("POST", "api/v1/@/configmaps", JSON, map("c", json!({ "tier": "x" }))),
                ("GET", "api/v1/@/configmaps?labelSelector=tier%3Dx", JSON, none.clone()),
                ("GET", "api/v1/@/configmaps?labelSelector=tier+in+(y)", JSON, none.clone()),
                ("GET", "api/v1/@/configmaps?fieldSelector=metadata.name%3Db", JSON, none.clone()),
                ("GET", "api/v1/@/configmaps?fieldSelector=data.a%3Db", JSON, none.clone()),
                ("GET", "api/v1/@/configmaps?continue=nonsense", JSON, none.clone()),
                ("GET", "api/v1/@/configmaps?limit=x", JSON, none.clone()),
                ("DELETE", "api/v1/@/configmaps?labelSelector=tier", JSON, none.clone()),
            ],
        ),
        (
            "batch",
            vec![
                (
                    "POST",
                    "apis/batch/v1/@/jobs",
                    JSON,
                    json!({ "apiVersion": "batch/v1", "kind": "Job",
                "metadata": { "name": "sum" }, "spec": job_spec }),
                ),
                (
                    "DELETE",
                    "apis/batch/v1/@/jobs/sum?propagationPolicy=Background",
                    JSON,
                    none.clone(),
                ),
                (
                    "POST",
                    "apis/batch/v1/@/cronjobs",
                    JSON,
                    json!({ "apiVersion": "batch/v1", "kind": "CronJob",
                "metadata": { "name": "night" },
                "spec": { "schedule": "30 2 * * *", "jobTemplate": { "spec": job_spec } } }),
                ),
                ("DELETE", "apis/batch/v1/@/cronjobs/night", JSON, none.clone()),
            ],
        ),
        (
            "autoscaling in two versions",
            vec![
                (
                    "POST",
                    "apis/autoscaling/v2/@/horizontalpodautoscalers",
                    JSON,
                    json!({
                        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
                        "metadata": { "name": "web" },
                        "spec": {
                            "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" },
                            "maxReplicas": 4,
                            "metrics": [{ "type": "Resource", "resource": { "name": "cpu",
                                "target": { "type": "Utilization", "averageUtilization": 60 } } }],
                        },
                    }),
                ),
                ("GET", "apis/autoscaling/v1/@/horizontalpodautoscalers/web", JSON, none.clone()),
                (
                    "DELETE",
                    "apis/autoscaling/v2/@/horizontalpodautoscalers/web",
                    JSON,
                    none.clone(),
                ),
            ],
        ),
        (
            "storage",
            vec![
                (
                    "POST",
                    "apis/storage.k8s.io/v1/storageclasses",
                    JSON,
                    json!({
                        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
                        "metadata": { "name": "disk" }, "provisioner": "disk.csi.azure.com",
                    }),
                ),
                (
                    "POST",
                    "api/v1/@/persistentvolumeclaims",
                    JSON,
                    json!({
                        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "data" },
                        "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": "disk",
                            "resources": { "requests": { "storage": "8Gi" } } },
                    }),
                ),
                (
                    "PATCH",
                    "api/v1/@/persistentvolumeclaims/data",
                    MERGE,
                    json!({ "metadata": { "finalizers": null } }),
                ),
                ("DELETE", "api/v1/@/persistentvolumeclaims/data", JSON, none.clone()),
                ("DELETE", "apis/storage.k8s.io/v1/storageclasses/disk", JSON, none.clone()),
            ],
        ),
        (
            "reviews",
            vec![(
                "POST",
                "apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
                JSON,
                json!({
                    "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
                    "spec": { "resourceAttributes": { "verb": "get", "resource": "pods" } },
                }),
            )],
        ),
        (
            "services and policies",
            vec![
                (
                    "POST",
                    "api/v1/@/services",
                    JSON,
                    json!({
                        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" },
                        "spec": { "selector": { "app": "web" }, "ports": [{ "port": 80 }] },
                    }),
                ),
                ("DELETE", "api/v1/@/services/web", JSON, none.clone()),
                (
                    "POST",
                    "apis/policy/v1/@/poddisruptionbudgets",
                    JSON,
                    json!({
                        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": "web" },
                        "spec": { "minAvailable": "50%", "selector": { "matchLabels": { "app": "web" } } },
                    }),
                ),
                ("DELETE", "apis/policy/v1/@/poddisruptionbudgets/web", JSON, none.clone()),
                (
                    "POST",
                    "apis/networking.k8s.io/v1/@/networkpolicies",
                    JSON,
                    json!({
                        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": { "name": "web" },
                        "spec": { "podSelector": {} },
                    }),
                ),
                ("DELETE", "apis/networking.k8s.io/v1/@/networkpolicies/web", JSON, none.clone()),
            ],
        ),
        ("one of a few values", wrong_choices()),
        ("containers", wrong::containers()),
        ("rollouts", wrong::rollouts()),
        ("autoscalers", wrong::autoscalers()),
        ("limit ranges", limit_ranges()),
        ("runtime classes", runtime_classes()),
        (
            "unknown paths",
            vec![
                ("GET", "api/v1/@/nothings", JSON, none.clone()),
                ("GET", "apis/nothing.example.com/v1", JSON, none.clone()),
                ("POST", "api/v1/@/configmaps/a", JSON, json!({})),
                ("GET", "api/v1/@/configmaps/missing", JSON, none),
            ],
        ),
    ]
}

/// An object with one wrong value: path, kind, and a JSON merge patch of a sound object.
fn wrong_choices() -> Vec<Request> {
    let claim = json!({
        "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } },
    });
    let template = json!({ "metadata": { "labels": { "app": "web" } }, "spec": {
        "containers": [{ "name": "main", "image": "pause:3.9" }] } });
    let workload = json!({
        "selector": { "matchLabels": { "app": "web" } }, "template": template, "serviceName": "web",
    });
    let job = json!({ "template": { "spec": {
        "restartPolicy": "Never", "containers": [{ "name": "main", "image": "busybox" }] } } });
    let of = |version: &str, kind: &str, spec: &Value, change: &Value| {
        let mut spec = spec.clone();
        if ["Deployment", "DaemonSet"].contains(&kind) {
            spec.as_object_mut().unwrap().remove("serviceName");
        }
        json_patch::merge(&mut spec, change);
        json!({ "apiVersion": version, "kind": kind, "metadata": { "name": "wrong" }, "spec": spec })
    };
    let post = |path: &'static str, object: Value| ("POST", path, JSON, object);
    let deployment = |change: Value| {
        post("apis/apps/v1/@/deployments", of("apps/v1", "Deployment", &workload, &change))
    };
    let in_pod = |change: Value| json!({ "template": { "spec": change } });
    let set = |change: Value| {
        post("apis/apps/v1/@/statefulsets", of("apps/v1", "StatefulSet", &workload, &change))
    };
    let daemons = |change: Value| {
        post("apis/apps/v1/@/daemonsets", of("apps/v1", "DaemonSet", &workload, &change))
    };
    let jobs = |change: Value| post("apis/batch/v1/@/jobs", of("batch/v1", "Job", &job, &change));
    let claims = |change: Value| {
        let object = of("v1", "PersistentVolumeClaim", &claim, &change);
        post("api/v1/@/persistentvolumeclaims", object)
    };
    let templates = |spec: Value| {
        set(json!({ "volumeClaimTemplates": [{ "metadata": { "name": "data" }, "spec": spec }] }))
    };
    let ports = json!({ "ports": [{ "port": 80 }] });
    let service = of("v1", "Service", &ports, &json!({ "type": "Public" }));
    let class = |change: Value| {
        let mut class = json!({ "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": { "name": "wrong" }, "provisioner": "disk.csi.azure.com" });
        json_patch::merge(&mut class, &change);
        post("apis/storage.k8s.io/v1/storageclasses", class)
    };
    vec![
        deployment(json!({ "strategy": { "type": "Sometimes" } })),
        deployment(
            json!({ "strategy": { "type": "Recreate", "rollingUpdate": { "maxSurge": 1 } } }),
        ),
        deployment(in_pod(json!({ "dnsPolicy": "Never" }))),
        deployment(in_pod(json!({ "restartPolicy": "Never" }))),
        deployment(in_pod(json!({ "containers": [
            { "name": "main", "image": "pause:3.9", "imagePullPolicy": "Rarely" }] }))),
        set(json!({ "podManagementPolicy": "Random" })),
        set(json!({ "updateStrategy": { "type": "Recreate" } })),
        templates(json!({ "accessModes": ["Any"], "resources": claim["resources"] })),
        templates(json!({ "accessModes": ["ReadWriteOnce"] })),
        daemons(json!({ "updateStrategy": { "type": "Recreate" } })),
        jobs(json!({ "completionMode": "Counted" })),
        jobs(in_pod(json!({ "restartPolicy": "Always" }))),
        jobs(in_pod(json!({ "restartPolicy": null }))),
        claims(json!({ "accessModes": [] })),
        claims(json!({ "accessModes": ["ReadWriteTwice"] })),
        claims(json!({ "accessModes": ["ReadWriteOncePod", "ReadWriteOnce"] })),
        claims(json!({ "resources": null })),
        claims(json!({ "resources": { "requests": { "storage": "0" } } })),
        claims(json!({ "volumeMode": "Tape" })),
        post("api/v1/@/services", service),
        class(json!({ "volumeBindingMode": "Later" })),
        class(json!({ "reclaimPolicy": "Recycle" })),
    ]
}

fn limit_ranges() -> Vec<Request> {
    let range = |name: &str, limit: Value| {
        let object = json!({ "apiVersion": "v1", "kind": "LimitRange", "metadata": { "name": name },
            "spec": { "limits": [limit] } });
        ("POST", "api/v1/@/limitranges", JSON, object)
    };
    vec![
        range("type", json!({ "type": "Box", "max": { "cpu": "1" } })),
        range("bounds", json!({ "type": "Pod", "min": { "cpu": "2" }, "max": { "cpu": "1" } })),
        range("pod", json!({ "type": "Pod", "default": { "cpu": "2" } })),
        range(
            "low",
            json!({ "type": "Container", "min": { "cpu": "2" },
            "defaultRequest": { "cpu": "1" } }),
        ),
        range("ratio", json!({ "type": "Container", "maxLimitRequestRatio": { "cpu": "500m" } })),
        range(
            "sound",
            json!({ "type": "Container", "max": { "cpu": "2" }, "min": { "memory": "1Mi" } }),
        ),
        ("DELETE", "api/v1/@/limitranges/sound", JSON, Value::Null),
    ]
}

fn runtime_classes() -> Vec<Request> {
    let classes = "apis/node.k8s.io/v1/runtimeclasses";
    let pod = |name: &str, change: &Value| {
        let mut spec = json!({ "runtimeClassName": "sandbox", "containers": [
            { "name": "main", "image": "pause:3.9" }], "schedulerName": "none" });
        json_patch::merge(&mut spec, change);
        let object = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
            "spec": spec });
        ("POST", "api/v1/@/pods", JSON, object)
    };
    vec![
        pod("early", &json!({})),
        (
            "POST",
            classes,
            JSON,
            json!({ "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
                "metadata": { "name": "sandbox" }, "handler": "runsc",
                "overhead": { "podFixed": { "cpu": "250m" } },
                "scheduling": { "nodeSelector": { "runtime": "sandbox" },
                    "tolerations": [{ "key": "sandbox", "operator": "Exists" }] } }),
        ),
        pod(
            "sandboxed",
            &json!({ "nodeSelector": { "disk": "fast" },
            "tolerations": [{ "key": "sandbox", "operator": "Equal", "value": "a" }] }),
        ),
        pod("conflict", &json!({ "nodeSelector": { "runtime": "plain" } })),
        pod("other", &json!({ "overhead": { "cpu": "1" } })),
        pod("without", &json!({ "runtimeClassName": null, "overhead": { "cpu": "1" } })),
        ("DELETE", "api/v1/@/pods/sandboxed?gracePeriodSeconds=0", JSON, Value::Null),
        ("DELETE", "apis/node.k8s.io/v1/runtimeclasses/sandbox", JSON, Value::Null),
    ]
}
