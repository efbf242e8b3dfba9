//! Memory of unavailable offerings, graded by failure.
//!
//! A failure says more than "not this offering": a family without capacity for a size has none for
//! larger sizes, an exhausted spot quota blocks all spot, and a full zone may be full for both
//! priorities. Every mark expires, later after each further failure; for as long again the offering
//! is in doubt, and comes after others of the same price. A machine that comes to exist takes one
//! failure back, if it was requested after the last one. The memory is text for the cluster, so
//! that a restart keeps it.

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
    /// The spot quota of the subscription.
    all_spot: Option<Mark>,
    generation: u64,
}

/// Offerings whose mark has expired lately, by size: zone, capacity type and failures in a row.
#[derive(Clone, Debug, Default)]
pub(crate) struct Doubts(BTreeMap<String, Vec<(String, CapacityType, u32)>>);

impl Doubts {
    /// Failures in a row that are remembered of an offering; 0 for one that is not in doubt.
    pub(crate) fn of(&self, size: &str, zone: &str, capacity_type: CapacityType) -> u32 {
        let marks = self.0.get(size).into_iter().flatten();
        let same = |mark: &&(String, CapacityType, u32)| mark.0 == zone && mark.1 == capacity_type;
        marks.filter(same).map(|mark| mark.2).max().unwrap_or(0)
    }
}

/// How long something is unavailable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    until: Timestamp,
    /// Failures in a row. Each further one prolongs the mark, each success takes one back.
    failures: u32,
    /// Request time of the newest machine whose success counted, or else time of the last failure.
    /// Machines that were requested before say nothing new.
    at: Timestamp,
    /// Time that one failure marks for. The failures are forgotten when it has passed once more
    /// after the end of the mark.
    lifetime: SignedDuration,
    /// Cause of the last failure.
    cause: Cause,
}

impl Mark {
    fn new(cause: Cause, lifetime: SignedDuration, now: Timestamp) -> Self {
        Self { until: later(now, lifetime), failures: 1, at: now, lifetime, cause }
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
        *self = Self { until: self.until.max(until), failures, at: now, lifetime, cause };
    }

    /// Takes in that a machine exists, which ends the mark. Returns the mark as it is then: `None`
    /// without failures left.
    fn succeed(self, requested: Timestamp, now: Timestamp) -> Option<Self> {
        let failures = self.failures.saturating_sub(1);
        (failures > 0).then(|| Self { until: self.until.min(now), failures, at: requested, ..self })
    }
}

/// Key of the family of a size; `None` if the family is not known, and the size stands for itself.
fn family_key(sku: &Sku, zone: &str, capacity_type: CapacityType) -> Option<Key> {
    let family = sku.family.trim().to_lowercase();
    (!family.is_empty()).then(|| (family, zone.to_owned(), capacity_type))
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
    /// Time of the last failure; `None` in a text of an older version.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    failed_at: Option<Timestamp>,
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
            failed_at: Some(mark.at),
            lifetime_seconds: mark.lifetime.as_secs(),
            cause: mark.cause,
        }
    }

    fn mark(&self) -> Mark {
        // A text that was edited by hand may hold anything.
        let lifetime = self.lifetime_seconds.clamp(0, ALMOST_A_DAY.as_secs());
        let lifetime = SignedDuration::from_secs(lifetime);
        let begun = self.unavailable_until.checked_sub(lifetime).unwrap_or(Timestamp::MIN);
        Mark {
            until: self.unavailable_until,
            failures: self.failures.clamp(1, MAX_FAILURES),
            at: self.failed_at.unwrap_or(begun),
            lifetime,
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
    all_spot: Option<StoredMark>,
    /// The same in texts of older versions.
    #[serde(skip_serializing, default)]
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
        let spot = capacity_type == CapacityType::Spot;
        if spot && self.all_spot.is_some_and(|mark| mark.is_active(now)) {
            return true;
        }
        let key = (sku.name.clone(), zone.to_owned(), capacity_type);
        if self.offerings.get(&key).is_some_and(|mark| mark.is_active(now)) {
            return true;
        }
        let key = family_key(sku, zone, capacity_type);
        let family = key.and_then(|key| self.families.get(&key));
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
        let all_spot = self.all_spot.map(|mark| Shortage {
            instance_type: None,
            family: None,
            min_vcpus: None,
            zone: None,
            capacity_type: CapacityType::Spot,
            cause: mark.cause,
            until: mark.until,
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
        let all_spot = self.all_spot.map(|mark| mark.until);
        offerings.chain(families).chain(all_spot).filter(|until| *until > now).min()
    }

    /// Offerings that may be tried again and failed lately.
    pub(crate) fn doubts(&self, now: Timestamp) -> Doubts {
        let mut doubts = Doubts::default();
        for ((size, zone, capacity_type), mark) in &self.offerings {
            if !mark.is_active(now) && mark.is_remembered(now) {
                let known = doubts.0.entry(size.clone()).or_default();
                known.push((zone.clone(), *capacity_type, mark.failures));
            }
        }
        doubts
    }

    /// Marks a spot offering from which a VM was evicted.
    pub fn learn_eviction(&mut self, sku: &Sku, zone: &str, now: Timestamp) {
        self.mark(sku, zone, CapacityType::Spot, (Cause::Eviction, HOUR), now);
    }

    /// Takes in that a machine exists which was requested at a time, and takes back the marks that
    /// this contradicts: that of its offering, that of its family for sizes that are not larger,
    /// and for spot that of the quota. A failure after the request stands.
    pub fn learn_success(
        &mut self,
        sku: &Sku,
        zone: &str,
        capacity_type: CapacityType,
        requested: Timestamp,
        now: Timestamp,
    ) {
        let mut changed = false;
        let key = (sku.name.clone(), zone.to_owned(), capacity_type);
        if let Some(mark) = self.offerings.get(&key).copied().filter(|mark| mark.at < requested) {
            changed = true;
            match mark.succeed(requested, now) {
                Some(mark) => self.offerings.insert(key, mark),
                None => self.offerings.remove(&key),
            };
        }
        if let Some(key) = family_key(sku, zone, capacity_type)
            && let Some((vcpus, mark)) = self.families.get_mut(&key)
            && *vcpus <= sku.vcpus
            && mark.at < requested
        {
            *vcpus = sku.vcpus + 1;
            changed = true;
        }
        if capacity_type == CapacityType::Spot
            && let Some(mark) = self.all_spot.filter(|mark| mark.at < requested)
        {
            self.all_spot = mark.succeed(requested, now);
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
            all_spot: self.all_spot.filter(|mark| remembered(mark)).map(|mark| {
                let key = (String::new(), String::new(), CapacityType::Spot);
                StoredMark::new(&key, &mark)
            }),
            all_spot_unavailable_until: None,
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
            } else if let (Some(family), Some(vcpus)) = (one.family, one.min_vcpus)
                && !family.is_empty()
            {
                let known = self.families.entry(key(family)).or_insert((vcpus, mark));
                *known = if mark.until > known.1.until { (vcpus, mark) } else { *known };
            }
        }
        let of_older_version = stored.all_spot_unavailable_until.map(|until| {
            let at = until.checked_sub(HOUR).unwrap_or(Timestamp::MIN);
            Mark { until, failures: 1, at, lifetime: HOUR, cause: Cause::Quota }
        });
        let all_spot = stored.all_spot.map(|one| one.mark()).or(of_older_version);
        self.all_spot = self.all_spot.into_iter().chain(all_spot).max_by_key(|mark| mark.until);
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
                let mut mark = self.all_spot.filter(|mark| mark.is_remembered(now));
                match &mut mark {
                    Some(mark) => mark.fail(Cause::Quota, HOUR, now),
                    None => mark = Some(Mark::new(Cause::Quota, HOUR, now)),
                }
                self.all_spot = mark;
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
        let Some(key) = family_key(sku, zone, capacity_type) else { return };
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
mod tests;
