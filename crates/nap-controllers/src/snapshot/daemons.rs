//! DaemonSets of a snapshot: what their pods really request.
//!
//! Admission may add to the template of a DaemonSet: LimitRanges set defaults, webhooks anything.
//! So a pod that exists counts, and without one the template with the defaults of its namespace.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Container, LimitRange, LimitRangeItem, PodSpec};
use kube::ResourceExt;
use nap_engine::Daemon;

use super::pods::tolerations;
use crate::cluster::node_affinity::required_terms;
use crate::cluster::{Index, host_ports, pods};

/// DaemonSets in the engine's terms. One whose requests cannot be parsed is left out.
pub(super) fn daemons(index: &Index) -> Vec<Daemon> {
    let daemon = |(name, daemon): (&String, &Arc<DaemonSet>)| {
        let template = daemon.spec.as_ref()?.template.spec.as_ref()?;
        let live = index.newest_pod_of(name);
        let defaulted = || with_defaults(template, index, &daemon.namespace().unwrap_or_default());
        let requests = match live {
            Some(pod) => pod.requests().cloned().map_err(Clone::clone),
            None => pods::requests(&defaulted()),
        };
        Some(Daemon {
            name: name.clone(),
            requests: requests.ok()?,
            // A live pod is tied to its own node.
            terms: required_terms(template).0,
            tolerations: tolerations(template),
            host_ports: host_ports(template),
        })
    };
    index.daemon_sets().filter_map(daemon).collect()
}

/// A pod spec with the requests that the LimitRanges of a namespace add.
fn with_defaults(spec: &PodSpec, index: &Index, namespace: &str) -> PodSpec {
    let mut spec = spec.clone();
    for range in index.limit_ranges_of(namespace) {
        for item in container_items(range) {
            let all = spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten());
            all.for_each(|container| add_defaults(container, item));
        }
    }
    spec
}

fn container_items(range: &LimitRange) -> impl Iterator<Item = &LimitRangeItem> {
    let items = range.spec.iter().flat_map(|spec| &spec.limits);
    items.filter(|item| item.type_ == "Container")
}

/// Adds default requests to a container that names neither a request nor a limit. A default limit
/// is a default request too, unless there is one.
fn add_defaults(container: &mut Container, item: &LimitRangeItem) {
    let resources = container.resources.get_or_insert_default();
    let limits = resources.limits.clone().unwrap_or_default();
    let requests = resources.requests.get_or_insert_default();
    for (name, quantity) in item.default_request.iter().chain(&item.default).flatten() {
        if !limits.contains_key(name) && !requests.contains_key(name) {
            requests.insert(name.clone(), quantity.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, pod};
    use serde_json::{Value, json};

    fn with_daemon(resources: &Value) -> Index {
        let container = json!({ "name": "c", "resources": resources });
        let daemon: DaemonSet = serde_json::from_value(json!({
            "metadata": { "name": "agent", "namespace": "system" },
            "spec": {
                "selector": {},
                "template": { "spec": { "containers": [container] } },
            },
        }))
        .unwrap();
        let mut index = Index::default();
        index.apply(daemon, at(0));
        index
    }

    fn limit_range(item: &Value) -> LimitRange {
        serde_json::from_value(json!({
            "metadata": { "name": "range", "namespace": "system" }, "spec": { "limits": [item] },
        }))
        .unwrap()
    }

    fn cpu(index: &Index) -> i64 {
        daemons(index)[0].requests.get("cpu")
    }

    #[test]
    fn a_template_gets_the_defaults_of_its_namespace() {
        let none = json!({});
        let mut index = with_daemon(&none);
        assert_eq!(cpu(&index), 0);
        let default = json!({ "type": "Container", "default": { "cpu": "2" } });
        index.apply(limit_range(&default), at(0));
        assert_eq!(cpu(&index), 2000);
        let mut both = default;
        both["defaultRequest"] = json!({ "cpu": "1" });
        index.apply(limit_range(&both), at(0));
        assert_eq!(cpu(&index), 1000, "a default request comes before a default limit");
        both["type"] = json!("Pod");
        index.apply(limit_range(&both), at(0));
        assert_eq!(cpu(&index), 0);
    }

    #[test]
    fn defaults_do_not_replace_what_the_template_names() {
        let default = json!({ "type": "Container", "default": { "cpu": "2" } });
        for resources in
            [json!({ "requests": { "cpu": "500m" } }), json!({ "limits": { "cpu": "500m" } })]
        {
            let mut index = with_daemon(&resources);
            index.apply(limit_range(&default), at(0));
            assert_eq!(cpu(&index), 500, "{resources}");
        }
    }

    #[test]
    fn the_newest_pod_of_a_daemon_set_counts_before_its_template() {
        let mut index = with_daemon(&json!({ "requests": { "cpu": "1" } }));
        let live = |name: &str, created: &str, request: &str| {
            let container = json!({ "name": "c", "resources": { "requests": { "cpu": request } } });
            let owner = json!({ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "u" });
            let metadata = json!({ "creationTimestamp": created, "ownerReferences": [owner] });
            pod(
                "system",
                name,
                json!({ "metadata": metadata, "spec": { "containers": [container] } }),
            )
        };
        index.apply(live("b", "1970-01-01T00:00:10Z", "3"), at(0));
        index.apply(live("a", "1970-01-01T00:00:20Z", "4"), at(0));
        index.apply(live("c", "1970-01-01T00:00:00Z", "5"), at(0));
        assert_eq!(cpu(&index), 4000);
    }
}
