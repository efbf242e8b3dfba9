//! AKSNodeClasses: status, drift hash and finalizer.

use std::time::Duration;

use kube::ResourceExt;
use nap_api::aksnodeclass::LocalDnsState;
use nap_api::aksnodeclass::condition::{DEPENDENTS, KUBERNETES_VERSION_READY};
use nap_api::{AKSNodeClass, conditions, labels, validation};
use nap_cloud::{NodeClassCondition, NodeClassProblem};

use crate::cluster::Indexed;
use crate::context::{Context, Outcome};
use crate::events::Severity;
use crate::hash_migration::HashStamp;
use crate::patch::{add_finalizer, remove_finalizer};

/// Interval between two inspections of a class without problems.
const INTERVAL: Duration = Duration::from_mins(5);
/// Interval between two inspections of a class with problems.
const PROBLEM_INTERVAL: Duration = Duration::from_mins(1);

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
    let mut report = context.cloud.inspect_node_class(&class).await?;
    let unsupported = validation::unsupported_fields(&class.spec);
    if !unsupported.is_empty() {
        let message =
            format!("not supported yet: {}; remove it to launch nodes", unsupported.join(", "));
        let problem = NodeClassProblem { reason: "NotSupportedYet".to_owned(), message };
        report.problems.entry(NodeClassCondition::Validation).or_insert(problem);
    }
    let now = context.clock.now();
    let generation = class.metadata.generation;
    let has_problems = !(report.problems.is_empty() && report.kubernetes_version.is_some());
    context
        .update_status::<AKSNodeClass>(name, |class| {
            let mut status = class.status.clone().unwrap_or_default();
            let before = status.clone();
            let created = class.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
            conditions::initialise(&mut status.conditions, &DEPENDENTS, generation, created);
            // Kubernetes does not support nodes newer than the control plane, and AKS never
            // downgrades one: an older version is an answer of the past.
            let known = status.kubernetes_version.take();
            status.kubernetes_version = newer_version(known, report.kubernetes_version.clone());
            status.images.clone_from(&report.images);
            status.local_dns_state = Some(LocalDnsState::Disabled);
            for type_ in DEPENDENTS {
                let problem = report.problems.iter().find(|(one, _)| one.as_str() == type_);
                match problem {
                    Some((_, NodeClassProblem { reason, message })) => conditions::set(
                        &mut status.conditions,
                        type_,
                        conditions::Status::False,
                        reason,
                        message,
                        generation,
                        now,
                    ),
                    None if type_ == KUBERNETES_VERSION_READY
                        && report.kubernetes_version.is_none() =>
                    {
                        false
                    }
                    None => conditions::set_true(&mut status.conditions, type_, generation, now),
                };
            }
            conditions::summarise(&mut status.conditions, &DEPENDENTS, generation, now);
            let changed = status != before || class.status.is_none();
            class.status = Some(status);
            changed
        })
        .await?;
    Ok(Some(if has_problems { PROBLEM_INTERVAL } else { INTERVAL }))
}

/// The newer of two Kubernetes versions; one that cannot be parsed gives way.
fn newer_version(known: Option<String>, read: Option<String>) -> Option<String> {
    let parts = |version: &Option<String>| {
        let version = version.as_deref()?.trim_start_matches('v');
        version.split('.').map(|part| part.parse().ok()).collect::<Option<Vec<u32>>>()
    };
    if parts(&known) > parts(&read) { known } else { read }
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
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kubernetes_version_only_goes_up() {
        let newer = |known: &str, read: Option<&str>| {
            newer_version(Some(known.to_owned()), read.map(str::to_owned)).unwrap()
        };
        assert_eq!(newer("1.34.2", Some("1.35.0")), "1.35.0");
        assert_eq!(newer("1.34.10", Some("1.34.9")), "1.34.10");
        assert_eq!(newer("1.34.2", None), "1.34.2");
        assert_eq!(newer("unknown", Some("1.34.9")), "1.34.9");
        assert_eq!(newer_version(None, None), None);
    }
}
