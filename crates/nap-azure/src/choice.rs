//! Which offering a claim gets: the first of those it was planned with that can be had, or else the
//! cheapest that holds what was planned and satisfies the claim.

use nap_api::Requirements;
use nap_engine::{CapacityType, InstanceType, Offering};
use nap_units::Resources;

use crate::unavailable::REGIONAL;

/// The best offering for a claim, with its instance type.
///
/// The planned ones (`type/zone/capacity-type`, separated by commas) come first, in their order:
/// whoever planned may know better prices. Among others of equal price, spot before on-demand,
/// zonal before regional, then by name. Zones of the same size are spread over claims by a hash of
/// the claim's name, so that a burst does not land in one zone and a repeated try finds the same
/// zone.
pub(crate) fn best<'a>(
    catalogue: &'a [InstanceType],
    requirements: &Requirements,
    requests: &Resources,
    claim: &str,
    planned: &str,
    has_image: impl Fn(&InstanceType) -> bool,
) -> Option<(&'a InstanceType, &'a Offering)> {
    let planned: Vec<&str> = planned.split(',').collect();
    let rank = |kind: &InstanceType, offering: &Offering| {
        let own = format!("{}/{}/{}", kind.name, offering.zone, offering.capacity_type);
        planned.iter().position(|one| *one == own).unwrap_or(planned.len())
    };
    // A resource that no size has comes from elsewhere, such as an overlay; whoever planned saw to
    // it.
    let mut known = Resources::new();
    for (name, amount) in requests.iter() {
        if catalogue.iter().any(|kind| kind.allocatable.contains(name)) {
            known.set(name, amount);
        }
    }
    catalogue
        .iter()
        // A label that no instance type defines comes from the claim itself, so only conflicts
        // count.
        .filter(|kind| {
            known.fits(&kind.allocatable) && kind.requirements.intersects(requirements).is_ok()
        })
        .filter(|kind| has_image(kind))
        .flat_map(|kind| kind.offerings.iter().map(move |offering| (kind, offering)))
        .filter(|(_, offering)| {
            offering.available && offering.requirements.intersects(requirements).is_ok()
        })
        .min_by_key(|(kind, offering)| {
            (
                rank(kind, offering),
                offering.price,
                offering.capacity_type == CapacityType::OnDemand,
                offering.zone == REGIONAL,
                kind.name.as_str(),
                fnv1(&format!("{claim}/{}", offering.zone)),
            )
        })
}

/// FNV-1 with 64 bits.
pub(crate) fn fnv1(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        hash.wrapping_mul(0x0100_0000_01b3) ^ u64::from(byte)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AzureConfig;
    use crate::catalogue::Catalogue;
    use crate::instance_types::{Settings, from_catalogue};
    use nap_api::{AKSNodeClass, Requirement, labels};

    fn types() -> nap_engine::Catalogue {
        let config = AzureConfig::new("s", "rg", "c", "eastus");
        from_catalogue(Catalogue::embedded(), &Settings::new(&config, &AKSNodeClass::default()))
            .unwrap()
    }

    fn wanted(pairs: &[(&str, &str)]) -> Requirements {
        let mut requirements = Requirements::new();
        for (key, value) in pairs {
            requirements.add(key, Requirement::is_in([*value]));
        }
        requirements
    }

    #[test]
    fn the_cheapest_that_holds_the_requests_is_taken() {
        let types = types();
        let requests = Resources::new().with("cpu", 3000);
        let requirements =
            wanted(&[(labels::SKU_FAMILY, "D"), (labels::ARCH, "amd64"), ("team", "a")]);
        let (kind, offering) =
            best(types.types(), &requirements, &requests, "claim", "", |_| true).unwrap();
        assert_eq!(offering.capacity_type, CapacityType::Spot, "spot is cheaper");
        assert!(kind.allocatable.get("cpu") >= 3000);
        let dearer = |other: &&InstanceType| {
            requests.fits(&other.allocatable)
                && other.requirements.intersects(&requirements).is_ok()
        };
        let cheapest = types
            .types()
            .iter()
            .filter(dearer)
            .flat_map(|kind| &kind.offerings)
            .map(|o| o.price)
            .min();
        assert_eq!(Some(offering.price), cheapest);
    }

    #[test]
    fn what_was_planned_is_tried_in_its_order_whatever_it_costs() {
        let types = types();
        let requirements =
            wanted(&[(labels::SKU_FAMILY, "D"), (labels::CAPACITY_TYPE, "on-demand")]);
        let planned = "Standard_D4s_v3/nowhere-1/on-demand,Standard_D8s_v5/eastus-2/on-demand,Standard_D2s_v5/eastus-1/on-demand";
        let chosen = |requests: &Resources| {
            let (kind, offering) =
                best(types.types(), &requirements, requests, "claim", planned, |_| true).unwrap();
            format!("{}/{}", kind.name, offering.zone)
        };
        assert_eq!(
            chosen(&Resources::new()),
            "Standard_D8s_v5/eastus-2",
            "the first that there is"
        );
        let device = Resources::new().with("example.com/device", 1);
        assert_eq!(chosen(&device), "Standard_D8s_v5/eastus-2", "no size has such a thing");
    }

    #[test]
    fn equal_prices_prefer_zones_and_spread_over_them() {
        let types = types();
        let requirements = wanted(&[
            (labels::INSTANCE_TYPE, "Standard_D4s_v5"),
            (labels::CAPACITY_TYPE, "on-demand"),
        ]);
        let zone = |claim: &str| {
            best(types.types(), &requirements, &Resources::new(), claim, "", |_| true)
                .unwrap()
                .1
                .zone
                .clone()
        };
        let zones: std::collections::BTreeSet<String> =
            (0..30).map(|n| zone(&format!("claim-{n}"))).collect();
        assert_eq!(zones.into_iter().collect::<Vec<_>>(), ["eastus-1", "eastus-2", "eastus-3"]);
        assert_eq!(zone("claim-1"), zone("claim-1"));
        let regional = wanted(&[
            (labels::INSTANCE_TYPE, "Standard_D4s_v5"),
            (labels::PLACEMENT_SCOPE, "regional"),
        ]);
        assert_eq!(
            best(types.types(), &regional, &Resources::new(), "c", "", |_| true).unwrap().1.zone,
            "0"
        );
        assert!(best(types.types(), &regional, &Resources::new(), "c", "", |_| false).is_none());
    }
}
