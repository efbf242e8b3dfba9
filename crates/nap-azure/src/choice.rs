//! Which offering a claim gets: the cheapest that can be had, holds what was planned and satisfies the claim.

use nap_api::Requirements;
use nap_engine::{CapacityType, InstanceType, Offering};
use nap_units::Resources;

use crate::unavailable::REGIONAL;

/// The best offering for a claim, with its instance type.
///
/// Equal prices: what was planned (`type/zone/capacity-type`), spot before on-demand, zonal before regional, then by name. Zones of the same size are spread over claims
/// by a hash of the claim's name, so that a burst does not land in one zone and a repeated try finds the same zone.
pub(crate) fn best<'a>(
    catalogue: &'a [InstanceType],
    requirements: &Requirements,
    requests: &Resources,
    claim: &str,
    planned: Option<&str>,
    has_image: impl Fn(&InstanceType) -> bool,
) -> Option<(&'a InstanceType, &'a Offering)> {
    catalogue
        .iter()
        // A label that no instance type defines comes from the claim itself, so only conflicts count.
        .filter(|kind| requests.fits(&kind.allocatable) && kind.requirements.intersects(requirements).is_ok())
        .filter(|kind| has_image(kind))
        .flat_map(|kind| kind.offerings.iter().map(move |offering| (kind, offering)))
        .filter(|(_, offering)| offering.available && offering.requirements.intersects(requirements).is_ok())
        .min_by_key(|(kind, offering)| {
            (
                offering.price,
                planned != Some(format!("{}/{}/{}", kind.name, offering.zone, offering.capacity_type).as_str()),
                offering.capacity_type == CapacityType::OnDemand,
                offering.zone == REGIONAL,
                kind.name.as_str(),
                fnv1(&format!("{claim}/{}", offering.zone)),
            )
        })
}

/// FNV-1 with 64 bits.
pub(crate) fn fnv1(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| hash.wrapping_mul(0x0100_0000_01b3) ^ u64::from(byte))
}
