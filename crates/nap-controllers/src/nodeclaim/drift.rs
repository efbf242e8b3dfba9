//! Drift: a NodeClaim no longer matches its NodePool, its node class or the cloud, or has expired
//! gracefully.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use nap_api::nodeclaim::condition::DRIFTED;
use nap_api::requirement::Undefined;
use nap_api::{AKSNodeClass, NodeClaim, NodePool, Requirements, disruption, labels};
use nap_cloud::InstanceDrift;
use nap_engine::{InstanceType, Offering};

use super::expiration::expires_gracefully_at;
use super::{Step, live_claim};
use crate::cluster::pool_of;
use crate::context::{Context, Error};
use crate::hash_migration::HashStamp;

/// Interval at which the cloud is asked for drift.
const CHECK_INTERVAL: Duration = Duration::from_mins(5);
/// Age from which the instance type of a NodeClaim is looked up.
const MIN_AGE: SignedDuration = SignedDuration::from_hours(1);

/// Reason of the `Drifted` condition of an expired NodeClaim.
pub const EXPIRED: &str = "Expired";

/// Reason of the `Drifted` condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Drift {
    /// The template of the NodePool has changed.
    NodePool,
    /// The labels no longer satisfy the requirements of the NodePool.
    Requirements,
    /// The cloud no longer sells the instance type in the zone and at the capacity type.
    InstanceType,
    /// The spec of the node class has changed.
    NodeClass,
    /// The cloud provider reports a difference.
    Instance(InstanceDrift),
    /// It is old enough to expire gracefully.
    Expired,
}

impl Drift {
    /// The reason as the condition has it.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::NodePool => "NodePoolDrifted",
            Self::Requirements => "RequirementsDrifted",
            Self::InstanceType => "InstanceTypeNotFound",
            Self::NodeClass => "NodeClassDrift",
            Self::Instance(drift) => drift.kind.as_str(),
            Self::Expired => EXPIRED,
        }
    }

    /// Message of the condition: what differs, as far as it is known.
    fn message(&self) -> &str {
        match self {
            Self::Instance(drift) => &drift.message,
            other => other.as_str(),
        }
    }
}

/// Sets or clears the `Drifted` condition. A NodeClaim without a NodePool does not drift.
pub async fn detect(context: &Context, name: &str) -> Result<Step, Error> {
    let Some(claim) = live_claim(context, name) else { return Ok(Step::Deleted) };
    let (pool, class) = {
        let index = context.index();
        let pool = pool_of(claim.as_ref()).and_then(|pool| index.pool(pool)).cloned();
        (pool, index.class(&claim.spec.node_class_ref.name).cloned())
    };
    let Some(pool) = pool else { return Ok(Step::Done) };
    let mut drift = drift_of(&claim, &pool, class.as_deref());
    if drift.is_none() && is_old_enough(&claim, context.clock.now()) {
        let catalogues = context.catalogues().await;
        let types = catalogues.of(&pool.name_any()).map(|catalogue| catalogue.types());
        drift = types.filter(|types| !is_sold(&claim, types)).map(|_| Drift::InstanceType);
    }
    if let (None, Some(class)) = (&drift, &class) {
        drift = context.cloud.drift(&claim, class).await?.map(Drift::Instance);
    }
    // Last, as what has changed decides whether drift goes in waves.
    let due = disruption::expires_gracefully(&pool).then(|| expires_gracefully_at(&claim));
    let left = due.flatten().map(|due| due.duration_since(context.clock.now()));
    if drift.is_none() && left.is_some_and(|left| !left.is_positive()) {
        drift = Some(Drift::Expired);
    }
    context
        .edit_claim_status(name, |edit| match &drift {
            Some(drift) => edit.set_true_because(DRIFTED, drift.as_str(), drift.message()),
            None => edit.clear(DRIFTED),
        })
        .await?;
    let left = left.filter(SignedDuration::is_positive);
    let left = left.and_then(|left| Duration::try_from(left).ok()).unwrap_or(CHECK_INTERVAL);
    Ok(Step::DoneUntil(left.min(CHECK_INTERVAL)))
}

/// Whether a NodeClaim is old enough for its instance type to be looked up: a new one was launched
/// from the same list.
fn is_old_enough(claim: &NodeClaim, now: Timestamp) -> bool {
    let created = claim.metadata.creation_timestamp.as_ref();
    created.is_some_and(|created| now.duration_since(created.0) > MIN_AGE)
}

/// Whether an offering of a NodeClaim's instance type exists in its zone and at its capacity type,
/// available or not. An empty list says nothing.
fn is_sold(claim: &NodeClaim, types: &[InstanceType]) -> bool {
    let label = |key: &str| claim.labels().get(key).map_or("", String::as_str);
    let name = label(labels::INSTANCE_TYPE);
    let (zone, capacity_type) = (label(labels::ZONE), label(labels::CAPACITY_TYPE));
    let is_its = |one: &Offering| one.zone == zone && one.capacity_type.as_str() == capacity_type;
    types.is_empty() || types.iter().any(|one| one.name == name && one.offerings.iter().any(is_its))
}

/// Drift of a NodeClaim from its NodePool and node class; `None` if there is none.
pub fn drift_of(claim: &NodeClaim, pool: &NodePool, class: Option<&AKSNodeClass>) -> Option<Drift> {
    let pool_hash = (labels::NODEPOOL_HASH, labels::NODEPOOL_HASH_VERSION);
    if HashStamp::differs(pool_hash, claim, pool) {
        return Some(Drift::NodePool);
    }
    let requirements = Requirements::from_specs(&pool.spec.template.spec.requirements);
    let own = Requirements::from_labels(claim.labels());
    if own.compatible(&requirements, Undefined::Deny).is_err() {
        return Some(Drift::Requirements);
    }
    let class_hash = (labels::AKS_NODE_CLASS_HASH, labels::AKS_NODE_CLASS_HASH_VERSION);
    HashStamp::differs(class_hash, claim, class?).then_some(Drift::NodeClass)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nap_engine::CapacityType;
    use nap_units::{Resources, UsdPerHour};

    use super::*;
    use crate::testing::{at, claim, node_class, pool};
    use serde_json::{Value, json};

    fn hashed(hash: &str, version: &str) -> Value {
        json!({ "metadata": {
            "labels": { "zone": "a" },
            "annotations": {
                labels::NODEPOOL_HASH: hash, labels::NODEPOOL_HASH_VERSION: version,
                labels::AKS_NODE_CLASS_HASH: hash, labels::AKS_NODE_CLASS_HASH_VERSION: version,
            },
        } })
    }

    #[test]
    fn a_changed_template_drifts() {
        let pool = pool("p", hashed("2", "v3"));
        let drift = |object| drift_of(&claim("c", object), &pool, None);
        assert_eq!(drift(hashed("2", "v3")), None);
        assert_eq!(drift(hashed("1", "v3")), Some(Drift::NodePool));
    }

    #[test]
    fn hashes_of_another_version_are_not_compared() {
        let pool = pool("p", hashed("2", "v3"));
        assert_eq!(drift_of(&claim("c", hashed("1", "v2")), &pool, None), None);
        assert_eq!(drift_of(&claim("c", json!({})), &pool, None), None, "no hash at all");
    }

    #[test]
    fn labels_that_miss_the_requirements_drift() {
        let requirements = json!([{ "key": "zone", "operator": "In", "values": ["b"] }]);
        let spec = json!({ "template": { "spec": { "requirements": requirements } } });
        let pool = pool("p", json!({ "spec": spec }));
        let drift = drift_of(&claim("c", hashed("1", "v3")), &pool, None);
        assert_eq!(drift, Some(Drift::Requirements));
    }

    #[test]
    fn a_changed_node_class_drifts() {
        let (pool, class) = (pool("p", json!({})), node_class("d", hashed("2", "v3")));
        let drift = |object| drift_of(&claim("c", object), &pool, Some(&class));
        assert_eq!(drift(hashed("2", "v3")), None);
        assert_eq!(drift(hashed("1", "v3")), Some(Drift::NodeClass));
    }

    #[test]
    fn an_instance_type_that_is_no_longer_sold_drifts() {
        let labels = json!({
            labels::INSTANCE_TYPE: "D2", labels::ZONE: "z-1", labels::CAPACITY_TYPE: "spot",
        });
        let claim = claim("c", json!({ "metadata": { "labels": labels } }));
        let sold = |name: &str, zone: &str| InstanceType {
            name: name.to_owned(),
            requirements: Requirements::new(),
            capacity: Resources::new(),
            allocatable: Resources::new(),
            offerings: vec![Offering {
                zone: zone.to_owned(),
                capacity_type: CapacityType::Spot,
                price: UsdPerHour::ZERO,
                available: false,
                requirements: Arc::new(Requirements::new()),
            }],
            closed: false,
        };
        assert!(is_sold(&claim, &[sold("D4", "z-1"), sold("D2", "z-1")]));
        assert!(!is_sold(&claim, &[sold("D4", "z-1"), sold("D2", "z-2")]));
        assert!(is_sold(&claim, &[]), "the list could not be read");
    }

    #[test]
    fn the_instance_type_of_a_young_nodeclaim_is_not_looked_up() {
        let created = json!({ "creationTimestamp": "1970-01-01T00:00:00Z" });
        let claim = claim("c", json!({ "metadata": created }));
        assert!(!is_old_enough(&claim, at(3600)) && is_old_enough(&claim, at(3601)));
    }
}
