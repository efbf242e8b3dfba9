//! Verdicts of the embedded scheduler beside the real one's, on the same objects.
//!
//! A policy denies the binding of pods in the namespaces of this test and names the node, so that
//! the real scheduler's verdict changes nothing: pods are judged one after another. Beside every
//! pending pod, a copy of it for each node is judged, with a node affinity for that node alone:
//! this shows the nodes that pass the filters.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use nap_sim::cluster::{SchedulingObjects, Verdict, verdict};
use serde_json::{Value, json};

use super::bench::{Bench, make};
use super::generated::{NAMESPACES, cluster};
use super::number;

/// Default number of generated clusters; `NAP_CASES` overrides it.
const CASES: u64 = 24;
/// Maximum time until the scheduler has tried a pod.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time in which the scheduler has seen objects that were created.
const SEEN: Duration = Duration::from_millis(150);
/// Tries of a pod on whose verdict the schedulers differ: the real one may lag behind.
const TRIES: u32 = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg_attr(no_control_plane, ignore = "there is no control plane; `make controlplane` builds it")]
async fn the_embedded_scheduler_judges_as_the_real_one() {
    let bench = Bench::start().await;
    let client = bench.client();
    forbid_binding(client).await;
    let (first, cases) = (number("NAP_SEED", 1), number("NAP_CASES", CASES));
    let (mut judged, mut feasible, mut different) = (0, 0, Vec::new());
    let mut kinds = BTreeSet::new();
    for seed in first..first + cases {
        clear(&bench).await;
        let case = cluster(seed);
        for (path, object) in &case.objects {
            create(client, path, object).await;
        }
        tokio::time::sleep(SEEN).await;
        let objects = listed(client).await;
        for pending in &case.pending {
            let names = case.nodes.iter().map(|node| pinned(pending, node));
            for pod in std::iter::once(pending.clone()).chain(names) {
                let (ours, theirs) = both(client, &objects, &pod).await;
                judged += 1;
                feasible += usize::from(matches!(theirs, Real::Node(_)));
                if let Real::Refused(message) = &theirs {
                    kinds.extend(counts(message).into_keys());
                }
                if !agree(&ours, &theirs) {
                    let file = format!("{}/verdict-{seed}.json", env!("CARGO_TARGET_TMPDIR"));
                    let shown = json!({ "objects": case.objects, "pod": pod });
                    std::fs::write(&file, shown.to_string()).unwrap();
                    let name = &pod["metadata"]["name"];
                    let of = format!("seed {seed}, {name}: {ours:?}\n  {theirs:?}; see {file}");
                    eprintln!("{of}");
                    different.push(of);
                }
            }
        }
    }
    clear(&bench).await;
    eprintln!(
        "{judged} pods on {cases} clusters judged, {feasible} of them schedulable; {kinds:#?}"
    );
    assert!(different.is_empty(), "{} of {judged} verdicts differ", different.len());
    // Both answers occur, for many reasons: the clusters are worth judging.
    assert!(feasible * 10 > judged && feasible * 10 < judged * 9, "{feasible} of {judged}");
    assert!(cases < CASES || kinds.len() > 10, "{kinds:?}");
}

/// The real scheduler's verdict.
#[derive(Debug)]
enum Real {
    /// The node that it chose.
    Node(String),
    Refused(String),
}

/// Both verdicts on a pod; repeated if they differ.
async fn both(client: &Client, objects: &SchedulingObjects, pod: &Value) -> (Verdict, Real) {
    let mut attempt = 1;
    loop {
        let (stored, theirs) = judged(client, pod).await;
        let ours = verdict(objects, &stored);
        if attempt == TRIES || agree(&ours, &theirs) {
            return (ours, theirs);
        }
        attempt += 1;
        tokio::time::sleep(SEEN * attempt * 2).await;
    }
}

fn agree(ours: &Verdict, theirs: &Real) -> bool {
    match (ours, theirs) {
        (Verdict::Feasible(nodes), Real::Node(node)) => nodes.contains(node),
        (Verdict::Unschedulable(ours), Real::Refused(theirs)) => {
            // A node affinity for names filters before all else, and says so in other words.
            theirs.contains("plugin(s) [NodeAffinity]") || counts(ours) == counts(theirs)
        }
        _ => false,
    }
}

/// Number of nodes by reason, without what the message says about preemption. Taints count
/// together: the newest scheduler does not name them.
fn counts(message: &str) -> BTreeMap<String, u32> {
    let message = message.split(" preemption:").next().unwrap_or_default();
    let message = message.split(". no new claims").next().unwrap_or_default();
    // A missing claim is missing twice.
    let message = message.trim_end_matches(". not found");
    let (_, list) = message.split_once(": ").unwrap_or(("", message));
    let mut found = BTreeMap::new();
    for reason in list.trim().trim_end_matches('.').split(", ") {
        let (number, reason) = reason.split_once(' ').unwrap_or(("1", reason));
        let taint = "node(s) had untolerated taint";
        let reason = if reason.starts_with(taint) { taint } else { reason };
        *found.entry(reason.to_owned()).or_default() += number.parse().unwrap_or(1);
    }
    found
}

/// The pod as stored, and the real scheduler's verdict on it. Deletes the pod.
async fn judged(client: &Client, pod: &Value) -> (Pod, Real) {
    let namespace = pod["metadata"]["namespace"].as_str().unwrap_or_default();
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let object = serde_json::from_value(pod.clone()).expect("a generated pod is a pod");
    let stored = api.create(&PostParams::default(), &object).await.unwrap();
    let began = tokio::time::Instant::now();
    let verdict = loop {
        let now = api.get(&stored.name_any()).await.unwrap();
        let conditions = now.status.and_then(|status| status.conditions).unwrap_or_default();
        let condition = conditions.into_iter().find(|one| one.type_ == "PodScheduled");
        if let Some(message) = condition.and_then(|condition| condition.message) {
            break match message.split_once("bound to <") {
                Some((_, node)) => Real::Node(node.split('>').next().unwrap().to_owned()),
                None => Real::Refused(message),
            };
        }
        assert!(began.elapsed() < PATIENCE, "the scheduler has not tried {pod}");
        tokio::time::sleep(Duration::from_millis(8)).await;
    };
    api.delete(&stored.name_any(), &DeleteParams::default().grace_period(0)).await.unwrap();
    (stored, verdict)
}

/// A copy of a pod that may run on one node only, by required node affinity.
fn pinned(pod: &Value, node: &str) -> Value {
    let mut pod = pod.clone();
    pod["metadata"]["name"] = json!(format!("on-{node}"));
    let field = json!([{ "key": "metadata.name", "operator": "In", "values": [node] }]);
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let affinity = &mut pod["spec"]["affinity"]["nodeAffinity"][required];
    match affinity["nodeSelectorTerms"].as_array_mut() {
        Some(terms) => {
            for term in terms {
                term["matchFields"] = field.clone();
            }
        }
        None => *affinity = json!({ "nodeSelectorTerms": [{ "matchFields": field }] }),
    }
    pod
}

async fn listed(client: &Client) -> SchedulingObjects {
    let all = ListParams::default();
    SchedulingObjects {
        nodes: Api::all(client.clone()).list(&all).await.unwrap().items,
        pods: Api::all(client.clone()).list(&all).await.unwrap().items,
        namespaces: Api::all(client.clone()).list(&all).await.unwrap().items,
        claims: Api::all(client.clone()).list(&all).await.unwrap().items,
        volumes: Api::all(client.clone()).list(&all).await.unwrap().items,
        storage_classes: Api::all(client.clone()).list(&all).await.unwrap().items,
        csi_nodes: Api::all(client.clone()).list(&all).await.unwrap().items,
    }
}

async fn create(client: &Client, path: &str, object: &Value) {
    let body = object.to_string().into_bytes();
    let request =
        http::Request::post(path).header("Content-Type", "application/json").body(body).unwrap();
    let made = client.request::<Value>(request).await;
    // The status of a claim is written apart.
    let made = made.unwrap_or_else(|error| panic!("{error}: {object}"));
    if path.ends_with("persistentvolumeclaims") && object["status"].is_object() {
        let path = format!("{path}/{}/status", made["metadata"]["name"].as_str().unwrap());
        let body = json!({ "status": object["status"] }).to_string().into_bytes();
        let request = http::Request::patch(path)
            .header("Content-Type", "application/merge-patch+json")
            .body(body)
            .unwrap();
        client.request::<Value>(request).await.unwrap();
    }
}

async fn clear(bench: &Bench) {
    let now = DeleteParams::default().grace_period(0);
    let client = bench.client();
    join_all(NAMESPACES.iter().map(async |(name, _)| {
        let pods: Api<Pod> = Api::namespaced(client.clone(), name);
        pods.delete_collection(&now, &ListParams::default()).await.unwrap();
        let claims: Api<k8s_openapi::api::core::v1::PersistentVolumeClaim> =
            Api::namespaced(client.clone(), name);
        claims.delete_collection(&now, &ListParams::default()).await.unwrap();
    }))
    .await;
    bench.clear().await;
}

/// Creates the namespaces and the policy, and waits until it denies bindings.
async fn forbid_binding(client: &Client) {
    for (name, labels) in NAMESPACES {
        let mut labels = json!({ "team": labels });
        labels["nap.test/verdicts"] = json!("yes");
        let object = json!({ "metadata": { "name": name, "labels": labels } });
        make::<Namespace>(&Api::all(client.clone()), object).await;
    }
    let rule = json!({
        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
        "resources": ["pods/binding"],
    });
    let policy = json!({ "metadata": { "name": "nap.test.verdicts" }, "spec": {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "resourceRules": [rule],
            "namespaceSelector": { "matchLabels": { "nap.test/verdicts": "yes" } },
        },
        "validations": [{
            "expression": "false", "messageExpression": "'bound to <' + object.target.name + '>'",
        }],
    } });
    make::<ValidatingAdmissionPolicy>(&Api::all(client.clone()), policy).await;
    let binding = json!({ "metadata": { "name": "nap.test.verdicts" }, "spec": {
        "policyName": "nap.test.verdicts", "validationActions": ["Deny"],
    } });
    make::<ValidatingAdmissionPolicyBinding>(&Api::all(client.clone()), binding).await;
    let namespace = NAMESPACES[0].0;
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    let began = tokio::time::Instant::now();
    loop {
        let pod = json!({
            "metadata": { "name": "probe" },
            "spec": { "schedulerName": "none", "containers": [{ "name": "main", "image": "a" }] },
        });
        create(client, &pods, &pod).await;
        let target = json!({
            "metadata": { "name": "probe" }, "target": { "kind": "Node", "name": "somewhere" },
        });
        let request = http::Request::post(format!("{pods}/probe/binding"))
            .header("Content-Type", "application/json")
            .body(target.to_string().into_bytes())
            .unwrap();
        let denied = client.request::<Value>(request).await.is_err();
        let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
        api.delete("probe", &DeleteParams::default().grace_period(0)).await.unwrap();
        if denied {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "the policy is not in force");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
