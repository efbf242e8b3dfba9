//! The calendar of a maintenance window.
//!
//! A window opens at `startTime` of every day on which its schedule occurs, for `durationHours`,
//! and never on a date that is not allowed. All dates and times are local to `utcOffset`. The first
//! occurrence is the first suitable day on or after `startDate`; longer intervals count from it.

use jiff::civil::{Date, Time, Weekday};
use jiff::tz::Offset;
use jiff::{SignedDuration, Timestamp};
use nap_api::disruption::{Span, union, without};

/// Longest interval of a schedule, in its own unit.
pub(super) const MAX_INTERVAL: i32 = 1000;

/// Days that are searched for the next opening. The longest schedule of AKS occurs every six
/// months.
const MAX_SEARCH_DAYS: i64 = 1500;

/// Day from which intervals count without a `startDate`. AKS fills that in, so it hardly matters.
const FIRST_DAY: Date = Date::constant(2024, 1, 1);

/// A maintenance window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaintenanceWindow {
    /// Days on which it opens.
    pub schedule: Schedule,
    /// Hours for which it is open.
    pub duration_hours: i64,
    /// Offset of all its dates and times from UTC.
    pub utc_offset: Offset,
    /// First day on which it can open; `None` for any.
    pub start_date: Option<Date>,
    /// Time of day at which it opens.
    pub start_time: Time,
    /// Dates on which it is closed.
    pub not_allowed: Vec<DateSpan>,
}

/// Days on which a window opens. Intervals are at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// `daily`: an interval of days.
    Daily {
        /// Interval in days.
        days: i32,
    },
    /// `weekly`: a weekday, at an interval of weeks.
    Weekly {
        /// Interval in weeks.
        weeks: i32,
        /// Day of the week.
        day: Weekday,
    },
    /// `absoluteMonthly`: a day of the month, or the last one of a shorter month.
    AbsoluteMonthly {
        /// Interval in months.
        months: i32,
        /// Day of the month, from 1 to 31.
        day: i8,
    },
    /// `relativeMonthly`: a weekday of the first to fourth, or last, week of the month.
    RelativeMonthly {
        /// Interval in months.
        months: i32,
        /// Week of the month.
        week: WeekIndex,
        /// Day of the week.
        day: Weekday,
    },
}

/// Week of a month: the first has the first of the wanted weekdays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are Azure's")]
pub enum WeekIndex {
    First,
    Second,
    Third,
    Fourth,
    Last,
}

impl WeekIndex {
    /// Reads a name of the API.
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "First" => Self::First,
            "Second" => Self::Second,
            "Third" => Self::Third,
            "Fourth" => Self::Fourth,
            "Last" => Self::Last,
            _ => return None,
        })
    }

    /// Number for [`Date::nth_weekday_of_month`].
    fn nth(self) -> i8 {
        match self {
            Self::First => 1,
            Self::Second => 2,
            Self::Third => 3,
            Self::Fourth => 4,
            Self::Last => -1,
        }
    }
}

/// Dates from one to another, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DateSpan {
    /// First date.
    pub from: Date,
    /// Last date.
    pub to: Date,
}

impl MaintenanceWindow {
    /// Whether the window is open.
    pub fn is_open(&self, now: Timestamp) -> bool {
        self.opening_within(now, 0) == Some(now)
    }

    /// The earliest time from `now` on at which the window is open: `now` itself if it is. `None`
    /// if that is years away.
    pub fn next_opening(&self, now: Timestamp) -> Option<Timestamp> {
        self.opening_within(now, MAX_SEARCH_DAYS)
    }

    /// The earliest open time from `now` on, within a number of days after `now`.
    fn opening_within(&self, now: Timestamp, days: i64) -> Option<Timestamp> {
        let today = self.utc_offset.to_datetime(now).date();
        // A window is open for 24 hours at most, so one of yesterday may still be.
        (-1..=days).find_map(|day| {
            let date = plus_days(today, day).filter(|date| self.occurs_on(*date))?;
            let opens = self.at(date, self.start_time)?;
            let closes = opens.checked_add(SignedDuration::from_hours(self.duration_hours)).ok()?;
            // A date that is not allowed ends at midnight, while the window may still be open.
            let midnight = self.at(plus_days(date, 1)?, Time::midnight())?;
            let mut times = [now.max(opens), now.max(midnight)].into_iter();
            times.find(|time| (opens..closes).contains(time) && self.is_allowed(*time))
        })
    }

    /// The parts of a span in which the window is open, as a union.
    pub fn spans(&self, within: Span) -> Vec<Span> {
        let date = |time: Timestamp| self.utc_offset.to_datetime(time).date();
        let midnight = |date: Date| self.at(date, Time::midnight());
        let mut open = Vec::new();
        // A window is open for 24 hours at most, so one of the day before may reach into the span.
        let mut day = plus_days(date(within.from), -1);
        while let Some(today) = day.filter(|day| *day <= date(within.until)) {
            if self.occurs_on(today)
                && let Some(opens) = self.at(today, self.start_time)
                && let Ok(closes) =
                    opens.checked_add(SignedDuration::from_hours(self.duration_hours))
            {
                open.extend(Span::new(opens, closes).and_then(|span| span.common(within)));
            }
            day = plus_days(today, 1);
        }
        let not_allowed = self.not_allowed.iter().filter_map(|dates| {
            Span::new(midnight(dates.from)?, midnight(plus_days(dates.to, 1)?)?)
        });
        without(&union(open), &union(not_allowed))
    }

    fn is_allowed(&self, time: Timestamp) -> bool {
        let date = self.utc_offset.to_datetime(time).date();
        !self.not_allowed.iter().any(|span| (span.from..=span.to).contains(&date))
    }

    /// Timestamp of a local time; `None` at the end of the calendar.
    fn at(&self, date: Date, time: Time) -> Option<Timestamp> {
        self.utc_offset.to_timestamp(date.to_datetime(time)).ok()
    }

    /// Whether the window opens on a local date.
    fn occurs_on(&self, date: Date) -> bool {
        if self.start_date.is_some_and(|start| date < start) {
            return false;
        }
        let start = self.start_date.unwrap_or(FIRST_DAY);
        match self.schedule {
            Schedule::Daily { days } => days_between(start, date) % i64::from(days) == 0,
            Schedule::Weekly { weeks, day } => {
                let first = (0..7)
                    .filter_map(|next| plus_days(start, next))
                    .find(|date| date.weekday() == day);
                date.weekday() == day
                    && first
                        .is_some_and(|first| days_between(first, date) / 7 % i64::from(weeks) == 0)
            }
            Schedule::AbsoluteMonthly { months, .. } | Schedule::RelativeMonthly { months, .. } => {
                self.schedule.day_in_month_of(date) == Some(date) && {
                    // The first occurrence may be in the month after the start.
                    let is_later =
                        self.schedule.day_in_month_of(start).is_none_or(|day| day < start);
                    let first = month_number(start) + i64::from(is_later);
                    (month_number(date) - first) % i64::from(months) == 0
                }
            }
        }
    }
}

impl Schedule {
    /// The day of a monthly schedule in the month of a date.
    fn day_in_month_of(self, date: Date) -> Option<Date> {
        match self {
            Self::AbsoluteMonthly { day, .. } => {
                Date::new(date.year(), date.month(), day.min(date.days_in_month())).ok()
            }
            Self::RelativeMonthly { week, day, .. } => {
                date.nth_weekday_of_month(week.nth(), day).ok()
            }
            Self::Daily { .. } | Self::Weekly { .. } => None,
        }
    }
}

fn plus_days(date: Date, days: i64) -> Option<Date> {
    date.checked_add(SignedDuration::from_hours(days * 24)).ok()
}

fn days_between(from: Date, to: Date) -> i64 {
    to.duration_since(from).as_hours() / 24
}

/// Months since the beginning of the calendar.
fn month_number(date: Date) -> i64 {
    i64::from(date.year()) * 12 + i64::from(date.month())
}
