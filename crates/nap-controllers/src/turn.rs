//! When it is a machine's turn to be opened, among those of the same plan.

use std::fmt;

use jiff::Timestamp;
use kube::ResourceExt;
use nap_api::{NodeClaim, labels};
use nap_engine::{Plan, Snapshot, release_order};

/// A machine's turn among those of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Tells plans apart.
    plan: String,
    number: u32,
}

impl Turn {
    /// The turns of a plan's launches; none have one where the order does not matter.
    pub fn of(snapshot: &Snapshot, plan: &Plan, now: Timestamp) -> Vec<Option<Self>> {
        let numbers = release_order(snapshot, plan);
        let matters = numbers.iter().any(|number| *number > 0);
        let turn =
            |number| matters.then(|| Self { plan: now.as_millisecond().to_string(), number });
        numbers.into_iter().map(turn).collect()
    }

    /// The turn that a claim was made with.
    pub fn read(claim: &NodeClaim) -> Option<Self> {
        let (plan, number) = claim.annotations().get(labels::PLANNED_TURN)?.split_once('/')?;
        Some(Self { plan: plan.to_owned(), number: number.parse().ok()? })
    }

    /// Whether it comes before another of the same plan.
    pub fn precedes(&self, other: &Self) -> bool {
        self.plan == other.plan && self.number < other.number
    }
}

impl fmt::Display for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.plan, self.number)
    }
}
