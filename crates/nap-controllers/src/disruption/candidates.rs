//! Disruption candidates, and what blocks the others.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use nap_api::nodeclaim::condition::{CONSOLIDATABLE, DRIFTED};
use nap_api::{NodeClaim, NodePool, labels};
use nap_engine::{CapacityType, InstanceType, PodKey};
use nap_units::UsdPerHour;

use crate::cluster::pods;
use crate::cluster::{Index, NodeKey, claim_is, key_of};
use crate::context::Context;
use crate::decision_memory::DecisionMemory;
use crate::events::Severity;
use crate::snapshot::{Catalogues, planned_pods};

/// A node that may be disrupted.
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
    name: String,
}

impl Candidate {
    /// Name of the Node.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Name of the NodePool.
    pub fn pool_name(&self) -> String {
        self.pool.name_any()
    }

    /// Key of its view in the index.
    pub fn key(&self) -> NodeKey {
        NodeKey::NodeClaim(self.claim.name_any())
    }
}

/// Reason why a node may not be disrupted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blocker {
    /// The Node or the NodeClaim is annotated `karpenter.sh/do-not-disrupt`.
    Node,
    /// A pod is annotated so.
    Pod(PodKey),
    /// The PodDisruptionBudget of a pod allows no eviction now.
    Budget(PodKey, String),
    /// Several PodDisruptionBudgets cover a pod, which the eviction API refuses.
    Budgets(PodKey),
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let annotation = labels::DO_NOT_DISRUPT;
        match self {
            Self::Node => {
                write!(f, "Disruption is blocked through the \"{annotation}\" annotation")
            }
            Self::Pod(pod) => write!(f, "Pod has \"{annotation}\" annotation (Pod={pod})"),
            Self::Budget(pod, budget) => {
                write!(f, "Pdb prevents pod evictions (PodDisruptionBudget={budget}, Pod={pod})")
            }
            Self::Budgets(pod) => {
                write!(f, "Pod is covered by more than one PodDisruptionBudget (Pod={pod})")
            }
        }
    }
}

/// A node and what blocks its disruption.
pub type Blocked = (Arc<NodeClaim>, Arc<Node>, Blocker);

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
        let name = node.name_any();
        let bound = index.pods_on(&name);
        if let Some(blocker) = blocker(index, claim, node, &bound, now) {
            blocked.push((Arc::clone(claim), Arc::clone(node), blocker));
            continue;
        }
        let catalogue = catalogues.of(&pool.name_any()).map(|types| types.types());
        candidates.push(Candidate {
            claim: Arc::clone(claim),
            node: Arc::clone(node),
            pool: Arc::clone(pool),
            pods: bound.into_iter().filter(|pod| pods::is_reschedulable(pod)).collect(),
            price: price(claim, catalogue.unwrap_or_default()),
            capacity_type: capacity_type(claim),
            name,
        });
    }
    candidates.sort_by(|a, b| (b.price, a.name()).cmp(&(a.price, b.name())));
    (candidates, blocked)
}

/// The first thing that blocks the disruption of a node; `None` if nothing does.
fn blocker(
    index: &Index,
    claim: &NodeClaim,
    node: &Node,
    bound: &[Arc<Pod>],
    now: Timestamp,
) -> Option<Blocker> {
    let is_protected = |annotations: &BTreeMap<String, String>| {
        annotations.get(labels::DO_NOT_DISRUPT).is_some_and(|value| value == "true")
    };
    if is_protected(node.annotations()) || is_protected(claim.annotations()) {
        return Some(Blocker::Node);
    }
    let active = bound.iter().filter(|pod| pods::is_active(pod));
    active.map(|pod| pod_blocker(index, pod, now)).find(Option::is_some).flatten()
}

fn pod_blocker(index: &Index, pod: &Pod, now: Timestamp) -> Option<Blocker> {
    let key = pods::key(pod);
    if pods::is_do_not_disrupt(pod, now) {
        return Some(Blocker::Pod(key));
    }
    if !pods::is_drainable(pod, now) || pods::is_daemon(pod) {
        return None;
    }
    match index.budgets_of(pod).as_slice() {
        [] => None,
        [budget] => {
            let allowed = budget.status.as_ref().map_or(0, |status| status.disruptions_allowed);
            (allowed <= 0).then(|| Blocker::Budget(key, key_of(budget.as_ref())))
        }
        _ => Some(Blocker::Budgets(key)),
    }
}

fn capacity_type(claim: &NodeClaim) -> Option<CapacityType> {
    claim.labels().get(labels::CAPACITY_TYPE).and_then(|value| CapacityType::parse(value))
}

/// Price of the offering that a NodeClaim was launched with; `None` if the catalogue does not have
/// it.
fn price(claim: &NodeClaim, catalogue: &[InstanceType]) -> Option<UsdPerHour> {
    let (name, zone) =
        (claim.labels().get(labels::INSTANCE_TYPE)?, claim.labels().get(labels::ZONE)?);
    let capacity_type = capacity_type(claim)?;
    let instance_type = catalogue.iter().find(|one| one.name == *name)?;
    let mut offerings = instance_type.offerings.iter();
    let offering = offerings.find(|one| one.zone == *zone && one.capacity_type == capacity_type)?;
    Some(offering.price)
}

/// Publishes what blocks disruption.
pub async fn report(context: &Context, blocked: &[Blocked]) {
    let (severity, reason) = (Severity::Normal, "DisruptionBlocked");
    for (claim, node, blocker) in blocked {
        let message = blocker.to_string();
        context.events.publish(node.as_ref(), severity, reason, &message).await;
        context.events.publish(claim.as_ref(), severity, reason, &message).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{
        at, budget, candidates_of, cluster_of, pending_pod, placement, pod, pool, set_condition,
    };
    use k8s_openapi::api::policy::v1::PodDisruptionBudget;
    use nap_engine::Plan;
    use serde_json::{Value, json};

    fn names(index: &Index, memory: &DecisionMemory) -> Vec<String> {
        let (candidates, _) = collect(index, memory, &Catalogues::default(), at(0));
        candidates.iter().map(|candidate| candidate.name().to_owned()).collect()
    }

    fn blocked(index: &Index) -> Vec<Blocker> {
        let memory = DecisionMemory::default();
        let (_, blocked) = collect(index, &memory, &Catalogues::default(), at(0));
        blocked.into_iter().map(|(_, _, blocker)| blocker).collect()
    }

    fn with_pod(metadata: &Value) -> Index {
        let mut index = cluster_of(1);
        let object = json!({ "metadata": metadata, "spec": { "nodeName": "node-0" } });
        index.apply(pod("shop", "web", object), at(0));
        index
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

    #[test]
    fn an_annotated_node_is_blocked() {
        let mut index = cluster_of(1);
        let mut node = index.node("node-0").unwrap().as_ref().clone();
        node.annotations_mut().insert(labels::DO_NOT_DISRUPT.to_owned(), "true".to_owned());
        index.apply(node, at(0));
        assert_eq!(blocked(&index), [Blocker::Node]);
    }

    #[test]
    fn an_annotated_pod_blocks_its_node() {
        let index = with_pod(&json!({ "annotations": { labels::DO_NOT_DISRUPT: "true" } }));
        assert_eq!(blocked(&index), [Blocker::Pod(web())]);
    }

    #[test]
    fn a_disruption_budget_without_allowance_blocks() {
        let mut index = with_pod(&json!({ "labels": { "app": "web" } }));
        index.apply(budget("shop", "pdb", "web", 0), at(0));
        assert_eq!(blocked(&index), [Blocker::Budget(web(), "shop/pdb".to_owned())]);
        index.apply(budget("shop", "pdb", "web", 1), at(1));
        assert!(blocked(&index).is_empty());
    }

    #[test]
    fn a_budget_of_another_namespace_or_app_does_not_block() {
        let mut index = with_pod(&json!({ "labels": { "app": "web" } }));
        index.apply(budget("other", "pdb", "web", 0), at(0));
        index.apply(budget("shop", "pdb", "db", 0), at(0));
        assert!(blocked(&index).is_empty());
    }

    #[test]
    fn two_budgets_over_one_pod_block_until_one_is_deleted() {
        let mut index = with_pod(&json!({ "labels": { "app": "web" } }));
        index.apply(budget("shop", "a", "web", 1), at(0));
        index.apply(budget("shop", "b", "web", 1), at(0));
        assert_eq!(blocked(&index), [Blocker::Budgets(web())]);
        index.delete::<PodDisruptionBudget>("shop/b");
        assert!(blocked(&index).is_empty());
    }

    #[test]
    fn daemon_pods_do_not_block_by_their_budget() {
        let owner =
            json!([{ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u" }]);
        let mut index = with_pod(&json!({ "labels": { "app": "web" }, "ownerReferences": owner }));
        index.apply(budget("shop", "pdb", "web", 0), at(0));
        assert!(blocked(&index).is_empty());
        assert!(candidates_of(&index)[0].pods.is_empty(), "daemon pods do not move");
    }
}
