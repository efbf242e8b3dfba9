//! Endpoints and EndpointSlices of Services: the addresses of the pods that a selector finds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Endpoints, Pod, Service, ServicePort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use nap_api::labels;
use serde_json::{Value, json};

use super::index::{Index, Key, Reader, key};
use super::pods;
use super::workloads::owner;
use super::write::Writer;

/// Most addresses in one EndpointSlice.
const MAX_ENDPOINTS: usize = 100;
const SERVICE_NAME: &str = "kubernetes.io/service-name";
const MANAGED_BY: (&str, &str) =
    ("endpointslice.kubernetes.io/managed-by", "endpointslice-controller.k8s.io");

/// Services to look at.
#[derive(Debug, Default)]
pub(super) struct Services {
    changed: BTreeSet<Key>,
}

impl Services {
    /// Reconciles the Services that something has changed for.
    pub(super) async fn pass(&mut self, index: &mut Index, writer: &mut Writer, all: bool) {
        self.read(index);
        if all {
            self.changed.extend(index.services.keys().chain(index.endpoints.keys()).cloned());
        }
        for of in std::mem::take(&mut self.changed) {
            let Some(service) = index.services.get(&of).cloned() else {
                let held = index.endpoints.get(&of).cloned();
                let managed = |held: &Arc<Endpoints>| {
                    held.labels().contains_key("endpoints.kubernetes.io/managed-by")
                };
                if let Some(held) = held.filter(managed) {
                    writer.delete(&mut index.endpoints, &*held, None).await;
                }
                continue;
            };
            if service.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let Some(selector) = selector(&service) else { continue };
            let members = members(&service, selector, index);
            endpoints(&service, &members, index, writer).await;
            slices(&service, &members, index, writer).await;
        }
    }

    fn read(&mut self, index: &mut Index) {
        const READER: Reader = Reader::Services;
        for change in index.services.changes(READER) {
            self.changed.insert(change.key.clone());
        }
        for change in index.endpoints.changes(READER) {
            self.changed.insert(change.key.clone());
        }
        for change in index.endpoint_slices.changes(READER) {
            let owner = change.versions().find_map(|slice| pods::controller_of(&**slice));
            self.changed.extend(owner.map(|owner| (change.key.0.clone(), owner.name.clone())));
        }
        for change in index.pods.changes(READER) {
            for service in index.services.in_namespace(&change.key.0) {
                let chosen = |pod: &Arc<Pod>| {
                    selector(service).is_some_and(|selector| is_member(selector, pod))
                };
                if change.versions().any(chosen) {
                    self.changed.insert(key(&**service));
                }
            }
        }
    }
}

/// The selector of a Service; `None` for one whose endpoints others write.
fn selector(service: &Service) -> Option<&BTreeMap<String, String>> {
    let selector = service.spec.as_ref()?.selector.as_ref()?;
    (!selector.is_empty()).then_some(selector)
}

fn is_member(selector: &BTreeMap<String, String>, pod: &Pod) -> bool {
    selector.iter().all(|(name, value)| pod.labels().get(name) == Some(value))
}

/// The pods of a Service that have an address.
fn members(service: &Service, selector: &BTreeMap<String, String>, index: &Index) -> Vec<Arc<Pod>> {
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    let chosen = index.pods.in_namespace(namespace).filter(|pod| {
        is_member(selector, pod) && !address(pod).is_empty() && !pods::is_finished(pod)
    });
    chosen.cloned().collect()
}

fn address(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.pod_ip.as_deref()).unwrap_or_default()
}

fn serves(service: &Service, pod: &Pod) -> bool {
    let always = service.spec.as_ref().and_then(|spec| spec.publish_not_ready_addresses);
    always == Some(true) || (pods::is_ready(pod) && !pods::is_deleting(pod))
}

/// The ports of a Service on a pod; a name that no container has is left out.
fn ports(service: &Service, pod: &Pod) -> Vec<Value> {
    let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    let resolve = |port: &ServicePort| match &port.target_port {
        None => Some(port.port),
        Some(IntOrString::Int(number)) => Some(*number),
        Some(IntOrString::String(name)) => {
            let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
            let mut named = containers.flat_map(|container| container.ports.iter().flatten());
            named.find(|held| held.name.as_ref() == Some(name)).map(|held| held.container_port)
        }
    };
    ports
        .filter_map(|port| {
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            let mut shown = json!({ "port": resolve(port)?, "protocol": protocol });
            if let Some(name) = &port.name {
                shown["name"] = json!(name);
            }
            Some(shown)
        })
        .collect()
}

fn target(pod: &Pod) -> Value {
    json!({ "kind": "Pod", "namespace": pod.namespace(), "name": pod.name_any(), "uid": pod.uid() })
}

/// Ports, ready addresses and other addresses.
type Subset = (Vec<Value>, Vec<Value>, Vec<Value>);

async fn endpoints(service: &Service, pods: &[Arc<Pod>], index: &mut Index, writer: &mut Writer) {
    // One subset for each list of ports.
    let mut by_ports: BTreeMap<String, Subset> = BTreeMap::new();
    for pod in pods {
        let ports = ports(service, pod);
        let (_, ready, other) = by_ports
            .entry(json!(ports).to_string())
            .or_insert_with(|| (ports, Vec::new(), Vec::new()));
        let entry = json!({
            "ip": address(pod), "nodeName": pods::node_of(pod), "targetRef": target(pod),
        });
        if serves(service, pod) { ready.push(entry) } else { other.push(entry) }
    }
    let subsets: Vec<Value> = by_ports
        .into_values()
        .map(|(ports, ready, other)| {
            let mut subset = json!({});
            for (name, list) in
                [("addresses", ready), ("notReadyAddresses", other), ("ports", ports)]
            {
                if !list.is_empty() {
                    subset[name] = json!(list);
                }
            }
            subset
        })
        .collect();
    let of = key(service);
    match index.endpoints.get(&of) {
        None => {
            let mut labels = json!(service.labels());
            labels["endpoints.kubernetes.io/managed-by"] = json!("endpoint-controller");
            let object = json!({
                "metadata": { "name": of.1, "labels": labels }, "subsets": subsets,
            });
            let component = "endpoint-controller";
            let _ = writer.create_for(service, component, &mut index.endpoints, &object).await;
        }
        Some(held) => {
            let known = serde_json::to_value(&held.subsets).unwrap_or_default();
            let known = if known.is_null() { json!([]) } else { known };
            if known != json!(subsets) {
                let patch = json!({ "subsets": subsets });
                writer.patch(&mut index.endpoints, &of, &patch).await;
            }
        }
    }
}

async fn slices(service: &Service, pods: &[Arc<Pod>], index: &mut Index, writer: &mut Writer) {
    let Some(uid) = service.uid() else { return };
    let zone = |pod: &Pod, index: &Index| {
        let node = index.nodes.get(&(String::new(), pods::node_of(pod).to_owned()))?;
        node.labels().get(labels::ZONE).cloned()
    };
    let mut by_ports: BTreeMap<String, (Vec<Value>, Vec<Value>)> = BTreeMap::new();
    for pod in pods {
        let ports = ports(service, pod);
        let entry = by_ports.entry(json!(ports).to_string()).or_insert_with(|| (ports, Vec::new()));
        let mut endpoint = json!({
            "addresses": [address(pod)],
            "conditions": {
                "ready": serves(service, pod), "serving": pods::is_ready(pod),
                "terminating": pods::is_deleting(pod),
            },
            "nodeName": pods::node_of(pod),
            "targetRef": target(pod),
        });
        if let Some(zone) = zone(pod, index) {
            endpoint["zone"] = json!(zone);
        }
        entry.1.push(endpoint);
    }
    if by_ports.is_empty() {
        by_ports.insert(String::new(), (Vec::new(), Vec::new()));
    }
    let mut wanted: Vec<(Vec<Value>, Vec<Value>)> = Vec::new();
    for (ports, endpoints) in by_ports.into_values() {
        if endpoints.is_empty() {
            wanted.push((ports, endpoints));
        } else {
            let chunks = endpoints.chunks(MAX_ENDPOINTS);
            wanted.extend(chunks.map(|chunk| (ports.clone(), chunk.to_vec())));
        }
    }
    let held: Vec<_> = index.endpoint_slices.managed_by(&uid).cloned().collect();
    for (place, (ports, endpoints)) in wanted.iter().enumerate() {
        if let Some(slice) = held.get(place) {
            let known = serde_json::to_value(&**slice).unwrap_or_default();
            let listed = |key: &str| known.get(key).cloned().unwrap_or_else(|| json!([]));
            if listed("endpoints") != json!(endpoints) || listed("ports") != json!(ports) {
                let patch = json!({ "endpoints": endpoints, "ports": ports });
                writer.patch(&mut index.endpoint_slices, &key(&**slice), &patch).await;
            }
            continue;
        }
        let slice = json!({
            "metadata": {
                "generateName": format!("{}-", service.name_any()),
                "labels": { SERVICE_NAME: service.name_any(), MANAGED_BY.0: MANAGED_BY.1 },
                "ownerReferences": owner(service),
            },
            "addressType": "IPv4", "endpoints": endpoints, "ports": ports,
        });
        let component = "endpoint-slice-controller";
        let _ = writer.create_for(service, component, &mut index.endpoint_slices, &slice).await;
    }
    for extra in held.iter().skip(wanted.len()) {
        writer.delete(&mut index.endpoint_slices, &**extra, None).await;
    }
}
