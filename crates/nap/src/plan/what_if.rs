//! `nap what-if`: what a changed NodePool or AKSNodeClass would do to running nodes.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use jiff::SignedDuration;
use nap_api::disruption::MAX_SEARCH_DAYS;
use nap_api::{AKSNodeClass, NodePool};
use nap_clock::Clock;
use nap_controllers::preview::{Known, Preview, PreviewStep};
use nap_controllers::snapshot::Catalogues;
use nap_controllers::what_if::{self, Change, Pace, WhatIf};
use nap_units::UsdPerHour;

use super::cluster::{Cluster, count};
use super::format::cents;
use super::{Problem, disruption};
use crate::manifests::{check, read};
use crate::user_error::UserError;

/// Reads the changed NodePools and AKSNodeClasses.
pub fn changes(files: &[PathBuf]) -> anyhow::Result<Vec<Change>> {
    if files.is_empty() {
        let hint = "name the changed NodePools and AKSNodeClasses with -f";
        return Err(UserError::new("there is no change to look at".to_owned(), hint).into());
    }
    let mut changes = Vec::new();
    let documents = read::read(files)?;
    check::refuse(&documents, &[])?;
    for document in documents {
        changes.push(match document.text("/kind") {
            "NodePool" => Change::NodePool(Box::new(document.read::<NodePool>()?)),
            "AKSNodeClass" => Change::NodeClass(Box::new(document.read::<AKSNodeClass>()?)),
            other => {
                let message =
                    document.message("kind", &format!("{other} is no change that nap looks at"));
                let hint =
                    "give NodePools and AKSNodeClasses with -f, and the cluster with --state";
                return Err(UserError::new(message, hint).into());
            }
        });
    }
    Ok(changes)
}

/// Decides about a cluster after the changes.
pub fn decide(
    cluster: &mut Cluster,
    problem: &Problem,
    changes: Vec<Change>,
    known: Known,
) -> WhatIf {
    let build = |index: &_| Catalogues::build(index, problem.of_classes.clone(), &Arc::default());
    let now = Clock::wall().now();
    what_if::what_if(&mut cluster.state, changes, build, &problem.options, known, now)
}

fn cost(preview: &Preview) -> UsdPerHour {
    preview.nodes.iter().filter_map(|node| node.price).sum()
}

fn saving(step: &PreviewStep) -> UsdPerHour {
    step.price.map_or(UsdPerHour::ZERO, |price| price - step.plan.cost)
}

/// Renders what the changes do.
pub fn render(problem: &Problem, before: &Preview, after: &WhatIf) -> String {
    let mut text = String::new();
    let nodes = before.nodes.len();
    if after.drifted.is_empty() {
        let _ =
            writeln!(text, "No node drifts by this change ({} looked at)", count(nodes, "node"));
        return text;
    }
    let _ = writeln!(text, "{} of {} would drift", after.drifted.len(), count(nodes, "node"));
    let mut by_reason: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for one in &after.drifted {
        *by_reason.entry((&one.pool, one.reason)).or_default() += 1;
    }
    for ((pool, reason), number) in by_reason {
        let _ = writeln!(text, "  {number:>5}  nodepool \"{pool}\": {reason}");
    }
    let drift: Vec<&PreviewStep> =
        after.preview.steps.iter().filter(|step| step.reason.as_str() == "Drifted").collect();
    let moved: usize = drift.iter().map(|step| step.evictions).sum();
    let launches: usize = drift.iter().map(|step| step.plan.launches.len()).sum();
    let _ = writeln!(
        text,
        "\n{} would be replaced by {}, and {} would move",
        count(drift.iter().map(|step| step.nodes.len()).sum(), "node"),
        launches,
        count(moved, "pod"),
    );
    let old = cost(before);
    let new = old - drift.iter().map(|step| saving(step)).sum();
    let marks = drift.iter().map(|step| disruption::mark_step(problem, &after.preview, step));
    let mark = marks.chain([disruption::mark_nodes(problem, &before.nodes)]).max();
    let mark = mark.unwrap_or_default();
    let _ = writeln!(
        text,
        "{mark}{old}/h before, {mark}{new}/h after ({mark}{} and {mark}{} a month)",
        cents(old.per_month()),
        cents(new.per_month()),
    );
    for pace in &after.pace {
        let _ = writeln!(text, "{}", pace_line(pace));
    }
    let stuck: Vec<_> = after
        .preview
        .nodes
        .iter()
        .filter(|node| {
            node.step.is_none() && after.drifted.iter().any(|one| one.claim == node.claim)
        })
        .collect();
    if !stuck.is_empty() {
        let _ = writeln!(
            text,
            "\n{} would drift and stay for the time being",
            count(stuck.len(), "node")
        );
        for node in stuck {
            let why =
                node.reasons.first().map_or("its pods have to wait for others", String::as_str);
            let _ = writeln!(text, "  {}: {why}", node.name);
        }
    }
    text.push_str(&disruption::origin_note(problem, &after.preview));
    text
}

/// `nodepool "default": 1 at a time, about 25 min in 5 rounds`.
fn pace_line(pace: &Pace) -> String {
    let Pace { pool, at_once, rounds, wait, lasts } = pace;
    let Some(lasts) = lasts else {
        let replaced = match rounds {
            0 => "its budgets and windows allow no drift".to_owned(),
            _ => format!("up to {at_once} at a time, not done"),
        };
        return format!(
            "nodepool \"{pool}\": {replaced} within {MAX_SEARCH_DAYS} days; `nap windows` tells \
             when they do"
        );
    };
    let begin = if wait.is_zero() { String::new() } else { format!("; begins in {}", time(*wait)) };
    let upto = if *rounds == 1 { "" } else { "up to " };
    format!(
        "nodepool \"{pool}\": {upto}{at_once} at a time, about {} in {}{begin}",
        time(*lasts),
        count(*rounds, "round"),
    )
}

/// A time in minutes, hours or days.
fn time(time: SignedDuration) -> String {
    match time.as_mins() {
        minutes @ ..=119 => format!("{minutes} min"),
        minutes @ ..=2879 => format!("{} h {} min", minutes / 60, minutes % 60),
        minutes => format!("{} d {} h", minutes / 1440, minutes % 1440 / 60),
    }
}
