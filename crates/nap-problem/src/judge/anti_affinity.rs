//! Required anti-affinity of the complete plan: it holds for every binding order or for none.

use std::collections::{BTreeMap, BTreeSet};

use nap_engine::{Pod, PodTerm};

use super::nodes::JudgedNode;
use crate::format::Problem;

/// A domain of an anti-affinity term: a label value, or a node whose value is undecided.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Domain<'a> {
    Value(&'a str),
    Undecided(usize),
}

/// Pods of a domain by their role towards one anti-affinity term.
#[derive(Default)]
struct Roles {
    /// Pods that have the term and do not match it.
    owners: usize,
    /// Pods that have the term and match it.
    both: usize,
    /// Pods that match the term, with or without having it.
    matched: usize,
    /// Whether the plan put one of them there.
    planned: bool,
}

/// One violation per anti-affinity term that a planned pod breaks.
pub(super) fn violations(problem: &Problem, pods: &[Pod], nodes: &[JudgedNode]) -> Vec<String> {
    let terms: BTreeSet<&PodTerm> = pods.iter().flat_map(|pod| &pod.anti_affinity).collect();
    let mut violations = Vec::new();
    for term in terms {
        let roles: Vec<(bool, bool)> = problem
            .pods
            .iter()
            .zip(pods)
            .map(|(class, pod)| {
                (pod.anti_affinity.contains(term), term.matches(&class.namespace, &class.labels))
            })
            .collect();
        let mut domains: BTreeMap<Domain<'_>, Roles> = BTreeMap::new();
        for (number, node) in nodes.iter().enumerate() {
            let Some(values) = node.labels.get(&term.topology_key) else { continue };
            let domain = || match values.first() {
                Some(value) if values.len() == 1 => Domain::Value(value),
                _ => Domain::Undecided(number),
            };
            let running = node.running.iter().map(|one| (one, false));
            for ((class, count), planned) in
                running.chain(node.planned.iter().map(|one| (one, true)))
            {
                let (owns, matches) = roles[*class];
                if *count > 0 && (owns || matches) {
                    let inside = domains.entry(domain()).or_default();
                    inside.owners += if owns && !matches { *count } else { 0 };
                    inside.both += if owns && matches { *count } else { 0 };
                    inside.matched += if matches { *count } else { 0 };
                    inside.planned |= planned;
                }
            }
        }
        let is_broken = |inside: &&Roles| {
            inside.planned
                && ((inside.owners > 0 && inside.matched > 0)
                    || (inside.both > 0 && inside.matched > 1))
        };
        let broken = domains.values().filter(is_broken).count();
        if broken > 0 {
            let class = roles
                .iter()
                .position(|(owns, _)| *owns)
                .map_or("", |class| &problem.pods[class].name);
            violations.push(format!(
                "anti-affinity of `{class}` over `{}` is broken in {broken} domains",
                term.topology_key
            ));
        }
    }
    violations
}
