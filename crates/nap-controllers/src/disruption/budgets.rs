//! Disruption budgets of NodePools, less the disruptions under way.

use std::collections::BTreeMap;

use jiff::Timestamp;
use nap_api::budget;
use nap_api::nodepool::DisruptionReason;

use crate::cluster::{Index, is_ready};

const REASONS: [DisruptionReason; 3] =
    [DisruptionReason::Empty, DisruptionReason::Drifted, DisruptionReason::Underutilized];

/// Number of nodes of each NodePool that may still be disrupted for each reason in this pass.
#[derive(Debug, Default)]
pub struct Budgets(BTreeMap<(String, DisruptionReason), usize>);

impl Budgets {
    /// Counts the budgets of every NodePool. Initialized nodes are counted; those that are leaving
    /// or not ready use up the budget.
    pub fn new(index: &Index, now: Timestamp) -> Self {
        let mut left = BTreeMap::new();
        for (name, pool) in index.pools() {
            let nodes = || index.views_of_pool(name).filter(|view| view.is_initialized());
            let disrupted = nodes()
                .filter(|view| {
                    view.is_leaving() || view.node.as_ref().is_some_and(|node| !is_ready(node))
                })
                .count();
            let total = nodes().count();
            for reason in REASONS {
                let allowed = budget::allowed(&pool.spec.disruption.budgets, reason, total, now);
                left.insert((name.clone(), reason), allowed.saturating_sub(disrupted));
            }
        }
        Self(left)
    }

    /// Number of nodes of a NodePool that may still be disrupted for a reason.
    pub fn left(&self, pool: &str, reason: DisruptionReason) -> usize {
        self.0.get(&(pool.to_owned(), reason)).copied().unwrap_or(0)
    }

    /// Takes one disruption from the budget. Returns `false` if none is left.
    pub fn take(&mut self, pool: &str, reason: DisruptionReason) -> bool {
        match self.0.get_mut(&(pool.to_owned(), reason)) {
            Some(left) if *left > 0 => {
                *left -= 1;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, cluster_of, condition, index, pool};
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
    }

    #[test]
    fn budgets_are_taken_one_by_one() {
        let mut two = budgets(5, &json!([{ "nodes": "2" }]));
        assert!(two.take("p", Empty) && two.take("p", Empty) && !two.take("p", Empty));
        assert_eq!(two.left("p", Drifted), 2, "each reason is counted for itself");
        assert!(!two.take("unknown", Empty));
    }

    #[test]
    fn a_pool_that_does_not_exist_has_no_budget() {
        assert_eq!(Budgets::new(&index([]), at(0)).left("p", Empty), 0);
    }
}
