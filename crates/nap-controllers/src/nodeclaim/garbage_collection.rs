//! Garbage collection: instances without a NodeClaim are deleted, and NodeClaims without an
//! instance too.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use nap_api::NodeClaim;
use nap_api::nodeclaim::condition::REGISTERED;
use nap_cloud::Instance;

use crate::cluster::{Index, claim_is, is_ready, pool_of, provider_id_of_claim, provider_key};
use crate::context::{Context, Error, Outcome};
use crate::events::Severity;
use crate::metrics::Disrupted;

/// Interval between two comparisons.
const INTERVAL: Duration = Duration::from_mins(2);
/// Age below which an instance without a NodeClaim is kept: the NodeClaim's status may not have
/// been written yet.
const ORPHAN_AGE: SignedDuration = SignedDuration::from_mins(5);

/// Name of this controller in metrics.
const CONTROLLER: &str = "nodeclaim.garbagecollection";

/// Compares the instances of the cloud with the NodeClaims of the cluster.
pub async fn reconcile(context: &Context) -> Outcome {
    // NodeClaims are read first: an instance that is created in between looks too young, never
    // orphaned.
    let claims: Vec<Arc<NodeClaim>> = context.index().claims().cloned().collect();
    let (from, call) = ((CONTROLLER, "List"), context.cloud.list());
    let instances = context.metrics.cloud_call(&context.clock, from, "", call).await?;
    // What fails is tried again in the next pass, and does not keep others from being collected.
    // Side by side, so that the cloud can take them in one request.
    let orphans = orphans(&claims, &instances, context.clock.now()).into_iter();
    let deleted = orphans.map(|instance| async move {
        if let Err(error) = delete_orphan(context, instance).await {
            tracing::warn!(provider_id = instance.provider_id, %error, "instance not deleted");
        }
    });
    futures::future::join_all(deleted).await;
    let lost = without_instance(&context.index(), &claims, &instances);
    for claim in lost {
        if let Err(error) = delete_lost(context, &claim).await {
            tracing::warn!(nodeclaim = claim.name_any(), %error, "nodeclaim not deleted");
        }
    }
    Ok(Some(INTERVAL))
}

/// Deletes an instance unless its NodeClaim exists after all.
async fn delete_orphan(context: &Context, instance: &Instance) -> Result<(), Error> {
    let provider_id = &instance.provider_id;
    if let Some(name) = &instance.node_claim
        && context.read_claim(name).await?.is_some()
    {
        return Ok(());
    }
    tracing::warn!(provider_id, "no nodeclaim for instance, deleting instance");
    match context.cloud.delete_orphan(provider_id).await {
        Ok(()) => Ok(()),
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Deletes a NodeClaim unless its instance exists or its Node is ready after all.
async fn delete_lost(context: &Context, claim: &NodeClaim) -> Result<(), Error> {
    let id = provider_id_of_claim(claim).unwrap_or_default();
    let (from, call) = ((CONTROLLER, "Get"), context.cloud.get(id));
    let pool = pool_of(claim).unwrap_or_default();
    let error = match context.metrics.cloud_call(&context.clock, from, pool, call).await {
        Ok(_) => return Ok(()),
        Err(error) if error.is_not_found() => error,
        Err(error) => return Err(error.into()),
    };
    if context.read_nodes_of(claim).await?.iter().any(is_ready) {
        return Ok(());
    }
    tracing::warn!(nodeclaim = claim.name_any(), %error, "instance gone, deleting nodeclaim");
    let message = format!("Instance is gone, deleting the NodeClaim: {error}");
    context.events.publish(claim, Severity::Warning, "InstanceNotFound", &message);
    context.count_disrupted(claim, Disrupted::Other("garbage_collected"), 0);
    context.cloud.remember_eviction(claim).await;
    context.delete_claim(claim).await
}

/// Instances that are old enough and that no NodeClaim names, by provider id or by tag.
fn orphans<'i>(
    claims: &[Arc<NodeClaim>],
    instances: &'i [Instance],
    now: Timestamp,
) -> Vec<&'i Instance> {
    let ids = claims.iter().filter_map(|claim| provider_id_of_claim(claim));
    let ids: BTreeSet<String> = ids.map(provider_key).collect();
    let names: BTreeSet<String> = claims.iter().map(|claim| claim.name_any()).collect();
    let is_named = |instance: &Instance| {
        ids.contains(&provider_key(&instance.provider_id))
            || instance.node_claim.as_ref().is_some_and(|name| names.contains(name))
    };
    let is_old = |instance: &Instance| {
        instance.created.is_some_and(|created| now.duration_since(created) >= ORPHAN_AGE)
    };
    let candidates = instances.iter().filter(|instance| !instance.deleting);
    candidates.filter(|instance| !is_named(instance) && is_old(instance)).collect()
}

/// Registered NodeClaims whose instance is not listed and whose Node is not ready.
fn without_instance(
    index: &Index,
    claims: &[Arc<NodeClaim>],
    instances: &[Instance],
) -> Vec<Arc<NodeClaim>> {
    let existing = instances.iter().filter(|instance| !instance.lost);
    let ids: BTreeSet<String> =
        existing.map(|instance| provider_key(&instance.provider_id)).collect();
    let is_lost = |claim: &&Arc<NodeClaim>| {
        let Some(id) = provider_id_of_claim(claim) else { return false };
        claim.metadata.deletion_timestamp.is_none()
            && claim_is(claim, REGISTERED)
            && !ids.contains(&provider_key(id))
            && !index.nodes_with_provider_id(id).iter().any(|node| is_ready(node))
    };
    claims.iter().filter(is_lost).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, claim, condition, index, instance, node};
    use serde_json::json;

    fn registered(name: &str, id: &str) -> NodeClaim {
        let conditions = [condition("Launched", "True"), condition("Registered", "True")];
        claim(name, json!({ "status": { "providerID": id, "conditions": conditions } }))
    }

    #[test]
    fn an_instance_without_a_nodeclaim_is_an_orphan_after_five_minutes() {
        let instances = [instance("azure:///1", None, at(0))];
        assert!(orphans(&[], &instances, at(299)).is_empty());
        assert_eq!(orphans(&[], &instances, at(300)).len(), 1);
    }

    #[test]
    fn an_instance_is_named_by_provider_id_or_by_tag() {
        let by_id = [instance("azure:///1", None, at(0))];
        let by_tag = [instance("azure:///2", Some("c"), at(0))];
        let claims = [Arc::new(registered("c", "azure:///1"))];
        assert!(orphans(&claims, &by_id, at(900)).is_empty());
        assert!(orphans(&claims, &by_tag, at(900)).is_empty());
    }

    #[test]
    fn an_instance_that_is_being_deleted_is_no_orphan() {
        let mut leaving = instance("azure:///1", None, at(0));
        leaving.deleting = true;
        assert!(orphans(&[], &[leaving], at(900)).is_empty());
    }

    #[test]
    fn a_registered_nodeclaim_without_an_instance_is_lost_unless_its_node_is_ready() {
        let claim = registered("c", "azure:///1");
        let mut index = index([claim.clone()]);
        let claims = [Arc::new(claim)];
        let lost = |index: &Index, instances: &[Instance]| {
            without_instance(index, &claims, instances).len()
        };
        assert_eq!(lost(&index, &[instance("azure:///1", None, at(0))]), 0);
        assert_eq!(lost(&index, &[]), 1);
        let mut evicted = instance("azure:///1", None, at(0));
        evicted.lost = true;
        assert_eq!(lost(&index, &[evicted]), 1);
        let ready = json!([{ "type": "Ready", "status": "True" }]);
        let object = json!({
            "spec": { "providerID": "azure:///1" }, "status": { "conditions": ready },
        });
        index.apply(node("n", object), at(0));
        assert_eq!(lost(&index, &[]), 0);
    }

    #[test]
    fn a_nodeclaim_that_never_registered_is_left_to_its_timeout() {
        let conditions = [condition("Launched", "True")];
        let object = json!({ "status": { "providerID": "azure:///1", "conditions": conditions } });
        let claim = claim("c", object);
        assert!(without_instance(&index([claim.clone()]), &[Arc::new(claim)], &[]).is_empty());
    }
}
