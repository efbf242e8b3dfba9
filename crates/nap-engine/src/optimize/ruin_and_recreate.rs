//! Ruin and recreate: the most wasteful bins are emptied and their pods packed again.
//!
//! Every pod stays in the domains that topology groups count it by. Bins with pods that depend on
//! their very node take no part, nor does a packing whose pods are allowed only because no other
//! nodes are opened. So the result is as valid as before, and it is kept only if it costs less and
//! exceeds no limit.

use std::collections::BTreeMap;

use crate::classes::{Class, Classes, PodCounts};
use crate::ids::{BinId, ClassId, IndexVec, KeyId, TermId};
use crate::model::RESERVATION_ID;
use crate::offerings::index::OfferingIndex;
use crate::packing::bins::Bin;
use crate::packing::packer::{ClusterState, PackingProblem, pack};
use crate::packing::result::Packing;
use crate::packing::size_caps;
use crate::packing::strategy::{FillRule, SizeCap, Strategy};
use crate::topology::domains::Domain;

/// Numbers of bins that are ruined at once, in rotation.
const RUIN_SIZES: [usize; 4] = [4, 8, 2, 14];

/// Upper limit on the size caps that are tried for ruined bins.
const MAX_SIZE_CAPS: usize = 6;

/// Domains that bins are bound to.
type BoundTo = Vec<(KeyId, Domain)>;

/// Improves a packing with limited effort; whether it did.
pub(crate) fn ruin_and_recreate<'a>(
    offerings: &mut OfferingIndex<'a>,
    problem: &PackingProblem<'_, 'a>,
    packing: &mut Packing,
    max_effort: usize,
) -> bool {
    if packing.topology.depends_on_its_nodes() {
        return false;
    }
    let strategies = strategies(offerings);
    let all: Vec<BoundTo> = by_domains(offerings, problem, packing).into_keys().collect();
    let share = max_effort / all.len().max(1);
    let mut improved = false;
    for domains in all {
        let until = offerings.effort.spent().saturating_add(share);
        improved |= improve(offerings, problem, packing, &domains, &strategies, until);
    }
    improved
}

/// Improves the bins that are bound to some domains, until the effort is spent.
fn improve<'a>(
    offerings: &mut OfferingIndex<'a>,
    problem: &PackingProblem<'_, 'a>,
    packing: &mut Packing,
    domains: &BoundTo,
    strategies: &[Strategy],
    until: usize,
) -> bool {
    let mut order = by_domains(offerings, problem, packing).remove(domains).unwrap_or_default();
    let mut improved = false;
    let (mut round, mut start, mut failures) = (0, 0, 0);
    while order.len() > 1 && failures <= 2 * order.len() && offerings.effort.spent() < until {
        let size = RUIN_SIZES[round % RUIN_SIZES.len()].min(order.len());
        round += 1;
        // The most wasteful bins; in every other round some from further down.
        let step = if round % 2 == 0 { 1 } else { 1 + round % 7 };
        let chosen = (0..size).map(|number| order[(start + number * step) % order.len()]);
        let mut chosen: Vec<BinId> = chosen.collect();
        chosen.sort_unstable();
        chosen.dedup();
        let recreated = recreate(offerings, problem, packing, &chosen, domains, strategies);
        if recreated.is_some_and(|recreated| packing.replace(offerings, &chosen, recreated)) {
            order = by_domains(offerings, problem, packing).remove(domains).unwrap_or_default();
            improved = true;
            (start, failures) = (0, 0);
        } else {
            start += size.div_ceil(2);
            failures += size;
        }
    }
    improved
}

/// The cheapest packing of the pods of some bins, if it costs less than the bins do.
fn recreate<'a>(
    offerings: &mut OfferingIndex<'a>,
    problem: &PackingProblem<'_, 'a>,
    packing: &Packing,
    chosen: &[BinId],
    domains: &BoundTo,
    strategies: &[Strategy],
) -> Option<Packing> {
    let mut counts: BTreeMap<ClassId, usize> = BTreeMap::new();
    for (class, count) in chosen.iter().flat_map(|bin| &packing.bins[*bin].content) {
        *counts.entry(*class).or_default() += count;
    }
    let domain_term = |(key, domain): &(KeyId, Domain)| match domain {
        Domain::Is(domain) => Some(offerings.domain_term(*key, *domain)),
        Domain::Absent => None,
    };
    let domain_terms: Vec<TermId> = domains.iter().filter_map(domain_term).collect();
    let mut list: IndexVec<ClassId, Class<'a>> = IndexVec::with_capacity(counts.len());
    for class in counts.keys() {
        let class = &problem.classes[*class];
        let terms = class.terms.iter();
        let terms = terms.filter_map(|term| offerings.conjunction(*term, &domain_terms)).collect();
        list.push(class.without_topology(list.next_id(), terms));
    }
    let classes = Classes { list, terms: IndexVec::new() };
    let pending: PodCounts = counts.values().copied().collect();
    let smallest_ahead = classes.smallest_ahead();
    let part = PackingProblem {
        classes: &classes,
        pending: &pending,
        reservations: &BTreeMap::new(),
        smallest_ahead: &smallest_ahead,
        ..*problem
    };
    let before: i64 = chosen.iter().map(|bin| packing.bins[*bin].price.micros()).sum();
    let mut best: Option<(i64, Packing)> = None;
    for strategy in strategies {
        let empty = ClusterState::default();
        let mut recreated = pack(offerings, &part, empty, *strategy, false, None);
        if recreated.unplaced.iter().any(|count| *count > 0) {
            continue;
        }
        let Some(cost) = recreated.price(offerings, false) else { continue };
        if cost.micros() < best.as_ref().map_or(before, |(best, _)| *best) {
            best = Some((cost.micros(), recreated));
        }
    }
    let (_, mut recreated) = best?;
    let original: IndexVec<ClassId, ClassId> = counts.into_keys().collect();
    for bin in &mut recreated.bins {
        bin.domains.clone_from(domains);
        for (class, _) in &mut bin.content {
            *class = original[*class];
        }
    }
    Some(recreated)
}

fn strategies(offerings: &OfferingIndex<'_>) -> Vec<Strategy> {
    let mut strategies = vec![
        Strategy { cap: SizeCap::BestValue, fill_rule: FillRule::Patterns },
        Strategy::first_fit(SizeCap::BestValue),
        Strategy::first_fit(SizeCap::None),
    ];
    let sizes = size_caps::doubling(offerings, MAX_SIZE_CAPS).into_iter();
    strategies.extend(sizes.map(|cpu| Strategy::first_fit(SizeCap::Cpu(cpu))));
    strategies
}

/// The bins that may be ruined, by the domains that they are bound to; the most wasteful first.
fn by_domains(
    offerings: &OfferingIndex<'_>,
    problem: &PackingProblem<'_, '_>,
    packing: &Packing,
) -> BTreeMap<BoundTo, Vec<BinId>> {
    let mut found: BTreeMap<BoundTo, Vec<(f64, BinId)>> = BTreeMap::new();
    let may_be_ruined = |bin: &Bin| may_be_ruined(offerings, problem, bin);
    for (id, bin) in packing.bins.enumerate().filter(|(_, bin)| may_be_ruined(bin)) {
        let mut domains = bin.domains.clone();
        domains.sort_unstable();
        let waste = waste(bin.price.micros(), packing.used(id), problem.shadow_prices);
        found.entry(domains).or_default().push((waste, id));
    }
    let in_order = |mut bins: Vec<(f64, BinId)>| {
        bins.sort_by(|(a, one), (b, other)| b.total_cmp(a).then(one.cmp(other)));
        bins.into_iter().map(|(_, id)| id).collect()
    };
    found.into_iter().map(|(domains, bins)| (domains, in_order(bins))).collect()
}

fn may_be_ruined(
    offerings: &OfferingIndex<'_>,
    problem: &PackingProblem<'_, '_>,
    bin: &Bin,
) -> bool {
    let eligible = offerings.eligible(bin.eligibility);
    eligible.requirements.get(RESERVATION_ID).is_none()
        && eligible.min_values.is_empty()
        && bin.uncounted.is_empty()
        && bin.domains.iter().all(|(_, domain)| *domain != Domain::Absent)
        && bin.content.iter().all(|(class, _)| problem.classes[*class].is_movable())
}

/// Price of a bin less the shadow value of its load, in micro-dollars per hour.
#[expect(clippy::cast_precision_loss, reason = "it guides a choice; the last digits do not matter")]
fn waste(micros: i64, used: &[i64], prices: &[f64]) -> f64 {
    let value: f64 = used.iter().zip(prices).map(|(used, price)| *used as f64 * price).sum();
    micros as f64 - value
}
