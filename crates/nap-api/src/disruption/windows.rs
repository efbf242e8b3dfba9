//! Disruption windows of a NodePool: when its nodes may be disrupted, in its own time zone.
//!
//! A window allows or denies, for some reasons or for all. With at least one allowing window for a
//! reason, nodes are disrupted for that reason inside such a window only. A denying window wins
//! over every allowing one. What can be read neither as open nor as closed counts as closed.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::maintenance::{MaintenanceSchedule, PlannedMaintenance};
use super::opening::{Openings, time_zone};
use super::spans::{Span, union, without};
use crate::cron::Schedule;
use crate::duration::parse_go_duration;
use crate::nodepool::DisruptionReason;

/// The reasons that a window can name.
pub const REASONS: [DisruptionReason; 3] =
    [DisruptionReason::Drifted, DisruptionReason::Empty, DisruptionReason::Underutilized];

/// Most windows of a NodePool.
const MAX_WINDOWS: usize = 50;
/// Longest time that a window is open.
const MAX_DURATION: SignedDuration = SignedDuration::from_hours(31 * 24);
/// Days for which the next opening is searched.
pub const MAX_SEARCH_DAYS: i64 = 35;

const FIELDS: [&str; 5] = ["action", "reasons", "schedule", "duration", "timeZone"];

/// The windows of a NodePool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Windows(Vec<Window>);

#[derive(Clone, Debug, PartialEq)]
struct Window {
    allows: bool,
    reasons: Vec<DisruptionReason>,
    calendar: Calendar,
}

#[derive(Clone, Debug, PartialEq)]
enum Calendar {
    Openings(Openings),
    Maintenance(MaintenanceSchedule),
}

/// Reason why nodes may not be disrupted at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// A denying window is open.
    Denied,
    /// No allowing window is open.
    Outside,
    /// It depends on a maintenance window that is not known.
    Unknown(MaintenanceSchedule),
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Denied => f.write_str("a window denies it"),
            Self::Outside => f.write_str("no window allows it"),
            Self::Unknown(schedule) => write!(f, "{schedule} could not be read"),
        }
    }
}

impl Windows {
    /// Reads a list of windows, in YAML or JSON. The error names the field, from the list on, and
    /// the remedy.
    pub fn parse(text: &str) -> Result<Self, String> {
        let list: Value = serde_saphyr::from_str(text).map_err(|error| {
            let error = error.to_string();
            let line = error.lines().next().unwrap_or_default().to_owned();
            format!(": is not YAML ({line}); quote a schedule that begins with `*` or `@`")
        })?;
        let list = list.as_array().ok_or_else(|| {
            ": is not a list; write each window as `- action: allow` with `schedule`, `duration` \
             and `timeZone` below"
                .to_owned()
        })?;
        if list.is_empty() {
            return Err(": is an empty list; name a window, or remove the annotation".to_owned());
        }
        if list.len() > MAX_WINDOWS {
            return Err(format!(": has {} windows; {MAX_WINDOWS} are the most", list.len()));
        }
        let window =
            |(index, value)| Window::parse(value).map_err(|problem| format!("[{index}]{problem}"));
        list.iter().enumerate().map(window).collect::<Result<_, _>>().map(Self)
    }

    /// Whether there are no windows.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a window follows a maintenance configuration of the managed cluster.
    pub fn follow(&self, schedule: MaintenanceSchedule) -> bool {
        self.0.iter().any(|window| window.calendar == Calendar::Maintenance(schedule))
    }

    /// Time zone of the first window that has one.
    pub fn time_zone(&self) -> Option<&jiff::tz::TimeZone> {
        self.0.iter().find_map(|window| match &window.calendar {
            Calendar::Openings(openings) => Some(&openings.zone),
            Calendar::Maintenance(_) => None,
        })
    }

    /// Why nodes may not be disrupted for a reason at a moment; `None` if they may.
    pub fn closed(
        &self,
        reason: DisruptionReason,
        now: Timestamp,
        maintenance: &PlannedMaintenance,
    ) -> Option<Closed> {
        // Whether there are windows with an action, and whether one is open (or what is unknown).
        let open = |allows: bool| {
            let mut windows = self.of(reason).filter(move |one| one.allows == allows).peekable();
            let exists = windows.peek().is_some();
            let mut unknown = None;
            for window in windows {
                match window.calendar.contains(now, maintenance) {
                    Ok(true) => return (exists, Ok(true)),
                    Ok(false) => {}
                    Err(schedule) => unknown = unknown.or(Some(schedule)),
                }
            }
            (exists, unknown.map_or(Ok(false), Err))
        };
        match open(false).1 {
            Ok(true) => return Some(Closed::Denied),
            Err(schedule) => return Some(Closed::Unknown(schedule)),
            Ok(false) => {}
        }
        match open(true) {
            (false, _) | (true, Ok(true)) => None,
            (true, Ok(false)) => Some(Closed::Outside),
            (true, Err(schedule)) => Some(Closed::Unknown(schedule)),
        }
    }

    /// The parts of a span in which nodes may be disrupted for a reason, as a union.
    pub fn spans(
        &self,
        reason: DisruptionReason,
        within: Span,
        maintenance: &PlannedMaintenance,
    ) -> Vec<Span> {
        let spans = |window: &Window| window.calendar.spans(within, maintenance);
        let mut allowing = self.of(reason).filter(|window| window.allows).peekable();
        let allowed = match allowing.peek() {
            Some(_) => union(allowing.flat_map(|window| spans(window).0)),
            None => vec![within],
        };
        let denying = self.of(reason).filter(|window| !window.allows);
        let denied = union(denying.flat_map(|window| {
            let (open, unknown) = spans(window);
            open.into_iter().chain(unknown)
        }));
        without(&allowed, &denied)
    }

    /// The first moment from `now` on at which nodes may be disrupted for a reason; `None` if there
    /// is none within [`MAX_SEARCH_DAYS`].
    pub fn next_opening(
        &self,
        reason: DisruptionReason,
        now: Timestamp,
        maintenance: &PlannedMaintenance,
    ) -> Option<Timestamp> {
        let day = |days: i64| now.saturating_add(SignedDuration::from_hours(24 * days)).ok();
        (0..MAX_SEARCH_DAYS).find_map(|days| {
            let within = Span::new(day(days)?, day(days + 1)?)?;
            Some(self.spans(reason, within, maintenance).first()?.from)
        })
    }

    fn of(&self, reason: DisruptionReason) -> impl Iterator<Item = &Window> {
        self.0.iter().filter(move |window| window.reasons.contains(&reason))
    }
}

impl Calendar {
    /// Whether it is open; the schedule that is not known if that decides it.
    fn contains(
        &self,
        moment: Timestamp,
        maintenance: &PlannedMaintenance,
    ) -> Result<bool, MaintenanceSchedule> {
        match self {
            Self::Openings(openings) => Ok(openings.contain(moment)),
            Self::Maintenance(schedule) => {
                maintenance.of(*schedule).contains(moment).ok_or(*schedule)
            }
        }
    }

    /// The parts of a span in which it is open, and those in which that is unknown.
    fn spans(&self, within: Span, maintenance: &PlannedMaintenance) -> (Vec<Span>, Vec<Span>) {
        match self {
            Self::Openings(openings) => (openings.spans(within), Vec::new()),
            Self::Maintenance(schedule) => maintenance.of(*schedule).spans(within),
        }
    }
}

impl Window {
    /// Reads one window. The error begins with the field, from the window on.
    fn parse(value: &Value) -> Result<Self, String> {
        let fields = value.as_object().ok_or_else(|| {
            format!(": `{value}` is not a window; write fields such as `action: allow`")
        })?;
        if let Some(unknown) = fields.keys().find(|key| !FIELDS.contains(&key.as_str())) {
            return Err(format!(".{unknown}: no such field; a window has {}", FIELDS.join(", ")));
        }
        let text = |field: &'static str| match fields.get(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.trim())),
            Some(other) => Err(format!(".{field}: `{other}` is not a text; put it in quotes")),
        };
        let allows = match text("action")? {
            Some("allow") => true,
            Some("deny") => false,
            Some(other) => {
                return Err(format!(".action: `{other}` is neither `allow` nor `deny`"));
            }
            None => return Err(".action: is missing; write `allow` or `deny`".to_owned()),
        };
        let (schedule, duration, zone) = (text("schedule")?, text("duration")?, text("timeZone")?);
        let schedule = schedule.ok_or_else(|| format!(".schedule: is missing; {}", schedules()))?;
        let calendar = if let Some(schedule) = MaintenanceSchedule::of(schedule) {
            if duration.is_some() || zone.is_some() {
                return Err(format!(
                    ": `{schedule}` has a duration and a time zone of its own; remove \
                     `duration` and `timeZone`"
                ));
            }
            Calendar::Maintenance(schedule)
        } else {
            Calendar::Openings(openings(schedule, duration, zone)?)
        };
        Ok(Self { allows, reasons: reasons(fields.get("reasons"))?, calendar })
    }
}

/// What a schedule may be.
fn schedules() -> String {
    let [node_os, kubernetes] = MaintenanceSchedule::ALL;
    format!(
        "write five fields of cron such as `0 3 * * sat`, or one of AKS: `{node_os}`, \
         `{kubernetes}`"
    )
}

fn openings(
    schedule: &str,
    duration: Option<&str>,
    zone: Option<&str>,
) -> Result<Openings, String> {
    let parsed = Schedule::parse(schedule)
        .ok_or_else(|| format!(".schedule: `{schedule}` is not a schedule; {}", schedules()))?;
    if parsed.next_after(Timestamp::UNIX_EPOCH).is_none() {
        return Err(format!(".schedule: `{schedule}` never occurs; name a day that exists"));
    }
    let duration = duration.ok_or_else(|| {
        ".duration: is missing; write the time that the window is open, such as `2h`".to_owned()
    })?;
    let is_usable = |it: &SignedDuration| it.is_positive() && *it <= MAX_DURATION;
    let length = parse_go_duration(duration).and_then(|it| SignedDuration::try_from(it).ok());
    let length = length.filter(is_usable).ok_or_else(|| {
        format!(".duration: `{duration}` is not a time up to `744h`; write one such as `2h30m`")
    })?;
    let zone = zone.unwrap_or("UTC");
    let zone = time_zone(zone).ok_or_else(|| {
        format!(
            ".timeZone: `{zone}` is not an IANA time zone; write one such as `Europe/Berlin`, or \
             `UTC`"
        )
    })?;
    Ok(Openings { schedule: parsed, duration: length, zone })
}

fn reasons(value: Option<&Value>) -> Result<Vec<DisruptionReason>, String> {
    let Some(value) = value else { return Ok(REASONS.to_vec()) };
    let names = REASONS.map(DisruptionReason::as_str).join(", ");
    let list = value.as_array().filter(|list| !list.is_empty()).ok_or_else(|| {
        format!(
            ".reasons: `{value}` is not a list; write some of [{names}], or leave it out for all"
        )
    })?;
    let reason = |(index, value): (usize, &Value)| {
        let known = REASONS.into_iter().find(|reason| value.as_str() == Some(reason.as_str()));
        known.ok_or_else(|| format!(".reasons[{index}]: `{value}` is none of {names}"))
    };
    list.iter().enumerate().map(reason).collect()
}
