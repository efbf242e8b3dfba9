//! NodePools of a snapshot: requirements, taints and headroom under limits.

use kube::ResourceExt;
use nap_api::{NodeClaim, NodePool, Requirement, Requirements, conditions, labels, validation};
use nap_engine::{Catalogue, NODES, Pool};
use nap_units::{Resources, Rounding};

use super::Catalogues;
use super::nodes::quantities;
use crate::cluster::{Index, NodeView};

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
        headroom: LimitUsage::of(index, pool, catalogue).headroom(),
        catalogue: catalogues.of_pools.get(&name)?.clone(),
        // A malformed ceiling has made the pool not ready.
        max_price: validation::max_price(pool).ok().flatten(),
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

/// Limits of a NodePool and the capacity that counts against them.
///
/// A node that is leaving gives its share back at once, so that its replacement fits a pool at its
/// limit. The pool exceeds the limit for as long as both exist, and launches nothing more
/// meanwhile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LimitUsage {
    /// Empty without limits.
    limits: Resources,
    /// Capacity of the nodes that stay.
    staying: Resources,
    /// Capacity of all nodes.
    total: Resources,
}

impl LimitUsage {
    pub(super) fn of(index: &Index, pool: &NodePool, catalogue: &Catalogue) -> Self {
        let limits = pool.spec.limits.iter().flatten();
        let limits = Resources::from_quantities(
            limits.map(|(name, quantity)| (name.as_str(), quantity)),
            Rounding::Down,
        );
        if limits.is_empty() {
            return Self::default();
        }
        let mut usage = Self { limits, ..Self::default() };
        let name = pool.name_any();
        let decided = index.decided().map(|decided| &decided.view);
        let decided = decided.filter(|view| view.pool() == Some(name.as_str()));
        for view in index.views_of_pool(&name).chain(decided) {
            let Some(claim) = &view.claim else { continue };
            let capacity = claim_capacity(claim, Some(catalogue));
            usage.total.add(&capacity);
            if !NodeView::is_leaving(view) {
                usage.staying.add(&capacity);
            }
        }
        usage
    }

    /// Capacity that may be launched now; empty without limits.
    pub(super) fn headroom(&self) -> Resources {
        let mut headroom = self.limits.clone();
        for (name, limit) in self.limits.iter() {
            let exceeded = self.total.get(name) > limit;
            let left = if exceeded { 0 } else { limit.saturating_sub(self.staying.get(name)) };
            headroom.set(name, left);
        }
        headroom
    }

    /// Counts a launch.
    pub(super) fn add(&mut self, capacity: &Resources) {
        let capacity = one_node(capacity);
        self.staying.add(&capacity);
        self.total.add(&capacity);
    }

    /// Counts a node as leaving, given what [`claim_capacity`] says of it.
    pub(super) fn leave(&mut self, capacity: &Resources) {
        self.staying.subtract(capacity);
    }
}

/// Capacity of all NodeClaims of a NodePool, and their number as `nodes`.
pub fn pool_usage(index: &Index, pool: &str) -> Resources {
    let mut used = Resources::new().with(NODES, 0);
    for claim in index.claims_of_pool(pool) {
        used.add(&claim_capacity(claim, None));
    }
    used
}

/// Capacity of a NodeClaim, with one `nodes`. With a catalogue, a NodeClaim that is not launched
/// counts as the largest instance type that it allows.
pub(super) fn claim_capacity(claim: &NodeClaim, catalogue: Option<&Catalogue>) -> Resources {
    let status = claim.status.as_ref();
    let mut capacity = status.map(|status| quantities(&status.capacity)).unwrap_or_default();
    if capacity.is_empty() {
        capacity = catalogue.map(|catalogue| largest_allowed(claim, catalogue)).unwrap_or_default();
    }
    one_node(&capacity)
}

fn one_node(capacity: &Resources) -> Resources {
    capacity.clone().with(NODES, 1)
}

/// Largest amount of each resource among the instance types that a NodeClaim allows.
fn largest_allowed(claim: &NodeClaim, catalogue: &Catalogue) -> Resources {
    let requirements = Requirements::from_specs(&claim.spec.requirements);
    let Some(types) = requirements.get(labels::INSTANCE_TYPE) else { return Resources::new() };
    let allowed =
        catalogue.types().iter().filter(|instance_type| types.allows(&instance_type.name));
    allowed.fold(Resources::new(), |largest, instance_type| largest.larger(&instance_type.capacity))
}
