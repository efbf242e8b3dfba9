//! Drift: the drifted node that is replaced next.

use nap_api::conditions;
use nap_api::nodeclaim::condition::DRIFTED;
use nap_api::nodepool::DisruptionReason;
use nap_engine::Plan;

use super::budgets::Budgets;
use super::candidates::Candidate;
use crate::cluster::{claim_conditions, claim_is};

/// The first drifted candidate within its budget whose pods can all be placed, with the plan for
/// them. Empty nodes go first, then those that drifted first.
pub fn find<'c>(
    candidates: &'c [Candidate],
    budgets: &Budgets,
    mut simulate: impl FnMut(&Candidate) -> Plan,
) -> Option<(&'c Candidate, Plan)> {
    let mut drifted: Vec<&Candidate> =
        candidates.iter().filter(|candidate| claim_is(&candidate.claim, DRIFTED)).collect();
    drifted.sort_by_key(|candidate| {
        let since = conditions::since(claim_conditions(&candidate.claim), DRIFTED);
        (!candidate.pods.is_empty(), since, candidate.name().to_owned())
    });
    drifted
        .into_iter()
        .filter(|one| budgets.left(&one.pool_name(), DisruptionReason::Drifted) > 0)
        .map(|candidate| (candidate, simulate(candidate)))
        .find(|(_, plan)| plan.unplaced.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Index;
    use crate::testing::{
        at, candidates_of, cluster_of, plan_without_places, pod, pool, set_condition,
    };
    use nap_engine::PodKey;
    use serde_json::json;

    fn drifted_cluster() -> Index {
        let mut index = cluster_of(3);
        for (number, time) in [(0, "1970-01-01T00:00:20Z"), (2, "1970-01-01T00:00:10Z")] {
            set_condition(&mut index, &format!("claim-{number}"), "Drifted", time);
        }
        index
    }

    fn found(index: &Index, simulate: impl FnMut(&Candidate) -> Plan) -> Option<String> {
        let candidates = candidates_of(index);
        let budgets = Budgets::new(index, at(0));
        find(&candidates, &budgets, simulate).map(|(candidate, _)| candidate.name().to_owned())
    }

    #[test]
    fn the_node_that_drifted_first_goes_first() {
        assert_eq!(found(&drifted_cluster(), |_| Plan::default()).as_deref(), Some("node-2"));
    }

    #[test]
    fn empty_nodes_go_before_older_drift() {
        let mut index = drifted_cluster();
        index.apply(pod("shop", "web", json!({ "spec": { "nodeName": "node-2" } })), at(0));
        assert_eq!(found(&index, |_| Plan::default()).as_deref(), Some("node-0"));
    }

    #[test]
    fn a_node_whose_pods_have_no_place_is_passed_over() {
        let blocked = |candidate: &Candidate| {
            if candidate.name() == "node-2" {
                plan_without_places([PodKey::new("shop", "web")])
            } else {
                Plan::default()
            }
        };
        assert_eq!(found(&drifted_cluster(), blocked).as_deref(), Some("node-0"));
    }

    #[test]
    fn nothing_is_simulated_without_a_budget() {
        let mut index = drifted_cluster();
        let disruption = json!({ "budgets": [{ "nodes": "0", "reasons": ["Drifted"] }] });
        index.apply(pool("p", json!({ "spec": { "disruption": disruption } })), at(0));
        assert_eq!(found(&index, |_| panic!("the engine is not asked")), None);
    }
}
