//! The one source of time: real, scaled or virtual.
//!
//! A world that runs at ten times the speed has a clock whose hours pass in six minutes, and a
//! world on tokio's paused clock has one that jumps from timer to timer. Code that takes its time
//! from here runs unchanged in all of them.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// Tells the time and sleeps.
#[derive(Clone, Debug)]
pub struct Clock(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Wall,
    Scaled { epoch: Timestamp, start: Instant, speed: u32 },
}

impl Clock {
    /// The machine's own clock.
    pub fn wall() -> Self {
        Self(Kind::Wall)
    }

    /// A clock that starts at `epoch` and runs `speed` times as fast as tokio's. On a paused tokio
    /// clock, with speed 1, it is virtual. Must be made inside a tokio runtime.
    pub fn starting_at(epoch: Timestamp, speed: u32) -> Self {
        Self(Kind::Scaled { epoch, start: Instant::now(), speed: speed.max(1) })
    }

    /// The present time.
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            #[expect(clippy::disallowed_methods, reason = "this is the Clock")]
            Kind::Wall => Timestamp::now(),
            Kind::Scaled { epoch, start, speed } => {
                let passed = start.elapsed().saturating_mul(*speed);
                let passed = SignedDuration::try_from(passed).unwrap_or(SignedDuration::MAX);
                epoch.checked_add(passed).unwrap_or(Timestamp::MAX)
            }
        }
    }

    /// Waits for a time of this clock to pass.
    pub async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(self.real(duration)).await;
    }

    /// Waits until this clock shows a time; not at all if it has passed.
    pub async fn sleep_until(&self, when: Timestamp) {
        let left = Duration::try_from(when.duration_since(self.now())).unwrap_or(Duration::ZERO);
        self.sleep(left).await;
    }

    /// How long a time of this clock takes in tokio's time.
    pub fn real(&self, duration: Duration) -> Duration {
        match &self.0 {
            Kind::Wall => duration,
            Kind::Scaled { speed, .. } => duration / *speed,
        }
    }
}
