//! Tests of the memory of unavailable offerings.

use super::*;
use crate::embedded::EmbeddedCatalogue;

fn sku(name: &str) -> Sku {
    let catalogue = EmbeddedCatalogue::embedded();
    let region = catalogue.region("eastus").unwrap();
    let row =
        catalogue.skus_in("eastus").find(|sku| sku.name == name).unwrap().to_resource_sku(region);
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
        let all = [("eastus-1", od), ("eastus-2", od), ("0", od), ("eastus-1", spot), ("0", spot)];
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
    let later = now + SignedDuration::from_secs(1);
    memory.learn_success(&tried, "eastus-1", on_demand, later, later);
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

#[test]
fn the_memory_stays_within_a_configmap() {
    let mut memory = UnavailableOfferings::default();
    let now: Timestamp = "2026-01-01T00:00:00.123456789Z".parse().unwrap();
    let (known, on_demand) = (sku("Standard_D8s_v5"), CapacityType::OnDemand);
    for number in 0..400 {
        let name = format!("Standard_D{number}s_v5");
        let failed = Sku { family: format!("standard{name}Family"), name, ..known.clone() };
        memory.learn(Failure::RegionalCapacity, &failed, "eastus", "eastus-1", on_demand, now);
    }
    let bytes = memory.to_text(now).len();
    assert!((500_000..1_000_000).contains(&bytes), "{bytes}");
}

#[test]
fn a_machine_requested_before_the_failure_takes_nothing_back() {
    let at = |minutes: i64| Timestamp::UNIX_EPOCH + SignedDuration::from_mins(minutes);
    let size = sku("Standard_D8s_v5");
    let (zone, spot) = ("eastus-1", CapacityType::Spot);
    let mut memory = UnavailableOfferings::default();
    memory.learn(Failure::OverconstrainedZonal, &size, "eastus", zone, spot, at(5));
    memory.learn(Failure::SpotQuota, &size, "eastus", zone, spot, at(5));
    let before = memory.generation();
    memory.learn_success(&size, zone, spot, at(4), at(6));
    assert!(memory.contains(&size, zone, spot, at(6)));
    assert!(memory.contains(&sku("Standard_E8s_v5"), "eastus-2", spot, at(6)), "spot quota");
    assert_eq!(memory.generation(), before);
    memory.learn_success(&size, zone, spot, at(6), at(7));
    assert!(!memory.contains(&size, zone, spot, at(7)));
    assert!(!memory.contains(&sku("Standard_E8s_v5"), "eastus-2", spot, at(7)));
}

#[test]
fn belief_grows_with_successes_and_with_time() {
    let at = |hours: i64| Timestamp::UNIX_EPOCH + SignedDuration::from_hours(hours);
    let size = sku("Standard_D8s_v5");
    let (zone, on_demand) = ("eastus-1", CapacityType::OnDemand);
    let mut memory = UnavailableOfferings::default();
    let doubt =
        |memory: &UnavailableOfferings, now| memory.doubts(now).of(&size.name, zone, on_demand);
    for hour in [0, 1] {
        memory.learn(Failure::OverconstrainedZonal, &size, "eastus", zone, on_demand, at(hour));
    }
    assert_eq!(doubt(&memory, at(2)), 0, "it is not offered at all");
    assert!(!memory.contains(&size, zone, on_demand, at(3)));
    assert_eq!(doubt(&memory, at(3)), 2);
    assert_eq!(memory.doubts(at(3)).of(&size.name, "eastus-2", on_demand), 0);
    let mut restored = UnavailableOfferings::default();
    restored.restore(&memory.to_text(at(3))).unwrap();
    assert_eq!(doubt(&restored, at(3)), 2, "the doubt survives a restart");
    assert_eq!(doubt(&memory, at(4)), 0, "forgotten");
    for _ in 0..3 {
        // The same machine is looked at again and again.
        restored.learn_success(&size, zone, on_demand, at(3), at(3));
    }
    assert_eq!(doubt(&restored, at(3)), 1);
    let later = at(3) + SignedDuration::from_mins(1);
    restored.learn_success(&size, zone, on_demand, later, later);
    assert_eq!(doubt(&restored, later), 0);
}

#[test]
fn a_size_without_a_family_stands_for_itself() {
    let now = Timestamp::UNIX_EPOCH;
    let nameless = |name: &str| Sku { family: String::new(), ..sku(name) };
    let (failed, other) = (nameless("Standard_D8s_v5"), nameless("Standard_E16s_v5"));
    let mut memory = UnavailableOfferings::default();
    let on_demand = CapacityType::OnDemand;
    memory.learn(Failure::ZonalCapacity, &failed, "eastus", "eastus-1", on_demand, now);
    assert!(memory.contains(&failed, "eastus-1", on_demand, now));
    assert!(!memory.contains(&other, "eastus-1", on_demand, now));
    let old = r#"{"offerings":[{"family":"","minVcpus":2,"zone":"eastus-1","failures":1,
        "capacityType":"on-demand","unavailableUntil":"1970-01-01T01:00:00Z",
        "lifetimeSeconds":3600}],"allSpotUnavailableUntil":"1970-01-01T01:00:00Z"}"#;
    let mut restored = UnavailableOfferings::default();
    restored.restore(old).unwrap();
    assert!(!restored.contains(&other, "eastus-1", on_demand, now));
    assert!(restored.contains(&other, "eastus-1", CapacityType::Spot, now), "all spot");
}
