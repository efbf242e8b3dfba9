//! `nap plan -f` on top of a cluster: what a change adds, removes and moves, and what it costs.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use nap_controllers::preview::{Known, Preview, PreviewStep};
use nap_engine::PodKey;
use nap_units::UsdPerHour;
use serde::Serialize;

use super::cluster::{Cluster, count};
use super::format::{cents, pods_text, zone_cell};
use super::{Decision, Problem, disruption, fleet};

/// A cluster and what nap would do about it.
pub struct State {
    /// The cluster.
    pub cluster: Cluster,
    /// Input of the decision.
    pub problem: Problem,
    /// The decision about pending pods.
    pub decision: Decision,
    preview: Preview,
}

impl State {
    /// Decides about a cluster.
    pub fn new(cluster: Cluster, problem: Problem) -> Self {
        let decision = problem.decide(&cluster);
        let preview = disruption::preview(&cluster, &problem, &Known::default());
        Self { cluster, problem, decision, preview }
    }

    /// Cost once everything that nap would do has happened.
    fn cost(&self) -> UsdPerHour {
        let nodes = fleet::cost(&fleet::nodes(&self.cluster, &self.problem));
        let saved: UsdPerHour = self.preview.steps.iter().filter_map(saving).sum();
        nodes + self.decision.plan.cost - saved
    }

    /// Whether an estimated price is in the cost.
    fn is_estimate(&self) -> bool {
        let nodes = fleet::nodes(&self.cluster, &self.problem);
        let steps = self.preview.steps.iter().map(|step| &step.plan);
        !fleet::mark(&nodes, &self.problem).is_empty()
            || steps
                .chain([&self.decision.plan])
                .any(|plan| !self.problem.mark_launches(&plan.launches).is_empty())
    }

    /// `namespace/name` of all pods that run or are to be placed.
    fn pods(&self) -> BTreeSet<PodKey> {
        self.cluster.state.pods().map(|(key, _)| key.clone()).collect()
    }
}

fn saving(step: &PreviewStep) -> Option<UsdPerHour> {
    step.price.map(|price| price - step.plan.cost)
}

/// What a change does to a cluster.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ChangeDocument {
    added_pods: Vec<String>,
    removed_pods: Vec<String>,
    removed_nodes: Vec<String>,
    moved_pods: usize,
    cost_before_usd_per_hour: f64,
    cost_after_usd_per_hour: f64,
    cost_is_estimate: bool,
    #[serde(skip)]
    lines: Vec<String>,
    #[serde(skip)]
    costs: (UsdPerHour, UsdPerHour),
}

impl ChangeDocument {
    /// Compares a cluster before and after a change. `lines` are those of the overlay, and `ended`
    /// the pods that the change ends.
    pub fn new(before: &State, after: &State, lines: &[String], ended: &BTreeSet<String>) -> Self {
        let (old, new) = (before.pods(), after.pods());
        let added: Vec<&PodKey> = new.difference(&old).collect();
        // A StatefulSet's pod may end and come back by the same name.
        let removed: Vec<PodKey> = ended.iter().map(|key| PodKey::from(key.as_str())).collect();
        let mut all = lines.to_vec();
        for pods in pods_text(added.iter().copied()) {
            all.push(format!("+ pods {pods}"));
        }
        let planned = &before.decision.plan.launches;
        let mut left: Vec<_> = planned.iter().collect();
        for launch in &after.decision.plan.launches {
            let same = left.iter().position(|one| one == &launch);
            if let Some(same) = same {
                left.remove(same);
                continue;
            }
            let mark = after.problem.origin.mark(launch.capacity_type);
            all.push(format!(
                "+ VM {} {} {} of nodepool \"{}\", {mark}{}/h, for {}",
                launch.instance_type,
                zone_cell(&launch.zone),
                launch.capacity_type,
                launch.pool,
                launch.price,
                pods_text(&launch.pods).join(", ")
            ));
        }
        for launch in left {
            let (size, zone) = (&launch.instance_type, zone_cell(&launch.zone));
            all.push(format!("- VM {size} {zone}, which would be created without the change"));
        }
        let is_new = |step: &&PreviewStep| {
            before.preview.steps.iter().all(|other| other.nodes != step.nodes)
        };
        let mut moved = 0;
        let mut removed_nodes = Vec::new();
        for step in after.preview.steps.iter().filter(is_new) {
            moved += step.evictions;
            removed_nodes.extend(step.nodes.iter().cloned());
            all.push(step_line(after, step));
        }
        let costs = (before.cost(), after.cost());
        Self {
            added_pods: added.iter().map(ToString::to_string).collect(),
            removed_pods: removed.iter().map(ToString::to_string).collect(),
            removed_nodes,
            moved_pods: moved,
            cost_before_usd_per_hour: super::document::dollars(costs.0),
            cost_after_usd_per_hour: super::document::dollars(costs.1),
            cost_is_estimate: before.is_estimate() || after.is_estimate(),
            lines: all,
            costs,
        }
    }

    /// Whether the change does anything.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Cost after the change.
    pub fn cost_after(&self) -> UsdPerHour {
        self.costs.1
    }

    /// `~` if an estimated price is in the costs.
    pub fn mark(&self) -> &'static str {
        if self.cost_is_estimate { "~" } else { "" }
    }

    /// The lines and the cost before and after.
    pub fn text(&self) -> String {
        let mut text = String::new();
        if self.is_empty() {
            text.push_str("No change to pods, nodes or cost.\n");
        }
        for line in &self.lines {
            let _ = writeln!(text, "{line}");
        }
        let mark = self.mark();
        let (old, new) = self.costs;
        let (sign, by) = if new < old { ("-", old - new) } else { ("+", new - old) };
        let _ = writeln!(
            text,
            "\n{mark}{old}/h ({mark}{}/month) before, {mark}{new}/h ({mark}{}/month) after: \
             {sign}{mark}{by}/h ({sign}{mark}{}/month)",
            cents(old.per_month()),
            cents(new.per_month()),
            cents(by.per_month()),
        );
        text
    }
}

fn step_line(after: &State, step: &PreviewStep) -> String {
    let nodes = step.nodes.iter().map(|name| {
        let node = after.preview.nodes.iter().find(|node| node.name == *name);
        format!("{name} {}", node.map(|node| node.instance_type.as_str()).unwrap_or_default())
    });
    let nodes = nodes.collect::<Vec<_>>().join(", ");
    let moved = match step.evictions {
        0 => String::new(),
        pods => format!("; {} move", count(pods, "pod")),
    };
    let reason = step.reason.as_str();
    if step.plan.launches.is_empty() {
        return format!("- node {nodes}: {reason}{moved}");
    }
    let launched = step.plan.launches.iter();
    let launched: Vec<&str> = launched.map(|launch| launch.instance_type.as_str()).collect();
    format!("~ node {nodes} is replaced by {}: {reason}{moved}", launched.join(", "))
}
