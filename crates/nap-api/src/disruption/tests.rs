//! Windows in time zones whose clocks change, and the algebra of windows.

use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use proptest::sample::select;

use super::opening::time_zone;
use super::*;
use crate::cron::Schedule;
use crate::nodepool::DisruptionReason::{Drifted, Empty, Underutilized};

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn window(action: &str, schedule: &str, duration: &str, zone: &str) -> String {
    format!(
        "- {{ action: {action}, schedule: \"{schedule}\", duration: {duration}, timeZone: {zone} }}\n"
    )
}

fn windows(text: &str) -> Windows {
    Windows::parse(text).unwrap_or_else(|problem| panic!("{problem}"))
}

/// Open spans for drift, as `from/until`.
fn open(text: &str, from: &str, until: &str) -> Vec<String> {
    let within = Span::new(at(from), at(until)).unwrap();
    let spans = windows(text).spans(Drifted, within, &PlannedMaintenance::default());
    spans.iter().map(|span| format!("{}/{}", span.from, span.until)).collect()
}

#[test]
fn a_window_follows_the_local_clock_through_the_year() {
    let saturdays = window("allow", "0 3 * * sat", "2h", "Europe/Berlin");
    assert_eq!(
        open(&saturdays, "2026-01-05T00:00:00Z", "2026-01-12T00:00:00Z"),
        ["2026-01-10T02:00:00Z/2026-01-10T04:00:00Z"]
    );
    assert_eq!(
        open(&saturdays, "2026-07-06T00:00:00Z", "2026-07-13T00:00:00Z"),
        ["2026-07-11T01:00:00Z/2026-07-11T03:00:00Z"]
    );
}

#[test]
fn a_time_that_is_skipped_opens_the_window_later_on_that_day() {
    // 2026-03-29: clocks in Berlin jump from 02:00 to 03:00.
    let nightly = window("allow", "30 2 * * *", "1h", "Europe/Berlin");
    assert_eq!(
        open(&nightly, "2026-03-28T00:00:00Z", "2026-03-31T00:00:00Z"),
        [
            "2026-03-28T01:30:00Z/2026-03-28T02:30:00Z",
            "2026-03-29T01:30:00Z/2026-03-29T02:30:00Z", // 03:30 to 04:30
            "2026-03-30T00:30:00Z/2026-03-30T01:30:00Z",
        ]
    );
}

#[test]
fn a_time_that_comes_twice_opens_the_window_once() {
    // 2026-10-25: clocks in Berlin go back from 03:00 to 02:00.
    let nightly = window("allow", "30 2 * * *", "1h", "Europe/Berlin");
    assert_eq!(
        open(&nightly, "2026-10-25T00:00:00Z", "2026-10-26T00:00:00Z"),
        ["2026-10-25T00:30:00Z/2026-10-25T01:30:00Z"]
    );
    let hourly = window("deny", "0 * * * *", "30m", "Europe/Berlin");
    assert_eq!(
        open(&hourly, "2026-10-24T23:00:00Z", "2026-10-25T03:00:00Z"),
        [
            "2026-10-24T23:30:00Z/2026-10-25T00:00:00Z",
            "2026-10-25T00:30:00Z/2026-10-25T01:00:00Z",
            "2026-10-25T01:30:00Z/2026-10-25T02:00:00Z",
            "2026-10-25T02:30:00Z/2026-10-25T03:00:00Z",
        ]
    );
}

#[test]
fn a_duration_is_elapsed_time_across_a_change_of_clocks() {
    let night = window("allow", "0 23 * * sat", "6h", "America/New_York");
    // 2026-03-08 is an hour shorter there: the window ends at 06:00 on the local clock.
    assert_eq!(
        open(&night, "2026-03-07T12:00:00Z", "2026-03-09T00:00:00Z"),
        ["2026-03-08T04:00:00Z/2026-03-08T10:00:00Z"]
    );
}

#[test]
fn a_denying_window_wins() {
    let text =
        window("allow", "0 0 * * *", "6h", "UTC") + &window("deny", "0 2 * * *", "1h", "UTC");
    assert_eq!(
        open(&text, "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"),
        ["2026-01-01T00:00:00Z/2026-01-01T02:00:00Z", "2026-01-01T03:00:00Z/2026-01-01T06:00:00Z"]
    );
    let windows = windows(&text);
    let closed = |time: &str| windows.closed(Drifted, at(time), &PlannedMaintenance::default());
    assert_eq!(closed("2026-01-01T02:30:00Z"), Some(Closed::Denied));
    assert_eq!(closed("2026-01-01T06:00:00Z"), Some(Closed::Outside));
    assert_eq!(closed("2026-01-01T05:59:59Z"), None);
    let next =
        windows.next_opening(Drifted, at("2026-01-01T06:00:00Z"), &PlannedMaintenance::default());
    assert_eq!(next, Some(at("2026-01-02T00:00:00Z")));
}

#[test]
fn a_window_of_one_reason_leaves_the_others_alone() {
    let windows = windows(
        "- action: allow\n  reasons: [Drifted]\n  schedule: 0 3 * * sat\n  duration: 2h\n\
         - action: deny\n  reasons: [Underutilized]\n  schedule: 0 9 * * mon-fri\n  duration: 9h\n",
    );
    let monday = at("2026-01-05T10:00:00Z");
    let closed = |reason| windows.closed(reason, monday, &PlannedMaintenance::default());
    assert_eq!(closed(Drifted), Some(Closed::Outside));
    assert_eq!(closed(Underutilized), Some(Closed::Denied));
    assert_eq!(closed(Empty), None);
}

#[test]
fn the_maintenance_window_counts_like_any_other() {
    for schedule in MaintenanceSchedule::ALL {
        let text = format!("[{{action: allow, schedule: {schedule}}}]");
        let allow = windows(&text);
        let deny = windows(&text.replace("allow", "deny"));
        assert_eq!(
            MaintenanceSchedule::ALL.map(|one| allow.follow(one)).iter().filter(|it| **it).count(),
            1
        );
        assert!(allow.follow(schedule));
        let span = |from: &str, until: &str| Span::new(at(from), at(until)).unwrap();
        let within = span("2026-01-01T00:00:00Z", "2026-01-03T00:00:00Z");
        let open = span("2026-01-01T04:00:00Z", "2026-01-01T08:00:00Z");
        let of = |window: Maintenance| PlannedMaintenance::from_iter([(schedule, window)]);
        let known = of(Maintenance::Known { within, open: vec![open] });
        let unknown = Some(Closed::Unknown(schedule));
        for (time, maintenance, allowed, denied) in [
            ("2026-01-01T04:00:00Z", &known, None, Some(Closed::Denied)),
            ("2026-01-01T08:00:00Z", &known, Some(Closed::Outside), None),
            ("2026-01-04T00:00:00Z", &known, unknown, unknown),
            ("2026-01-01T04:00:00Z", &PlannedMaintenance::default(), unknown, unknown),
            ("2026-01-01T04:00:00Z", &of(Maintenance::Absent), Some(Closed::Outside), None),
        ] {
            assert_eq!(allow.closed(Drifted, at(time), maintenance), allowed, "{time}");
            assert_eq!(deny.closed(Drifted, at(time), maintenance), denied, "{time}");
        }
        assert_eq!(allow.spans(Empty, within, &known), [open]);
        assert_eq!(deny.spans(Empty, within, &PlannedMaintenance::default()), []);
    }
}

#[test]
fn each_window_has_the_calendar_that_it_names() {
    let text = "[{action: allow, reasons: [Drifted], schedule: aksManagedAutoUpgradeSchedule}, \
                {action: allow, reasons: [Underutilized], schedule: aksManagedNodeOSUpgradeSchedule}]";
    let windows = windows(text);
    let span = |from: &str, until: &str| Span::new(at(from), at(until)).unwrap();
    let within = span("2026-01-01T00:00:00Z", "2026-01-03T00:00:00Z");
    let open = |hour: &str, until: &str| Maintenance::Known {
        within,
        open: vec![span(
            &format!("2026-01-01T{hour}:00:00Z"),
            &format!("2026-01-01T{until}:00:00Z"),
        )],
    };
    let maintenance = PlannedMaintenance::from_iter([
        (MaintenanceSchedule::NodeOsUpgrade, open("04", "08")),
        (MaintenanceSchedule::AutoUpgrade, open("12", "16")),
    ]);
    let closed = |reason, time| windows.closed(reason, at(time), &maintenance);
    for (time, drifted, underutilized) in [
        ("2026-01-01T05:00:00Z", Some(Closed::Outside), None),
        ("2026-01-01T13:00:00Z", None, Some(Closed::Outside)),
    ] {
        assert_eq!(closed(Drifted, time), drifted);
        assert_eq!(closed(Underutilized, time), underutilized);
        assert_eq!(closed(Empty, time), None);
    }
}

#[test]
fn what_cannot_be_read_names_the_field_and_the_remedy() {
    for (text, expected) in [
        ("soon", ": is not a list; write each window as"),
        ("[]", ": is an empty list"),
        ("- schedule: * * * * *", ": is not YAML ("),
        ("- 5", "[0]: `5` is not a window"),
        ("- {action: allow, timezone: UTC}", "[0].timezone: no such field; a window has action,"),
        ("- {schedule: 0 3 * * sat, duration: 2h}", "[0].action: is missing; write `allow`"),
        ("- {action: block, schedule: 0 3 * * sat}", "[0].action: `block` is neither"),
        ("- {action: allow, duration: 2h}", "[0].schedule: is missing; write five fields"),
        ("- {action: deny, schedule: 0 3 * * 7, duration: 2h}", "[0].schedule: `0 3 * * 7` is not"),
        ("- {action: deny, schedule: 0 3 30 2 *, duration: 2h}", "never occurs; name a day"),
        ("- {action: deny, schedule: 0 3 * * *}", "[0].duration: is missing; write the time"),
        ("- {action: deny, schedule: 0 3 * * *, duration: 2}", "[0].duration: `2` is not a text"),
        ("- {action: deny, schedule: 0 3 * * *, duration: 745h}", "`745h` is not a time up to"),
        ("- {action: deny, schedule: 0 3 * * *, duration: 0s}", "[0].duration: `0s` is not"),
        (
            "- {action: deny, schedule: 0 3 * * *, duration: 1h, timeZone: Berlin}",
            "[0].timeZone: `Berlin` is not an IANA time zone; write one such as `Europe/Berlin`",
        ),
        (
            "- {action: deny, schedule: 0 3 * * *, duration: 1h, reasons: [Empty, Expired]}",
            "[0].reasons[1]: `\"Expired\"` is none of Drifted, Empty, Underutilized",
        ),
        (
            "- {action: deny, schedule: 0 3 * * *, duration: 1h, reasons: Empty}",
            "[0].reasons: `\"Empty\"` is not a list; write some of",
        ),
        (
            "- {action: deny, schedule: aksManagedNodeOSUpgradeSchedule, duration: 1h}",
            "`aksManagedNodeOSUpgradeSchedule` has a duration and a time zone of its own; remove",
        ),
        (
            "- {action: deny, schedule: aksManagedAutoUpgradeSchedule, timeZone: UTC}",
            "`aksManagedAutoUpgradeSchedule` has a duration and a time zone of its own; remove",
        ),
        (
            "- {action: deny, schedule: aksManagedUpgradeSchedule}",
            "`aksManagedUpgradeSchedule` is not a schedule; write five fields of cron such as \
             `0 3 * * sat`, or one of AKS: `aksManagedNodeOSUpgradeSchedule`, \
             `aksManagedAutoUpgradeSchedule`",
        ),
    ] {
        let problem = Windows::parse(text).expect_err(text);
        assert!(problem.contains(expected), "{text}: {problem}");
        assert!(!problem.contains('\n'), "one line: {problem}");
    }
}

#[test]
fn settings_are_annotations_of_a_nodepool() {
    let pool = |annotations: &[(&str, &str)]| {
        let mut pool: NodePool = serde_json::from_value(serde_json::json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": "p" },
            "spec": { "template": { "spec": {
                "nodeClassRef": { "group": "g", "kind": "k", "name": "n" }, "requirements": [],
            } } },
        }))
        .unwrap();
        let pairs = annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        pool.metadata.annotations = Some(pairs.collect());
        pool
    };
    assert_eq!(Settings::of(&pool(&[])), Ok(Settings::default()));
    let set = Settings::of(&pool(&[(labels::DRIFT_WAVES, "30m"), (labels::EXPIRY, "graceful")]));
    let expected = Settings { soak: Some(SignedDuration::from_mins(30)), ..Settings::default() };
    assert_eq!(set, Ok(expected));
    let bad = [
        (labels::DISRUPTION_WINDOWS, "aks"),
        (labels::DRIFT_WAVES, "on"),
        (labels::EXPIRY, "soon"),
    ];
    let problems = Settings::of(&pool(&bad)).unwrap_err();
    for ((key, _), problem) in bad.iter().zip(&problems) {
        assert!(problem.starts_with(&format!("metadata.annotations[{key}]: ")), "{problem}");
    }
    assert_eq!(problems.len(), 3);
}

/// Zones whose clocks change in different ways: by an hour, by half an hour, by two, never.
const ZONES: [&str; 6] = [
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Antarctica/Troll",
    "Asia/Kolkata",
    "UTC",
];

fn schedules() -> impl Strategy<Value = String> {
    let minute = prop_oneof![Just("0".to_owned()), Just("30".to_owned()), Just("*/20".to_owned())];
    let hour = prop_oneof![
        2 => (0..24_u8).prop_map(|hour| hour.to_string()),
        4 => (1..4_u8).prop_map(|hour| hour.to_string()), // the hours that are skipped or twice
        1 => Just("*".to_owned()),
        1 => Just("1-3".to_owned()),
    ];
    let weekday = select(vec!["*", "sat", "sun", "sun", "mon-fri"]);
    (minute, hour, weekday)
        .prop_map(|(minute, hour, weekday)| format!("{minute} {hour} * * {weekday}"))
}

prop_compose! {
    fn one_window()(
        action in select(vec!["allow", "deny"]), schedule in schedules(), minutes in 1..1500_i64,
        zone in select(ZONES.to_vec()),
    ) -> (String, String, i64, String) {
        (action.to_owned(), schedule, minutes, zone.to_owned())
    }
}

/// Every moment of a time at which a schedule hits, found minute by minute on the real time line.
fn hits(schedule: Schedule, zone: &TimeZone, within: Span) -> Vec<Timestamp> {
    let minute = SignedDuration::from_mins(1);
    let matches = |local| schedule.next_from(local) == Some(local);
    let mut hits = Vec::new();
    let mut moment = within.from;
    while moment < within.until {
        let local = zone.to_datetime(moment);
        let ambiguous = zone.to_ambiguous_timestamp(local);
        let is_second = matches!(ambiguous.offset(), AmbiguousOffset::Fold { .. })
            && ambiguous.earlier().unwrap() != moment;
        if matches(local) && (!is_second || schedule.is_hourly()) {
            hits.push(moment);
        }
        // Times that the local clock skips count as much later as it jumps.
        let before = zone.to_datetime(moment - minute);
        let mut skipped = before + minute;
        let mut delay = SignedDuration::ZERO;
        while skipped < local {
            if matches(skipped) {
                hits.push(moment + delay);
            }
            (skipped, delay) = (skipped + minute, delay + minute);
        }
        moment += minute;
    }
    hits
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Around every change of clocks of a year, the windows are open exactly when a walk over all
    /// minutes says so, and the list of open spans agrees with the answer for a moment.
    #[test]
    fn windows_are_open_when_a_walk_over_all_minutes_says_so(
        given in prop::collection::vec(one_window(), 1..4), seed in 0..60_i64,
    ) {
        let text: String = given.iter().map(|(action, schedule, minutes, zone)| {
            window(action, schedule, &format!("{minutes}m"), zone)
        }).collect();
        let all = windows(&text);
        // Changes of the zones above in 2026, and a week without any.
        for day in ["2026-03-08", "2026-03-29", "2026-04-05", "2026-10-04", "2026-10-25", "2026-11-01", "2026-07-15"] {
            let noon = at(&format!("{day}T00:00:00Z"));
            let day = SignedDuration::from_hours(24);
            let within = Span::new(noon - day, noon + day * 2).unwrap();
            let lists: Vec<(bool, i64, Vec<Timestamp>)> = given.iter().map(|(action, schedule, minutes, zone)| {
                let wider = Span::new(within.from - day * 2, within.until).unwrap();
                let schedule = Schedule::parse(schedule).unwrap();
                (action == "allow", *minutes, hits(schedule, &time_zone(zone).unwrap(), wider))
            }).collect();
            let spans = all.spans(Empty, within, &PlannedMaintenance::default());
            let mut moment = within.from + SignedDuration::from_secs(seed);
            while moment < within.until {
                let open = |(_, minutes, hits): &&(bool, i64, Vec<Timestamp>)| {
                    hits.iter().any(|hit| {
                        let elapsed = moment.duration_since(*hit);
                        !elapsed.is_negative() && elapsed < SignedDuration::from_mins(*minutes)
                    })
                };
                let mut allowing = lists.iter().filter(|list| list.0).peekable();
                let allowed = allowing.peek().is_none() || allowing.any(|list| open(&list));
                let denied = lists.iter().filter(|list| !list.0).any(|list| open(&list));
                let expected = allowed && !denied;
                let closed = all.closed(Empty, moment, &PlannedMaintenance::default());
                prop_assert_eq!(closed.is_none(), expected, "{} at {}", text, moment);
                prop_assert_eq!(spans.iter().any(|span| span.contains(moment)), expected, "{} at {}", text, moment);
                moment += SignedDuration::from_mins(10);
            }
        }
    }
}
