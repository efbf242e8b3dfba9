//! Consolidation: nodes whose removal or replacement saves money.

use std::cmp::Reverse;

use jiff::Timestamp;
use nap_api::nodeclaim::condition::CONSOLIDATABLE;
use nap_api::nodepool::{ConsolidationPolicy, DisruptionReason};
use nap_engine::{CapacityType, Plan};
use nap_units::UsdPerHour;

use super::backoff::Backoff;
use super::budgets::Budgets;
use super::candidates::Candidate;
use crate::cluster::claim_is;

/// Most nodes that replace one node.
const MAX_REPLACEMENTS: usize = 3;
/// Smallest saving of a replacement, in percent of the old price.
const MIN_SAVING_PERCENT: i64 = 2;

/// Candidates whose removal or replacement saves money, the largest saving first; of equal savings
/// in the order of the candidates. `simulate` returns `None` where the pods have no places.
pub fn find<'c>(
    candidates: &'c [Candidate],
    budgets: &Budgets,
    backoff: &Backoff,
    now: Timestamp,
    mut simulate: impl FnMut(&Candidate) -> Option<Plan>,
) -> Vec<(&'c Candidate, Plan)> {
    let is_eligible = |candidate: &&Candidate| {
        let (pool, reason) = (candidate.pool_name(), DisruptionReason::Underutilized);
        is_underutilizable(candidate)
            && budgets.left(&pool, reason) > 0
            && !backoff.is_resting(&pool, reason, now)
    };
    let mut found: Vec<(UsdPerHour, &Candidate, Plan)> = Vec::new();
    for candidate in candidates.iter().filter(is_eligible) {
        let Some(plan) = simulate(candidate) else { continue };
        if let Some(saving) = saving(candidate, &plan) {
            found.push((saving, candidate, plan));
        }
    }
    found.sort_by_key(|(saving, _, _)| Reverse(*saving));
    found.into_iter().map(|(_, candidate, plan)| (candidate, plan)).collect()
}

/// Saving by the removal or replacement of a node; `None` if it is not worth moving pods.
pub fn saving(candidate: &Candidate, plan: &Plan) -> Option<UsdPerHour> {
    let price = candidate.price?;
    let worth = is_worth_it(plan, price) && !is_spot_to_spot(candidate, plan);
    worth.then(|| price - plan.cost)
}

/// Whether the NodePool consolidates nodes with pods, and the node has been quiet for long enough.
pub fn is_underutilizable(candidate: &Candidate) -> bool {
    let policy = candidate.pool.spec.disruption.consolidation_policy;
    policy == ConsolidationPolicy::WhenEmptyOrUnderutilized
        && !candidate.pods.is_empty()
        && candidate.is_graceful()
        && candidate.price.is_some()
        && claim_is(&candidate.claim, CONSOLIDATABLE)
}

/// Whether a saving justifies moving pods. A removal always does; a replacement must save at least
/// [`MIN_SAVING_PERCENT`] and not scatter the pods over more than [`MAX_REPLACEMENTS`] nodes.
fn is_worth_it(plan: &Plan, price: UsdPerHour) -> bool {
    let saving = (price - plan.cost).micros();
    if plan.launches.is_empty() {
        return saving > 0;
    }
    plan.launches.len() <= MAX_REPLACEMENTS
        && saving > 0
        && saving * 100 >= price.micros() * MIN_SAVING_PERCENT
}

/// Whether a spot node would be replaced by a spot node: that moves pods towards the capacity that
/// is evicted next.
fn is_spot_to_spot(candidate: &Candidate, plan: &Plan) -> bool {
    candidate.capacity_type == Some(CapacityType::Spot)
        && plan.launches.iter().any(|launch| launch.capacity_type == CapacityType::Spot)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Index;
    use crate::testing::{at, candidates_of, cluster_of, launch, pod, pool};
    use serde_json::json;

    fn dollars(micros: i64) -> UsdPerHour {
        UsdPerHour::from_micros(micros)
    }

    fn plan(prices: &[i64]) -> Plan {
        let launches = prices.iter().map(|price| launch("D2", *price)).collect();
        Plan { launches, cost: dollars(prices.iter().sum()), ..Plan::default() }
    }

    #[test]
    fn a_removal_is_worth_it_if_the_node_costs_anything() {
        assert!(is_worth_it(&plan(&[]), dollars(1)));
        assert!(!is_worth_it(&plan(&[]), dollars(0)));
    }

    #[test]
    fn a_replacement_must_save_two_percent() {
        assert!(is_worth_it(&plan(&[98]), dollars(100)));
        assert!(!is_worth_it(&plan(&[99]), dollars(100)));
        assert!(!is_worth_it(&plan(&[120]), dollars(100)));
    }

    #[test]
    fn a_node_is_not_scattered_over_more_than_three() {
        assert!(is_worth_it(&plan(&[10, 10, 10]), dollars(100)));
        assert!(!is_worth_it(&plan(&[10, 10, 10, 10]), dollars(100)));
    }

    /// Two nodes with a pod each, at $0.1 and $0.2 an hour.
    fn priced() -> (Index, Vec<Candidate>) {
        let mut index = cluster_of(2);
        for number in 0..2 {
            let bound = json!({ "spec": { "nodeName": format!("node-{number}") } });
            index.apply(pod("shop", &format!("web-{number}"), bound), at(0));
        }
        let mut candidates = candidates_of(&index);
        candidates[0].price = Some(dollars(100_000));
        candidates[1].price = Some(dollars(200_000));
        (index, candidates)
    }

    fn found<'c>(
        candidates: &'c [Candidate],
        budgets: &Budgets,
        plan: &Plan,
    ) -> Vec<(&'c Candidate, Plan)> {
        find(candidates, budgets, &Backoff::default(), at(0), |_| Some(plan.clone()))
    }

    fn best(candidates: &[Candidate], index: &Index, cost: &[i64]) -> Option<String> {
        let budgets = Budgets::new(index, at(0));
        let found = found(candidates, &budgets, &plan(cost));
        found.first().map(|(candidate, _)| candidate.name().to_owned())
    }

    #[test]
    fn the_largest_saving_wins() {
        let (index, candidates) = priced();
        assert_eq!(best(&candidates, &index, &[50_000]).as_deref(), Some("node-1"));
        assert_eq!(best(&candidates, &index, &[300_000]), None);
    }

    #[test]
    fn spot_is_not_replaced_by_spot() {
        let (index, mut candidates) = priced();
        candidates.truncate(1);
        candidates[0].capacity_type = Some(CapacityType::Spot);
        let mut spot = plan(&[10]);
        spot.launches[0].capacity_type = CapacityType::Spot;
        let budgets = Budgets::new(&index, at(0));
        assert!(found(&candidates, &budgets, &spot).is_empty());
        candidates[0].capacity_type = Some(CapacityType::OnDemand);
        assert_eq!(found(&candidates, &budgets, &spot).len(), 1);
    }

    #[test]
    fn a_resting_pool_is_not_consolidated() {
        let (index, candidates) = priced();
        let budgets = Budgets::new(&index, at(0));
        let mut backoff = Backoff::default();
        backoff.fail("claim-0", "p", DisruptionReason::Underutilized, at(0));
        let found = |seconds| {
            find(&candidates, &budgets, &backoff, at(seconds), |_| Some(Plan::default())).len()
        };
        assert_eq!((found(59), found(60)), (0, 2));
    }

    #[test]
    fn a_pool_that_removes_only_empty_nodes_is_left_alone() {
        let (mut index, _) = priced();
        let disruption = json!({ "consolidationPolicy": "WhenEmpty" });
        index.apply(pool("p", json!({ "spec": { "disruption": disruption } })), at(0));
        let mut candidates = candidates_of(&index);
        for candidate in &mut candidates {
            candidate.price = Some(dollars(100_000));
        }
        assert_eq!(best(&candidates, &index, &[]), None);
    }

    #[test]
    fn a_node_without_a_known_price_is_not_consolidated() {
        let (index, mut candidates) = priced();
        for candidate in &mut candidates {
            candidate.price = None;
        }
        assert_eq!(best(&candidates, &index, &[]), None);
    }
}
