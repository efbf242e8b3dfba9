//! The portfolio: several packings, of which the best becomes the plan.

use std::collections::BTreeMap;

use nap_api::labels;
use nap_units::UsdPerHour;

use crate::certificate::lower_bound;
use crate::classes::{Classes, Dimensions};
use crate::existing::{Seated, Standing};
use crate::groups::Groups;
use crate::launch::Buyer;
use crate::market::Market;
use crate::model::{Options, Placement, Plan, Pod, Refusal, Snapshot, Tier, Unplaced};
use crate::pack::{Cap, Ground, Manner, Packing, Strategy, Task, pack};
use crate::prepared::Prepared;
use crate::refuse::Asker;
use crate::rules::Rules;
use crate::topology::Topology;

/// The most sizes at which nodes are capped, one attempt each.
const MOST_LEVELS: usize = 12;

/// Roughly how many comparisons may be made before no further packing is tried: a bound on time that is the same on every machine. The
/// packings that find most are tried first.
const MOST_EFFORT: usize = 60_000_000;

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

fn decide(prepared: &Prepared, snapshot: &Snapshot, options: &Options, portfolio: bool) -> Plan {
    let groups = Groups::of(snapshot);
    let kinds: Vec<&Pod> = groups.list.iter().map(|group| group.pod).collect();
    let rules = Rules::of(&kinds, snapshot);
    let dimensions = Dimensions::of(&kinds, snapshot, &rules);
    let classes = Classes::of(&groups.list, &dimensions, &rules);
    let mut market = Market::new(prepared, snapshot, options, &dimensions, &classes, &rules.keys);
    let mut standing = Standing::of(snapshot, &dimensions, &rules, &mut market);
    let mut topology = Topology::new(&rules, &standing.nodes, &standing.labels, &mut market);
    let (placed, mut seated) = standing.fill(&classes, &mut topology);
    let pending: Vec<usize> =
        classes.list.iter().zip(&placed).map(|(class, placed)| class.pods.len() - placed).collect();
    let ground = Ground { standing, topology };
    let most_pods =
        options.max_pods_per_node.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX));
    let least = classes.least_to_come();
    let task = Task { classes: &classes, pending: &pending, most_pods: most_pods.max(1), least: &least };
    let Some((packing, tier)) = best_packing(&mut market, &task, &ground, portfolio) else {
        return Plan::default();
    };

    let mut plan = Plan { tier, ..Plan::default() };
    for (pod, field) in &groups.unsupported {
        let refusal = Refusal::Unsupported { field: (*field).to_owned() };
        plan.unplaced.push(Unplaced { pod: (*pod).clone(), refusal });
    }
    let unplaced = classes.list.iter().zip(&packing.unplaced).filter(|(_, unplaced)| **unplaced > 0);
    for (class, unplaced) in unplaced {
        let mut asker =
            Asker { market: &mut market, rules: &rules, dimensions: &dimensions, packing: &packing };
        let refusal = asker.refusal(class);
        let first = class.pods.len() - unplaced;
        for pod in class.pods.iter().skip(first) {
            plan.unplaced.push(Unplaced { pod: (*pod).clone(), refusal: refusal.clone() });
        }
    }
    plan.unplaced.sort_by(|a, b| a.pod.cmp(&b.pod));
    seated.extend(&packing.seated);
    let mut taken = vec![0; classes.list.len()];
    for Seated { class, node, count } in seated {
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
        let free: Vec<Vec<i64>> = ground.standing.nodes.iter().map(|node| dimensions.free(node)).collect();
        plan.lower_bound = Some(lower_bound(&mut market, &classes, &placed, &free));
    }
    plan
}

/// Tries one strategy after another; the best packing and which part of the solver found it.
fn best_packing<'a>(
    market: &mut Market<'a>,
    task: &Task<'_, 'a>,
    ground: &Ground<'a>,
    portfolio: bool,
) -> Option<(Packing, Tier)> {
    let mut strategies = vec![GUARD];
    if portfolio && task.pending.iter().any(|count| *count > 0) {
        strategies.push(Strategy { cap: Cap::BestValue, manner: Manner::Patterns });
        let levels = market.levels(MOST_LEVELS);
        let caps = [Cap::BestValue, Cap::None].into_iter().chain(levels.into_iter().rev().map(Cap::Cpu));
        strategies.extend(caps.map(|cap| Strategy { cap, manner: Manner::InOrder }));
    }
    let mut best: Option<(Score, Packing, Tier)> = None;
    // Most limits are far away. Once one was not, all are kept account of.
    let mut ledger = false;
    for strategy in strategies {
        if best.is_some() && market.effort() > MOST_EFFORT {
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
            (_, Cap::None) => Tier::FirstFit,
            _ => Tier::CappedFirstFit,
        };
        if best.as_ref().is_none_or(|(best, ..)| score < *best) {
            best = Some((score, packing, tier));
        }
    }
    best.map(|(_, packing, tier)| (packing, tier))
}

/// How good a packing is: less is better, in this order.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
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
