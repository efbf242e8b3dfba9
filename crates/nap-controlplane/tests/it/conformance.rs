//! One suite, two servers: the same requests and kubectl commands on the embedded API server and on
//! a real one. A difference is a bug of ours, or a row of `docs/conformance.md`.
//!
//! `NAP_BLESS=1` writes the rows that the run finds.

use std::collections::BTreeMap;
use std::path::PathBuf;

use kube::{Client, Error};
use nap_controlplane::{Parts, Plane};
use serde_json::{Value, json};

use crate::support::{Cluster, kubectl};

const BEGIN: &str = "<!-- differences: begin -->\n";
const END: &str = "<!-- differences: end -->\n";
const NAMESPACE: &str = "conformance";

/// A request: method, path below the namespace or absolute, content type, body.
type Request = (&'static str, &'static str, &'static str, Value);

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
const PATCH: &str = "application/json-patch+json";

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

fn cases() -> Vec<(&'static str, Vec<Request>)> {
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

/// kubectl commands, one after another; `@` in front marks one that only prepares.
const COMMANDS: [&str; 26] = [
    "create deployment web --image pause:3.9 --replicas 2",
    "get deployment web -o name",
    "set image deployment/web pause=pause:3.10",
    "scale deployment web --replicas 3",
    "label deployment web team=a",
    "annotate deployment web note=b",
    "autoscale deployment web --min 1 --max 5 --cpu 60%",
    "get hpa",
    "create job once --image busybox -- sleep 1",
    "create cronjob night --image busybox --schedule=@hourly -- date",
    "get cronjob",
    "create job manual --from cronjob/night",
    "create quota team --hard pods=5",
    "create role reader --verb get --resource pods",
    "create rolebinding reader --role reader --user ann",
    "create clusterrole watcher --verb watch --resource nodes",
    "create clusterrolebinding watcher --clusterrole watcher --user ann",
    "create service clusterip web --tcp 80:8080",
    "create ingress web --rule=example.com/=web:80",
    "create configmap settings --from-literal colour=red",
    "create priorityclass high --value 1000",
    "auth can-i create pods",
    "explain deployment.spec.strategy.rollingUpdate",
    "explain pod.spec.containers.resources",
    "get storageclasses",
    "delete clusterrole,clusterrolebinding watcher",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg_attr(no_control_plane, ignore = "there is no control plane; `make controlplane` builds it")]
async fn both_servers_answer_alike_except_as_documented() {
    let plane = Plane::start(Parts::Scheduler).await.unwrap();
    let real = plane.client().await.unwrap();
    let embedded = Cluster::embedded().await;
    let mut rows =
        vec!["| request | field | embedded | real |".to_owned(), "|---|---|---|---|".to_owned()];
    for client in [&embedded.client, &real] {
        let namespace =
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } });
        send(client, &("POST", "api/v1/namespaces", JSON, namespace)).await;
    }
    let mut compared = 0;
    for (name, requests) in cases() {
        for (number, request) in requests.iter().enumerate() {
            let mut ours = send(&embedded.client, request).await;
            let mut theirs = send(&real, request).await;
            compared += 1;
            for (_, body) in [&mut ours, &mut theirs] {
                forgive(body, request.0, name == "server-side apply");
            }
            let of = format!("{name}: {} {} ({})", request.0, request.1, number + 1);
            rows.extend(differences(&of, &ours, &theirs));
        }
    }
    let (ours, theirs) = (embedded.kubeconfig(), plane.kubeconfig());
    for command in COMMANDS {
        let words =
            format!("{command} -n {NAMESPACE}").replace(" -- ", &format!(" -n {NAMESPACE} -- "));
        let words = if command.contains(" -- ") {
            words.trim_end_matches(&format!(" -n {NAMESPACE}")).to_owned()
        } else {
            words
        };
        let (mut answers, mut codes) = (Vec::new(), Vec::new());
        for kubeconfig in [ours, theirs.as_path()] {
            let output = kubectl(kubeconfig, &words, "").await;
            let text = String::from_utf8_lossy(&output.stdout).into_owned()
                + &String::from_utf8_lossy(&output.stderr);
            codes.push(output.status.success());
            answers.push(normalised_text(&text));
        }
        compared += 1;
        if codes[0] != codes[1] || answers[0] != answers[1] {
            let (one, other) = first_difference(&answers[0], &answers[1]);
            rows.push(format!(
                "| `kubectl {command}` | output | {} | {} |",
                cell(&one),
                cell(&other)
            ));
        }
    }
    // Fewer would mean that the cases are not run.
    assert!(compared > 60, "{compared}");
    let found = rows.join("\n") + "\n";
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/conformance.md");
    let document = std::fs::read_to_string(&path).unwrap();
    let start = document.find(BEGIN).expect("the begin mark") + BEGIN.len();
    let end = document.find(END).expect("the end mark");
    if std::env::var_os("NAP_BLESS").is_some() {
        let text = format!("{}{found}{}", &document[..start], &document[end..]);
        std::fs::write(&path, text).unwrap();
    } else {
        assert_eq!(found, &document[start..end], "NAP_BLESS=1 writes docs/conformance.md anew");
    }
}

/// Status code and normalised body.
async fn send(client: &Client, (method, path, content, body): &Request) -> (u16, Value) {
    let path = format!("/{}", path.replace('@', &format!("namespaces/{NAMESPACE}")));
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let request = http::Request::builder()
        .method(*method)
        .uri(path)
        .header("Content-Type", *content)
        .body(body)
        .unwrap();
    let (code, mut value) = match client.request::<Value>(request).await {
        Ok(value) => (200, value),
        Err(Error::Api(status)) => (status.code, serde_json::to_value(&*status).unwrap()),
        Err(other) => (0, json!(other.to_string())),
    };
    normalise(&mut value);
    (code, value)
}

/// Removes the differences that the document states in words: tracked fields of objects that nobody
/// has applied, the kind of the items of a list, and the answer to a deletion that succeeded.
fn forgive(body: &mut Value, method: &str, applies: bool) {
    if method == "DELETE" && body["status"] != "Failure" {
        *body = Value::Null;
    }
    let without = |object: &mut Value| {
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("managedFields");
        }
    };
    if !applies && body.is_object() {
        without(body);
    }
    for item in body["items"].as_array_mut().into_iter().flatten() {
        without(item);
        if let Some(item) = item.as_object_mut() {
            item.remove("kind");
            item.remove("apiVersion");
        }
    }
}

/// Replaces what every server makes up by itself.
fn normalise(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for volatile in ["uid", "resourceVersion", "selfLink", "remainingItemCount"] {
                map.remove(volatile);
            }
            for (key, value) in map.iter_mut() {
                let made_up = matches!(
                    key.as_str(),
                    "creationTimestamp"
                        | "time"
                        | "clusterIP"
                        | "lastTransitionTime"
                        | "deletionTimestamp"
                );
                if made_up && value.is_string() {
                    *value = json!("<made up>");
                } else if key == "clusterIPs" {
                    *value = json!(["<made up>"]);
                }
                if let Value::String(text) = value {
                    *value = json!(without_uids(text));
                }
                normalise(value);
            }
            let renamed: Vec<String> =
                map.keys().filter(|key| without_uids(key) != **key).cloned().collect();
            for key in renamed {
                if let Some(value) = map.remove(&key) {
                    map.insert(without_uids(&key), value);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(normalise),
        Value::String(text) => *text = without_uids(text),
        _ => {}
    }
}

/// The text with every uuid replaced.
fn without_uids(text: &str) -> String {
    let is_uid = |part: &str| {
        part.len() == 36
            && part.char_indices().all(|(place, letter)| match place {
                8 | 13 | 18 | 23 => letter == '-',
                _ => letter.is_ascii_hexdigit(),
            })
    };
    if is_uid(text) { "<made up>".to_owned() } else { text.to_owned() }
}

/// Rows for the fields that differ.
fn differences(of: &str, ours: &(u16, Value), theirs: &(u16, Value)) -> Vec<String> {
    let row = |field: &str, one: &str, other: &str| {
        format!("| {of} | {} | {} | {} |", cell(field), cell(one), cell(other))
    };
    let mut rows = Vec::new();
    if ours.0 != theirs.0 {
        rows.push(row("code", &ours.0.to_string(), &theirs.0.to_string()));
    }
    let (mut one, mut other) = (BTreeMap::new(), BTreeMap::new());
    leaves("", &ours.1, &mut one);
    leaves("", &theirs.1, &mut other);
    let absent = "–".to_owned();
    let keys: std::collections::BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    for key in keys {
        let (a, b) = (one.get(key).unwrap_or(&absent), other.get(key).unwrap_or(&absent));
        if a != b {
            rows.push(row(key, a, b));
        }
    }
    rows
}

fn leaves(path: &str, value: &Value, found: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, value) in map {
                // The sets of fields are compared as a whole.
                if key == "fieldsV1" {
                    found.insert(format!("{path}.{key}"), value.to_string());
                } else {
                    leaves(&format!("{path}.{key}"), value, found);
                }
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (place, value) in items.iter().enumerate() {
                leaves(&format!("{path}[{place}]"), value, found);
            }
        }
        Value::Null => {}
        other => drop(found.insert(path.to_owned(), other.to_string())),
    }
}

/// A value in a table, at most this long.
fn cell(text: &str) -> String {
    const MAX: usize = 120;
    let text = text.replace('|', "\\|").replace('\n', " ");
    let short: String = text.chars().take(MAX).collect();
    if short.is_empty() {
        "(nothing)".to_owned()
    } else if short.len() < text.len() {
        format!("`{short}…`")
    } else {
        format!("`{short}`")
    }
}

/// Text of kubectl without ages, addresses and generated names.
fn normalised_text(text: &str) -> String {
    let word = |word: &str| {
        let is_age = word.ends_with('s')
            && word.len() < 5
            && word.trim_end_matches('s').chars().all(|letter| letter.is_ascii_digit())
            && word.len() > 1;
        if is_age { "<age>".to_owned() } else { word.to_owned() }
    };
    let line = |line: &str| line.split_whitespace().map(word).collect::<Vec<_>>().join(" ");
    text.lines().map(line).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
}

/// The first line that differs, on each side.
fn first_difference(one: &str, other: &str) -> (String, String) {
    let mut lines = one.lines().map(Some).chain(std::iter::repeat(None));
    let mut others = other.lines().map(Some).chain(std::iter::repeat(None));
    loop {
        match (lines.next().flatten(), others.next().flatten()) {
            (None, None) => return (String::new(), String::new()),
            (a, b) if a == b => {}
            (a, b) => return (a.unwrap_or_default().to_owned(), b.unwrap_or_default().to_owned()),
        }
    }
}
