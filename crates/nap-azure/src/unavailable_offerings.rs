//! Memory of unavailable offerings, graded by failure.
//!
//! A failure says more than "not this offering": a family without capacity for a size has none for
//! larger sizes, an exhausted spot quota blocks all spot, and a full zone may be full for both
//! priorities. Every mark expires, later after each further failure, and a launch that works takes
//! back what contradicts it. The memory is text for the cluster, so that a restart keeps it.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use nap_engine::CapacityType;
use serde::{Deserialize, Serialize};

use crate::arm::Failure;
use crate::shortage::{Cause, Shortage};
use crate::skus::Sku;

/// Value of the zone label of a VM that is placed without a zone.
pub const REGIONAL: &str = "0";

/// Value of the zone label of a zone.
pub fn zone_label(region: &str, zone: &str) -> String {
    format!("{region}-{zone}")
}

const HOUR: SignedDuration = SignedDuration::from_hours(1);
const TEN_MINUTES: SignedDuration = SignedDuration::from_mins(10);
const ALMOST_A_DAY: SignedDuration = SignedDuration::from_hours(23);
/// Most failures in a row that prolong a mark.
const MAX_FAILURES: u32 = 4;
/// Most marks of each kind that are kept; those that expire first are dropped.
const MAX_MARKS: usize = 2000;

/// What is marked: a size, or all larger sizes of a family, in a zone with a capacity type.
type Key = (String, String, CapacityType);

/// Unavailable offerings and when each mark expires.
#[derive(Clone, Debug, Default)]
pub struct UnavailableOfferings {
    /// By size, zone and capacity type.
    offerings: BTreeMap<Key, Mark>,
    /// By lower-cased family, zone and capacity type: sizes with at least this many vCPUs.
    families: BTreeMap<Key, (i64, Mark)>,
    all_spot: Option<Timestamp>,
    generation: u64,
}

/// How long something is unavailable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    until: Timestamp,
    /// Failures in a row. Each further one prolongs the mark.
    failures: u32,
    /// Time that one failure marks for. The failures are forgotten when it has passed once more
    /// after the end of the mark.
    lifetime: SignedDuration,
    /// Cause of the last failure.
    cause: Cause,
}

impl Mark {
    fn new(cause: Cause, lifetime: SignedDuration, now: Timestamp) -> Self {
        Self { until: later(now, lifetime), failures: 1, lifetime, cause }
    }

    fn is_active(&self, now: Timestamp) -> bool {
        now < self.until
    }

    fn is_remembered(&self, now: Timestamp) -> bool {
        now < later(self.until, self.lifetime)
    }

    /// Takes a further failure in. Failures while the mark stands are of launches that were under
    /// way already: they say nothing new.
    fn fail(&mut self, cause: Cause, lifetime: SignedDuration, now: Timestamp) {
        let failures = match (self.is_active(now), self.is_remembered(now)) {
            (true, _) => self.failures,
            (false, true) => (self.failures + 1).min(MAX_FAILURES),
            (false, false) => 1,
        };
        let until = later(now, lifetime.saturating_mul(i32::try_from(failures).unwrap_or(1)));
        *self = Self { until: self.until.max(until), failures, lifetime, cause };
    }
}

fn later(now: Timestamp, duration: SignedDuration) -> Timestamp {
    now.checked_add(duration).unwrap_or(Timestamp::MAX)
}

/// A mark as it is stored and shown.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredMark {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    instance_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    family: Option<String>,
    /// For a family: sizes with at least this many vCPUs.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    min_vcpus: Option<i64>,
    zone: String,
    capacity_type: CapacityType,
    unavailable_until: Timestamp,
    failures: u32,
    lifetime_seconds: i64,
    #[serde(default)]
    cause: Cause,
}

impl StoredMark {
    fn new((_, zone, capacity_type): &Key, mark: &Mark) -> Self {
        Self {
            instance_type: None,
            family: None,
            min_vcpus: None,
            zone: zone.clone(),
            capacity_type: *capacity_type,
            unavailable_until: mark.until,
            failures: mark.failures,
            lifetime_seconds: mark.lifetime.as_secs(),
            cause: mark.cause,
        }
    }

    fn mark(&self) -> Mark {
        // A text that was edited by hand may hold anything.
        let lifetime = self.lifetime_seconds.clamp(0, ALMOST_A_DAY.as_secs());
        Mark {
            until: self.unavailable_until,
            failures: self.failures.clamp(1, MAX_FAILURES),
            lifetime: SignedDuration::from_secs(lifetime),
            cause: self.cause,
        }
    }
}

/// The memory as it is stored and shown.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredMemory {
    #[serde(default)]
    offerings: Vec<StoredMark>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    all_spot_unavailable_until: Option<Timestamp>,
}

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
        if self.offerings.get(&key).is_some_and(|mark| mark.is_active(now)) {
            return true;
        }
        let key = (sku.family.to_lowercase(), zone.to_owned(), capacity_type);
        let family = self.families.get(&key);
        family.is_some_and(|(vcpus, mark)| mark.is_active(now) && sku.vcpus >= *vcpus)
    }

    /// What is unavailable now, the first to be tried again first.
    pub fn shortages(&self, now: Timestamp) -> Vec<Shortage> {
        let shortage = |(_, zone, capacity_type): &Key, mark: &Mark| Shortage {
            instance_type: None,
            family: None,
            min_vcpus: None,
            zone: Some(zone.clone()),
            capacity_type: *capacity_type,
            cause: mark.cause,
            until: mark.until,
        };
        let offerings = self.offerings.iter().map(|(key, mark)| Shortage {
            instance_type: Some(key.0.clone()),
            ..shortage(key, mark)
        });
        let families = self.families.iter().map(|(key, (vcpus, mark))| Shortage {
            family: Some(key.0.clone()),
            min_vcpus: Some(*vcpus),
            ..shortage(key, mark)
        });
        let all_spot = self.all_spot.map(|until| Shortage {
            instance_type: None,
            family: None,
            min_vcpus: None,
            zone: None,
            capacity_type: CapacityType::Spot,
            cause: Cause::Quota,
            until,
        });
        let all = offerings.chain(families).chain(all_spot);
        let mut all: Vec<Shortage> = all.filter(|one| now < one.until).collect();
        all.sort_by_key(|one| one.until);
        all
    }

    /// Counts the changes ever made.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Time at which the next mark expires; `None` without marks.
    pub fn next_change(&self, now: Timestamp) -> Option<Timestamp> {
        let offerings = self.offerings.values().map(|mark| mark.until);
        let families = self.families.values().map(|(_, mark)| mark.until);
        offerings.chain(families).chain(self.all_spot).filter(|until| *until > now).min()
    }

    /// Marks a spot offering from which a VM was evicted.
    pub fn learn_eviction(&mut self, sku: &Sku, zone: &str, now: Timestamp) {
        self.mark(sku, zone, CapacityType::Spot, (Cause::Eviction, HOUR), now);
    }

    /// Takes back the marks that a successful launch contradicts: that of its offering, and that of
    /// its family for sizes that are not larger.
    pub fn learn_success(&mut self, sku: &Sku, zone: &str, capacity_type: CapacityType) {
        let key = (sku.name.clone(), zone.to_owned(), capacity_type);
        let mut changed = self.offerings.remove(&key).is_some();
        let key = (sku.family.to_lowercase(), zone.to_owned(), capacity_type);
        if let Some((vcpus, _)) = self.families.get_mut(&key)
            && *vcpus <= sku.vcpus
        {
            *vcpus = sku.vcpus + 1;
            changed = true;
        }
        self.generation += u64::from(changed);
    }

    /// The memory as text, without what is forgotten by now.
    pub fn to_text(&self, now: Timestamp) -> String {
        let remembered = |mark: &Mark| mark.is_remembered(now);
        let offerings = self.offerings.iter().filter(|(_, mark)| remembered(mark));
        let offerings = offerings.map(|(key, mark)| StoredMark {
            instance_type: Some(key.0.clone()),
            ..StoredMark::new(key, mark)
        });
        let families = self.families.iter().filter(|(_, (_, mark))| remembered(mark));
        let families = families.map(|(key, (vcpus, mark))| StoredMark {
            family: Some(key.0.clone()),
            min_vcpus: Some(*vcpus),
            ..StoredMark::new(key, mark)
        });
        let stored = StoredMemory {
            offerings: offerings.chain(families).collect(),
            all_spot_unavailable_until: self.all_spot.filter(|until| now < *until),
        };
        serde_json::to_string_pretty(&stored).unwrap_or_default()
    }

    /// Takes up the marks of a text, unless a later one is known.
    pub fn restore(&mut self, text: &str) -> Result<(), serde_json::Error> {
        let stored: StoredMemory = serde_json::from_str(text)?;
        for one in stored.offerings {
            let mark = one.mark();
            let key = |name: String| (name, one.zone.clone(), one.capacity_type);
            if let Some(name) = one.instance_type {
                let known = self.offerings.entry(key(name)).or_insert(mark);
                *known = if mark.until > known.until { mark } else { *known };
            } else if let (Some(family), Some(vcpus)) = (one.family, one.min_vcpus) {
                let known = self.families.entry(key(family)).or_insert((vcpus, mark));
                *known = if mark.until > known.1.until { (vcpus, mark) } else { *known };
            }
        }
        self.all_spot = self.all_spot.max(stored.all_spot_unavailable_until);
        self.generation += 1;
        Ok(())
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
            Failure::OverconstrainedZonal | Failure::ZoneRefused => (this_zone, &this_type, HOUR),
            Failure::Overconstrained => (scope, &this_type, HOUR),
            Failure::SkuNotSupported => (every, &both, ALMOST_A_DAY),
            Failure::Policy => (every, &both, HOUR),
            Failure::SizeRefused => (every, &this_type, HOUR),
            Failure::RegionalQuota
            | Failure::Throttled
            | Failure::NotFound
            | Failure::Auth
            | Failure::SubnetFull
            | Failure::DiskEncryption
            | Failure::Invalid
            | Failure::Conflict
            | Failure::Transient
            | Failure::ScopeNotFound
            | Failure::PolicyOnRequest => return false,
        };
        let cause = Cause::of(failure);
        // A lack of capacity concerns larger sizes of the family too; what refuses a size by its
        // name does not.
        let by_name = [Failure::Policy, Failure::SizeRefused, Failure::ZoneRefused];
        let with_family = !by_name.contains(&failure);
        for zone in zones {
            for capacity_type in types {
                self.mark(sku, &zone, *capacity_type, (cause, lifetime), now);
                if with_family {
                    self.mark_family(sku, &zone, *capacity_type, (cause, lifetime), now);
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
        (cause, lifetime): (Cause, SignedDuration),
        now: Timestamp,
    ) {
        self.forget(now);
        self.generation += 1;
        let key = (sku.name.clone(), zone.to_owned(), capacity_type);
        let new = Mark::new(cause, lifetime, now);
        let known = self.offerings.entry(key);
        known.and_modify(|mark| mark.fail(cause, lifetime, now)).or_insert(new);
    }

    fn mark_family(
        &mut self,
        sku: &Sku,
        zone: &str,
        capacity_type: CapacityType,
        (cause, lifetime): (Cause, SignedDuration),
        now: Timestamp,
    ) {
        let key = (sku.family.to_lowercase(), zone.to_owned(), capacity_type);
        match self.families.get_mut(&key) {
            Some((vcpus, mark)) => {
                // An expired threshold says nothing of smaller sizes any more.
                *vcpus = if mark.is_active(now) { (*vcpus).min(sku.vcpus) } else { sku.vcpus };
                mark.fail(cause, lifetime, now);
            }
            None => {
                self.families.insert(key, (sku.vcpus, Mark::new(cause, lifetime, now)));
            }
        }
    }

    /// Drops marks that are forgotten, and beyond [`MAX_MARKS`] those that expire first.
    fn forget(&mut self, now: Timestamp) {
        self.offerings.retain(|_, mark| mark.is_remembered(now));
        self.families.retain(|_, (_, mark)| mark.is_remembered(now));
        while self.offerings.len() >= MAX_MARKS {
            let first = self.offerings.iter().min_by_key(|(key, mark)| (mark.until, *key));
            let Some(key) = first.map(|(key, _)| key.clone()) else { break };
            self.offerings.remove(&key);
        }
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
    fn each_code_blocks_its_own_scope_for_its_own_time() {
        let now = Timestamp::UNIX_EPOCH;
        let size = sku("Standard_D8s_v5");
        let (od, spot) = (CapacityType::OnDemand, CapacityType::Spot);
        let blocked = |code: &str, message: &str, zone: &str, tried: CapacityType| {
            let mut memory = UnavailableOfferings::default();
            memory.learn(Failure::of(None, code, message), &size, "eastus", zone, tried, now);
            let all =
                [("eastus-1", od), ("eastus-2", od), ("0", od), ("eastus-1", spot), ("0", spot)];
            let blocked: String = all
                .map(|(zone, kind)| if memory.contains(&size, zone, kind, now) { 'x' } else { '-' })
                .iter()
                .collect();
            (blocked, memory.next_change(now).map_or(0, |end| end.duration_since(now).as_mins()))
        };
        let family = "exceeding approved standardDSv5Family Family Cores quota";
        let no_family = format!("{family}. Current Limit: 0, Current Usage: 0");
        let spot_quota = "exceeding approved LowPriorityCores quota";
        let sold = "The VM size is not supported for subscription x";
        let (hour, almost_a_day) = (60, 23 * 60);
        for (code, message, zone, tried, scope, minutes) in [
            ("OperationNotAllowed", spot_quota, "0", spot, "---xx", hour),
            ("OperationNotAllowed", family, "eastus-1", od, "xxx--", 10),
            ("OperationNotAllowed", no_family.as_str(), "eastus-1", od, "xxx--", hour),
            ("SkuNotAvailable", "", "eastus-1", od, "xx---", almost_a_day),
            ("SkuNotAvailable", "", "0", od, "--x--", almost_a_day),
            ("SkuNotAvailable", "", "0", spot, "----x", hour),
            ("ZonalAllocationFailed", "", "eastus-1", od, "x--x-", hour),
            ("AllocationFailed", "", "eastus-1", od, "xx-x-", hour),
            ("AllocationFailed", "", "0", od, "--x-x", hour),
            ("OverconstrainedZonalAllocationRequest", "", "eastus-1", spot, "---x-", hour),
            ("OverconstrainedAllocationRequest", "", "eastus-1", od, "xx---", hour),
            ("VMSizeNotSupported", "", "eastus-1", od, "xxxxx", almost_a_day),
            ("BadRequest", sold, "eastus-1", od, "xxxxx", almost_a_day),
            ("SomethingElse", "", "eastus-1", od, "-----", 0),
        ] {
            let found = blocked(code, message, zone, tried);
            assert_eq!(found, (scope.to_owned(), minutes), "{code} {message} {zone} {tried}");
        }
    }

    #[test]
    fn each_further_failure_marks_for_longer_and_a_quiet_time_forgets() {
        let size = sku("Standard_D8s_v5");
        let mut memory = UnavailableOfferings::default();
        let on_demand = CapacityType::OnDemand;
        let fail = |memory: &mut UnavailableOfferings, now: Timestamp| {
            let full = Failure::OverconstrainedZonal;
            memory.learn(full, &size, "eastus", "eastus-1", on_demand, now);
            memory.next_change(now).unwrap().duration_since(now).as_hours()
        };
        let hours = |hours: i64| Timestamp::UNIX_EPOCH + SignedDuration::from_hours(hours);
        assert_eq!(fail(&mut memory, hours(0)), 1);
        assert_eq!(fail(&mut memory, hours(0)), 1, "a launch that was under way");
        assert_eq!(fail(&mut memory, hours(1)), 2);
        assert_eq!(fail(&mut memory, hours(3)), 3);
        assert_eq!(fail(&mut memory, hours(6)), 4);
        assert_eq!(fail(&mut memory, hours(10)), 4, "there is a limit");
        assert_eq!(fail(&mut memory, hours(20)), 1, "all is forgotten");
    }

    #[test]
    fn a_launch_that_works_takes_back_what_contradicts_it() {
        let now = Timestamp::UNIX_EPOCH;
        let (small, tried, large) =
            (sku("Standard_D2s_v5"), sku("Standard_D8s_v5"), sku("Standard_D16s_v5"));
        let mut memory = UnavailableOfferings::default();
        let on_demand = CapacityType::OnDemand;
        memory.learn(Failure::ZonalCapacity, &small, "eastus", "eastus-1", on_demand, now);
        assert!(memory.contains(&tried, "eastus-1", on_demand, now));
        memory.learn_success(&tried, "eastus-1", on_demand);
        assert!(!memory.contains(&tried, "eastus-1", on_demand, now));
        assert!(memory.contains(&large, "eastus-1", on_demand, now), "nothing is known of larger");
        assert!(memory.contains(&tried, "eastus-1", CapacityType::Spot, now));
    }

    #[test]
    fn the_memory_survives_as_text() {
        let now = Timestamp::UNIX_EPOCH;
        let (tried, other) = (sku("Standard_D8s_v5"), sku("Standard_E8s_v5"));
        let mut memory = UnavailableOfferings::default();
        let on_demand = CapacityType::OnDemand;
        memory.learn(Failure::ZonalCapacity, &tried, "eastus", "eastus-1", on_demand, now);
        memory.learn(Failure::SpotQuota, &tried, "eastus", "eastus-1", CapacityType::Spot, now);
        memory.learn_eviction(&other, "eastus-2", now);
        let text = memory.to_text(now);
        let mut restored = UnavailableOfferings::default();
        restored.restore(&text).unwrap();
        assert_eq!(restored.to_text(now), text);
        assert!(restored.contains(&tried, "eastus-1", on_demand, now));
        assert!(restored.contains(&other, "eastus-3", CapacityType::Spot, now), "all spot");
        let later = now + SignedDuration::from_mins(90);
        assert!(!restored.contains(&tried, "eastus-1", on_demand, later));
        let much_later = now + SignedDuration::from_hours(9);
        assert!(!restored.to_text(much_later).contains("Standard"), "forgotten marks are dropped");
        let shown: Vec<String> = restored.shortages(now).iter().map(ToString::to_string).collect();
        for expected in [
            "Standard_D8s_v5 on-demand in eastus-1",
            "sizes of standarddsv5family with 8 or more vCPUs on-demand in eastus-1",
            "every size spot",
            "Standard_E8s_v5 spot in eastus-2",
        ] {
            assert!(shown.iter().any(|one| one == expected), "{expected}: {shown:?}");
        }
        let evicted = restored.shortages(now).into_iter().find(|one| one.cause == Cause::Eviction);
        assert!(evicted.is_some_and(|one| one.covers(&other, "eastus-2", CapacityType::Spot)));
        assert!(restored.shortages(much_later).is_empty());
        assert!(restored.restore("{").is_err());
        assert!(restored.restore("{}").is_ok());
    }
}
