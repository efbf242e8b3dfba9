//! The one source of time: wall, scaled, paused or fixed.
//!
//! A world at ten times the speed has a clock whose hours pass in six minutes; on tokio's paused
//! clock, time jumps from timer to timer. Code that takes its time from [`Clock`] runs unchanged on
//! each of them.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// A clock to read and to sleep by.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    Wall,
    Scaled { epoch: Timestamp, start: Instant, speed: u32 },
    Fixed(Timestamp),
}

impl Clock {
    /// The operating system's clock.
    pub fn wall() -> Self {
        Self(Source::Wall)
    }

    /// A clock that starts at `epoch` and runs `speed` times as fast as tokio's. With tokio's clock
    /// paused and a speed of 1 it is virtual. Must be called inside a tokio runtime.
    pub fn starting_at(epoch: Timestamp, speed: u32) -> Self {
        Self(Source::Scaled { epoch, start: Instant::now(), speed: speed.max(1) })
    }

    /// A clock that always shows `now`, for objects that are stamped but never aged. Needs no tokio
    /// runtime.
    pub fn fixed(now: Timestamp) -> Self {
        Self(Source::Fixed(now))
    }

    /// The current time.
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            #[expect(clippy::disallowed_methods, reason = "this is the Clock")]
            Source::Wall => Timestamp::now(),
            Source::Scaled { epoch, start, speed } => {
                let passed = start.elapsed().saturating_mul(*speed);
                let passed = SignedDuration::try_from(passed).unwrap_or(SignedDuration::MAX);
                epoch.checked_add(passed).unwrap_or(Timestamp::MAX)
            }
            Source::Fixed(now) => *now,
        }
    }

    /// Sleeps for a duration of this clock.
    pub async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(self.real(duration)).await;
    }

    /// Sleeps until this clock shows `when`; returns at once if that has passed.
    pub async fn sleep_until(&self, when: Timestamp) {
        let left = Duration::try_from(when.duration_since(self.now())).unwrap_or(Duration::ZERO);
        self.sleep(left).await;
    }

    /// The time that `duration` of this clock takes in tokio's time.
    pub fn real(&self, duration: Duration) -> Duration {
        match &self.0 {
            Source::Wall | Source::Fixed(_) => duration,
            Source::Scaled { speed, .. } => duration / *speed,
        }
    }
}
