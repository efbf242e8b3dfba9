//! The batch window: pods that become unschedulable together are planned together.

use std::time::Duration;

use jiff::Timestamp;

/// The batch of pending pods that is being collected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchWindow(Option<Arrivals>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Arrivals {
    first: Timestamp,
    last: Timestamp,
}

impl BatchWindow {
    /// Adds a pod to the batch, or begins one.
    pub fn extend(&mut self, now: Timestamp) {
        let first = self.0.map_or(now, |arrivals| arrivals.first);
        self.0 = Some(Arrivals { first, last: now });
    }

    /// Time until the batch closes: `idle` after its last pod, or `max` after its first, whichever
    /// comes first. Zero if it is due or empty.
    pub fn closes_in(&self, idle: Duration, max: Duration, now: Timestamp) -> Duration {
        let Some(arrivals) = self.0 else { return Duration::ZERO };
        let age = |since: Timestamp| {
            Duration::try_from(now.duration_since(since)).unwrap_or(Duration::ZERO)
        };
        idle.saturating_sub(age(arrivals.last)).min(max.saturating_sub(age(arrivals.first)))
    }

    /// Closes the batch. The next pod begins another.
    pub fn close(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Duration = Duration::from_secs(1);
    const MAX: Duration = Duration::from_secs(10);

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    #[test]
    fn an_empty_batch_is_due_at_once() {
        assert_eq!(BatchWindow::default().closes_in(IDLE, MAX, at(0)), Duration::ZERO);
    }

    #[test]
    fn a_batch_closes_when_no_pod_arrives_for_the_idle_time() {
        let mut batch = BatchWindow::default();
        batch.extend(at(0));
        assert_eq!(batch.closes_in(IDLE, MAX, at(0)), IDLE);
        assert_eq!(batch.closes_in(IDLE, MAX, at(1)), Duration::ZERO);
        batch.close();
        assert_eq!(batch, BatchWindow::default());
    }

    #[test]
    fn a_steady_stream_of_pods_cannot_hold_a_batch_open_beyond_the_maximum() {
        let mut batch = BatchWindow::default();
        for second in 0..=9 {
            batch.extend(at(second));
            assert_eq!(batch.closes_in(IDLE, MAX, at(second)), IDLE);
        }
        batch.extend(at(10));
        assert_eq!(batch.closes_in(IDLE, MAX, at(10)), Duration::ZERO);
    }
}
