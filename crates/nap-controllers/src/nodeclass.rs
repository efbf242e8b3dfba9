//! AKSNodeClasses: status, drift hash and finalizer.

use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use nap_api::aksnodeclass::condition::DEPENDENTS;
use nap_api::aksnodeclass::{LocalDnsMode, LocalDnsState};
use nap_api::{AKSNodeClass, conditions, labels, validation};
use nap_cloud::{NodeClassCondition, NodeClassFinding, NodeClassReport};

use crate::cluster::Indexed;
use crate::context::{Context, Outcome};
use crate::events::Severity;
use crate::hash_migration::HashStamp;
use crate::patch::{add_finalizer, remove_finalizer};
use crate::permissions::{AZURE, KARPENTER, Permission};

/// The hash and the finalizer are written on AKSNodeClasses, the hash on NodeClaims, and statuses.
pub const PERMISSIONS: &[Permission] = &[
    Permission::new(AZURE, "aksnodeclasses", &["get", "patch"]),
    Permission::new(AZURE, "aksnodeclasses/status", &["patch"]),
    Permission::new(KARPENTER, "nodeclaims", &["patch"]),
];

/// Interval between two inspections of a class without problems.
const INTERVAL: Duration = Duration::from_mins(5);
/// Interval between two inspections of a class with problems.
const PROBLEM_INTERVAL: Duration = Duration::from_mins(1);

/// Reason of a condition that the cloud could not be asked for.
const UNKNOWN: &str = "CloudNotReachable";

/// Updates the hash, the finalizer and the status of one AKSNodeClass.
pub async fn reconcile(context: &Context, name: &str) -> Outcome {
    let Some(class) = context.read_class(name).await? else { return Ok(None) };
    if class.metadata.deletion_timestamp.is_some() {
        return finalize(context, &class).await;
    }
    let stamp = HashStamp::of_class(&class);
    stamp.migrate(context, &class, |claim| claim.spec.node_class_ref.name == name).await?;
    context
        .update::<AKSNodeClass>(name, |class| {
            let stamped = stamp.is_on(class);
            class.annotations_mut().extend(stamp.annotations());
            add_finalizer(class, labels::AKS_NODE_CLASS_FINALIZER) || !stamped
        })
        .await?;
    let mut report = context.cloud.inspect_node_class(&class).await;
    let problems = validation::validate_nodeclass(&class);
    if !problems.is_empty() {
        let finding = NodeClassFinding::violated("InvalidField", problems.join("; "));
        report.findings.insert(NodeClassCondition::Validation, finding);
    }
    let now = context.clock.now();
    let inspected = class.metadata.generation;
    context
        .update_status::<AKSNodeClass>(name, |class| {
            // A class that was edited meanwhile is not what the report is about; the edit has it
            // inspected again.
            class.metadata.generation == inspected && apply(class, &report, now)
        })
        .await?;
    let is_settled = |finding: &NodeClassFinding| matches!(finding, NodeClassFinding::Holds { .. });
    let settled = report.findings.values().all(is_settled);
    Ok(Some(if settled { INTERVAL } else { PROBLEM_INTERVAL }))
}

/// Writes a report into the status of a class. Returns whether anything changed.
fn apply(class: &mut AKSNodeClass, report: &NodeClassReport, now: Timestamp) -> bool {
    let generation = class.metadata.generation;
    let mut status = class.status.clone().unwrap_or_default();
    let before = status.clone();
    let created = class.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
    conditions::initialise(&mut status.conditions, &DEPENDENTS, generation, created);
    if let Some(version) = &report.kubernetes_version {
        status.kubernetes_version = Some(version.clone());
    }
    if let Some(images) = &report.images {
        status.images.clone_from(images);
    }
    status.local_dns_state = Some(local_dns_state(class));
    for type_ in DEPENDENTS {
        let finding = report.findings.iter().find(|(one, _)| one.as_str() == type_);
        let list = &mut status.conditions;
        match finding.map(|(_, finding)| finding) {
            None => conditions::set_true(list, type_, generation, now),
            Some(NodeClassFinding::Holds { message }) => {
                let holds = conditions::Status::True;
                conditions::set(list, type_, holds, type_, message, generation, now)
            }
            Some(NodeClassFinding::Violated { reason, message }) => {
                let violated = conditions::Status::False;
                conditions::set(list, type_, violated, reason, message, generation, now)
            }
            // What is known of this generation stays: a cloud that cannot be asked is no reason to
            // stop launching.
            Some(NodeClassFinding::Unknown { message }) => {
                let known = conditions::get(list, type_).is_some_and(|known| {
                    known.status != "Unknown" && known.observed_generation == generation
                });
                let unknown = conditions::Status::Unknown;
                !known && conditions::set(list, type_, unknown, UNKNOWN, message, generation, now)
            }
        };
    }
    conditions::summarise(&mut status.conditions, &DEPENDENTS, generation, now);
    let changed = status != before || class.status.is_none();
    class.status = Some(status);
    changed
}

/// Whether nodes of a class get the DNS cache. `Preferred` keeps a cache that is enabled, and
/// enables none: the incumbent does not either.
fn local_dns_state(class: &AKSNodeClass) -> LocalDnsState {
    let state = class.status.as_ref().and_then(|status| status.local_dns_state);
    match class.spec.local_dns.as_ref().map(|dns| dns.mode) {
        Some(LocalDnsMode::Required) => LocalDnsState::Enabled,
        Some(LocalDnsMode::Preferred) => state.unwrap_or(LocalDnsState::Disabled),
        Some(LocalDnsMode::Disabled) | None => LocalDnsState::Disabled,
    }
}

/// Removes the finalizer once no NodeClaim refers to the class.
async fn finalize(context: &Context, class: &AKSNodeClass) -> Outcome {
    let name = class.name_any();
    let claims = context.read_claims().await?;
    let ours = claims.iter().filter(|claim| claim.is_managed());
    let uses = ours.filter(|claim| claim.spec.node_class_ref.name == name);
    let users: Vec<String> = uses.map(ResourceExt::name_any).collect();
    if !users.is_empty() {
        let shown = users.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
        let more = users.len().saturating_sub(5);
        let tail = if more > 0 { format!(" and {more} other(s)") } else { String::new() };
        let message = format!("Waiting on NodeClaim termination for {shown}{tail}");
        context.events.publish(class, Severity::Normal, "WaitingOnNodeClaimTermination", &message);
        return Ok(Some(Duration::from_secs(10)));
    }
    context
        .update::<AKSNodeClass>(&name, |class| {
            remove_finalizer(class, labels::AKS_NODE_CLASS_FINALIZER)
        })
        .await?;
    context.report_gone(class, labels::AKS_NODE_CLASS_FINALIZER);
    Ok(None)
}

#[cfg(test)]
mod tests {
    use nap_api::aksnodeclass::condition::{IMAGES_READY, SUBNETS_READY};
    use nap_cloud::NodeClassCondition::{Images, Subnets};
    use serde_json::json;

    use super::*;
    use crate::testing::{at, node_class};

    fn report(findings: &[(NodeClassCondition, NodeClassFinding)]) -> NodeClassReport {
        NodeClassReport {
            kubernetes_version: Some("1.34.1".to_owned()),
            images: Some(Vec::new()),
            findings: findings.iter().cloned().collect(),
        }
    }

    fn shown(class: &AKSNodeClass, type_: &str) -> (String, String) {
        let status = class.status.as_ref().unwrap();
        let condition = conditions::get(&status.conditions, type_).unwrap();
        (condition.status.clone(), condition.message.clone())
    }

    #[test]
    fn a_cloud_that_cannot_be_asked_changes_nothing_that_is_known() {
        let unknown = NodeClassFinding::Unknown { message: "no answer".to_owned() };
        let mut class = node_class("d", json!({ "metadata": { "generation": 1 } }));
        apply(&mut class, &report(&[(Images, unknown.clone())]), at(1));
        let pair = |status: &str, message: &str| (status.to_owned(), message.to_owned());
        assert_eq!(shown(&class, IMAGES_READY), pair("Unknown", "no answer"));
        assert_eq!(shown(&class, SUBNETS_READY), pair("True", ""), "known beside it");
        assert_eq!(shown(&class, conditions::READY).0, "Unknown");
        apply(&mut class, &report(&[]), at(2));
        assert_eq!(shown(&class, conditions::READY).0, "True");
        assert!(!apply(&mut class, &report(&[(Images, unknown.clone())]), at(3)));
        // For a new generation nothing is known.
        class.metadata.generation = Some(2);
        apply(&mut class, &report(&[(Images, unknown)]), at(4));
        assert_eq!(shown(&class, IMAGES_READY), pair("Unknown", "no answer"));
    }

    #[test]
    fn findings_become_conditions() {
        let mut class = node_class("d", json!({ "metadata": { "generation": 1 } }));
        let few = NodeClassFinding::Holds { message: "9 free addresses".to_owned() };
        apply(&mut class, &report(&[(Subnets, few)]), at(1));
        assert_eq!(shown(&class, SUBNETS_READY).1, "9 free addresses");
        assert_eq!(shown(&class, conditions::READY).0, "True");
        let full = NodeClassFinding::violated("SubnetFull", "no free address");
        apply(&mut class, &report(&[(Subnets, full)]), at(2));
        assert_eq!(shown(&class, SUBNETS_READY), ("False".into(), "no free address".into()));
        assert_eq!(shown(&class, conditions::READY).0, "False");
    }

    #[test]
    fn the_dns_cache_follows_the_mode_of_the_class() {
        for (mode, before, after) in [
            ("Required", "Disabled", LocalDnsState::Enabled),
            ("Disabled", "Enabled", LocalDnsState::Disabled),
            ("Preferred", "Disabled", LocalDnsState::Disabled),
            ("Preferred", "Enabled", LocalDnsState::Enabled),
        ] {
            let dns = json!({ "mode": mode, "vnetDNSOverrides": [], "kubeDNSOverrides": [] });
            let status = json!({ "localDNSState": before });
            let object = json!({ "spec": { "localDNS": dns }, "status": status });
            assert_eq!(local_dns_state(&node_class("d", object)), after, "{mode}");
        }
    }
}
