//! An ordered work queue.
//!
//! Keys are popped by due time and then by their own order, never by hash order, so that a run can
//! be repeated exactly. One reconcile runs per key at a time; a key that is added meanwhile is due
//! again afterwards. Failures back off exponentially.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

/// Shortest and longest wait after a failure.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// A queue of keys with due times. It holds each key at most once, so the number of objects bounds
/// it.
#[derive(Debug)]
pub struct WorkQueue<K> {
    due: BTreeSet<(Instant, K)>,
    when: BTreeMap<K, Instant>,
    running: BTreeSet<K>,
    again: BTreeMap<K, Instant>,
    failures: BTreeMap<K, u32>,
}

impl<K: Ord + Clone> WorkQueue<K> {
    /// Creates an empty queue.
    pub fn new() -> Self {
        Self {
            due: BTreeSet::new(),
            when: BTreeMap::new(),
            running: BTreeSet::new(),
            again: BTreeMap::new(),
            failures: BTreeMap::new(),
        }
    }

    /// Makes a key due at `at`, unless it is due earlier.
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

    /// Due time of the next key; `None` if the queue is empty.
    pub fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Due time of a key; `None` if it is not in the queue.
    pub fn due_at(&self, key: &K) -> Option<Instant> {
        self.when.get(key).copied()
    }

    /// Takes the next key if it is due.
    pub fn pop(&mut self, now: Instant) -> Option<K> {
        let (_, key) = self.due.first()?;
        self.pop_key(&key.clone(), now)
    }

    /// Takes a key out of its turn, if it is due.
    pub fn pop_key(&mut self, key: &K, now: Instant) -> Option<K> {
        let at = self.due_at(key).filter(|at| *at <= now)?;
        let (_, key) = self.due.take(&(at, key.clone()))?;
        self.when.remove(&key);
        self.running.insert(key.clone());
        Some(key)
    }

    /// Records the success of a key, which is due again at `next`; `None` means when it is added.
    pub fn succeeded(&mut self, key: K, next: Option<Instant>) {
        self.failures.remove(&key);
        self.finish(key, next);
    }

    /// Records the failure of a key, which is due again after a wait that doubles with each
    /// failure. Returns the wait.
    pub fn failed(&mut self, key: K, now: Instant) -> Duration {
        let failures = self.failures.entry(key.clone()).or_insert(0);
        let wait = BACKOFF.0.saturating_mul(1 << (*failures).min(10)).min(BACKOFF.1);
        *failures = failures.saturating_add(1);
        self.finish(key, Some(now + wait));
        wait
    }

    /// Makes every key that is running due at `at`: its reconcile was dropped.
    pub fn requeue_running(&mut self, at: Instant) {
        for key in std::mem::take(&mut self.running) {
            self.again.remove(&key);
            self.add(key, at);
        }
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
    async fn keys_are_popped_by_time_then_order_and_never_while_running() {
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
    async fn a_key_that_is_due_can_be_taken_out_of_its_turn() {
        let now = Instant::now();
        let mut queue = WorkQueue::new();
        queue.add("a", now);
        queue.add("c", now + Duration::from_secs(1));
        assert_eq!(queue.pop_key(&"c", now), None, "it is not due");
        let later = now + Duration::from_secs(1);
        assert_eq!(queue.pop_key(&"c", later), Some("c"));
        assert_eq!((queue.pop_key(&"c", later), queue.pop(later)), (None, Some("a")));
    }

    #[tokio::test(start_paused = true)]
    async fn failures_back_off_up_to_a_limit_and_success_resets_them() {
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
