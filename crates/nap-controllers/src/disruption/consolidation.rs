//! Consolidation: the candidates as the engine's fleet, and its decision as commands.
//!
//! The engine decides about all candidates at once ([`nap_engine::consolidate`]). What it needs to
//! know besides the cluster is here: the rules of each NodePool, what a disruption costs, and for
//! how long a node would go on costing its price.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use nap_api::nodeclaim::condition::CONSOLIDATABLE;
use nap_api::nodepool::{ConsolidationPolicy, DisruptionReason};
use nap_api::{NodeClaim, NodePool, labels};
use nap_engine::{Fleet, PoolRules};
use nap_units::PODS;

use super::blockers::Blocker;
use super::budgets::Budgets;
use super::candidates::{Candidate, price};
use crate::cluster::{Index, NodeView, Pod, claim_is, pods};
use crate::node::taint;
use crate::snapshot::{Catalogues, Removals};

/// Shortest and longest time for which a node is expected to go on as it is. Between them it is
/// expected to last for as long again as it has lasted: what is old changes rarely.
const REMAINING_LIFE: (SignedDuration, SignedDuration) =
    (SignedDuration::from_mins(15), SignedDuration::from_hours(4));

/// Smallest saving of a replacement, in percent, in a NodePool that has grown a short while ago:
/// the room that a smaller node would save is likely to be needed again. One size down saves half.
const MIN_SAVING_WHILE_GROWING: i64 = 60;

/// Annotation of pods: Karpenter's cost of a disruption.
const DISRUPTION_COST: &str = "karpenter.sh/disruption-cost";
/// Annotation of pods: the cost of deleting one of a ReplicaSet.
const POD_DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// Disruption cost of a node and of an ordinary pod, in thousandths.
const UNIT: i64 = 1000;
/// Bounds on the eviction cost of a pod, in thousandths.
const MAX_EVICTION_COST: i64 = 10 * UNIT;

/// What the `Balanced` policy compares with: cost and disruption cost of all nodes of a NodePool.
pub type Totals = BTreeMap<String, PoolRules>;

/// Whether the NodePool consolidates nodes with pods, and the node has been quiet for long enough.
pub fn is_underutilizable(candidate: &Candidate) -> bool {
    candidate.pool.spec.disruption.consolidation_policy != ConsolidationPolicy::WhenEmpty
        && is_examined(candidate)
}

/// Pods that consolidation does not move, although a disruption that must happen does: those that
/// would not come back, and those of Jobs that end before a move pays back.
pub fn unmoved<'p>(
    pods: impl Iterator<Item = &'p Pod> + 'p,
    now: Timestamp,
) -> impl Iterator<Item = Blocker> + 'p {
    let soon = now.checked_add(REMAINING_LIFE.0).unwrap_or(Timestamp::MAX);
    pods.filter_map(move |pod| {
        if pods::is_bare(pod) {
            return Some(Blocker::Bare(pod.key().clone()));
        }
        let end = pods::deadline(pod).filter(|_| pods::is_of_job(pod))?;
        (end <= soon).then(|| Blocker::Ending(pod.key().clone(), end))
    })
}

/// Whether consolidation looks at the node, if only to find out that the fleet could do without it.
pub fn is_examined(candidate: &Candidate) -> bool {
    !candidate.pods.is_empty()
        && candidate.is_graceful()
        && candidate.price.is_some()
        && claim_is(&candidate.claim, CONSOLIDATABLE)
}

/// The totals of every NodePool with the `Balanced` policy.
pub fn totals(index: &Index, catalogues: &Catalogues) -> Totals {
    let mut totals = Totals::new();
    for (name, _) in index.pools().filter(|(_, pool)| is_balanced(pool)) {
        let rules = totals.entry(name.clone()).or_default();
        let types = catalogues.of(name).map(|types| types.types()).unwrap_or_default();
        for view in index.views_of_pool(name) {
            let Some(claim) = &view.claim else { continue };
            rules.cost += price(claim, types).unwrap_or_default();
            let node = view.node.as_ref().map(|node| node.name_any()).unwrap_or_default();
            let movable = index.pods_on(&node).filter(|pod| pods::is_reschedulable(pod));
            rules.disruption_cost += disruption_cost(movable.map(AsRef::as_ref));
        }
    }
    totals
}

/// Nodes that take no pods of others because they are within the `consolidateAfter` of their
/// NodePool: pods came or went a short while ago, and more may.
pub fn settling(index: &Index) -> BTreeSet<String> {
    let is_settling = |view: &&NodeView| {
        let pool = view.pool().and_then(|pool| index.pool(pool));
        let after = pool.and_then(|pool| pool.spec.disruption.consolidate_after.get());
        after.is_some_and(|after| !after.is_zero())
            && view.claim.as_ref().is_some_and(|claim| !claim_is(claim, CONSOLIDATABLE))
    };
    index.views().filter(is_settling).map(NodeView::name).collect()
}

/// What the engine has to know besides the cluster.
pub struct Memory<'p> {
    /// Totals of NodePools with the `Balanced` policy.
    pub totals: &'p Totals,
    /// Nodes that take no pods of others.
    pub settling: &'p BTreeSet<String>,
    /// Nodes that no step may remove.
    pub held: &'p BTreeSet<String>,
    /// NodePools that have grown a short while ago.
    pub growing: &'p BTreeSet<String>,
    /// Whether spot nodes may be replaced by spot nodes, where the NodePool does not say.
    pub spot_to_spot: bool,
}

/// The fleet that the engine decides about.
pub fn fleet(
    candidates: &[Candidate],
    removals: &Removals,
    budgets: &Budgets,
    memory: &Memory<'_>,
    now: Timestamp,
) -> Fleet {
    let Memory { totals, settling, held, growing, spot_to_spot } = memory;
    let mut fleet = removals.fleet(candidates.iter().map(Candidate::name));
    for node in fleet.snapshot.nodes.iter_mut().filter(|node| settling.contains(&node.name)) {
        Arc::make_mut(node).free.set(PODS, 0);
    }
    let by_name: BTreeMap<&str, &Candidate> =
        candidates.iter().map(|one| (one.name(), one)).collect();
    for node in &mut fleet.candidates {
        let Some(candidate) = by_name.get(node.node.as_str()) else { continue };
        let of_claim = candidate.claim.labels();
        node.instance_type = of_claim.get(labels::INSTANCE_TYPE).cloned().unwrap_or_default();
        node.capacity_type = candidate.capacity_type;
        node.price = candidate.price.unwrap_or_default();
        node.disruption_cost = disruption_cost(candidate.pods.iter().map(AsRef::as_ref));
        node.remaining_life = remaining_life(&candidate.claim, now).as_secs();
        if growing.contains(&candidate.pool_name()) {
            node.min_saving_percent = MIN_SAVING_WHILE_GROWING;
        }
        node.is_held = held.contains(candidate.name());
        node.was_surplus = taint::is_surplus(&candidate.node);
    }
    for candidate in candidates {
        let name = candidate.pool_name();
        let budget = budgets.left(&name, DisruptionReason::Underutilized);
        let of_pool = totals.get(&name).cloned().unwrap_or_default();
        let rules = PoolRules {
            budget,
            balanced: is_balanced(&candidate.pool),
            spot_to_spot: allows_spot_to_spot(&candidate.pool, *spot_to_spot),
            ..of_pool
        };
        fleet.pools.insert(name, rules);
    }
    fleet
}

fn is_balanced(pool: &NodePool) -> bool {
    pool.spec.disruption.consolidation_policy == ConsolidationPolicy::Balanced
}

/// Whether spot nodes of a NodePool may be replaced by cheaper spot nodes: as it says, or else as
/// the feature gate does.
fn allows_spot_to_spot(pool: &NodePool, gate: bool) -> bool {
    pool.annotations().get(labels::SPOT_TO_SPOT).map_or(gate, |value| value == "true")
}

/// Time for which a node is expected to go on costing its price.
fn remaining_life(claim: &NodeClaim, now: Timestamp) -> SignedDuration {
    let created = claim.creation_timestamp().map_or(now, |time| time.0);
    let age = now.duration_since(created);
    let (least, most) = REMAINING_LIFE;
    let expected = age.clamp(least, most);
    let lifetime = claim.spec.expire_after.get();
    match lifetime.and_then(|lifetime| SignedDuration::try_from(lifetime).ok()) {
        Some(after) => expected.min((after - age).max(SignedDuration::ZERO)),
        None => expected,
    }
}

/// Karpenter's disruption cost of a node with these pods, in thousandths.
fn disruption_cost<'p>(pods: impl Iterator<Item = &'p Pod>) -> i64 {
    UNIT + pods.map(|pod| eviction_cost(pod).max(0)).sum::<i64>()
}

/// Karpenter's eviction cost of a pod, in thousandths.
fn eviction_cost(pod: &Pod) -> i64 {
    let annotations = pod.annotations();
    let stated = annotations.get(DISRUPTION_COST).or_else(|| annotations.get(POD_DELETION_COST));
    let stated: i32 = stated.and_then(|value| value.parse().ok()).unwrap_or(0);
    let priority = pod.spec().priority.unwrap_or(0);
    let cost = UNIT + i64::from(stated) * UNIT / (1 << 27) + i64::from(priority) * UNIT / (1 << 25);
    cost.clamp(-MAX_EVICTION_COST, MAX_EVICTION_COST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Index;
    use crate::testing::{at, candidates_of, claim, cluster_of, pod, pool};
    use nap_units::UsdPerHour;
    use serde_json::{Value, json};

    /// A node with one pod, at $0.1 an hour, whose pool has this policy.
    fn candidate(policy: &str) -> (Index, Candidate) {
        let mut index = cluster_of(1);
        index.apply(pod("shop", "web", json!({ "spec": { "nodeName": "node-0" } })), at(0));
        let disruption = json!({ "consolidationPolicy": policy });
        index.apply(pool("p", json!({ "spec": { "disruption": disruption } })), at(0));
        let mut candidate = candidates_of(&index).remove(0);
        candidate.price = Some(UsdPerHour::from_micros(100_000));
        (index, candidate)
    }

    #[test]
    fn a_pool_that_removes_only_empty_nodes_is_left_alone() {
        assert!(!is_underutilizable(&candidate("WhenEmpty").1));
        assert!(is_underutilizable(&candidate("WhenEmptyOrUnderutilized").1));
        assert!(is_underutilizable(&candidate("Balanced").1));
    }

    #[test]
    fn a_node_without_a_known_price_is_not_consolidated() {
        let (_, mut unknown) = candidate("WhenEmptyOrUnderutilized");
        unknown.price = None;
        assert!(!is_underutilizable(&unknown));
    }

    fn cost_of(over: &Value) -> i64 {
        let mut index = cluster_of(1);
        index.apply(pod("shop", "web", over.clone()), at(0));
        let found = index.pod(&"shop/web".into()).cloned().unwrap();
        eviction_cost(&found)
    }

    #[test]
    fn priorities_and_stated_costs_count() {
        assert_eq!(cost_of(&json!({})), 1000);
        assert_eq!(cost_of(&json!({ "spec": { "priority": 1 << 25 } })), 2000);
        let stated = |key: &str, value: &str| {
            cost_of(&json!({ "metadata": { "annotations": { key: value } } }))
        };
        assert_eq!(stated(POD_DELETION_COST, "134217728"), 2000);
        assert_eq!(stated(DISRUPTION_COST, "-2147483648"), -10_000);
        assert_eq!(stated(DISRUPTION_COST, "1.5"), 1000, "only whole numbers count");
    }

    #[test]
    fn nodes_within_consolidate_after_take_no_pods_of_others() {
        let names = |after: &str| {
            let mut index = cluster_of(2);
            let disruption = json!({ "consolidateAfter": after });
            index.apply(pool("p", json!({ "spec": { "disruption": disruption } })), at(0));
            let mut claim = index.claim("claim-1").unwrap().as_ref().clone();
            let conditions = &mut claim.status.as_mut().unwrap().conditions;
            conditions.retain(|one| one.type_ != CONSOLIDATABLE);
            index.apply(claim, at(0));
            settling(&index).into_iter().collect::<Vec<_>>()
        };
        assert_eq!(names("5m"), ["node-1"], "pods came or went a short while ago");
        assert!(names("0s").is_empty(), "there is nothing to wait for");
        assert!(names("Never").is_empty(), "it would never take any");
    }

    #[test]
    fn a_nodepool_says_whether_spot_replaces_spot_and_the_gate_says_it_for_the_others() {
        let allows = |value: Option<&str>, gate| {
            let annotations = value.map(|value| json!({ labels::SPOT_TO_SPOT: value }));
            let object = json!({ "metadata": { "annotations": annotations } });
            allows_spot_to_spot(&pool("p", object), gate)
        };
        assert!(!allows(None, false) && allows(None, true));
        assert!(allows(Some("true"), false) && !allows(Some("false"), true));
    }

    /// What keeps a node with one running pod from consolidation at a time.
    fn unmoved_at(seconds: i64, owner: Option<&str>, deadline: Option<i64>) -> Option<Blocker> {
        let mut index = cluster_of(1);
        let owner = owner.map(|kind| {
            json!([{
                "apiVersion": "x/v1", "kind": kind, "name": "web", "uid": "u", "controller": true,
            }])
        });
        let object = json!({
            "metadata": { "ownerReferences": owner },
            "spec": { "nodeName": "node-0", "activeDeadlineSeconds": deadline },
            "status": { "phase": "Running", "startTime": "1970-01-01T00:00:00Z" },
        });
        index.apply(pod("shop", "web", object), at(0));
        let pods = index.pods_on("node-0").map(AsRef::as_ref);
        unmoved(pods, at(seconds)).next()
    }

    #[test]
    fn pods_that_would_not_come_back_or_end_soon_are_not_moved() {
        assert_eq!(unmoved_at(0, None, None), Some(Blocker::Bare("shop/web".into())));
        assert_eq!(unmoved_at(0, Some("ReplicaSet"), None), None);
        assert_eq!(unmoved_at(0, Some("Job"), None), None, "its end is not known");
        assert_eq!(unmoved_at(2699, Some("Job"), Some(3600)), None);
        let ending = Some(Blocker::Ending("shop/web".into(), at(3600)));
        assert_eq!(unmoved_at(2700, Some("Job"), Some(3600)), ending);
    }

    fn life(age: i64, expire_after: &str) -> i64 {
        let over = json!({
            "metadata": { "creationTimestamp": "1970-01-01T00:00:00Z" },
            "spec": { "expireAfter": expire_after },
        });
        remaining_life(&claim("c", over), at(age)).as_secs()
    }

    #[test]
    fn a_node_is_expected_to_last_as_long_again_within_bounds() {
        assert_eq!(life(60, "Never"), 900);
        assert_eq!(life(7200, "Never"), 7200);
        assert_eq!(life(1_000_000, "Never"), 14_400);
        assert_eq!(life(7200, "2h30m"), 1800, "it expires before");
    }
}
