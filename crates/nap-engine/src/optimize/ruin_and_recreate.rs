//! Ruin and recreate: the most wasteful bins are emptied and their pods packed again.
//!
//! Where pods have topology rules, all bins of the same domains are first packed again by column
//! generation, which does not know such rules.
//!
//! Every pod stays in the domains that topology groups count it by. Bins with pods that depend on
//! their very node take no part, nor does a packing whose pods are allowed only because no other
//! nodes are opened. So the result is as valid as before, and it is kept only if it costs less and
//! exceeds no limit.

use std::collections::BTreeMap;

use crate::classes::{Class, Classes, PodCounts};
use crate::ids::{BinId, ClassId, IndexVec, KeyId, TermId};
use crate::offerings::index::OfferingIndex;
use crate::optimize::column_solution::ColumnSolution;
use crate::optimize::portfolio::ROUNDING_THRESHOLDS;
use crate::packing::bins::Bin;
use crate::packing::packer::{ClusterState, PackingProblem, pack};
use crate::packing::result::Packing;
use crate::packing::rounded_columns::RoundedColumns;
use crate::packing::size_caps;
use crate::packing::strategy::{FillRule, SizeCap, Strategy};
use crate::topology::domains::Domain;

/// Numbers of bins that are ruined at once, in rotation.
const RUIN_SIZES: [usize; 4] = [4, 8, 2, 14];

/// Upper limit on the size caps that are tried for ruined bins.
const MAX_SIZE_CAPS: usize = 6;

/// Upper limit on the sets of domains whose bins are packed again by column generation.
const MAX_BY_COLUMNS: usize = 16;

/// Bins of capacity reservations are never ruined.
static NO_RESERVATIONS: BTreeMap<String, u32> = BTreeMap::new();

/// Domains that bins are bound to.
type BoundTo = Vec<(KeyId, Domain)>;

/// Improves a packing with limited effort; whether it did. With `by_columns`, column generation was
/// not tried yet.
pub(crate) fn ruin_and_recreate<'a>(
    offerings: &mut OfferingIndex<'a>,
    problem: &PackingProblem<'_, 'a>,
    packing: &mut Packing,
    max_effort: usize,
    by_columns: bool,
) -> bool {
    if packing.topology.depends_on_its_nodes() {
        return false;
    }
    let strategies = strategies(offerings);
    let all: Vec<BoundTo> = by_domains(offerings, problem, packing).into_keys().collect();
    let share = max_effort / all.len().max(1);
    let mut improved = false;
    if by_columns && all.len() <= MAX_BY_COLUMNS {
        for domains in &all {
            let bins = by_domains(offerings, problem, packing).remove(domains);
            let mut bins = bins.unwrap_or_default();
            bins.sort_unstable();
            let ruined = Ruined::new(offerings, problem, packing, bins, domains);
            improved |= ruined.recreate_by_columns(offerings, packing);
        }
    }
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
        let ruined = Ruined::new(offerings, problem, packing, chosen, domains);
        if ruined.recreate(offerings, packing, strategies) {
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

/// Bins that are emptied, and their pods as a problem of its own.
struct Ruined<'p, 't, 'a> {
    problem: &'p PackingProblem<'t, 'a>,
    domains: &'p BoundTo,
    bins: Vec<BinId>,
    /// What the bins cost, in micro-dollars per hour.
    cost: i64,
    /// The pods, without rules and confined to the domains.
    classes: Classes<'a>,
    pending: PodCounts,
    /// The classes as they were.
    original: IndexVec<ClassId, ClassId>,
}

impl<'p, 't, 'a> Ruined<'p, 't, 'a> {
    fn new(
        offerings: &mut OfferingIndex<'a>,
        problem: &'p PackingProblem<'t, 'a>,
        packing: &Packing,
        bins: Vec<BinId>,
        domains: &'p BoundTo,
    ) -> Self {
        let mut counts: BTreeMap<ClassId, usize> = BTreeMap::new();
        for (class, count) in bins.iter().flat_map(|bin| &packing.bins[*bin].content) {
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
            let terms =
                terms.filter_map(|term| offerings.conjunction(*term, &domain_terms)).collect();
            list.push(class.without_topology(list.next_id(), terms));
        }
        let cost = bins.iter().map(|bin| packing.bins[*bin].price.micros()).sum();
        let pending = counts.values().copied().collect();
        let classes = Classes { list, terms: IndexVec::new() };
        let original = counts.into_keys().collect();
        Self { problem, domains, bins, cost, classes, pending, original }
    }

    /// Packs the pods again by strategies and keeps the cheapest packing, if it costs less than the
    /// bins did; whether it does.
    fn recreate(
        &self,
        offerings: &mut OfferingIndex<'a>,
        packing: &mut Packing,
        strategies: &[Strategy],
    ) -> bool {
        let found = self.cheapest(offerings, strategies);
        self.replace(offerings, packing, found)
    }

    /// The same by column generation.
    fn recreate_by_columns(
        &self,
        offerings: &mut OfferingIndex<'a>,
        packing: &mut Packing,
    ) -> bool {
        if self.bins.len() < 2 {
            return false;
        }
        let first = Strategy::first_fit(SizeCap::BestValue);
        let mut found = self.cheapest(offerings, &[first]);
        let smallest_ahead = self.classes.smallest_ahead();
        let part = self.part(&smallest_ahead);
        let known = found.as_ref().map(|(_, known)| known);
        let solution = known.and_then(|known| ColumnSolution::of(offerings, &part, known));
        let strategy = Strategy { cap: SizeCap::BestValue, fill_rule: FillRule::Columns };
        for threshold in ROUNDING_THRESHOLDS {
            let Some(columns) = solution.as_ref().map(|one| one.round(threshold)) else { break };
            let new = packed(offerings, &part, strategy, Some(&columns));
            found = [found, new].into_iter().flatten().min_by_key(|(cost, _)| *cost);
        }
        self.replace(offerings, packing, found)
    }

    /// The pods as a problem of its own.
    fn part<'s>(&'s self, smallest_ahead: &'s IndexVec<ClassId, Vec<i64>>) -> PackingProblem<'s, 'a>
    where
        't: 's,
    {
        let Self { problem, classes, pending, .. } = self;
        PackingProblem {
            classes,
            pending,
            reservations: &NO_RESERVATIONS,
            smallest_ahead,
            ..**problem
        }
    }

    /// The cheapest packing of the pods, with its cost.
    fn cheapest(
        &self,
        offerings: &mut OfferingIndex<'a>,
        strategies: &[Strategy],
    ) -> Option<(i64, Packing)> {
        let smallest_ahead = self.classes.smallest_ahead();
        let part = self.part(&smallest_ahead);
        let found = strategies.iter().filter_map(|one| packed(offerings, &part, *one, None));
        found.min_by_key(|(cost, _)| *cost)
    }

    /// Puts a packing of the pods in the place of the bins, if it costs less; whether it does.
    fn replace(
        &self,
        offerings: &mut OfferingIndex<'a>,
        packing: &mut Packing,
        found: Option<(i64, Packing)>,
    ) -> bool {
        let Some((_, mut recreated)) = found.filter(|(cost, _)| *cost < self.cost) else {
            return false;
        };
        for bin in &mut recreated.bins {
            bin.domains.clone_from(self.domains);
            for (class, _) in &mut bin.content {
                *class = self.original[*class];
            }
        }
        packing.replace(offerings, &self.bins, recreated)
    }
}

/// A packing of all the pods, with its cost.
fn packed<'a>(
    offerings: &mut OfferingIndex<'a>,
    part: &PackingProblem<'_, 'a>,
    strategy: Strategy,
    columns: Option<&RoundedColumns<'_>>,
) -> Option<(i64, Packing)> {
    let empty = ClusterState::default();
    let mut packing = pack(offerings, part, empty, strategy, false, columns);
    if packing.unplaced.iter().any(|count| *count > 0) {
        return None;
    }
    let cost = packing.price(offerings, false)?;
    Some((cost.micros(), packing))
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
    let may_be_ruined = |bin: &Bin| bin.may_exchange_pods(offerings, problem.classes);
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

/// Price of a bin less the shadow value of its load, in micro-dollars per hour.
#[expect(clippy::cast_precision_loss, reason = "it guides a choice; the last digits do not matter")]
fn waste(micros: i64, used: &[i64], prices: &[f64]) -> f64 {
    let value: f64 = used.iter().zip(prices).map(|(used, price)| *used as f64 * price).sum();
    micros as f64 - value
}
