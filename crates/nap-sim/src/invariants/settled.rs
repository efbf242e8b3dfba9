//! Steady demand: consolidation ends some hours after the last change.
//!
//! A change is a new specification of a workload, a NodePool, a node class or a disruption budget,
//! its creation, or its deletion.

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::Claim;

/// Time after the last change within which the cluster must have settled: longer than the expected
/// life of a node, with which the worth of a move grows.
const SETTLES_WITHIN: SignedDuration = SignedDuration::from_hours(5);

/// Resources whose changes are changes of demand or supply.
const WATCHED: [&str; 8] = [
    "deployments",
    "statefulsets",
    "daemonsets",
    "jobs",
    "poddisruptionbudgets",
    "nodepools",
    "aksnodeclasses",
    "nodeoverlays",
];

/// The time of the last change.
#[derive(Default)]
pub(super) struct Settled(Option<Timestamp>);

impl Settled {
    pub(super) fn observe(
        &mut self,
        plural: &str,
        old: Option<&Value>,
        new: Option<&Value>,
        now: Timestamp,
    ) {
        let [before, after] = [old, new].map(|object| object.map(|object| &object["spec"]));
        if WATCHED.contains(&plural) && before != after {
            self.0 = Some(now);
        }
    }

    /// Looks at a node that has just been chosen for disruption.
    pub(super) fn check(&self, chosen: &Claim, now: Timestamp) -> Option<String> {
        let quiet = now.duration_since(self.0?);
        let moves = chosen.reason.as_deref() == Some("Underutilized");
        (moves && quiet > SETTLES_WITHIN).then(|| {
            let minutes = quiet.as_mins();
            format!("node {} is consolidated {minutes} min after the last change", chosen.node)
        })
    }
}
