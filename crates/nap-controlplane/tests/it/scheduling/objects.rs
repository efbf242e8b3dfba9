//! Conversion of the engine's snapshots and plans to Kubernetes objects.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::CSINode;
use kube::ResourceExt;
use nap_api::requirement::NodeSelectorRequirement;
use nap_api::{Operator, Requirements, Taint, Toleration, labels, taints};
use nap_engine::{
    ATTACHABLE_VOLUMES, Daemon, HostPort, Launch, Namespaces, PodTerm, RunningPods, Selector,
    Snapshot, Spread, Weighted,
};
use nap_units::{PODS, Quantity, Resources};
use serde_json::{Value, json};

/// Taint of a node that is not released yet.
pub(super) const HELD: &str = "nap.test/held";

fn typed<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A Node and its CSINode.
pub(super) type Machine = (Node, CSINode);

/// Resources that a container can request: all but attachable volumes.
fn countable(resources: &Resources) -> BTreeMap<String, Quantity> {
    let all = resources.to_quantities().into_iter();
    all.filter(|(name, _)| !name.starts_with(ATTACHABLE_VOLUMES)).collect()
}

/// Attachable volumes by CSI driver.
fn attached(resources: &Resources) -> impl Iterator<Item = (&str, i64)> {
    resources
        .iter()
        .filter_map(|(name, count)| Some((name.strip_prefix(ATTACHABLE_VOLUMES)?, count)))
}

/// A node with the taint [`HELD`].
fn node(
    name: &str,
    labels: &BTreeMap<String, String>,
    tainted: &[Taint],
    room: &Resources,
) -> Machine {
    let mut distinct: BTreeMap<(&str, &str), &Taint> = BTreeMap::new();
    for taint in tainted {
        distinct.entry((&taint.key, taint.effect.as_str())).or_insert(taint);
    }
    let taint = |taint: &Taint| json!({ "key": taint.key, "value": taint.value, "effect": taint.effect.as_str() });
    let mut list: Vec<Value> = distinct.into_values().map(taint).collect();
    list.push(json!({ "key": HELD, "effect": "NoSchedule" }));
    let amounts = countable(room);
    let drivers: Vec<Value> = attached(room)
        .map(|(driver, count)| json!({ "name": driver, "nodeID": name, "allocatable": { "count": count } }))
        .collect();
    let node = typed(json!({
        "metadata": { "name": name, "labels": labels },
        "spec": { "taints": list },
        "status": { "capacity": amounts, "allocatable": amounts, "conditions": [{ "type": "Ready", "status": "True" }] },
    }));
    (node, typed(json!({ "metadata": { "name": name }, "spec": { "drivers": drivers } })))
}

/// Existing nodes, with capacity for their running pods and the free resources, and these pods.
/// Names get a prefix, because the scheduler may still know nodes of the previous case.
pub(super) fn existing(snapshot: &Snapshot, prefix: &str) -> (Vec<Machine>, Vec<Pod>) {
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

/// The node of a launch, and its daemons.
pub(super) fn launched(snapshot: &Snapshot, launch: &Launch, name: &str) -> (Machine, Vec<Pod>) {
    let pool = snapshot.pools.iter().find(|pool| pool.name == launch.pool).unwrap();
    let kind = snapshot.catalogues[&pool.catalogue]
        .types()
        .iter()
        .find(|kind| kind.name == launch.instance_type)
        .unwrap();
    let offering = kind
        .offerings
        .iter()
        .find(|offering| {
            offering.zone == launch.zone && offering.capacity_type == launch.capacity_type
        })
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

fn resident_pod(name: &str, resident: &RunningPods, node: &str) -> Pod {
    let mut spec = pod_spec(&Resources::new(), &resident.host_ports);
    spec["nodeName"] = json!(node);
    spec["affinity"] = json!({ "podAntiAffinity": terms(&resident.anti_affinity, &[]) });
    typed(json!({
        "metadata": { "name": name, "namespace": resident.namespace, "labels": resident.labels },
        "spec": spec,
    }))
}

fn pod_spec(requests: &Resources, ports: &[HostPort]) -> Value {
    let mut requests = countable(requests);
    requests.remove(PODS);
    // Extended resources need limits equal to the requests.
    let limits: BTreeMap<&String, &Quantity> =
        requests.iter().filter(|(name, _)| name.contains('/')).collect();
    let ports: Vec<Value> = ports
        .iter()
        .map(|port| {
            json!({ "containerPort": port.port, "hostPort": port.port, "hostIP": port.address, "protocol": port.protocol })
        })
        .collect();
    json!({ "terminationGracePeriodSeconds": 0, "containers": [{
        "name": "main", "image": "example.com/app:1", "ports": ports, "resources": { "requests": requests, "limits": limits },
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

fn term(term: &PodTerm) -> Value {
    let mut value =
        json!({ "topologyKey": term.topology_key, "labelSelector": selector(&term.selector) });
    match &term.namespaces {
        Namespaces::All => value["namespaceSelector"] = json!({}),
        Namespaces::Named(names) => value["namespaces"] = json!(names),
    }
    value
}

/// Required and preferred pod affinity terms.
fn terms(needed: &[PodTerm], liked: &[Weighted<PodTerm>]) -> Value {
    let needed: Vec<Value> = needed.iter().map(term).collect();
    let liked: Vec<Value> = liked
        .iter()
        .map(|one| json!({ "weight": one.weight, "podAffinityTerm": term(&one.term) }))
        .collect();
    json!({
        "requiredDuringSchedulingIgnoredDuringExecution": needed,
        "preferredDuringSchedulingIgnoredDuringExecution": liked,
    })
}

fn spread(spread: &Spread, must_hold: bool) -> Value {
    let policy = |honor: bool| if honor { "Honor" } else { "Ignore" };
    json!({
        "topologyKey": spread.topology_key, "maxSkew": spread.max_skew, "minDomains": spread.min_domains,
        "whenUnsatisfiable": if must_hold { "DoNotSchedule" } else { "ScheduleAnyway" },
        "labelSelector": selector(&spread.selector),
        "nodeAffinityPolicy": policy(spread.honor_affinity), "nodeTaintsPolicy": policy(spread.honor_taints),
    })
}

fn node_terms(terms: &[Requirements]) -> Value {
    let terms: Vec<Value> =
        terms.iter().map(|term| json!({ "matchExpressions": match_expressions(term) })).collect();
    json!({ "nodeSelectorTerms": terms })
}

/// Node selector expressions; `Gte` and `Lte` are expressed by `Gt` and `Lt`.
fn match_expressions(term: &Requirements) -> Vec<NodeSelectorRequirement> {
    let mut list = term.to_specs();
    for one in &mut list {
        let (operator, step) = match one.operator {
            Operator::Gte => (Operator::Gt, -1),
            Operator::Lte => (Operator::Lt, 1),
            _ => continue,
        };
        one.operator = operator;
        for value in &mut one.values {
            *value = (value.parse::<i64>().unwrap() + step).to_string();
        }
    }
    list
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

/// A pending pod.
pub(super) struct Waiting {
    pub(super) pod: Pod,
    /// Its volumes and their claims.
    pub(super) volumes: Vec<(PersistentVolume, PersistentVolumeClaim)>,
}

/// A pending pod with its volumes.
pub(super) fn waiting(pod: &nap_engine::Pod) -> Waiting {
    let (namespace, name) = pod.key.parts();
    let mut spec = pod_spec(&pod.requests, &pod.host_ports);
    let liked = &pod.preferences;
    let preferred: Vec<Value> = liked
        .nodes
        .iter()
        .map(|one| json!({ "weight": one.weight, "preference": { "matchExpressions": match_expressions(&one.term) } }))
        .collect();
    let mut node_affinity = json!({ "preferredDuringSchedulingIgnoredDuringExecution": preferred });
    // An empty term matches every node in the engine, and so does the list; in Kubernetes it
    // matches none.
    if !pod.terms.iter().any(Requirements::is_empty) {
        node_affinity["requiredDuringSchedulingIgnoredDuringExecution"] = node_terms(&pod.terms);
    }
    spec["affinity"] = json!({
        "nodeAffinity": node_affinity,
        "podAffinity": terms(&pod.affinity, &liked.affinity),
        "podAntiAffinity": terms(&pod.anti_affinity, &liked.anti_affinity),
    });
    spec["priority"] = Value::Null;
    spec["tolerations"] = pod.tolerations.iter().map(toleration).collect();
    let soft = liked.spread.iter().map(|one| spread(one, false));
    spec["topologySpreadConstraints"] =
        pod.spread.iter().map(|one| spread(one, true)).chain(soft).collect();
    if pod.priority > 0 {
        spec["priorityClassName"] = json!("urgent");
    }
    let mut volumes = Vec::new();
    if !pod.volume_terms.is_empty() {
        volumes.push(volume(namespace, name, UNLIMITED, &pod.volume_terms));
    }
    for (driver, count) in attached(&pod.requests) {
        let disks = (0..count).map(|disk| format!("{name}-{disk}"));
        volumes.extend(disks.map(|disk| volume(namespace, &disk, driver, &[])));
    }
    let claims = volumes.iter().map(|(_, claim)| claim.name_any());
    spec["volumes"] = claims
        .enumerate()
        .map(|(index, claim)| {
            json!({ "name": format!("v{index}"), "persistentVolumeClaim": { "claimName": claim } })
        })
        .collect();
    let pod = typed(json!({
        "metadata": { "name": name, "namespace": namespace, "labels": pod.labels },
        "spec": spec,
    }));
    Waiting { pod, volumes }
}

/// A CSI driver without attach limit.
const UNLIMITED: &str = "disk.example.com";

/// A volume bound to its claim, restricted to zones if there are any.
fn volume(
    namespace: &str,
    name: &str,
    driver: &str,
    zones: &[Requirements],
) -> (PersistentVolume, PersistentVolumeClaim) {
    let size = json!({ "storage": "1Gi" });
    let volume_name = format!("{namespace}-{name}");
    let mut volume = json!({
        "metadata": { "name": volume_name },
        "spec": {
            "capacity": size, "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Retain",
            "csi": { "driver": driver, "volumeHandle": volume_name },
            "claimRef": { "namespace": namespace, "name": name },
        },
    });
    if !zones.is_empty() {
        volume["spec"]["nodeAffinity"] = json!({ "required": node_terms(zones) });
    }
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
