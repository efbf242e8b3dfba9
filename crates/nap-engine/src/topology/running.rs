//! Counts of the running pods: what every decision starts from.

use std::collections::BTreeMap;
use std::rc::Rc;

use nap_api::Requirements;
use nap_api::requirement::Undefined;
use nap_api::taints::first_untolerated;

use crate::ids::{DomainId, GroupId, Id, IndexVec, KeyId, NodeIdx};
use crate::intern::Interner;
use crate::model::{Node, PodTerm};
use crate::topology::counts::{Coverage, Host, Topology};
use crate::topology::domains::{Domain, Domains, label_of};
use crate::topology::groups::{NodeFilter, TopologyGroup, TopologyRules, is_host};
use crate::topology::lookup::GroupLookup;

/// Whether each node is covered.
pub(crate) type CoveredNodes = Rc<IndexVec<NodeIdx, bool>>;

impl Topology {
    /// Counts the running pods. `launchable` are the domains that new nodes can be in, for each
    /// group.
    pub(crate) fn new(
        rules: &TopologyRules<'_>,
        nodes: &IndexVec<NodeIdx, &Node>,
        labels: &IndexVec<NodeIdx, Requirements>,
        domains: &IndexVec<NodeIdx, Domains>,
        launchable: &IndexVec<GroupId, Vec<DomainId>>,
    ) -> Self {
        let keys: IndexVec<GroupId, Option<KeyId>> =
            rules.groups.iter().map(|group| rules.key(group.key)).collect();
        // Groups of like workloads cover the same nodes: each filter is compared with them once.
        let mut filters: Interner<Option<&NodeFilter<'_>>> = Interner::default();
        let filter_of: IndexVec<GroupId, usize> =
            rules.groups.iter().map(|group| filters.intern(group.filter.as_ref())).collect();
        let covered: Vec<CoveredNodes> = filters
            .items
            .iter()
            .map(|filter| {
                let each = nodes.iter().zip(labels);
                Rc::new(each.map(|(node, labels)| is_covered(*filter, node, labels)).collect())
            })
            .collect();
        let covers = filter_of.iter().map(|filter| Rc::clone(&covered[*filter])).collect();
        let mut topology = Self::empty(covers);
        let mut existing: BTreeMap<(usize, KeyId), Vec<DomainId>> = BTreeMap::new();
        for ((group, key), filter) in keys.enumerate().zip(&filter_of) {
            topology.cover(group, &launchable[group], Coverage::Always);
            let Some(key) = *key else { continue };
            let known = existing.entry((*filter, key));
            let found = known.or_insert_with(|| covered_domains(&covered[*filter], domains, key));
            topology.cover(group, found, Coverage::Always);
        }
        topology.count_running(rules, nodes, domains, &keys);
        topology
    }

    fn count_running(
        &mut self,
        rules: &TopologyRules<'_>,
        nodes: &IndexVec<NodeIdx, &Node>,
        domains: &IndexVec<NodeIdx, Domains>,
        keys: &IndexVec<GroupId, Option<KeyId>>,
    ) {
        if rules.groups.is_empty() {
            return;
        }
        let lookup = GroupLookup::of(&rules.groups);
        // Pods of one workload are counted by the same groups: each kind is looked up once.
        let mut kinds: Interner<(&str, &BTreeMap<String, String>, &[PodTerm])> =
            Interner::default();
        let mut counted_by: Vec<Vec<GroupId>> = Vec::new();
        for (node, of_node) in nodes.enumerate() {
            for running in &of_node.residents {
                let kind = (running.namespace.as_str(), &running.labels, &*running.anti_affinity);
                let number = kinds.intern(kind);
                if number == counted_by.len() {
                    let (namespace, labels, owned) = kind;
                    counted_by.push(lookup.counting(&rules.groups, namespace, labels, owned));
                }
                for group in counted_by[number].iter().copied() {
                    let domain = keys[group].map(|key| domains[node][key.index()]);
                    let count = i64::from(running.count);
                    self.add(group, domain, Host::Existing(node), count, true);
                }
            }
        }
    }
}

/// Domains of a label that have a covered node.
fn covered_domains(
    covered: &CoveredNodes,
    domains: &IndexVec<NodeIdx, Domains>,
    key: KeyId,
) -> Vec<DomainId> {
    let each = covered.iter().zip(domains).filter(|(covered, _)| **covered);
    let mut found: Vec<DomainId> = each
        .filter_map(|(_, domains)| match domains[key.index()] {
            Domain::Is(domain) => Some(domain),
            Domain::Absent => None,
        })
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// Whether a group covers a node.
pub(crate) fn covers(group: &TopologyGroup<'_>, node: &Node, labels: &Requirements) -> bool {
    is_covered(group.filter.as_ref(), node, labels)
}

fn is_covered(filter: Option<&NodeFilter<'_>>, node: &Node, labels: &Requirements) -> bool {
    let Some(filter) = filter else { return true };
    filter.keys.iter().all(|key| is_host(key) || label_of(node, key).is_some())
        && filter.tolerations.is_none_or(|one| first_untolerated(&node.taints, one).is_none())
        && filter.terms.is_none_or(|terms| {
            terms.is_empty()
                || terms.iter().any(|term| labels.compatible(term, Undefined::Deny).is_ok())
        })
}
