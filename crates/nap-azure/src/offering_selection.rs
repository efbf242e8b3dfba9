//! The offering that a NodeClaim is launched with.
//!
//! A NodeClaim with a plan record names its offerings in order, and [`first_planned`] only skips
//! those that cannot be used. [`cheapest`] chooses for a NodeClaim without a record, which a user
//! or another controller has made.

use nap_api::{OfferingRef, Requirements};
use nap_engine::{CapacityType, InstanceType, Offering};
use nap_units::Resources;

use crate::machines::names::fnv1;
use crate::unavailable_offerings::{Doubts, REGIONAL};

/// Conditions on the offering of a NodeClaim.
pub(crate) struct Wanted<'a> {
    /// Requirements of the NodeClaim.
    pub requirements: &'a Requirements,
    /// Resource requests of the NodeClaim.
    pub requests: &'a Resources,
    /// Whether an image exists for an instance type.
    pub has_image: &'a (dyn Fn(&InstanceType) -> bool + Sync),
    /// Offerings that failed lately, which come after others of the same price.
    pub doubts: &'a Doubts,
}

impl Wanted<'_> {
    fn doubt(&self, one: &InstanceType, offering: &Offering) -> u32 {
        self.doubts.of(&one.name, &offering.zone, offering.capacity_type)
    }
}

/// Available offerings that satisfy a NodeClaim.
fn usable<'c>(
    catalogue: &'c [InstanceType],
    wanted: &Wanted<'_>,
) -> impl Iterator<Item = (&'c InstanceType, &'c Offering)> {
    // A resource that no size has comes from a NodeOverlay, which the plan took into account.
    let mut known = Resources::new();
    for (name, amount) in wanted.requests.iter() {
        if catalogue.iter().any(|one| one.allocatable.contains(name)) {
            known.set(name, amount);
        }
    }
    // A label that no instance type defines comes from the NodeClaim itself: only conflicts count.
    catalogue
        .iter()
        .filter(move |one| {
            known.fits(&one.allocatable)
                && one.requirements.intersects(wanted.requirements).is_ok()
                && (wanted.has_image)(one)
        })
        .flat_map(|one| one.offerings.iter().map(move |offering| (one, offering)))
        .filter(|(_, offering)| {
            offering.available && offering.requirements.intersects(wanted.requirements).is_ok()
        })
}

/// The first planned offering that is available and satisfies the NodeClaim. Of offerings that
/// follow each other at the same price, those that failed lately come last.
pub(crate) fn first_planned<'c>(
    catalogue: &'c [InstanceType],
    wanted: &Wanted<'_>,
    planned: &[OfferingRef],
) -> Option<(&'c InstanceType, &'c Offering)> {
    let position = |one: &InstanceType, offering: &Offering| {
        planned.iter().position(|reference| {
            reference.instance_type == one.name
                && reference.zone == offering.zone
                && reference.capacity_type == offering.capacity_type.as_str()
        })
    };
    let mut usable: Vec<_> = usable(catalogue, wanted)
        .filter_map(|(one, offering)| Some((position(one, offering)?, one, offering)))
        .collect();
    usable.sort_by_key(|(position, _, _)| *position);
    let price = usable.first()?.2.price;
    let equal = usable.into_iter().take_while(|(_, _, offering)| offering.price == price);
    // The first of those with the least doubt.
    let best = equal.min_by_key(|(_, one, offering)| wanted.doubt(one, offering));
    best.map(|(_, one, offering)| (one, offering))
}

/// The cheapest available offering that satisfies the NodeClaim; of equal prices first those that
/// did not fail lately, spot before on-demand, zonal before regional, sizes that are open to new
/// subscriptions, then by name. Zones of one size are spread over NodeClaims by a hash of the
/// NodeClaim's name, so that a burst does not land in one zone and a retry finds the same zone.
pub(crate) fn cheapest<'c>(
    catalogue: &'c [InstanceType],
    wanted: &Wanted<'_>,
    claim: &str,
) -> Option<(&'c InstanceType, &'c Offering)> {
    usable(catalogue, wanted).min_by_key(|(one, offering)| {
        (
            offering.price,
            wanted.doubt(one, offering),
            offering.capacity_type == CapacityType::OnDemand,
            offering.zone == REGIONAL,
            one.closed,
            one.name.as_str(),
            fnv1(&format!("{claim}/{}", offering.zone)),
        )
    })
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::AzureConfig;
    use crate::embedded::EmbeddedCatalogue;
    use crate::instance_types::{Settings, from_catalogue};
    use nap_api::{AKSNodeClass, Requirement, labels};
    use nap_units::UsdPerHour;

    use crate::arm::Failure;
    use crate::shortage::built_in_sku;
    use crate::unavailable_offerings::UnavailableOfferings;
    use jiff::Timestamp;

    fn types() -> Vec<InstanceType> {
        let config = AzureConfig::new("s", "rg", "c", "eastus");
        let settings = Settings::new(&config, &AKSNodeClass::default());
        from_catalogue(EmbeddedCatalogue::embedded(), &settings).unwrap().types().to_vec()
    }

    fn requirements(pairs: &[(&str, &str)]) -> Requirements {
        let mut requirements = Requirements::new();
        for (key, value) in pairs {
            requirements.add(key, Requirement::is_in([*value]));
        }
        requirements
    }

    fn wanted<'a>(requirements: &'a Requirements, requests: &'a Resources) -> Wanted<'a> {
        static SURE: LazyLock<Doubts> = LazyLock::new(Doubts::default);
        Wanted { requirements, requests, has_image: &|_| true, doubts: &SURE }
    }

    fn reference(instance_type: &str, zone: &str) -> OfferingRef {
        OfferingRef {
            instance_type: instance_type.to_owned(),
            zone: zone.to_owned(),
            capacity_type: "on-demand".to_owned(),
            price: UsdPerHour::ZERO,
        }
    }

    #[test]
    fn planned_offerings_are_tried_in_their_order_whatever_they_cost() {
        let types = types();
        let on_demand = requirements(&[(labels::CAPACITY_TYPE, "on-demand")]);
        let planned = [
            reference("Standard_D4s_v3", "nowhere-1"),
            reference("Standard_D8s_v5", "eastus-2"),
            reference("Standard_D2s_v5", "eastus-1"),
        ];
        let chosen = |requests: &Resources| {
            let (one, offering) =
                first_planned(&types, &wanted(&on_demand, requests), &planned).unwrap();
            format!("{}/{}", one.name, offering.zone)
        };
        assert_eq!(chosen(&Resources::new()), "Standard_D8s_v5/eastus-2");
        let device = Resources::new().with("example.com/device", 1);
        assert_eq!(chosen(&device), "Standard_D8s_v5/eastus-2", "no size has the resource");
    }

    #[test]
    fn offerings_that_failed_lately_come_after_others_of_the_same_price() {
        let (types, none) = (types(), Resources::new());
        let size = "Standard_D4s_v5";
        let only = requirements(&[
            (labels::INSTANCE_TYPE, size),
            (labels::CAPACITY_TYPE, "on-demand"),
            (labels::PLACEMENT_SCOPE, "zonal"),
        ]);
        let mut memory = UnavailableOfferings::default();
        let (sku, now) = (built_in_sku("eastus", size).unwrap(), Timestamp::UNIX_EPOCH);
        let (full, on_demand) = (Failure::ZonalCapacity, CapacityType::OnDemand);
        memory.learn(full, &sku, "eastus", "eastus-1", on_demand, now);
        let doubts = memory.doubts(memory.next_change(now).unwrap());
        let wanted = Wanted { doubts: &doubts, ..wanted(&only, &none) };
        let planned = ["eastus-1", "eastus-3", "eastus-2"].map(|zone| reference(size, zone));
        let (_, offering) = first_planned(&types, &wanted, &planned).unwrap();
        assert_eq!(offering.zone, "eastus-3");
        let zones: std::collections::BTreeSet<&str> = (0..30)
            .filter_map(|n| cheapest(&types, &wanted, &format!("claim-{n}")))
            .map(|(_, offering)| offering.zone.as_str())
            .collect();
        assert_eq!(zones.into_iter().collect::<Vec<_>>(), ["eastus-2", "eastus-3"]);
        let (_, offering) = first_planned(&types, &wanted, &planned[..1]).unwrap();
        assert_eq!(offering.zone, "eastus-1", "it is tried all the same");
    }

    #[test]
    fn nothing_beyond_the_planned_offerings_is_chosen() {
        let (types, spot) = (types(), requirements(&[(labels::CAPACITY_TYPE, "spot")]));
        let planned = [reference("Standard_D8s_v5", "eastus-2")];
        let none = Resources::new();
        assert!(first_planned(&types, &wanted(&spot, &none), &planned).is_none());
        assert!(cheapest(&types, &wanted(&spot, &none), "claim").is_some());
    }

    #[test]
    fn without_a_plan_the_cheapest_that_holds_the_requests_is_chosen() {
        let types = types();
        let requests = Resources::new().with("cpu", 3000);
        let requirements =
            requirements(&[(labels::SKU_FAMILY, "D"), (labels::ARCH, "amd64"), ("team", "a")]);
        let (one, offering) = cheapest(&types, &wanted(&requirements, &requests), "claim").unwrap();
        assert_eq!(offering.capacity_type, CapacityType::Spot, "spot is cheaper");
        assert!(one.allocatable.get("cpu") >= 3000);
        let holds = |other: &&InstanceType| {
            requests.fits(&other.allocatable)
                && other.requirements.intersects(&requirements).is_ok()
        };
        let lowest =
            types.iter().filter(holds).flat_map(|one| &one.offerings).map(|o| o.price).min();
        assert_eq!(Some(offering.price), lowest);
    }

    #[test]
    fn equal_prices_prefer_zones_and_spread_over_them() {
        let (types, none) = (types(), Resources::new());
        let size = (labels::INSTANCE_TYPE, "Standard_D4s_v5");
        let on_demand = requirements(&[size, (labels::CAPACITY_TYPE, "on-demand")]);
        let zone = |claim: &str| {
            cheapest(&types, &wanted(&on_demand, &none), claim).unwrap().1.zone.clone()
        };
        let zones: std::collections::BTreeSet<String> =
            (0..30).map(|n| zone(&format!("claim-{n}"))).collect();
        assert_eq!(zones.into_iter().collect::<Vec<_>>(), ["eastus-1", "eastus-2", "eastus-3"]);
        assert_eq!(zone("claim-1"), zone("claim-1"));
        let regional = requirements(&[size, (labels::PLACEMENT_SCOPE, "regional")]);
        let mut wanted = wanted(&regional, &none);
        assert_eq!(cheapest(&types, &wanted, "c").unwrap().1.zone, "0");
        wanted.has_image = &|_| false;
        assert!(cheapest(&types, &wanted, "c").is_none());
    }
}
