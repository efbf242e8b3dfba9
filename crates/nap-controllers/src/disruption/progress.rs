//! Progress of disruption commands: wait for the replacements, then delete the node, or keep it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use nap_api::nodeclaim::condition::{DISRUPTION_REASON, INITIALIZED};
use nap_api::nodepool::DisruptionReason;
use nap_api::{NodeClaim, PlanRecord, conditions, labels};
use nap_cloud::RepairPolicy;

use super::blockers::{Blocker, blocker};
use super::budgets::{Budgets, REASONS};
use super::candidates::is_waived;
use super::{kind_of, repair};
use crate::cluster::{Index, claim_conditions, claim_is, pool_of};
use crate::context::{Context, Error};
use crate::events::Severity;
use crate::metrics::catalogue::QUEUE_FAILURES;
use crate::metrics::snake;
use crate::node::taint::{is_disrupted, remove_disrupted};

/// Shortest and longest time after which a command whose replacements are not initialized is rolled
/// back. Within them it grows with the number of commands under way.
const TIMEOUT: (SignedDuration, SignedDuration) =
    (SignedDuration::from_mins(10), SignedDuration::from_hours(1));
const TIMEOUT_PER_COMMAND: SignedDuration = SignedDuration::from_millis(80);

/// Carries on the commands that are under way, and removes the traces of those that have ended.
pub async fn progress(context: &Context) -> Result<(), Error> {
    let (commands, strays, ended) = {
        let (index, now) = (context.index(), context.clock.now());
        (
            commands(&index, context.repair_policies(), now),
            stray_taints(&index),
            ended_replacements(&index),
        )
    };
    for node in strays {
        context.update::<Node>(&node, remove_disrupted).await?;
    }
    for claim in ended {
        context.update::<NodeClaim>(&claim, forget_replaced).await?;
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
    /// All replacements are initialized, and the old node may not be disrupted now.
    AwaitBlocker(String),
    /// These replacements are not all initialized.
    AwaitReplacements(Vec<Arc<NodeClaim>>),
    /// A replacement is gone, or the command is late: the old node is kept.
    RollBack,
}

/// NodeClaims that are part of a command and not deleted yet, each with its next step. Those that
/// are replaced together go together, or stay: the replacements are for the pods of all of them.
fn commands(
    index: &Index,
    policies: &[RepairPolicy],
    now: Timestamp,
) -> Vec<(Arc<NodeClaim>, Next)> {
    let replacements = replacements(index);
    let marked: Vec<&Arc<NodeClaim>> = index.claims().filter(|one| is_in_command(one)).collect();
    let timeout = timeout(marked.len());
    let budgets = Budgets::new(index, now);
    let next = |claim: &&Arc<NodeClaim>| {
        let of_claim = replacements.get(&claim.name_any()).map(Vec::as_slice);
        let next = match next(index, claim, of_claim.unwrap_or_default()) {
            Next::Delete if is_healed(index, claim, policies, now) => Next::RollBack,
            Next::Delete => match objection(index, claim, &budgets, now) {
                Some(objection) => Next::AwaitBlocker(objection),
                None => Next::Delete,
            },
            next => next,
        };
        let since = conditions::since(claim_conditions(claim), DISRUPTION_REASON);
        let late = since.is_some_and(|since| now.duration_since(since) > timeout);
        (claim.name_any(), if late && next != Next::Delete { Next::RollBack } else { next })
    };
    let each: BTreeMap<String, Next> = marked.iter().map(next).collect();
    let of_all = |claim: &&Arc<NodeClaim>| {
        let siblings = siblings(index, &claim.name_any(), &replacements);
        (Arc::clone(claim), together(index, &siblings, &each))
    };
    marked.iter().map(of_all).collect()
}

/// Names of the NodeClaims that are replaced together with one, itself included.
fn siblings(
    index: &Index,
    claim: &str,
    replacements: &BTreeMap<String, Vec<Arc<NodeClaim>>>,
) -> BTreeSet<String> {
    let mut siblings = BTreeSet::from([claim.to_owned()]);
    for one in replacements.get(claim).into_iter().flatten() {
        siblings.extend(index.plan(&one.name_any()).into_iter().flat_map(|it| it.replaces.clone()));
    }
    siblings
}

/// The next step of NodeClaims that are replaced together: what keeps one of them keeps all. One
/// that is kept already tells that the command was being rolled back.
fn together(index: &Index, siblings: &BTreeSet<String>, each: &BTreeMap<String, Next>) -> Next {
    let is_kept = |name: &String| {
        let claim = index.claim(name);
        claim.is_some_and(|one| one.metadata.deletion_timestamp.is_none() && !is_in_command(one))
    };
    if siblings.iter().any(is_kept) {
        return Next::RollBack;
    }
    let weight = |next: &&Next| match next {
        Next::RollBack => 3,
        Next::AwaitReplacements(_) => 2,
        Next::AwaitBlocker(_) => 1,
        Next::Delete => 0,
    };
    let all = siblings.iter().filter_map(|name| each.get(name));
    all.max_by_key(weight).cloned().unwrap_or(Next::RollBack)
}

fn timeout(commands: usize) -> SignedDuration {
    let commands = i32::try_from(commands).unwrap_or(i32::MAX);
    TIMEOUT_PER_COMMAND.saturating_mul(commands).clamp(TIMEOUT.0, TIMEOUT.1)
}

fn is_in_command(claim: &NodeClaim) -> bool {
    claim.metadata.deletion_timestamp.is_none() && claim_is(claim, DISRUPTION_REASON)
}

/// Live replacements by the name of the NodeClaim that they replace.
fn replacements(index: &Index) -> BTreeMap<String, Vec<Arc<NodeClaim>>> {
    let mut replacements: BTreeMap<String, Vec<Arc<NodeClaim>>> = BTreeMap::new();
    for claim in index.claims().filter(|one| one.metadata.deletion_timestamp.is_none()) {
        for replaced in index.plan(&claim.name_any()).iter().flat_map(|plan| &plan.replaces) {
            replacements.entry(replaced.clone()).or_default().push(Arc::clone(claim));
        }
    }
    replacements
}

fn next(index: &Index, claim: &NodeClaim, replacements: &[Arc<NodeClaim>]) -> Next {
    let siblings = |one: &Arc<NodeClaim>| index.plan(&one.name_any()).map_or(0, |it| it.siblings);
    let expected = replacements.iter().map(siblings).max().unwrap_or(0).max(1);
    if replacements.len() < usize::try_from(expected).unwrap_or(usize::MAX) {
        tracing::debug!(nodeclaim = claim.name_any(), expected, "a replacement is missing");
        Next::RollBack
    } else if replacements.iter().all(|one| claim_is(one, INITIALIZED)) {
        Next::Delete
    } else {
        Next::AwaitReplacements(replacements.to_vec())
    }
}

/// Reason why a node whose replacements are initialized may not be deleted now; `None` if it may.
fn objection(
    index: &Index,
    claim: &NodeClaim,
    budgets: &Budgets,
    now: Timestamp,
) -> Option<String> {
    let reason = reason_of(claim)?;
    let pool = pool_of(claim).unwrap_or_default();
    let repairs = reason == DisruptionReason::Unhealthy;
    let notice = budgets.closed(pool, reason);
    if let Some(notice) = notice.filter(|_| claim_is(claim, INITIALIZED) || !repairs) {
        return Some(notice.message.clone());
    }
    let node = index.node(claim.status.as_ref()?.node_name.as_deref()?)?;
    if repairs {
        return repair::is_vetoed(node).then(|| Blocker::DoNotRepair.to_string());
    }
    let waived =
        |blocker: &Blocker| reason == DisruptionReason::Drifted && is_waived(blocker, claim);
    let blocker = blocker(index, claim, node, now).filter(|blocker| !waived(blocker))?;
    Some(blocker.to_string())
}

/// Whether a node that is being repaired is healthy again: its replacement came for nothing.
fn is_healed(index: &Index, claim: &NodeClaim, policies: &[RepairPolicy], now: Timestamp) -> bool {
    let node = claim.status.as_ref().and_then(|status| status.node_name.as_deref());
    let unhealthy = |node: &Arc<Node>| repair::due_faults(policies, node, now).next().is_some();
    reason_of(claim) == Some(DisruptionReason::Unhealthy)
        && node.and_then(|node| index.node(node)).is_some_and(|node| !unhealthy(node))
}

/// Reason of the command that a NodeClaim is part of.
pub(crate) fn reason_of(claim: &NodeClaim) -> Option<DisruptionReason> {
    let condition = conditions::get(claim_conditions(claim), DISRUPTION_REASON)?;
    REASONS.into_iter().find(|reason| reason.as_str() == condition.reason)
}

/// NodeClaims that were replacements in a command that has ended. From then on they are like any
/// other NodeClaim.
fn ended_replacements(index: &Index) -> Vec<String> {
    let goes_on = |name: &String| index.claim(name).is_some_and(|claim| is_in_command(claim));
    let ended = |claim: &&Arc<NodeClaim>| {
        let plan = index.plan(&claim.name_any());
        plan.is_some_and(|plan| !plan.replaces.is_empty() && !plan.replaces.iter().any(goes_on))
    };
    index.claims().filter(ended).map(|claim| claim.name_any()).collect()
}

/// Removes the replaced NodeClaims from a plan record. Returns whether anything changed.
fn forget_replaced(claim: &mut NodeClaim) -> bool {
    let Some(Ok(mut plan)) = PlanRecord::of(&claim.metadata) else { return false };
    if plan.replaces.is_empty() {
        return false;
    }
    plan.replaces.clear();
    plan.siblings = 0;
    claim.annotations_mut().insert(labels::PLAN.to_owned(), plan.to_annotation());
    true
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
            context.delete_claim(claim).await?;
            if let (Some(pool), Some(reason)) = (pool_of(claim), reason_of(claim)) {
                context.memory().backoff.succeed(pool, reason);
            }
            Ok(())
        }
        Next::AwaitBlocker(message) => {
            let (severity, reason) = (Severity::Normal, "DisruptionBlocked");
            context.events.publish(claim, severity, reason, &message);
            Ok(())
        }
        Next::AwaitReplacements(replacements) => {
            let (reason, message) =
                ("DisruptionWaitingReadiness", "Waiting on readiness to continue disruption");
            for one in &replacements {
                context.events.publish(one.as_ref(), Severity::Normal, reason, message);
            }
            Ok(())
        }
        Next::RollBack => {
            let rest = record_failure(context, claim);
            let reason = reason_of(claim);
            let label = reason.map(|reason| snake(reason.as_str())).unwrap_or_default();
            let labels = ["replace", &label, &kind_of(reason)];
            context.metrics.increment(&QUEUE_FAILURES, &labels);
            tracing::warn!(nodeclaim = name, ?rest, "replacement failed, keeping nodeclaim");
            context.edit_claim_status(&name, |edit| edit.clear(DISRUPTION_REASON)).await?;
            match claim.status.as_ref().and_then(|status| status.node_name.clone()) {
                Some(node) => context.update::<Node>(&node, remove_disrupted).await,
                None => Ok(()),
            }
        }
    }
}

/// Lets the NodePool rest from disruption for the same reason. Returns for how long.
fn record_failure(context: &Context, claim: &NodeClaim) -> Option<SignedDuration> {
    let (pool, reason) = (pool_of(claim)?, reason_of(claim)?);
    let (index, mut memory) = (context.index(), context.memory());
    memory.backoff.retain_claims(|name| index.claim(name).is_some());
    Some(memory.backoff.fail(&claim.name_any(), pool, reason, context.clock.now()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::taint::add_disrupted;
    use crate::testing::{at, claim, cluster_of, condition, pod, pool, set_condition};
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    /// One of two replacements of `claim-0`.
    fn replacement(name: &str, initialized: bool) -> NodeClaim {
        let status = if initialized { "True" } else { "Unknown" };
        let plan = r#"{"version":1,"replaces":["claim-0"],"siblings":2}"#;
        let object = json!({
            "metadata": { "annotations": { labels::PLAN: plan } },
            "status": { "conditions": [condition("Initialized", status)] },
        });
        claim(name, object)
    }

    /// A command on `claim-0` with these replacements.
    fn command(replacements: &[NodeClaim]) -> Index {
        let mut index = cluster_of(1);
        let mut claim = index.claim("claim-0").unwrap().as_ref().clone();
        let mut marked = condition("DisruptionReason", "True");
        marked["reason"] = json!("Underutilized");
        let conditions = &mut claim.status.get_or_insert_default().conditions;
        conditions.push(serde_json::from_value(marked).unwrap());
        index.apply(claim, at(0));
        for claim in replacements {
            index.apply(claim.clone(), at(0));
        }
        index
    }

    fn next_of(index: &Index, seconds: i64) -> Next {
        let commands = commands(index, &[], at(seconds));
        assert_eq!(commands.len(), 1, "only marked NodeClaims are in a command");
        commands[0].1.clone()
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
    fn a_command_that_lost_one_of_its_replacements_is_rolled_back() {
        assert_eq!(next_of(&command(&[replacement("a", true)]), 0), Next::RollBack);
    }

    #[test]
    fn a_late_replacement_rolls_the_command_back_after_ten_minutes() {
        let index = command(&[replacement("a", true), replacement("b", false)]);
        assert!(matches!(next_of(&index, 600), Next::AwaitReplacements(_)));
        assert_eq!(next_of(&index, 601), Next::RollBack);
    }

    #[test]
    fn the_timeout_grows_with_the_commands_under_way() {
        assert_eq!(timeout(1), SignedDuration::from_mins(10));
        assert_eq!(timeout(10_000), SignedDuration::from_secs(800));
        assert_eq!(timeout(1_000_000), SignedDuration::from_hours(1));
    }

    #[test]
    fn a_node_that_became_protected_is_not_deleted() {
        let mut index = command(&[replacement("a", true), replacement("b", true)]);
        let annotations = json!({ labels::DO_NOT_DISRUPT: "true" });
        let object = json!({
            "metadata": { "annotations": annotations }, "spec": { "nodeName": "node-0" },
        });
        index.apply(pod("shop", "web", object), at(0));
        assert!(matches!(next_of(&index, 0), Next::AwaitBlocker(_)));
        assert_eq!(next_of(&index, 601), Next::RollBack);
        index.delete::<Pod>("shop/web");
        assert_eq!(next_of(&index, 601), Next::Delete);
    }

    /// Two NodeClaims that two replacements stand for, which are initialized.
    fn command_on_two() -> Index {
        let plan = r#"{"version":1,"replaces":["claim-0","claim-1"],"siblings":2}"#;
        let both = ["a", "b"].map(|name| {
            let mut one = replacement(name, true);
            one.annotations_mut().insert(labels::PLAN.to_owned(), plan.to_owned());
            one
        });
        let mut index = cluster_of(2);
        set_condition(&mut index, "claim-0", "DisruptionReason", "1970-01-01T00:00:00Z");
        set_condition(&mut index, "claim-1", "DisruptionReason", "1970-01-01T00:00:00Z");
        for claim in both {
            index.apply(claim, at(0));
        }
        for name in ["claim-0", "claim-1"] {
            let mut claim = index.claim(name).unwrap().as_ref().clone();
            let conditions = &mut claim.status.as_mut().unwrap().conditions;
            let marked = conditions.iter_mut().find(|one| one.type_ == "DisruptionReason");
            marked.unwrap().reason = "Underutilized".to_owned();
            index.apply(claim, at(0));
        }
        index
    }

    fn nexts(index: &Index, seconds: i64) -> Vec<Next> {
        commands(index, &[], at(seconds)).into_iter().map(|(_, next)| next).collect()
    }

    #[test]
    fn nodes_that_are_replaced_together_go_together_or_stay() {
        let mut index = command_on_two();
        assert_eq!(nexts(&index, 0), [Next::Delete, Next::Delete]);
        let annotations = json!({ labels::DO_NOT_DISRUPT: "true" });
        let object = json!({
            "metadata": { "annotations": annotations }, "spec": { "nodeName": "node-1" },
        });
        index.apply(pod("shop", "web", object), at(0));
        let waits = nexts(&index, 0);
        assert_eq!(waits.len(), 2);
        assert!(waits.iter().all(|one| matches!(one, Next::AwaitBlocker(_))), "{waits:?}");
        assert_eq!(nexts(&index, 601), [Next::RollBack, Next::RollBack]);
        index.delete::<Pod>("shop/web");
        assert_eq!(nexts(&index, 601), [Next::Delete, Next::Delete]);
    }

    #[test]
    fn a_roll_back_that_was_interrupted_goes_on() {
        let mut index = command_on_two();
        let mut kept = index.claim("claim-0").unwrap().as_ref().clone();
        kept.status.as_mut().unwrap().conditions.retain(|one| one.type_ != "DisruptionReason");
        index.apply(kept, at(1));
        assert_eq!(nexts(&index, 1), [Next::RollBack]);
        // One that is gone tells that all of them go.
        let mut index = command_on_two();
        index.delete::<NodeClaim>("claim-0");
        assert_eq!(nexts(&index, 1), [Next::Delete]);
    }

    #[test]
    fn a_node_is_not_deleted_once_its_budget_has_closed() {
        let mut index = command(&[replacement("a", true), replacement("b", true)]);
        let disruption = json!({ "budgets": [{ "nodes": "0", "reasons": ["Underutilized"] }] });
        index.apply(pool("p", json!({ "spec": { "disruption": disruption } })), at(0));
        assert!(matches!(next_of(&index, 0), Next::AwaitBlocker(_)));
    }

    #[test]
    fn replacements_of_a_command_that_ended_forget_it() {
        let mut index = command(&[replacement("a", true), replacement("b", false)]);
        assert!(ended_replacements(&index).is_empty());
        index.delete::<NodeClaim>("claim-0");
        assert_eq!(ended_replacements(&index), ["a", "b"]);
        let mut ended = index.claim("a").unwrap().as_ref().clone();
        assert!(forget_replaced(&mut ended) && !forget_replaced(&mut ended));
        index.apply(ended, at(1));
        assert_eq!(ended_replacements(&index), ["b"]);
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
