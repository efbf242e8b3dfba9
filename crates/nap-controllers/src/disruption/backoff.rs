//! Back-off after failed commands.
//!
//! A replacement that does not come up usually fails for a reason that all nodes of its NodePool
//! share, so the whole pool rests. The memory is lost in a restart, which is safe: the replacement
//! of the failed command still exists, and no pod is moved to a node that is not initialized.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use nap_api::nodepool::DisruptionReason;

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
    use crate::testing::at;

    use DisruptionReason::{Drifted, Underutilized};

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
