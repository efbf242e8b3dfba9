//! Back-off after failed commands.
//!
//! A replacement that does not come up usually fails for a reason that all nodes of its NodePool
//! share, so the whole pool rests. After a restart the rests are recalled from the records of the
//! decisions that failed or were undone.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use nap_api::nodepool::DisruptionReason;

use super::budgets::REASONS;
use crate::decisions::{DecisionRecord, Kind, Outcome};

/// Rest after the first failure; each further one doubles it.
const FIRST: SignedDuration = SignedDuration::from_mins(1);
/// Longest rest.
const MAX: SignedDuration = SignedDuration::from_hours(1);

/// Failed commands by NodePool and reason.
#[derive(Clone, Debug, Default)]
pub struct Backoff {
    pools: BTreeMap<(String, DisruptionReason), Failures>,
    /// Time of the last failure by NodeClaim.
    claims: BTreeMap<String, Timestamp>,
}

#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    until: Timestamp,
}

impl Backoff {
    /// Records a command that was rolled back. Returns how long its NodePool rests.
    pub fn fail(
        &mut self,
        claim: &str,
        pool: &str,
        reason: DisruptionReason,
        now: Timestamp,
    ) -> SignedDuration {
        self.claims.insert(claim.to_owned(), now);
        self.rest(pool, reason, now)
    }

    /// Records that commands of a NodePool were undone. Returns how long it rests.
    pub fn undone(
        &mut self,
        pool: &str,
        reason: DisruptionReason,
        now: Timestamp,
    ) -> SignedDuration {
        self.rest(pool, reason, now)
    }

    fn rest(&mut self, pool: &str, reason: DisruptionReason, now: Timestamp) -> SignedDuration {
        let key = (pool.to_owned(), reason);
        let failures = self.pools.entry(key).or_insert(Failures { count: 0, until: now });
        if now.duration_since(failures.until) >= MAX {
            failures.count = 0;
        }
        let rest = FIRST.saturating_mul(1 << failures.count.min(10)).min(MAX);
        failures.count = failures.count.saturating_add(1);
        failures.until = now.checked_add(rest).unwrap_or(Timestamp::MAX);
        rest
    }

    /// Records a command that succeeded.
    pub fn succeed(&mut self, pool: &str, reason: DisruptionReason) {
        self.pools.remove(&(pool.to_owned(), reason));
    }

    /// Adds the rests that records of decisions tell of.
    pub fn recall<'r>(&mut self, records: impl Iterator<Item = &'r DecisionRecord>) {
        let mut settled: Vec<(Timestamp, &DecisionRecord)> = records
            .filter(|record| record.kind == Kind::Disruption)
            .filter_map(|record| Some((record.settled?, record)))
            .collect();
        settled.sort_by_key(|(at, record)| (*at, record.id));
        let mut recalled = Self::default();
        // Several records that are undone at once are one failure.
        let mut undone: BTreeMap<(&str, DisruptionReason), Timestamp> = BTreeMap::new();
        for (at, record) in settled {
            let Some(reason) = REASONS.into_iter().find(|it| it.as_str() == record.reason) else {
                continue;
            };
            for node in &record.removed {
                let pool = node.node_pool.as_str();
                match record.outcome {
                    Outcome::RolledBack => {
                        recalled.fail(&node.node_claim, pool, reason, at);
                    }
                    Outcome::Undone => {
                        if undone.insert((pool, reason), at) != Some(at) {
                            recalled.undone(pool, reason, at);
                        }
                    }
                    Outcome::Realised if !record.launched.is_empty() => {
                        recalled.succeed(pool, reason);
                    }
                    Outcome::Realised | Outcome::Pending | Outcome::Failed => {}
                }
            }
        }
        for (key, failures) in recalled.pools {
            let known = self.pools.entry(key).or_insert(failures);
            if known.until < failures.until {
                *known = failures;
            }
        }
        for (claim, at) in recalled.claims {
            let known = self.claims.entry(claim).or_insert(at);
            *known = at.max(*known);
        }
    }

    /// Whether a NodePool rests from disruption for a reason.
    pub fn is_resting(&self, pool: &str, reason: DisruptionReason, now: Timestamp) -> bool {
        let failures = self.pools.get(&(pool.to_owned(), reason));
        failures.is_some_and(|failures| failures.until > now)
    }

    /// Whether any NodePool rests.
    pub fn is_any_resting(&self, now: Timestamp) -> bool {
        self.pools.values().any(|failures| failures.until > now)
    }

    /// Time of the last failed command on a NodeClaim. Such a candidate goes last, so that it does
    /// not keep the others of its pool from being tried.
    pub fn last_failure(&self, claim: &str) -> Option<Timestamp> {
        self.claims.get(claim).copied()
    }

    /// Forgets NodeClaims that no longer exist.
    pub fn retain_claims(&mut self, exists: impl Fn(&str) -> bool) {
        self.claims.retain(|claim, _| exists(claim));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decisions::RecordedNode;
    use crate::testing::at;
    use nap_engine::{Plan, PriceEstimates};

    use DisruptionReason::{Drifted, Underutilized};

    /// A consolidation in pool `p` that was settled so.
    fn settled(outcome: Outcome, seconds: i64) -> DecisionRecord {
        let (kind, plan, estimates) = (Kind::Disruption, Plan::default(), PriceEstimates::None);
        let record = DecisionRecord::new(kind, "Underutilized", &plan, &[], estimates, at(0));
        let node = RecordedNode {
            node_claim: "c".to_owned(),
            node_pool: "p".to_owned(),
            ..RecordedNode::default()
        };
        let record = record.removing(vec![node.clone()], 1, None, "");
        DecisionRecord { outcome, settled: Some(at(seconds)), launched: vec![node], ..record }
    }

    #[test]
    fn rests_are_recalled_from_records() {
        let resting = |records: &[DecisionRecord], seconds: i64| {
            let mut backoff = Backoff::default();
            backoff.recall(records.iter());
            backoff.recall(records.iter());
            backoff.is_resting("p", Underutilized, at(seconds))
        };
        let rolled_back = settled(Outcome::RolledBack, 100);
        assert!(resting(std::slice::from_ref(&rolled_back), 159));
        assert!(!resting(std::slice::from_ref(&rolled_back), 160));
        let undone = || settled(Outcome::Undone, 200);
        let all = [rolled_back, undone(), undone()];
        assert!(resting(&all, 319), "the second failure, for two minutes");
        assert!(!resting(&all, 320), "what is undone at once fails once");
        let realised = settled(Outcome::Realised, 210);
        let all = [undone(), realised];
        assert!(!resting(&all, 211), "a success ends it");
    }

    #[test]
    fn a_pool_rests_twice_as_long_after_each_failure_up_to_an_hour() {
        let mut backoff = Backoff::default();
        let rests: Vec<i64> =
            (0..8).map(|_| backoff.fail("c", "p", Drifted, at(0)).as_secs() / 60).collect();
        assert_eq!(rests, [1, 2, 4, 8, 16, 32, 60, 60]);
        backoff.succeed("p", Drifted);
        assert_eq!(backoff.fail("c", "p", Drifted, at(0)).as_secs(), 60);
    }

    #[test]
    fn a_failure_long_ago_is_forgotten() {
        let mut backoff = Backoff::default();
        backoff.undone("p", Drifted, at(0));
        assert_eq!(backoff.undone("p", Drifted, at(60)).as_secs(), 120);
        assert_eq!(backoff.undone("p", Drifted, at(180 + 3600)).as_secs(), 60);
    }

    #[test]
    fn only_the_same_pool_and_reason_rest() {
        let mut backoff = Backoff::default();
        backoff.fail("c", "p", Drifted, at(0));
        assert!(backoff.is_resting("p", Drifted, at(59)) && backoff.is_any_resting(at(59)));
        assert!(!backoff.is_resting("p", Drifted, at(60)) && !backoff.is_any_resting(at(60)));
        assert!(!backoff.is_resting("p", Underutilized, at(0)));
        assert!(!backoff.is_resting("q", Drifted, at(0)));
    }

    #[test]
    fn failures_of_a_nodeclaim_are_kept_while_it_exists() {
        let mut backoff = Backoff::default();
        backoff.fail("c", "p", Drifted, at(5));
        assert_eq!(backoff.last_failure("c"), Some(at(5)));
        backoff.retain_claims(|_| false);
        assert_eq!(backoff.last_failure("c"), None);
    }
}
