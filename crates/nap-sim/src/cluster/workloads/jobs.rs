//! The Job controller: runs pods until enough of them have succeeded or too many have failed.
//!
//! A pod carries the tracking finalizer until the Job has counted its end, so that no result is
//! lost with a node. Left out: `podFailurePolicy`, `successPolicy` and `backoffLimitPerIndex`; a
//! Job that has one gets an event that says so.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobSpec, JobStatus, UncountedTerminatedPods};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{count, owner};
use crate::cluster::index::{Index, Key, key};
use crate::cluster::write::Writer;
use crate::cluster::{earliest, pods};

const COMPONENT: &str = "job-controller";
const FINALIZER: &str = "batch.kubernetes.io/job-tracking";
const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// Pause after the first failure; it doubles with every further one.
const BACKOFF: SignedDuration = SignedDuration::from_secs(10);
const MAX_BACKOFF: SignedDuration = SignedDuration::from_mins(10);
/// Most pods that are created in one pass.
const BURST: usize = 500;

/// Reasons and messages of failures.
const BACKOFF_LIMIT: (&str, &str) =
    ("BackoffLimitExceeded", "Job has reached the specified backoff limit");
const DEADLINE: (&str, &str) =
    ("DeadlineExceeded", "Job was active longer than specified deadline");

/// Why a Job ends.
struct End {
    complete: bool,
    reason: &'static str,
    message: &'static str,
}

/// Does the next step of a Job; returns when the one after it is due.
pub(super) async fn reconcile(
    job: &Arc<Job>,
    index: &mut Index,
    writer: &mut Writer,
) -> Option<Timestamp> {
    let (uid, spec) = (job.uid()?, job.spec.as_ref()?);
    if job.metadata.deletion_timestamp.is_some() || is_foreign(spec) {
        return None;
    }
    if let Some(ended) = finished_at(job) {
        let ttl = SignedDuration::from_secs(spec.ttl_seconds_after_finished?.into());
        let due = ended.checked_add(ttl).ok()?;
        if due > writer.now() {
            return Some(due);
        }
        writer.delete(&mut index.jobs, &**job, None).await;
        return None;
    }
    let now = whole_seconds(writer.now());
    let mut status = job.status.clone().unwrap_or_default();
    if status.start_time.is_none() {
        warn_of_unsupported(job, spec, writer).await;
    }
    let owned: Vec<Arc<Pod>> = index.pods.managed_by(&uid).cloned().collect();
    let counted = count_ended(&mut status, spec, &owned);
    let wake = step(job, spec, &mut status, &owned, now, index, writer).await;
    let held: Vec<Arc<Pod>> = index.pods.managed_by(&uid).cloned().collect();
    let running = |pod: &&Arc<Pod>| !pods::is_finished(pod) && !pods::is_deleting(pod);
    let active = held.iter().filter(running).count();
    let terminating =
        held.iter().filter(|pod| pods::is_deleting(pod) && !pods::is_finished(pod)).count();
    let ready = held.iter().filter(running).filter(|pod| pods::is_ready(pod)).count();
    status.active = (active > 0).then(|| count(active));
    status.ready = Some(count(ready));
    status.terminating = Some(count(terminating));
    if job.status.as_ref() != Some(&status) {
        let mut job = (**job).clone();
        job.status = Some(status);
        if !writer.replace_status(&mut index.jobs, &job).await {
            return wake;
        }
    }
    for pod in counted {
        release(&pod, index, writer).await;
    }
    wake
}

/// Decides how the Job goes on, and creates and deletes its pods.
async fn step(
    job: &Job,
    spec: &JobSpec,
    status: &mut JobStatus,
    owned: &[Arc<Pod>],
    now: Timestamp,
    index: &mut Index,
    writer: &mut Writer,
) -> Option<Timestamp> {
    let active: Vec<&Arc<Pod>> =
        owned.iter().filter(|pod| !pods::is_finished(pod) && !pods::is_deleting(pod)).collect();
    if spec.suspend == Some(true) {
        for pod in &active {
            writer.delete_for(job, COMPONENT, &mut index.pods, pod).await;
        }
        if set_condition(status, "Suspended", "True", "JobSuspended", "Job suspended", now) {
            status.start_time = None;
            writer.event(job, COMPONENT, "Normal", "Suspended", "Job suspended").await;
        }
        return None;
    }
    if status.conditions.iter().flatten().any(|held| held.type_ == "Suspended") {
        set_condition(status, "Suspended", "False", "JobResumed", "Job resumed", now);
    }
    let started = status.start_time.get_or_insert(Time(now)).0;
    let deadline = spec
        .active_deadline_seconds
        .and_then(|seconds| started.checked_add(SignedDuration::from_secs(seconds)).ok());
    if let Some(end) = end_of(spec, status, owned, deadline.is_some_and(|at| at <= now)) {
        for pod in &active {
            writer.delete_for(job, COMPONENT, &mut index.pods, pod).await;
        }
        let target = if end.complete { "SuccessCriteriaMet" } else { "FailureTarget" };
        set_condition(status, target, "True", end.reason, end.message, now);
        // The Job has ended when no pod of it is left running.
        let uid = job.uid().unwrap_or_default();
        if index.pods.managed_by(&uid).any(|pod| !pods::is_finished(pod)) {
            return None;
        }
        let (kind, event) =
            if end.complete { ("Complete", "Completed") } else { ("Failed", end.reason) };
        set_condition(status, kind, "True", end.reason, end.message, now);
        let (severity, message) = if end.complete {
            status.completion_time = Some(Time(now));
            ("Normal", "Job completed")
        } else {
            ("Warning", end.message)
        };
        writer.event(job, COMPONENT, severity, event, message).await;
        let ttl = spec.ttl_seconds_after_finished.map(|ttl| SignedDuration::from_secs(ttl.into()));
        return ttl.and_then(|ttl| now.checked_add(ttl).ok());
    }
    let resume = backoff(status, owned, now);
    if resume.is_none_or(|resume| resume <= now) {
        scale(job, spec, status, &active, owned, index, writer).await;
        return deadline;
    }
    earliest(deadline, resume)
}

/// Why the Job ends now; `None` while it goes on.
fn end_of(spec: &JobSpec, status: &JobStatus, owned: &[Arc<Pod>], is_late: bool) -> Option<End> {
    // Once decided, it stays decided while the pods stop.
    let held = |kind: &str| status.conditions.iter().flatten().find(|held| held.type_ == kind);
    let failed = |(reason, message)| Some(End { complete: false, reason, message });
    let (reason, message) = ("CompletionsReached", "Reached expected number of succeeded pods");
    let complete = Some(End { complete: true, reason, message });
    if held("SuccessCriteriaMet").is_some() {
        return complete;
    }
    if let Some(target) = held("FailureTarget") {
        let late = target.reason.as_deref() == Some(DEADLINE.0);
        return failed(if late { DEADLINE } else { BACKOFF_LIMIT });
    }
    let restarts: i32 = owned.iter().map(|pod| pods::restarts(pod)).sum();
    let in_place = spec.template.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref())
        == Some("OnFailure");
    let failures = status.failed.unwrap_or(0) + if in_place { restarts } else { 0 };
    if failures > spec.backoff_limit.unwrap_or(6) {
        return failed(BACKOFF_LIMIT);
    }
    if is_late {
        return failed(DEADLINE);
    }
    let succeeded = status.succeeded.unwrap_or(0);
    let active = owned.iter().any(|pod| !pods::is_finished(pod) && !pods::is_deleting(pod));
    let enough = match spec.completions {
        Some(completions) => succeeded >= completions,
        // A work queue: one success ends it once no pod is left.
        None => succeeded > 0 && !active,
    };
    complete.filter(|_| enough)
}

/// Counts the pods that have ended since the last look; returns those to be released.
fn count_ended(status: &mut JobStatus, spec: &JobSpec, owned: &[Arc<Pod>]) -> Vec<Arc<Pod>> {
    let tracked = |pod: &Pod| pod.finalizers().iter().any(|held| held == FINALIZER);
    let mut uncounted = status.uncounted_terminated_pods.take().unwrap_or_default();
    let still = |uids: &mut Option<Vec<String>>| {
        let mut kept = uids.take().unwrap_or_default();
        kept.retain(|uid| owned.iter().any(|pod| pod.uid().as_ref() == Some(uid) && tracked(pod)));
        *uids = (!kept.is_empty()).then_some(kept);
    };
    still(&mut uncounted.succeeded);
    still(&mut uncounted.failed);
    let mut ended = Vec::new();
    let mut indexes = read_indexes(status.completed_indexes.as_deref());
    for pod in owned.iter().filter(|pod| tracked(pod)) {
        let succeeded = pods::phase(pod) == "Succeeded";
        // A pod that is deleted before its end has failed, once its containers have stopped.
        let stopped = pods::is_deleting(pod)
            && (pods::node_of(pod).is_empty()
                || pod.metadata.deletion_grace_period_seconds == Some(0));
        if !(pods::is_finished(pod) || stopped) {
            continue;
        }
        ended.push(Arc::clone(pod));
        let (total, list) = if succeeded {
            (&mut status.succeeded, &mut uncounted.succeeded)
        } else {
            (&mut status.failed, &mut uncounted.failed)
        };
        let uid = pod.uid().unwrap_or_default();
        let list = list.get_or_insert_default();
        if list.contains(&uid) {
            continue;
        }
        list.push(uid);
        if is_indexed(spec) {
            match completion_index(pod) {
                Some(number) if succeeded && !indexes.insert(number) => continue,
                _ => {}
            }
        }
        *total = Some(total.unwrap_or(0) + 1);
    }
    if is_indexed(spec) && !indexes.is_empty() {
        status.completed_indexes = Some(write_indexes(&indexes));
    }
    status.uncounted_terminated_pods =
        (uncounted != UncountedTerminatedPods::default()).then_some(uncounted);
    ended
}

/// When the next pod may start after the latest failure; `None` without failures in a row.
fn backoff(status: &JobStatus, owned: &[Arc<Pod>], now: Timestamp) -> Option<Timestamp> {
    let ended = |phase: &str| {
        owned.iter().filter(|pod| pods::phase(pod) == phase).filter_map(|pod| ended_at(pod)).max()
    };
    let failed = ended("Failed")?;
    if ended("Succeeded").is_some_and(|succeeded| succeeded > failed) {
        return None;
    }
    let times = u32::try_from(status.failed.unwrap_or(1).clamp(1, 16) - 1).unwrap_or(0);
    let pause = BACKOFF.saturating_mul(1 << times).min(MAX_BACKOFF);
    failed.checked_add(pause).ok().filter(|resume| *resume > now)
}

fn ended_at(pod: &Pod) -> Option<Timestamp> {
    let containers = pod.status.as_ref()?.container_statuses.as_ref()?;
    let ends = containers.iter().filter_map(|container| {
        container.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref().map(|time| time.0)
    });
    ends.max()
}

/// Creates the pods that are missing and deletes those that are too many.
async fn scale(
    job: &Job,
    spec: &JobSpec,
    status: &JobStatus,
    active: &[&Arc<Pod>],
    owned: &[Arc<Pod>],
    index: &mut Index,
    writer: &mut Writer,
) {
    let parallelism = usize::try_from(spec.parallelism.unwrap_or(1)).unwrap_or(0);
    let succeeded = usize::try_from(status.succeeded.unwrap_or(0)).unwrap_or(0);
    let wanted = match spec.completions {
        Some(completions) => {
            let left = usize::try_from(completions).unwrap_or(0).saturating_sub(succeeded);
            parallelism.min(left)
        }
        // After the first success of a work queue no pod is added.
        None if succeeded > 0 => active.len().min(parallelism),
        None => parallelism,
    };
    for pod in active.iter().skip(wanted) {
        writer.delete_for(job, COMPONENT, &mut index.pods, pod).await;
    }
    let missing = wanted.saturating_sub(active.len()).min(BURST);
    let mut free = free_indexes(spec, status, owned);
    for _ in 0..missing {
        let number = if is_indexed(spec) { free.pop_first() } else { None };
        if is_indexed(spec) && number.is_none() {
            break;
        }
        let pod = pod(job, spec, number);
        if writer.create_for(job, COMPONENT, &mut index.pods, &pod).await.is_err() {
            break;
        }
    }
}

fn is_indexed(spec: &JobSpec) -> bool {
    spec.completion_mode.as_deref() == Some("Indexed")
}

fn completion_index(pod: &Pod) -> Option<i32> {
    pod.annotations().get(INDEX)?.parse().ok()
}

/// Indexes that neither have succeeded nor have a pod that runs.
fn free_indexes(spec: &JobSpec, status: &JobStatus, owned: &[Arc<Pod>]) -> BTreeSet<i32> {
    let mut free: BTreeSet<i32> = (0..spec.completions.unwrap_or(0)).collect();
    for done in read_indexes(status.completed_indexes.as_deref()) {
        free.remove(&done);
    }
    for pod in owned.iter().filter(|pod| !pods::is_finished(pod) && !pods::is_deleting(pod)) {
        if let Some(number) = completion_index(pod) {
            free.remove(&number);
        }
    }
    free
}

/// `1,3-5` as numbers.
fn read_indexes(text: Option<&str>) -> BTreeSet<i32> {
    let parts = text.unwrap_or_default().split(',').filter(|part| !part.is_empty());
    let range = |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        Some(from.parse::<i32>().ok()?..=to.parse::<i32>().ok()?)
    };
    parts.filter_map(range).flatten().collect()
}

fn write_indexes(indexes: &BTreeSet<i32>) -> String {
    let mut ranges: Vec<(i32, i32)> = Vec::new();
    for number in indexes {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => ranges.push((*number, *number)),
        }
    }
    let show = |(from, to): &(i32, i32)| match to - from {
        0 => from.to_string(),
        1 => format!("{from},{to}"),
        _ => format!("{from}-{to}"),
    };
    ranges.iter().map(show).collect::<Vec<_>>().join(",")
}

fn pod(job: &Job, spec: &JobSpec, number: Option<i32>) -> Value {
    let template = serde_json::to_value(&spec.template).unwrap_or_default();
    let name = job.name_any();
    let mut metadata = json!({
        "generateName": format!("{name}-"),
        "labels": template["metadata"]["labels"],
        "annotations": template["metadata"]["annotations"],
        "ownerReferences": owner(job),
        "finalizers": [FINALIZER],
    });
    let mut pod_spec = template["spec"].clone();
    if let Some(number) = number {
        metadata["generateName"] = json!(format!("{name}-{number}-"));
        metadata["annotations"][INDEX] = json!(number.to_string());
        metadata["labels"][INDEX] = json!(number.to_string());
        pod_spec["hostname"] = json!(format!("{name}-{number}"));
        for list in ["containers", "initContainers"] {
            for container in pod_spec[list].as_array_mut().into_iter().flatten() {
                let variable =
                    json!({ "name": "JOB_COMPLETION_INDEX", "value": number.to_string() });
                match container["env"].as_array_mut() {
                    Some(env) => env.push(variable),
                    None => container["env"] = json!([variable]),
                }
            }
        }
    }
    json!({ "metadata": metadata, "spec": pod_spec })
}

/// Sets a condition; false if it is set already.
fn set_condition(
    status: &mut JobStatus,
    kind: &str,
    verdict: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> bool {
    let conditions = status.conditions.get_or_insert_default();
    if conditions.iter().any(|held| held.type_ == kind && held.status == verdict) {
        return false;
    }
    conditions.retain(|held| held.type_ != kind);
    conditions.push(JobCondition {
        type_: kind.to_owned(),
        status: verdict.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_probe_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    });
    true
}

/// When the Job completed or failed; `None` while it runs.
pub(super) fn finished_at(job: &Job) -> Option<Timestamp> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let ended = conditions
        .iter()
        .find(|held| matches!(held.type_.as_str(), "Complete" | "Failed") && held.status == "True");
    Some(ended?.last_transition_time.as_ref()?.0)
}

pub(super) fn is_complete(job: &Job) -> bool {
    let conditions = job.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|conditions| {
        conditions.iter().any(|held| held.type_ == "Complete" && held.status == "True")
    })
}

/// Whether another controller runs the Job.
fn is_foreign(spec: &JobSpec) -> bool {
    spec.managed_by.as_deref().is_some_and(|name| name != "kubernetes.io/job-controller")
}

async fn warn_of_unsupported(job: &Job, spec: &JobSpec, writer: &mut Writer) {
    for (field, given) in [
        ("podFailurePolicy", spec.pod_failure_policy.is_some()),
        ("successPolicy", spec.success_policy.is_some()),
        ("backoffLimitPerIndex", spec.backoff_limit_per_index.is_some()),
    ] {
        if given {
            let message = format!("spec.{field} is not acted on by the embedded cluster");
            writer.event(job, COMPONENT, "Warning", "NotSupported", &message).await;
        }
    }
}

async fn release(pod: &Pod, index: &mut Index, writer: &mut Writer) {
    let kept: Vec<&String> = pod.finalizers().iter().filter(|held| *held != FINALIZER).collect();
    let patch = json!({ "metadata": { "uid": pod.uid(), "finalizers": kept } });
    if writer.patch(&mut index.pods, &key(pod), &patch).await && pods::is_deleting(pod) {
        // It may have been the last thing that kept the pod; the watch says so if not.
        index.pods.remove(&key(pod));
    }
}

/// Whether a pod carries the tracking finalizer.
pub(super) fn is_tracked(pod: &Pod) -> bool {
    pod.finalizers().iter().any(|held| held == FINALIZER)
}

/// Releases those of the pods whose Job is gone or leaves: nobody counts them any more.
pub(super) async fn release_orphans(
    candidates: BTreeSet<Key>,
    index: &mut Index,
    writer: &mut Writer,
) {
    for candidate in candidates {
        let Some(pod) = index.pods.get(&candidate).filter(|pod| is_tracked(pod)).cloned() else {
            continue;
        };
        let owner = pods::controller_of(&*pod);
        let job = owner.and_then(|owner| {
            let key = (pod.namespace().unwrap_or_default(), owner.name.clone());
            index.jobs.get(&key).filter(|job| job.uid().as_ref() == Some(&owner.uid))
        });
        if job.is_none_or(|job| job.metadata.deletion_timestamp.is_some()) {
            release(&pod, index, writer).await;
        }
    }
}

fn whole_seconds(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completed_indexes_are_written_as_ranges() {
        let indexes = BTreeSet::from([0, 2, 3, 5, 6, 7, 9]);
        assert_eq!(write_indexes(&indexes), "0,2,3,5-7,9");
        assert_eq!(read_indexes(Some("0,2,3,5-7,9")), indexes);
        assert_eq!(read_indexes(None), BTreeSet::new());
    }
}
