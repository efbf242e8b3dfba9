//! Disruption budgets of NodePools, less the disruptions under way, and what closes a NodePool
//! besides: its windows, the waves of its drift, and settings that cannot be read.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use nap_api::budget;
use nap_api::disruption::{
    MAX_SEARCH_DAYS, Maintenance, MaintenanceSchedule, PlannedMaintenance, Settings,
};
use nap_api::nodeclaim::condition::INSTANCE_TERMINATING;
use nap_api::nodepool::DisruptionReason;

use super::waves;
use crate::cluster::{Index, NodeView, claim_is, is_ready};
use crate::events::Severity;

/// The reasons that nap disrupts nodes for.
pub const REASONS: [DisruptionReason; 4] = [
    DisruptionReason::Unhealthy,
    DisruptionReason::Empty,
    DisruptionReason::Drifted,
    DisruptionReason::Underutilized,
];

/// Time that a command takes until its replacements have started. A window that closes earlier
/// would leave old and new nodes running beside each other.
const COMMAND_TIME: SignedDuration = SignedDuration::from_mins(5);
const CLOSES_SOON: &str = "due to disruption windows: they close within 5 minutes";

/// Budgets of every NodePool by reason.
#[derive(Debug, Default)]
pub struct Budgets(BTreeMap<(String, DisruptionReason), Allowance>);

#[derive(Clone, Debug, Default)]
struct Allowance {
    /// Nodes that may still be disrupted in this pass.
    left: usize,
    /// Nodes that use up the budget: they leave, or are not ready.
    used: usize,
    /// What closes the NodePool for the reason, whatever is under way.
    closed: Option<Notice>,
    /// What the next disruption waits for, although the NodePool is not closed.
    waits: Option<Notice>,
}

/// An event about a NodePool whose nodes are not disrupted now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Type of the event.
    pub severity: Severity,
    /// Reason of the event.
    pub event: &'static str,
    /// Message of the event.
    pub message: String,
}

impl Notice {
    fn blocked(reason: DisruptionReason, why: &str) -> Self {
        let message =
            format!("No allowed disruptions for disruption reason {} {why}", reason.as_str());
        Self { severity: Severity::Normal, event: "DisruptionBlocked", message }
    }
}

impl Budgets {
    /// Counts the budgets of every NodePool. Initialized nodes are counted unless their instance is
    /// terminating; those that are leaving or not ready use up the budget. A node that is not ready
    /// does not keep itself from being repaired.
    pub fn new(index: &Index, now: Timestamp) -> Self {
        let mut allowances = BTreeMap::new();
        let maintenance = index.maintenance(now);
        for (name, pool) in index.pools() {
            let nodes = || index.views_of_pool(name).filter(|view| is_counted(view));
            let not_ready =
                |view: &&NodeView| view.node.as_ref().is_some_and(|node| !is_ready(node));
            let leaving = nodes().filter(|view| view.is_leaving()).count();
            let staying = nodes().filter(|view| !view.is_leaving());
            let not_ready = staying.filter(not_ready).count();
            let total = nodes().count();
            let settings = Settings::of(pool);
            for reason in REASONS {
                let allowed = budget::allowed(&pool.spec.disruption.budgets, reason, total, now);
                let idle = if reason == DisruptionReason::Unhealthy { 0 } else { not_ready };
                let closed = match &settings {
                    _ if allowed == 0 => Some("due to blocking budget".to_owned()),
                    Err(problems) => Some(format!("due to {}", problems.join("; "))),
                    Ok(settings) => outside(settings, reason, &maintenance, now),
                };
                let closed = closed.map(|why| Notice::blocked(reason, &why));
                let ends = settings.as_ref().ok().filter(|_| closed.is_none());
                let ends = ends.filter(|settings| closes_soon(settings, reason, &maintenance, now));
                let waits = ends.map(|_| Notice::blocked(reason, CLOSES_SOON));
                let left = match (&closed, &waits) {
                    (None, None) => allowed.saturating_sub(leaving + idle),
                    _ => 0,
                };
                let allowance = Allowance { left, used: leaving + idle, closed, waits };
                allowances.insert((name.clone(), reason), allowance);
            }
            let key = (name.clone(), DisruptionReason::Drifted);
            if let Ok(Settings { soak: Some(soak), .. }) = settings
                && let Some(allowance) = allowances.get_mut(&key)
                && allowance.closed.is_none()
                && let Some(wave) = waves::wave(index, pool, total, soak, now)
            {
                allowance.left = allowance.left.min(wave.left);
                if wave.is_halted {
                    let (severity, event) = (Severity::Warning, "DriftHalted");
                    allowance.closed = Some(Notice { severity, event, message: wave.message });
                } else if wave.left == 0 {
                    let (severity, event) = (Severity::Normal, "DriftWave");
                    allowance.waits = Some(Notice { severity, event, message: wave.message });
                }
            }
        }
        Self(allowances)
    }

    /// The same without limits.
    #[must_use]
    pub fn open(self) -> Self {
        let open = Allowance { left: usize::MAX, ..Allowance::default() };
        Self(self.0.into_keys().map(|key| (key, open.clone())).collect())
    }

    /// Why no node of a NodePool may be disrupted for a reason, whatever is under way; `None` if
    /// some may.
    pub fn closed(&self, pool: &str, reason: DisruptionReason) -> Option<&Notice> {
        self.get(pool, reason)?.closed.as_ref()
    }

    /// Why no further node of a NodePool is disrupted for a reason, if people may want to know.
    pub fn notice(&self, pool: &str, reason: DisruptionReason) -> Option<&Notice> {
        let allowance = self.get(pool, reason)?;
        allowance.closed.as_ref().or(allowance.waits.as_ref())
    }

    /// Number of nodes of a NodePool that may still be disrupted for a reason.
    pub fn left(&self, pool: &str, reason: DisruptionReason) -> usize {
        self.get(pool, reason).map_or(0, |allowance| allowance.left)
    }

    /// Nodes of a NodePool that may still be disrupted for a reason, and those that use up the
    /// budget.
    pub fn counts(&self, pool: &str, reason: DisruptionReason) -> (usize, usize) {
        self.get(pool, reason).map_or((0, 0), |allowance| (allowance.left, allowance.used))
    }

    fn get(&self, pool: &str, reason: DisruptionReason) -> Option<&Allowance> {
        self.0.get(&(pool.to_owned(), reason))
    }

    /// Takes one disruption from the budgets of every reason: a node that is leaving counts for all
    /// of them. Returns `false` if none is left for this reason.
    pub fn take(&mut self, pool: &str, reason: DisruptionReason) -> bool {
        if self.left(pool, reason) == 0 {
            return false;
        }
        for ((name, _), allowance) in &mut self.0 {
            if name == pool {
                allowance.left = allowance.left.saturating_sub(1);
            }
        }
        true
    }
}

fn is_counted(view: &NodeView) -> bool {
    let terminating = view.claim.as_ref().is_some_and(|one| claim_is(one, INSTANCE_TERMINATING));
    view.is_initialized() && !terminating
}

/// Why the windows of a NodePool are closed for a reason; `None` if they are open.
fn outside(
    settings: &Settings,
    reason: DisruptionReason,
    maintenance: &PlannedMaintenance,
    now: Timestamp,
) -> Option<String> {
    let closed = settings.windows.closed(reason, now, maintenance)?;
    let opening = settings.windows.next_opening(reason, now, maintenance);
    let is_missing = |schedule: &MaintenanceSchedule| {
        settings.windows.follow(*schedule) && *maintenance.of(*schedule) == Maintenance::Absent
    };
    let missing = MaintenanceSchedule::ALL.into_iter().filter(is_missing);
    let missing: Vec<&str> = missing.map(MaintenanceSchedule::as_str).collect();
    let next = match (opening, missing.as_slice()) {
        (Some(opening), _) => format!("until {opening}"),
        (None, []) => format!("and no opening is known for {MAX_SEARCH_DAYS} days"),
        (None, missing) => {
            format!("and the managed cluster has no {}", missing.join(" and no "))
        }
    };
    Some(format!("due to disruption windows: {closed}, {next}"))
}

/// Whether the windows of a NodePool close before a command that moves pods could be done.
fn closes_soon(
    settings: &Settings,
    reason: DisruptionReason,
    maintenance: &PlannedMaintenance,
    now: Timestamp,
) -> bool {
    let moves = matches!(reason, DisruptionReason::Drifted | DisruptionReason::Underutilized);
    let end = now.checked_add(COMMAND_TIME).unwrap_or(Timestamp::MAX);
    let closed = || settings.windows.closed(reason, end, maintenance);
    moves && !settings.windows.is_empty() && closed().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, cluster_of, condition, index, pool, set_condition};
    use nap_api::disruption::Span;
    use nap_api::labels;
    use serde_json::{Value, json};

    use DisruptionReason::{Drifted, Empty, Underutilized};

    /// The budgets of pool `p` with `nodes` ready nodes.
    fn budgets(nodes: usize, budgets: &Value) -> Budgets {
        let mut index = cluster_of(nodes);
        index.apply(pool("p", json!({ "spec": { "disruption": { "budgets": budgets } } })), at(0));
        Budgets::new(&index, at(0))
    }

    #[test]
    fn a_percentage_of_the_nodes_is_rounded_up() {
        let ten_percent = || json!([{ "nodes": "10%" }]);
        assert_eq!(budgets(0, &ten_percent()).left("p", Empty), 0);
        assert_eq!(budgets(1, &ten_percent()).left("p", Empty), 1);
        assert_eq!(budgets(11, &ten_percent()).left("p", Empty), 2);
    }

    #[test]
    fn zero_blocks_every_reason() {
        let none = budgets(5, &json!([{ "nodes": "0" }]));
        for reason in REASONS {
            assert_eq!(none.left("p", reason), 0);
        }
    }

    #[test]
    fn the_smallest_budget_that_names_the_reason_counts() {
        let both =
            budgets(10, &json!([{ "nodes": "5" }, { "nodes": "1", "reasons": ["Drifted"] }]));
        assert_eq!((both.left("p", Drifted), both.left("p", Underutilized)), (1, 5));
    }

    #[test]
    fn a_schedule_blocks_only_within_its_window() {
        let window = json!([{ "nodes": "0", "schedule": "0 0 * * *", "duration": "1h" }]);
        assert_eq!(budgets(3, &window).left("p", Empty), 0, "the window opens at midnight");
        let later = json!([{ "nodes": "0", "schedule": "0 6 * * *", "duration": "1h" }]);
        assert!(budgets(3, &later).left("p", Empty) > 0);
    }

    #[test]
    fn nodes_that_are_leaving_or_not_ready_use_up_the_budget() {
        let mut index = cluster_of(4);
        index.apply(
            pool("p", json!({ "spec": { "disruption": { "budgets": [{ "nodes": "3" }] } } })),
            at(0),
        );
        assert_eq!(Budgets::new(&index, at(0)).left("p", Empty), 3);
        let mut node = index.node("node-0").unwrap().as_ref().clone();
        node.status = None;
        index.apply(node, at(1));
        let mut claim = index.claim("claim-1").unwrap().as_ref().clone();
        let conditions = &mut claim.status.get_or_insert_default().conditions;
        conditions.push(serde_json::from_value(condition("DisruptionReason", "True")).unwrap());
        index.apply(claim, at(1));
        assert_eq!(Budgets::new(&index, at(1)).left("p", Empty), 1);
        let left = Budgets::new(&index, at(1)).left("p", DisruptionReason::Unhealthy);
        assert_eq!(left, 2, "a node that is not ready does not keep itself from being repaired");
    }

    #[test]
    fn a_node_whose_instance_is_terminating_no_longer_counts() {
        let mut index = cluster_of(4);
        let half = json!({ "spec": { "disruption": { "budgets": [{ "nodes": "50%" }] } } });
        index.apply(pool("p", half), at(0));
        for (condition, left) in [("DisruptionReason", 1), ("InstanceTerminating", 2)] {
            set_condition(&mut index, "claim-0", condition, "1970-01-01T00:00:00Z");
            assert_eq!(Budgets::new(&index, at(0)).left("p", Drifted), left, "{condition}");
        }
    }

    #[test]
    fn only_a_budget_of_zero_closes_a_pool() {
        let mut one = budgets(5, &json!([{ "nodes": "1" }]));
        assert!(one.take("p", Drifted) && one.closed("p", Drifted).is_none());
        assert!(budgets(5, &json!([{ "nodes": "0" }])).closed("p", Drifted).is_some());
    }

    #[test]
    fn budgets_are_taken_one_by_one() {
        let mut two = budgets(5, &json!([{ "nodes": "2" }]));
        assert!(two.take("p", Empty) && two.take("p", Empty) && !two.take("p", Empty));
        assert_eq!(two.left("p", Drifted), 0, "a leaving node counts for every reason");
        assert!(!two.take("unknown", Empty));
    }

    /// Message of the event about pool `p`, with `windows` on it, at a time; both schedules of AKS
    /// were read at second 0.
    fn closed(windows: &str, maintenance: &Maintenance, seconds: i64) -> Option<String> {
        let mut index = cluster_of(5);
        let annotations = json!({ labels::DISRUPTION_WINDOWS: windows });
        index.apply(pool("p", json!({ "metadata": { "annotations": annotations } })), at(0));
        for schedule in MaintenanceSchedule::ALL {
            index.set_maintenance(schedule, maintenance.clone(), at(0));
        }
        let budgets = Budgets::new(&index, at(seconds));
        assert_eq!(budgets.left("p", Drifted) == 0, budgets.notice("p", Drifted).is_some());
        budgets.closed("p", Drifted).map(|notice| notice.message.clone())
    }

    #[test]
    fn nothing_that_moves_pods_starts_in_the_last_minutes_of_a_window() {
        let mut index = cluster_of(5);
        let hourly = "- {action: allow, schedule: 0 2 * * *, duration: 1h}";
        let annotations = json!({ labels::DISRUPTION_WINDOWS: hourly });
        let budget = json!({ "budgets": [{ "nodes": "2" }] });
        let object = json!({
            "metadata": { "annotations": annotations }, "spec": { "disruption": budget },
        });
        index.apply(pool("p", object), at(0));
        let left = |seconds: i64| {
            let budgets = Budgets::new(&index, at(3 * 3600 - seconds));
            assert!(budgets.closed("p", Drifted).is_none(), "what is under way is finished");
            let notice = budgets.notice("p", Drifted).map(|notice| notice.message.clone());
            let lefts = [Empty, Drifted, Underutilized].map(|reason| budgets.left("p", reason));
            (lefts, notice.unwrap_or_default())
        };
        assert_eq!(left(301), ([2, 2, 2], String::new()));
        let (lefts, message) = left(300);
        assert_eq!(lefts, [2, 0, 0], "an empty node is gone at once");
        assert!(message.ends_with("they close within 5 minutes"), "{message}");
    }

    #[test]
    fn a_pool_is_closed_outside_of_its_windows() {
        let nightly =
            "- {action: allow, schedule: 0 2 * * *, duration: 1h, timeZone: Europe/Berlin}";
        let message = closed(nightly, &Maintenance::Unknown, 0);
        let expected = "No allowed disruptions for disruption reason Drifted due to disruption \
                        windows: no window allows it, until 1970-01-01T01:00:00Z";
        assert_eq!(message.as_deref(), Some(expected));
        assert_eq!(closed(nightly, &Maintenance::Unknown, 3600), None);
        assert!(closed(nightly, &Maintenance::Unknown, 7200).is_some());
    }

    #[test]
    fn windows_that_cannot_be_read_close_the_pool_and_name_the_field() {
        let message = closed("- {action: allow}", &Maintenance::Unknown, 0).unwrap();
        let expected =
            "due to metadata.annotations[nap.karpenter.sh/disruption-windows][0].schedule";
        assert!(message.contains(expected), "{message}");
    }

    #[test]
    fn a_maintenance_window_that_is_absent_unknown_or_old_closes_the_pool() {
        for schedule in MaintenanceSchedule::ALL {
            let follows = format!("- {{action: allow, schedule: {schedule}}}");
            let message = closed(&follows, &Maintenance::Absent, 0).unwrap();
            assert!(message.ends_with(&format!("and the managed cluster has no {schedule}")));
            let message = closed(&follows, &Maintenance::Unknown, 0).unwrap();
            assert!(message.contains(&format!("{schedule} could not be read")), "{message}");
            let day = Span::new(at(0), at(86_400)).unwrap();
            let open = Maintenance::Known { within: day, open: vec![day] };
            assert_eq!(closed(&follows, &open, 3599), None);
            assert!(closed(&follows, &open, 3600).is_some(), "it was read an hour ago");
        }
    }

    #[test]
    fn a_pool_that_does_not_exist_has_no_budget() {
        assert_eq!(Budgets::new(&index([]), at(0)).left("p", Empty), 0);
    }
}
