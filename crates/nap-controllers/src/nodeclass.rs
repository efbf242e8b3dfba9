//! Keeps an AKSNodeClass's status, hash and finalizer.

use std::time::Duration;

use kube::{Api, ResourceExt};
use nap_api::aksnodeclass::LocalDnsState;
use nap_api::aksnodeclass::condition::{
    DEPENDENTS, KUBERNETES_VERSION_READY, VALIDATION_SUCCEEDED,
};
use nap_api::{AKSNodeClass, conditions, hash, labels, validation};

use crate::context::{Context, Doing, Outcome};
use crate::events::Severity;
use crate::restamp::Stamp;

/// How often a healthy class is looked at again.
const AGAIN: Duration = Duration::from_mins(5);
/// How soon an unhealthy one is.
const SOON: Duration = Duration::from_mins(1);

/// Brings one AKSNodeClass up to date.
pub async fn reconcile(context: &Context, name: &str) -> Outcome {
    let api: Api<AKSNodeClass> = Api::all(context.client.clone());
    let Some(class) = api.get_opt(name).await.doing("reading AKSNodeClass", name)? else {
        return Ok(None);
    };
    if class.metadata.deletion_timestamp.is_some() {
        return finalize(context, &class).await;
    }
    let hash = hash::aks_node_class_hash(&class.spec);
    let stamp = Stamp {
        hash_key: labels::AKS_NODE_CLASS_HASH,
        hash: &hash,
        version_key: labels::AKS_NODE_CLASS_HASH_VERSION,
        version: hash::AKS_NODE_CLASS_HASH_VERSION,
    };
    stamp.migrate(context, &class, |claim| claim.spec.node_class_ref.name == name).await?;
    let finalizer = labels::AKS_NODE_CLASS_FINALIZER;
    context
        .update_class(name, |class| {
            let (stamped, held) =
                (stamp.is_on(class), class.finalizers().iter().any(|have| have == finalizer));
            for (key, value) in [(stamp.hash_key, stamp.hash), (stamp.version_key, stamp.version)] {
                class.annotations_mut().insert(key.to_owned(), value.to_owned());
            }
            if !held {
                class.finalizers_mut().push(finalizer.to_owned());
            }
            !stamped || !held
        })
        .await?;
    let mut report = context.cloud.inspect_node_class(&class).await?;
    let unsupported = validation::unsupported_fields(&class.spec);
    if !unsupported.is_empty() {
        let message =
            format!("not supported yet: {}; remove it to have nodes made", unsupported.join(", "));
        report
            .problems
            .entry(VALIDATION_SUCCEEDED.to_owned())
            .or_insert(("NotSupportedYet".into(), message));
    }
    let now = context.clock.now();
    let generation = class.metadata.generation;
    let healthy = report.problems.is_empty() && report.kubernetes_version.is_some();
    context
        .update_class_status(name, |class| {
            let mut status = class.status.clone().unwrap_or_default();
            let before = status.clone();
            status.kubernetes_version.clone_from(&report.kubernetes_version);
            status.images.clone_from(&report.images);
            status.local_dns_state = Some(LocalDnsState::Disabled);
            for type_ in DEPENDENTS {
                match report.problems.get(type_) {
                    Some((reason, message)) => conditions::set(
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
    Ok(Some(if healthy { AGAIN } else { SOON }))
}

/// A class stays until no claim needs it.
async fn finalize(context: &Context, class: &AKSNodeClass) -> Outcome {
    let name = class.name_any();
    let users: Vec<String> = {
        let state = context.state();
        let uses = state.claims.values().filter(|claim| claim.spec.node_class_ref.name == name);
        uses.map(|claim| claim.name_any()).collect()
    };
    if !users.is_empty() {
        let shown = users.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
        let more = users.len().saturating_sub(5);
        let tail = if more > 0 { format!(" and {more} other(s)") } else { String::new() };
        let message = format!("Waiting on NodeClaim termination for {shown}{tail}");
        context
            .events
            .publish(class, Severity::Normal, "WaitingOnNodeClaimTermination", &message)
            .await;
        return Ok(Some(Duration::from_secs(10)));
    }
    context
        .update_class(&name, |class| {
            let before = class.finalizers().len();
            class
                .finalizers_mut()
                .retain(|finalizer| finalizer != labels::AKS_NODE_CLASS_FINALIZER);
            class.finalizers().len() != before
        })
        .await?;
    Ok(None)
}
