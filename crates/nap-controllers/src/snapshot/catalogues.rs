//! Catalogues of NodePools: the instance types of their node classes with NodeOverlays applied.
//!
//! An overlay applies to every NodePool or to none: one that conflicts with another of the same
//! weight in a single NodePool is refused as a whole, and its status says so.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::ResourceExt;
use nap_api::requirement::NodeSelectorRequirement;
use nap_api::{NodeOverlay, Requirements};
use nap_engine::{Catalogue, Overlay, OverlayConflict, Pool, PriceChange, overlay};
use nap_units::{Resources, Rounding, UsdPerHour};

use super::pool_requirements;
use crate::cluster::Index;

/// Catalogues by NodePool.
#[derive(Debug, Default)]
pub struct Catalogues {
    /// Catalogues by the name that a snapshot refers to them by.
    pub(super) named: BTreeMap<String, Arc<Catalogue>>,
    /// Name of the catalogue of each NodePool.
    pub(super) of_pools: BTreeMap<String, String>,
    /// NodeOverlays that are not applied, and why.
    pub refused: BTreeMap<String, OverlayRefusal>,
    origin: Origin,
}

/// Reason why a NodeOverlay is not applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OverlayRefusal {
    /// A field cannot be parsed; the text names it.
    Invalid(String),
    /// Another overlay of the same weight changes the same offering or resource.
    Conflict,
}

/// Inputs of a set of catalogues; equal inputs give the same catalogues.
#[derive(Debug, Default)]
struct Origin {
    of_classes: BTreeMap<String, Arc<Catalogue>>,
    pools: Vec<Pool>,
    overlays: Vec<Overlay>,
    /// Overlays that cannot be parsed, and why.
    invalid: BTreeMap<String, String>,
}

impl Origin {
    fn is_same(&self, other: &Self) -> bool {
        self.pools == other.pools
            && self.overlays == other.overlays
            && self.invalid == other.invalid
            && self.of_classes.len() == other.of_classes.len()
            && self.of_classes.iter().zip(&other.of_classes).all(
                |((name, one), (other_name, other))| name == other_name && Arc::ptr_eq(one, other),
            )
    }
}

impl Catalogues {
    /// The catalogue of a NodePool; `None` if the instance types of its node class are unknown.
    pub fn of(&self, pool: &str) -> Option<&Arc<Catalogue>> {
        self.named.get(self.of_pools.get(pool)?)
    }
}

impl Catalogues {
    /// Catalogues of every NodePool, given those of the node classes. Returns `before` itself if
    /// its inputs are unchanged, so that solver caches keyed by it stay valid.
    pub fn build(
        index: &Index,
        of_classes: BTreeMap<String, Arc<Catalogue>>,
        before: &Arc<Self>,
    ) -> Arc<Self> {
        let mut invalid = BTreeMap::new();
        let mut overlays = Vec::new();
        for (name, overlay) in index.overlays() {
            match parse(overlay) {
                Ok(overlay) => overlays.push(overlay),
                Err(problem) => drop(invalid.insert(name.clone(), problem)),
            }
        }
        let pools = index.pools().map(|(_, pool)| Pool {
            name: pool.name_any(),
            weight: 0,
            requirements: pool_requirements(pool),
            taints: Vec::new(),
            headroom: Resources::new(),
            catalogue: pool.spec.template.spec.node_class_ref.name.clone(),
            max_price: None,
        });
        let pools: Vec<Pool> =
            pools.filter(|pool| of_classes.contains_key(&pool.catalogue)).collect();
        let origin = Origin { of_classes, pools, overlays, invalid };
        if origin.is_same(&before.origin) {
            Arc::clone(before)
        } else {
            Arc::new(apply_overlays(origin))
        }
    }
}

fn apply_overlays(origin: Origin) -> Catalogues {
    let mut named: BTreeMap<String, Arc<Catalogue>> = BTreeMap::new();
    let mut of_pools = BTreeMap::new();
    let (changed, conflicts) = without_conflicts(&origin);
    let invalid = origin
        .invalid
        .iter()
        .map(|(name, problem)| (name.clone(), OverlayRefusal::Invalid(problem.clone())));
    let refused =
        invalid.chain(conflicts.into_iter().map(|name| (name, OverlayRefusal::Conflict))).collect();
    for (pool, changed) in origin.pools.iter().zip(changed) {
        let class = &pool.catalogue;
        let original = &origin.of_classes[class];
        // NodePools that no overlay changes share the catalogue of their class.
        let (name, catalogue) = match changed.filter(|changed| changed != &**original) {
            Some(changed) => (format!("{class} in {}", pool.name), Arc::new(changed)),
            None => (class.clone(), Arc::clone(original)),
        };
        named.insert(name.clone(), catalogue);
        of_pools.insert(pool.name.clone(), name);
    }
    Catalogues { named, of_pools, refused, origin }
}

/// The catalogue of each NodePool (`None` without overlays), and the names of overlays that were
/// dropped until no conflict was left.
fn without_conflicts(origin: &Origin) -> (Vec<Option<Catalogue>>, Vec<String>) {
    let mut overlays = origin.overlays.clone();
    let mut refused = Vec::new();
    loop {
        if overlays.is_empty() {
            return (origin.pools.iter().map(|_| None).collect(), refused);
        }
        let found = origin
            .pools
            .iter()
            .map(|pool| overlay(&origin.of_classes[&pool.catalogue], pool, &overlays));
        let (changed, conflicts): (Vec<Catalogue>, Vec<Vec<OverlayConflict>>) = found.unzip();
        // The heaviest first: dropping it may resolve the conflicts of lighter ones.
        let rank = |name: &str| {
            overlays.iter().find(|one| one.name == name).map(|one| (one.weight, name.to_owned()))
        };
        let worst = conflicts.iter().flatten().max_by_key(|conflict| rank(&conflict.refused));
        let Some(worst) = worst.map(|conflict| conflict.refused.clone()) else {
            return (changed.into_iter().map(Some).collect(), refused);
        };
        overlays.retain(|one| one.name != worst);
        refused.push(worst);
    }
}

/// An overlay in the engine's terms. `Err` names the field that cannot be parsed.
fn parse(object: &NodeOverlay) -> Result<Overlay, String> {
    let spec = &object.spec;
    let requirements: Vec<NodeSelectorRequirement> = spec
        .requirements
        .iter()
        .map(|one| NodeSelectorRequirement {
            key: one.key.clone(),
            operator: one.operator,
            values: one.values.clone(),
            min_values: None,
        })
        .collect();
    let price = match (&spec.price, &spec.price_adjustment) {
        (Some(_), Some(_)) => return Err("price and priceAdjustment exclude each other".to_owned()),
        (Some(price), None) => {
            let price =
                UsdPerHour::parse(price).ok_or_else(|| format!("price: `{price}` is no price"))?;
            Some(PriceChange::Fixed(price))
        }
        (None, Some(text)) => Some(
            adjustment(text)
                .ok_or_else(|| format!("priceAdjustment: `{text}` is no adjustment"))?,
        ),
        (None, None) => None,
    };
    let capacity = spec.capacity.iter().map(|(name, quantity)| (name.as_str(), quantity));
    Ok(Overlay {
        name: object.name_any(),
        weight: spec.weight.unwrap_or(0),
        requirements: Requirements::from_specs(&requirements),
        price,
        capacity: Resources::from_quantities(capacity, Rounding::Down),
    })
}

/// Parses `+0.5`, `-0.5`, `+10%` or `-10%`.
fn adjustment(text: &str) -> Option<PriceChange> {
    let (sign, amount) = match text.strip_prefix('-') {
        Some(amount) => (-1, amount),
        None => (1, text.strip_prefix('+')?),
    };
    Some(match amount.strip_suffix('%') {
        Some(percent) => PriceChange::Millionths(sign * UsdPerHour::parse(percent)?.micros() / 100),
        None => {
            PriceChange::Amount(UsdPerHour::from_micros(sign * UsdPerHour::parse(amount)?.micros()))
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn price_adjustments_are_parsed_as_amounts_or_percentages() {
        assert_eq!(adjustment("+0.5"), Some(PriceChange::Amount(UsdPerHour::from_micros(500_000))));
        assert_eq!(
            adjustment("-.25"),
            Some(PriceChange::Amount(UsdPerHour::from_micros(-250_000)))
        );
        assert_eq!(adjustment("+12.5%"), Some(PriceChange::Millionths(125_000)));
        assert_eq!(adjustment("-100%"), Some(PriceChange::Millionths(-1_000_000)));
        assert_eq!((adjustment("0.5"), adjustment("+x%")), (None, None));
    }

    #[test]
    fn an_unparsable_overlay_names_its_field() {
        let overlay: NodeOverlay = serde_json::from_value(json!({
            "metadata": { "name": "odd" }, "spec": { "requirements": [], "price": "cheap" },
        }))
        .unwrap();
        assert_eq!(parse(&overlay).unwrap_err(), "price: `cheap` is no price");
    }
}
