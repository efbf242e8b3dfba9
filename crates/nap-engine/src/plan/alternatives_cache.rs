//! A cache of the alternatives of a launch, keyed by eligibility and minimum size.
//!
//! Launches of one plan differ in their pods, but most of them share their alternatives: what is
//! too small for one is too small for the next. A list is kept with the conditions under which it
//! holds, which are faster to check than thousands of offerings.

use std::collections::BTreeMap;

use crate::classes::dimensions::holds;
use crate::ids::{EligibilityId, Id, IndexVec, OfferingId, TypeId};
use crate::model::Alternatives;
use crate::offerings::eligibility::EligibleOfferings;
use crate::offerings::index::OfferingIndex;
use crate::offerings::pool_table::PoolTable;

/// Upper limit on the lists that are checked before another is made.
const MAX_LISTS: usize = 16;

/// The load of a bin and its budget of the limits.
#[derive(Clone, Copy)]
pub(crate) struct Need<'n> {
    pub(crate) used: &'n [i64],
    pub(crate) budget: &'n [i64],
}

impl Need<'_> {
    fn is_met_by(&self, table: &PoolTable<'_>, id: TypeId) -> bool {
        holds(table.free(id), self.used) && table.within_limits(id, self.budget)
    }
}

/// The alternatives found so far.
#[derive(Default)]
pub(crate) struct AlternativesCache {
    /// By eligibility set and the number of its cheapest types that are too small.
    lists: BTreeMap<(EligibilityId, usize), Vec<OfferingList>>,
}

/// The offerings that hold a load, and the conditions under which they are the ones for another.
pub(crate) struct OfferingList {
    /// Cheapest first.
    pub(crate) offerings: Vec<OfferingId>,
    /// Minimum capacity of the types of the list.
    min_free: Vec<i64>,
    /// Maximum charge of the types of the list.
    max_charge: Vec<i64>,
    /// Types that were rejected on the way.
    rejected: Vec<TypeId>,
    /// The list without one of its offerings.
    without: BTreeMap<OfferingId, Alternatives>,
}

impl AlternativesCache {
    /// The offerings of an eligibility set that hold a load within its budget, at most `max`;
    /// `None` means all.
    pub(crate) fn offerings(
        &mut self,
        offerings: &OfferingIndex<'_>,
        id: EligibilityId,
        need: Need<'_>,
        max: Option<usize>,
    ) -> &mut OfferingList {
        let eligible = offerings.eligible(id);
        let table = offerings.table(eligible);
        let too_small = eligible.too_small(table, need.used);
        let lists = self.lists.entry((id, too_small)).or_default();
        let known = lists.iter().take(MAX_LISTS).position(|list| list.applies(table, need));
        let position = known.unwrap_or_else(|| {
            lists.push(OfferingList::new(table, eligible, too_small, need, max));
            lists.len() - 1
        });
        &mut lists[position]
    }
}

impl OfferingList {
    fn new(
        table: &PoolTable<'_>,
        eligible: &EligibleOfferings,
        too_small: usize,
        need: Need<'_>,
        max: Option<usize>,
    ) -> Self {
        const BITS: usize = usize::BITS as usize;
        let all = table.catalogue.offerings();
        let first = eligible.types.get(too_small).map(|one| one.offering.index());
        let begin = first.unwrap_or(all.len());
        let mut list = Self {
            offerings: Vec::new(),
            min_free: vec![i64::MAX; need.used.len()],
            max_charge: vec![0; need.budget.len()],
            rejected: Vec::new(),
            without: BTreeMap::new(),
        };
        // Types are checked once, however many offerings they have.
        let mut known: IndexVec<TypeId, Option<bool>> = IndexVec::filled(None, table.types.len());
        for (number, block) in eligible.usable.as_slice().iter().enumerate().skip(begin / BITS) {
            let is_first = number == begin / BITS;
            let mut block = if is_first { block & (usize::MAX << (begin % BITS)) } else { *block };
            while block != 0 {
                if max == Some(list.offerings.len()) {
                    return list;
                }
                let offering = OfferingId::new(number * BITS + block.trailing_zeros() as usize);
                block &= block - 1;
                let id = all[offering].instance_type;
                if *known[id].get_or_insert_with(|| list.check(table, id, need)) {
                    list.offerings.push(offering);
                }
            }
        }
        list
    }

    /// Whether a type meets a need; narrows the conditions of the list.
    fn check(&mut self, table: &PoolTable<'_>, id: TypeId, need: Need<'_>) -> bool {
        let is_met = need.is_met_by(table, id);
        if is_met {
            for (min, free) in self.min_free.iter_mut().zip(table.free(id)) {
                *min = (*min).min(*free);
            }
            for (max, charge) in self.max_charge.iter_mut().zip(&table.types[id].charge) {
                *max = (*max).max(*charge);
            }
        } else {
            self.rejected.push(id);
        }
        is_met
    }

    /// Whether the list is the same for another need.
    fn applies(&self, table: &PoolTable<'_>, need: Need<'_>) -> bool {
        holds(&self.min_free, need.used)
            && holds(need.budget, &self.max_charge)
            && self.rejected.iter().all(|id| !need.is_met_by(table, *id))
    }

    /// The list without one of its offerings, in the form that plans use.
    pub(crate) fn without(&mut self, table: &PoolTable<'_>, one: OfferingId) -> Alternatives {
        let others = self.offerings.iter().filter(|other| **other != one).map(|id| id.index());
        let known = self
            .without
            .entry(one)
            .or_insert_with(|| Alternatives::of(table.catalogue.alternatives(), others));
        known.clone()
    }
}
