//! NodePools of a snapshot: requirements, taints and headroom under limits.

use kube::ResourceExt;
use nap_api::{NodeClaim, NodePool, Requirement, Requirements, conditions, labels};
use nap_engine::{Catalogue, NODES, Pool};
use nap_units::{Resources, Rounding};

use super::Catalogues;
use super::nodes::quantities;
use crate::cluster::Index;

/// A NodePool in the engine's terms; `None` if it launches nothing now: not ready, being deleted,
/// static, or without a catalogue.
pub(super) fn pool(index: &Index, pool: &NodePool, catalogues: &Catalogues) -> Option<Pool> {
    let conditions = pool.status.as_ref().map(|status| status.conditions.as_slice());
    let ready = conditions::is_true(conditions.unwrap_or_default(), conditions::READY);
    if !ready || pool.metadata.deletion_timestamp.is_some() || pool.spec.replicas.is_some() {
        return None;
    }
    let name = pool.name_any();
    let catalogue = catalogues.of(&name)?;
    Some(Pool {
        weight: pool.spec.weight.unwrap_or(0),
        requirements: pool_requirements(pool),
        taints: pool.spec.template.spec.taints.clone(),
        headroom: headroom(index, pool, catalogue),
        catalogue: catalogues.of_pools.get(&name)?.clone(),
        name,
    })
}

/// Requirements on every node of a NodePool: those of its template, its labels, its name and its
/// node class.
pub fn pool_requirements(pool: &NodePool) -> Requirements {
    let template = &pool.spec.template;
    let mut requirements = Requirements::from_specs(&template.spec.requirements);
    requirements.extend(&Requirements::from_labels(&template.metadata.labels));
    requirements.add(labels::NODEPOOL, Requirement::is_in([pool.name_any()]));
    let class = template.spec.node_class_ref.name.as_str();
    requirements.add(labels::AKS_NODE_CLASS, Requirement::is_in([class]));
    requirements
}

/// Limits of a NodePool less its usage; empty without limits.
fn headroom(index: &Index, pool: &NodePool, catalogue: &Catalogue) -> Resources {
    let Some(limits) = &pool.spec.limits else { return Resources::new() };
    let mut headroom = Resources::from_quantities(
        limits.iter().map(|(name, quantity)| (name.as_str(), quantity)),
        Rounding::Down,
    );
    let used = pool_usage(index, &pool.name_any(), Some(catalogue));
    for (name, limit) in headroom.clone().iter() {
        headroom.set(name, limit.saturating_sub(used.get(name)));
    }
    headroom
}

/// Capacity of all NodeClaims of a NodePool, and their number as `nodes`. With a catalogue, a
/// NodeClaim that is not launched counts as the largest instance type that it allows.
pub fn pool_usage(index: &Index, pool: &str, catalogue: Option<&Catalogue>) -> Resources {
    let mut used = Resources::new().with(NODES, 0);
    for claim in index.claims_of_pool(pool) {
        let status = claim.status.as_ref();
        let mut capacity = status.map(|status| quantities(&status.capacity)).unwrap_or_default();
        if capacity.is_empty() {
            capacity =
                catalogue.map(|catalogue| largest_allowed(claim, catalogue)).unwrap_or_default();
        }
        used.add(&capacity);
        used.add(&Resources::new().with(NODES, 1));
    }
    used
}

/// Largest amount of each resource among the instance types that a NodeClaim allows.
fn largest_allowed(claim: &NodeClaim, catalogue: &Catalogue) -> Resources {
    let requirements = Requirements::from_specs(&claim.spec.requirements);
    let Some(types) = requirements.get(labels::INSTANCE_TYPE) else { return Resources::new() };
    let allowed =
        catalogue.types().iter().filter(|instance_type| types.allows(&instance_type.name));
    allowed.fold(Resources::new(), |largest, instance_type| largest.larger(&instance_type.capacity))
}
