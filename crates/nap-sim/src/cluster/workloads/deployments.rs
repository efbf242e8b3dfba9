//! The Deployment controller: one ReplicaSet per template, and rolling updates.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{hash, owner, whole_seconds};
use crate::cluster::disruption_budgets::resolve;
use crate::cluster::index::{Index, key};
use crate::cluster::write::Writer;

const COMPONENT: &str = "deployment-controller";
const HASH_LABEL: &str = "pod-template-hash";
const REVISION: &str = "deployment.kubernetes.io/revision";

/// Reconciles; returns when the rollout has taken too long.
pub(super) async fn reconcile(
    deployment: &Arc<Deployment>,
    index: &mut Index,
    writer: &mut Writer,
) -> Option<jiff::Timestamp> {
    if deployment.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let (uid, spec) = (deployment.uid()?, deployment.spec.as_ref()?);
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
    update_status(deployment, &uid, &name, index, writer).await
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
    let namespace = deployment.namespace().unwrap_or_default();
    let created = writer.create(&mut index.replica_sets, &namespace, &set).await;
    if created && first > 0 {
        let message = format!("Scaled up replica set {name} from 0 to {first}");
        writer.tell(deployment, COMPONENT, "ScalingReplicaSet", &message).await;
    }
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
            scale(deployment, set, 0, index, writer).await;
        }
        let gone = old_total == 0
            && old.iter().all(|set| set.status.as_ref().is_none_or(|status| status.replicas == 0));
        if gone {
            scale(deployment, current, desired, index, writer).await;
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
    scale(deployment, current, grown, index, writer).await;
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
            scale(deployment, set, replicas(set) - total_step, index, writer).await;
        }
    }
}

async fn scale(
    deployment: &Deployment,
    set: &ReplicaSet,
    wanted: i32,
    index: &mut Index,
    writer: &mut Writer,
) {
    let (held, name) = (replicas(set), set.name_any());
    if held != wanted {
        let patch = json!({ "spec": { "replicas": wanted } });
        if writer.patch(&mut index.replica_sets, &key(set), &patch).await {
            let direction = if wanted > held { "up" } else { "down" };
            let message = format!("Scaled {direction} replica set {name} from {held} to {wanted}");
            writer.tell(deployment, COMPONENT, "ScalingReplicaSet", &message).await;
        }
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

/// Writes the status; returns when the rollout has taken too long.
async fn update_status(
    deployment: &Deployment,
    uid: &str,
    name: &str,
    index: &mut Index,
    writer: &mut Writer,
) -> Option<jiff::Timestamp> {
    // Sums the status of the ReplicaSets, as the real controller does; it lags behind the pods.
    let deployment = index.deployments.get(&key(deployment)).cloned()?;
    let (current, old) = owned(uid, name, index);
    let sets: Vec<&Arc<ReplicaSet>> = current.iter().chain(&old).collect();
    let sum = |count: fn(&ReplicaSet) -> i32| sets.iter().map(|set| count(set)).sum::<i32>();
    let held = |set: &ReplicaSet| set.status.as_ref().map_or(0, |status| status.replicas);
    let ready = |set: &ReplicaSet| {
        set.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or(0)
    };
    let desired = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let (total, up) = (sum(held), sum(available));
    let missing = if is_recreate(&deployment) { desired } else { slack(&deployment).1 };
    let old_status = deployment.status.clone().unwrap_or_default();
    let mut status = DeploymentStatus {
        replicas: Some(total),
        updated_replicas: Some(current.as_ref().map_or(0, |set| held(set))),
        ready_replicas: Some(sum(ready)),
        available_replicas: Some(up),
        unavailable_replicas: Some((desired.max(total) - up).max(0)),
        observed_generation: deployment.metadata.generation,
        ..DeploymentStatus::default()
    };
    let now = whole_seconds(writer.now());
    let progress = progress(&deployment, &old_status, &status, name, now);
    let due = (progress.status == "True").then(|| deadline(&deployment, &progress)).flatten();
    let mut conditions = vec![availability(&old_status, up >= desired - missing, now), progress];
    conditions.extend(failure(&old_status, current.as_deref(), &old, now));
    status.conditions = Some(conditions);
    if old_status != status {
        let mut deployment = (*deployment).clone();
        deployment.status = Some(status);
        writer.replace_status(&mut index.deployments, &deployment).await;
    }
    due
}

fn held<'a>(status: &'a DeploymentStatus, kind: &str) -> Option<&'a DeploymentCondition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == kind)
}

/// A condition from now on; the time of its transition stays if its status does.
fn condition(
    old: &DeploymentStatus,
    (kind, verdict): (&str, &str),
    (reason, message): (&str, String),
    now: jiff::Timestamp,
) -> DeploymentCondition {
    let since = held(old, kind).filter(|held| held.status == verdict);
    let since = since.and_then(|held| held.last_transition_time.clone());
    DeploymentCondition {
        type_: kind.to_owned(),
        status: verdict.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_transition_time: Some(since.unwrap_or(Time(now))),
        last_update_time: Some(Time(now)),
    }
}

/// The condition that is there if it says the same, else a new one.
fn kept_or(old: &DeploymentStatus, new: DeploymentCondition) -> DeploymentCondition {
    let same =
        held(old, &new.type_).filter(|held| held.status == new.status && held.reason == new.reason);
    same.cloned().unwrap_or(new)
}

fn availability(old: &DeploymentStatus, enough: bool, now: jiff::Timestamp) -> DeploymentCondition {
    let (verdict, reason, message) = if enough {
        ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
    } else {
        ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
    };
    kept_or(old, condition(old, ("Available", verdict), (reason, message.to_owned()), now))
}

/// The condition of the rollout to the ReplicaSet of this name. Its time is that of the last
/// progress, from which the deadline counts.
fn progress(
    deployment: &Deployment,
    old: &DeploymentStatus,
    new: &DeploymentStatus,
    name: &str,
    now: jiff::Timestamp,
) -> DeploymentCondition {
    const KIND: &str = "Progressing";
    let desired = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let paused = deployment.spec.as_ref().and_then(|spec| spec.paused) == Some(true);
    let count = |count: Option<i32>| count.unwrap_or(0);
    let (updated, total) = (count(new.updated_replicas), count(new.replicas));
    let up = count(new.available_replicas);
    // What is said about another ReplicaSet is over.
    let held = held(old, KIND).filter(|held| {
        held.message.as_deref().is_some_and(|message| message.contains(&format!("{name:?}")))
    });
    let is_done = held.is_some_and(|held| held.reason.as_deref() == Some(DONE));
    if let Some(held) = held.filter(|_| is_done && updated == total) {
        return held.clone();
    }
    if updated == desired && total == desired && up >= desired {
        let message = format!("ReplicaSet \"{name}\" has successfully progressed.");
        return condition(old, (KIND, "True"), (DONE, message), now);
    }
    let Some(held) = held else {
        let message = format!("Created new replica set \"{name}\"");
        return condition(old, (KIND, "True"), ("NewReplicaSetCreated", message), now);
    };
    let old_ones =
        |status: &DeploymentStatus| count(status.replicas) - count(status.updated_replicas);
    let has_progressed = updated > count(old.updated_replicas)
        || old_ones(new) < old_ones(old)
        || count(new.ready_replicas) > count(old.ready_replicas)
        || up > count(old.available_replicas);
    if has_progressed || is_done {
        let message = format!("ReplicaSet \"{name}\" is progressing.");
        return condition(old, (KIND, "True"), ("ReplicaSetUpdated", message), now);
    }
    if !paused && held.status == "True" && deadline(deployment, held).is_some_and(|at| at <= now) {
        let message = format!("ReplicaSet \"{name}\" has timed out progressing.");
        return condition(old, (KIND, "False"), ("ProgressDeadlineExceeded", message), now);
    }
    held.clone()
}

/// Reason of the condition of a rollout that has ended.
const DONE: &str = "NewReplicaSetAvailable";

/// When a rollout that makes no further progress has taken too long; `None` if it may take for
/// ever or has ended.
fn deadline(deployment: &Deployment, progress: &DeploymentCondition) -> Option<jiff::Timestamp> {
    let seconds = deployment.spec.as_ref()?.progress_deadline_seconds.unwrap_or(600);
    if seconds == i32::MAX || progress.reason.as_deref() == Some(DONE) {
        return None;
    }
    let since = progress.last_update_time.as_ref()?.0;
    since.checked_add(jiff::SignedDuration::from_secs(seconds.into())).ok()
}

/// The condition of a Deployment whose pods are refused: that of its current ReplicaSet, or of
/// another one.
fn failure(
    old: &DeploymentStatus,
    current: Option<&ReplicaSet>,
    others: &[Arc<ReplicaSet>],
    now: jiff::Timestamp,
) -> Option<DeploymentCondition> {
    const KIND: &str = "ReplicaFailure";
    let of = |set: &ReplicaSet| {
        let mut conditions =
            set.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions.find(|condition| condition.type_ == KIND).cloned()
    };
    let found = current.and_then(of).or_else(|| others.iter().find_map(|set| of(set)))?;
    let words = (found.reason.as_deref().unwrap_or_default(), found.message.unwrap_or_default());
    Some(kept_or(old, condition(old, (KIND, &found.status), words, now)))
}
