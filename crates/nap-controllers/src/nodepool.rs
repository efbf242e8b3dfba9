//! Keeps a NodePool's status, hash and conditions.

use kube::{Api, ResourceExt};
use nap_api::nodepool::{NODE_CLASS_READY, NORMALISED, NodePoolStatus, VALIDATION_SUCCEEDED};
use nap_api::{AKSNodeClass, NodeClaim, NodePool, conditions, hash, labels, validation};
use nap_units::{CPU, EPHEMERAL_STORAGE, MEMORY, PODS};

use crate::context::{Context, Outcome};
use crate::restamp::Stamp;

/// Brings one NodePool up to date.
pub async fn reconcile(context: &Context, name: &str) -> Outcome {
    let Some(pool) = context.state().pools.get(name).cloned() else { return Ok(None) };
    if pool.metadata.deletion_timestamp.is_some() {
        return Ok(None);
    }
    let api: Api<NodePool> = Api::all(context.client.clone());
    let hash = hash::nodepool_hash(&pool.spec);
    let stamp = Stamp {
        hash_key: labels::NODEPOOL_HASH,
        hash: &hash,
        version_key: labels::NODEPOOL_HASH_VERSION,
        version: hash::NODEPOOL_HASH_VERSION,
    };
    if !stamp.is_on(&*pool) {
        let belongs = |claim: &NodeClaim| {
            claim.labels().get(labels::NODEPOOL).is_some_and(|pool| pool == name)
        };
        stamp.migrate(context, &*pool, belongs).await?;
        let wanted = [(stamp.hash_key, stamp.hash), (stamp.version_key, stamp.version)];
        if let Some(written) = context.annotate(&api, name, &wanted).await? {
            context.state().apply_pool(written);
        }
    }
    let now = context.clock.now();
    let (usage, class) = {
        let state = context.state();
        let class = state.classes.get(&pool.spec.template.spec.node_class_ref.name).cloned();
        (state.pool_usage(name, None), class)
    };
    context
        .update_pool_status(name, |pool| {
            let generation = pool.metadata.generation;
            let problems = validation::validate_nodepool(pool);
            let mut status = pool.status.clone().unwrap_or_default();
            let mut resources = usage.clone();
            for resource in [CPU, MEMORY, PODS, EPHEMERAL_STORAGE] {
                resources.set(resource, usage.get(resource));
            }
            status.resources = resources.to_quantities();
            status.nodes = usage.get(nap_engine::NODES);
            if problems.is_empty() {
                conditions::set_true(&mut status.conditions, VALIDATION_SUCCEEDED, generation, now);
            } else {
                let message = problems.join("; ");
                let (status_, reason) = (conditions::Status::False, "NodePoolValidationFailed");
                conditions::set(
                    &mut status.conditions,
                    VALIDATION_SUCCEEDED,
                    status_,
                    reason,
                    &message,
                    generation,
                    now,
                );
            }
            say_what_was_understood(&mut status, pool, now);
            node_class_ready(&mut status, pool, class.as_deref(), now);
            conditions::summarise(
                &mut status.conditions,
                &[VALIDATION_SUCCEEDED, NODE_CLASS_READY],
                generation,
                now,
            );
            let changed = pool.status.as_ref() != Some(&status);
            pool.status = Some(status);
            changed
        })
        .await?;
    Ok(None)
}

/// Old spellings are taken, not silently: the status says what became of them.
fn say_what_was_understood(status: &mut NodePoolStatus, pool: &NodePool, now: jiff::Timestamp) {
    let notes: Vec<String> = pool.spec.understood.iter().map(ToString::to_string).collect();
    if notes.is_empty() {
        conditions::clear(&mut status.conditions, NORMALISED);
        return;
    }
    let (value, generation) = (conditions::Status::True, pool.metadata.generation);
    let message = notes.join("; ");
    conditions::set(
        &mut status.conditions,
        NORMALISED,
        value,
        "OldSpelling",
        &message,
        generation,
        now,
    );
}

fn node_class_ready(
    status: &mut NodePoolStatus,
    pool: &NodePool,
    class: Option<&AKSNodeClass>,
    now: jiff::Timestamp,
) {
    use conditions::Status::{False, Unknown};
    let generation = pool.metadata.generation;
    let reference = &pool.spec.template.spec.node_class_ref;
    let supported = reference.group == labels::AZURE_GROUP && reference.kind == "AKSNodeClass";
    let mut set = |value, reason: &str, message: &str| {
        conditions::set(
            &mut status.conditions,
            NODE_CLASS_READY,
            value,
            reason,
            message,
            generation,
            now,
        );
    };
    match class {
        _ if !supported => {
            let message = format!(
                "spec.template.spec.nodeClassRef is {}/{}: use karpenter.azure.com/AKSNodeClass",
                reference.group, reference.kind
            );
            set(False, "NodeClassNotFound", &message);
        }
        None => {
            let message = format!(
                "AKSNodeClass `{}` does not exist: create it, or name another",
                reference.name
            );
            set(False, "NodeClassNotFound", &message);
        }
        Some(class) if class.metadata.deletion_timestamp.is_some() => {
            set(False, "NodeClassTerminating", "the AKSNodeClass is being deleted");
        }
        Some(class) => {
            let conditions = class
                .status
                .as_ref()
                .map(|status| status.conditions.as_slice())
                .unwrap_or_default();
            match conditions::get(conditions, conditions::READY) {
                Some(ready) if ready.status == "True" => {
                    conditions::set_true(&mut status.conditions, NODE_CLASS_READY, generation, now);
                    status.node_class_observed_generation = class.metadata.generation;
                }
                Some(ready) if ready.status == "False" => {
                    set(False, &ready.reason.clone(), &ready.message.clone());
                }
                _ => set(
                    Unknown,
                    "NodeClassReadinessUnknown",
                    "the AKSNodeClass was not looked at yet",
                ),
            }
        }
    }
}
