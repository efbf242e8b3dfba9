//! Spread constraints and affinity terms of all pod classes, with the counts that they share.

use std::collections::BTreeMap;

use nap_api::{Requirements, Toleration};
use nap_engine::{Pod, PodTerm, Selector};

use super::counts::DomainCounts;
use super::nodes::JudgedNode;
use crate::format::Problem;

/// A condition on the node that a pod is bound to. Counts are indices into [`Rules::counts`].
pub(super) enum Rule {
    /// One topology spread constraint. `own` is 1 if the pod is counted by it, otherwise 0.
    Spread { counts: usize, max_skew: usize, min_domains: usize, own: usize },
    /// All required pod affinity terms; `own` if the pod matches its own terms.
    Affinity { counts: Vec<usize>, own: bool },
}

/// The rules of every class, and the counts before any planned pod is bound.
pub(super) struct Rules {
    pub(super) counts: Vec<DomainCounts>,
    /// By class.
    pub(super) owned: Vec<Vec<Rule>>,
    /// By class: the counts that it is part of.
    pub(super) counted_by: Vec<Vec<usize>>,
}

/// Identity of a count: rules that agree on it share one.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum CountKey<'a> {
    Spread {
        topology_key: &'a str,
        namespace: &'a str,
        selector: &'a Selector,
        /// `None` if node affinity is ignored.
        terms: Option<&'a [Requirements]>,
        /// `None` if taints are ignored.
        tolerations: Option<&'a [Toleration]>,
        /// The topology keys of all constraints of the pod: a node that lacks one is not counted.
        keys: Vec<&'a str>,
    },
    Affinity(&'a str, &'a [PodTerm]),
}

impl Rules {
    pub(super) fn new(problem: &Problem, pods: &[Pod], nodes: &[JudgedNode]) -> Self {
        let mut numbers: BTreeMap<CountKey<'_>, usize> = BTreeMap::new();
        let mut counts: Vec<DomainCounts> = Vec::new();
        let mut owned = Vec::with_capacity(pods.len());
        for (class, pod) in problem.pods.iter().zip(pods) {
            let mut rules = Vec::new();
            for spread in &pod.spread {
                let keys: Vec<&str> =
                    pod.spread.iter().map(|other| other.topology_key.as_str()).collect();
                let terms = spread.honor_affinity.then_some(pod.terms.as_slice());
                let tolerations = spread.honor_taints.then_some(pod.tolerations.as_slice());
                let number = *numbers
                    .entry(CountKey::Spread {
                        topology_key: &spread.topology_key,
                        namespace: &class.namespace,
                        selector: &spread.selector,
                        terms,
                        tolerations,
                        keys: keys.clone(),
                    })
                    .or_insert_with(|| {
                        counts.push(DomainCounts::new(nodes, &spread.topology_key, |node| {
                            keys.iter().all(|key| node.labels.contains_key(*key))
                                && node.is_included(terms, tolerations)
                        }));
                        counts.len() - 1
                    });
                let max_skew = spread.max_skew as usize;
                counts[number].max_skew = counts[number].max_skew.min(max_skew);
                rules.push(Rule::Spread {
                    counts: number,
                    max_skew,
                    min_domains: spread.min_domains.unwrap_or(1) as usize,
                    own: usize::from(spread.selector.matches(&pod.labels)),
                });
            }
            if !pod.affinity.is_empty() {
                let terms = pod.affinity.iter().map(|term| {
                    *numbers
                        .entry(CountKey::Affinity(&term.topology_key, &pod.affinity))
                        .or_insert_with(|| {
                            counts.push(DomainCounts::new(nodes, &term.topology_key, |_| true));
                            counts.len() - 1
                        })
                });
                let counts = terms.collect();
                let own =
                    pod.affinity.iter().all(|term| term.matches(&class.namespace, &pod.labels));
                rules.push(Rule::Affinity { counts, own });
            }
            owned.push(rules);
        }
        let counted_by: Vec<Vec<usize>> = problem
            .pods
            .iter()
            .map(|class| {
                let counts = |key: &CountKey<'_>| match key {
                    CountKey::Spread { namespace, selector, .. } => {
                        *namespace == class.namespace && selector.matches(&class.labels)
                    }
                    CountKey::Affinity(_, terms) => {
                        terms.iter().all(|term| term.matches(&class.namespace, &class.labels))
                    }
                };
                numbers.iter().filter(|(key, _)| counts(key)).map(|(_, number)| *number).collect()
            })
            .collect();
        for (number, node) in nodes.iter().enumerate() {
            for (class, count) in &node.running {
                for counted in &counted_by[*class] {
                    (0..*count).for_each(|_| counts[*counted].add(number));
                }
            }
        }
        Self { counts, owned, counted_by }
    }

    /// Whether the class owns a rule or is counted by one.
    pub(super) fn couples(&self, class: usize) -> bool {
        !self.owned[class].is_empty() || !self.counted_by[class].is_empty()
    }
}
