//! The instance types on offer, with tables that do not depend on who buys.
//!
//! Putting thousands of offerings in order and finding out what each type says about a label takes
//! longer than deciding about a handful of pods. So a catalogue keeps what was found, until it is
//! changed.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};

use fixedbitset::FixedBitSet;
use nap_api::{Requirement, Requirements};
use nap_units::{Resources, UsdPerHour};
use serde::{Deserialize, Serialize, Serializer};

use crate::intern::Interner;
use crate::model::{Alternative, CapacityType, InstanceType, Offering};

/// The instance types that one node class can have.
#[derive(Default, Deserialize)]
#[serde(from = "Vec<InstanceType>")]
pub struct Catalogue {
    types: Vec<InstanceType>,
    tables: OnceLock<Tables>,
}

impl Catalogue {
    /// Makes the tables that decisions need, unless they are there. The first decision would do it
    /// otherwise.
    pub fn prepare(&self) {
        self.stock();
    }

    /// The types in order, with their tables.
    pub(crate) fn stock(&self) -> SortedCatalogue<'_> {
        SortedCatalogue {
            types: &self.types,
            tables: self.tables.get_or_init(|| Tables::new(&self.types)),
        }
    }
}

impl From<Vec<InstanceType>> for Catalogue {
    fn from(mut types: Vec<InstanceType>) -> Self {
        share(&mut types);
        Self { types, tables: OnceLock::new() }
    }
}

/// There are thousands of offerings, but few places and ways to pay: those with equal requirements
/// share them.
fn share(types: &mut [InstanceType]) {
    let mut known: Interner<Arc<Requirements>> = Interner::default();
    // Most types are offered in the same places, in the same order.
    let mut before: Vec<Arc<Requirements>> = Vec::new();
    for offerings in types.iter_mut().map(|instance_type| &mut instance_type.offerings) {
        before.resize_with(before.len().max(offerings.len()), Arc::default);
        for (offering, before) in offerings.iter_mut().zip(&mut before) {
            if offering.requirements != *before {
                let number = known.number(Arc::clone(&offering.requirements));
                *before = Arc::clone(&known.items[number]);
            }
            offering.requirements = Arc::clone(before);
        }
    }
}

impl Serialize for Catalogue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.types.serialize(serializer)
    }
}

impl FromIterator<InstanceType> for Catalogue {
    fn from_iter<I: IntoIterator<Item = InstanceType>>(types: I) -> Self {
        Self::from(Vec::from_iter(types))
    }
}

impl Deref for Catalogue {
    type Target = Vec<InstanceType>;

    fn deref(&self) -> &Self::Target {
        &self.types
    }
}

/// Whoever changes the types gets them without their tables.
impl DerefMut for Catalogue {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.tables.take();
        &mut self.types
    }
}

impl Clone for Catalogue {
    fn clone(&self) -> Self {
        Self { types: self.types.clone(), tables: OnceLock::new() }
    }
}

impl fmt::Debug for Catalogue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.types.fmt(f)
    }
}

impl PartialEq for Catalogue {
    fn eq(&self, other: &Self) -> bool {
        self.types == other.types
    }
}

impl Eq for Catalogue {}

/// What is known about a catalogue.
struct Tables {
    /// Positions in the catalogue, by the name of the type.
    order: Vec<usize>,
    /// All offerings, cheapest first.
    offers: Vec<OfferingRow>,
    /// The same as plans name them.
    alternatives: Arc<[Alternative]>,
    /// An offering with each of the distinct requirements that offerings have.
    distinct: Vec<OfferingRow>,
    /// The offerings that have each of them.
    of_wish: Vec<FixedBitSet>,
    /// What types say about each label.
    columns: BTreeMap<String, LabelColumn>,
    /// What types have of each resource in all, and for pods.
    capacity: Amounts,
    allocatable: Amounts,
}

/// By resource, how much each type has, if it names it at all.
type Amounts = BTreeMap<String, Vec<Option<i64>>>;

/// The types of a catalogue by name, and their offerings by price.
#[derive(Clone, Copy)]
pub(crate) struct SortedCatalogue<'a> {
    types: &'a [InstanceType],
    tables: &'a Tables,
}

/// One offering: its type in the order of the stock, its position there, and the numbers of its
/// requirements and its zone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OfferingRow {
    kind: u32,
    index: u32,
    wish: u32,
    zone: u32,
    pub(crate) price: UsdPerHour,
    capacity_type: CapacityType,
    pub(crate) is_available: bool,
}

impl OfferingRow {
    /// The type, in the order of the stock.
    pub(crate) fn kind(self) -> usize {
        wide(self.kind)
    }

    /// The number of its requirements among those that offerings have.
    pub(crate) fn wish(self) -> usize {
        wide(self.wish)
    }
}

/// Numbers of offerings are kept small, because there are many; no catalogue has so many that they
/// would not fit.
fn narrow(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn wide(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// What each type says about one label.
#[derive(Debug)]
pub(crate) struct LabelColumn {
    pub(crate) values: Vec<Requirement>,
    /// Which of them each type has; `None` where it says nothing.
    pub(crate) value_of: Vec<Option<usize>>,
}

impl Tables {
    fn new(types: &[InstanceType]) -> Self {
        let mut order: Vec<usize> = (0..types.len()).collect();
        order.sort_by(|a, b| {
            let (a, b) = (&types[*a], &types[*b]);
            a.name.cmp(&b.name).then_with(|| a.allocatable.cmp(&b.allocatable))
        });
        let in_order: Vec<&InstanceType> = order.iter().map(|position| &types[*position]).collect();
        let OfferingRows { all: mut offers, distinct, zones } = OfferingRows::of(&in_order);
        let mut by_name: Vec<usize> = (0..zones.len()).collect();
        by_name.sort_by_key(|zone| zones[*zone]);
        let mut rank = vec![0; zones.len()];
        for (place, zone) in by_name.into_iter().enumerate() {
            rank[zone] = place;
        }
        offers.sort_unstable_by_key(|offer| {
            (
                offer.price,
                offer.kind,
                rank[wide(offer.zone)],
                offer.capacity_type,
                !offer.is_available,
                offer.index,
            )
        });
        let mut of_wish = vec![FixedBitSet::with_capacity(offers.len()); distinct.len()];
        for (index, offer) in offers.iter().enumerate() {
            of_wish[offer.wish()].insert(index);
        }
        let names: Vec<Arc<str>> =
            in_order.iter().map(|kind| Arc::from(kind.name.as_str())).collect();
        let zones: Vec<Arc<str>> = zones.into_iter().map(Arc::from).collect();
        let alternative = |offer: &OfferingRow| Alternative {
            instance_type: Arc::clone(&names[offer.kind()]),
            zone: Arc::clone(&zones[wide(offer.zone)]),
            capacity_type: offer.capacity_type,
            price: offer.price,
        };
        Self {
            alternatives: offers.iter().map(alternative).collect(),
            columns: columns(&in_order),
            capacity: amounts(&in_order, |kind| &kind.capacity),
            allocatable: amounts(&in_order, |kind| &kind.allocatable),
            offers,
            distinct,
            of_wish,
            order,
        }
    }
}

/// The offerings of all types.
struct OfferingRows<'a> {
    /// In the order of types.
    all: Vec<OfferingRow>,
    /// One with each of the distinct requirements.
    distinct: Vec<OfferingRow>,
    /// The names of zones by their numbers.
    zones: Vec<&'a str>,
}

impl<'a> OfferingRows<'a> {
    fn of(types: &[&'a InstanceType]) -> Self {
        let mut wishes: Interner<&Requirements> = Interner::default();
        let mut zones: Interner<&'a str> = Interner::default();
        let mut all: Vec<OfferingRow> =
            Vec::with_capacity(types.iter().map(|kind| kind.offerings.len()).sum());
        let mut distinct = Vec::new();
        // Most types are offered in the same places, in the same order.
        let mut before: Vec<(&Offering, OfferingRow)> = Vec::new();
        for (kind, instance_type) in types.iter().enumerate() {
            for (index, offering) in instance_type.offerings.iter().enumerate() {
                let is_same = |(before, _): &&(&Offering, OfferingRow)| {
                    let (one, other) = (&before.requirements, &offering.requirements);
                    before.zone == offering.zone && (Arc::ptr_eq(one, other) || one == other)
                };
                let (wish, zone) = match before.get(index).filter(is_same) {
                    Some((_, same)) => (same.wish, same.zone),
                    None => (
                        narrow(wishes.number(&offering.requirements)),
                        narrow(zones.number(&offering.zone)),
                    ),
                };
                let Offering { price, capacity_type, available: is_available, .. } = *offering;
                let (kind, index_in_type) = (narrow(kind), narrow(index));
                let offer = OfferingRow {
                    kind,
                    index: index_in_type,
                    wish,
                    zone,
                    price,
                    capacity_type,
                    is_available,
                };
                match before.get_mut(index) {
                    Some(before) => *before = (offering, offer),
                    None => before.push((offering, offer)),
                }
                if wide(wish) == distinct.len() {
                    distinct.push(offer);
                }
                all.push(offer);
            }
        }
        Self { all, distinct, zones: zones.items }
    }
}

fn columns(types: &[&InstanceType]) -> BTreeMap<String, LabelColumn> {
    let mut columns: BTreeMap<&str, (Interner<&Requirement>, Vec<Option<usize>>)> = BTreeMap::new();
    for (kind, instance_type) in types.iter().enumerate() {
        for (key, value) in instance_type.requirements.iter() {
            let (values, value_of) = columns
                .entry(key)
                .or_insert_with(|| (Interner::default(), vec![None; types.len()]));
            value_of[kind] = Some(values.number(value));
        }
    }
    let owned = |(key, (values, value_of)): (&str, (Interner<&Requirement>, _))| {
        (
            key.to_owned(),
            LabelColumn { values: values.items.into_iter().cloned().collect(), value_of },
        )
    };
    columns.into_iter().map(owned).collect()
}

fn amounts(types: &[&InstanceType], of: impl Fn(&InstanceType) -> &Resources) -> Amounts {
    let mut amounts: BTreeMap<&str, Vec<Option<i64>>> = BTreeMap::new();
    for (kind, instance_type) in types.iter().enumerate() {
        for (name, amount) in of(instance_type).iter() {
            amounts.entry(name).or_insert_with(|| vec![None; types.len()])[kind] = Some(amount);
        }
    }
    amounts.into_iter().map(|(name, amounts)| (name.to_owned(), amounts)).collect()
}

impl<'a> SortedCatalogue<'a> {
    /// Where nothing is on offer.
    pub(crate) fn nothing() -> SortedCatalogue<'static> {
        static NOTHING: Catalogue = Catalogue { types: Vec::new(), tables: OnceLock::new() };
        NOTHING.stock()
    }

    /// How many types there are.
    pub(crate) fn len(self) -> usize {
        self.types.len()
    }

    /// A type by its number.
    pub(crate) fn kind(self, number: usize) -> &'a InstanceType {
        &self.types[self.tables.order[number]]
    }

    /// What each type has of a resource in all, unless no type has any.
    pub(crate) fn capacity(self, resource: &str) -> Option<&'a [Option<i64>]> {
        self.tables.capacity.get(resource).map(Vec::as_slice)
    }

    /// What each type has of a resource for pods, unless no type has any.
    pub(crate) fn allocatable(self, resource: &str) -> Option<&'a [Option<i64>]> {
        self.tables.allocatable.get(resource).map(Vec::as_slice)
    }

    /// All offerings, cheapest first.
    pub(crate) fn offers(self) -> &'a [OfferingRow] {
        &self.tables.offers
    }

    /// The same as plans name them.
    pub(crate) fn alternatives(self) -> &'a Arc<[Alternative]> {
        &self.tables.alternatives
    }

    /// An offering.
    pub(crate) fn offering(self, offer: OfferingRow) -> &'a Offering {
        &self.kind(offer.kind()).offerings[wide(offer.index)]
    }

    /// The distinct requirements that offerings have.
    pub(crate) fn wishes(self) -> impl ExactSizeIterator<Item = &'a Requirements> {
        self.tables.distinct.iter().map(move |offer| &*self.offering(*offer).requirements)
    }

    /// The offerings that have one of these requirements, by their numbers.
    pub(crate) fn offers_of(self, wishes: impl Iterator<Item = usize>) -> FixedBitSet {
        let mut offers = FixedBitSet::with_capacity(self.tables.offers.len());
        for wish in wishes {
            offers.union_with(&self.tables.of_wish[wish]);
        }
        offers
    }

    /// What each type says about a label, if any does.
    pub(crate) fn column(self, key: &str) -> Option<&'a LabelColumn> {
        self.tables.columns.get(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(name: &str, micros: i64) -> InstanceType {
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
        }
    }

    fn in_order(catalogue: &Catalogue) -> Vec<(String, String)> {
        let stock = catalogue.stock();
        let name = |offer: &OfferingRow| {
            (stock.kind(offer.kind()).name.clone(), stock.offering(*offer).zone.clone())
        };
        stock.offers().iter().map(name).collect()
    }

    #[test]
    fn offerings_come_by_price_then_name_then_zone_and_anew_after_a_change() {
        let mut catalogue =
            Catalogue::from(vec![machine("b", 2), machine("c", 1), machine("a", 2)]);
        let expected = |names: [&str; 3]| -> Vec<(String, String)> {
            let zones = |name: &str| ["z-1", "z-2"].map(|zone| (name.to_owned(), zone.to_owned()));
            names.into_iter().flat_map(zones).collect()
        };
        assert_eq!(in_order(&catalogue), expected(["c", "a", "b"]));
        for offering in &mut catalogue[1].offerings {
            offering.price = UsdPerHour::from_micros(3);
        }
        assert_eq!(in_order(&catalogue), expected(["a", "b", "c"]));
    }

    #[test]
    fn offerings_with_equal_requirements_share_them() {
        let catalogue: Catalogue = [machine("a", 1), machine("b", 1)].into_iter().collect();
        for (one, other) in catalogue[0].offerings.iter().zip(&catalogue[1].offerings) {
            assert!(Arc::ptr_eq(&one.requirements, &other.requirements));
        }
        assert_ne!(catalogue[0].offerings[0].requirements, catalogue[0].offerings[1].requirements);
        assert_eq!(catalogue.stock().wishes().len(), 2);
    }
}
