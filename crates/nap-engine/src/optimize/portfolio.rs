//! The portfolio: several strategies pack the same pods, and the best packing is kept.

use std::collections::BTreeMap;

use nap_units::UsdPerHour;

use crate::classes::{Class, Classes};
use crate::model::Tier;
use crate::offerings::index::OfferingIndex;
use crate::optimize::column_solution::ColumnSolution;
use crate::optimize::lower_bound::{PodDuals, lower_bound, reserved_capacity};
use crate::optimize::ruin_and_recreate::ruin_and_recreate;
use crate::optimize::scheduler_replay::pods_unbound_without_nomination;
use crate::packing::packer::{ClusterState, PackingProblem, pack};
use crate::packing::result::Packing;
use crate::packing::rounded_columns::RoundedColumns;
use crate::packing::size_caps;
use crate::packing::strategy::{FillRule, SizeCap, Strategy};

/// Upper limit on the size caps, one packing each.
const MAX_SIZE_CAPS: usize = 12;

/// Effort, in all and per pod, after which no further strategy is tried. The most promising
/// strategies come first.
const MAX_EFFORT: usize = 20_000_000;
const EFFORT_PER_POD: usize = 1_000;

/// Effort of ruin and recreate, in all and per pod.
const MAX_RUIN_EFFORT: usize = 4_000_000;
const RUIN_EFFORT_PER_POD: usize = 2_000;

/// A packing whose cost exceeds the lower bound by at most a 400th of it (0.25 %) is good enough.
const GOOD_ENOUGH_DIVISOR: i64 = 400;

/// Fractions of a column from which it is rounded up; one packing each.
pub(super) const ROUNDING_THRESHOLDS: [f64; 3] = [0.9, 0.6, 0.3];

/// Upper limit on the pods for which a bound by whole pods is computed if some have topology
/// constraints. Among many pods it matters little that they are not divisible.
const MAX_CONSTRAINED_PODS_PRICED: usize = 256;

/// A packing with its score.
pub(crate) struct Candidate {
    pub(crate) score: Score,
    pub(crate) packing: Packing,
    pub(crate) tier: Tier,
}

/// Quality of a packing; lower is better, in the order of the fields.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Score {
    /// Number of pods without a place, from the highest priority down.
    pub(crate) unplaced: Vec<usize>,
    cost: UsdPerHour,
    nodes: usize,
}

impl Score {
    fn of(packing: &Packing, cost: UsdPerHour, classes: &Classes<'_>) -> Self {
        let mut unplaced: BTreeMap<i32, usize> = BTreeMap::new();
        for (class, count) in classes.list.iter().zip(&packing.unplaced) {
            *unplaced.entry(class.priority).or_default() += count;
        }
        Self { unplaced: unplaced.into_values().rev().collect(), cost, nodes: packing.bins.len() }
    }

    /// Whether some pod has no place.
    pub(crate) fn leaves_pods(&self) -> bool {
        self.unplaced.iter().any(|count| *count > 0)
    }
}

/// Result of a portfolio.
pub(crate) struct Outcome {
    pub(crate) best: Candidate,
    /// The baseline leaves pods without a place.
    pub(crate) baseline_leaves_pods: bool,
    /// Duals of the pods, where they were computed.
    pub(crate) pod_duals: Option<PodDuals>,
}

/// Packs by the baseline alone: first fit in the incumbent's order.
pub(crate) fn baseline<'a>(
    offerings: &mut OfferingIndex<'a>,
    problem: &PackingProblem<'_, 'a>,
    cluster: &ClusterState<'a>,
) -> Outcome {
    let Portfolio { best, .. } = Portfolio::new(offerings, problem, cluster);
    let baseline_leaves_pods = best.score.leaves_pods();
    Outcome { best, baseline_leaves_pods, pod_duals: None }
}

/// Packs by the baseline and the other strategies, and keeps the best packing.
pub(crate) fn best_packing<'a>(
    offerings: &mut OfferingIndex<'a>,
    problem: &PackingProblem<'_, 'a>,
    cluster: &ClusterState<'a>,
) -> Outcome {
    let mut portfolio = Portfolio::new(offerings, problem, cluster);
    let baseline_leaves_pods = portfolio.best.score.leaves_pods();
    let strategies = strategies(offerings, problem);
    if !strategies.is_empty() {
        portfolio.bound = bound_for_all(offerings, problem, cluster, None);
    }
    for strategy in strategies {
        if portfolio.is_over(offerings) {
            break;
        }
        portfolio.try_strategy(offerings, strategy, None);
    }
    let mut pod_duals = None;
    let is_constrained = is_constrained(problem);
    let is_small = problem.pending.iter().sum::<usize>() <= MAX_CONSTRAINED_PODS_PRICED;
    if (!is_constrained || is_small) && !portfolio.is_good_enough() {
        // The remaining gap may be due to a bound that knows only resources.
        pod_duals = PodDuals::of(offerings, problem, &portfolio.best.packing);
        let bound = bound_for_all(offerings, problem, cluster, pod_duals.as_ref());
        portfolio.bound = portfolio.bound.max(bound);
    }
    if !is_constrained {
        portfolio.try_columns(offerings);
    }
    if !portfolio.keeps_ledger && !portfolio.is_good_enough() {
        portfolio.improve(offerings);
    }
    portfolio.gather_blockers(offerings);
    Outcome { best: portfolio.best, baseline_leaves_pods, pod_duals }
}

/// The strategies besides the baseline, the most promising first.
fn strategies(offerings: &OfferingIndex<'_>, problem: &PackingProblem<'_, '_>) -> Vec<Strategy> {
    let mut strategies = Vec::new();
    if problem.pending.iter().all(|count| *count == 0) {
        return strategies;
    }
    let is_constrained = is_constrained(problem);
    // Where rules force a number of nodes, sizes far from the average load have no prospect.
    let forced = if is_constrained {
        size_caps::around_forced_average(offerings, problem)
    } else {
        Vec::new()
    };
    if is_constrained {
        let mut caps: Vec<SizeCap> = forced.iter().rev().copied().map(SizeCap::Cpu).collect();
        if caps.is_empty() {
            caps.push(SizeCap::BestValue);
        }
        let fill_rule = FillRule::ConstrainedPatterns;
        strategies.extend(caps.into_iter().map(|cap| Strategy { cap, fill_rule }));
        // A quick strategy between those that take long.
        let quick = forced.first().map(|cpu| Strategy::first_fit(SizeCap::Cpu(*cpu)));
        strategies.splice(1..1, quick);
    }
    strategies.push(Strategy { cap: SizeCap::BestValue, fill_rule: FillRule::Patterns });
    let mut caps = vec![SizeCap::BestValue];
    if forced.is_empty() {
        caps.push(SizeCap::None);
        let sizes = size_caps::doubling(offerings, MAX_SIZE_CAPS);
        caps.extend(sizes.into_iter().rev().map(SizeCap::Cpu));
    } else {
        caps.extend(forced.into_iter().skip(1).map(SizeCap::Cpu));
    }
    strategies.extend(caps.into_iter().map(Strategy::first_fit));
    strategies
}

/// Whether any pending pod has topology constraints.
fn is_constrained(problem: &PackingProblem<'_, '_>) -> bool {
    let waiting = problem.classes.list.iter().zip(problem.pending).filter(|(_, count)| **count > 0);
    waiting.map(|(class, _)| class).any(Class::is_constrained)
}

/// Lower bound on the cost of placing all pending pods.
fn bound_for_all(
    offerings: &mut OfferingIndex<'_>,
    problem: &PackingProblem<'_, '_>,
    cluster: &ClusterState<'_>,
    pod_duals: Option<&PodDuals>,
) -> UsdPerHour {
    let existing = &cluster.existing;
    let mut free: Vec<Vec<i64>> =
        existing.nodes.ids().map(|node| existing.free(node).to_vec()).collect();
    free.extend(reserved_capacity(offerings, problem.reservations));
    lower_bound(offerings, problem.classes, problem.pending, &free, pod_duals)
}

/// The packings of one problem, of which the best is kept.
struct Portfolio<'c, 'a> {
    problem: &'c PackingProblem<'c, 'a>,
    cluster: &'c ClusterState<'a>,
    best: Candidate,
    /// Lower bound on the cost of any packing.
    bound: UsdPerHour,
    /// Whether packings keep a limit ledger. Most limits are far away; a ledger is kept from the
    /// first packing on that exceeds one.
    keeps_ledger: bool,
}

impl<'c, 'a> Portfolio<'c, 'a> {
    /// Begins with the baseline.
    fn new(
        offerings: &mut OfferingIndex<'a>,
        problem: &'c PackingProblem<'c, 'a>,
        cluster: &'c ClusterState<'a>,
    ) -> Self {
        let mut keeps_ledger = false;
        let baseline = Strategy::BASELINE;
        let best = candidate(offerings, problem, cluster, baseline, None, &mut keeps_ledger);
        Self { problem, cluster, best, bound: UsdPerHour::ZERO, keeps_ledger }
    }

    /// Packs by one strategy, and keeps the packing if it is the best so far.
    fn try_strategy(
        &mut self,
        offerings: &mut OfferingIndex<'a>,
        strategy: Strategy,
        columns: Option<&RoundedColumns<'_>>,
    ) {
        let Self { problem, cluster, keeps_ledger, .. } = self;
        let found = candidate(offerings, problem, cluster, strategy, columns, keeps_ledger);
        let (new, old) = (&found.score, &self.best.score);
        let is_tie = new.unplaced == old.unplaced && new.cost == old.cost;
        let is_better = if is_tie && new.cost > UsdPerHour::ZERO {
            // At the same cost, the packing that the scheduler reproduces more by itself is better.
            let mut unbound = |packing: &Packing| {
                pods_unbound_without_nomination(offerings, self.problem, packing)
            };
            match (unbound(&found.packing), unbound(&self.best.packing)) {
                (Some(mine), Some(theirs)) => (mine, new.nodes) < (theirs, old.nodes),
                _ => false,
            }
        } else {
            new < old
        };
        if is_better {
            self.best = found;
        }
    }

    /// Whether the best packing is so close to the lower bound that nothing else is tried.
    fn is_good_enough(&self) -> bool {
        let score = &self.best.score;
        let above = score.cost.micros() - self.bound.micros();
        !score.leaves_pods() && above <= self.bound.micros() / GOOD_ENOUGH_DIVISOR
    }

    fn is_over(&self, offerings: &OfferingIndex<'_>) -> bool {
        let pods: usize = self.problem.pending.iter().sum();
        let max = MAX_EFFORT.saturating_add(pods.saturating_mul(EFFORT_PER_POD));
        self.is_good_enough() || offerings.effort.spent() > max
    }

    /// Improves the best packing by ruin and recreate.
    fn improve(&mut self, offerings: &mut OfferingIndex<'a>) {
        let Candidate { packing, tier, score } = &mut self.best;
        let pods: usize = self.problem.pending.iter().sum();
        let max = pods.saturating_mul(RUIN_EFFORT_PER_POD).min(MAX_RUIN_EFFORT);
        let by_columns = is_constrained(self.problem);
        if ruin_and_recreate(offerings, self.problem, packing, max, by_columns) {
            *tier = Tier::RuinAndRecreate;
            *score = Score::of(packing, packing.cost(), self.problem.classes);
        }
    }

    /// Lets pods that block disruption share nodes, at no cost.
    fn gather_blockers(&mut self, offerings: &OfferingIndex<'a>) {
        // Bins within a limit cannot be priced one by one.
        if self.keeps_ledger {
            return;
        }
        let Candidate { packing, score, .. } = &mut self.best;
        if packing.gather_blockers(offerings, self.problem.classes, self.problem.max_pods) {
            *score = Score::of(packing, packing.cost(), self.problem.classes);
        }
    }

    /// Packs the nodes of column generation, rounded at several thresholds.
    fn try_columns(&mut self, offerings: &mut OfferingIndex<'a>) {
        if self.keeps_ledger || self.is_good_enough() {
            return;
        }
        let Some(solution) = ColumnSolution::of(offerings, self.problem, &self.best.packing) else {
            return;
        };
        let strategy = Strategy { cap: SizeCap::BestValue, fill_rule: FillRule::Columns };
        for threshold in ROUNDING_THRESHOLDS {
            let columns = solution.round(threshold);
            self.try_strategy(offerings, strategy, Some(&columns));
            if self.is_good_enough() || self.keeps_ledger {
                break;
            }
        }
    }
}

/// Packs by one strategy; again with a limit ledger if a limit was exceeded without one.
fn candidate<'a>(
    offerings: &mut OfferingIndex<'a>,
    problem: &PackingProblem<'_, 'a>,
    cluster: &ClusterState<'a>,
    strategy: Strategy,
    columns: Option<&RoundedColumns<'_>>,
    keeps_ledger: &mut bool,
) -> Candidate {
    let (packing, cost) = loop {
        let mut packing =
            pack(offerings, problem, cluster.clone(), strategy, *keeps_ledger, columns);
        match packing.price(offerings, *keeps_ledger) {
            Some(cost) => break (packing, cost),
            None => *keeps_ledger = true,
        }
    };
    let score = Score::of(&packing, cost, problem.classes);
    Candidate { score, packing, tier: strategy.tier() }
}
