//! What clients such as k9s, Lens and Headlamp ask first: version and health, discovery, reviews of
//! access, Tables and metadata of lists.

use std::collections::{BTreeMap, BTreeSet};

use kube::Client;
use serde_json::{Value, json};

use super::compare::{JSON, Request, cell, differences, forgive, send};

const NAMESPACE: &str = "clients";
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
                          application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,\
                          application/json";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,\
                     application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
const METADATA: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,\
                        application/json";

/// Sends the requests to both servers; returns their number and the rows of what differs.
pub(super) async fn compare(embedded: &Client, real: &Client) -> (usize, Vec<String>) {
    let (mut compared, mut rows) = (0, Vec::new());
    for request in requests() {
        let mut answers = Vec::new();
        for client in [embedded, real] {
            let (code, mut body) = send(client, NAMESPACE, &request).await;
            forgive(&mut body, false);
            if request.1.ends_with("rulesreviews") {
                without_defaults(&mut body);
            }
            answers.push((code, body));
        }
        let view = match request.2 {
            TABLE => ", Table",
            METADATA => ", PartialObjectMetadata",
            _ => "",
        };
        let of = format!("clients: {} {}{view}", request.0, request.1);
        rows.extend(differences(&of, &answers[0], &answers[1]));
        compared += 1;
    }
    for (path, accept) in [("api", AGGREGATED), ("apis", AGGREGATED)] {
        let request = ("GET", path, accept, Value::Null);
        let ours = aggregated(&send(embedded, NAMESPACE, &request).await.1);
        let theirs = aggregated(&send(real, NAMESPACE, &request).await.1);
        compared += theirs.values().map(BTreeMap::len).sum::<usize>();
        rows.extend(discovered(&format!("aggregated discovery, {path}"), &ours, &theirs));
    }
    for path in VERSIONS {
        let request = ("GET", path, JSON, Value::Null);
        let ours =
            BTreeMap::from([(path.to_owned(), plain(&send(embedded, "", &request).await.1))]);
        let theirs = BTreeMap::from([(path.to_owned(), plain(&send(real, "", &request).await.1))]);
        compared += theirs.values().map(BTreeMap::len).sum::<usize>();
        rows.extend(discovered("discovery", &ours, &theirs));
    }
    (compared, rows)
}

/// Removes the rules that the real server gives every user, in no order.
fn without_defaults(review: &mut Value) {
    for rules in ["resourceRules", "nonResourceRules"] {
        if let Some(rules) = review.pointer_mut(&format!("/status/{rules}"))
            && let Some(rules) = rules.as_array_mut()
        {
            rules.retain(|rule| rule["verbs"] == json!(["*"]));
        }
    }
}

/// Group versions whose plain discovery is compared.
const VERSIONS: [&str; 6] = [
    "api/v1",
    "apis/apps/v1",
    "apis/batch/v1",
    "apis/autoscaling/v2",
    "apis/karpenter.sh/v1",
    "apis/authorization.k8s.io/v1",
];

/// Resources and their properties, by group version.
type Discovered = BTreeMap<String, BTreeMap<String, String>>;

/// Resources of an `APIGroupDiscoveryList`.
fn aggregated(list: &Value) -> Discovered {
    let mut found = Discovered::new();
    for group in array(&list["items"]) {
        let name = group["metadata"]["name"].as_str().unwrap_or_default();
        for version in array(&group["versions"]) {
            let resources = found
                .entry(format!("{name}/{}", version["version"].as_str().unwrap_or_default()))
                .or_default();
            for resource in array(&version["resources"]) {
                let plural = resource["resource"].as_str().unwrap_or_default();
                let of = |key: &str| resource[key].clone();
                let properties = json!([
                    of("responseKind"),
                    of("scope"),
                    of("singularResource"),
                    sorted(&of("verbs")),
                    of("shortNames"),
                    of("categories"),
                ]);
                resources.insert(plural.to_owned(), properties.to_string());
                for below in array(&resource["subresources"]) {
                    let name = below["subresource"].as_str().unwrap_or_default();
                    let properties = json!([below["responseKind"], sorted(&below["verbs"])]);
                    resources.insert(format!("{plural}/{name}"), properties.to_string());
                }
            }
        }
    }
    found
}

/// Resources of an `APIResourceList`.
fn plain(list: &Value) -> BTreeMap<String, String> {
    let resources = array(&list["resources"]).iter().map(|resource| {
        let mut properties = resource.clone();
        if let Some(properties) = properties.as_object_mut() {
            properties.remove("storageVersionHash");
            properties.remove("name");
        }
        properties["verbs"] = sorted(&properties["verbs"]);
        (resource["name"].as_str().unwrap_or_default().to_owned(), properties.to_string())
    });
    resources.collect()
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn sorted(list: &Value) -> Value {
    let words: BTreeSet<&str> = array(list).iter().filter_map(Value::as_str).collect();
    json!(words)
}

/// Rows for group versions and resources that differ; a version that one side lacks is one row.
fn discovered(of: &str, ours: &Discovered, theirs: &Discovered) -> Vec<String> {
    let mut rows = Vec::new();
    let versions: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
    for version in versions {
        let (one, other) = (ours.get(version), theirs.get(version));
        let (Some(one), Some(other)) = (one, other) else {
            let said = |side: Option<_>| if side.is_some() { "served" } else { "not served" };
            rows.push(format!("| {of} | `{version}` | {} | {} |", said(one), said(other)));
            continue;
        };
        let names: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
        for name in names {
            let (a, b) = (one.get(name), other.get(name));
            if a != b {
                let said = |side: Option<&String>| side.map_or("–".to_owned(), |side| cell(side));
                rows.push(format!("| {of} | `{version} {name}` | {} | {} |", said(a), said(b)));
            }
        }
    }
    rows
}

fn requests() -> Vec<Request> {
    let get = |path: &'static str, accept: &'static str| ("GET", path, accept, Value::Null);
    let review = |path: &'static str, kind: &str, spec: Value| -> Request {
        let group = path.split('/').nth(1).unwrap_or_default();
        let body = json!({ "apiVersion": format!("{group}/v1"), "kind": kind, "spec": spec });
        ("POST", path, JSON, body)
    };
    let access = "apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let namespace =
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } });
    let labels = json!({ "kubernetes.io/hostname": "one", "topology.kubernetes.io/zone": "z-1" });
    let amounts = json!({ "cpu": "4", "memory": "8Gi", "pods": "110" });
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": "one", "labels": labels },
        "spec": { "taints": [{ "key": "node.kubernetes.io/not-ready", "effect": "NoSchedule" }] },
        "status": {
            "capacity": amounts, "allocatable": amounts,
            "conditions": [{ "type": "Ready", "status": "True", "reason": "KubeletReady",
                "lastHeartbeatTime": "2026-01-01T00:00:00Z",
                "lastTransitionTime": "2026-01-01T00:00:00Z" }],
            "nodeInfo": {
                "architecture": "amd64", "bootID": "", "containerRuntimeVersion": "containerd://2.0.0",
                "kernelVersion": "6.8.0", "kubeProxyVersion": "", "kubeletVersion": "v1.34.0",
                "machineID": "", "operatingSystem": "linux", "osImage": "Ubuntu 24.04",
                "systemUUID": "",
            },
        },
    });
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "web", "labels": { "app": "web" } },
        "spec": { "schedulerName": "none", "nodeName": "one",
            "containers": [{ "name": "main", "image": "pause:3.9" }] },
    });
    let running = json!({ "status": {
        "phase": "Running", "podIP": "10.0.0.7", "hostIP": "10.1.0.4",
        "startTime": "2026-01-01T00:00:00Z",
        "conditions": [{ "type": "Ready", "status": "True" }],
        "containerStatuses": [{ "name": "main", "ready": true, "restartCount": 2, "image": "pause:3.9",
            "imageID": "", "started": true,
            "state": { "running": { "startedAt": "2026-01-01T00:00:00Z" } } }],
    } });
    let merge = super::compare::MERGE;
    let mut requests = vec![
        get("healthz", "*/*"),
        get("livez", "*/*"),
        get("readyz", "*/*"),
        get("apis/apps", JSON),
        get("apis/karpenter.sh", JSON),
        ("POST", "api/v1/namespaces", JSON, namespace),
        ("POST", "api/v1/nodes", JSON, node),
        ("POST", "api/v1/@/pods", JSON, pod),
        ("PATCH", "api/v1/@/pods/web/status", merge, running),
        review(
            access,
            "SelfSubjectAccessReview",
            json!({
            "resourceAttributes": { "verb": "list", "resource": "nodes", "version": "v1" } }),
        ),
        review(
            access,
            "SelfSubjectAccessReview",
            json!({ "resourceAttributes":
            { "verb": "watch", "resource": "pods", "namespace": NAMESPACE } }),
        ),
        review(
            access,
            "SelfSubjectAccessReview",
            json!({ "resourceAttributes":
            { "verb": "list", "resource": "nodes", "group": "metrics.k8s.io" } }),
        ),
        review(
            access,
            "SelfSubjectAccessReview",
            json!({ "resourceAttributes":
            { "verb": "create", "resource": "pods", "subresource": "exec" } }),
        ),
        review(
            access,
            "SelfSubjectAccessReview",
            json!({ "nonResourceAttributes": { "verb": "get", "path": "/metrics" } }),
        ),
        review(access, "SelfSubjectAccessReview", json!({})),
        review(
            "apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
            "SelfSubjectRulesReview",
            json!({ "namespace": NAMESPACE }),
        ),
        review(
            "apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
            "SelfSubjectRulesReview",
            json!({}),
        ),
        review(
            "apis/authorization.k8s.io/v1/subjectaccessreviews",
            "SubjectAccessReview",
            json!({ "user": "system:admin", "groups": ["system:masters"],
                "resourceAttributes": { "verb": "get", "resource": "pods" } }),
        ),
        get("api/v1/namespaces?fieldSelector=metadata.name%3Dclients", JSON),
        get("api/v1/nodes/one", TABLE),
        get("api/v1/nodes?fieldSelector=metadata.name%3Done", TABLE),
        get("api/v1/nodes?fieldSelector=metadata.name%3Done&includeObject=Object", TABLE),
        get("api/v1/@/pods", TABLE),
        get("api/v1/@/pods?includeObject=Object", TABLE),
        get("api/v1/@/pods?includeObject=None&limit=500", TABLE),
        get("api/v1/@/pods?resourceVersion=0", METADATA),
        get("api/v1/@/pods?limit=500", JSON),
        get("api/v1/pods?fieldSelector=spec.nodeName%3Done,status.phase%21%3DFailed", JSON),
        get("api/v1/@/pods/web", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"),
        get("api/v1/@/events?fieldSelector=involvedObject.name%3Dweb", TABLE),
        get("api/v1/@/configmaps?sendInitialEvents=true&resourceVersionMatch=NotOlderThan", JSON),
        get("apis/karpenter.sh/v1/nodepools", TABLE),
        get("apis/karpenter.sh/v1/nodepools", METADATA),
        get("apis/karpenter.sh/v1/nodeclaims?includeObject=Object", TABLE),
        get("apis/apps/v1/@/deployments", TABLE),
        get("apis/apps/v1/@/deployments?limit=1", "application/json;as=Table;v=v9;g=meta.k8s.io"),
        get(
            "apis/apiextensions.k8s.io/v1/customresourcedefinitions?limit=1&fieldSelector=\
             metadata.name%3Dnodepools.karpenter.sh",
            METADATA,
        ),
        ("DELETE", "api/v1/@/pods/web?gracePeriodSeconds=0", JSON, Value::Null),
        ("DELETE", "api/v1/nodes/one", JSON, Value::Null),
    ];
    // Columns of every kind that kubectl shows.
    requests.extend(TABLES.iter().map(|path| get(path, TABLE)));
    requests
}

/// Empty lists, whose columns are compared.
const TABLES: [&str; 32] = [
    "api/v1/@/configmaps",
    "api/v1/@/endpoints",
    "api/v1/@/limitranges",
    "api/v1/@/persistentvolumeclaims",
    "api/v1/@/replicationcontrollers",
    "api/v1/@/resourcequotas",
    "api/v1/@/secrets",
    "api/v1/@/services",
    "api/v1/persistentvolumes?labelSelector=no",
    "api/v1/@/serviceaccounts?labelSelector=no",
    "api/v1/namespaces?labelSelector=no",
    "apis/apps/v1/@/daemonsets",
    "apis/apps/v1/@/replicasets",
    "apis/apps/v1/@/statefulsets",
    "apis/apps/v1/@/controllerrevisions",
    "apis/autoscaling/v2/@/horizontalpodautoscalers",
    "apis/batch/v1/@/cronjobs",
    "apis/batch/v1/@/jobs",
    "apis/coordination.k8s.io/v1/@/leases",
    "apis/discovery.k8s.io/v1/@/endpointslices",
    "apis/events.k8s.io/v1/@/events",
    "apis/networking.k8s.io/v1/@/ingresses",
    "apis/networking.k8s.io/v1/@/networkpolicies",
    "apis/networking.k8s.io/v1/ingressclasses",
    "apis/policy/v1/@/poddisruptionbudgets",
    "apis/rbac.authorization.k8s.io/v1/@/roles",
    "apis/rbac.authorization.k8s.io/v1/@/rolebindings",
    "apis/rbac.authorization.k8s.io/v1/clusterroles?labelSelector=no",
    "apis/scheduling.k8s.io/v1/priorityclasses?labelSelector=no",
    "apis/storage.k8s.io/v1/csinodes",
    "apis/storage.k8s.io/v1/storageclasses",
    "apis/storage.k8s.io/v1/volumeattachments",
];
