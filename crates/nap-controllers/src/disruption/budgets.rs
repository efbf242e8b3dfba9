//! Disruption budgets of NodePools, less the disruptions under way.

use std::collections::BTreeMap;

use jiff::Timestamp;
use nap_api::budget;
use nap_api::nodeclaim::condition::INSTANCE_TERMINATING;
use nap_api::nodepool::DisruptionReason;

use crate::cluster::{Index, NodeView, claim_is, is_ready};

/// The reasons that nap disrupts nodes for.
pub const REASONS: [DisruptionReason; 4] = [
    DisruptionReason::Unhealthy,
    DisruptionReason::Empty,
    DisruptionReason::Drifted,
    DisruptionReason::Underutilized,
];

/// Budgets of every NodePool by reason.
#[derive(Debug, Default)]
pub struct Budgets(BTreeMap<(String, DisruptionReason), Allowance>);

#[derive(Clone, Copy, Debug, Default)]
struct Allowance {
    /// Nodes that may be disrupted at the same time.
    allowed: usize,
    /// Nodes that may still be disrupted in this pass.
    left: usize,
}

impl Budgets {
    /// Counts the budgets of every NodePool. Initialized nodes are counted unless their instance is
    /// terminating; those that are leaving or not ready use up the budget. A node that is not ready
    /// does not keep itself from being repaired.
    pub fn new(index: &Index, now: Timestamp) -> Self {
        let mut allowances = BTreeMap::new();
        for (name, pool) in index.pools() {
            let nodes = || index.views_of_pool(name).filter(|view| is_counted(view));
            let not_ready =
                |view: &&NodeView| view.node.as_ref().is_some_and(|node| !is_ready(node));
            let leaving = nodes().filter(|view| view.is_leaving()).count();
            let staying = nodes().filter(|view| !view.is_leaving());
            let not_ready = staying.filter(not_ready).count();
            let total = nodes().count();
            for reason in REASONS {
                let allowed = budget::allowed(&pool.spec.disruption.budgets, reason, total, now);
                let idle = if reason == DisruptionReason::Unhealthy { 0 } else { not_ready };
                let left = allowed.saturating_sub(leaving + idle);
                allowances.insert((name.clone(), reason), Allowance { allowed, left });
            }
        }
        Self(allowances)
    }

    /// Whether no node of a NodePool may be disrupted for a reason, whatever is under way.
    pub fn is_closed(&self, pool: &str, reason: DisruptionReason) -> bool {
        self.get(pool, reason).allowed == 0
    }

    /// Number of nodes of a NodePool that may still be disrupted for a reason.
    pub fn left(&self, pool: &str, reason: DisruptionReason) -> usize {
        self.get(pool, reason).left
    }

    fn get(&self, pool: &str, reason: DisruptionReason) -> Allowance {
        self.0.get(&(pool.to_owned(), reason)).copied().unwrap_or_default()
    }

    /// Takes one disruption from the budgets of every reason: a node that is leaving counts for all
    /// of them. Returns `false` if none is left for this reason.
    pub fn take(&mut self, pool: &str, reason: DisruptionReason) -> bool {
        if self.left(pool, reason) == 0 {
            return false;
        }
        for ((name, _), allowance) in &mut self.0 {
            if name == pool {
                allowance.left = allowance.left.saturating_sub(1);
            }
        }
        true
    }
}

fn is_counted(view: &NodeView) -> bool {
    let terminating = view.claim.as_ref().is_some_and(|one| claim_is(one, INSTANCE_TERMINATING));
    view.is_initialized() && !terminating
}

/// Message of the event on a NodePool whose budget for a reason is zero.
pub fn closed_message(reason: DisruptionReason) -> String {
    let reason = reason.as_str();
    format!("No allowed disruptions for disruption reason {reason} due to blocking budget")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, cluster_of, condition, index, pool, set_condition};
    use serde_json::{Value, json};

    use DisruptionReason::{Drifted, Empty, Underutilized};

    /// The budgets of pool `p` with `nodes` ready nodes.
    fn budgets(nodes: usize, budgets: &Value) -> Budgets {
        let mut index = cluster_of(nodes);
        index.apply(pool("p", json!({ "spec": { "disruption": { "budgets": budgets } } })), at(0));
        Budgets::new(&index, at(0))
    }

    #[test]
    fn a_percentage_of_the_nodes_is_rounded_up() {
        let ten_percent = || json!([{ "nodes": "10%" }]);
        assert_eq!(budgets(0, &ten_percent()).left("p", Empty), 0);
        assert_eq!(budgets(1, &ten_percent()).left("p", Empty), 1);
        assert_eq!(budgets(11, &ten_percent()).left("p", Empty), 2);
    }

    #[test]
    fn zero_blocks_every_reason() {
        let none = budgets(5, &json!([{ "nodes": "0" }]));
        for reason in REASONS {
            assert_eq!(none.left("p", reason), 0);
        }
    }

    #[test]
    fn the_smallest_budget_that_names_the_reason_counts() {
        let both =
            budgets(10, &json!([{ "nodes": "5" }, { "nodes": "1", "reasons": ["Drifted"] }]));
        assert_eq!((both.left("p", Drifted), both.left("p", Underutilized)), (1, 5));
    }

    #[test]
    fn a_schedule_blocks_only_within_its_window() {
        let window = json!([{ "nodes": "0", "schedule": "0 0 * * *", "duration": "1h" }]);
        assert_eq!(budgets(3, &window).left("p", Empty), 0, "the window opens at midnight");
        let later = json!([{ "nodes": "0", "schedule": "0 6 * * *", "duration": "1h" }]);
        assert!(budgets(3, &later).left("p", Empty) > 0);
    }

    #[test]
    fn nodes_that_are_leaving_or_not_ready_use_up_the_budget() {
        let mut index = cluster_of(4);
        index.apply(
            pool("p", json!({ "spec": { "disruption": { "budgets": [{ "nodes": "3" }] } } })),
            at(0),
        );
        assert_eq!(Budgets::new(&index, at(0)).left("p", Empty), 3);
        let mut node = index.node("node-0").unwrap().as_ref().clone();
        node.status = None;
        index.apply(node, at(1));
        let mut claim = index.claim("claim-1").unwrap().as_ref().clone();
        let conditions = &mut claim.status.get_or_insert_default().conditions;
        conditions.push(serde_json::from_value(condition("DisruptionReason", "True")).unwrap());
        index.apply(claim, at(1));
        assert_eq!(Budgets::new(&index, at(1)).left("p", Empty), 1);
        let left = Budgets::new(&index, at(1)).left("p", DisruptionReason::Unhealthy);
        assert_eq!(left, 2, "a node that is not ready does not keep itself from being repaired");
    }

    #[test]
    fn a_node_whose_instance_is_terminating_no_longer_counts() {
        let mut index = cluster_of(4);
        let half = json!({ "spec": { "disruption": { "budgets": [{ "nodes": "50%" }] } } });
        index.apply(pool("p", half), at(0));
        for (condition, left) in [("DisruptionReason", 1), ("InstanceTerminating", 2)] {
            set_condition(&mut index, "claim-0", condition, "1970-01-01T00:00:00Z");
            assert_eq!(Budgets::new(&index, at(0)).left("p", Drifted), left, "{condition}");
        }
    }

    #[test]
    fn only_a_budget_of_zero_closes_a_pool() {
        let mut one = budgets(5, &json!([{ "nodes": "1" }]));
        assert!(one.take("p", Drifted) && !one.is_closed("p", Drifted));
        assert!(budgets(5, &json!([{ "nodes": "0" }])).is_closed("p", Drifted));
    }

    #[test]
    fn budgets_are_taken_one_by_one() {
        let mut two = budgets(5, &json!([{ "nodes": "2" }]));
        assert!(two.take("p", Empty) && two.take("p", Empty) && !two.take("p", Empty));
        assert_eq!(two.left("p", Drifted), 0, "a leaving node counts for every reason");
        assert!(!two.take("unknown", Empty));
    }

    #[test]
    fn a_pool_that_does_not_exist_has_no_budget() {
        assert_eq!(Budgets::new(&index([]), at(0)).left("p", Empty), 0);
    }
}
