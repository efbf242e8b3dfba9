//! The definitions' validation rules on the embedded and on a real API server, which must agree.

use nap_api::NodePool;
use serde_json::{Value, json};

use crate::cases::{self, claim, class};
use crate::support::{
    Cluster, How, Refusal, Verdict, api, embedded_client, merged, on_both_servers, pool, send,
};

/// The embedded server; needs no control plane.
#[tokio::test]
async fn every_case_is_judged_as_expected() {
    let client = embedded_client().await;
    for group in cases::all() {
        for (change, expected) in &group.cases {
            let verdict =
                send(&client, &merged(group.object.clone(), change), How::CreateDry).await;
            match (verdict, expected) {
                (Verdict::Accepted(_), None) => {}
                (Verdict::Refused(Refusal { message, .. }), Some(expected)) => {
                    assert!(
                        message.contains(expected),
                        "{change}\nexpected: {expected}\n  answer: {message}"
                    );
                }
                (verdict, _) => panic!("{change}\nexpected: {expected:?}\n  answer: {verdict:?}"),
            }
        }
    }
}

/// Both servers give the same verdict on every case: equal objects with defaults, or equal causes.
#[tokio::test]
#[cfg_attr(no_control_plane, ignore = "there is no control plane; `make controlplane` builds it")]
async fn both_servers_agree_on_every_case() {
    let embedded = embedded_client().await;
    let real = Cluster::real().await;
    let mut differences = Vec::new();
    for group in cases::all() {
        for (change, _) in &group.cases {
            let object = merged(group.object.clone(), change);
            let ours = comparable(send(&embedded, &object, How::CreateDry).await);
            let theirs = comparable(send(&real.client, &object, How::CreateDry).await);
            if ours != theirs {
                differences.push(format!("{change}\n  embedded: {ours:?}\n      real: {theirs:?}"));
            }
        }
    }
    assert!(
        differences.is_empty(),
        "{} differences:\n{}",
        differences.len(),
        differences.join("\n")
    );
}

/// A verdict without the known difference: the CEL implementations word evaluation errors
/// differently.
fn comparable(verdict: Verdict) -> Verdict {
    let Verdict::Refused(Refusal { causes, .. }) = verdict else { return verdict };
    let causes =
        causes.into_iter().map(|(field, said)| match said.split_once(" evaluating rule: ") {
            Some((_, rule)) => (field, format!("could not evaluate rule: {rule}")),
            None => (field, said),
        });
    Verdict::Refused(Refusal { message: String::new(), causes: causes.collect() })
}

/// Every rule and pattern of every definition has a refused case, and an accepted one whose value
/// is present.
#[tokio::test]
async fn every_rule_has_its_cases() {
    let client = embedded_client().await;
    let mut refused: Vec<(String, String)> = changes_that_are_refused();
    let mut held = Vec::new();
    for group in cases::all() {
        for (change, _) in &group.cases {
            let object = merged(group.object.clone(), change);
            match send(&client, &object, How::CreateDry).await {
                Verdict::Accepted(stored) => paths_of(&stored, "", &mut held),
                Verdict::Refused(refusal) => refused.extend(refusal.causes),
            }
        }
    }
    let mut missing = Vec::new();
    for definition in nap_api::crds::all() {
        let definition = serde_json::to_value(&definition).unwrap();
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let mut judges = Vec::new();
        judges_of(&schema["properties"]["spec"], "spec", &mut judges);
        for (path, message) in judges {
            let matches = |found: &str| same_path(&path, found);
            if !refused.iter().any(|(field, said)| matches(field) && said.contains(&message)) {
                missing.push(format!(
                    "{}: {path}: nothing is refused for: {message}",
                    definition["spec"]["names"]["kind"]
                ));
            }
            if !held.iter().any(|found| matches(found)) {
                missing.push(format!(
                    "{}: {path}: nothing is accepted",
                    definition["spec"]["names"]["kind"]
                ));
            }
        }
    }
    assert!(missing.is_empty(), "{} missing:\n{}", missing.len(), missing.join("\n"));
}

/// Transition rules; `what_may_not_change_is_kept` has their cases.
fn changes_that_are_refused() -> Vec<(String, String)> {
    let reference = "spec.template.spec.nodeClassRef";
    [
        (reference, "nodeClassRef.group is immutable"),
        (reference, "nodeClassRef.kind is immutable"),
        ("spec", "spec is immutable"),
        (
            "spec",
            "Cannot transition NodePool between static (replicas set) and dynamic (replicas unset) provisioning modes",
        ),
    ]
    .map(|(path, message)| (path.to_owned(), message.to_owned()))
    .to_vec()
}

/// Validation rules of a schema: path and message.
fn judges_of(schema: &Value, path: &str, judges: &mut Vec<(String, String)>) {
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        judges.push((path.to_owned(), rule["message"].as_str().unwrap().to_owned()));
    }
    if let Some(pattern) = schema["pattern"].as_str() {
        judges.push((path.to_owned(), format!("should match '{pattern}'")));
    }
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        judges_of(schema, &format!("{path}.{name}"), judges);
    }
    if schema["items"].is_object() {
        judges_of(&schema["items"], &format!("{path}[*]"), judges);
    }
    if schema["additionalProperties"].is_object() {
        judges_of(&schema["additionalProperties"], &format!("{path}.*"), judges);
    }
}

/// Whether a path of an object matches a path of a schema.
fn same_path(schema: &str, found: &str) -> bool {
    let Some((before, after)) = schema.split_once('*') else { return schema == found };
    let Some(rest) = found.strip_prefix(before) else { return false };
    let end = if after.starts_with(']') { rest.find(']') } else { Some(rest.len()) };
    end.is_some_and(|end| same_path(after, &rest[end..]))
}

fn paths_of(value: &Value, path: &str, paths: &mut Vec<String>) {
    paths.push(path.to_owned());
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                paths_of(value, &path, paths);
            }
        }
        Value::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                paths_of(value, &format!("{path}[{index}]"), paths);
            }
        }
        _ => {}
    }
}

on_both_servers!(what_may_not_change_is_kept, versions_lose_nothing, defaults_are_filled_in);

async fn accepted(cluster: &Cluster, object: &Value, how: How) -> Value {
    match send(&cluster.client, object, how).await {
        Verdict::Accepted(stored) => stored,
        Verdict::Refused(refusal) => panic!("{object} was refused: {refusal:?}"),
    }
}

async fn what_may_not_change_is_kept(cluster: &Cluster) {
    accepted(cluster, &pool(), How::Create).await;
    let reference =
        |fields: Value| json!({ "spec": { "template": { "spec": { "nodeClassRef": fields } } } });
    for (change, refusal) in [
        (json!({ "spec": { "replicas": 1 } }), Some("Cannot transition NodePool between static")),
        (reference(json!({ "group": "other.com" })), Some("nodeClassRef.group is immutable")),
        (reference(json!({ "kind": "Other" })), Some("nodeClassRef.kind is immutable")),
        (
            reference(json!({ "group": null, "apiVersion": "other.com/v1" })),
            Some("group is immutable"),
        ),
        (reference(json!({ "name": "other" })), None),
        (reference(json!({ "group": null, "kind": null })), None),
        (reference(json!({ "group": null, "apiVersion": "karpenter.azure.com/v1alpha2" })), None),
    ] {
        match (send(&cluster.client, &merged(pool(), &change), How::ReplaceDry).await, refusal) {
            (Verdict::Accepted(_), None) => {}
            (Verdict::Refused(Refusal { message, .. }), Some(expected))
                if message.contains(expected) => {}
            (verdict, _) => panic!("{change}: {verdict:?}"),
        }
    }
    accepted(cluster, &claim(), How::Create).await;
    let labelled = merged(claim(), &json!({ "metadata": { "labels": { "a": "b" } } }));
    accepted(cluster, &labelled, How::ReplaceDry).await;
    let changed = merged(claim(), &json!({ "spec": { "terminationGracePeriod": "5m" } }));
    match send(&cluster.client, &changed, How::ReplaceDry).await {
        Verdict::Refused(refusal) => {
            assert!(refusal.message.contains("spec is immutable"), "{refusal:?}");
        }
        Verdict::Accepted(_) => panic!("a NodeClaim's spec was changed"),
    }
}

async fn defaults_are_filled_in(cluster: &Cluster) {
    let stored = accepted(cluster, &claim(), How::CreateDry).await;
    assert_eq!(stored["spec"]["expireAfter"], "720h");
    assert!(stored["spec"].get("resources").is_none());
    let stored = accepted(cluster, &pool(), How::CreateDry).await;
    assert_eq!(stored["spec"]["disruption"]["consolidationPolicy"], "WhenEmptyOrUnderutilized");
    assert_eq!(stored["spec"]["disruption"]["budgets"], json!([{ "nodes": "10%" }]));
    let old = merged(
        class(),
        &json!({ "apiVersion": "karpenter.azure.com/v1alpha2", "spec": { "kubelet": {} } }),
    );
    let stored = accepted(cluster, &old, How::CreateDry).await;
    assert_eq!(
        stored["spec"],
        json!({ "osDiskSizeGB": 128, "imageFamily": "Ubuntu", "kubelet": {
            "cpuManagerPolicy": "none", "cpuCFSQuota": true, "cpuCFSQuotaPeriod": "100ms",
            "topologyManagerPolicy": "none", "containerLogMaxSize": "50Mi", "containerLogMaxFiles": 5,
        } })
    );
}

/// A NodePool written in an old version has the same meaning in every version.
async fn versions_lose_nothing(cluster: &Cluster) {
    let written = merged(
        pool(),
        &json!({ "apiVersion": "karpenter.sh/v1alpha5", "spec": {
            "disruption": { "consolidationPolicy": "WhenUnderutilized", "expireAfter": "48h" },
            "template": { "spec": { "nodeClassRef": { "group": null, "kind": null } } },
        } }),
    );
    accepted(cluster, &written, How::Create).await;
    let mut specs = Vec::new();
    for version in ["v1", "v1beta1", "v1alpha5"] {
        let api = api(
            &cluster.client,
            &json!({ "apiVersion": format!("karpenter.sh/{version}"), "kind": "NodePool" }),
        );
        specs.push(api.get("pool").await.unwrap().data["spec"].clone());
    }
    assert_eq!(specs[0], specs[1]);
    assert_eq!(specs[0], specs[2]);
    assert_eq!(specs[0]["disruption"]["consolidationPolicy"], "WhenUnderutilized");
    assert_eq!(specs[0]["disruption"]["expireAfter"], "48h");
    assert_eq!(specs[0]["template"]["spec"], written["spec"]["template"]["spec"]);
    let read: NodePool = kube::Api::all(cluster.client.clone()).get("pool").await.unwrap();
    assert_eq!(read.spec.template.spec.expire_after.as_str(), "48h");
    assert_eq!(read.spec.template.spec.node_class_ref.kind, "AKSNodeClass");
    assert_eq!(read.spec.understood.len(), 3);

    let old = "karpenter.azure.com/v1alpha2";
    let written = merged(
        class(),
        &json!({ "apiVersion": old, "spec": { "maxPods": 50, "tags": { "a": "b" } } }),
    );
    accepted(cluster, &written, How::Create).await;
    for version in [old, "karpenter.azure.com/v1beta1"] {
        let api = api(&cluster.client, &json!({ "apiVersion": version, "kind": "AKSNodeClass" }));
        let spec = api.get("class").await.unwrap().data["spec"].clone();
        assert_eq!(
            (&spec["maxPods"], &spec["tags"]),
            (&json!(50), &json!({ "a": "b" })),
            "{version}"
        );
    }
}
