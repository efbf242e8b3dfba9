//! The `NodeRegistrationHealthy` condition of NodePools: whether their last NodeClaims were
//! launched and registered. It informs, and blocks nothing.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use nap_api::nodeclaim::condition::LAUNCHED;
use nap_api::nodepool::{NODE_REGISTRATION_HEALTHY, NodePoolStatus};
use nap_api::{AKSNodeClass, NodeClaim, NodePool, conditions};

use crate::cluster::{claim_conditions, claim_is, pool_of};
use crate::context::{Context, Error};

/// Number of outcomes that are remembered per NodePool.
const OUTCOMES: usize = 4;
/// Number of failures among them that make a NodePool unhealthy.
const UNHEALTHY: usize = 2;

/// The last outcomes of each NodePool, by its name. A restart begins with what the condition says.
#[derive(Debug, Default)]
pub struct RegistrationHealth(BTreeMap<String, Outcomes>);

/// The last outcomes of the NodePool with this uid.
#[derive(Debug)]
struct Outcomes {
    uid: Option<String>,
    last: VecDeque<bool>,
}

impl RegistrationHealth {
    /// Adds an outcome. Returns whether the NodePool is healthy with it.
    fn record(&mut self, pool: &NodePool, outcome: bool) -> bool {
        let seeded = || match condition(pool).map(|condition| condition.status.as_str()) {
            Some("True") => VecDeque::from([true]),
            Some("False") => VecDeque::from([false; UNHEALTHY]),
            _ => VecDeque::new(),
        };
        let fresh = || Outcomes { uid: pool.uid(), last: seeded() };
        let outcomes = self.0.entry(pool.name_any()).or_insert_with(fresh);
        if outcomes.uid != pool.uid() {
            *outcomes = fresh();
        }
        outcomes.last.push_back(outcome);
        if outcomes.last.len() > OUTCOMES {
            outcomes.last.pop_front();
        }
        outcomes.last.iter().filter(|outcome| !**outcome).count() < UNHEALTHY
    }

    /// Forgets the outcomes of a NodePool.
    pub fn reset(&mut self, pool: &str) {
        self.0.remove(pool);
    }
}

fn condition(pool: &NodePool) -> Option<&Condition> {
    conditions::get(&pool.status.as_ref()?.conditions, NODE_REGISTRATION_HEALTHY)
}

/// Whether the condition of a NodePool is missing or about another spec of it or of its node class.
pub fn is_outdated(
    pool: &NodePool,
    status: Option<&NodePoolStatus>,
    class: Option<&AKSNodeClass>,
) -> bool {
    let Some(status) = status else { return true };
    let known = conditions::get(&status.conditions, NODE_REGISTRATION_HEALTHY);
    let observed = known.and_then(|condition| condition.observed_generation);
    let class = class.and_then(|class| class.metadata.generation);
    known.is_none()
        || observed != pool.metadata.generation
        || (class.is_some() && status.node_class_observed_generation != class)
}

/// Records that a NodeClaim was registered.
pub async fn succeeded(context: &Context, claim: &NodeClaim) -> Result<(), Error> {
    let Some(pool) = owner(context, claim) else { return Ok(()) };
    let healthy = context.memory().registrations.record(&pool, true);
    if healthy {
        write(context, &pool, conditions::Status::True, NODE_REGISTRATION_HEALTHY, "").await?;
    }
    Ok(())
}

/// Records that a NodeClaim was not launched or registered in time.
pub async fn failed(context: &Context, claim: &NodeClaim) -> Result<(), Error> {
    let Some(pool) = owner(context, claim) else { return Ok(()) };
    let healthy = context.memory().registrations.record(&pool, false);
    let is_known = condition(&pool).is_some_and(|condition| condition.status == "False");
    if healthy || is_known {
        return Ok(());
    }
    let launched = conditions::get(claim_conditions(claim), LAUNCHED);
    let (reason, message) = match launched {
        Some(launched) if !claim_is(claim, LAUNCHED) => {
            (launched.reason.as_str(), launched.message.as_str())
        }
        _ => ("RegistrationFailed", "Failed to register node"),
    };
    write(context, &pool, conditions::Status::False, reason, message).await
}

/// The NodePool of a NodeClaim; `None` if it has none, or if the pool was created anew.
fn owner(context: &Context, claim: &NodeClaim) -> Option<Arc<NodePool>> {
    let pool = context.index().pool(pool_of(claim)?).cloned()?;
    let uid = pool.uid();
    let owns = claim.owner_references().iter().any(|owner| Some(&owner.uid) == uid.as_ref());
    owns.then_some(pool)
}

async fn write(
    context: &Context,
    pool: &NodePool,
    value: conditions::Status,
    reason: &str,
    message: &str,
) -> Result<(), Error> {
    let (now, uid) = (context.clock.now(), pool.uid());
    context
        .update_status::<NodePool>(&pool.name_any(), |pool| {
            let generation = pool.metadata.generation;
            let same = pool.uid() == uid;
            let list = &mut pool.status.get_or_insert_default().conditions;
            let type_ = NODE_REGISTRATION_HEALTHY;
            same && conditions::set(list, type_, value, reason, message, generation, now)
        })
        .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{condition as wire, pool};
    use serde_json::json;

    #[test]
    fn two_failures_among_the_last_four_outcomes_are_unhealthy() {
        let pool = pool("p", json!({ "metadata": { "uid": "u" } }));
        let mut health = RegistrationHealth::default();
        let mut outcomes = Vec::new();
        for outcome in [false, true, false, true, true, true, true] {
            outcomes.push(health.record(&pool, outcome));
        }
        assert_eq!(outcomes, [true, true, false, false, true, true, true]);
        health.record(&pool, false);
        health.reset("p");
        assert!(health.record(&pool, false), "the failure before was forgotten");
    }

    #[test]
    fn a_restart_begins_with_what_the_condition_says() {
        let with = |status: &str| {
            let conditions = [wire(NODE_REGISTRATION_HEALTHY, status)];
            pool("p", json!({ "status": { "conditions": conditions } }))
        };
        assert!(RegistrationHealth::default().record(&with("True"), false));
        assert!(!RegistrationHealth::default().record(&with("False"), true));
        assert!(RegistrationHealth::default().record(&with("Unknown"), false));
    }

    #[test]
    fn a_changed_pool_or_class_makes_the_condition_outdated() {
        let mut condition = wire(NODE_REGISTRATION_HEALTHY, "True");
        condition["observedGeneration"] = json!(3);
        let status = json!({ "conditions": [condition], "nodeClassObservedGeneration": 2 });
        let pool = |generation: i64| {
            pool("p", json!({ "metadata": { "generation": generation }, "status": status }))
        };
        let class = |generation: i64| {
            crate::testing::node_class("c", json!({ "metadata": { "generation": generation } }))
        };
        let outdated = |pool: &NodePool, class: &AKSNodeClass| {
            is_outdated(pool, pool.status.as_ref(), Some(class))
        };
        assert!(!outdated(&pool(3), &class(2)));
        assert!(outdated(&pool(4), &class(2)));
        assert!(outdated(&pool(3), &class(3)));
        assert!(is_outdated(&pool(3), None, None));
    }
}
