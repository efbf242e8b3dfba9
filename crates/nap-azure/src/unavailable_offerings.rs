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
/// Most marks of offerings that are kept; those that expire first are dropped. More than the sizes
/// of a region: a policy may forbid all but one.
const MAX_MARKS: usize = 2000;
/// Most marks of families that are kept; those that expire first are dropped. With those of
/// offerings they fit into the 1 MiB of a ConfigMap.
const MAX_FAMILY_MARKS: usize = 500;

/// What is marked: a size, or all larger sizes of a family, in a zone with a capacity type. `None`
/// stands for every zone and no zone, and for both capacity types.
type Key = (String, Option<String>, Option<CapacityType>);

/// Marks that concern an offering of the size or family of a name.
fn marks_of<'m, M>(
    marks: &'m BTreeMap<Key, M>,
    name: &'m str,
    zone: &'m str,
    capacity_type: CapacityType,
) -> impl Iterator<Item = (&'m Key, &'m M)> {
    let first = (name.to_owned(), None, None);
    marks.range(first..).take_while(move |(key, _)| key.0 == name).filter(move |(key, _)| {
        key.1.as_deref().is_none_or(|one| one == zone)
            && key.2.is_none_or(|one| one == capacity_type)
    })
}

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

/// Offerings whose mark has expired lately, with their failures in a row.
#[derive(Clone, Debug, Default)]
pub(crate) struct Doubts(BTreeMap<Key, u32>);

impl Doubts {
    /// Failures in a row that are remembered of an offering; 0 for one that is not in doubt.
    pub(crate) fn of(&self, size: &str, zone: &str, capacity_type: CapacityType) -> u32 {
        let marks = marks_of(&self.0, size, zone, capacity_type);
        marks.map(|(_, failures)| *failures).max().unwrap_or(0)
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

/// Family of a size in lower case; `None` if it is not known, and the size stands for itself.
fn family_of(sku: &Sku) -> Option<String> {
    Some(sku.family.trim().to_lowercase()).filter(|family| !family.is_empty())
}

/// One capacity type, or both for `None`.
fn both_or(capacity_type: Option<CapacityType>) -> Vec<CapacityType> {
    capacity_type.map_or_else(|| vec![CapacityType::OnDemand, CapacityType::Spot], |it| vec![it])
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
    /// `None` for every zone and no zone.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    zone: Option<String>,
    /// `None` for both.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    capacity_type: Option<CapacityType>,
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
        let mut marks = marks_of(&self.offerings, &sku.name, zone, capacity_type);
        if marks.any(|(_, mark)| mark.is_active(now)) {
            return true;
        }
        family_of(sku).is_some_and(|family| {
            let mut marks = marks_of(&self.families, &family, zone, capacity_type);
            marks.any(|(_, (vcpus, mark))| mark.is_active(now) && sku.vcpus >= *vcpus)
        })
    }

    /// What is unavailable now, the first to be tried again first.
    pub fn shortages(&self, now: Timestamp) -> Vec<Shortage> {
        let offerings = self.offerings.iter().map(|(key, mark)| (key, mark, None));
        let families = self.families.iter().map(|(key, (vcpus, mark))| (key, mark, Some(*vcpus)));
        let marks =
            offerings.chain(families).flat_map(|((name, zone, capacity_type), mark, vcpus)| {
                let types = both_or(*capacity_type);
                types.into_iter().map(move |capacity_type| Shortage {
                    instance_type: Some(name.clone()).filter(|_| vcpus.is_none()),
                    family: Some(name.clone()).filter(|_| vcpus.is_some()),
                    min_vcpus: vcpus,
                    zone: zone.clone(),
                    capacity_type,
                    cause: mark.cause,
                    until: mark.until,
                })
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
        let mut all: Vec<Shortage> = marks.chain(all_spot).filter(|one| now < one.until).collect();
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
        for (key, mark) in &self.offerings {
            if !mark.is_active(now) && mark.is_remembered(now) {
                doubts.0.insert(key.clone(), mark.failures);
            }
        }
        doubts
    }

    /// Marks a spot offering from which a VM was evicted.
    pub fn learn_eviction(&mut self, sku: &Sku, zone: &str, now: Timestamp) {
        let scope = (Some(zone.to_owned()), Some(CapacityType::Spot));
        self.mark(sku, scope, (Cause::Eviction, HOUR), now);
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
        let marks = marks_of(&self.offerings, &sku.name, zone, capacity_type);
        let contradicted = marks.filter(|(_, mark)| mark.at < requested);
        let contradicted: Vec<(Key, Mark)> =
            contradicted.map(|(key, mark)| (key.clone(), *mark)).collect();
        for (key, mark) in contradicted {
            changed = true;
            match mark.succeed(requested, now) {
                Some(mark) => self.offerings.insert(key, mark),
                None => self.offerings.remove(&key),
            };
        }
        let family = family_of(sku).unwrap_or_default();
        let marks = marks_of(&self.families, &family, zone, capacity_type);
        let contradicted =
            marks.filter(|(_, (vcpus, mark))| *vcpus <= sku.vcpus && mark.at < requested);
        let contradicted: Vec<Key> = contradicted.map(|(key, _)| key.clone()).collect();
        for key in contradicted {
            changed = true;
            self.families.entry(key).and_modify(|(vcpus, _)| *vcpus = sku.vcpus + 1);
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
                StoredMark::new(&(String::new(), None, Some(CapacityType::Spot)), &mark)
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
        let zones = sku.zones.iter().map(|number| Some(zone_label(region, number)));
        let scope =
            if zone == REGIONAL { vec![Some(REGIONAL.to_owned())] } else { zones.collect() };
        let this_zone = vec![Some(zone.to_owned())];
        let everywhere = vec![None];
        // Marks of each type, so that a machine of one takes nothing back of the other. What
        // forbids a size is one mark: hundreds of sizes may be forbidden.
        let both = vec![Some(CapacityType::OnDemand), Some(CapacityType::Spot)];
        let (this_type, any) = (vec![Some(capacity_type)], vec![None]);
        let spot = capacity_type == CapacityType::Spot;
        let (zones, types, lifetime) = match failure {
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
                (everywhere, this_type, if limit_zero { HOUR } else { TEN_MINUTES })
            }
            Failure::SkuNotAvailable => (scope, this_type, if spot { HOUR } else { ALMOST_A_DAY }),
            Failure::ZonalCapacity => (this_zone, both, HOUR),
            Failure::RegionalCapacity => (scope, both, HOUR),
            Failure::OverconstrainedZonal | Failure::ZoneRefused => (this_zone, this_type, HOUR),
            Failure::Overconstrained => (scope, this_type, HOUR),
            Failure::SkuNotSupported => (everywhere, any, ALMOST_A_DAY),
            Failure::Policy => (everywhere, any, HOUR),
            Failure::SizeRefused => (everywhere, this_type, HOUR),
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
            for capacity_type in &types {
                let scope = (zone.clone(), *capacity_type);
                if with_family {
                    self.mark_family(sku, scope.clone(), (cause, lifetime), now);
                }
                self.mark(sku, scope, (cause, lifetime), now);
            }
        }
        true
    }

    fn mark(
        &mut self,
        sku: &Sku,
        (zone, capacity_type): (Option<String>, Option<CapacityType>),
        (cause, lifetime): (Cause, SignedDuration),
        now: Timestamp,
    ) {
        self.forget(now);
        self.generation += 1;
        let key = (sku.name.clone(), zone, capacity_type);
        let new = Mark::new(cause, lifetime, now);
        let known = self.offerings.entry(key);
        known.and_modify(|mark| mark.fail(cause, lifetime, now)).or_insert(new);
    }

    fn mark_family(
        &mut self,
        sku: &Sku,
        (zone, capacity_type): (Option<String>, Option<CapacityType>),
        (cause, lifetime): (Cause, SignedDuration),
        now: Timestamp,
    ) {
        let Some(family) = family_of(sku) else { return };
        let key = (family, zone, capacity_type);
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

    /// Drops marks that are forgotten, and beyond the most that are kept those that expire first.
    fn forget(&mut self, now: Timestamp) {
        self.offerings.retain(|_, mark| mark.is_remembered(now));
        self.families.retain(|_, (_, mark)| mark.is_remembered(now));
        drop_first(&mut self.offerings, MAX_MARKS, |mark| mark.until);
        drop_first(&mut self.families, MAX_FAMILY_MARKS, |(_, mark)| mark.until);
    }
}

/// Drops marks that expire first, so that there is room for one more below `max`.
fn drop_first<M>(marks: &mut BTreeMap<Key, M>, max: usize, until: impl Fn(&M) -> Timestamp) {
    while marks.len() >= max {
        let first = marks.iter().min_by_key(|(key, mark)| (until(mark), *key));
        let Some(key) = first.map(|(key, _)| key.clone()) else { break };
        marks.remove(&key);
    }
}

#[cfg(test)]
mod tests;
