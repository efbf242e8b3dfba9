//! Selectors of Services and workload controllers. kube-scheduler applies its default spread
//! constraints to the pods that they select together.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{ReplicationController, Service};
use nap_engine::Selector;

use super::Pod;
use super::pod_rules::selector;

/// Selectors by `namespace/name`. Empty unless the scheduler has default spread constraints.
#[derive(Debug, Default)]
pub struct Workloads {
    services: BTreeMap<String, BTreeMap<String, String>>,
    replication_controllers: BTreeMap<String, BTreeMap<String, String>>,
    replica_sets: BTreeMap<String, Selector>,
    stateful_sets: BTreeMap<String, Selector>,
}

/// A kind of object that selects the pods of one workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are those of Kubernetes")]
pub enum WorkloadSelectorKind {
    Service,
    ReplicationController,
    ReplicaSet,
    StatefulSet,
}

/// Every kind.
pub const WORKLOAD_SELECTOR_KINDS: [WorkloadSelectorKind; 4] = [
    WorkloadSelectorKind::Service,
    WorkloadSelectorKind::ReplicationController,
    WorkloadSelectorKind::ReplicaSet,
    WorkloadSelectorKind::StatefulSet,
];

impl Workloads {
    pub(super) fn insert_service(&mut self, key: String, service: &Service) {
        let selector = service.spec.as_ref().and_then(|spec| spec.selector.clone());
        self.services.insert(key, selector.unwrap_or_default());
    }

    pub(super) fn insert_replication_controller(
        &mut self,
        key: String,
        controller: &ReplicationController,
    ) {
        let selector = controller.spec.as_ref().and_then(|spec| spec.selector.clone());
        self.replication_controllers.insert(key, selector.unwrap_or_default());
    }

    pub(super) fn insert_replica_set(&mut self, key: String, set: &ReplicaSet) {
        let of_set = selector(set.spec.as_ref().map(|spec| &spec.selector));
        self.replica_sets.insert(key, of_set);
    }

    pub(super) fn insert_stateful_set(&mut self, key: String, set: &StatefulSet) {
        let of_set = selector(set.spec.as_ref().map(|spec| &spec.selector));
        self.stateful_sets.insert(key, of_set);
    }

    pub(super) fn remove(&mut self, kind: WorkloadSelectorKind, key: &str) {
        match kind {
            WorkloadSelectorKind::Service => drop(self.services.remove(key)),
            WorkloadSelectorKind::ReplicationController => {
                drop(self.replication_controllers.remove(key));
            }
            WorkloadSelectorKind::ReplicaSet => drop(self.replica_sets.remove(key)),
            WorkloadSelectorKind::StatefulSet => drop(self.stateful_sets.remove(key)),
        }
    }

    pub(super) fn keys(&self, kind: WorkloadSelectorKind) -> Vec<String> {
        match kind {
            WorkloadSelectorKind::Service => self.services.keys().cloned().collect(),
            WorkloadSelectorKind::ReplicationController => {
                self.replication_controllers.keys().cloned().collect()
            }
            WorkloadSelectorKind::ReplicaSet => self.replica_sets.keys().cloned().collect(),
            WorkloadSelectorKind::StatefulSet => self.stateful_sets.keys().cloned().collect(),
        }
    }

    /// The selector of the workload that a pod belongs to; `None` if nothing selects the pod.
    pub fn of(&self, pod: &Pod) -> Option<Selector> {
        let namespace = pod.namespace();
        let prefix = format!("{namespace}/");
        let services =
            self.services.range(prefix.clone()..).take_while(|(key, _)| key.starts_with(&prefix));
        let mut labels: BTreeMap<&String, &String> = BTreeMap::new();
        for (_, wanted) in services {
            if wanted.iter().all(|(key, value)| pod.labels().get(key) == Some(value)) {
                labels.extend(wanted);
            }
        }
        let owner = pod.owners().iter().find(|owner| owner.is_controller);
        let of_owner =
            owner.map(|owner| (owner.kind.as_str(), format!("{namespace}/{}", owner.name)));
        let mut of_set = None;
        match of_owner {
            Some(("ReplicationController", key)) => {
                labels.extend(self.replication_controllers.get(&key).into_iter().flatten());
            }
            Some(("ReplicaSet", key)) => of_set = self.replica_sets.get(&key),
            Some(("StatefulSet", key)) => of_set = self.stateful_sets.get(&key),
            _ => {}
        }
        let exact = labels
            .into_iter()
            .fold(Selector::default(), |rules, (key, value)| rules.and(key, value));
        let rules: Vec<_> =
            exact.0.into_iter().chain(of_set.iter().flat_map(|set| set.0.clone())).collect();
        (!rules.is_empty()).then_some(Selector(rules))
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::{Index, Indexed};

    fn object<T: serde::de::DeserializeOwned>(name: &str, spec: &Value) -> T {
        let metadata = json!({ "name": name, "namespace": "shop" });
        serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
    }

    fn pod(kind: &str, owner: &str) -> Pod {
        let pod: k8s_openapi::api::core::v1::Pod = serde_json::from_value(json!({ "metadata": {
            "name": "web-1", "namespace": "shop", "labels": { "app": "web", "tier": "front" },
            "ownerReferences": [{ "apiVersion": "v1", "kind": kind, "name": owner, "uid": "1", "controller": true }],
        } }))
        .unwrap();
        pod.into()
    }

    fn index() -> Index {
        Index::default()
    }

    fn apply<K: Indexed>(index: &mut Index, object: K) {
        index.apply(object, Timestamp::UNIX_EPOCH);
    }

    #[test]
    fn services_and_the_owner_select_the_pods_of_a_workload() {
        let mut index = index();
        let selected =
            |index: &Index, kind: &str, owner: &str| index.workloads().of(&pod(kind, owner));
        assert_eq!(selected(&index, "ReplicaSet", "web"), None, "nothing is known");
        let service = |name: &str, spec: &Value| object::<Service>(name, spec);
        apply(&mut index, service("front", &json!({ "selector": { "tier": "front" } })));
        apply(&mut index, service("back", &json!({ "selector": { "tier": "back" } })));
        apply(&mut index, service("none", &json!({})));
        assert_eq!(selected(&index, "Job", "web"), Some(Selector::label("tier", "front")));
        let template = json!({ "metadata": {}, "spec": { "containers": [] } });
        let set = json!({ "selector": { "matchLabels": { "app": "web" } }, "template": template });
        apply(&mut index, object::<ReplicaSet>("web", &set));
        assert_eq!(
            selected(&index, "ReplicaSet", "web"),
            Some(Selector::label("tier", "front").and("app", "web"))
        );
        index.delete::<Service>("shop/front");
        assert_eq!(selected(&index, "ReplicaSet", "web"), Some(Selector::label("app", "web")));
        let old = object::<ReplicationController>("old", &json!({ "selector": { "app": "web" } }));
        apply(&mut index, old);
        let expected = Some(Selector::label("app", "web"));
        assert_eq!(selected(&index, "ReplicationController", "old"), expected);
    }

    #[test]
    fn a_relist_drops_selectors_that_it_does_not_show() {
        let mut index = index();
        let set = |name: &str| {
            let template = json!({ "metadata": {}, "spec": { "containers": [] } });
            let selector = json!({ "matchLabels": { "app": "web" } });
            let spec = json!({ "serviceName": "", "selector": selector, "template": template });
            object::<StatefulSet>(name, &spec)
        };
        apply(&mut index, set("gone"));
        index.begin_list::<StatefulSet>();
        apply(&mut index, set("kept"));
        index.end_list::<StatefulSet>();
        assert_eq!(StatefulSet::keys(&index), ["shop/kept"]);
    }
}
