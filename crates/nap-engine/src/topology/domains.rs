//! Topology domains: the values of topology labels, interned.

use std::collections::BTreeMap;
use std::rc::Rc;

use nap_api::labels;

use crate::ids::{DomainId, Id, Ids, IndexVec, KeyId, TermId};
use crate::model::Node;
use crate::topology::groups::TopologyProfile;

/// The domain of a node by one topology label. Absent sorts last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Domain {
    /// Value of the label.
    Is(DomainId),
    /// The node lacks the label.
    Absent,
}

/// Domains of a node, in the order of some list of topology labels: all of them, or
/// [`TopologyProfile::keys`].
pub(crate) type Domains = Vec<Domain>;

/// The domains known so far, by topology label.
pub(crate) struct DomainTable<'a> {
    labels: IndexVec<KeyId, &'a str>,
    domains: IndexVec<KeyId, KeyDomains>,
}

/// The domains of one label.
#[derive(Clone, Default)]
struct KeyDomains {
    ids: BTreeMap<Rc<str>, DomainId>,
    names: IndexVec<DomainId, Rc<str>>,
}

impl<'a> DomainTable<'a> {
    /// Table of these labels, without domains.
    pub(crate) fn new(labels: &IndexVec<KeyId, &'a str>) -> Self {
        let domains = IndexVec::filled(KeyDomains::default(), labels.len());
        Self { labels: labels.clone(), domains }
    }

    /// The topology labels.
    pub(crate) fn keys(&self) -> Ids<KeyId> {
        self.labels.ids()
    }

    /// Name of a topology label.
    pub(crate) fn label(&self, key: KeyId) -> &'a str {
        self.labels[key]
    }

    /// Id of a domain, a new one at its first appearance.
    pub(crate) fn intern(&mut self, key: KeyId, name: &str) -> DomainId {
        let domains = &mut self.domains[key];
        if let Some(known) = domains.ids.get(name) {
            return *known;
        }
        let name: Rc<str> = Rc::from(name);
        let id = domains.names.push(Rc::clone(&name));
        domains.ids.insert(name, id);
        id
    }

    /// Name of a domain: the value of the label.
    pub(crate) fn name(&self, key: KeyId, domain: DomainId) -> &str {
        &self.domains[key].names[domain]
    }

    /// Domains of a node by every topology label.
    pub(crate) fn of_node(&mut self, node: &Node) -> Domains {
        let keys = self.keys();
        let of_key = |key: KeyId| match label_of(node, self.labels[key]) {
            Some(value) => Domain::Is(self.intern(key, value)),
            None => Domain::Absent,
        };
        keys.map(of_key).collect()
    }
}

/// Value of a node's label, whichever spelling of the key the node has.
pub(crate) fn label_of<'n>(node: &'n Node, key: &str) -> Option<&'n str> {
    let exact = node.labels.get(key);
    let other = || node.labels.iter().find(|(spelling, _)| labels::normalise(spelling) == key);
    exact.or_else(|| other().map(|(_, value)| value)).map(String::as_str)
}

/// A combination of domains that a new node can be restricted to.
#[derive(Clone, Debug, Default)]
pub(crate) struct DomainAssignment {
    /// Domains, in the order of the labels that were assigned.
    pub(crate) domains: Domains,
    /// Terms that restrict a node to the domains.
    pub(crate) terms: Vec<TermId>,
    /// Labels that a node must lack.
    pub(crate) absent: Vec<KeyId>,
}

impl DomainAssignment {
    /// Domains that a profile refers to, of an assignment of every topology label.
    pub(crate) fn of_profile(&self, profile: &TopologyProfile) -> Domains {
        profile.keys.iter().map(|key| self.of_key(*key)).collect()
    }

    /// Domain of one label, of an assignment of every topology label.
    fn of_key(&self, key: KeyId) -> Domain {
        self.domains[key.index()]
    }
}
