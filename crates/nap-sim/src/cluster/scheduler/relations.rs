//! Filters that depend on other pods: topology spread, affinity and anti-affinity, with
//! kube-scheduler's messages.
//!
//! Written after kube-scheduler and not after the engine, so a plan that misreads a rule shows up
//! as pods that stay pending.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodAffinityTerm, PodSpec, TopologySpreadConstraint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::ResourceExt;

use super::filters::Candidate;
use crate::cluster::index::Index;
use crate::cluster::pods;

/// A label and one of its values.
type Domain = (String, String);

/// Domain counts for pods of one kind. They are counted once; a pod that is bound later is added.
pub(super) struct Relations {
    /// One of the pods.
    pod: Arc<Pod>,
    spreads: Vec<SpreadState>,
    /// The affinity terms, the domains with a matching pod, and whether the pod matches its own
    /// terms; `None` without terms.
    wanted: Option<(Vec<PodAffinityTerm>, BTreeSet<Domain>, bool)>,
    /// The pod's anti-affinity terms and the domains with a pod that matches one of them.
    excluded: (Vec<PodAffinityTerm>, BTreeSet<Domain>),
    /// Domains that the anti-affinity of running pods closes to the pod.
    closed: BTreeSet<Domain>,
}

struct SpreadState {
    constraint: TopologySpreadConstraint,
    counts: BTreeMap<String, i32>,
    own: i32,
}

/// Whether a pod has required rules about other pods.
pub(super) fn has_rules(spec: &PodSpec) -> bool {
    !anti_affinity(spec).is_empty()
        || !affinity(spec).is_empty()
        || hard_spreads(spec).next().is_some()
}

impl Relations {
    /// The counts for a pod. Nodes without pods that repel others are left out for a pod that has
    /// no rules of its own.
    pub(super) fn of<'n>(
        pod: &Arc<Pod>,
        spec: &PodSpec,
        nodes: impl Iterator<Item = &'n Candidate>,
        index: &Index,
    ) -> Self {
        let together = affinity(spec).to_vec();
        let is_own = together.iter().all(|term| means(term, pod, pod, index));
        let spreads = hard_spreads(spec).map(|constraint| SpreadState {
            counts: BTreeMap::new(),
            own: i32::from(counted(constraint, pod, pod)),
            constraint: constraint.clone(),
        });
        let mut relations = Self {
            pod: Arc::clone(pod),
            spreads: spreads.collect(),
            wanted: (!together.is_empty()).then_some((together, BTreeSet::new(), is_own)),
            excluded: (anti_affinity(spec).to_vec(), BTreeSet::new()),
            closed: BTreeSet::new(),
        };
        for node in nodes {
            relations.add(spec, node, node.pods().map(|other| &other.pod), index);
        }
        relations
    }

    /// Counts pods on a node.
    pub(super) fn add<'n>(
        &mut self,
        spec: &PodSpec,
        node: &Candidate,
        others: impl Iterator<Item = &'n Arc<Pod>>,
        index: &Index,
    ) {
        let pod = &self.pod;
        let mut counting = counting(&mut self.spreads, spec, node, pod);
        for other in others {
            let theirs = other.spec.as_ref().map(anti_affinity).unwrap_or_default();
            let repelled = theirs.iter().filter(|term| means(term, other, pod, index));
            self.closed.extend(repelled.filter_map(|term| domain(node, term)));
            let (apart, excluded) = &mut self.excluded;
            let excludes = apart.iter().filter(|term| means(term, pod, other, index));
            excluded.extend(excludes.filter_map(|term| domain(node, term)));
            if let Some((together, found, _)) = &mut self.wanted
                && together.iter().all(|term| means(term, pod, other, index))
            {
                found.extend(together.iter().filter_map(|term| domain(node, term)));
            }
            for (constraint, count) in &mut counting {
                if !pods::is_deleting(other) && counted(constraint, pod, other) {
                    **count += 1;
                }
            }
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

fn affinity(spec: &PodSpec) -> &[PodAffinityTerm] {
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.pod_affinity.as_ref());
    affinity
        .and_then(|rules| rules.required_during_scheduling_ignored_during_execution.as_deref())
        .unwrap_or_default()
}

pub(super) fn anti_affinity(spec: &PodSpec) -> &[PodAffinityTerm] {
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.pod_anti_affinity.as_ref());
    affinity
        .and_then(|rules| rules.required_during_scheduling_ignored_during_execution.as_deref())
        .unwrap_or_default()
}

fn hard_spreads(spec: &PodSpec) -> impl Iterator<Item = &TopologySpreadConstraint> {
    let all = spec.topology_spread_constraints.iter().flatten();
    all.filter(|constraint| constraint.when_unsatisfiable == "DoNotSchedule")
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

/// Whether a spread constraint of `pod` counts `other`.
fn counted(constraint: &TopologySpreadConstraint, pod: &Pod, other: &Pod) -> bool {
    other.metadata.namespace == pod.metadata.namespace
        && selects(constraint.label_selector.as_ref(), other)
        && agrees(constraint.match_label_keys.as_deref(), pod, other, true)
}

/// Whether a constraint selects by nothing: it then matches the pod itself and counts no other.
fn is_empty(constraint: &TopologySpreadConstraint, pod: &Pod) -> bool {
    let keys = constraint.match_label_keys.iter().flatten();
    constraint.label_selector.as_ref().is_some_and(|selector| {
        selector.match_labels.as_ref().is_none_or(BTreeMap::is_empty)
            && selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
    }) && !keys.into_iter().any(|key| pod.labels().contains_key(key))
}

/// The constraints that count pods on a node, each with the count of the node's domain; a domain
/// without pods is entered with none.
fn counting<'s>(
    spreads: &'s mut [SpreadState],
    spec: &PodSpec,
    node: &Candidate,
    pod: &Pod,
) -> Vec<(&'s TopologySpreadConstraint, &'s mut i32)> {
    let has_key =
        |spread: &SpreadState| node.labels().contains_key(&spread.constraint.topology_key);
    if spreads.is_empty() || !spreads.iter().all(has_key) {
        return Vec::new();
    }
    let mut counting = Vec::new();
    for SpreadState { constraint, counts, .. } in spreads {
        let constraint: &TopologySpreadConstraint = constraint;
        let by_affinity =
            constraint.node_affinity_policy.as_deref() == Some("Ignore") || node.is_selected(spec);
        let by_taints =
            constraint.node_taints_policy.as_deref() != Some("Honor") || node.tolerates_all(spec);
        let Some(value) = node.labels().get(&constraint.topology_key) else { continue };
        if by_affinity && by_taints {
            let count = counts.entry(value.clone()).or_default();
            if !is_empty(constraint, pod) {
                counting.push((constraint, count));
            }
        }
    }
    counting
}
