//! Back-off of evictions, per pod.
//!
//! A refused eviction is repeated after 1 s, 2 s, 4 s … up to 10 s, so that a blocked pod costs few
//! requests and never holds up another. The state may be lost in a restart: the pod is then asked
//! for once more at once.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

/// Shortest and longest wait between two evictions of one pod.
const BACKOFF: (SignedDuration, SignedDuration) =
    (SignedDuration::from_secs(1), SignedDuration::from_secs(10));
/// Refusal of an eviction that was not answered in time.
const NO_ANSWER: &str = "the API server did not answer in time";

/// Evictions of the pods of draining nodes. It holds at most the pods of those nodes.
#[derive(Debug, Default)]
pub struct EvictionBackoff {
    /// By node name and pod uid.
    attempts: BTreeMap<String, BTreeMap<String, Attempt>>,
}

#[derive(Debug)]
struct Attempt {
    count: u32,
    next: Timestamp,
    /// The server's message; `None` if the eviction was accepted.
    refusal: Option<String>,
}

impl EvictionBackoff {
    /// Forgets pods that are no longer on a node.
    pub fn retain(&mut self, node: &str, uids: &BTreeSet<String>) {
        if let Some(attempts) = self.attempts.get_mut(node) {
            attempts.retain(|uid, _| uids.contains(uid));
        }
    }

    /// Forgets a node whose drain has ended.
    pub fn forget(&mut self, node: &str) {
        self.attempts.remove(node);
    }

    /// Whether a pod may be evicted now.
    pub fn is_due(&self, node: &str, uid: &str, now: Timestamp) -> bool {
        self.attempt(node, uid).is_none_or(|attempt| attempt.next <= now)
    }

    /// Records that an eviction is requested. Until [`EvictionBackoff::end`] it counts as one
    /// without an answer, so that a request that is cut off backs off too.
    pub fn begin(&mut self, node: &str, uid: &str, now: Timestamp) {
        let attempts = self.attempts.entry(node.to_owned()).or_default();
        let count = attempts.get(uid).map_or(0, |attempt| attempt.count);
        let wait = BACKOFF.0.saturating_mul(1 << count.min(10)).min(BACKOFF.1);
        let next = now.checked_add(wait).unwrap_or(Timestamp::MAX);
        let refusal = Some(NO_ANSWER.to_owned());
        let attempt = Attempt { count: count.saturating_add(1), next, refusal };
        attempts.insert(uid.to_owned(), attempt);
    }

    /// Records the answer: the server's message if it refused.
    pub fn end(&mut self, node: &str, uid: &str, refusal: Option<String>) {
        let attempt = self.attempts.get_mut(node).and_then(|attempts| attempts.get_mut(uid));
        if let Some(attempt) = attempt {
            attempt.refusal = refusal;
        }
    }

    /// Message of the last refusal of a pod's eviction; `None` if it was not refused.
    pub fn refusal(&self, node: &str, uid: &str) -> Option<&str> {
        self.attempt(node, uid)?.refusal.as_deref()
    }

    fn attempt(&self, node: &str, uid: &str) -> Option<&Attempt> {
        self.attempts.get(node)?.get(uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    #[test]
    fn waits_double_from_one_to_ten_seconds() {
        let mut backoff = EvictionBackoff::default();
        let mut waits = Vec::new();
        let mut now = 0;
        for _ in 0..6 {
            assert!(backoff.is_due("n", "pod", at(now)));
            backoff.begin("n", "pod", at(now));
            let wait = (1..60).find(|wait| backoff.is_due("n", "pod", at(now + wait))).unwrap();
            waits.push(wait);
            now += wait;
        }
        assert_eq!(waits, [1, 2, 4, 8, 10, 10]);
        assert!(backoff.is_due("n", "other", at(0)), "pods back off one by one");
    }

    #[test]
    fn a_refusal_lasts_until_the_pod_is_evicted_or_gone() {
        let mut backoff = EvictionBackoff::default();
        backoff.begin("n", "pod", at(0));
        assert_eq!(backoff.refusal("n", "pod"), Some(NO_ANSWER));
        backoff.end("n", "pod", Some("no".to_owned()));
        assert_eq!(backoff.refusal("n", "pod"), Some("no"));
        backoff.end("n", "pod", None);
        assert_eq!(backoff.refusal("n", "pod"), None);
        backoff.retain("n", &BTreeSet::new());
        assert!(backoff.attempt("n", "pod").is_none());
    }
}
