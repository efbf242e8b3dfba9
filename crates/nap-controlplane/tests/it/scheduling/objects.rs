//! The engine's snapshots and plans as objects of a cluster.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use nap_api::{Requirements, Taint, Toleration, labels, taints};
use nap_engine::{Daemon, HostPort, Launch, Namespaces, PodTerm, Resident, Selector, Snapshot};
use nap_units::{PODS, Resources};
use serde_json::{Value, json};

/// Keeps pods off a node until it is released.
pub(super) const HELD: &str = "nap.test/held";

fn typed<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A node that is not released yet.
fn node(name: &str, labels: &BTreeMap<String, String>, tainted: &[Taint], room: &Resources) -> Node {
    let mut list: Vec<Value> = tainted
        .iter()
        .map(|taint| json!({ "key": taint.key, "value": taint.value, "effect": taint.effect.as_str() }))
        .collect();
    list.push(json!({ "key": HELD, "effect": "NoSchedule" }));
    let amounts = room.to_quantities();
    typed(json!({
        "metadata": { "name": name, "labels": labels },
        "spec": { "taints": list },
        "status": { "capacity": amounts, "allocatable": amounts, "conditions": [{ "type": "Ready", "status": "True" }] },
    }))
}

/// The nodes that are there, with room for their residents besides what is free, and the residents. Names get a prefix: the scheduler may not
/// have heard yet that nodes of the case before are gone.
pub(super) fn existing(snapshot: &Snapshot, prefix: &str) -> (Vec<Node>, Vec<Pod>) {
    let mut residents = Vec::new();
    let nodes = snapshot.nodes.iter().map(|there| {
        let node_name = format!("{prefix}{}", there.name);
        let mut room = there.free.clone();
        for (index, resident) in there.residents.iter().enumerate() {
            for copy in 0..resident.count {
                let name = format!("resident-{}-{index}-{copy}", there.name);
                residents.push(resident_pod(&name, resident, &node_name));
                room.set(PODS, room.get(PODS) + 1);
            }
        }
        node(&node_name, &there.labels, &there.taints, &room)
    });
    (nodes.collect(), residents)
}

/// The node that a launch gives, and its daemons.
pub(super) fn launched(snapshot: &Snapshot, launch: &Launch, name: &str) -> (Node, Vec<Pod>) {
    let pool = snapshot.pools.iter().find(|pool| pool.name == launch.pool).unwrap();
    let kind =
        snapshot.catalogues[&pool.catalogue].iter().find(|kind| kind.name == launch.instance_type).unwrap();
    let offering = kind
        .offerings
        .iter()
        .find(|offering| offering.zone == launch.zone && offering.capacity_type == launch.capacity_type)
        .unwrap();
    let mut own = pool.requirements.labels();
    own.extend(kind.requirements.labels());
    own.extend(offering.requirements.labels());
    own.insert(labels::HOSTNAME.to_owned(), name.to_owned());
    let runs = |daemon: &&Daemon| {
        let suits = |term: &Requirements| {
            term.iter().all(|(key, wanted)| own.get(key).is_some_and(|have| wanted.allows(have)))
        };
        taints::first_untolerated(&pool.taints, &daemon.tolerations).is_none()
            && daemon.terms.iter().any(suits)
    };
    let daemons = snapshot.daemons.iter().filter(runs).enumerate().map(|(index, daemon)| {
        let mut spec = pod_spec(&daemon.requests, &daemon.host_ports);
        spec["nodeName"] = json!(name);
        typed(json!({ "metadata": { "name": format!("daemon-{name}-{index}"), "namespace": "daemons" }, "spec": spec }))
    });
    let daemons = daemons.collect();
    (node(name, &own, &pool.taints, &kind.allocatable), daemons)
}

fn resident_pod(name: &str, resident: &Resident, node: &str) -> Pod {
    let mut spec = pod_spec(&Resources::new(), &resident.host_ports);
    spec["nodeName"] = json!(node);
    spec["affinity"] = json!({ "podAntiAffinity": terms(&resident.anti_affinity) });
    typed(json!({
        "metadata": { "name": name, "namespace": resident.namespace, "labels": resident.labels },
        "spec": spec,
    }))
}

fn pod_spec(requests: &Resources, ports: &[HostPort]) -> Value {
    let requests: BTreeMap<String, Value> = requests
        .to_quantities()
        .into_iter()
        .filter(|(name, _)| name != PODS)
        .map(|(name, amount)| (name, json!(amount)))
        .collect();
    let ports: Vec<Value> = ports
        .iter()
        .map(|port| {
            json!({ "containerPort": port.port, "hostPort": port.port, "hostIP": port.address, "protocol": port.protocol })
        })
        .collect();
    json!({ "terminationGracePeriodSeconds": 0, "containers": [{
        "name": "main", "image": "example.com/app:1", "ports": ports, "resources": { "requests": requests },
    }] })
}

fn selector(selector: &Selector) -> Value {
    let rules: Vec<Value> = selector
        .0
        .iter()
        .map(|rule| json!({ "key": rule.key, "operator": rule.operator, "values": rule.values }))
        .collect();
    json!({ "matchExpressions": rules })
}

fn terms(terms: &[PodTerm]) -> Value {
    let terms: Vec<Value> = terms
        .iter()
        .map(|term| {
            let mut value =
                json!({ "topologyKey": term.topology_key, "labelSelector": selector(&term.selector) });
            match &term.namespaces {
                Namespaces::All => value["namespaceSelector"] = json!({}),
                Namespaces::Named(names) => value["namespaces"] = json!(names),
            }
            value
        })
        .collect();
    json!({ "requiredDuringSchedulingIgnoredDuringExecution": terms })
}

fn node_terms(terms: &[Requirements]) -> Value {
    let terms: Vec<Value> = terms.iter().map(|term| json!({ "matchExpressions": term.to_specs() })).collect();
    json!({ "nodeSelectorTerms": terms })
}

fn toleration(toleration: &Toleration) -> Value {
    let mut value = json!({ "operator": if toleration.exists { "Exists" } else { "Equal" } });
    if !toleration.key.is_empty() {
        value["key"] = json!(toleration.key);
    }
    if !toleration.exists {
        value["value"] = json!(toleration.value);
    }
    if let Some(effect) = toleration.effect {
        value["effect"] = json!(effect.as_str());
    }
    value
}

/// A pod that waits, with the volumes that it needs.
pub(super) fn waiting(pod: &nap_engine::Pod) -> (Pod, Option<(PersistentVolume, PersistentVolumeClaim)>) {
    let (namespace, name) = pod.key.parts();
    let mut spec = pod_spec(&pod.requests, &pod.host_ports);
    let mut affinity = json!({
        "podAffinity": terms(&pod.affinity), "podAntiAffinity": terms(&pod.anti_affinity),
    });
    // A term without wishes is met everywhere, and so is the whole list; Kubernetes has no such term.
    if !pod.terms.iter().any(Requirements::is_empty) {
        affinity["nodeAffinity"] =
            json!({ "requiredDuringSchedulingIgnoredDuringExecution": node_terms(&pod.terms) });
    }
    spec["affinity"] = affinity;
    spec["priority"] = Value::Null;
    spec["tolerations"] = pod.tolerations.iter().map(toleration).collect();
    spec["topologySpreadConstraints"] = pod
        .spread
        .iter()
        .map(|spread| {
            let policy = |honor: bool| if honor { "Honor" } else { "Ignore" };
            json!({
                "topologyKey": spread.topology_key, "maxSkew": spread.max_skew, "minDomains": spread.min_domains,
                "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector(&spread.selector),
                "nodeAffinityPolicy": policy(spread.honor_affinity), "nodeTaintsPolicy": policy(spread.honor_taints),
            })
        })
        .collect();
    if pod.priority > 0 {
        spec["priorityClassName"] = json!("urgent");
    }
    let volume = (!pod.volume_terms.is_empty()).then(|| {
        spec["volumes"] = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": name } }]);
        volume(namespace, name, &pod.volume_terms)
    });
    let pod = typed(json!({
        "metadata": { "name": name, "namespace": namespace, "labels": pod.labels },
        "spec": spec,
    }));
    (pod, volume)
}

/// A volume in some zones, bound to its claim.
fn volume(namespace: &str, name: &str, zones: &[Requirements]) -> (PersistentVolume, PersistentVolumeClaim) {
    let size = json!({ "storage": "1Gi" });
    let volume_name = format!("{namespace}-{name}");
    let volume = json!({
        "metadata": { "name": volume_name },
        "spec": {
            "capacity": size, "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Retain",
            "csi": { "driver": "disk.example.com", "volumeHandle": volume_name },
            "claimRef": { "namespace": namespace, "name": name },
            "nodeAffinity": { "required": node_terms(zones) },
        },
    });
    let claim = json!({
        "metadata": {
            "name": name, "namespace": namespace, "annotations": { "pv.kubernetes.io/bind-completed": "yes" },
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": { "requests": size }, "volumeName": volume_name,
            "storageClassName": "",
        },
    });
    (typed(volume), typed(claim))
}
