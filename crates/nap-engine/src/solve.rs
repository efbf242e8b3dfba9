//! The portfolio: several packings, of which the best becomes the plan.

use std::collections::BTreeMap;

use nap_api::labels;
use nap_units::{Resources, UsdPerHour};

use crate::certificate::lower_bound;
use crate::classes::{Classes, Dimensions, holds};
use crate::existing::{Seated, Standing};
use crate::market::{Market, OfferingRow, is_regional};
use crate::model::{Alternative, Launch, Options, Placement, Plan, Refusal, Snapshot, Tier, Unplaced};
use crate::pack::{Cap, Draft, Ground, Manner, Packing, Strategy, pack, sum};
use crate::refuse::Asker;
use crate::rules::Rules;
use crate::topology::Topology;

/// The most sizes at which nodes are capped, one attempt each.
const MOST_LEVELS: usize = 12;

/// Roughly how many comparisons may be made before no further packing is tried: a bound on time that is the same on every machine. The
/// packings that find most are tried first.
const MOST_EFFORT: usize = 60_000_000;

/// The most alternatives that a launch carries. Large catalogues have thousands of offerings, and a plan can have thousands of launches;
/// who has tried this many in vain should solve again with what was learnt.
pub(crate) const MOST_ALTERNATIVES: usize = 600;

/// The incumbent's manner: the plan may never be worse than this.
const GUARD: Strategy = Strategy { cap: Cap::None, manner: Manner::Incumbent };

/// Decides where the pods of a snapshot go.
///
/// It cannot fail: a pod that it cannot place is in the plan with the reason. The same snapshot gives the same plan to the byte, in
/// whatever order its pods, nodes and pools are listed.
pub fn solve(snapshot: &Snapshot, options: &Options) -> Plan {
    plan(snapshot, options, true)
}

/// The plan that the incumbent's manner alone would give: first fit without regard to price, then the cheapest type for each
/// node. [`solve`] is never worse; this is what it is measured against.
pub fn solve_first_fit(snapshot: &Snapshot, options: &Options) -> Plan {
    plan(snapshot, options, false)
}

fn plan(snapshot: &Snapshot, options: &Options, portfolio: bool) -> Plan {
    let rules = Rules::of(snapshot);
    let dimensions = Dimensions::of(snapshot, &rules);
    let classes = Classes::of(snapshot, &dimensions, &rules);
    let mut market = Market::new(snapshot, options, &dimensions, &classes);
    let mut standing = Standing::of(snapshot, &dimensions);
    let mut topology = Topology::new(&rules, &standing.nodes, &standing.labels, &mut market);
    let (placed, mut seated) = standing.fill(&classes, &rules, &mut topology);
    let pending: Vec<usize> =
        classes.list.iter().zip(&placed).map(|(class, placed)| class.pods.len() - placed).collect();
    let ground = Ground { rules: &rules, standing, topology };

    let most_pods =
        options.max_pods_per_node.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX));
    let most_pods = most_pods.max(1);
    let mut strategies = vec![GUARD];
    if portfolio && pending.iter().any(|count| *count > 0) {
        strategies.push(Strategy { cap: Cap::BestValue, manner: Manner::Patterns });
        let levels = market.levels(MOST_LEVELS);
        let caps = [Cap::BestValue, Cap::None].into_iter().chain(levels.into_iter().rev().map(Cap::Cpu));
        strategies.extend(caps.map(|cap| Strategy { cap, manner: Manner::InOrder }));
    }
    let mut best: Option<(Score, Packing, Tier)> = None;
    for strategy in strategies {
        if best.is_some() && market.effort() > MOST_EFFORT {
            break;
        }
        let mut packing = pack(&mut market, &classes, ground.clone(), &pending, most_pods, strategy);
        let score = Score::of(&mut packing, &market, &classes);
        let tier = match (strategy.manner, strategy.cap) {
            (Manner::Patterns, _) => Tier::Patterns,
            (_, Cap::None) => Tier::FirstFit,
            _ => Tier::CappedFirstFit,
        };
        if best.as_ref().is_none_or(|(best, ..)| score < *best) {
            best = Some((score, packing, tier));
        }
    }
    let Some((_, packing, tier)) = best else { return Plan::default() };

    let mut plan = Plan { tier, ..Plan::default() };
    for (pod, field) in &classes.unsupported {
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
    let mut buyer = Buyer { market: &market, classes: &classes, taken, zones: zones(snapshot) };
    plan.launches = packing.drafts.iter().map(|draft| buyer.launch(draft, &packing.left)).collect();
    plan.cost = plan.launches.iter().map(|launch| launch.price).sum();
    if !classes.list.is_empty() {
        let placed: Vec<usize> =
            classes.list.iter().zip(&packing.unplaced).map(|(class, left)| class.pods.len() - left).collect();
        let free: Vec<Vec<i64>> = ground.standing.nodes.iter().map(|node| dimensions.free(node)).collect();
        plan.lower_bound = Some(lower_bound(&mut market, &classes, &placed, &free));
    }
    plan
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
    fn of(packing: &mut Packing, market: &Market<'_>, classes: &Classes<'_>) -> Self {
        let mut unplaced: BTreeMap<i32, usize> = BTreeMap::new();
        for (class, count) in classes.list.iter().zip(&packing.unplaced) {
            *unplaced.entry(class.priority).or_default() += count;
        }
        Self {
            unplaced: unplaced.into_values().rev().collect(),
            cost: packing.settle(market),
            nodes: packing.drafts.len(),
        }
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

/// Turns drafts into launches, one after another.
struct Buyer<'p, 'a> {
    market: &'p Market<'a>,
    classes: &'p Classes<'a>,
    /// How many pods of each class have their place already.
    taken: Vec<usize>,
    zones: BTreeMap<&'a str, usize>,
}

impl Buyer<'_, '_> {
    fn launch(&mut self, draft: &Draft, left: &[Vec<i64>]) -> Launch {
        let signature = self.market.signature(draft.signature);
        let table = self.market.table(&signature);
        let budget = sum(&left[signature.pool], &draft.reserved);
        // Every offering that would do. They come in the order of the table: cheapest first.
        let mut offers: Vec<&OfferingRow<'_>> = signature
            .usable
            .ones()
            .map(|index| &table.offerings[index])
            .filter(|row| holds(&table.types[row.kind].free, &draft.used) && table.within(row.kind, &budget))
            .collect();
        let best = offers
            .iter()
            .enumerate()
            .filter(|(_, row)| {
                let price: UsdPerHour = [row.offering.price, self.market.node_cost].into_iter().sum();
                price == draft.price
            })
            .min_by_key(|(index, row)| {
                let busy = self.zones.get(row.offering.zone.as_str()).copied().unwrap_or(0);
                (is_regional(row.offering), busy, *index)
            })
            .map_or(0, |(index, _)| index);
        assert!(!offers.is_empty(), "a draft always holds a reservation for a type that holds its pods");
        let chosen = offers.remove(best);
        *self.zones.entry(&chosen.offering.zone).or_default() += 1;

        let kind = &table.types[chosen.kind];
        let mut requests: Resources = kind.daemons.clone();
        let mut pods = Vec::new();
        for (number, count) in &draft.content {
            let class = &self.classes.list[*number];
            let first = self.taken[*number];
            self.taken[*number] += count;
            for pod in class.pods.iter().skip(first).take(*count) {
                requests.add(class.requests);
                pods.push((*pod).clone());
            }
        }
        pods.sort_unstable();
        Launch {
            pool: table.pool.name.clone(),
            instance_type: kind.instance_type.name.clone(),
            zone: chosen.offering.zone.clone(),
            capacity_type: chosen.offering.capacity_type,
            price: chosen.offering.price,
            pods,
            requests,
            requirements: signature.requirements.clone(),
            alternatives: offers
                .into_iter()
                .take(MOST_ALTERNATIVES)
                .map(|row| Alternative {
                    instance_type: table.types[row.kind].instance_type.name.clone(),
                    zone: row.offering.zone.clone(),
                    capacity_type: row.offering.capacity_type,
                    price: row.offering.price,
                })
                .collect(),
        }
    }
}
