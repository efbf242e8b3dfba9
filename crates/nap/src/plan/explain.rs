//! `nap explain pod`: the node of a pod and why, or why it has none and the smallest change that
//! gives it one.

use std::fmt::Write as _;

use k8s_openapi::api::core::v1::PodSpec;
use nap_engine::{Daemon, Funnel, Pod, PodKey, Refusal, after, funnel};
use serde_json::{Value, json};

use super::asked::{self, KnownWorkload};
use super::cluster::count;
use super::document::{self, VERSION};
use super::footnotes::{footnotes, origin_note};
use super::format::{cents, change_text, list, place_text, requests_text, size_text, wrap};
use super::{Decision, Problem, contradiction, left_out};

/// Name of the funnel step for volume zones.
const VOLUMES: &str = "where its volumes are";

/// Text for a search that ended before everything was tried.
const STOPPED: &str = "\nStopped looking for a change that would give it a place: its node \
                       requirements are too many\n";

/// Renders the explanation of one pod as a JSON document.
pub fn json(
    problem: &Problem,
    decision: &Decision,
    pod: &Pod,
    spec: Option<&PodSpec>,
) -> anyhow::Result<String> {
    let plan = &decision.plan;
    let launch = plan.launches.iter().find(|launch| launch.pods.contains(&pod.key));
    let existing = plan.placements.iter().find(|placement| placement.pod == pod.key);
    let unplaced = plan.unplaced.iter().find(|one| one.pod == pod.key);
    let left = after(&problem.snapshot, plan);
    let snapshot = if unplaced.is_some() { &left } else { &problem.snapshot };
    let estimates = problem.origin.price_estimates();
    let steps: Vec<Value> = funnel(snapshot, &problem.options, pod)
        .iter()
        .map(|steps| {
            let contradictions = if steps.compatible == 0 && steps.tolerated > 0 {
                contradiction::find(problem, pod, spec, &steps.pool)
            } else {
                Vec::new()
            };
            json!({
                "nodePool": steps.pool,
                "offerings": steps.offerings,
                "tolerated": steps.tolerated,
                "compatible": steps.compatible,
                "largeEnough": steps.large_enough,
                "nearVolumes": steps.near_volumes,
                "available": steps.available,
                "withinLimits": steps.within_limits,
                "contradictions": contradictions,
            })
        })
        .collect();
    let document = json!({
        "version": VERSION,
        "pod": pod.key.to_string(),
        "outcome": match (launch, existing) {
            (Some(_), _) => "newNode",
            (None, Some(_)) => "existingNode",
            (None, None) => "noPlace",
        },
        "node": existing.map(|placement| &placement.node),
        "launch": launch.map(|one| document::launch(problem, one)),
        "reasons": unplaced.map(|one| document::reasons(&one.refusal, estimates)),
        "smallestChange":
            decision.remedies.get(&pod.key).map(|remedy| document::change(problem, remedy)),
        "contradictions": spec.map(contradiction::within_pod).unwrap_or_default(),
        "stoppedLooking": decision.stopped.contains(&pod.key),
        "funnel": steps,
    });
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

/// The document of a pod that needs no place.
pub fn settled_json(pod: &PodKey, why: &str) -> anyhow::Result<String> {
    let document = json!({
        "version": VERSION, "pod": pod.to_string(), "outcome": "settled", "message": why,
    });
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

/// The document of a workload without pods.
pub fn no_pods_json(workload: &KnownWorkload, why: &str) -> anyhow::Result<String> {
    let document = json!({
        "version": VERSION, "workload": workload.title(), "outcome": "noPods", "message": why,
    });
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

/// Renders where the pods of a DaemonSet run.
pub fn daemon(problem: &Problem, daemon: &Daemon) -> String {
    let mut text = format!(
        "DaemonSet `{}` places its pods by itself, one on each node (each asks for {})\n",
        daemon.name,
        requests_text(&daemon.requests)
    );
    for pool in &problem.snapshot.pools {
        let line = format!("nodepool \"{}\": {}", pool.name, asked::daemon_on(daemon, pool));
        text.push_str(&wrap(&line, 2));
    }
    text
}

/// The same as a JSON document.
pub fn daemon_json(problem: &Problem, daemon: &Daemon) -> anyhow::Result<String> {
    let pools: Vec<Value> = problem
        .snapshot
        .pools
        .iter()
        .map(|pool| json!({ "nodePool": pool.name, "runsOn": asked::daemon_on(daemon, pool) }))
        .collect();
    let workload = format!("DaemonSet `{}`", daemon.name);
    let document = json!({
        "version": VERSION, "workload": workload, "outcome": "eachNode", "nodePools": pools,
    });
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

/// Renders the explanation of one pod.
pub fn explain(
    problem: &Problem,
    decision: &Decision,
    pod: &Pod,
    spec: Option<&PodSpec>,
) -> String {
    let plan = &decision.plan;
    let asks = requests_text(&pod.requests);
    if let Some(placement) = plan.placements.iter().find(|placement| placement.pod == pod.key) {
        return format!(
            "{} goes onto {}, which is there already (asks for {asks})\n",
            pod.key, placement.node
        );
    }
    if let Some(launch) = plan.launches.iter().find(|launch| launch.pods.contains(&pod.key)) {
        let mut text = format!(
            "{} gets a new VM of nodepool \"{}\" (asks for {asks})\n",
            pod.key, launch.pool
        );
        text.push_str(&wrap(&plan.explain_launch(launch, problem.origin.price_estimates()), 2));
        let mark = problem.origin.mark(launch.capacity_type);
        let _ = writeln!(text, "  {mark}{}/month", cents(launch.price.per_month()));
        text.push_str(&footnotes(problem, [launch], 2));
        let others: Vec<String> = launch
            .pods
            .iter()
            .filter(|other| **other != pod.key)
            .map(ToString::to_string)
            .collect();
        if !others.is_empty() {
            let _ = writeln!(
                text,
                "\nIt shares the VM with {} ({} in all)",
                count(others.len(), "pod"),
                size_text(&launch.requests)
            );
            text.push_str(&list(&others, 2, 3));
        }
        text.push_str("\nOfferings for this pod by itself\n");
        for steps in funnel(&problem.snapshot, &problem.options, pod) {
            text.push_str(&steps_text(problem, &steps, None));
        }
        return text;
    }
    let mut text = format!("{} has no place (asks for {asks})\n", pod.key);
    let estimates = problem.origin.price_estimates();
    let refusal = plan
        .unplaced
        .iter()
        .find(|unplaced| unplaced.pod == pod.key)
        .map(|unplaced| &unplaced.refusal);
    match refusal {
        Some(Refusal::Pools(reasons)) => {
            // The funnel counts what the rest of the plan leaves.
            let left = after(&problem.snapshot, plan);
            for steps in funnel(&left, &problem.options, pod) {
                let why = reasons.iter().find(|reason| reason.pool == steps.pool);
                text.push_str(&steps_text(
                    problem,
                    &steps,
                    why.map(|reason| reason.why.marked(estimates).to_string()).as_deref(),
                ));
                if steps.compatible == 0 && steps.tolerated > 0 {
                    for line in contradiction::find(problem, pod, spec, &steps.pool) {
                        text.push_str(&wrap(&line, 5));
                    }
                }
            }
        }
        Some(other) => {
            let own = spec.map(contradiction::within_pod).unwrap_or_default();
            let lines = if own.is_empty() { vec![other.to_string()] } else { own };
            text.extend(lines.iter().map(|line| wrap(line, 2)));
        }
        None => {}
    }
    match decision.remedies.get(&pod.key) {
        Some(remedy) => {
            text.push_str("\nSmallest change\n");
            text.push_str(&wrap(&change_text(&problem.limits, &remedy.change), 2));
            text.push_str(&wrap(&place_text(&problem.origin, remedy), 2));
        }
        None if decision.stopped.contains(&pod.key) => {
            text.push_str(STOPPED);
        }
        None => text.push_str("\nNo single change that nap knows of would give it a place\n"),
    }
    let note = origin_note(problem, &text);
    let _ = write!(text, "\n{note}");
    text
}

/// Renders the funnel of one NodePool down to the first step without offerings.
fn steps_text(problem: &Problem, funnel: &Funnel, why: Option<&str>) -> String {
    let taints = match &funnel.taint {
        Some(taint) => format!("after the taint `{taint}`"),
        None => "after taints".to_owned(),
    };
    let steps = [
        ("offerings", funnel.offerings),
        (taints.as_str(), funnel.tolerated),
        ("after requirements", funnel.compatible),
        ("large enough besides daemons", funnel.large_enough),
        (VOLUMES, funnel.near_volumes),
        ("available at present", funnel.available),
        ("within the limits of the nodepool", funnel.within_limits),
    ];
    let mut text = format!("\nnodepool \"{}\"\n", funnel.pool);
    // Omit the volume step if it removes nothing.
    let nothing_new = |step: &str| step == VOLUMES && funnel.near_volumes == funnel.large_enough;
    for (step, left) in steps.into_iter().filter(|(step, _)| !nothing_new(step)) {
        let _ = writeln!(text, "  {left:>7}  {step}");
        if left == 0 {
            break;
        }
    }
    text.push_str(&left_out::of_pod(problem, &funnel.unavailable));
    if let Some(why) = why {
        text.push_str(&wrap(&format!("-> {why}"), 2));
    }
    text
}
