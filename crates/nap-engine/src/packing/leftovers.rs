//! A last try for pods that are left without a place.
//!
//! A cap on the size of nodes is a means to a cheap plan, and no reason to refuse anybody. Neither
//! is a spread constraint that the scheduler would consider kept. As long as there is a choice, a
//! spread constraint compares all domains that exist or could be bought, so that pods are spread
//! over zones that have no node yet. What that allows, the scheduler allows too. But the scheduler
//! compares only domains that have nodes, and so binds some pods that would be refused here.
//! Whoever is left is therefore tried once more with the scheduler's own count: a domain without
//! nodes is *closed*. It must stay so, for its first node would make the others too full: no node
//! is opened any more that might be in a domain where somebody's spread constraint sees none.
//!
//! By host name a new node is a domain too. So in the end, when nothing more can be bought, spread
//! constraints over hosts compare the nodes that there are.
//!
//! What a bin can be decides which domains it may appear in. So bins that could be anywhere are
//! tied to where they would be bought.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::offerings::index::OfferingIndex;
use crate::packing::constrained::{DomainAssignment, full_pins};
use crate::packing::first_fit::{Bin, ClusterState, Packer, SizeCap, sum};
use crate::topology::counts::{ABSENT, Host, looks_at};
use crate::topology::groups::{At, Constraint, HostSlot, TopologyGroup, TopologyProfile};

/// The most combinations of domains that a bin is tied to one of.
const MAX_PLACES: usize = 9;

/// The most pods more on every node that a spread over hosts is tried with, once there are no more
/// nodes.
const MAX_LAYERS: usize = 32;

/// A spread over hosts, once there will be no more nodes.
struct HostMinimum {
    of: CountedBy,
    /// The nodes that it looks at, and how many of them it wants; several if it is told in several
    /// ways.
    hosts: Vec<(Vec<(usize, bool)>, usize)>,
    /// How many pods each of them has at least.
    height: i64,
}

/// Who counts the pods of a spread over hosts.
#[derive(Clone, Copy)]
enum CountedBy {
    TopologyGroup(usize),
    HostSlot { dimension: usize, capacity: i64 },
}

/// What a bin was before it was tied.
struct Untied {
    index: usize,
    signature: usize,
    domains: Vec<(usize, u32)>,
    uncounted: Vec<(usize, usize)>,
}

impl Packer<'_, '_> {
    /// Tries pods without a place once more: with nodes as large as they will be, and then with
    /// what the scheduler allows. How many pods of each class were placed only because there are no
    /// more nodes.
    pub(crate) fn last_try(&mut self, pending: &mut [usize]) -> Vec<usize> {
        let mut over_host_limit = vec![0; pending.len()];
        if pending.iter().all(|left| *left == 0) {
            return over_host_limit;
        }
        if self.strategy.cap != SizeCap::None {
            self.lift_caps(false);
            self.reopen();
            for (number, left) in pending.iter_mut().enumerate().filter(|(_, left)| **left > 0) {
                if !self.classes.list[number].is_bound_by_rules() {
                    *left = self.fill(number, *left);
                }
            }
            let is_bound = |number: usize| self.classes.list[number].is_bound_by_rules();
            if pending.iter().enumerate().any(|(number, left)| *left > 0 && is_bound(number)) {
                self.lift_caps(true);
                self.try_again(pending);
            }
        }
        let waits = |(number, left): (usize, &usize)| *left > 0 && self.must_spread(number);
        if !pending.iter().enumerate().any(waits) {
            return over_host_limit;
        }
        let before: usize = pending.iter().sum();
        let open = self.ground.topology.clone();
        let untied = self.tie_all();
        self.restrict_to_existing_domains();
        self.try_again(pending);
        let left = pending.to_vec();
        self.fill_hosts(pending);
        for (number, class) in self.classes.list.iter().enumerate() {
            over_host_limit[class.base] += left[number] - pending[number];
        }
        if pending.iter().sum::<usize>() == before {
            self.ground.topology = open;
            for Untied { index, signature, domains, uncounted } in untied {
                self.narrow(index, signature);
                self.bins[index].domains = domains;
                self.bins[index].uncounted = uncounted;
            }
        }
        over_host_limit
    }

    /// The dimensions that stand for spread constraints by host name.
    fn spread_slots(&self) -> impl Iterator<Item = (usize, usize)> {
        let rules = &self.ground.rules;
        let first = self.zeros.len() - rules.slots.len();
        let spreads =
            rules.slots.iter().enumerate().filter(|(_, slot)| matches!(slot, HostSlot::Spread(..)));
        spreads.map(move |(number, _)| (number, first + number))
    }

    fn must_spread(&self, number: usize) -> bool {
        let class = &self.classes.list[number];
        let constraints = class.coupling.iter().flat_map(|coupling| &coupling.constraints);
        constraints.into_iter().any(|one| matches!(one, Constraint::Spread { .. }))
            || self.spread_slots().any(|(_, dimension)| class.row[dimension] > 0)
    }

    /// Fills the nodes that there are evenly: with no more of them, a spread over hosts compares
    /// with the emptiest.
    fn fill_hosts(&mut self, pending: &mut [usize]) {
        let must_spread = |number: &usize| pending[*number] > 0 && self.must_spread(*number);
        let waiting: Vec<usize> = (0..pending.len()).filter(must_spread).collect();
        let mut floors = self.floors(&waiting);
        for _ in 0..MAX_LAYERS {
            if !self.raise_floors(&mut floors) {
                break;
            }
            self.reopen();
            for index in (0..self.bins.len()).filter(|index| self.bins[*index].pods == 0) {
                self.shelf.close(index);
            }
            for number in waiting.iter().copied() {
                pending[number] = if self.classes.list[number].is_bound_by_rules() {
                    self.place_coupled(number, pending[number])
                } else {
                    let ClusterState { standing, topology, .. } = &mut self.ground;
                    let classes = self.classes;
                    let left = standing.fill_with(
                        number,
                        pending[number],
                        classes,
                        topology,
                        &mut self.seated,
                    );
                    self.fill(number, left)
                };
            }
        }
    }

    /// The spreads over hosts that some classes must keep, with nothing raised yet.
    fn floors(&mut self, waiting: &[usize]) -> Vec<HostMinimum> {
        let rules = Rc::clone(&self.ground.rules);
        let mut floors = Vec::new();
        for (number, counter) in rules.counters.iter().enumerate() {
            let asks = |class: &usize| {
                let constraints =
                    self.classes.list[*class].coupling.iter().flat_map(|one| &one.constraints);
                constraints.into_iter().any(
                    |one| matches!(one, Constraint::Spread { counter, at: At::Host, .. } if *counter == number),
                )
            };
            if waiting.iter().any(asks) {
                let hosts = vec![(self.hosts_of(counter), 1)];
                floors.push(HostMinimum { of: CountedBy::TopologyGroup(number), hosts, height: 0 });
            }
        }
        let slots: Vec<(usize, usize)> = self.spread_slots().collect();
        for (slot, dimension) in slots {
            if waiting.iter().any(|number| self.classes.list[*number].row[dimension] > 0) {
                let each = rules.slot_counters[slot].iter();
                let hosts = each.map(|(counter, least)| (self.hosts_of(counter), *least)).collect();
                let capacity = rules.slots[slot].capacity();
                floors.push(HostMinimum {
                    of: CountedBy::HostSlot { dimension, capacity },
                    hosts,
                    height: 0,
                });
            }
        }
        floors
    }

    /// Finds how many pods every node has that a spread over hosts looks at. Whether that is more
    /// than before.
    fn raise_floors(&mut self, floors: &mut [HostMinimum]) -> bool {
        let mut rose = false;
        let standing = self.ground.standing.nodes.len();
        for floor in floors {
            let on = |host: usize| match floor.of {
                CountedBy::TopologyGroup(number) => self.ground.topology.on(number, Host::Is(host)),
                CountedBy::HostSlot { dimension, capacity } => {
                    let free = self
                        .ground
                        .standing
                        .free()
                        .get(host)
                        .map(|free| capacity - free[dimension]);
                    floor.height + free.unwrap_or_else(|| self.used_by(host - standing)[dimension])
                }
            };
            let least = |(hosts, wanted): &(Vec<(usize, bool)>, usize)| {
                let least = hosts.iter().map(|(host, _)| on(*host)).min();
                least.filter(|_| sure(hosts) >= *wanted).unwrap_or(0)
            };
            let height = floor.hosts.iter().map(least).min().unwrap_or(0);
            let more = height - floor.height;
            if more <= 0 {
                continue;
            }
            rose = true;
            floor.height = height;
            match floor.of {
                CountedBy::TopologyGroup(number) => {
                    let nodes = floor.hosts.iter().map(|(hosts, _)| sure(hosts)).min().unwrap_or(0);
                    self.ground.topology.raise_floor(number, height, nodes);
                }
                CountedBy::HostSlot { dimension, .. } => {
                    self.ground.standing.raise(dimension, more);
                    self.raise(dimension, more);
                }
            }
        }
        self.ground.topology.close_hosts();
        rose
    }

    /// The nodes that a spread over hosts may look at, and whether it does for sure.
    fn hosts_of(&mut self, counter: &TopologyGroup<'_>) -> Vec<(usize, bool)> {
        let rules = Rc::clone(&self.ground.rules);
        let mut hosts = self.ground.standing.seen_by(counter);
        for index in 0..self.bins.len() {
            if self.bins[index].pods == 0 {
                continue;
            }
            if let Some(is_sure) =
                looks_at(counter, &rules, self.bins[index].signature, self.offerings)
            {
                hosts.push((self.host(index), is_sure));
            }
        }
        hosts
    }

    /// Ties bins that could be anywhere to where they cost no more, rather where there are nodes
    /// already.
    fn tie_all(&mut self) -> Vec<Untied> {
        let standing = self
            .ground
            .standing
            .domains
            .iter()
            .flat_map(|domains| domains.iter().copied().enumerate());
        let mut there: BTreeSet<(usize, u32)> = standing.collect();
        there.extend(self.bins.iter().flat_map(|bin| bin.domains.iter().copied()));
        let all = TopologyProfile {
            keys: (0..self.offerings.keys()).collect(),
            ..TopologyProfile::default()
        };
        let mut untied = Vec::new();
        for index in 0..self.bins.len() {
            let bin = &self.bins[index];
            let from = bin.signature;
            if bin.pods == 0 || bin.domains.len() == self.offerings.keys() {
                continue;
            }
            let known = Untied {
                index,
                signature: from,
                domains: bin.domains.clone(),
                uncounted: bin.uncounted.clone(),
            };
            let budget = sum(&self.left[self.offerings.signature(from).pool], &bin.reserved);
            let used = self.used_by(index).to_vec();
            let price = |offerings: &OfferingIndex<'_>, signature: usize| {
                offerings
                    .cheapest(offerings.signature(signature), &used, &budget)
                    .map(|(price, _)| price)
            };
            let now = price(self.offerings, from);
            let mut best: Option<(usize, usize, Rc<DomainAssignment>)> = None;
            for pin in full_pins(self.offerings, from, MAX_PLACES).iter() {
                let Some(signature) = self.pinned(from, pin) else { continue };
                let is_new = |domain: &(usize, u32)| domain.1 != ABSENT && !there.contains(domain);
                let new = pin.domains().iter().filter(|domain| is_new(domain)).count();
                let achieved =
                    self.offerings.achieved(self.offerings.signature(signature), &used, &budget);
                if achieved
                    .iter()
                    .zip(&self.bins[index].keep)
                    .any(|(achieved, keep)| achieved < keep)
                {
                    continue;
                }
                if price(self.offerings, signature) == now
                    && best.as_ref().is_none_or(|(best, ..)| new < *best)
                {
                    best = Some((new, signature, Rc::clone(pin)));
                }
            }
            if let Some((_, signature, pin)) = best {
                there.extend(pin.domains());
                self.narrow(index, signature);
                self.tie(index, None, &all, &pin, 0);
                untied.push(known);
            }
        }
        untied
    }

    /// Leaves spread constraints only the domains that have nodes.
    fn restrict_to_existing_domains(&mut self) {
        let rules = Rc::clone(&self.ground.rules);
        let opened = self.bins.iter().filter(|bin| bin.pods > 0);
        let signatures: BTreeSet<usize> = opened.map(|bin| bin.signature).collect();
        self.ascertain();
        for (number, counter) in rules.counters.iter().enumerate() {
            let Ok(key) = rules.keys.binary_search(&counter.key) else { continue };
            if counter.filter.is_none() {
                continue;
            }
            let standing = self.ground.standing.domains.iter().enumerate();
            let seen = standing.filter(|(node, _)| self.ground.topology.looks(number, *node));
            let mut there: BTreeMap<u32, bool> =
                seen.map(|(_, domains)| (domains[key], true)).collect();
            there.remove(&ABSENT);
            for signature in &signatures {
                let Some(is_sure) = looks_at(counter, &rules, *signature, self.offerings) else {
                    continue;
                };
                let domains = self.offerings.domains(*signature, key);
                for domain in domains.iter() {
                    *there.entry(*domain).or_default() |= is_sure && domains.len() == 1;
                }
            }
            self.ground.topology.close(number, &there);
        }
    }

    /// Counts pods of bins for sure, or not at all, where that is known by now.
    fn ascertain(&mut self) {
        let rules = Rc::clone(&self.ground.rules);
        for Bin { signature, content, domains, .. } in &self.bins {
            for (number, pods) in content {
                let class = &self.classes.list[*number];
                let Some(coupling) = &class.coupling else { continue };
                for ((counter, at), certain) in coupling.counted.iter().zip(&class.certain) {
                    let At::Domain(position) = at else { continue };
                    let domain = domains.iter().find(|(key, _)| *key == coupling.keys[*position]);
                    let Some((_, domain)) =
                        domain.filter(|(_, domain)| !certain && *domain != ABSENT)
                    else {
                        continue;
                    };
                    match looks_at(&rules.counters[*counter], &rules, *signature, self.offerings) {
                        Some(true) => {
                            self.ground.topology.ascertain(*counter, *domain, *pods, true)
                        }
                        Some(false) => {}
                        None => self.ground.topology.ascertain(*counter, *domain, *pods, false),
                    }
                }
            }
        }
    }

    /// Leaves a bin fewer offerings, or gives some back.
    fn narrow(&mut self, index: usize, signature: usize) {
        let bin = &mut self.bins[index];
        bin.signature = signature;
        bin.frontier = self.offerings.frontier(signature, bin.cap);
        let row = index * self.width..(index + 1) * self.width;
        let used = self.used[row.clone()].iter().zip(&mut self.slack[row]);
        for ((used, slack), most) in used.zip(&bin.frontier.most) {
            *slack = most.saturating_sub(*used);
        }
    }

    /// Lets bins grow to any size, or only to the one that would be bought: the cheapest may be
    /// larger than the cap.
    fn lift_caps(&mut self, any_size: bool) {
        for index in 0..self.bins.len() {
            let bin = &self.bins[index];
            let signature = self.offerings.signature(bin.signature);
            let budget = sum(&self.left[signature.pool], &bin.reserved);
            let Some((_, kind)) = self.offerings.cheapest(signature, self.used_by(index), &budget)
            else {
                continue;
            };
            let size =
                if any_size { i64::MAX } else { self.offerings.table(signature).types[kind].cpu };
            if size > bin.cap {
                self.bins[index].cap = size;
                self.narrow(index, self.bins[index].signature);
            }
        }
    }

    /// Gives every bin more of a dimension than the types on offer have.
    fn raise(&mut self, dimension: usize, by: i64) {
        for index in 0..self.bins.len() {
            self.used[index * self.width + dimension] -= by;
            self.slack[index * self.width + dimension] += by;
        }
    }

    /// Whether a new node may be opened: always, unless domains are closed and it might be in one
    /// of them.
    pub(crate) fn may_open(&mut self, signature: usize) -> bool {
        if !self.ground.topology.is_closed() {
            return true;
        }
        if self.ground.topology.hosts_are_closed() {
            return false;
        }
        let rules = Rc::clone(&self.ground.rules);
        rules.counters.iter().enumerate().filter(|(_, counter)| counter.filter.is_some()).all(
            |(number, counter)| {
                let Ok(key) = rules.keys.binary_search(&counter.key) else { return true };
                looks_at(counter, &rules, signature, self.offerings).is_none()
                    || self
                        .offerings
                        .domains(signature, key)
                        .iter()
                        .all(|domain| self.ground.topology.is_seen(number, *domain))
            },
        )
    }
}

/// How many there are for sure.
fn sure(hosts: &[(usize, bool)]) -> usize {
    hosts.iter().filter(|(_, is_sure)| *is_sure).count()
}
