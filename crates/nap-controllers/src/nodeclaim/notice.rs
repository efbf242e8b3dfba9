//! Notices: a NodeClaim whose instance will be lost is deleted before that, with the time of the
//! loss as the deadline of its drain. Its pods are planned elsewhere as for every leaving node.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use nap_api::{NodeClaim, labels};
use nap_cloud::{CloudProvider, TerminationNotice};

use super::{Step, live_claim};
use crate::context::{Context, Error};
use crate::disruption::eviction_ledger;
use crate::events::Severity;
use crate::metrics::Disrupted;

/// Time after its deadline from which a notice counts as void: the instance was not lost.
const MAX_OVERDUE: SignedDuration = SignedDuration::from_mins(10);

/// Deletes a NodeClaim whose Node announces the loss of its instance.
pub async fn heed(context: &Context, name: &str) -> Result<Step, Error> {
    let Some(claim) = live_claim(context, name) else { return Ok(Step::Deleted) };
    let Some(notice) = shorten_drain(context, &claim).await? else { return Ok(Step::Done) };
    if notice.is_eviction {
        context.cloud.remember_eviction(&claim).await;
    }
    let deadline = notice.deadline;
    let reason = if notice.is_eviction { "SpotInterrupted" } else { "InstanceTerminating" };
    tracing::info!(nodeclaim = name, reason, %deadline, "instance will be lost, deleting nodeclaim");
    let message = format!("The instance will be lost at {deadline}, deleting the NodeClaim");
    context.events.publish(claim.as_ref(), Severity::Warning, reason, &message);
    let why = if notice.is_eviction { "spot_interrupted" } else { "instance_terminating" };
    context.count_disrupted(&claim, Disrupted::Other(why), 0);
    context.delete_claim(&claim).await?;
    eviction_ledger::record_loss(context, &claim);
    Ok(Step::Deleted)
}

/// Makes the announced loss of an instance the deadline of its NodeClaim's drain, unless that is
/// earlier already. Returns the notice; `None` if there is none.
pub async fn shorten_drain(
    context: &Context,
    claim: &NodeClaim,
) -> Result<Option<TerminationNotice>, Error> {
    let node = claim.status.as_ref().and_then(|status| status.node_name.as_deref());
    let node = node.and_then(|node| context.index().node(node).cloned());
    let notice = node.and_then(|node| notice_of(&*context.cloud, &node, context.clock.now()));
    let Some(notice) = notice else { return Ok(None) };
    let key = labels::TERMINATION_TIMESTAMP;
    let known = claim.annotations().get(key).and_then(|text| text.parse::<Timestamp>().ok());
    if known.is_none_or(|known| known > notice.deadline) {
        let annotation = (key.to_owned(), notice.deadline.to_string());
        context.annotate::<NodeClaim>(&claim.name_any(), [annotation]).await?;
    }
    Ok(Some(notice))
}

/// The notice in the conditions of a Node that comes due first; `None` if there is none.
fn notice_of(cloud: &dyn CloudProvider, node: &Node, now: Timestamp) -> Option<TerminationNotice> {
    let conditions = node.status.as_ref()?.conditions.as_deref().unwrap_or_default();
    let is_true = conditions.iter().filter(|condition| condition.status == "True");
    let notices = is_true.filter_map(|condition| {
        let message = condition.message.as_deref().unwrap_or_default();
        let since = condition.last_transition_time.as_ref().map_or(now, |time| time.0);
        cloud.termination_notice(&condition.type_, message, since)
    });
    let is_valid = |notice: &TerminationNotice| now.duration_since(notice.deadline) <= MAX_OVERDUE;
    notices.filter(is_valid).min_by_key(|notice| notice.deadline)
}
