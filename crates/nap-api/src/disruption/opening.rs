//! Openings of a window: a cron schedule on the clock of a time zone.
//!
//! A window opens when the local clock shows a hit of its schedule, and stays open for its duration
//! of elapsed time. Where clocks are changed:
//!
//! - A time that is skipped opens the window as much later as the clock jumps: 02:30 becomes 03:30.
//! - A time that comes twice opens the window the first time only, unless the schedule has hits in
//!   every hour.
//!
//! Time zones come from the database that is built in, so that every machine decides the same.

use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{SignedDuration, Timestamp};

use super::spans::{Span, union};
use crate::cron::Schedule;
pub(super) use crate::cron::time_zone;

/// Most that a clock is set forward or back at once: two hours, at Antarctica/Troll.
const MAX_CLOCK_CHANGE: SignedDuration = SignedDuration::from_hours(3);

/// A schedule in a time zone, and the time that the window stays open after each hit.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Openings {
    pub(super) schedule: Schedule,
    pub(super) duration: SignedDuration,
    pub(super) zone: TimeZone,
}

impl Openings {
    /// Whether the window is open at a moment.
    pub(super) fn contain(&self, moment: Timestamp) -> bool {
        let earliest = moment.saturating_sub(self.duration).unwrap_or(Timestamp::MIN);
        // Open from the hit on: a hit exactly one duration ago has just ended.
        self.hits(earliest, moment).any(|hit| earliest < hit && hit <= moment)
    }

    /// The parts of a span in which the window is open.
    pub(super) fn spans(&self, within: Span) -> Vec<Span> {
        let earliest = within.from.saturating_sub(self.duration).unwrap_or(Timestamp::MIN);
        let open = |hit: Timestamp| {
            let until = hit.saturating_add(self.duration).unwrap_or(Timestamp::MAX);
            Span::new(hit, until)?.common(within)
        };
        union(self.hits(earliest, within.until).filter_map(open))
    }

    /// Every hit between two moments, and some outside, in no particular order.
    fn hits(&self, from: Timestamp, until: Timestamp) -> impl Iterator<Item = Timestamp> {
        let local = |moment: Timestamp| self.zone.to_datetime(moment);
        let first = local(from).saturating_sub(MAX_CLOCK_CHANGE);
        let first = first.with().second(0).subsec_nanosecond(0).build().unwrap_or(first);
        let last = local(until).saturating_add(MAX_CLOCK_CHANGE);
        let next = move |after: &DateTime| {
            let minute = SignedDuration::from_mins(1);
            self.schedule.next_from(after.checked_add(minute).ok()?)
        };
        std::iter::successors(self.schedule.next_from(first), next)
            .take_while(move |hit| *hit <= last)
            .flat_map(|hit| self.moments(hit))
    }

    /// The moments at which a hit on the local clock opens the window.
    fn moments(&self, hit: DateTime) -> impl Iterator<Item = Timestamp> {
        let ambiguous = self.zone.to_ambiguous_timestamp(hit);
        let is_twice = matches!(ambiguous.offset(), AmbiguousOffset::Fold { .. });
        let second = (is_twice && self.schedule.is_hourly()).then(|| ambiguous.later());
        let first = ambiguous.compatible();
        std::iter::once(first).chain(second).filter_map(Result::ok)
    }
}
