//! From bins to launches: which offering is bought, and what else would do.

use std::collections::BTreeMap;
use std::sync::Arc;

use nap_api::Requirements;
use nap_units::Resources;

use crate::classes::{Classes, Dimensions, is_attachment};
use crate::model::Launch;
use crate::offerings::index::{EligibleOfferings, OfferingIndex, is_regional};
use crate::packing::first_fit::sum;
use crate::packing::result::Packing;
use crate::plan::alternatives_cache::Choices;

/// The most alternatives that a launch carries. Large catalogues have thousands of offerings, and a
/// plan can have thousands of launches; who has tried this many in vain should solve again with
/// what was learnt.
pub(crate) const MAX_ALTERNATIVES: usize = 600;

/// The most alternatives that different launches of a plan carry together, as long as each has a
/// few.
const MAX_IN_ALL: usize = 60_000;

/// As many each launch may have in any case.
const FEW: usize = 60;

/// Turns bins into launches, one after another.
pub(crate) struct Buyer<'p, 'a> {
    pub(crate) offerings: &'p OfferingIndex<'a>,
    pub(crate) classes: &'p Classes<'a>,
    pub(crate) dimensions: &'p Dimensions<'a>,
    /// How many pods of each class have their place already.
    pub(crate) taken: Vec<usize>,
    /// How many machines each zone has.
    pub(crate) zones: BTreeMap<&'a str, usize>,
    pub(crate) choices: Choices,
}

impl Buyer<'_, '_> {
    /// Every bin as a launch.
    pub(crate) fn launches(&mut self, packing: &Packing) -> Vec<Launch> {
        let most = (MAX_IN_ALL / packing.bins.len().max(1)).clamp(FEW, MAX_ALTERNATIVES);
        (0..packing.bins.len()).map(|bin| self.launch(packing, bin, most)).collect()
    }

    fn launch(&mut self, packing: &Packing, number: usize, most: usize) -> Launch {
        let offerings = self.offerings;
        let bin = &packing.bins[number];
        let used = packing.used(number);
        let signature = offerings.signature(bin.signature);
        let table = offerings.table(signature);
        let budget = sum(&packing.left[signature.pool], &bin.reserved);
        // A pool that wants a choice of several values gets all of them.
        let most = if signature.diversities.is_empty() { most + 1 } else { usize::MAX };
        let choice = self.choices.of(offerings, bin.signature, used, &budget, most);
        let price = |index: usize| table.stock.offers()[index].price + offerings.node_cost;
        let best = choice
            .offers
            .iter()
            .copied()
            .take_while(|index| price(*index) <= bin.price)
            .filter(|index| price(*index) == bin.price)
            .min_by_key(|index| {
                let offering = table.offering(*index).1;
                let busy = self.zones.get(offering.zone.as_str()).copied().unwrap_or(0);
                (is_regional(&offering.requirements), busy, *index)
            })
            .or_else(|| choice.offers.first().copied());
        assert!(best.is_some(), "a bin always holds a reservation for a type that holds its pods");
        let best = best.unwrap_or_default();
        let (chosen, offering) = table.offering(best);
        *self.zones.entry(&offering.zone).or_default() += 1;
        let alternatives = choice.without(table, best);

        let kind = &table.types[chosen.kind()];
        let mut pods = Vec::with_capacity(bin.pods);
        for (number, count) in &bin.content {
            let base = self.classes.list[*number].base;
            let first = self.taken[base];
            self.taken[base] += count;
            let class = &self.classes.list[base];
            pods.extend(class.pods[first..first + count].iter().map(|pod| (*pod).clone()));
        }
        pods.sort_unstable();
        let mut requests: Resources = kind.daemons.requests.clone();
        let asked = self.dimensions.resources().iter().zip(used);
        let asked = asked.filter(|(name, amount)| **amount > 0 && !is_attachment(name));
        requests.add(&asked.map(|(name, amount)| (*name, *amount)).collect());
        Launch {
            pool: table.pool.name.clone(),
            instance_type: kind.instance_type.name.clone(),
            zone: offering.zone.clone(),
            capacity_type: offering.capacity_type,
            price: offering.price,
            pods,
            requests,
            requirements: requirements(signature, &bin.keep),
            alternatives,
        }
    }
}

/// What a machine must satisfy, with no more values of a label than there are to be had.
fn requirements(signature: &EligibleOfferings, keep: &[usize]) -> Arc<Requirements> {
    let fewer = signature.diversities.iter().zip(keep).filter(|(one, keep)| **keep < one.least);
    let mut requirements = Arc::clone(&signature.requirements);
    for (one, keep) in fewer {
        if let Some(requirement) = signature.requirements.get(&one.key) {
            let least = i64::try_from(*keep).ok().filter(|least| *least > 0);
            Arc::make_mut(&mut requirements)
                .set(&one.key, requirement.clone().with_min_values(least));
        }
    }
    requirements
}
