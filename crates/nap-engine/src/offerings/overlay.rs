//! What a user knows better about instance types than the cloud says: a negotiated price, a device
//! that the cloud does not list.
//!
//! Overlays change a catalogue before anything is decided. The heavier one wins, per offering for
//! prices and per resource for capacity; where two of one weight say something about the same, the
//! one that comes first in the alphabet is refused as a whole.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use nap_api::requirement::Undefined;
use nap_api::{Requirement, Requirements, labels};
use nap_units::{Resources, UsdPerHour};
use serde::{Deserialize, Serialize};

use crate::model::catalogue::Catalogue;
use crate::model::{InstanceType, Offering, Pool};

/// What is different about the instance types that are meant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overlay {
    /// Its name.
    pub name: String,
    /// Which wins where several say something: the higher.
    #[serde(default)]
    pub weight: i32,
    /// Which offerings are meant.
    #[serde(default)]
    pub requirements: Requirements,
    /// What is different about their price.
    #[serde(default)]
    pub price: Option<PriceChange>,
    /// Extended resources that the machines have besides the cloud's.
    #[serde(default)]
    pub capacity: Resources,
}

/// What is different about a price.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PriceChange {
    /// It is this.
    Fixed(UsdPerHour),
    /// It is so much more, or less.
    Amount(UsdPerHour),
    /// It is so many millionths more, or less: 100,000 is ten percent.
    Millionths(i64),
}

impl PriceChange {
    /// The changed price, never below nothing.
    fn apply(self, price: UsdPerHour) -> UsdPerHour {
        let micros = match self {
            Self::Fixed(price) => price.micros(),
            Self::Amount(amount) => price.micros().saturating_add(amount.micros()),
            Self::Millionths(millionths) => {
                let change = i128::from(price.micros()) * i128::from(millionths) / 1_000_000;
                price.micros().saturating_add(i64::try_from(change).unwrap_or(i64::MAX))
            }
        };
        UsdPerHour::from_micros(micros.max(0))
    }
}

/// Two overlays of one weight that say something about the same: the first is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverlayConflict {
    /// The overlay that is refused.
    pub refused: String,
    /// The one that it contradicts.
    pub by: String,
}

/// The catalogue as a pool sees it, and the overlays that contradict others.
pub fn overlay(
    catalogue: &Catalogue,
    pool: &Pool,
    overlays: &[Overlay],
) -> (Catalogue, Vec<OverlayConflict>) {
    let mut order: Vec<&Overlay> = overlays.iter().collect();
    order.sort_by_key(|one| Reverse((one.weight, one.name.as_str())));
    let mut changed = catalogue.clone();
    let mut conflicts = Vec::new();
    // Who said something about the price of an offering, and about a resource of a type.
    let mut prices: BTreeMap<(usize, usize), &Overlay> = BTreeMap::new();
    let mut resources: BTreeMap<(usize, String), &Overlay> = BTreeMap::new();
    for one in order {
        let meant: Vec<(usize, usize)> = catalogue
            .iter()
            .enumerate()
            .flat_map(|(kind, instance_type)| {
                let offerings = instance_type.offerings.iter().enumerate();
                let meant =
                    offerings.filter(|(_, offering)| means(one, pool, instance_type, offering));
                meant.map(move |(offering, _)| (kind, offering))
            })
            .collect();
        let mut kinds: Vec<usize> = meant.iter().map(|(kind, _)| *kind).collect();
        kinds.dedup();
        let named = || one.capacity.iter().map(|(name, _)| name.to_owned());
        let pairs = || kinds.iter().flat_map(|kind| named().map(|name| (*kind, name)));
        let by_price =
            meant.iter().filter(|_| one.price.is_some()).filter_map(|place| prices.get(place));
        let by_capacity = pairs().filter_map(|pair| resources.get(&pair).copied());
        let rival = by_price.copied().chain(by_capacity).find(|other| other.weight == one.weight);
        if let Some(rival) = rival {
            conflicts.push(OverlayConflict { refused: one.name.clone(), by: rival.name.clone() });
            continue;
        }
        for (kind, offering) in &meant {
            if let Some(change) = one.price
                && !prices.contains_key(&(*kind, *offering))
            {
                prices.insert((*kind, *offering), one);
                let price = &mut changed[*kind].offerings[*offering].price;
                *price = change.apply(*price);
            }
        }
        for (kind, name) in pairs().collect::<Vec<_>>() {
            if !resources.contains_key(&(kind, name.clone())) {
                let amount = one.capacity.get(&name);
                changed[kind].capacity.set(name.clone(), amount);
                changed[kind].allocatable.set(name.clone(), amount);
                resources.insert((kind, name), one);
            }
        }
    }
    (changed, conflicts)
}

/// Whether an overlay is about an offering of a type in a pool.
fn means(one: &Overlay, pool: &Pool, instance_type: &InstanceType, offering: &Offering) -> bool {
    let mut known = instance_type.requirements.clone();
    known.extend(&Requirements::from_labels(&pool.requirements.labels()));
    known.set(labels::NODEPOOL, Requirement::is_in([pool.name.as_str()]));
    known.extend(&offering.requirements);
    known.compatible(&one.requirements, Undefined::Deny).is_ok()
}
