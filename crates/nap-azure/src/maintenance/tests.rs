//! Maintenance windows by examples, and against a plain enumeration of their calendar.

use jiff::civil::{Date, Time, Weekday, date, time};
use jiff::tz::Offset;
use jiff::{SignedDuration, Timestamp};
use nap_api::disruption::Span;
use proptest::prelude::*;

use super::{DateSpan, MaintenanceWindow, Schedule, WeekIndex};

fn window(schedule: Schedule) -> MaintenanceWindow {
    MaintenanceWindow {
        schedule,
        duration_hours: 4,
        utc_offset: Offset::UTC,
        start_date: Some(date(2026, 1, 1)),
        start_time: time(22, 0, 0, 0),
        not_allowed: Vec::new(),
    }
}

fn at(text: &str) -> Timestamp {
    format!("{text}:00Z").parse().unwrap()
}

/// The first openings of a window from a time on, as local dates.
fn openings(window: &MaintenanceWindow, from: &str, count: usize) -> Vec<String> {
    let mut now = at(from);
    let mut found = Vec::new();
    for _ in 0..count {
        let opening = window.next_opening(now).unwrap();
        assert!(window.is_open(opening));
        found.push(window.utc_offset.to_datetime(opening).date().to_string());
        now = opening + SignedDuration::from_hours(window.duration_hours);
    }
    found
}

#[test]
fn a_window_is_open_for_its_hours_also_past_midnight() {
    let window = window(Schedule::Daily { days: 1 });
    for (time, open) in [
        ("2026-03-01T21:59", false),
        ("2026-03-01T22:00", true),
        ("2026-03-02T01:59", true),
        ("2026-03-02T02:00", false),
    ] {
        assert_eq!(window.is_open(at(time)), open, "{time}");
    }
}

#[test]
fn a_window_is_closed_before_its_start_date() {
    let window = window(Schedule::Daily { days: 1 });
    assert!(!window.is_open(at("2025-12-31T23:00")));
    assert_eq!(window.next_opening(at("2025-06-01T00:00")), Some(at("2026-01-01T22:00")));
}

#[test]
fn the_offset_applies_to_times_and_dates() {
    // The example of the API: 02:00 at +02:00 is 00:00 UTC, and dates that are not allowed end at
    // the local midnight.
    let window = MaintenanceWindow {
        utc_offset: Offset::constant(2),
        start_time: time(2, 0, 0, 0),
        duration_hours: 24,
        start_date: None,
        not_allowed: vec![DateSpan { from: date(2022, 12, 23), to: date(2023, 1, 3) }],
        ..window(Schedule::Daily { days: 1 })
    };
    assert!(window.is_open(at("2022-12-22T21:59")));
    assert!(!window.is_open(at("2022-12-22T22:00")));
    assert!(!window.is_open(at("2023-01-03T21:59")));
    assert_eq!(window.next_opening(at("2022-12-25T00:00")), Some(at("2023-01-03T22:00")));
}

#[test]
fn intervals_count_from_the_first_occurrence() {
    let weekly = window(Schedule::Weekly { weeks: 2, day: Weekday::Friday });
    assert_eq!(
        openings(&weekly, "2026-01-01T00:00", 3),
        ["2026-01-02", "2026-01-16", "2026-01-30"]
    );
    let daily = window(Schedule::Daily { days: 3 });
    assert_eq!(openings(&daily, "2026-01-01T00:00", 3), ["2026-01-01", "2026-01-04", "2026-01-07"]);
    let monthly = MaintenanceWindow {
        start_date: Some(date(2026, 1, 15)),
        ..window(Schedule::AbsoluteMonthly { months: 2, day: 10 })
    };
    let found = openings(&monthly, "2026-01-01T00:00", 3);
    assert_eq!(found, ["2026-02-10", "2026-04-10", "2026-06-10"]);
}

#[test]
fn monthly_days_fit_every_month() {
    let last = window(Schedule::AbsoluteMonthly { months: 1, day: 31 });
    let found = openings(&last, "2026-01-01T00:00", 4);
    assert_eq!(found, ["2026-01-31", "2026-02-28", "2026-03-31", "2026-04-30"]);
    for (week, expected) in [
        (WeekIndex::First, ["2026-01-06", "2026-02-03"]),
        (WeekIndex::Fourth, ["2026-01-27", "2026-02-24"]),
        (WeekIndex::Last, ["2026-01-27", "2026-02-24"]),
    ] {
        let schedule = Schedule::RelativeMonthly { months: 1, week, day: Weekday::Tuesday };
        assert_eq!(openings(&window(schedule), "2026-01-01T00:00", 2), expected);
    }
    let schedule =
        Schedule::RelativeMonthly { months: 1, week: WeekIndex::Last, day: Weekday::Friday };
    let found = openings(&window(schedule), "2026-01-01T00:00", 3);
    assert_eq!(found, ["2026-01-30", "2026-02-27", "2026-03-27"]);
}

#[test]
fn a_window_that_is_never_allowed_never_opens() {
    let window = MaintenanceWindow {
        not_allowed: vec![DateSpan { from: date(2020, 1, 1), to: date(2199, 1, 1) }],
        ..window(Schedule::Daily { days: 1 })
    };
    assert_eq!(window.next_opening(at("2026-01-01T00:00")), None);
}

fn weekdays() -> impl Strategy<Value = Weekday> {
    (1_i8..=7).prop_map(|number| Weekday::from_monday_one_offset(number).unwrap())
}

fn schedules() -> impl Strategy<Value = Schedule> {
    let weeks = prop::sample::select(vec![
        WeekIndex::First,
        WeekIndex::Second,
        WeekIndex::Third,
        WeekIndex::Fourth,
        WeekIndex::Last,
    ]);
    prop_oneof![
        (1_i32..=7).prop_map(|days| Schedule::Daily { days }),
        (1_i32..=4, weekdays()).prop_map(|(weeks, day)| Schedule::Weekly { weeks, day }),
        (1_i32..=6, prop_oneof![1_i8..=31, 28_i8..=31])
            .prop_map(|(months, day)| Schedule::AbsoluteMonthly { months, day }),
        (1_i32..=6, weeks, weekdays()).prop_map(|(months, week, day)| Schedule::RelativeMonthly {
            months,
            week,
            day
        }),
    ]
}

/// A day of 2026 by its number.
fn day(number: i32) -> Date {
    date(2026, 1, 1) + SignedDuration::from_hours(24 * i64::from(number))
}

prop_compose! {
    fn windows()(
        schedule in schedules(),
        duration_hours in 1_i64..=24,
        minutes in -14 * 60..=14 * 60_i32,
        start in prop::option::of(0_i32..400),
        (hour, minute) in (0_i8..24, 0_i8..60),
        spans in prop::collection::vec((0_i32..800, 0_i32..30), 0..4),
    ) -> MaintenanceWindow {
        let span = |(from, length)| DateSpan { from: day(from), to: day(from + length) };
        MaintenanceWindow {
            schedule,
            duration_hours,
            utc_offset: Offset::from_seconds(minutes * 60).unwrap(),
            start_date: start.map(day),
            start_time: Time::constant(hour, minute, 0, 0),
            not_allowed: spans.into_iter().map(span).collect(),
        }
    }
}

/// The days on which a window with a start date opens, walked from one to the next.
fn walked(window: &MaintenanceWindow, until: Date) -> Vec<Date> {
    let start = window.start_date.unwrap();
    let days = |from: Date| (0_i64..).map(move |next| from + SignedDuration::from_hours(24 * next));
    let first_of_month = |date: Date, months: i32| {
        let number = i32::from(date.month()) - 1 + months;
        let year = date.year() + i16::try_from(number / 12).unwrap();
        Date::constant(year, i8::try_from(number % 12 + 1).unwrap(), 1)
    };
    let month = |first: Date| -> Vec<Date> {
        days(first).take(usize::try_from(first.days_in_month()).unwrap()).collect()
    };
    let pick = |first: Date| -> Date {
        let days = month(first);
        match window.schedule {
            Schedule::AbsoluteMonthly { day, .. } => {
                *days.get(usize::try_from(day).unwrap() - 1).unwrap_or(days.last().unwrap())
            }
            Schedule::RelativeMonthly { week, day, .. } => {
                let same: Vec<Date> = days.into_iter().filter(|it| it.weekday() == day).collect();
                match week {
                    WeekIndex::First => same[0],
                    WeekIndex::Second => same[1],
                    WeekIndex::Third => same[2],
                    WeekIndex::Fourth => same[3],
                    WeekIndex::Last => *same.last().unwrap(),
                }
            }
            _ => unreachable!("only monthly schedules have a day in a month"),
        }
    };
    let all: Vec<Date> = match window.schedule {
        Schedule::Daily { days: step } => days(start)
            .step_by(usize::try_from(step).unwrap())
            .take_while(|it| *it <= until)
            .collect(),
        Schedule::Weekly { weeks, day } => {
            let first = days(start).find(|it| it.weekday() == day).unwrap();
            let step = usize::try_from(weeks * 7).unwrap();
            days(first).step_by(step).take_while(|it| *it <= until).collect()
        }
        Schedule::AbsoluteMonthly { months, .. } | Schedule::RelativeMonthly { months, .. } => {
            let first = start.first_of_month();
            let skipped = i32::from(pick(first) < start);
            (0..120)
                .map(|times| pick(first_of_month(first, skipped + times * months)))
                .take_while(|it| *it <= until)
                .collect()
        }
    };
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_window_is_open_exactly_after_its_openings(
        mut window in windows(),
        start in 0_i32..400,
        near in any::<prop::sample::Index>(),
        minutes in -3 * 60..27 * 60_i64,
        closed in prop::option::of(-1_i64..=1),
    ) {
        // A time around an opening, and perhaps a date that is not allowed around it too.
        window.start_date = Some(day(start));
        let all = walked(&window, day(start + 1200));
        let date = all[near.index(all.len())];
        if let Some(days) = closed {
            let date = date + SignedDuration::from_hours(24 * days);
            window.not_allowed.push(DateSpan { from: date, to: date });
        }
        let opening = |date: Date| {
            window.utc_offset.to_timestamp(date.to_datetime(window.start_time)).unwrap()
        };
        let now = opening(date) + SignedDuration::from_mins(minutes);
        let local = window.utc_offset.to_datetime(now).date();
        let blocked = window.not_allowed.iter().any(|span| span.from <= local && local <= span.to);
        let open = all.into_iter().any(|date| {
            let opens = opening(date);
            opens <= now && now < opens + SignedDuration::from_hours(window.duration_hours)
        });
        prop_assert_eq!(window.is_open(now), open && !blocked);
        let hours = SignedDuration::from_hours(2);
        let around = Span::new(now - hours, now + hours).unwrap();
        let spans = window.spans(around);
        prop_assert_eq!(spans.iter().any(|span| span.contains(now)), open && !blocked);
    }

    #[test]
    fn the_next_opening_is_the_first_open_time(
        mut window in windows(),
        hours in 0_i64..24 * 400,
        closed in any::<bool>(),
    ) {
        let now = at("2026-01-01T00:00") + SignedDuration::from_mins(hours * 60 + 17);
        let mut next = window.next_opening(now).unwrap();
        if closed {
            let date = window.utc_offset.to_datetime(next).date();
            window.not_allowed.push(DateSpan { from: date, to: date });
            next = window.next_opening(now).unwrap();
        }
        prop_assert!(next >= now && window.is_open(next));
        // Nothing is open before: every quarter of an hour of the last ten days is tried.
        let mut time = next;
        for _ in 0..960 {
            time -= SignedDuration::from_mins(15);
            if time < now {
                break;
            }
            prop_assert!(!window.is_open(time), "{time}");
        }
        prop_assert_eq!(window.next_opening(next), Some(next));
    }
}
