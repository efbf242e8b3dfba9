//! How many different values of a label a node's choice of types must keep: the `minValues` of its
//! pool.

use std::collections::BTreeSet;

use nap_api::Requirement;

use crate::classes::holds;
use crate::intern::Interner;
use crate::model::MinValuesPolicy;
use crate::offerings::index::{EligibleOfferings, OfferingIndex, listed};

/// One label of which a pool wants several values.
pub(crate) struct MinValuesRule {
    pub(crate) key: String,
    /// How many there must be.
    pub(crate) least: usize,
    /// The numbers of the values that each type has.
    values: Vec<BTreeSet<usize>>,
}

impl OfferingIndex<'_> {
    /// The labels of which a signature's pool wants several values, in the order of their keys.
    pub(crate) fn diversities(&self, signature: &EligibleOfferings) -> Vec<MinValuesRule> {
        let table = self.table(signature);
        let mut found = Vec::new();
        for (key, ours) in signature.requirements.iter() {
            let Some(least) = ours.min_values().and_then(|least| usize::try_from(least).ok())
            else {
                continue;
            };
            let mut numbers: Interner<&str> = Interner::default();
            let mut values = vec![BTreeSet::new(); table.types.len()];
            for (offer, offering) in signature.usable.ones().map(|index| table.offering(index)) {
                let of_type = table.types[offer.kind()].instance_type.requirements.get(key);
                let offered: Option<&Requirement> =
                    of_type.or_else(|| offering.requirements.get(key));
                let admitted =
                    offered.into_iter().flat_map(listed).filter(|value| ours.allows(value));
                values[offer.kind()].extend(admitted.map(|value| numbers.number(value)));
            }
            found.push(MinValuesRule { key: key.to_owned(), least, values });
        }
        found
    }

    /// How many values of each such label the types have that hold what is used and stay within the
    /// budget.
    pub(crate) fn achieved(
        &self,
        signature: &EligibleOfferings,
        used: &[i64],
        budget: &[i64],
    ) -> Vec<usize> {
        let table = self.table(signature);
        let would_do = |kind: &usize| holds(table.free(*kind), used) && table.within(*kind, budget);
        let kinds: Vec<usize> =
            signature.types.iter().map(|(_, kind)| *kind).filter(would_do).collect();
        self.spend(signature.types.len());
        let count = |one: &MinValuesRule| {
            let values: BTreeSet<usize> =
                kinds.iter().flat_map(|kind| &one.values[*kind]).copied().collect();
            values.len()
        };
        signature.diversities.iter().map(count).collect()
    }

    /// How many values a new node must keep if this is the first that it holds. `None` if there are
    /// too few.
    pub(crate) fn values_to_keep(
        &self,
        signature: &EligibleOfferings,
        used: &[i64],
        budget: &[i64],
    ) -> Option<Vec<usize>> {
        if signature.diversities.is_empty() {
            return Some(Vec::new());
        }
        let achieved = self.achieved(signature, used, budget);
        let each = signature.diversities.iter().zip(&achieved);
        match self.min_values {
            MinValuesPolicy::Strict
                if each.clone().any(|(one, achieved)| *achieved < one.least) =>
            {
                None
            }
            _ => Some(each.map(|(one, achieved)| one.least.min(*achieved)).collect()),
        }
    }

    /// What must be reserved of the limits, so that the cheapest type that holds what is used can
    /// be bought, and enough others for the values that must be kept. `None` if nothing fits into
    /// the budget.
    pub(crate) fn reservation(
        &self,
        signature: &EligibleOfferings,
        used: &[i64],
        keep: &[usize],
        budget: &[i64],
    ) -> Option<Vec<i64>> {
        let table = self.table(signature);
        let (_, cheapest) = self.cheapest(signature, used, budget)?;
        let mut reserved = table.types[cheapest].charge.clone();
        if budget.is_empty() && table.limits.is_empty() {
            return Some(reserved);
        }
        let mut values: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); signature.diversities.len()];
        for (_, kind) in &signature.types {
            if keep.iter().zip(&values).all(|(keep, values)| values.len() >= *keep) {
                break;
            }
            let row = &table.types[*kind];
            if !holds(table.free(*kind), used) || !table.within(*kind, budget) {
                continue;
            }
            for (values, one) in values.iter_mut().zip(&signature.diversities) {
                values.extend(&one.values[*kind]);
            }
            for (reserved, charge) in reserved.iter_mut().zip(&row.charge) {
                *reserved = (*reserved).max(*charge);
            }
        }
        Some(reserved)
    }

    /// How many of so many requests leave the values that must be kept.
    pub(crate) fn diverse_room(
        &self,
        signature: &EligibleOfferings,
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
            let times = i64::try_from(count).unwrap_or(i64::MAX);
            let with = used.iter().zip(request);
            let with: Vec<i64> = with
                .map(|(used, request)| used.saturating_add(request.saturating_mul(times)))
                .collect();
            let achieved = self.achieved(signature, &with, budget);
            achieved.iter().zip(keep).all(|(achieved, keep)| achieved >= keep)
        };
        let (mut low, mut high) = (0, room);
        while low < high {
            let middle = high - (high - low) / 2;
            if is_enough(middle) { low = middle } else { high = middle - 1 }
        }
        low
    }
}
