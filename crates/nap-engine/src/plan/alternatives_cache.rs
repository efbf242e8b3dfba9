//! Which offerings would do for a node, found once for nodes that are alike in this.
//!
//! Nodes of one plan differ in their pods, but most of them have the same choice: what is too small
//! for one is too small for the next. So a list is kept with what it depends on, which is quicker
//! to look at than thousands of offerings.

use std::collections::BTreeMap;

use crate::classes::holds;
use crate::model::alternatives::Alternatives;
use crate::offerings::index::{EligibleOfferings, OfferingIndex};
use crate::offerings::pool_table::PoolTable;

/// The most lists that are looked at before another is made.
const MAX_LISTS: usize = 16;

/// The choices met so far.
#[derive(Default)]
pub(crate) struct Choices {
    /// By the signature and the number of its cheapest types that are certainly too small.
    lists: BTreeMap<(usize, usize), Vec<Choice>>,
}

/// The offerings that would do for some nodes.
pub(crate) struct Choice {
    /// Cheapest first.
    pub(crate) offers: Vec<usize>,
    /// The least that any of their types has, and the most that any counts against the limits.
    least: Vec<i64>,
    charge: Vec<i64>,
    /// The types between them that would not do.
    refused: Vec<usize>,
    /// The offerings without one of them.
    others: BTreeMap<usize, Alternatives>,
}

impl Choices {
    /// The offerings of a signature that hold what is used and stay within the budget, up to a
    /// number of them.
    pub(crate) fn of(
        &mut self,
        offerings: &OfferingIndex<'_>,
        number: usize,
        used: &[i64],
        budget: &[i64],
        most: usize,
    ) -> &mut Choice {
        let signature = offerings.signature(number);
        let table = offerings.table(signature);
        let too_small = offerings.too_small(signature, used);
        let lists = self.lists.entry((number, too_small)).or_default();
        let known =
            lists.iter().take(MAX_LISTS).position(|choice| choice.suits(table, used, budget));
        let place = known.unwrap_or_else(|| {
            lists.push(Choice::new(table, signature, too_small, (used, budget), most));
            lists.len() - 1
        });
        &mut lists[place]
    }
}

impl Choice {
    fn new(
        table: &PoolTable<'_>,
        signature: &EligibleOfferings,
        too_small: usize,
        (used, budget): (&[i64], &[i64]),
        most: usize,
    ) -> Self {
        const BITS: usize = usize::BITS as usize;
        let all = table.stock.offers();
        let begin = signature.first.get(too_small).copied().unwrap_or(all.len());
        let mut choice = Self {
            offers: Vec::new(),
            least: vec![i64::MAX; used.len()],
            charge: vec![0; budget.len()],
            refused: Vec::new(),
            others: BTreeMap::new(),
        };
        // Unlike an offering, a type is looked at once.
        let mut known: Vec<Option<bool>> = vec![None; table.types.len()];
        for (number, block) in signature.usable.as_slice().iter().enumerate().skip(begin / BITS) {
            let is_first = number == begin / BITS;
            let mut block = if is_first { block & (usize::MAX << (begin % BITS)) } else { *block };
            while block != 0 {
                if choice.offers.len() == most {
                    return choice;
                }
                let index = number * BITS + block.trailing_zeros() as usize;
                block &= block - 1;
                let kind = all[index].kind();
                if *known[kind].get_or_insert_with(|| choice.meet(table, kind, used, budget)) {
                    choice.offers.push(index);
                }
            }
        }
        choice
    }

    /// Whether a type would do, which is remembered.
    fn meet(&mut self, table: &PoolTable<'_>, kind: usize, used: &[i64], budget: &[i64]) -> bool {
        let would_do = would_do(table, kind, used, budget);
        if would_do {
            for (least, free) in self.least.iter_mut().zip(table.free(kind)) {
                *least = (*least).min(*free);
            }
            for (most, charge) in self.charge.iter_mut().zip(&table.types[kind].charge) {
                *most = (*most).max(*charge);
            }
        } else {
            self.refused.push(kind);
        }
        would_do
    }

    /// Whether the same offerings would do for this.
    fn suits(&self, table: &PoolTable<'_>, used: &[i64], budget: &[i64]) -> bool {
        holds(&self.least, used)
            && holds(budget, &self.charge)
            && self.refused.iter().all(|kind| !would_do(table, *kind, used, budget))
    }

    /// The offerings without one of them, as a plan names them.
    pub(crate) fn without(&mut self, table: &PoolTable<'_>, one: usize) -> Alternatives {
        let others = self.offers.iter().copied().filter(|index| *index != one);
        let known = self
            .others
            .entry(one)
            .or_insert_with(|| Alternatives::of(table.stock.alternatives(), others));
        known.clone()
    }
}

fn would_do(table: &PoolTable<'_>, kind: usize, used: &[i64], budget: &[i64]) -> bool {
    holds(table.free(kind), used) && table.within(kind, budget)
}
