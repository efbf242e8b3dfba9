//! Whether a step pays: saving, payback, the `Balanced` policy, and the rules for spot capacity.

use std::collections::BTreeMap;

use nap_units::UsdPerHour;

use crate::model::{
    Candidate, CapacityType, ConsolidationOptions, Fleet, KeepReason, Launch, PoolRules,
};

/// Cheaper types that must be on sale for a spot node to be replaced by a spot node.
const MIN_SPOT_TYPES: usize = 15;

/// Smallest score of the `Balanced` policy, in thousandths.
const MIN_BALANCED_SCORE: i64 = 500;

/// A step that is being considered.
pub(super) struct Proposal<'p> {
    pub(super) removed: &'p [&'p Candidate],
    /// Cost of the nodes that would be launched.
    pub(super) cost: UsdPerHour,
    /// Number of pods that would move.
    pub(super) evictions: usize,
    pub(super) launches: usize,
}

impl Proposal<'_> {
    fn price(&self, options: &ConsolidationOptions) -> UsdPerHour {
        self.removed.iter().map(|one| one.price + options.solve.node_cost).sum()
    }

    /// Highest cost of new nodes at which the saving is large enough.
    pub(super) fn most(&self, options: &ConsolidationOptions) -> UsdPerHour {
        self.price(options) - self.least_saving(options)
    }

    /// Smallest saving if nodes are launched.
    fn least_saving(&self, options: &ConsolidationOptions) -> UsdPerHour {
        let of_node = |one: &&Candidate| {
            let percent = one.min_saving_percent.max(options.min_saving_percent);
            (one.price + options.solve.node_cost).micros().saturating_mul(percent)
        };
        let sum = self.removed.iter().map(of_node).fold(0, i64::saturating_add);
        UsdPerHour::from_micros((sum / 100).max(1))
    }

    /// Checks that the step pays. An error is the reason to keep its nodes.
    pub(super) fn check(
        &self,
        fleet: &Fleet,
        options: &ConsolidationOptions,
    ) -> Result<(), KeepReason> {
        let price = self.price(options);
        let saving = price - self.cost;
        // Whatever a node costs beside its price, the bill must get smaller.
        let bill: UsdPerHour = self.removed.iter().map(|one| one.price).sum();
        let launched = i64::try_from(self.launches).unwrap_or(i64::MAX);
        let node_cost = options.solve.node_cost.micros().saturating_mul(launched);
        let new_bill = self.cost - UsdPerHour::from_micros(node_cost);
        if saving <= UsdPerHour::ZERO || (self.launches > 0 && new_bill >= bill) {
            return Err(KeepReason::NoCheaper { cost: self.cost });
        }
        if self.launches > 0 {
            let least = self.least_saving(options);
            if saving < least {
                let percents = self.removed.iter().map(|one| one.min_saving_percent);
                let percent = percents.fold(options.min_saving_percent, i64::max);
                let grows = percent > options.min_saving_percent;
                return Err(KeepReason::SmallSaving { saving, least, percent, grows });
            }
        }
        let life = self.remaining_life();
        let gain = saving.cost_micros(life);
        let evictions = i64::try_from(self.evictions).unwrap_or(i64::MAX);
        let effort = evictions
            .saturating_mul(options.eviction_cost)
            .saturating_add(self.cost.cost_micros(options.overlap));
        if gain < effort {
            return Err(KeepReason::Payback {
                saving,
                gain,
                effort,
                life,
                evictions: self.evictions,
                eviction_cost: options.eviction_cost,
                overlap: if self.launches > 0 { options.overlap } else { 0 },
            });
        }
        match self.balanced_score(fleet, saving) {
            Some(score) if score < MIN_BALANCED_SCORE => Err(KeepReason::Balanced { score }),
            _ => Ok(()),
        }
    }

    /// Remaining life of the removed nodes, in seconds: the mean, weighted by their prices.
    fn remaining_life(&self) -> i64 {
        let sum = |of: &dyn Fn(&Candidate) -> i128| -> i128 {
            self.removed.iter().map(|one| of(one)).sum()
        };
        let weights = sum(&|one| i128::from(one.price.micros().max(1)));
        let weighted =
            sum(&|one| i128::from(one.price.micros().max(1)) * i128::from(one.remaining_life));
        i64::try_from(weighted / weights.max(1)).unwrap_or(i64::MAX)
    }

    /// The lowest score over the pools with the `Balanced` policy, in thousandths; `None` without
    /// such a pool. The saving is split over the pools by the price of what they lose.
    fn balanced_score(&self, fleet: &Fleet, saving: UsdPerHour) -> Option<i64> {
        let mut by_pool: BTreeMap<&str, (i128, i128)> = BTreeMap::new();
        for one in self.removed {
            let (price, disruption) = by_pool.entry(&one.pool).or_default();
            *price += i128::from(one.price.micros());
            *disruption += i128::from(one.disruption_cost);
        }
        let all: i128 = by_pool.values().map(|(price, _)| price).sum();
        let scores = by_pool.into_iter().filter_map(|(pool, (price, disruption))| {
            let rules = fleet.pools.get(pool).filter(|rules| rules.balanced)?;
            let share = i128::from(saving.micros()) * price / all.max(1);
            Some(score(rules, share, disruption))
        });
        scores.min()
    }

    /// Checks the rules for spot capacity on the launches of the step.
    pub(super) fn check_spot(&self, fleet: &Fleet, launches: &[Launch]) -> Result<(), KeepReason> {
        let is_spot = |one: &&Candidate| one.capacity_type == Some(CapacityType::Spot);
        let launches_spot = launches.iter().any(|one| one.capacity_type == CapacityType::Spot);
        if !launches_spot || !self.removed.iter().all(is_spot) {
            return Ok(());
        }
        let allows =
            |one: &&Candidate| fleet.pools.get(&one.pool).is_some_and(|rules| rules.spot_to_spot);
        if !self.removed.iter().all(allows) {
            return Err(KeepReason::SpotToSpot);
        }
        let [old] = self.removed else { return Ok(()) };
        // Of several new nodes, the one with the fewest cheaper types counts.
        let spot = launches.iter().filter(|one| one.capacity_type == CapacityType::Spot);
        let types = spot.map(|new| cheaper_spot_types(old, new)).min().unwrap_or(0);
        if types < MIN_SPOT_TYPES {
            return Err(KeepReason::FewSpotTypes { types });
        }
        Ok(())
    }
}

/// Number of spot types that hold the pods of a new node for less than an old one costs.
fn cheaper_spot_types(old: &Candidate, new: &Launch) -> usize {
    let others = new.alternatives.iter();
    let mut types: Vec<&str> = others
        .filter(|one| one.capacity_type == CapacityType::Spot && one.price < old.price)
        .map(|one| &*one.instance_type)
        .chain([new.instance_type.as_str()])
        .collect();
    types.sort_unstable();
    types.dedup();
    types.len()
}

/// Saving over disruption, each as a share of the pool's, in thousandths.
fn score(rules: &PoolRules, saving: i128, disruption: i128) -> i64 {
    let (cost, total) = (i128::from(rules.cost.micros()), i128::from(rules.disruption_cost));
    if saving <= 0 || cost <= 0 || total <= 0 {
        return 0;
    }
    if disruption <= 0 {
        return i64::MAX;
    }
    i64::try_from(saving * total * 1000 / (cost * disruption)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dollars(micros: i64) -> UsdPerHour {
        UsdPerHour::from_micros(micros)
    }

    fn rules(cost: i64, disruption_cost: i64) -> PoolRules {
        PoolRules { cost: dollars(cost), disruption_cost, ..PoolRules::default() }
    }

    #[test]
    fn the_balanced_score_is_the_incumbents() {
        let pool = rules(58_080_000, 80_000);
        let score = |saving, disruption| super::score(&pool, saving, disruption);
        assert_eq!(score(7_260_000, 3_000), 3333);
        assert_eq!(score(4_840_000, 4_000), 1666);
        assert_eq!(score(2_420_000, 8_000), 416);
        assert_eq!(score(0, 1_000), 0);
        assert_eq!(score(4_840_000, 0), i64::MAX);
        assert_eq!(super::score(&rules(0, 0), 1, 1), 0);
        assert_eq!(super::score(&rules(48_400_000, 80_000), 2_420_000, 8_000), 500);
    }

    fn candidate(price: i64, remaining_life: i64) -> Candidate {
        Candidate {
            pool: "p".to_owned(),
            price: dollars(price),
            remaining_life,
            disruption_cost: 2000,
            ..Candidate::default()
        }
    }

    fn check(candidate: &Candidate, cost: i64, evictions: usize) -> Result<(), KeepReason> {
        let launches = usize::from(cost > 0);
        let removed = [candidate];
        let proposal = Proposal { removed: &removed, cost: dollars(cost), evictions, launches };
        proposal.check(&Fleet::default(), &ConsolidationOptions::default())
    }

    #[test]
    fn a_replacement_must_save_fifteen_percent() {
        let node = candidate(100_000, 86_400);
        assert_eq!(check(&node, 85_000, 1), Ok(()));
        assert!(matches!(check(&node, 85_001, 1), Err(KeepReason::SmallSaving { .. })));
        assert!(matches!(check(&node, 100_000, 1), Err(KeepReason::NoCheaper { .. })));
    }

    #[test]
    fn a_node_may_ask_for_more_and_a_removal_for_nothing() {
        let node = Candidate { min_saving_percent: 60, ..candidate(100_000, 86_400) };
        assert_eq!(check(&node, 40_000, 1), Ok(()));
        assert!(matches!(check(&node, 40_001, 1), Err(KeepReason::SmallSaving { .. })));
        assert_eq!(check(&node, 0, 1), Ok(()));
        let less = Candidate { min_saving_percent: 5, ..node };
        assert!(matches!(check(&less, 85_001, 1), Err(KeepReason::SmallSaving { .. })));
    }

    #[test]
    fn a_step_must_pay_for_its_evictions_within_the_remaining_life() {
        // $0.1 for half an hour is $0.05, and 100 evictions cost as much.
        let node = candidate(100_000, 1800);
        assert_eq!(check(&node, 0, 100), Ok(()));
        assert!(matches!(check(&node, 0, 101), Err(KeepReason::Payback { .. })));
    }
}
