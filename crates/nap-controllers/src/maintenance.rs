//! Maintenance windows of the managed cluster, read for NodePools whose windows follow them.

use std::time::Duration;

use jiff::SignedDuration;
use nap_api::disruption::{MAX_SEARCH_DAYS, Span, followed_schedules};

use crate::context::{Context, Outcome};

/// Interval between two looks for NodePools that follow a window.
const IDLE_INTERVAL: Duration = Duration::from_secs(30);
/// Interval between two reads of the windows.
const READ_INTERVAL: Duration = Duration::from_mins(5);
/// Time ahead for which openings are kept.
const HORIZON: SignedDuration = SignedDuration::from_hours(24 * (MAX_SEARCH_DAYS + 1));

/// Reads the windows that NodePools follow. One that cannot be read is an error once the others are
/// read, and what was read of it before counts for an hour.
pub async fn reconcile(context: &Context) -> Outcome {
    let followed = followed_schedules(context.index().pools().map(|(_, pool)| pool.as_ref()));
    if followed.is_empty() {
        return Ok(Some(IDLE_INTERVAL));
    }
    let mut failure = None;
    for schedule in followed {
        let now = context.clock.now();
        let until = now.saturating_add(HORIZON).unwrap_or(jiff::Timestamp::MAX);
        let Some(within) = Span::new(now, until) else { continue };
        match context.cloud.maintenance(schedule, within).await {
            Ok(window) => context.index().set_maintenance(schedule, window, now),
            Err(error) => failure = Some(error),
        }
    }
    match failure {
        Some(error) => Err(error.into()),
        None => Ok(Some(READ_INTERVAL)),
    }
}
