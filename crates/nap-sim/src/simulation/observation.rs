//! The state of the world at one time, from the API server and the cloud only.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use nap_api::{NodeClaim, NodePool};
use nap_apiserver::Observed;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::azure::EmulatedMachine;
use crate::world::World;

/// Everything that checkers may look at.
#[derive(Clone)]
pub(super) struct Observation {
    pub(super) now: Timestamp,
    pub(super) pods: Vec<Arc<Pod>>,
    pub(super) claims: Vec<Arc<NodeClaim>>,
    pub(super) nodes: Vec<Arc<Node>>,
    pub(super) pools: Vec<Arc<NodePool>>,
    /// The agent-pool machines that Azure has.
    pub(super) vms: Vec<EmulatedMachine>,
}

/// The objects of the API server, read as they change: a list every few minutes would read all of
/// them again.
#[derive(Clone, Default)]
pub(super) struct Observer(Arc<Mutex<Objects>>);

impl Observer {
    /// Observes the API server from its present objects on.
    pub(super) fn of(world: &World) -> Self {
        let observer = Self::default();
        let changes = observer.clone();
        world.server().observe_all(move |change| changes.note(change));
        observer
    }

    fn note(&self, change: Observed<'_>) {
        let mut objects = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Objects { pods, claims, nodes, pools } = &mut *objects;
        match (change.group, change.plural) {
            ("", "pods") => put(pods, change),
            ("", "nodes") => put(nodes, change),
            ("karpenter.sh", "nodeclaims") => put(claims, change),
            ("karpenter.sh", "nodepools") => put(pools, change),
            _ => {}
        }
    }

    /// The state of the world now.
    pub(super) fn observe(&self, world: &World) -> Observation {
        let objects = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Observation {
            now: world.clock().now(),
            pods: objects.pods.values().cloned().collect(),
            claims: objects.claims.values().cloned().collect(),
            nodes: objects.nodes.values().cloned().collect(),
            pools: objects.pools.values().cloned().collect(),
            vms: world.azure().machines(),
        }
    }
}

/// Objects by namespace and name.
type ByName<K> = BTreeMap<(String, String), Arc<K>>;

#[derive(Default)]
struct Objects {
    pods: ByName<Pod>,
    claims: ByName<NodeClaim>,
    nodes: ByName<Node>,
    pools: ByName<NodePool>,
}

fn put<K: DeserializeOwned>(objects: &mut ByName<K>, change: Observed<'_>) {
    let Some(object) = change.new.or(change.old) else { return };
    let text = |field: &str| {
        object["metadata"].get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let key = (text("namespace"), text("name"));
    match change.new {
        Some(new) => {
            let read = K::deserialize(new).expect("an object of the API server is of its kind");
            objects.insert(key, Arc::new(read));
        }
        None => drop(objects.remove(&key)),
    }
}
