//! Offerings of a region by their labels, so that many NodePools can be matched with all of them.

use std::collections::BTreeMap;

use fixedbitset::FixedBitSet;
use nap_api::requirement::Undefined;
use nap_api::{Requirement, Requirements, labels};
use nap_engine::{CapacityType, InstanceType};
use nap_units::UsdPerHour;

/// An offering: its size, and what it costs.
pub struct Offering {
    /// Position of the size among the instance types.
    pub size: usize,
    /// Price.
    pub price: UsdPerHour,
}

/// Available offerings of the instance types of one node class.
pub struct Offerings {
    /// The offerings.
    pub all: Vec<Offering>,
    /// By label, the offerings that share a requirement on it; `None` are those without the label.
    by_label: BTreeMap<String, Vec<(Option<Requirement>, FixedBitSet)>>,
    /// Position of each offering among those of all node classes.
    ids: Vec<usize>,
}

/// Positions of offerings among those of all node classes.
#[derive(Default)]
pub struct Ids(BTreeMap<(String, String, CapacityType), usize>);

impl Offerings {
    /// Indexes the available offerings.
    pub fn new(types: &[InstanceType], ids: &mut Ids) -> Self {
        let mut all = Vec::new();
        let mut machines: Vec<Requirements> = Vec::new();
        let mut of_offerings = Vec::new();
        for (size, kind) in types.iter().enumerate() {
            for offering in kind.offerings.iter().filter(|offering| offering.available) {
                let mut machine = kind.requirements.clone();
                machine.extend(&offering.requirements);
                machines.push(machine);
                let key = (kind.name.clone(), offering.zone.clone(), offering.capacity_type);
                let next = ids.0.len();
                of_offerings.push(*ids.0.entry(key).or_insert(next));
                all.push(Offering { size, price: offering.price });
            }
        }
        let mut keys: Vec<&str> =
            machines.iter().flat_map(|machine| machine.iter().map(|(key, _)| key)).collect();
        keys.sort_unstable();
        keys.dedup();
        let mut by_label = BTreeMap::new();
        for key in keys {
            let mut groups: BTreeMap<Option<&Requirement>, FixedBitSet> = BTreeMap::new();
            for (number, machine) in machines.iter().enumerate() {
                let group = groups.entry(machine.get(key));
                group.or_insert_with(|| FixedBitSet::with_capacity(machines.len())).insert(number);
            }
            let groups = groups.into_iter().map(|(value, group)| (value.cloned(), group)).collect();
            by_label.insert(key.to_owned(), groups);
        }
        Self { all, by_label, ids: of_offerings }
    }

    /// The offerings that meet all requirements. Labels that no instance type has are set by the
    /// NodePool.
    pub fn meeting(&self, wanted: &Requirements) -> FixedBitSet {
        let mut met = FixedBitSet::with_capacity(self.all.len());
        met.insert_range(..);
        for (key, requirement) in wanted.iter() {
            let mut asked = Requirements::new();
            asked.set(key, requirement.clone());
            let Some(groups) = self.by_label.get(key) else {
                if labels::is_well_known(key)
                    && Requirements::new().compatible(&asked, Undefined::Deny).is_err()
                {
                    met.clear();
                }
                continue;
            };
            let mut of_key = FixedBitSet::with_capacity(self.all.len());
            for (value, group) in groups {
                let mut machine = Requirements::new();
                if let Some(value) = value {
                    machine.set(key, value.clone());
                }
                let unset = value.is_none() && !labels::is_well_known(key);
                if unset || machine.compatible(&asked, Undefined::Deny).is_ok() {
                    of_key.union_with(group);
                }
            }
            met.intersect_with(&of_key);
        }
        met
    }

    /// Positions of offerings among those of all node classes.
    pub fn ids(&self, offerings: &FixedBitSet) -> FixedBitSet {
        offerings.ones().map(|number| self.ids[number]).collect()
    }
}
