//! Memory of unavailable offerings, graded by failure.
//!
//! A failure says more than "not this offering": a family without capacity for a size has none for
//! larger sizes, an exhausted spot quota blocks all spot, and a full zone may be full for both
//! priorities. Every mark expires.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use nap_engine::CapacityType;

use crate::arm::Failure;
use crate::skus::Sku;

/// Value of the zone label of a VM that is placed without a zone.
pub const REGIONAL: &str = "0";

/// Value of the zone label of a zone.
pub fn zone_label(region: &str, zone: &str) -> String {
    format!("{region}-{zone}")
}

/// Unavailable offerings and when each mark expires.
#[derive(Clone, Debug, Default)]
pub struct UnavailableOfferings {
    offerings: BTreeMap<(String, String, CapacityType), Timestamp>,
    /// By lower-cased family, zone and capacity type: sizes with at least this many vCPUs.
    families: BTreeMap<(String, String, CapacityType), (i64, Timestamp)>,
    all_spot: Option<Timestamp>,
    generation: u64,
}

const HOUR: SignedDuration = SignedDuration::from_hours(1);
const TEN_MINUTES: SignedDuration = SignedDuration::from_mins(10);
const ALMOST_A_DAY: SignedDuration = SignedDuration::from_hours(23);

impl UnavailableOfferings {
    /// Whether an offering of a size is marked.
    pub fn contains(
        &self,
        sku: &Sku,
        zone: &str,
        capacity_type: CapacityType,
        now: Timestamp,
    ) -> bool {
        if capacity_type == CapacityType::Spot && self.all_spot.is_some_and(|until| now < until) {
            return true;
        }
        let key = (sku.name.clone(), zone.to_owned(), capacity_type);
        if self.offerings.get(&key).is_some_and(|until| now < *until) {
            return true;
        }
        let key = (sku.family.to_lowercase(), zone.to_owned(), capacity_type);
        self.families.get(&key).is_some_and(|(vcpus, until)| now < *until && sku.vcpus >= *vcpus)
    }

    /// Counts the marks ever made.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Time at which the next mark expires; `None` without marks.
    pub fn next_change(&self, now: Timestamp) -> Option<Timestamp> {
        let offerings = self.offerings.values().copied();
        let families = self.families.values().map(|(_, until)| *until);
        offerings.chain(families).chain(self.all_spot).filter(|until| *until > now).min()
    }

    /// Marks what the failed launch of an offering shows to be unavailable. Returns whether
    /// anything was marked.
    pub fn learn(
        &mut self,
        failure: Failure,
        sku: &Sku,
        region: &str,
        zone: &str,
        capacity_type: CapacityType,
        now: Timestamp,
    ) -> bool {
        let zonal = zone != REGIONAL;
        let zones = sku.zones.iter().map(|number| zone_label(region, number));
        let every: Vec<String> = zones.chain([REGIONAL.to_owned()]).collect();
        let scope: Vec<String> =
            every.iter().filter(|zone| (zone.as_str() != REGIONAL) == zonal).cloned().collect();
        let this_zone = vec![zone.to_owned()];
        let this_type = [capacity_type];
        let both = [CapacityType::OnDemand, CapacityType::Spot];
        let spot = capacity_type == CapacityType::Spot;
        let (zones, types, lifetime): (Vec<String>, &[CapacityType], _) = match failure {
            Failure::SpotQuota => {
                self.all_spot = now.checked_add(HOUR).ok();
                self.generation += 1;
                return true;
            }
            Failure::FamilyQuota { limit_zero } => {
                (every, &this_type, if limit_zero { HOUR } else { TEN_MINUTES })
            }
            Failure::SkuNotAvailable => (scope, &this_type, if spot { HOUR } else { ALMOST_A_DAY }),
            Failure::ZonalCapacity => (this_zone, &both, HOUR),
            Failure::RegionalCapacity => (scope, &both, HOUR),
            Failure::OverconstrainedZonal | Failure::Evicted => (this_zone, &this_type, HOUR),
            Failure::Overconstrained => (scope, &this_type, HOUR),
            Failure::SkuNotSupported => (every, &both, ALMOST_A_DAY),
            Failure::Policy => (every, &both, HOUR),
            Failure::RegionalQuota
            | Failure::Throttled
            | Failure::NotFound
            | Failure::Auth
            | Failure::Invalid
            | Failure::Conflict
            | Failure::Transient => return false,
        };
        let until = now.checked_add(lifetime).unwrap_or(Timestamp::MAX);
        // A policy allows sizes by name, and an eviction is of one VM; a lack of capacity concerns
        // larger ones of the family too.
        let with_family = !matches!(failure, Failure::Policy | Failure::Evicted);
        for zone in zones {
            for capacity_type in types {
                self.mark(sku, &zone, *capacity_type, until, now);
                if with_family {
                    self.mark_family(sku, &zone, *capacity_type, until);
                }
            }
        }
        true
    }

    fn mark(
        &mut self,
        sku: &Sku,
        zone: &str,
        capacity_type: CapacityType,
        until: Timestamp,
        now: Timestamp,
    ) {
        self.offerings.retain(|_, end| *end > now);
        self.families.retain(|_, (_, end)| *end > now);
        self.generation += 1;
        let entry = self
            .offerings
            .entry((sku.name.clone(), zone.to_owned(), capacity_type))
            .or_insert(until);
        *entry = (*entry).max(until);
    }

    fn mark_family(
        &mut self,
        sku: &Sku,
        zone: &str,
        capacity_type: CapacityType,
        until: Timestamp,
    ) {
        let key = (sku.family.to_lowercase(), zone.to_owned(), capacity_type);
        let (vcpus, end) = self.families.entry(key).or_insert((sku.vcpus, until));
        *vcpus = (*vcpus).min(sku.vcpus);
        *end = (*end).max(until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedded::EmbeddedCatalogue;

    fn sku(name: &str) -> Sku {
        let catalogue = EmbeddedCatalogue::embedded();
        let region = catalogue.region("eastus").unwrap();
        let row = catalogue
            .skus_in("eastus")
            .find(|sku| sku.name == name)
            .unwrap()
            .to_resource_sku(region);
        Sku::read(&row, "eastus").unwrap()
    }

    #[test]
    fn a_policy_excludes_a_size_and_not_its_family() {
        let mut memory = UnavailableOfferings::default();
        let now = Timestamp::UNIX_EPOCH;
        let (refused, larger) = (sku("Standard_D4s_v5"), sku("Standard_D8s_v5"));
        let policy = Failure::of(None, "RequestDisallowedByPolicy", "");
        let on_demand = CapacityType::OnDemand;
        assert!(memory.learn(policy, &refused, "eastus", "eastus-1", on_demand, now));
        for zone in ["eastus-1", "eastus-2", REGIONAL] {
            assert!(memory.contains(&refused, zone, CapacityType::Spot, now), "{zone}");
            assert!(!memory.contains(&larger, zone, on_demand, now), "{zone}");
        }
    }

    #[test]
    fn a_failure_blocks_larger_sizes_of_the_family_until_it_expires() {
        let now = Timestamp::UNIX_EPOCH;
        let (small, tried, large) =
            (sku("Standard_D2s_v5"), sku("Standard_D8s_v5"), sku("Standard_D16s_v5"));
        let mut memory = UnavailableOfferings::default();
        let full = Failure::ZonalCapacity;
        assert!(memory.learn(full, &tried, "eastus", "eastus-1", CapacityType::OnDemand, now));
        for capacity_type in [CapacityType::OnDemand, CapacityType::Spot] {
            assert!(memory.contains(&tried, "eastus-1", capacity_type, now));
            assert!(memory.contains(&large, "eastus-1", capacity_type, now));
            assert!(!memory.contains(&small, "eastus-1", capacity_type, now));
            assert!(!memory.contains(&tried, "eastus-2", capacity_type, now));
        }
        let end = memory.next_change(now).unwrap();
        assert_eq!(end.duration_since(now), SignedDuration::from_hours(1));
        assert!(!memory.contains(&tried, "eastus-1", CapacityType::OnDemand, end));
    }

    #[test]
    fn each_code_blocks_its_own_scope() {
        let now = Timestamp::UNIX_EPOCH;
        let size = sku("Standard_D8s_v5");
        let (od, spot) = (CapacityType::OnDemand, CapacityType::Spot);
        let blocked = |code: &str, message: &str, zone: &str, tried: CapacityType| {
            let mut memory = UnavailableOfferings::default();
            memory.learn(Failure::of(None, code, message), &size, "eastus", zone, tried, now);
            let all =
                [("eastus-1", od), ("eastus-2", od), ("0", od), ("eastus-1", spot), ("0", spot)];
            all.map(|(zone, kind)| if memory.contains(&size, zone, kind, now) { 'x' } else { '-' })
                .iter()
                .collect::<String>()
        };
        let quota = "exceeding approved standardDSv5Family Family Cores quota";
        assert_eq!(blocked("OperationNotAllowed", quota, "eastus-1", od), "xxx--");
        assert_eq!(
            blocked("OperationNotAllowed", "exceeding approved LowPriorityCores quota", "0", spot),
            "---xx"
        );
        assert_eq!(blocked("SkuNotAvailable", "", "eastus-1", od), "xx---");
        assert_eq!(blocked("SkuNotAvailable", "", "0", od), "--x--");
        assert_eq!(blocked("AllocationFailed", "", "eastus-1", od), "xx-x-");
        assert_eq!(blocked("OverconstrainedZonalAllocationRequest", "", "eastus-1", spot), "---x-");
        assert_eq!(blocked("VMSizeNotSupported", "", "eastus-1", od), "xxxxx");
        assert_eq!(blocked("SomethingElse", "", "eastus-1", od), "-----");
    }
}
