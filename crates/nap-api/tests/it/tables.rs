//! The incumbent's answer for every pair of a node's and a pod's requirement, as a table.
//!
//! Rows are the node's side, columns the pod's; `–` is no requirement at all. The key is a
//! well-known label.

use nap_api::requirement::Undefined;
use nap_api::{Operator, Requirement, Requirements, labels};

const TABLES: &str = include_str!("requirements.txt");

/// The rows of a table: heading, then cells by column heading.
fn table(title: &str) -> Vec<(&'static str, Vec<(&'static str, &'static str)>)> {
    let mut lines =
        TABLES.lines().skip_while(|line| !line.starts_with(&format!("# {title}"))).skip(1);
    let cells = |line: &'static str| line.split('|').map(str::trim).collect::<Vec<_>>();
    let columns = cells(lines.next().unwrap_or_else(|| panic!("no table `{title}`")));
    let rows = lines.take_while(|line| !line.is_empty()).map(cells);
    let rows: Vec<_> = rows
        .map(|row| (row[0], columns.iter().copied().zip(row).skip(1).collect::<Vec<_>>()))
        .collect();
    assert!(rows.len() >= 14, "`{title}` is whole");
    assert!(rows.iter().all(|(_, row)| row.len() == columns.len() - 1));
    rows
}

fn requirement(text: &str) -> Option<Requirement> {
    let (operator, values) = text.split_once(' ').unwrap_or((text, ""));
    let operator = match operator {
        "–" => return None,
        "Ex" => Operator::Exists,
        "DNE" => Operator::DoesNotExist,
        "In" => Operator::In,
        "NotIn" => Operator::NotIn,
        "Gt" => Operator::Gt,
        "Lt" => Operator::Lt,
        other => panic!("what is `{other}`?"),
    };
    Some(Requirement::new(operator, values.split(',').filter(|value| !value.is_empty())))
}

fn requirements(text: &str) -> Requirements {
    let mut requirements = Requirements::new();
    if let Some(requirement) = requirement(text) {
        requirements.add(labels::SKU_CPU, requirement);
    }
    requirements
}

/// A requirement as the table writes it: `NotIn 1,2 ≤8`.
fn shorthand(requirement: &Requirement) -> String {
    let operator = match requirement.operator() {
        Operator::In => "In",
        Operator::NotIn => "NotIn",
        Operator::DoesNotExist => "DNE",
        _ => "Ex",
    };
    let values = requirement.values().iter().collect::<Vec<_>>().join(",");
    let (low, high) = requirement.bounds();
    let parts = [
        operator.to_owned(),
        values,
        low.map_or_else(String::new, |low| format!("≥{low}")),
        high.map_or_else(String::new, |high| format!("≤{high}")),
    ];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

fn check_compatibility(title: &str, undefined: Undefined) {
    for (node, row) in table(title) {
        for (pod, expected) in row {
            let compatible = requirements(node).compatible(&requirements(pod), undefined).is_ok();
            assert_eq!(compatible, expected == "✓", "node {node}, pod {pod}");
        }
    }
}

#[test]
fn hypothetical_nodes_take_what_the_table_says() {
    check_compatibility("hypothetical nodes", Undefined::AllowWellKnown);
}

#[test]
fn real_nodes_take_what_the_table_says() {
    check_compatibility("real nodes", Undefined::Deny);
}

#[test]
fn intersections_are_what_the_table_says() {
    for (left, row) in table("intersection") {
        for (right, expected) in row {
            let (Some(a), Some(b)) = (requirement(left), requirement(right)) else {
                panic!("{left}, {right}")
            };
            assert_eq!(shorthand(&a.intersection(&b)), expected, "{left} ∩ {right}");
        }
    }
}

#[test]
fn a_label_that_is_not_well_known_must_be_defined() {
    let mut pod = Requirements::new();
    pod.add("team", Requirement::is_in(["x"]));
    let node = Requirements::new();
    let refused = node.compatible(&pod, Undefined::AllowWellKnown).unwrap_err();
    assert_eq!(refused.to_string(), "label `team` is not defined");
    let mut other = Requirements::new();
    other.add("team", Requirement::is_in(["y"]));
    let refused = other.compatible(&pod, Undefined::AllowWellKnown).unwrap_err();
    assert_eq!(refused.to_string(), "`team` In [x] is not in `team` In [y]");
}

#[test]
fn old_spellings_of_labels_mean_the_same() {
    let mut pod = Requirements::new();
    pod.add("failure-domain.beta.kubernetes.io/zone", Requirement::is_in(["a"]));
    assert_eq!(pod.get(labels::ZONE).and_then(Requirement::single), Some("a"));
}
