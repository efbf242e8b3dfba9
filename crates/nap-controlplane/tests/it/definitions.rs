//! The definitions, rule by rule: on the embedded server, and on a real one, which must say the same.

use nap_api::NodePool;
use serde_json::{Value, json};

use crate::cases::{self, claim, class};
use crate::support::{
    Cluster, How, Refusal, Verdict, api, embedded_client, merged, on_both_servers, pool, send,
};

/// The embedded server judges as expected; this runs without a control plane too.
#[tokio::test]
async fn every_case_is_judged_as_expected() {
    let client = embedded_client().await;
    for group in cases::all() {
        for (change, expected) in &group.cases {
            let verdict = send(&client, &merged(group.object.clone(), change), How::CreateDry).await;
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

/// The real server says the same as the embedded one to every case: the same objects with the same defaults, or the same causes.
#[tokio::test]
#[cfg_attr(no_control_plane, ignore = "there is no control plane; `make controlplane` builds it")]
async fn both_servers_agree_on_every_case() {
    let embedded = embedded_client().await;
    let real = Cluster::real().await;
    let mut differences = Vec::new();
    for group in cases::all() {
        for (change, _) in &group.cases {
            let object = merged(group.object.clone(), change);
            let ours = send(&embedded, &object, How::CreateDry).await;
            let theirs = send(&real.client, &object, How::CreateDry).await;
            if ours != theirs {
                differences.push(format!("{change}\n  embedded: {ours:?}\n      real: {theirs:?}"));
            }
        }
    }
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
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
    let reference = |fields: Value| json!({ "spec": { "template": { "spec": { "nodeClassRef": fields } } } });
    for (change, refusal) in [
        (json!({ "spec": { "replicas": 1 } }), Some("Cannot transition NodePool between static")),
        (reference(json!({ "group": "other.com" })), Some("nodeClassRef.group is immutable")),
        (reference(json!({ "kind": "Other" })), Some("nodeClassRef.kind is immutable")),
        (reference(json!({ "group": null, "apiVersion": "other.com/v1" })), Some("group is immutable")),
        (reference(json!({ "name": "other" })), None),
        (reference(json!({ "group": null, "kind": null })), None),
        (reference(json!({ "group": null, "apiVersion": "karpenter.azure.com/v1alpha2" })), None),
    ] {
        match (send(&cluster.client, &merged(pool(), &change), How::ReplaceDry).await, refusal) {
            (Verdict::Accepted(_), None) => {}
            (Verdict::Refused(Refusal { message, .. }), Some(expected)) if message.contains(expected) => {}
            (verdict, _) => panic!("{change}: {verdict:?}"),
        }
    }
    accepted(cluster, &claim(), How::Create).await;
    let labelled = merged(claim(), &json!({ "metadata": { "labels": { "a": "b" } } }));
    accepted(cluster, &labelled, How::ReplaceDry).await;
    let changed = merged(claim(), &json!({ "spec": { "terminationGracePeriod": "5m" } }));
    match send(&cluster.client, &changed, How::ReplaceDry).await {
        Verdict::Refused(refusal) => assert!(refusal.message.contains("spec is immutable"), "{refusal:?}"),
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
    let old =
        merged(class(), &json!({ "apiVersion": "karpenter.azure.com/v1alpha2", "spec": { "kubelet": {} } }));
    let stored = accepted(cluster, &old, How::CreateDry).await;
    assert_eq!(
        stored["spec"],
        json!({ "osDiskSizeGB": 128, "imageFamily": "Ubuntu", "kubelet": {
            "cpuManagerPolicy": "none", "cpuCFSQuota": true, "cpuCFSQuotaPeriod": "100ms",
            "topologyManagerPolicy": "none", "containerLogMaxSize": "50Mi", "containerLogMaxFiles": 5,
        } })
    );
}

/// A pool that is written in an old version reads the same in all of them, and means what its author meant.
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
}
