//! `metrics.k8s.io`: the use of pods and nodes. No container runs here, so a pod uses what its
//! annotations say, or else exactly what it requests.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::{Method, Response};
use nap_units::{Quantity, Rounding};
use serde_json::{Value, json};

use crate::ResponseBody;
use crate::error::{ApiError, Result};
use crate::object;
use crate::render;
use crate::request::ApiRequest;
use crate::resources::{GroupResource, Resource};
use crate::selectors::Filter;
use crate::server::State;
use crate::store::Key;

/// Annotations of a pod for its use of a resource, as in KWOK.
const ANNOTATIONS: [(&str, &str); 2] =
    [("cpu", "kwok.x-k8s.io/usage-cpu"), ("memory", "kwok.x-k8s.io/usage-memory")];
/// Time over which use is measured, as a real metrics server has it.
const WINDOW: &str = "15s";

/// Use in thousandths of a CPU and in bytes.
#[derive(Clone, Copy, Default)]
struct Use {
    cpu: i64,
    memory: i64,
}

impl Use {
    fn show(self) -> Value {
        json!({ "cpu": format!("{}m", self.cpu), "memory": format!("{}Ki", self.memory / 1024) })
    }

    fn add(&mut self, other: Self) {
        self.cpu = self.cpu.saturating_add(other.cpu);
        self.memory = self.memory.saturating_add(other.memory);
    }
}

impl State {
    pub(crate) fn metrics(
        &self,
        request: &ApiRequest,
        resource: &Resource,
        key: &Key,
    ) -> Result<Response<ResponseBody>> {
        if request.method != Method::GET {
            return Err(ApiError::method_not_allowed());
        }
        let measured = GroupResource::new("", &resource.plural);
        let of =
            self.registry.find("", "v1", &resource.plural).ok_or_else(ApiError::unknown_path)?;
        let query = &request.query;
        let filter =
            Filter::new(&of, &key.0, query.text("labelSelector"), query.text("fieldSelector"))?;
        let objects = self.store.collections.get(&measured);
        let objects = objects.into_iter().flat_map(|held| held.objects.values());
        let items: Vec<Value> = if resource.plural == "pods" {
            objects
                .filter(|pod| filter.matches(pod) && is_running(pod))
                .map(|pod| self.pod(pod))
                .collect()
        } else {
            let used = self.used_by_node();
            objects
                .filter(|node| filter.matches(node))
                .map(|node| {
                    let used = used.get(object::name(node)).copied().unwrap_or_default();
                    let mut item = self.item("NodeMetrics", node);
                    item["usage"] = used.show();
                    item
                })
                .collect()
        };
        if key.1.is_empty() {
            let list = json!({
                "kind": resource.list_kind, "apiVersion": resource.api_version(),
                "metadata": {}, "items": items,
            });
            return Ok(render::json(200, &list));
        }
        let found = items.into_iter().find(|item| object::name(item) == key.1);
        let found = found.ok_or_else(|| ApiError::not_found(resource, &key.1))?;
        Ok(render::json(200, &found))
    }

    fn item(&self, kind: &str, of: &Value) -> Value {
        let metadata = &of["metadata"];
        let mut shown = json!({ "name": metadata["name"], "creationTimestamp": self.timestamp() });
        for field in ["namespace", "labels"] {
            if let Some(value) = metadata.get(field) {
                shown[field] = value.clone();
            }
        }
        json!({
            "kind": kind, "apiVersion": "metrics.k8s.io/v1beta1", "metadata": shown,
            "timestamp": self.timestamp(), "window": WINDOW,
        })
    }

    fn pod(&self, pod: &Arc<Value>) -> Value {
        let mut item = self.item("PodMetrics", pod);
        let containers: Vec<Value> = used(pod)
            .into_iter()
            .map(|(name, used)| json!({ "name": name, "usage": used.show() }))
            .collect();
        item["containers"] = json!(containers);
        item
    }

    fn used_by_node(&self) -> BTreeMap<&str, Use> {
        let pods = self.store.collections.get(&GroupResource::new("", "pods"));
        let mut nodes: BTreeMap<&str, Use> = BTreeMap::new();
        for pod in pods.into_iter().flat_map(|held| held.objects.values()) {
            if is_running(pod) {
                let node = nodes.entry(object::text(pod, &["spec", "nodeName"])).or_default();
                for (_, used) in used(pod) {
                    node.add(used);
                }
            }
        }
        nodes
    }
}

fn is_running(pod: &Value) -> bool {
    object::text(pod, &["status", "phase"]) == "Running"
}

/// Use of each container. An annotation is of the whole pod: its first container uses all of it.
fn used(pod: &Value) -> Vec<(&str, Use)> {
    let annotation = |name: &str| object::at(pod, &["metadata", "annotations", name]);
    let stated: Vec<Option<&str>> =
        ANNOTATIONS.iter().map(|(_, key)| annotation(key).and_then(Value::as_str)).collect();
    let containers = object::list(pod, &["spec", "containers"]).iter().enumerate();
    containers
        .map(|(place, container)| {
            let amount = |index: usize, name: &str, rounding: fn(Quantity) -> i64| {
                let requested = object::text(container, &["resources", "requests", name]);
                let text = match stated.get(index).copied().flatten() {
                    Some(stated) if place == 0 => stated,
                    Some(_) => "0",
                    None => requested,
                };
                text.parse::<Quantity>().map_or(0, rounding)
            };
            let used = Use {
                cpu: amount(0, "cpu", |quantity| quantity.to_milli(Rounding::Up)),
                memory: amount(1, "memory", |quantity| quantity.to_units(Rounding::Up)),
            };
            (object::text(container, &["name"]), used)
        })
        .collect()
}
