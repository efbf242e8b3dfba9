//! Repair: unhealthy nodes that are replaced now.
//!
//! A node is unhealthy if one of its conditions matches a repair policy of the provider, and to be
//! repaired once that has lasted for the policy's toleration. Its replacement is launched first,
//! within the budgets for `Unhealthy`. A circuit breaker holds a NodePool in which too many nodes
//! are unhealthy: then the cause is hardly in the nodes, and new ones would not help.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use kube::ResourceExt;
use nap_api::nodeclaim::condition::{INSTANCE_TERMINATING, REGISTERED};
use nap_api::nodepool::DisruptionReason;
use nap_api::{NodeClaim, NodePool, labels};
use nap_cloud::RepairPolicy;
use nap_engine::Plan;

use super::backoff::Backoff;
use super::blockers::{self, Blocked, Blocker, pods_blocker};
use super::budgets::Budgets;
use super::candidates::Candidate;
use super::drift::{Removal, replace_in_order};
use super::progress::reason_of;
use crate::cluster::{Index, NodeView, claim_is};
use crate::context::Context;
use crate::events::Severity;
use crate::snapshot::Catalogues;

/// Divisor of a NodePool's nodes: a fifth of them may be unhealthy while nodes are repaired.
const BREAKER: usize = 5;

/// A condition of a Node that matches a repair policy.
pub struct Fault<'p> {
    /// The policy that it violates.
    pub policy: &'p RepairPolicy,
    /// Time from which the Node is to be repaired.
    due: Timestamp,
}

/// What repair found in a cluster.
#[derive(Default)]
pub struct Repairs {
    /// Unhealthy nodes that may be repaired.
    pub candidates: Vec<Candidate>,
    /// Unhealthy nodes that may not.
    pub blocked: Vec<Blocked>,
    /// Unhealthy nodes of NodePools that the breaker holds.
    pub held: Vec<(Arc<NodeClaim>, Arc<Node>, Arc<NodePool>)>,
    /// Time at which the next unhealthy node is to be repaired; `None` if none waits.
    pub next_due: Option<Timestamp>,
}

/// Finds the nodes to repair.
pub fn collect(
    index: &Index,
    policies: &[RepairPolicy],
    catalogues: &Catalogues,
    now: Timestamp,
) -> Repairs {
    let mut repairs = Repairs::default();
    let mut held_pools = BTreeMap::new();
    for view in index.views().filter(|view| !view.is_leaving()) {
        let (Some(claim), Some(node)) = (&view.claim, &view.node) else { continue };
        let Some(pool) = view.pool().and_then(|pool| index.pool(pool)) else { continue };
        if !claim_is(claim, REGISTERED) || pool.spec.replicas.is_some() {
            continue;
        }
        let Some(due) = faults(policies, node).map(|fault| fault.due).min() else { continue };
        if due > now {
            repairs.next_due = repairs.next_due.into_iter().chain([due]).min();
            continue;
        }
        let blocker = pods_blocker(index, node, now);
        if is_vetoed(node) {
            let blocker = Blocker::DoNotRepair;
            repairs.blocked.push((Arc::clone(claim), Arc::clone(node), blocker));
        } else if blocker.is_some() && !is_drain_bounded(policies, claim, node, now) {
            let blocker = Blocker::NoDrainBound;
            repairs.blocked.push((Arc::clone(claim), Arc::clone(node), blocker));
        } else if *held_pools
            .entry(pool.name_any())
            .or_insert_with_key(|pool| is_held(index, policies, pool, now))
        {
            repairs.held.push((Arc::clone(claim), Arc::clone(node), Arc::clone(pool)));
        } else {
            let mut candidate = Candidate::new(index, (claim, node, pool), catalogues, blocker);
            candidate.repair_due = Some(due);
            repairs.candidates.push(candidate);
        }
    }
    repairs
}

/// Unhealthy candidates within their budgets whose pods can all be placed, each with the plan for
/// them, and those whose pods cannot. The longest due go first; a node whose last command failed
/// goes after the others.
pub fn find<'c>(
    unhealthy: &'c [Candidate],
    budgets: &mut Budgets,
    backoff: &Backoff,
    now: Timestamp,
    replace: impl FnMut(&Candidate) -> Removal,
) -> (Vec<(&'c Candidate, Plan)>, Vec<Blocked>) {
    let mut ordered: Vec<&Candidate> = unhealthy.iter().collect();
    ordered.sort_by_cached_key(|candidate| {
        let failed = backoff.last_failure(&candidate.claim_name());
        (failed, candidate.repair_due, candidate.name().to_owned())
    });
    replace_in_order(ordered, DisruptionReason::Unhealthy, budgets, backoff, now, replace)
}

/// Publishes why unhealthy nodes are not repaired.
pub fn report(context: &Context, repairs: &Repairs) {
    blockers::report(context, &repairs.blocked);
    let (severity, reason) = (Severity::Warning, "NodeRepairBlocked");
    for (claim, node, pool) in &repairs.held {
        let pool_name = pool.name_any();
        let message = format!("more than 20% of nodes in nodepool {pool_name:?} are unhealthy");
        context.events.publish(node.as_ref(), severity, reason, &message);
        context.events.publish(claim.as_ref(), severity, reason, &message);
        context.events.publish(pool.as_ref(), severity, reason, &message);
    }
}

/// Whether the annotation of a Node forbids its repair.
pub fn is_vetoed(node: &Node) -> bool {
    node.annotations().get(labels::DO_NOT_REPAIR).is_some_and(|value| value == "true")
}

/// Faults of a Node for which it is to be repaired now.
pub fn due_faults<'p>(
    policies: &'p [RepairPolicy],
    node: &'p Node,
    now: Timestamp,
) -> impl Iterator<Item = Fault<'p>> {
    faults(policies, node).filter(move |fault| fault.due <= now)
}

/// Longest drain of a NodeClaim whose node is being repaired; `None` if only its own
/// `terminationGracePeriod` counts.
pub fn drain_bound(context: &Context, claim: &NodeClaim) -> Option<Duration> {
    if reason_of(claim) != Some(DisruptionReason::Unhealthy) {
        return None;
    }
    let node = claim.status.as_ref()?.node_name.as_deref()?;
    let node = context.index().node(node).cloned()?;
    let faults = due_faults(context.repair_policies(), &node, context.clock.now());
    faults.filter_map(|fault| fault.policy.drain_bound).min()
}

/// Whether the drain of an unhealthy Node ends by force if pods block it.
fn is_drain_bounded(
    policies: &[RepairPolicy],
    claim: &NodeClaim,
    node: &Node,
    now: Timestamp,
) -> bool {
    claim.spec.termination_grace_period.is_some()
        || due_faults(policies, node, now).any(|fault| fault.policy.drain_bound.is_some())
}

/// Faults of a Node, due or not.
fn faults<'p>(policies: &'p [RepairPolicy], node: &'p Node) -> impl Iterator<Item = Fault<'p>> {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref());
    let created = node.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let fault = move |condition: &NodeCondition, policy: &'p RepairPolicy| {
        let since = condition.last_transition_time.as_ref().map(|time| time.0);
        let since = since.max(created)?;
        let toleration = SignedDuration::try_from(policy.toleration).ok()?;
        Some(Fault { policy, due: since.checked_add(toleration).unwrap_or(Timestamp::MAX) })
    };
    conditions.unwrap_or_default().iter().flat_map(move |condition| {
        let matching = policies.iter().filter(move |policy| {
            policy.condition == condition.type_ && policy.status == condition.status
        });
        matching.filter_map(move |policy| fault(condition, policy))
    })
}

/// Whether too many nodes of a NodePool are unhealthy. One that leaves for another reason says
/// nothing about the others, nor does one that still starts.
fn is_held(index: &Index, policies: &[RepairPolicy], pool: &str, now: Timestamp) -> bool {
    let is_unhealthy = |view: &&NodeView| {
        let (Some(claim), Some(node)) = (&view.claim, &view.node) else { return false };
        let is_starting = |fault: &Fault<'_>| !view.is_initialized() && fault.due > now;
        let repaired = reason_of(claim) == Some(DisruptionReason::Unhealthy)
            && !claim_is(claim, INSTANCE_TERMINATING);
        (repaired || !view.is_leaving()) && faults(policies, node).any(|fault| !is_starting(&fault))
    };
    let nodes = index.views_of_pool(pool).filter(|view| view.node.is_some()).count();
    let unhealthy = index.views_of_pool(pool).filter(is_unhealthy).count();
    unhealthy > nodes.div_ceil(BREAKER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, cluster_of, pod, pool, set_condition};
    use serde_json::{Value, json};

    const POLICIES: [RepairPolicy; 2] = [
        RepairPolicy {
            condition: "Ready",
            status: "False",
            toleration: Duration::from_mins(10),
            drain_bound: Some(Duration::ZERO),
        },
        RepairPolicy {
            condition: "Broken",
            status: "True",
            toleration: Duration::ZERO,
            drain_bound: None,
        },
    ];

    /// Gives a node a condition that holds since 0 s.
    fn set(index: &mut Index, node: &str, condition: &str, status: &str) {
        let mut object = serde_json::to_value(index.node(node).unwrap().as_ref()).unwrap();
        object["metadata"]["creationTimestamp"] = json!("1970-01-01T00:00:00Z");
        let all = object["status"]["conditions"].as_array_mut().unwrap();
        all.retain(|one| one["type"] != condition);
        all.push(json!({
            "type": condition, "status": status, "lastTransitionTime": "1970-01-01T00:00:00Z",
        }));
        index.apply(serde_json::from_value::<Node>(object).unwrap(), at(0));
    }

    fn annotate(index: &mut Index, name: &str, annotation: &str) {
        let mut node = index.node(name).unwrap().as_ref().clone();
        node.annotations_mut().insert(annotation.to_owned(), "true".to_owned());
        index.apply(node, at(0));
    }

    /// A pod on `node-0` that may not be disrupted.
    fn protect(index: &mut Index) {
        let annotations = json!({ labels::DO_NOT_DISRUPT: "true" });
        let object = json!({
            "metadata": { "annotations": annotations }, "spec": { "nodeName": "node-0" },
        });
        index.apply(pod("shop", "web", object), at(0));
    }

    fn repairs(index: &Index, seconds: i64) -> Repairs {
        collect(index, &POLICIES, &Catalogues::default(), at(seconds))
    }

    fn names(repairs: &Repairs) -> Vec<&str> {
        repairs.candidates.iter().map(Candidate::name).collect()
    }

    #[test]
    fn a_node_is_repaired_once_its_fault_has_lasted_for_the_toleration() {
        let mut index = cluster_of(1);
        assert!(names(&repairs(&index, 9999)).is_empty());
        set(&mut index, "node-0", "Ready", "False");
        let before = repairs(&index, 599);
        assert!(names(&before).is_empty());
        assert_eq!(before.next_due, Some(at(600)), "the next pass is due then");
        assert_eq!(names(&repairs(&index, 600)), ["node-0"]);
        assert!(collect(&index, &[], &Catalogues::default(), at(600)).candidates.is_empty());
    }

    #[test]
    fn the_toleration_of_an_old_condition_counts_from_the_creation_of_the_node() {
        let mut index = cluster_of(1);
        set(&mut index, "node-0", "Ready", "False");
        let mut node = index.node("node-0").unwrap().as_ref().clone();
        let created = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(60));
        node.metadata.creation_timestamp = Some(created);
        index.apply(node, at(0));
        assert!(names(&repairs(&index, 659)).is_empty());
        assert_eq!(names(&repairs(&index, 660)), ["node-0"]);
    }

    #[test]
    fn more_than_a_fifth_of_unhealthy_nodes_rounded_up_holds_all_repairs_of_the_pool() {
        for (nodes, unhealthy, held) in [(1, 1, 0), (5, 1, 0), (5, 2, 2), (6, 2, 0), (10, 2, 0)] {
            let mut index = cluster_of(nodes);
            for number in 0..unhealthy {
                set(&mut index, &format!("node-{number}"), "Broken", "True");
            }
            let found = repairs(&index, 0);
            assert_eq!(found.held.len(), held, "{unhealthy} of {nodes}");
            assert_eq!(found.candidates.len(), unhealthy - held, "{unhealthy} of {nodes}");
        }
    }

    #[test]
    fn a_fault_that_is_still_tolerated_counts_for_the_breaker() {
        let mut index = cluster_of(5);
        set(&mut index, "node-0", "Broken", "True");
        set(&mut index, "node-1", "Ready", "False");
        assert_eq!(repairs(&index, 0).held.len(), 1);
    }

    #[test]
    fn nodes_that_start_or_leave_for_another_reason_do_not_trip_the_breaker() {
        let mut index = cluster_of(5);
        set(&mut index, "node-0", "Broken", "True");
        for number in 1..4 {
            set(&mut index, &format!("node-{number}"), "Ready", "False");
        }
        assert_eq!(repairs(&index, 0).held.len(), 1);
        // One was taken back by the cloud, one is consolidated, one has just joined.
        let mut evicted = index.claim("claim-1").unwrap().as_ref().clone();
        evicted.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(0)));
        index.apply(evicted, at(0));
        set_condition(&mut index, "claim-2", "DisruptionReason", "1970-01-01T00:00:00Z");
        let mut starting = index.claim("claim-3").unwrap().as_ref().clone();
        let conditions = &mut starting.status.as_mut().unwrap().conditions;
        conditions.retain(|condition| condition.type_ != "Initialized");
        index.apply(starting, at(0));
        assert_eq!(names(&repairs(&index, 0)), ["node-0"]);
        assert_eq!(repairs(&index, 600).held.len(), 2, "one that never started counts in the end");
    }

    #[test]
    fn an_annotated_node_is_not_repaired_and_do_not_disrupt_does_not_matter() {
        let mut index = cluster_of(1);
        set(&mut index, "node-0", "Broken", "True");
        annotate(&mut index, "node-0", labels::DO_NOT_DISRUPT);
        assert_eq!(names(&repairs(&index, 0)), ["node-0"]);
        annotate(&mut index, "node-0", labels::DO_NOT_REPAIR);
        let found = repairs(&index, 0);
        assert!(names(&found).is_empty());
        let expected = "repair is blocked through the \"karpenter.sh/do-not-repair\" annotation";
        assert_eq!(found.blocked[0].2.to_string(), expected);
    }

    #[test]
    fn pods_that_block_a_drain_need_a_bound_of_the_policy_or_of_the_nodeclaim() {
        let mut index = cluster_of(1);
        set(&mut index, "node-0", "Broken", "True");
        protect(&mut index);
        assert_eq!(repairs(&index, 0).blocked[0].2, Blocker::NoDrainBound);
        set(&mut index, "node-0", "Ready", "False");
        assert_eq!(repairs(&index, 0).blocked[0].2, Blocker::NoDrainBound, "tolerated still");
        assert_eq!(names(&repairs(&index, 600)), ["node-0"], "not ready: no drain at all");
        let mut claim = index.claim("claim-0").unwrap().as_ref().clone();
        claim.spec.termination_grace_period = Some("1m".to_owned());
        index.apply(claim, at(0));
        assert_eq!(names(&repairs(&index, 0)), ["node-0"]);
    }

    #[test]
    fn a_node_of_no_pool_or_of_a_static_one_or_in_a_command_is_left_alone() {
        let mut index = cluster_of(3);
        set(&mut index, "node-0", "Broken", "True");
        let static_pool = pool("p", json!({ "spec": { "replicas": 3 } }));
        index.apply(static_pool, at(0));
        assert!(names(&repairs(&index, 0)).is_empty());
        index.delete::<NodePool>("p");
        assert!(names(&repairs(&index, 0)).is_empty());
        index.apply(pool("p", json!({})), at(0));
        assert_eq!(names(&repairs(&index, 0)), ["node-0"]);
        set_condition(&mut index, "claim-0", "DisruptionReason", "1970-01-01T00:00:00Z");
        assert!(names(&repairs(&index, 0)).is_empty());
    }

    fn found(index: &Index, backoff: &Backoff) -> Vec<String> {
        let unhealthy = repairs(index, 600).candidates;
        let mut budgets = Budgets::new(index, at(600));
        let replace = |_: &Candidate| Removal::Done(Plan::default());
        let (commands, _) = find(&unhealthy, &mut budgets, backoff, at(600), replace);
        commands.iter().map(|(candidate, _)| candidate.name().to_owned()).collect()
    }

    fn budget(index: &mut Index, budgets: &Value) {
        let disruption = json!({ "disruption": { "budgets": budgets } });
        index.apply(pool("p", json!({ "spec": disruption })), at(0));
    }

    #[test]
    fn repairs_stay_within_the_budget_and_the_longest_due_goes_first() {
        let mut index = cluster_of(10);
        set(&mut index, "node-0", "Ready", "False");
        set(&mut index, "node-1", "Broken", "True");
        budget(&mut index, &json!([{ "nodes": "1" }]));
        assert_eq!(found(&index, &Backoff::default()), ["node-1"]);
        budget(&mut index, &json!([{ "nodes": "100%" }]));
        assert_eq!(found(&index, &Backoff::default()), ["node-1", "node-0"]);
        budget(&mut index, &json!([{ "nodes": "0", "reasons": ["Unhealthy"] }]));
        assert!(found(&index, &Backoff::default()).is_empty());
        budget(&mut index, &json!([{ "nodes": "0", "reasons": ["Drifted"] }]));
        let mut backoff = Backoff::default();
        backoff.fail("claim-1", "p", DisruptionReason::Unhealthy, at(0));
        assert_eq!(found(&index, &backoff), ["node-0", "node-1"], "a failed one goes last");
    }

    #[test]
    fn a_node_that_never_started_needs_no_budget() {
        let mut index = cluster_of(2);
        set(&mut index, "node-0", "Ready", "False");
        budget(&mut index, &json!([{ "nodes": "0" }]));
        assert!(found(&index, &Backoff::default()).is_empty());
        let mut claim = index.claim("claim-0").unwrap().as_ref().clone();
        let conditions = &mut claim.status.as_mut().unwrap().conditions;
        conditions.retain(|condition| condition.type_ != "Initialized");
        index.apply(claim, at(0));
        assert_eq!(found(&index, &Backoff::default()), ["node-0"]);
    }
}
