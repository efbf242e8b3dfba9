//! Drift: the drifted nodes that are replaced now.

use jiff::Timestamp;
use nap_api::conditions;
use nap_api::nodeclaim::condition::DRIFTED;
use nap_api::nodepool::DisruptionReason;
use nap_engine::Plan;

use super::backoff::Backoff;
use super::blockers::{Blocked, Blocker};
use super::budgets::Budgets;
use super::candidates::Candidate;
use crate::cluster::{claim_conditions, claim_is};

/// Outcome of a simulated removal.
pub enum Removal {
    /// Every pod has a place; the removal counts for those after it.
    Done(Plan),
    /// Pods would move to nodes that are not initialized: the removal has to wait for them.
    Waits,
    /// A pod has no place.
    Blocked(Blocker),
}

/// Drifted candidates within their budgets whose pods can all be placed, each with the plan for
/// them, and those whose pods cannot. Empty nodes go first, then those that drifted first; a node
/// whose last command failed goes after the others.
pub fn find<'c>(
    candidates: &'c [Candidate],
    budgets: &mut Budgets,
    backoff: &Backoff,
    now: Timestamp,
    remove: impl FnMut(&Candidate) -> Removal,
) -> (Vec<(&'c Candidate, Plan)>, Vec<Blocked>) {
    let reason = DisruptionReason::Drifted;
    let mut drifted: Vec<&Candidate> =
        candidates.iter().filter(|candidate| claim_is(&candidate.claim, DRIFTED)).collect();
    drifted.sort_by_cached_key(|candidate| {
        let failed = backoff.last_failure(&candidate.claim_name());
        let since = conditions::since(claim_conditions(&candidate.claim), DRIFTED);
        (failed, !candidate.pods.is_empty(), since, candidate.name().to_owned())
    });
    replace_in_order(drifted, reason, budgets, backoff, now, remove)
}

/// Of candidates in their order, those within their budgets whose pods can all be placed, each with
/// the plan for them, and those whose pods cannot.
pub fn replace_in_order<'c>(
    ordered: Vec<&'c Candidate>,
    reason: DisruptionReason,
    budgets: &mut Budgets,
    backoff: &Backoff,
    now: Timestamp,
    mut remove: impl FnMut(&Candidate) -> Removal,
) -> (Vec<(&'c Candidate, Plan)>, Vec<Blocked>) {
    let (mut commands, mut blocked) = (Vec::new(), Vec::new());
    for candidate in ordered {
        let pool = candidate.pool_name();
        let is_allowed = !candidate.uses_budget() || budgets.left(&pool, reason) > 0;
        if !is_allowed || backoff.is_resting(&pool, reason, now) {
            continue;
        }
        match remove(candidate) {
            Removal::Done(plan) => {
                if candidate.uses_budget() {
                    budgets.take(&pool, reason);
                }
                commands.push((candidate, plan));
            }
            Removal::Waits => {}
            Removal::Blocked(blocker) => blocked.push(candidate.blocked_by(blocker)),
        }
    }
    (commands, blocked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Index;
    use crate::testing::{at, candidates_of, cluster_of, pod, pool, set_condition};
    use nap_engine::PodKey;
    use serde_json::json;

    fn drifted_cluster() -> Index {
        let mut index = cluster_of(3);
        for (number, time) in [(0, "1970-01-01T00:00:20Z"), (2, "1970-01-01T00:00:10Z")] {
            set_condition(&mut index, &format!("claim-{number}"), "Drifted", time);
        }
        index
    }

    fn found_after(
        index: &Index,
        backoff: &Backoff,
        remove: impl FnMut(&Candidate) -> Removal,
    ) -> (Vec<String>, usize) {
        let candidates = candidates_of(index);
        let mut budgets = Budgets::new(index, at(0));
        let (commands, blocked) = find(&candidates, &mut budgets, backoff, at(60), remove);
        let names = commands.iter().map(|(candidate, _)| candidate.name().to_owned()).collect();
        (names, blocked.len())
    }

    fn found(index: &Index, remove: impl FnMut(&Candidate) -> Removal) -> Vec<String> {
        found_after(index, &Backoff::default(), remove).0
    }

    fn set_budget(index: &mut Index, nodes: &str) {
        let disruption = json!({ "budgets": [{ "nodes": nodes, "reasons": ["Drifted"] }] });
        index.apply(pool("p", json!({ "spec": { "disruption": disruption } })), at(0));
    }

    fn removed(_: &Candidate) -> Removal {
        Removal::Done(Plan::default())
    }

    #[test]
    fn the_nodes_that_drifted_first_go_first_up_to_the_budget() {
        let mut index = drifted_cluster();
        set_budget(&mut index, "1");
        assert_eq!(found(&index, removed), ["node-2"]);
        set_budget(&mut index, "100%");
        assert_eq!(found(&index, removed), ["node-2", "node-0"]);
    }

    #[test]
    fn empty_nodes_go_before_older_drift() {
        let mut index = drifted_cluster();
        set_budget(&mut index, "1");
        index.apply(pod("shop", "web", json!({ "spec": { "nodeName": "node-2" } })), at(0));
        assert_eq!(found(&index, removed), ["node-0"]);
    }

    #[test]
    fn a_node_whose_pods_have_no_place_is_passed_over_and_reported() {
        let mut index = drifted_cluster();
        set_budget(&mut index, "1");
        let remove = |candidate: &Candidate| match candidate.name() {
            "node-2" => {
                let pod = PodKey::new("shop", "web");
                Removal::Blocked(Blocker::Unplaced(pod, "no room".to_owned()))
            }
            _ => removed(candidate),
        };
        let found = found_after(&index, &Backoff::default(), remove);
        assert_eq!(found, (vec!["node-0".to_owned()], 1));
    }

    #[test]
    fn a_node_whose_pods_wait_for_another_node_uses_no_budget() {
        let mut index = drifted_cluster();
        set_budget(&mut index, "1");
        let remove = |candidate: &Candidate| match candidate.name() {
            "node-2" => Removal::Waits,
            _ => removed(candidate),
        };
        assert_eq!(found(&index, remove), ["node-0"]);
    }

    #[test]
    fn a_pool_rests_after_a_failure_and_then_tries_another_node() {
        let mut index = drifted_cluster();
        set_budget(&mut index, "1");
        let mut backoff = Backoff::default();
        backoff.fail("claim-2", "p", DisruptionReason::Drifted, at(1));
        assert_eq!(found_after(&index, &backoff, removed).0, [] as [&str; 0]);
        let mut backoff = Backoff::default();
        backoff.fail("claim-2", "p", DisruptionReason::Drifted, at(0));
        assert_eq!(found_after(&index, &backoff, removed).0, ["node-0"]);
    }

    #[test]
    fn nothing_is_simulated_without_a_budget() {
        let mut index = drifted_cluster();
        set_budget(&mut index, "0");
        assert!(found(&index, |_| panic!("the engine is not asked")).is_empty());
    }
}
