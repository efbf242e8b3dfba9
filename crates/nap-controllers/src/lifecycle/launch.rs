//! From a NodeClaim to a machine.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::ResourceExt;
use nap_api::nodeclaim::condition::LAUNCHED;
use nap_api::{NodeClaim, conditions, hash, labels};
use nap_cloud::{CloudError, ErrorClass, Instance};

use crate::context::{Context, Error, Outcome};
use crate::events::Severity;

/// How soon a launch that failed for a passing reason is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// Makes the machine, or finds the one that an earlier try made, and writes down what it is.
pub async fn launch(context: &Context, claim: &NodeClaim) -> Outcome {
    let name = claim.name_any();
    let class_name = &claim.spec.node_class_ref.name;
    let Some(class) = context.state().classes.get(class_name).cloned() else {
        let message = format!("AKSNodeClass `{class_name}` does not exist");
        return failed(
            context,
            claim,
            CloudError::new(
                ErrorClass::NodeClassNotReady,
                "launching",
                "NodeClassNotFound",
                message,
            ),
        )
        .await;
    };
    let instance = match context.cloud.create(claim, &class).await {
        Ok(instance) => instance,
        Err(error) => return failed(context, claim, error).await,
    };
    let class_hash = hash::aks_node_class_hash(&class.spec);
    context
        .update_claim(&name, |claim| {
            let before = claim.metadata.clone();
            let own = std::mem::take(claim.labels_mut());
            let mut all = instance.labels.clone();
            all.extend(own);
            *claim.labels_mut() = all;
            let annotations = claim.annotations_mut();
            annotations.extend(instance.annotations.clone());
            annotations.insert(labels::AKS_NODE_CLASS_HASH.to_owned(), class_hash.clone());
            let version = hash::AKS_NODE_CLASS_HASH_VERSION.to_owned();
            annotations.insert(labels::AKS_NODE_CLASS_HASH_VERSION.to_owned(), version);
            claim.metadata != before
        })
        .await?;
    let now = context.clock.now();
    context
        .update_claim_status(&name, |claim| {
            let generation = claim.metadata.generation;
            let status = claim.status.get_or_insert_default();
            status.provider_id = Some(instance.provider_id.clone());
            status.image_id.clone_from(&instance.image_id);
            status.capacity = instance.capacity.to_quantities();
            status.allocatable = instance.allocatable.to_quantities();
            conditions::set_true(&mut status.conditions, LAUNCHED, generation, now);
            super::summarise(claim, now);
            true
        })
        .await?;
    let what = describe(&instance);
    tracing::info!(nodeclaim = name, machine = %what, provider_id = instance.provider_id, "launched");
    let message = format!("Provisioned {what}");
    context.events.publish(claim, Severity::Normal, "Provisioned", &message).await;
    Ok(Some(Duration::ZERO))
}

fn describe(instance: &Instance) -> String {
    let label =
        |labels: &BTreeMap<String, String>, key: &str| labels.get(key).cloned().unwrap_or_default();
    format!(
        "{} ({}) in zone {}",
        label(&instance.labels, labels::INSTANCE_TYPE),
        label(&instance.labels, labels::CAPACITY_TYPE),
        label(&instance.labels, labels::ZONE),
    )
}

/// A launch failed: the class of the error decides whether the claim is given up or tried again.
async fn failed(context: &Context, claim: &NodeClaim, error: CloudError) -> Outcome {
    let name = claim.name_any();
    let now = context.clock.now();
    let gives_up = matches!(
        error.class,
        ErrorClass::Capacity | ErrorClass::Quota | ErrorClass::NodeClassNotReady
    );
    if gives_up {
        let reason = match error.class {
            ErrorClass::NodeClassNotReady => "NodeClassNotReady",
            _ => "InsufficientCapacityError",
        };
        tracing::warn!(nodeclaim = name, %error, "giving up on a machine");
        let message = format!("NodeClaim {name} event: {error}");
        context.events.publish(claim, Severity::Warning, reason, &message).await;
        context.delete_claim(claim).await?;
        return Ok(None);
    }
    let message: String = error.to_string().chars().take(1024).collect();
    let reason = if error.code.is_empty() { "LaunchFailed".to_owned() } else { error.code.clone() };
    context
        .update_claim_status(&name, |claim| {
            let generation = claim.metadata.generation;
            let status = claim.status.get_or_insert_default();
            let unknown = conditions::Status::Unknown;
            let changed = conditions::set(
                &mut status.conditions,
                LAUNCHED,
                unknown,
                &reason,
                &message,
                generation,
                now,
            );
            super::summarise(claim, now);
            changed
        })
        .await?;
    let created = claim.metadata.creation_timestamp.as_ref().map(|time| time.0);
    if created.is_some_and(|created| now.duration_since(created) >= super::LAUNCH_TIMEOUT) {
        return super::give_up_after(
            context,
            claim,
            LAUNCHED,
            super::LAUNCH_TIMEOUT,
            "launch_timeout",
        )
        .await;
    }
    if matches!(error.class, ErrorClass::Transient | ErrorClass::Throttled) {
        return Ok(Some(RETRY));
    }
    Err(Error::Cloud(error))
}
