//! `minValues`: the number of distinct label values that the choice of types must keep.

use std::collections::BTreeSet;

use nap_api::Requirement;

use crate::classes::dimensions::{holds, with_requests};
use crate::ids::{IndexVec, TypeId};
use crate::intern::Interner;
use crate::model::MinValuesPolicy;
use crate::offerings::eligibility::{EligibleOfferings, listed};
use crate::offerings::index::OfferingIndex;
use crate::offerings::pool_table::PoolTable;

/// One label with `minValues`.
pub(crate) struct MinValuesRule {
    pub(crate) key: String,
    /// Number of distinct values that must remain.
    pub(crate) min: usize,
    /// Interned values of the usable offerings of each type.
    values: IndexVec<TypeId, BTreeSet<usize>>,
}

impl MinValuesRule {
    /// The rules of an eligibility set, sorted by label.
    pub(super) fn all(eligible: &EligibleOfferings, table: &PoolTable<'_>) -> Vec<Self> {
        let mut found = Vec::new();
        for (key, ours) in eligible.requirements.iter() {
            let Some(min) = ours.min_values().and_then(|min| usize::try_from(min).ok()) else {
                continue;
            };
            let mut names: Interner<&str> = Interner::default();
            let mut values: IndexVec<TypeId, BTreeSet<usize>> =
                IndexVec::filled(BTreeSet::new(), table.types.len());
            for (row, offering) in eligible.usable().map(|offering| table.offering(offering)) {
                let of_type = table.types[row.instance_type].instance_type.requirements.get(key);
                let offered: Option<&Requirement> =
                    of_type.or_else(|| offering.requirements.get(key));
                let allowed =
                    offered.into_iter().flat_map(listed).filter(|value| ours.allows(value));
                values[row.instance_type].extend(allowed.map(|value| names.intern(value)));
            }
            found.push(Self { key: key.to_owned(), min, values });
        }
        found
    }
}

/// For each rule, the number of values over the types that hold what is used within the budget.
pub(crate) fn values_left(
    offerings: &OfferingIndex<'_>,
    eligible: &EligibleOfferings,
    used: &[i64],
    budget: &[i64],
) -> Vec<usize> {
    let table = offerings.table(eligible);
    let suits = |id: &TypeId| holds(table.free(*id), used) && table.within_limits(*id, budget);
    let types: Vec<TypeId> = eligible.types.iter().map(|one| one.id).filter(suits).collect();
    offerings.effort.spend(eligible.types.len());
    let count = |rule: &MinValuesRule| {
        let values: BTreeSet<usize> =
            types.iter().flat_map(|id| &rule.values[*id]).copied().collect();
        values.len()
    };
    eligible.min_values.iter().map(count).collect()
}

/// For each rule, the number of values that a new node must keep whose first load is `used`.
/// `None` if the policy is strict and there are too few.
pub(crate) fn values_to_keep(
    offerings: &OfferingIndex<'_>,
    eligible: &EligibleOfferings,
    used: &[i64],
    budget: &[i64],
) -> Option<Vec<usize>> {
    if eligible.min_values.is_empty() {
        return Some(Vec::new());
    }
    let left = values_left(offerings, eligible, used, budget);
    let each = eligible.min_values.iter().zip(&left);
    match offerings.min_values {
        MinValuesPolicy::Strict if each.clone().any(|(rule, left)| *left < rule.min) => None,
        _ => Some(each.map(|(rule, left)| rule.min.min(*left)).collect()),
    }
}

/// Charge against the limits that covers the cheapest type that holds what is used, and enough
/// other types for the values to keep. `None` if no type fits the budget.
pub(crate) fn charge(
    offerings: &OfferingIndex<'_>,
    eligible: &EligibleOfferings,
    used: &[i64],
    keep: &[usize],
    budget: &[i64],
) -> Option<Vec<i64>> {
    let table = offerings.table(eligible);
    let cheapest = offerings.cheapest(eligible, used, budget)?;
    let mut charge = table.types[cheapest.id].charge.clone();
    if budget.is_empty() && table.limits.is_empty() {
        return Some(charge);
    }
    let mut values: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); eligible.min_values.len()];
    for one in &eligible.types {
        if keep.iter().zip(&values).all(|(keep, values)| values.len() >= *keep) {
            break;
        }
        if !holds(table.free(one.id), used) || !table.within_limits(one.id, budget) {
            continue;
        }
        for (values, rule) in values.iter_mut().zip(&eligible.min_values) {
            values.extend(&rule.values[one.id]);
        }
        for (charge, own) in charge.iter_mut().zip(&table.types[one.id].charge) {
            *charge = (*charge).max(*own);
        }
    }
    Some(charge)
}

/// Number of requests, at most `room`, that leave the values to keep.
pub(crate) fn room_keeping_values(
    offerings: &OfferingIndex<'_>,
    eligible: &EligibleOfferings,
    keep: &[usize],
    used: &[i64],
    request: &[i64],
    room: usize,
    budget: &[i64],
) -> usize {
    if keep.is_empty() {
        return room;
    }
    let is_enough = |count: usize| {
        let with = with_requests(used, request, count);
        let left = values_left(offerings, eligible, &with, budget);
        left.iter().zip(keep).all(|(left, keep)| left >= keep)
    };
    let (mut low, mut high) = (0, room);
    while low < high {
        let middle = high - (high - low) / 2;
        if is_enough(middle) { low = middle } else { high = middle - 1 }
    }
    low
}
