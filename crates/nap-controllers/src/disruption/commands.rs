//! Disruption commands: mark the node, launch its replacements, wait for them, delete the node.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use nap_api::nodeclaim::condition::{DISRUPTION_REASON, INITIALIZED};
use nap_api::nodepool::DisruptionReason;
use nap_api::{NodeClaim, conditions, labels};
use nap_engine::Plan;
use nap_units::UsdPerHour;

use super::candidates::Candidate;
use crate::cluster::{Index, claim_conditions, claim_is};
use crate::context::{Context, Error};
use crate::events::Severity;
use crate::node::taint::{add_disrupted, is_disrupted, remove_disrupted};
use crate::provisioning::nodeclaims::{self, Replaces};
use crate::snapshot::Catalogues;

/// Time after which a command whose replacements are not initialized is rolled back.
const REPLACEMENT_TIMEOUT: SignedDuration = SignedDuration::from_mins(10);

/// Starts the disruption of a candidate whose pods have places in `plan`, on existing nodes or on
/// launches.
pub async fn start(
    context: &Context,
    candidate: &Candidate,
    reason: DisruptionReason,
    plan: &Plan,
    catalogues: &Catalogues,
) -> Result<(), Error> {
    let message = describe(candidate, reason, plan);
    tracing::info!(node = candidate.name(), reason = reason.as_str(), message, "disrupting node");
    mark(context, candidate, reason).await?;
    {
        let (index, mut memory) = (context.index(), context.memory());
        memory.nominate(&index, plan, context.clock.now());
    }
    let (severity, event) = (Severity::Normal, "DisruptionTerminating");
    let text = format!("Disrupting Node: {message}");
    context.events.publish(candidate.node.as_ref(), severity, event, &text).await;
    let text = format!("Disrupting NodeClaim: {message}");
    context.events.publish(candidate.claim.as_ref(), severity, event, &text).await;
    let below = candidate.price.filter(|_| reason == DisruptionReason::Underutilized);
    let replaces = Replaces { claim: candidate.claim.name_any(), below };
    for launch in &plan.launches {
        let pool = context.index().pool(&launch.pool).cloned();
        let Some(pool) = pool else { continue };
        let Some(catalogue) = catalogues.of(&launch.pool) else { continue };
        let claim = nodeclaims::node_claim(&pool, launch, catalogue, None, Some(&replaces));
        let claim = nodeclaims::create(context, &claim, &launch.pool).await?;
        let text = format!("Launching NodeClaim: {}", reason.as_str());
        context.events.publish(&claim, severity, "DisruptionLaunching", &text).await;
        let why = plan.explain_launch(launch);
        context.events.publish(&claim, severity, "Launching", &why).await;
    }
    if plan.launches.is_empty() {
        context.delete_claim(&candidate.claim).await?;
    }
    Ok(())
}

/// `Underutilized: replace Standard_D16s_v5 ($0.768/h) by Standard_D2s_v5 ($0.096/h), saving
/// $0.672/h`.
fn describe(candidate: &Candidate, reason: DisruptionReason, plan: &Plan) -> String {
    let instance_type =
        candidate.claim.labels().get(labels::INSTANCE_TYPE).map_or("", String::as_str);
    let old = candidate.price.map(|price| format!(" ({price}/h)")).unwrap_or_default();
    let launches: Vec<String> = plan
        .launches
        .iter()
        .map(|launch| format!("{} ({}/h)", launch.instance_type, launch.price))
        .collect();
    let what = if launches.is_empty() {
        format!("delete {instance_type}{old}")
    } else {
        format!("replace {instance_type}{old} by {}", launches.join(", "))
    };
    let saving = candidate.price.map_or(UsdPerHour::ZERO, |price| price - plan.cost);
    let tail =
        if saving > UsdPerHour::ZERO { format!(", saving {saving}/h") } else { String::new() };
    format!("{}: {what}{tail}", reason.as_str())
}

/// Keeps new pods away from a node and records the command on its NodeClaim.
async fn mark(
    context: &Context,
    candidate: &Candidate,
    reason: DisruptionReason,
) -> Result<(), Error> {
    context.update::<Node>(candidate.name(), add_disrupted).await?;
    context
        .edit_claim_status(&candidate.claim.name_any(), |edit| {
            edit.set_true_because(DISRUPTION_REASON, reason.as_str());
        })
        .await
}

/// Carries on the commands that are under way, and removes taints that no command accounts for.
pub async fn progress(context: &Context) -> Result<(), Error> {
    let (commands, strays) = {
        let (index, now) = (context.index(), context.clock.now());
        (commands(&index, now), stray_taints(&index))
    };
    for node in strays {
        context.update::<Node>(&node, remove_disrupted).await?;
    }
    for (claim, next) in commands {
        carry_on(context, &claim, next).await?;
    }
    Ok(())
}

/// Next step of a command.
#[derive(Clone, Debug, PartialEq)]
enum Next {
    /// All replacements are initialized: the old NodeClaim is deleted.
    Delete,
    /// These replacements are not all initialized.
    AwaitReplacements(Vec<Arc<NodeClaim>>),
    /// The replacements are gone or late: the old node is kept.
    RollBack,
}

/// NodeClaims that are part of a command and not deleted yet, each with its next step.
fn commands(index: &Index, now: Timestamp) -> Vec<(Arc<NodeClaim>, Next)> {
    let in_command = |claim: &&Arc<NodeClaim>| {
        claim.metadata.deletion_timestamp.is_none() && claim_is(claim, DISRUPTION_REASON)
    };
    let marked = index.claims().filter(in_command);
    marked.map(|claim| (Arc::clone(claim), next(index, claim, now))).collect()
}

fn next(index: &Index, claim: &NodeClaim, now: Timestamp) -> Next {
    let name = claim.name_any();
    let replaces = |other: &&Arc<NodeClaim>| {
        let plan = index.plan(&other.name_any());
        other.metadata.deletion_timestamp.is_none()
            && plan.is_some_and(|plan| plan.replaces.contains(&name))
    };
    let replacements: Vec<Arc<NodeClaim>> = index.claims().filter(replaces).cloned().collect();
    let since = conditions::since(claim_conditions(claim), DISRUPTION_REASON);
    let late = since.is_some_and(|since| now.duration_since(since) > REPLACEMENT_TIMEOUT);
    if replacements.is_empty() {
        Next::RollBack
    } else if replacements.iter().all(|one| claim_is(one, INITIALIZED)) {
        Next::Delete
    } else if late {
        Next::RollBack
    } else {
        Next::AwaitReplacements(replacements)
    }
}

/// Nodes that carry the disrupted taint although neither they nor their NodeClaim are part of a
/// command or being deleted: a command was interrupted between the taint and the condition.
fn stray_taints(index: &Index) -> Vec<String> {
    let is_stray = |node: &Node| {
        let live = |claim: &Arc<NodeClaim>| {
            claim.metadata.deletion_timestamp.is_none() && !claim_is(claim, DISRUPTION_REASON)
        };
        node.metadata.deletion_timestamp.is_none()
            && is_disrupted(node)
            && index.claim_of_node(node).is_some_and(live)
    };
    index.nodes().filter(|(_, node)| is_stray(node)).map(|(name, _)| name.clone()).collect()
}

async fn carry_on(context: &Context, claim: &NodeClaim, next: Next) -> Result<(), Error> {
    let name = claim.name_any();
    match next {
        Next::Delete => {
            tracing::info!(nodeclaim = name, "replacement initialized, deleting nodeclaim");
            context.delete_claim(claim).await
        }
        Next::AwaitReplacements(replacements) => {
            let (reason, message) =
                ("DisruptionWaitingReadiness", "Waiting on readiness to continue disruption");
            for one in &replacements {
                context.events.publish(one.as_ref(), Severity::Normal, reason, message).await;
            }
            Ok(())
        }
        Next::RollBack => {
            tracing::warn!(nodeclaim = name, "no replacement initialized, keeping nodeclaim");
            context.edit_claim_status(&name, |edit| edit.clear(DISRUPTION_REASON)).await?;
            match claim.status.as_ref().and_then(|status| status.node_name.clone()) {
                Some(node) => context.update::<Node>(&node, remove_disrupted).await,
                None => Ok(()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, claim, cluster_of, condition, set_condition};
    use serde_json::json;

    fn replacement(name: &str, initialized: bool) -> NodeClaim {
        let status = if initialized { "True" } else { "Unknown" };
        claim(
            name,
            json!({
                "metadata": { "annotations": { labels::PLAN: r#"{"version":1,"replaces":["claim-0"]}"# } },
                "status": { "conditions": [condition("Initialized", status)] },
            }),
        )
    }

    /// A command on `claim-0` with these replacements.
    fn command(replacements: &[NodeClaim]) -> Index {
        let mut index = cluster_of(1);
        set_condition(&mut index, "claim-0", "DisruptionReason", "1970-01-01T00:00:00Z");
        for claim in replacements {
            index.apply(claim.clone(), at(0));
        }
        index
    }

    fn next_of(index: &Index, seconds: i64) -> Next {
        next(index, index.claim("claim-0").unwrap(), at(seconds))
    }

    #[test]
    fn a_command_ends_when_all_replacements_are_initialized() {
        let index = command(&[replacement("a", true), replacement("b", false)]);
        assert!(matches!(next_of(&index, 0), Next::AwaitReplacements(all) if all.len() == 2));
        let index = command(&[replacement("a", true), replacement("b", true)]);
        assert_eq!(next_of(&index, 0), Next::Delete);
    }

    #[test]
    fn a_command_without_replacements_is_rolled_back() {
        assert_eq!(next_of(&command(&[]), 0), Next::RollBack);
    }

    #[test]
    fn a_late_replacement_rolls_the_command_back_after_ten_minutes() {
        let index = command(&[replacement("a", false)]);
        assert!(matches!(next_of(&index, 600), Next::AwaitReplacements(_)));
        assert_eq!(next_of(&index, 601), Next::RollBack);
    }

    #[test]
    fn only_marked_nodeclaims_are_in_a_command() {
        let index = command(&[replacement("a", false)]);
        let names: Vec<String> =
            commands(&index, at(0)).iter().map(|(claim, _)| claim.name_any()).collect();
        assert_eq!(names, ["claim-0"]);
    }

    #[test]
    fn a_taint_without_a_command_is_stray() {
        let mut index = cluster_of(2);
        for name in ["node-0", "node-1"] {
            let mut node = index.node(name).unwrap().as_ref().clone();
            add_disrupted(&mut node);
            index.apply(node, at(0));
        }
        set_condition(&mut index, "claim-0", "DisruptionReason", "1970-01-01T00:00:00Z");
        assert_eq!(stray_taints(&index), ["node-1"]);
    }
}
