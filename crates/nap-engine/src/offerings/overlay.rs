//! Node overlays: prices and extended resources that correct the cloud's catalogue.
//!
//! Overlays edit a catalogue before a decision. The heavier overlay wins, per offering for prices
//! and per resource for capacity. Of two overlays with equal weights that set the same value, the
//! alphabetically first is rejected as a whole.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use nap_api::requirement::Undefined;
use nap_api::{Requirement, Requirements, labels};
use nap_units::{Resources, UsdPerHour};
use serde::{Deserialize, Serialize};

use crate::model::{Catalogue, InstanceType, Offering, Pool};

/// A correction of the offerings that satisfy its requirements.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overlay {
    /// Name of the overlay.
    pub name: String,
    /// Weight; of several overlays that set a value, the heaviest wins.
    #[serde(default)]
    pub weight: i32,
    /// Requirements on the offerings that are corrected.
    #[serde(default)]
    pub requirements: Requirements,
    /// Correction of the price; `None` keeps it.
    #[serde(default)]
    pub price: Option<PriceChange>,
    /// Extended resources that the nodes have in addition.
    #[serde(default)]
    pub capacity: Resources,
}

/// A correction of a price.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PriceChange {
    /// Replaces the price.
    Fixed(UsdPerHour),
    /// Added to the price; may be negative.
    Amount(UsdPerHour),
    /// Relative change in millionths; may be negative. 100,000 is ten percent.
    Millionths(i64),
}

impl PriceChange {
    /// The corrected price, at least zero.
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

/// A rejected overlay: one of equal weight sets the same value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverlayConflict {
    /// The rejected overlay.
    pub refused: String,
    /// The overlay that it contradicts.
    pub by: String,
}

/// Applies overlays to the catalogue of a pool; also returns the rejected overlays.
pub fn overlay(
    catalogue: &Catalogue,
    pool: &Pool,
    overlays: &[Overlay],
) -> (Catalogue, Vec<OverlayConflict>) {
    let mut order: Vec<&Overlay> = overlays.iter().collect();
    order.sort_by_key(|one| Reverse((one.weight, one.name.as_str())));
    let mut changed = catalogue.clone();
    let mut conflicts = Vec::new();
    // The overlays that set the price of an offering, and a resource of a type.
    let mut prices: BTreeMap<(usize, usize), &Overlay> = BTreeMap::new();
    let mut resources: BTreeMap<(usize, String), &Overlay> = BTreeMap::new();
    for one in order {
        let selected: Vec<(usize, usize)> = catalogue
            .types()
            .iter()
            .enumerate()
            .flat_map(|(number, instance_type)| {
                let offerings = instance_type.offerings.iter().enumerate();
                let selected =
                    offerings.filter(|(_, offering)| selects(one, pool, instance_type, offering));
                selected.map(move |(offering, _)| (number, offering))
            })
            .collect();
        let mut types: Vec<usize> = selected.iter().map(|(number, _)| *number).collect();
        types.dedup();
        let named = || one.capacity.iter().map(|(name, _)| name.to_owned());
        let pairs = || types.iter().flat_map(|number| named().map(|name| (*number, name)));
        let by_price =
            selected.iter().filter(|_| one.price.is_some()).filter_map(|place| prices.get(place));
        let by_capacity = pairs().filter_map(|pair| resources.get(&pair).copied());
        let rival = by_price.copied().chain(by_capacity).find(|other| other.weight == one.weight);
        if let Some(rival) = rival {
            conflicts.push(OverlayConflict { refused: one.name.clone(), by: rival.name.clone() });
            continue;
        }
        let edited = changed.edit();
        for (number, offering) in &selected {
            if let Some(change) = one.price
                && !prices.contains_key(&(*number, *offering))
            {
                prices.insert((*number, *offering), one);
                let price = &mut edited[*number].offerings[*offering].price;
                *price = change.apply(*price);
            }
        }
        for (number, name) in pairs().collect::<Vec<_>>() {
            if !resources.contains_key(&(number, name.clone())) {
                let amount = one.capacity.get(&name);
                edited[number].capacity.set(name.clone(), amount);
                edited[number].allocatable.set(name.clone(), amount);
                resources.insert((number, name), one);
            }
        }
    }
    (changed, conflicts)
}

/// Whether an overlay selects an offering of a pool.
fn selects(one: &Overlay, pool: &Pool, instance_type: &InstanceType, offering: &Offering) -> bool {
    let mut known = instance_type.requirements.clone();
    known.extend(&Requirements::from_labels(&pool.requirements.labels()));
    known.set(labels::NODEPOOL, Requirement::is_in([pool.name.as_str()]));
    known.extend(&offering.requirements);
    known.compatible(&one.requirements, Undefined::Deny).is_ok()
}
