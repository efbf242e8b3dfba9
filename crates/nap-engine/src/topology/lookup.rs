//! Lookup of the topology groups that a pod concerns, without comparing it with every group.
//!
//! Selectors of real workloads ask for a label with a certain value. Groups are found by that
//! label; the few others are compared one by one.

use std::collections::BTreeMap;

use nap_api::Operator;

use crate::ids::{GroupId, IndexVec};
use crate::model::pod_rules::Namespaces;
use crate::model::{PodTerm, Selector};
use crate::topology::groups::{Counted, TopologyGroup};

/// The groups of a snapshot by the pods that they concern.
pub(crate) struct GroupLookup<'a> {
    /// Groups that count pods by their labels.
    counting: ByLabel<'a>,
    /// Groups that count the owners of a term.
    owned: Vec<GroupId>,
    /// The same groups by the pods that their terms repel.
    repelling: ByLabel<'a>,
}

/// Groups by a label that their pods must have.
#[derive(Default)]
struct ByLabel<'a> {
    /// By namespace (`None` for all of them), key and value.
    labels: BTreeMap<(Option<&'a str>, &'a str, &'a str), Vec<GroupId>>,
    /// Groups that ask for no certain value of a label.
    others: Vec<GroupId>,
}

impl<'a> GroupLookup<'a> {
    pub(crate) fn of(groups: &IndexVec<GroupId, TopologyGroup<'a>>) -> Self {
        let mut lookup =
            Self { counting: ByLabel::default(), owned: Vec::new(), repelling: ByLabel::default() };
        for (id, group) in groups.enumerate() {
            match &group.counted {
                Counted::Selected(namespace, selector) => {
                    lookup.counting.add(id, &[Some(namespace)], selector);
                }
                Counted::Matching(terms) => match terms {
                    [first, ..] => lookup.counting.add_term(id, first),
                    [] => lookup.counting.others.push(id),
                },
                Counted::Owners(term) => {
                    lookup.owned.push(id);
                    lookup.repelling.add_term(id, term);
                }
            }
        }
        lookup
    }

    /// The groups that count a pod, in order.
    pub(crate) fn counting(
        &self,
        groups: &IndexVec<GroupId, TopologyGroup<'_>>,
        namespace: &str,
        labels: &BTreeMap<String, String>,
        owned: &[PodTerm],
    ) -> Vec<GroupId> {
        let mut found = self.counting.candidates(namespace, labels);
        if !owned.is_empty() {
            found.extend(&self.owned);
        }
        found.retain(|id| groups[*id].counts(namespace, labels, owned));
        found.sort_unstable();
        found.dedup();
        found
    }

    /// The groups that may count the owners of a term that matches a pod, in order.
    pub(crate) fn repelling(
        &self,
        namespace: &str,
        labels: &BTreeMap<String, String>,
    ) -> Vec<GroupId> {
        let mut found = self.repelling.candidates(namespace, labels);
        found.sort_unstable();
        found.dedup();
        found
    }
}

impl<'a> ByLabel<'a> {
    fn add_term(&mut self, id: GroupId, term: &'a PodTerm) {
        match &term.namespaces {
            Namespaces::All => self.add(id, &[None], &term.selector),
            Namespaces::Named(names) => {
                let names: Vec<_> = names.iter().map(|name| Some(name.as_str())).collect();
                self.add(id, &names, &term.selector);
            }
        }
    }

    fn add(&mut self, id: GroupId, namespaces: &[Option<&'a str>], selector: &'a Selector) {
        let Some(rule) = selector.0.iter().find(|rule| rule.operator == Operator::In) else {
            self.others.push(id);
            return;
        };
        for namespace in namespaces {
            for value in &rule.values {
                self.labels.entry((*namespace, &rule.key, value)).or_default().push(id);
            }
        }
    }

    /// Groups that may concern a pod; all that do are among them.
    fn candidates(&self, namespace: &str, labels: &BTreeMap<String, String>) -> Vec<GroupId> {
        let mut found = self.others.clone();
        for (key, value) in labels {
            for namespace in [Some(namespace), None] {
                found.extend(self.labels.get(&(namespace, key, value)).into_iter().flatten());
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_groups_that_are_found_are_those_that_count() {
        let labels = |text: &str| BTreeMap::from([("app".to_owned(), text.to_owned())]);
        let selectors = [
            Selector::label("app", "web"),
            Selector::label("app", "db").and("tier", "back"),
            Selector::default(),
            Selector::nothing(),
        ];
        let term = |selector: &Selector, namespaces| PodTerm {
            topology_key: "zone".to_owned(),
            selector: selector.clone(),
            namespaces,
        };
        let terms: Vec<PodTerm> = selectors
            .iter()
            .flat_map(|one| [term(one, Namespaces::All), term(one, Namespaces::only("a"))])
            .collect();
        let group = |counted| TopologyGroup { key: "zone", counted, filter: None };
        let selected = selectors.iter().map(|one| group(Counted::Selected("a", one)));
        let matching = terms.chunks(1).chain(terms.chunks(3)).map(Counted::Matching).map(group);
        let owners = terms.iter().map(Counted::Owners).map(group);
        let groups: IndexVec<GroupId, TopologyGroup<'_>> =
            selected.chain(matching).chain(owners).collect();
        let lookup = GroupLookup::of(&groups);
        let mut counted = 0;
        for namespace in ["a", "b"] {
            for labels in [labels("web"), labels("db"), labels("other"), BTreeMap::new()] {
                for owned in [&terms[..0], &terms[2..4]] {
                    let counts =
                        |group: &TopologyGroup<'_>| group.counts(namespace, &labels, owned);
                    let each = groups.enumerate().filter(|(_, group)| counts(group));
                    let expected: Vec<GroupId> = each.map(|(id, _)| id).collect();
                    counted += expected.len();
                    assert_eq!(lookup.counting(&groups, namespace, &labels, owned), expected);
                }
                let found = lookup.repelling(namespace, &labels);
                let repels = |group: &TopologyGroup<'_>| match &group.counted {
                    Counted::Owners(term) => term.matches(namespace, &labels),
                    _ => false,
                };
                for (id, _) in groups.enumerate().filter(|(_, group)| repels(group)) {
                    assert!(found.contains(&id));
                }
            }
        }
        assert!(counted > 50, "{counted}");
    }
}
