//! The portfolio: several packings, of which the best becomes the plan.

use std::collections::BTreeMap;

use nap_api::labels;
use nap_units::UsdPerHour;

use crate::certificate::lower_bound;
use crate::classes::{Class, Classes, Dimensions};
use crate::existing::{Seated, Standing};
use crate::groups::Groups;
use crate::launch::Buyer;
use crate::market::Market;
use crate::model::{Options, Placement, Plan, Pod, PreferencePolicy, Refusal, Snapshot, Tier, Unplaced};
use crate::pack::{Cap, Ground, Manner, Packing, Strategy, Task, pack};
use crate::preferences::Levels;
use crate::prepared::Prepared;
use crate::refuse::Asker;
use crate::rules::Rules;
use crate::topology::Topology;

/// The most sizes at which nodes are capped, one attempt each.
const MOST_LEVELS: usize = 12;

/// Roughly how many comparisons may be made before no further packing is tried: a bound on time that is the same on every machine. The
/// packings that find most are tried first.
const MOST_EFFORT: usize = 60_000_000;

/// A plan that is no further above the bound than its so-manieth part is good enough: nothing else is tried.
const GOOD_ENOUGH: i64 = 400;

/// The incumbent's manner: the plan may never be worse than this.
const GUARD: Strategy = Strategy { cap: Cap::None, manner: Manner::Incumbent };

/// Decides where the pods of a snapshot go.
///
/// It cannot fail: a pod that it cannot place is in the plan with the reason. The same snapshot gives the same plan to the byte, in
/// whatever order its pods, nodes and pools are listed.
pub fn solve(snapshot: &Snapshot, options: &Options) -> Plan {
    decide(&Prepared::new(snapshot), snapshot, options, true)
}

/// The plan that the incumbent's manner alone would give: first fit without regard to price, then the cheapest type for each
/// node. [`solve`] is never worse; this is what it is measured against.
pub fn solve_first_fit(snapshot: &Snapshot, options: &Options) -> Plan {
    decide(&Prepared::new(snapshot), snapshot, options, false)
}

/// The same as [`solve`] with what was prepared before for the same pools, daemons and catalogues; if they are not the same, it is of no use
/// and no harm.
pub fn solve_with(prepared: &Prepared, snapshot: &Snapshot, options: &Options) -> Plan {
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

/// The better plan of two where it matters: nobody goes without a place for what others would like.
fn decide(prepared: &Prepared, snapshot: &Snapshot, options: &Options, portfolio: bool) -> Plan {
    let first = attempt(prepared, snapshot, options, portfolio);
    if !first.may_ignore {
        return first.plan;
    }
    let options = Options { preferences: PreferencePolicy::Ignore, ..options.clone() };
    let second = attempt(prepared, snapshot, &options, portfolio);
    if second.score < first.score { second.plan } else { first.plan }
}

fn attempt(prepared: &Prepared, snapshot: &Snapshot, options: &Options, portfolio: bool) -> Decision {
    let groups = Groups::of(snapshot);
    let levels = Levels::of(&groups.list, snapshot, options);
    let kinds: Vec<&Pod> = levels.list.iter().map(|level| &*level.pod).collect();
    let rules = Rules::of(&kinds, snapshot);
    let dimensions = Dimensions::of(&kinds, snapshot, &rules);
    let classes = Classes::of(&groups.list, &levels, &dimensions, &rules);
    let mut market = Market::new(prepared, snapshot, options, &dimensions, &classes, &rules.keys);
    let mut standing = Standing::of(snapshot, &dimensions, &rules, &mut market);
    let mut topology =
        Topology::new(&rules, &standing.nodes, &standing.labels, &mut market, &snapshot.reservations);
    let (placed, mut seated) = standing.fill(&classes, &mut topology);
    let pending: Vec<usize> =
        classes.list.iter().zip(&placed).map(|(class, placed)| class.pods.len() - placed).collect();
    let ground = Ground { standing, topology, skews: rules.skews().into() };
    let most_pods =
        options.max_pods_per_node.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX));
    let least = classes.least_to_come();
    let reservations = &snapshot.reservations;
    let most_pods = most_pods.max(1);
    let task = Task { classes: &classes, pending: &pending, most_pods, reservations, least: &least };
    let Some(best) = best_packing(&mut market, &task, &ground, portfolio) else {
        return Decision::default();
    };
    let Best { score, packing, tier, guard_lacks } = best;
    let may_ignore = guard_lacks && classes.list.iter().any(Class::has_preferences);

    let mut plan = Plan { tier, ..Plan::default() };
    for (pod, field) in &groups.unsupported {
        let refusal = Refusal::Unsupported { field: (*field).to_owned() };
        plan.unplaced.push(Unplaced { pod: (*pod).clone(), refusal });
    }
    let unplaced = classes.list.iter().zip(&packing.unplaced).filter(|(_, unplaced)| **unplaced > 0);
    for (class, unplaced) in unplaced {
        let mut asker =
            Asker { market: &mut market, rules: &rules, dimensions: &dimensions, packing: &packing };
        let refusal = asker.refusal(&classes.list[class.last]);
        let first = class.pods.len() - unplaced;
        for pod in class.pods.iter().skip(first) {
            plan.unplaced.push(Unplaced { pod: (*pod).clone(), refusal: refusal.clone() });
        }
    }
    plan.unplaced.sort_by(|a, b| a.pod.cmp(&b.pod));
    seated.extend(&packing.seated);
    let mut taken = vec![0; classes.list.len()];
    for Seated { class, node, count } in seated {
        let class = classes.list[class].base;
        let pods = classes.list[class].pods.iter().skip(taken[class]).take(count);
        let node = &ground.standing.nodes[node].name;
        plan.placements.extend(pods.map(|pod| Placement { pod: (*pod).clone(), node: node.clone() }));
        taken[class] += count;
    }
    plan.placements.sort_by(|a, b| a.pod.cmp(&b.pod));
    let zones = zones(snapshot);
    let mut buyer = Buyer { market: &market, classes: &classes, dimensions: &dimensions, taken, zones };
    plan.launches = buyer.launches(&packing);
    plan.cost = plan.launches.iter().map(|launch| launch.price).sum();
    if !classes.list.is_empty() {
        let placed: Vec<usize> =
            classes.list.iter().zip(&packing.unplaced).map(|(class, left)| class.pods.len() - left).collect();
        let mut free: Vec<Vec<i64>> =
            ground.standing.nodes.iter().map(|node| dimensions.free(node)).collect();
        free.extend(prepaid(&mut market, reservations));
        plan.lower_bound = Some(lower_bound(&mut market, &classes, &placed, &free));
    }
    Decision { plan, score, may_ignore }
}

/// What the machines of reservations have at most: as far as the bound is concerned, they cost nothing.
fn prepaid(market: &mut Market<'_>, reservations: &BTreeMap<String, u32>) -> Vec<Vec<i64>> {
    let mut free = Vec::new();
    for (reservation, count) in reservations {
        let signatures: Vec<usize> =
            (0..market.pools.len()).filter_map(|pool| market.reserved(pool, reservation)).collect();
        let mut most = vec![0; market.width];
        for signature in signatures {
            for (most, one) in most.iter_mut().zip(&market.frontier(signature, i64::MAX).most) {
                *most = (*most).max(one.saturating_mul(i64::from(*count)));
            }
        }
        free.push(most);
    }
    free
}

/// The ways of packing, those that find most first.
fn strategies(market: &Market<'_>, task: &Task<'_, '_>, portfolio: bool) -> Vec<Strategy> {
    let mut strategies = vec![GUARD];
    if !portfolio || task.pending.iter().all(|count| *count == 0) {
        return strategies;
    }
    let waits = task.classes.list.iter().zip(task.pending).filter(|(_, count)| **count > 0);
    let mut caps = vec![Cap::BestValue, Cap::None];
    let mut sizes = Vec::new();
    if waits.map(|(class, _)| class).any(Class::is_bound_by_rules) {
        sizes = market.sizes_for(task);
        let woven = sizes.iter().copied().map(Cap::Cpu).chain([Cap::BestValue]);
        strategies.extend(woven.map(|cap| Strategy { cap, manner: Manner::Woven }));
    }
    strategies.push(Strategy { cap: Cap::BestValue, manner: Manner::Patterns });
    // Where rules force a number of nodes, sizes far from the average have no prospect.
    let levels = if sizes.is_empty() { market.levels(MOST_LEVELS) } else { sizes };
    caps.extend(levels.into_iter().rev().map(Cap::Cpu));
    strategies.extend(caps.into_iter().map(|cap| Strategy { cap, manner: Manner::InOrder }));
    strategies
}

/// What placing everybody costs at least.
fn floor(market: &mut Market<'_>, task: &Task<'_, '_>, ground: &Ground<'_>) -> UsdPerHour {
    let mut free = ground.standing.free().to_vec();
    free.extend(prepaid(market, task.reservations));
    lower_bound(market, task.classes, task.pending, &free)
}

/// The best of several packings.
struct Best {
    score: Score,
    packing: Packing,
    tier: Tier,
    /// The incumbent's manner leaves pods without a place.
    guard_lacks: bool,
}

/// Tries one strategy after another; the best packing and which part of the solver found it.
fn best_packing<'a>(
    market: &mut Market<'a>,
    task: &Task<'_, 'a>,
    ground: &Ground<'a>,
    portfolio: bool,
) -> Option<Best> {
    let strategies = strategies(market, task, portfolio);
    let mut best: Option<(Score, Packing, Tier)> = None;
    let mut guard_lacks = false;
    let bound = if strategies.len() > 1 { floor(market, task, ground) } else { UsdPerHour::ZERO };
    // Most limits are far away. Once one was not, all are kept account of.
    let mut ledger = false;
    for strategy in strategies {
        let is_good = |(score, ..): &(Score, Packing, Tier)| {
            let nobody_waits = score.unplaced.iter().all(|count| *count == 0);
            nobody_waits && score.cost.micros() - bound.micros() <= bound.micros() / GOOD_ENOUGH
        };
        if best.as_ref().is_some_and(|best| is_good(best) || market.effort() > MOST_EFFORT) {
            break;
        }
        let (packing, cost) = loop {
            let mut packing = pack(market, task, ground.clone(), strategy, ledger);
            match packing.settle(market, ledger) {
                Some(cost) => break (packing, cost),
                None => ledger = true,
            }
        };
        let score = Score::of(&packing, cost, task.classes);
        let tier = match (strategy.manner, strategy.cap) {
            (Manner::Patterns, _) => Tier::Patterns,
            (Manner::Woven, _) => Tier::Woven,
            (_, Cap::None) => Tier::FirstFit,
            _ => Tier::CappedFirstFit,
        };
        if best.is_none() {
            guard_lacks = score.unplaced.iter().any(|count| *count > 0);
        }
        if best.as_ref().is_none_or(|(best, ..)| score < *best) {
            best = Some((score, packing, tier));
        }
    }
    best.map(|(score, packing, tier)| Best { score, packing, tier, guard_lacks })
}

/// How good a packing is: less is better, in this order.
#[derive(Default, PartialEq, Eq, PartialOrd, Ord)]
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
        Self { unplaced: unplaced.into_values().rev().collect(), cost, nodes: packing.drafts.len() }
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
