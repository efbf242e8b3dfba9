//! Emptiness: nodes without pods that would have to move.

use std::collections::BTreeSet;

use nap_api::nodeclaim::condition::CONSOLIDATABLE;
use nap_api::nodepool::DisruptionReason;

use super::budgets::Budgets;
use super::candidates::Candidate;
use crate::cluster::{NodeKey, claim_is};

/// Candidates that are empty and consolidatable.
pub fn find(candidates: &[Candidate]) -> Vec<&Candidate> {
    let is_empty = |candidate: &&Candidate| {
        candidate.pods.is_empty()
            && candidate.is_graceful()
            && claim_is(&candidate.claim, CONSOLIDATABLE)
    };
    candidates.iter().filter(is_empty).collect()
}

/// Empty nodes that are due and within the budgets of their NodePools.
pub fn within_budgets<'c>(
    empty: Vec<&'c Candidate>,
    due: &BTreeSet<NodeKey>,
    budgets: &mut Budgets,
) -> Vec<&'c Candidate> {
    let mut chosen = empty;
    chosen.retain(|candidate| {
        due.contains(&candidate.key())
            && budgets.take(&candidate.pool_name(), DisruptionReason::Empty)
    });
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, candidates_of, cluster_of, pod, pool};
    use serde_json::json;

    #[test]
    fn only_nodes_without_pods_to_move_are_empty() {
        let mut index = cluster_of(2);
        let bound = json!({ "spec": { "nodeName": "node-0" } });
        index.apply(pod("shop", "web", bound), at(0));
        let candidates = candidates_of(&index);
        assert_eq!(candidates.len(), 2);
        let empty: Vec<&str> = find(&candidates).iter().map(|one| one.name()).collect();
        assert_eq!(empty, ["node-1"]);
    }

    #[test]
    fn due_nodes_are_limited_by_the_budget() {
        let mut index = cluster_of(3);
        let disruption = json!({ "budgets": [{ "nodes": "2" }] });
        index.apply(pool("p", json!({ "spec": { "disruption": disruption } })), at(0));
        let candidates = candidates_of(&index);
        let mut budgets = Budgets::new(&index, at(0));
        let due = candidates.iter().map(Candidate::key).collect();
        assert_eq!(within_budgets(find(&candidates), &due, &mut budgets).len(), 2);
        let none = within_budgets(find(&candidates), &BTreeSet::new(), &mut budgets);
        assert!(none.is_empty(), "nothing is due");
    }
}
