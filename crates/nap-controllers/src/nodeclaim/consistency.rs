//! Consistency: the Node of an initialized NodeClaim is about as large as its instance type
//! promises.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use nap_api::NodeClaim;
use nap_api::nodeclaim::condition::{CONSISTENT_STATE_FOUND, INITIALIZED};
use nap_units::{Resources, Rounding};

use super::{Step, live_claim};
use crate::cluster::{claim_is, pods};
use crate::context::{Context, Error};
use crate::events::Severity;

/// Interval between two checks, besides every change of the NodeClaim or its Node.
const INTERVAL: Duration = Duration::from_mins(10);
/// Smallest part of the promised capacity, in percent.
const MIN_PERCENT: i128 = 90;

/// Sets the `ConsistentStateFound` condition.
pub async fn check(context: &Context, name: &str) -> Result<Step, Error> {
    let Some(claim) = live_claim(context, name) else { return Ok(Step::Deleted) };
    if !claim_is(&claim, INITIALIZED) {
        return Ok(Step::Done);
    }
    let node = claim.status.as_ref().and_then(|status| status.node_name.as_deref());
    let node = node.and_then(|node| context.index().node(node).cloned());
    let Some(node) = node else { return Ok(Step::Done) };
    let problem = shortage(&claim, &node);
    context
        .edit_claim_status(name, |edit| match &problem {
            Some(problem) => {
                edit.set_false(CONSISTENT_STATE_FOUND, "ConsistencyCheckFailed", problem);
            }
            None => edit.set_true(CONSISTENT_STATE_FOUND),
        })
        .await?;
    if let Some(problem) = &problem {
        let reason = "FailedConsistencyCheck";
        context.events.publish(claim.as_ref(), Severity::Warning, reason, problem);
    }
    Ok(Step::DoneUntil(INTERVAL))
}

/// The first requested resource of which a Node has much less than its NodeClaim promises.
fn shortage(claim: &NodeClaim, node: &Node) -> Option<String> {
    let promised = claim.status.as_ref().map(|status| &status.capacity)?;
    let promised = Resources::from_quantities(
        promised.iter().map(|(name, amount)| (name.as_str(), amount)),
        Rounding::Down,
    );
    let capacity = node.status.as_ref().and_then(|status| status.capacity.as_ref());
    let found = pods::node_resources(capacity);
    claim.spec.resources.requests.keys().find_map(|name| {
        let (expected, found) = (i128::from(promised.get(name)), i128::from(found.get(name)));
        if expected <= 0 || found * 100 >= expected * MIN_PERCENT {
            return None;
        }
        let percent = found * 100 / expected;
        Some(format!(
            "expected {expected} of resource {name}, but found {found} ({percent}% of expected)"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{claim, node};
    use serde_json::json;

    #[test]
    fn a_node_with_less_than_nine_tenths_of_a_requested_resource_is_inconsistent() {
        let claim = claim(
            "c",
            json!({
                "spec": { "resources": { "requests": { "cpu": "1", "pods": "2" } } },
                "status": { "capacity": { "cpu": "10", "memory": "100Gi", "pods": "110" } },
            }),
        );
        let with = |cpu: &str| {
            let capacity = json!({ "cpu": cpu, "memory": "1Gi", "pods": "110" });
            node("n", json!({ "status": { "capacity": capacity } }))
        };
        assert_eq!(shortage(&claim, &with("9")), None, "memory was not requested");
        let problem = shortage(&claim, &with("8900m")).unwrap();
        assert_eq!(problem, "expected 10000 of resource cpu, but found 8900 (89% of expected)");
    }
}
