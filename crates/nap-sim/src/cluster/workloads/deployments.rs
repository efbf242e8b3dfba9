//! The Deployment controller: one ReplicaSet per template, and rolling updates.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{hash, owner};
use crate::cluster::disruption_budgets::resolve;
use crate::cluster::index::{Index, key};
use crate::cluster::write::Writer;

const HASH_LABEL: &str = "pod-template-hash";
const REVISION: &str = "deployment.kubernetes.io/revision";

pub(super) async fn reconcile(
    deployment: &Arc<Deployment>,
    index: &mut Index,
    writer: &mut Writer,
) {
    if deployment.metadata.deletion_timestamp.is_some() {
        return;
    }
    let (Some(uid), Some(spec)) = (deployment.uid(), deployment.spec.as_ref()) else { return };
    let template = serde_json::to_value(&spec.template).unwrap_or_default();
    let name = format!("{}-{}", deployment.name_any(), hash(&template));
    if spec.paused != Some(true) {
        let (current, old) = owned(&uid, &name, index);
        match current {
            Some(current) => roll(deployment, &current, &old, index, writer).await,
            None => create(deployment, &name, &template, &old, index, writer).await,
        }
        forget_history(spec.revision_history_limit, &uid, &name, index, writer).await;
    }
    update_status(deployment, &uid, &name, index, writer).await;
}

/// The ReplicaSet of the current template, and the others from the oldest to the newest.
fn owned(uid: &str, name: &str, index: &Index) -> (Option<Arc<ReplicaSet>>, Vec<Arc<ReplicaSet>>) {
    let all = index.replica_sets.managed_by(uid);
    let (current, mut old): (Vec<_>, Vec<_>) = all.cloned().partition(|set| set.name_any() == name);
    old.sort_by_key(|set| (revision(set), set.name_any()));
    (current.into_iter().next(), old)
}

fn revision(set: &ReplicaSet) -> u64 {
    set.annotations().get(REVISION).and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn replicas(set: &ReplicaSet) -> i32 {
    set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

fn available(set: &ReplicaSet) -> i32 {
    set.status.as_ref().and_then(|status| status.available_replicas).unwrap_or(0)
}

/// `maxSurge` and `maxUnavailable` in pods.
fn slack(deployment: &Deployment) -> (i32, i32) {
    let spec = deployment.spec.as_ref();
    let desired = spec.and_then(|spec| spec.replicas).unwrap_or(1);
    let rolling = spec
        .and_then(|spec| spec.strategy.as_ref())
        .and_then(|strategy| strategy.rolling_update.as_ref());
    let quarter = IntOrString::String("25%".to_owned());
    let surge =
        rolling.and_then(|rolling| rolling.max_surge.clone()).unwrap_or_else(|| quarter.clone());
    let missing = rolling.and_then(|rolling| rolling.max_unavailable.clone()).unwrap_or(quarter);
    let surge = resolve(&surge, desired);
    // `maxUnavailable` rounds down and `maxSurge` up; at least one must be positive.
    let missing = match &missing {
        IntOrString::Int(number) => *number,
        IntOrString::String(text) => {
            text.trim_end_matches('%').parse::<i32>().unwrap_or(0) * desired / 100
        }
    };
    if surge == 0 && missing == 0 { (0, 1) } else { (surge, missing) }
}

fn is_recreate(deployment: &Deployment) -> bool {
    let strategy = deployment.spec.as_ref().and_then(|spec| spec.strategy.as_ref());
    strategy.and_then(|strategy| strategy.type_.as_deref()) == Some("Recreate")
}

async fn create(
    deployment: &Deployment,
    name: &str,
    template: &Value,
    old: &[Arc<ReplicaSet>],
    index: &mut Index,
    writer: &mut Writer,
) {
    let spec = serde_json::to_value(&deployment.spec).unwrap_or_default();
    let desired = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let total: i32 = old.iter().map(|set| replicas(set)).sum();
    let first = if is_recreate(deployment) {
        if total > 0 { 0 } else { desired }
    } else {
        (desired + slack(deployment).0 - total).clamp(0, desired)
    };
    let hash = name.rsplit('-').next().unwrap_or_default();
    let mut template = template.clone();
    template["metadata"]["labels"][HASH_LABEL] = json!(hash);
    let mut selector = spec["selector"].clone();
    selector["matchLabels"][HASH_LABEL] = json!(hash);
    let number = (old.iter().map(|set| revision(set)).max().unwrap_or(0) + 1).to_string();
    let set = json!({
        "metadata": {
            "name": name,
            "labels": template["metadata"]["labels"],
            "annotations": { REVISION: number },
            "ownerReferences": owner(deployment),
        },
        "spec": { "replicas": first, "selector": selector, "template": template },
    });
    writer.create(&mut index.replica_sets, &deployment.namespace().unwrap_or_default(), &set).await;
    let patch = json!({ "metadata": { "annotations": { REVISION: number } } });
    writer.patch(&mut index.deployments, &key(deployment), &patch).await;
}

/// One step of a rollout: scales the new set up within `maxSurge` and the old ones down within
/// `maxUnavailable`.
async fn roll(
    deployment: &Deployment,
    current: &ReplicaSet,
    old: &[Arc<ReplicaSet>],
    index: &mut Index,
    writer: &mut Writer,
) {
    let desired = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let old_total: i32 = old.iter().map(|set| replicas(set)).sum();
    if is_recreate(deployment) {
        for set in old.iter().filter(|set| replicas(set) > 0) {
            scale(set, 0, index, writer).await;
        }
        let gone = old_total == 0
            && old.iter().all(|set| set.status.as_ref().is_none_or(|status| status.replicas == 0));
        if gone {
            scale(current, desired, index, writer).await;
        }
        return;
    }
    let (surge, missing) = slack(deployment);
    let total = replicas(current) + old_total;
    // No old pods, or the Deployment was scaled down: no stepping needed.
    let grown = if old_total == 0 || replicas(current) > desired {
        desired
    } else {
        let room = (desired + surge - total).max(0);
        replicas(current) + room.min(desired - replicas(current))
    };
    scale(current, grown, index, writer).await;
    if old_total == 0 {
        return;
    }
    let not_up_yet = (grown - available(current)).max(0);
    let mut removable = grown + old_total - (desired - missing) - not_up_yet;
    // Removing old pods that are unavailable does not lower availability.
    for set in old {
        let broken = (replicas(set) - available(set)).max(0);
        let step = broken.min(removable.max(0));
        let rest = (removable - step).max(0).min(available(set).min(replicas(set)));
        let total_step = (step + rest).min(replicas(set));
        if total_step > 0 {
            removable -= total_step;
            scale(set, replicas(set) - total_step, index, writer).await;
        }
    }
}

async fn scale(set: &ReplicaSet, wanted: i32, index: &mut Index, writer: &mut Writer) {
    if replicas(set) != wanted {
        let patch = json!({ "spec": { "replicas": wanted } });
        writer.patch(&mut index.replica_sets, &key(set), &patch).await;
    }
}

async fn forget_history(
    limit: Option<i32>,
    uid: &str,
    name: &str,
    index: &mut Index,
    writer: &mut Writer,
) {
    let limit = usize::try_from(limit.unwrap_or(10)).unwrap_or(0);
    let (_, old) = owned(uid, name, index);
    let idle: Vec<_> = old
        .into_iter()
        .filter(|set| {
            replicas(set) == 0 && set.status.as_ref().is_none_or(|status| status.replicas == 0)
        })
        .collect();
    for set in idle.iter().take(idle.len().saturating_sub(limit)) {
        writer.delete(&mut index.replica_sets, &**set, None).await;
    }
}

async fn update_status(
    deployment: &Deployment,
    uid: &str,
    name: &str,
    index: &mut Index,
    writer: &mut Writer,
) {
    // Sums the status of the ReplicaSets, as the real controller does; it lags behind the pods.
    let Some(deployment) = index.deployments.get(&key(deployment)).cloned() else { return };
    let (current, old) = owned(uid, name, index);
    let sets: Vec<&Arc<ReplicaSet>> = current.iter().chain(&old).collect();
    let sum = |count: fn(&ReplicaSet) -> i32| sets.iter().map(|set| count(set)).sum::<i32>();
    let held = |set: &ReplicaSet| set.status.as_ref().map_or(0, |status| status.replicas);
    let ready = |set: &ReplicaSet| {
        set.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or(0)
    };
    let desired = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let (total, up) = (sum(held), sum(available));
    let updated = current.as_ref().map_or(0, |set| held(set));
    let missing = if is_recreate(&deployment) { desired } else { slack(&deployment).1 };
    let old_status = deployment.status.clone().unwrap_or_default();
    let enough = up >= desired - missing;
    let done = updated == desired && total == desired && up >= desired;
    let available_condition = if enough {
        (
            "Available",
            "True",
            "MinimumReplicasAvailable",
            "Deployment has minimum availability.".to_owned(),
        )
    } else {
        (
            "Available",
            "False",
            "MinimumReplicasUnavailable",
            "Deployment does not have minimum availability.".to_owned(),
        )
    };
    let progress = if done {
        (
            "Progressing",
            "True",
            "NewReplicaSetAvailable",
            format!("ReplicaSet \"{name}\" has successfully progressed."),
        )
    } else {
        (
            "Progressing",
            "True",
            "ReplicaSetUpdated",
            format!("ReplicaSet \"{name}\" is progressing."),
        )
    };
    let now =
        jiff::Timestamp::from_second(writer.now().as_second()).unwrap_or_else(|_| writer.now());
    let conditions = [available_condition, progress].map(|(kind, verdict, reason, message)| {
        let held = old_status.conditions.iter().flatten().find(|condition| condition.type_ == kind);
        let same =
            held.filter(|held| held.status == verdict && held.reason.as_deref() == Some(reason));
        DeploymentCondition {
            type_: kind.to_owned(),
            status: verdict.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message),
            last_transition_time: Some(
                held.filter(|held| held.status == verdict)
                    .and_then(|held| held.last_transition_time.clone())
                    .unwrap_or(Time(now)),
            ),
            last_update_time: Some(
                same.and_then(|held| held.last_update_time.clone()).unwrap_or(Time(now)),
            ),
        }
    });
    let status = DeploymentStatus {
        replicas: Some(total),
        updated_replicas: Some(updated),
        ready_replicas: Some(sum(ready)),
        available_replicas: Some(up),
        unavailable_replicas: Some((desired.max(total) - up).max(0)),
        observed_generation: deployment.metadata.generation,
        conditions: Some(conditions.to_vec()),
        ..DeploymentStatus::default()
    };
    if old_status != status {
        let mut deployment = (*deployment).clone();
        deployment.status = Some(status);
        writer.replace_status(&mut index.deployments, &deployment).await;
    }
}
