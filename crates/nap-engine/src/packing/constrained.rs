//! Placing pods that depend on other pods.
//!
//! Such pods go where the counts of the domains allow, a few at a time: onto machines that exist,
//! then onto bins, then onto a new one. As long as no such pod is on it a bin keeps its choice
//! of zones; the first one ties it to a domain, a *pin*, so that what is counted is what will be.
//! Of the domains that are allowed, bins and machines take the emptiest first, and a new bin is
//! opened where it is cheapest.
//!
//! Pods that others look at, but that may go anywhere themselves, tie nothing: they are counted
//! where their bin is tied already, or once it is. Until then nobody relies on them, so they can
//! always be bound last.

use std::ops::Range;
use std::rc::Rc;

use crate::classes::Class;
use crate::offerings::index::OfferingIndex;
use crate::packing::bin_queue::Cursor;
use crate::packing::first_fit::{Packer, sum};
use crate::packing::open_bin::NewBin;
use crate::topology::counts::{ABSENT, Domains, Host};
use crate::topology::groups::{TopologyProfile, TopologyRules};

/// The most combinations of domains that a class is tried in.
const MAX_PINS: usize = 128;

/// The most times that pods without a place are tried again, once others have theirs.
const MAX_ROUNDS: usize = 8;

/// A combination of domains that a bin can be tied to.
#[derive(Clone, Debug, Default)]
pub(crate) struct DomainAssignment {
    vector: Domains,
    /// The terms that tie a node to it.
    pub(crate) terms: Vec<usize>,
    /// The labels that a node must lack.
    pub(crate) absent: Vec<usize>,
}

impl DomainAssignment {
    /// The domains that a kind of pod depends on, of a pin that has all of them.
    pub(crate) fn of(&self, coupling: Option<&TopologyProfile>) -> Domains {
        coupling.map_or_else(Vec::new, |coupling| {
            coupling.keys.iter().map(|key| self.vector[*key]).collect()
        })
    }

    /// The labels with their domains, of a pin that has all of them.
    pub(crate) fn domains(&self) -> Vec<(usize, u32)> {
        self.vector.iter().copied().enumerate().collect()
    }
}

/// The combinations of domains by every label whose values are domains that a signature has.
pub(crate) fn full_pins(
    offerings: &mut OfferingIndex<'_>,
    signature: usize,
    most: usize,
) -> Rc<[Rc<DomainAssignment>]> {
    if let Some(known) = offerings.full_pins.get(&signature) {
        return Rc::clone(known);
    }
    let mut pins: Vec<DomainAssignment> = vec![DomainAssignment::default()];
    for key in 0..offerings.keys() {
        let mut values = offerings.domains(signature, key).to_vec();
        if offerings.lacks(signature, key) {
            values.push(ABSENT);
        }
        let mut extended = Vec::new();
        for pin in &pins {
            for value in &values {
                let mut pin = pin.clone();
                pin.vector.push(*value);
                match *value {
                    ABSENT => pin.absent.push(key),
                    value => pin.terms.push(offerings.pin(key, value)),
                }
                extended.push(pin);
            }
        }
        extended.truncate(most);
        pins = extended;
    }
    let pins: Rc<[Rc<DomainAssignment>]> = pins.into_iter().map(Rc::new).collect();
    offerings.full_pins.insert(signature, Rc::clone(&pins));
    pins
}

/// The combinations of domains that some pools have for a class.
pub(crate) fn places(
    offerings: &mut OfferingIndex<'_>,
    class: &Class<'_>,
    coupling: &TopologyProfile,
    pools: Range<usize>,
) -> Vec<Domains> {
    let mut places: Vec<Domains> = Vec::new();
    for pool in pools {
        if !offerings.tolerates(pool, class) {
            continue;
        }
        for from in [&[pool], offerings.reserved_in(pool)].concat() {
            for term in &class.terms {
                let Some(signature) = offerings.step(from, *term) else { continue };
                let mut here: Vec<Domains> = vec![Vec::new()];
                for key in &coupling.keys {
                    let mut values = offerings.domains(signature, *key).to_vec();
                    if offerings.lacks(signature, *key) {
                        values.push(ABSENT);
                    }
                    let extended = here.iter().flat_map(|vector| {
                        values
                            .iter()
                            .map(|value| [vector.as_slice(), std::slice::from_ref(value)].concat())
                    });
                    here = extended.take(MAX_PINS).collect();
                }
                places.extend(here);
            }
        }
    }
    // What lacks a label comes first.
    places.sort_unstable_by_key(|vector| {
        vector.iter().map(|one| one.wrapping_add(1)).collect::<Vec<_>>()
    });
    places.dedup();
    places
}

/// The combinations of domains that any pool has for a class, with what ties a node to them.
pub(crate) fn pins(
    offerings: &mut OfferingIndex<'_>,
    class: &Class<'_>,
    coupling: &TopologyProfile,
) -> Rc<[DomainAssignment]> {
    let asked = (class.wish, coupling.keys.clone());
    if let Some(known) = offerings.pins.get(&asked) {
        return Rc::clone(known);
    }
    let pools = 0..offerings.pools.len();
    let places = places(offerings, class, coupling, pools);
    let pin = |vector: Domains| {
        let mut pin = DomainAssignment::default();
        for (key, value) in coupling.keys.iter().zip(&vector) {
            match *value {
                ABSENT => pin.absent.push(*key),
                value => pin.terms.push(offerings.pin(*key, value)),
            }
        }
        DomainAssignment { vector, ..pin }
    };
    let pins: Rc<[DomainAssignment]> = places.into_iter().map(pin).collect();
    offerings.pins.insert(asked, Rc::clone(&pins));
    pins
}

/// What was found out about a pin while pods of one class are placed.
#[derive(Clone, Default)]
struct AssignmentProgress {
    /// The bins before it have refused.
    cursor: Cursor,
    /// No new bin can be opened in it.
    is_exhausted: bool,
    /// What a new bin would be, for so many pods.
    offer: Option<(usize, Option<NewBin>)>,
}

impl Packer<'_, '_> {
    /// Places pods of a class that depends on others; how many are left.
    pub(crate) fn place_coupled(&mut self, number: usize, mut count: usize) -> usize {
        let classes = self.classes;
        let class = &classes.list[number];
        let Some(coupling) = class.coupling.clone() else { return count };
        self.shelf.tidy();
        let mut seats = self.ground.standing.seats(class, classes, &coupling);
        let pins = pins(self.offerings, class, &coupling);
        let mut outlooks = vec![AssignmentProgress::default(); pins.len()];
        let mut order: Vec<(i64, usize)> = Vec::with_capacity(pins.len());
        // As long as that leaves a place, nobody is put where he would upset the spread of others.
        let mut order_independent = true;
        while count > 0 {
            let ground = &mut self.ground;
            if let Some((node, seated)) =
                ground.standing.seat(&mut seats, class, &coupling, &mut ground.topology, count)
            {
                self.seated.push(crate::packing::existing::ExistingPlacement {
                    class: number,
                    node,
                    count: seated,
                });
                count -= seated;
                continue;
            }
            order.clear();
            for (number, pin) in pins.iter().enumerate() {
                if !outlooks[number].is_exhausted
                    && self.allowance(&coupling, pin, Host::Any, order_independent) > 0
                {
                    order.push((self.ground.topology.load(&coupling, &pin.vector), number));
                }
            }
            order.sort_unstable();
            let mut placed = 0;
            for (_, pin) in &order {
                let cursor = &mut outlooks[*pin].cursor;
                placed =
                    self.join(number, count, (&coupling, &pins[*pin]), cursor, order_independent);
                if placed > 0 {
                    break;
                }
            }
            if placed == 0 {
                let found =
                    self.cheapest_pin(number, count, &coupling, &pins, &order, &mut outlooks);
                let Some((pin, offer)) = found else {
                    if order_independent {
                        order_independent = false;
                        outlooks.fill(AssignmentProgress::default());
                        continue;
                    }
                    break;
                };
                placed = self.open_pinned(number, count, (&coupling, &pins[pin]), &offer);
                outlooks[pin].is_exhausted = placed == 0;
            }
            count -= placed;
        }
        count
    }

    /// Tries pods without a place again while that helps: what they need may have been placed after
    /// them.
    pub(crate) fn try_again(&mut self, pending: &mut [usize]) {
        let classes = self.classes;
        let waits = |(number, pending): (usize, &usize)| {
            *pending > 0 && classes.list[number].is_bound_by_rules()
        };
        for _ in 0..MAX_ROUNDS {
            if !pending.iter().enumerate().any(waits) {
                break;
            }
            self.reopen();
            let mut progress = false;
            for (number, pending) in pending.iter_mut().enumerate() {
                if waits((number, pending)) {
                    let left = self.place_coupled(number, *pending);
                    progress |= left < *pending;
                    *pending = left;
                }
            }
            if !progress {
                break;
            }
        }
    }

    fn allowance(
        &self,
        coupling: &TopologyProfile,
        pin: &DomainAssignment,
        host: Host,
        order_independent: bool,
    ) -> usize {
        let topology = &self.ground.topology;
        let allowed = match topology.allowance(coupling, &pin.vector, host) {
            0 => return 0,
            allowed => allowed.min(topology.stride(coupling, &pin.vector)),
        };
        if order_independent {
            allowed.min(topology.order_independent_allowance(
                coupling,
                &pin.vector,
                host,
                &self.ground.skews,
            ))
        } else {
            allowed
        }
    }

    /// How many pods that may go anywhere a bin can take so that they upset nobody, as far as it
    /// is known where it will be.
    pub(crate) fn polite_room(&self, index: usize, number: usize) -> usize {
        let Some(coupling) = &self.classes.list[number].coupling else { return usize::MAX };
        let held = &self.bins[index].domains;
        let domain = |key: &usize| {
            held.iter().find(|(other, _)| other == key).map_or(ABSENT, |(_, one)| *one)
        };
        let vector: Domains = coupling.keys.iter().map(domain).collect();
        let host = Host::Is(self.host(index));
        self.ground.topology.order_independent_allowance(
            coupling,
            &vector,
            host,
            &self.ground.skews,
        )
    }

    /// Whether the pods that are on a bin already would upset somebody, were it tied to a pin.
    fn would_upset(
        &self,
        index: usize,
        coupling: &TopologyProfile,
        pin: &DomainAssignment,
    ) -> bool {
        let tied = |key: &usize| {
            coupling.keys.iter().position(|other| other == key).map(|at| pin.vector[at])
        };
        self.bins[index].uncounted.iter().any(|(number, count)| {
            let light = self.classes.list[*number].coupling.as_ref();
            light.is_some_and(|light| {
                let vector: Domains =
                    light.keys.iter().map(|key| tied(key).unwrap_or(ABSENT)).collect();
                self.ground.topology.order_independent_allowance(
                    light,
                    &vector,
                    Host::Fresh,
                    &self.ground.skews,
                ) < *count
            })
        })
    }

    /// Ties bins that could be anywhere to where their pods upset nobody, if that costs no more.
    pub(crate) fn tie_the_rest(&mut self) {
        const MAX_PLACES: usize = 9;
        for index in 0..self.bins.len() {
            let bin = &self.bins[index];
            let from = bin.signature;
            let wants_choice = !self.offerings.signature(from).diversities.is_empty();
            if bin.uncounted.is_empty() || !bin.domains.is_empty() || wants_choice {
                continue;
            }
            let budget = sum(&self.left[self.offerings.signature(from).pool], &bin.reserved);
            let used = self.used_by(index).to_vec();
            let price = |offerings: &OfferingIndex<'_>, signature: usize| {
                offerings
                    .cheapest(offerings.signature(signature), &used, &budget)
                    .map(|(price, _)| price)
            };
            let now = price(self.offerings, from);
            let all = TopologyProfile {
                keys: (0..self.offerings.keys()).collect(),
                ..TopologyProfile::default()
            };
            for pin in full_pins(self.offerings, from, MAX_PLACES).iter() {
                let mut signature = Some(from);
                for term in &pin.terms {
                    signature =
                        signature.and_then(|signature| self.offerings.step(signature, *term));
                }
                let Some(signature) = signature.filter(|_| pin.absent.is_empty()) else { continue };
                if price(self.offerings, signature) == now && !self.would_upset(index, &all, pin) {
                    self.bins[index].signature = signature;
                    self.tie(index, None, &all, pin, 0);
                    break;
                }
            }
        }
    }

    pub(crate) fn host(&self, bin: usize) -> usize {
        self.ground.standing.nodes.len() + bin
    }

    /// Adds pods to the first bin that may have them in these domains; how many.
    fn join(
        &mut self,
        number: usize,
        count: usize,
        (coupling, pin): (&TopologyProfile, &DomainAssignment),
        cursor: &mut Cursor,
        order_independent: bool,
    ) -> usize {
        // A node that is refused now may be allowed later, if the pod wants to share it with
        // others.
        let patient = coupling.follows_hosts();
        let mut at = if patient { Cursor::default() } else { *cursor };
        loop {
            *cursor = at;
            let Some(index) = self.next_draft(&mut at) else { return 0 };
            let held = &self.bins[index].domains;
            let agrees = coupling.keys.iter().zip(&pin.vector).all(|(key, value)| {
                held.iter().find(|(other, _)| other == key).is_none_or(|(_, held)| held == value)
            });
            if !agrees || (order_independent && self.would_upset(index, coupling, pin)) {
                continue;
            }
            let allowed = self
                .allowance(coupling, pin, Host::Is(self.host(index)), order_independent)
                .min(count);
            let allowed = if self.is_even() { allowed.min(1) } else { allowed };
            if allowed > 0
                && let Some(fit) = self.fit(index, number, allowed, pin)
                && (self.bins[index].pods > 0 || self.may_open(fit.signature))
            {
                let added = self.add(index, number, &fit, fit.room);
                if added > 0 {
                    self.tie(index, Some(number), coupling, pin, added);
                    return added;
                }
            }
        }
    }

    /// Where a new bin is cheapest among the domains that are allowed: the heaviest pool first.
    fn cheapest_pin(
        &mut self,
        number: usize,
        count: usize,
        coupling: &TopologyProfile,
        pins: &[DomainAssignment],
        order: &[(i64, usize)],
        outlooks: &mut [AssignmentProgress],
    ) -> Option<(usize, NewBin)> {
        let share = count.div_ceil(order.len().max(1));
        let by_host = self.ground.topology.most_on_a_host(coupling);
        let most = share.min(by_host).min(self.most_pods);
        let limited = self.left.iter().any(|left| !left.is_empty());
        let mut best: Option<(usize, NewBin)> = None;
        for (_, pin) in order {
            if self.allowance(coupling, &pins[*pin], Host::Fresh, false) == 0 {
                continue;
            }
            let offer = match outlooks[*pin].offer {
                Some((for_so_many, offer)) if for_so_many == most && !limited => offer,
                _ => self.best_offer(number, most, &pins[*pin]),
            };
            outlooks[*pin].offer = Some((most, offer));
            let Some(offer) = offer.filter(|offer| self.may_open(offer.fit.signature)) else {
                continue;
            };
            if self.is_even() {
                return Some((*pin, offer));
            }
            let better = best.as_ref().is_none_or(|(_, best)| {
                offer.weight > best.weight
                    || (offer.weight == best.weight && offer.value.cheaper_than(&best.value))
            });
            if better {
                best = Some((*pin, offer));
            }
        }
        best
    }

    fn open_pinned(
        &mut self,
        number: usize,
        count: usize,
        (coupling, pin): (&TopologyProfile, &DomainAssignment),
        offer: &NewBin,
    ) -> usize {
        let allowed = self.allowance(coupling, pin, Host::Fresh, false);
        let wanted = offer.fit.room.min(allowed).min(count);
        self.push_bin(offer.fit.signature, offer.cap);
        let index = self.bins.len() - 1;
        let added = self.add(index, number, &offer.fit, wanted);
        if added == 0 {
            self.pop_draft();
        } else {
            self.tie(index, Some(number), coupling, pin, added);
        }
        added
    }

    /// Ties a bin to its domains and counts the pods that went there.
    pub(crate) fn tie(
        &mut self,
        index: usize,
        number: Option<usize>,
        coupling: &TopologyProfile,
        pin: &DomainAssignment,
        added: usize,
    ) {
        let host = self.host(index);
        let bin = &mut self.bins[index];
        let before = bin.domains.len();
        for (key, value) in coupling.keys.iter().zip(&pin.vector) {
            if !bin.domains.iter().any(|(other, _)| other == key) {
                bin.domains.push((*key, *value));
            }
        }
        let topology = &mut self.ground.topology;
        if let Some(number) = number {
            topology.record(coupling, &self.classes.list[number].certain, &pin.vector, host, added);
        }
        if bin.domains.len() == before || bin.uncounted.is_empty() {
            return;
        }
        // Now it is known where the others are as well.
        let fresh = &bin.domains[before..];
        for (number, count) in &bin.uncounted {
            let class = &self.classes.list[*number];
            let Some(coupling) = &class.coupling else { continue };
            let known = |position: Option<usize>| {
                let key = coupling.keys[position?];
                fresh.iter().find(|(other, _)| *other == key).map(|(_, domain)| *domain)
            };
            topology.record_known(coupling, &class.certain, known, host, *count);
        }
        let domains = &bin.domains;
        bin.uncounted.retain(|(number, _)| {
            let keys =
                self.classes.list[*number].coupling.iter().flat_map(|coupling| &coupling.keys);
            keys.into_iter().any(|key| !domains.iter().any(|(other, _)| other == key))
        });
    }

    /// Counts pods that may go anywhere, as far as it is known where their bin will be.
    pub(crate) fn count_light(&mut self, index: usize, number: usize, count: usize) {
        let class = &self.classes.list[number];
        let Some(coupling) = &class.coupling else { return };
        let host = self.host(index);
        let bin = &mut self.bins[index];
        let tied = |key: usize| {
            bin.domains.iter().find(|(other, _)| *other == key).map(|(_, domain)| *domain)
        };
        let known = |position: Option<usize>| match position {
            None => Some(0),
            Some(position) => tied(coupling.keys[position]),
        };
        self.ground.topology.record_known(coupling, &class.certain, known, host, count);
        if coupling.keys.iter().any(|key| tied(*key).is_none()) {
            bin.uncounted.push((number, count));
        }
    }
}

/// The rule that keeps a class from every place that a pool has for it.
pub(crate) fn blocking_rule(
    offerings: &mut OfferingIndex<'_>,
    rules: &TopologyRules<'_>,
    class: &Class<'_>,
    topology: &crate::topology::counts::Topology,
    pool: usize,
) -> Option<crate::model::Rule> {
    let coupling = class.coupling.as_ref()?;
    let places = places(offerings, class, coupling, pool..pool + 1);
    topology.blocking(rules, coupling, &places)
}
