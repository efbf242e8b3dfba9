//! The portfolio: several packings, of which the best becomes the plan.

use std::collections::BTreeMap;
use std::rc::Rc;

use nap_api::labels;
use nap_units::UsdPerHour;

use crate::classes::grouping::Groups;
use crate::classes::relaxation::Levels;
use crate::classes::{Class, Classes, Dimensions};
use crate::explain::refusal::RefusalBuilder;
use crate::model::{
    Options, Placement, Plan, Pod, PreferencePolicy, Refusal, Snapshot, Tier, Unplaced,
};
use crate::offerings::daemon_overhead::SolverCache;
use crate::offerings::index::OfferingIndex;
use crate::offerings::shadow_prices::worth;
use crate::optimize::lower_bound::{PodDuals, lower_bound};
use crate::optimize::ruin_and_recreate::repair;
use crate::optimize::scheduler_replay::pods_unbound_without_nomination;
use crate::packing::existing::{ExistingNodes, ExistingPlacement};
use crate::packing::first_fit::{ClusterState, FillRule, PackingProblem, SizeCap, Strategy, pack};
use crate::packing::result::Packing;
use crate::packing::rounded_columns::{ColumnSolution, RoundedColumns};
use crate::plan::alternatives_cache::Choices;
use crate::plan::launches::Buyer;
use crate::topology::counts::Topology;
use crate::topology::groups::TopologyRules;

/// The most sizes at which nodes are capped, one attempt each.
const MAX_LEVELS: usize = 12;

/// Roughly how many comparisons may be made, in all and for each pod, before no further packing is
/// tried: a bound on time that is the same on every machine. The packings that find most are tried
/// first.
const MAX_EFFORT: usize = 20_000_000;
const EFFORT_PER_POD: usize = 1_000;

/// The same for taking nodes apart again.
const MAX_REPAIRS: usize = 4_000_000;
const REPAIRS_PER_POD: usize = 2_000;

/// A plan that is no further above the bound than its so-manieth part is good enough: nothing else
/// is tried.
const GOOD_ENOUGH: i64 = 400;

/// The incumbent's fill_rule: the plan may never be worse than this.
const BASELINE: Strategy = Strategy { cap: SizeCap::None, fill_rule: FillRule::Incumbent };

/// Decides where the pods of a snapshot go.
///
/// It cannot fail: a pod that it cannot place is in the plan with the reason. The same snapshot
/// gives the same plan to the byte, in whatever order its pods, nodes and pools are listed.
pub fn solve(snapshot: &Snapshot, options: &Options) -> Plan {
    decide(&SolverCache::new(snapshot), snapshot, options, true)
}

/// The plan that the incumbent's fill_rule alone would give: first fit without regard to price, then
/// the cheapest type for each node. [`solve`] is never worse; this is what it is measured against,
/// and it has no bound.
pub fn solve_first_fit(snapshot: &Snapshot, options: &Options) -> Plan {
    decide(&SolverCache::new(snapshot), snapshot, options, false)
}

/// The same as [`solve`] with what was prepared before for the same pools, daemons and catalogues;
/// if they are not the same, it is of no use and no harm.
pub fn solve_with(prepared: &SolverCache, snapshot: &Snapshot, options: &Options) -> Plan {
    if prepared.suits(snapshot) {
        decide(prepared, snapshot, options, true)
    } else {
        solve(snapshot, options)
    }
}

/// A plan, how good it is, and whether it might be better without what pods would like.
#[derive(Default)]
struct Decision {
    plan: Plan,
    score: Score,
    may_ignore: bool,
}

/// The better plan of two where it matters: nobody goes without a place for what others would like,
/// nor for room to spare.
fn decide(prepared: &SolverCache, snapshot: &Snapshot, options: &Options, portfolio: bool) -> Plan {
    let mut best = attempt(prepared, snapshot, options, portfolio);
    let mut options = options.clone();
    if options.slack_percent > 0 && best.score.unplaced.iter().any(|count| *count > 0) {
        options.slack_percent = 0;
        let tight = attempt(prepared, snapshot, &options, portfolio);
        if tight.score.unplaced < best.score.unplaced {
            best = tight;
        }
    }
    if best.may_ignore {
        options.preferences = PreferencePolicy::Ignore;
        let other = attempt(prepared, snapshot, &options, portfolio);
        if other.score < best.score {
            best = other;
        }
    }
    best.plan
}

fn attempt(
    prepared: &SolverCache,
    snapshot: &Snapshot,
    options: &Options,
    portfolio: bool,
) -> Decision {
    let groups = Groups::of(snapshot);
    let levels = Levels::of(&groups.list, snapshot, options);
    let kinds: Vec<&Pod> = levels.list.iter().map(|level| &*level.pod).collect();
    let rules = Rc::new(TopologyRules::of(&kinds, snapshot));
    let dimensions = Dimensions::of(&kinds, snapshot, &rules);
    let classes = Classes::of(&groups.list, &levels, &dimensions, &rules);
    let mut offerings =
        OfferingIndex::new(prepared, snapshot, options, &dimensions, &classes, &rules.keys);
    let mut standing = ExistingNodes::of(snapshot, &dimensions, &rules, &mut offerings);
    let mut topology = Topology::new(
        &rules,
        &standing.nodes,
        &standing.labels,
        &mut offerings,
        &snapshot.reservations,
    );
    let (placed, mut seated) = standing.fill(&classes, &mut topology);
    let pending: Vec<usize> =
        classes.list.iter().zip(&placed).map(|(class, placed)| class.pods.len() - placed).collect();
    let ground =
        ClusterState { standing, topology, skews: rules.skews().into(), rules: Rc::clone(&rules) };
    let most_pods = options
        .max_pods_per_node
        .map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX));
    let least = classes.least_to_come();
    let reservations = &snapshot.reservations;
    let most_pods = most_pods.max(1);
    let worth = if portfolio { worth(&offerings, &classes.demand(&pending)) } else { Vec::new() };
    let worth = &worth;
    let task = PackingProblem {
        classes: &classes,
        pending: &pending,
        most_pods,
        reservations,
        least: &least,
        worth,
    };
    let Best { entry, guard_lacks, pod_worth } =
        best_packing(&mut offerings, &task, &ground, portfolio);
    let Candidate { score, packing, tier } = entry;
    let may_ignore = guard_lacks && classes.list.iter().any(Class::has_preferences);

    let mut plan = Plan { tier, ..Plan::default() };
    for (pod, field) in &groups.unsupported {
        let refusal = Refusal::Unsupported { field: (*field).to_owned() };
        plan.unplaced.push(Unplaced { pod: (*pod).clone(), refusal });
    }
    let unplaced =
        classes.list.iter().zip(&packing.unplaced).filter(|(_, unplaced)| **unplaced > 0);
    for (class, unplaced) in unplaced {
        let mut asker = RefusalBuilder {
            offerings: &mut offerings,
            rules: &rules,
            dimensions: &dimensions,
            packing: &packing,
        };
        let refusal = asker.refusal(&classes.list[class.last]);
        let first = class.pods.len() - unplaced;
        for pod in class.pods.iter().skip(first) {
            plan.unplaced.push(Unplaced { pod: (*pod).clone(), refusal: refusal.clone() });
        }
    }
    plan.unplaced.sort_by(|a, b| a.pod.cmp(&b.pod));
    seated.extend(&packing.seated);
    let mut taken = vec![0; classes.list.len()];
    for ExistingPlacement { class, node, count } in seated {
        let class = classes.list[class].base;
        let pods = classes.list[class].pods.iter().skip(taken[class]).take(count);
        let node = &ground.standing.nodes[node].name;
        plan.placements
            .extend(pods.map(|pod| Placement { pod: (*pod).clone(), node: node.clone() }));
        taken[class] += count;
    }
    plan.placements.sort_by(|a, b| a.pod.cmp(&b.pod));
    let zones = zones(snapshot);
    let choices = Choices::default();
    let mut buyer = Buyer {
        offerings: &offerings,
        classes: &classes,
        dimensions: &dimensions,
        taken,
        zones,
        choices,
    };
    plan.launches = buyer.launches(&packing);
    plan.cost = plan.launches.iter().map(|launch| launch.price).sum();
    if portfolio && !classes.list.is_empty() {
        // The bound knows only what a new node would take.
        let beyond = packing
            .unplaced
            .iter()
            .zip(&packing.over_host_limit)
            .map(|(left, over_host_limit)| left + over_host_limit);
        let placed: Vec<usize> = classes
            .list
            .iter()
            .zip(beyond)
            .map(|(class, beyond)| class.pods.len() - beyond)
            .collect();
        let mut free: Vec<Vec<i64>> =
            ground.standing.nodes.iter().map(|node| dimensions.free(node)).collect();
        free.extend(prepaid(&mut offerings, reservations));
        plan.lower_bound =
            Some(lower_bound(&mut offerings, &classes, &placed, &free, pod_worth.as_ref()));
    }
    Decision { plan, score, may_ignore }
}

/// What the machines of reservations have at most: as far as the bound is concerned, they cost
/// nothing.
fn prepaid(
    offerings: &mut OfferingIndex<'_>,
    reservations: &BTreeMap<String, u32>,
) -> Vec<Vec<i64>> {
    let mut free = Vec::new();
    for (reservation, count) in reservations {
        let signatures: Vec<usize> = (0..offerings.pools.len())
            .filter_map(|pool| offerings.reserved(pool, reservation))
            .collect();
        let mut most = vec![0; offerings.width];
        for signature in signatures {
            for (most, one) in most.iter_mut().zip(&offerings.frontier(signature, i64::MAX).most) {
                *most = (*most).max(one.saturating_mul(i64::from(*count)));
            }
        }
        free.push(most);
    }
    free
}

/// The ways of packing besides the guard, those that find most first.
fn strategies(offerings: &OfferingIndex<'_>, task: &PackingProblem<'_, '_>) -> Vec<Strategy> {
    let mut strategies = Vec::new();
    if task.pending.iter().all(|count| *count == 0) {
        return strategies;
    }
    let mut caps = vec![SizeCap::BestValue];
    let is_coupled = is_coupled(task);
    let sizes = if is_coupled { offerings.sizes_for(task) } else { Vec::new() };
    if is_coupled {
        // Where rules force a number of nodes, sizes far from the average have no prospect.
        let woven = if sizes.is_empty() {
            vec![SizeCap::BestValue]
        } else {
            sizes.iter().rev().copied().map(SizeCap::Cpu).collect()
        };
        strategies
            .extend(woven.into_iter().map(|cap| Strategy { cap, fill_rule: FillRule::Woven }));
        // A quick one between those that take long.
        let quick = sizes
            .first()
            .map(|size| Strategy { cap: SizeCap::Cpu(*size), fill_rule: FillRule::InOrder });
        strategies.splice(1..1, quick);
    }
    strategies.push(Strategy { cap: SizeCap::BestValue, fill_rule: FillRule::Patterns });
    if sizes.is_empty() {
        caps.push(SizeCap::None);
        caps.extend(offerings.levels(MAX_LEVELS).into_iter().rev().map(SizeCap::Cpu));
    } else {
        caps.extend(sizes.into_iter().skip(1).map(SizeCap::Cpu));
    }
    strategies.extend(caps.into_iter().map(|cap| Strategy { cap, fill_rule: FillRule::InOrder }));
    strategies
}

/// Whether any pod that waits depends on others.
fn is_coupled(task: &PackingProblem<'_, '_>) -> bool {
    let waits = task.classes.list.iter().zip(task.pending).filter(|(_, count)| **count > 0);
    waits.map(|(class, _)| class).any(Class::is_bound_by_rules)
}

/// What placing everybody costs at least.
fn floor(
    offerings: &mut OfferingIndex<'_>,
    task: &PackingProblem<'_, '_>,
    ground: &ClusterState<'_>,
    pod_worth: Option<&PodDuals>,
) -> UsdPerHour {
    let mut free = ground.standing.free().to_vec();
    free.extend(prepaid(offerings, task.reservations));
    lower_bound(offerings, task.classes, task.pending, &free, pod_worth)
}

/// A packing, how good it is, and who found it.
struct Candidate {
    score: Score,
    packing: Packing,
    tier: Tier,
}

/// The best of several packings.
struct Best {
    entry: Candidate,
    /// The incumbent's fill_rule leaves pods without a place.
    guard_lacks: bool,
    /// What pods are worth, where it was asked.
    pod_worth: Option<PodDuals>,
}

/// Tries one strategy after another; the best packing and which part of the solver found it.
fn best_packing<'a>(
    offerings: &mut OfferingIndex<'a>,
    task: &PackingProblem<'_, 'a>,
    ground: &ClusterState<'a>,
    portfolio: bool,
) -> Best {
    let mut contest = Portfolio::begin(offerings, task, ground);
    let guard_lacks = contest.best.score.unplaced.iter().any(|count| *count > 0);
    let strategies = if portfolio { strategies(offerings, task) } else { Vec::new() };
    let mut pod_worth = None;
    if !strategies.is_empty() {
        contest.bound = floor(offerings, task, ground, None);
    }
    for strategy in strategies {
        if contest.is_over(offerings) {
            break;
        }
        contest.enter(offerings, strategy, None);
    }
    if portfolio && !is_coupled(task) && !contest.is_good() {
        // What is left may be the bound's fault.
        pod_worth = PodDuals::of(
            offerings,
            task.classes,
            task.pending,
            task.most_pods,
            &contest.best.packing,
        );
        contest.bound = contest.bound.max(floor(offerings, task, ground, pod_worth.as_ref()));
        contest.try_columns(offerings);
    }
    if portfolio && !contest.ledger && !contest.is_good() {
        contest.repair(offerings);
    }
    Best { entry: contest.best, guard_lacks, pod_worth }
}

/// The packings of one task, of which the best is kept.
struct Portfolio<'c, 'a> {
    task: &'c PackingProblem<'c, 'a>,
    ground: &'c ClusterState<'a>,
    best: Candidate,
    /// No packing costs less.
    bound: UsdPerHour,
    /// Most limits are far away. Once one was not, all are kept account of.
    ledger: bool,
}

impl<'c, 'a> Portfolio<'c, 'a> {
    /// Begins with the guard.
    fn begin(
        offerings: &mut OfferingIndex<'a>,
        task: &'c PackingProblem<'c, 'a>,
        ground: &'c ClusterState<'a>,
    ) -> Self {
        let mut ledger = false;
        let best = Self::pack(offerings, task, ground, BASELINE, None, &mut ledger);
        Self { task, ground, best, bound: UsdPerHour::ZERO, ledger }
    }

    fn pack(
        offerings: &mut OfferingIndex<'a>,
        task: &PackingProblem<'_, 'a>,
        ground: &ClusterState<'a>,
        strategy: Strategy,
        purchase: Option<&RoundedColumns<'_>>,
        ledger: &mut bool,
    ) -> Candidate {
        let (packing, cost) = loop {
            let mut packing = pack(offerings, task, ground.clone(), strategy, *ledger, purchase);
            match packing.settle(offerings, *ledger) {
                Some(cost) => break (packing, cost),
                None => *ledger = true,
            }
        };
        let tier = match (strategy.fill_rule, strategy.cap) {
            (FillRule::Patterns, _) => Tier::Patterns,
            (FillRule::Woven, _) => Tier::ConstrainedPatterns,
            (FillRule::Columns, _) => Tier::ColumnGeneration,
            (_, SizeCap::None) => Tier::FirstFit,
            _ => Tier::CappedFirstFit,
        };
        Candidate { score: Score::of(&packing, cost, task.classes), packing, tier }
    }

    /// Packs in one way, and keeps the result if it is the best so far.
    fn enter(
        &mut self,
        offerings: &mut OfferingIndex<'a>,
        strategy: Strategy,
        purchase: Option<&RoundedColumns<'_>>,
    ) {
        let entry =
            Self::pack(offerings, self.task, self.ground, strategy, purchase, &mut self.ledger);
        let (new, old) = (&entry.score, &self.best.score);
        let is_even = new.unplaced == old.unplaced && new.cost == old.cost;
        let is_better = if is_even && new.cost > UsdPerHour::ZERO {
            // At one price, the one is better that the scheduler comes to by itself.
            let needs = |offerings: &mut OfferingIndex<'a>, packing: &Packing| {
                pods_unbound_without_nomination(offerings, self.task, packing)
            };
            let needs = (needs(offerings, &entry.packing), needs(offerings, &self.best.packing));
            needs.0.is_some() && needs.1.is_some() && (needs.0, new.nodes) < (needs.1, old.nodes)
        } else {
            new < old
        };
        if is_better {
            self.best = entry;
        }
    }

    /// Whether the best is so close to the bound that nothing else is tried.
    fn is_good(&self) -> bool {
        let score = &self.best.score;
        let nobody_waits = score.unplaced.iter().all(|count| *count == 0);
        let above = score.cost.micros() - self.bound.micros();
        nobody_waits && above <= self.bound.micros() / GOOD_ENOUGH
    }

    fn is_over(&self, offerings: &OfferingIndex<'_>) -> bool {
        let pods: usize = self.task.pending.iter().sum();
        let most = MAX_EFFORT.saturating_add(pods.saturating_mul(EFFORT_PER_POD));
        self.is_good() || offerings.effort() > most
    }

    /// Takes apart what wastes most in the best packing, and puts it together anew.
    fn repair(&mut self, offerings: &mut OfferingIndex<'a>) {
        let Candidate { packing, tier, score } = &mut self.best;
        let pods: usize = self.task.pending.iter().sum();
        let most = pods.saturating_mul(REPAIRS_PER_POD).min(MAX_REPAIRS);
        if repair(offerings, self.task, packing, most) {
            *tier = Tier::RuinAndRecreate;
            let cost = packing.bins.iter().map(|bin| bin.price).sum();
            *score = Score::of(packing, cost, self.task.classes);
        }
    }

    /// Buys what column generation finds, rounded at several places.
    fn try_columns(&mut self, offerings: &mut OfferingIndex<'a>) {
        const ROUNDINGS: [f64; 3] = [0.9, 0.6, 0.3];
        if self.ledger || self.is_good() {
            return;
        }
        let Some(recipes) = ColumnSolution::of(offerings, self.task, &self.best.packing) else {
            return;
        };
        for least in ROUNDINGS {
            let purchase = recipes.purchase(least);
            self.enter(
                offerings,
                Strategy { cap: SizeCap::BestValue, fill_rule: FillRule::Columns },
                Some(&purchase),
            );
            if self.is_good() || self.ledger {
                break;
            }
        }
    }
}

/// How good a packing is: less is better, in this order.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Score {
    /// Pods without a place, from the highest priority down.
    unplaced: Vec<usize>,
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
}

/// How many machines each zone has.
fn zones(snapshot: &Snapshot) -> BTreeMap<&str, usize> {
    let mut zones = BTreeMap::new();
    for zone in snapshot.nodes.iter().filter_map(|node| node.labels.get(labels::ZONE)) {
        *zones.entry(zone.as_str()).or_default() += 1;
    }
    zones
}
