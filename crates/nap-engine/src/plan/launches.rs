//! Launches: the offering of each bin, and its alternatives.

use std::collections::BTreeMap;
use std::sync::Arc;

use nap_api::{Requirements, labels};
use nap_units::Resources;

use crate::classes::dimensions::{Dimensions, is_attachment};
use crate::classes::{Classes, PodCounts};
use crate::ids::{BinId, Id, OfferingId};
use crate::model::{Launch, Snapshot};
use crate::offerings::eligibility::{EligibleOfferings, is_regional};
use crate::offerings::index::OfferingIndex;
use crate::packing::result::Packing;
use crate::plan::alternatives_cache::{AlternativesCache, Need};

/// Upper limit on the alternatives of a launch. A caller that has tried this many in vain should
/// solve again without them.
pub(crate) const MAX_ALTERNATIVES: usize = 600;

/// Upper limit on the alternatives of all launches together, as long as each has
/// [`MIN_ALTERNATIVES`].
const MAX_ALTERNATIVES_IN_ALL: usize = 60_000;

/// Alternatives that a launch may have in any case.
const MIN_ALTERNATIVES: usize = 60;

/// Turns bins into launches, one after another.
pub(crate) struct LaunchWriter<'p, 'a> {
    offerings: &'p OfferingIndex<'a>,
    classes: &'p Classes<'a>,
    dimensions: &'p Dimensions<'a>,
    /// Number of pods of each class that have their place.
    written: PodCounts,
    /// Number of nodes in each zone: among equal offerings, the emptiest zone is chosen.
    zones: BTreeMap<&'a str, usize>,
    cache: AlternativesCache,
}

impl<'p, 'a> LaunchWriter<'p, 'a> {
    /// Writer for a snapshot. `written` is the number of pods of each class on existing nodes.
    pub(crate) fn new(
        offerings: &'p OfferingIndex<'a>,
        classes: &'p Classes<'a>,
        dimensions: &'p Dimensions<'a>,
        snapshot: &'a Snapshot,
        written: PodCounts,
    ) -> Self {
        Self::with_zones(offerings, classes, dimensions, written, nodes_by_zone(snapshot))
    }

    /// Writer with the number of nodes in each zone.
    pub(crate) fn with_zones(
        offerings: &'p OfferingIndex<'a>,
        classes: &'p Classes<'a>,
        dimensions: &'p Dimensions<'a>,
        written: PodCounts,
        zones: BTreeMap<&'a str, usize>,
    ) -> Self {
        let cache = AlternativesCache::default();
        Self { offerings, classes, dimensions, written, zones, cache }
    }

    /// Turns every bin of a packing into a launch.
    pub(crate) fn launches(&mut self, packing: &Packing) -> Vec<Launch> {
        let max = MAX_ALTERNATIVES_IN_ALL / packing.bins.len().max(1);
        let max = max.clamp(MIN_ALTERNATIVES, MAX_ALTERNATIVES);
        packing.bins.ids().map(|bin| self.launch(packing, bin, max)).collect()
    }

    fn launch(&mut self, packing: &Packing, id: BinId, max_alternatives: usize) -> Launch {
        let offerings = self.offerings;
        let bin = &packing.bins[id];
        let used = packing.used(id);
        let eligible = offerings.eligible(bin.eligibility);
        let table = offerings.table(eligible);
        let budget = packing.ledger.budget(eligible.pool, &bin.charge);
        // A pool with `minValues` gets all alternatives, so that every value is among them.
        let max = eligible.min_values.is_empty().then_some(max_alternatives + 1);
        let need = Need { used, budget: &budget };
        let list = self.cache.offerings(offerings, bin.eligibility, need, max);
        let price = |id| table.catalogue.offerings()[id].price + offerings.node_cost;
        let best = list
            .offerings
            .iter()
            .copied()
            .take_while(|id| price(*id) <= bin.price)
            .filter(|id| price(*id) == bin.price)
            .min_by_key(|id| {
                let offering = table.offering(*id).1;
                let nodes = self.zones.get(offering.zone.as_str()).copied().unwrap_or(0);
                (is_regional(&offering.requirements), nodes, *id)
            })
            .or_else(|| list.offerings.first().copied());
        assert!(best.is_some(), "a bin is charged for a type that holds its pods");
        let best = best.unwrap_or(OfferingId::new(0));
        let (row, offering) = table.offering(best);
        *self.zones.entry(&offering.zone).or_default() += 1;
        let alternatives = list.without(table, best);

        let type_row = &table.types[row.instance_type];
        let mut pods = Vec::with_capacity(bin.pods);
        for (class, count) in &bin.content {
            let base = self.classes[*class].base;
            let first = self.written[base];
            self.written[base] += count;
            let class = &self.classes[base];
            pods.extend(class.pods[first..first + count].iter().map(|pod| (*pod).clone()));
        }
        pods.sort_unstable();
        let mut requests: Resources = type_row.daemons.requests.clone();
        let requested = self.dimensions.resources().iter().zip(used);
        let requested = requested.filter(|(name, amount)| **amount > 0 && !is_attachment(name));
        requests.add(&requested.map(|(name, amount)| (*name, *amount)).collect());
        Launch {
            pool: table.pool.name.clone(),
            instance_type: type_row.instance_type.name.clone(),
            zone: offering.zone.clone(),
            capacity_type: offering.capacity_type,
            price: offering.price,
            pods,
            requests,
            requirements: requirements(eligible, &bin.keep),
            alternatives,
        }
    }
}

/// Number of nodes in each zone.
pub(crate) fn nodes_by_zone(snapshot: &Snapshot) -> BTreeMap<&str, usize> {
    let mut zones = BTreeMap::new();
    for zone in snapshot.nodes.iter().filter_map(|node| node.labels.get(labels::ZONE)) {
        *zones.entry(zone.as_str()).or_default() += 1;
    }
    zones
}

/// Requirements of a launch, with `minValues` lowered to the values that are available.
fn requirements(eligible: &EligibleOfferings, keep: &[usize]) -> Arc<Requirements> {
    let lowered = eligible.min_values.iter().zip(keep).filter(|(rule, keep)| **keep < rule.min);
    let mut requirements = Arc::clone(&eligible.requirements);
    for (rule, keep) in lowered {
        if let Some(requirement) = eligible.requirements.get(&rule.key) {
            let min = i64::try_from(*keep).ok().filter(|min| *min > 0);
            Arc::make_mut(&mut requirements)
                .set(&rule.key, requirement.clone().with_min_values(min));
        }
    }
    requirements
}
