//! Debounce: a finding must hold for some time before it is acted upon.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::cluster::NodeKey;

/// Time for which a finding must hold: a node that is empty for a moment is kept.
const SETTLE_TIME: SignedDuration = SignedDuration::from_secs(15);

/// Findings of one disruption method, and since when each has held.
#[derive(Clone, Debug, Default)]
pub struct Debounce {
    since: BTreeMap<NodeKey, Timestamp>,
}

/// Findings sorted by age.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Findings that have held for long enough.
    pub due: BTreeSet<NodeKey>,
    /// Time until the next finding is due; `None` if none is waiting.
    pub wait: Option<Duration>,
}

impl Debounce {
    /// Takes the findings of a pass. A finding that is missing starts over when it returns.
    pub fn observe(&mut self, found: impl IntoIterator<Item = NodeKey>, now: Timestamp) -> Settled {
        let mut settled = Settled::default();
        let mut since = BTreeMap::new();
        for key in found {
            let first = self.since.get(&key).copied().unwrap_or(now);
            let left = SETTLE_TIME - now.duration_since(first);
            if left.is_positive() {
                let left = Duration::try_from(left).unwrap_or(Duration::ZERO);
                settled.wait = settled.wait.into_iter().chain([left]).min();
            } else {
                settled.due.insert(key.clone());
            }
            since.insert(key, first);
        }
        self.since = since;
        settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    fn key(name: &str) -> NodeKey {
        NodeKey::NodeClaim(name.to_owned())
    }

    #[test]
    fn a_finding_is_due_after_fifteen_seconds() {
        let mut debounce = Debounce::default();
        let first = debounce.observe([key("a")], at(0));
        assert_eq!(first, Settled { due: [].into(), wait: Some(Duration::from_secs(15)) });
        assert_eq!(debounce.observe([key("a")], at(14)).wait, Some(Duration::from_secs(1)));
        let settled = debounce.observe([key("a"), key("b")], at(15));
        assert_eq!(settled.due, [key("a")].into());
        assert_eq!(settled.wait, Some(Duration::from_secs(15)), "b has just been found");
    }

    #[test]
    fn a_finding_that_was_missing_once_starts_over() {
        let mut debounce = Debounce::default();
        debounce.observe([key("a")], at(0));
        debounce.observe([], at(10));
        assert!(debounce.observe([key("a")], at(20)).due.is_empty());
    }
}
