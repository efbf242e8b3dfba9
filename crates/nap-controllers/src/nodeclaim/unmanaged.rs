//! NodeClaims whose instance another controller made in a way that this provider does not manage.
//!
//! Such an instance can be neither inspected nor deleted, so nap leaves its node as it is, and says
//! so.

use std::time::Duration;

use nap_api::NodeClaim;
use nap_api::nodeclaim::condition::{CONSOLIDATABLE, DRIFTED};

use super::{Step, live_claim};
use crate::context::{Context, Error};
use crate::events::Severity;

/// Interval between two looks.
const INTERVAL: Duration = Duration::from_mins(10);

/// Ends the lifecycle of a NodeClaim whose instance cannot be managed: its node is not disrupted.
pub async fn check(context: &Context, name: &str) -> Result<Step, Error> {
    let Some(claim) = live_claim(context, name) else { return Ok(Step::Deleted) };
    if !report(context, &claim).await {
        return Ok(Step::Done);
    }
    context
        .edit_claim_status(name, |edit| {
            edit.clear(CONSOLIDATABLE);
            edit.clear(DRIFTED);
        })
        .await?;
    Ok(Step::Wait(INTERVAL))
}

/// Publishes that the instance of a NodeClaim cannot be managed. Returns whether that is so.
pub async fn report(context: &Context, claim: &NodeClaim) -> bool {
    let why = context.cloud.why_unmanaged(claim).await;
    if let Some(why) = &why {
        context.events.publish(claim, Severity::Warning, "UnmanagedInstance", why);
    }
    why.is_some()
}
