//! Nodes are chosen for disruption inside of the windows of their NodePool only, and in the last
//! five minutes of a window none whose pods would have to move.
//!
//! A window that follows the maintenance window of AKS is not checked: what is allowed depends on
//! when nap could read it last. Repair knows no windows.

use jiff::{SignedDuration, Timestamp};
use nap_api::labels;
use serde_json::Value;

use super::calendar::Calendar;
use super::{DECIDED_WITHIN, State};

/// Reasons that windows confine.
const REASONS: [&str; 3] = ["Empty", "Drifted", "Underutilized"];
/// Time that a window must stay open for a command that moves pods.
const COMMAND_TIME: SignedDuration = SignedDuration::from_mins(5);

/// Looks at a node that has just been chosen for disruption.
pub(super) fn check(state: &State, name: &str, now: Timestamp) -> Option<String> {
    let chosen = &state.claims[name];
    let reason = chosen.reason.as_deref().filter(|one| REASONS.contains(one))?;
    let annotations = state.pools.get(&chosen.pool)?.pointer("/metadata/annotations")?;
    let text = annotations.get(labels::DISRUPTION_WINDOWS)?.as_str()?;
    let windows = Windows::parse(text, reason);
    let is_closed = |at: Timestamp| match &windows {
        Some(windows) => {
            let end = at.checked_add(COMMAND_TIME).unwrap_or(Timestamp::MAX);
            windows.are_closed(at) || (reason != "Empty" && windows.are_closed(end))
        }
        None => true,
    };
    let decided = now.checked_sub(DECIDED_WITHIN).unwrap_or(Timestamp::MIN);
    (is_closed(now) && is_closed(decided)).then(|| {
        let pool = &chosen.pool;
        format!("NodePool {pool}: node {} is chosen for {reason} outside of windows", chosen.node)
    })
}

/// Windows for one reason, each with whether it allows; `None` in place of a calendar that is not
/// checked.
struct Windows(Vec<(bool, Option<Calendar>)>);

impl Windows {
    /// Reads the windows for a reason; `None` if one cannot be read, which closes the NodePool.
    fn parse(text: &str, reason: &str) -> Option<Self> {
        let list: Value = serde_saphyr::from_str(text).ok()?;
        let mut windows = Vec::new();
        for window in list.as_array()? {
            let allows = match window["action"].as_str()? {
                "allow" => true,
                "deny" => false,
                _ => return None,
            };
            let schedule = window["schedule"].as_str()?;
            let calendar = if schedule.starts_with("aksManaged") {
                None
            } else {
                let zone = window["timeZone"].as_str().unwrap_or("UTC");
                Some(Calendar::parse(schedule, window["duration"].as_str()?, zone)?)
            };
            let reasons = window["reasons"].as_array();
            if reasons.is_none_or(|all| all.iter().any(|one| one == reason)) {
                windows.push((allows, calendar));
            }
        }
        Some(Self(windows))
    }

    /// Whether they are closed for sure.
    fn are_closed(&self, at: Timestamp) -> bool {
        let is_open = |calendar: &Option<Calendar>, unknown: bool| {
            calendar.as_ref().map_or(unknown, |calendar| calendar.is_open(at))
        };
        let denied = self.0.iter().any(|(allows, one)| !allows && is_open(one, false));
        let mut allowing = self.0.iter().filter(|(allows, _)| *allows).peekable();
        let outside = allowing.peek().is_some() && !allowing.any(|(_, one)| is_open(one, true));
        denied || outside
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_allow_and_deny_by_reason() {
        let text = "
- {action: allow, reasons: [Drifted], schedule: '0 1 * * *', duration: 4h}
- {action: deny, schedule: '0 3 * * *', duration: 1h}
";
        let is_closed = |reason: &str, at: &str| {
            Windows::parse(text, reason).unwrap().are_closed(at.parse().unwrap())
        };
        assert!(is_closed("Drifted", "2026-01-01T00:59:00Z"));
        assert!(!is_closed("Drifted", "2026-01-01T01:00:00Z"));
        assert!(is_closed("Drifted", "2026-01-01T03:00:00Z"), "denied");
        assert!(
            !is_closed("Empty", "2026-01-01T00:59:00Z"),
            "allowed by no window, and needs none"
        );
        assert!(is_closed("Empty", "2026-01-01T03:59:00Z"));
        let follows = "- {action: allow, schedule: aksManagedNodeOSUpgradeSchedule}";
        let windows = Windows::parse(follows, "Empty").unwrap();
        assert!(!windows.are_closed(Timestamp::UNIX_EPOCH), "not checked");
        assert!(Windows::parse("- {action: maybe}", "Empty").is_none());
    }
}
