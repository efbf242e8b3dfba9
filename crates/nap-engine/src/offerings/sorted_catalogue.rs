//! A catalogue as sorted tables, independent of pools and pods.
//!
//! Types are sorted by name, closed ones last; offerings by price, then in the order of types.
//! Labels and amounts are stored by column, so that a requirement is compared with each distinct
//! value once instead of with each type.

use std::collections::BTreeMap;
use std::sync::Arc;

use fixedbitset::FixedBitSet;
use nap_api::{Requirement, Requirements};
use nap_units::{Resources, UsdPerHour};

use crate::ids::{Id, IndexVec, LabelSetId, OfferingId, TypeId};
use crate::intern::Interner;
use crate::model::{Alternative, CapacityType, Catalogue, InstanceType, Offering};

/// The types of a catalogue by name, and their offerings by price.
#[derive(Clone, Copy)]
pub(crate) struct SortedCatalogue<'a> {
    types: &'a [InstanceType],
    tables: &'a Tables,
}

/// One offering of the sorted catalogue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OfferingRow {
    pub(crate) instance_type: TypeId,
    /// Position among the offerings of the type.
    position: u32,
    pub(crate) labels: LabelSetId,
    /// Index of the zone among the zones of the catalogue.
    zone: u32,
    pub(crate) price: UsdPerHour,
    capacity_type: CapacityType,
    pub(crate) is_available: bool,
}

/// Values of one label over all types.
#[derive(Debug)]
pub(crate) struct LabelColumn {
    /// Distinct values.
    pub(crate) values: Vec<Requirement>,
    /// Index of each type's value; `None` where the type does not define the label.
    pub(crate) value_of: IndexVec<TypeId, Option<usize>>,
}

/// Amount of one resource of each type; `None` where the type does not name the resource.
pub(crate) type AmountColumn = IndexVec<TypeId, Option<i64>>;

/// The tables behind a [`SortedCatalogue`].
struct Tables {
    /// Positions in the catalogue, sorted by the name of the type.
    order: IndexVec<TypeId, usize>,
    /// All offerings, cheapest first.
    offerings: IndexVec<OfferingId, OfferingRow>,
    /// The same offerings in the form that plans use.
    alternatives: Arc<[Alternative]>,
    /// An offering with each distinct set of labels.
    distinct: IndexVec<LabelSetId, OfferingRow>,
    /// The offerings with each distinct set of labels.
    with_labels: IndexVec<LabelSetId, FixedBitSet>,
    columns: BTreeMap<String, LabelColumn>,
    capacity: BTreeMap<String, AmountColumn>,
    allocatable: BTreeMap<String, AmountColumn>,
}

impl Catalogue {
    /// Builds the tables that decisions need, unless they exist. Otherwise the first decision does.
    pub fn prepare(&self) {
        self.sorted();
    }

    /// The catalogue as sorted tables.
    pub(crate) fn sorted(&self) -> SortedCatalogue<'_> {
        let tables = self.derived(Tables::new);
        assert!(tables.is_some(), "sorted tables are all that is derived from a catalogue");
        match tables {
            Some(tables) => SortedCatalogue { types: self.types(), tables },
            None => SortedCatalogue::empty(),
        }
    }
}

impl Tables {
    fn new(types: &[InstanceType]) -> Self {
        let mut order: Vec<usize> = (0..types.len()).collect();
        order.sort_by(|a, b| {
            let (a, b) = (&types[*a], &types[*b]);
            (a.closed, &a.name, &a.allocatable).cmp(&(b.closed, &b.name, &b.allocatable))
        });
        let sorted: Vec<&InstanceType> = order.iter().map(|position| &types[*position]).collect();
        let OfferingRows { all: mut offerings, distinct, zones } = OfferingRows::of(&sorted);
        let mut by_name: Vec<usize> = (0..zones.len()).collect();
        by_name.sort_by_key(|zone| zones[*zone]);
        let mut rank = vec![0; zones.len()];
        for (place, zone) in by_name.into_iter().enumerate() {
            rank[zone] = place;
        }
        offerings.sort_unstable_by_key(|row| {
            (
                row.price,
                row.instance_type,
                rank[row.zone as usize],
                row.capacity_type,
                !row.is_available,
                row.position,
            )
        });
        let none = FixedBitSet::with_capacity(offerings.len());
        let mut with_labels: IndexVec<LabelSetId, FixedBitSet> =
            IndexVec::filled(none, distinct.len());
        for (index, row) in offerings.iter().enumerate() {
            with_labels[row.labels].insert(index);
        }
        let names: IndexVec<TypeId, Arc<str>> =
            sorted.iter().map(|instance_type| Arc::from(instance_type.name.as_str())).collect();
        let zones: Vec<Arc<str>> = zones.into_iter().map(Arc::from).collect();
        let alternative = |row: &OfferingRow| Alternative {
            instance_type: Arc::clone(&names[row.instance_type]),
            zone: Arc::clone(&zones[row.zone as usize]),
            capacity_type: row.capacity_type,
            price: row.price,
        };
        Self {
            alternatives: offerings.iter().map(alternative).collect(),
            columns: columns(&sorted),
            capacity: amounts(&sorted, |instance_type| &instance_type.capacity),
            allocatable: amounts(&sorted, |instance_type| &instance_type.allocatable),
            offerings: offerings.into(),
            distinct,
            with_labels,
            order: order.into(),
        }
    }
}

/// The offerings of all types.
struct OfferingRows<'a> {
    /// In the order of the types.
    all: Vec<OfferingRow>,
    /// One offering with each distinct set of labels.
    distinct: IndexVec<LabelSetId, OfferingRow>,
    /// Names of the zones.
    zones: Vec<&'a str>,
}

impl<'a> OfferingRows<'a> {
    fn of(types: &[&'a InstanceType]) -> Self {
        let mut label_sets: Interner<&Requirements> = Interner::default();
        let mut zones: Interner<&'a str> = Interner::default();
        let count = types.iter().map(|instance_type| instance_type.offerings.len()).sum();
        let mut all: Vec<OfferingRow> = Vec::with_capacity(count);
        let mut distinct = IndexVec::new();
        // Most types are offered in the same zones, in the same order.
        let mut before: Vec<(&Offering, OfferingRow)> = Vec::new();
        for (number, instance_type) in types.iter().enumerate() {
            for (position, offering) in instance_type.offerings.iter().enumerate() {
                let is_same = |(before, _): &&(&Offering, OfferingRow)| {
                    let (one, other) = (&before.requirements, &offering.requirements);
                    before.zone == offering.zone && (Arc::ptr_eq(one, other) || one == other)
                };
                let (labels, zone) = match before.get(position).filter(is_same) {
                    Some((_, same)) => (same.labels, same.zone),
                    None => (
                        LabelSetId::new(label_sets.intern(&offering.requirements)),
                        narrow(zones.intern(&offering.zone)),
                    ),
                };
                let Offering { price, capacity_type, available: is_available, .. } = *offering;
                let row = OfferingRow {
                    instance_type: TypeId::new(number),
                    position: narrow(position),
                    labels,
                    zone,
                    price,
                    capacity_type,
                    is_available,
                };
                match before.get_mut(position) {
                    Some(before) => *before = (offering, row),
                    None => before.push((offering, row)),
                }
                if labels == distinct.next_id() {
                    distinct.push(row);
                }
                all.push(row);
            }
        }
        Self { all, distinct, zones: zones.items }
    }
}

/// Rows are kept small, because there are many.
fn narrow(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

fn columns(types: &[&InstanceType]) -> BTreeMap<String, LabelColumn> {
    let mut columns: BTreeMap<&str, (Interner<&Requirement>, Vec<Option<usize>>)> = BTreeMap::new();
    for (number, instance_type) in types.iter().enumerate() {
        for (key, value) in instance_type.requirements.iter() {
            let (values, value_of) = columns
                .entry(key)
                .or_insert_with(|| (Interner::default(), vec![None; types.len()]));
            value_of[number] = Some(values.intern(value));
        }
    }
    let owned = |(key, (values, value_of)): (&str, (Interner<&Requirement>, Vec<_>))| {
        let values = values.items.into_iter().cloned().collect();
        (key.to_owned(), LabelColumn { values, value_of: value_of.into() })
    };
    columns.into_iter().map(owned).collect()
}

fn amounts(
    types: &[&InstanceType],
    of: impl Fn(&InstanceType) -> &Resources,
) -> BTreeMap<String, AmountColumn> {
    let mut amounts: BTreeMap<&str, Vec<Option<i64>>> = BTreeMap::new();
    for (number, instance_type) in types.iter().enumerate() {
        for (name, amount) in of(instance_type).iter() {
            amounts.entry(name).or_insert_with(|| vec![None; types.len()])[number] = Some(amount);
        }
    }
    amounts.into_iter().map(|(name, amounts)| (name.to_owned(), amounts.into())).collect()
}

impl<'a> SortedCatalogue<'a> {
    /// Catalogue without types.
    pub(crate) fn empty() -> SortedCatalogue<'static> {
        static EMPTY: Catalogue = Catalogue::empty();
        EMPTY.sorted()
    }

    /// Number of types.
    pub(crate) fn len(self) -> usize {
        self.types.len()
    }

    /// All types by name, closed ones last.
    pub(crate) fn ids(self) -> impl ExactSizeIterator<Item = TypeId> {
        (0..self.len()).map(TypeId::new)
    }

    pub(crate) fn instance_type(self, id: TypeId) -> &'a InstanceType {
        &self.types[self.tables.order[id]]
    }

    /// Capacity of each type in one resource; `None` if no type names the resource.
    pub(crate) fn capacity(self, resource: &str) -> Option<&'a AmountColumn> {
        self.tables.capacity.get(resource)
    }

    /// Allocatable amount of each type in one resource; `None` if no type names the resource.
    pub(crate) fn allocatable(self, resource: &str) -> Option<&'a AmountColumn> {
        self.tables.allocatable.get(resource)
    }

    /// All offerings, cheapest first.
    pub(crate) fn offerings(self) -> &'a IndexVec<OfferingId, OfferingRow> {
        &self.tables.offerings
    }

    /// All offerings in the form that plans use, cheapest first.
    pub(crate) fn alternatives(self) -> &'a Arc<[Alternative]> {
        &self.tables.alternatives
    }

    /// The offering behind a row.
    pub(crate) fn offering(self, row: OfferingRow) -> &'a Offering {
        &self.instance_type(row.instance_type).offerings[row.position as usize]
    }

    /// The distinct label sets of offerings.
    pub(crate) fn label_sets(
        self,
    ) -> impl ExactSizeIterator<Item = (LabelSetId, &'a Requirements)> {
        let each = self.tables.distinct.ids().zip(&self.tables.distinct);
        each.map(move |(id, row)| (id, &*self.offering(*row).requirements))
    }

    /// The offerings that have one of these label sets.
    pub(crate) fn with_labels(self, sets: impl Iterator<Item = LabelSetId>) -> FixedBitSet {
        let mut offerings = FixedBitSet::with_capacity(self.tables.offerings.len());
        for set in sets {
            offerings.union_with(&self.tables.with_labels[set]);
        }
        offerings
    }

    /// Values of a label over all types; `None` if no type defines the label.
    pub(crate) fn column(self, key: &str) -> Option<&'a LabelColumn> {
        self.tables.columns.get(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance_type(name: &str, micros: i64) -> InstanceType {
        let offering = |zone: &str| {
            let mut requirements = Requirements::new();
            requirements.set(nap_api::labels::ZONE, Requirement::is_in([zone]));
            Offering {
                zone: zone.to_owned(),
                capacity_type: CapacityType::OnDemand,
                price: UsdPerHour::from_micros(micros),
                available: true,
                requirements: Arc::new(requirements),
            }
        };
        InstanceType {
            name: name.to_owned(),
            requirements: Requirements::new(),
            capacity: Resources::new(),
            allocatable: Resources::new(),
            offerings: vec![offering("z-2"), offering("z-1")],
            closed: false,
        }
    }

    fn in_order(catalogue: &Catalogue) -> Vec<(String, String)> {
        let sorted = catalogue.sorted();
        let name = |row: &OfferingRow| {
            let instance_type = sorted.instance_type(row.instance_type);
            (instance_type.name.clone(), sorted.offering(*row).zone.clone())
        };
        sorted.offerings().iter().map(name).collect()
    }

    #[test]
    fn offerings_are_sorted_by_price_then_name_then_zone_again_after_an_edit() {
        let mut catalogue = Catalogue::from(vec![
            instance_type("b", 2),
            instance_type("c", 1),
            instance_type("a", 2),
        ]);
        let expected = |names: [&str; 3]| -> Vec<(String, String)> {
            let zones = |name: &str| ["z-1", "z-2"].map(|zone| (name.to_owned(), zone.to_owned()));
            names.into_iter().flat_map(zones).collect()
        };
        assert_eq!(in_order(&catalogue), expected(["c", "a", "b"]));
        for offering in &mut catalogue.edit()[1].offerings {
            offering.price = UsdPerHour::from_micros(3);
        }
        assert_eq!(in_order(&catalogue), expected(["a", "b", "c"]));
        catalogue.edit()[2].closed = true;
        assert_eq!(in_order(&catalogue), expected(["b", "a", "c"]), "closed types lose ties");
    }

    #[test]
    fn offerings_with_equal_requirements_share_them() {
        let catalogue: Catalogue =
            [instance_type("a", 1), instance_type("b", 1)].into_iter().collect();
        let types = catalogue.types();
        for (one, other) in types[0].offerings.iter().zip(&types[1].offerings) {
            assert!(Arc::ptr_eq(&one.requirements, &other.requirements));
        }
        assert_ne!(types[0].offerings[0].requirements, types[0].offerings[1].requirements);
        assert_eq!(catalogue.sorted().label_sets().len(), 2);
    }
}
