//! Binding bins to domains, and counting the pods on them.
//!
//! A bin keeps its choice of domains until the first pod with a topology constraint restricts it.
//! Pods that are only counted restrict nothing: they count once the domain of their bin is known.
//! Until then no placement relies on them, so they can always be bound last.

use nap_units::UsdPerHour;

use crate::ids::{BinId, ClassId, EligibilityId, Id, KeyId};
use crate::offerings::min_values;
use crate::packing::packer::Packer;
use crate::topology::counts::{Allowance, Host, HostQuery};
use crate::topology::domains::{Domain, DomainAssignment, Domains};

/// The load and the budget of a bin, to compare its price under other eligibility sets.
pub(super) struct PriceCheck {
    used: Vec<i64>,
    budget: Vec<i64>,
    price: Option<UsdPerHour>,
}

impl Packer<'_, '_> {
    /// The price of a bin as it is.
    pub(super) fn price_check(&self, bin: BinId) -> PriceCheck {
        let used = self.bins.used(bin).to_vec();
        let budget = self.budget(bin);
        let price = self.offerings.lowest_price(self.bins[bin].eligibility, &used, &budget);
        PriceCheck { used, budget, price }
    }

    /// Whether a bin has the same price under another eligibility set.
    pub(super) fn has_same_price(&self, check: &PriceCheck, eligibility: EligibilityId) -> bool {
        let PriceCheck { used, budget, price } = check;
        self.offerings.lowest_price(eligibility, used, budget) == *price
    }

    /// Number of values that the types of an eligibility set have for a bin, for each `minValues`
    /// rule.
    pub(super) fn values_left(&self, check: &PriceCheck, eligibility: EligibilityId) -> Vec<usize> {
        let eligible = self.offerings.eligible(eligibility);
        min_values::values_left(self.offerings, eligible, &check.used, &check.budget)
    }

    /// Number of only counted pods that a bin may take without violating a spread in any binding
    /// order, as far as its domains are known.
    pub(super) fn order_independent_room(&self, bin: BinId, class: ClassId) -> Allowance {
        let Some(profile) = &self.classes[class].topology else { return Allowance::Unlimited };
        let entry = &self.bins[bin];
        let domain = |key: &KeyId| entry.domain(*key).unwrap_or(Domain::Absent);
        let domains: Domains = profile.keys.iter().map(domain).collect();
        let host = HostQuery::On(Host::Bin(bin));
        let min_skews = &self.cluster.min_skews;
        self.cluster.topology.order_independent_allowance(profile, &domains, host, min_skews)
    }

    /// Whether the uncounted pods of a bin would violate a spread in some binding order, were the
    /// bin bound to these domains.
    pub(super) fn would_violate_spread(
        &self,
        bin: BinId,
        keys: &[KeyId],
        domains: &Domains,
    ) -> bool {
        let domain = |key: &KeyId| keys.iter().position(|other| other == key).map(|at| domains[at]);
        self.bins[bin].uncounted.iter().any(|(class, count)| {
            let Some(profile) = &self.classes[*class].topology else { return false };
            let domains: Domains =
                profile.keys.iter().map(|key| domain(key).unwrap_or(Domain::Absent)).collect();
            let min_skews = &self.cluster.min_skews;
            let topology = &self.cluster.topology;
            let allowance =
                topology.order_independent_allowance(profile, &domains, HostQuery::New, min_skews);
            allowance < Allowance::AtMost(*count)
        })
    }

    /// Binds bins with uncounted pods to domains where those violate no spread, at the same price.
    pub(super) fn bind_uncounted(&mut self) {
        let keys: Vec<KeyId> = self.offerings.keys().collect();
        for bin in self.bins.ids() {
            let entry = &self.bins[bin];
            let from = entry.eligibility;
            let needs_choice = !self.offerings.eligible(from).min_values.is_empty();
            if entry.uncounted.is_empty() || !entry.domains.is_empty() || needs_choice {
                continue;
            }
            let check = self.price_check(bin);
            for assignment in self.offerings.full_assignments(from).iter() {
                let assigned = self.offerings.narrow_all(from, &assignment.terms);
                let Some(eligibility) = assigned.filter(|_| assignment.absent.is_empty()) else {
                    continue;
                };
                if self.has_same_price(&check, eligibility)
                    && !self.would_violate_spread(bin, &keys, &assignment.domains)
                {
                    self.restrict(bin, eligibility);
                    self.bind(bin, &keys, assignment);
                    break;
                }
            }
        }
    }

    /// Replaces the eligibility set of a bin.
    pub(super) fn restrict(&mut self, bin: BinId, eligibility: EligibilityId) {
        let frontier = self.offerings.frontier(eligibility, self.bins[bin].cap);
        self.bins.restrict(bin, eligibility, frontier);
    }

    /// Binds a bin to the domains of an assignment of some labels, and counts its uncounted pods
    /// there.
    pub(super) fn bind(&mut self, bin: BinId, keys: &[KeyId], assignment: &DomainAssignment) {
        let entry = &self.bins[bin];
        let is_new = |(key, _): &(&KeyId, &Domain)| entry.domain(**key).is_none();
        let new: Vec<(KeyId, Domain)> = keys
            .iter()
            .zip(&assignment.domains)
            .filter(is_new)
            .map(|(key, domain)| (*key, *domain))
            .collect();
        if new.is_empty() {
            return;
        }
        let domains = [entry.domains.as_slice(), &new].concat();
        let mut uncounted = entry.uncounted.clone();
        for (class, count) in &uncounted {
            let class = &self.classes[*class];
            let Some(profile) = &class.topology else { continue };
            let domain = |position: usize| {
                let key = profile.keys[position];
                new.iter().find(|(other, _)| *other == key).map(|(_, domain)| *domain)
            };
            let (certain, host) = (&class.surely_counted, Host::Bin(bin));
            self.cluster.topology.record_known(profile, certain, domain, false, host, *count);
        }
        uncounted.retain(|(class, _)| {
            let keys = self.classes[*class].topology.iter().flat_map(|profile| &profile.keys);
            keys.into_iter().any(|key| !domains.iter().any(|(other, _)| other == key))
        });
        self.bins.set_domains(bin, domains, uncounted);
    }

    /// Counts pods that go anywhere, as far as the domains of their bin are known.
    pub(super) fn count_where_known(&mut self, bin: BinId, id: ClassId, count: usize) {
        let class = &self.classes[id];
        let Some(profile) = &class.topology else { return };
        let entry = &self.bins[bin];
        let domain = |position: usize| entry.domain(profile.keys[position]);
        let (certain, host) = (&class.surely_counted, Host::Bin(bin));
        self.cluster.topology.record_known(profile, certain, domain, true, host, count);
        if profile.keys.iter().any(|key| entry.domain(*key).is_none()) {
            self.bins.add_uncounted(bin, id, count);
        }
    }
}

/// The labels of an assignment of every topology label, with their domains.
pub(super) fn labelled(assignment: &DomainAssignment) -> Vec<(KeyId, Domain)> {
    let each = assignment.domains.iter().enumerate();
    each.map(|(key, domain)| (KeyId::new(key), *domain)).collect()
}
