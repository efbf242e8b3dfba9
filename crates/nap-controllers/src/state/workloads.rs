//! Which pods belong to the same workload, as kube-scheduler finds it out for its default spread
//! constraints: by the Services that select a pod and by the controller that made it.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Pod, ReplicationController, Service};
use kube::ResourceExt;
use nap_engine::Selector;

use super::key_of;
use super::rules::selector;

/// The selectors of Services and controllers, by `namespace/name`. Empty while the cluster has no
/// default spread constraints.
#[derive(Debug, Default)]
pub struct Workloads {
    services: BTreeMap<String, BTreeMap<String, String>>,
    replication_controllers: BTreeMap<String, BTreeMap<String, String>>,
    replica_sets: BTreeMap<String, Selector>,
    stateful_sets: BTreeMap<String, Selector>,
}

/// A kind of object that ties pods together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tie {
    /// Services.
    Service,
    /// ReplicationControllers.
    ReplicationController,
    /// ReplicaSets.
    ReplicaSet,
    /// StatefulSets.
    StatefulSet,
}

/// Every kind.
pub const TIES: [Tie; 4] =
    [Tie::Service, Tie::ReplicationController, Tie::ReplicaSet, Tie::StatefulSet];

impl Workloads {
    /// A Service came or changed.
    pub fn apply_service(&mut self, service: &Service) {
        let selector = service.spec.as_ref().and_then(|spec| spec.selector.clone());
        self.services.insert(key_of(service), selector.unwrap_or_default());
    }

    /// A ReplicationController came or changed.
    pub fn apply_replication_controller(&mut self, controller: &ReplicationController) {
        let selector = controller.spec.as_ref().and_then(|spec| spec.selector.clone());
        self.replication_controllers.insert(key_of(controller), selector.unwrap_or_default());
    }

    /// A ReplicaSet came or changed.
    pub fn apply_replica_set(&mut self, set: &ReplicaSet) {
        let of_set = selector(set.spec.as_ref().map(|spec| &spec.selector));
        self.replica_sets.insert(key_of(set), of_set);
    }

    /// A StatefulSet came or changed.
    pub fn apply_stateful_set(&mut self, set: &StatefulSet) {
        let of_set = selector(set.spec.as_ref().map(|spec| &spec.selector));
        self.stateful_sets.insert(key_of(set), of_set);
    }

    /// An object is gone.
    pub fn delete(&mut self, kind: Tie, key: &str) {
        match kind {
            Tie::Service => drop(self.services.remove(key)),
            Tie::ReplicationController => drop(self.replication_controllers.remove(key)),
            Tie::ReplicaSet => drop(self.replica_sets.remove(key)),
            Tie::StatefulSet => drop(self.stateful_sets.remove(key)),
        }
    }

    /// The objects of a kind that are known.
    pub fn known(&self, kind: Tie) -> Vec<String> {
        match kind {
            Tie::Service => self.services.keys().cloned().collect(),
            Tie::ReplicationController => self.replication_controllers.keys().cloned().collect(),
            Tie::ReplicaSet => self.replica_sets.keys().cloned().collect(),
            Tie::StatefulSet => self.stateful_sets.keys().cloned().collect(),
        }
    }

    /// Which pods belong to the same workload as this one. `None` if nothing ties it to others.
    pub(super) fn of(&self, pod: &Pod) -> Option<Selector> {
        let namespace = pod.namespace().unwrap_or_default();
        let prefix = format!("{namespace}/");
        let services =
            self.services.range(prefix.clone()..).take_while(|(key, _)| key.starts_with(&prefix));
        let mut labels: BTreeMap<&String, &String> = BTreeMap::new();
        for (_, wanted) in services {
            if wanted.iter().all(|(key, value)| pod.labels().get(key) == Some(value)) {
                labels.extend(wanted);
            }
        }
        let owner = pod.owner_references().iter().find(|owner| owner.controller == Some(true));
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
    use serde_json::{Value, json};

    use super::*;

    fn object<T: serde::de::DeserializeOwned>(name: &str, spec: &Value) -> T {
        let metadata = json!({ "name": name, "namespace": "shop" });
        serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
    }

    fn pod(kind: &str, owner: &str) -> Pod {
        serde_json::from_value(json!({ "metadata": {
            "name": "web-1", "namespace": "shop", "labels": { "app": "web", "tier": "front" },
            "ownerReferences": [{ "apiVersion": "v1", "kind": kind, "name": owner, "uid": "1", "controller": true }],
        } }))
        .unwrap()
    }

    #[test]
    fn services_and_the_controller_say_who_belongs_together() {
        let mut known = Workloads::default();
        assert_eq!(known.of(&pod("ReplicaSet", "web")), None, "nothing is known");
        known.apply_service(&object("front", &json!({ "selector": { "tier": "front" } })));
        known.apply_service(&object("back", &json!({ "selector": { "tier": "back" } })));
        known.apply_service(&object("none", &json!({})));
        assert_eq!(known.of(&pod("Job", "web")), Some(Selector::label("tier", "front")));
        let template = json!({ "metadata": {}, "spec": { "containers": [] } });
        let set = json!({ "selector": { "matchLabels": { "app": "web" } }, "template": template });
        known.apply_replica_set(&object("web", &set));
        assert_eq!(
            known.of(&pod("ReplicaSet", "web")),
            Some(Selector::label("tier", "front").and("app", "web"))
        );
        known.delete(Tie::Service, "shop/front");
        assert_eq!(known.of(&pod("ReplicaSet", "web")), Some(Selector::label("app", "web")));
        known
            .apply_replication_controller(&object("old", &json!({ "selector": { "app": "web" } })));
        assert_eq!(
            known.of(&pod("ReplicationController", "old")),
            Some(Selector::label("app", "web"))
        );
    }
}
