//! A last look at commands before they are started: the cluster went on changing while they were
//! decided about.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use nap_api::nodepool::DisruptionReason;
use nap_cloud::RepairPolicy;
use nap_engine::PodKey;

use super::budgets::Budgets;
use super::candidates::{Candidate, collect};
use super::dry_run::is_dry_run;
use super::pass::{Commands, is_forceful};
use super::repair;
use super::scarce_evictions::ScarceEvictions;
use crate::cluster::Index;
use crate::decision_memory::DecisionMemory;
use crate::snapshot::Catalogues;

/// The commands that nothing has overtaken since the pass began: the node is still a candidate, has
/// no pod that the pass did not know, and its NodePool has the budget and is not in a dry run.
pub fn still_standing(
    commands: Commands,
    reason: DisruptionReason,
    index: &Index,
    memory: &DecisionMemory,
    catalogues: &Catalogues,
    policies: &[RepairPolicy],
    now: Timestamp,
) -> Commands {
    let current = match reason {
        DisruptionReason::Unhealthy => repair::collect(index, policies, catalogues, now).candidates,
        _ => collect(index, memory, catalogues, now).0,
    };
    let mut evictions = ScarceEvictions::default();
    if matches!(reason, DisruptionReason::Underutilized | DisruptionReason::Drifted) {
        evictions = ScarceEvictions::new(index, &memory.moves, &current, now);
    }
    let mut takes_evictions = |candidates: &[Candidate]| match reason {
        DisruptionReason::Drifted => candidates.iter().all(|one| {
            let may = is_forceful(one) || evictions.forbids_drift(one).is_none();
            evictions.take(one);
            may
        }),
        _ => evictions.take_all(candidates),
    };
    let current: BTreeMap<_, &Candidate> = current.iter().map(|one| (one.key(), one)).collect();
    let mut budgets = Budgets::new(index, now);
    let repairs = reason == DisruptionReason::Unhealthy;
    let stands = |candidate: &Candidate| {
        let known: BTreeSet<&PodKey> = candidate.pods.iter().map(|pod| pod.key()).collect();
        current.get(&candidate.key()).is_some_and(|now| {
            candidate.is_graceful() == now.is_graceful()
                && (repairs || !is_dry_run(&now.pool))
                && now.pods.iter().all(|pod| known.contains(pod.key()))
        })
    };
    let mut standing = commands;
    standing.retain(|command| {
        command.candidates.iter().all(&stands)
            && takes_evictions(&command.candidates)
            && take_all(&mut budgets, &command.candidates, reason)
    });
    standing
}

/// Takes the disruption of candidates from the budgets, or of none of them.
fn take_all(budgets: &mut Budgets, candidates: &[Candidate], reason: DisruptionReason) -> bool {
    let mut pools: BTreeMap<String, usize> = BTreeMap::new();
    for candidate in candidates.iter().filter(|one| one.uses_budget()) {
        *pools.entry(candidate.pool_name()).or_default() += 1;
    }
    let fits = pools.iter().all(|(pool, count)| budgets.left(pool, reason) >= *count);
    fits && pools.iter().all(|(pool, count)| (0..*count).all(|_| budgets.take(pool, reason)))
}

#[cfg(test)]
mod tests {
    use nap_engine::Plan;
    use serde_json::json;

    use super::super::pass::Command;
    use super::*;
    use crate::testing::{at, candidates_of, cluster_of, pod, pool, set_condition};

    fn standing(index: &Index, commands: &[Candidate]) -> Vec<String> {
        let commands = commands.iter().map(|one| Command::of(one, Plan::default())).collect();
        let (memory, catalogues) = (DecisionMemory::default(), Catalogues::default());
        let reason = DisruptionReason::Drifted;
        let left = still_standing(commands, reason, index, &memory, &catalogues, &[], at(0));
        left.iter().map(|command| command.candidates[0].name().to_owned()).collect()
    }

    #[test]
    fn drift_moves_the_pods_of_a_workload_as_often_as_they_state_unless_it_is_forceful() {
        let drained = |annotation: Option<&str>, forceful: bool| {
            let mut index = cluster_of(2);
            let disruption = json!({ "budgets": [{ "nodes": "100%" }] });
            index.apply(pool("p", json!({ "spec": { "disruption": disruption } })), at(0));
            let owner = json!([{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u",
                "controller": true,
            }]);
            for number in 0..2 {
                let name = format!("claim-{number}");
                set_condition(&mut index, &name, "Drifted", "1970-01-01T00:00:00Z");
                let mut claim = index.claim(&name).unwrap().as_ref().clone();
                claim.spec.termination_grace_period =
                    forceful.then(|| serde_json::from_value(json!("1h")).unwrap());
                index.apply(claim, at(0));
                let metadata = json!({
                    "ownerReferences": owner,
                    "annotations": { nap_api::labels::MAX_EVICTIONS_PER_DAY: annotation },
                });
                let node = format!("node-{number}");
                let object = json!({ "metadata": metadata, "spec": { "nodeName": node } });
                index.apply(pod("shop", &format!("web-{number}"), object), at(0));
            }
            standing(&index, &candidates_of(&index)).len()
        };
        assert_eq!(drained(Some("1"), false), 1, "one of two pods may be moved today");
        assert_eq!(drained(Some("0"), false), 0);
        assert_eq!(drained(Some("0"), true), 2, "the drain ends by force anyway");
    }

    #[test]
    fn a_command_that_something_has_overtaken_is_dropped() {
        let mut index = cluster_of(4);
        let disruption = json!({ "budgets": [{ "nodes": "3" }] });
        index.apply(pool("p", json!({ "spec": { "disruption": disruption } })), at(0));
        let commands = candidates_of(&index);
        assert_eq!(standing(&index, &commands), ["node-0", "node-1", "node-2"], "of the budget");
        index.apply(pod("shop", "new", json!({ "spec": { "nodeName": "node-0" } })), at(0));
        let annotations = json!({ "karpenter.sh/do-not-disrupt": "true" });
        let object = json!({
            "metadata": { "annotations": annotations }, "spec": { "nodeName": "node-1" },
        });
        index.apply(pod("shop", "protected", object), at(0));
        assert_eq!(standing(&index, &commands), ["node-2", "node-3"]);
        set_condition(&mut index, "claim-2", "DisruptionReason", "1970-01-01T00:00:00Z");
        assert_eq!(standing(&index, &commands), ["node-3"]);
    }
}
