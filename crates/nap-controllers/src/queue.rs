//! An ordered work queue: what to reconcile next, and when.
//!
//! Keys are handed out by due time and then by their own order, never by hash order, so that a run
//! can be repeated exactly. A key is worked on by one reconcile at a time; if it is added
//! meanwhile, it comes up again afterwards. Failures back off exponentially.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

/// First and longest wait after a failure.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// A queue of keys with due times. It holds each key at most once, so it is bounded by the number
/// of objects.
#[derive(Debug)]
pub struct WorkQueue<K> {
    due: BTreeSet<(Instant, K)>,
    when: BTreeMap<K, Instant>,
    running: BTreeSet<K>,
    again: BTreeMap<K, Instant>,
    failures: BTreeMap<K, u32>,
}

impl<K: Ord + Clone> WorkQueue<K> {
    /// An empty queue.
    pub fn new() -> Self {
        Self {
            due: BTreeSet::new(),
            when: BTreeMap::new(),
            running: BTreeSet::new(),
            again: BTreeMap::new(),
            failures: BTreeMap::new(),
        }
    }

    /// Asks for a key to be worked on at a time, or earlier if it was asked for earlier.
    pub fn add(&mut self, key: K, at: Instant) {
        if self.running.contains(&key) {
            let again = self.again.entry(key).or_insert(at);
            *again = (*again).min(at);
            return;
        }
        match self.when.get(&key) {
            Some(earlier) if *earlier <= at => return,
            Some(later) => {
                self.due.remove(&(*later, key.clone()));
            }
            None => {}
        }
        self.when.insert(key.clone(), at);
        self.due.insert((at, key));
    }

    /// When the next key is due.
    pub fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Takes the next key that is due.
    pub fn pop(&mut self, now: Instant) -> Option<K> {
        let (at, _) = self.due.first()?;
        if *at > now {
            return None;
        }
        let (_, key) = self.due.pop_first()?;
        self.when.remove(&key);
        self.running.insert(key.clone());
        Some(key)
    }

    /// A reconcile ended well and wants to be called again at `next`, if at all.
    pub fn succeeded(&mut self, key: K, next: Option<Instant>) {
        self.failures.remove(&key);
        self.finish(key, next);
    }

    /// A reconcile failed; it is called again after a wait that doubles each time. Returns that
    /// wait.
    pub fn failed(&mut self, key: K, now: Instant) -> Duration {
        let failures = self.failures.entry(key.clone()).or_insert(0);
        let wait = BACKOFF.0.saturating_mul(1 << (*failures).min(10)).min(BACKOFF.1);
        *failures = failures.saturating_add(1);
        self.finish(key, Some(now + wait));
        wait
    }

    fn finish(&mut self, key: K, next: Option<Instant>) {
        self.running.remove(&key);
        let again = self.again.remove(&key);
        if let Some(at) = [next, again].into_iter().flatten().min() {
            self.add(key, at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn keys_come_by_time_then_order_and_never_twice_at_once() {
        let now = Instant::now();
        let mut queue = WorkQueue::new();
        queue.add("b", now);
        queue.add("a", now);
        queue.add("c", now + Duration::from_secs(5));
        queue.add("c", now + Duration::from_secs(9));
        assert_eq!(queue.pop(now), Some("a"));
        queue.add("a", now);
        assert_eq!(queue.pop(now), Some("b"));
        assert_eq!(queue.pop(now), None);
        queue.succeeded("a", None);
        assert_eq!(queue.pop(now), Some("a"));
        assert_eq!(queue.next_due(), Some(now + Duration::from_secs(5)));
    }

    #[tokio::test(start_paused = true)]
    async fn failures_back_off_up_to_a_limit_and_success_forgets_them() {
        let now = Instant::now();
        let mut queue = WorkQueue::new();
        queue.add("a", now);
        let mut waits = Vec::new();
        for _ in 0..9 {
            let due = queue.next_due().unwrap();
            queue.pop(due);
            waits.push(queue.failed("a", due).as_millis());
        }
        assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 16000, 30000, 30000, 30000]);
        let due = queue.next_due().unwrap();
        queue.pop(due);
        queue.succeeded("a", Some(due));
        queue.pop(due);
        assert_eq!(queue.failed("a", due).as_millis(), 500);
    }
}
