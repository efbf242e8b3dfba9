//! Watches of both servers: the events of the same changes, seen through the same parameters.

use futures::future::join_all;
use kube::Client;
use serde_json::{Value, json};

use super::compare::{
    JSON, MERGE, PATCH, Request, differences, forgive, normalise, open, raw, send,
};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
const METADATA: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
/// Parameters of a streaming list.
const STREAM: &str =
    "allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
/// Seconds of a watch that asks for no others.
const SECONDS: u32 = 4;
/// Longest time that a watch of the suite may last; all of them ask for fewer seconds.
const PATIENCE: std::time::Duration = std::time::Duration::from_mins(1);

/// Watches that are opened between two series of requests, and read until the server ends them.
struct Case {
    name: &'static str,
    before: Vec<Request>,
    /// Path, parameters and accepted type. `$N` is the resourceVersion of the answer to request N
    /// of `before`, `$c` the last continue token, `$s` what asks for a streaming list.
    watches: Vec<(&'static str, &'static str, &'static str)>,
    after: Vec<Request>,
}

/// Runs every case in a namespace of its own on both servers; returns the number of compared
/// watches and the rows of what differs.
pub(super) async fn compare(embedded: &Client, real: &Client) -> (usize, Vec<String>) {
    let cases = cases();
    let runs = cases.iter().enumerate().map(async |(number, case)| {
        let (ours, theirs) = futures::join!(run(embedded, number, case), run(real, number, case));
        assert_eq!(ours.len(), theirs.len());
        let mut rows = Vec::new();
        for ((path, query, accept), (one, other)) in
            case.watches.iter().zip(ours.iter().zip(&theirs))
        {
            let view = match *accept {
                TABLE => ", Table",
                METADATA => ", PartialObjectMetadata",
                _ => "",
            };
            let of = format!("watch, {}: {path} {query}{view}", case.name);
            rows.extend(differences(&of, one, other));
        }
        (ours.len(), rows)
    });
    let mut compared = (0, Vec::new());
    for (count, rows) in join_all(runs).await {
        compared.0 += count;
        compared.1.extend(rows);
    }
    compared
}

/// Status and events of each watch of a case.
async fn run(client: &Client, number: usize, case: &Case) -> Vec<(u16, Value)> {
    let namespace = format!("watch-{number}");
    let object =
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } });
    send(client, "", &("POST", "api/v1/namespaces", JSON, object)).await;
    let (mut versions, mut token) = (Vec::new(), String::new());
    for (method, path, content, body) in &case.before {
        let path = filled(path, &versions, &token);
        let answer = raw(client, &namespace, (method, &path, content, body)).await;
        assert!(answer.0 < 300, "{}: {path}: {answer:?}", case.name);
        let next = answer.1["metadata"]["continue"].as_str().unwrap_or_default();
        next.clone_into(&mut token);
        versions.push(version(&answer.1));
    }
    let open = case.watches.iter().map(async |(path, query, accept)| {
        // The first value of a repeated parameter counts.
        let path = format!("{path}?{query}&watch=true&timeoutSeconds={SECONDS}");
        let path = filled(&path, &versions, &token);
        open(client, &namespace, ("GET", &path, accept, &Value::Null)).await
    });
    // Watches are open before the next request is sent.
    let responses = join_all(open).await;
    for (method, path, content, body) in &case.after {
        let answer = raw(client, &namespace, (method, path, content, body)).await;
        assert!(answer.0 < 300, "{}: {path}: {answer:?}", case.name);
        versions.push(version(&answer.1));
    }
    let read = responses.into_iter().map(async |response| {
        let code = response.status().as_u16();
        let body = tokio::time::timeout(PATIENCE, response.into_body().collect_bytes()).await;
        let bytes = body.expect("the server ends the watch").unwrap();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if code == 200 {
            (code, events(&text, &versions))
        } else {
            let mut status: Value = serde_json::from_str(&text).unwrap_or_else(|_| json!(text));
            without_numbers(&mut status);
            (code, status)
        }
    });
    join_all(read).await
}

/// The path with the answers of earlier requests.
fn filled(path: &str, versions: &[String], token: &str) -> String {
    let mut path = path.replace("$c", token).replace("$s", STREAM);
    for (number, version) in versions.iter().enumerate().rev() {
        path = path.replace(&format!("${number}"), version);
    }
    path
}

fn version(object: &Value) -> String {
    object["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned()
}

/// Normalised events. A resourceVersion becomes the number of the request that made it.
fn events(text: &str, versions: &[String]) -> Value {
    let mut newest = 0;
    let event = |line: &str| {
        let mut event: Value = serde_json::from_str(line).expect("a line is an event");
        if event["type"].is_null() {
            forgive(&mut event, false);
            normalise(&mut event);
            return event;
        }
        let object = &mut event["object"];
        let number = version(object).parse::<u64>().unwrap_or(0);
        let known = versions.iter().position(|known| *known == version(object));
        let label = match (line, known) {
            (line, _) if line.starts_with(r#"{"type":"BOOKMARK""#) => {
                format!("as new as the events: {}", number >= newest)
            }
            (_, Some(request)) => format!("of request {request}"),
            (_, None) => "of no request".to_owned(),
        };
        newest = newest.max(number);
        if object["kind"] == "Status" {
            without_numbers(object);
        } else {
            event["version"] = json!(label);
        }
        forgive(&mut event["object"], false);
        if event["type"] == "BOOKMARK" {
            plain_bookmark(&mut event["object"]);
        }
        normalise(&mut event);
        event
    };
    let mut events: Vec<Value> = text.lines().map(event).collect();
    // When and how often a plain bookmark is sent depends on time, and so does whether one follows
    // the bookmark that ends a streaming list: at most one is kept, at the end.
    let is_plain = |event: &Value| {
        event["type"] == "BOOKMARK" && event["object"]["metadata"]["annotations"].is_null()
    };
    let streams = events.iter().any(|event| event["type"] == "BOOKMARK" && !is_plain(event));
    let last = events.iter().rfind(|event| is_plain(event) && !streams).cloned();
    events.retain(|event| !is_plain(event));
    events.extend(last);
    Value::Array(events)
}

/// Reduces a bookmark to its kind and its annotations.
fn plain_bookmark(object: &mut Value) {
    let annotations = match object["kind"].as_str() {
        Some("Table") => object["rows"][0]["object"]["metadata"]["annotations"].take(),
        _ => object["metadata"]["annotations"].take(),
    };
    *object = json!({
        "kind": object["kind"], "apiVersion": object["apiVersion"],
        "metadata": { "annotations": annotations },
    });
}

/// Replaces the revisions in the message of a Status.
fn without_numbers(status: &mut Value) {
    let message = status["message"].as_str().unwrap_or_default();
    let words = message.split_inclusive(|letter: char| !letter.is_ascii_digit());
    let known = words.map(|word| {
        let digits = word.chars().filter(char::is_ascii_digit).count();
        if digits > 0 { format!("#{}", &word[digits..]) } else { word.to_owned() }
    });
    let message: String = known.collect();
    if !message.is_empty() {
        status["message"] = json!(message);
    }
}

fn map(name: &str, tier: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": name, "labels": { "tier": tier } }, "data": { "a": "1" },
    })
}

fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "labels": { "app": name } },
        "spec": { "schedulerName": "none", "containers": [{ "name": "main", "image": "pause:3.9" }] },
    })
}

fn pool(name: &str) -> Value {
    let mut pool = crate::support::pool();
    pool["metadata"] = json!({ "name": name, "labels": { "watched": "yes" } });
    pool
}

fn create(path: &'static str, object: Value) -> Request {
    ("POST", path, JSON, object)
}

fn patch(path: &'static str, change: Value) -> Request {
    ("PATCH", path, MERGE, change)
}

fn delete(path: &'static str) -> Request {
    ("DELETE", path, JSON, Value::Null)
}

fn list(path: &'static str) -> Request {
    ("GET", path, JSON, Value::Null)
}

const MAPS: &str = "api/v1/@/configmaps";
const PODS: &str = "api/v1/@/pods";
const POOLS: &str = "apis/karpenter.sh/v1/nodepools";
const A: &str = "api/v1/@/configmaps/a";
const B: &str = "api/v1/@/configmaps/b";
const P: &str = "api/v1/@/pods/p";

fn cases() -> Vec<Case> {
    let change = |value: &str| patch(A, json!({ "data": { "a": value } }));
    let tier = |value: &str| patch(A, json!({ "metadata": { "labels": { "tier": value } } }));
    let status = "api/v1/@/pods/p/status";
    vec![
        Case {
            name: "from a revision, from now, with initial events",
            before: vec![
                create(MAPS, map("a", "x")),
                create(MAPS, map("b", "y")),
                change("2"),
                list(MAPS),
            ],
            watches: vec![
                (MAPS, "resourceVersion=$0", JSON),
                (MAPS, "resourceVersion=$3", JSON),
                (MAPS, "", JSON),
                (MAPS, "resourceVersion=0", JSON),
                (MAPS, "resourceVersion=$3", "application/json;stream=watch"),
                ("api/v1/watch/@/configmaps", "resourceVersion=$3", JSON),
                ("api/v1/watch/@/configmaps/a", "resourceVersion=$3", JSON),
                (MAPS, "resourceVersion=$3", METADATA),
                (MAPS, "resourceVersion=0", TABLE),
                (MAPS, "resourceVersion=$3&includeObject=Object", TABLE),
                (MAPS, "resourceVersion=$3&includeObject=None", TABLE),
            ],
            after: vec![change("3"), create(MAPS, map("c", "x")), delete(B), change("4")],
        },
        Case {
            name: "bookmarks",
            before: vec![
                create(MAPS, map("a", "x")),
                create(PODS, pod("p")),
                create(POOLS, {
                    let mut other = pool("three");
                    other["metadata"]["labels"] = json!({ "watched": "no" });
                    other
                }),
                list(POOLS),
            ],
            watches: vec![
                (MAPS, "timeoutSeconds=6&allowWatchBookmarks=true&resourceVersion=$3", JSON),
                (MAPS, "timeoutSeconds=6&allowWatchBookmarks=true&resourceVersion=$3", TABLE),
                (MAPS, "timeoutSeconds=6&allowWatchBookmarks=true&resourceVersion=$3", METADATA),
                (PODS, "timeoutSeconds=6&allowWatchBookmarks=true&resourceVersion=$3", JSON),
                (
                    POOLS,
                    "timeoutSeconds=6&allowWatchBookmarks=true&resourceVersion=$3\
                     &fieldSelector=metadata.name%3Dthree",
                    JSON,
                ),
            ],
            after: vec![
                change("2"),
                delete("api/v1/@/pods/p?gracePeriodSeconds=0"),
                delete("apis/karpenter.sh/v1/nodepools/three"),
            ],
        },
        Case {
            name: "streaming lists",
            before: vec![create(MAPS, map("a", "x")), create(MAPS, map("b", "y")), list(MAPS)],
            watches: vec![
                (MAPS, "$s", JSON),
                (MAPS, "$s&resourceVersion=$2", JSON),
                (MAPS, "$s&resourceVersion=0&labelSelector=tier%3Dx", JSON),
                (MAPS, "$s", TABLE),
                (MAPS, "$s", METADATA),
                (MAPS, "sendInitialEvents=true&resourceVersionMatch=NotOlderThan", JSON),
                (
                    MAPS,
                    "allowWatchBookmarks=true&sendInitialEvents=false&resourceVersionMatch=NotOlderThan&resourceVersion=$0",
                    JSON,
                ),
                ("api/v1/@/secrets", "$s&timeoutSeconds=2", JSON),
            ],
            after: vec![change("2")],
        },
        Case {
            name: "labels that enter and leave a selection",
            before: vec![
                create(MAPS, map("a", "x")),
                create(MAPS, map("b", "y")),
                tier("y"),
                tier("x"),
                list(MAPS),
            ],
            watches: vec![
                (MAPS, "labelSelector=tier%3Dx&resourceVersion=$0", JSON),
                (MAPS, "labelSelector=tier%3Dx&resourceVersion=$4", JSON),
                (MAPS, "labelSelector=tier!%3Dx&resourceVersion=$4", JSON),
                (MAPS, "labelSelector=tier+notin+(x,y)&resourceVersion=$4", JSON),
                (MAPS, "labelSelector=tier%3Dx&resourceVersion=$4", TABLE),
            ],
            after: vec![change("2"), tier("y"), change("3"), tier("z"), tier("x"), delete(A)],
        },
        Case {
            name: "fields that enter and leave a selection, and status",
            before: vec![create(PODS, pod("p")), create(PODS, pod("q")), list(PODS)],
            watches: vec![
                (PODS, "fieldSelector=status.phase%3DRunning&resourceVersion=$2", JSON),
                (PODS, "fieldSelector=spec.nodeName%3D&resourceVersion=$2", JSON),
                (PODS, "fieldSelector=metadata.name%3Dq&resourceVersion=0", JSON),
                (PODS, "fieldSelector=status.phase%21%3DPending&resourceVersion=$2", TABLE),
                (
                    "api/v1/pods",
                    "fieldSelector=metadata.namespace%3Dwatch-4,metadata.name%3Dp&resourceVersion=$2",
                    JSON,
                ),
            ],
            after: vec![
                patch(status, json!({ "status": { "phase": "Running" } })),
                patch(P, json!({ "metadata": { "labels": { "a": "b" } } })),
                patch(status, json!({ "status": { "phase": "Succeeded" } })),
                delete("api/v1/@/pods/p?gracePeriodSeconds=0"),
            ],
        },
        Case {
            name: "one name",
            before: vec![
                create(MAPS, map("a", "x")),
                create(MAPS, map("b", "x")),
                change("2"),
                list(MAPS),
            ],
            watches: vec![
                (A, "resourceVersion=$0", JSON),
                (A, "", JSON),
                ("api/v1/@/configmaps/missing", "timeoutSeconds=1", JSON),
                (A, "fieldSelector=metadata.name%3Da&resourceVersion=$3", JSON),
                (A, "timeoutSeconds=1&fieldSelector=metadata.name%3Db&resourceVersion=$3", JSON),
            ],
            after: vec![patch(B, json!({ "data": { "a": "5" } })), change("3"), delete(A)],
        },
        Case {
            name: "deletion with finalizers",
            before: vec![
                create(MAPS, {
                    let mut held = map("a", "x");
                    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
                    held
                }),
                list(MAPS),
            ],
            watches: vec![
                (MAPS, "resourceVersion=$1", JSON),
                (MAPS, "resourceVersion=$1&labelSelector=tier%3Dx", METADATA),
            ],
            after: vec![
                delete(A),
                patch(A, json!({ "data": { "a": "9" } })),
                patch(A, json!({ "metadata": { "finalizers": null } })),
                create(MAPS, map("a", "x")),
            ],
        },
        Case {
            name: "graceful deletion",
            before: vec![
                create(PODS, {
                    let mut bound = pod("p");
                    bound["spec"]["nodeName"] = json!("none");
                    bound
                }),
                list(PODS),
            ],
            watches: vec![(PODS, "resourceVersion=$1", JSON), (PODS, "resourceVersion=$1", TABLE)],
            after: vec![
                delete("api/v1/@/pods/p?gracePeriodSeconds=20"),
                delete("api/v1/@/pods/p?gracePeriodSeconds=0"),
            ],
        },
        Case {
            name: "custom resources",
            before: vec![create(POOLS, pool("one")), list(POOLS)],
            watches: vec![
                (POOLS, "labelSelector=watched%3Dyes&resourceVersion=$1", JSON),
                (POOLS, "labelSelector=watched%3Dyes&resourceVersion=$1", TABLE),
                (POOLS, "labelSelector=watched%3Dyes&resourceVersion=$1", METADATA),
                (
                    "apis/karpenter.sh/v1beta1/nodepools",
                    "labelSelector=watched%3Dyes&resourceVersion=$1",
                    JSON,
                ),
                (POOLS, "fieldSelector=metadata.name%3Done&$s", JSON),
            ],
            after: vec![
                patch("apis/karpenter.sh/v1/nodepools/one", json!({ "spec": { "weight": 7 } })),
                (
                    "PATCH",
                    "apis/karpenter.sh/v1/nodepools/one/status",
                    MERGE,
                    json!({ "status": { "resources": { "cpu": "3" } } }),
                ),
                create(POOLS, pool("two")),
                delete("apis/karpenter.sh/v1/nodepools/one"),
                delete("apis/karpenter.sh/v1/nodepools/two"),
            ],
        },
        Case {
            name: "pages, and a watch from the first page's revision",
            before: vec![
                create(MAPS, map("a", "x")),
                create(MAPS, map("b", "x")),
                create(MAPS, map("c", "x")),
                list("api/v1/@/configmaps?limit=2"),
                patch(B, json!({ "data": { "a": "5" } })),
                list("api/v1/@/configmaps?limit=2&continue=$c"),
            ],
            watches: vec![
                (MAPS, "timeoutSeconds=3&resourceVersion=$3", JSON),
                (MAPS, "timeoutSeconds=3&resourceVersion=$5", JSON),
            ],
            after: vec![(
                "PATCH",
                A,
                PATCH,
                json!([{ "op": "replace", "path": "/data/a", "value": "7" }]),
            )],
        },
        Case {
            name: "refusals",
            before: vec![create(MAPS, map("a", "x"))],
            watches: vec![
                (MAPS, "timeoutSeconds=2&resourceVersion=1", JSON),
                (MAPS, "timeoutSeconds=2&resourceVersion=1", TABLE),
                (POOLS, "timeoutSeconds=2&resourceVersion=1", JSON),
                (MAPS, "timeoutSeconds=2&resourceVersion=99999999", JSON),
                (MAPS, "timeoutSeconds=2&resourceVersion=old", JSON),
                (MAPS, "timeoutSeconds=soon", JSON),
                (MAPS, "timeoutSeconds=2&fieldSelector=data.a%3D1", JSON),
                (PODS, "timeoutSeconds=2&fieldSelector=spec.hostname%3D1", JSON),
                (POOLS, "timeoutSeconds=2&fieldSelector=spec.weight%3D1", JSON),
                (MAPS, "timeoutSeconds=2&fieldSelector=metadata.name", JSON),
                (MAPS, "timeoutSeconds=2&labelSelector=a+b", JSON),
                (MAPS, "timeoutSeconds=2&resourceVersionMatch=NotOlderThan", JSON),
                (MAPS, "timeoutSeconds=2&sendInitialEvents=true", JSON),
                (MAPS, "timeoutSeconds=2&sendInitialEvents=true&resourceVersionMatch=Exact", JSON),
                (
                    MAPS,
                    "timeoutSeconds=2&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&resourceVersion=99999999",
                    JSON,
                ),
                (MAPS, "timeoutSeconds=2&continue=x", JSON),
                ("api/v1/@/nothings", "timeoutSeconds=2", JSON),
                (MAPS, "timeoutSeconds=2", "application/xml"),
            ],
            after: vec![],
        },
    ]
}
