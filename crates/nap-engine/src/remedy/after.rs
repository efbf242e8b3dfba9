//! The cluster after a plan was carried out.

use std::collections::BTreeMap;
use std::sync::Arc;

use nap_api::{Requirement, labels};
use nap_units::Resources;

use crate::classes::dimensions::is_attachment;
use crate::model::{Launch, Node, Plan, RESERVATION_ID, RunningPods, Snapshot};
use crate::offerings::daemon_overhead::{runs_on, tolerant_daemons};
use crate::offerings::pool_table::charge_of;

/// The cluster once a plan is carried out, without the pods that have no place.
pub fn after(snapshot: &Snapshot, plan: &Plan) -> Snapshot {
    let pods: BTreeMap<_, _> = snapshot.pods.iter().map(|pod| (&pod.key, pod)).collect();
    let mut after = Snapshot { pods: Vec::new(), ..snapshot.clone() };
    let names: BTreeMap<&str, usize> = snapshot
        .nodes
        .iter()
        .enumerate()
        .map(|(number, node)| (node.name.as_str(), number))
        .collect();
    for placement in &plan.placements {
        let number = names.get(placement.node.as_str());
        let node = number.and_then(|number| after.nodes.get_mut(*number));
        if let (Some(node), Some(pod)) = (node, pods.get(&placement.pod)) {
            let node = Arc::make_mut(node);
            take(&mut node.free, &pod.requests);
            node.residents.push(RunningPods::from(*pod));
        }
    }
    for (number, launch) in plan.launches.iter().enumerate() {
        let residents = launch
            .pods
            .iter()
            .filter_map(|key| pods.get(key))
            .map(|pod| RunningPods::from(*pod))
            .collect();
        if let Some(node) = launched(&mut after, launch, number, residents) {
            after.nodes.push(Arc::new(node));
        }
    }
    after
}

/// A launch as a node in flight. Takes its charge off the limits of the pool, and its node off the
/// reservation.
fn launched(
    after: &mut Snapshot,
    launch: &Launch,
    number: usize,
    mut residents: Vec<RunningPods>,
) -> Option<Node> {
    let pool = after.pools.iter_mut().find(|pool| pool.name == launch.pool)?;
    let catalogue = Arc::clone(after.catalogues.get(&pool.catalogue)?);
    let mut types = catalogue.types().iter();
    let instance_type = types.find(|one| one.name == launch.instance_type)?;
    for (name, left) in pool.headroom.clone().iter() {
        pool.headroom.set(name, left.saturating_sub(charge_of(instance_type, name)));
    }
    let name = format!("launch-{}", number + 1);
    let chosen = instance_type
        .offerings
        .iter()
        .find(|one| one.zone == launch.zone && one.capacity_type == launch.capacity_type)?;
    let reservation = chosen.requirements.get(RESERVATION_ID).and_then(Requirement::single);
    if let Some(left) = reservation.and_then(|id| after.reservations.get_mut(id)) {
        *left = left.saturating_sub(1);
    }
    let mut all = pool.requirements.labels();
    all.extend(launch.requirements.labels());
    all.extend(instance_type.requirements.labels());
    all.extend(chosen.requirements.labels());
    all.insert(labels::HOSTNAME.to_owned(), name.clone());
    let daemons = tolerant_daemons(pool, &after.daemons);
    let daemons = daemons.iter().filter(|one| runs_on(one, pool, instance_type));
    residents.extend(daemons.filter_map(|one| one.resident()));
    let mut free = instance_type.allocatable.clone();
    take(&mut free, &launch.requests);
    Some(Node {
        name,
        labels: all,
        taints: pool.taints.clone(),
        free,
        initialized: false,
        residents,
    })
}

/// Takes requests off what is free. Attachable volumes count only where the node names them.
fn take(free: &mut Resources, requests: &Resources) {
    let counts = |name: &str| !is_attachment(name) || free.contains(name);
    let counted: Resources = requests.iter().filter(|(name, _)| counts(name)).collect();
    free.subtract(&counted);
}
