//! Topology domains of eligible offerings, and the domain assignments of new nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use fixedbitset::FixedBitSet;
use nap_api::taints::first_untolerated;
use nap_api::{Requirement, Requirements, labels};

use crate::classes::Class;
use crate::ids::{
    DomainId, EligibilityId, GroupId, Id, Ids, IndexVec, KeyId, NodeConstraintsId, PoolId, TermId,
    TypeId,
};
use crate::model::Snapshot;
use crate::offerings::eligibility::{is_regional, listed};
use crate::offerings::index::OfferingIndex;
use crate::topology::counts::Coverage;
use crate::topology::domains::{Domain, DomainAssignment, DomainTable, Domains};
use crate::topology::groups::{TopologyGroup, TopologyProfile, TopologyRules, is_host};

/// Upper limit on the domain combinations of one eligibility set that a class is tried in.
const MAX_CLASS_ASSIGNMENTS: usize = 128;

/// Upper limit on the combinations of domains by every topology label that a node is tried in.
const MAX_FULL_ASSIGNMENTS: usize = 9;

/// The interned domains, and the domains and assignments found so far.
pub(crate) struct OfferedDomains<'a> {
    table: DomainTable<'a>,
    offered: BTreeMap<(EligibilityId, KeyId), Rc<[DomainId]>>,
    of_class: BTreeMap<(NodeConstraintsId, Vec<KeyId>), Rc<[DomainAssignment]>>,
    full: BTreeMap<EligibilityId, Rc<[Rc<DomainAssignment>]>>,
}

impl<'a> OfferedDomains<'a> {
    pub(super) fn new(keys: &IndexVec<KeyId, &'a str>) -> Self {
        Self {
            table: DomainTable::new(keys),
            offered: BTreeMap::new(),
            of_class: BTreeMap::new(),
            full: BTreeMap::new(),
        }
    }
}

impl<'a> OfferingIndex<'a> {
    /// The interned domains.
    pub(crate) fn domain_table(&mut self) -> &mut DomainTable<'a> {
        &mut self.domains.table
    }

    /// The topology labels.
    pub(crate) fn keys(&self) -> Ids<KeyId> {
        self.domains.table.keys()
    }

    /// Interns the domains that exist or can be launched in the order of their names.
    pub(super) fn intern_domains(&mut self, snapshot: &'a Snapshot) {
        for key in self.keys() {
            let label = self.domains.table.label(key);
            let mut names: BTreeSet<&str> = snapshot
                .nodes
                .iter()
                .filter_map(|node| node.labels.get(label))
                .map(String::as_str)
                .collect();
            for (pool, table) in self.pools.enumerate() {
                names.extend(self.offered_values(EligibilityId::of_pool(pool), label));
                names.extend(table.pool.requirements.get(label).into_iter().flat_map(listed));
            }
            for name in names {
                self.domains.table.intern(key, name);
            }
        }
    }

    /// Id of the term that restricts a node to a domain.
    pub(crate) fn domain_term(&mut self, key: KeyId, domain: DomainId) -> TermId {
        let mut term = Requirements::new();
        let name = self.domains.table.name(key, domain);
        term.add(self.domains.table.label(key), Requirement::is_in([name]));
        self.term(&term)
    }

    /// Values of a label over the usable offerings. Regional offerings count only where no other
    /// has a zone.
    fn offered_values(&self, id: EligibilityId, key: &str) -> BTreeSet<&'a str> {
        let eligible = self.eligible(id);
        let catalogue = self.table(eligible).catalogue;
        let required = eligible.requirements.get(key);
        let mut zonal: BTreeSet<&'a str> = BTreeSet::new();
        let mut regional: BTreeSet<&'a str> = BTreeSet::new();
        let allowed = |value: &&str| required.is_none_or(|required| required.allows(value));
        let is_regional = |labels: &Requirements| key == labels::ZONE && is_regional(labels);
        let mut unlabelled = FixedBitSet::with_capacity(catalogue.label_sets().len());
        for (set, labels) in catalogue.label_sets().filter(|(set, _)| eligible.has_labels(*set)) {
            let values = if is_regional(labels) { &mut regional } else { &mut zonal };
            match labels.get(key) {
                Some(requirement) => values.extend(listed(requirement).filter(allowed)),
                None => unlabelled.insert(set.index()),
            }
        }
        // Where an offering does not define the label, its type may.
        if let Some(column) = catalogue.column(key).filter(|_| !unlabelled.is_clear()) {
            for row in eligible.usable().map(|offering| catalogue.offerings()[offering]) {
                let value = column.value_of[row.instance_type];
                if let Some(value) = value.filter(|_| unlabelled.contains(row.labels.index())) {
                    let labels = &catalogue.offering(row).requirements;
                    let values = if is_regional(labels) { &mut regional } else { &mut zonal };
                    values.extend(listed(&column.values[value]).filter(allowed));
                }
            }
        }
        if zonal.is_empty() { regional } else { zonal }
    }

    /// Domains of a label over the usable offerings.
    pub(crate) fn offered_domains(&mut self, id: EligibilityId, key: KeyId) -> Rc<[DomainId]> {
        if let Some(known) = self.domains.offered.get(&(id, key)) {
            return Rc::clone(known);
        }
        let label = self.domains.table.label(key);
        let mut values: BTreeSet<Rc<str>> =
            self.offered_values(id, label).into_iter().map(Rc::from).collect();
        // A label that only the pods require is set on the node as they require it.
        if let Some(required) = self.eligible(id).requirements.get(label)
            && self.leaves_unlabelled(id, label)
        {
            values.extend(listed(required).map(Rc::from));
        }
        let domains: Rc<[DomainId]> =
            values.iter().map(|value| self.domains.table.intern(key, value)).collect();
        self.domains.offered.insert((id, key), Rc::clone(&domains));
        domains
    }

    /// Whether some usable offering and its type leave a label undefined.
    fn leaves_unlabelled(&self, id: EligibilityId, key: &str) -> bool {
        let eligible = self.eligible(id);
        let catalogue = self.table(eligible).catalogue;
        let unlabelled: Vec<bool> =
            catalogue.label_sets().map(|(_, labels)| labels.get(key).is_none()).collect();
        let column = catalogue.column(key);
        let is_undefined = |id: TypeId| column.is_none_or(|one| one.value_of[id].is_none());
        eligible.label_sets.ones().any(|set| unlabelled[set])
            && eligible
                .usable()
                .map(|offering| catalogue.offerings()[offering])
                .any(|row| unlabelled[row.labels.index()] && is_undefined(row.instance_type))
    }

    /// Whether nodes of an eligibility set certainly lack a topology label.
    pub(crate) fn lacks(&mut self, id: EligibilityId, key: KeyId) -> bool {
        if !self.offered_domains(id, key).is_empty() {
            return false;
        }
        let required = self.eligible(id).requirements.get(self.domains.table.label(key));
        required
            .is_none_or(|required| required.allows_absent() && listed(required).next().is_none())
    }

    /// The eligibility set restricted to a domain assignment; `None` if they conflict.
    pub(crate) fn assign(
        &mut self,
        id: EligibilityId,
        assignment: &DomainAssignment,
    ) -> Option<EligibilityId> {
        let assigned = self.narrow_all(id, &assignment.terms)?;
        assignment.absent.iter().all(|key| self.lacks(assigned, *key)).then_some(assigned)
    }

    /// Combinations of the domains of some labels over the usable offerings, at most `max`.
    fn combinations(&mut self, id: EligibilityId, keys: &[KeyId], max: usize) -> Vec<Domains> {
        let mut combinations: Vec<Domains> = vec![Vec::new()];
        for key in keys {
            let offered = self.offered_domains(id, *key);
            let mut domains: Domains = offered.iter().copied().map(Domain::Is).collect();
            if self.lacks(id, *key) {
                domains.push(Domain::Absent);
            }
            let extended = combinations.iter().flat_map(|combination| {
                domains.iter().map(|one| [combination, std::slice::from_ref(one)].concat())
            });
            combinations = extended.take(max).collect();
        }
        combinations
    }

    /// The terms that restrict a node to a combination of domains of some labels.
    fn assignment(&mut self, keys: &[KeyId], domains: Domains) -> DomainAssignment {
        let mut assignment = DomainAssignment::default();
        for (key, domain) in keys.iter().zip(&domains) {
            match domain {
                Domain::Absent => assignment.absent.push(*key),
                Domain::Is(domain) => assignment.terms.push(self.domain_term(*key, *domain)),
            }
        }
        DomainAssignment { domains, ..assignment }
    }

    /// Assignments of every topology label that an eligibility set has.
    pub(crate) fn full_assignments(&mut self, id: EligibilityId) -> Rc<[Rc<DomainAssignment>]> {
        if let Some(known) = self.domains.full.get(&id) {
            return Rc::clone(known);
        }
        let keys: Vec<KeyId> = self.keys().collect();
        let combinations = self.combinations(id, &keys, MAX_FULL_ASSIGNMENTS).into_iter();
        let assignments: Rc<[Rc<DomainAssignment>]> =
            combinations.map(|domains| Rc::new(self.assignment(&keys, domains))).collect();
        self.domains.full.insert(id, Rc::clone(&assignments));
        assignments
    }

    /// Combinations of domains that some pools have for a class. Combinations that lack a label
    /// come first.
    pub(crate) fn places(
        &mut self,
        class: &Class<'_>,
        profile: &TopologyProfile,
        pools: impl Iterator<Item = PoolId>,
    ) -> Vec<Domains> {
        let mut places: Vec<Domains> = Vec::new();
        for pool in pools {
            if !self.tolerates(pool, class) {
                continue;
            }
            let own = [EligibilityId::of_pool(pool)];
            for from in [&own, self.reserved_in(pool)].concat() {
                for term in &class.terms {
                    let Some(id) = self.narrow(from, *term) else { continue };
                    places.extend(self.combinations(id, &profile.keys, MAX_CLASS_ASSIGNMENTS));
                }
            }
        }
        places.sort_unstable_by_key(|domains| {
            domains.iter().map(|one| (*one != Domain::Absent, *one)).collect::<Vec<_>>()
        });
        places.dedup();
        places
    }

    /// Domain assignments that any pool has for a class.
    pub(crate) fn assignments(
        &mut self,
        class: &Class<'_>,
        profile: &TopologyProfile,
    ) -> Rc<[DomainAssignment]> {
        let asked = (class.node_constraints, profile.keys.clone());
        if let Some(known) = self.domains.of_class.get(&asked) {
            return Rc::clone(known);
        }
        let places = self.places(class, profile, self.pools.ids()).into_iter();
        let assignments: Rc<[DomainAssignment]> =
            places.map(|domains| self.assignment(&profile.keys, domains)).collect();
        self.domains.of_class.insert(asked, Rc::clone(&assignments));
        assignments
    }

    /// Coverage of new nodes of an eligibility set by a topology group.
    pub(crate) fn coverage(
        &mut self,
        group: &TopologyGroup<'_>,
        rules: &TopologyRules<'_>,
        id: EligibilityId,
    ) -> Coverage {
        let Some(filter) = &group.filter else { return Coverage::Always };
        let taints = &self.table_of(id).pool.taints;
        if filter.tolerations.is_some_and(|one| first_untolerated(taints, one).is_some()) {
            return Coverage::Never;
        }
        for label in filter.keys.iter().filter(|label| !is_host(label)) {
            let has_domains =
                rules.key(label).is_some_and(|key| !self.offered_domains(id, key).is_empty());
            if !has_domains {
                return Coverage::Never;
            }
        }
        let Some(terms) = filter.terms.filter(|terms| !terms.is_empty()) else {
            return Coverage::Always;
        };
        let mut coverage = Coverage::Never;
        for term in terms {
            let term = self.term(term);
            let Some(narrowed) = self.narrow(id, term) else { continue };
            let narrowed = &self.eligible(narrowed).usable;
            if *narrowed == self.eligible(id).usable {
                return Coverage::Always;
            }
            if !narrowed.is_clear() {
                coverage = Coverage::Maybe;
            }
        }
        coverage
    }

    /// For each group of a spread constraint, the domains that new nodes can be in.
    pub(crate) fn launchable_domains(
        &mut self,
        rules: &TopologyRules<'_>,
        reservations: &BTreeMap<String, u32>,
    ) -> IndexVec<GroupId, Vec<DomainId>> {
        let of_group = |group: &TopologyGroup<'_>| match rules.key(group.key) {
            Some(key) => self.launchable_domains_of(group, key, reservations),
            None => Vec::new(),
        };
        rules.groups.iter().map(of_group).collect()
    }

    fn launchable_domains_of(
        &mut self,
        group: &TopologyGroup<'_>,
        key: KeyId,
        reservations: &BTreeMap<String, u32>,
    ) -> Vec<DomainId> {
        let any = [Requirements::new()];
        let Some(filter) = &group.filter else { return Vec::new() };
        let terms = filter.terms.filter(|terms| !terms.is_empty()).unwrap_or(&any);
        let mut domains = Vec::new();
        for pool in self.pools.ids() {
            let taints = &self.pools[pool].pool.taints;
            if filter.tolerations.is_some_and(|one| first_untolerated(taints, one).is_some()) {
                continue;
            }
            for term in terms {
                let term = self.term(term);
                if let Some(id) = self.narrow(EligibilityId::of_pool(pool), term) {
                    domains.extend(self.offered_domains(id, key).iter().copied());
                }
            }
            for (reservation, _) in reservations.iter().filter(|(_, nodes)| **nodes > 0) {
                if let Some(id) = self.reserved(pool, reservation) {
                    domains.extend(self.offered_domains(id, key).iter().copied());
                }
            }
        }
        domains
    }
}
