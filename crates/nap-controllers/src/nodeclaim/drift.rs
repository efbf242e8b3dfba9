//! Drift: a NodeClaim no longer matches its NodePool, its node class or the cloud.

use std::time::Duration;

use kube::ResourceExt;
use nap_api::nodeclaim::condition::DRIFTED;
use nap_api::requirement::Undefined;
use nap_api::{AKSNodeClass, NodeClaim, NodePool, Requirements, labels};
use nap_cloud::InstanceDrift;

use super::{Step, live_claim};
use crate::cluster::pool_of;
use crate::context::{Context, Error};
use crate::hash_migration::HashStamp;

/// Interval at which the cloud is asked for drift.
const CHECK_INTERVAL: Duration = Duration::from_mins(5);

/// Reason of the `Drifted` condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drift {
    /// The template of the NodePool has changed.
    NodePool,
    /// The labels no longer satisfy the requirements of the NodePool.
    Requirements,
    /// The spec of the node class has changed.
    NodeClass,
    /// The cloud provider reports a difference.
    Instance(InstanceDrift),
}

impl Drift {
    fn as_str(self) -> &'static str {
        match self {
            Self::NodePool => "NodePoolDrifted",
            Self::Requirements => "RequirementsDrifted",
            Self::NodeClass => "NodeClassDrift",
            Self::Instance(drift) => drift.as_str(),
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
    if let (None, Some(class)) = (drift, &class) {
        drift = context.cloud.drift(&claim, class).await?.map(Drift::Instance);
    }
    context
        .edit_claim_status(name, |edit| match drift {
            Some(drift) => edit.set_true_because(DRIFTED, drift.as_str()),
            None => edit.clear(DRIFTED),
        })
        .await?;
    Ok(Step::DoneUntil(CHECK_INTERVAL))
}

/// Drift of a NodeClaim from its NodePool and node class; `None` if there is none.
fn drift_of(claim: &NodeClaim, pool: &NodePool, class: Option<&AKSNodeClass>) -> Option<Drift> {
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
    use super::*;
    use crate::testing::{claim, node_class, pool};
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
}
