//! Builders of objects for unit tests. Each takes the name and a JSON object that is merged over
//! the defaults.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use nap_api::{AKSNodeClass, NodeClaim, NodePool, Requirements, labels};
use nap_cloud::Instance;
use nap_engine::{Alternatives, CapacityType, Launch, Placement, Plan, PodKey, Refusal, Unplaced};
use nap_units::{Resources, UsdPerHour};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::cluster::Index;
use crate::decision_memory::DecisionMemory;
use crate::disruption::candidates::{Candidate, collect};
use crate::snapshot::Catalogues;

/// A time, in seconds since 1970.
pub fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

fn merge(base: &mut Value, over: Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                merge(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, over) => *base = over,
    }
}

fn build<T: DeserializeOwned>(mut base: Value, over: Value) -> T {
    merge(&mut base, over);
    serde_json::from_value(base).unwrap()
}

pub fn claim(name: &str, over: Value) -> NodeClaim {
    let class = json!({ "group": labels::AZURE_GROUP, "kind": "AKSNodeClass", "name": "default" });
    let base = json!({
        "metadata": { "name": name }, "spec": { "requirements": [], "nodeClassRef": class },
    });
    build(base, over)
}

pub fn node(name: &str, over: Value) -> Node {
    build(json!({ "metadata": { "name": name } }), over)
}

pub fn pool(name: &str, over: Value) -> NodePool {
    let class = json!({ "group": labels::AZURE_GROUP, "kind": "AKSNodeClass", "name": "default" });
    let template = json!({ "spec": { "requirements": [], "nodeClassRef": class } });
    build(json!({ "metadata": { "name": name }, "spec": { "template": template } }), over)
}

pub fn node_class(name: &str, over: Value) -> AKSNodeClass {
    build(json!({ "metadata": { "name": name }, "spec": {} }), over)
}

pub fn pod(namespace: &str, name: &str, over: Value) -> Pod {
    let metadata = json!({ "name": name, "namespace": namespace });
    build(json!({ "metadata": metadata, "spec": { "containers": [] } }), over)
}

/// A pod that kube-scheduler marked unschedulable.
pub fn pending_pod(namespace: &str, name: &str) -> Pod {
    let condition = json!({ "type": "PodScheduled", "status": "False", "reason": "Unschedulable" });
    pod(namespace, name, json!({ "status": { "conditions": [condition] } }))
}

/// A PodDisruptionBudget over the pods with a label `app`.
pub fn budget(namespace: &str, name: &str, app: &str, allowed: i32) -> PodDisruptionBudget {
    build(
        json!({
            "metadata": { "name": name, "namespace": namespace },
            "spec": { "selector": { "matchLabels": { "app": app } } },
            "status": {
                "disruptionsAllowed": allowed, "currentHealthy": 1, "desiredHealthy": 1,
                "expectedPods": 1,
            },
        }),
        json!({}),
    )
}

/// A condition whose last transition was at 0 s.
pub fn condition(type_: &str, status: &str) -> Value {
    json!({
        "type": type_, "status": status, "reason": type_, "message": "",
        "lastTransitionTime": "1970-01-01T00:00:00Z",
    })
}

/// Adds a true condition to an indexed NodeClaim.
pub fn set_condition(index: &mut Index, name: &str, type_: &str, since: &str) {
    let mut claim = index.claim(name).unwrap().as_ref().clone();
    let mut added = condition(type_, "True");
    added["lastTransitionTime"] = json!(since);
    let conditions = &mut claim.status.get_or_insert_default().conditions;
    conditions.push(serde_json::from_value(added).unwrap());
    index.apply(claim, at(0));
}

pub fn index(claims: impl IntoIterator<Item = NodeClaim>) -> Index {
    let mut index = Index::default();
    for claim in claims {
        index.apply(claim, at(0));
    }
    index
}

/// NodePool `p` with `count` ready, consolidatable nodes `node-0` … of NodeClaims `claim-0` ….
pub fn cluster_of(count: usize) -> Index {
    let mut index = Index::default();
    index.apply(pool("p", json!({})), at(0));
    for number in 0..count {
        let id = format!("azure:///{number}");
        let conditions = ["Launched", "Registered", "Initialized", "Consolidatable"];
        let object = json!({
            "metadata": { "labels": { labels::NODEPOOL: "p" } },
            "status": {
                "providerID": id, "nodeName": format!("node-{number}"),
                "conditions": conditions.map(|type_| condition(type_, "True")),
            },
        });
        index.apply(claim(&format!("claim-{number}"), object), at(0));
        let ready = json!([{ "type": "Ready", "status": "True" }]);
        let object = json!({ "spec": { "providerID": id }, "status": { "conditions": ready } });
        index.apply(node(&format!("node-{number}"), object), at(0));
    }
    index
}

/// Candidates at 0 s without catalogues, so without prices.
pub fn candidates_of(index: &Index) -> Vec<Candidate> {
    collect(index, &DecisionMemory::default(), &Catalogues::default(), at(0)).0
}

pub fn instance(provider_id: &str, node_claim: Option<&str>, created: Timestamp) -> Instance {
    Instance {
        provider_id: provider_id.to_owned(),
        node_claim: node_claim.map(str::to_owned),
        node_pool: None,
        image_id: None,
        labels: [].into(),
        annotations: [].into(),
        capacity: Resources::new(),
        allocatable: Resources::new(),
        created: Some(created),
        deleting: false,
        lost: false,
    }
}

/// An on-demand launch in zone `z-1` at a price in micro-dollars per hour.
pub fn launch(instance_type: &str, price: i64) -> Launch {
    Launch {
        pool: "p".to_owned(),
        instance_type: instance_type.to_owned(),
        zone: "z-1".to_owned(),
        capacity_type: CapacityType::OnDemand,
        price: UsdPerHour::from_micros(price),
        pods: Vec::new(),
        requests: Resources::new(),
        requirements: Arc::new(Requirements::new()),
        alternatives: Alternatives::default(),
    }
}

pub fn placement(pod: &PodKey, node: &str) -> Placement {
    Placement { pod: pod.clone(), node: node.to_owned() }
}

/// A plan that could not place these pods.
pub fn plan_without_places(pods: impl IntoIterator<Item = PodKey>) -> Plan {
    let refusal = || Refusal::NoPools;
    let unplaced = pods.into_iter().map(|pod| Unplaced { pod, refusal: refusal() }).collect();
    Plan { unplaced, ..Plan::default() }
}
