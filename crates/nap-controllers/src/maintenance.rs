//! The maintenance window of the managed cluster, read for NodePools whose windows follow it.

use std::time::Duration;

use jiff::SignedDuration;
use nap_api::disruption::{MAX_SEARCH_DAYS, Settings, Span};

use crate::context::{Context, Outcome};

/// Interval between two looks for NodePools that follow the window.
const IDLE_INTERVAL: Duration = Duration::from_secs(30);
/// Interval between two reads of the window.
const READ_INTERVAL: Duration = Duration::from_mins(5);
/// Time ahead for which openings are kept.
const HORIZON: SignedDuration = SignedDuration::from_hours(24 * (MAX_SEARCH_DAYS + 1));

/// Reads the window if a NodePool follows it. One that cannot be read is an error, and what was
/// read before counts for an hour.
pub async fn reconcile(context: &Context) -> Outcome {
    let is_followed = context.index().pools().any(|(_, pool)| {
        Settings::of(pool).is_ok_and(|settings| settings.windows.follow_maintenance())
    });
    if !is_followed {
        return Ok(Some(IDLE_INTERVAL));
    }
    let now = context.clock.now();
    let until = now.saturating_add(HORIZON).unwrap_or(jiff::Timestamp::MAX);
    if let Some(within) = Span::new(now, until) {
        let maintenance = context.cloud.maintenance(within).await?;
        context.index().set_maintenance(maintenance, now);
    }
    Ok(Some(READ_INTERVAL))
}
