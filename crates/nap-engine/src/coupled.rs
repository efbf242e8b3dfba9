//! Placing pods that depend on other pods.
//!
//! Such pods go where the counts of the domains allow, a few at a time: onto machines that exist, then onto drafts, then onto a new one. As
//! long as no such pod is on it a draft keeps its choice of zones; the first one ties it to a domain, a *pin*, so that what is
//! counted is what will be. Of the domains that are allowed, drafts and machines take the emptiest first, and a new draft is opened where
//! it is cheapest.

use std::ops::Range;
use std::rc::Rc;

use crate::classes::Class;
use crate::market::Market;
use crate::pack::{Manner, Offer, Packer};
use crate::rules::{Coupling, Rules};
use crate::topology::{Host, Vector};

/// The most combinations of domains that a class is tried in.
const MOST_PINS: usize = 128;

/// The most times that pods without a place are tried again, once others have theirs.
const MOST_ROUNDS: usize = 8;

/// A combination of domains that a draft can be tied to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pin {
    vector: Vector,
    /// The terms that tie a node to it.
    pub(crate) terms: Vec<usize>,
    /// The labels that a node must lack.
    pub(crate) absent: Vec<String>,
}

/// The combinations of domains that some pools have for a class.
pub(crate) fn places(
    market: &mut Market<'_>,
    rules: &Rules<'_>,
    class: &Class<'_>,
    coupling: &Coupling,
    pools: Range<usize>,
) -> Vec<Vector> {
    let mut places: Vec<Vector> = Vec::new();
    for pool in pools {
        if !market.tolerates(pool, class) {
            continue;
        }
        for term in &class.terms {
            let Some(signature) = market.step(pool, *term) else { continue };
            let mut here: Vec<Vector> = vec![Vec::new()];
            for key in &coupling.keys {
                let key = rules.keys[*key];
                let mut values: Vec<Option<Rc<str>>> =
                    market.domains(signature, key).iter().cloned().map(Some).collect();
                if market.lacks(signature, key) {
                    values.push(None);
                }
                here = here
                    .iter()
                    .flat_map(|vector| {
                        values.iter().map(|value| [vector.as_slice(), std::slice::from_ref(value)].concat())
                    })
                    .take(MOST_PINS)
                    .collect();
            }
            places.extend(here);
        }
    }
    places.sort_unstable();
    places.dedup();
    places
}

impl Packer<'_, '_> {
    /// Places pods of a class that depends on others; how many are left. `open` are the drafts that can still grow.
    pub(crate) fn place_coupled(&mut self, number: usize, mut count: usize, open: &mut Vec<usize>) -> usize {
        let classes = self.classes;
        let class = &classes.list[number];
        let Some(coupling) = class.coupling.clone() else { return count };
        let rules = self.ground.rules;
        let mut seats = self.ground.standing.seats(class, classes, rules, &coupling);
        let pins = self.pins(class, &coupling);
        let mut drafts = open.clone();
        if self.strategy.manner == Manner::Incumbent {
            drafts.sort_by_key(|index| self.drafts[*index].pods);
        }
        let mut tried = vec![0; pins.len()];
        let mut exhausted = vec![false; pins.len()];
        while count > 0 {
            let ground = &mut self.ground;
            if let Some((node, seated)) =
                ground.standing.seat(&mut seats, class, &coupling, &mut ground.topology, count)
            {
                self.seated.push(crate::existing::Seated { class: number, node, count: seated });
                count -= seated;
                continue;
            }
            let mut order: Vec<(i64, usize)> = (0..pins.len())
                .filter(|pin| !exhausted[*pin])
                .filter(|pin| self.allowance(&coupling, &pins[*pin], Host::Any) > 0)
                .map(|pin| (self.ground.topology.load(&coupling, &pins[pin].vector), pin))
                .collect();
            order.sort_unstable();
            let order: Vec<usize> = order.into_iter().map(|(_, pin)| pin).collect();
            let mut placed = 0;
            for pin in &order {
                placed = self.join(number, count, (&coupling, &pins[*pin]), &drafts, &mut tried[*pin]);
                if placed > 0 {
                    break;
                }
            }
            if placed == 0 {
                let Some((pin, offer)) = self.cheapest_pin(number, count, &coupling, &pins, &order) else {
                    break;
                };
                placed = self.open_pinned(number, count, (&coupling, &pins[pin]), &offer);
                if placed == 0 {
                    exhausted[pin] = true;
                    continue;
                }
                open.push(self.drafts.len() - 1);
                drafts.push(self.drafts.len() - 1);
            }
            count -= placed;
        }
        count
    }

    /// Tries pods without a place again while that helps: what they need may have been placed after them.
    pub(crate) fn try_again(&mut self, pending: &mut [usize]) {
        let classes = self.classes;
        for _ in 0..MOST_ROUNDS {
            let mut progress = false;
            for (number, pending) in pending.iter_mut().enumerate() {
                if *pending > 0 && classes.list[number].coupling.is_some() {
                    let mut open: Vec<usize> = (0..self.drafts.len()).collect();
                    let left = self.place_coupled(number, *pending, &mut open);
                    progress |= left < *pending;
                    *pending = left;
                }
            }
            if !progress {
                break;
            }
        }
    }

    fn pins(&mut self, class: &Class<'_>, coupling: &Coupling) -> Vec<Pin> {
        let rules = self.ground.rules;
        let pools = 0..self.market.pools.len();
        let places = places(self.market, rules, class, coupling, pools);
        let pin = |vector: Vector| {
            let mut pin = Pin::default();
            for (key, value) in coupling.keys.iter().zip(&vector) {
                let key = rules.keys[*key];
                match value {
                    Some(value) => pin.terms.push(self.market.pin(key, value)),
                    None => pin.absent.push(key.to_owned()),
                }
            }
            Pin { vector, ..pin }
        };
        places.into_iter().map(pin).collect()
    }

    fn allowance(&self, coupling: &Coupling, pin: &Pin, host: Host) -> usize {
        let topology = &self.ground.topology;
        topology.allowance(coupling, &pin.vector, host).min(topology.stride(coupling, &pin.vector))
    }

    fn host(&self, draft: usize) -> usize {
        self.ground.standing.nodes.len() + draft
    }

    /// Adds pods to the first draft that may have them in these domains; how many.
    fn join(
        &mut self,
        number: usize,
        count: usize,
        (coupling, pin): (&Coupling, &Pin),
        drafts: &[usize],
        first: &mut usize,
    ) -> usize {
        let patient = coupling.follows_hosts();
        let mut position = *first;
        self.market.spend(8);
        while let Some(index) = drafts.get(position).copied() {
            let held = &self.drafts[index].domains;
            let agrees = coupling.keys.iter().zip(&pin.vector).all(|(key, value)| {
                held.iter().find(|(other, _)| other == key).is_none_or(|(_, held)| held == value)
            });
            let allowed = self.allowance(coupling, pin, Host::Is(self.host(index))).min(count);
            if agrees && allowed > 0 {
                self.market.spend(1);
                if let Some(fit) = self.fit(index, number, allowed, pin) {
                    let added = self.add(index, number, &fit, fit.room);
                    if added > 0 {
                        self.tie(index, number, coupling, pin, added);
                        return added;
                    }
                }
            }
            position += 1;
            if !patient {
                *first = position;
            }
        }
        0
    }

    /// Where a new draft is cheapest among the domains that are allowed: the heaviest pool first.
    fn cheapest_pin(
        &mut self,
        number: usize,
        count: usize,
        coupling: &Coupling,
        pins: &[Pin],
        order: &[usize],
    ) -> Option<(usize, Offer)> {
        let share = count.div_ceil(order.len().max(1));
        let mut best: Option<(usize, Offer)> = None;
        for pin in order {
            let by_host = self.ground.topology.most_on_a_host(coupling);
            if self.allowance(coupling, &pins[*pin], Host::Fresh) == 0 {
                continue;
            }
            let most = share.min(by_host).min(self.most_pods);
            let Some(offer) = self.best_offer(number, most, &pins[*pin]) else { continue };
            if self.strategy.manner == Manner::Incumbent {
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
        (coupling, pin): (&Coupling, &Pin),
        offer: &Offer,
    ) -> usize {
        let allowed = self.allowance(coupling, pin, Host::Fresh);
        let wanted = offer.fit.room.min(allowed).min(count);
        self.push_draft(offer.fit.signature, offer.cap);
        let index = self.drafts.len() - 1;
        let added = self.add(index, number, &offer.fit, wanted);
        if added == 0 {
            self.drafts.pop();
        } else {
            self.tie(index, number, coupling, pin, added);
        }
        added
    }

    /// Ties a draft to its domains and counts the pods that went there.
    fn tie(&mut self, index: usize, number: usize, coupling: &Coupling, pin: &Pin, added: usize) {
        let host = self.host(index);
        let held = &mut self.drafts[index].domains;
        for (key, value) in coupling.keys.iter().zip(&pin.vector) {
            if !held.iter().any(|(other, _)| other == key) {
                held.push((*key, value.clone()));
            }
        }
        let certain = &self.classes.list[number].certain;
        self.ground.topology.record(coupling, certain, &pin.vector, host, added);
    }
}
