//! `nap plan disruption` and `nap explain node`: what would be removed or replaced, and why not.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ListParams};
use nap_api::disruption::{
    MAX_SEARCH_DAYS, Maintenance, MaintenanceSchedule, Span, followed_schedules,
};
use nap_api::labels;
use nap_clock::Clock;
use nap_controllers::decisions::store;
use nap_controllers::preview::{self, Known, NodePreview, Preview, PreviewStep};
use nap_engine::PodKey;
use nap_units::UsdPerHour;
use serde::Serialize;

use super::Problem;
use super::cluster::{Cluster, count};
use super::document::PricesDocument;
use super::format::{cents, columns, wrap};
use crate::azure;
use crate::cli::{Format, ManagedClusterArgs, SourceArgs};
use crate::connect::connect_to;

/// Most blockers that a table lists.
const MAX_HELD: usize = 10;

/// What disruption would do to a cluster now.
pub fn preview(cluster: &Cluster, problem: &Problem, known: &Known) -> Preview {
    let now = Clock::wall().now();
    let known = &Known { estimates: problem.origin.price_estimates(), ..known.clone() };
    preview::preview(&cluster.state, &problem.catalogues, &problem.options, known, now)
}

/// Reads what the controllers know besides the cluster: what they have decided lately, and the
/// maintenance windows that NodePools follow. What cannot be read is noted, and is unknown.
pub async fn know(source: &SourceArgs, cluster: &mut Cluster) -> Known {
    let spot_to_spot = source.gates.feature_gates.spot_to_spot;
    let mut known = Known { spot_to_spot, ..Known::default() };
    if source.files.is_empty() {
        match stored_decisions(source).await {
            Ok(stored) => known.stored = stored,
            Err(error) => eprintln!(
                "note: no NodePool counts as growing or resting: ConfigMap `{}` cannot be read: \
                 {error:#}",
                store::NAME
            ),
        }
    }
    let followed = followed_schedules(cluster.state.pools().map(|(_, pool)| pool.as_ref()));
    for (schedule, window) in maintenance(source, followed).await {
        cluster.state.set_maintenance(schedule, window, Clock::wall().now());
    }
    known
}

/// The texts of the records of decisions, from whichever namespace nap has.
async fn stored_decisions(source: &SourceArgs) -> anyhow::Result<BTreeMap<String, String>> {
    let (client, _) = connect_to(&source.cluster).await?;
    let named = ListParams::default().fields(&format!("metadata.name={}", store::NAME));
    let found = Api::<ConfigMap>::all(client).list(&named).await?;
    Ok(found.items.into_iter().find_map(|map| map.data).unwrap_or_default())
}

async fn maintenance(
    source: &SourceArgs,
    schedules: Vec<MaintenanceSchedule>,
) -> Vec<(MaintenanceSchedule, Maintenance)> {
    if source.offline {
        for schedule in schedules {
            eprintln!(
                "note: {schedule} is not known, so it counts as closed: --offline asks Azure for \
                 nothing"
            );
        }
        return Vec::new();
    }
    let now = Clock::wall().now();
    let horizon = SignedDuration::from_hours(24 * (MAX_SEARCH_DAYS + 1));
    let until = now.saturating_add(horizon).unwrap_or(jiff::Timestamp::MAX);
    let Some(within) = Span::new(now, until) else { return Vec::new() };
    let managed = ManagedClusterArgs {
        subscription: source.live.subscription.clone(),
        resource_group: None,
        name: None,
        pool: None,
    };
    azure::maintenance(&managed, schedules, within).await
}

/// Renders the steps and the nodes that stay.
pub fn render(problem: &Problem, preview: &Preview, format: Format) -> anyhow::Result<String> {
    let document = || Document::of(problem, preview);
    Ok(match format {
        Format::Table => table(problem, preview, false),
        Format::Wide => table(problem, preview, true),
        Format::Json => serde_json::to_string_pretty(&document())? + "\n",
        Format::Yaml => serde_saphyr::to_string(&document())?,
    })
}

fn saving(step: &PreviewStep) -> Option<UsdPerHour> {
    step.price.map(|price| price - step.plan.cost)
}

/// `~` if a price of the nodes is an estimate.
pub fn mark_nodes<'p>(
    problem: &Problem,
    nodes: impl IntoIterator<Item = &'p NodePreview>,
) -> &'static str {
    let priced = nodes.into_iter().filter(|node| node.price.is_some());
    problem.origin.price_estimates().mark_sum(priced.filter_map(|node| node.capacity_type))
}

/// `~` if a price of what a step removes or launches is an estimate.
pub fn mark_step(problem: &Problem, preview: &Preview, step: &PreviewStep) -> &'static str {
    let removed = preview.nodes.iter().filter(|node| step.nodes.contains(&node.name));
    match mark_nodes(problem, removed) {
        "" => problem.mark_launches(&step.plan.launches),
        mark => mark,
    }
}

/// `~` if a price of any step is an estimate.
fn mark_steps(problem: &Problem, preview: &Preview) -> &'static str {
    let marks = preview.steps.iter().map(|step| mark_step(problem, preview, step));
    marks.max().unwrap_or_default()
}

/// The origin of prices and zones, as a paragraph.
pub fn origin_note(problem: &Problem, preview: &Preview) -> String {
    let marks = [mark_nodes(problem, &preview.nodes), mark_steps(problem, preview)];
    format!("\n{}", wrap(&problem.origin.text(marks.contains(&"~")), 0))
}

fn table(problem: &Problem, preview: &Preview, wide: bool) -> String {
    let before: UsdPerHour = preview.nodes.iter().filter_map(|node| node.price).sum();
    let saved: UsdPerHour = preview.steps.iter().filter_map(saving).sum();
    let evictions: usize = preview.steps.iter().map(|step| step.evictions).sum();
    let mark = mark_nodes(problem, &preview.nodes);
    let mut text = format!(
        "{} for {mark}{before}/h ({mark}{}/month)\n",
        count(preview.nodes.len(), "node"),
        cents(before.per_month()),
    );
    if preview.steps.is_empty() {
        text.push_str("Nothing to disrupt now\n");
    } else {
        let mark = mark_steps(problem, preview);
        let _ = writeln!(
            text,
            "{} would save {mark}{saved}/h ({mark}{}/month) and move {}\n",
            count(preview.steps.len(), "step"),
            cents(saved.per_month()),
            count(evictions, "pod"),
        );
        let mut rows = vec![
            ["STEP", "REASON", "REMOVE", "LAUNCH", "PODS", "SAVES/H"].map(str::to_owned).to_vec(),
        ];
        for (number, step) in preview.steps.iter().enumerate() {
            rows.extend(step_rows(problem, preview, number, step));
        }
        text.push_str(&columns(&rows));
    }
    text.push_str(&staying(problem, preview, wide));
    text.push_str(&origin_note(problem, preview));
    text
}

/// The rows of a step: one for each node that it removes or launches.
fn step_rows(
    problem: &Problem,
    preview: &Preview,
    number: usize,
    step: &PreviewStep,
) -> Vec<Vec<String>> {
    let mark = mark_step(problem, preview, step);
    let of_node = |name: &String| {
        let node = preview.nodes.iter().find(|node| node.name == *name);
        let size = node.map(|node| node.instance_type.as_str()).unwrap_or_default();
        format!("{name} {size}")
    };
    let removed: Vec<String> = step.nodes.iter().map(of_node).collect();
    let launched: Vec<String> = step
        .plan
        .launches
        .iter()
        .map(|launch| {
            let capacity_type = launch.capacity_type.as_str();
            format!("{} {} {capacity_type}", launch.instance_type, launch.zone)
        })
        .collect();
    let cell = |cells: &[String], row: usize| cells.get(row).cloned().unwrap_or_default();
    (0..removed.len().max(launched.len()))
        .map(|row| {
            let first = |text: String| if row == 0 { text } else { String::new() };
            vec![
                first((number + 1).to_string()),
                first(step.reason.as_str().to_owned()),
                cell(&removed, row),
                if row == 0 && launched.is_empty() {
                    "–".to_owned()
                } else {
                    cell(&launched, row)
                },
                first(step.evictions.to_string()),
                first(saving(step).map_or_else(|| "–".to_owned(), |it| format!("{mark}{it}"))),
            ]
        })
        .collect()
}

/// The nodes that stay: all of them, or how many for each reason.
fn staying(problem: &Problem, preview: &Preview, wide: bool) -> String {
    let stays: Vec<&NodePreview> =
        preview.nodes.iter().filter(|node| node.step.is_none()).collect();
    if stays.is_empty() {
        return String::new();
    }
    let verb = if stays.len() == 1 { "stays" } else { "stay" };
    let mut text = format!("\n{} {verb}", count(stays.len(), "node"));
    if wide {
        text.push('\n');
        for node in stays {
            let _ = writeln!(text, "  {} {}", node.name, node.instance_type);
            for reason in reasons(node) {
                text.push_str(&wrap(&reason, 4));
            }
        }
        return text;
    }
    text.push_str("; `nap explain node NAME` tells why\n");
    let held: UsdPerHour = stays.iter().filter_map(|node| node.held_saving).sum();
    let mut by_reason: BTreeMap<String, usize> = BTreeMap::new();
    for reason in stays.iter().flat_map(|node| reasons(node)) {
        let kind = reason.split([':', '(']).next().unwrap_or_default().trim().to_owned();
        *by_reason.entry(kind).or_default() += 1;
    }
    let mut rows: Vec<(usize, String)> = by_reason.into_iter().map(|(why, n)| (n, why)).collect();
    rows.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    for (number, why) in rows {
        let _ = writeln!(text, "  {number:>5}  {why}");
    }
    if held > UsdPerHour::ZERO {
        text.push_str(&holding(problem, preview, held));
    }
    text
}

/// What pods, PodDisruptionBudgets and annotations that block disruption cost, the dearest first.
fn holding(problem: &Problem, preview: &Preview, held: UsdPerHour) -> String {
    let named = |names: &[String]| {
        let nodes = preview.nodes.iter().filter(|node| names.contains(&node.name));
        nodes.collect::<Vec<_>>()
    };
    let is_held = |node: &&NodePreview| node.held_saving.is_some();
    let mark = mark_nodes(problem, preview.nodes.iter().filter(is_held));
    let month = cents(held.per_month());
    let mut text = format!("\nWithout what blocks them: {mark}{month} a month\n");
    for one in preview.blockers.iter().take(MAX_HELD) {
        let mark = mark_nodes(problem, named(&one.nodes));
        let month = format!("{mark}{}", cents(one.saving.per_month()));
        let nodes = match one.nodes.as_slice() {
            [node] => node.clone(),
            nodes => count(nodes.len(), "node"),
        };
        let _ = writeln!(text, "  {month:>10}  {nodes}: {}", one.blocker);
    }
    if preview.blockers.len() > MAX_HELD {
        let _ =
            writeln!(text, "  and {} more", count(preview.blockers.len() - MAX_HELD, "blocker"));
    }
    text
}

fn reasons(node: &NodePreview) -> Vec<String> {
    if node.reasons.is_empty() {
        vec!["nothing would be saved".to_owned()]
    } else {
        node.reasons.clone()
    }
}

/// What a move of a node has to pay for, if consolidation looks at it.
fn terms(node: &NodePreview) -> String {
    let terms = node.terms.map(|terms| format!("\n{}", wrap(&terms.to_string(), 0)));
    terms.unwrap_or_default()
}

/// Renders the explanation of one node.
pub fn explain(problem: &Problem, preview: &Preview, node: &NodePreview) -> String {
    let mark = mark_nodes(problem, [node]);
    let price = node.price.map_or_else(
        || "at a price that is not known".to_owned(),
        |price| format!("at {mark}{price}/h ({mark}{}/month)", cents(price.per_month())),
    );
    let what = format!(
        "{}: {} of nodepool \"{}\" {price}, with {} that would have to move",
        node.name,
        node.instance_type,
        node.pool,
        count(node.pods, "pod"),
    );
    let mut text = wrap(&what, 0);
    let Some(step) = node.step.and_then(|number| preview.steps.get(number)) else {
        text.push_str("\nIt stays\n");
        for reason in reasons(node) {
            text.push_str(&wrap(&reason, 2));
        }
        if let Some(saving) = node.held_saving {
            let month = cents(saving.per_month());
            let line =
                format!("Without what blocks it, consolidation would save {mark}{month} a month");
            text.push_str(&wrap(&line, 2));
        }
        text.push_str(&terms(node));
        text.push_str(&origin_note(problem, preview));
        return text;
    };
    let others: Vec<&str> =
        step.nodes.iter().filter(|name| **name != node.name).map(String::as_str).collect();
    let together = if others.is_empty() {
        String::new()
    } else {
        format!(" together with {}", others.join(", "))
    };
    let mark = mark_step(problem, preview, step);
    let saved = saving(step).map(|saving| format!(", saving {mark}{saving}/h"));
    let _ = writeln!(
        text,
        "\nIt would be {}{together}{} ({})",
        if step.plan.launches.is_empty() { "removed" } else { "replaced" },
        saved.unwrap_or_default(),
        step.reason.as_str(),
    );
    for launch in &step.plan.launches {
        let pods = count(launch.pods.len(), "pod");
        let line =
            format!("{pods} on a new {} {}", launch.instance_type, labels::zone_text(&launch.zone));
        text.push_str(&wrap(&line, 2));
    }
    let mut moves: BTreeMap<&str, usize> = BTreeMap::new();
    for placement in &step.plan.placements {
        *moves.entry(&placement.node).or_default() += 1;
    }
    for (target, pods) in moves {
        text.push_str(&wrap(&format!("{} to {target}", count(pods, "pod")), 2));
    }
    text.push_str(&terms(node));
    text.push_str(&origin_note(problem, preview));
    text
}

/// The output as JSON or YAML.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'p> {
    prices: PricesDocument,
    steps: Vec<StepDocument<'p>>,
    nodes: Vec<NodeDocument<'p>>,
    /// What blocks disruption, and what would be saved without it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    blockers: Vec<BlockerDocument<'p>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct BlockerDocument<'p> {
    blocker: &'p str,
    nodes: &'p [String],
    held_saving_micro_usd_per_hour: i64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StepDocument<'p> {
    reason: &'p str,
    remove: &'p [String],
    launch: Vec<LaunchDocument<'p>>,
    /// Node by pod.
    moves: BTreeMap<&'p str, &'p str>,
    evictions: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    saving_micro_usd_per_hour: Option<i64>,
    saving_is_estimate: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct LaunchDocument<'p> {
    node_pool: &'p str,
    instance_type: &'p str,
    zone: &'p str,
    capacity_type: &'p str,
    micro_usd_per_hour: i64,
    price_is_estimate: bool,
    pods: Vec<&'p str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeDocument<'p> {
    name: &'p str,
    node_claim: &'p str,
    node_pool: &'p str,
    instance_type: &'p str,
    #[serde(skip_serializing_if = "Option::is_none")]
    micro_usd_per_hour: Option<i64>,
    price_is_estimate: bool,
    pods: usize,
    /// Number of the step that removes it, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<usize>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    reasons: &'p [String],
    /// What would be saved on it if nothing blocked disruption.
    #[serde(skip_serializing_if = "Option::is_none")]
    held_saving_micro_usd_per_hour: Option<i64>,
}

impl<'p> Document<'p> {
    fn of(problem: &Problem, preview: &'p Preview) -> Self {
        let launch = |launch| LaunchDocument::of(problem, launch);
        let steps = preview.steps.iter().map(|step| StepDocument {
            reason: step.reason.as_str(),
            remove: &step.nodes,
            launch: step.plan.launches.iter().map(launch).collect(),
            moves: step
                .plan
                .placements
                .iter()
                .map(|one| (one.pod.as_str(), one.node.as_str()))
                .collect(),
            evictions: step.evictions,
            saving_micro_usd_per_hour: saving(step).map(UsdPerHour::micros),
            saving_is_estimate: !mark_step(problem, preview, step).is_empty(),
        });
        let nodes = preview.nodes.iter().map(|node| NodeDocument {
            name: &node.name,
            node_claim: &node.claim,
            node_pool: &node.pool,
            instance_type: &node.instance_type,
            micro_usd_per_hour: node.price.map(UsdPerHour::micros),
            price_is_estimate: !mark_nodes(problem, [node]).is_empty(),
            pods: node.pods,
            step: node.step.map(|number| number + 1),
            reasons: &node.reasons,
            held_saving_micro_usd_per_hour: node.held_saving.map(UsdPerHour::micros),
        });
        let prices = PricesDocument::new(problem);
        let blockers = preview.blockers.iter().map(|one| BlockerDocument {
            blocker: &one.blocker,
            nodes: &one.nodes,
            held_saving_micro_usd_per_hour: one.saving.micros(),
        });
        let (steps, nodes, blockers) = (steps.collect(), nodes.collect(), blockers.collect());
        Self { prices, steps, nodes, blockers }
    }
}

impl<'p> LaunchDocument<'p> {
    fn of(problem: &Problem, launch: &'p nap_engine::Launch) -> Self {
        Self {
            node_pool: &launch.pool,
            instance_type: &launch.instance_type,
            zone: &launch.zone,
            capacity_type: launch.capacity_type.as_str(),
            micro_usd_per_hour: launch.price.micros(),
            price_is_estimate: problem.origin.is_estimate(launch.capacity_type),
            pods: launch.pods.iter().map(PodKey::as_str).collect(),
        }
    }
}
