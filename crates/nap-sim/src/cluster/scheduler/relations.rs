//! Filters that depend on other pods: topology spread, affinity and anti-affinity, with
//! kube-scheduler's messages.
//!
//! Written after kube-scheduler and not after the engine, so a plan that misreads a rule shows up
//! as pods that stay pending.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Pod, PodAffinityTerm, PodSpec, TopologySpreadConstraint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::ResourceExt;

use super::filters::Candidate;
use crate::cluster::index::Index;
use crate::cluster::pods;

/// A label and one of its values.
type Domain = (String, String);

/// Domain counts for one pod, computed once before its nodes are filtered.
pub(super) struct Relations<'p> {
    spreads: Vec<SpreadState<'p>>,
    /// The affinity terms, the domains with a matching pod, and whether the pod matches its own
    /// terms; `None` without terms.
    wanted: Option<(Vec<PodAffinityTerm>, BTreeSet<Domain>, bool)>,
    /// The pod's anti-affinity terms and the domains with a pod that matches one of them.
    excluded: (Vec<PodAffinityTerm>, BTreeSet<Domain>),
    /// Domains that the anti-affinity of running pods closes to the pod.
    closed: BTreeSet<Domain>,
}

struct SpreadState<'p> {
    constraint: &'p TopologySpreadConstraint,
    counts: BTreeMap<String, i32>,
    own: i32,
}

impl<'p> Relations<'p> {
    pub(super) fn of(pod: &'p Pod, spec: &'p PodSpec, nodes: &[Candidate], index: &Index) -> Self {
        let means =
            |term: &PodAffinityTerm, owner: &Pod, other: &Pod| means(term, owner, other, index);
        let together = required(spec, |affinity| {
            affinity
                .pod_affinity
                .as_ref()?
                .required_during_scheduling_ignored_during_execution
                .clone()
        });
        let apart = anti_affinity(spec);
        let mut closed = BTreeSet::new();
        let mut excluded = BTreeSet::new();
        let mut found = BTreeSet::new();
        for node in nodes {
            for other in &node.pods {
                let theirs = other.spec.as_ref().map(anti_affinity).unwrap_or_default();
                closed.extend(
                    theirs
                        .iter()
                        .filter(|term| means(term, other, pod))
                        .filter_map(|term| domain(node, term)),
                );
                let excludes = apart.iter().filter(|term| means(term, pod, other));
                excluded.extend(excludes.filter_map(|term| domain(node, term)));
                if !together.is_empty() && together.iter().all(|term| means(term, pod, other)) {
                    found.extend(together.iter().filter_map(|term| domain(node, term)));
                }
            }
        }
        let is_own = together.iter().all(|term| means(term, pod, pod));
        Self {
            spreads: spreads(pod, spec, nodes),
            wanted: (!together.is_empty()).then_some((together, found, is_own)),
            excluded: (apart, excluded),
            closed,
        }
    }

    /// The first failing filter; `None` if the pod may run on the node.
    pub(super) fn problem(&self, node: &Candidate) -> Option<&'static str> {
        for spread in &self.spreads {
            let Some(value) = node.labels().get(&spread.constraint.topology_key) else {
                return Some(
                    "node(s) didn't match pod topology spread constraints (missing required label)",
                );
            };
            let least_domains =
                usize::try_from(spread.constraint.min_domains.unwrap_or(1)).unwrap_or(0);
            let least = match spread.counts.values().min() {
                Some(least) if spread.counts.len() >= least_domains => *least,
                _ => 0,
            };
            let here = spread.counts.get(value).copied().unwrap_or(0);
            if here + spread.own - least > spread.constraint.max_skew {
                return Some("node(s) didn't match pod topology spread constraints");
            }
        }
        if let Some((together, found, is_own)) = &self.wanted {
            let domains: Vec<Option<Domain>> =
                together.iter().map(|term| domain(node, term)).collect();
            let first = found.is_empty() && *is_own;
            let fits = domains.iter().all(|domain| {
                domain.as_ref().is_some_and(|domain| first || found.contains(domain))
            });
            if !fits {
                return Some("node(s) didn't match pod affinity rules");
            }
        }
        let (apart, excluded) = &self.excluded;
        if apart
            .iter()
            .filter_map(|term| domain(node, term))
            .any(|domain| excluded.contains(&domain))
        {
            return Some("node(s) didn't match pod anti-affinity rules");
        }
        if self.closed.iter().any(|(key, value)| node.labels().get(key) == Some(value)) {
            return Some("node(s) didn't satisfy existing pods anti-affinity rules");
        }
        None
    }
}

fn required<T>(
    spec: &PodSpec,
    terms: impl Fn(&k8s_openapi::api::core::v1::Affinity) -> Option<Vec<T>>,
) -> Vec<T> {
    spec.affinity.as_ref().and_then(terms).unwrap_or_default()
}

fn anti_affinity(spec: &PodSpec) -> Vec<PodAffinityTerm> {
    required(spec, |affinity| {
        affinity
            .pod_anti_affinity
            .as_ref()?
            .required_during_scheduling_ignored_during_execution
            .clone()
    })
}

fn domain(node: &Candidate, term: &PodAffinityTerm) -> Option<Domain> {
    let value = node.labels().get(&term.topology_key)?;
    Some((term.topology_key.clone(), value.clone()))
}

/// Whether an affinity term of `owner` selects `other`.
fn means(term: &PodAffinityTerm, owner: &Pod, other: &Pod, index: &Index) -> bool {
    let namespace = other.namespace().unwrap_or_default();
    let listed = term.namespaces.as_deref().unwrap_or_default();
    let in_namespace = match &term.namespace_selector {
        // An empty selector selects every namespace, also one that is not known yet.
        Some(selector) => {
            listed.contains(&namespace)
                || *selector == LabelSelector::default()
                || index
                    .namespaces
                    .get(&(String::new(), namespace))
                    .is_some_and(|namespace| pods::selects(selector, namespace.labels()))
        }
        None if listed.is_empty() => owner.namespace().unwrap_or_default() == namespace,
        None => listed.contains(&namespace),
    };
    in_namespace
        && selects(term.label_selector.as_ref(), other)
        && agrees(term.match_label_keys.as_deref(), owner, other, true)
        && agrees(term.mismatch_label_keys.as_deref(), owner, other, false)
}

fn selects(selector: Option<&LabelSelector>, pod: &Pod) -> bool {
    selector.is_some_and(|selector| pods::selects(selector, pod.labels()))
}

/// Whether both pods have equal (or, for mismatch keys, different) values of the keys that `owner`
/// has.
fn agrees(keys: Option<&[String]>, owner: &Pod, other: &Pod, same: bool) -> bool {
    keys.unwrap_or_default().iter().filter_map(|key| Some((key, owner.labels().get(key)?))).all(
        |(key, value)| {
            let rule = LabelSelectorRequirement {
                key: key.clone(),
                operator: if same { "In" } else { "NotIn" }.to_owned(),
                values: Some(vec![value.clone()]),
            };
            let selector =
                LabelSelector { match_expressions: Some(vec![rule]), ..LabelSelector::default() };
            pods::selects(&selector, other.labels())
        },
    )
}

/// Pod counts by domain of each `DoNotSchedule` constraint.
fn spreads<'p>(pod: &'p Pod, spec: &'p PodSpec, nodes: &[Candidate]) -> Vec<SpreadState<'p>> {
    let all = spec.topology_spread_constraints.iter().flatten();
    let hard: Vec<&TopologySpreadConstraint> =
        all.filter(|constraint| constraint.when_unsatisfiable == "DoNotSchedule").collect();
    let counted = |constraint: &TopologySpreadConstraint, other: &Pod| {
        other.namespace() == pod.namespace()
            && selects(constraint.label_selector.as_ref(), other)
            && agrees(constraint.match_label_keys.as_deref(), pod, other, true)
    };
    // An empty selector matches the pod itself and counts no other.
    let is_empty = |constraint: &TopologySpreadConstraint| {
        let keys = constraint.match_label_keys.iter().flatten();
        constraint.label_selector.as_ref().is_some_and(|selector| {
            selector.match_labels.as_ref().is_none_or(BTreeMap::is_empty)
                && selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
        }) && !keys.into_iter().any(|key| pod.labels().contains_key(key))
    };
    hard.iter()
        .map(|constraint| {
            let mut counts: BTreeMap<String, i32> = BTreeMap::new();
            for node in nodes {
                let has_all =
                    hard.iter().all(|other| node.labels().contains_key(&other.topology_key));
                let by_affinity = constraint.node_affinity_policy.as_deref() == Some("Ignore")
                    || node.is_selected(spec);
                let by_taints = constraint.node_taints_policy.as_deref() != Some("Honor")
                    || node.tolerates_all(spec);
                let Some(value) = node.labels().get(&constraint.topology_key) else { continue };
                if has_all && by_affinity && by_taints {
                    let here = node.pods.iter().filter(|other| {
                        !is_empty(constraint)
                            && !pods::is_deleting(other)
                            && counted(constraint, other)
                    });
                    let here = i32::try_from(here.count()).unwrap_or(i32::MAX);
                    *counts.entry(value.clone()).or_default() += here;
                }
            }
            SpreadState { constraint, counts, own: i32::from(counted(constraint, pod)) }
        })
        .collect()
}
