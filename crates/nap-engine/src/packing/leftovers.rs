//! Placing the pods that the fill rule left without a place.
//!
//! A size cap is a means to a cheap packing and no reason to refuse a pod; nor is a spread
//! constraint that the scheduler considers satisfied. While there is a choice, a spread constraint
//! compares all domains that exist or could be launched, so that pods are spread over zones without
//! nodes too. Whatever that allows, the scheduler allows. But the scheduler compares only domains
//! that have nodes, and so binds some pods that would be refused here. Pods without a place are
//! therefore tried again with the scheduler's own count, restricted to the domains that have nodes.
//! From then on no node is opened in any other domain: its first node would raise the skew of the
//! others.
//!
//! By hostname every new node is a domain. So in the end, when no node can be opened any more,
//! spread constraints over hosts compare the nodes that there are.
//!
//! The eligibility set of a bin decides which domains it may appear in. So bins that could be
//! anywhere are first bound to a domain where they cost the same.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::classes::PodCounts;
use crate::ids::{BinId, ClassId, DomainId, EligibilityId, GroupId, Id, IndexVec, KeyId, NodeIdx};
use crate::offerings::eligibility::UNCAPPED;
use crate::packing::domain_binding::labelled;
use crate::packing::packer::Packer;
use crate::packing::strategy::SizeCap;
use crate::topology::counts::{Coverage, Host, HostMinimum, HostQuery};
use crate::topology::domains::{Domain, DomainAssignment};
use crate::topology::groups::{At, Constraint, HostSlot, TopologyGroup, TopologyRules};

/// Upper limit on the rounds in which every node gets more pods of a spread over hosts.
const MAX_LAYERS: usize = 32;

/// A spread over hosts, once no node is opened any more.
struct HostSpread {
    counted_by: CountedBy,
    /// Nodes of each spread constraint behind it.
    covered: Vec<CoveredHosts>,
    /// Number of pods that every covered node has at least.
    minimum: i64,
}

/// Source of the counts of a spread over hosts.
#[derive(Clone, Copy)]
enum CountedBy {
    Group(GroupId),
    Slot { dimension: usize, capacity: i64 },
}

/// The nodes that a spread constraint over hosts may cover, and its `minDomains`.
struct CoveredHosts {
    hosts: Vec<(Host, Coverage)>,
    min_domains: usize,
}

impl CoveredHosts {
    /// Number of nodes that are covered in any case.
    fn certain(&self) -> usize {
        self.hosts.iter().filter(|(_, coverage)| *coverage == Coverage::Always).count()
    }
}

/// A bin before it was bound.
struct Unbound {
    bin: BinId,
    eligibility: EligibilityId,
    domains: Vec<(KeyId, Domain)>,
    uncounted: Vec<(ClassId, usize)>,
}

impl Packer<'_, '_> {
    /// Tries pods without a place once more: with bins of any size, then with what the scheduler
    /// allows. Returns the number of pods of each class that were placed only because no more nodes
    /// are opened.
    pub(super) fn place_leftovers(&mut self, pending: &mut PodCounts) -> PodCounts {
        let mut over_host_limit = IndexVec::filled(0, pending.len());
        if pending.iter().all(|left| *left == 0) {
            return over_host_limit;
        }
        if self.strategy.cap != SizeCap::None {
            self.place_without_caps(pending);
        }
        if !pending.enumerate().any(|(class, left)| *left > 0 && self.must_spread(class)) {
            return over_host_limit;
        }
        let before: usize = pending.iter().sum();
        let unrestricted = self.cluster.topology.clone();
        let unbound = self.bind_all();
        self.restrict_to_existing_domains();
        self.retry_constrained(pending);
        let left = pending.clone();
        self.fill_hosts(pending);
        for (id, class) in self.classes.list.enumerate() {
            over_host_limit[class.base] += left[id] - pending[id];
        }
        if pending.iter().sum::<usize>() == before {
            self.cluster.topology = unrestricted;
            for Unbound { bin, eligibility, domains, uncounted } in unbound {
                self.restrict(bin, eligibility);
                self.bins.set_domains(bin, domains, uncounted);
            }
        }
        over_host_limit
    }

    /// Lets bins grow beyond their size cap.
    fn place_without_caps(&mut self, pending: &mut PodCounts) {
        self.lift_caps(false);
        self.bins.reopen();
        for class in pending.ids() {
            if pending[class] > 0 && !self.classes[class].is_constrained() {
                pending[class] = self.fill(class, pending[class]);
            }
        }
        let waits = |class: ClassId, left: usize| left > 0 && self.classes[class].is_constrained();
        if pending.enumerate().any(|(class, left)| waits(class, *left)) {
            self.lift_caps(true);
            self.retry_constrained(pending);
        }
    }

    /// Dimensions of the host slots of spread constraints, with the positions of the slots.
    fn spread_slots(&self) -> impl Iterator<Item = (usize, usize)> {
        let slots = &self.cluster.rules.slots;
        let first = self.offerings.width - slots.len();
        let spreads =
            slots.iter().enumerate().filter(|(_, slot)| matches!(slot, HostSlot::Spread(..)));
        spreads.map(move |(slot, _)| (slot, first + slot))
    }

    /// Whether a class has a spread constraint.
    fn must_spread(&self, class: ClassId) -> bool {
        let class = &self.classes[class];
        let mut constraints = class.topology.iter().flat_map(|profile| &profile.constraints);
        constraints.any(|one| matches!(one, Constraint::Spread { .. }))
            || self.spread_slots().any(|(_, dimension)| class.requests[dimension] > 0)
    }

    /// Fills the nodes evenly: without further nodes, a spread over hosts compares with the
    /// emptiest one.
    fn fill_hosts(&mut self, pending: &mut PodCounts) {
        let must_spread = |class: &ClassId| pending[*class] > 0 && self.must_spread(*class);
        let waiting: Vec<ClassId> = pending.ids().filter(must_spread).collect();
        let mut spreads = self.host_spreads(&waiting);
        for _ in 0..MAX_LAYERS {
            if !self.raise_minimums(&mut spreads) {
                break;
            }
            self.bins.reopen();
            for bin in self.bins.ids() {
                if self.bins[bin].pods == 0 {
                    self.bins.close(bin);
                }
            }
            for class in waiting.iter().copied() {
                pending[class] = if self.classes[class].is_constrained() {
                    self.place_constrained(class, pending[class])
                } else {
                    let left = self.fill_existing(class, pending[class]);
                    self.fill(class, left)
                };
            }
        }
    }

    /// The spreads over hosts that some classes must keep.
    fn host_spreads(&mut self, waiting: &[ClassId]) -> Vec<HostSpread> {
        let rules = Rc::clone(&self.cluster.rules);
        let mut spreads = Vec::new();
        for (id, group) in rules.groups.enumerate() {
            let is_over_hosts = |one: &Constraint| match one {
                Constraint::Spread { group, at, .. } => *group == id && *at == At::Host,
                Constraint::Affinity { .. } | Constraint::AntiAffinity { .. } => false,
            };
            let has_it = |class: &ClassId| {
                let profile = self.classes[*class].topology.as_ref();
                profile.is_some_and(|profile| profile.constraints.iter().any(is_over_hosts))
            };
            if waiting.iter().any(has_it) {
                let hosts = self.covered_hosts(group, &rules);
                let covered = vec![CoveredHosts { hosts, min_domains: 1 }];
                spreads.push(HostSpread { counted_by: CountedBy::Group(id), covered, minimum: 0 });
            }
        }
        let slots: Vec<(usize, usize)> = self.spread_slots().collect();
        for (slot, dimension) in slots {
            if waiting.iter().any(|class| self.classes[*class].requests[dimension] > 0) {
                let covered = rules.slot_groups[slot].iter().map(|(group, min_domains)| {
                    let hosts = self.covered_hosts(group, &rules);
                    CoveredHosts { hosts, min_domains: *min_domains }
                });
                let covered = covered.collect();
                let capacity = rules.slots[slot].capacity();
                let counted_by = CountedBy::Slot { dimension, capacity };
                spreads.push(HostSpread { counted_by, covered, minimum: 0 });
            }
        }
        spreads
    }

    /// Number of pods on a node that a spread over hosts counts.
    fn counted_on(&self, spread: &HostSpread, host: Host) -> i64 {
        match spread.counted_by {
            CountedBy::Group(group) => self.cluster.topology.on(group, HostQuery::On(host)),
            CountedBy::Slot { dimension, capacity } => {
                let used = match host {
                    Host::Existing(node) => capacity - self.cluster.existing.free(node)[dimension],
                    Host::Bin(bin) => self.bins.used(bin)[dimension],
                };
                // Capacity that was added before is not free again.
                spread.minimum + used
            }
        }
    }

    /// Raises the minimum of each spread over hosts to what every covered node has by now. Returns
    /// whether one rose.
    fn raise_minimums(&mut self, spreads: &mut [HostSpread]) -> bool {
        let mut rose = false;
        for spread in spreads {
            let minimum = |covered: &CoveredHosts| {
                let counts = covered.hosts.iter().map(|(host, _)| self.counted_on(spread, *host));
                counts.min().filter(|_| covered.certain() >= covered.min_domains).unwrap_or(0)
            };
            let minimum = spread.covered.iter().map(minimum).min().unwrap_or(0);
            let more = minimum - spread.minimum;
            if more <= 0 {
                continue;
            }
            rose = true;
            spread.minimum = minimum;
            match spread.counted_by {
                CountedBy::Group(group) => {
                    let nodes = spread.covered.iter().map(CoveredHosts::certain).min();
                    let minimum = HostMinimum { pods: minimum, nodes: nodes.unwrap_or(0) };
                    self.cluster.topology.set_host_minimum(group, minimum);
                }
                CountedBy::Slot { dimension, .. } => {
                    self.cluster.existing.add_capacity(dimension, more);
                    self.bins.add_capacity(dimension, more);
                }
            }
        }
        self.cluster.topology.stop_new_hosts();
        rose
    }

    /// The nodes with pods or in the cluster that a spread over hosts may cover.
    fn covered_hosts(
        &mut self,
        group: &TopologyGroup<'_>,
        rules: &TopologyRules<'_>,
    ) -> Vec<(Host, Coverage)> {
        let existing = self.cluster.existing.covered_by(group).into_iter();
        let mut hosts: Vec<(Host, Coverage)> =
            existing.map(|node: NodeIdx| (Host::Existing(node), Coverage::Always)).collect();
        for bin in self.bins.ids() {
            if self.bins[bin].pods == 0 {
                continue;
            }
            let coverage = self.offerings.coverage(group, rules, self.bins[bin].eligibility);
            if coverage != Coverage::Never {
                hosts.push((Host::Bin(bin), coverage));
            }
        }
        hosts
    }

    /// Binds bins that could be in several domains to one where they cost the same, preferably
    /// where there are nodes already. Returns the bins as they were.
    fn bind_all(&mut self) -> Vec<Unbound> {
        let keys: Vec<KeyId> = self.offerings.keys().collect();
        let existing = self.cluster.existing.domains.iter();
        let mut inhabited: BTreeSet<(KeyId, Domain)> = existing
            .flat_map(|domains| keys.iter().copied().zip(domains.iter().copied()))
            .collect();
        inhabited.extend(self.bins.iter().flat_map(|bin| bin.domains.iter().copied()));
        let mut unbound = Vec::new();
        for bin in self.bins.ids() {
            let entry = &self.bins[bin];
            let from = entry.eligibility;
            if entry.pods == 0 || entry.domains.len() == keys.len() {
                continue;
            }
            let before = Unbound {
                bin,
                eligibility: from,
                domains: entry.domains.clone(),
                uncounted: entry.uncounted.clone(),
            };
            let check = self.price_check(bin);
            let mut best: Option<(usize, EligibilityId, Rc<DomainAssignment>)> = None;
            for assignment in self.offerings.full_assignments(from).iter() {
                let Some(eligibility) = self.assign_usable(from, assignment) else { continue };
                let is_new =
                    |one: &&(KeyId, Domain)| one.1 != Domain::Absent && !inhabited.contains(*one);
                let new = labelled(assignment).iter().filter(is_new).count();
                let left = self.values_left(&check, eligibility);
                if left.iter().zip(&self.bins[bin].keep).any(|(left, keep)| left < keep) {
                    continue;
                }
                if self.has_same_price(&check, eligibility)
                    && best.as_ref().is_none_or(|(best, ..)| new < *best)
                {
                    best = Some((new, eligibility, Rc::clone(assignment)));
                }
            }
            if let Some((_, eligibility, assignment)) = best {
                inhabited.extend(labelled(&assignment));
                self.restrict(bin, eligibility);
                self.bind(bin, &keys, &assignment);
                unbound.push(before);
            }
        }
        unbound
    }

    /// Restricts spread constraints to the domains that have nodes.
    fn restrict_to_existing_domains(&mut self) {
        let rules = Rc::clone(&self.cluster.rules);
        let opened = self.bins.iter().filter(|bin| bin.pods > 0);
        let opened: BTreeSet<EligibilityId> = opened.map(|bin| bin.eligibility).collect();
        self.settle_coverage();
        for (id, group) in rules.groups.enumerate() {
            let Some(key) = rules.key(group.key).filter(|_| group.filter.is_some()) else {
                continue;
            };
            let mut domains: BTreeMap<DomainId, Coverage> = BTreeMap::new();
            for (node, of_node) in self.cluster.existing.domains.enumerate() {
                if let Domain::Is(domain) = of_node[key.index()]
                    && self.cluster.topology.covers(id, node)
                {
                    domains.insert(domain, Coverage::Always);
                }
            }
            for eligibility in &opened {
                let coverage = self.offerings.coverage(group, &rules, *eligibility);
                if coverage == Coverage::Never {
                    continue;
                }
                let offered = self.offerings.offered_domains(*eligibility, key);
                for domain in offered.iter() {
                    let known = domains.entry(*domain).or_insert(Coverage::Maybe);
                    if coverage == Coverage::Always && offered.len() == 1 {
                        *known = Coverage::Always;
                    }
                }
            }
            self.cluster.topology.restrict(id, &domains);
        }
    }

    /// Settles the counts of pods on bins whose coverage is known by now.
    fn settle_coverage(&mut self) {
        let rules = Rc::clone(&self.cluster.rules);
        for bin in self.bins.iter() {
            for (class, pods) in &bin.content {
                let class = &self.classes[*class];
                let Some(profile) = &class.topology else { continue };
                for ((group, at), certain) in profile.counted.iter().zip(&class.surely_counted) {
                    let At::Domain(position) = at else { continue };
                    let Some(Domain::Is(domain)) = bin.domain(profile.keys[*position]) else {
                        continue;
                    };
                    if *certain {
                        continue;
                    }
                    let topology = &mut self.cluster.topology;
                    match self.offerings.coverage(&rules.groups[*group], &rules, bin.eligibility) {
                        Coverage::Always => topology.settle_coverage(*group, domain, *pods, true),
                        Coverage::Maybe => {}
                        Coverage::Never => topology.settle_coverage(*group, domain, *pods, false),
                    }
                }
            }
        }
    }

    /// Lets bins grow to any size, or only to the size that would be launched: the cheapest type
    /// may be larger than the cap.
    fn lift_caps(&mut self, to_any_size: bool) {
        for bin in self.bins.ids() {
            let entry = &self.bins[bin];
            let eligible = self.offerings.eligible(entry.eligibility);
            let budget = self.budget(bin);
            let Some(cheapest) = self.offerings.cheapest(eligible, self.bins.used(bin), &budget)
            else {
                continue;
            };
            let size = if to_any_size {
                UNCAPPED
            } else {
                self.offerings.table(eligible).types[cheapest.id].cpu
            };
            if size > entry.cap {
                let frontier = self.offerings.frontier(entry.eligibility, size);
                self.bins.raise_cap(bin, size, frontier);
            }
        }
    }

    /// Whether a bin of an eligibility set may be opened: always, unless spread constraints are
    /// restricted to domains that the bin might not be in.
    pub(super) fn may_open(&mut self, eligibility: EligibilityId) -> bool {
        if !self.cluster.topology.is_restricted() {
            return true;
        }
        if self.cluster.topology.allows_no_new_hosts() {
            return false;
        }
        let rules = Rc::clone(&self.cluster.rules);
        rules.groups.enumerate().filter(|(_, group)| group.filter.is_some()).all(|(id, group)| {
            let Some(key) = rules.key(group.key) else { return true };
            let topology = &self.cluster.topology;
            self.offerings.coverage(group, &rules, eligibility) == Coverage::Never
                || self
                    .offerings
                    .offered_domains(eligibility, key)
                    .iter()
                    .all(|domain| topology.covers_domain(id, *domain))
        })
    }
}
