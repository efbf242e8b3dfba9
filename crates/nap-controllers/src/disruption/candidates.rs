//! Disruption candidates, and what blocks the others.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use nap_api::nodeclaim::condition::{CONSOLIDATABLE, DRIFTED, INITIALIZED};
use nap_api::{NodeClaim, NodePool, Requirements, labels};
use nap_engine::{CapacityType, InstanceType, PriceEstimates};
use nap_units::UsdPerHour;

use super::blockers::{Blocked, Blocker, blocker};
use crate::cluster::pods;
use crate::cluster::{Index, NodeKey, Pod, claim_is};
use crate::decision_memory::DecisionMemory;
use crate::snapshot::{Catalogues, planned_pods};

/// A node that may be disrupted.
#[derive(Clone)]
pub struct Candidate {
    /// Its NodeClaim.
    pub claim: Arc<NodeClaim>,
    /// Its Node.
    pub node: Arc<Node>,
    /// Its NodePool.
    pub pool: Arc<NodePool>,
    /// Pods that would have to move.
    pub pods: Vec<Arc<Pod>>,
    /// Its price; `None` if its offering is no longer known.
    pub price: Option<UsdPerHour>,
    /// Its capacity type; `None` if its label is missing or unknown.
    pub capacity_type: Option<CapacityType>,
    /// Time since which it is to be repaired; `None` if it is healthy.
    pub repair_due: Option<Timestamp>,
    /// What blocks its graceful disruption; its grace period waives that for drift and repair.
    blocker: Option<Blocker>,
    name: String,
}

impl Candidate {
    /// A candidate with the pods that are bound to it now.
    pub fn new(
        index: &Index,
        (claim, node, pool): (&Arc<NodeClaim>, &Arc<Node>, &Arc<NodePool>),
        catalogues: &Catalogues,
        blocker: Option<Blocker>,
    ) -> Self {
        let name = node.name_any();
        let bound = index.pods_on(&name).filter(|pod| pods::is_reschedulable(pod));
        let catalogue = catalogues.of(&pool.name_any()).map(|types| types.types());
        Self {
            claim: Arc::clone(claim),
            node: Arc::clone(node),
            pool: Arc::clone(pool),
            pods: bound.cloned().collect(),
            price: price(claim, catalogue.unwrap_or_default()),
            capacity_type: capacity_type(claim),
            repair_due: None,
            blocker,
            name,
        }
    }

    /// Whether its disruption uses up budgets, which count initialized nodes only.
    pub fn uses_budget(&self) -> bool {
        claim_is(&self.claim, INITIALIZED)
    }

    /// Name of the Node.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Name of the NodeClaim.
    pub fn claim_name(&self) -> String {
        self.claim.name_any()
    }

    /// The candidate as a node that may not be disrupted after all.
    pub fn blocked_by(&self, blocker: Blocker) -> Blocked {
        (Arc::clone(&self.claim), Arc::clone(&self.node), blocker)
    }

    /// Name of the NodePool.
    pub fn pool_name(&self) -> String {
        self.pool.name_any()
    }

    /// Whether it may be disrupted for a reason that could as well wait: nothing blocks it.
    pub fn is_graceful(&self) -> bool {
        self.blocker.is_none()
    }

    /// Key of its view in the index.
    pub fn key(&self) -> NodeKey {
        NodeKey::NodeClaim(self.claim.name_any())
    }
}

/// Candidates, the most expensive first, and the nodes that would be candidates but for a blocker.
/// Nodes that pods were planned onto or nominated to are neither.
pub fn collect(
    index: &Index,
    memory: &DecisionMemory,
    catalogues: &Catalogues,
    now: Timestamp,
) -> (Vec<Candidate>, Vec<Blocked>) {
    let targets: BTreeSet<String> = planned_pods(index, now).into_values().collect();
    let mut candidates = Vec::new();
    let mut blocked = Vec::new();
    for view in index.views().filter(|view| view.is_initialized() && !view.is_leaving()) {
        let (Some(claim), Some(node)) = (&view.claim, &view.node) else { continue };
        let Some(pool) = view.pool().and_then(|pool| index.pool(pool)) else { continue };
        if memory.is_nominated(&view.key(), now)
            || targets.contains(&claim.name_any())
            || pool.spec.replicas.is_some()
            || !(claim_is(claim, CONSOLIDATABLE) || claim_is(claim, DRIFTED))
        {
            continue;
        }
        let blocker = blocker(index, claim, node, now);
        if let Some(blocker) = blocker.as_ref().filter(|one| !is_waived(one, claim)) {
            blocked.push((Arc::clone(claim), Arc::clone(node), blocker.clone()));
            continue;
        }
        candidates.push(Candidate::new(index, (claim, node, pool), catalogues, blocker));
    }
    candidates.sort_by(|a, b| (b.price, a.name()).cmp(&(a.price, b.name())));
    (candidates, blocked)
}

/// Whether a drifted NodeClaim may be disrupted in spite of a blocker: its drain ends by force.
pub fn is_waived(blocker: &Blocker, claim: &NodeClaim) -> bool {
    blocker.is_waivable()
        && claim.spec.termination_grace_period.is_some()
        && claim_is(claim, DRIFTED)
}

pub fn capacity_type(claim: &NodeClaim) -> Option<CapacityType> {
    claim.labels().get(labels::CAPACITY_TYPE).and_then(|value| CapacityType::parse(value))
}

/// `~` if the price of a node, or of one that its NodePool could have instead, is an estimate.
pub fn price_mark(
    index: &Index,
    pool: &str,
    capacity_type: Option<CapacityType>,
    estimates: PriceEstimates,
) -> &'static str {
    let allows_spot = index.pool(pool).is_some_and(|pool| {
        let requirements = Requirements::from_specs(&pool.spec.template.spec.requirements);
        let allowed = requirements.get(labels::CAPACITY_TYPE);
        allowed.is_none_or(|allowed| allowed.allows(CapacityType::Spot.as_str()))
    });
    estimates.mark_sum(capacity_type.into_iter().chain(allows_spot.then_some(CapacityType::Spot)))
}

/// Price of the offering that a NodeClaim was launched with; `None` if the catalogue does not have
/// it.
pub fn price(claim: &NodeClaim, catalogue: &[InstanceType]) -> Option<UsdPerHour> {
    let (name, zone) =
        (claim.labels().get(labels::INSTANCE_TYPE)?, claim.labels().get(labels::ZONE)?);
    let capacity_type = capacity_type(claim)?;
    let instance_type = catalogue.iter().find(|one| one.name == *name)?;
    let mut offerings = instance_type.offerings.iter();
    let offering = offerings.find(|one| one.zone == *zone && one.capacity_type == capacity_type)?;
    Some(offering.price)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{
        at, candidates_of, cluster_of, pending_pod, placement, pod, pool, set_condition,
    };
    use nap_engine::{Plan, PodKey};
    use serde_json::json;

    fn names(index: &Index, memory: &DecisionMemory) -> Vec<String> {
        let (candidates, _) = collect(index, memory, &Catalogues::default(), at(0));
        candidates.iter().map(|candidate| candidate.name().to_owned()).collect()
    }

    fn web() -> PodKey {
        PodKey::new("shop", "web")
    }

    #[test]
    fn quiet_initialized_nodes_of_a_pool_are_candidates() {
        assert_eq!(names(&cluster_of(2), &DecisionMemory::default()), ["node-0", "node-1"]);
    }

    #[test]
    fn a_node_in_a_command_is_no_candidate() {
        let mut index = cluster_of(2);
        set_condition(&mut index, "claim-0", "DisruptionReason", "1970-01-01T00:00:00Z");
        assert_eq!(names(&index, &DecisionMemory::default()), ["node-1"]);
    }

    #[test]
    fn a_node_without_its_pool_is_no_candidate() {
        let mut index = cluster_of(2);
        index.delete::<NodePool>("p");
        assert!(candidates_of(&index).is_empty());
    }

    #[test]
    fn nodes_of_a_static_pool_are_no_candidates() {
        let mut index = cluster_of(2);
        index.apply(pool("p", json!({ "spec": { "replicas": 2 } })), at(0));
        assert!(candidates_of(&index).is_empty());
    }

    #[test]
    fn a_node_that_pods_were_placed_on_is_no_candidate_for_twenty_seconds() {
        let index = cluster_of(2);
        let mut memory = DecisionMemory::default();
        let plan = Plan { placements: vec![placement(&web(), "node-0")], ..Plan::default() };
        memory.nominate(&index, &plan, at(-10));
        assert_eq!(names(&index, &memory), ["node-1"]);
        memory.nominate(&index, &plan, at(-20));
        assert_eq!(names(&index, &memory), ["node-0", "node-1"]);
    }

    #[test]
    fn a_node_that_pods_were_planned_onto_is_no_candidate_while_the_plan_holds() {
        let mut index = cluster_of(2);
        let mut claim = index.claim("claim-0").unwrap().as_ref().clone();
        let plan = r#"{"version":1,"pods":["shop/web"]}"#;
        claim.annotations_mut().insert(labels::PLAN.to_owned(), plan.to_owned());
        index.apply(claim, at(0));
        index.apply(pending_pod("shop", "web"), at(0));
        assert_eq!(names(&index, &DecisionMemory::default()), ["node-1"]);
    }

    /// A drifted node with a protected pod, whose NodeClaim has this `terminationGracePeriod`.
    fn with_protected_pod(grace: Option<&str>) -> Index {
        let mut index = cluster_of(1);
        let mut claim = index.claim("claim-0").unwrap().as_ref().clone();
        claim.spec.termination_grace_period = grace.map(str::to_owned);
        index.apply(claim, at(0));
        set_condition(&mut index, "claim-0", "Drifted", "1970-01-01T00:00:00Z");
        let annotations = json!({ labels::DO_NOT_DISRUPT: "true" });
        let object = json!({
            "metadata": { "annotations": annotations }, "spec": { "nodeName": "node-0" },
        });
        index.apply(pod("shop", "web", object), at(0));
        index
    }

    #[test]
    fn a_grace_period_waives_blocking_pods_for_drift_alone() {
        let collect = |index: &Index| {
            collect(index, &DecisionMemory::default(), &Catalogues::default(), at(0))
        };
        let (candidates, blocked) = collect(&with_protected_pod(None));
        assert_eq!((candidates.len(), blocked.len()), (0, 1));
        let (candidates, blocked) = collect(&with_protected_pod(Some("1h")));
        assert_eq!((candidates.len(), blocked.len()), (1, 0));
        assert!(!candidates[0].is_graceful());
    }

    #[test]
    fn a_grace_period_does_not_waive_the_annotation_of_a_node() {
        let mut index = with_protected_pod(Some("1h"));
        let mut node = index.node("node-0").unwrap().as_ref().clone();
        node.annotations_mut().insert(labels::DO_NOT_DISRUPT.to_owned(), "true".to_owned());
        index.apply(node, at(0));
        assert!(candidates_of(&index).is_empty());
    }

    #[test]
    fn daemon_pods_do_not_move() {
        let owner =
            json!([{ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u" }]);
        let mut index = cluster_of(1);
        let object = json!({
            "metadata": { "ownerReferences": owner }, "spec": { "nodeName": "node-0" },
        });
        index.apply(pod("shop", "web", object), at(0));
        assert!(candidates_of(&index)[0].pods.is_empty());
    }
}
