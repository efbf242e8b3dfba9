//! Eligible offerings: the part of a pool's table that satisfies the requirements of a node.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use fixedbitset::FixedBitSet;
use nap_api::{Operator, Requirement, Requirements, labels};
use nap_units::UsdPerHour;

use crate::classes::dimensions::holds;
use crate::ids::{EligibilityId, Id, IndexVec, LabelSetId, OfferingId, PoolId, TermId, TypeId};
use crate::model::RESERVATION_ID;
use crate::offerings::min_values::MinValuesRule;
use crate::offerings::pool_table::PoolTable;

/// Number of types that share one row of prefix maxima.
const STRIDE: usize = 16;

/// Size cap of a bin that may grow to any size.
pub(crate) const UNCAPPED: i64 = i64::MAX;

/// An eligible type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PricedType {
    /// Price of its cheapest usable offering, with the cost of a node.
    pub(crate) price: UsdPerHour,
    pub(crate) id: TypeId,
    /// The cheapest usable offering.
    pub(crate) offering: OfferingId,
}

/// The offerings of a pool that satisfy a set of requirements.
pub(crate) struct EligibleOfferings {
    pub(crate) pool: PoolId,
    pub(crate) requirements: Arc<Requirements>,
    /// Offerings that satisfy the requirements, available or not.
    pub(crate) compatible: FixedBitSet,
    /// Compatible offerings that are available, within the price ceiling, and whose type holds at
    /// least its daemons.
    pub(crate) usable: FixedBitSet,
    /// Label sets of the usable offerings.
    pub(super) label_sets: FixedBitSet,
    /// Types of the usable offerings, cheapest first.
    pub(crate) types: Vec<PricedType>,
    type_set: FixedBitSet,
    /// `minValues` of the pool that restrict the choice of types.
    pub(crate) min_values: Vec<MinValuesRule>,
    /// Prefix maxima of the capacity of `types`, one row for each [`STRIDE`] types; they let a
    /// search skip the cheapest types that are too small.
    prefix_maxima: Vec<i64>,
}

impl EligibleOfferings {
    pub(super) fn new(
        pool: PoolId,
        table: &PoolTable<'_>,
        requirements: Requirements,
        node_cost: UsdPerHour,
        max_cpu: Option<i64>,
    ) -> Self {
        let catalogue = table.catalogue;
        let compatible_types = compatible_types(table, &requirements);
        // Reserved capacity is counted, so only nodes that ask for a reservation may use it.
        let reservation = requirements.get(RESERVATION_ID);
        let satisfies = |labels: &Requirements| {
            reservation.is_some() == labels.get(RESERVATION_ID).is_some()
                && requirements.intersects(labels).is_ok()
        };
        let label_sets = catalogue.label_sets().filter(|(_, labels)| satisfies(labels));
        let candidates = catalogue.with_labels(label_sets.map(|(id, _)| id));
        let has_room: IndexVec<TypeId, bool> = table
            .types
            .enumerate()
            .map(|(id, row)| {
                max_cpu.is_none_or(|max| row.cpu <= max)
                    && table.free(id).iter().all(|free| *free >= 0)
            })
            .collect();
        let mut eligible = Self {
            pool,
            compatible: FixedBitSet::with_capacity(table.offering_count()),
            usable: FixedBitSet::with_capacity(table.offering_count()),
            label_sets: FixedBitSet::with_capacity(catalogue.label_sets().len()),
            types: Vec::new(),
            type_set: FixedBitSet::with_capacity(table.types.len()),
            min_values: Vec::new(),
            prefix_maxima: Vec::new(),
            requirements: Arc::new(requirements),
        };
        let mut maxima: Option<Vec<i64>> = None;
        for offering in candidates.ones() {
            let row = catalogue.offerings()[OfferingId::new(offering)];
            let id = row.instance_type;
            if !compatible_types[id] {
                continue;
            }
            eligible.compatible.insert(offering);
            if !row.is_available || !has_room[id] || !table.affords(row.price) {
                continue;
            }
            eligible.usable.insert(offering);
            eligible.label_sets.insert(row.labels.index());
            if !eligible.type_set.put(id.index()) {
                let offering = OfferingId::new(offering);
                eligible.types.push(PricedType { price: row.price + node_cost, id, offering });
                let free = table.free(id);
                let maxima = maxima.get_or_insert_with(|| free.to_vec());
                for (max, free) in maxima.iter_mut().zip(free) {
                    *max = (*max).max(*free);
                }
                if eligible.types.len().is_multiple_of(STRIDE) {
                    eligible.prefix_maxima.extend(&*maxima);
                }
            }
        }
        if eligible.requirements.iter().any(|(_, one)| one.min_values().is_some()) {
            eligible.min_values = MinValuesRule::all(&eligible, table);
        }
        eligible
    }

    /// Whether a type has a usable offering.
    pub(crate) fn allows(&self, id: TypeId) -> bool {
        self.type_set.contains(id.index())
    }

    /// Whether a label set occurs among the usable offerings.
    pub(super) fn has_labels(&self, id: LabelSetId) -> bool {
        self.label_sets.contains(id.index())
    }

    /// The usable offerings, cheapest first.
    pub(crate) fn usable(&self) -> impl Iterator<Item = OfferingId> {
        self.usable.ones().map(OfferingId::new)
    }

    /// Number of cheapest types that certainly do not hold what is used.
    pub(crate) fn too_small(&self, table: &PoolTable<'_>, used: &[i64]) -> usize {
        let width = used.len();
        let maxima = |block: usize| &self.prefix_maxima[block * width..(block + 1) * width];
        let (mut low, mut high) = (0, self.types.len() / STRIDE);
        while low < high {
            let middle = usize::midpoint(low, high);
            if holds(maxima(middle), used) { high = middle } else { low = middle + 1 }
        }
        let before = if low > 0 { Some(maxima(low - 1)) } else { None };
        let begin = low * STRIDE;
        // In each dimension that the types before lack, the first type that has enough.
        let block = &self.types[begin..];
        let lacking = (0..width)
            .filter(|dimension| before.is_none_or(|before| before[*dimension] < used[*dimension]));
        let first = lacking.map(|dimension| {
            let enough = |one: &PricedType| table.free(one.id)[dimension] >= used[dimension];
            block.iter().position(enough).unwrap_or(block.len())
        });
        begin + first.max().unwrap_or(0)
    }
}

/// Whether each type agrees with the requirements, apart from the labels of its offerings.
fn compatible_types(table: &PoolTable<'_>, requirements: &Requirements) -> IndexVec<TypeId, bool> {
    let mut compatible = IndexVec::filled(true, table.types.len());
    for (key, ours) in requirements.iter() {
        let Some(column) = table.catalogue.column(key) else { continue };
        let agrees = |theirs: &Requirement| {
            (ours.allows_absent() && theirs.allows_absent()) || ours.intersects(theirs)
        };
        let agrees: Vec<bool> = column.values.iter().map(agrees).collect();
        for (compatible, value) in (&mut compatible).into_iter().zip(&column.value_of) {
            *compatible &= value.is_none_or(|value| agrees[value]);
        }
    }
    compatible
}

/// Values that a requirement lists; none if it lists excluded values.
pub(crate) fn listed(requirement: &Requirement) -> impl Iterator<Item = &str> {
    let lists = requirement.operator() == Operator::In;
    requirement.values().iter().filter(move |_| lists)
}

/// Whether an offering with these labels belongs to no zone in particular. Among equal offerings
/// those with a zone are preferred.
pub(crate) fn is_regional(requirements: &Requirements) -> bool {
    let scope = requirements.get(labels::PLACEMENT_SCOPE);
    scope.and_then(Requirement::single) == Some("regional")
}

/// Eligible types that no other exceeds in every dimension: while a bin grows, only these matter.
pub(crate) struct Frontier {
    pub(crate) types: Vec<TypeId>,
    /// Maximum of the types in each dimension.
    pub(crate) max: Vec<i64>,
}

impl Frontier {
    fn new(eligible: &EligibleOfferings, table: &PoolTable<'_>, cap: i64, width: usize) -> Self {
        let mut types: Vec<TypeId> = Vec::new();
        // In descending lexicographic order no later type exceeds one that is kept.
        for id in table.by_size.iter().copied() {
            if table.types[id].cpu > cap || !eligible.allows(id) {
                continue;
            }
            if !types.iter().any(|other| holds(table.free(*other), table.free(id))) {
                types.push(id);
            }
        }
        let max =
            |dimension: usize| types.iter().map(|id| table.free(*id)[dimension]).max().unwrap_or(0);
        let max = (0..width).map(max).collect();
        Self { types, max }
    }
}

/// Result of adding a term to an eligibility set.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Narrowed {
    Unknown,
    Conflict,
    To(EligibilityId),
}

struct Entry {
    eligible: Rc<EligibleOfferings>,
    narrowed: IndexVec<TermId, Narrowed>,
    /// By size cap.
    frontiers: BTreeMap<i64, Rc<Frontier>>,
}

/// The eligibility sets met so far.
#[derive(Default)]
pub(super) struct EligibilityTable {
    entries: IndexVec<EligibilityId, Entry>,
    ids: BTreeMap<(PoolId, Requirements), EligibilityId>,
    /// Sets of nodes that are part of a capacity reservation, by pool.
    reserved: BTreeMap<PoolId, Vec<EligibilityId>>,
}

impl EligibilityTable {
    pub(super) fn get(&self, id: EligibilityId) -> &Rc<EligibleOfferings> {
        &self.entries[id].eligible
    }

    pub(super) fn find(&self, key: &(PoolId, Requirements)) -> Option<EligibilityId> {
        self.ids.get(key).copied()
    }

    pub(super) fn insert(
        &mut self,
        key: (PoolId, Requirements),
        eligible: EligibleOfferings,
    ) -> EligibilityId {
        let entry = Entry {
            eligible: Rc::new(eligible),
            narrowed: IndexVec::new(),
            frontiers: BTreeMap::new(),
        };
        let id = self.entries.push(entry);
        self.ids.insert(key, id);
        id
    }

    pub(super) fn narrowed(&self, id: EligibilityId, term: TermId) -> Narrowed {
        self.entries[id].narrowed.get(term).copied().unwrap_or(Narrowed::Unknown)
    }

    pub(super) fn set_narrowed(&mut self, id: EligibilityId, term: TermId, to: Narrowed) {
        *self.entries[id].narrowed.grow_to(term, Narrowed::Unknown) = to;
    }

    pub(super) fn add_reserved(&mut self, pool: PoolId, id: EligibilityId) {
        self.reserved.entry(pool).or_default().push(id);
    }

    pub(super) fn reserved(&self, pool: PoolId) -> &[EligibilityId] {
        self.reserved.get(&pool).map_or(&[], Vec::as_slice)
    }

    pub(super) fn frontier(
        &mut self,
        id: EligibilityId,
        table: &PoolTable<'_>,
        cap: i64,
        width: usize,
    ) -> Rc<Frontier> {
        let Entry { eligible, frontiers, .. } = &mut self.entries[id];
        let new = || Rc::new(Frontier::new(eligible, table, cap, width));
        Rc::clone(frontiers.entry(cap).or_insert_with(new))
    }
}
