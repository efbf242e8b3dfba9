//! The HorizontalPodAutoscaler controller (`autoscaling/v2`).
//!
//! Every 15 s it reads the use of the pods from `metrics.k8s.io`, as the real one does, and scales
//! the target within the limits and the behaviour of the autoscaler. Metrics of kinds other than
//! `Resource` and `ContainerResource` have no source here: the condition `ScalingActive` says so.

mod behavior;
mod replicas;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::autoscaling::v2::{
    HorizontalPodAutoscaler, HorizontalPodAutoscalerCondition, HorizontalPodAutoscalerSpec,
    HorizontalPodAutoscalerStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::cluster::earliest;
use crate::cluster::index::{Index, Key};
use crate::cluster::write::Writer;
use behavior::History;
use replicas::{Proposal, Usage};

const COMPONENT: &str = "horizontal-pod-autoscaler";
/// Time between two looks at the metrics.
const PERIOD: SignedDuration = SignedDuration::from_secs(15);

/// What the controller remembers of each autoscaler, by uid.
#[derive(Debug, Default)]
pub(in crate::cluster) struct Autoscaling(BTreeMap<String, Memory>);

#[derive(Debug)]
struct Memory {
    /// Next look at the metrics.
    next: Timestamp,
    history: History,
}

/// A scalable object.
struct Target {
    replicas: i32,
    selector: LabelSelector,
}

/// Looks at every autoscaler whose time has come; returns when the next one is due.
pub(super) async fn pass(
    autoscaling: &mut Autoscaling,
    index: &mut Index,
    writer: &mut Writer,
) -> Option<Timestamp> {
    let autoscalers = index.autoscalers.snapshot();
    let known = |uid: &String| autoscalers.iter().any(|held| held.uid().as_ref() == Some(uid));
    autoscaling.0.retain(|uid, _| known(uid));
    let mut wake = None;
    for autoscaler in &autoscalers {
        let now = writer.now();
        let memory = autoscaling
            .0
            .entry(autoscaler.uid().unwrap_or_default())
            .or_insert_with(|| Memory { next: now, history: History::default() });
        if memory.next <= now {
            memory.next = now.checked_add(PERIOD).unwrap_or(now);
            reconcile(autoscaler, &mut memory.history, index, writer).await;
        }
        wake = earliest(wake, Some(memory.next));
    }
    wake
}

async fn reconcile(
    autoscaler: &Arc<HorizontalPodAutoscaler>,
    history: &mut History,
    index: &mut Index,
    writer: &mut Writer,
) {
    let Some(spec) = autoscaler.spec.as_ref() else { return };
    let now = Timestamp::from_second(writer.now().as_second()).unwrap_or_else(|_| writer.now());
    let mut status = autoscaler.status.clone().unwrap_or_default();
    status.observed_generation = autoscaler.metadata.generation;
    let of: Key = (autoscaler.namespace().unwrap_or_default(), spec.scale_target_ref.name.clone());
    let kind = spec.scale_target_ref.kind.as_str();
    match target(kind, spec.scale_target_ref.api_version.as_deref(), &of, index) {
        Err(message) => {
            let why = ("FailedGetScale", message.as_str());
            set(&mut status, "AbleToScale", false, why, now);
            writer.event(&**autoscaler, COMPONENT, "Warning", why.0, why.1).await;
        }
        Ok(target) => {
            let why = (
                "SucceededGetScale",
                "the HPA controller was able to get the target's current scale",
            );
            set(&mut status, "AbleToScale", true, why, now);
            let wanted =
                decide(autoscaler, spec, &target, history, &mut status, now, index, writer).await;
            status.current_replicas = Some(target.replicas);
            status.desired_replicas = wanted;
            if wanted != target.replicas && scale(kind, &of, wanted, index, writer).await {
                history.scaled(now, wanted - target.replicas);
                status.last_scale_time = Some(Time(now));
                let why = (
                    "SucceededRescale",
                    format!("the HPA controller was able to update the target scale to {wanted}"),
                );
                set(&mut status, "AbleToScale", true, (why.0, &why.1), now);
                let message = format!("New size: {wanted}; reason: metrics");
                writer
                    .event(&**autoscaler, COMPONENT, "Normal", "SuccessfulRescale", &message)
                    .await;
            }
        }
    }
    if autoscaler.status.as_ref() != Some(&status) {
        let mut autoscaler = (**autoscaler).clone();
        autoscaler.status = Some(status);
        writer.replace_status(&mut index.autoscalers, &autoscaler).await;
    }
}

/// The number of replicas that the target should have now.
#[expect(clippy::too_many_arguments, reason = "one decision, with everything that it reads")]
async fn decide(
    autoscaler: &HorizontalPodAutoscaler,
    spec: &HorizontalPodAutoscalerSpec,
    target: &Target,
    history: &mut History,
    status: &mut HorizontalPodAutoscalerStatus,
    now: Timestamp,
    index: &Index,
    writer: &mut Writer,
) -> i32 {
    let (least, most) = (spec.min_replicas.unwrap_or(1), spec.max_replicas);
    let current = target.replicas;
    if current == 0 {
        let why = (
            "ScalingDisabled",
            "scaling is disabled since the replica count of the target is zero",
        );
        set(status, "ScalingActive", false, why, now);
        return 0;
    }
    if !(least..=most).contains(&current) {
        return current.clamp(least, most);
    }
    let usage = usage(&autoscaler.namespace().unwrap_or_default(), writer).await;
    let pods: Vec<_> = index
        .pods
        .values()
        .filter(|pod| {
            pod.namespace() == autoscaler.namespace()
                && crate::cluster::pods::selects(&target.selector, pod.labels())
        })
        .collect();
    let (mut wanted, mut shown, mut failure) = (None, Vec::new(), None);
    for metric in spec.metrics.iter().flatten() {
        match replicas::propose(metric, current, &pods, &usage) {
            Ok(Proposal { replicas, status }) => {
                wanted = wanted.max(Some(replicas));
                shown.push(status);
            }
            Err(problem) => failure = Some(problem),
        }
    }
    status.current_metrics = (!shown.is_empty()).then_some(shown);
    if let Some((reason, message)) = &failure {
        writer.event(autoscaler, COMPONENT, "Warning", reason, message).await;
    }
    // One metric that cannot be read must not scale down.
    let wanted = match (wanted, failure) {
        (Some(wanted), None) => wanted,
        (Some(wanted), Some(_)) if wanted > current => wanted,
        (_, Some((reason, message))) => {
            set(status, "ScalingActive", false, (reason, &message), now);
            return current;
        }
        (None, None) => return current,
    };
    let why = ("ValidMetricFound", "the HPA was able to successfully calculate a replica count");
    set(status, "ScalingActive", true, why, now);
    let steady = history.stabilise(spec.behavior.as_ref(), current, wanted, now);
    let step = history.limit(spec.behavior.as_ref(), current, steady, now);
    let bounded = step.clamp(least, most);
    let limited = if wanted > most {
        (
            true,
            ("TooManyReplicas", "the desired replica count is more than the maximum replica count"),
        )
    } else if wanted < least {
        (
            true,
            ("TooFewReplicas", "the desired replica count is less than the minimum replica count"),
        )
    } else {
        (false, ("DesiredWithinRange", "the desired count is within the acceptable range"))
    };
    set(status, "ScalingLimited", limited.0, limited.1, now);
    bounded
}

/// The scale of the target; an error says why there is none.
fn target(kind: &str, version: Option<&str>, of: &Key, index: &Index) -> Result<Target, String> {
    macro_rules! found {
        ($mirror:ident) => {
            index.$mirror.get(of).and_then(|object| object.spec.as_ref()).map(|spec| Target {
                replicas: spec.replicas.unwrap_or(1),
                selector: spec.selector.clone(),
            })
        };
    }
    let found = match (version.unwrap_or("apps/v1"), kind) {
        ("apps/v1", "Deployment") => found!(deployments),
        ("apps/v1", "ReplicaSet") => found!(replica_sets),
        ("apps/v1", "StatefulSet") => found!(stateful_sets),
        (version, kind) => {
            return Err(format!("the embedded cluster does not scale {version} {kind}"));
        }
    };
    found.ok_or_else(|| format!("{}s.apps {:?} not found", kind.to_lowercase(), of.1))
}

async fn scale(kind: &str, of: &Key, to: i32, index: &mut Index, writer: &mut Writer) -> bool {
    let patch = json!({ "spec": { "replicas": to } });
    match kind {
        "Deployment" => writer.patch(&mut index.deployments, of, &patch).await,
        "ReplicaSet" => writer.patch(&mut index.replica_sets, of, &patch).await,
        _ => writer.patch(&mut index.stateful_sets, of, &patch).await,
    }
}

/// Use of the pods of a namespace, by pod and container.
async fn usage(namespace: &str, writer: &Writer) -> Usage {
    let path = format!("/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods");
    let Ok(request) = http::Request::get(path).body(Vec::new()) else { return Usage::default() };
    match writer.client().request::<Value>(request).await {
        Ok(list) => Usage::read(&list),
        Err(error) => {
            tracing::warn!(%error, namespace, "reading pod metrics failed");
            Usage::default()
        }
    }
}

fn set(
    status: &mut HorizontalPodAutoscalerStatus,
    kind: &str,
    holds: bool,
    (reason, message): (&str, &str),
    now: Timestamp,
) {
    let verdict = if holds { "True" } else { "False" };
    let conditions = status.conditions.get_or_insert_default();
    let held = conditions.iter().position(|held| held.type_ == kind);
    let since = held
        .and_then(|place| conditions.get(place))
        .filter(|held| held.status == verdict)
        .and_then(|held| held.last_transition_time.clone());
    let condition = HorizontalPodAutoscalerCondition {
        type_: kind.to_owned(),
        status: verdict.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_transition_time: Some(since.unwrap_or(Time(now))),
    };
    match held.and_then(|place| conditions.get_mut(place)) {
        Some(held) => *held = condition,
        None => conditions.push(condition),
    }
}
