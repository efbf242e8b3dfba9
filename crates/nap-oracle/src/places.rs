//! Candidate nodes: every existing node, and one for every offering of every NodePool.

use std::collections::BTreeMap;
use std::sync::Arc;

use nap_api::Requirements;
use nap_engine::{
    CapacityType, InstanceType, Node, Offering, Options, Pod, PodKey, Pool, RESERVATION_ID,
    Snapshot,
};
use nap_units::{CPU, UsdPerHour};

use crate::check::{existing, machine};
use crate::cluster::NodeState;

/// Pods that differ in their names only.
pub(crate) struct Class<'s> {
    pub(crate) pod: &'s Pod,
    pub(crate) keys: Vec<&'s PodKey>,
}

impl<'s> Class<'s> {
    /// Groups pods into classes.
    pub(crate) fn of(pods: impl IntoIterator<Item = &'s Pod>) -> Vec<Self> {
        let mut classes: BTreeMap<Pod, Self> = BTreeMap::new();
        for pod in pods {
            let nameless = Pod { key: PodKey::new(pod.key.parts().0, ""), ..pod.clone() };
            let class = classes.entry(nameless).or_insert_with(|| Self { pod, keys: Vec::new() });
            class.keys.push(&pod.key);
        }
        classes.into_values().collect()
    }

    pub(crate) fn count(&self) -> usize {
        self.keys.len()
    }

    pub(crate) fn namespace(&self) -> &'s str {
        self.pod.key.parts().0
    }
}

/// A candidate node, before any pending pod is on it.
pub(crate) struct Place<'s> {
    pub(crate) machine: NodeState,
    /// The offering that is launched; `None` for an existing node.
    pub(crate) bought: Option<Bought<'s>>,
}

/// An offering of an instance type, launched by a NodePool.
#[derive(Clone, Copy)]
pub(crate) struct Bought<'s> {
    pub(crate) pool: &'s Pool,
    pub(crate) kind: &'s InstanceType,
    pub(crate) offering: &'s Offering,
}

impl<'s> Bought<'s> {
    /// Id of the capacity reservation; `None` if the offering is not reserved.
    pub(crate) fn reservation(&self) -> Option<&'s str> {
        self.offering.requirements.get(RESERVATION_ID)?.single()
    }
}

impl Place<'_> {
    /// Price in micro-dollars per hour; 0 for an existing node.
    pub(crate) fn price(&self) -> i64 {
        self.bought.map_or(0, |bought| bought.offering.price.micros())
    }
}

/// Whether a node at this price is above the ceiling of the pool or of the options.
pub(crate) fn is_too_dear(pool: &Pool, options: &Options, price: UsdPerHour) -> bool {
    [pool.max_price, options.max_node_price].iter().flatten().any(|ceiling| price > *ceiling)
}

/// Candidate nodes of a snapshot, existing ones first. Unavailable offerings are left out.
pub(crate) fn places<'s>(snapshot: &'s Snapshot, options: &Options) -> Vec<Place<'s>> {
    let standing =
        snapshot.nodes.iter().map(|node| Place { machine: existing(node), bought: None });
    let mut places: Vec<Place<'s>> = standing.collect();
    for pool in &snapshot.pools {
        for kind in
            snapshot.catalogues.get(&pool.catalogue).into_iter().flat_map(|types| types.types())
        {
            let large =
                options.max_cpu_per_node.is_some_and(|most| kind.capacity.get(CPU) > most * 1000);
            if large || pool.requirements.intersects(&kind.requirements).is_err() {
                continue;
            }
            let sold = kind.offerings.iter().filter(|offering| offering.available);
            for offering in sold.filter(|one| !is_too_dear(pool, options, one.price)) {
                let bought = Bought { pool, kind, offering };
                let is_left = match bought.reservation() {
                    Some(name) => snapshot.reservations.get(name).is_some_and(|count| *count > 0),
                    None => offering.capacity_type != CapacityType::Reserved,
                };
                if is_left && pool.requirements.intersects(&offering.requirements).is_ok() {
                    let machine = machine(
                        "new",
                        &Requirements::new(),
                        pool,
                        kind,
                        offering,
                        &snapshot.daemons,
                    );
                    places.push(Place { machine, bought: Some(bought) });
                }
            }
        }
    }
    places
}

/// The snapshot with one full node for every candidate. A checker that reads domains from nodes
/// then sees every domain that could be launched, as the incumbent does when it spreads pods.
pub fn with_every_domain(snapshot: &Snapshot) -> Snapshot {
    let mut wider = snapshot.clone();
    let kinds =
        places(snapshot, &Options::default()).into_iter().filter(|place| place.bought.is_some());
    for (number, place) in kinds.enumerate() {
        let name = format!("empty-{number}");
        let mut labels = place.machine.labels;
        labels.insert(nap_api::labels::HOSTNAME.to_owned(), name.clone());
        let taints = place.machine.taints;
        let node = Node { name, labels, taints, initialized: true, ..Node::default() };
        wider.nodes.push(Arc::new(node));
    }
    // Hostname domains are unlimited: one more host beside each existing one.
    for node in &snapshot.nodes {
        let name = format!("empty-beside-{}", node.name);
        let mut labels = node.labels.clone();
        labels.insert(nap_api::labels::HOSTNAME.to_owned(), name.clone());
        let taints = node.taints.clone();
        let node = Node { name, labels, taints, initialized: true, ..Node::default() };
        wider.nodes.push(Arc::new(node));
    }
    wider
}
