//! Pods as a kubelet sees them: their statuses, and how long they take to stop.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, LifecycleHandler, Pod};
use kube::ResourceExt as _;
use nap_api::duration::parse_go_duration;
use serde_json::{Value, json};

use crate::node::stamp;

/// On static pods only, which are not read from the API server.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// Label and value of a pod whose readiness probe fails for ever, as in KWOK.
const STAGE: (&str, &str) = ("kwok.x-k8s.io/stage", "unhealthy");
/// Time that a pod runs until it has succeeded, as in KWOK.
const COMPLETE_DELAY: &str = "pod-complete.stage.kwok.x-k8s.io/delay";
/// Time that a pod which ends runs if neither its annotation nor its command says.
const RUN_TIME: Duration = Duration::from_secs(10);
/// Time that a pod needs to stop, as in KWOK.
const STOP_DELAY: &str = "pod-delete.stage.kwok.x-k8s.io/delay";

pub(crate) fn node_name(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default()
}

pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

pub(crate) fn is_mirror(pod: &Pod) -> bool {
    pod.annotations().contains_key(MIRROR)
}

/// End of the grace period of a terminating pod.
pub(crate) fn grace_ends(pod: &Pod) -> Option<Timestamp> {
    pod.metadata.deletion_timestamp.as_ref().map(|time| time.0)
}

/// Time from the deletion of a pod until its containers have stopped by themselves: the longest
/// preStop hook, then `stop`.
pub(crate) fn stop_time(pod: &Pod, stop: Duration) -> Duration {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let annotated = pod.annotations().get(STOP_DELAY).and_then(|text| parse_go_duration(text));
    let hooks = containers.filter_map(pre_stop).chain(annotated);
    hooks.max().unwrap_or_default().saturating_add(stop)
}

fn pre_stop(container: &Container) -> Option<Duration> {
    let hook: &LifecycleHandler = container.lifecycle.as_ref()?.pre_stop.as_ref()?;
    if let Some(sleep) = &hook.sleep {
        return u64::try_from(sleep.seconds).ok().map(Duration::from_secs);
    }
    sleeps(&hook.exec.as_ref()?.command.as_ref()?.join(" "))
}

/// Seconds of the first `sleep` in a command.
fn sleeps(command: &str) -> Option<Duration> {
    let number = word_after(command, |word| word == "sleep" || word.ends_with("/sleep"))?;
    number.trim_end_matches('s').parse().ok().map(Duration::from_secs)
}

/// The word after the first one that is meant.
fn word_after(command: &str, meant: impl Fn(&str) -> bool) -> Option<&str> {
    let mut words = command.split([' ', ';', '&', '|']).filter(|word| !word.is_empty());
    words.find(|word| meant(word))?;
    words.next()
}

/// Time that a pod runs by itself and its exit code; `None` if it runs until it is deleted.
///
/// Pods that are not restarted for ever end, as those of Jobs, and those with the annotation. No
/// container runs, so `sleep 30`, `exit 1` and `false` in the command are all that is understood of
/// it.
pub(crate) fn run_time(pod: &Pod) -> Option<(Duration, i32)> {
    let annotated = pod.annotations().get(COMPLETE_DELAY).and_then(|text| parse_go_duration(text));
    let policy = pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref());
    let ends = matches!(policy, Some("Never" | "OnFailure"));
    if annotated.is_none() && !ends {
        return None;
    }
    let container = pod.spec.as_ref()?.containers.first()?;
    let words = container.command.iter().chain(&container.args).flatten();
    let command = words.cloned().collect::<Vec<_>>().join(" ");
    let exit = word_after(&command, |word| word == "exit").and_then(|code| code.parse().ok());
    let fails = command.split([' ', ';', '&', '|']).any(|word| word == "false");
    let code = exit.unwrap_or(i32::from(fails));
    Some((annotated.or_else(|| sleeps(&command)).unwrap_or(RUN_TIME), code))
}

/// Whether the kubelet starts the containers again after they have failed.
pub(crate) fn restarts_on_failure(pod: &Pod) -> bool {
    let policy = pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref());
    policy != Some("Never")
}

/// Patch of the status of a pod whose containers have ended.
pub(crate) fn ended(pod: &Pod, restarts: u32, code: i32, now: Timestamp) -> Value {
    let (phase, reason) = if code == 0 { ("Succeeded", "Completed") } else { ("Failed", "Error") };
    let condition = |kind: &str| json!({ "type": kind, "status": "False", "reason": "PodCompleted", "lastTransitionTime": stamp(now) });
    let state = json!({ "terminated": {
        "exitCode": code, "reason": reason, "startedAt": started(pod), "finishedAt": stamp(now),
    } });
    patch(
        pod,
        &json!({
            "phase": phase, "conditions": [condition("Ready"), condition("ContainersReady")],
            "containerStatuses": containers(pod, false, restarts, &state),
        }),
    )
}

/// Patch of the status of a pod whose containers have failed and are started again later.
pub(crate) fn crashed(pod: &Pod, restarts: u32, now: Timestamp) -> Value {
    let condition = |kind: &str| json!({ "type": kind, "status": "False", "reason": "ContainersNotReady", "lastTransitionTime": stamp(now) });
    let state = json!({ "waiting": { "reason": "CrashLoopBackOff" } });
    patch(
        pod,
        &json!({
            "conditions": [condition("Ready"), condition("ContainersReady")],
            "containerStatuses": containers(pod, false, restarts, &state),
        }),
    )
}

/// When the first container started.
fn started(pod: &Pod) -> Option<String> {
    let first = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    let running = first.state.as_ref()?.running.as_ref()?;
    running.started_at.as_ref().map(|time| stamp(time.0))
}

/// Patch of the status of a pod whose containers are being created.
pub(crate) fn starting(pod: &Pod, host: &str, restarts: u32, now: Timestamp) -> Value {
    let now = stamp(now);
    let not_ready = |kind: &str| {
        json!({
            "type": kind, "status": "False", "reason": "ContainersNotReady", "lastTransitionTime": now,
        })
    };
    let waiting = json!({ "waiting": { "reason": "ContainerCreating" } });
    patch(
        pod,
        &json!({
            "startTime": now, "hostIP": host, "hostIPs": [{ "ip": host }],
            "conditions": [
                { "type": "Initialized", "status": "True", "lastTransitionTime": now },
                not_ready("Ready"), not_ready("ContainersReady"),
            ],
            "containerStatuses": containers(pod, false, restarts, &waiting),
        }),
    )
}

/// Patch of the status of a pod whose containers run.
pub(crate) fn running(pod: &Pod, address: &str, restarts: u32, now: Timestamp) -> Value {
    let now = stamp(now);
    let ready = pod.labels().get(STAGE.0).is_none_or(|stage| stage != STAGE.1);
    let condition = |kind: &str| {
        if ready {
            json!({ "type": kind, "status": "True", "reason": null, "lastTransitionTime": now })
        } else {
            let message = "containers with unready status";
            json!({ "type": kind, "status": "False", "reason": "ContainersNotReady", "message": message })
        }
    };
    let state = json!({ "running": { "startedAt": now } });
    patch(
        pod,
        &json!({
            "phase": "Running", "podIP": address, "podIPs": [{ "ip": address }],
            "conditions": [condition("Ready"), condition("ContainersReady")],
            "containerStatuses": containers(pod, ready, restarts, &state),
        }),
    )
}

/// The uid guards a new pod of the same name.
fn patch(pod: &Pod, status: &Value) -> Value {
    json!({ "metadata": { "uid": pod.uid() }, "status": status })
}

fn containers(pod: &Pod, ready: bool, restarts: u32, state: &Value) -> Vec<Value> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers
        .map(|container| {
            json!({
                "name": container.name, "image": container.image, "imageID": "",
                "restartCount": restarts, "ready": ready, "started": ready, "state": state,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(pod: Value) -> u64 {
        let pod: Pod = serde_json::from_value(pod).unwrap();
        stop_time(&pod, Duration::from_secs(1)).as_secs()
    }

    fn with_hooks(hooks: &[Value]) -> Value {
        let containers: Vec<Value> = hooks
            .iter()
            .map(|hook| json!({ "name": "c", "lifecycle": { "preStop": hook } }))
            .collect();
        json!({ "spec": { "containers": containers } })
    }

    #[test]
    fn pods_that_are_not_always_restarted_end_as_their_command_says() {
        let run = |policy: &str, command: &str, annotation: Option<&str>| {
            let annotations = annotation.map(|delay| json!({ COMPLETE_DELAY: delay }));
            let pod = json!({
                "metadata": { "annotations": annotations },
                "spec": { "restartPolicy": policy,
                    "containers": [{ "name": "c", "command": ["sh", "-c", command] }] },
            });
            let time = run_time(&serde_json::from_value(pod).unwrap());
            time.map(|(time, code)| (time.as_secs(), code))
        };
        assert_eq!(run("Always", "sleep 30", None), None);
        assert_eq!(run("Never", "date", None), Some((10, 0)));
        assert_eq!(run("OnFailure", "sleep 30; exit 3", None), Some((30, 3)));
        assert_eq!(run("Never", "false", None), Some((10, 1)));
        assert_eq!(run("Always", "serve", Some("1m")), Some((60, 0)));
    }

    #[test]
    fn pod_stops_after_its_longest_pre_stop_sleep() {
        assert_eq!(seconds(json!({ "spec": { "containers": [{ "name": "c" }] } })), 1);
        let sleep = json!({ "sleep": { "seconds": 20 } });
        let shell = json!({ "exec": { "command": ["/bin/sh", "-c", "sleep 60"] } });
        let plain = json!({ "exec": { "command": ["/bin/sleep", "7s"] } });
        let other = json!({ "exec": { "command": ["nginx", "-s", "quit"] } });
        assert_eq!(seconds(with_hooks(&[sleep, shell])), 61);
        assert_eq!(seconds(with_hooks(&[plain])), 8);
        assert_eq!(seconds(with_hooks(&[other])), 1);
        let delay = json!({ "metadata": { "annotations": { STOP_DELAY: "1m30s" } } });
        assert_eq!(seconds(delay), 91);
    }
}
