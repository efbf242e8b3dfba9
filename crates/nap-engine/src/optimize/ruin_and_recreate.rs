//! Ruin and recreate: the nodes that waste most are taken apart, and their pods packed again.
//!
//! Every pod stays in its zone, or whichever domain others count it by, and pods with rules by host
//! name that are more than a place on a node do not take part; nor does a packing whose pods are
//! allowed only because of the nodes that there are. So whatever comes out is as valid as before;
//! and it is kept only if it costs less and breaks no limit.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::classes::{Class, Classes};
use crate::model::RESERVATION_ID;
use crate::offerings::index::OfferingIndex;
use crate::packing::existing::ExistingNodes;
use crate::packing::first_fit::{
    Bin, ClusterState, FillRule, PackingProblem, SizeCap, Strategy, pack,
};
use crate::packing::result::Packing;
use crate::topology::counts::{ABSENT, Topology};

/// How many nodes are taken apart at once, by turns.
const HANDFULS: [usize; 4] = [4, 8, 2, 14];

/// The domains that nodes are tied to.
type Place = Vec<(usize, u32)>;

/// Improves a packing, within so many comparisons; whether it did.
pub(crate) fn repair<'a>(
    offerings: &mut OfferingIndex<'a>,
    task: &PackingProblem<'_, 'a>,
    packing: &mut Packing,
    most_effort: usize,
) -> bool {
    if packing.topology.counts_on_its_nodes() {
        return false;
    }
    let strategies = strategies(offerings);
    let places: Vec<Place> = by_place(offerings, task, packing).into_keys().collect();
    let share = most_effort / places.len().max(1);
    let mut improved = false;
    for place in places {
        let until = offerings.effort().saturating_add(share);
        improved |= repair_place(offerings, task, packing, &place, &strategies, until);
    }
    improved
}

fn repair_place<'a>(
    offerings: &mut OfferingIndex<'a>,
    task: &PackingProblem<'_, 'a>,
    packing: &mut Packing,
    place: &Place,
    strategies: &[Strategy],
    until: usize,
) -> bool {
    let mut order = by_place(offerings, task, packing).remove(place).unwrap_or_default();
    let mut improved = false;
    let (mut turn, mut start, mut failures) = (0, 0, 0);
    while order.len() > 1 && failures <= 2 * order.len() && offerings.effort() < until {
        let handful = HANDFULS[turn % HANDFULS.len()].min(order.len());
        turn += 1;
        // Those that waste most, and with every other handful some from further down.
        let step = if turn % 2 == 0 { 1 } else { 1 + turn % 7 };
        let chosen = (0..handful).map(|number| order[(start + number * step) % order.len()]);
        let chosen = distinct(chosen.collect());
        let again = pack_again(offerings, task, packing, &chosen, place, strategies);
        if again.is_some_and(|again| packing.replace(offerings, &chosen, again)) {
            order = by_place(offerings, task, packing).remove(place).unwrap_or_default();
            improved = true;
            (start, failures) = (0, 0);
        } else {
            start += handful.div_ceil(2);
            failures += handful;
        }
    }
    improved
}

/// The cheapest packing of what is on some bins, if it is cheaper than they are.
fn pack_again<'a>(
    offerings: &mut OfferingIndex<'a>,
    task: &PackingProblem<'_, 'a>,
    packing: &Packing,
    chosen: &[usize],
    place: &Place,
    strategies: &[Strategy],
) -> Option<Packing> {
    let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
    for (class, count) in chosen.iter().flat_map(|bin| &packing.bins[*bin].content) {
        *counts.entry(*class).or_default() += count;
    }
    let pins: Vec<usize> = place.iter().map(|(key, domain)| offerings.pin(*key, *domain)).collect();
    let mut list: Vec<Class<'a>> = Vec::with_capacity(counts.len());
    for number in counts.keys() {
        let class = &task.classes.list[*number];
        let terms = class.terms.iter().filter_map(|term| offerings.merged(*term, &pins)).collect();
        list.push(class.alone(list.len(), terms));
    }
    let classes = Classes { list, terms: Vec::new() };
    let pending: Vec<usize> = counts.values().copied().collect();
    let least = classes.least_to_come();
    let part = PackingProblem {
        classes: &classes,
        pending: &pending,
        reservations: &BTreeMap::new(),
        least: &least,
        ..*task
    };
    let ground = ClusterState {
        standing: ExistingNodes::none(),
        topology: Topology::default(),
        skews: [].into(),
        rules: Rc::default(),
    };
    let before: i64 = chosen.iter().map(|bin| packing.bins[*bin].price.micros()).sum();
    let mut best: Option<(i64, Packing)> = None;
    for strategy in strategies {
        let mut again = pack(offerings, &part, ground.clone(), *strategy, false, None);
        if again.unplaced.iter().any(|count| *count > 0) {
            continue;
        }
        let Some(cost) = again.settle(offerings, false).map(nap_units::UsdPerHour::micros) else {
            continue;
        };
        if cost < best.as_ref().map_or(before, |(best, _)| *best) {
            best = Some((cost, again));
        }
    }
    let (_, mut again) = best?;
    let numbers: Vec<usize> = counts.into_keys().collect();
    for bin in &mut again.bins {
        bin.domains.clone_from(place);
        for (class, _) in &mut bin.content {
            *class = numbers[*class];
        }
    }
    Some(again)
}

fn distinct(mut numbers: Vec<usize>) -> Vec<usize> {
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

fn strategies(offerings: &OfferingIndex<'_>) -> Vec<Strategy> {
    let mut strategies = vec![
        Strategy { cap: SizeCap::BestValue, fill_rule: FillRule::Patterns },
        Strategy { cap: SizeCap::BestValue, fill_rule: FillRule::InOrder },
        Strategy { cap: SizeCap::None, fill_rule: FillRule::InOrder },
    ];
    let levels = offerings.levels(6).into_iter();
    strategies.extend(
        levels.map(|cpu| Strategy { cap: SizeCap::Cpu(cpu), fill_rule: FillRule::InOrder }),
    );
    strategies
}

/// The bins that may be taken apart, by the domains they are tied to; those that waste most
/// first.
fn by_place(
    offerings: &OfferingIndex<'_>,
    task: &PackingProblem<'_, '_>,
    packing: &Packing,
) -> BTreeMap<Place, Vec<usize>> {
    let mut places: BTreeMap<Place, Vec<(f64, usize)>> = BTreeMap::new();
    for (number, bin) in
        packing.bins.iter().enumerate().filter(|(_, bin)| may_be_ruined(offerings, task, bin))
    {
        let mut place = bin.domains.clone();
        place.sort_unstable();
        let waste = waste(bin.price.micros(), packing.used(number), task.worth);
        places.entry(place).or_default().push((waste, number));
    }
    let in_order = |mut bins: Vec<(f64, usize)>| {
        bins.sort_by(|(a, one), (b, other)| b.total_cmp(a).then(one.cmp(other)));
        bins.into_iter().map(|(_, number)| number).collect()
    };
    places.into_iter().map(|(place, bins)| (place, in_order(bins))).collect()
}

fn may_be_ruined(offerings: &OfferingIndex<'_>, task: &PackingProblem<'_, '_>, bin: &Bin) -> bool {
    let signature = offerings.signature(bin.signature);
    signature.requirements.get(RESERVATION_ID).is_none()
        && signature.diversities.is_empty()
        && bin.uncounted.is_empty()
        && bin.domains.iter().all(|(_, domain)| *domain != ABSENT)
        && bin.content.iter().all(|(class, _)| task.classes.list[*class].is_movable())
}

#[expect(clippy::cast_precision_loss, reason = "it guides a choice; the last digits do not matter")]
fn waste(micros: i64, used: &[i64], worth: &[f64]) -> f64 {
    let held: f64 = used.iter().zip(worth).map(|(used, worth)| *used as f64 * worth).sum();
    micros as f64 - held
}
