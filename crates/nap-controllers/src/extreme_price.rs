//! NodePools that can reach a node of an extreme price. One pod with a large request is enough to
//! buy it, so such a pool is told once per generation; `nap lint` warns of the same.

use std::collections::BTreeMap;

use kube::ResourceExt;
use nap_api::requirement::Undefined;
use nap_api::{AKSNodeClass, NodePool, Operator, Requirements, labels, validation};
use nap_engine::{CapacityType, InstanceType};
use nap_units::{Resources, Rounding, UsdPerHour};

use crate::context::Context;

/// Price of a node above which a NodePool is warned of it; the default NodePool stays below.
pub const EXTREME_PRICE: UsdPerHour = UsdPerHour::from_micros(50_000_000);

/// The pool and the class that a finding is about: uid, generation, generation of the class.
type Subject = (Option<String>, Option<i64>, Option<i64>);

/// Findings by the name of the NodePool, so that the catalogue is searched once per generation.
#[derive(Default)]
pub struct PriceFindings(BTreeMap<String, (Subject, Option<String>)>);

impl PriceFindings {
    /// Forgets a NodePool that is gone.
    pub fn forget(&mut self, pool: &str) {
        self.0.remove(pool);
    }
}

/// A warning about a NodePool.
pub struct Warning {
    pub message: String,
    /// Whether this generation of the NodePool was not warned of it yet.
    pub is_new: bool,
}

/// Looks whether a NodePool can reach an extreme price. `None` also if the cloud does not answer.
pub async fn find(context: &Context, pool: &NodePool, class: &AKSNodeClass) -> Option<Warning> {
    let ceiling = context.settings.engine.max_node_price;
    let has_ceiling = ceiling.is_some_and(|price| price <= EXTREME_PRICE);
    if has_ceiling || names_sizes(pool) || !matches!(validation::max_price(pool), Ok(None)) {
        return None;
    }
    let name = pool.name_any();
    let subject = (pool.uid(), pool.metadata.generation, class.metadata.generation);
    let known = context.memory().prices.0.get(&name).cloned();
    if let Some((_, found)) = known.filter(|(of, _)| *of == subject) {
        return found.map(|message| Warning { message, is_new: false });
    }
    let catalogue = context.cloud.instance_types(class).await.ok()?;
    let found = dearest(pool, catalogue.types()).filter(|(price, ..)| *price > EXTREME_PRICE);
    let message = found.map(|(price, size, capacity_type)| {
        let mark = context.cloud.price_estimates().mark(capacity_type);
        format!(
            "the requirements allow nodes of up to {mark}{price}/h (`{size}`); limit the sizes, or set \
             the annotation `{}`",
            labels::MAX_PRICE_PER_NODE_HOUR
        )
    });
    context.memory().prices.0.insert(name, (subject, message.clone()));
    message.map(|message| Warning { message, is_new: true })
}

/// Whether the requirements list sizes: a size that is named is meant.
fn names_sizes(pool: &NodePool) -> bool {
    pool.spec.template.spec.requirements.iter().any(|requirement| {
        [labels::INSTANCE_TYPE, labels::SKU_NAME].contains(&&*requirement.key)
            && requirement.operator == Operator::In
    })
}

/// The highest price that the requirements and the limits allow, with its size and capacity type.
fn dearest<'a>(
    pool: &NodePool,
    types: &'a [InstanceType],
) -> Option<(UsdPerHour, &'a str, CapacityType)> {
    let template = &pool.spec.template;
    let mut wanted = Requirements::from_specs(&template.spec.requirements);
    // Labels that no instance type has are set on the node.
    wanted.extend(&Requirements::from_labels(&template.metadata.labels));
    let mut known = Requirements::new();
    for (key, one) in wanted.iter().filter(|(key, _)| labels::is_well_known(key)) {
        known.set(key, one.clone());
    }
    let limits = pool.spec.limits.iter().flatten().map(|(name, limit)| (name.clone(), limit));
    let limits = Resources::from_quantities(limits, Rounding::Up);
    let within =
        |one: &&InstanceType| limits.iter().all(|(name, limit)| one.capacity.get(name) <= limit);
    let mut found: Option<(UsdPerHour, &str, CapacityType)> = None;
    for one in types.iter().filter(within) {
        for offering in &one.offerings {
            if found.is_some_and(|(price, ..)| offering.price <= price) {
                continue;
            }
            let mut node = one.requirements.clone();
            node.extend(&offering.requirements);
            if node.compatible(&known, Undefined::Deny).is_ok() {
                found = Some((offering.price, one.name.as_str(), offering.capacity_type));
            }
        }
    }
    found
}
