//! The CronJob controller: creates Jobs at the hits of a schedule.

use std::sync::Arc;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{CronJob, CronJobSpec, CronJobStatus, Job};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use nap_api::cron::{Schedule, time_zone};
use serde_json::json;

use super::{jobs, owner};
use crate::cluster::index::Index;
use crate::cluster::write::Writer;

const COMPONENT: &str = "cronjob-controller";
const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";
/// Hits that were missed and are looked at; a schedule that missed more starts from the newest.
const MAX_MISSED: usize = 100;

/// Does the next step of a CronJob; returns the next hit of its schedule.
pub(super) async fn reconcile(
    cron_job: &Arc<CronJob>,
    index: &mut Index,
    writer: &mut Writer,
) -> Option<Timestamp> {
    let (uid, spec) = (cron_job.uid()?, cron_job.spec.as_ref()?);
    if cron_job.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let zone = match spec.time_zone.as_deref() {
        None => Some(TimeZone::UTC),
        Some(name) => time_zone(name),
    };
    // The API server refuses both; a definition that is older than the rule does nothing.
    let (Some(schedule), Some(zone)) = (Schedule::parse(&spec.schedule), zone) else {
        let message = format!("unparseable schedule: {:?}", spec.schedule);
        writer.event_once(&**cron_job, COMPONENT, "Warning", "UnparseableSchedule", &message).await;
        return None;
    };
    forget_history(&uid, spec, index, writer).await;
    let mut status = CronJobStatus {
        last_schedule_time: cron_job.status.as_ref().and_then(|s| s.last_schedule_time.clone()),
        last_successful_time: cron_job.status.as_ref().and_then(|s| s.last_successful_time.clone()),
        ..CronJobStatus::default()
    };
    let now = writer.now();
    let due = latest_hit(cron_job, spec, &status, &schedule, &zone, now);
    if let Some(due) = due.filter(|_| spec.suspend != Some(true)) {
        start(cron_job, spec, &uid, due, &mut status, index, writer).await;
    }
    let running: Vec<Arc<Job>> = active(&uid, index);
    let reference = |job: &Arc<Job>| ObjectReference {
        api_version: Some("batch/v1".to_owned()),
        kind: Some("Job".to_owned()),
        name: job.metadata.name.clone(),
        namespace: job.metadata.namespace.clone(),
        uid: job.metadata.uid.clone(),
        // Without the version, which changes with every status of the Job.
        ..ObjectReference::default()
    };
    let active: Vec<ObjectReference> = running.iter().map(reference).collect();
    status.active = (!active.is_empty()).then_some(active);
    let ended = index.jobs.managed_by(&uid).filter(|job| jobs::is_complete(job));
    let last = ended.filter_map(|job| jobs::finished_at(job)).max();
    let last = last.max(status.last_successful_time.as_ref().map(|time| time.0));
    status.last_successful_time = last.map(Time);
    if cron_job.status.as_ref() != Some(&status) {
        let mut cron_job = (**cron_job).clone();
        cron_job.status = Some(status);
        writer.replace_status(&mut index.cron_jobs, &cron_job).await;
    }
    schedule.next_in(&zone, now).filter(|_| spec.suspend != Some(true))
}

/// The newest hit that has no Job yet.
fn latest_hit(
    cron_job: &CronJob,
    spec: &CronJobSpec,
    status: &CronJobStatus,
    schedule: &Schedule,
    zone: &TimeZone,
    now: Timestamp,
) -> Option<Timestamp> {
    let created = cron_job.metadata.creation_timestamp.as_ref().map(|time| time.0)?;
    let mut since = status.last_schedule_time.as_ref().map_or(created, |time| time.0);
    if let Some(seconds) = spec.starting_deadline_seconds {
        let deadline = now.checked_sub(SignedDuration::from_secs(seconds)).unwrap_or(since);
        since = since.max(deadline);
    }
    let hits =
        std::iter::successors(schedule.next_in(zone, since), |hit| schedule.next_in(zone, *hit));
    let missed: Vec<Timestamp> = hits.take_while(|hit| *hit <= now).take(MAX_MISSED).collect();
    if missed.len() < MAX_MISSED {
        return missed.last().copied();
    }
    // Too many to walk through: the newest is within the last stretch of that many minutes.
    let recent = now.checked_sub(SignedDuration::from_mins(100)).ok()?;
    let hits =
        std::iter::successors(schedule.next_in(zone, recent), |hit| schedule.next_in(zone, *hit));
    hits.take_while(|hit| *hit <= now).last().or(missed.last().copied())
}

/// Creates the Job of a hit, as far as the concurrency policy allows it.
async fn start(
    cron_job: &CronJob,
    spec: &CronJobSpec,
    uid: &str,
    due: Timestamp,
    status: &mut CronJobStatus,
    index: &mut Index,
    writer: &mut Writer,
) {
    let running = active(uid, index);
    match spec.concurrency_policy.as_deref() {
        Some("Forbid") if !running.is_empty() => {
            let message = "Not starting job because prior execution is running and concurrency \
                           policy is Forbid";
            writer.event_once(cron_job, COMPONENT, "Normal", "JobAlreadyActive", message).await;
            return;
        }
        Some("Replace") => {
            for job in &running {
                writer.delete(&mut index.jobs, &**job, None).await;
            }
        }
        _ => {}
    }
    let template = serde_json::to_value(&spec.job_template).unwrap_or_default();
    let name = format!("{}-{}", cron_job.name_any(), due.as_second() / 60);
    let mut metadata = json!({
        "name": name,
        "labels": template["metadata"]["labels"],
        "annotations": template["metadata"]["annotations"],
        "ownerReferences": owner(cron_job),
    });
    metadata["annotations"][SCHEDULED] = json!(due.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
    let job = json!({ "metadata": metadata, "spec": template["spec"] });
    let known = (cron_job.namespace().unwrap_or_default(), name.clone());
    if index.jobs.get(&known).is_none() {
        if writer.create_for(cron_job, COMPONENT, &mut index.jobs, &job).await.is_err() {
            return;
        }
        let message = format!("Created job {name}");
        writer.event(cron_job, COMPONENT, "Normal", "SuccessfulCreate", &message).await;
    }
    status.last_schedule_time = Some(Time(due));
}

/// The Jobs that run.
fn active(uid: &str, index: &Index) -> Vec<Arc<Job>> {
    let running = index.jobs.managed_by(uid).filter(|job| {
        jobs::finished_at(job).is_none() && job.metadata.deletion_timestamp.is_none()
    });
    running.cloned().collect()
}

/// Deletes the oldest ended Jobs beyond the history limits.
async fn forget_history(uid: &str, spec: &CronJobSpec, index: &mut Index, writer: &mut Writer) {
    let limits = [
        (true, spec.successful_jobs_history_limit.unwrap_or(3)),
        (false, spec.failed_jobs_history_limit.unwrap_or(1)),
    ];
    for (complete, limit) in limits {
        let mut ended: Vec<Arc<Job>> = index
            .jobs
            .managed_by(uid)
            .filter(|job| {
                jobs::finished_at(job).is_some()
                    && jobs::is_complete(job) == complete
                    && job.metadata.deletion_timestamp.is_none()
            })
            .cloned()
            .collect();
        ended.sort_by_key(|job| {
            (job.status.as_ref().and_then(|status| status.start_time.clone()), job.name_any())
        });
        let extra = ended.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
        for job in ended.iter().take(extra) {
            writer.delete(&mut index.jobs, &**job, None).await;
        }
    }
}
