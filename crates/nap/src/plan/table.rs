//! The plan as a table of at most 100 columns.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use nap_engine::{Launch, PodKey, PoolReason, PoolRejection, Unplaced};
use nap_units::UsdPerHour;

use super::cluster::count;
use super::footnotes::{footnotes, origin_note};
use super::format::{WIDTH, cents, change_text, list, place_text, pods_text, wrap, zone_cell};
use super::{Decision, Problem, bound, contradiction, left_out};

/// Maximum number of lines of pods below equal VMs.
const POD_LINES: usize = 3;

/// One row for equal VMs.
pub fn table(problem: &Problem, decision: &Decision) -> String {
    // In the order of the plan, by the first of equal VMs.
    let mut numbers = BTreeMap::new();
    let mut rows: Vec<(Vec<String>, Vec<&Launch>)> = Vec::new();
    for launch in &decision.plan.launches {
        let pods = pods_text(&launch.pods);
        let Launch { instance_type, zone, pool, capacity_type, price, .. } = launch;
        let key = (instance_type, zone, pool, capacity_type, price, pods.clone());
        let number = *numbers.entry(key).or_insert(rows.len());
        match rows.get_mut(number) {
            Some((_, alike)) => alike.push(launch),
            None => rows.push((pods, vec![launch])),
        }
    }
    let mut text = summary(problem, decision);
    if !rows.is_empty() {
        let lines: Vec<Vec<String>> = rows.iter().map(|(_, alike)| cells(problem, alike)).collect();
        let mut lines = columns(&lines).into_iter();
        text.push('\n');
        text.extend(lines.next());
        for (line, (pods, alike)) in lines.zip(&rows) {
            text.push_str(&line);
            let each = if alike.len() > 1 { "each " } else { "" };
            let mut pods = pods.clone();
            if let Some(first) = pods.first_mut() {
                first.insert_str(0, each);
            }
            text.push_str(&list(&pods, 4, POD_LINES));
        }
        text.push('\n');
        text.push_str(&footnotes(problem, &decision.plan.launches, 0));
    }
    text.push_str(&placements(decision, POD_LINES));
    text.push_str(&unplaced(problem, decision));
    text.push_str(&left_out::summary(&problem.left_out));
    text
}

/// One block for each VM, with its pods and the reason of its choice.
pub fn wide(problem: &Problem, decision: &Decision) -> String {
    let mut text = summary(problem, decision);
    let estimates = problem.origin.price_estimates();
    for (index, launch) in decision.plan.launches.iter().enumerate() {
        let _ = writeln!(text, "\nVM {} of nodepool \"{}\"", index + 1, launch.pool);
        text.push_str(&wrap(&decision.plan.explain_launch(launch, estimates), 2));
        let mark = problem.origin.mark(launch.capacity_type);
        let _ = writeln!(text, "  {mark}{}/month; pods:", cents(launch.price.per_month()));
        let pods: Vec<String> = launch.pods.iter().map(ToString::to_string).collect();
        text.push_str(&list(&pods, 4, usize::MAX));
    }
    if !decision.plan.launches.is_empty() {
        text.push('\n');
        text.push_str(&footnotes(problem, &decision.plan.launches, 0));
    }
    text.push_str(&placements(decision, usize::MAX));
    text.push_str(&unplaced(problem, decision));
    text.push_str(&left_out::summary(&problem.left_out));
    text
}

fn summary(problem: &Problem, decision: &Decision) -> String {
    let plan = &decision.plan;
    let pods: usize = plan.launches.iter().map(|launch| launch.pods.len()).sum();
    if problem.snapshot.pods.is_empty() {
        return "Nothing to do: no pod needs a place.\n".to_owned();
    }
    if plan.launches.is_empty() {
        return "No new VM.\n".to_owned();
    }
    let mark = problem.mark_launches(&plan.launches);
    let mut text = format!(
        "{} in {} for {}: {mark}{}/h, {mark}{}/month\n",
        count(plan.launches.len(), "VM"),
        problem.region,
        count(pods, "pod"),
        plan.cost,
        cents(plan.cost.per_month())
    );
    if let (Some(bound), Some(gap)) = (plan.lower_bound, plan.gap_percent()) {
        // A bound that leaves out rules says how good the plan is only if the plan reaches it.
        let left_out = bound::text(&bound::leaves_out(problem, decision));
        let how_good = match left_out.filter(|_| gap >= bound::REACHED) {
            Some(left_out) => format!("; {left_out}"),
            None => format!(": this one is at most {gap:.1} % above the best"),
        };
        let line = format!("No plan for these pods costs less than {mark}{bound}/h{how_good}.");
        text.push_str(&wrap(&line, 0));
    }
    text
}

fn cells(problem: &Problem, alike: &[&Launch]) -> Vec<String> {
    let Some(one) = alike.first() else { return Vec::new() };
    let pods: usize = alike.iter().map(|launch| launch.pods.len()).sum();
    let price: UsdPerHour = alike.iter().map(|launch| launch.price).sum();
    let mark = problem.origin.mark(one.capacity_type);
    vec![
        alike.len().to_string(),
        one.instance_type.clone(),
        zone_cell(&one.zone).to_owned(),
        one.capacity_type.to_string(),
        one.pool.clone(),
        pods.to_string(),
        format!("{mark}{price}"),
        format!("{mark}{}", cents(price.per_month())),
    ]
}

const HEADS: [&str; 8] =
    ["VMS", "SIZE", "ZONE", "CAPACITY", "NODEPOOL", "PODS", "PER HOUR", "PER MONTH"];
/// Whether each column holds numbers, which are right-aligned.
const NUMBERS: [bool; 8] = [true, false, false, false, false, true, true, true];
const NODEPOOL: usize = 4;

/// Aligned rows. The NodePool's name is shortened if a row is too long.
fn columns(rows: &[Vec<String>]) -> Vec<String> {
    let head: Vec<String> = HEADS.iter().map(|head| (*head).to_owned()).collect();
    let all: Vec<&Vec<String>> = std::iter::once(&head).chain(rows).collect();
    let width =
        |column: usize| all.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let mut widths: Vec<usize> = (0..HEADS.len()).map(width).collect();
    let total: usize = widths.iter().sum::<usize>() + 2 * (HEADS.len() - 1);
    widths[NODEPOOL] =
        widths[NODEPOOL].saturating_sub(total.saturating_sub(WIDTH)).max(HEADS[NODEPOOL].len());
    let line = |row: &&Vec<String>| {
        let cells = row.iter().zip(&widths).zip(NUMBERS).map(|((cell, width), number)| {
            let mut cell = cell.clone();
            if cell.chars().count() > *width {
                cell = cell.chars().take(width - 1).chain(['…']).collect();
            }
            if number { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    all.iter().map(line).collect()
}

fn placements(decision: &Decision, most_lines: usize) -> String {
    let mut by_node: BTreeMap<&str, Vec<&PodKey>> = BTreeMap::new();
    for placement in &decision.plan.placements {
        by_node.entry(&placement.node).or_default().push(&placement.pod);
    }
    if by_node.is_empty() {
        return String::new();
    }
    let pods = decision.plan.placements.len();
    let mut text = format!("\n{} on what is there already:\n", count(pods, "pod"));
    for (node, pods) in by_node {
        let _ = writeln!(text, "  {node}");
        text.push_str(&list(&pods_text(pods), 4, most_lines));
    }
    text
}

/// Which labels leave a pod without any offering of a NodePool.
fn contradictions(problem: &Problem, unplaced: &Unplaced, pool: &str) -> Vec<String> {
    let nap_engine::Refusal::Pools(reasons) = &unplaced.refusal else { return Vec::new() };
    let none_compatible = reasons.iter().any(|reason| {
        reason.pool == pool
            && matches!(&reason.why, PoolRejection::Offerings { total, compatible: 0, .. } if *total > 0)
    });
    let pod = problem.snapshot.pods.iter().find(|pod| pod.key == unplaced.pod);
    let pod = pod.filter(|_| none_compatible);
    pod.map(|pod| contradiction::find(problem, pod, None, pool)).unwrap_or_default()
}

fn unplaced(problem: &Problem, decision: &Decision) -> String {
    let unplaced = &decision.plan.unplaced;
    if unplaced.is_empty() {
        return String::new();
    }
    let mut text = format!("\n{} without a place:\n", count(unplaced.len(), "pod"));
    let mut groups: Vec<Vec<&Unplaced>> = Vec::new();
    for one in unplaced {
        let remedy = |pod: &Unplaced| decision.remedies.get(&pod.pod);
        let alike = |group: &&mut Vec<&Unplaced>| {
            group
                .first()
                .is_some_and(|first| first.refusal == one.refusal && remedy(first) == remedy(one))
        };
        match groups.iter_mut().find(alike) {
            Some(group) => group.push(one),
            None => groups.push(vec![one]),
        }
    }
    for group in groups {
        let Some(first) = group.first() else { continue };
        text.push_str(&list(&pods_text(group.iter().map(|one| &one.pod)), 2, POD_LINES));
        match &first.refusal {
            nap_engine::Refusal::Pools(reasons) => {
                for PoolReason { pool, why } in reasons {
                    let why = why.marked(problem.origin.price_estimates());
                    text.push_str(&wrap(&format!("nodepool \"{pool}\": {why}"), 4));
                    for line in contradictions(problem, first, pool) {
                        text.push_str(&wrap(&line, 6));
                    }
                }
            }
            other => text.push_str(&wrap(&other.to_string(), 4)),
        }
        if let Some(remedy) = decision.remedies.get(&first.pod) {
            let change = change_text(&problem.limits, &remedy.change);
            text.push_str(&wrap(
                &format!("smallest change: {change}; {}", place_text(&problem.origin, remedy)),
                4,
            ));
        } else if decision.stopped.contains(&first.pod) {
            let why = "no change found; stopped looking before every one was tried";
            text.push_str(&wrap(why, 4));
        }
    }
    // Launches have the footnotes below them.
    if decision.plan.launches.is_empty() {
        let note = origin_note(problem, &text);
        let _ = write!(text, "\n{note}");
    }
    text
}
