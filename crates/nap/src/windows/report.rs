//! The report of `nap windows`, as text and as a document.

use std::fmt::Write as _;

use jiff::SignedDuration;
use jiff::tz::TimeZone;
use kube::ResourceExt;
use nap_api::disruption::{
    self, Maintenance, MaintenanceSchedule, PlannedMaintenance, REASONS, Settings, Span, without,
};
use nap_api::nodepool::{ConsolidationPolicy, DisruptionReason};
use nap_api::{NodePool, budget, labels};
use serde_json::{Value, json};

/// Most times that the text lists for a reason.
const MAX_LISTED: usize = 10;

/// When nodes of NodePools may be disrupted.
pub struct Report {
    within: Span,
    maintenance: PlannedMaintenance,
    pools: Vec<Pool>,
}

struct Pool {
    name: String,
    zone: TimeZone,
    problems: Vec<String>,
    reasons: Vec<Answer>,
    expiry: Expiry,
    soak: Option<SignedDuration>,
}

/// When nodes may be disrupted for a reason.
struct Answer {
    reason: DisruptionReason,
    /// Times at which nodes may be disrupted, as a union.
    open: Vec<Span>,
    /// Setting that rules the reason out at any time.
    never: Option<&'static str>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Expiry {
    Never,
    Forceful,
    Graceful,
}

impl Report {
    /// Judges NodePools over a time.
    pub fn new(pools: &[NodePool], within: Span, maintenance: PlannedMaintenance) -> Self {
        let pools = pools.iter().map(|pool| Pool::new(pool, within, &maintenance)).collect();
        Self { within, maintenance, pools }
    }

    /// Number of NodePools whose settings cannot be read.
    pub fn unreadable(&self) -> usize {
        self.pools.iter().filter(|pool| !pool.problems.is_empty()).count()
    }

    /// One block per NodePool, and one per maintenance window that was read.
    pub fn text(&self) -> String {
        let pools = self.pools.iter().map(|pool| pool.text(self.within));
        let windows = MaintenanceSchedule::ALL.into_iter();
        let windows = windows.filter_map(|schedule| match self.maintenance.of(schedule) {
            Maintenance::Known { open, .. } => Some(maintenance_text(schedule, open)),
            Maintenance::Absent | Maintenance::Unknown => None,
        });
        pools.chain(windows).collect::<Vec<String>>().join("\n")
    }

    /// The document of `-o json`.
    pub fn document(&self) -> Value {
        json!({
            "version": 1,
            "from": self.within.from.to_string(),
            "until": self.within.until.to_string(),
            "maintenanceWindows": self.maintenance_windows(),
            "nodePools": self.pools.iter().map(Pool::document).collect::<Vec<_>>(),
        })
    }
}

impl Report {
    /// What is known of each maintenance schedule, and when it is open.
    fn maintenance_windows(&self) -> Vec<Value> {
        let window = |schedule: MaintenanceSchedule| {
            let (state, open) = match self.maintenance.of(schedule) {
                Maintenance::Unknown => ("unknown", &[][..]),
                Maintenance::Absent => ("absent", &[][..]),
                Maintenance::Known { open, .. } => ("known", open.as_slice()),
            };
            let span = |span: &Span| json!({ "from": span.from.to_string(), "until": span.until.to_string() });
            json!({
                "schedule": schedule.as_str(), "state": state,
                "open": open.iter().map(span).collect::<Vec<_>>(),
            })
        };
        MaintenanceSchedule::ALL.into_iter().map(window).collect()
    }
}

impl Pool {
    fn new(pool: &NodePool, within: Span, maintenance: &PlannedMaintenance) -> Self {
        let (settings, problems) = match Settings::of(pool) {
            Ok(settings) => (settings, Vec::new()),
            Err(problems) => (Settings::default(), problems),
        };
        let reason = |reason| {
            let never = never(pool, reason);
            let mut open = settings.windows.spans(reason, within, maintenance);
            let closed = budget::closed(&pool.spec.disruption.budgets, reason, within);
            open = without(&open, &closed);
            if never.is_some() || !problems.is_empty() {
                open.clear();
            }
            Answer { reason, open, never }
        };
        let expires = pool.spec.template.spec.expire_after.get().is_some();
        Self {
            name: pool.name_any(),
            zone: settings.windows.time_zone().cloned().unwrap_or(TimeZone::UTC),
            reasons: REASONS.map(reason).into(),
            expiry: match (expires, disruption::expires_gracefully(pool)) {
                (false, _) => Expiry::Never,
                (true, false) => Expiry::Forceful,
                (true, true) => Expiry::Graceful,
            },
            soak: settings.soak,
            problems,
        }
    }

    fn text(&self, within: Span) -> String {
        let mut text = format!("NodePool {}: {}\n", self.name, self.span(within, true));
        for problem in &self.problems {
            let _ = writeln!(text, "  error: {problem}");
        }
        for reason in &self.reasons {
            let blocked = without(&[within], &reason.open);
            let (head, spans) = match (&reason.never, blocked.is_empty()) {
                (Some(never), _) => (format!("never: {never}"), &[][..]),
                (None, true) => ("any time".to_owned(), &[][..]),
                (None, false) if reason.open.is_empty() => ("blocked".to_owned(), &[][..]),
                // The shorter of the two tells more.
                (None, false) if length(&reason.open) > length(&blocked) => {
                    ("any time, except".to_owned(), blocked.as_slice())
                }
                (None, false) => ("blocked, except".to_owned(), reason.open.as_slice()),
            };
            let _ = writeln!(text, "  {}: {head}", reason.reason.as_str());
            for span in spans.iter().take(MAX_LISTED) {
                let _ = writeln!(text, "    {}", self.span(*span, false));
            }
            if spans.len() > MAX_LISTED {
                let more = spans.len() - MAX_LISTED;
                let _ = writeln!(text, "    and {more} more times; -o json lists all");
            }
        }
        let expiry = match self.expiry {
            Expiry::Never => "never: expireAfter is Never".to_owned(),
            Expiry::Graceful => "as Drifted".to_owned(),
            Expiry::Forceful => format!(
                "any time, outside of windows and budgets too; the annotation {}: graceful changes \
                 that",
                labels::EXPIRY
            ),
        };
        let _ = writeln!(text, "  Expired: {expiry}");
        if let Some(soak) = self.soak {
            let _ = writeln!(text, "  Waves of drift: 1 node, 10 %, the rest, {soak:#} apart");
        }
        text
    }

    /// A span in the time zone of the NodePool, and in UTC if that is another.
    fn span(&self, span: Span, with_year: bool) -> String {
        let zone = zone_name(&self.zone);
        let local = in_zone(span, &self.zone, with_year);
        if zone == "UTC" {
            return format!("{local} UTC");
        }
        format!("{local} {zone} ({} UTC)", in_zone(span, &TimeZone::UTC, false))
    }

    fn document(&self) -> Value {
        let span = |span: &Span| {
            let local = |time: jiff::Timestamp| time.to_zoned(self.zone.clone()).to_string();
            json!({
                "from": span.from.to_string(), "until": span.until.to_string(),
                "localFrom": local(span.from), "localUntil": local(span.until),
            })
        };
        let reason = |reason: &Answer| {
            json!({
                "reason": reason.reason.as_str(),
                "never": reason.never,
                "open": reason.open.iter().map(span).collect::<Vec<_>>(),
            })
        };
        json!({
            "name": self.name,
            "timeZone": zone_name(&self.zone),
            "problems": self.problems,
            "reasons": self.reasons.iter().map(reason).collect::<Vec<_>>(),
            "expiry": match self.expiry {
                Expiry::Never => "Never",
                Expiry::Forceful => "Forceful",
                Expiry::Graceful => "Graceful",
            },
            "driftSoakSeconds": self.soak.map(|soak| soak.as_secs()),
        })
    }
}

fn maintenance_text(schedule: MaintenanceSchedule, open: &[Span]) -> String {
    let mut text = format!("{schedule} of the managed cluster:\n");
    for span in open.iter().take(MAX_LISTED) {
        let _ = writeln!(text, "  {} UTC", in_zone(*span, &TimeZone::UTC, false));
    }
    if open.is_empty() {
        text.push_str("  not open in this time\n");
    }
    if open.len() > MAX_LISTED {
        let more = open.len() - MAX_LISTED;
        let _ = writeln!(text, "  and {more} more times; -o json lists all");
    }
    text
}

/// The setting of a NodePool that rules out a reason; `None` if none does.
fn never(pool: &NodePool, reason: DisruptionReason) -> Option<&'static str> {
    let disruption = &pool.spec.disruption;
    let consolidates = reason != DisruptionReason::Drifted;
    if consolidates && disruption.consolidate_after.get().is_none() {
        return Some("consolidateAfter is Never");
    }
    let only_empty = disruption.consolidation_policy == ConsolidationPolicy::WhenEmpty;
    (reason == DisruptionReason::Underutilized && only_empty)
        .then_some("consolidationPolicy is WhenEmpty")
}

fn zone_name(zone: &TimeZone) -> &str {
    zone.iana_name().unwrap_or("UTC")
}

/// `Sat 21 Nov 03:00 – 05:00`; the end has a date if it is on another day.
fn in_zone(span: Span, zone: &TimeZone, with_year: bool) -> String {
    let (from, until) = (span.from.to_zoned(zone.clone()), span.until.to_zoned(zone.clone()));
    let date = if with_year { "%a %-d %b %Y %H:%M" } else { "%a %-d %b %H:%M" };
    let end = if from.date() == until.date() { "%H:%M" } else { date };
    format!("{} – {}", from.strftime(date), until.strftime(end))
}

fn length(spans: &[Span]) -> SignedDuration {
    spans.iter().map(|span| span.until.duration_since(span.from)).sum()
}
